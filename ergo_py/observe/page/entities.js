// Entities: kinds, keys, and the stored record of each.

import { empty, h, put, say } from "./dom.js";
import { card, confirm, finder, Tiles } from "./cells.js";
import { clock, count, duration, plural, rate, short } from "./format.js";
import { problem } from "./process.js";
import { Record } from "./record.js";
import { plainTable } from "./table.js";

const link = (...parts) => h("a", { href: `#/entities/${parts.map(encodeURIComponent).join("/")}` }, parts.at(-1));

export class Entities extends Record {
	constructor(page, chosen) {
		super(page, "entities", "Entities", "");
		this.tiles = new Tiles({ awake: "Awake", commits: "Commits a second", rows: "Rows in a commit", time: "Time of a commit", owed: "Owed messages", parked: "Parked messages" });
		this.find = finder("Find keys", "First letters of a key", () => this.list());
		this.title = h("h2");
		this.keys = h("ul.keys");
		this.more = h("button.quiet", { onclick: () => this.list(this.last) }, "More");
		this.record = h("div", { "aria-live": "polite" });
		this.dialog = h("dialog.ask");
		this.rest = h("div.two", h("section.card", this.title, this.find, this.keys, this.more), this.record);
		this.element.append(this.rest, this.dialog);
		this.keeps(chosen);
	}

	keeps([kind, key]) {
		Object.assign(this, { chosen: kind, key });
		this.rest.hidden = !kind;
		return true;
	}

	draw() {
		super.draw();
		const { store } = this.page;
		const kind = `${store.key} ${this.chosen}`, key = `${kind} ${this.key}`;
		if (key === this.at) return;
		if (this.chosen && kind !== this.of) this.list();
		[this.of, this.at] = [kind, key];
		this.look();
	}

	// Counts of stored keys may be half a minute old: all keys are read for them.
	get views() {
		return { entities: { kind: "entities", age: 30 } };
	}

	show({ stores }) {
		if (!stores.length) return put(this.body, empty("No entities", "This node keeps no actors whose state survives."));
		const kinds = stores.flatMap((store) => store.kinds);
		const recent = stores.map((store) => store.recent);
		const sum = (list, name) => list.reduce((all, one) => all + one[name], 0);
		const commits = sum(recent, "commits"), parked = sum(kinds, "parked"), seconds = recent[0].seconds;
		const mean = (name, words) => (commits ? words(sum(recent, name) / commits) : "–");
		this.heading.about(stores.map((store) => store.store).join(", "));
		this.tiles.set("awake", count(sum(kinds, "awake")), `${count(sum(kinds, "stored"))} stored`);
		this.tiles.set("commits", seconds ? rate(commits / seconds) : "–", `${short(sum(stores, "commits"))} so far`);
		this.tiles.set("rows", mean("versions", short), `${short(sum(stores, "versions"))} so far`);
		this.tiles.set("time", mean("time", duration), "mean of 10 s");
		this.tiles.set("owed", count(sum(kinds, "owed")), `${count(sum(kinds, "due"))} due in 30 s`);
		this.tiles.set("parked", count(parked), "tried too often", parked);
		put(
			this.body,
			stores.map(({ failures, last_error: last }) => last && h("div.alarm-box", h("strong", plural(failures, "failure")), ` of the store, the last at ${clock(last.at)}: ${last.text}`)),
			this.tiles.element,
			card("Kinds", plainTable("Kinds", ["Kind", "Awake", "Asleep", "Owed", "Due", "Parked"], kinds.map(row), [1, 2, 3, 4, 5])),
		);
	}

	async list(after = "") {
		say(this.title, this.chosen);
		const asked = (this.asked = { kind: this.chosen, prefix: this.find.value, after, limit: 50 });
		const { keys, is_more, message } = await this.page.store.ask("keys", asked).catch((error) => error);
		if (asked !== this.asked) return;
		if (!after) put(this.keys, !keys?.length && h("li.soft", message ?? "No such key."));
		this.keys.append(...(keys ?? []).map((key) => h("li", link(asked.kind, key))));
		this.last = keys?.at(-1);
		this.more.hidden = !is_more;
	}

	async look() {
		const { chosen: kind, key, page: { store } } = this;
		if (!key) return put(this.record);
		const shown = await store.ask("entity", { kind, key }).then((record) => {
			const retry = () => store.ask("retry", { kind, key }).then(() => this.look());
			const ask = () => confirm(this.dialog, `Retry ${kind} ${key}?`, "Its parked messages get new attempts.", "Retry", retry);
			const { length } = record.parked;
			return card(
				`${kind} ${key}`,
				h("pre", { tabindex: "0" }, JSON.stringify(record, null, 2)),
				h("div.tool-line", h("button.quiet", { onclick: () => this.look() }, "Look again"), length > 0 && store.mayAct && h("button.danger", { onclick: ask }, `Retry ${plural(length, "parked message")}`)),
			);
		}, problem);
		if (key === this.key) put(this.record, shown);
	}
}

function row({ kind, stored, is_more, awake, owed, due, parked }) {
	const asleep = `${count(Math.max(0, stored - awake))}${is_more ? "+" : ""}`;
	return [link(kind), count(awake), asleep, count(owed), count(due), h(parked ? "strong.bad" : "span", count(parked))];
}
