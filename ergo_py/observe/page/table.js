// A table of any number of rows: only the visible ones exist, and the server sends a window of them.

import { h, mark, say } from "./dom.js";
import { count } from "./format.js";

const HEIGHT = 32;
const AHEAD = 12;

// columns: [{key, label, hint, number, fixed, cell(row) → text, or an element, and then of(row)
// → a text that changes with it}].
// want({sort, down, from, limit}): the window that the table needs has changed.
// open(row): a row was chosen.
export class Table {
	constructor({ label, columns, sort, down, want, open, id }) {
		Object.assign(this, { columns, sort, down, want, open, id, active: -1, found: 0, from: 0, rows: [], pool: [], top: 0, height: 600 });
		this.heads = columns.map((column) =>
			h(
				`div.th.c-${column.key}${column.number ? ".number" : ""}`,
				{ role: "columnheader", title: column.hint },
				!column.fixed
					? h("button.sort", { tabindex: "-1", onclick: () => this.sortBy(column) }, h("span", column.label), h("span.arrow", { "aria-hidden": "true" }))
					: column.label,
			),
		);
		this.head = h("div.tr.head", { role: "row", "aria-rowindex": "1" }, this.heads);
		this.body = h("div.rows", { role: "rowgroup" });
		this.none = h("div.table-none", { hidden: true });
		this.scroller = h(
			"div.scroller",
			{
				role: "grid",
				tabindex: "0",
				"aria-label": label,
				"aria-readonly": "true",
				onscroll: () => {
					this.top = this.scroller.scrollTop;
					this.place();
				},
				onkeydown: (event) => this.key(event),
			},
			h("div.table-head", { role: "rowgroup" }, this.head),
			this.body,
		);
		this.element = h("div.table", this.scroller, this.none);
		// Reading them from the element would lay out the page in the middle of a redraw.
		new ResizeObserver(([{ contentRect }]) => {
			this.height = contentRect.height || 600;
			this.place();
		}).observe(this.scroller);
		this.showSort();
	}

	sortBy(column) {
		this.down = this.sort === column.key ? !this.down : column.number;
		this.sort = column.key;
		this.showSort();
		this.scroll(0);
		this.ask(true);
	}

	showSort() {
		this.columns.forEach((column, index) => {
			const chosen = column.key === this.sort;
			mark(this.heads[index], "aria-sort", chosen ? (this.down ? "descending" : "ascending") : column.fixed ? null : "none");
		});
	}

	get visible() {
		return Math.ceil(this.height / HEIGHT);
	}
	get first() {
		return Math.max(0, Math.floor(this.top / HEIGHT));
	}

	// The window that covers what is visible, in steps, so that small movements ask nothing new.
	window() {
		const from = Math.max(0, Math.floor((this.first - AHEAD) / AHEAD) * AHEAD);
		return {
			sort: this.sort,
			// The highest age is the lowest time of birth.
			down: Boolean(this.down) !== (this.sort === "born"),
			from,
			limit: Math.min(500, this.visible + 3 * AHEAD),
		};
	}

	ask(now = false) {
		const wanted = this.window();
		const text = JSON.stringify(wanted);
		if (!now && text === this.asked) return;
		this.asked = text;
		this.want(wanted);
	}

	// value: what the server sent: {order, rows, from, found}.
	update(value, message = "") {
		this.rows = value ? value.order.map((id) => value.rows[id]) : [];
		this.from = value?.from ?? 0;
		this.found = value?.found ?? 0;
		this.none.hidden = !message;
		say(this.none, message);
		mark(this.scroller, "aria-rowcount", this.found + 1);
		this.body.style.height = `${this.found * HEIGHT}px`;
		if (this.active >= this.found) this.active = this.found - 1;
		this.place();
	}

	place() {
		this.ask();
		const first = Math.max(0, this.first - 4);
		const last = Math.min(this.found, this.first + this.visible + 4);
		while (this.pool.length < last - first) this.pool.push(this.newRow());
		this.pool.forEach((line, index) => {
			const number = first + ((index - (first % this.pool.length) + this.pool.length) % this.pool.length);
			line.element.hidden = number >= last;
			if (number < last) this.fill(line, number);
		});
		mark(this.scroller, "aria-activedescendant", this.active >= first && this.active < last ? `${this.id}-${this.active}` : null);
	}

