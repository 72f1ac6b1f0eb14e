// Charts of a figure over time: an area, its line, three rules, and the value under the pointer.

import { h, mark, s, say } from "./dom.js";
import { clock } from "./format.js";

const EDGE = 4;

// A round number that is not smaller.
export function ceiling(value) {
	if (!(value > 0)) return 1;
	const step = 10 ** Math.floor(Math.log10(value));
	return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((times) => times * step).find((round) => round >= value * 0.999);
}

// The share of the height for a value. With `floor`, the scale is logarithmic and begins there.
function share(value, most, floor) {
	if (!floor) return Math.min(value, most) / most;
	return Math.max(0, Math.log(Math.min(value, most) / floor) / Math.log(most / floor));
}

// The paths of a line and of its area, with gaps where values are unknown or no sample came for 3 s.
// A point has 3 pixels or more, and is the highest there: more points look no better.
export function paths(points, width, height, from, to, most, floor = 0) {
	const pieces = [];
	const step = Math.max(1, Math.round(((to - from) * 3) / width));
	let last, place;
	for (const [at, value] of points) {
		if (value == null) {
			last = undefined;
			continue;
		}
		const before = at - last <= 3 ? pieces.at(-1).at(-1) : pieces.push([]) && null;
		if (!before || Math.floor(at / step) !== place) pieces.at(-1).push([at, value]);
		else if (value > before[1]) before.splice(0, 2, at, value);
		place = Math.floor(at / step);
		last = at;
	}
	const x = (at) => (((at - from) / (to - from || 1)) * width).toFixed(1);
	const y = (value) => (height - EDGE - share(value, most, floor) * (height - 2 * EDGE)).toFixed(1);
	const lines = pieces.map((piece) => `M${piece.map(([at, value]) => `${x(at)} ${y(value)}`).join("L")}`);
	return [lines.join(""), lines.map((line, index) => `${line}V${height - EDGE}H${x(pieces[index][0][0])}Z`).join("")];
}

// A chart with a title, the newest value, and axes. `show` turns a value into text.
export class Chart {
	constructor({ label, show, colour = "accent", height = 132, least = 0, floor = 0, note = "" }) {
		this.show = show;
		this.height = height;
		this.least = least;
		this.floor = floor;
		this.points = [];
		this.value = h("span.chart-value");
		this.area = s("path.chart-area");
		this.line = s("path.chart-line");
		this.marks = s("g.chart-marks");
		this.cursor = s("line.chart-cursor", { y1: 0, y2: height });
		this.dot = s("circle.chart-dot", { r: 3 });
		this.rules = [0, 0.5, 1].map(() => s("line.chart-rule", { x1: 0 }));
		this.svg = s("svg.chart-svg", { height, preserveAspectRatio: "none", "aria-hidden": "true" }, this.rules, this.area, this.line, this.marks, this.cursor, this.dot);
		this.scale = h("span.chart-scale");
		this.times = [0, 1].map(() => h("span"));
		this.plot = h("div.chart-plot", this.svg, this.scale);
		this.element = h(
			`figure.chart.${colour}`,
			h("figcaption", h("span.chart-label", label), note && h("span.chart-note", note), this.value),
			this.plot,
			h("div.chart-times", { "aria-hidden": "true" }, this.times),
		);
		this.plot.addEventListener("pointermove", (event) => this.point(event));
		this.plot.addEventListener("pointerleave", () => this.point(null));
		new ResizeObserver(([{ contentRect }]) => {
			this.width = contentRect.width;
			this.draw();
		}).observe(this.plot);
	}

	// points: [at, value] in the order of time; marks: times to mark in red.
	update(points, from, to, marks = []) {
		Object.assign(this, { points, from, to, alarms: marks });
		this.draw();
	}

	draw() {
		if (!this.width || this.from === undefined) return;
		const { width, height, points, from, to } = this;
		const most = ceiling(Math.max(this.least, ...points.map((point) => point[1] ?? 0)));
		this.most = most;
		mark(this.svg, "viewBox", `0 0 ${width} ${height}`);
		const [line, area] = paths(points, width, height, from, to, most, this.floor);
		mark(this.line, "d", line);
		mark(this.area, "d", area);
		const x = (at) => ((at - from) / (to - from || 1)) * width;
		this.rules.forEach((rule, index) => {
			const y = EDGE + (index / 2) * (height - 2 * EDGE);
			mark(rule, "x2", width);
			mark(rule, "y1", y);
			mark(rule, "y2", y);
		});
		this.marks.replaceChildren(...this.alarms.map((at) => s("line", { x1: x(at), x2: x(at), y1: 0, y2: height })));
		say(this.scale, this.show(most));
		say(this.times[0], clock(from));
		say(this.times[1], clock(to));
		if (!this.pointed) say(this.value, this.show(points.at(-1)?.[1]));
	}

	point(event) {
		this.pointed = Boolean(event) && this.points.length > 0;
		this.element.classList.toggle("pointed", this.pointed);
		if (!this.pointed) return this.draw();
		const box = this.plot.getBoundingClientRect();
		const at = this.from + ((event.clientX - box.left) / box.width) * (this.to - this.from);
		const found = this.points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
		const x = ((found[0] - this.from) / (this.to - this.from || 1)) * box.width;
		mark(this.cursor, "x1", x);
		mark(this.cursor, "x2", x);
		mark(this.dot, "cx", x);
		mark(this.dot, "cy", this.height - EDGE - share(found[1] ?? 0, this.most, this.floor) * (this.height - 2 * EDGE));
		say(this.value, `${this.show(found[1])} at ${clock(found[0])}`);
	}
}
