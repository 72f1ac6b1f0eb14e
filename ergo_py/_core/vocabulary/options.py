"""How a process is to be started: the keywords of ``spawn``, checked before anything happens."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from math import inf
from typing import Any, Final, Literal, TypedDict

from .dispatchers import LOOP, Dispatcher, check_dispatcher
from .envelopes import Divert, Overflow, Priority
from .errors import BadInputError

__all__ = [
    "Behind",
    "META_DEFAULTS",
    "MetaKeywords",
    "MetaOptions",
    "read_meta_options",
    "DEFAULTS",
    "LEVELS",
    "NodeOptions",
    "Options",
    "Output",
    "SpawnKeywords",
    "check_flag",
    "check_level",
    "check_name",
    "check_number",
    "check_output",
    "read_options",
]

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50, "off": 100}
"""Log levels by name."""

Output = Literal["auto", "console", "json", "stdlib", "structlog", "none"]
_OUTPUTS: Final = ("auto", "console", "json", "stdlib", "structlog", "none")


class SpawnKeywords(TypedDict, total=False):
    """What ``spawn`` takes besides the behaviour and its constructor's arguments."""

    name: str | None
    link: bool
    mailbox_size: int | None
    overflow: Overflow | Divert
    priority: Priority
    init_timeout: float
    terminate_timeout: float
    shutdown: float
    env: Mapping[str, object] | None
    log_level: str | None
    dispatcher: Dispatcher


@dataclass(frozen=True, slots=True)
class Options:
    """The checked form of :class:`SpawnKeywords`. Processes without wishes of their own share one."""

    name: str | None = None
    link: bool = False
    mailbox_size: int | None = None
    overflow: Overflow | Divert = Overflow.RAISE
    priority: Priority = Priority.NORMAL
    init_timeout: float = 5.0
    terminate_timeout: float = 5.0
    shutdown: float = 5.0
    env: Mapping[str, object] | None = None
    log_level: str | None = None
    dispatcher: Dispatcher = LOOP
    said: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """Which of them somebody asked for, for behaviours with other defaults."""

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name(self.name)
        check_flag("link", self.link)
        if self.mailbox_size is not None:
            check_number("mailbox_size", self.mailbox_size, least=1, whole=True)
        if not isinstance(self.overflow, Overflow | Divert):
            raise BadInputError(
                "overflow", self.overflow, "a member of Overflow, or Divert(to=name)"
            )
        if not isinstance(self.priority, Priority):
            raise BadInputError(
                "priority", self.priority, "Priority.NORMAL, Priority.HIGH or Priority.MAX"
            )
        for limit in ("init_timeout", "terminate_timeout", "shutdown"):
            check_number(limit, getattr(self, limit), least=0.0)
        if self.env is not None and not isinstance(self.env, Mapping):
            raise BadInputError("env", self.env, "a mapping from names to values")
        if self.log_level is not None:
            check_level(self.log_level)
        check_dispatcher(self.dispatcher)


class Behind(Enum):
    """What the reader of a meta-process does when it is too far ahead of its receivers."""

    WAIT = "wait"
    """It waits for room. What it reads from is slowed down in turn: a full socket buffer slows the
    peer.
    """
    DROP_NEWEST = "drop newest"
    DROP_OLDEST = "drop oldest"
    STOP = "stop"
    """The meta-process ends."""


class MetaKeywords(TypedDict, total=False):
    """What ``spawn_meta`` takes besides the behaviour."""

    mailbox_size: int | None
    overflow: Overflow | Divert
    priority: Priority
    backlog: int
    when_behind: Behind
    init_timeout: float
    stop_timeout: float
    linger: bool
    needed: bool | None
    env: Mapping[str, object] | None
    log_level: str | None


