"""`Requester`: asks another node itself. A base class of its peer."""

from typing import TYPE_CHECKING, Any

from trio.lowlevel import current_task

from ..._core.messaging.waiters import TaskCaller
from ..._core.runtime.parking import park_as
from ..._core.tables.pending_calls import Caller
from ..._core.vocabulary.errors import TargetDownError
from ..._core.vocabulary.ids import NodeName
from ..._core.vocabulary.reasons import Reason
from ..messages.message_types import reason_of
from ..protocol.operations import NodeRequest, Operation
from .look import Look, look

if TYPE_CHECKING:
    from ..network import Network

__all__ = ["Requester"]


class Requester:
    """Another node that answers requests."""

    network: "Network"
    node: str
    router: Any

    def remember(self, caller: Caller) -> int:
        """Keep a call until its answer comes. Returns its number."""
        raise NotImplementedError

    def admits(self, caller: Caller) -> bool:
        """Whether there is room for a further call. If not, the call fails."""
        raise NotImplementedError

    def push(self, op: Operation) -> None:
        """Queue an operation, and send it soon."""
        raise NotImplementedError

    async def ask(self, about: str, request: object, value: object, timeout: float | None) -> Any:
        """Ask that node itself, not one of its processes, and wait for the answer.

        Raises:
            TargetDownError: there is no connection to the node.
            CallTimeoutError: it did not answer in time.
            UnreadableError: it does not know the request.
            TooManyCallsError: too many calls to the node wait for an answer.
            MessageTypeError, MessageTooLargeError: an argument cannot travel.
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
            return caller.result()
        self.push(NodeRequest(self.remember(caller), about, body))
        try:
            await park_as(task, caller)
        except BaseException:
            caller.abandon()
            raise
        return caller.result()

    async def inspect(
        self, verb: str, to: Any, items: tuple[str, ...], timeout: float
    ) -> dict[str, str]:
        """Call ``handle_inspect`` of a process or meta-process there."""
        found = await look(self, Look(verb, (to, *items)), {"timeout": timeout}, timeout)
        return dict(found)

    async def wait_ended(self, to: Any) -> Reason:
        """Wait until a process or meta-process there has ended."""
        try:
            return reason_of(await self.ask("wait_ended", Look("wait_ended", (to,)), to, None))
        except TargetDownError as error:
            return error.reason
