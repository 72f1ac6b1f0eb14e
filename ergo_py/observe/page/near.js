// Processes as cards in columns, with curves between them: the neighbourhood of a process, and flow.

import { h, mark, put, s, say } from "./dom.js";
import { count, percent } from "./format.js";

// columns: [[{title, items: [row]}]]; edges: [{from, to, kind, label, speed}] by number. A card is
// drawn once for each process; where there is no room for columns, they stand below each other
// without curves.
export class Board {
	constructor(label, choose) {
		this.choose = choose;
		this.cards = new Map();
		this.svg = s("svg.board-lines", { "aria-hidden": "true" });
		this.columns = h("div.board-columns");
		this.element = h("div.board", { role: "group", "aria-label": label }, this.svg, this.columns);
		new ResizeObserver(() => this.connect()).observe(this.element);
	}

	update(columns, edges, note = () => "") {
		const shape = JSON.stringify(columns.map((groups) => groups.map((group) => [group.title, group.items.map((row) => row.id)])));
		if (shape !== this.shape) {
			this.shape = shape;
			this.cards = new Map();
			put(
				this.columns,
				columns.map((groups) =>
					h("div.board-column", groups.map((group) => h("div.board-group", group.title && h("h2.soft", group.title), h("ul", group.items.map((row) => h("li", this.card(row))))))),
				),
			);
			this.curves = null;
		}
		for (const group of columns.flat()) for (const row of group.items) this.fill(row, note(row));
		this.edges = edges;
		this.connect();
	}

	card(row) {
		const parts = { name: h("span.card-name"), about: h("span.card-about"), note: h("span.card-note") };
		parts.element =
			typeof row.id === "number" && row.id > 0
				? h(`a.pcard${row.kind === "meta" ? ".meta" : ""}${row.center ? ".center" : ""}`, { href: `#/process/${row.id}` }, parts.name, parts.about, parts.note)
				: h("span.pcard.outside", parts.name, parts.about, parts.note);
		this.cards.set(row.id, parts);
		return parts.element;
	}

	fill(row, note) {
		const parts = this.cards.get(row.id);
		say(parts.name, row.name || row.behaviour || row.id);
		say(parts.about, row.name ? (row.behaviour ?? "") : row.id || "");
		say(parts.note, note);
		parts.note.hidden = !note;
	}

	connect() {
		if (!this.edges) return;
		const frame = this.element.getBoundingClientRect();
		const wide = frame.width >= 620;
		this.svg.toggleAttribute("hidden", !wide);
		this.svg.style.display = wide ? "" : "none";
		if (!wide || !frame.width) return;
		mark(this.svg, "viewBox", `0 0 ${Math.round(frame.width)} ${Math.round(this.element.scrollHeight)}`);
		mark(this.svg, "width", Math.round(frame.width));
		mark(this.svg, "height", Math.round(this.element.scrollHeight));
		const boxes = new Map([...this.cards].map(([id, parts]) => [id, parts.element.getBoundingClientRect()]));
		const lines = this.edges
			.filter((edge) => boxes.has(edge.from) && boxes.has(edge.to) && edge.from !== edge.to)
			.map((edge) => {
				const d = curve(boxes.get(edge.from), boxes.get(edge.to), frame, edge.way ?? 0);
				return { edge, d, key: `${edge.from} ${edge.to} ${edge.kind}` };
			});
		const shape = JSON.stringify(lines.map((line) => [line.key, line.d.path, line.edge.label && 1, line.edge.dots]));
		if (shape !== this.curves) {
			this.curves = shape;
			this.labels = new Map();
			this.svg.replaceChildren(...lines.flatMap(({ edge, d, key }) => this.draw(edge, d, key)));
		}
		for (const { edge, key } of lines) if (edge.label) say(this.labels.get(key), edge.label);
	}

	draw(edge, d, key) {
		const made = [s(`path.edge.e-${edge.kind}`, { d: d.path, "stroke-width": edge.width ?? 1.5 })];
		made.push(s(`path.tip.e-${edge.kind}`, { d: d.tip }));
		for (let index = 0; index < (edge.dots ?? 0); index += 1) {
			const time = edge.seconds ?? 2;
			made.push(s(`circle.flow-dot`, { r: 3 }, s("animateMotion", { dur: `${time}s`, begin: `${-(index * time) / edge.dots}s`, repeatCount: "indefinite", path: d.path })));
		}
		if (edge.label) {
			const text = s("text.edge-label", { x: d.middle[0], y: d.middle[1] - 5, "text-anchor": "middle" });
			this.labels.set(key, text);
			made.push(text);
		}
		return made;
	}
}