@dataclass(frozen=True, slots=True)
class MetaOptions:
    """The checked form of :class:`MetaKeywords`."""

    mailbox_size: int | None = None
    overflow: Overflow | Divert = Overflow.RAISE
    priority: Priority = Priority.NORMAL
    backlog: int = 1000
    """How far the reader may be ahead of a receiver, in messages."""
    when_behind: Behind = Behind.WAIT
    init_timeout: float = 5.0
    stop_timeout: float = 5.0
    """How long each step of stopping may take: the reader, the handler, ``terminate``."""
    linger: bool = False
    """Spawned by a meta-process, it goes on with the owning process when that meta-process ends."""
    needed: bool | None = None
    """Whether its owner ends with it if it fails; None for what its class says: True for servers,
    False for others.
    """
    env: Mapping[str, object] | None = None
    log_level: str | None = None

    def __post_init__(self) -> None:
        Options(
            mailbox_size=self.mailbox_size,
            overflow=self.overflow,
            priority=self.priority,
            init_timeout=self.init_timeout,
            env=self.env,
            log_level=self.log_level,
        )
        check_number("stop_timeout", self.stop_timeout, least=0.0)
        check_flag("linger", self.linger)
        if self.needed is not None:
            check_flag("needed", self.needed)
        check_number("backlog", self.backlog, least=1, whole=True)
        if not isinstance(self.when_behind, Behind):
            raise BadInputError("when_behind", self.when_behind, "a member of Behind")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The checked options of ``open_node``, whose docstring explains each of them."""

    name: str = "node@localhost"
    max_processes: int | None = None
    burst: int = 256
    dead_letters: int = 1000
    stop_timeout: float = 30.0
    log_level: str = "warning"
    log_output: Output = "auto"
    env: Mapping[str, object] | None = None
    expose_env: bool = False
    watchdog: float | None = 0.5
    mailbox_warning: int | None = 10_000
    inline_calls: bool = True
    observer: Callable[[Any], object] | None = None
    """The vocabulary does not know the types that the observer is called with."""
    max_reader_threads: int = 10_000
    debug_shared_state: bool = False
    on_escalation: Literal["keep", "stop"] = "keep"
    obituaries: int = 100
    recent_messages: int = 0
    redact: Callable[[str, object], object] | None = None
    control: frozenset[str] = frozenset()
    """The permissions of the control socket. The node opens no socket if this is empty."""

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.max_processes is not None:
            check_number(
                "max_processes",
                self.max_processes,
                least=1,
                whole=True,
                hint=", or None for no limit",
            )
        check_number("burst", self.burst, least=1, whole=True)
        for count in ("max_reader_threads", "dead_letters", "obituaries", "recent_messages"):
            check_number(count, getattr(self, count), least=0, whole=True)
        check_number("stop_timeout", self.stop_timeout, least=0.0)
        if self.watchdog is not None:
            check_number("watchdog", self.watchdog, least=0.001, hint=", or None for no watchdog")
        if self.mailbox_warning is not None:
            check_number(
                "mailbox_warning",
                self.mailbox_warning,
                least=1,
                whole=True,
                hint=", or None for no warning",
            )
        check_level(self.log_level)
        check_output(self.log_output)
        if self.on_escalation not in ("keep", "stop"):
            raise BadInputError("on_escalation", self.on_escalation, "'keep' or 'stop'")
        if self.observer is not None and not callable(self.observer):
            raise BadInputError(
                "observer",
                self.observer,
                "a function that takes a Spawned, Stopped, Sent or Delivered",
            )
        if self.redact is not None and not callable(self.redact):
            raise BadInputError(
                "redact",
                self.redact,
                "a function of the kind of thing and the thing: `def redact(what, value)`",
            )
        if self.env is not None and not isinstance(self.env, Mapping):
            raise BadInputError("env", self.env, "a mapping from names to values")
        # A copy: the caller may change its dict later.
        object.__setattr__(self, "env", dict(self.env or {}))
        for flag in ("expose_env", "inline_calls", "debug_shared_state"):
            check_flag(flag, getattr(self, flag))


def read_meta_options(keywords: Mapping[str, Any]) -> MetaOptions:
    """Check the keywords of a ``spawn_meta``."""
    if not keywords:
        return META_DEFAULTS
    _refuse_unknown(
        "spawn_meta",
        keywords,
        _META_NAMES,
        "arguments of the behaviour itself go to its constructor",
    )
    return MetaOptions(**keywords)


def read_options(keywords: Mapping[str, Any]) -> Options:
    """Check the keywords of a ``spawn``."""
    if not keywords:
        return DEFAULTS
    _refuse_unknown(
        "spawn",
        keywords,
        _NAMES,
        "arguments of the behaviour itself are positional, or use functools.partial(Behaviour, "
        "key=value)",
    )
    return Options(**keywords, said=frozenset(keywords))


def _refuse_unknown(
    verb: str, keywords: Mapping[str, Any], known: frozenset[str], hint: str
) -> None:
    unknown = keywords.keys() - known
    if unknown:
        raise BadInputError(
            f"{verb}(…, {min(unknown)}=…)",
            keywords[min(unknown)],
            f"one of {', '.join(sorted(known))}; {hint}",
        )


def check_name(name: object) -> str:
    """Refuse what cannot be a registered name."""
    if not isinstance(name, str) or not name:
        raise BadInputError("name", name, "a str that is not empty")
    return name


def check_flag(what: str, value: object) -> None:
    """Refuse what only looks like a yes or no: the str "no" would be a yes."""
    if not isinstance(value, bool):
        raise BadInputError(what, value, "True or False")


def check_number(
    what: str,
    value: object,
    *,
    least: float,
    whole: bool = False,
    most: float = inf,
    hint: str = "",
) -> None:
    """Refuse numbers that are too small, not numbers, or not whole where they must be. ``hint``
    says what else is allowed.
    """
    # First what nearly every call passes. NaN compares as False with everything.
    fits = type(value) is float and not whole and least <= value <= most
    if (
        not fits
        and isinstance(value, int if whole else (int, float))
        and not isinstance(value, bool)
    ):
        try:
            fits = least <= (value if whole else float(value)) <= most
        except OverflowError:  # an int beyond every float
            pass
    if not fits:
        raise BadInputError(
            what,
            value,
            f"a{' whole' if whole else ''} number from {least:g}"
            + (f" to {most:g}" if most != inf else " up")
            + hint,
        )


def check_level(level: object) -> int:
    """The number of a log level given by name."""
    if not isinstance(level, str) or level not in LEVELS:
        raise BadInputError("log_level", level, "one of " + ", ".join(LEVELS))
    return LEVELS[level]


def check_output(output: object) -> None:
    """Raise BadInputError unless ``output`` names a log output."""
    if output not in _OUTPUTS:
        raise BadInputError("log_output", output, "one of " + ", ".join(_OUTPUTS))


DEFAULTS: Final = Options()
_NAMES: Final = frozenset(SpawnKeywords.__optional_keys__)
META_DEFAULTS: Final = MetaOptions()
_META_NAMES: Final = frozenset(field.name for field in fields(MetaOptions))
