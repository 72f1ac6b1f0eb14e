"""Between trio and a coroutine that may refuse to end: the way to leave it behind when nothing else
helps.

Cancelling is a request; a callback that catches every exception in a loop, or shields itself, never
ends, and a nursery would wait for it for ever. The relay passes each trap through, so that between
two of them it can decide not to go on.
"""

import ctypes
import types
from collections.abc import Awaitable, Coroutine, Generator, Iterator
from contextvars import Context
from types import FrameType
from typing import Any, Final, NoReturn

import trio
from trio.lowlevel import Abort, Task, checkpoint, current_task, enable_ki_protection, reschedule

from .cancel_scopes import CancelScopes, close_coroutine
from .parking import NEVER

__all__ = ["Abandonable", "frames_of"]


_ROUNDS: Final = 40
"""How often a task is cut off that has opened nurseries anew, in its cleaning up."""


_STEPS: Final = 8
"""How many nurseries, one in another, a coroutine that was abandoned may leave in an orderly way.
"""


class _Sleep:
    """What is known of a sleep that began before the relay was there."""

    __slots__ = ("abort_func",)

    def __init__(self, abort_func: Any) -> None:
        self.abort_func = abort_func


class Abandonable:
    """Runs one coroutine inside one task, until it ends or is abandoned."""

    __slots__ = (
        "_abandoned",
        "_context",
        "_is_body",
        "_scopes",
        "_steps",
        "_trap",
        "detached",
        "ended",
        "finished",
    )

    def __init__(self) -> None:
        self._abandoned = False
        self._trap: Any = None
        self._is_body = True
        self._context: Context | None = None
        self._steps = _STEPS
        self._scopes: Any = None
        self.finished = False
        """Whether the coroutine is not run any more."""
        self.ended = False
        """Whether the task is rid of it, and of whatever it had open."""
        self.detached = False
        """Whether trio does not know of the task any more."""

    def run(self, coroutine: Coroutine[Any, Any, None]) -> Awaitable[None]:
        """Run a coroutine in the present task: all of its life, or a part of it."""
        return self._pass(current_task(), coroutine, has_begun=False)

    def run_part(self, coroutine: Coroutine[Any, Any, None], context: Context) -> Awaitable[None]:
        """Run a coroutine in the present task, which goes on after it, with each of its steps in
        another context.
        """
        self._is_body = False
        self._context = context
        return self.run(coroutine)

    def take_over(self, task: Task) -> None:
        """Come between trio and the coroutine of a task in the middle of its life, so that a life
        without need of it costs nothing.

        trio asks a task for its ``coro`` whenever it wakes it; one that is awake already has been
        asked, and is told.
        """
        # trio forgets how to abort a sleep when it has tried once.
        self._trap = _trap_of(task.coro) or _Sleep(task._abort_func)
        self._scopes = CancelScopes.all_of(task)
        passing: Any = self._be_body(task, task.coro)
        passing.send(None)
        task.coro = passing
        if task._next_send_fn is not None:
            task._next_send_fn = getattr(passing, task._next_send_fn.__name__)

    async def _be_body(self, task: Task, coroutine: Any) -> None:
        # trio's handler of Ctrl-C wants a task to have a coroutine in the strict sense.
        await self._pass(task, coroutine, has_begun=True)

    @enable_ki_protection
    @types.coroutine
    def _pass(
        self, task: Task, coroutine: Coroutine[Any, Any, Any], has_begun: bool
    ) -> Generator[Any, Any, None]:
        step: Any = coroutine.send
        answer: Any = None
        context = self._context
        if not has_begun:
            self._scopes = CancelScopes(task)
        try:
            while has_begun or not self._abandoned or self._may_leave_nursery():
                if has_begun:
                    # Its last step was made without us.
                    has_begun = False
                else:
                    # Spelled out: a tree of supervisors takes the stack of one init inside another.
                    self._trap = step(answer) if context is None else context.run(step, answer)
                    if self._abandoned and not _is_end_of_nursery(self._trap):
                        break
                try:
                    answer = yield self._trap
                    step = coroutine.send
                except BaseException as error:
                    step, answer = coroutine.throw, error
        except StopIteration:
            self.ended = True
            return
        except BaseException:
            if not self._abandoned:
                self.ended = True
                raise
            # What one that was given up has to say concerns nobody any more.
        finally:
            self.finished = True
            self._trap = None
        if not self.detached:
            yield from self._close(coroutine)
        while self.detached:
            # Woken by the one for whom it could not be ended.
            yield NEVER
        self.ended = True

    def _close(self, coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, None]:
        parts = list(_parts(coroutine))
        if self._context is None:
            close_coroutine(coroutine)
        else:
            self._context.run(close_coroutine, coroutine)
        for part in parts:
            if _frame(part) is not None:
                _keep_for_good(part)
                trap = _trap_of(part)
                abort = getattr(trap, "abort_func", None)
                if abort is not None and not _abort(abort):
                    # Somebody will wake this task: it must be there then.
                    yield trap
        # Nurseries that it was in, or has opened in its cleaning up; their tasks end first.
        yield from self._scopes.close().__await__()

    def _may_leave_nursery(self) -> bool:
        """At the end of a nursery it takes one more step, which closes that; but it may not open
        them without end.
        """
        self._steps -= 1
        return self._steps > 0 and _is_end_of_nursery(self._trap)

    @property
    def abandoned(self) -> bool:
        """Whether its coroutine is to be left alone."""
        return self._abandoned

    def abandon(self) -> None:
        """Have the coroutine left alone at its next step. One that is runnable ends within a turn
        of the scheduler.
        """
        self._abandoned = True

    def abort(self, task: Task) -> bool:
        """End the sleep of a task that was abandoned and has not stirred since, shielded or not.

        This is what trio itself does when it delivers a cancellation. False if what it sleeps in
        cannot be aborted: then it must be left as it is.
        """
        if self.finished:
            return True
        if task._next_send_fn is not None:
            # Somebody has woken it in this very turn: at its next step it finds that it was given
            # up.
            return True
        abort = getattr(self._trap, "abort_func", None)
        # At the end of a nursery it is woken when the last task of that has ended.
        if abort is None or _is_end_of_nursery(self._trap) or not _abort(abort):
            return False
        reschedule(task)
        return True

    def family(self, task: Task) -> list[Task]:
        """The task and all tasks below it, those above before those below."""
        found = [task]
        for one in found:
            for nursery in self._scopes.nurseries() if one is task else one.child_nurseries:
                found.extend(nursery.child_tasks)
        return found

    async def cut_off(self, task: Task) -> bool:
        """End the coroutine, and all tasks below it, whatever they do. False if not even that is
        possible.

        Each of them is closed, where it can be; one that somebody else will wake is taken out of
        trio's books instead, so that nothing waits for it.
        """
        relays: dict[Task, Abandonable] = {task: self}
        with trio.CancelScope(shield=True):
            for one in self.family(task):
                # What is only shielded ends as trio means it to end.
                self._scopes.force(one)
            if await self._has_ended():
                return True
            for round_ in range(
                _ROUNDS
            ):  # pragma: no branch - the bound is for what nobody has thought of
                for one in self.family(task):
                    if one not in relays:
                        relays[one] = Abandonable()
                        relays[one].take_over(one)
                    relays[one].abandon()
                if await self._has_ended():
                    return True
                for one in reversed(self.family(task)):
                    if one in relays:
                        relays[one].abort(one)
                if await self._has_ended():
                    return True
                if round_ >= _STEPS and self._detach_all(task, relays):
                    break
            await self._has_ended()
        return self.detached or self.ended

    def _detach_all(self, task: Task, relays: "dict[Task, Abandonable]") -> bool:
        family = self.family(task)
        if any(one not in relays or one._next_send_fn is not None for one in family):
            # Some are about to take a step; without one above them they would be in nobody's books.
            return False
        for one in reversed(family if self._is_body else family[1:]):
            relays[one]._detach(one)
        return True

    async def _has_ended(self) -> bool:
        for _ in range(2):
            await checkpoint()
        return self.ended

    def _detach(self, task: Task) -> None:
        """Take a task that sleeps out of trio's books: neither its nursery nor the run waits for it
        any more.
        """
        self.detached = True
        _keep_for_good(task.coro)
        nursery = task._parent_nursery
        assert nursery is not None
        nursery._children.discard(task)
        task._runner.tasks.discard(task)
        task._activate_cancel_status(None)
        nursery._check_nursery_closed()


