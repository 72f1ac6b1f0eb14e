"""`RemoteService`: the service of a supervised child on another node."""

import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from ..._core.kernel import Kernel
from ..._core.processes.process import Process
from ..._core.tables.child_slot import ChildSlot
from ..._core.verbs.common import check_priority, check_timeout
from ..._core.vocabulary.envelopes import Priority
from ..._core.vocabulary.errors import (
    CallTimeoutError,
    NotAllowedError,
    ServiceTimeoutError,
    TargetDownError,
)
from ..._core.vocabulary.ids import PID, Ref, ServiceName
from ..._core.vocabulary.reasons import NoNode
from ...service import Service
from ..errors import NodeBusyError

__all__ = ["RemoteService"]


class RemoteService(Service):
    """The address of a supervised child on another node. Messages and requests wait there while the
    child restarts. If that node is lost, calls raise ``TargetDownError``; with ``retry=True`` they
    wait for the node, too.
    """

    __slots__ = ("_address", "_wait_up")

    def __init__(
        self,
        kernel: Kernel,
        node: str,
        name: str,
        wait_up: Callable[[float | None], Awaitable[None]],
        process: Process | None = None,
    ) -> None:
        """``wait_up`` waits until the node can be reached, for so many seconds at most."""
        super().__init__(kernel, ChildSlot(name), process)
        self._wait_up = wait_up
        self._address: Any = ServiceName(name, node)

    def __repr__(self) -> str:
        return f"<Service {self.name!r} of {self._address.node!r}>"

    @property
    def pid(self) -> PID | None:
        """Always None: only the other node knows. Ask it with ``whereis``."""
        return None

    def send(self, message: object, *, priority: Priority = Priority.NORMAL) -> bool:
        """Send a message. True: it is on its way. It becomes a dead letter of the other node if the
        child does not come back, or as many messages wait for it as may. From any thread.

        Raises:
            NodeBusyError: too many bytes wait for the other node.
        """
        self._count_sent()
        return self._router.send(self._sender, self._address, message, check_priority(priority))

    async def send_wait(
        self, message: object, *, priority: Priority = Priority.NORMAL, timeout: float | None = 5.0
    ) -> bool:
        """Send a message, and wait until the mailbox of the child has taken it. False if the other
        node is lost. After a timeout the child may still get it.

        Raises:
            ServiceError: of kind ``"gone"``; the child does not come back.
            ServiceError: of kind ``"timeout"``; the child did not come back within ``timeout``
                seconds.
            ServiceError: of kind ``"busy"``; the waiting queue is full (``max_waiters``).
            MailboxFullError: the mailbox is full.
        """
        check_timeout(timeout)
        self._count_sent()
        chosen = check_priority(priority)
        try:
            return await self._router.send_wait(
                None, self._sender, self._address, message, chosen, timeout
            )
        except NodeBusyError as error:
            raise ServiceTimeoutError(self.name, message, timeout or 0.0) from error

    async def call(
        self,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
        retry: bool = False,
    ) -> Any:
        """As :meth:`Service.call`. If the other node is lost: ``TargetDownError`` with ``NoNode``,
        or another try after the node is back, with ``retry=True``.
        """
        check_timeout(timeout)
        deadline = math.inf if timeout is None else trio.current_time() + timeout
        to: Any = self._address._replace(is_repeatable=retry)
        left = timeout
        while True:
            self._count_sent()
            try:
                return await self._kernel.calls.call(
                    self._process, self._sender, to, request, left, priority
                )
            except TargetDownError as error:
                # The child may answer with a TargetDownError of a call of its own: that is its
                # answer, and not the loss of its node.
                if not retry or error.request is not request or not _is_lost(error):
                    raise
            try:
                left = None if timeout is None else max(0.0, deadline - trio.current_time())
                await self._wait_up(left)
            except CallTimeoutError as error:
                raise CallTimeoutError(to, request, timeout or 0.0) from error
            # The wait for the node has used a part of the time: the timeout is that of the call,
            # not of a try.
            left = None if timeout is None else max(0.0, deadline - trio.current_time())

    def call_from_thread(
        self, request: object, *, timeout: float | None = 5.0, priority: Priority = Priority.NORMAL
    ) -> Any:
        """Call the child and block this thread until it answers. Raises the same errors as
        :meth:`call`.
        """
        check_timeout(timeout)
        return self._kernel.calls.call_from_thread(
            None, self._sender, self._address, request, timeout, check_priority(priority)
        )

    def request(
        self,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> Ref:
        """As :meth:`Service.request`, for a service that a process got with
        ``self.service(name, node)``.
        """
        check_timeout(timeout)
        process = self._process
        if process is None:
            raise NotAllowedError(
                "only a process gets the answer to a request; write `await service.call(...)`, or "
                "`self.service(name, node).request(...)` in an actor"
            )
        run, chosen = self._router.bridge.run, check_priority(priority)
        return run(process.request, self._address, request, timeout, chosen).ref

    def _count_sent(self) -> None:
        if self._process is not None:
            self._process.count_sent()


def _is_lost(error: TargetDownError) -> bool:
    return isinstance(error.reason, NoNode)
