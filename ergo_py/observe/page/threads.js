// Threads, and what each of them does or blocks in.

import { h, put } from "./dom.js";
import { count, plural } from "./format.js";
import { card } from "./cells.js";
import { Record } from "./record.js";

const KINDS = [
	["loop", "The loop"],
	["reader", "Readers: each blocks for a meta-process"],
	["dispatcher", "Dispatchers: callbacks that may block"],
	["control", "Control and watchdog"],
	["other", "Others"],
];

export class Threads extends Record {
	constructor(page) {
		super(page, "threads", "Threads", "What each thread does, or blocks in.");
	}

	show({ threads }) {
		this.heading.about(`${plural(threads.length, "thread")} · what each does, or blocks in`);
		const kindOf = (thread) => (thread.kind === "watchdog" ? "control" : thread.kind);
		put(
			this.body,
			KINDS.map(([kind, title]) => {
				const list = threads.filter((thread) => kindOf(thread) === kind);
				const places = new Map();
				for (const thread of list) {
					const stack = JSON.stringify(thread.frames);
					places.set(stack, [...(places.get(stack) ?? []), thread]);
				}
				const groups = [...places.values()].sort((a, b) => b.length - a.length);
				return (list.length > 0 && card(title, h("ul.threads", groups.slice(0, 100).map((group) => (group.length > 2 ? this.group(group) : group.map((thread) => this.thread(thread)))))));
			}),
		);
	}

	// Threads with the same stack.
	group(threads) {
		return h(
			"li.thread",
			h("div.thread-head", h("span.thread-name", `${count(threads.length)} threads are at the same place`)),
			this.code(threads[0]),
			h(
				"div.chips",
				threads.slice(0, 60).map((thread) => (thread.process ? this.owner(thread, ".chip") : h("span.chip", thread.name))),
				threads.length > 60 && h("span.soft", `and ${count(threads.length - 60)} more`),
			),
			this.frames(threads[0]),
		);
	}

	owner(thread, kind) {
		return this.page.linkTo(thread.process, thread.name_of || `${thread.behaviour} ${thread.process}`, kind);
	}

	thread(thread) {
		return h(
			"li.thread",
			h("div.thread-head", h("span.thread-name", thread.name), thread.process ? this.owner(thread) : "", h("span.soft", thread.native ? `thread ${thread.native}` : "")),
			this.code(thread),
			this.frames(thread),
		);
	}

	code(thread) {
		const [where, line] = split(thread.where ?? thread.frames?.at(-1) ?? "");
		return h("div.alarm-code", h("span.where", where), line && h("code", line));
	}

	frames(thread) {
		const frames = thread.frames ?? [];
		return (frames.length > 1 && h("details", this.opens(thread.id), h("summary", plural(frames.length, "frame")), h("pre.code", { tabindex: "0" }, frames.join("\n"))));
	}
}

function split(text) {
	const at = text.indexOf(": ");
	return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 2)];
}
