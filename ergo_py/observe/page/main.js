// The frame of the page: address, node, views, the alarm of a blocked loop, and time.

import { empty, h, mark, put, say } from "./dom.js";
import { ago, clock, count, duration, total } from "./format.js";
import { Store } from "./store.js";
import { Timeline } from "./timeline.js";
import { Overview } from "./overview.js";
import { Processes, TreeView } from "./processes.js";
import { ProcessView } from "./process.js";
import { Flow } from "./flow.js";
import { Entities } from "./entities.js";
import { Pipelines } from "./pipelines.js";
import { Profile } from "./profile.js";
import { Threads } from "./threads.js";
import { Waits } from "./waits.js";
import { Applications, Crashes, Events, Letters, Log } from "./records.js";

const VIEWS = [
	["", [["overview", "Overview", Overview], ["processes", "Processes", Processes], ["tree", "Tree", TreeView], ["applications", "Applications", Applications], ["entities", "Entities", Entities], ["pipelines", "Pipelines", Pipelines]]],
	["What happens now", [["waits", "Waits", Waits], ["flow", "Flow", Flow], ["threads", "Threads", Threads], ["profile", "Profile", Profile]]],
	["What happened", [["crashes", "Crashes", Crashes], ["letters", "Dead letters", Letters], ["events", "Events", Events], ["log", "Log", Log]]],
];
const CLASSES = Object.fromEntries(VIEWS.flatMap(([, views]) => views.map(([name, , kind]) => [name, kind])));
CLASSES.process = ProcessView;

class Page {
	constructor() {
		const { token, path } = this.readAddress();
		this.top = document.getElementById("top");
		this.side = document.getElementById("side");
		this.main = document.getElementById("main");
		this.build();
		this.store = new Store(token, (delay) => this.redraw(delay));
		this.store.preferred = new URLSearchParams(path.split("?")[1] ?? "").get("node");
		this.timeline = new Timeline(this.store, document.getElementById("time"));
		document.querySelector(".skip").onclick = () => {
			this.main.focus();
			return false;
		};
		addEventListener("hashchange", () => this.show());
		addEventListener("keydown", (event) => this.key(event));
		this.show();
	}

	// The token comes in the fragment and leaves it at once.
	readAddress() {
		const fragment = location.hash.slice(1);
		const given = new URLSearchParams(fragment.startsWith("token=") ? fragment : "");
		if (given.has("token")) {
			sessionStorage.setItem("token", given.get("token"));
			history.replaceState(null, "", `#/${given.get("view") ?? "overview"}`);
		}
		return { token: sessionStorage.getItem("token") ?? "", path: location.hash.slice(2) };
	}

	// -- the frame -----------------------------------------------------------------------------------

	build() {
		this.nodePicker = h("select.nodes", {
			"aria-label": "Node",
			onchange: () => {
				this.store.choose(this.nodePicker.value);
				this.show();
			},
		});
		this.about = h("span.node-about");
		this.state = h("span.state", h("span.state-dot", { "aria-hidden": "true" }), h("span.state-text"));
		this.theme = h("button.icon", { onclick: () => this.nextTheme() });
		this.save = h("button.quiet.save", { onclick: () => this.saveRecording(), title: "Save the last ten minutes as a file, which `ergo observe --replay` shows" }, "Save recording");
		this.menu = h(
			"button.menu",
			{ "aria-label": "Views", "aria-expanded": "false", "aria-controls": "side", onclick: () => this.toggleMenu() },
			h("span.bars", { "aria-hidden": "true" }),
			h("span", "Views"),
		);
		put(
			this.top,
			this.menu,
			h("a.brand", { href: "#/overview" }, h("img", { src: "icon.svg", alt: "", width: "22", height: "22" }), h("span", "ergo", h("span.brand-2", " observe"))),
			this.nodePicker,
			this.about,
			h("span.grow"),
			this.state,
			this.save,
			this.theme,
		);
		this.links = {};
		put(
			this.side,
			VIEWS.map(([group, views]) =>
				h(
					"div.nav-group",
					group && h("h2", group),
					h(
						"ul",
						views.map(([name, label]) => {
							const badge = h("span.badge", { hidden: true });
							this.links[name] = { link: h("a", { href: `#/${name}`, onclick: () => this.toggleMenu(false) }, h("span", label), badge), badge };
							return h("li", this.links[name].link);
						}),
					),
				),
			),
		);
		this.alarmText = h("div.alarm-box", { hidden: true });
		this.place = h("div.view");
		put(this.main, h("div", { role: "alert", "aria-atomic": "false" }, this.alarmText), this.place);
		this.setTheme(localStorage.getItem("theme") ?? "auto");
	}

	setTheme(theme) {
		mark(document.documentElement, "data-theme", theme === "auto" ? null : theme);
		const words = { auto: ["◐", "as the system"], light: ["○", "light"], dark: ["●", "dark"] }[theme];
		put(this.theme, h("span", { "aria-hidden": "true" }, words[0]));
		mark(this.theme, "aria-label", `Colours: ${words[1]}`);
		this.theme.title = `Colours: ${words[1]}`;
		this.themeNow = theme;
	}

