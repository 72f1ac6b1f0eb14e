// What the page knows: nodes, the views that the server pushes, ten minutes of figures, and the
// moment that is shown.

import { title, total } from "./format.js";
import { Link, merge } from "./link.js";

const KEPT = 600;
const SOON = 25;
const COLUMNS = ["at", "rate", "busy", "mailbox", "processes", "metas", "delay", "blocked", "cpu", "memory", "crashed", "dead_letters"];

const noColumns = () => Object.fromEntries(COLUMNS.map((name) => [name, []]));

export class Store {
	constructor(token, changed) {
		Object.assign(this, {
			changed,
			nodes: [],
			key: null,
			status: "connecting",
			problem: "",
			permit: ["look"],
			replay: null,
			version: "",
			live: {},
			past: null,
			columns: noColumns(),
			wanted: {},
			skew: 0,
			playing: null,
			names: new Map(),
		});
		this.link = new Link(token, (push) => this.hear(push), (...facts) => this.connected(...facts));
		document.addEventListener("visibilitychange", () => this.watchNow());
	}

	connected(status, problem, hello) {
		Object.assign(this, { status, problem });
		if (hello) {
			Object.assign(this, { permit: hello.permit, replay: hello.replay ?? null, version: hello.ergo_py });
			this.skew = hello.now ? hello.now - Date.now() / 1000 : 0;
			this.live = {};
			this.sent = null;
			if (this.key) this.begin();
		}
		this.changed();
	}

	hear(push) {
		if (push.push === "nodes") this.takeNodes(push.nodes);
		if (push.push === "view" && push.node === this.key) this.takeView(push);
		// The views of a second come one after another: draw them together.
		this.changed(SOON);
	}

	takeNodes(nodes) {
		const before = this.node;
		this.nodes = nodes;
		if (!this.key || !this.node) this.choose(nodes.find((node) => node.key === this.preferred)?.key ?? nodes[0]?.key ?? null);
		else if (before && this.node.creation !== before.creation) this.begin();
	}

	takeView({ view, patch, whole, at, error }) {
		const before = this.live[view];
		this.live[view] = error ? { at, error, value: null } : { at, error: null, value: merge(whole ? null : (before?.value ?? null), patch) };
		if (view === "sample" && !error) this.append(this.live.sample.value);
		for (const rows of [patch?.rows, patch?.nodes, ...Object.values(patch?.levels ?? {}).map((level) => level?.rows)]) this.learn(rows);
	}

	// Remember how processes are called.
	learn(rows) {
		if (this.names.size > 20_000) this.names.clear();
		for (const row of Object.values(rows ?? {})) if (row?.id && row.behaviour) this.names.set(row.id, title(row));
	}

	nameOf(id) {
		return id === 0 ? "the node" : (this.names.get(id) ?? `process ${id}`);
	}

	append(sample) {
		const { columns } = this;
		if (columns.at.length && sample.at <= columns.at.at(-1)) return;
		const newest = { ...sample, delay: sample.loop?.delay ?? null, blocked: sample.loop?.blocked ? 1 : 0, dead_letters: total(sample.dead_letters) };
		for (const name of COLUMNS) columns[name].push(newest[name] ?? null);
		while (columns.at[0] < sample.at - KEPT) for (const name of COLUMNS) columns[name].shift();
	}

	// -- nodes ---------------------------------------------------------------------------------------

	get node() {
		return this.nodes.find((node) => node.key === this.key) ?? null;
	}

	choose(key) {
		this.key = key;
		this.preferred = key ?? this.preferred;
		this.live = {};
		this.names.clear();
		this.past = null;
		this.columns = noColumns();
		if (key && this.status === "open") this.begin();
		this.changed();
	}

	// Ask for what came before, and watch again.
	async begin() {
		this.sent = null;
		this.watchNow();
		const { key } = this;
		try {
			const { columns } = await this.ask("history");
			if (key !== this.key) return;
			const later = this.columns;
			this.columns = Object.assign(noColumns(), columns);
			const end = this.columns.at.at(-1) ?? 0;
			later.at.forEach((at, index) => {
				if (at > end) for (const name of COLUMNS) this.columns[name].push(later[name][index] ?? null);
			});
			if (this.recorded && !this.past && end) await this.travel(end);
		} catch (error) {
			if (error.code !== "lost") this.complain(error);
		}
		this.changed();
	}

	complain(error) {
		this.notice = error.message;
		this.changed();
	}

	get recorded() {
		return this.replay !== null || this.node?.state === "recorded";
	}
	get mayAct() {
		return !this.past && !this.recorded && this.permit.includes("act") && Boolean(this.node?.may?.includes("act"));
	}

	// -- watching ------------------------------------------------------------------------------------

	// The views that the page shows now; `sample` is always among them.
	watch(views) {
		this.wanted = views;
		this.watchNow();
	}

	watchNow() {
		if (this.status !== "open" || !this.key) return;
		const views = document.hidden ? {} : { sample: { kind: "sample" }, ...this.wanted };
		const text = JSON.stringify([this.key, views]);
		if (text === this.sent) return;
		this.sent = text;
		for (const name of Object.keys(this.live)) if (!(name in views) && !document.hidden) delete this.live[name];
		this.link.ask("watch", this.key, { views }).catch((error) => error.code !== "lost" && this.complain(error));
	}

	// The newest state of a view, or its state at the moment that is shown.
	get(view) {
		return this.past ? (this.past.views[view.kind ?? view] ?? null) : (this.live[view]?.value ?? null);
	}
	error(view) {
		return this.past ? null : (this.live[view]?.error ?? null);
	}
	get sample() {
		return this.get("sample");
	}

	ask(what, given, out) {
		return this.link.ask(what, this.key, given, out);
	}

	// -- time ----------------------------------------------------------------------------------------

	get now() {
		return this.past ? this.past.at : (this.live.sample?.value?.at ?? Date.now() / 1000 + this.skew);
	}
	get from() {
		return this.columns.at[0] ?? this.now - 60;
	}
	get to() {
		return this.columns.at.at(-1) ?? this.now;
	}

	// Show the state of a moment. The newest wish wins.
	async travel(at) {
		this.wish = at;
		if (this.travelling) return;
		this.travelling = true;
		try {
			while (this.wish !== null) {
				const wished = this.wish;
				this.wish = null;
				const { key } = this;
				const found = await this.ask("at", { at: wished });
				if (key === this.key) this.past = { at: wished, views: found.views ?? {}, with: found.with ?? {} };
				this.changed();
			}
		} catch (error) {
			this.complain(error);
		} finally {
			this.travelling = false;
		}
	}

	goLive() {
		this.stop();
		if (this.recorded) return;
		this.past = null;
		this.changed();
	}

	play() {
		if (this.playing) return this.stop();
		this.playing = setInterval(() => {
			const next = this.now + 1;
			if (next >= this.to) {
				this.stop();
				if (!this.recorded) return this.goLive();
			}
			this.travel(Math.min(next, this.to));
		}, 1000);
		if (!this.past || this.now >= this.to) this.travel(this.from);
		this.changed();
	}

	stop() {
		clearInterval(this.playing);
		this.playing = null;
		this.changed();
	}
}
