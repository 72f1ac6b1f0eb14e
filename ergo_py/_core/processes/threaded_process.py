"""`DispatchedProcess`: a process whose plain callbacks run in a thread.

To the kernel all callbacks of such a process are async: each plain callback is replaced by an async
function that hands it to a thread and sleeps until it returns. So message loop, termination and
supervision need no second implementation.
"""

from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from typing import Any, ClassVar, Final, NoReturn, TypeVar, cast

import outcome
import trio
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

from ..kernel import Kernel
from ..runtime.bridge import Bridge, Parker, get_ident
from ..runtime.dispatcher_threads import Job, Lender, ThreadGroup
from ..runtime.thread_parent import RaiseCancel
from ..tables.callbacks import Callbacks, check_plain, check_waiting
from ..tables.pending_calls import Caller, awaited, ring_of
from ..tables.verb_chain import Rank, VerbChain
from ..vocabulary.dispatchers import LOOP_VERBS, SENDING_VERBS
from ..vocabulary.envelopes import (
    BATCH,
    EVENT,
    MESSAGE,
    Envelope,
    Lane,
)
from ..vocabulary.errors import BadInputError, DeadlockError, NotAllowedError
from ..vocabulary.options import Options
from ..vocabulary.reasons import is_a
from ..vocabulary.states import INIT, STOPPING, TERMINATED, State
from .envelope_handlers import answer_inspection, is_inspection
from .process import BehaviourProxy, Handlers, Process

__all__ = ["DispatchedProcess", "adopt"]

R = TypeVar("R")

_BURST: Final = 64
"""Messages that a thread serves before the loop looks at the process again. Not measured: the
number of `metas.handler`.
"""
_NOTHING: Final = object()
# Not measured: longer than the grace of a process, since a thread that returns needs the GIL first.
_GRACE: Final = 1.0
"""Seconds that a callback has to return from its thread after its wait was cancelled."""


def _on_loop(bridge: Bridge, verb: Callable[..., Any]) -> Callable[..., Any]:
    # With the context of the thread: a background task begins with a copy of it.
    return lambda *args, **keywords: bridge.run(
        copy_context().run, partial(verb, *args, **keywords)
    )


def adopt(changed: Context, before: Context) -> None:
    """Set in the current context the variables that ``changed``, a copy of ``before``, has set
    since: all callbacks of a process share its context, in any thread.
    """
    for variable, value in changed.items():
        # By identity: a value of the user may have an `__eq__` of its own, and an equal value is
        # another object.
        if before.get(variable, _NOTHING) is not value:
            variable.set(value)


def _left_behind(process: object) -> NotAllowedError:
    return NotAllowedError(
        f"{process} has ended, and this callback was abandoned in its thread; it cannot send "
        "any more"
    )


def _refuse(process: str, *_args: object, **_keywords: object) -> NoReturn:
    raise _left_behind(process)


