"""`HookedRouter` and `HookedCalls`: the router and the calls of a node with hooks."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from trio.lowlevel import enable_ki_protection

from ..vocabulary.envelopes import Priority
from ..vocabulary.ids import PID, Alias, Target
from .calls import Calls
from .receiver import Asker
from .router import Router

__all__ = ["HookedCalls", "HookedRouter"]


class HookedRouter(Router):
    """A router that shows each message to the hooks of its node."""

    __slots__ = ()

    @enable_ki_protection
    def send(self, sender: PID | Alias, to: Target, message: object, priority: Priority) -> bool:
        """Show a message to the hooks, and deliver it with the context of its trace."""
        context = self.context_of(sender, type(sender) is PID and not sender.number)
        if context is not None:
            return self.send_traced(sender, to, message, priority, context)
        return super().send(sender, to, self.note(sender, to, message), priority)

    def send_traced(
        self, sender: PID | Alias, to: Target, message: object, priority: Priority, context: object
    ) -> bool:
        """Deliver a message with a context, if its receiver is a process, here or on another node;
        to others without it.
        """
        message = self.note(sender, to, message)
        receiver = self.resolve(to)
        if receiver is None or type(receiver.id) is not PID:
            # A meta-process has no callback that would be a span: it gets the message as without
            # tracing.
            return super().send(sender, to, message, priority)
        return self._send(sender, to, message, priority, context)


class HookedCalls(Calls):
    """Calls that show each request and each answer to the hooks of their node."""

    __slots__ = ()

    def call(  # pyright: ignore[reportIncompatibleMethodOverride] - a coroutine, too
        self,
        process: Asker | None,
        sender: PID,
        to: Target,
        request: object,
        timeout: float | None,
        priority: Priority,
        context: object | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Make a call, with the context of the trace to which it belongs now, and not when the
        coroutine starts.
        """
        router = self._router
        is_outside = process is None and not sender.number
        context = router.context_of(sender, is_outside) if context is None else context
        make = partial(super().call, process, sender, to, request, timeout, priority, context)
        return self._note_answer(to, make) if router.sees_all else make()

    async def _note_answer(self, to: Target, make: Callable[[], Awaitable[object]]) -> object:
        # The call is made here: a program that closes this coroutine unused leaves no other behind.
        return self._router.note_answer(to, await make())
