"""`publish`: write the pages of docs/performance from the figures of a run: tables, drawings,
losses and missed goals.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from .plot import Dot, dots
from .reasons import GOALS, GROWTH, LOSSES, why

__all__ = ["Group", "Shown", "goals", "growth", "peers", "profiles", "publish"]

_DEARER = 1.05
"""A cost of more than this many times a peer's is a loss, not noise."""

Content = Mapping[str, Any]


@dataclass(frozen=True)
class Shown:
    """A line of a case, as the page calls it."""

    title: str
    case: str
    line: str


@dataclass(frozen=True)
class Group:
    """The rows of a table and a drawing, against these peers."""

    name: str
    heading: str
    peers: Sequence[str]
    rows: Sequence[Shown]


_ACTORS = (
    "floor",
    "trio",
    "asyncio",
    "anyio",
    "pykka",
    "thespian",
    "xoscar",
    "pyctor",
    "actorio",
    "Erlang",
    "Go",
)

GROUPS = (
    Group(
        "messages",
        "Messages and calls",
        _ACTORS,
        (
            Shown("tell, 1 to 1", "tell, 1 to 1", "plain handler"),
            Shown("tell, 1 to 1, async handler", "tell, 1 to 1", "async handler"),
            Shown("tell, 100 pairs", "tell, 100 to 100", "plain handler"),
            Shown("tell, 100 pairs, async handler", "tell, 100 to 100", "async handler"),
            Shown("call, p50", "call, 1 pair", "plain callee, p50"),
            Shown("call, p99", "call, 1 pair", "plain callee, p99"),
            Shown("call, async callee, p50", "call, 1 pair", "async callee, p50"),
            Shown("call, async callee, p99", "call, 1 pair", "async callee, p99"),
            Shown("call, 100 pairs", "call, 100 pairs", "plain callee, no timeout"),
            Shown("call, 100 pairs, async callee", "call, 100 pairs", "async callee, no timeout"),
            Shown("publish to many", "publish to 10,000 subscribers", "publish"),
        ),
    ),
    Group(
        "lives",
        "Lifecycle, memory, timers",
        _ACTORS,
        (
            Shown("spawn", "spawn and stop", "spawn, plain callbacks"),
            Shown("spawn, async callbacks", "spawn and stop", "spawn, async callbacks"),
            Shown("stop", "spawn and stop", "stop, plain callbacks"),
            Shown("crash to successor", "restart", "one child, again and again"),
            Shown("memory, 10,000 idle", "crowd of 10,000", "memory, plain (KiB)"),
            Shown("memory, 100,000 idle", "crowd of 100,000", "memory, plain (KiB)"),
            Shown("stop of 100,000", "crowd of 100,000", "stop, plain (µs)"),
            Shown("timer, arm", "timers", "arm"),
            Shown("timer, cancel", "timers", "cancel"),
        ),
    ),
    Group(
        "threads",
        "From a thread to a process",
        ("floor", "trio", "from_thread", "asyncio", "anyio", "janus", "pykka"),
        (
            Shown("flood", "thread to process, flood", "one thread"),
            Shown("flood, four threads", "thread to process, flood", "four threads"),
            Shown("flood, bounded mailbox", "thread to process, flood", "bounded, waits for room"),
            Shown("to a sleeper, p50", "thread to process, idle", "p50"),
            Shown("to a sleeper, p99", "thread to process, idle", "p99"),
        ),
    ),
    Group(
        "entities",
        "State that survives",
        ("asyncio", "trio", "eventsourcing", "dbos"),
        (
            Shown("a command, stored", "entities, 1 client", "a command, stored"),
            Shown("of 100 clients", "entities, 100 clients", "a command, stored"),
            Shown("of 1,000 clients", "entities, 1,000 clients", "a command, stored"),
        ),
    ),
    Group(
        "network",
        "Sockets",
        (
            "floor",
            "trio",
            "asyncio",
            "asyncio streams",
            "asyncio protocol",
            "uvloop",
            "uvloop streams",
            "uvloop protocol",
            "anyio",
            "socketserver",
            "Erlang",
            "Go",
        ),
        (
            Shown("TCP echo 64 B, reader task", "TCP echo, 64 bytes", "reader task"),
            Shown(
                "TCP echo 64 B, reader task, an actor each", "TCP echo, 64 bytes", "an actor each"
            ),
            Shown("TCP echo 64 B, reader thread", "TCP echo, 64 bytes", "reader thread"),
            Shown("TCP echo 64 KiB, reader task", "TCP echo, 64 KiB", "reader task"),
            Shown(
                "TCP echo 64 KiB, reader task, an actor each", "TCP echo, 64 KiB", "an actor each"
            ),
            Shown("TCP echo 64 KiB, reader thread", "TCP echo, 64 KiB", "reader thread"),
            Shown("UDP flood, reader task", "UDP flood, 64 bytes", "reader task"),
            Shown("UDP flood, reader thread", "UDP flood, 64 bytes", "reader thread"),
            Shown(
                "a short connection, reader task",
                "short connections",
                "reader task, one actor for all",
            ),
            Shown(
                "a short connection, reader thread",
                "short connections",
                "reader thread, one actor for all",
            ),
        ),
    ),
    Group(
        "programs",
        "Programs that talk",
        ("by hand", "Erlang", "xoscar", "nats-py", "by hand, whole", "ProcessPoolExecutor"),
        (
            Shown("a call, p50", "two programs", "a call, p50"),
            Shown("a call of 64 at once", "two programs", "a call of 64 at once"),
            Shown("a message, one way", "two programs", "a message, one way"),
            Shown("over NATS: a call, p50", "two programs, a NATS server", "a call, p50"),
            Shown(
                "over NATS: a call of 64 at once",
                "two programs, a NATS server",
                "a call of 64 at once",
            ),
            Shown(
                "over NATS: a message, one way",
                "two programs, a NATS server",
                "a message, one way",
            ),
            Shown(
                "a small call beside 16 MiB, p50", "small calls beside 16 MiB", "a small call, p50"
            ),
            Shown("a message of 16 MiB", "small calls beside 16 MiB", "a large message"),
            Shown("a function on all cores", "a function on all cores", "ProcessCalls"),
        ),
    ),
    Group(
        "web",
        "Web",
        ("by hand", "uvicorn", "hypercorn", "aiohttp", "Go net/http", "websockets"),
        (
            Shown("a request, a plain actor", "web requests", "a plain actor"),
            Shown("a request, an async actor", "web requests", "an async actor"),
            Shown(
                "a WebSocket echo of 64 bytes",
                "web sockets, 64 bytes",
                "echo of 64 bytes, an actor for each connection",
            ),
            Shown(
                "a WebSocket echo of 16 KiB",
                "web sockets, 16384 bytes",
                "echo of 16384 bytes, an actor for each connection",
            ),
            Shown("a file of 10 KB", "web files, 10 KB", "a file of 10 KB"),
            Shown("a file of 1 MB", "web files, 1 MB", "a file of 1 MB"),
        ),
    ),
)


