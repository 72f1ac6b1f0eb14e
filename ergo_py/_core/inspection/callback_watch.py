"""``WatchedBehaviour``: a proxy that reports the callbacks and sends of a process to observers.

Only a watched process pays for it. While there are observers, the proxy replaces the behaviour of
the process, and reporting verbs replace the sending verbs of that instance.
"""

from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from ..processes.process import BehaviourProxy, Handlers
from ..tables.callbacks import CALLBACKS
from ..tables.pending_calls import Caller
from ..tables.verb_chain import Rank
from ..vocabulary.errors import NodeStoppedError
from ..vocabulary.messages import NO_REPLY

if TYPE_CHECKING:
    from ..processes.process import Process

__all__ = [
    "REPORTED_VERBS",
    "CallbackObserver",
    "WatchedBehaviour",
    "Watch",
    "drop_if_unused",
    "report_sends",
    "stop_reporting_sends",
    "watch_of",
]

REPORTED_VERBS: Final[dict[str, tuple[str, ...]]] = {
    "send": ("to", "message"),
    "send_wait": ("to", "message"),
    "send_after": ("delay", "to", "message"),
    "send_every": ("period", "to", "message"),
    "forward": ("to", "message"),
    "call": ("to", "request"),
    "request": ("to", "request"),
    "reply": ("caller", "value"),
    "reply_error": ("caller", "error"),
    "publish": ("event", "message"),
}
"""The sending verbs with their parameters, up to the receiver and the message. A value that
``handle_call`` returns is reported as a reply.
"""


class CallbackObserver(Protocol):
    """Receives the events of a single process, on the loop's thread. Must not raise."""

    wants_sends: bool
    """Whether the observer wants a report of each message that the process sends."""

    def note(
        self,
        callback: str,
        message: object,
        sender: object,
        seconds: float,
        error: BaseException | None,
        sent: int,
    ) -> None:
        """A callback has returned or raised."""

    def note_sent(self, verb: str, to: object, message: object) -> None:
        """The process has sent a message."""

    def over(self) -> None:
        """The process has ended."""


class Watch:
    """The inspection state of a process: its observers, and whether it is suspended."""

    __slots__ = ("observers", "real", "recent", "suspended")

    def __init__(self) -> None:
        self.observers: list[CallbackObserver] = []
        self.suspended = False
        self.recent: deque[str] | None = None
        """The types of the last messages; None unless the node remembers them."""
        self.real: Any = None
        """The behaviour, while a proxy replaces it."""

    def suspend(self) -> None:
        """Let the process serve signals only."""
        self.suspended = True

    def resume(self) -> None:
        """Let the process serve messages again."""
        self.suspended = False

    def remember(self, count: int) -> None:
        """Keep the types of the last ``count`` messages."""
        self.recent = deque(maxlen=count)

    def stand_in(self, process: "Process") -> None:
        """Put a proxy that reports to this watch in the place of the behaviour."""
        self.real = process.behaviour
        process.replace_behaviour(cast(Handlers, WatchedBehaviour(process, self)))

    def step_back(self, process: "Process") -> None:
        """Give the process its own behaviour back."""
        process.replace_behaviour(self.real)
        self.real = None

    def over(self) -> None:
        """The process has ended."""
        for observer in tuple(self.observers):
            observer.over()

    def report_sent(self, process: "Process", verb: str, to: object, message: object) -> None:
        """Report a sent message, from any thread, in the trace that it belongs to."""
        report: tuple[Any, ...] = self.note_sent, verb, to, message
        if process.kernel.tracing is not None:
            report = copy_context().run, *report
        try:
            process.router.bridge.do(*report)
        except NodeStoppedError:  # in a thread: the node has stopped, and its observers with it
            pass

    def note_sent(self, verb: str, to: object, message: object) -> None:
        """Report a sent message to the observers that want it."""
        for observer in tuple(self.observers):
            if observer.wants_sends:
                observer.note_sent(verb, to, message)


def watch_of(process: "Process") -> Watch:
    """Return the watch of a process. Make it if the process has none."""
    watch: Watch | None = process.kernel.watches.get(process.id)
    if watch is None:
        watch = process.kernel.watches[process.id] = Watch()
    return watch


