"""The handles of a node for both kinds of code: supervisors, pools, services, groups, registries
and timers.
"""

import asyncio
from typing import Any

import pytest

from ergo_py import Actor, Caller, ChildSpec, Pool, PoolSpec
from ergo_py._core.vocabulary.errors import ChildUnknownError, RelationUnknownError
from ergo_py.aio import AsyncioNode, open_node
from ergo_py.blocking import open_node as open_blocking_node
from ergo_py.errors import KeyTakenError


class Counter(Actor):
    def __init__(self, total: int = 0) -> None:
        self.total = total

    def handle_message(self, message: Any, sender: Any) -> None:
        self.total += 1

    def handle_call(self, request: Any, caller: Caller) -> Any:
        return self.total


def on_asyncio(test: Any) -> Any:
    """Run a test on asyncio's loop, with a node."""

    def run() -> None:
        async def main() -> None:
            async with asyncio.timeout(60):
                async with open_node("aio@localhost", log_output="none", watchdog=None) as node:
                    await test(node)

        asyncio.run(main(), debug=True)

    run.__name__ = test.__name__
    return run


@on_asyncio
async def test_asyncio_code_uses_a_supervisor(node: AsyncioNode) -> None:
    supervisor = await node.supervise([ChildSpec("first", Counter, 1)], name="root")
    assert supervisor.pid == await node.whereis("root")
    second = await supervisor.add_child(ChildSpec("second", Counter, 2))
    assert [child.name for child in await supervisor.children()] == ["first", "second"]
    assert (await supervisor.count()).running == 2
    assert await (await supervisor.service("second")).call("total") == 2
    assert await supervisor.restart_child("second") != second
    assert await supervisor.stop_child("second")
    await supervisor.remove_child("second")
    same = await node.supervisor("root")
    assert [child.name for child in await same.children()] == ["first"]
    with pytest.raises(ChildUnknownError):
        await same.start_child("second")
    assert repr(same) == "<asyncio <SupervisorHandle root>>"
    with pytest.raises(AttributeError, match=r"AsyncioSupervisor has no 'childs'"):
        _ = same.childs  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


@on_asyncio
async def test_asyncio_code_resizes_a_pool(node: AsyncioNode) -> None:
    await node.spawn(Pool, PoolSpec(Counter, size=2), name="pool")
    pool = await node.pool("pool")
    assert await pool.resize(3) == 1
    assert len(await pool.workers()) == 3
    assert len(await pool.remove_workers(2)) == 2


def test_synchronous_code_resizes_a_pool() -> None:
    with open_blocking_node(log_output="none", watchdog=None) as node:
        node.spawn(Pool, PoolSpec(Counter, size=2), name="pool")
        pool = node.pool("pool")

        assert pool.resize(3) == 1
        assert len(pool.workers()) == 3
        assert pool.count().running == 3


@on_asyncio
async def test_asyncio_code_uses_groups_and_registries(node: AsyncioNode) -> None:
    first, second = await node.spawn(Counter), await node.spawn(Counter)
    workers = await node.group("workers")
    assert await workers.join(first)
    assert not await workers.join(first)
    assert await workers.monitor(second) == [first]
    assert await workers.broadcast("hello") == 1
    assert await workers.leave(first)
    await workers.demonitor(second)
    with pytest.raises(RelationUnknownError):
        await workers.demonitor(second)
    assert (workers.name, await workers.members(), await node.groups()) == ("workers", [], [])

    users = await node.registry("users")
    await users.register("ada", first, value=1)
    with pytest.raises(KeyTakenError):
        await users.register("ada", second)
    assert await users.whereis("ada") == first
    assert [entry.value for entry in await users.lookup("ada")] == [1]
    assert await node.call(users.address("ada"), "total") == 1
    assert await users.keys() == ["ada"]
    await users.unregister("ada")
    assert (users.name, users.unique, await users.entries()) == ("users", True, [])
    assert await node.registries() == ["users"]


@on_asyncio
async def test_asyncio_code_cancels_a_timer(node: AsyncioNode) -> None:
    counter = await node.spawn(Counter)
    timer = await node.send_after(3600, counter, "tick")
    assert timer.active
    assert await timer.cancel()
    assert not timer.active
    assert not await timer.cancel()


@on_asyncio
async def test_a_forgotten_await_of_a_handle_names_the_handle(node: AsyncioNode) -> None:
    workers = await node.group("workers")
    call = workers.members()
    assert repr(call) == "<group.members(…) has not begun: write `await group.members(…)`>"
    assert await call == []
