// Where the time goes: a flame graph of a process, or of the loop and the readers.

import { empty, h, put, say } from "./dom.js";
import { count, duration, percent } from "./format.js";
import { bar, card } from "./cells.js";
import { Flame, hottest } from "./flame.js";
import { plainTable } from "./table.js";

// Takes a profile of a process, or of all, and draws it.
export class Profiler {
	constructor(page, given = {}) {
		this.page = page;
		this.given = given;
		this.flame = new Flame();
		this.length = h("select", { "aria-label": "Length", id: "length" }, [2, 5, 10, 30].map((seconds) => h("option", { value: String(seconds), selected: seconds === 5 }, `${seconds} s`)));
		this.start = h("button", { onclick: () => (this.running ? this.running.cancel() : this.run()) }, "Take a profile");
		this.state = h("span.soft", { "aria-live": "polite" }, "Stacks are sampled 100 times a second, by a thread beside the loop.");
		this.progress = h("progress", { hidden: true, max: 1, value: 0, "aria-label": "Progress" });
		this.threads = h("input", { type: "checkbox", onchange: () => this.result && this.show() });
		this.hot = h("div", empty("No profile yet", "It shows which functions take the time."));
		this.flame.element.hidden = true;
		this.element = h(
			"div.stack",
			h("div.tool-line", this.start, this.length, this.progress, !this.given.to && h("label.check", this.threads, "with reader threads"), this.state),
			this.flame.element,
			this.hot,
		);
	}

	close() {
		this.running?.cancel();
	}

	async run() {
		const { store } = this.page;
		if (store.recorded || store.past) return say(this.state, "Only the present can be profiled; go back to now.");
		const seconds = Number(this.length.value);
		say(this.start, "Stop");
		this.progress.hidden = false;
		this.progress.value = 0;
		const mine = (this.running = store.ask("profile", { ...this.given, seconds, rate: 100 }, (out) => {
			this.progress.value = out.seconds / seconds;
			say(this.state, `${count(out.samples)} samples`);
		}));
		try {
			this.show(await mine);
		} catch (error) {
			say(this.state, error.code === "cancelled" ? "Stopped." : error.message);
		}
		this.running = null;
		this.progress.hidden = true;
		say(this.start, "Take a profile");
	}

	show(result = this.result) {
		this.result = result;
		const all = result.stacks ?? [];
		const stacks = all.filter(([frames]) => this.threads.checked || !frames[0].startsWith("thread "));
		const busy = stacks.reduce((sum, stack) => sum + stack[1], 0);
		say(
			this.state,
			busy
				? `${count(result.samples)} samples in ${duration(result.seconds)}${result.idle === undefined ? "" : `; the loop waited in ${percent(result.idle / (result.samples || 1))} of them`}`
				: `${count(result.samples)} samples, and none of them here: it did nothing.`,
		);
		this.flame.element.hidden = !busy;
		put(this.hot);
		if (!busy) return;
		this.flame.show(stacks);
		const list = hottest(stacks);
		put(
			this.hot,
			card(
				"Where the time goes",
				plainTable(
					"Functions by their own samples",
					["Function", "Share", "Samples"],
					list.map((one) => [h("code", one.name), [bar(one.share, "amber"), percent(one.share)], count(one.samples)]),
					[1, 2],
				),
			),
		);
	}
}

export class Profile {
	constructor(page) {
		this.page = page;
		this.profiler = new Profiler(page);
		this.element = h("div", page.heading("Profile", "Where the loop and the reader threads spend their time, by process.").element, this.profiler.element);
	}

	keeps() {
		return true;
	}
	close() {
		this.profiler.close();
	}
	get views() {
		return {};
	}
	draw() {}
}