def publish(kind: str, content: Content, directory: Path) -> list[Path]:
    """Write the page ``kind`` with its drawings, and beside it the figures it was made from."""
    made = {"peers": peers, "goals": goals, "growth": growth, "profiles": profiles}[kind](content)
    kept = {
        **content,
        "cases": {name: _without_rounds(case) for name, case in content["cases"].items()},
    }
    made[f"{kind}.json"] = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in made]


def _without_rounds(case: Content) -> Content:
    return {name: value for name, value in case.items() if name != "rounds"}


def _about(content: Content) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in content["versions"].items())
    busy = content["load"][0] > content["processors"]
    warning = (
        " **The machine was busy with other work: do not trust figures with threads or sockets.**"
        if busy
        else ""
    )
    return (
        f"Measured on {content['at'][:10]}: {content['machine']}, {content['processors']} "
        "processors, load "
        f"{content['load'][0]:.1f} at the end; CPython {content['python']}; {versions}.{warning}"
    )


def _unit(of_case: str, line: str) -> str:
    """The unit of a line: some lines contain it, because their case has several."""
    return "KiB" if "KiB" in line else of_case or "µs"


def _written_by(command: str) -> str:
    return f"<!-- Written by `python -m benchmarks {command}`. -->\n"


# -- peers -----------------------------------------------------------------------------------------


