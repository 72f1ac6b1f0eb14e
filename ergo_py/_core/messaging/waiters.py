"""`TaskCaller`, `ThreadCaller`, `TaskWaiter`, `ThreadWaiter`, `CallWaiter`: waits for a reply, or
for room in a mailbox.
"""

from typing import TYPE_CHECKING

from trio.lowlevel import Task

from ..runtime.bridge import Parker
from ..runtime.parking import TrioTurns, wake_with
from ..tables.pending_calls import Callee, Caller
from ..vocabulary.envelopes import Envelope, Lane
from ..vocabulary.errors import DeadlockError
from ..vocabulary.ids import PID, Alias
from ..vocabulary.messages import Why
from ..vocabulary.reasons import NoProcess

if TYPE_CHECKING:
    from .receiver import Receiver
    from .router import Router

__all__ = ["CallWaiter", "NoMailbox", "TaskCaller", "TaskWaiter", "ThreadCaller", "ThreadWaiter"]


class NoMailbox:
    """Stands for the mailbox of a caller, among the processes that a root has woken."""

    waiters = None


class TaskCaller(Caller):
    """A call made by a trio task."""

    __slots__ = ("_endless", "task")

    mailbox: NoMailbox = NoMailbox()

    _endless: bool
    """Set only for a call without a timeout, so that the other calls do not pay for it."""

    def __init__(
        self,
        pid: PID | Alias,
        number: int,
        to: object,
        request: object,
        task: Task,
        callee: Callee | None = None,
    ) -> None:
        # The base class is inlined here and in settle(): super() would double the cost, and every
        # call pays for both.
        self.pid = pid
        self.number = number
        self.to = to
        self.request = request
        self.task: Task = task
        self.callee = callee
        self.settled: bool = False
        self._deferred = False
        self.value: object = None
        self.error = None

    def wait_without_limit(self) -> None:
        """Mark the call as one without a timeout."""
        self._endless = True

    @property
    def has_limit(self) -> bool:
        """Whether the call has a timeout."""
        return not hasattr(self, "_endless")

    def settle(self, value: object, error: BaseException | None) -> bool:
        """End the call with an answer or an error, and wake its task. False if it was settled
        before.
        """
        if self.settled:
            return False
        self.settled = True
        if self._deferred:
            self.undefer()
        self.value = value
        self.error = error
        # Wake by the identity of the call: the task may already sleep in another call.
        wake_with(self.task, self)
        return True

    def settle_in(self, turns: TrioTurns, value: object, error: BaseException | None) -> bool:
        """The same in the turn of a reader: if it is a root, the waiting task runs in this turn."""
        if self.settled:
            return False
        self.settled = True
        if self._deferred:
            self.undefer()
        self.value = value
        self.error = error
        turns.wake_caller(self)
        return True


class ThreadCaller(Caller):
    """A call made by an OS thread."""

    __slots__ = ("parker",)

    def __init__(self, pid: PID | Alias, number: int, to: object, request: object) -> None:
        super().__init__(pid, number, to, request)
        self.parker: Parker[None] = Parker()

    def awaken(self) -> None:
        self.parker.settle(None)


class TaskWaiter:
    """A trio task that waits for room in a mailbox."""

    __slots__ = ("admitted", "task")

    def __init__(self, task: Task) -> None:
        self.task = task
        self.admitted: bool | None = None

    def settle(self, admitted: bool, /) -> None:
        self.admitted = admitted
        wake_with(self.task, self)


class CallWaiter:
    """A call that waits for room in the callee's mailbox. The caller itself waits for the reply,
    and learns of a refusal as an error of the call.
    """

    __slots__ = ("admitted", "caller")

    def __init__(self, caller: Caller) -> None:
        self.caller: Caller = caller
        self.admitted: bool = False

    def settle(self, admitted: bool, /) -> None:
        self.admitted = admitted
        # None if the caller has given up: its call is over, and there is nothing to fail.
        callee = self.caller.callee
        if not admitted and callee is not None:
            reason = callee.reason or NoProcess()
            self.caller.fail_queued(reason)


class ThreadWaiter:
    """A thread that waits for room in a mailbox. Only the waiting happens in the thread, everything
    else on the loop.
    """

    __slots__ = ("_envelope", "_lane", "_process", "_receiver", "_router", "error", "parker")

    def __init__(
        self,
        router: "Router",
        receiver: "Receiver",
        lane: Lane,
        envelope: Envelope,
        process: object = None,
    ) -> None:
        self._router = router
        self._receiver = receiver
        self._lane = lane
        self._envelope = envelope
        self._process = process
        """The process that the thread works for, if there is one."""
        self.error: Exception | None = None
        self.parker: Parker[bool] = Parker()

    def begin(self) -> None:
        """Take a place, or wait for it. On the loop."""
        router, receiver = self._router, self._receiver
        _, _, to, message = self._envelope
        try:
            router.refuse_ring(self._process, receiver, to, message)
        except DeadlockError as error:
            self.error = error
            self.parker.settle(False)
        else:
            router.enter(receiver, self._lane, self._envelope, self)

    def settle(self, admitted: bool, /) -> None:
        """End the wait: the message is admitted, or its receiver has ended."""
        if not admitted:
            self._router.discard(self._envelope, self._envelope[2], Why.STOPPING, self._receiver)
        self.parker.settle(admitted)

    def give_up(self) -> None:
        """Leave the queue: the thread waits no longer."""
        self._receiver.mailbox.stop_waiting(self._lane, self)
