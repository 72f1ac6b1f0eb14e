"""`Calls`: requests with a reply, made by a process, by any trio task, or by a thread."""

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final, cast

from trio.lowlevel import Task, checkpoint, current_task, enable_ki_protection

from .. import sources
from ..runtime.bridge import get_ident
from ..runtime.cancel_scopes import CancelScopes
from ..runtime.dispatcher_threads import callback_here, job_here
from ..runtime.parking import PARKED, park_as, yield_turn
from ..runtime.time_slices import SLICE
from ..tables.pending_calls import Callee, Caller, waiting_process
from ..vocabulary.envelopes import (
    CALL,
    CONTROL,
    INSPECT,
    MAIN_LANE,
    MESSAGE,
    SYSTEM_LANE,
    TRACED,
    URGENT_LANE,
    Lane,
    Overflow,
    Priority,
)
from ..vocabulary.errors import (
    BadInputError,
    CallTimeoutError,
    NodeStoppedError,
    Reject,
    SendError,
    TargetDownError,
)
from ..vocabulary.ids import PID, Alias, Target
from ..vocabulary.messages import NO_REPLY
from ..vocabulary.reasons import NoProcess
from .receiver import AnyProcess, Asker, Receiver
from .remote import RemoteReceiver
from .router import LANES, Router, check_priority
from .traces import Mark
from .waiters import CallWaiter, TaskCaller, ThreadCaller

__all__ = ["NOT_MADE", "Calls", "UnfinishedCall", "refuse_inside"]


_FEW: Final = 15
"""Short cuts that a task begins with after a call of another task. With 64, the last of a hundred
callers waited for 64 calls of each of the others; with 4, turns were a large part of the cost.
"""
# Not measured: 64 calls to a callee that does next to nothing are well below the time slice of a
# millisecond, and any other callee is ended by the slice.
_MANY: Final = 64
"""Short cuts of a task while no other task makes calls, within a time slice."""
# With this look alone, a task that became ready waited for eight calls: 80 ms with a callee of 5
# ms. So each short cut looks at the clock while other tasks are ready.
_STRETCH: Final = 8
"""Short cuts between two looks at the clock, while no other task is ready."""


class UnfinishedCall:
    """A call that the C extension has begun: the callee has deferred it or replied with an error,
    or it left cancel scopes open, or the caller is cancelled.
    """

    __slots__ = ("caller", "is_due", "left")

    def __init__(self, caller: Any, left: CancelScopes | None, is_due: bool) -> None:
        self.caller = caller
        self.left = left
        self.is_due = is_due
        """The caller has to let other tasks run now."""


NOT_MADE: Final = UnfinishedCall(None, None, False)
"""The C extension has not begun the call."""