def peers(content: Content) -> dict[str, str]:
    """The tables and drawings of a run with peers."""
    made: dict[str, str] = {}
    page = [_written_by("peers"), _about(content), ""]
    for group in GROUPS:
        found = [(shown, _times(content, shown, group.peers)) for shown in group.rows]
        rows = [(shown, times) for shown, times in found if times]
        if not rows:
            continue
        series = [
            peer
            for peer in group.peers
            if any(dot.series == peer for _, times in rows for dot in times)
        ]
        name = f"peers-{group.name}.svg"
        made[name] = dots(group.heading, [(shown.title, times) for shown, times in rows], series)
        page += [f"### {group.heading}", "", f"![{group.heading}](performance/{name})", ""]
        page += [*_peer_table(content, rows, series), ""]
    page += ["### Where others are cheaper", "", *_losses(content), ""]
    if content.get("failed"):
        page += [
            "Gave no figures in this run: "
            + "; ".join(f"{k} ({v})" for k, v in content["failed"].items()),
            "",
        ]
    made["peers.part"] = "\n".join(page)
    return made


def _line(content: Content, shown: Shown) -> Content:
    found: Content = content["cases"].get(shown.case, {}).get("lines", {}).get(shown.line, {})
    return found


def _times(content: Content, shown: Shown, peers: Sequence[str]) -> list[Dot]:
    """How many times as much each peer costs."""
    line = _line(content, shown)
    ratios = line.get("ratios", {})
    return [
        Dot(peer, 1 / ratios[peer], line["spreads"][peer])
        for peer in peers
        if peer in ratios and isfinite(ratios[peer]) and ratios[peer] > 0
    ]


def _peer_table(
    content: Content, rows: Sequence[tuple[Shown, list[Dot]]], series: Sequence[str]
) -> Iterator[str]:
    yield "| work | ergo_py | " + " | ".join(series) + " |"
    yield "|---" * (len(series) + 2) + "|"
    for shown, times in rows:
        line = _line(content, shown)
        unit = _unit(content["cases"][shown.case]["unit"], shown.line)
        cells = {dot.series: _cell(dot) for dot in times}
        ours = f"{line['value']:.3g} {unit}{_margin(line['spread'])}"
        yield (
            f"| {shown.title} | {ours} | "
            + " | ".join(cells.get(name, "") for name in series)
            + " |"
        )


def _cell(dot: Dot) -> str:
    text = f"{dot.value:.2g}" if dot.value < 10 else f"{dot.value:.0f}"
    text = f"{text}×{_margin(dot.spread)}"
    return f"**{text}**" if dot.value * _DEARER < 1 else text


def _margin(spread: float) -> str:
    """Half the interquartile range; empty after a single round."""
    return f" ±{spread / 2:.0%}" if spread else ""


def _losses(content: Content) -> Iterator[str]:
    """A row for each reason, with all work that it is the reason for."""
    found: dict[str, dict[str, list[str]]] = {}
    for group in GROUPS:
        for shown in group.rows:
            for dot in _times(content, shown, group.peers):
                if dot.value * _DEARER < 1:
                    reason = why(LOSSES, shown.case, shown.line, dot.series)
                    works = found.setdefault(reason, {})
                    works.setdefault(shown.title, []).append(f"{1 / dot.value:.2g}× {dot.series}")
    yield "| work, and the cost of ergo_py | reason |"
    yield "|---|---|"
    for reason, works in found.items():
        costs = "; ".join(f"*{work}* {', '.join(of)}" for work, of in works.items())
        yield f"| {costs} | {reason} |"


# -- goals -----------------------------------------------------------------------------------------


def goals(content: Content) -> dict[str, str]:
    """Each goal of `make bench`, met or not, and why not."""
    rows = [
        (case, unit, line, goal)
        for case, found in content["cases"].items()
        for unit in [found["unit"]]
        for line, figures in found["lines"].items()
        for goal in figures["goals"]
    ]
    rows.sort(key=lambda row: _rank(row[3]["name"]))
    page = [_written_by("goals"), _about(content), ""]
    for heading, dreams in (("To be reached", False), ("Ambitions", True)):
        some = [row for row in rows if row[3]["dream"] is dreams]
        met = sum(goal["met"] for *_, goal in some)
        page += [f"### {heading}", "", f"{met} of {len(some)} are met in this run.", ""]
        page += ["| goal | work | at most | here | | if not, why |", "|---|---|---|---|---|---|"]
        page += [_goal_row(*row) for row in some]
        page += [""]
    return {"goals.part": "\n".join(page)}


