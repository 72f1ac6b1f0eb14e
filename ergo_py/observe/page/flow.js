// Messages along the edges between chosen processes.

import { empty, h, mark, put, reducedMotion, say } from "./dom.js";
import { plural, rate, title } from "./format.js";
import { finder } from "./cells.js";
import { Board, layers } from "./near.js";
import { problem } from "./process.js";
import { plainTable } from "./table.js";

const PARTS = 24,
	SMOOTH = 8,
	LABELS = 14;

export class Flow {
	constructor(page) {
		this.page = page;
		this.start = h("button", { onclick: () => (this.running ? this.running.cancel() : this.run()) }, "Watch for 30 s");
		this.field = finder("Which processes", "The busiest processes");
		this.field.onchange = () => {
			this.rows = null;
			page.rewatch();
		};
		this.heading = page.heading("Flow", "Messages along the edges between processes.", this.field, this.start);
		this.board = new Board("Flow of messages");
		this.none = h(
			"div",
			empty(
				"Nothing is watched yet",
				"For half a minute, the page counts the messages between up to 24 processes: the busiest ones, or those whose name or behaviour you write above. They run a little slower while they are watched.",
			),
		);
		this.board.element.hidden = true;
		this.list = h("section.card", { hidden: true });
		this.element = h("div", this.heading.element, this.none, this.board.element, this.list);
		this.recent = [];
	}

	keeps() {
		return true;
	}
	close() {
		this.running?.cancel();
	}
	get views() {
		return { rows: { kind: "rows", sort: "rate", down: true, find: this.field.value.trim(), from: 0, limit: PARTS } };
	}

	draw() {
		mark(this.start, "disabled", this.page.store.past || this.page.store.recorded ? "" : null);
	}

	titleOf(id) {
		return typeof id === "string" ? `event ${id}` : id === 0 ? "outside" : this.rows.has(id) ? title(this.rows.get(id)) : this.nameOf(id);
	}

	// The name of a process outside of the chosen part: asked once.
	nameOf(id) {
		const { store } = this.page;
		if (!store.names.has(id) && !this.wondered.has(id) && this.wondered.size < 40) {
			this.wondered.add(id);
			store.ask("window", { find: String(id), limit: 1 }).then(
				(found) => {
					store.learn(found.rows);
					this.paint();
				},
				() => {},
			);
		}
		return store.nameOf(id);
	}

	async run() {
		const { store } = this.page;
		const value = store.get("rows");
		if (!value?.order.length) return;
		this.rows = new Map(value.order.map((id) => [Number(id), value.rows[id]]));
		this.recent = [];
		this.known = new Set();
		this.wondered = new Set();
		const mine = (this.running = store.ask("flow", { ids: [...this.rows.keys()], seconds: 30 }, (out) => this.take(out)));
		say(this.start, "Stop");
		this.heading.about("Waiting for messages …");
		try {
			const done = await mine;
			this.heading.about(`${plural(done.messages, "message")} in all; the picture shows the last two seconds.`);
		} catch (error) {
			if (error.code !== "cancelled") put(this.none, problem(error));
			this.none.hidden = error.code === "cancelled";
		}
		this.running = null;
		say(this.start, "Watch for 30 s");
	}

	take(out) {
		this.recent.push(out);
		if (this.recent.length > SMOOTH) this.recent.shift();
		this.paint();
	}

	paint() {
		const seconds = this.recent.reduce((sum, part) => sum + part.seconds, 0) || 1;
		const sums = new Map();
		for (const part of this.recent)
			for (const [from, to, number] of part.edges) sums.set(`${from}\n${to}`, { from, to, messages: (sums.get(`${from}\n${to}`)?.messages ?? 0) + number });
		const edges = [...sums.values()].sort((a, b) => b.messages - a.messages).slice(0, 80);
		const total = edges.reduce((sum, edge) => sum + edge.messages, 0);
		this.heading.about(`${rate(total / seconds)} messages a second along ${plural(edges.length, "edge")}`);
		if (!edges.length) return;
		this.none.hidden = true;
		const between = edges.filter((edge) => edge.from !== edge.to);
		this.board.element.hidden = !between.length;
		for (const edge of between) for (const id of [edge.from, edge.to]) this.known.add(id);
		const ids = [...this.known];
		const most = edges[0].messages;
		const columns = layers(
			ids,
			between.map((edge) => [edge.from, edge.to]),
		).map((column) => [{ title: "", items: column.map((id) => this.rows.get(id) ?? { id, name: this.titleOf(id), behaviour: "" }) }]);
		put(
			this.list,
			h("h2", "Edges"),
			plainTable("Edges", ["From", "To", "Messages a second"], edges.map((edge) => [this.titleOf(edge.from), this.titleOf(edge.to), rate(edge.messages / seconds)]), [2]),
		);
		this.list.hidden = false;
		const still = reducedMotion();
		this.board.update(
			columns,
			between.map((edge, index) => {
				const perSecond = edge.messages / seconds;
				const power = Math.ceil(Math.log10(perSecond + 1));
				return {
					from: edge.from,
					to: edge.to,
					kind: "flow",
					width: Math.round(1 + (edge.messages / most) * 5),
					label: index < LABELS && `${rate(perSecond)}/s`,
					dots: still ? 0 : Math.min(6, power * 2),
					seconds: Math.max(0.6, 2.6 - power * 0.5),
				};
			}),
		);
	}
}
