"""Ctrl-C while a node is up: the main task gets the ``KeyboardInterrupt``, at its next checkpoint.

By default trio raises it wherever the main thread happens to be: in the middle of the kernel, which
leaves a table half changed, or in a callback, which makes a process crash. trio has a mode in which
only the main task gets it, but the caller of ``trio.run`` chooses the mode. So a node asks for it
while it is up: trio's handler treats a signal without a frame as one that came in protected code.
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
    """Stands before trio's own handler while at least one node of a run is up."""

    def __init__(self, before: Any) -> None:
        self.before = before
        self.users = 0
        self._token = trio.lowlevel.current_trio_token()
        self._asked: float | None = None
        self._is_heard = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.users:
            # Somebody has put it back after the last node was down.
            signal.default_int_handler(number, frame)
        now = monotonic()
        if self._asked is not None and now - self._asked < REPEAT:
            return
        self._asked = now
        # If the loop has not moved since the signal before, this is for the code that blocks it.
        strikes = not self._is_heard
        self._is_heard = False
        try:
            self._token.run_sync_soon(self._hear)
        except (
            trio.RunFinishedError
        ):  # pragma: no cover - nothing is left that could be interrupted
            pass
        self.before(number, frame if strikes else None)

    def is_of_this_run(self) -> bool:
        """Say whether the node that asks belongs to the run whose main task gets the signals."""
        return self._token is trio.lowlevel.current_trio_token()

    def _hear(self) -> None:
        self._is_heard = True


class Interrupts:
    """What one node does about Ctrl-C. Nothing in another thread, or where the user has a handler."""

    __slots__ = ("_handler",)

    def __init__(self) -> None:
        self._handler: _Handler | None = None

    def hold(self) -> None:
        """Have the main task get the next ones."""
        handler = signal.getsignal(signal.SIGINT)
        if isinstance(handler, _Handler):
            if not handler.is_of_this_run():
                # A node of the main thread has it, and this one is in another thread.
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
        """Leave them to trio again, once no node of this run is up. May be called twice."""
        handler, self._handler = self._handler, None
        if handler is None:
            return
        handler.users -= 1
        is_there: bool = signal.getsignal(signal.SIGINT) is handler
        if is_there and not handler.users:
            signal.signal(signal.SIGINT, handler.before)
