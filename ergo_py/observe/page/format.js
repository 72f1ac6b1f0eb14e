// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const thin = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (value) => whole.format(value ?? 0);

export function short(value) {
	if (value === null || value === undefined || !Number.isFinite(value)) return "–";
	const size = Math.abs(value);
	if (size >= 1e9) return `${thin.format(value / 1e9)}G`;
	if (size >= 1e6) return `${thin.format(value / 1e6)}M`;
	if (size >= 1e4) return `${thin.format(value / 1e3)}k`;
	if (size >= 100 || Number.isInteger(value)) return whole.format(value);
	return thin.format(value);
}

export function rate(value) {
	if (!value) return value === 0 ? "0" : "–";
	return value < 0.05 ? "<0.1" : short(value);
}

export function bytes(value) {
	if (value === null || value === undefined) return "–";
	for (const unit of ["B", "KiB", "MiB", "GiB"]) {
		if (value < 1024 || unit === "GiB") return `${value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)} ${unit}`;
		value /= 1024;
	}
}

export function percent(share) {
	if (!share) return share === 0 ? "0 %" : "–";
	return share < 0.001 ? "<0.1 %" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}

export function duration(seconds) {
	if (seconds === null || seconds === undefined) return "–";
	if (!(seconds > 0)) return "0";
	if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
	if (seconds < 0.01) return `${(seconds * 1e3).toFixed(1)} ms`;
	if (seconds < 1) return `${Math.round(seconds * 1e3)} ms`;
	if (seconds < 60) return `${seconds.toFixed(1)} s`;
	if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${pad(Math.floor(seconds % 60))} s`;
	if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${pad(Math.floor((seconds % 3600) / 60))} min`;
	return `${Math.floor(seconds / 86400)} d ${pad(Math.floor((seconds % 86400) / 3600))} h`;
}

// A duration in few characters, for tables.
export function brief(seconds) {
	if (seconds < 60) return duration(seconds);
	if (seconds < 3600) return `${(seconds / 60).toFixed(1)} min`;
	return seconds < 86400 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} d`;
}

const pad = (number) => String(number).padStart(2, "0");

// The time of day; with `parts`, milliseconds as well.
export function clock(at, parts = false) {
	if (!at) return "–";
	const day = new Date(at * 1000);
	const text = `${pad(day.getHours())}:${pad(day.getMinutes())}:${pad(day.getSeconds())}`;
	return parts ? `${text}.${String(day.getMilliseconds()).padStart(3, "0")}` : text;
}

export function moment(at) {
	if (!at) return "–";
	const day = new Date(at * 1000);
	return `${day.getFullYear()}-${pad(day.getMonth() + 1)}-${pad(day.getDate())} ${clock(at)}`;
}

export function ago(at, now) {
	const seconds = Math.max(0, now - at);
	return seconds < 1 ? "just now" : `${duration(Math.floor(seconds)).replace(".0", "")} ago`;
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

// How a process is called: its name, or its behaviour and number.
export const title = (row) => row.name || `${row.behaviour} ${row.id}`;

// The sum of counts by kind.
export const total = (counts) => Object.values(counts ?? {}).reduce((sum, value) => sum + value, 0);
