"""`ask`: a call whose answer is a future, for threads and event loops other than the node's."""

from concurrent.futures import Future
from typing import Any

from ..tables.pending_calls import Caller
from ..vocabulary.envelopes import Priority
from ..vocabulary.errors import NodeStoppedError
from ..vocabulary.ids import PID, Target
from .calls import Calls
from .router import Router

__all__ = ["ask"]


class _FutureCaller(Caller):
    """A call whose answer settles a future. A future that was cancelled abandons its call."""

    __slots__ = ("future",)

    def __init__(self, pid: PID, number: int, to: object, request: object) -> None:
        super().__init__(pid, number, to, request)
        self.future: Future[Any] = Future()

    def awaken(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            value = self.result()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(value)


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
