"""The log: structlog, bound to who speaks, without touching anybody's global configuration.

Where lines go is decided once, when the node opens: to the host's structlog or stdlib logging if one of them is set up, else to
standard error as text; or as asked. Every line is also offered to the node's logger processes.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, Final, Literal

import structlog

from .errors import BadInputError
from .ids import PID, Alias
from .messages import LogRecord
from .options import LEVELS, check_level

__all__ = ["Log", "Output", "check_output"]

Output = Literal["auto", "console", "json", "stdlib", "structlog", "none"]
_OUTPUTS: Final = ("auto", "console", "json", "stdlib", "structlog", "none")

Event = MutableMapping[str, Any]

_NOWHERE: Final = object()
"""What our loggers wrap: nothing, since they write by themselves. None would make structlog ask the host's factory for one."""


class Log:
    """Makes bound loggers, writes their lines, and offers them to logger processes."""

    def __init__(self, node: str, level: str, output: Output, offer: Callable[[LogRecord], None]) -> None:
        check_output(output)
        self.node = node
        self.level = level
        self._number = check_level(level)
        self._offer = offer
        self.watched = False
        """Set while there are logger processes; without them no record is made."""
        self._write = _writer(output)

    def wants(self, level: str) -> bool:
        """Say whether a line of this level would be written, so that nobody builds one for nothing."""
        return LEVELS[level] >= self._number

    def logger(self, source: PID | Alias, level: str | None = None, **context: object) -> Any:
        """A structlog logger whose lines carry the node, the speaker and ``context``."""
        number = self._number if level is None else check_level(level)
        is_off = number > logging.CRITICAL
        return structlog.wrap_logger(
            _NOWHERE,
            # The speaker is no part of the line's fields, where one of the user's own would take its place.
            processors=[_drop] if is_off else [structlog.processors.format_exc_info, partial(self._emit, source)],
            wrapper_class=structlog.make_filtering_bound_logger(min(number, logging.CRITICAL)),
            context_class=dict,
            cache_logger_on_first_use=False,
        ).bind(node=self.node, **context)

    def _emit(self, source: PID | Alias, _logger: object, method: str, event: Event) -> Any:
        text = str(event.pop("event", ""))
        if self.watched:
            self._offer(LogRecord(method, text, time.time(), self.node, source, dict(event)))
        self._write(method, text, {"pid": str(source), **event})
        raise structlog.DropEvent


def _drop(_logger: object, _method: str, _event: Event) -> Any:
    raise structlog.DropEvent


def check_output(output: object) -> None:
    """Refuse what is no place for lines to go."""
    if output not in _OUTPUTS:
        raise BadInputError("log_output", output, "one of " + ", ".join(_OUTPUTS))


def _writer(output: Output) -> Callable[[str, str, dict[str, Any]], None]:
    if output == "auto":
        if structlog.is_configured():
            output = "structlog"
        elif logging.getLogger().handlers:
            output = "stdlib"
        else:
            output = "console"
    match output:
        case "structlog":
            return _to_structlog
        case "stdlib":
            return _to_stdlib
        case "json":
            return _to_json
        case "none":
            return lambda _level, _text, _fields: None
    return _Console()


def _to_structlog(level: str, text: str, fields: dict[str, Any]) -> None:
    getattr(structlog.get_logger("ergo_py"), level)(text, **fields)


def _to_stdlib(level: str, text: str, fields: dict[str, Any]) -> None:
    pairs = " ".join(f"{key}={value!r}" for key, value in fields.items() if key != "exception")
    trace = f"\n{fields['exception']}" if "exception" in fields else ""
    logging.getLogger("ergo_py").log(LEVELS[level], "%s %s%s", text, pairs, trace, extra={"ergo": fields})


def _to_json(level: str, text: str, fields: dict[str, Any]) -> None:
    sys.stderr.write(json.dumps(_line(time.time(), level, text, fields), default=str) + "\n")


class _Console:
    """Lines for people, on standard error: whatever that is when the line is written."""

    def __init__(self) -> None:
        colours = sys.stderr.isatty() if hasattr(sys.stderr, "isatty") else False
        self._render = structlog.dev.ConsoleRenderer(colors=colours, pad_event_to=0)

    def __call__(self, level: str, text: str, fields: dict[str, Any]) -> None:
        line = _line(time.strftime("%H:%M:%S"), level, text, fields)
        sys.stderr.write(self._render(None, level, line) + "\n")


def _line(now: object, level: str, text: str, fields: dict[str, Any]) -> dict[str, Any]:
    head = {"timestamp": now, "level": level, "event": text}
    # The head comes first, and a field of the same name does not pass for it.
    return head | fields | head
