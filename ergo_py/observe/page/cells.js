// Parts of rows: names, states, shares.

import { h } from "./dom.js";

// A share as a small bar; the number stands beside it. Small shares are drawn larger than they are.
export function bar(share, colour = "") {
	return h(
		"span.bar",
		{ "aria-hidden": "true" },
		h(`span.bar-fill${colour ? `.${colour}` : ""}`, {
			style: { width: `${Math.min(100, Math.sqrt(Math.max(0, share || 0)) * 100)}%` },
		}),
	);
}

// Name and behaviour of a process, with a mark for meta-processes.
export function nameCell(row) {
	return h(
		`span.name-cell${row.kind === "meta" ? ".meta" : ""}`,
		h("span.name", row.name || row.behaviour),
		h(`span.soft${row.name ? "" : ".num"}`, row.name ? row.behaviour : (row.id ?? "")),
	);
}

const STATES = { sleep: "sleeping", wait_response: "waiting" };
export const stateWord = (state) => STATES[state] ?? state;

export function stateCell(state, phase) {
	const word = phase && phase !== "running" ? phase : stateWord(state);
	return h(`span.pill.s-${String(word).replace(/\W/g, "")}`, word ?? "–");
}
