// The connection to the server: requests, streams, what the server pushes, and connecting again.

const CLOSED = { 4401: ["refused", "The token of this address is not the one of the running program."], 4429: ["full", "Eight pages are open already. Close one of them, and try again."] };

export class Link {
	// `token`: the secret of the address. `hear(push)`: gets each pushed message. `change(status,
	// text)`: connecting, open, lost, refused, full.
	constructor(token, hear, change) {
		Object.assign(this, { token, hear, change, number: 0, waiting: new Map(), delay: 250 });
		this.connect();
	}

	connect() {
		clearTimeout(this.timer);
		this.change("connecting", "");
		const scheme = location.protocol === "https:" ? "wss:" : "ws:";
		const socket = new WebSocket(`${scheme}//${location.host}/ws`);
		this.socket = socket;
		socket.onopen = () => socket.send(JSON.stringify({ hello: 1, token: this.token }));
		socket.onmessage = (event) => this.receive(JSON.parse(event.data));
		socket.onclose = (event) => this.closed(event.code);
	}

	receive(message) {
		if (message.push === "hello") {
			this.delay = 250;
			this.change("open", "", message);
		}
		if (message.push) return this.hear(message);
		const waiting = this.waiting.get(message.id);
		if (!waiting) return;
		if ("out" in message) return waiting.out?.(message.out);
		this.waiting.delete(message.id);
		if (message.ok) waiting.done(message.result);
		else waiting.fail(Object.assign(new Error(message.error.text), message.error));
	}

	closed(code) {
		const lost = Object.assign(new Error("The connection to the page's server is lost."), { code: "lost" });
		for (const waiting of this.waiting.values()) waiting.fail(lost);
		this.waiting.clear();
		if (CLOSED[code]) return this.change(...CLOSED[code]);
		this.change("lost", "");
		this.delay = Math.min(this.delay * 2, 10_000);
		this.timer = setTimeout(() => this.connect(), this.delay * (0.75 + Math.random() / 2));
	}

	// Ask for something. `out` gets what comes before the answer.
	ask(what, node, given = {}, out = null) {
		const id = ++this.number;
		const answer = new Promise((done, fail) => {
			if (this.socket.readyState !== WebSocket.OPEN) {
				return fail(Object.assign(new Error("The page is not connected."), { code: "lost" }));
			}
			this.waiting.set(id, { done, fail, out });
			this.socket.send(JSON.stringify({ id, do: what, ...(node ? { node } : {}), with: given }));
		});
		answer.id = id;
		answer.cancel = () => this.waiting.has(id) && this.ask("cancel", node, { id }).catch(() => {});
		return answer;
	}
}

// JSON merge patch (RFC 7396). Objects that do not change stay the same objects.
export function merge(before, patch) {
	if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
	const known = before !== null && typeof before === "object" && !Array.isArray(before);
	const after = Object.assign(Object.create(null), known ? before : {});
	for (const [name, value] of Object.entries(patch)) {
		if (value === null) delete after[name];
		else after[name] = merge(after[name] ?? null, value);
	}
	return after;
}
