"""Options of ``spawn``, ``spawn_meta`` and ``open_node``, checked before anything is started."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from math import inf
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar

from .choices import LEVELS, OUTPUTS
from .dispatchers import LOOP, Dispatcher, check_cpu, check_dispatcher
from .envelopes import Divert, Overflow, Priority
from .errors import BadInputError
from .hints import did_you_mean
from .late_methods import dataclass, of_defaults
from .public_names import show_public_names

__all__ = [
    "Behind",
    "META_DEFAULTS",
    "MetaKeywords",
    "MetaOptions",
    "read_meta_options",
    "DEFAULTS",
    "KeepMessages",
    "LEVELS",
    "NodeOptions",
    "Options",
    "Output",
    "Rereadable",
    "SpawnKeywords",
    "check_flag",
    "check_level",
    "check_name",
    "check_number",
    "check_output",
    "read_now",
    "read_options",
]

T = TypeVar("T")

Rereadable: TypeAlias = T | Callable[[], T]
"""An option whose value may change: a value, or a function that returns it, which is called when
the node opens and at each ``node.reload()``.
"""

Output = Literal["auto", "console", "json", "stdlib", "structlog", "none"]


class SpawnKeywords(TypedDict, total=False):
    """The options of ``spawn``, besides the behaviour and the arguments of its constructor.

    Example: ``await node.spawn(Worker, path, name="worker", mailbox_size=1000)``.
    """

    name: str | None
    """Register the process under this name on its node; default None, no name. A ``str`` as an
    address means such a name: ``node.send("worker", message)``.
    """
    link: bool
    """Link spawner and process in both directions from the start; default False."""
    mailbox_size: int | None
    """The most user messages that may wait in each lane; default None, no limit. Signals, such as
    exits and downs, never count.
    """
    overflow: Overflow | Divert
    """The rule for a message to a full mailbox; default ``Overflow.RAISE``. See :class:`Overflow`
    and :class:`Divert`. It has no effect without ``mailbox_size``.
    """
    priority: Priority
    """The priority of the messages that the process sends; default ``Priority.NORMAL``."""
    init_timeout: float
    """Seconds that ``init`` may take; default 5. After that ``spawn`` raises ``InitTimeoutError``.
    """
    terminate_timeout: float
    """Seconds for cleanup: for ``terminate``, and for background tasks before it; default 5. Code
    that takes longer is cut off.
    """
    shutdown: float
    """Seconds that the process may take to end when its parent stops it; default 5. After that the
    parent kills it. ``math.inf`` waits without a limit.
    """
    env: Mapping[str, object] | None
    """Settings that the process reads in ``self.env``, over those of its parent; default None, the
    settings of its parent.
    """
    log_level: str | None
    """The lowest level of ``self.log`` that is written: ``"debug"``, ``"info"``, ``"warning"``,
    ``"error"``, ``"critical"`` or ``"off"``; default None, the level of the node.
    """
    dispatcher: Dispatcher
    """Where plain (not async) callbacks run; default ``LOOP``, on the event loop, where they must
    not block. ``Threads()`` and ``Threads(name, size)`` run them in threads.
    """
    order: Callable[[Any], Any] | None
    """Serve the waiting messages of normal priority by ``order(message)``, least key first, and not
    by arrival; default None. It needs a ``mailbox_size`` and the dispatcher ``LOOP``. Messages of
    the same key keep their order, and signals wait only for the messages before them.
    """


@dataclass(frozen=True, slots=True)
class Options:
    """The checked form of :class:`SpawnKeywords`. Processes without options share an object."""

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
    order: Callable[[Any], Any] | None = None
    given: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """The names of the options that were given, for behaviours with other defaults."""

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
        if self.order is not None and not (
            callable(self.order) and self.mailbox_size and self.dispatcher == LOOP
        ):
            raise BadInputError(
                "order",
                self.order,
                "a function from a message to its key, together with mailbox_size=… and without a "
                "dispatcher: a message is sorted among all that wait",
            )


class Behind(Enum):
    """Backpressure rule of a meta-process: the effect when its reader is ``backlog`` messages ahead
    of a receiver.
    """

    WAIT = "wait"
    """The reader waits for room in ``send``. Its source slows down in turn: a full socket buffer
    slows the peer.
    """
    DROP_NEWEST = "drop newest"
    """The new message becomes a dead letter."""
    DROP_OLDEST = "drop oldest"
    """The oldest waiting message becomes a dead letter."""
    STOP = "stop"
    """The meta-process ends."""


class MetaKeywords(TypedDict, total=False):
    """The options of ``spawn_meta``, besides the behaviour.

    Example: ``await self.spawn_meta(TCPServer(port=8080), backlog=100)``.
    """

    mailbox_size: int | None
    """The most user messages that may wait in each lane of the meta-process's own mailbox; default
    None, no limit.
    """
    overflow: Overflow | Divert
    """The rule for a message to a full mailbox; default ``Overflow.RAISE``."""
    priority: Priority
    """The priority of the messages that the meta-process sends; default ``Priority.NORMAL``."""
    backlog: int
    """How many messages the reader may be ahead of a receiver without a ``mailbox_size``; default
    1000.
    """
    when_behind: Behind
    """Backpressure: the effect when the reader is that far ahead; default ``Behind.WAIT``."""
    init_timeout: float
    """Seconds that ``init`` may take; default 5. After that ``spawn_meta`` raises
    ``InitTimeoutError``.
    """
    stop_timeout: float
    """Seconds for each step of stopping: the reader, the handler, ``terminate``; default 5. After
    that the step is cut off.
    """
    drain: float
    """Seconds in which the meta-process still handles the messages that it has accepted, before it
    ends in order; default 0, so that they are dead letters.
    """
    linger: bool
    """If a meta-process spawned it: it survives that meta-process, and ends with the owning
    process; default False.
    """
    needed: bool | None
    """Whether the owning process ends if the meta-process fails; default None, the choice of its
    class: True for servers, False for others.
    """
    env: Mapping[str, object] | None
    """Settings over those of its parent, in ``self.env``; default None, the settings of its
    parent.
    """
    log_level: str | None
    """The lowest level of ``self.log`` that is written; default None, the level of the node."""


@dataclass(frozen=True, slots=True)
class MetaOptions:
    """The checked form of :class:`MetaKeywords`, which explains each option."""

    mailbox_size: int | None = None
    overflow: Overflow | Divert = Overflow.RAISE
    priority: Priority = Priority.NORMAL
    backlog: int = 1000
    when_behind: Behind = Behind.WAIT
    init_timeout: float = 5.0
    stop_timeout: float = 5.0
    drain: float = 0.0
    linger: bool = False
    needed: bool | None = None
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
        check_number("drain", self.drain, least=0.0)
        check_flag("linger", self.linger)
        if self.needed is not None:
            check_flag("needed", self.needed)
        check_number("backlog", self.backlog, least=1, whole=True)
        if not isinstance(self.when_behind, Behind):
            raise BadInputError("when_behind", self.when_behind, "a member of Behind")


@dataclass(frozen=True, slots=True)
class KeepMessages:
    """A value of ``open_node(dead_letters=…)``: keep the messages of dead letters, so that
    ``node.dead_letters(contents=True)`` shows them and ``node.resend`` sends them again.

    The node keeps the newest messages whose sizes, by estimate, sum up to at most ``bytes``, and
    forgets the older ones. A publication, a message larger than ``bytes``, and a message that this
    node has not decoded or has encoded for another node keep their types only.
    """

    bytes: int
    count: int = 1000
    """How many dead letters the node keeps, with or without messages."""

    def __post_init__(self) -> None:
        check_number("bytes", self.bytes, least=0, whole=True)
        check_number("count", self.count, least=0, whole=True)


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The checked options of ``open_node``, whose docstring explains each of them."""

    name: str = "node@localhost"
    max_processes: int | None = None
    burst: int = 256
    dead_letters: int | KeepMessages = 1000
    stop_timeout: float = 30.0
    log_level: Rereadable[str] = "warning"
    log_output: Output = "auto"
    env: Mapping[str, object] | None = None
    expose_env: bool = False
    watchdog: float | None = 0.5
    mailbox_warning: int | None = 10_000
    inline_calls: bool = True
    direct_handoff: bool = True
    observer: Callable[[Any], object] | None = None
    """Typed Any: the types of its argument are defined in packages above this."""
    max_reader_threads: int = 10_000
    debug_shared_state: bool = False
    on_escalation: Literal["keep", "stop"] = "keep"
    obituaries: int = 100
    recent_messages: int = 0
    redact: Callable[[str, object], object] | None = None
    control: Rereadable[frozenset[str]] = frozenset()
    """The permissions of the control socket. The node opens no socket while this is empty."""
    network: Any = None
    """Typed Any: networks are defined in packages above this."""
    beside: Sequence[Any] = ()
    """Typed Any, as the network."""
    tracing: Any = None
    """Typed Any, likewise."""
    cpu: int | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        for count, without in (("max_processes", "limit"), ("mailbox_warning", "warning")):
            if (given := getattr(self, count)) is not None:
                check_number(count, given, least=1, whole=True, hint=f", or None for no {without}")
        check_number("burst", self.burst, least=1, whole=True)
        for count in ("max_reader_threads", "obituaries", "recent_messages"):
            check_number(count, getattr(self, count), least=0, whole=True)
        if not isinstance(self.dead_letters, KeepMessages):
            hint = ", or DeadLetter.Keep(bytes=…)"
            check_number("dead_letters", self.dead_letters, least=0, whole=True, hint=hint)
        check_number("stop_timeout", self.stop_timeout, least=0.0)
        if self.watchdog is not None:
            check_number("watchdog", self.watchdog, least=0.001, hint=", or None for no watchdog")
        check_cpu("cpu", self.cpu)
        check_level(read_now(self.log_level))
        check_output(self.log_output)
        if not isinstance(self.beside, list | tuple) or not all(
            callable(getattr(each, "open", None)) for each in self.beside
        ):
            raise BadInputError("beside", self.beside, "a list such as [Observe(port=9911)]")
        if self.on_escalation not in ("keep", "stop"):
            raise BadInputError("on_escalation", self.on_escalation, "'keep' or 'stop'")
        if self.observer is not None and not callable(self.observer):
            raise BadInputError(
                "observer",
                self.observer,
                "a function that takes a Spawned, Stopped, Sent or Delivered",
            )
        if self.network is not None and not callable(getattr(self.network, "join_network", None)):
            raise BadInputError(
                "network", self.network, "a network, such as ergo_py.network.Local(types=[…])"
            )
        if self.tracing is not None and not callable(getattr(self.tracing, "serve", None)):
            raise BadInputError(
                "tracing", self.tracing, "ergo_py.telemetry.OpenTelemetry(sample=0.01)"
            )
        if self.redact is not None and not callable(self.redact):
            raise BadInputError(
                "redact",
                self.redact,
                "a function of the kind of the value and the value: `def redact(what, value)`",
            )
        if self.env is not None and not isinstance(self.env, Mapping):
            raise BadInputError("env", self.env, "a mapping from names to values")
        # A copy: the caller may change its dict later.
        object.__setattr__(self, "env", dict(self.env or {}))
        for flag in ("expose_env", "inline_calls", "direct_handoff", "debug_shared_state"):
            check_flag(flag, getattr(self, flag))


