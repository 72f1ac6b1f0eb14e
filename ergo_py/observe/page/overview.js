// The node at a glance.

import { Chart } from "./chart.js";
import { h } from "./dom.js";
import { bytes, count, duration, percent, plural, rate, short, total } from "./format.js";
import { bar, card, nameCell, Tiles } from "./cells.js";
import { LiveTable } from "./table.js";

const SHOWN = 8;

export class Overview {
	constructor(page) {
		this.page = page;
		this.heading = page.heading("Overview");
		this.tiles = new Tiles({ processes: "Processes", rate: "Messages a second", mailbox: "Queued messages", delay: "Delay of the loop", cpu: "Processor", crashed: "Crashes" });
		this.charts = {
			rate: new Chart({ label: "Messages a second", show: rate, least: 1 }),
			mailbox: new Chart({ label: "Queued messages", show: short, colour: "violet", least: 4 }),
			delay: new Chart({ label: "Delay of the loop", show: duration, colour: "amber", least: 0.01, floor: 0.0001, note: "logarithmic" }),
			cpu: new Chart({ label: "Processor", show: percent, colour: "green", least: 0.1 }),
		};
		const mailbox = { label: "Queued", number: true, cell: (row) => count(row.mailbox) };
		const handled = { label: "Msg/s", number: true, cell: (row) => rate(row.rate) };
		this.busiest = new LiveTable("Busiest processes", [
			{
				label: "Process",
				of: (row) => `${row.id} ${row.name} ${row.behaviour}`,
				cell: (row) => h("a.row-link", { href: `#/process/${row.id}` }, nameCell(row)),
			},
			{ label: "Busy", number: true, of: (row) => percent(row.load), cell: (row) => [bar(row.load), percent(row.load)] },
			handled,
			mailbox,
		]);
		this.behaviours = new LiveTable("Behaviours", [
			{
				label: "Behaviour",
				of: (row) => row.name,
				cell: ({ name }) => (name === "other" ? h("span.soft", "others") : h("a.row-link", { href: `#/processes/${encodeURIComponent(name)}` }, name)),
			},
			{ label: "Count", number: true, of: (row) => `${row.count} ${row.most}`, cell: (row) => [bar(row.count / row.most, "violet"), count(row.count)] },
			{ label: "Busy", number: true, cell: (row) => percent(row.load) },
			handled,
			mailbox,
		]);
		this.element = h(
			"div",
			this.heading.element,
			this.tiles.element,
			h("div.charts", Object.values(this.charts).map((chart) => chart.element)),
			h("div.two", card("Busiest processes", this.busiest.element), card("Behaviours", this.behaviours.element)),
		);
	}

	get views() {
		return { rows: { kind: "rows", sort: "load", down: true, from: 0, limit: SHOWN } };
	}

	draw() {
		const { store } = this.page;
		const { sample, columns } = store;
		if (!sample) return;
		this.heading.about(sample.stopping ? "The node is stopping." : this.sentence(sample));
		this.drawTiles(sample);
		const from = Math.min(store.from, store.to - 60);
		const blocked = columns.at.filter((_, index) => columns.blocked[index]);
		const until = store.past ? columns.at.findLastIndex((at) => at <= store.now) + 1 : columns.at.length;
		for (const [key, chart] of Object.entries(this.charts)) {
			chart.update(columns.at.slice(0, until).map((at, index) => [at, columns[key][index]]), from, store.to, key === "delay" ? blocked : []);
		}
		const rows = store.get("rows");
		this.busiest.update(rows ? rows.order.map((id) => rows.rows[id]).slice(0, SHOWN) : []);
		this.drawBehaviours(sample.behaviours ?? {});
	}

	sentence(sample) {
		const parts = [plural(sample.processes, "process", "processes"), plural(sample.metas, "meta-process", "meta-processes"), plural(sample.threads, "thread")];
		if (sample.timers) parts.push(plural(sample.timers, "timer"));
		return parts.join(", ");
	}

	drawTiles(sample) {
		const set = (...facts) => this.tiles.set(...facts);
		set("processes", count(sample.processes), `${count(sample.spawned)} spawned so far`);
		set("rate", rate(sample.rate), `${short(sample.messages)} handled`);
		set("mailbox", count(sample.mailbox), sample.mailbox ? `longest mailbox: ${count(sample.longest)}` : "all mailboxes are empty");
		set("delay", duration(sample.loop?.delay ?? 0), `thread busy: ${percent(sample.busy)}`, Boolean(sample.loop?.blocked));
		set("cpu", percent(sample.cpu), `${bytes(sample.memory)} of memory`);
		const letters = total(sample.dead_letters);
		set("crashed", count(sample.crashed), letters ? plural(letters, "dead letter") : "no dead letters", sample.crashed > 0);
	}

	drawBehaviours(behaviours) {
		const listed = Object.entries(behaviours)
			.sort(([a, x], [b, y]) => (a === "other") - (b === "other") || y.load - x.load || y.count - x.count)
			.slice(0, SHOWN);
		const most = Math.max(1, ...listed.map(([, facts]) => facts.count));
		this.behaviours.update(listed.map(([name, facts]) => ({ ...facts, name, most })));
	}
}
