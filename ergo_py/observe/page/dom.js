// Elements, made by hand: no text of the observed program is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";
const isNone = (value) => (value ?? false) === false;

// h("button.quiet", {onclick, "aria-label": "…"}, child, child): an element with properties, which
// may be left out, and children: elements, texts, or arrays of them; null and false are left out.
export function h(kind, ...given) {
	const [tag, ...classes] = kind.split(".");
	return fill(document.createElement(tag), classes, given);
}

// The same for elements of a drawing.
export function s(kind, ...given) {
	const [tag, ...classes] = kind.split(".");
	return fill(document.createElementNS(SVG, tag), classes, given);
}

function fill(element, classes, given) {
	if (classes.length) element.setAttribute("class", classes.join(" "));
	const [first, ...rest] = given;
	const hasFacts = first && Object.getPrototypeOf(first) === Object.prototype;
	for (const [name, value] of Object.entries(hasFacts ? first : {})) {
		if (isNone(value)) continue;
		if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
		else if (name === "style")
			for (const [key, given] of Object.entries(value)) {
				element.style.setProperty(key, given);
			}
		else if (name in element && !(element instanceof SVGElement) && typeof value !== "string") element[name] = value;
		else element.setAttribute(name, value === true ? "" : value);
	}
	add(element, hasFacts ? rest : given);
	return element;
}

function add(element, children) {
	for (const child of children.flat(Infinity)) {
		if (!isNone(child)) element.append(child instanceof Node ? child : String(child));
	}
}

const STOPS = "a, button, input, select, summary, [tabindex]";

// Replace all children. The focus stays at its place.
export function put(element, ...children) {
	const active = element.contains(document.activeElement) && document.activeElement;
	const place = active && [...element.querySelectorAll(STOPS)].indexOf(active);
	const kept = document.createDocumentFragment();
	add(kept, children);
	element.replaceChildren(kept);
	if (active && !active.isConnected) element.querySelectorAll(STOPS)[place]?.focus({ preventScroll: true });
	return element;
}

// Change a text only if it differs, so that a redraw touches little.
export function say(element, text) {
	text = String(text);
	if (element.textContent !== text) element.textContent = text;
}

export function mark(element, name, value) {
	if (isNone(value)) element.removeAttribute(name);
	else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

export const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// What a view shows while it has nothing to show.
export function empty(title, ...text) {
	return h("div.empty", h("p.empty-title", title), text.map((line) => h("p", line)));
}
