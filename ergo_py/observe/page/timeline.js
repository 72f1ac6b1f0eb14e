// The last ten minutes as a strip: a slider over it shows the state of a moment.

import { paths } from "./chart.js";
import { h, mark, put, s, say } from "./dom.js";
import { clock } from "./format.js";

export class Timeline {
	constructor(store, place) {
		this.store = store;
		this.place = place;
		this.area = s("path.chart-area");
		this.line = s("path.chart-line");
		this.alarms = s("g.chart-marks");
		this.crashes = s("g.crash-marks");
		this.rest = s("rect.unseen", { y: 0, height: 36 });
		this.svg = s("svg", { preserveAspectRatio: "none", viewBox: "0 0 1000 36", "aria-hidden": "true" }, this.area, this.line, this.alarms, this.crashes, this.rest);
		this.slider = h("input", { type: "range", step: "any", "aria-label": "Moment to show", oninput: () => this.move() });
		this.play = h("button.quiet.play", { onclick: () => store.play() });
		this.live = h("button.quiet.live-button", { onclick: () => (store.past ? store.goLive() : store.travel(store.to)) });
		this.begin = h("span.time-begin");
		this.moment = h("output.time-moment");
		put(place, this.play, this.begin, h("div.strip", this.svg, this.slider), this.moment, this.live);
	}

	move() {
		const at = Number(this.slider.value);
		this.store.stop();
		if (at >= this.store.to - 0.5 && !this.store.recorded) this.store.goLive();
		else this.store.travel(at);
	}

	draw() {
		const { store } = this;
		const { at, rate, blocked, crashed } = store.columns;
		this.place.hidden = at.length < 2;
		if (at.length < 2) return;
		const { from, to } = store;
		const x = (time) => ((time - from) / (to - from || 1)) * 1000;
		const key = `${from} ${to} ${at.length}`;
		if (key !== this.drawn) {
			this.drawn = key;
			const points = at.map((time, index) => [time, rate[index]]);
			const [line, area] = paths(points, 1000, 39, from, to, Math.max(1, ...rate));
			mark(this.line, "d", line);
			mark(this.area, "d", area);
			const lines = (top, chosen) => at.filter(chosen).map((time) => s("line", { x1: x(time), x2: x(time), y1: top, y2: 36 }));
			this.alarms.replaceChildren(...lines(0, (_, index) => blocked[index]));
			this.crashes.replaceChildren(...lines(26, (_, index) => index && crashed[index] > crashed[index - 1]));
			mark(this.slider, "min", from);
			mark(this.slider, "max", to);
		}
		const now = store.past ? store.now : to;
		if (document.activeElement !== this.slider || !store.travelling) this.slider.value = now;
		mark(this.slider, "aria-valuetext", store.past ? clock(now) : "now");
		mark(this.rest, "x", x(now));
		mark(this.rest, "width", Math.max(0, 1000 - x(now)));
		say(this.begin, clock(from));
		say(this.moment, store.past ? clock(now) : "now");
		say(this.play, store.playing ? "Stop" : "Play");
		say(this.live, store.past ? "Back to now" : "Hold");
		this.live.title = store.past ? "Show what happens now" : "Keep the page as it is now";
		this.live.hidden = store.recorded;
		this.place.classList.toggle("past", Boolean(store.past));
	}
}
