"""`Service`: the address of a supervised child that survives its restarts. Senders and callers wait
while the child restarts.
"""

import math
from collections.abc import Callable
from copy import copy
from typing import Any, Generic, TypeVar, overload

import trio
from trio.lowlevel import current_task

from ._core.kernel import Kernel
from ._core.messaging.receiver import Receiver
from ._core.messaging.router import LANES
from ._core.messaging.waiters import TaskCaller, ThreadCaller
from ._core.processes.process import Process
from ._core.processes.spawn import caller_in
from ._core.runtime.bridge import get_ident
from ._core.runtime.dispatcher_threads import callback_here, job_here
from ._core.tables.child_slot import ChildSlot, Claim
from ._core.tables.pending_calls import Caller, ring_of
from ._core.verbs.behaviour import Behaviour
from ._core.verbs.common import check_priority, check_timeout
from ._core.vocabulary.envelopes import MESSAGE, Envelope, Lane, Overflow, Priority
from ._core.vocabulary.errors import (
    CallTimeoutError,
    ChildUnknownError,
    MailboxFullError,
    NotAllowedError,
    ServiceBusyError,
    ServiceError,
    ServiceGoneError,
    ServiceTimeoutError,
    TargetDownError,
)
from ._core.vocabulary.ids import PID, Alias, B_co, Ref
from ._core.vocabulary.messages import Request, Sent, Untyped, Why
from ._core.vocabulary.public_names import show_public_names
from ._core.vocabulary.reasons import Reason, Shutdown
from ._core.vocabulary.states import Operation

__all__ = ["Service", "taken_from"]

Callee = TypeVar("Callee")
M = TypeVar("M")
R = TypeVar("R")


