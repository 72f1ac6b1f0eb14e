"""Traces: the router, the calls and the publisher of a traced node, which send the context of a
sampled trace along with a message.

A node without tracing has none of these classes. In a traced node only what belongs to a sampled
trace has an envelope of its own kind, `TRACED`. A plain `send` to a process is as fast as ever: a
process gets other verbs while it handles a message of a sampled trace.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import Context, ContextVar
from time import perf_counter, time
from typing import Any, Final, Protocol

from trio.lowlevel import current_task

from ..runtime.bridge import get_ident
from ..tables.pending_calls import Caller
from ..tables.verb_chain import Rank
from ..vocabulary.envelopes import EVENT, MESSAGE, TRACED, Overflow, Priority
from ..vocabulary.errors import SendError
from ..vocabulary.ids import PID, Alias, EventName, Ref, Target
from ..vocabulary.messages import Published
from .receiver import Asker, Receiver
from .router import LANES, check_priority
from .waiters import CallWaiter, TaskCaller

__all__ = [
    "Carried",
    "Mark",
    "TracedCalls",
    "TracedPublisher",
    "TracedRouter",
    "TracedSends",
    "TraceState",
    "Tracing",
    "call_with_trace",
    "current_ids",
    "fire_traced",
    "traced",
]


class Mark:
    """Rides in the envelope of a message of a sampled trace, in place of its reference; a call has
    it in its `Caller`.
    """

    __slots__ = ("at", "context", "kind", "to")

    def __init__(self, kind: int, to: Any, context: Any) -> None:
        self.kind = kind
        """The kind that the envelope has without tracing."""
        self.to = to
        """The address."""
        self.context = context
        """The context of the sender, which only the tracing understands."""
        self.at = perf_counter()
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


class Tracing(Protocol):
    """The part of a traced node that knows what a context and a span are."""

    def start(self, node: str) -> None:
        """The node opens.

        Raises:
            BadInputError: a library is missing.
        """

    def present(self) -> Any:
        """The context to send along, inside a callback of a sampled trace."""
        ...

    def outside(self) -> Any:
        """The context for a message from outside of processes; None if its trace is not sampled."""
        ...

    def serve(
        self, process: Any, mark: Mark, callback: str, message: object
    ) -> AbstractContextManager[object]:
        """A span around a callback; it enters `entered`."""
        ...

    def ids(self) -> tuple[str, str]:
        """The ids of the trace and of the span, inside a callback of a sampled trace."""
        ...

    def fresh_context(self) -> Context:
        """A copy of the current context variables, without the trace: for a new process."""
        ...

    def headers_of(self, context: Any, log: Any) -> dict[str, str] | None:
        """A context as it travels to another node; None if it cannot."""
        ...

    def context_of(self, headers: dict[str, str], log: Any) -> Any:
        """The context of a message of another node; None if its trace is not sampled."""
        ...


def enter(state: TraceState | None) -> Any:
    """Set the state of the current callback. Returns the token for `leave`."""
    return _current.set(state)


def leave(token: Any) -> None:
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


def traced(mixin: type, kind: type[Any], tracing: Tracing) -> Any:
    """The kind of router, calls or publisher for a traced node."""
    return type(f"Traced{kind.__name__}", (mixin, kind), {"__slots__": (), "tracing": tracing})


def _context_of(tracing: Tracing, sender: object, is_node: bool) -> Any:
    """The context for a message of a sender; None if it belongs to no sampled trace. A message of
    the node itself, outside of callbacks, may begin a trace.
    """
    state = _current.get()
    if state is None:
        return tracing.outside() if is_node else None
    return tracing.present() if state.covers(sender) else None


def _copied(router: Any, sender: PID | Alias, to: Any, message: object) -> object:
    """The message, as the router of a strict node copies it."""
    copied: Any = getattr(router, "copied", None)
    return message if copied is None else copied(sender, to, message)


class TracedRouter:
    """Marks messages of a sampled trace. A mixin for routers."""

    __slots__ = ()

    tracing: Any
    """Set by `traced`."""

    def send(
        self: Any, sender: PID | Alias, to: Target, message: object, priority: Priority
    ) -> bool:
        """Deliver a message, with the context of the trace that it belongs to."""
        is_node = type(sender) is PID and not sender.number
        context = _context_of(self.tracing, sender, is_node)
        if context is not None:
            return bool(self.send_marked(sender, to, message, priority, context))
        router: Any = super()
        return bool(router.send(sender, to, message, priority))

    def send_marked(
        self: Any,
        sender: PID | Alias,
        to: Target,
        message: object,
        priority: Priority,
        context: Any,
    ) -> bool:
        """Deliver a message with a context, if its receiver is a process, here or on another node;
        to others without it.
        """
        receiver: Any = self.resolve(to)
        on_loop = get_ident() == self.loop_thread
        if (
            receiver is None
            or type(receiver.id) is not PID
            or not (on_loop or (receiver.takes_direct and not priority))
        ):
            router: Any = super()
            return bool(router.send(sender, to, message, priority))
        check_priority(priority)
        message = _copied(self, sender, to, message)
        envelope = (TRACED, sender, Mark(MESSAGE, to, context), message)
        self.note(sender, to, message)
        if receiver.is_remote:
            return bool(receiver.send_traced(sender, to, message, priority, context))
        return bool(self.post(receiver, to, LANES[priority], envelope))


class TracedCalls:
    """Marks calls of a sampled trace. A mixin for calls."""

    __slots__ = ()

    tracing: Any

    def call(
        self: Any,
        process: Asker | None,
        sender: PID,
        to: Target,
        request: Any,
        timeout: float | None,
        priority: Priority,
    ) -> Any:
        """Make a call, with the context of the trace that it belongs to."""
        context = _context_of(self.tracing, sender, process is None and not sender.number)
        calls: Any = super()
        if context is None:
            return calls.call(process, sender, to, request, timeout, priority)
        return self._call_marked(process, sender, to, request, timeout, priority, context)

    def note_thread(self, caller: Caller) -> None:
        """A thread makes a call, outside of processes: note the trace that it belongs to."""
        context = _context_of(self.tracing, caller.pid, not caller.pid.number)
        if context is not None:
            caller.carry(Mark(MESSAGE, caller.to, context))

    async def _call_marked(
        self: Any,
        process: Asker | None,
        sender: PID,
        to: Target,
        request: Any,
        timeout: float | None,
        priority: Priority,
        context: Any,
    ) -> Any:
        """The general way of a call: always through the mailbox, since an inline answer would have
        no span.
        """
        router = self._router
        callee: Any = router.resolve(to)
        check_priority(priority)
        if callee is None or not callee.accepting:
            calls: Any = super()
            return await calls.call(process, sender, to, request, timeout, priority)
        task = current_task()
        caller = TaskCaller(sender, next(router.references), to, request, task, callee)
        beside = None
        if process is not None and task is not process.callback_task:
            if process.waits_for_task(task):
                beside = process
                self._refuse_ring(beside, callee, to, request)
                beside.begin_wait_beside(caller)
            process = None
        waiter = None
        try:
            if process is not None:
                self._refuse_ring(process, callee, to, request)
                process.begin_wait(caller)
            caller.carry(Mark(MESSAGE, to, context))
            waiter = self._post_call(callee, caller, priority)
            if not caller.settled:
                await self.wait(process, caller, timeout)
        finally:
            if process is not None:
                process.end_wait()
            elif beside is not None:
                beside.end_wait_beside(caller)
            if waiter is not None and not waiter.admitted:
                callee.mailbox.stop_waiting(LANES[priority], waiter)
        finish: Any = getattr(self, "_answer", None)  # a strict node copies it
        return caller.result() if finish is None else finish(to, caller.result())

    def _post_call(
        self: Any, callee: Receiver, caller: Caller, priority: Priority
    ) -> CallWaiter | None:
        calls: Any = super()
        state = _current.get()
        if state is not None and state.covers(caller.pid):
            # Also a call that is passed on: it belongs to the callback that does so.
            caller.carry(Mark(MESSAGE, caller.to, self.tracing.present()))
        if caller.mark is None or type(getattr(callee, "id", None)) is not PID:
            found: CallWaiter | None = calls._post_call(callee, caller, priority)
            return found
        try:
            request = _copied(self._router, caller.pid, caller.to, caller.request)
        except SendError as error:
            caller.settle(None, error)
            return None
        if request is not caller.request:
            caller.redirect(caller.to, request)
        caller.assign(callee)
        self._router.note(caller.pid, caller.to, caller.request)
        envelope = (TRACED, caller.pid, caller, caller.request)
        lane = LANES[priority]
        box = callee.mailbox
        if not callee.takes_direct and box.overflow is Overflow.WAIT and not box.has_room(lane):
            waiter = CallWaiter(caller)
            box.wait_for_room(lane, envelope, waiter)
            return waiter
        self._router.post(callee, caller.to, lane, envelope)
        return None


class TracedPublisher:
    """Marks publications of a sampled trace. A mixin for the publisher."""

    tracing: Any

    def publish(
        self: Any, publisher: PID, name: EventName, message: object, token: Ref | None
    ) -> int:
        """Deliver a publication, with the context of the trace that it belongs to."""
        state, router = _current.get(), self._router
        if state is None or not state.covers(publisher) or get_ident() != router.loop_thread:
            plain: Any = super()
            return int(plain.publish(publisher, name, message, token))
        event = self.events.get(name)
        event.check_publisher(publisher, token)
        message = _copied(router, publisher, name, message)
        publication = Published(event.name, message, time())
        event.note(publication)
        router.note(publisher, event.name, message)
        mark = Mark(EVENT, event.name, self.tracing.present())
        envelope = (TRACED, event.producer, mark, publication)
        dropped = 0
        for pid, subscription in list(event.subscribers.items()):
            process = router.processes.get(pid)
            taken = (
                self._give_elsewhere(pid, event, publication, mark.context)
                if process is None
                else self._give(process, envelope, event, subscription)
            )
            if not taken:
                subscription.count_dropped()
                dropped += 1
        return len(event.subscribers) - dropped


class TracedSends:
    """Verbs in an instance of a behaviour that look for a trace first, while the process handles a
    message of a sampled trace; and longer if the process has background tasks. A context manager.

    All other verbs come to the router and the calls of the node anyway.
    """

    __slots__ = ("_process",)

    def __init__(self, process: Any) -> None:
        self._process = process

    def __enter__(self) -> None:
        process = self._process
        verbs = process.own_verbs()
        if not verbs.has("send", Rank.TRACED):
            verbs.push("send", Rank.TRACED, lambda plain: _TracedVerb(process, plain, _send))
            verbs.push(
                "send_after", Rank.TRACED, lambda plain: _TracedVerb(process, plain, _send_after)
            )

    def __exit__(self, *_error: object) -> None:
        verbs = self._process.verbs
        if verbs is not None and not self._process.tasks:
            verbs.pop("send", Rank.TRACED)
            verbs.pop("send_after", Rank.TRACED)


class _TracedVerb:
    """A sending verb of a process that looks for a trace."""

    __slots__ = ("_plain", "_process", "_traced")

    def __init__(self, process: Any, plain: Callable[..., Any], traced: Callable[..., Any]) -> None:
        self._process = process
        self._plain = plain
        self._traced = traced

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        state, process = _current.get(), self._process
        if state is None or not state.covers(process.id):
            return self._plain(*args, **keywords)
        return self._traced(process, self._plain, *args, **keywords)


def _send(
    process: Any, _plain: object, to: Target, message: object, *, priority: Any = None
) -> bool:
    process.count_sent()
    chosen = process.priority if priority is None else priority
    return bool(process.router.send(process.id, to, message, chosen))


def _send_after(
    process: Any,
    plain: Callable[..., Any],
    delay: float,
    to: Target,
    message: object,
    *,
    priority: Any = None,
) -> Any:
    carried = Carried(Mark(MESSAGE, to, process.kernel.tracing.present()), message)
    return plain(delay, to, carried, priority=priority)


def call_with_trace(process: Any, fast: Callable[..., Any]) -> None:
    """Put a verb in C into an instance of a behaviour, which looks for a trace and then goes the
    fast way: the extension does not know the calls of a traced node.
    """
    behaviour = process.behaviour_itself
    is_usual = type(behaviour.call) is _VERB and type(type(behaviour).call) is _METHOD
    if process.kernel.is_plain and is_usual:
        process.own_verbs().push(
            "call", Rank.FAST_CALL, lambda plain: fast("call", _current, behaviour, plain)
        )


_METHOD: Final = type(str.upper)
"""The type of the verbs that the C extension puts into the class."""
_VERB: Final = type("".upper)
"""The type of such a verb of an instance."""


def fire_traced(router: Any, owner: PID, to: Any, carried: Carried, priority: Priority) -> None:
    """Send the message of a timer with the context in which the timer was armed."""
    router.send_marked(owner, to, carried.message, priority, carried.mark.context)