class Calls:
    """Makes calls, forwards them and delivers the replies. The router delivers the requests.

    A call to a sleeping process takes a short cut: it is answered without a turn of the scheduler.
    Callers share the loop, so each task has a budget of short cuts in a row. The budget grows
    while no other task makes calls.
    """

    short_cut: ClassVar[Any] = None
    """Makes a call to a sleeping process in the C extension; None without the extension."""
    __slots__ = (
        "_budget",
        "_free",
        "_later",
        "_router",
        "_short_cut",
        "_slice_end",
        "_turn_of",
        "late_replies",
        "serving",
    )

    def __init__(self, router: Router) -> None:
        self._router = router
        self._short_cut = self.short_cut
        self._turn_of: Task | None = None
        """The task that has called last."""
        self._budget = _FEW
        """Its short cuts between two pauses."""
        self._free = 0
        """How many more short cuts it may take before the next look at the clock."""
        # `_free` and `_later` instead of a single number: the way of a call only counts down to the
        # next look, and compares nothing.
        self._later = 0
        """How many of its budget are left after that."""
        self._slice_end = 0.0
        self.serving: Any = None
        """The process whose ``handle_call`` the C extension runs inline."""
        self.late_replies: int = 0
        """Replies that arrived after their caller had stopped waiting."""

    @enable_ki_protection
    async def call(
        self,
        process: Asker | None,
        sender: PID,
        to: Target,
        request: Any,
        timeout: float | None,
        priority: Priority,
        context: object | None = None,
    ) -> Any:
        """Send a request and wait for the reply. ``process`` is the calling process, or None if a
        task outside of processes calls. A call with the ``context`` of a trace takes no short cut:
        an inline answer would have no span.

        Raises:
            TargetDownError: the callee does not exist, or died before it replied.
            CallTimeoutError: the callee did not reply in time.
            DeadlockError: the callee waits, directly or through other processes, for this caller.
            MailboxFullError: the callee's mailbox is full, and its overflow rule refuses.
        """
        short_cut = self._short_cut
        if short_cut is not None and context is None:
            begun = short_cut(self, process, sender, to, request, priority)
            # The type, not a test of the value: a reply may be any object, and its `__eq__` or
            # `__bool__` is code of the user.
            if type(begun) is not UnfinishedCall:
                return begun
            if begun is not NOT_MADE:
                # Not in a further coroutine, which would be woken with this one.
                caller = begun.caller
                if begun.left is not None:
                    await begun.left.close()
                # The time limit is armed here: the extension has set none, since a call that is
                # answered at once needs none.
                if not caller.settled:
                    await self.wait(process, caller, timeout)
                    return caller.result()
                if process is not None:
                    process.end_wait()
                if begun.is_due:
                    await self._pause(caller.task)
                return caller.result()
        router = self._router
        # Inlined resolve(): most targets are PIDs. Untyped, since only a process that serves calls
        # inline or takes direct appends has a task and a main lane.
        callee: Any = router.processes.get(to) if type(to) is PID else router.resolve(to)
        if priority:
            check_priority(priority)
        if callee is None or not callee.accepting:
            callee = router.resolve(to)  # a process of another node
            if callee is None or not callee.accepting:
                if router.stopped:
                    raise NodeStoppedError(router.node)
                # A call that fails is a checkpoint as well: a loop that repeats it must not hold up
                # the others.
                await checkpoint()
                raise self._down(callee, to, request)
        task = current_task()
        caller = TaskCaller(sender, next(router.references), to, request, task, callee)
        beside = None
        if process is not None and task is not process.callback_task:
            # A task that a callback started. Its wait closes a ring only if the callback waits for
            # this task in turn, at the end of a nursery.
            if process.waits_for_task(task):
                beside = process
                self._refuse_ring(beside, callee, to, request)
                beside.begin_wait_beside(caller)
            # No state of the process changes for such a task: its callback may be in a call of its
            # own.
            process = None
        if process is not None:
            if callee is process or callee.waiting is not None:
                self._refuse_ring(process, callee, to, request)
            # Mark the wait before the request is posted: an overflow rule, or a handler that runs
            # inline and forwards the call, may close a ring.
            process.waiting = caller  # hot path: Process.begin_wait
        if context is not None:
            caller.carry(Mark(MESSAGE, to, context))
            waiter, is_due = self.post(callee, caller, priority), False
        elif callee.inline and callee.task.custom_sleep_data is PARKED and not callee.main:
            # A process parked in its mailbox has empty lanes, except for messages that threads have
            # appended since. `main` is checked, so that the call does not overtake these.
            # Run in the callee's own context: context variables that its handler sets must not leak
            # into the caller.
            # Counted before the call and obeyed after it: a pause before would let other tasks put
            # messages into the mailbox of the callee, and then the call could not be answered
            # inline.
            is_due = self._pause_is_due(task)
            # Read before the callee runs: it may call in turn, and begin a slice of its own.
            end = self._slice_end
            left = callee.task.context.run(callee.answer_now, caller, request)
            is_due = is_due or self._keeps_others_waiting(end)
            if left is not None:
                await left.close()
            waiter = None
        elif callee.takes_direct and not priority:
            # Instead of post(): most callees take direct appends.
            waiter = None
            is_due = False
            callee.mailbox.push(MAIN_LANE, (CALL, sender, caller, request))
            # Beside other tasks only for a callee without other callers: these take turns, and it
            # takes all their requests in a single step. And only in an order that no seed chooses:
            # the seeds of a test try every place of this step among those of the other tasks.
            is_asked_again = callee.is_asked_again_by(task)
            may_step = router.turns.run_queue.size <= 1 or (
                is_asked_again and not sources.is_seeded
            )
            if callee.task.custom_sleep_data is PARKED:
                turns = router.turns
                if may_step and turns.may_step(callee):
                    is_due = self._pause_is_due(task)
                    end = self._slice_end
                    self._step(process, callee, caller)
                    # The callee has called in turn. Without this, a loop of such calls began a new
                    # slice with each call, and never let others run.
                    if self._turn_of is not task:
                        self._resume_slice(task, end)
                    is_due = (
                        is_due
                        # Unlike an inline call, this call is a checkpoint.
                        or task._cancel_status.effectively_cancelled
                        or self._keeps_others_waiting(end)
                    )
                else:
                    # The callee takes its turn when all that is ready now has run, as after a
                    # message.
                    turns.wake(callee)
        else:
            is_due = False
            waiter = self.post(callee, caller, priority)
        if caller.settled:
            if process is not None:
                process.waiting = None  # hot path: Process.end_wait
            elif beside is not None:
                beside.end_wait_beside(caller)
            if is_due:
                await self._pause(task)
            # None goes through result(): it may be the answer to a request that declares another
            # type, which is an error.
            value = caller.value
            if value is not None:
                return value
        else:
            try:
                await self.wait(process, caller, timeout)
            finally:
                if beside is not None:
                    beside.end_wait_beside(caller)
                # The call is over, by its timeout or by a cancellation: the mailbox must not admit
                # the request later.
                if waiter is not None and not waiter.admitted:
                    callee.mailbox.stop_waiting(LANES[priority], waiter)
        return caller.result()

    def _step(self, process: Asker | None, callee: Any, caller: TaskCaller) -> None:
        """Let the callee, whose mailbox holds the request, run inside the caller's turn."""
        if process is None:
            self._router.turns.step(callee)
            return
        process.begin_wait(caller)
        try:
            self._router.turns.step(callee)
        finally:
            process.end_wait()

    def _pause_is_due(self, task: Task) -> bool:
        """Count a short cut of this task. True if it has to let other tasks run now."""
        if task is self._turn_of and self._free:
            self._free -= 1
            return False
        return self._look(task)

    def _look(self, task: Task) -> bool:
        """Say whether a task has used up its budget, or its time slice. Begin a new budget if
        another task has called last.
        """
        if task is not self._turn_of:
            # A change of the task that calls begins a small budget: callers in turn wait for few
            # calls of each other, and a lone caller doubles its budget with each pause.
            self._turn_of = task
            self._grant(_FEW)
            self._slice_end = sources.slice_clock() + SLICE
            return False
        if not self._later or sources.slice_clock() >= self._slice_end:
            return True
        self._free = min(self._later, _STRETCH) - 1
        self._later -= self._free + 1
        return False

    def _resume_slice(self, task: Task, end: float) -> None:
        """Go on with the time slice of a task whose callee has called in turn. That call has begun
        a budget of its own: without this, a loop of such calls would never pause.
        """
        self._turn_of = task
        self._slice_end = end
        self._free = 0  # the next short cut looks at the clock

    def _keeps_others_waiting(self, end: float) -> bool:
        """Say whether other tasks are ready, and the time slice that ends then is over: a single
        short cut may take longer than a slice.
        """
        return self._router.turns.run_queue.size > 1 and sources.slice_clock() >= end

    def _grant(self, budget: int) -> None:
        """Begin a budget of short cuts. The last of them is followed by a pause."""
        self._budget = budget
        self._free = min(budget, _STRETCH) - 1
        self._later = budget - self._free - 1

    async def _pause(self, task: Task) -> None:
        """Let other tasks run. Double the budget if none of them has called meanwhile."""
        await yield_turn(task)
        if self._turn_of is task:
            self._grant(min(2 * self._budget, _MANY))
            self._slice_end = sources.slice_clock() + SLICE

    async def inspect(
        self, sender: PID, receiver: Receiver, to: Target, items: tuple[str, ...], timeout: float
    ) -> Any:
        """Have a receiver inspect itself. The request goes before all its other work."""
        return await self.ask(sender, receiver, to, URGENT_LANE, INSPECT, items, items, timeout)

    async def control(
        self, sender: PID, receiver: Any, operation: object, timeout: float | None
    ) -> Any:
        """Have a supervisor perform an operation on its children. The request goes before user
        messages, and is never refused.
        """
        refuse_inside(receiver, operation)
        return await self.ask(
            sender, receiver, receiver.id, SYSTEM_LANE, CONTROL, operation, operation, timeout
        )

    async def ask(
        self,
        sender: PID,
        receiver: Receiver,
        to: Target,
        lane: Lane,
        kind: int,
        request: object,
        payload: object,
        timeout: float | None,
    ) -> Any:
        """Send a request of the kernel as a signal, which is never refused, and wait for the reply.
        Errors show ``request``; the receiver gets ``payload``.
        """
        number, task = next(self._router.references), current_task()
        caller = TaskCaller(sender, number, to, request, task, receiver)
        self._router.signal(receiver, lane, (kind, sender, caller, payload))
        await self.wait(None, caller, timeout)
        return caller.result()

    async def wait(self, process: Asker | None, caller: TaskCaller, timeout: float | None) -> None:
        """Wait until a call is settled. Cancelling the wait abandons the call."""
        if timeout is not None:
            self._router.clock.arm_call(caller, timeout)
        else:
            caller.wait_without_limit()
        if process is not None:
            process.begin_wait(caller)
        try:
            await park_as(caller.task, caller)
        except BaseException:
            # Cancelled: the callee goes on and does not notice, and its reply is counted as late.
            caller.abandon()
            raise
        finally:
            if process is not None:
                process.end_wait()

    def post(self, callee: Receiver, caller: Caller, priority: Priority) -> CallWaiter | None:
        """Send a request to a callee that is open. Returns the waiter if the request waits for room
        in a full mailbox.
        """
        is_hooked = bool(self._router.hooks)
        if is_hooked and not self._note(caller):
            return None
        if caller.callee is not callee:
            caller.assign(callee)
        if is_hooked and caller.mark is not None and type(callee.id) is PID:
            kind = TRACED
        elif callee.is_remote and cast(RemoteReceiver, callee).take_call(caller, priority):
            return None
        else:
            kind = CALL
        envelope = (kind, caller.pid, caller, caller.request)
        lane = LANES[priority]
        if callee.takes_direct and lane is MAIN_LANE:
            # Instead of Router.post(), as in call(): most callees take direct appends.
            callee.mailbox.push(MAIN_LANE, envelope)
            self._router.turns.wake(cast(AnyProcess, callee))
            return None
        if (
            not callee.takes_direct
            and callee.mailbox.overflow is Overflow.WAIT
            and not callee.mailbox.has_room(lane)
        ):
            # The mailbox admits the envelope when there is room. Until then the caller waits as for
            # any reply.
            waiter = CallWaiter(caller)
            callee.mailbox.wait_for_room(lane, envelope, waiter)
            return waiter
        self._router.post(callee, caller.to, lane, envelope)
        return None

    def _note(self, caller: Caller) -> bool:
        """Show the hooks a request. False if it must not be sent: then the call is settled."""
        router = self._router
        # Also of a call that is passed on: it belongs to the callback that does so.
        context = router.context_of(caller.pid, False)
        if context is not None:
            caller.carry(Mark(MESSAGE, caller.to, context))
        try:
            caller.redirect(caller.to, router.note(caller.pid, caller.to, caller.request))
        except SendError as error:
            caller.settle(None, error)
        return not caller.settled

    def forward(
        self, to: Target, message: object, origin: PID | Alias | Caller, priority: Priority
    ) -> bool:
        """Forward a message or a call. Its sender or caller stays the same."""
        if not isinstance(origin, Caller):
            if not isinstance(origin, PID | Alias):
                raise BadInputError(
                    "origin",
                    origin,
                    "the sender argument of handle_message, or the Caller of a call",
                )
            return self._router.send(origin, to, message, priority)
        if get_ident() != self._router.loop_thread:
            return self._router.bridge.run(self.forward, to, message, origin, priority)
        receiver = self._router.resolve(to)
        check_priority(priority)
        # Before the look at the receiver: the errors below show the new address, and the call is no
        # longer deferred by the callee that passes it on.
        origin.redirect(to, message)
        if receiver is None or not receiver.accepting:
            origin.settle(None, self._down(receiver, to, message, begun=origin.begun))
            return False
        ring = self._router.ring_closed(waiting_process(origin, self._router.processes), receiver)
        if ring:
            origin.settle(None, self._router.deadlock(to, message, ring))
            return False
        if self._router.remote is not None and receiver.waiting is not None:
            self._router.remote.suspect(origin)
        self.post(receiver, origin, priority)
        return not origin.settled

    async def serve(
        self,
        callee: Callee,
        caller: Caller,
        handle_call: Callable[..., Awaitable[object]],
        *args: object,
    ) -> None:
        """Await ``handle_call(*args)`` of ``callee``, and reply: with the value that it returns, or
        with the error of a `Reject`. NO_REPLY defers the call.

        The message loop inlines this, since most calls pass through there; a worker thread, which
        must not touch the call, has its own.
        """
        try:
            reply = await handle_call(*args)
        except Reject as rejection:
            self.reply(caller, None, rejection.error)
        else:
            if reply is NO_REPLY:
                caller.defer(callee)
            else:
                self.reply(caller, reply, None)

    def reply(self, caller: Caller, value: object, error: BaseException | None) -> bool:
        """Reply to a call, from the loop or from any thread. False if the caller is known to have
        stopped waiting.
        """
        if get_ident() != self._router.loop_thread:
            # Look first: the loop may deliver this very reply before the post returns.
            waits = not caller.settled
            self._router.bridge.post(self.reply, caller, value, error)
            return waits
        if caller.settle(value, error):
            return True
        self.late_replies += 1
        return False

    def count_late_reply(self) -> None:
        """Count a reply that arrived after its caller had stopped waiting."""
        self.late_replies += 1

    def _down(
        self, callee: Receiver | None, to: Any, request: object, *, begun: bool = False
    ) -> TargetDownError:
        if callee is None:
            router = self._router
            names = router.names_beside(to)
            error = TargetDownError(to, request, router.missing(to), names, begun=begun)
            return router.explained(error, to)
        return TargetDownError(to, request, callee.reason or NoProcess(), begun=begun)

    def _refuse_ring(self, process: Asker, callee: Receiver, to: object, request: object) -> None:
        ring = self._router.ring_closed(process, callee)
        if ring:
            raise self._router.deadlock(to, request, ring)
        if self._router.remote is not None:
            self._router.remote.suspect(process)

    def call_from_thread(
        self,
        process: Asker | None,
        sender: PID,
        to: Target,
        request: object,
        timeout: float | None,
        priority: Priority,
    ) -> Any:
        """Make a call and block this thread until the reply arrives. ``process`` is the process
        that waits for this thread, if there is such a process. In a callback of a process that
        process calls.
        """
        bridge = self._router.bridge
        bridge.refuse_on_loop(
            "a call from a thread",
            "`await node.call(...)` with the node itself, or `await self.call(...)` in a callback,",
        )
        # For its error only: an address of a wrong type is the fault of this line, and raises in
        # the thread that wrote it.
        self._router.resolve(to)
        job = job_here(bridge)
        if job is not None:
            process = job.owner
            if (callback := callback_here(bridge)) is not None:
                return callback.run(self.call(process, sender, to, request, timeout, priority))
        caller = ThreadCaller(sender, next(self._router.references), to, request)
        self.note_thread(caller)
        self._router.bridge.post(self.begin, caller, priority, process)
        try:
            # The thread enforces its own deadline, so that the timeout holds even while a callback
            # blocks the loop.
            if not caller.parker.wait(timeout):
                raise CallTimeoutError(to, request, timeout or 0.0)
        except BaseException:
            self._router.bridge.undo(caller.abandon)
            raise
        return self._router.note_answer(to, caller.result())

    def note_thread(self, caller: Caller) -> None:
        """A thread makes a call, outside of processes. A traced node notes the context of the
        thread.
        """
        context = self._router.context_of(caller.pid, not caller.pid.number)
        if context is not None:
            caller.carry(Mark(MESSAGE, caller.to, context))

    def begin(
        self, caller: Caller, priority: Priority, process: Asker | None = None
    ) -> CallWaiter | None:
        """Send a request whose caller does not wait in this task: a thread, or a request without
        waiting. Returns the waiter if the request waits for room in a full mailbox.
        """
        callee = self._router.resolve(caller.to)
        if callee is None or not callee.accepting:
            caller.settle(None, self._down(callee, caller.to, caller.request))
        elif process is not None and (ring := self._router.ring_closed(process, callee)):
            caller.settle(None, self._router.deadlock(caller.to, caller.request, ring))
        else:
            return self.post(callee, caller, priority)
        return None


# Python's warning about a forgotten `await` of `self.call(...)` shows this name.
setattr(Calls.call, "__qualname__", "call")  # noqa: B010 - its owner is this module


def refuse_inside(process: Any, request: object) -> None:
    """Raise if the current task runs a callback of ``process``: it would wait for itself.

    Raises:
        DeadlockError: it would.
    """
    if process.works_in(current_task()):
        raise process.router.deadlock(process.id, request, [process.id, process.id])
