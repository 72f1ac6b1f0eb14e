"""`Log`: structlog loggers bound to their process, without changes to structlog's global
configuration.

The output is chosen once, when the node opens: the host's structlog or stdlib logging if it is
configured, else text on standard error; or the output that ``log_output`` names. Each line is also
offered to the node's logger processes. A line has the values of ``structlog.contextvars``, which
belong to the process as all its context variables do.

Logging never raises. If an output raises, the line goes to standard error. If it cannot be written
there either, it is counted as lost. The next successful line is followed by a warning with the
number of lost lines.
"""

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from itertools import count
from typing import Any, Final, NoReturn

import structlog
from structlog.typing import FilteringBoundLogger, Processor

from .vocabulary.errors import BadInputError
from .vocabulary.ids import PID, Alias, Name, Ref
from .vocabulary.messages import LogRecord
from .vocabulary.options import LEVELS, Output, check_level, check_output
from .vocabulary.text import printable, shown, text_of

__all__ = ["Log"]

Event = MutableMapping[str, Any]
Fields = dict[str, Any]

_NOWHERE: Final = object()
"""The wrapped logger of our loggers: a dummy, since they write by themselves. With None, structlog
would create a logger from the host's factory.
"""


class Log:
    """Creates bound loggers, writes their lines, and offers them to logger processes."""

    def __init__(
        self, node: str, level: str, output: Output, offer: Callable[[LogRecord], None]
    ) -> None:
        check_output(output)
        self.node = node
        self._following: type[FilteringBoundLogger] = type("FollowingLogger", (_filter(0),), {})
        """The class of the loggers that have the level of the node."""
        self.change_level(level)
        self._offer = offer
        self.watched: bool = False
        """Set while there are logger processes."""
        self._kept: deque[tuple[int, LogRecord]] | None = None
        """The last lines with their numbers, while they are kept for inspection."""
        self._keepers = 0
        self._lines = count(1)
        self._write = _writer(output)
        self.lost: int = 0
        """The number of lines that could not be written."""
        self._losses = count(1)  # other threads may lose lines, too, and next() is atomic
        self._told_lost = 0
        self._told_raised = False

    def change_level(self, level: str) -> None:
        """Write lines of this level and above from now on. Loggers that were made before follow,
        also those that users have bound to values, but not those with a level of their own.

        Raises:
            BadInputError: there is no such level.
        """
        self._number = number = check_level(level)
        self.level = level
        # A line below the level must stay as cheap as structlog makes it: a method that does
        # nothing. So the class takes the methods of structlog's class for the level.
        for name, method in vars(_filter(number)).items():
            if not name.startswith("__"):
                setattr(self._following, name, method)

    def offer_records(self, wanted: bool) -> None:
        """Offer records to logger processes from now on, or no longer."""
        self.watched = wanted

    def keep_lines(self, most: int) -> None:
        """Keep the last lines from now on, for a further reader. From any thread."""
        self._keepers += 1
        if self._kept is None:
            self._kept = deque(maxlen=most)

    def stop_keeping_lines(self) -> None:
        """A reader has left; after the last one no lines are kept. From any thread."""
        self._keepers -= 1
        if not self._keepers:
            self._kept = None

    def kept_lines(self) -> list[tuple[int, LogRecord]]:
        """The lines that are kept, with their numbers, newest last. From any thread."""
        kept = self._kept
        return [] if kept is None else list(kept)

    def wants(self, level: str) -> bool:
        """Say whether a line of this level would be written or offered, to save building it if
        not.
        """
        if self._write is _to_nowhere and not self.watched and self._kept is None:
            return False
        return LEVELS[level] >= self._number

    def logger(
        self, source: PID | Alias, level: str | None = None, **context: object
    ) -> FilteringBoundLogger:
        """A structlog logger. Its lines carry the node, the process ``source``, and the values of
        ``context`` that are not None.
        """
        known = {key: value for key, value in context.items() if value is not None}
        # Pass the source beside the fields: a user's field of the same name must not replace it.
        emit: Processor = partial(self._emit, source, level is None)
        is_off = level is not None and check_level(level) > logging.CRITICAL
        made: FilteringBoundLogger = structlog.wrap_logger(
            _NOWHERE,
            processors=[_drop if is_off else emit],
            wrapper_class=self._following if level is None else _filter(LEVELS[level]),
            context_class=dict,
            cache_logger_on_first_use=False,
        ).bind(node=self.node, **known)
        return made

    def rebound(self, logger: FilteringBoundLogger, given: object) -> FilteringBoundLogger:
        """``logger``, also bound to the values of the logger that a user has given.

        Raises:
            BadInputError: it is not bound to any values, since it is no logger of structlog.
        """
        if not isinstance(given, structlog.BoundLoggerBase):
            raise BadInputError(
                "self.log",
                given,
                "a logger with bound values, such as `self.log = self.log.bind(order=5)`; a "
                "logger of your own needs another name, such as `self.logger`",
            )
        own = structlog.get_context(logger)
        values = structlog.get_context(given).items()
        return logger.bind(**{key: value for key, value in values if key not in own})

    def _emit(
        self, source: PID | Alias, follows: bool, logger: object, method: str, event: Event
    ) -> NoReturn:
        if follows and self._number > logging.CRITICAL:  # off: structlog has no class for it
            raise structlog.DropEvent
        given = event.pop("event", "")
        text = given if type(given) is str else text_of(given)
        try:
            event = structlog.processors.format_exc_info(logger, method, event)
        except Exception as error:  # the code of the logged exception itself raised
            event["exc_info"] = shown(error)
        shared = structlog.contextvars.get_contextvars()
        fields = {"pid": str(source), **event}
        if shared:
            event, fields = {**shared, **event}, {**shared, **fields}
        if self.watched or self._kept is not None:
            record = LogRecord(method, text, time.time(), self.node, source, dict(event))
            if self._kept is not None:
                self._kept.append((next(self._lines), record))
            if self.watched:
                self._offer(record)
        lines = [(method, text, fields)]
        for line in lines:
            try:
                is_written = self._write(*line)
            except Exception as error:
                is_written = self._write_elsewhere(error, line)
            if not is_written:
                self.lost = next(self._losses)
            elif line is lines[0] and self._told_lost < self.lost:
                # Once: an output that loses a line of its own each time would never end.
                told = {"node": self.node, "lost": self.lost - self._told_lost}
                self._told_lost = self.lost
                lines.append(("warning", "log lines could not be written", told))
        raise structlog.DropEvent

    def _write_elsewhere(self, error: Exception, line: tuple[str, str, Fields]) -> bool:
        """Write a line to standard error, because the output raised."""
        if not self._told_raised:
            why = "a log output raised, so this line went to standard error; this is said once"
            self._told_raised = _to_stderr(
                _plain("error", why, {"node": self.node, "error": shown(error)})
            )
        return _to_stderr(_plain(*line))


