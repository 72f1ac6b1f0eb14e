"""`RequestCaller`, `ask`: requests whose askers do not wait.

The answer to a process or a meta-process comes to its ``handle_response``; both own the requests
that they have open. The answer to a thread, or to an event loop other than the node's, is a future.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ..tables.mailbox import Mailbox
from ..tables.pending_calls import Caller
from ..vocabulary.envelopes import RESPONSE, SYSTEM_LANE, Priority
from ..vocabulary.errors import NodeStoppedError
from ..vocabulary.ids import PID, Alias, Target
from ..vocabulary.messages import Response
from ..vocabulary.reasons import is_a
from ..vocabulary.text import shown
from .calls import Calls
from .clock import Clock
from .router import LANES, Router

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Asking", "RequestCaller", "ask", "begin_request"]


class Asking(Protocol):
    """A process or a meta-process that makes requests."""

    @property
    def id(self) -> PID | Alias: ...

    @property
    def mailbox(self) -> Mailbox: ...

    def add_request(self, caller: "RequestCaller", /) -> None:
        """Own an open request."""

    def drop_request(self, number: int, /) -> None:
        """Forget a request that is answered or cancelled."""

    def takes_responses(self) -> bool:
        """Whether it still handles answers: False from the beginning of its end."""
        ...

    def wake(self) -> None:
        """Wake it, so that it looks at its mailbox."""


class RequestCaller(Caller):
    """A request that was sent. Its answer arrives as a signal, exactly once: a full mailbox does
    not refuse it.
    """

    __slots__ = ("_asked", "_asking", "_leave_queue")

    def __init__(self, asking: Asking, number: int, to: object, request: object) -> None:
        super().__init__(asking.id, number, to, request)
        self._asking = asking
        self._asked = request
        """The request as it was sent: a callee that forwards it may change it."""
        self._leave_queue: Callable[[], object] | None = None
        asking.add_request(self)

    def awaken(self) -> None:
        """Pass the answer to the asker, unless it is ending."""
        asking = self._asking
        self._end()
        # An asker that ends has given up its requests; its successor did not ask, and gets no
        # answer.
        if asking.takes_responses():
            # Like the answer to a call, it overtakes the waiting messages.
            response = Response(self.ref, self.value, self.error, self._asked)
            asking.mailbox.push(SYSTEM_LANE, (RESPONSE, self.pid, None, response))
            asking.wake()

    def abandon(self) -> None:
        """Drop the request: no answer arrives."""
        self._end()
        super().abandon()

    def wait_in(self, leave: Callable[[], object]) -> None:
        """Note that the request waits in a queue, for room or for a restart. ``leave`` removes it
        there when the request is over.
        """
        # Settled before it could note the queue: the request was refused in the step in which it
        # was sent.
        if self.settled:
            leave()
        else:
            self._leave_queue = leave

    def _end(self) -> None:
        self._asking.drop_request(self.number)
        leave, self._leave_queue = self._leave_queue, None
        if leave is not None:
            leave()


def begin_request(
    calls: Calls, clock: Clock, caller: RequestCaller, timeout: float | None, priority: Priority
) -> None:
    """Send a request, and let it expire after ``timeout`` seconds."""
    waiter = calls.begin(caller, priority)
    if waiter is not None:
        receiver: Any = caller.callee
        caller.wait_in(partial(receiver.mailbox.stop_waiting, LANES[priority], waiter))
    if timeout is not None and not caller.settled:
        clock.arm_call(caller, timeout)


class _FutureCaller(Caller):
    """A call whose answer settles a future. A future that was cancelled abandons its call."""

    __slots__ = ("future",)

    def __init__(self, pid: PID, number: int, to: object, request: object) -> None:
        super().__init__(pid, number, to, request)
        from concurrent.futures import Future  # noqa: PLC0415 - few programs need it

        self.future: Future[Any] = Future()

    def awaken(self) -> None:
        # The caller has cancelled the future: set_result() would raise InvalidStateError on the
        # loop.
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            value = self.result()
        except BaseException as error:
            self.future.set_exception(_for_a_future(error))
        else:
            self.future.set_result(value)


def _for_a_future(error: BaseException) -> BaseException:
    """The exception itself, unless a future of asyncio refuses it, or a waiting task would take it
    for its own cancellation.
    """
    from concurrent.futures import CancelledError  # noqa: PLC0415 - as above

    of_asyncio = getattr(sys.modules.get("asyncio"), "CancelledError", CancelledError)
    if not is_a(error, (StopIteration, CancelledError, of_asyncio)):
        return error
    try:
        raise RuntimeError(
            f"the answer is the exception {shown(error)}, which a future cannot pass on; let the "
            "callee raise another exception"
        ) from error
    except RuntimeError as wrapped:
        return wrapped


def ask(
    calls: Calls,
    router: Router,
    sender: PID,
    to: Target,
    request: object,
    timeout: float | None,
    priority: Priority,
) -> "Future[Any]":
    """Make a call from any thread. Returns the future of its answer.

    Raises:
        NodeStoppedError: the node has stopped.
    """
    router.resolve(to)
    caller = _FutureCaller(sender, next(router.references), to, request)
    calls.note_thread(caller)

    def begin() -> None:
        # Cancelled between the post and this job: the request is not sent at all.
        if caller.future.cancelled():
            return
        try:
            calls.begin(caller, priority)
        except Exception as error:
            caller.settle(None, error)
            return
        if timeout is not None and not caller.settled:
            router.clock.arm_call(caller, timeout)

    def abandon_if_cancelled(future: "Future[Any]") -> None:
        if future.cancelled():
            try:
                router.bridge.post(caller.abandon)
            except NodeStoppedError:  # no process answers any more
                return

    caller.future.add_done_callback(abandon_if_cancelled)
    router.bridge.post(begin)
    return caller.future
