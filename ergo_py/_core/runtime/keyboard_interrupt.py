"""`Interrupts`: Ctrl-C while a node is up. The main task gets the ``KeyboardInterrupt``, at its
next checkpoint.

By default trio raises it wherever the main thread happens to be: inside the kernel, which leaves a
table half changed, or inside a callback, which makes a process crash. trio has a mode in which only
the main task gets it, but the caller of ``trio.run`` chooses the mode. So a node passes trio's
handler a signal without a frame, which trio treats as a signal in protected code.
"""

import signal
from time import monotonic
from types import FrameType
from typing import Any, Final

import trio

__all__ = ["Interrupts"]

REPEAT: Final = 0.5
"""Seconds in which a second signal counts as the same request to stop: wrappers signal a program
and then its group. A person needs longer for the second Ctrl-C.
"""


class _Handler:
    """Wraps trio's own handler while at least a single node of a run is up."""

    def __init__(self, before: Any) -> None:
        self.before = before
        self.users = 0
        """Number of nodes that hold this handler."""
        self._token = trio.lowlevel.current_trio_token()
        self._asked: float | None = None
        """Time of the last signal that counted."""
        self._is_heard = True
        """The loop has run since the last signal."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.users:
            # User code has reinstalled this handler after the last node was down.
            signal.default_int_handler(number, frame)
        # Not the node's clock: a signal comes from a person, also under virtual time.
        now = monotonic()
        if self._asked is not None and now - self._asked < REPEAT:
            return
        self._asked = now
        # If the loop has not run since the previous signal, some code blocks it: interrupt that
        # code, by passing its frame on.
        strikes = not self._is_heard
        self._is_heard = False
        try:
            self._token.run_sync_soon(self._hear)
        except trio.RunFinishedError:  # pragma: no cover - no task is left to interrupt
            pass
        self.before(number, frame if strikes else None)

    def is_of_this_run(self) -> bool:
        """Say whether the caller runs in the trio run whose main task gets the signals."""
        return self._token is trio.lowlevel.current_trio_token()

    def _hear(self) -> None:
        self._is_heard = True


class Interrupts:
    """A node's hold on Ctrl-C. It does nothing outside the main thread, or if the user has set a
    handler.
    """

    __slots__ = ("_handler",)

    def __init__(self) -> None:
        self._handler: _Handler | None = None

    def hold(self) -> None:
        """Deliver the next Ctrl-C to the main task."""
        handler = signal.getsignal(signal.SIGINT)
        if isinstance(handler, _Handler):
            if not handler.is_of_this_run():
                # A node in the main thread holds it, and this node runs in another thread.
                return
        else:
            if not getattr(handler, "__module__", "").startswith("trio."):
                return
            handler = _Handler(handler)
            try:
                signal.signal(signal.SIGINT, handler)
            except ValueError:  # not the main thread
                return
        handler.users += 1
        self._handler = handler

    def release(self) -> None:
        """Give Ctrl-C back to trio, once no node of this run is up. May be called twice."""
        handler, self._handler = self._handler, None
        if handler is None:
            return
        handler.users -= 1
        # A library may have set a handler of its own since: that stays, and calls this handler or
        # not.
        is_there: bool = signal.getsignal(signal.SIGINT) is handler
        if is_there and not handler.users:
            signal.signal(signal.SIGINT, handler.before)
