// The tree of applications, supervisors, processes and meta-processes, level by level.

import { h, mark, put, say } from "./dom.js";
import { count, rate } from "./format.js";

const STEP = 20;
const FEW = 12;

// level(id) → {count, order, rows} or undefined while it is not known; change(): other levels are
// open; open(row): a process was chosen.
export class Tree {
	constructor({ label, change, open }) {
		Object.assign(this, { change, open, opened: new Set([0]), closed: new Set(), lines: new Map(), active: null, shown: [] });
		this.element = h("div.tree", { role: "tree", tabindex: "0", "aria-label": label, onkeydown: (event) => this.key(event) });
	}

	update(levels, root) {
		this.levels = levels ?? {};
		if (levels) this.forget();
		this.openShort();
		this.shown = [{ id: 0, key: "0", row: root, depth: 0, set: 1, place: 1 }];
		if (this.opened.has(0)) this.collect(0, 1);
		const kept = new Map();
		put(
			this.element,
			this.shown.map((item) => {
				const line = this.lines.get(item.key) ?? this.newLine();
				kept.set(item.key, line);
				this.fill(line, item);
				return line.element;
			}),
		);
		this.lines = kept;
		if (!this.shown.some((item) => item.key === this.active)) this.active = null;
		this.showActive();
		if (this.changed) {
			this.changed = false;
			this.change();
		}
	}

	// Processes that have ended are neither open nor closed.
	forget() {
		const known = new Set([0, ...Object.values(this.levels).flatMap((level) => level.order)]);
		for (const ids of [this.opened, this.closed]) for (const id of ids) known.has(id) || ids.delete(id);
	}

	// Short levels open by themselves until the tree fills a screen; those of supervisors always.
	openShort() {
		let room = 40;
		for (const level of Object.values(this.levels)) room -= level.order.length;
		for (const level of Object.values(this.levels))
			for (const key of level.order) {
				const row = level.rows[key];
				if (!row?.children || (row.children > room && !(row.supervisor && row.children <= FEW)) || this.closed.has(row.id) || this.opened.has(row.id)) continue;
				this.opened.add(row.id);
				room -= row.children;
				this.changed = true;
			}
	}

	collect(id, depth) {
		const level = this.levels[id];
		if (!level) return;
		level.order.forEach((key, index) => {
			const row = level.rows[key];
			if (!row) return;
			this.shown.push({ id: row.id ?? null, key: `${id}/${key}`, row, depth, set: level.count, place: index + 1 });
			if (row.id && this.opened.has(row.id)) this.collect(row.id, depth + 1);
		});
		const more = level.count - level.order.length;
		if (more > 0) this.shown.push({ id: null, key: `${id}/more`, more, depth, row: null, set: level.count, place: level.order.length + 1 });
	}

	newLine() {
		const line = {
			twist: h("span.twist", { "aria-hidden": "true" }),
			dot: h("span.dot", { "aria-hidden": "true" }),
			name: h("span.tree-name"),
			about: h("span.tree-about"),
			note: h("span.tree-note"),
			side: h("span.tree-side"),
		};
		line.element = h("div.tree-line", { role: "treeitem" }, line.twist, line.dot, line.name, line.about, line.note, line.side);
		line.twist.addEventListener("click", (event) => {
			event.stopPropagation();
			this.active = line.item.key;
			this.turn(line.item);
		});
		line.element.addEventListener("click", () => {
			this.active = line.item.key;
			this.showActive();
			this.choose(line.item);
		});
		return line;
	}

	fill(line, item) {
		line.item = item;
		const { row, depth } = item;
		const { element } = line;
		element.id = `tree-${item.key.replaceAll(/[^\w]/g, "_")}`;
		element.style.setProperty("--depth", `${depth * STEP}px`);
		mark(element, "aria-level", depth + 1);
		mark(element, "aria-setsize", item.set);
		mark(element, "aria-posinset", item.place);
		const inner = item.id === 0 || row?.children > 0;
		mark(element, "aria-expanded", inner ? String(this.opened.has(item.id)) : null);
		if (item.more) {
			element.className = "tree-line more";
			say(line.name, `${count(item.more)} more`);
			say(line.about, "find them in the table of processes");
			say(line.note, "");
			say(line.side, "");
			return;
		}
		const missing = item.id === null;
		element.className = `tree-line ${row.kind ?? ""} ${row.supervisor || item.id === 0 ? "supervisor" : ""} ${missing ? "missing" : ""} s-${(row.state ?? "").replace(/\W/g, "")}`;
		say(line.name, row.name || row.child || row.behaviour);
		say(line.about, row.name || row.child ? (row.behaviour ?? "") : (row.id ?? ""));
		const notes = [];
		if (row.application) notes.push(`application ${row.application}`);
		if (row.phase && row.phase !== "running") notes.push(row.phase);
		if (row.restarts) notes.push(`${count(row.restarts)} ${row.restarts === 1 ? "restart" : "restarts"}`);
		if (row.state === "suspended") notes.push("suspended");
		say(line.note, notes.join(" · "));
		line.note.classList.toggle("bad", missing || ["failed", "backing off", "disabled"].includes(row.phase));
		const side = [];
		if (row.children) side.push(`${count(row.children)} below`);
		if (row.mailbox) side.push(`${count(row.mailbox)} queued`);
		if (row.rate >= 0.05) side.push(`${rate(row.rate)}/s`);
		say(line.side, missing ? (row.reason ?? "") : side.join("  ·  "));
		line.element.title = missing ? (row.reason ?? "") : "";
	}

	turn(item, wish = !this.opened.has(item.id)) {
		if (item.id !== 0 && !item.row?.children) return;
		if (wish) {
			this.opened.add(item.id);
			this.closed.delete(item.id);
		} else {
			this.opened.delete(item.id);
			this.closed.add(item.id);
		}
		this.change();
		this.update(this.levels, this.shown[0].row);
	}

	choose(item) {
		if (item.id && item.row) this.open(item.row);
		else if (item.id === 0) this.turn(item);
	}

	// The numbers whose level is open and visible.
	get levelsWanted() {
		return [...this.opened].slice(0, 100);
	}

	showActive() {
		let found = null;
		for (const [key, line] of this.lines) {
			line.element.classList.toggle("active", key === this.active);
			mark(line.element, "aria-selected", key === this.active ? "true" : null);
			if (key === this.active) found = line.element;
		}
		mark(this.element, "aria-activedescendant", found?.id ?? null);
		return found;
	}

	key(event) {
		if (event.ctrlKey || event.metaKey || event.altKey) return;
		const at = this.shown.findIndex((item) => item.key === this.active);
		const item = this.shown[at];
		const go = (index) => {
			this.active = this.shown[Math.max(0, Math.min(this.shown.length - 1, index))]?.key ?? null;
		};
		if (event.key === "ArrowDown") go(at + 1);
		else if (event.key === "ArrowUp") go(at < 0 ? 0 : at - 1);
		else if (event.key === "Home") go(0);
		else if (event.key === "End") go(this.shown.length - 1);
		else if (event.key === "ArrowRight" && item) this.opened.has(item.id) ? go(at + 1) : this.turn(item, true);
		else if (event.key === "ArrowLeft" && item) {
			if (item.id !== null && this.opened.has(item.id)) this.turn(item, false);
			else go(this.shown.findLastIndex((other, index) => index < at && other.depth < item.depth));
		} else if ((event.key === "Enter" || event.key === " ") && item) this.choose(item);
		else return;
		event.preventDefault();
		this.showActive()?.scrollIntoView({ block: "nearest" });
	}
}
