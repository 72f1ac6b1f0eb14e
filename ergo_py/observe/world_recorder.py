"""`WorldRecorder`: a simulated world as a recording of its nodes, for the page."""

import json
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
_LOUD: Final = frozenset({"fault", "crash", "failure"})
_LINES: Final = 100


class WorldRecorder:
    """Looks at nodes in the same program, and writes the looks as `Recorder` does."""

    def __init__(self) -> None:
        self._histories: dict[str, History] = {}
        self._clients: dict[str, Client] = {}
        self._parts: list[bytes] = []

    def look(self, at: float, nodes: Iterable[Any], story: list[tuple[float, str, str]]) -> None:
        """Record the state of nodes at a moment, and the story so far as their log: the moment,
        the kind and the text of each event.
        """
        for node in nodes:
            history = self._histories.get(node.name)
            if history is None:
                history = self._histories[node.name] = History(node.name, is_bounded=False)
                history.record_to(self._parts.append)
            self._record(history, self._client(node), at)
            history.add("log", RECORDED["log"].arguments, _log(story), at)

    def write(self, path: str | Path) -> None:
        """Write the recording to a file."""
        for history in self._histories.values():
            history.finish()
        nodes = [{"key": name, "name": name, "state": "recorded"} for name in self._histories]
        Path(path).write_bytes(header(nodes) + b"".join(self._parts))

    def _client(self, node: Any) -> Client:
        client = self._clients.get(node.name)
        if client is None or client.node is not node:
            client = self._clients[node.name] = Client(node, lambda _text: None)
        return client

    def _record(self, history: History, client: Client, at: float) -> None:
        rows = RECORDED["rows"].arguments
        found: Any = _ask(client, "sample", {"windows": [rows]})
        history.add("sample", {}, found["sample"], at)
        history.add("rows", rows, found["windows"][0], at)
        for kind, view in RECORDED.items():
            if kind not in _SKIPPED:
                answer: Any = _ask(client, kind, view.arguments)
                if kind == "crashes":
                    answer = {"crashes": [_with_key(crash) for crash in answer]}
                history.add(kind, view.arguments, answer, at)


def _ask(client: Client, kind: str, arguments: dict[str, Any]) -> Any:
    answer: Any = _VIEWS[kind](client, Arguments(kind, arguments), Beat())
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
                "level": "warning" if kind in _LOUD else "info",
                "text": text,
                "source": 0,
                "name": kind,
                "fields": {},
            }
            for number, (at, kind, text) in enumerate(story[first:], first)
        ]
    }