class DispatchedProcess(Process):
    """A process with a thread for its plain callbacks."""

    __slots__ = (
        *("_changed", "_hop", "_serves", "_waiting"),
        *("thread_group", "hopping", "hurries", "kept_out_by"),
    )

    def __init__(
        self, kernel: Kernel, callbacks: Callbacks, options: Options, parent: Process | None
    ) -> None:
        kernel.dispatcher_threads.check(options.dispatcher)
        if callbacks.supervises:
            raise BadInputError(
                f"spawn({callbacks.behaviour}, dispatcher=…)",
                options.dispatcher,
                "LOOP: a supervisor never blocks; give the dispatcher to its children",
            )
        # handle_inspect runs on the loop, so that it answers even while a callback blocks the
        # thread.
        self.hopping = callbacks.defined - callbacks.asynchronous - {"handle_inspect"}
        self._serves = "handle_call" if "handle_call" in callbacks.defined else "handle_message"
        """The callback without which a process that waits for this one waits forever."""
        self.thread_group: ThreadGroup | None = None
        self.kept_out_by: Any = None
        """The process that held the thread when this one gave up a callback which had not begun."""
        self._waiting: Any = None
        super().__init__(kernel, callbacks.with_asynchronous(self.hopping), options, parent)
        self.hurries = False
        """Whether the callback in the thread has sent a message with a priority. Sent to this same
        process, it may have to overtake queued messages.
        """
        self.remember_lanes()
        self._hop: _Hop | None = None
        self._changed: VerbChain
        """The verbs of its behaviour, also after its end: a callback may go on in its thread."""

    @property
    def waiting(self) -> Any:
        """The call or child it waits for, or the process that holds the shared thread in which its
        calls are answered, or in which its own callback is below.
        """
        waiting = self._waiting
        # A settled call waits only for its task, but the thread may be below other callbacks.
        is_bound = waiting is not None and not (
            isinstance(waiting, Caller) and (waiting.deferred or waiting.settled)
        )
        if is_bound or self.thread_group is None or self._serves not in self.hopping:
            return waiting
        holder = self.thread_group.holder(self.job)
        return waiting if holder is self or holder is None else holder

    @waiting.setter
    def waiting(self, value: object) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._waiting = value
        if value is not None and self._hop is not None and self.thread_group is not None:
            # It may now wait for a process whose callback is queued for this same thread.
            self.thread_group.lend()

    def borrows_thread(self) -> bool:
        """Have the thread of the plain callbacks run them while the callback in it waits for this
        process. False if the process waits for more than that thread, also for the callbacks that
        run in it above its own: its own call may have timed out meanwhile.
        """
        group, job = self.thread_group, self.job
        if self._waiting is not None or group is None or (job is not None and job.ident):
            return False
        return group.lend_to(job)

    def own_wait(self) -> object:
        """The call or the process that its own callback waits for."""
        return self._waiting

    @property
    def job(self) -> Job | None:
        """The callback that runs in a thread, or is queued for a thread."""
        return None if self._hop is None else self._hop.job

    def make_behaviour(self, factory: Any, args: tuple[Any, ...]) -> None:
        """Join the threads of its dispatcher, and create the behaviour."""
        self.thread_group = thread_group = self.kernel.dispatcher_threads.join(
            self.options.dispatcher, self.id.number
        )
        ring = ring_of(self, thread_group.holder()) if "init" in self.hopping else []
        if ring and not self.borrows_thread():
            # The spawner that waits for this init holds the thread in which it would run.
            raise DeadlockError(
                self.id,
                None,
                ring,
                "give it another thread, or spawn it in an `async def` callback",
            )
        super().make_behaviour(factory, args)
        verbs = self._changed = self.own_verbs()
        for verb in LOOP_VERBS:
            # Only on this instance, so that no other process pays for it.
            verbs.push(verb, Rank.DISPATCHER, partial(_on_loop, self.router.bridge))
        for verb in ("send", "forward"):
            verbs.push(verb, Rank.DISPATCHER, lambda plain: partial(self._send_on, plain))
        self.behaviour = cast(Handlers, _InThread(self, self.behaviour))

    def _send_on(self, verb: Callable[..., Any], *args: object, priority: object = None) -> object:
        if priority or self.priority:
            self.hurries = True
        return verb(*args, priority=priority)

    def enter(self, state: State) -> None:
        """Change state. The end of the process releases its thread."""
        super().enter(state)
        if state is TERMINATED and self.thread_group is not None:
            self.kernel.dispatcher_threads.leave(self.thread_group)
            self.thread_group = None

    def wake(self) -> None:
        """Wake the process, so that it looks at its mailbox; during a callback in the thread, only
        to answer inspections.
        """
        super().wake()
        hop = self._hop
        if hop is None or not self.mailbox.urgent:
            return
        if hop.is_waiting:
            # The task awaits the coroutine of a wait_for(), and cannot answer inspections: start
            # another task.
            if any(map(is_inspection, self.mailbox.urgent)):
                context = (
                    self.task.context.copy() if isinstance(self.task, Task) else copy_context()
                )
                name = f"inspect {self.callbacks.behaviour}"
                context.run(lambda: self.kernel.start(self._answer_inspects, name=name))
        else:
            hop.awaken()

    def silence(self) -> None:
        """Make the sending verbs raise in a callback that was abandoned in its thread."""
        refuse = partial(_refuse, repr(self))
        for verb in SENDING_VERBS:
            self._changed.push(verb, Rank.REFUSED, lambda _plain: refuse)

    async def run_in_thread(self, name: str, function: Callable[..., Any], *args: object) -> Any:
        """Run a plain callback in a thread, and wait for its result."""
        assert self.thread_group is not None
        # A copy, since this task keeps running meanwhile, and a context can be entered by a single
        # thread at a time.
        before = copy_context()
        context = before.copy()
        handling, lane = self.turn.handling, self.lane()
        is_message = name == "handle_message" and handling is not None and handling[0] == MESSAGE
        if is_message and self.takes_direct and self.id not in self.kernel.watches:
            # An unbounded mailbox: only this thread takes messages out of the lane. And no watch
            # wants to see each callback. So the thread may serve a burst.
            hop = self._hop = _Hop(
                self, name, partial(context.run, self._serve_in_thread, function, *args)
            )
        else:
            hop = self._hop = _Hop(self, name, partial(context.run, function, *args))
        self.hurries = False
        thread_group = self.thread_group
        # After `_hop` is set: the thread may be done, and wait_for() look for the hop, before this
        # task goes on.
        thread_group.put(hop.job)
        try:
            while hop.job.outcome is None:
                await self._answer_inspects()
                if hop.verb is not None:
                    await hop.run_verb()
                elif hop.job.outcome is None:
                    await hop.sleep()
        except BaseException:
            holder = thread_group.holder()
            if hop.leave():
                self.kept_out_by = holder
                if handling is not None:
                    self._put_back(lane, handling)
            raise
        finally:
            self._hop = None
            thread_group.lend()
        # The task may have been awake for another cause: run the work that the callback posted to
        # the loop, before anything that follows.
        self.router.bridge.catch_up()
        adopt(context, before)
        result = hop.job.outcome.unwrap()
        check_plain(self, name, result)
        return result

    def _put_back(self, lane: Lane, handling: Envelope) -> None:
        """Put a message or a batch back with which the thread has not begun, so that it shares the
        fate of the queued messages. A call gets an error in any case.
        """
        kind, _, ref, _ = handling
        is_call = isinstance(ref, Caller)
        envelopes = ref if kind == BATCH else () if is_call or kind > EVENT else (handling,)
        for envelope in reversed(envelopes):
            self.mailbox.put_back(lane, envelope)
        self.turn.postpone(len(envelopes))

    def wait_for(self, waiting: Coroutine[Any, Any, R]) -> R:
        """Await a coroutine in the task of this process, while the callback blocks its thread."""
        check_waiting(waiting)
        hop = self._hop
        try:
            if hop is None or hop.job.ident != get_ident():
                raise NotAllowedError(
                    f"wait_for(...) is for a plain callback of {self}, in its thread; in an async "
                    "callback write `await`"
                )
            verb = _AsyncVerb(waiting, self)
            self.router.bridge.post(hop.take, verb)
        except BaseException:
            waiting.close()
            raise
        group = self.thread_group
        if group is not None and group.lends:
            group.serve(verb.lender, hop.job)
        verb.parker.wait(None)
        assert verb.parker.value is not None
        return verb.parker.value.unwrap()  # type: ignore[no-any-return]

    def _serve_in_thread(
        self, handle_message: Callable[[Any, Any], Any], message: object, sender: object
    ) -> None:
        """Serve a burst of messages in a single trip to the thread, since the trip costs more than
        most callbacks.
        """
        box, main, hop, thread_group = self.mailbox, self.main, self._hop, self.thread_group
        unmatched = self.callbacks.unmatched
        for left in range(_BURST, 0, -1):  # pragma: no branch - the last round returns
            if unmatched is not None and id(type(message)) not in unmatched.seen:
                unmatched.look(message)
            check_plain(self, "handle_message", handle_message(message, sender))
            # Return early for a kill, an inspection or an urgent message, and for other processes
            # that share the thread.
            if (
                left == 1
                or box.ahead
                or self.hurries
                or not self.takes_direct
                or hop is not self._hop
            ):
                return
            if thread_group is None or thread_group.is_wanted():
                return
            try:
                following = main.popleft()
            except IndexError:  # nothing waits
                return
            # Calls and events have callbacks of their own, and the task has to serve them.
            if following[0] != MESSAGE:
                main.appendleft(following)
                return
            self.turn.handle(following)
            _, sender, _, message = following

    async def _answer_inspects(self) -> None:
        while await answer_inspection(self):
            pass


