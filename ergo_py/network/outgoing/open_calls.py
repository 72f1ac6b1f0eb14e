"""`OpenCalls`: the calls, requests and confirmed messages to another node that wait for an answer.
A base class of its peer.
"""

from collections.abc import Iterable
from typing import Any, Final

from trio.lowlevel import current_task

from ..._core import sources
from ..._core.messaging.router import LANES, Router
from ..._core.messaging.waiters import TaskCaller
from ..._core.runtime.parking import park_as
from ..._core.tables.pending_calls import Caller
from ..._core.vocabulary.envelopes import Priority
from ..._core.vocabulary.errors import CallTimeoutError, TargetDownError
from ..._core.vocabulary.ids import PID, Alias, NodeName, Target
from ..._core.vocabulary.reasons import Reason
from ..context import NetworkContext
from ..errors import NodeBusyError, RemoteError, UnreadableError
from ..messages.listed_class import UnreadableValueError
from ..messages.message_types import reason_of
from ..protocol.failures import error_of
from ..protocol.operations import Answer, ConfirmedSend, Failed, NodeRequest, Operation
from .look import Look, look
from .mailbox import CallerWaiter, Packed, PeerMailbox
from .routes import Routes

__all__ = ["OpenCalls"]

_SWEEP: Final = 256
"""Calls in flight after which calls that were settled otherwise, by a timeout, are forgotten."""
_LOOK: Final = 0.000001
"""Seconds for each call of a full table until it is swept again."""


