"""`Recorder`: writes the minutes of all nodes to a file. `read_history`: answers about the past."""

import base64
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

from .._core.vocabulary.errors import BadInputError
from ..control.protocol import ControlError
from .history import History, header, nodes_part
from .messages import View

__all__ = ["RECORDED", "Recorder", "read_history"]

RECORDED: Final[dict[str, View]] = {
    "sample": View("sample"),
    "rows": View("rows", {"sort": "load", "down": True, "limit": 200}),
    "calls": View("calls"),
    "threads": View("threads"),
    "crashes": View("crashes", {"count": 20}),
    "dead-letters": View("dead-letters", {"count": 50}),
    "events": View("events"),
    "applications": View("applications"),
    "children": View("children", {"of": [0]}),
    "log": View("log", {"count": 100}),
}
"""The views of a recording, whatever the pages show."""
_LARGEST: Final = 1e15
"""The largest number of an argument."""


class Recorder:
    """A recording that grows by a part for each minute of a node. The list of nodes owns it."""

    def __init__(self, path: str | Path) -> None:
        try:
            self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 - it stays open
        except OSError as error:
            raise BadInputError(
                "record", str(path), f"a file that can be written: {error}"
            ) from None
        self._file.write(header([]))
        self._file.flush()

    def write(self, part: bytes) -> None:
        """Add a part."""
        if not self._file.closed:
            self._file.write(part)
            self._file.flush()

    def write_nodes(self, nodes: list[dict[str, Any]]) -> None:
        """Note nodes that have appeared."""
        self.write(nodes_part(nodes))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_history(history: History, key: str, do: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Answer ``history``, ``at`` or ``recording``: a result, or an error, as the page gets it."""
    try:
        return {"ok": True, "result": _ANSWERS[do](history, key, dict(arguments))}
    except ControlError as error:
        return {"ok": False, "error": {"code": error.code, "text": error.text}}


def _columns(history: History, _key: str, arguments: dict[str, Any]) -> object:
    begin, end = _number(arguments, "from", -math.inf), _number(arguments, "to", math.inf)
    _done("history", arguments)
    return history.columns(begin, end)


def _at(history: History, _key: str, arguments: dict[str, Any]) -> object:
    moment = _number(arguments, "at", math.nan)
    _done("at", arguments)
    if math.isnan(moment):
        raise ControlError("bad_argument", "at needs at: a time in seconds since 1970")
    return history.at(moment)


def _recording(history: History, key: str, arguments: dict[str, Any]) -> object:
    begin = _number(arguments, "from", 0)
    _done("recording", arguments)
    part, later = history.part(begin)
    if begin == 0:
        part = header([{"key": key, "name": key, "state": "recorded"}]) + part
    return {"name": f"{key}.ergo", "data": base64.b64encode(part).decode(), "next": later}


def _number(arguments: dict[str, Any], name: str, otherwise: float) -> float:
    if name not in arguments:
        return otherwise
    value = arguments.pop(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= _LARGEST:
        raise ControlError("bad_argument", f"{name} is a number, and not {value!r:.100}")
    return float(value)


def _done(do: str, arguments: dict[str, Any]) -> None:
    if arguments:
        unknown = ", ".join(map(repr, sorted(arguments)))
        raise ControlError("bad_argument", f"{do} does not know {unknown:.100}")


_ANSWERS: Final[dict[str, Callable[[History, str, dict[str, Any]], object]]] = {
    "history": _columns,
    "at": _at,
    "recording": _recording,
}
