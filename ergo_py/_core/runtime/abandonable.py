"""`Abandonable`: a relay between trio and a coroutine that may refuse to end; it can abandon the
coroutine.

Cancellation is a request. A callback that catches every exception in a loop, or shields itself,
never ends, and its nursery would wait forever. The relay passes each trap of the coroutine on to
trio, so that between two traps it can decide not to resume the coroutine.
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

__all__ = ["Abandonable", "abort_sleep", "frames_of", "is_end_of_nursery"]


# Never reached in a test: each round closes all tasks that it finds, so a task would have to open a
# nursery in each of forty cleanups.
_ROUNDS: Final = 40
"""How often `cut_off` tries again, for a task that opens more nurseries in its cleanup."""


_STEPS: Final = 8
"""Maximal number of nested nurseries that an abandoned coroutine may leave in an orderly way."""


class _Sleep:
    """Stands for the trap of a sleep that began before the relay was installed."""

    __slots__ = ("abort_func",)

    def __init__(self, abort_func: Any) -> None:
        self.abort_func = abort_func


class Abandonable:
    """Runs a coroutine inside a task, until it ends or is abandoned."""

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
        """The trap that the coroutine yielded last: it says how to abort the present sleep."""
        self._is_body = True
        """The coroutine is the whole body of its task, and not a part of it."""
        self._context: Context | None = None
        self._steps = _STEPS
        self._scopes: Any = None
        """Snapshot of the scopes that the task had open before the coroutine began."""
        self.finished: bool = False
        """The coroutine is not resumed any more."""
        self.ended: bool = False
        """The coroutine has ended, and so have all nurseries that it had open."""
        self.detached: bool = False
        """The task was removed from trio's tables."""

    def run(self, coroutine: Coroutine[Any, Any, None]) -> Awaitable[None]:
        """Run a coroutine in the present task: as its whole body, or as a part of it."""
        return self._pass(current_task(), coroutine, has_begun=False)

    def run_part(self, coroutine: Coroutine[Any, Any, None], context: Context) -> Awaitable[None]:
        """Run a coroutine as a part of the present task, each of its steps in ``context``. The task
        continues afterwards.
        """
        self._is_body = False
        # The relay enters it for each step: trio itself runs the steps of a task in the context of
        # the task.
        self._context = context
        return self.run(coroutine)

    def take_over(self, task: Task) -> None:
        """Install the relay between trio and the coroutine of a running task. So a task that is
        never abandoned costs nothing.

        trio reads ``task.coro`` whenever it reschedules the task. A task that is scheduled already
        has a bound ``_next_send_fn``, which is replaced as well.
        """
        # Read the trap from the coroutine's frame first: trio clears `_abort_func` once it has
        # tried to abort the sleep.
        self._trap = _trap_of(task.coro) or _Sleep(task._abort_func)
        self._scopes = CancelScopes.all_of(task)
        passing: Any = self._be_body(task, task.coro)
        # The relay stands where the task sleeps: its first trap is the trap of the task, and trio
        # sees no difference.
        passing.send(None)
        task.coro = passing
        if task._next_send_fn is not None:
            task._next_send_fn = getattr(passing, task._next_send_fn.__name__)

    async def _be_body(self, task: Task, coroutine: Coroutine[Any, Any, Any]) -> None:
        # Wrap the generator: trio's Ctrl-C handling expects `task.coro` to be a native coroutine.
        await self._pass(task, coroutine, has_begun=True)

    @enable_ki_protection
    @types.coroutine
    def _pass(
        self, task: Task, coroutine: Coroutine[Any, Any, Any], has_begun: bool
    ) -> Generator[Any, Any, None]:
        step = coroutine.send
        answer: Any = None
        context = self._context
        if not has_begun:
            self._scopes = CancelScopes(task)
        try:
            while has_begun or not self._abandoned or self._may_leave_nursery():
                if has_begun:
                    # The coroutine took its last step without the relay.
                    has_begun = False
                else:
                    # Inline, to save stack frames: in a supervision tree each init runs inside the
                    # init of its supervisor.
                    self._trap = step(answer) if context is None else context.run(step, answer)
                    if self._abandoned and not is_end_of_nursery(self._trap):
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
            # The coroutine was abandoned, so its exception has no receiver: drop it.
        finally:
            self.finished = True
            self._trap = None
        if not self.detached:
            yield from self._close(coroutine)
        while self.detached:
            # The sleep that could not be aborted has ended now, and woke this task. trio no longer
            # knows the task, so it must not end: sleep for good.
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
                if abort is not None and not abort_sleep(abort):
                    # The sleep cannot be aborted, and its end will reschedule this task. Waking a
                    # task that has ended would crash trio, so wait for it.
                    yield trap
        # Close the nurseries that the coroutine was in, or has opened in its cleanup. Their tasks
        # end first.
        yield from self._scopes.close().__await__()

    def _may_leave_nursery(self) -> bool:
        """Say whether the coroutine may take another step, to leave a nursery at its end. The
        number of steps is bounded, since the coroutine may open further nurseries.
        """
        self._steps -= 1
        return self._steps > 0 and is_end_of_nursery(self._trap)

    @property
    def abandoned(self) -> bool:
        """Whether the coroutine was abandoned."""
        return self._abandoned

    def abandon(self) -> None:
        """Do not resume the coroutine at its next step. A runnable task ends within a turn of the
        scheduler.
        """
        self._abandoned = True

    def abort(self, task: Task) -> bool:
        """End the sleep of an abandoned task, shielded or not.

        trio does the same when it delivers a cancellation. False if the sleep cannot be aborted:
        then the task must be left alone.
        """
        if self.finished:
            return True
        if task._next_send_fn is not None:
            # The task is scheduled already: at its next step the relay sees that it was abandoned.
            return True
        abort = getattr(self._trap, "abort_func", None)
        # Do not abort the wait at the end of a nursery: it ends with the nursery's last task.
        if abort is None or is_end_of_nursery(self._trap) or not abort_sleep(abort):
            return False
        reschedule(task)
        return True

    def family(self, task: Task) -> list[Task]:
        """The task and all its descendants, parents before children."""
        found = [task]
        # The list grows while it is traversed.
        for parent in found:
            nurseries = self._scopes.nurseries() if parent is task else parent.child_nurseries
            for nursery in nurseries:
                found.extend(nursery.child_tasks)
        return found

    async def cut_off(self, task: Task) -> bool:
        """End the coroutine and all tasks below it, even against their will. False if not even that
        is possible.

        Tasks are closed where possible. A task in a sleep that cannot be aborted is removed from
        trio's tables instead, so that no nursery waits for it.
        """
        relays: dict[Task, Abandonable] = {task: self}
        with trio.CancelScope(shield=True):
            for member in self.family(task):
                # Lift the shields first: a task that is only shielded then ends in trio's way.
                self._scopes.force(member)
            if await self._has_ended():
                return True
            for round_ in range(_ROUNDS):  # pragma: no branch - a safety bound, never reached
                for member in self.family(task):
                    if member not in relays:
                        relays[member] = Abandonable()
                        relays[member].take_over(member)
                    relays[member].abandon()
                if await self._has_ended():
                    return True
                # Children before parents: the wait of a parent at the end of its nursery ends with
                # its last child.
                for member in reversed(self.family(task)):
                    if member in relays:
                        relays[member].abort(member)
                if await self._has_ended():
                    return True
                # Only after several rounds: a task that is closed ends in trio's way, and a task
                # that is removed is lost with all that it holds.
                if round_ >= _STEPS and self._detach_all(task, relays):
                    break
            await self._has_ended()
        return self.detached or self.ended

    def _detach_all(self, task: Task, relays: "dict[Task, Abandonable]") -> bool:
        family = self.family(task)
        if any(member not in relays or member._next_send_fn is not None for member in family):
            # Some tasks are about to take a step. Without their parent no nursery would hold them.
            return False
        for member in reversed(family if self._is_body else family[1:]):
            relays[member]._detach(member)
        return True

    async def _has_ended(self) -> bool:
        for _ in range(2):
            await checkpoint()
        return self.ended

    def _detach(self, task: Task) -> None:
        """Remove a sleeping task from trio's tables: neither its nursery nor the run waits for it
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


def is_end_of_nursery(trap: object) -> bool:
    """Whether a task waits for the last task of a nursery."""
    return getattr(getattr(trap, "abort_func", None), "__qualname__", "").startswith("Nursery.")


def abort_sleep(abort: Any) -> bool:
    """Abort a sleep. False if that is impossible."""
    if abort(_raise_cancel) is Abort.SUCCEEDED:
        return True
    # A wait for a trio worker thread cannot be aborted. With an empty `task_register`, as trio
    # itself does for abandoned threads, the thread reschedules no task when it is done.
    free = getattr(getattr(abort, "__code__", None), "co_freevars", ())
    if "task_register" not in free:
        return False
    abort.__closure__[free.index("task_register")].cell_contents[0] = None
    return True


def frames_of(task: Task) -> list[FrameType]:
    """The frames of a task's coroutines, the outermost first, including those behind a relay."""
    frames: list[FrameType] = []
    part: object = task.coro
    while (frame := _frame(part)) is not None:
        frames.append(frame)
        part = _awaited(part)
        if part is None and frame.f_code is Abandonable._pass.__code__:
            part = frame.f_locals["coroutine"]
    return frames


