"""Seeing everything: a function of the user's that is told of each start, end, send and delivery.

Without one, nothing here is in the way of a message: a node that is observed has a router and calls
of its own kind.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from trio.lowlevel import enable_ki_protection

from ..runtime.bridge import get_ident
from ..tables.pending_calls import Caller
from ..vocabulary.envelopes import Priority
from ..vocabulary.ids import PID, Alias, EventName, Target
from ..vocabulary.reasons import Reason
from .calls import Calls
from .receiver import Receiver
from .router import Router
from .waiters import CallWaiter

__all__ = [
    "Delivered",
    "ObservedCalls",
    "ObservedRouter",
    "Observer",
    "Sent",
    "Sight",
    "Spawned",
    "Stopped",
]


class Spawned(NamedTuple):
    """A process or a meta-process has started: its ``init`` has succeeded."""

    pid: PID | Alias
    """Its PID; of a meta-process, its alias."""
    parent: PID | Alias
    behaviour: str
    name: str | None


class Stopped(NamedTuple):
    """A process or a meta-process has ended, and everything of it is released."""

    pid: PID | Alias
    reason: Reason


class Sent(NamedTuple):
    """A message, a request or a publication was sent, whatever becomes of it."""

    sender: PID | Alias
    to: Target | EventName
    message: Any


class Delivered(NamedTuple):
    """A process or a meta-process is about to handle a message, a request or a publication."""

    pid: PID | Alias
    sender: PID | Alias
    message: Any


_Callback = Callable[[Any, Any], Any]
Sight = Spawned | Stopped | Sent | Delivered


class Observer:
    """The user's function. An error in it is logged, once: looking must not kill what is looked at."""

    __slots__ = ("_failed", "_function", "_report")

    def __init__(
        self, function: Callable[[Sight], object], report: Callable[[BaseException], None]
    ) -> None:
        self._function = function
        self._report = report
        self._failed = False

    def __call__(self, sight: Sight) -> None:
        try:
            self._function(sight)
        except BaseException as error:
            if not self._failed:
                self._failed = True
                self._report(error)

    def watch(self, pid: PID, *callbacks: _Callback) -> "tuple[_Callback, ...]":
        """Callbacks for messages or calls, seen each time they are called. Plain or not, as each
        is.
        """

        def watched(callback: _Callback) -> _Callback:
            def seen(message: Any, sender: Any) -> Any:
                self(Delivered(pid, sender.pid if isinstance(sender, Caller) else sender, message))
                return callback(message, sender)

            return seen

        return tuple(map(watched, callbacks))


class ObservedRouter(Router):
    """A router that tells of what is sent."""

    __slots__ = ("_observer",)

    def __init__(self, observer: Observer, *args: Any) -> None:
        super().__init__(*args)
        self._observer = observer

    @enable_ki_protection
    def send(self, sender: PID | Alias, to: Target, message: object, priority: Priority) -> bool:
        """Tell, and deliver."""
        if get_ident() != self.loop_thread:
            # Told before it arrives, as on the loop, and there: an observer needs no locks.
            self.bridge.post(self.note, sender, to, message)
        else:
            self._observer(Sent(sender, to, message))
        return super().send(sender, to, message, priority)

    def note(self, sender: PID | Alias, to: Target | EventName, message: object) -> None:
        """Tell of something that is sent on a way of its own."""
        self._observer(Sent(sender, to, message))


class ObservedCalls(Calls):
    """Calls that are told of."""

    __slots__ = ()

    def _post_call(self, callee: Receiver, caller: Caller, priority: Priority) -> CallWaiter | None:
        self._router.note(caller.pid, caller.to, caller.request)
        return super()._post_call(callee, caller, priority)