def _filter(number: int) -> type[FilteringBoundLogger]:
    """The class of loggers that write lines of at least this level."""
    return structlog.make_filtering_bound_logger(min(number, logging.CRITICAL))


def _drop(_logger: object, _method: str, _event: Event) -> NoReturn:
    raise structlog.DropEvent


def _writer(output: Output) -> Callable[[str, str, Fields], bool]:
    """The function that writes a line. It returns False if the line could not be written, and
    passes on exceptions of the host's logging.
    """
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
            return _Json()
        case "none":
            return _to_nowhere
    return _Console()


def _to_nowhere(_level: str, _text: str, _fields: Fields) -> bool:
    return True


def _to_structlog(level: str, text: str, fields: Fields) -> bool:
    getattr(structlog.get_logger("ergo_py"), level)(text, **fields)
    return True


def _to_stdlib(level: str, text: str, fields: Fields) -> bool:
    pairs, below = _parts(fields)
    logger = logging.getLogger("ergo_py")
    logger.log(LEVELS[level], "%s %s%s", printable(text), pairs, below, extra={"ergo": fields})
    return True


class _Json:
    """Lines of JSON on ``sys.stderr``, with the time in UTC as ISO 8601 writes it."""

    def __init__(self) -> None:
        self._stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
        self._render = structlog.processors.JSONRenderer(default=text_of)

    def __call__(self, level: str, text: str, fields: Fields) -> bool:
        now = self._stamp(None, level, {})["timestamp"]
        # An identifier is a tuple, which JSON would take apart.
        named = {
            key: str(value) if isinstance(value, PID | Alias | Name | Ref) else value
            for key, value in fields.items()
        }
        try:
            line = self._render(None, level, _line(now, level, text, named))
        except (TypeError, ValueError, RecursionError):  # keys that are no str, or a circular value
            safe = {key: shown(value) for key, value in fields.items()}
            line = self._render(None, level, _line(now, level, text, safe))
        return _to_stderr(str(line))


