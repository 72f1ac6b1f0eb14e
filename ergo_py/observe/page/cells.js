// Parts of rows: names, states, shares.

import { h, put, say } from "./dom.js";

// A share as a small bar; the number stands beside it. Small shares are drawn larger than they are.
export function bar(share, colour = "") {
	return h("span.bar", { "aria-hidden": "true" }, h(`span.bar-fill${colour ? `.${colour}` : ""}`, { style: { width: `${Math.min(100, Math.sqrt(Math.max(0, share || 0)) * 100)}%` } }));
}

// Name and behaviour of a process, with a mark for meta-processes.
export function nameCell(row) {
	return h(`span.name-cell${row.kind === "meta" ? ".meta" : ""}`, h("span.name", row.name || row.behaviour), h(`span.soft${row.name ? "" : ".num"}`, row.name ? row.behaviour : (row.id ?? "")));
}

// A section with a title.
export const card = (title, ...parts) => h("section.card", h("h2", title), parts);

// Names and what belongs to them; pairs that are false are left out.
export const facts = (pairs) =>
	h("dl.facts", pairs.filter(Boolean).map(([name, value]) => [h("dt", name), h("dd", value)]));

// A field to search with.
export const finder = (label, placeholder, oninput) =>
	h("input.find", { type: "search", placeholder, "aria-label": label, spellcheck: "false", autocomplete: "off", oninput });

// The words of `ergo ps`.
export function stateCell(state, phase) {
	const word = phase && phase !== "running" ? phase : state;
	return h(`span.pill.s-${String(word).replace(/\W/g, "")}`, word ?? "–");
}

// Figures with their labels, side by side.
export class Tiles {
	constructor(labels) {
		const tile = ([key, label]) => [key, h("div.tile", h("span.tile-label", label), h("span.tile-value"), h("span.tile-note"))];
		this.tiles = Object.fromEntries(Object.entries(labels).map(tile));
		this.element = h("div.tiles", Object.values(this.tiles));
	}

	set(key, value, note, bad = false) {
		const tile = this.tiles[key];
		say(tile.children[1], value);
		say(tile.children[2], note);
		tile.classList.toggle("bad", Boolean(bad));
	}
}

// Act after a question.
export function confirm(dialog, title, effect, label, act) {
	const answer = h("p.bad", { role: "alert" });
	const run = async () => {
		try {
			await act();
			dialog.close();
		} catch (error) {
			say(answer, error.message);
		}
	};
	put(
		dialog,
		h("h2", title),
		h("p", `${effect} The node logs who asked for it.`),
		answer,
		h("div.tools", h("button.quiet", { autofocus: true, onclick: () => dialog.close() }, "Leave it"), h("button.danger", { onclick: run }, label)),
	);
	dialog.showModal();
}
