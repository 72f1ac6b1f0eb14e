"""The router, the calls and the publisher of a strict node: each value that a process sends to
another process of the same node is copied through its encoding, as if it went to another node.

Only tests use it. A node that is not strict has none of these classes.
"""

from typing import Any

from ..tables.pending_calls import Caller
from ..vocabulary.envelopes import Priority
from ..vocabulary.errors import CallFailedError, SendError
from ..vocabulary.ids import PID, Alias, EventName, Ref, Target
from ..vocabulary.reasons import Crashed
from .calls import Calls
from .publisher import Publisher
from .receiver import Asker, Receiver
from .remote import NetworkRouter, ObservedNetworkRouter
from .waiters import CallWaiter

__all__ = [
    "CopyingCalls",
    "CopyingObservedRouter",
    "CopyingPublisher",
    "CopyingRouter",
]


class _Copies:
    """Copies messages. A mixin for routers."""

    __slots__ = ()

    def copied(self: Any, sender: PID | Alias, to: Any, message: object) -> object:
        """The message as another node would get it. A meta-process is always on the node of its
        process, and a process on its own, so their messages stay as they are.

        Raises:
            MessageTypeError: the message cannot travel.
        """
        if type(sender) is Alias or to == sender or self.remote is None:
            return message
        return self.remote.copied(to, message)

    def send(
        self: Any, sender: PID | Alias, to: Target, message: object, priority: Priority
    ) -> bool:
        router: Any = super()
        taken: bool = router.send(sender, to, self.copied(sender, to, message), priority)
        return taken

    async def send_wait(
        self: Any,
        sender: PID | Alias,
        to: Target,
        message: object,
        priority: Priority,
        timeout: float | None,
    ) -> bool:
        router: Any = super()
        message = self.copied(sender, to, message)
        return bool(await router.send_wait(sender, to, message, priority, timeout))


class CopyingRouter(_Copies, NetworkRouter):
    """The router of a strict node."""

    __slots__ = ()


class CopyingObservedRouter(_Copies, ObservedNetworkRouter):
    """The router of an observed strict node."""

    __slots__ = ()


class CopyingCalls(Calls):
    """The calls of a strict node."""

    __slots__ = ()

    async def call(
        self,
        process: Asker | None,
        sender: PID,
        to: Target,
        request: Any,
        timeout: float | None,
        priority: Priority,
    ) -> Any:
        answer = await super().call(process, sender, to, request, timeout, priority)
        return self._answer(to, answer)

    def call_from_thread(
        self,
        process: Asker | None,
        sender: PID,
        to: Target,
        request: object,
        timeout: float | None,
        priority: Priority,
    ) -> Any:
        answer = super().call_from_thread(process, sender, to, request, timeout, priority)
        return self._answer(to, answer)

    def _answer(self, to: Target, value: object) -> object:
        """The answer as another node would get it."""
        router: Any = self._router
        try:
            return router.copied(to, None, value)
        except SendError as error:
            raise CallFailedError(to, None, Crashed(error)) from error

    def _post_call(self, callee: Receiver, caller: Caller, priority: Priority) -> CallWaiter | None:
        router: Any = self._router
        try:
            caller.redirect(caller.to, router.copied(caller.pid, caller.to, caller.request))
        except SendError as error:
            caller.settle(None, error)
            return None
        router.note(caller.pid, caller.to, caller.request)
        return super()._post_call(callee, caller, priority)


class CopyingPublisher(Publisher):
    """The publisher of a strict node."""

    def publish(self, publisher: PID, name: EventName, message: object, token: Ref | None) -> int:
        router: Any = self._router
        message = router.copied(publisher, name, message)
        return super().publish(publisher, name, message, token)
