// Pipelines: items on their way to a sink, and the steps where they are.

import { empty, h, put } from "./dom.js";
import { bar, card, Tiles } from "./cells.js";
import { count, duration, rate, short } from "./format.js";
import { Record } from "./record.js";
import { plainTable } from "./table.js";

export class Pipelines extends Record {
	constructor(page) {
		super(page, "pipelines", "Pipelines", "Items and calls, until they are acknowledged.");
		this.tiles = new Tiles({ rate: "Items a second", open: "Open", delay: "Longest delay", retried: "Retries", failed: "Given up", redelivered: "Delivered again" });
	}

	show({ pipelines }) {
		if (!pipelines.length) return put(this.body, empty("No pipeline", "This node has none."));
		const sum = (name) => pipelines.reduce((all, one) => all + one[name], 0);
		const failed = sum("failed"), lost = pipelines.filter((one) => one.lost);
		const name = (one) => this.page.linkTo(one.pid, one.name || `Pipeline ${one.pid}`);
		const bad = (number) => h(number ? "strong.bad" : "span", count(number));
		this.tiles.set("rate", rate(sum("rate")), "mean of 10 s");
		this.tiles.set("open", count(sum("open")), `at most ${count(sum("most"))}`);
		this.tiles.set("delay", duration(Math.max(...pipelines.map((one) => one.delay))), "of the last items");
		this.tiles.set("retried", short(sum("retried")), `${short(sum("taken"))} taken`);
		this.tiles.set("failed", short(failed), "after the last try", failed);
		this.tiles.set("redelivered", short(sum("redelivered")), "by brokers");
		put(
			this.body,
			lost.map((one) => h("div.alarm-box", h("strong", "Lost: "), "the source of ", name(one), `. ${one.lost}`)),
			this.tiles.element,
			card("Pipelines", plainTable("Pipelines", ["Pipeline", "A second", "Open", "Waiting", "Delay", "Retries", "Given up", "Again"], pipelines.map((one) => [name(one), rate(one.rate), [bar(one.open / one.most), `${count(one.open)} of ${count(one.most)}`], count(one.waiting), duration(one.delay), count(one.retried), bad(one.failed), count(one.redelivered)]), [1, 2, 3, 4, 5, 6, 7])),
			card("Steps", plainTable("Steps", ["Pipeline", "Step", "Threads", "Items inside", "Retries"], pipelines.flatMap((one) => one.steps.map((step) => [name(one), step.name, count(step.threads), count(step.inside), count(step.retried)])), [2, 3, 4])),
		);
	}
}
