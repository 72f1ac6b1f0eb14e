"""`Observer`: a function of the user that is called with each start, end, send and delivery.
`ChangedMessages`: such a function, for ``debug_shared_state``.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..runtime.bridge import get_ident
from ..tables.pending_calls import Caller
from ..vocabulary.ids import PID, Alias, EventName, Target
from ..vocabulary.public_names import show_public_names
from ..vocabulary.reasons import Reason
from .hooks import Hook

if TYPE_CHECKING:
    from .router import Router

__all__ = [
    "ChangedMessages",
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


_CONSTANT: Final = (str, bytes, int, float, complex, bool, type(None), PID, Alias)
_WATCHED: Final = 1000
"""Messages that are compared with their state when they were sent."""


class ChangedMessages:
    """Reports a message that is not as it was when it was sent: its sender, or an earlier receiver,
    has kept it and changed it. Looks when a receiver gets the message, and when it is sent again;
    once for each type.
    """

    __slots__ = ("_sent", "_then", "_told", "_warn")

    def __init__(
        self, warn: Callable[[str], None], then: Callable[[Sight], object] | None = None
    ) -> None:
        self._warn = warn
        self._then = then
        self._sent: dict[int, tuple[object, bytes]] = {}
        """The last messages, by `id`, each with its state; it holds them, so that none gets the
        number of another.
        """
        self._told: set[type] = set()

    def __call__(self, sight: Sight) -> None:
        """Note or compare a message, and show it to the observer of the user."""
        if isinstance(sight, Sent | Delivered) and type(sight.message) not in _CONSTANT:
            self._look(sight.message, is_new=isinstance(sight, Sent))
        if self._then is not None:
            self._then(sight)

    def _look(self, message: object, *, is_new: bool) -> None:
        # Taken out and put back at the end: a message that is sent again is the newest.
        before = self._sent.pop(id(message), None) if is_new else self._sent.get(id(message))
        if before is None and not is_new:
            return
        from pickle import dumps  # noqa: PLC0415 - for a debugging option only

        try:
            state = dumps(message)
        except Exception:  # a function, an open file: there is no state to compare
            return
        if is_new:
            self._sent[id(message)] = message, state
            if len(self._sent) > _WATCHED:
                del self._sent[next(iter(self._sent))]
        if before is not None and before[1] != state and type(message) not in self._told:
            # Once for each type: a shared list in a loop would fill the log, and the first line
            # names the mistake.
            self._told.add(type(message))
            self._warn(
                f"a message of type {type(message).__qualname__} has changed since it was sent, "
                "and its receivers see the change: send a copy, a tuple or a frozen dataclass"
            )


show_public_names(__name__, {"ergo_py.info": "Delivered Sent Sight Spawned Stopped"})