def _keep_for_good(remains: object) -> None:
    """Leak a coroutine that refused to be closed: garbage collection would try to close it again.

    A list would keep it only until the interpreter shuts down. Its awaits raise at once outside of
    trio, and a coroutine that catches that as well would keep the interpreter from ending. A leaked
    reference count is never released.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(remains))


def _raise_cancel() -> NoReturn:
    raise RuntimeError("abandoned")


def _trap_of(part: object) -> Any:
    """The trap in which a coroutine waits now; None if there is none."""
    *_, last = _parts(part)
    frame = _frame(last)
    # The innermost frame is the trio generator that yields to the loop. Its only local is the trap.
    local = {} if frame is None else frame.f_locals
    return next((value for value in local.values() if hasattr(value, "abort_func")), None)


def _parts(coroutine: object) -> Iterator[Any]:
    """The chain of coroutines from ``coroutine`` to the innermost that it awaits. Any of them may
    refuse to be closed.
    """
    while coroutine is not None:
        yield coroutine
        coroutine = _awaited(coroutine)


def _awaited(part: object) -> Any:
    return getattr(part, "cr_await", None) or getattr(part, "gi_yieldfrom", None)


def _frame(part: object) -> Any:
    return getattr(part, "cr_frame", None) or getattr(part, "gi_frame", None)
