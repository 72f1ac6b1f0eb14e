"""Idle timeouts: `IdleVerbs.set_idle_timeout`, and the callbacks that notice when an actor is
idle.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from ._core.tables.callbacks import NOTICES_IDLENESS, default
from ._core.tables.timers import Timer
from ._core.verbs.behaviour import Behaviour, M_contra
from ._core.vocabulary.errors import BehaviourError
from ._core.vocabulary.messages import ServedMessage
from ._core.vocabulary.options import check_number

__all__ = ["IdleVerbs", "serve_idle"]


class IdleTimeout(ServedMessage):
    """The message with which an idle actor wakes itself. It names its clock: the actor may have set
    another timeout since.
    """

    __slots__ = ("clock",)

    def __init__(self, clock: "_IdleClock") -> None:
        self.clock: _IdleClock = clock


class IdleVerbs(Behaviour[M_contra]):
    """The idle timeout of an actor."""

    _idle: "_IdleClock | None" = None

    def set_idle_timeout(self, seconds: float | None) -> None:
        """Call ``handle_idle`` when no message, call or event has arrived for so many seconds; None
        switches it off.

        ``handle_idle`` is called once for each idle time: the next message begins another. The time
        counts from the end of the last callback, and from here.

        Raises:
            BadInputError: it is not a positive number.
            NotAllowedError: the process is ending.
        """
        if seconds is not None:
            check_number("idle timeout", seconds, least=1e-6, hint=", or None")
        if self._idle is not None:
            self._idle.stop()
            self._idle = None
        if seconds is None:
            return
        self._idle = _IdleClock(self, seconds)
        self._idle.begin()

    def _succeed(self, former: Behaviour) -> None:
        """Go on with the idle timeout of the former behaviour, whose messages are under way."""
        assert isinstance(former, IdleVerbs)
        self._idle = former._idle
        if self._idle is None:
            return
        if getattr(self.handle_idle, "__is_default__", False):
            raise BehaviourError(
                f"{type(self).__qualname__}.handle_idle",
                None,
                "a `handle_idle`: the process has an idle timeout; or call set_idle_timeout(None) "
                "before the upgrade",
            )
        self._idle.serve(self)

    @default
    def handle_idle(self) -> Any:
        """Called when the actor has been idle for its idle timeout. ``self.stop()`` in it ends an
        actor that is not used any more.
        """
        return None


class _IdleClock:
    """The idle time of an actor. A single timer, which is armed again if the actor was busy."""

    __slots__ = ("_actor", "_now", "_seconds", "_since", "_timer")

    def __init__(self, actor: IdleVerbs, seconds: float) -> None:
        self._actor = actor
        self._seconds = seconds
        self._now = actor._process.kernel.clock.now
        self._since = 0.0
        self._timer: Timer | None = None

    def stop(self) -> None:
        """Let the timer never fire."""
        if self._timer is not None:
            self._timer.cancel()

    def serve(self, actor: IdleVerbs) -> None:
        """Go on for an actor that has taken the place of the former one."""
        self._actor = actor

    def begin(self) -> None:
        """Note that the actor has been busy until now."""
        self._since = self._now()
        if self._timer is None:
            self._arm(self._seconds)

    def is_over(self) -> bool:
        """Whether the actor has been idle long enough, now that the timer has fired."""
        self._timer = None
        left = self._since + self._seconds - self._now()
        if left > 0.0:
            self._arm(left)
            return False
        return True

    def _arm(self, delay: float) -> None:
        self._timer = self._actor.send_after(delay, self._actor.pid, IdleTimeout(self))


def serve_idle(cls: type[Any]) -> None:
    """Let the callbacks of a class that defines ``handle_idle`` notice when it is idle. Other
    classes keep their callbacks.
    """
    if getattr(cls.handle_idle, "__is_default__", False):
        return
    for name in ("handle_message", "handle_call", "handle_event"):
        own = getattr(cls, name)
        own = getattr(own, NOTICES_IDLENESS, own)
        waits = inspect.iscoroutinefunction(own) or (
            name == "handle_message" and inspect.iscoroutinefunction(cls.handle_idle)
        )
        setattr(cls, name, _noticing(own, waits, name == "handle_message"))


def _noticing(own: Callable[..., Any], waits: bool, is_message: bool) -> Callable[..., Any]:
    @wraps(own)
    def callback(self: Any, *args: object) -> Any:
        if is_message and type(args[0]) is IdleTimeout:
            return self.handle_idle() if _is_idle(self, args[0]) else None
        try:
            return own(self, *args)
        finally:
            if self._idle is not None:
                self._idle.begin()

    @wraps(own)
    async def callback_async(self: Any, *args: object) -> Any:
        if is_message and type(args[0]) is IdleTimeout:
            result = self.handle_idle() if _is_idle(self, args[0]) else None
            return await result if inspect.iscoroutine(result) else result
        try:
            result = own(self, *args)
            return await result if inspect.iscoroutine(result) else result
        finally:
            if self._idle is not None:
                self._idle.begin()

    noticing = callback_async if waits else callback
    setattr(noticing, NOTICES_IDLENESS, own)
    noticing.__dict__.pop("__is_default__", None)
    return noticing


def _is_idle(actor: IdleVerbs, message: IdleTimeout) -> bool:
    return message.clock is actor._idle and message.clock.is_over()
