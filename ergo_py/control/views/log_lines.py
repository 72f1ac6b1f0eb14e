"""`LogLines`: the last lines of a node's log, from the first look, and the crashes before it."""

from collections.abc import Sequence
from typing import Any, Final

from ..._core.metas.meta import Meta
from ..._core.processes.process import Process
from ..._core.verbs.node import Node
from ..._core.verbs.node_access import kernel_of
from ..._core.vocabulary.messages import LogRecord
from ..._core.vocabulary.options import LEVELS
from ..._core.vocabulary.text import shown, text_of
from .slices import read_again

__all__ = ["LogLines"]

_KEPT: Final = 1000
_LONGEST: Final = 2000
"""Characters of a text."""
_LONGEST_TRACEBACK: Final = 20_000


class LogLines:
    """Reads the log of a node. The node keeps its lines while there is a reader."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_reading = False
        self._earlier: list[LogRecord] = []
        """The lines of crashes before the first look."""

    def look(self, level: str, find: str, count: int) -> dict[str, Any]:
        """The last lines of at least this level that contain a text, newest last."""
        log = kernel_of(self._node).log
        if not self._is_reading:
            self._is_reading = True
            log.keep_lines(_KEPT)
            self._earlier = self._crashes(log.kept_lines())
        least = LEVELS[level]
        lines: list[dict[str, Any]] = []
        earlier = enumerate(self._earlier, -len(self._earlier))
        for number, record in reversed([*earlier, *log.kept_lines()]):
            if len(lines) == count:
                break
            if LEVELS.get(record.level, 0) >= least and find in record.event:
                lines.append(self._line(number, record))
        return {"lines": lines[::-1]}

    def _crashes(self, kept: Sequence[tuple[int, LogRecord]]) -> list[LogRecord]:
        """The last crashes of the node as lines, without those whose lines it has kept for another
        reader: a person who opens the log after a crash looks for that crash.
        """
        obituaries = kernel_of(self._node).lifetimes.obituaries
        known = {record.source for _, record in kept}
        return [
            LogRecord(
                "error",
                "process crashed",
                one.at,
                one.pid.node,
                one.pid,
                {
                    "name": one.name,
                    "behaviour": one.behaviour,
                    "callback": one.callback,
                    "message_type": one.message_type,
                    "exception": one.traceback,
                },
            )
            for one in read_again(obituaries.failed)
            if one.traceback and one.pid not in known
        ]

    def _line(self, number: int, record: LogRecord) -> dict[str, Any]:
        fields = dict(record.fields)
        for key in ("node", "pid"):
            fields.pop(key, None)
        line: dict[str, Any] = {
            "n": number,
            "at": round(record.at, 3),
            "level": record.level,
            "text": record.event[:_LONGEST],
            "source": record.source.number,
        }
        source = kernel_of(self._node).router.resolve(record.source)
        if isinstance(source, Process | Meta):
            line["name"] = source.name
            line["behaviour"] = source.callbacks.behaviour
        for key in ("name", "behaviour"):
            if fields.get(key) is not None:
                line[key] = text_of(fields.pop(key))
        exception = fields.pop("exception", None) or fields.pop("stack", None)
        if exception is not None:
            line["exception"] = text_of(exception)[-_LONGEST_TRACEBACK:]
        line["fields"] = {str(key): shown(value)[:_LONGEST] for key, value in fields.items()}
        return line

    def close(self) -> None:
        """Read no more."""
        if self._is_reading:
            self._is_reading = False
            kernel_of(self._node).log.stop_keeping_lines()