class _InThread(BehaviourProxy):
    """Stands in for a behaviour: its plain callbacks are async here, all other attributes are
    unchanged.
    """

    def __init__(self, process: DispatchedProcess, behaviour: object) -> None:
        super().__init__(behaviour)
        for name in sorted(process.hopping):
            setattr(self, name, partial(process.run_in_thread, name, getattr(behaviour, name)))


class _AsyncVerb:
    """A coroutine that a callback in a thread waits for, and that is awaited on the loop."""

    __slots__ = ("lender", "parker", "waiting")

    def __init__(self, waiting: Coroutine[Any, Any, Any], process: DispatchedProcess) -> None:
        self.waiting = waiting
        self.parker: Parker[outcome.Outcome[Any]] = Parker()
        self.lender = Lender(process, partial(awaited, process), process.job)
        """Runs callbacks of other processes in the thread meanwhile."""

    def refuse(self, process: object) -> None:
        """Close the coroutine, and raise in the waiting callback: its process has ended."""
        self.waiting.close()
        self.settle(outcome.Error(_left_behind(process)))

    def settle(self, result: outcome.Outcome[Any]) -> None:
        """Let the callback continue."""
        self.parker.settle(result)
        self.lender.end()


class _Hop:
    """The wait of a process's task for a callback in a thread."""

    __slots__ = (
        *(
            "_is_asleep",
            "_is_left",
            "_is_withdrawn",
            "_name",
            "_process",
            "_said",
            "_task",
            "_was_cancelled",
        ),
        *("verb", "is_waiting", "job", "raise_cancel"),
    )

    is_callback: ClassVar[bool] = True

    def __init__(self, process: DispatchedProcess, name: str, function: Callable[[], Any]) -> None:
        self.job = Job(function, self.awaken, process, self)
        self.raise_cancel: RaiseCancel | None = None
        """Raises the cancellation that the task has received, for ``trio.from_thread``."""
        self._process = process
        self._name = name
        self._task: Task = current_task()
        self._is_asleep = False
        self._is_withdrawn = False
        self._is_left = False
        self._said = False
        self._was_cancelled = False
        self.verb: _AsyncVerb | None = None
        """The coroutine that the callback waits for, until the task has begun to await it."""
        self.is_waiting = False
        """Whether the task awaits it now."""

    async def sleep(self) -> None:
        """Wait until the callback has returned, or the task has other work."""
        self._is_asleep = True
        if not self._was_cancelled:
            await wait_task_rescheduled(self._abort)
            return
        # The callback has just received the cancellation: give it time before it is abandoned, or
        # reported as blocking.
        self._was_cancelled = False
        with trio.move_on_after(_GRACE, shield=True):
            await wait_task_rescheduled(self._abort)

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Await the coroutine of ``trio.from_thread`` in the task of the process. In the thread."""
        return self._process.wait_for(coroutine)

    def take(self, verb: _AsyncVerb) -> None:
        """Have the task await a coroutine for the callback."""
        if self._is_left:
            # The callback was abandoned: its thread must not wait for a coroutine that nothing
            # awaits.
            verb.refuse(self._process)
        else:
            self.verb = verb
            self.awaken()

    async def run_verb(self) -> None:
        """Await the callback's coroutine, and pass the outcome to the thread. A cancellation is
        passed, too, so that the callback ends as an async callback does.
        """
        verb, self.verb = self.verb, None
        assert verb is not None
        result: outcome.Outcome[Any]
        self.is_waiting = True
        group = self._process.thread_group
        assert group is not None
        group.begin_wait(verb.lender)
        try:
            result = outcome.Value(await verb.waiting)
        except GeneratorExit:
            verb.refuse(self._process)
            raise
        except BaseException as error:
            if is_a(error, trio.Cancelled):
                self._was_cancelled = True
                self.raise_cancel = self._process.kernel.raise_cancel
            result = outcome.Error(error)
        finally:
            self.is_waiting = False
            group.end_wait(verb.lender)
        verb.settle(result)

    def awaken(self) -> None:
        """Wake the task. On the loop's thread only."""
        if self._is_asleep:
            self._is_asleep = False
            reschedule(self._task)

    def leave(self) -> bool:
        """Stop waiting: withdraw the job, or abandon the thread that runs it. True if it had not
        begun.
        """
        process = self._process
        self._is_left = True
        if self.verb is not None:
            self.verb.refuse(process)
        if self.job.outcome is not None:
            return False
        if self._is_withdrawn or self.job.withdraw():
            return True
        process.silence()
        process.kernel.note_abandoned_thread(process.id)
        process.log.error(
            "a callback did not end in time, and its thread was abandoned",
            callback=self._name,
            dispatcher=str(process.options.dispatcher),
            exception=self.job.stack(),
        )
        return False

    def _abort(self, raise_cancel: RaiseCancel) -> Abort:
        process = self._process
        self.raise_cancel = raise_cancel
        abandonable = process.turn.abandonable
        # init and the last callbacks have their own time limits; an abandoned process has no time
        # left.
        is_limited = process.state in (INIT, STOPPING) or (
            abandonable is not None and abandonable.abandoned
        )
        if self.job.withdraw():
            self._is_withdrawn = True
        if is_limited or self._is_withdrawn:
            self._is_asleep = False
            return Abort.SUCCEEDED
        if not self._said:
            self._said = True
            process.log.warning(
                "killed while a callback blocks in a thread; it ends when the callback returns",
                callback=self._name,
                dispatcher=str(process.options.dispatcher),
                exception=self.job.stack(),
            )
        return Abort.FAILED