class _Console:
    """Human-readable lines on ``sys.stderr``, looked up for each line, since programs replace
    it.
    """

    def __init__(self) -> None:
        self._render = structlog.dev.ConsoleRenderer(
            colors=_is_terminal(), pad_event_to=0, sort_keys=False
        )

    def __call__(self, level: str, text: str, fields: Fields) -> bool:
        beside, below = _split(fields)
        safe = {
            key: printable(value) if isinstance(value, str) else _Shown(value)
            for key, value in beside.items()
        }
        line = _line(time.strftime("%H:%M:%S"), level, printable(text), safe)
        return _to_stderr(self._render(None, level, line) + below)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # stderr is None, closed, or not a file
        return False


def _to_stderr(text: str) -> bool:
    """Write to ``sys.stderr``; if that fails, to the original standard error of the program. False
    if both fail.
    """
    for stream in dict.fromkeys((sys.stderr, sys.__stderr__)):
        if stream is not None:
            try:
                stream.write(text + "\n")
            except Exception:  # closed, or the disk is full, or the pipe has no reader
                continue
            return True
    return False


# -- escaping: no text may pass for another log line -----------------------------------------------

_BELOW: Final = ("exception", "stack")
"""The multi-line fields, which are written below their line."""


class _Shown:
    """The escaped text of a value. Not a ``str``, which the renderer would quote again."""

    __slots__ = ("_text",)

    def __init__(self, value: object) -> None:
        self._text = printable(shown(value))

    def __repr__(self) -> str:
        return self._text


def _plain(level: str, text: str, fields: Fields) -> str:
    pairs, below = _parts(fields)
    return f"{time.strftime('%H:%M:%S')} [{level}] {printable(text)} {pairs}{below}"


def _parts(fields: Fields) -> tuple[str, str]:
    beside, below = _split(fields)
    return " ".join([f"{key}={printable(shown(value))}" for key, value in beside.items()]), below


def _split(fields: Fields) -> tuple[Fields, str]:
    """The fields of the line, and the tracebacks below it, each line indented: the text of an
    exception may come from an attacker, and must not pass for a line of the log. The last line of a
    traceback names the error, so the line does not.
    """
    below = ""
    for key in _BELOW:
        if (text := fields.get(key)) is not None:
            for line in text_of(text).rstrip("\n").split("\n"):
                below += f"\n  {printable(line.expandtabs())}"
    left_out = (*_BELOW, "error") if fields.get("exception") is not None else _BELOW
    return {key: value for key, value in fields.items() if key not in left_out}, below


def _line(now: object, level: str, text: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    head = {"timestamp": now, "level": level, "event": text}
    # The head comes first. Merge it again last: a field of the same name must not replace it.
    return head | dict(fields) | head