def _is_end_of_nursery(trap: Any) -> bool:
    return getattr(getattr(trap, "abort_func", None), "__qualname__", "").startswith("Nursery.")


def _abort(abort: Any) -> bool:
    """Abort a sleep. A worker thread of trio's cannot be: but it can be told to wake nobody."""
    if abort(_raise_cancel) is Abort.SUCCEEDED:
        return True
    free = getattr(getattr(abort, "__code__", None), "co_freevars", ())
    if "task_register" not in free:
        return False
    abort.__closure__[free.index("task_register")].cell_contents[0] = None
    return True


def frames_of(task: Task) -> list[FrameType]:
    """Where a task waits: the frames of its coroutines, the outermost first, those behind a relay
    included.
    """
    frames: list[FrameType] = []
    part: Any = task.coro
    while (frame := _frame(part)) is not None:
        frames.append(frame)
        part = _awaited(part)
        if part is None and frame.f_code is Abandonable._pass.__code__:
            part = frame.f_locals["coroutine"]
    return frames


def _keep_for_good(remains: Any) -> None:
    """Never let a coroutine that refused to be closed be collected: collecting it would try again.

    A list would keep it only until the interpreter goes down. Outside of trio what it awaits raises
    at once, and one that catches that as well would never let the interpreter end. A reference that
    nobody holds is never given back.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(remains))


def _raise_cancel() -> NoReturn:
    raise RuntimeError("abandoned")


def _trap_of(part: Any) -> Any:
    """What a coroutine that refused to be closed waits for now: whoever would wake a task that has
    ended, would break trio.
    """
    *_, last = _parts(part)
    frame = _frame(last)
    # The innermost one of trio's has nothing but what it passes to the loop.
    local = {} if frame is None else frame.f_locals
    return next((one for one in local.values() if hasattr(one, "abort_func")), None)


def _parts(coroutine: Any) -> Iterator[Any]:
    """A coroutine, what it awaits, what that awaits: any of them may be the one that refuses to be
    closed.
    """
    while coroutine is not None:
        yield coroutine
        coroutine = _awaited(coroutine)


def _awaited(part: Any) -> Any:
    return getattr(part, "cr_await", None) or getattr(part, "gi_yieldfrom", None)


def _frame(part: Any) -> Any:
    return getattr(part, "cr_frame", None) or getattr(part, "gi_frame", None)
