// A view of one kind that the server pushes.

import { empty, h, put } from "./dom.js";

export class Record {
	constructor(page, kind, title, about, ...tools) {
		Object.assign(this, { page, kind });
		this.heading = page.heading(title, about, ...tools);
		this.body = h("div.stack");
		this.element = h("div", this.heading.element, this.body);
		this.open = new Set();
	}

	keeps() {
		return true;
	}

	get views() {
		return { [this.kind]: { kind: this.kind } };
	}

	// The text that changes when the view must be drawn again.
	keyOf(value) {
		return JSON.stringify(value);
	}

	draw() {
		const { store } = this.page;
		const value = store.get(this.kind);
		const error = store.error(this.kind);
		if (value) {
			const key = this.keyOf(value);
			if (key !== this.shown) this.show(value);
			this.shown = key;
			return;
		}
		this.shown = null;
		if (store.past) put(this.body, empty("Not recorded", "No page looked at this at that moment."));
		else put(this.body, error ? empty("No answer", error.text) : empty("Looking …"));
	}

	// Facts for a <details> that stays open when the view is drawn again.
	opens(key) {
		const ontoggle = (event) => (event.target.open ? this.open.add(key) : this.open.delete(key));
		return { open: this.open.has(key), ontoggle };
	}
}