	newRow() {
		const cells = this.columns.map((column) => h(`div.td.c-${column.key}${column.number ? ".number" : ""}`, { role: "gridcell" }));
		const element = h("div.tr.row", { role: "row" }, cells);
		const line = { element, cells, keys: [], number: -1 };
		element.addEventListener("click", () => {
			this.active = line.number;
			this.place();
			if (line.row) this.open(line.row);
		});
		this.body.append(element);
		return line;
	}

	fill(line, number) {
		const row = this.rows[number - this.from];
		const { element } = line;
		if (line.number !== number) {
			line.number = number;
			element.style.transform = `translateY(${number * HEIGHT}px)`;
			element.id = `${this.id}-${number}`;
			mark(element, "aria-rowindex", number + 2);
		}
		element.classList.toggle("active", number === this.active);
		element.classList.toggle("even", number % 2 === 0);
		element.classList.toggle("pending", !row);
		mark(element, "aria-selected", number === this.active ? "true" : null);
		if (line.row === row && row) return;
		line.row = row;
		fillCells(this.columns, line, row);
	}

	key(event) {
		if (event.target !== this.scroller || event.ctrlKey || event.metaKey || event.altKey) return;
		const page = Math.max(1, this.visible - 2);
		const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
		if (event.key === "Enter") {
			const row = this.rows[this.active - this.from];
			if (row) this.open(row);
		} else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
			const sortable = this.columns.filter((column) => !column.fixed);
			const at = sortable.findIndex((column) => column.key === this.sort) + (event.key === "ArrowRight" ? 1 : -1);
			if (sortable[at]) this.sortBy(sortable[at]);
		} else if (event.key in steps) {
			this.active = Math.max(0, Math.min(this.found - 1, this.active + steps[event.key]));
			this.reveal();
		} else return;
		event.preventDefault();
	}

	reveal() {
		const top = this.active * HEIGHT;
		const room = this.height - HEIGHT - 4;
		if (top < this.top) this.scroll(top);
		else if (top + HEIGHT > this.top + room) this.scroll(top + HEIGHT - room);
		this.place();
	}

	scroll(top) {
		this.scroller.scrollTop = top;
		this.top = this.scroller.scrollTop;
	}
}

// A short table whose cells change in place. Columns as above, without sorting.
export class LiveTable {
	constructor(label, columns) {
		this.columns = columns;
		this.lines = [];
		this.body = h("tbody");
		const numbers = columns.map((column, index) => column.number && index);
		this.element = plainTable(label, columns.map((column) => column.label), [], numbers, this.body);
	}

	update(rows) {
		while (this.lines.length < rows.length) {
			const cells = this.columns.map(({ number }) => h(number ? "td.number" : "td"));
			this.lines.push({ element: h("tr", cells), cells, keys: [] });
		}
		this.lines.forEach((line, index) => {
			if (index >= rows.length) return line.element.remove();
			if (!line.element.isConnected) this.body.append(line.element);
			fillCells(this.columns, line, rows[index]);
		});
	}
}

// Change the cells of a row whose keys differ.
function fillCells(columns, line, row) {
	columns.forEach((column, index) => {
		const key = row ? (column.of ?? column.cell)(row) : "";
		if (line.keys[index] === key) return;
		line.keys[index] = key;
		line.cells[index].replaceChildren(...(row ? [column.cell(row)].flat() : []));
	});
}

// A plain table for short lists. rows: arrays of texts or elements; numbers: the columns of numbers.
export function plainTable(label, heads, rows, numbers = [], body = null) {
	const kind = (index) => (numbers.includes(index) ? ".number" : "");
	const cells = (row) =>
		h("tr", row.map((cell, index) => h(`td${kind(index)}`, cell)));
	return h(
		"div.plain-wrap",
		h("table.plain", { "aria-label": label }, h("thead", h("tr", heads.map((head, index) => h(`th${kind(index)}`, { scope: "col" }, head)))), body ?? h("tbody", rows.map(cells))),
	);
}

export const ofAll = (found, alive) => (found === alive ? count(alive) : `${count(found)} of ${count(alive)}`);