class OpenCalls:
    """Another node that answers calls."""

    network: NetworkContext
    node: str
    router: Router
    mailbox: PeerMailbox
    routes: Routes

    def __init__(self, most: int) -> None:
        self._calls: dict[int, Caller] = {}
        """Calls and confirmed messages to that node that wait for an answer."""
        self._sweep_at = min(_SWEEP, most)
        self._sweep_again = 0.0
        """The moment from which on a full table is swept again."""

    def pack(self, to: Target, message: object) -> Packed:
        """Encode a message, in the turn and in the thread of its sender."""
        raise NotImplementedError

    def push(
        self, op: Operation, sender: object = None, to: object = None, route: bytes = b""
    ) -> None:
        """Queue an operation, and send it soon. The rest is as in `Session.push`."""
        raise NotImplementedError

    def remember(self, caller: Caller) -> int:
        """Keep a call until its answer comes. Returns its number."""
        calls, number = self._calls, caller.number
        if number in calls:
            # A forwarded call has the number of another node.
            number = next(self.router.references)
        calls[number] = caller
        return number

    def admits(self, caller: Caller) -> bool:
        """Whether there is room for a further call. If not, the call fails."""
        calls, limits = self._calls, self.network.limits
        if len(calls) < self._sweep_at:
            return True
        now = sources.slice_clock()
        if len(calls) < limits.calls or now >= self._sweep_again:
            # Forget calls that were settled otherwise.
            for number in [number for number, known in calls.items() if known.settled]:
                del calls[number]
            # Twice as many as are left: a sweep looks at all calls, so each call pays for two looks
            # at most.
            self._sweep_at = min(max(_SWEEP, 2 * len(calls)), limits.calls)
            # Refused calls in a row must not each look at all others.
            self._sweep_again = now + len(calls) * _LOOK
        if len(calls) < limits.calls:
            return True
        self.mailbox.count_dropped()
        here = self.router.node
        error = limits.call_error(here, here, self.node, caller.to, caller.request)
        caller.settle(None, error)
        return False

    def number_of(self, caller: Caller) -> int | None:
        """The number of a call to that node, as it knows it."""
        if self._calls.get(caller.number) is caller:
            return caller.number
        # A forwarded call has another number here if its own was in use.
        return next((number for number, call in self._calls.items() if call is caller), None)

    @property
    def calls_in_flight(self) -> int:
        """How many calls and requests wait for an answer."""
        return sum(not caller.settled for caller in self._calls.values())

    def forget_calls(self) -> Iterable[Caller]:
        """Forget all calls: the node is lost. Returns them."""
        calls, self._calls = self._calls, {}
        return calls.values()

    def take_answer(self, op: Answer) -> None:
        """Take the answer to a call."""
        caller = self._calls.pop(op.number, None)
        if caller is None:
            self.network.kernel.calls.count_late_reply()
            return
        try:
            value = self.network.types.decode(op.body)
        except UnreadableValueError as error:
            caller.settle(
                None,
                UnreadableError(
                    f"the answer of {caller.to!r} is unreadable here: {error}",
                    caller.to,
                    caller.request,
                ),
            )
            return
        # The caller takes its step in the turn of the reader. It may have timed out or been
        # cancelled since.
        if not caller.settle_in(self.router.turns, value, None):
            self.network.kernel.calls.count_late_reply()

    def take_failure(self, op: Failed) -> None:
        """Take the failure of a call."""
        caller = self._calls.pop(op.number, None)
        if caller is None:
            return
        try:
            payload = self.network.types.decode(op.body)
        except UnreadableValueError as error:
            # A failure with unreadable content is a failure: its caller must not wait for the
            # timeout.
            payload = RemoteError("unreadable", str(error))
        failure = error_of(op.kind, caller.to, caller.request, payload, op.begun)
        caller.settle(None, failure)

    async def send_wait(
        self,
        sender: PID | Alias,
        to: Target,
        message: object,
        priority: Priority,
        timeout: float | None,
    ) -> bool:
        """Send a message, and wait until a mailbox there has taken it. False if it became a dead
        letter.

        Raises:
            MailboxFullError: the mailbox refuses, or did not take it within ``timeout`` seconds.
        """
        lane, task = LANES[priority], current_task()
        callee: Any = self
        route, packed = self.routes.find(lane, sender, to), self.pack(to, message)
        caller = TaskCaller(sender, next(self.router.references), to, message, task, callee)
        if timeout is not None:
            self.network.kernel.clock.arm_call(caller, timeout)
        else:
            caller.wait_without_limit()
        waiter = CallerWaiter(caller, lambda: self._push_confirmed(caller, route, packed))
        if self.mailbox.has_room(lane):
            waiter.settle(True)
        else:
            self.mailbox.wait_for_room(lane, None, waiter)
        try:
            if not caller.settled:
                await park_as(task, caller)
        except BaseException:
            # The task is cancelled. A message that has gone stays on its way, and its confirmation
            # is counted as a late reply.
            caller.abandon()
            raise
        finally:
            # Also after a timeout: a message that still waits for room must not go out behind the
            # error.
            self.mailbox.stop_waiting(lane, waiter)
        try:
            return bool(caller.result())
        except CallTimeoutError:
            limit = self.mailbox.limit
            raise NodeBusyError(to, message, self.node, limit, timeout) from None
        except TargetDownError:
            return False

    def _push_confirmed(self, caller: Caller, route: bytes, packed: Packed) -> None:
        if self.admits(caller):
            op = ConfirmedSend(self.remember(caller), route, packed.body)
            self.push(op, caller.pid, caller.to, route)

    # -- requests to the node itself ---------------------------------------------------------------

    async def ask(self, about: str, request: object, value: object, timeout: float | None) -> Any:
        """Ask that node itself, not one of its processes, and wait for the answer.

        Raises:
            TargetDownError: there is no connection to the node.
            CallTimeoutError: it did not answer in time.
            UnreadableError: it does not know the request.
            LimitError: of kind ``"calls"``; too many calls to the node wait for an answer.
            MessageError: an argument cannot travel.
        """
        task, number = current_task(), next(self.router.references)
        to, sender = NodeName(self.node), self.network.kernel.pid
        body = self.network.encode(to, value)
        callee: Any = self
        caller = TaskCaller(sender, number, to, request, task, callee)
        if timeout is not None:
            self.network.kernel.clock.arm_call(caller, timeout)
        else:
            caller.wait_without_limit()
        if not self.admits(caller):
            # The call is refused: admits() has settled it with the error, which result() raises.
            return caller.result()
        self.push(NodeRequest(self.remember(caller), about, body))
        try:
            await park_as(task, caller)
        except BaseException:
            caller.abandon()
            raise
        return caller.result()

    async def inspect(
        self, verb: str, to: object, items: tuple[str, ...], timeout: float
    ) -> dict[str, str]:
        """Call ``handle_inspect`` of a process or meta-process there."""
        found = await look(self, Look(verb, (to, *items)), {"timeout": timeout}, timeout)
        return dict(found)

    async def wait_ended(self, to: object) -> Reason:
        """Wait until a process or meta-process there has ended."""
        try:
            return reason_of(await self.ask("wait_ended", Look("wait_ended", (to,)), to, None))
        except TargetDownError as error:
            # The loss of the node answers the question: for this node, the process has ended with
            # it.
            return error.reason
