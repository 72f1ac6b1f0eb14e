"""Processes with callbacks that run in threads."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from ergo_py import Actor, Node, Threads
from ergo_py.errors import InitTimeoutError
from tests.support import let_init_time_out, router_of

__all__ = [
    "forever",
    "run_out_of_time",
]


async def run_out_of_time(
    node: Node, behaviour: type[Actor], begun: Callable[[], Awaitable[None]]
) -> None:
    """Spawn a process with an init that does not return, and let its time be over once it has
    begun: a thread comes when it likes.
    """

    async def spawn() -> None:
        with pytest.raises(InitTimeoutError):
            await node.spawn(behaviour, dispatcher=Threads(), init_timeout=1000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(spawn)
        await begun()
        *_, process = router_of(node).processes.values()
        let_init_time_out(process)


async def forever() -> None:
    await trio.sleep_forever()
