// One process: facts, diagnostics, mailbox, neighbours, trace and profile; and acts, if they are permitted.

import { empty, h, mark, put, say } from "./dom.js";
import { clock, count, duration, plural } from "./format.js";
import { card, confirm, facts as factList, stateCell } from "./cells.js";
import { Board, cardNote, neighbourhood } from "./near.js";
import { Profiler } from "./profile.js";
import { plainTable } from "./table.js";

const TABS = [["", "Facts"], ["near", "Neighbours"], ["mailbox", "Mailbox"], ["inspect", "Inspect"], ["trace", "Trace"], ["profile", "Profile"]];
const SKIPPED = new Set(
	"kind pid alias name behaviour state phase history lanes parent children links linked_by monitors monitored_by stack handler_stack threads environment supervision".split(" "),
);
const LISTS = [["parent", "Started by"], ["children", "Children"], ["links", "Linked to"], ["linked_by", "Linked from"], ["monitors", "Watches"], ["monitored_by", "Watched by"]];
const WORDS = {
	running_time: "Time in callbacks",
	uptime: "Age",
	trap_exit: "Traps exits",
	mailbox_size: "Bound of the mailbox",
	message_type: "Handles",
};

export class ProcessView {
	constructor(page, [id, tab]) {
		this.page = page;
		this.id = Number(id);
		this.name = h("h1");
		this.about = h("p.about");
		this.acts = h("div.tools");
		this.tabs = h(
			"div.tabs",
			{ role: "tablist", "aria-label": "About the process", onkeydown: (event) => this.key(event) },
			TABS.map(([key, label]) => h("a.tab", { role: "tab", id: `tab-${key || "facts"}`, href: `#/process/${id}${key ? `/${key}` : ""}` }, label)),
		);
		this.body = h("div.tab-body", { role: "tabpanel", tabindex: "0" });
		this.element = h("div", h("div.heading", h("div", h("a.crumb", { href: "#/processes" }, "Processes"), this.name, this.about), this.acts), this.tabs, this.body);
		this.dialog = h("dialog.ask");
		this.element.append(this.dialog);
		this.switchTo(tab ?? "");
	}

	keeps([id, tab]) {
		if (Number(id) !== this.id) return false;
		if ((tab ?? "") !== this.tab) this.switchTo(tab ?? "");
		return true;
	}

	switchTo(tab) {
		this.running?.cancel?.();
		this.running = null;
		this.profiler?.close();
		this.profiler = null;
		this.tab = tab;
		this.shown = null;
		[...this.tabs.children].forEach((element, index) => {
			const chosen = TABS[index][0] === tab;
			mark(element, "aria-selected", String(chosen));
			mark(element, "tabindex", chosen ? "0" : "-1");
			if (chosen) mark(this.body, "aria-labelledby", element.id);
		});
		put(this.body);
		const begin = { near: "beginNear", mailbox: "beginMailbox", inspect: "beginInspect", trace: "beginTrace", profile: "beginProfile" }[tab];
		if (begin) this[begin]();
	}

	key(event) {
		const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
		if (!step) return;
		const tabs = [...this.tabs.children];
		const next = tabs[(tabs.findIndex((tab) => tab === document.activeElement) + step + tabs.length) % tabs.length];
		next.focus();
		next.click();
	}

	close() {
		this.running?.cancel?.();
		this.profiler?.close();
	}

	get views() {
		return { process: { kind: "process", to: this.id }, near: { kind: "near", to: this.id } };
	}

	draw() {
		const { store } = this.page;
		const facts = store.get("process");
		const error = store.error("process");
		const known = facts && numberOf(facts.pid ?? facts.alias) === this.id ? facts : null;
		if (!known) {
			say(this.name, `Process ${this.id}`);
			say(this.about, error ? error.text : store.past ? "No facts about this process were recorded at this moment." : "…");
			put(this.acts);
			if (error && this.tab === "" && this.shown !== "gone") {
				this.shown = "gone";
				put(
					this.body,
					empty("The process is gone", "It may have ended or crashed; the list of crashes says why, and a successor has another number."),
					h("p.center", h("a.button", { href: "#/crashes" }, "Crashes")),
				);
			}
			return;
		}
		say(this.name, known.name || `${known.behaviour} ${this.id}`);
		const key = JSON.stringify([known.state, known.phase, known.suspended, known.behaviour]);
		if (key !== this.headShown) {
			this.headShown = key;
			put(this.about, stateCell(known.suspended ? "suspended" : known.state, known.phase), " ", known.behaviour, ` · ${known.kind === "meta" ? "meta-process" : "process"} ${this.id}`);
			this.drawActs(known);
		}
		this.facts = known;
		if (this.tab === "") this.drawFacts(known);
		if (this.tab === "near") this.drawNear(store.get("near"), store.error("near"));
	}

	// -- facts ---------------------------------------------------------------------------------------

