"""Between trio and a coroutine that may refuse to end: the way to leave it behind when nothing else helps.

Cancelling is a request; a callback that catches every exception in a loop, or shields itself, never ends, and a nursery would wait
for it for ever. The relay passes each trap through, so that between two of them it can decide not to go on.
"""

import ctypes
import types
from collections.abc import Awaitable, Coroutine, Generator, Iterator
from types import FrameType
from typing import Any, Final, NoReturn

from trio.lowlevel import Abort, Task, current_task, enable_ki_protection, reschedule

from .contexts import run_in

__all__ = ["Relay", "frames_of"]


class _Sleep:
    """What is known of a sleep that began before the relay was there."""

    __slots__ = ("abort_func",)

    def __init__(self, abort_func: Any) -> None:
        self.abort_func = abort_func


class Relay:
    """Runs one coroutine inside one task, until it ends or is abandoned."""

    __slots__ = ("_abandoned", "_trap", "finished")

    def __init__(self) -> None:
        self._abandoned = False
        self._trap: Any = None
        self.finished = False

    def run(self, coroutine: Coroutine[Any, Any, None]) -> Awaitable[None]:
        """Be the body of the present task."""
        return self._pass(current_task(), coroutine, has_begun=False)

    def take_over(self, task: Task) -> None:
        """Come between trio and the coroutine of a task in the middle of its life, so that a life without need of it costs nothing.

        trio asks a task for its ``coro`` whenever it wakes it; one that is awake already has been asked, and is told.
        """
        self._trap = _Sleep(task._abort_func)
        passing: Any = self._pass(task, task.coro, has_begun=True)
        passing.send(None)
        task.coro = passing
        if task._next_send_fn is not None:
            task._next_send_fn = getattr(passing, task._next_send_fn.__name__)

    @enable_ki_protection
    @types.coroutine
    def _pass(self, task: Task, coroutine: Coroutine[Any, Any, Any], has_begun: bool) -> Generator[Any, Any, None]:
        step: Any = coroutine.send
        answer: Any = None
        try:
            # Out of a nursery of its own it is not taken even when abandoned: trio would find its stack of nurseries broken.
            while has_begun or not self._abandoned or task.child_nurseries:
                if has_begun:
                    # Its last step was made without us.
                    has_begun = False
                else:
                    self._trap = step(answer)
                    if self._abandoned and not task.child_nurseries:
                        break
                try:
                    answer = yield self._trap
                    step = coroutine.send
                except BaseException as error:
                    step, answer = coroutine.throw, error
        except StopIteration:
            return
        except BaseException:
            if not self._abandoned:
                raise
            # What one that was given up has to say concerns nobody any more.
            return
        finally:
            self.finished = True
            self._trap = None
        parts = list(_parts(coroutine))
        try:
            coroutine.close()
        except BaseException:
            # What one that was given up has to say concerns nobody any more.
            pass
        for part in parts:
            if _frame(part) is not None:
                trap = _trap_of(part)
                abort = getattr(trap, "abort_func", None)
                if abort is not None and abort(_raise_cancel) is not Abort.SUCCEEDED:
                    # Somebody will wake this task: it must be there then.
                    yield trap
                _keep_for_good(part)
        for nursery in reversed(task.child_nurseries):
            # Opened in its cleaning up. Its tasks cannot be left; nobody waits for them but this one.
            nursery.cancel_scope.cancel()
            yield from nursery._nested_child_finished(None)

    @property
    def abandoned(self) -> bool:
        """Whether its coroutine is to be left alone."""
        return self._abandoned

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
        if task._next_send_fn is not None:
            # Somebody has woken it in this very turn: at its next step it finds that it was given up.
            return True
        abort = getattr(self._trap, "abort_func", None)
        if abort is None or abort(_raise_cancel) is not Abort.SUCCEEDED:
            return False
        reschedule(task)
        return True


def frames_of(task: Task) -> list[FrameType]:
    """Where a task waits: the frames of its coroutines, the outermost first, those behind a relay included."""
    frames: list[FrameType] = []
    part: Any = task.coro
    while (frame := _frame(part)) is not None:
        frames.append(frame)
        part = _awaited(part)
        if part is None and frame.f_code in _PASSING:
            part = frame.f_locals["coroutine"]
    return frames


_PASSING: Final = frozenset({Relay._pass.__code__, run_in.__code__})
"""What drives a coroutine by hand, and has it in a variable of this name."""


def _keep_for_good(remains: Any) -> None:
    """Never let a coroutine that refused to be closed be collected: collecting it would try again.

    A list would keep it only until the interpreter goes down. Outside of trio what it awaits raises at once, and one that catches
    that as well would never let the interpreter end. A reference that nobody holds is never given back.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(remains))


def _raise_cancel() -> NoReturn:
    raise RuntimeError("abandoned")


def _trap_of(part: Any) -> Any:
    """What a coroutine that refused to be closed waits for now: whoever would wake a task that has ended, would break trio."""
    *_, last = _parts(part)
    frame = _frame(last)
    # The innermost one of trio's has nothing but what it passes to the loop.
    return next((one for one in frame.f_locals.values() if hasattr(one, "abort_func")), None)


def _parts(coroutine: Any) -> Iterator[Any]:
    """A coroutine, what it awaits, what that awaits: any of them may be the one that refuses to be closed."""
    while coroutine is not None:
        yield coroutine
        coroutine = _awaited(coroutine)


def _awaited(part: Any) -> Any:
    return getattr(part, "cr_await", None) or getattr(part, "gi_yieldfrom", None)


def _frame(part: Any) -> Any:
    return getattr(part, "cr_frame", None) or getattr(part, "gi_frame", None)