	nextTheme() {
		const next = { auto: "light", light: "dark", dark: "auto" }[this.themeNow];
		localStorage.setItem("theme", next);
		this.setTheme(next);
	}

	toggleMenu(open = !document.body.classList.contains("menu-open")) {
		document.body.classList.toggle("menu-open", open);
		mark(this.menu, "aria-expanded", String(open));
	}

	key(event) {
		if (event.key === "Escape") this.toggleMenu(false);
		const typing = event.target.matches?.("input:not([type=range]), select, textarea");
		if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
			const find = this.place.querySelector("input[type=search]");
			if (find) {
				event.preventDefault();
				find.focus();
			}
		}
	}

	// -- views ---------------------------------------------------------------------------------------

	show() {
		const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
		const [name, ...rest] = path.split("/").map(decode);
		const known = Object.hasOwn(CLASSES, name) ? name : "overview";
		const kind = CLASSES[known];
		const wanted = new URLSearchParams(query ?? "").get("node");
		if (wanted && wanted !== this.store.key && this.store.nodes.some((node) => node.key === wanted)) this.store.choose(wanted);
		const same = this.view instanceof kind && this.view.keeps?.(rest);
		if (!same) {
			const inside = this.place.contains(document.activeElement);
			this.view?.close?.();
			this.view = new kind(this, rest);
			put(this.place, this.view.element);
			this.place.className = `view v-${known}`;
			this.main.scrollTop = 0;
			if (inside) this.main.focus();
		}
		for (const [key, { link }] of Object.entries(this.links)) {
			mark(link, "aria-current", key === known || (known === "process" && key === "processes") ? "page" : null);
		}
		this.store.notice = "";
		this.rewatch();
		this.redraw();
	}

	rewatch() {
		this.store.watch(this.view?.views ?? {});
	}
	go(path) {
		location.hash = `#/${path}`;
	}
	open(row) {
		if (row.id) this.go(`process/${row.id}`);
	}

	redraw(delay = 0) {
		this.drawing ||= setTimeout(
			() =>
				requestAnimationFrame(() => {
					this.drawing = 0;
					this.draw();
				}),
			delay,
		);
	}

	draw() {
		const { store } = this;
		this.drawTop();
		this.drawAlarm(store.sample?.loop?.blocked);
		this.drawBadges();
		this.timeline.draw();
		this.drawNotice();
		const blank = this.blank();
		this.place.hidden = Boolean(blank);
		if (!blank) {
			this.hint?.remove();
			this.hint = null;
			this.view?.draw();
			return;
		}
		const text = blank.textContent;
		if (this.hint?.textContent !== text) {
			this.hint?.remove();
			this.hint = blank;
			this.main.append(blank);
		}
	}

	// What stands in the place of a view while there is nothing to show.
	blank() {
		const { store } = this;
		const again = h("button", { onclick: () => store.link.connect() }, "Try again");
		if (store.status === "refused") return this.askToken();
		if (store.status === "full") return h("div.empty", h("p.empty-title", "Too many pages"), h("p", store.problem), again);
		if (store.sample || store.columns.at.length) return null;
		if (store.status !== "open")
			return empty(store.status === "lost" ? "The page's server does not answer" : "Connecting …", store.status === "lost" ? "The page connects again by itself as soon as `ergo observe` runs." : "");
		if (!store.nodes.length)
			return empty("No node found", 'A node shows up here when it offers a control socket: open_node("shop@localhost", control="look").');
		const { node } = store;
		if (node?.state === "unreachable") return empty(`${node.name} does not answer`, node.problem ?? "");
		return empty("Waiting for the first figures …", "");
	}

	askToken() {
		const field = h("input", { type: "text", id: "token", autocomplete: "off", spellcheck: "false" });
		return h(
			"form.empty",
			{
				onsubmit: (event) => {
					event.preventDefault();
					this.store.link.token = field.value.replace(/^.*token=/, "").trim();
					sessionStorage.setItem("token", this.store.link.token);
					this.store.link.connect();
				},
			},
			h("p.empty-title", "This page needs its token"),
			h("p", "`ergo observe` prints an address that ends in #token=…: open that address, or paste its end here."),
			h("label", { for: "token" }, "Token"),
			field,
			h("button", { type: "submit" }, "Open"),
		);
	}

	drawTop() {
		const { store } = this;
		const text = JSON.stringify(store.nodes.map((node) => [node.key, node.state]));
		if (text !== this.nodesShown) {
			this.nodesShown = text;
			put(this.nodePicker, store.nodes.map((node) => h("option", { value: node.key }, node.state === "up" || node.state === "recorded" ? node.name : `${node.name} (${node.state})`)));
		}
		this.nodePicker.value = store.key ?? "";
		this.nodePicker.hidden = !store.nodes.length;
		const { node, sample } = store;
		const facts = [];
		if (sample) facts.push(`up ${duration(sample.uptime)}`);
		if (node?.program)
			facts.push(node.program.replace(/\/__main__\.py$/, "").split("/").at(-1));
		if (node?.os_pid) facts.push(`program ${node.os_pid}`);
		if (node?.python) facts.push(`Python ${node.python}`);
		say(this.about, facts.join(" · "));
		const [state, words] = this.stateWords();
		this.state.className = `state ${state}`;
		say(this.state.lastChild, words);
		this.save.hidden = store.recorded || !store.columns.at.length;
		document.title = node ? `${sample?.loop?.blocked ? "BLOCKED · " : ""}${node.name} · ergo observe` : "ergo observe";
	}

	stateWords() {
		const { store } = this;
		if (store.status === "connecting") return ["waiting", "Connecting"];
		if (store.status !== "open") return ["bad", store.status === "refused" ? "No entry" : "Not connected"];
		if (store.recorded) return ["past", store.past ? `Recording at ${clock(store.now)}` : "Recording"];
		if (store.node?.state === "ended") return ["bad", `Ended ${ago(store.node.since, Date.now() / 1000 + store.skew)}`];
		if (store.node?.state === "unreachable") return ["bad", "Unreachable"];
		if (store.past) return ["past", `At ${clock(store.now)}`];
		return ["live", "Live"];
	}

	drawAlarm(blocked) {
		const box = this.alarmText;
		box.hidden = !blocked;
		if (!blocked) {
			this.alarmShown = null;
			return;
		}
		const who = blocked.process
			? h("a", { href: `#/process/${blocked.process}` }, blocked.name || `${blocked.behaviour} ${blocked.process}`)
			: "code outside of processes";
		const key = JSON.stringify([blocked.process, blocked.where, blocked.line]);
		if (key !== this.alarmShown) {
			this.alarmShown = key;
			this.alarmTime = h("strong.alarm-time", { "aria-live": "off" });
			const parts = [
				blocked.name && blocked.behaviour && ` (${blocked.behaviour})`,
				blocked.callback && ` in ${blocked.callback}`,
				blocked.message_type && `, which handles ${blocked.message_type}`,
				blocked.starved && ". Its thread gets no processor time",
			];
			put(
				box,
				h("div.alarm-line", this.alarmTime, h("span", " by ", who, parts, ".")),
				blocked.advice && h("p", `Advice: ${blocked.advice}`),
				blocked.where && h("div.alarm-code", h("span.where", blocked.where), blocked.line && h("code", blocked.line)),
				blocked.stack && h("details", h("summary", "Stack of the loop"), h("pre", { tabindex: "0" }, blocked.stack)),
			);
		}
		say(this.alarmTime, `The loop has been blocked for ${duration(blocked.seconds)}`);
	}

	drawBadges() {
		const { sample } = this.store;
		const letters = total(sample?.dead_letters);
		const rings = this.store.get("calls")?.rings?.length ?? 0;
		const set = (name, value, bad) => {
			const { badge } = this.links[name];
			badge.hidden = !value;
			badge.classList.toggle("bad", Boolean(bad));
			say(badge, value ? count(value) : "");
		};
		set("processes", sample ? sample.processes + (sample.metas ?? 0) : 0);
		set("crashes", sample?.crashed, true);
		set("letters", letters);
		set("waits", rings || sample?.calls_waiting, rings > 0);
	}

	drawNotice() {
		const notices = document.getElementById("notices");
		const { store } = this;
		const text =
			store.status === "lost" && store.sample
				? "The connection is lost. These figures are from before; the page connects again by itself."
				: (store.notice ?? "");
		if (notices.dataset.text === text) return;
		notices.dataset.text = text;
		const onclick = () => {
			store.notice = notices.dataset.text = "";
			put(notices);
		};
		put(notices, text && h("div.notice", text, h("button.icon", { "aria-label": "Dismiss", onclick }, "×")));
	}

	async saveRecording() {
		this.save.disabled = true;
		try {
			const parts = [];
			let next = 0,
				name = "recording.ergo";
			while ((next ?? null) !== null) {
				const part = await this.store.ask("recording", { from: next });
				parts.push(Uint8Array.from(atob(part.data), (letter) => letter.charCodeAt(0)));
				({ next, name } = part);
			}
			const address = URL.createObjectURL(new Blob(parts, { type: "application/gzip" }));
			h("a", { href: address, download: name }).click();
			setTimeout(() => URL.revokeObjectURL(address), 10_000);
			this.store.complain(new Error(`Saved as ${name}: \`ergo observe --replay ${name}\` shows it without the node.`));
		} catch (error) {
			this.store.complain(error);
		} finally {
			this.save.disabled = false;
		}
	}

	// -- parts that several views have ----------------------------------------------------------------

	// A link to a process, by its number.
	linkTo(id, text, className = "") {
		return id ? h(`a${className}`, { href: `#/process/${id}` }, text) : h(`span${className}`, text);
	}

	heading(title, about = "", ...tools) {
		const sub = h("p.about", about);
		const element = h("div.heading", h("div", h("h1", title), sub), h("div.tools", tools));
		return { element, about: (text) => say(sub, text) };
	}
}

function decode(text) {
	try {
		return decodeURIComponent(text);
	} catch {
		return text; // somebody has typed a %
	}
}

window.page = new Page();
