"""`Observer`: a function of the user that is called with each start, end, send and delivery."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..runtime.bridge import get_ident
from ..tables.pending_calls import Caller
from ..vocabulary.ids import PID, Alias, EventName, Target
from ..vocabulary.public_names import show_public_names
from ..vocabulary.reasons import Reason
from .hooks import Hook

if TYPE_CHECKING:
    from .router import Router

__all__ = [
    "Delivered",
    "Observer",
    "Sent",
    "Sight",
    "Spawned",
    "Stopped",
]


class Spawned(NamedTuple):
    """A process or a meta-process has started: its ``init`` has succeeded."""

    pid: PID | Alias
    """The PID of the process, or the alias of the meta-process."""
    parent: PID | Alias
    behaviour: str
    name: str | None


class Stopped(NamedTuple):
    """A process or a meta-process has ended, and the kernel has released all of its resources."""

    pid: PID | Alias
    reason: Reason


class Sent(NamedTuple):
    """A message, a request or a publication was sent. It may still become a dead letter."""

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


class Observer(Hook):
    """Calls the user's function. The first exception that it raises is logged, later ones are
    dropped: observing must not crash the observed process.
    """

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

    def sending(
        self, router: "Router", sender: PID | Alias, to: Target | EventName, message: object, /
    ) -> object:
        """Report a message."""
        if get_ident() != router.loop_thread:
            # Report on the loop's thread, so that an observer needs no locks; and post first, so
            # that the report precedes the delivery, as it does on the loop.
            router.bridge.post(self, Sent(sender, to, message))
        else:
            self(Sent(sender, to, message))
        return message

    def watch(self, pid: PID, *callbacks: _Callback) -> "tuple[_Callback, ...]":
        """Wrap callbacks of ``pid`` for messages or calls, so that each call is reported. A plain
        callback stays plain, an async callback stays async.
        """

        def watched(callback: _Callback) -> _Callback:
            def seen(message: object, sender: PID | Alias) -> object:
                self(Delivered(pid, sender.pid if isinstance(sender, Caller) else sender, message))
                return callback(message, sender)

            return seen

        return tuple(map(watched, callbacks))


show_public_names(__name__, {"ergo_py.info": "Delivered Sent Sight Spawned Stopped"})
