"""Between trio and a coroutine that may refuse to end: the way to leave it behind when nothing else helps.

Cancelling is a request; a callback that catches every exception in a loop, or shields itself, never ends, and a nursery would wait
for it for ever. The relay passes each trap through, so that between two of them it can decide not to go on.
"""

import types
from collections.abc import Coroutine, Generator
from typing import Any, NoReturn

from trio.lowlevel import Abort, Task, enable_ki_protection, reschedule

__all__ = ["Relay"]


class Relay:
    """Runs one coroutine inside one task, until it ends or is abandoned."""

    __slots__ = ("_abandoned", "_trap", "finished", "remains")

    def __init__(self) -> None:
        self._abandoned = False
        self._trap: Any = None
        self.finished = False
        self.remains: Coroutine[Any, Any, None] | None = None
        """A coroutine that would not even be closed. Kept, since collecting it would try again and complain."""

    @enable_ki_protection
    @types.coroutine
    def run(self, coroutine: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
        """Be the task's body."""
        step: Any = coroutine.send
        answer: Any = None
        try:
            while not self._abandoned:
                self._trap = step(answer)
                if self._abandoned:
                    break
                try:
                    answer = yield self._trap
                    step = coroutine.send
                except BaseException as error:
                    step, answer = coroutine.throw, error
        except StopIteration:
            return
        finally:
            self.finished = True
            self._trap = None
        try:
            coroutine.close()
        except RuntimeError:
            self.remains = coroutine

    def abandon(self) -> None:
        """Have the coroutine left alone at its next step. One that is runnable ends within a turn of the scheduler."""
        self._abandoned = True

    def abort(self, task: Task) -> bool:
        """End the sleep of a task that was abandoned and has not stirred since, shielded or not.

        This is what trio itself does when it delivers a cancellation. False if what it sleeps in cannot be aborted (a worker
        thread) or if it has tasks of its own to wait for: then it must be left as it is.
        """
        if self.finished or task.child_nurseries:
            return self.finished
        abort = getattr(self._trap, "abort_func", None)
        if abort is None or abort(_raise_cancel) is not Abort.SUCCEEDED:
            return False
        reschedule(task)
        return True


def _raise_cancel() -> NoReturn:
    raise RuntimeError("abandoned")
