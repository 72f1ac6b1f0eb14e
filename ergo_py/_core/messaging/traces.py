"""`Traces`: the hook of a traced node, which sends the context of a sampled trace along with a
message.

In a traced node only a message of a sampled trace has an envelope of its own kind, `TRACED`. A
plain `send` to a process is as fast as ever: a process gets other verbs while it handles a message
of a sampled trace.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import Context, ContextVar, Token
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..tables.callbacks import Callbacks
from ..tables.child_slot import ChildSlot
from ..tables.verb_chain import Rank, VerbChain
from ..vocabulary.envelopes import MESSAGE, Priority
from ..vocabulary.ids import PID, Alias, Target
from .hooks import Hook

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from .router import Router

__all__ = [
    "Carried",
    "Mark",
    "TraceState",
    "TracedProcess",
    "TracedSends",
    "Traces",
    "Tracing",
    "call_with_trace",
    "current_ids",
]


class Mark:
    """Rides in the envelope of a message of a sampled trace, in place of its reference; a call has
    it in its `Caller`.
    """

    __slots__ = ("at", "context", "kind", "to")

    def __init__(self, kind: int, to: Any, context: Any) -> None:
        self.kind: int = kind
        """The kind that the envelope has without tracing."""
        self.to: Final = to
        """The address."""
        self.context: Final = context
        """The context of the sender, which only the tracing understands."""
        self.at: float = perf_counter()
        """When it was sent."""


class Carried:
    """The message of a timer that carries a context."""

    __slots__ = ("mark", "message")

    def __init__(self, mark: Mark, message: object) -> None:
        self.mark = mark
        self.message = message


class TraceState:
    """A callback of a sampled trace, while it runs; in the context variable `_current`."""

    __slots__ = ("is_open", "pid")

    def __init__(self, pid: object) -> None:
        self.pid = pid
        self.is_open = True
        """The callback has not returned yet."""

    def close(self) -> None:
        """The callback has returned. A copy of the context variable in a process that it has
        spawned has no effect any more; the tasks of the same process go on.
        """
        self.is_open = False

    def covers(self, sender: object) -> bool:
        """Whether a message of this sender belongs to the trace."""
        return self.is_open or sender == self.pid


_current: Final[ContextVar[TraceState | None]] = ContextVar("ergo_py trace", default=None)


class TracedProcess(Protocol):
    """The part of a process that tracing uses."""

    @property
    def id(self) -> PID: ...

    @property
    def name(self) -> str | None: ...

    @property
    def callbacks(self) -> Callbacks: ...

    @property
    def slot(self) -> ChildSlot | None: ...

    @property
    def priority(self) -> Priority: ...

    @property
    def router(self) -> "Router": ...

    @property
    def kernel(self) -> Any: ...

    @property
    def log(self) -> "FilteringBoundLogger": ...

    @property
    def behaviour_itself(self) -> Any: ...

    @property
    def verbs(self) -> VerbChain | None: ...

    @property
    def tasks(self) -> object: ...

    def own_verbs(self) -> VerbChain: ...

    def count_sent(self) -> None: ...


class Tracing(Protocol):
    """The part of a traced node that knows what a context and a span are."""

    def start(self, node: str) -> None:
        """The node opens.

        Raises:
            BadInputError: a library is missing.
        """

    def present(self) -> object:
        """The context to send along, inside a callback of a sampled trace."""
        ...

    def outside(self) -> object:
        """The context for a message from outside of processes; None if its trace is not sampled."""
        ...

    def serve(
        self, process: TracedProcess, mark: Mark, callback: str, message: object
    ) -> AbstractContextManager[object]:
        """A span around a callback; it enters `entered`."""
        ...

    def note_batch(self, process: TracedProcess, marks: Sequence[Mark], count: int) -> None:
        """The current span is that of a batch of so many messages; those of traces have these
        marks, the first of which is the parent of the span.
        """

    def ids(self) -> tuple[str, str]:
        """The ids of the trace and of the span, inside a callback of a sampled trace."""
        ...

    def fresh_context(self) -> Context:
        """A copy of the current context variables, without the trace: for a new process."""
        ...

    def headers_of(self, context: Any, log: "FilteringBoundLogger") -> dict[str, str] | None:
        """A context as it travels to another node; None if it cannot."""
        ...

    def context_of(self, headers: dict[str, str], log: "FilteringBoundLogger") -> object:
        """The context of a message of another node; None if its trace is not sampled."""
        ...


def enter(state: TraceState | None) -> Token[TraceState | None]:
    """Set the state of the current callback. Returns the token for `leave`."""
    return _current.set(state)


def leave(token: Token[TraceState | None]) -> None:
    """Restore the state before."""
    try:
        _current.reset(token)
    except ValueError:  # an abandoned callback is closed in another context
        pass


def current_ids(tracing: Tracing | None) -> tuple[str, str] | tuple[None, None]:
    """The ids of the trace and of the span of the current callback; None for each if it belongs to
    no sampled trace.
    """
    return (None, None) if tracing is None or _current.get() is None else tracing.ids()


class Traces(Hook):
    """Gives each message of a sampled trace the context of the trace."""

    __slots__ = ("_tracing",)

    sees_all = False

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def context_of(self, sender: PID | Alias, is_outside: bool, /) -> object | None:
        state = _current.get()
        if state is None:
            return self._tracing.outside() if is_outside else None
        return self._tracing.present() if state.covers(sender) else None


class TracedSends:
    """Verbs in an instance of a behaviour that look for a trace first, while the process handles a
    message of a sampled trace; and longer if the process has background tasks. A context manager.

    All other verbs come to the router and the calls of the node anyway.
    """

    __slots__ = ("_process",)

    def __init__(self, process: TracedProcess) -> None:
        self._process = process

    def __enter__(self) -> None:
        process = self._process
        verbs = process.own_verbs()
        # A background task keeps the verbs in place, and the next message finds them: a further
        # layer with each message would end in a RecursionError.
        if not verbs.has("send", Rank.TRACED):
            verbs.push("send", Rank.TRACED, lambda plain: _TracedVerb(process, plain, _send))
            verbs.push(
                "send_after", Rank.TRACED, lambda plain: _TracedVerb(process, plain, _send_after)
            )

    def __exit__(self, *_error: object) -> None:
        verbs = self._process.verbs
        # The tasks of a process belong to the trace in which they began: they send after the
        # callback has returned.
        if verbs is not None and not self._process.tasks:
            verbs.pop("send", Rank.TRACED)
            verbs.pop("send_after", Rank.TRACED)


class _TracedVerb:
    """A sending verb of a process that looks for a trace."""

    __slots__ = ("_plain", "_process", "_traced")

    def __init__(
        self, process: TracedProcess, plain: Callable[..., Any], traced: Callable[..., Any]
    ) -> None:
        self._process = process
        self._plain = plain
        self._traced = traced

    def __call__(self, *args: object, **keywords: object) -> object:
        # The state decides, not the presence of this verb: a background task of another message
        # finds the verb, too.
        state, process = _current.get(), self._process
        if state is None or not state.covers(process.id):
            return self._plain(*args, **keywords)
        return self._traced(process, self._plain, *args, **keywords)


def _send(
    process: TracedProcess,
    _plain: object,
    to: Target,
    message: object,
    *,
    priority: Priority | None = None,
) -> bool:
    process.count_sent()
    chosen = process.priority if priority is None else priority
    return bool(process.router.send(process.id, to, message, chosen))


def _send_after(
    process: TracedProcess,
    plain: Callable[..., Any],
    delay: float,
    to: Target,
    message: object,
    *,
    priority: Priority | None = None,
) -> object:
    carried = Carried(Mark(MESSAGE, to, process.kernel.tracing.present()), message)
    return plain(delay, to, carried, priority=priority)


def call_with_trace(process: TracedProcess, fast: Callable[..., Any]) -> None:
    """Put a verb in C into an instance of a behaviour, which looks for a trace and then goes the
    fast way: the extension does not know the calls of a traced node.
    """
    behaviour = process.behaviour_itself
    is_usual = type(behaviour.call) is _VERB and type(type(behaviour).call) is _METHOD
    if is_usual and not process.router.sees_all:
        process.own_verbs().push(
            *("call", Rank.FAST_CALL),
            lambda plain: fast("call", _current, process.behaviour_itself, plain),
        )


_METHOD: Final = type(str.upper)
"""The type of the verbs that the C extension puts into the class."""
_VERB: Final = type("".upper)
"""The type of such a verb of an instance."""
