// Who waits for whose answer: chains, and rings that cannot go on.

import { empty, h, put, s } from "./dom.js";
import { clock, count, duration, plural } from "./format.js";
import { bar, card } from "./cells.js";
import { Record } from "./record.js";
import { plainTable } from "./table.js";

export class Waits extends Record {
	constructor(page) {
		super(page, "calls", "Waits", "Who waits for whose answer.");
	}

	keyOf(value) {
		return JSON.stringify([value, Math.floor(this.page.store.now)]);
	}

	show(value) {
		const { store } = this.page;
		const now = store.past ? store.now : store.live.calls.at;
		const waits = value.waits ?? [],
			rings = value.rings ?? [],
			deadlocks = value.deadlocks ?? [];
		this.heading.about(`${plural(waits.length + (value.left_out ?? 0), "call")} without an answer yet${rings.length ? ` · ${plural(rings.length, "ring")}` : ""}`);
		const names = new Map();
		for (const wait of waits) {
			names.set(wait.from, wait.from_name || (wait.from ? `${wait.from_behaviour} ${wait.from}` : "code at the node"));
			names.set(wait.to, wait.to_name || `${wait.to_behaviour} ${wait.to}`);
		}
		const inRing = new Set(rings.flat());
		put(
			this.body,
			rings.map((ring) => this.ring(ring, names, waits, now)),
			waits.length
				? card(
						"Chains",
						h(
							"ol.chains",
							chains(waits)
								.slice(0, 60)
								.map((chain) =>
									h("li.chain", chain.map((wait, index) => [index === 0 && this.chip(wait.from, names, inRing), this.arrow(wait, now), this.chip(wait.to, names, inRing)])),
								),
						),
					)
				: !rings.length && empty("Nobody waits", "Every call has its answer at this moment."),
			waits.length > 1 && this.awaited(waits, names, now),
			deadlocks.length > 0 &&
				card(
					"Deadlocks of the last hour",
					h(
						"ol.plain-list",
						[...deadlocks]
							.reverse()
							.map((one) =>
								h("li", h("span.soft", `${clock(one.at)} `), (one.names ?? one.ring).join(" → "), one.request ? ` with ${one.request}: the call was refused with a DeadlockError` : ""),
							),
					),
				),
		);
	}

	chip(id, names, inRing) {
		return this.page.linkTo(id, names.get(id) ?? String(id), `.chip${inRing.has(id) && id ? ".red" : ""}`);
	}
	arrow(wait, now) {
		return h("span.wait-arrow", h("span.wait-what", wait.request), h("span.wait-line", { "aria-hidden": "true" }), h("span.wait-time", duration(Math.max(0, now - wait.since))));
	}

	ring(ring, names, waits, now) {
		const members = ring[0] === ring.at(-1) ? ring.slice(0, -1) : ring;
		const size = 220,
			middle = size / 2,
			radius = 78;
		const places = members.map((_, index) => {
			const turn = (index / members.length) * 2 * Math.PI - Math.PI / 2;
			return [middle + radius * Math.cos(turn), middle + radius * Math.sin(turn)];
		});
		const found = members.map((id, index) => waits.find((wait) => wait.from === id && wait.to === members[(index + 1) % members.length]));
		const longest = Math.max(0, ...found.filter(Boolean).map((wait) => now - wait.since));
		return h(
			"section.card.ring",
			s(
				"svg.ring-picture",
				{ viewBox: `0 0 ${size} ${size}`, width: size, height: size, "aria-hidden": "true" },
				s("circle.ring-line", { cx: middle, cy: middle, r: radius }),
				members.map((_, index) => {
					const turn = ((index + 0.5) / members.length) * 360;
					return s("path.ring-tip", {
						d: `M${middle - 5} ${middle - radius - 6}L${middle + 6} ${middle - radius}L${middle - 5} ${middle - radius + 6}Z`,
						transform: `rotate(${turn} ${middle} ${middle})`,
					});
				}),
				places.map(([x, y], index) => [s("circle.ring-member", { cx: x, cy: y, r: 20 }), s("text", { x, y: y + 4, "text-anchor": "middle" }, String(members[index]))]),
			),
			h(
				"div",
				h("h2", `A ring of ${members.length}: none of them can go on`),
				h("p.soft", `for ${duration(longest)}`),
				h(
					"ol.plain-list",
					members.map((id, index) =>
						h(
							"li",
							this.page.linkTo(id, names.get(id) ?? String(id)),
							" waits for ",
							this.page.linkTo(members[(index + 1) % members.length], names.get(members[(index + 1) % members.length]) ?? "?"),
							found[index] ? ` (${found[index].request}${found[index].deferred ? ", may still be answered by another" : ""})` : "",
						),
					),
				),
			),
		);
	}

	awaited(waits, names, now) {
		const targets = new Map();
		for (const wait of waits) targets.set(wait.to, [...(targets.get(wait.to) ?? []), wait]);
		const listed = [...targets].sort((a, b) => b[1].length - a[1].length).slice(0, 12);
		return card(
			"Most awaited",
			plainTable(
				"Most awaited",
				["Process", "Callers", "Longest wait"],
				listed.map(([id, list]) => [this.page.linkTo(id, names.get(id)), [bar(list.length / listed[0][1].length), count(list.length)], duration(Math.max(...list.map((wait) => now - wait.since)))]),
				[1, 2],
			),
		);
	}
}

// Chains of waits, the longest first: each begins with a caller that nobody waits for.
function chains(waits) {
	const from = new Map(waits.map((wait) => [wait.from, wait]));
	const awaited = new Set(waits.map((wait) => wait.to));
	const begin = waits.filter((wait) => !awaited.has(wait.from) || wait.from === 0);
	return (begin.length ? begin : waits.slice(0, 1))
		.map((first) => {
			const chain = [first],
				seen = new Set([first.from, first.to]);
			let next = from.get(first.to);
			while (next && chain.length < 20) {
				chain.push(next);
				if (seen.has(next.to)) break;
				seen.add(next.to);
				next = from.get(next.to);
			}
			return chain;
		})
		.sort((a, b) => b.length - a.length || a[0].since - b[0].since);
}