def read_now(given: Rereadable[T]) -> T:
    """The value of an option at this moment."""
    return given() if callable(given) else given  # pyright: ignore[reportReturnType]


def read_meta_options(keywords: Mapping[str, Any]) -> MetaOptions:
    """Check the options of ``spawn_meta``."""
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
    """Check the options of ``spawn``."""
    if not keywords:
        return DEFAULTS
    _refuse_unknown(
        "spawn",
        keywords,
        _NAMES,
        "arguments of the behaviour itself are positional, or spawn(Behaviour.spec(key=value))",
    )
    return Options(**keywords, given=frozenset(keywords))


def _refuse_unknown(
    verb: str, keywords: Mapping[str, Any], known: frozenset[str], hint: str
) -> None:
    unknown = keywords.keys() - known
    if unknown:
        raise BadInputError(
            f"{verb}(…, {min(unknown)}=…)",
            keywords[min(unknown)],
            f"one of {', '.join(sorted(known))}; {hint}" + did_you_mean(min(unknown), known, "{}"),
        )


def check_name(name: object) -> str:
    """Raise BadInputError unless ``name`` can be a registered name."""
    if not isinstance(name, str) or not name:
        raise BadInputError("name", name, "a str that is not empty")
    return name


def check_flag(what: str, value: object) -> None:
    """Raise BadInputError unless ``value`` is a bool: the str "no" would count as true."""
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
    """Raise BadInputError unless ``value`` is a number from ``least`` to ``most``, and an int if
    ``whole``. ``hint`` names further allowed values.
    """
    # First the case of nearly all calls. Comparisons with NaN are False.
    fits = type(value) is float and not whole and least <= value <= most
    if (
        not fits
        and isinstance(value, int if whole else (int, float))
        and not isinstance(value, bool)
    ):
        try:
            fits = least <= (value if whole else float(value)) <= most
        except OverflowError:  # an int too large for a float
            pass
    if not fits:
        raise BadInputError(
            what,
            value,
            f"a{' whole' if whole else ''} number from {least:g}"
            + (f" to {most if isinstance(most, int) else f'{most:g}'}" if most != inf else " up")
            + hint,
        )


def check_level(level: object) -> int:
    """The number of a log level given by name."""
    if not isinstance(level, str) or level not in LEVELS:
        raise BadInputError("log_level", level, "one of " + ", ".join(LEVELS))
    return LEVELS[level]


def check_output(output: object) -> None:
    """Raise BadInputError unless ``output`` names a log output."""
    if output not in OUTPUTS:
        raise BadInputError("log_output", output, "one of " + ", ".join(OUTPUTS))


DEFAULTS: Final = of_defaults(Options)
_NAMES: Final = frozenset(SpawnKeywords.__optional_keys__)
META_DEFAULTS: Final = of_defaults(MetaOptions)
_META_NAMES: Final = frozenset(MetaOptions.__slots__)


show_public_names(__name__)
