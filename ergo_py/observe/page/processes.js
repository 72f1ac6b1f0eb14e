// All processes: as a table, and as a tree.

import { h } from "./dom.js";
import { brief, count, percent, plural, rate } from "./format.js";
import { bar, finder, nameCell, stateCell } from "./cells.js";
import { ofAll, Table } from "./table.js";
import { Tree } from "./tree.js";

export class Processes {
	constructor(page, [find]) {
		this.page = page;
		this.find = find ?? page.found ?? "";
		this.field = finder("Find processes", "Name, behaviour or number", () => this.search(this.field.value));
		this.field.addEventListener("keydown", (event) => event.key === "ArrowDown" && this.table.scroller.focus());
		this.field.value = this.find;
		this.heading = page.heading("Processes", "", h("span.find-box", this.field, h("kbd", { "aria-hidden": "true" }, "/")));
		this.table = new Table({
			label: "Processes",
			id: "p",
			sort: "load",
			down: true,
			columns: [
				{ key: "id", label: "Number", number: true, cell: (row) => String(row.id) },
				{ key: "name", label: "Name", of: (row) => `${row.id} ${row.name}`, cell: nameCell },
				{ key: "state", label: "State", of: (row) => row.state + row.phase, cell: (row) => stateCell(row.state, row.phase) },
				{
					key: "load",
					label: "Busy",
					number: true,
					hint: "Share of the time in callbacks",
					of: (row) => percent(row.load),
					cell: (row) => h("span.with-bar", bar(row.load), percent(row.load)),
				},
				{ key: "worst", label: "Worst", number: true, hint: "Highest share of a second in callbacks", cell: (row) => percent(row.worst) },
				{ key: "rate", label: "Msg/s", number: true, hint: "Messages handled in a second", cell: (row) => rate(row.rate) },
				{ key: "mailbox", label: "Queued", number: true, hint: "Messages in the mailbox", cell: (row) => count(row.mailbox) },
				{ key: "messages", label: "Handled", number: true, cell: (row) => count(row.messages) },
				{ key: "sent", label: "Sent", number: true, cell: (row) => count(row.sent) },
				{ key: "time", label: "Time", number: true, hint: "Time in callbacks so far", cell: (row) => (row.kind === "meta" ? "–" : brief(row.time)) },
				{ key: "born", label: "Age", number: true, cell: (row) => brief(Math.max(0, page.store.now - row.born)) },
				{
					key: "callback",
					fixed: true,
					label: "Does",
					cell: (row) => (row.callback ? `${row.callback}${row.message_type ? ` ${row.message_type}` : ""}` : ""),
				},
			],
			want: (window) => {
				this.window = window;
				if (page.view === this) page.rewatch();
			},
			open: (row) => page.open(row),
		});
		this.window ??= this.table.window();
		this.element = h("div.fill", this.heading.element, this.table.element);
	}

	search(text) {
		this.find = this.page.found = text.trim();
		this.table.scroll(0);
		this.table.active = -1;
		this.page.rewatch();
	}

	keeps() {
		return false;
	}
	get views() {
		return { rows: { kind: "rows", find: this.find, ...this.window } };
	}

	draw() {
		const { store } = this.page;
		const value = store.get("rows");
		if (!value) return this.table.update(null, store.error("rows")?.text ?? (store.past ? "No rows were recorded at this moment." : ""));
		const parts = [`${ofAll(value.found, value.alive)} ${value.alive === 1 ? "process" : "processes and meta-processes"}`];
		if (store.past) parts.push(`recorded: ${plural(value.order.length, "row")}`);
		else parts.push(`${rate(value.rate)} messages a second`, `${count(value.mailbox)} queued`);
		this.heading.about(parts.join(" · "));
		this.table.update(value, value.found ? "" : `No process has “${this.find}” in its name or behaviour.`);
	}
}

export class TreeView {
	constructor(page) {
		this.page = page;
		this.heading = page.heading("Tree", "Who started whom. Children that should run and do not are listed, too.");
		this.tree = new Tree({ label: "Tree of processes", change: () => page.rewatch(), open: (row) => page.open(row) });
		this.element = h("div", this.heading.element, h("div.card", this.tree.element));
	}

	keeps() {
		return true;
	}
	get views() {
		return { children: { kind: "children", of: this.tree.levelsWanted } };
	}

	draw() {
		const { store } = this.page;
		const value = store.get("children");
		const { sample } = store;
		const root = { name: store.node?.name ?? "node", behaviour: "", kind: "node", children: value?.levels?.[0]?.count ?? 0, rate: sample?.rate, mailbox: sample?.mailbox };
		this.tree.update(value?.levels, root);
	}
}
