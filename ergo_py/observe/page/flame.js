// A flame graph: the widest frames cost the most. Arrow keys walk, Enter looks closer.

import { h, mark, put, say } from "./dom.js";
import { count, percent } from "./format.js";

const ROW = 22;

export function buildFlame(stacks) {
	const root = { name: "all", total: 0, self: 0, below: new Map() };
	for (const [frames, samples] of stacks) {
		root.total += samples;
		let place = root;
		for (const frame of frames) {
			if (!place.below.has(frame)) place.below.set(frame, { name: frame, total: 0, self: 0, below: new Map(), up: place });
			place = place.below.get(frame);
			place.total += samples;
		}
		place.self += samples;
	}
	return root;
}

// The functions with the most samples of their own.
export function hottest(stacks, most = 12) {
	const own = new Map();
	let total = 0;
	for (const [frames, samples] of stacks) {
		total += samples;
		const name = frames.at(-1);
		own.set(name, (own.get(name) ?? 0) + samples);
	}
	return [...own]
		.sort((a, b) => b[1] - a[1])
		.slice(0, most)
		.map(([name, samples]) => ({ name, samples, share: samples / (total || 1) }));
}

// The frames above a frame, the widest first.
const largest = (frame) => [...frame.below.values()].sort((a, b) => b.total - a.total);

function hue(name) {
	let sum = 7;
	for (const letter of name) sum = (sum * 31 + letter.charCodeAt(0)) % 997;
	return sum % 3;
}

export class Flame {
	constructor() {
		this.words = h("p.flame-words", { "aria-live": "polite" }, " ");
		this.graph = h("div.flame", { role: "tree", tabindex: "0", "aria-label": "Flame graph", onkeydown: (event) => this.key(event), onmouseleave: () => this.tell(this.active) });
		this.back = h("button.quiet", { hidden: true, onclick: () => this.zoom(this.root) }, "Show all");
		this.element = h("div.flame-box", h("div.flame-head", this.words, this.back), this.graph);
	}

	show(stacks) {
		this.root = buildFlame(stacks);
		this.zoom(this.root);
	}

	zoom(frame) {
		this.top = frame;
		this.active = frame;
		this.back.hidden = frame === this.root;
		this.boxes = [];
		const place = (item, depth, left) => {
			const share = item.total / frame.total;
			if (share < 0.002) return;
			this.boxes.push({ item, depth, left, share });
			let x = left;
			for (const below of largest(item)) {
				place(below, depth + 1, x);
				x += below.total / frame.total;
			}
		};
		place(frame, 0, 0);
		this.elements = new Map();
		const depth = Math.max(...this.boxes.map((box) => box.depth));
		this.graph.style.height = `${(depth + 1) * ROW}px`;
		put(
			this.graph,
			this.boxes.map((box, index) => {
				const element = h(
					`div.frame.hue-${hue(box.item.name)}`,
					{
						role: "treeitem",
						id: `frame-${index}`,
						"aria-level": String(box.depth + 1),
						title: this.tellText(box.item),
						"aria-label": this.tellText(box.item),
						onclick: () => this.zoom(box.item === this.top ? (this.top.up ?? this.root) : box.item),
						onmouseenter: () => this.tell(box.item),
					},
					box.share > 0.03 ? h("span", box.item.name) : "",
				);
				element.style.left = `${box.left * 100}%`;
				element.style.width = `${box.share * 100}%`;
				element.style.top = `${box.depth * ROW}px`;
				this.elements.set(box.item, element);
				return element;
			}),
		);
		this.choose(frame);
	}

	tellText(item) {
		const share = percent(item.total / (this.root.total || 1));
		return `${item.name}: ${share}, ${count(item.total)} samples${item.self ? `, ${count(item.self)} of them in this function itself` : ""}`;
	}

	tell(item) {
		if (item) say(this.words, this.tellText(item));
	}

	choose(item) {
		if (!item || !this.elements.has(item)) return;
		this.elements.get(this.active)?.classList.remove("active");
		this.active = item;
		const element = this.elements.get(item);
		element.classList.add("active");
		mark(this.graph, "aria-activedescendant", element.id);
		this.tell(item);
	}

	key(event) {
		const { active } = this;
		const beside = active.up ? largest(active.up) : [];
		const at = beside.indexOf(active);
		const go = {
			ArrowDown: () => this.choose(largest(active)[0]),
			ArrowUp: () => this.choose(active.up),
			ArrowLeft: () => this.choose(beside[at - 1]),
			ArrowRight: () => this.choose(beside[at + 1]),
			Enter: () => this.zoom(active),
			Escape: () => this.zoom(this.root),
			Home: () => this.zoom(this.root),
		}[event.key];
		if (!go) return;
		event.preventDefault();
		go();
	}
}
