// What happened: crashes, dead letters, events, the log; and applications.

import { empty, h, put } from "./dom.js";
import { clock, count, duration, moment, plural } from "./format.js";
import { facts, finder, stateCell } from "./cells.js";
import { plainTable } from "./table.js";
import { numberOf, target } from "./process.js";
import { Record } from "./record.js";

export class Crashes extends Record {
	constructor(page) {
		super(page, "crashes", "Crashes", "Processes that failed, alike ones together. The newest first.");
	}

	show({ crashes }) {
		if (!crashes?.length) return put(this.body, empty("No crash", "No process of this node has failed."));
		const groups = new Map();
		for (const crash of crashes) {
			const key = crash.group ?? crash.key;
			const alike = [...(groups.get(key) ?? []), crash];
			groups.delete(key); // and behind the others: it has the newest crash so far
			groups.set(key, alike);
		}
		const newest = [...groups.keys()].at(-1);
		// The newest is open, until a person opens others.
		if (!this.first || (this.open.size === 1 && this.open.has(this.first))) this.open = new Set([newest]);
		this.first = newest;
		put(this.body, [...groups].reverse().map(([key, alike]) => this.card(key, alike, alike.at(-1))));
	}

	// The last of the crashes that are alike.
	card(key, alike, crash) {
		const facts = [
			crash.callback && ["In", `${crash.callback}${crash.message_type ? ` of ${crash.message_type}` : ""}`],
			alike.length > 1 && ["First", moment(alike[0].at)],
			["Lived", duration(crash.uptime)],
			["Handled", plural(crash.handled, "message")],
			crash.restarts > 0 && ["Restarts", count(crash.restarts)],
			crash.left > 0 && ["Left behind", `${plural(crash.left, "message")}${crash.waiting?.length ? `: ${crash.waiting.join(", ")}` : ""}`],
			crash.recent?.length && ["Last messages", crash.recent.join(", ")],
		];
		const head = h(
			"span.crash-head",
			h("strong", crash.name || `${crash.behaviour} ${crash.pid}`),
			crash.name && h("span.soft", crash.behaviour),
			alike.length > 1 && h("span.chip.red", `${count(alike.length)} times`),
			h("time.soft", { title: moment(crash.at) }, clock(crash.at)),
		);
		return h(
			"details.card.crash",
			this.opens(key),
			h("summary", head, h("span.crash-reason", crash.reason)),
			h("div.crash-facts", facts.filter(Boolean).map(([name, value]) => h("span", h("span.soft", `${name} `), value))),
			crash.traceback ? h("pre.code.traceback", { tabindex: "0" }, traceback(crash.traceback)) : h("p.soft", "There is no traceback."),
		);
	}
}

// A traceback with its own lines set off from those of libraries.
function traceback(text) {
	return text
		.trimEnd()
		.split("\n")
		.map((line) =>
			/^\S/.test(line) && !line.startsWith("Traceback")
				? h("span.tb-error", `${line}\n`)
				: /^ {2}File/.test(line)
					? h("span.tb-file", `${line}\n`)
					: `${line}\n`,
		);
}

// The causes of dead letters: no_process.
const words = (why) => why.replaceAll("_", " ");

export class Letters extends Record {
	constructor(page) {
		super(page, "dead-letters", "Dead letters", "Messages that reached nobody.");
	}

	show({ counts, last }) {
		if (!last?.length) return put(this.body, empty("No dead letter", "Every message has reached its mailbox."));
		const rows = [...last].reverse().map((letter) => [
			h("time", { title: moment(letter.at) }, clock(letter.at)),
			h("code", letter.message_type),
			target(this.page, letter.target),
			target(this.page, letter.sender),
			words(letter.why),
		]);
		put(
			this.body,
			h("div.chips", Object.entries(counts ?? {}).map(([why, number]) => h("span.chip", `${words(why)}: ${count(number)}`))),
			h("section.card", plainTable("Dead letters", ["Time", "Message", "To", "From", "Why"], rows)),
		);
	}
}

export class Events extends Record {
	constructor(page) {
		super(page, "events", "Events", "What processes publish, and how many subscribe to it.");
	}

	show({ events }) {
		if (!events?.length) return put(this.body, empty("No event", "No process of this node has registered an event."));
		const rows = events.map((event) => [
			h("strong", event.name),
			event.open ? "everybody" : target(this.page, event.producer),
			...[event.subscribers, event.published, event.kept, event.lost].map(count),
		]);
		const heads = ["Event", "Producer", "Subscribers", "Published", "Kept", "Lost"];
		put(this.body, h("section.card", plainTable("Events", heads, rows, [2, 3, 4, 5])));
	}
}

export class Log extends Record {
	constructor(page) {
		const level = h(
			"select",
			{ "aria-label": "Lowest level", onchange: () => page.rewatch() },
			["debug", "info", "warning", "error"].map((name) => h("option", { value: name, selected: name === "info" }, name)),
		);
		const find = finder("Find in the log", "Text", () => page.rewatch());
		super(page, "log", "Log", "Crashes, and what the node writes since a page first looked. The newest first.", level, find);
		Object.assign(this, { level, find });
	}

	get views() {
		return { log: { kind: "log", level: this.level.value, find: this.find.value.trim(), count: 200 } };
	}

	show({ lines, missed }) {
		if (!lines?.length)
			return put(this.body, empty("No line", this.find.value ? "No line has this text." : "None since a page first looked."));
		put(
			this.body,
			h(
				"section.card.log",
				h("ol.log-lines", [...lines].reverse().map((line) => this.line(line))),
				missed > 0 && h("p.soft", `${count(missed)} lines came too fast and are not shown.`),
			),
		);
	}

	line(line) {
		return h(
			`li.log-line.l-${line.level}`,
			h("time", { title: moment(line.at) }, clock(line.at)),
			h("span.level", line.level),
			h("span.log-text", line.text, Object.entries(line.fields ?? {}).map(([name, value]) => h("span.field", h("span.soft", `${name}=`), String(value)))),
			h("span.log-who", line.source ? this.page.linkTo(numberOf(line.source), line.name || `${line.behaviour} ${line.source}`) : ""),
			line.exception && h("pre.code", { tabindex: "0" }, line.exception),
		);
	}
}

export class Applications extends Record {
	constructor(page) {
		super(page, "applications", "Applications", "Supervision trees that start and stop together, by their dependencies.");
	}

	show({ applications }) {
		if (!applications?.length) return put(this.body, empty("No application", "The processes of this node are in the tree."));
		put(
			this.body,
			h(
				"div.apps",
				applications.map((one) =>
					h(
						"section.card.app",
						h("div.app-head", h("h2", one.name), stateCell(one.phase)),
						facts([
							one.mode && ["Mode", one.mode],
							one.uptime != null && ["Up", duration(one.uptime)],
							one.depends_on?.length && ["Needs", one.depends_on.join(", ")],
							one.pid && ["Supervisor", this.page.linkTo(numberOf(one.pid), `process ${numberOf(one.pid)}`)],
							one.reason && ["Reason", one.reason],
						]),
					),
				),
			),
		);
	}
}