	drawFacts(facts) {
		const key = JSON.stringify([facts, this.page.store.names.size]);
		if (key === this.shown) return;
		this.shown = key;
		const list = Object.entries(facts).filter(([name, value]) => !SKIPPED.has(name) && value !== null && value !== "" && (typeof value !== "object" || Object.keys(value).length > 0));
		const lanes = Object.entries(facts.lanes ?? {}).filter(([, queued]) => queued);
		const wide = list.filter(([, value]) => typeof value === "object");
		put(
			this.body,
			h(
				"div.facts-columns",
				card("Facts", factList(list.map(([name, value]) => typeof value !== "object" && [label(name), this.value(name, value)]))),
				h(
					"div.stack",
					card("Mailbox", lanes.length ? factList(lanes.map(([lane, queued]) => [lane, plural(queued, "message")])) : h("p.soft", "empty")),
					card("Connected with", factList(LISTS.map(([name, words]) => this.connected(words, [facts[name] ?? []].flat())))),
					facts.history?.length > 0 &&
						card("States", h("ol.states", facts.history.map(([state, at], i, all) => h("li", stateCell(state), h("span.soft", ` ${all[i + 1] ? `for ${duration(all[i + 1][1] - at)}` : `since ${clock(at)}`}`))))),
				),
			),
			wide.length > 0 && card("More", factList(wide.map(([name, value]) => [label(name), inWords(value)]))),
			[["stack", "Where it waits"], ["handler_stack", "What its thread does"]].map(([name, words]) => facts[name] && card(words, h("pre.code", { tabindex: "0" }, text(facts[name])))),
		);
	}

	connected(words, items) {
		const more = items.length > 30 && h("span.soft", `and ${count(items.length - 30)} more`);
		return (items.length > 0 && [words, h("div.links", items.slice(0, 30).map((item) => target(this.page, item)), more)]);
	}

	value(name, value) {
		if (typeof value === "boolean") return value ? "yes" : "no";
		if (typeof value === "number") return /time$|uptime|seconds|delay|timeout/.test(name) ? duration(value) : count(value);
		if (/^(waits_for|asks|owner|receiver|link)$/.test(name)) return target(this.page, value);
		return String(value);
	}

	// -- neighbours ----------------------------------------------------------------------------------

	beginNear() {
		this.board = new Board("Neighbourhood");
		this.boardNote = h("p.soft");
		put(
			this.body,
			h(
				"div.legend",
				{ "aria-hidden": "true" },
				["owner", "link", "monitor", "waits"].map((kind) =>
					h(`span.key.k-${kind}`, { owner: "owns", link: "is linked to", monitor: "watches", waits: "waits for" }[kind]),
				),
			),
			this.board.element,
			this.boardNote,
		);
	}

	drawNear(near, error) {
		if (error) say(this.boardNote, error.text);
		if (!near?.nodes || near.center !== this.id) return;
		const { columns, edges } = neighbourhood(near);
		this.board.update(columns, edges, cardNote);
		say(this.boardNote, near.left_out ? `${plural(near.left_out, "neighbour")} more are left out.` : Object.keys(near.nodes).length === 1 ? "Nothing is connected with this process." : "");
	}

	// -- asked once ----------------------------------------------------------------------------------

	// A tool line with a button, a place for the answer, and errors in words.
	asked(words, what, given, show, ...tools) {
		const place = h("div.answer", { "aria-live": "polite" });
		const run = async () => {
			const { store } = this.page;
			if (store.recorded || store.past)
				return put(place, empty("Only in the present", "A recording holds types and figures; to ask the process, go back to now."));
			const mine = (this.running = store.ask(what, { to: this.id, ...given() }));
			try {
				const answer = await mine;
				if (this.running === mine) put(place, show(answer));
			} catch (error) {
				if (this.running === mine) put(place, problem(error));
			}
		};
		put(this.body, h("div.tool-line", h("button.quiet", { onclick: run }, "Ask again"), tools, h("span.soft", words)), place);
		run();
		return run;
	}

	beginMailbox() {
		const contents = h("input", { type: "checkbox", id: "contents", onchange: () => run() });
		const run = this.asked(
			"The messages that wait, in their order.",
			"peek",
			() => ({ contents: contents.checked }),
			(found) =>
				found.length
					? plainTable(
							"Messages in the mailbox",
							["#", "Lane", "Message", "Callback", "From"],
							found.map((item, index) => [index + 1, item.lane, h("code", item.message ?? item.message_type), item.callback, target(this.page, item.sender)]),
							[0],
						)
					: empty("The mailbox is empty", "The process has handled everything that came."),
			h("label.check", contents, "with contents"),
		);
	}

	beginInspect() {
		this.asked(
			"What handle_inspect of the behaviour says.",
			"inspect",
			() => ({}),
			(found) =>
				Object.keys(found).length
					? h("section.card", factList(Object.entries(found).map(([name, value]) => [name, h("code", show(value))])))
					: empty("Nothing to tell", "The behaviour has no handle_inspect, or it answers with nothing."),
		);
	}

