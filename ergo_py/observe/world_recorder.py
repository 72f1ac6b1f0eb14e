"""`WorldRecorder`: a simulated world as a recording of its nodes, for the page."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from ..control.commands import crashes, dead_letters
from ..control.protocol import as_json
from ..control.request import Arguments, Beat, Client
from ..control.view_commands import VIEWS
from .history import History, header
from .recorder import RECORDED

__all__ = ["WorldRecorder"]

_VIEWS: Final = {view.__name__: view for view in VIEWS} | {
    "crashes": crashes,
    "dead-letters": dead_letters,
}
_SKIPPED: Final = frozenset({"sample", "rows", "threads", "log"})
"""Views that are recorded in another way, or that belong to the real machine."""
_LEVELS: Final = {"fault": "warning", "crash": "warning", "failure": "error"}
_OF_THE_MACHINE: Final = {"cpu": 0.0, "busy": 0.0, "sent_rate": 0.0}
"""Figures that belong to the real machine."""
_NOTHING: Final = {
    "processes": 0,
    "metas": 0,
    "mailbox": 0,
    "rate": 0.0,
    "cpu": 0.0,
    "busy": 0.0,
    "behaviours": {},
    "uptime": 0.0,
}
"""The figures of a node that is down."""
_NO_ROWS: Final = {"order": [], "rows": {}, "from": 0, "found": 0, "alive": 0}
_LINES: Final = 100


class WorldRecorder:
    """Looks at nodes in the same program, and writes the looks as `Recorder` does."""

    def __init__(self) -> None:
        self._histories: dict[str, History] = {}
        self._starts: dict[str, _Start] = {}
        """The present start of each node, or its last one."""
        self._parts: list[bytes] = []

    def look(
        self, at: float, nodes: Iterable[Any] | None, story: list[tuple[float, str, str]]
    ) -> None:
        """Record the state of nodes at a moment, and the story so far as their log: the moment,
        the kind and the text of each event. None for nodes that are as they were at the last look.
        """
        up = {node.name: node for node in nodes or ()}
        for name in {**self._histories, **up}:
            history = self._histories.get(name)
            if history is None:
                history = self._histories[name] = History(name, is_bounded=False)
                history.record_to(self._parts.append)
            if name in up:
                self._record(history, self._start(up[name], at), at)
            else:
                start = self._starts[name]
                if nodes is not None:
                    start.sample = {**start.sample, **_NOTHING}
                    history.add("rows", RECORDED["rows"].arguments, _NO_ROWS, at)
                history.add("sample", {}, {**start.sample, "at": at}, at)
            history.add("log", RECORDED["log"].arguments, _log(story), at)

    def write(self, path: str | Path) -> None:
        """Write the recording to a file."""
        for history in self._histories.values():
            history.finish()
        nodes = [{"key": name, "name": name, "state": "recorded"} for name in self._histories]
        Path(path).write_bytes(header(nodes) + b"".join(self._parts))

    def _start(self, node: Any, at: float) -> "_Start":
        start = self._starts.get(node.name)
        if start is None or start.client.node is not node:
            start = self._starts[node.name] = _Start(Client(node, lambda _text: None), at)
        return start

    def _record(self, history: History, start: "_Start", at: float) -> None:
        rows = RECORDED["rows"].arguments
        found: Any = _ask(start.client, "sample", {"windows": [rows]})
        start.convert(found, at)
        history.add("sample", {}, found["sample"], at)
        history.add("rows", rows, found["windows"][0], at)
        for kind, view in RECORDED.items():
            if kind not in _SKIPPED:
                answer: Any = _ask(start.client, kind, view.arguments)
                if kind == "crashes":
                    answer = {"crashes": [_with_key(crash) for crash in answer]}
                history.add(kind, view.arguments, answer, at)


class _Start:
    """A start of a node."""

    def __init__(self, client: Client, at: float) -> None:
        self.client = client
        self.sample: dict[str, Any] = {}
        """The last figures."""
        self._began = self._at = at
        self._handled: dict[int, int] = {}
        """The messages that each process had handled at the last look."""

    def convert(self, found: dict[str, Any], at: float) -> None:
        """Count by the seconds of the world: the node counts by those of the machine."""
        window, seconds = found["windows"][0], at - self._at
        rates: Counter[str] = Counter()
        for row in window["rows"].values():
            handled = row["messages"] - self._handled.get(row["id"], 0)
            self._handled[row["id"]] = row["messages"]
            rate = round(handled / seconds, 1) if seconds else 0.0
            row |= {"rate": rate, "load": 0.0, "worst": 0.0}
            rates[row["behaviour"]] += row["rate"]
        self.sample = found["sample"] = {
            **found["sample"],
            **_OF_THE_MACHINE,
            "uptime": at - self._began,
            "rate": sum(rates.values()),
            "behaviours": {
                name: {**facts, "rate": rates[name], "load": 0.0}
                for name, facts in found["sample"]["behaviours"].items()
            },
        }
        window["rate"], self._at = self.sample["rate"], at


def _ask(client: Client, kind: str, arguments: dict[str, Any]) -> Any:
    answer: object = _VIEWS[kind](client, Arguments(kind, arguments), Beat())
    return json.loads(json.dumps(as_json(answer)))


def _with_key(crash: dict[str, Any]) -> dict[str, Any]:
    return crash | {"key": f"{crash['pid']}-{crash['at']}"}


def _log(story: list[tuple[float, str, str]]) -> dict[str, Any]:
    """The last events of a story as the view of a log."""
    first = max(0, len(story) - _LINES)
    return {
        "lines": [
            {
                "n": number,
                "at": round(at, 3),
                "level": _LEVELS.get(kind, "info"),
                "text": text,
                "source": 0,
                "name": kind,
                "fields": {},
            }
            for number, (at, kind, text) in enumerate(story[first:], first)
        ]
    }
