"""``Reader``: the reader of a meta-process. It runs ``start`` in a thread or in a task."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import outcome
import trio
from trio.lowlevel import Task, current_task

from ..runtime.bridge import ReaderThread, get_ident
from ..runtime.detached_task import DetachedTask, is_cut_off, without_cancellation
from ..runtime.thread_parent import HostTask, ThreadParent
from ..tables.callbacks import check_plain, runs_callbacks
from ..vocabulary.errors import NodeStoppedError, SpawnError
from ..vocabulary.reasons import Normal

if TYPE_CHECKING:
    from .meta import Meta

__all__ = ["Reader"]


class Reader:
    """Owns the thread or the task that runs ``start``: starts it, notes its end, and abandons it if
    it refuses to end.
    """

    __slots__ = (
        *("_has_no_task", "_host", "abandoned"),
        *("gone", "has_thread", "meta", "task", "thread"),
    )

    def __init__(self, meta: "Meta") -> None:
        self.meta = meta
        in_task = meta.behaviour._reads_in_task
        self.has_thread: bool = (
            "start" not in meta.callbacks.asynchronous if in_task is None else not in_task
        )
        self.thread: ReaderThread | None = None
        self._host: HostTask | None = None
        """Serves ``trio.from_thread`` in the thread."""
        self.task: DetachedTask | None = None
        self._has_no_task = False
        """It reads without a task, as long as it has nothing to wait for."""
        self.abandoned: bool = False
        """It did not end when asked to: it may not send any more."""
        self.gone: trio.Event = trio.Event()
        """Set when ``start`` has ended, or its task was cut off."""

    # -- start -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a thread for a plain ``def start``, a task for an ``async def start``.

        Raises:
            SpawnError: the system cannot start a thread.
        """
        meta = self.meta
        if not self.has_thread:
            self.go_on()
            return
        # The name that ps and top show for the thread, of which they show 15 characters.
        kind = meta.behaviour.kind or type(meta.behaviour).__name__.lower()
        self._host = HostTask(meta.kernel, f"{meta.callbacks.behaviour}: for its reader")
        self.thread = thread = ReaderThread(f"ergo-{kind}-{meta.id.number}", self._read_in_thread)
        try:
            thread.start()
        except RuntimeError as error:
            self.thread = None
            # The limit of the system for threads is a fault of the environment: the spawn fails and
            # cleans up, and the node goes on.
            raise SpawnError(
                f"the system has no thread for {meta.callbacks.behaviour}: {error}"
            ) from error
        meta.outbox.admit_reader(thread.ident)

    @runs_callbacks
    def begin(self, read: Callable[[], bool]) -> None:
        """Begin to read without a task: ``read`` returns False if the reader has to wait for
        anything but its socket, and needs its task. Most connections never do.
        """
        self._has_no_task = True
        try:
            if not read():
                self.go_on()
        except BaseException as error:
            self.fail(error)

    def go_on(self) -> None:
        """Go on in a task: the reader has something to wait for. If the meta-process is ending,
        there is nothing more to read: the termination stops a reader without a task.
        """
        meta = self.meta
        if meta.ending.reason is not None:
            return
        self._has_no_task = False
        self.task = DetachedTask(self.task_ended)
        name = f"{meta.callbacks.behaviour}.start"
        self.task.start(meta.kernel, self.read, name, meta.handler.context)

    def fail(self, error: BaseException) -> None:
        """Record an exception of a reader without a task."""
        self._ended(outcome.Error(error))

    def adopt(self, task: DetachedTask) -> None:
        """Use the task that has run ``init``: it awaits :meth:`read` next."""
        self.task = task

    def is_current(self) -> bool:
        """Whether the current code runs in the reader: in its thread, its task, or a child task of
        that.
        """
        if self.has_thread:
            return self.thread is not None and get_ident() == self.thread.ident
        reader = None if self.task is None else self.task.task
        if reader is None or not self.meta.router.bridge.on_loop():
            return False
        try:
            task: Task | None = current_task()
        except RuntimeError:  # a callback of the loop, outside any task
            return False
        while task is not None and task is not reader:
            nursery = task.parent_nursery
            task = None if nursery is None else nursery.parent_task
        return task is not None

    # -- in the thread -----------------------------------------------------------------------------

    def _read_in_thread(self) -> None:
        ThreadParent(self.meta.router.bridge, self._host).enter()
        # The reader has a copy of the context of the handler: both may run at the same time.
        result = outcome.capture(self.meta.handler.context.copy().run, self._run_start)
        try:
            # The bridge keeps the order of a thread, so this arrives after everything the reader
            # has sent.
            self.meta.router.bridge.post(self._thread_ended, result)
        except NodeStoppedError:
            # The node has stopped and abandoned this thread, so only this thread can close the
            # resources.
            self.meta.resources.close()

    def _run_start(self) -> None:
        meta = self.meta
        check_plain(meta, "start", meta.behaviour.start())
        # The reader counts as ended once its messages are delivered, however slow the receivers
        # are.
        meta.outbox.wind_up()

    def _thread_ended(self, result: outcome.Outcome[Any]) -> None:
        self.meta.kernel.thread_fairness.give_place_back()
        self._ended(result)

    # -- in the task -------------------------------------------------------------------------------

    @runs_callbacks
    async def read(self) -> None:
        """Run ``start`` in the reader's task. If it returns, the same task runs the termination,
        since the reader does not need the task any more.
        """
        meta = self.meta
        try:
            await meta.behaviour.start()
            meta.outbox.rush()
            await meta.outbox.wait_until_empty()
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = without_cancellation(error)
            if failure is None:
                raise
            self._ended(outcome.Error(failure))
            return
        if meta.ending.reason is None:
            self.gone.set()
            # The task runs the termination from now on, and the steps that cancel a reader must not
            # cancel it.
            task, self.task = self.task, None
            await meta.ending.run_in(task, Normal())

    def task_ended(self) -> None:
        """Record the end of a task that did not record it itself: it was cancelled or abandoned."""
        self._ended(outcome.Value(None))

    # -- the end -----------------------------------------------------------------------------------

    def _ended(self, result: outcome.Outcome[Any]) -> None:
        meta = self.meta
        self.gone.set()
        if meta.ending.reason is not None:
            # The reader was asked to end, so its exception is no failure.
            if isinstance(result, outcome.Error) and not is_cut_off(result.error):
                # KeyboardInterrupt and SystemExit are meant for the program, also if they come
                # late.
                meta.pass_on(result.error)
        elif isinstance(result, outcome.Error):
            meta.finish(meta.failed("start", result.error))
        else:
            meta.finish(Normal())
        if self.abandoned:
            meta.ending.close_unused_resources()

    def be_gone(self) -> None:
        """Note that a reader without a task has read everything."""
        self.gone.set()

    async def end(self) -> None:
        """Unblock the reader, and wait for it. Unblock repeatedly: the user's ``unblock`` may have
        run a moment before the reader blocked.
        """
        meta = self.meta
        # Before the outbox releases the reader: a reader that goes on looks at this mark, and
        # returns.
        meta.resources.begin_stop()
        meta.outbox.release()
        if self.gone.is_set():
            return
        await meta.ending.wait_for_step(self.gone.wait, again=self._unblock_and_cancel)
        if not self.gone.is_set():
            await self._abandon()

    def _unblock_and_cancel(self) -> None:
        self.unblock()
        if self.task is not None:
            self.task.cancel()
        elif self._has_no_task:
            self._stop_in_passing()
        if self._host is not None:
            self._host.cancel()

    def _stop_in_passing(self) -> None:
        """Stop a reader without a task. It ends at once."""
        self.meta.behaviour._stop_in_passing()
        self.task_ended()

    def unblock(self) -> None:
        """Wake a thread that is blocked in a resource of the meta-process."""
        meta = self.meta
        try:
            meta.behaviour.unblock()
        except BaseException as error:
            meta.report("unblock", error)
        meta.resources.unblock()

    async def _abandon(self) -> None:
        meta, thread = self.meta, self.thread
        self.give_up()
        if self.task is not None and await self.task.cut_off():
            meta.log.error(
                "a reader did not end when cancelled and was cut off",
                waited=meta.options.stop_timeout,
            )
            return
        if self._host is not None:  # pragma: no branch - a task that has not begun is cut off later
            # The task that serves `trio.from_thread` for this thread: it may wait in a function
            # that the thread has sent.
            await self._host.cut_off()
        meta.ending.note_abandoned(is_thread=thread is not None)
        name, stack = ("task", "") if thread is None else (thread.name, thread.stack())
        meta.log.error(
            "a reader did not end and was abandoned; it cannot send any more",
            thread=name,
            waited=meta.options.stop_timeout,
            exception=stack,
        )

    def give_up(self) -> None:
        """Abandon a reader that has not ended: it may not send any more."""
        if self.gone.is_set():
            return
        if self._has_no_task:
            self._stop_in_passing()
        else:
            self.abandoned = True
            self.meta.outbox.refuse_reader()

    def uses_resources(self) -> bool:
        """Whether an abandoned reader may still use the resources."""
        return self.abandoned and not self.gone.is_set()