	beginTrace() {
		const lines = h("tbody");
		const state = h("span.soft", "Types only. The process runs a little slower while it is traced.");
		const start = h("button", { onclick: () => (this.running ? this.running.cancel() : run()) }, "Trace for 30 s");
		const run = async () => {
			const { store } = this.page;
			if (store.recorded || store.past) return say(state, "A recording cannot be traced; go back to now.");
			put(lines);
			let number = 0;
			const began = performance.now();
			this.running = store.ask("trace", { to: this.id, seconds: 30, limit: 1000 }, (entry) => {
				number += 1;
				lines.prepend(this.traceLine(entry));
				while (lines.children.length > 400) lines.lastChild.remove();
				say(state, `${plural(number, "entry", "entries")} in ${duration((performance.now() - began) / 1000)}`);
			});
			const mine = this.running;
			say(start, "Stop");
			say(state, "Waiting for the first message …");
			try {
				const end = await mine;
				say(state, `${plural(end.entries ?? number, "entry", "entries")}${end.missed ? `, ${count(end.missed)} missed` : ""}`);
			} catch (error) {
				if (error.code !== "cancelled") say(state, error.message);
			}
			if (this.running === mine) {
				this.running = null;
				say(start, "Trace for 30 s");
			}
		};
		put(
			this.body,
			h("div.tool-line", start, state),
			h("div.plain-wrap.trace", { tabindex: "0", role: "region", "aria-label": "Trace" }, plainTable("Trace", ["Time", "What", "Message", "With", "Took"], [], [4], lines)),
		);
	}

	traceLine(entry) {
		const out = entry.to != null;
		return h(
			`tr${entry.error ? ".bad" : out ? ".out" : ""}`,
			h("td.time-cell", clock(entry.at, true)),
			h("td", h("span.way", { "aria-hidden": "true" }, out ? "→ " : "← "), entry.callback),
			h("td", h("code", entry.message ?? entry.message_type ?? "–"), entry.trace_id && ` ${entry.trace_id} ${entry.span_id}`),
			h("td", target(this.page, out ? entry.to : entry.sender)),
			h("td.number", entry.error ?? (out ? "" : duration(entry.seconds))),
		);
	}

	beginProfile() {
		this.profiler = new Profiler(this.page, { to: this.id });
		put(this.body, this.profiler.element);
	}

	// -- acts ----------------------------------------------------------------------------------------

	drawActs(facts) {
		if (!this.page.store.mayAct || facts.kind === "meta") return put(this.acts);
		const held = facts.suspended;
		const after = "its supervisor decides whether a successor starts.";
		put(
			this.acts,
			[
				held ? ["resume", "Resume", "It handles messages again."] : ["suspend", "Suspend", "It handles no message until it is resumed."],
				["exit", "Ask to end", `It gets an exit signal and ends in order; ${after}`],
				["kill", "Kill", `It ends at once, without its last callback; ${after}`],
			].map((act) => h(act[0] === "kill" ? "button.danger" : "button.quiet", { onclick: () => this.act(...act) }, act[1])),
		);
	}

	act(what, label, effect) {
		const children = Array.isArray(this.facts.children) ? this.facts.children.length : (this.facts.children ?? 0);
		const below = children ? `It has ${plural(children, "child", "children")}.` : "It has no children.";
		confirm(this.dialog, `${label}: ${this.name.textContent}?`, `${effect} ${below}`, label, () => this.page.store.ask(what, { to: this.id }));
	}
}

const label = (name) => WORDS[name] ?? name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");
const show = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const inWords = (value) => (Array.isArray(value) ? value.map(show) : Object.entries(value).map(([name, item]) => `${name}: ${show(item)}`)).join(", ");
const text = (value) => (Array.isArray(value) ? value.join("\n") : String(value));

export function problem(error) {
	const report = error.report;
	return h(
		"div.empty",
		h("p.empty-title", error.code === "blocked" ? "The loop is blocked" : error.code === "timeout" ? "No answer in time" : "That did not work"),
		h("p", error.message),
		report?.where && h("p", h("code", `${report.where}: ${report.line ?? ""}`)),
	);
}

// A link to a process, or the text that stands for something else.
export function target(page, item) {
	const number = numberOf(item);
	return (item ?? "") === "" ? "–" : page.linkTo(number, number ? page.store.nameOf(number) : item === 0 ? "the node" : show(item), ".chip");
}

// The number in whatever form an identifier comes: a number, "<PID 12 shop@localhost>", {id: 12}.
export function numberOf(item) {
	if (typeof item === "number") return item || null;
	if (typeof item === "string") return Number(/^<(?:PID|Alias) (\d+) /.exec(item)?.[1] ?? (/^\d+$/.test(item) ? item : NaN)) || null;
	return item && typeof item === "object" ? numberOf(item.id ?? item.number ?? item.pid ?? null) : null;
}