class Service(Generic[B_co]):
    """The address of a supervised child, independent of its current process. ``stock:
    Service[Stock] = node.service("stock")`` says which class of processes the child has.

    While the child runs, a send or call goes to its PID. While it restarts, messages and requests
    wait in a queue, and the successor gets them in order. Once the child is known not to come back,
    senders and callers get ``ServiceError`` at once.
    """

    __slots__ = ("_kernel", "_process", "_router", "_slot", "_sender")

    def __init__(
        self,
        kernel: Kernel,
        slot: ChildSlot,
        process: Process | None = None,
        sender: PID | Alias | None = None,
    ) -> None:
        self._kernel = kernel
        self._router = kernel.router
        self._slot = slot
        self._process = process
        self._sender: Any = sender or (kernel.pid if process is None else process.id)

    @classmethod
    def find(cls, kernel: Kernel, name: str, process: Process | None = None) -> "Service":
        """Find the service of a child that is registered under its name on the node.

        Raises:
            ChildError: no registered child has that name.
        """
        slot = kernel.services.get(name)
        if slot is None:
            raise ChildUnknownError(name, tuple(kernel.services))
        return cls(kernel, slot, process)

    def __repr__(self) -> str:
        slot = self._slot
        state = (
            str(slot.pid)
            if slot.pid is not None
            else "coming back"
            if slot.gone is None
            else f"gone: {slot.gone}"
        )
        return f"<Service {slot.name!r} {state}>"

    @property
    def name(self) -> str:
        """The child's name."""
        return self._slot.name

    @property
    def pid(self) -> PID[B_co] | None:
        """The current process; None while the child is down."""
        return self._slot.pid

    # -- messages ----------------------------------------------------------------------------------

    def send(
        self: "Service[Behaviour[M]]",
        message: Sent[M],
        *,
        priority: Priority = Priority.NORMAL,
    ) -> bool:
        """Send a message, or queue it for the successor. Never waits; may be used from any thread.

        Queued messages become dead letters if the child turns out not to come back.

        Raises:
            ServiceError: of kind ``"gone"``; the child does not come back.
            ServiceError: of kind ``"busy"``; the waiting queue is full (``max_waiters``).
            MailboxFullError: the mailbox is full and its overflow rule is to refuse.
        """
        if self._process is not None:
            self._process.count_sent()
        router = self._router
        if get_ident() != router.loop_thread:
            return self._send_from_thread(message, check_priority(priority))
        pid = self._slot.pid
        if pid is not None:
            return router.send(self._sender, pid, message, priority)
        return self._send_later(message, check_priority(priority))

    def _send_from_thread(self, message: object, priority: Priority) -> bool:
        router, pid = self._router, self._slot.pid
        receiver = None if pid is None else router.resolve(pid)
        if (
            receiver is not None
            and receiver.mailbox.limit
            and receiver.mailbox.overflow
            in (
                Overflow.RAISE,
                Overflow.WAIT,
            )
        ):
            lane = LANES[priority]
            with router.bridge.lock:
                fits = receiver.accepting and receiver.mailbox.promise(lane)
            if fits:
                router.bridge.post(
                    self._arrive, receiver, lane, (MESSAGE, self._sender, pid, message), priority
                )
                return True
            if receiver.accepting:
                return router.send(self._sender, receiver.id, message, priority)
        if self._slot.gone is not None:
            router.bridge.run(self._present, message)
        # Decide on the loop: the child's state may change before the message arrives there.
        router.bridge.post(self._send_for_thread, message, priority)
        return True

    def _arrive(
        self, receiver: Receiver, lane: Lane, envelope: Envelope, priority: Priority
    ) -> None:
        if receiver.accepting:
            self._router.arrive_promised(receiver, lane, envelope)
        else:
            self._send_for_thread(envelope[3], priority)

    def _send_later(self, message: object, priority: Priority) -> bool:
        slot = self._present(message)
        if slot.pid is not None:
            return self._router.send(self._sender, slot.pid, message, priority)
        self._join(slot, _Sending(self, message, priority), message)
        return True

    def _send_for_thread(self, message: object, priority: Priority) -> None:
        try:
            self._send_later(message, priority)
        except ServiceError:
            # The sending thread has moved on, so it gets no exception: record a dead letter
            # instead.
            self._router.dead_letters.add(self._sender, self.name, message, Why.NO_PROCESS)

    async def send_wait(
        self: "Service[Behaviour[M]]",
        message: Sent[M],
        *,
        priority: Priority = Priority.NORMAL,
        timeout: float | None = 5.0,
    ) -> bool:
        """Send a message, and wait while the child restarts or while its mailbox is full with the
        rule ``Overflow.WAIT``.

        Raises:
            ServiceError: of kind ``"gone"``; the child does not come back.
            ServiceError: of kind ``"timeout"``; the child did not come back within ``timeout``
                seconds; the message was not sent.
            ServiceError: of kind ``"busy"``; the waiting queue is full (``max_waiters``).
            MailboxFullError: the mailbox is full.
            DeadlockError: the child waits, directly or through other processes, for the process
                that sends.
        """
        check_timeout(timeout)
        check_priority(priority)
        if self._process is not None:
            self._process.count_sent()
        slot = self._present(message)
        receiver = None if slot.pid is None else self._router.resolve(slot.pid)
        if receiver is not None and (
            receiver.mailbox.overflow is not Overflow.WAIT
            or receiver.mailbox.has_room(LANES[priority])
        ):
            return await self._router.send_wait(
                None, self._sender, receiver.id, message, priority, timeout
            )
        waiting = _Sending(self, message, priority)
        waiting.told = trio.Event()
        if slot.pid is None:
            self._refuse_ring(slot, message)
            self._refuse_after_own_end(slot, message)
        process = self._process or caller_in(current_task())
        awaited = slot.supervisor if receiver is None else receiver
        with self._router.while_waiting(process, awaited, self.name, message):
            if slot.pid is not None:
                waiting.admit(slot.pid)
            else:
                self._join(slot, waiting, message)
            try:
                with trio.move_on_after(math.inf if timeout is None else timeout):
                    await waiting.told.wait()
            finally:
                slot.waiters.pop(waiting, None)
                waiting.give_up()
        return waiting.result(timeout or 0.0)

    # -- calls -------------------------------------------------------------------------------------

    @overload
    async def call(
        self,
        request: Untyped | None,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
        retry: bool = False,
    ) -> Any: ...
    @overload
    async def call(
        self: "Service[Callee]",
        request: Request[R, Callee],
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
        retry: bool = False,
    ) -> R: ...
    async def call(
        self,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
        retry: bool = False,
    ) -> Any:
        """Call the child and wait for the answer; ``timeout`` also covers waiting for its restart.

        A request that the child held when it ended is not repeated, since the child may have
        carried it out: the call raises ``TargetDownError``. With ``retry=True``, for an idempotent
        request, the successor gets it again.

        Raises:
            ServiceError: of kind ``"gone"``; the child does not come back.
            ServiceError: of kind ``"busy"``; the waiting queue is full (``max_waiters``).
            CallTimeoutError: no answer in time.
            TargetDownError: the child ended while it had the request.
            DeadlockError: the answer would have to come from a process that waits for this very
                call.
            MailboxFullError: the mailbox is full and its overflow rule is to refuse.
            Exception: the error that the child gave to ``Reject`` or ``reply_error``.
        """
        check_timeout(timeout)
        deadline = math.inf if timeout is None or not retry else trio.current_time() + timeout
        left = timeout
        while True:
            pid = self._slot.pid
            try:
                if pid is None:
                    return await self._call_later(request, left, priority)
                if self._process is not None:
                    self._process.count_sent()
                return await self._kernel.calls.call(
                    self._process, self._sender, pid, request, left, priority
                )
            except TargetDownError as error:
                # Retry only after the end of the child itself: its answer may be a TargetDownError
                # about another process.
                if not retry or error.request is not request or not isinstance(error.target, PID):
                    raise
            if timeout is not None:
                left = deadline - trio.current_time()
                if left <= 0.0:
                    raise CallTimeoutError(self.name, request, timeout)

    async def _call_later(self, request: object, timeout: float | None, priority: Priority) -> Any:
        slot = self._present(request)
        process, task = self._process, current_task()
        self._refuse_ring(slot, request)
        self._refuse_after_own_end(slot, request)
        if process is not None:
            process.count_sent()
            if process.callback_task is not task:
                process = None
        # While the child restarts, the caller waits for its supervisor. The supervisor waits for
        # the child that it is starting, whose init may wait for this very process.
        ring = ring_of(process, slot.supervisor)
        if ring:
            raise self._router.deadlock(self.name, request, ring)
        number = next(self._router.references)
        caller = TaskCaller(self._sender, number, self.name, request, task, slot.supervisor)
        asking = _Asking(self, caller, check_priority(priority))
        self._enter(slot, asking)
        try:
            if not caller.settled:
                await self._kernel.calls.wait(process, caller, timeout)
            else:
                await self._router.pause()
        finally:
            slot.waiters.pop(asking, None)
        return caller.result()

    @overload
    def call_from_thread(
        self,
        request: Untyped | None,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> Any: ...
    @overload
    def call_from_thread(
        self: "Service[Callee]",
        request: Request[R, Callee],
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> R: ...
    def call_from_thread(
        self, request: object, *, timeout: float | None = 5.0, priority: Priority = Priority.NORMAL
    ) -> Any:
        """Call the child and block this thread until it answers. Raises the same errors as
        :meth:`call`.

        Raises:
            NotAllowedError: this is the event-loop thread, which would wait for itself.
        """
        check_timeout(timeout)
        bridge = self._router.bridge
        bridge.refuse_on_loop("a call from a thread", "`await service.call(...)`")
        if (callback := callback_here(bridge)) is not None and (job := job_here(bridge)):
            # A copy, since the class decides how to reach the child: an entity may have to wake up.
            own = copy(self)
            own._process = job.owner
            return callback.run(own.call(request, timeout=timeout, priority=priority))
        caller = ThreadCaller(self._sender, next(self._router.references), self.name, request)
        asking = _Asking(self, caller, check_priority(priority))
        bridge.post(self._ask_for_thread, asking)
        try:
            if not caller.parker.wait(timeout):
                raise CallTimeoutError(self.name, request, timeout or 0.0)
        except BaseException:
            bridge.undo(self._give_up, asking)
            raise
        return caller.result()

    def _ask_for_thread(self, asking: "_Asking") -> None:
        try:
            slot = self._present(asking.caller.request)
            if slot.pid is None:
                self._refuse_after_own_end(slot, asking.caller.request)
            self._enter(slot, asking)
        except ServiceError as error:
            asking.caller.settle(None, error)

    def _give_up(self, asking: "_Asking") -> None:
        self._slot.waiters.pop(asking, None)
        asking.caller.abandon()

    def request(
        self,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> Ref:
        """Send a request without waiting, for a service that a process got with
        ``self.service(name)``. Exactly one ``handle_response`` of that process follows, with the
        answer or with an error of :meth:`call`; ``timeout`` also covers a restart of the child.

        Raises:
            NotAllowedError: the service belongs to no process, or its process is ending.
        """
        check_timeout(timeout)
        process = self._process
        if process is None:
            raise NotAllowedError(
                "only a process gets the answer to a request; write `await service.call(...)`, or "
                "`self.service(name).request(...)` in an actor"
            )
        chosen = check_priority(priority)
        return self._router.bridge.run(self._request, process, request, timeout, chosen)

    def _request(
        self, process: Process, request: object, timeout: float | None, priority: Priority
    ) -> Ref:
        process.allow(Operation.REQUEST)
        caller = process.new_request(self.name, request)
        asking = _Asking(self, caller, priority)
        self._ask_for_thread(asking)
        slot = self._slot
        if asking in slot.waiters:
            caller.wait_in(lambda: slot.waiters.pop(asking, None))
        if timeout is not None and not caller.settled:
            self._kernel.clock.arm_call(caller, timeout)
        return caller.ref

    # -- for other nodes ---------------------------------------------------------------------------

    def deliver(self, message: object, priority: Priority) -> None:
        """Send a message of another node. It becomes a dead letter if the child does not come
        back.
        """
        self._send_for_thread(message, priority)

    def deliver_confirmed(
        self,
        message: object,
        priority: Priority,
        tell: Callable[[bool, BaseException | None], None],
    ) -> None:
        """The same, and tell whether a mailbox has taken the message, or the error."""
        waiting = _Sending(self, message, priority)
        waiting.told = _Confirmation(waiting, tell)
        try:
            slot = self._present(message)
            if slot.pid is not None:
                waiting.admit(slot.pid)
            else:
                self._join(slot, waiting, message)
        except ServiceError as error:
            tell(False, error)

    def serve(self, caller: Caller, priority: Priority) -> None:
        """Let the child answer a call of another node, now or after its restart."""
        self._ask_for_thread(_Asking(self, caller, priority))

    # -- waiting -----------------------------------------------------------------------------------

    def _present(self, message: object) -> ChildSlot:
        """Return the slot to wait at. A removed child may have been added again under the same
        name, with a new slot.

        Raises:
            ServiceError: of kind ``"gone"``; no process will take the slot.
        """
        slot = self._slot
        if slot.gone is not None:
            slot = self._kernel.services.get(slot.name, slot)
            if slot.gone is not None:
                raise ServiceGoneError(slot.name, message, slot.gone)
            self._slot = slot
        return slot

    def _enter(self, slot: ChildSlot, asking: "_Asking") -> None:
        if slot.pid is not None:
            asking.admit(slot.pid)
        else:
            self._join(slot, asking, asking.caller.request)

    def _join(self, slot: ChildSlot, claim: Claim, message: object) -> None:
        if len(slot.waiters) >= slot.rules.max_waiters:
            raise ServiceBusyError(slot.name, message, slot.rules.max_waiters)
        slot.waiters[claim] = None

    def _refuse_ring(self, slot: ChildSlot, message: object) -> None:
        """Raise if the supervisor itself would wait for the child that it starts: in its own
        callbacks, and in the ``init`` of its other children.
        """
        supervisor = slot.supervisor
        if supervisor is not None and supervisor.works_in(current_task()):
            ring = [supervisor.id, self.name, supervisor.id]
            raise self._router.deadlock(self.name, message, ring)

    def _refuse_after_own_end(self, slot: ChildSlot, message: object) -> None:
        """Raise if this process is being stopped before the child restarts: it could only wait
        forever.
        """
        if self._process is not None and slot.is_closed_to(self._process):
            raise ServiceGoneError(
                self.name, message, Shutdown("it restarts only after the caller has ended")
            )


class _Sending:
    """A message that waits for the next process, and then perhaps for room in its mailbox."""

    __slots__ = ("error", "message", "priority", "receiver", "sent", "service", "told")

    def __init__(self, service: Service, message: object, priority: Priority) -> None:
        self.service = service
        self.message = message
        self.priority = priority
        self.told: trio.Event | _Confirmation | None = None
        """Set for a waiting sender. None for ``send``: its undeliverable message becomes a dead
        letter.
        """
        self.receiver: Receiver | None = None
        """The process whose mailbox has no room yet."""
        self.sent: bool | None = None
        self.error: BaseException | None = None

    @property
    def waiter(self) -> Process | None:
        return None if self.told is None else self.service._process

    def admit(self, pid: PID, /) -> None:
        router, sender, lane = self.service._router, self.service._sender, LANES[self.priority]
        receiver = router.resolve(pid)
        assert receiver is not None
        box = receiver.mailbox
        if self.told is not None and box.overflow is Overflow.WAIT and not box.has_room(lane):
            # Queue the message itself: waking each sender to try again would lose the order of the
            # queue.
            self.receiver = receiver
            message = router.note(sender, pid, self.message)
            box.wait_for_room(lane, (MESSAGE, sender, pid, message), self)
            return
        try:
            self.sent = router.send(sender, pid, self.message, self.priority)
        except MailboxFullError as error:
            self.error = error
        if self.told is not None:
            self.told.set()

    def give(self) -> tuple[Caller | None, PID | Alias, object, Priority]:
        """Give the message away: to another node, which delivers it."""
        self.sent = True
        if self.told is not None:
            self.told.set()
        return None, self.service._sender, self.message, self.priority

    def refuse(self, reason: Reason, /) -> None:
        if self.told is None:
            self._add_dead_letter(Why.NO_PROCESS)
        else:
            self.error = ServiceGoneError(self.service.name, self.message, reason)
            self.told.set()

    def settle(self, admitted: bool, /) -> None:
        """End the wait for room: the message is in, or the process is ending and the sender waits
        for a successor.
        """
        assert self.told is not None
        if admitted:
            self.sent = True
        else:
            self.receiver = None
            try:
                self.service._join(self.service._slot, self, self.message)
                return
            except ServiceBusyError as error:
                self.error = error
        self.told.set()

    def give_up(self) -> None:
        """Stop waiting for room."""
        if self.receiver is not None and self.sent is None:
            self.receiver.mailbox.stop_waiting(LANES[self.priority], self)

    def result(self, timeout: float) -> bool:
        """Return or raise the outcome; without an outcome, the time ran out."""
        if self.error is not None:
            raise self.error
        if self.sent is not None:
            return self.sent
        if self.receiver is None:
            raise ServiceTimeoutError(self.service.name, self.message, timeout)
        self.receiver.mailbox.count_dropped()
        self._add_dead_letter(Why.FULL)
        raise MailboxFullError(self.receiver.id, self.message, self.receiver.mailbox.limit)

    def _add_dead_letter(self, why: Why) -> None:
        service = self.service
        service._router.dead_letters.add(service._sender, service.name, self.message, why)


def taken_from(claim: Claim) -> tuple[Caller | None, PID | Alias, object, Priority]:
    """Take a request from its claim, to deliver it on another node: the caller of a call, or None;
    the sender; the message; and its priority.
    """
    assert isinstance(claim, _Sending | _Asking)
    return claim.give()


class _Confirmation:
    """Tells another node the end of the wait of its message."""

    __slots__ = ("_sending", "_tell")

    def __init__(
        self, sending: _Sending, tell: Callable[[bool, BaseException | None], None]
    ) -> None:
        self._sending = sending
        self._tell = tell

    def set(self) -> None:
        self._tell(bool(self._sending.sent), self._sending.error)


class _Asking:
    """A request that waits for the next process."""

    __slots__ = ("caller", "priority", "service")

    def __init__(self, service: Service, caller: Caller, priority: Priority) -> None:
        self.service = service
        self.caller = caller
        self.priority = priority

    @property
    def waiter(self) -> Process | None:
        return self.service._process

    def admit(self, pid: PID, /) -> None:
        caller = self.caller
        if not caller.settled:
            self.service._kernel.calls.forward(pid, caller.request, caller, self.priority)

    def give(self) -> tuple[Caller | None, PID | Alias, object, Priority]:
        """Give the request away: to another node, which answers it."""
        return self.caller, self.service._sender, self.caller.request, self.priority

    def refuse(self, reason: Reason, /) -> None:
        self.caller.settle(None, ServiceGoneError(self.service.name, self.caller.request, reason))


show_public_names(__name__)