def _goal_row(case: str, unit: str, line: str, goal: Content) -> str:
    of = f"× {goal['of']}" if goal["of"] else _unit(unit, line)
    reason = "" if goal["met"] else why(GOALS, case, line, goal["of"])
    mark = "met" if goal["met"] else "**not met**"
    cells = [
        goal["name"],
        f"{case}: {line}",
        f"{goal['most']:.3g} {of}",
        f"{goal['is']:.3g}",
        mark,
        reason,
    ]
    return "| " + " | ".join(cells) + " |"


def _rank(name: str) -> tuple[int, int, str]:
    """The numbered goals first, in order."""
    number = name[1:]
    return (0, int(number), "") if name[:1] == "G" and number.isdigit() else (1, 0, name)


# -- growth ----------------------------------------------------------------------------------------


def growth(content: Content) -> dict[str, str]:
    """The cost of a piece of work with ten and a hundred times as many of them."""
    page = [_written_by("growth"), _about(content), "", "![Growth](performance/growth.svg)", ""]
    page += ["| work | at 1× | 10× | 100× | |", "|---|---|---|---|---|"]
    rows: list[tuple[str, list[Dot]]] = []
    for case, found in content["cases"].items():
        for line, figures in found["lines"].items():
            ratio = figures["ratios"]
            most = figures["goals"][0]
            first, tenfold = ratio["1×"], ratio["10×"]
            rows.append(
                (
                    f"{case}: {line}",
                    [Dot("10×", first / tenfold), Dot("100×", first, figures["spreads"]["1×"])],
                )
            )
            mark = (
                "no worse than linear"
                if most["met"]
                else f"**grows.** {why(GROWTH, case, line, '')}".strip()
            )
            cost = f"{figures['value'] / first:.3g} {found['unit']}"
            page.append(
                f"| {case}: {line} | {cost} | {first / tenfold:.2f}× | {first:.2f}× | {mark} |"
            )
    ends = ("cheaper when there is more", "more expensive when there is more")
    drawing = dots(
        "Cost of an operation at 10× and 100×, as a multiple of that at 1×",
        rows,
        ("10×", "100×"),
        ends,
    )
    return {"growth.part": "\n".join([*page, ""]), "growth.svg": drawing}


# -- profiles --------------------------------------------------------------------------------------

_WORTH_A_ROW = 0.03
"""The share of a path that a function must take, before or now, to be named."""


def profiles(content: Content) -> dict[str, str]:
    """Where the time of the hot paths goes, function by function, and where it went before."""
    page = [_written_by("profile"), _about(content), ""]
    for title, taken in content["cases"].items():
        labels = [label for label in ("before", "now") if label in taken]
        named = dict.fromkeys(
            place for label in ("now", *labels) for place in taken[label]["shares"]
        )
        worth = [
            place
            for place in named
            if any(taken[label]["shares"].get(place, 0.0) >= _WORTH_A_ROW for label in labels)
        ]
        page += [f"| {title}, µs | {' | '.join(labels)} |", "|---" * (len(labels) + 1) + "|"]
        page += [_profile_row("**all of it**", [taken[label]["cost"] for label in labels])]
        page += [
            _profile_row(place, [_own_time(taken[label], [place]) for label in labels])
            for place in worth
        ]
        page += [
            _profile_row(
                "all others", [_own_time(taken[label], named.keys() - worth) for label in labels]
            ),
            "",
        ]
    return {"profiles.part": "\n".join(page)}


def _own_time(profile: Content, places: Iterable[str]) -> float:
    shares: Mapping[str, float] = profile["shares"]
    return float(profile["cost"]) * sum(shares.get(place, 0.0) for place in places)


def _profile_row(place: str, costs: Sequence[float]) -> str:
    cells = " | ".join(f"{cost:.3g}" if cost >= 0.01 else "" for cost in costs)
    function, _, where = place.partition(" (")
    name = f"`{function}` in {where.rstrip(')')}" if where else place
    return f"| {name} | {cells} |"