def drop_if_unused(process: "Process", watch: Watch) -> None:
    """Forget the watch of a process once it has no use."""
    if not watch.observers and not watch.suspended and watch.recent is None:
        process.kernel.watches.pop(process.id, None)


class WatchedBehaviour(BehaviourProxy):
    """Proxy that replaces a watched behaviour: it reports the callbacks, and forwards every other
    attribute.
    """

    def __init__(self, process: "Process", watch: Watch) -> None:
        real = watch.real
        super().__init__(process.behaviour_itself)
        collects = "handle_batch" in process.callbacks.defined
        for name, parameters in CALLBACKS.items():
            if collects and name == "handle_message":
                continue  # reported as handle_batch
            wrap = _asynchronous if name in process.callbacks.asynchronous else _plain
            setattr(
                self,
                name,
                wrap(_CallbackReporter(process, watch, name, parameters), getattr(real, name)),
            )


# -- callbacks -------------------------------------------------------------------------------------


class _CallbackReporter:
    """Reports each run of one callback of a process to its observers."""

    __slots__ = ("_answers", "_callback", "_message", "_process", "_sender", "_watch")

    def __init__(
        self, process: "Process", watch: Watch, callback: str, parameters: tuple[str, ...]
    ) -> None:
        self._process = process
        self._watch = watch
        self._callback = callback
        self._answers = callback.startswith("handle_call")
        self._message = _place(
            parameters, ("message", "messages", "request", "event", "record", "reason")
        )
        self._sender = _place(parameters, ("sender", "caller", "child"))

    def begin(self) -> tuple[float, int]:
        return perf_counter(), self._process.sent

    def end(
        self,
        args: tuple[Any, ...],
        begun: tuple[float, int],
        result: object,
        error: BaseException | None,
    ) -> None:
        message = (
            None if self._message is None or self._message >= len(args) else args[self._message]
        )
        sender = None if self._sender is None or self._sender >= len(args) else args[self._sender]
        sender = sender.pid if isinstance(sender, Caller) else sender
        if self._watch.recent is not None and message is not None:
            self._watch.recent.append(type(message).__qualname__)
        seconds, sent = perf_counter() - begun[0], self._process.sent - begun[1]
        for observer in tuple(self._watch.observers):
            observer.note(self._callback, message, sender, seconds, error, sent)
        if self._answers and error is None and result is not NO_REPLY:
            self._watch.note_sent("reply", sender, result)


def _place(parameters: tuple[str, ...], wanted: tuple[str, ...]) -> int | None:
    return next((index for index, name in enumerate(parameters) if name in wanted), None)


def _plain(reporter: _CallbackReporter, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: object, **keywords: object) -> object:
        begun = reporter.begin()
        try:
            result = function(*args, **keywords)
        except BaseException as error:
            reporter.end(args, begun, None, error)
            raise
        reporter.end(args, begun, result, None)
        return result

    return call


def _asynchronous(reporter: _CallbackReporter, function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: object, **keywords: object) -> object:
        begun = reporter.begin()
        try:
            result = await function(*args, **keywords)
        except BaseException as error:
            reporter.end(args, begun, None, error)
            raise
        reporter.end(args, begun, result, None)
        return result

    return call


# -- verbs -----------------------------------------------------------------------------------------


def report_sends(process: "Process", watch: Watch) -> None:
    """Let the verbs of this process report. Other processes keep the plain verbs."""
    for verb in REPORTED_VERBS:
        process.own_verbs().push(verb, Rank.REPORTED, partial(_reporting, process, watch, verb))


def stop_reporting_sends(process: "Process") -> None:
    """Let the verbs of this process report no longer."""
    for verb in REPORTED_VERBS:
        process.own_verbs().pop(verb, Rank.REPORTED)


def _reporting(
    process: "Process", watch: Watch, verb: str, function: Callable[..., Any]
) -> Callable[..., Any]:
    *_, receiver, content = REPORTED_VERBS[verb]
    place = len(REPORTED_VERBS[verb]) - 2

    def call(*args: object, **keywords: object) -> object:
        to = args[place] if place < len(args) else keywords.get(receiver)
        message = args[place + 1] if place + 1 < len(args) else keywords.get(content)
        result = function(*args, **keywords)
        to = to.pid if isinstance(to, Caller) else to
        watch.report_sent(process, verb, to, message)
        return result

    return call
