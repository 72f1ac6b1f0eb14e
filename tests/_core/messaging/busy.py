"""A receiver that is busy for as long as a test wants."""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    PID,
    Caller,
    Node,
    Priority,
)
from tests.actors import Puppet

__all__ = [
    "Busy",
    "LANES",
    "busy",
]


LANES = pytest.mark.parametrize("priority", list(Priority), ids=["main", "system", "urgent"])


class Busy(Puppet):
    """Handles nothing until ``gate`` is open; then keeps its messages, and answers a request with
    the request.
    """

    def __init__(self, gate: trio.Event, heard: list[Any] | None = None) -> None:
        super().__init__(heard)
        self.gate = gate

    async def handle_message(self, message: Any, sender: Any) -> None:
        if message is None:
            await self.gate.wait()
        else:
            await super().handle_message(message, sender)

    async def handle_call(self, request: Any, caller: Caller) -> object:
        self.heard.append(request)
        return request


async def busy(node: Node, gate: trio.Event, heard: list[Any] | None = None, **options: Any) -> PID:
    """A process that is busy with its first message, so that everything sent to it queues up until
    ``gate`` is opened.
    """
    pid = await node.spawn(Busy, gate, heard, **options)
    node.send(pid, None)
    await wait_all_tasks_blocked()
    return pid
