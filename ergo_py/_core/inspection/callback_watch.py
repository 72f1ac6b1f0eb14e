"""What stands in for a behaviour that is watched: it tells of each callback, and of each message
that is sent meanwhile.

A process that nobody watches has none of this: the stand-in is put in the place of the behaviour,
and the verbs that tell are put into that one instance, for as long as somebody watches.
"""

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..tables.callbacks import CALLBACKS
from ..tables.pending_calls import Caller
from ..vocabulary.errors import NodeStoppedError
from ..vocabulary.messages import NO_REPLY

if TYPE_CHECKING:
    from ..processes.process import Process

__all__ = [
    "TOLD_VERBS",
    "CallbackObserver",
    "WatchedBehaviour",
    "Watch",
    "drop_if_unused",
    "tell_of_sending",
    "tell_of_sending_no_more",
    "watch_of",
]

TOLD_VERBS: Final[dict[str, tuple[str, ...]]] = {
    "send": ("to", "message"),
    "send_wait": ("to", "message"),
    "send_after": ("delay", "to", "message"),
    "send_every": ("period", "to", "message"),
    "forward": ("to", "message"),
    "call": ("to", "request"),
    "reply": ("caller", "value"),
    "reply_error": ("caller", "error"),
    "publish": ("event", "message"),
}
"""The verbs that send something, and what each is called with, up to whom and what. An answer that
is returned is a reply.
"""


class CallbackObserver(Protocol):
    """Somebody who is told about one process, on the loop's thread. Must not raise."""

    hears_sending: bool
    """Whether it wants to know about each message that is sent."""

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
        """Something was sent."""

    def over(self) -> None:
        """The process has ended."""


class Watch:
    """What is done to one process by those who look inside."""

    __slots__ = ("observers", "real", "recent", "suspended", "told")

    def __init__(self) -> None:
        self.observers: list[CallbackObserver] = []
        self.suspended = False
        self.recent: deque[str] | None = None
        """The types of the last messages, if the node is to remember them."""
        self.real: Any = None
        """The behaviour, while a stand-in is in its place."""
        self.told: dict[str, tuple[Any, Any]] = {}
        """The verbs that tell, and what the instance had instead, if anything."""

    def over(self) -> None:
        """The process has ended."""
        for observer in tuple(self.observers):
            observer.over()

    def note_sent(self, verb: str, to: object, message: object) -> None:
        """Tell those who want to know what was sent."""
        for observer in tuple(self.observers):
            if observer.hears_sending:
                observer.note_sent(verb, to, message)


def watch_of(process: "Process") -> Watch:
    """Return the watch of a process. Make it if the process has none."""
    watch: Watch | None = process.kernel.watches.get(process.id)
    if watch is None:
        watch = process.kernel.watches[process.id] = Watch()
    return watch


def drop_if_unused(process: "Process", watch: Watch) -> None:
    """Forget the watch of a process if it serves no purpose any more."""
    if not watch.observers and not watch.suspended and watch.recent is None:
        process.kernel.watches.pop(process.id, None)


class WatchedBehaviour:
    """In the place of a behaviour that is watched: tells of its callbacks, and is the behaviour in
    everything else.
    """

    def __init__(self, process: "Process", watch: Watch) -> None:
        self._real = real = watch.real
        for name, parameters in CALLBACKS.items():
            wrap = _asynchronous if name in process.callbacks.asynchronous else _plain
            setattr(
                self, name, wrap(_Teller(process, watch, name, parameters), getattr(real, name))
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    # isinstance() believes this: a supervisor that is watched is a supervisor.
    __class__: Any = property(lambda self: type(self._real))


# -- callbacks -------------------------------------------------------------------------------------


class _Teller:
    """Tells the observers of one process about one of its callbacks."""

    __slots__ = ("_answers", "_callback", "_message", "_process", "_sender", "_watch")

    def __init__(
        self, process: "Process", watch: Watch, callback: str, parameters: tuple[str, ...]
    ) -> None:
        self._process = process
        self._watch = watch
        self._callback = callback
        self._answers = callback.startswith("handle_call")
        self._message = _place(parameters, ("message", "request", "event", "record", "reason"))
        self._sender = _place(parameters, ("sender", "caller", "child"))

    def begin(self) -> tuple[float, int]:
        return perf_counter(), self._process.sent

    def end(
        self,
        args: tuple[Any, ...],
        begun: tuple[float, int],
        result: Any,
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


def _plain(teller: _Teller, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        begun = teller.begin()
        try:
            result = function(*args)
        except BaseException as error:
            teller.end(args, begun, None, error)
            raise
        teller.end(args, begun, result, None)
        return result

    return call


def _asynchronous(teller: _Teller, function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any) -> Any:
        begun = teller.begin()
        try:
            result = await function(*args)
        except BaseException as error:
            teller.end(args, begun, None, error)
            raise
        teller.end(args, begun, result, None)
        return result

    return call


# -- verbs -----------------------------------------------------------------------------------------


def tell_of_sending(process: "Process", watch: Watch, behaviour: Any) -> None:
    """Put verbs that tell into one instance of a behaviour. Its other instances, and it itself
    later, pay nothing for them.
    """
    if watch.told:
        return
    own = behaviour.__dict__
    for verb in TOLD_VERBS:
        before = own.get(verb)
        own[verb] = after = _telling(process, watch, verb, getattr(behaviour, verb))
        watch.told[verb] = (after, before)


def tell_of_sending_no_more(watch: Watch, behaviour: Any) -> None:
    """Give the instance the verbs back that it had before."""
    own = behaviour.__dict__
    for verb, (ours, before) in watch.told.items():
        # A callback that was left behind in its thread has been given others meanwhile, which
        # refuse.
        if own.get(verb) is ours:
            del own[verb]
            if before is not None:
                own[verb] = before
    watch.told.clear()


def _telling(
    process: "Process", watch: Watch, verb: str, function: Callable[..., Any]
) -> Callable[..., Any]:
    *_, whom, what = TOLD_VERBS[verb]
    place = len(TOLD_VERBS[verb]) - 2

    def call(*args: Any, **keywords: Any) -> Any:
        to = args[place] if place < len(args) else keywords.get(whom)
        message = args[place + 1] if place + 1 < len(args) else keywords.get(what)
        result = function(*args, **keywords)
        to = to.pid if isinstance(to, Caller) else to
        try:
            process.router.bridge.do(watch.note_sent, verb, to, message)
        except NodeStoppedError:  # in a thread, and nobody is there to be told any more
            pass
        return result

    return call