// A curve between two boxes: sideways where they are in different columns, around where not.
function curve(a, b, frame, way) {
	const ay = a.top + a.height / 2 - frame.top,
		by = b.top + b.height / 2 - frame.top;
	const right = b.left > a.right - 8,
		left = b.right < a.left + 8;
	const shift = way * 7;
	if (right || left) {
		const x1 = (right ? a.right : a.left) - frame.left,
			x2 = (right ? b.left - 6 : b.right + 6) - frame.left;
		const bend = Math.max(30, Math.abs(x2 - x1) * 0.45) * (right ? 1 : -1);
		const y1 = ay + shift,
			y2 = by + shift;
		return { path: `M${n(x1)} ${n(y1)}C${n(x1 + bend)} ${n(y1)} ${n(x2 - bend)} ${n(y2)} ${n(x2)} ${n(y2)}`, tip: tip(x2, y2, right ? 1 : -1), middle: [n((x1 + x2) / 2), n((y1 + y2) / 2)] };
	}
	const x = a.right - frame.left,
		x2 = b.right + 6 - frame.left,
		bend = 34 + Math.abs(ay - by) * 0.12;
	return { path: `M${n(x)} ${n(ay)}C${n(x + bend)} ${n(ay)} ${n(x2 + bend)} ${n(by)} ${n(x2)} ${n(by)}`, tip: tip(x2, by, -1), middle: [n(x + bend * 0.8), n((ay + by) / 2)] };
}

const n = (value) => Math.round(value * 10) / 10;
const tip = (x, y, way) => `M${n(x + 6 * way)} ${n(y)}L${n(x - 1 * way)} ${n(y - 4)}L${n(x - 1 * way)} ${n(y + 4)}Z`;

const DEEPEST = 5;
const INTO = { owner: "Owner", link: "Linked from", monitor: "Watched by", waits: "Waited for by" };
const OUT = { owner: "Owns", link: "Linked to", monitor: "Watches", waits: "Waits for" };

// The columns of a neighbourhood: who points at the process, the process, whom it points at.
export function neighbourhood({ center, nodes, edges }) {
	const seen = new Set([center]);
	const pick = (kind, from, to) =>
		edges
			.filter((edge) => edge[2] === kind && edge[to] === center && !seen.has(edge[from]))
			.map((edge) => {
				seen.add(edge[from]);
				return edge[from] ? nodes[edge[from]] : { id: 0, name: "the node", behaviour: "" };
			})
			.filter(Boolean);
	const side = (words, from, to) =>
		Object.entries(words)
			.map(([kind, title]) => ({ title, items: pick(kind, from, to) }))
			.filter((group) => group.items.length);
	const left = side(INTO, 0, 1),
		right = side(OUT, 1, 0);
	const rest = Object.values(nodes).filter((row) => !seen.has(row.id));
	if (rest.length) right.push({ title: "Near these", items: rest });
	const columns = [left, [{ title: "", items: [{ ...nodes[center], center: true }] }], right].filter((groups) => groups.length);
	const ways = { owner: 0, link: 1, monitor: -1, waits: 2 };
	return { columns, edges: edges.map(([from, to, kind]) => ({ from, to, kind, way: ways[kind] ?? 0 })) };
}

export function cardNote(row) {
	const parts = [];
	if (row.state && !["sleep", "running"].includes(row.state)) parts.push(row.state);
	if (row.mailbox) parts.push(`${count(row.mailbox)} queued`);
	if (row.load >= 0.01) parts.push(`${percent(row.load)} busy`);
	return parts.join(" · ");
}

// The layers of a graph: a process stands right of those that send to it. Edges come with the
// strongest first; an edge that would close a circle does not count.
export function layers(ids, edges) {
	const out = new Map(ids.map((id) => [id, new Set()]));
	const reaches = (from, to, seen = new Set([from])) => from === to || [...out.get(from)].some((next) => !seen.has(next) && reaches(next, to, seen.add(next)));
	for (const [from, to] of edges) if (!reaches(to, from)) out.get(from).add(to);
	const depth = new Map(ids.map((id) => [id, 0]));
	const push = (id) => {
		for (const to of out.get(id)) {
			if (depth.get(to) > depth.get(id) || depth.get(id) === DEEPEST) continue;
			depth.set(to, depth.get(id) + 1);
			push(to);
		}
	};
	ids.forEach(push);
	// Senders move right, next to the nearest of their receivers.
	for (const id of [...ids].sort((a, b) => depth.get(b) - depth.get(a)))
		if (out.get(id).size) depth.set(id, Math.max(depth.get(id), Math.min(...[...out.get(id)].map((to) => depth.get(to))) - 1));
	const columns = [];
	for (const id of ids) (columns[depth.get(id)] ??= []).push(id);
	return columns.filter(Boolean);
}
