"""The lines that type checkers must accept, and the lines that they must refuse, of the verbs of
`ergo_py.aio` and `ergo_py.blocking`, which are derived from those of `Node`. Never run, only
checked: see spawn_and_call.py.
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, assert_type

from ergo_py import (
    PID,
    Actor,
    Alias,
    ChildSpec,
    Group,
    Key,
    Node,
    Published,
    Reason,
    Registry,
    Request,
)
from ergo_py.aio import AsyncioNode
from ergo_py.blocking import BlockingNode
from ergo_py.blocking.tasks import BlockingTask
from ergo_py.entities import Entity
from ergo_py.facades.handles import (
    AsyncioEntity,
    AsyncioGroup,
    AsyncioPool,
    AsyncioRegistry,
    AsyncioService,
    AsyncioSupervisor,
    AsyncioTimer,
    BlockingEntity,
    BlockingPool,
    BlockingService,
    BlockingSupervisor,
)
from ergo_py.facades.streams import AsyncioStream, BlockingEvents, BlockingStream
from ergo_py.groups import Entry
from ergo_py.info import NodeInfo, Timer
from ergo_py.supervision.handle import SupervisorHandle
from ergo_py.supervision.tree import TreeNode
from ergo_py.tasks import FailedItem


@dataclass(frozen=True)
class Total(Request[int]):
    pass


class Counter(Actor):
    def __init__(self, start: int) -> None:
        self.total = start


async def fetch(url: str) -> bytes:
    return url.encode()


async def ask_it(node: Node) -> int:
    return await node.call("counter", Total())


def later(node: Node) -> Awaitable[int]:
    return ask_it(node)


def right_without_async(node: BlockingNode, pid: PID, alias: Alias) -> None:
    assert_type(node.name, str)
    assert_type(node.env, Mapping[str, object])
    assert_type(node.spawn(Counter, 5, name="counter", mailbox_size=10), PID[Counter])
    assert_type(node.send(pid, 1), bool)
    assert_type(node.send_wait(pid, 1, timeout=2), bool)
    assert_type(node.send_after(1.0, pid, "tick"), Timer)
    assert_type(node.call(pid, Total(), timeout=None), int)
    assert_type(node.call(pid, "total"), Any)
    assert_type(node.ask(pid, Total()), Future[int])
    assert_type(node.wait_ended(pid), Reason)
    supervisor = node.supervise([ChildSpec("a", Counter, 1)], intensity=3)
    assert_type(supervisor, BlockingSupervisor)
    assert_type(supervisor.start_child("a", timeout=1), PID)
    assert_type(supervisor.service("a"), BlockingService)
    assert_type(node.service("a").call(Total(), retry=True), int)
    assert_type(node.pool("workers"), BlockingPool)
    assert_type(node.pool("workers").resize(3), int)
    assert_type(node.registry("users"), Registry)
    assert_type(node.group("workers"), Group)
    assert_type(node.tree(), TreeNode)
    assert_type(node.info(), NodeInfo)
    assert_type(node.at("b@site").ping(), float)
    assert_type(node.inspect_meta(alias, "state"), dict[str, str])
    assert_type(node.events(), dict[str, int])
    assert_type(node.events("prices", max_waiting=5), BlockingEvents)
    assert_type(node.run_task(fetch, "url"), BlockingTask[bytes])
    assert_type(
        node.map_stream(fetch, ["url"], on_failure=FailedItem),
        BlockingStream[bytes | FailedItem[str]],
    )
    assert_type(node.run(lambda inner: inner.tree()), TreeNode)
    assert_type(node.run(ask_it), int)
    assert_type(node.run(lambda inner: inner.supervise([])), SupervisorHandle)
    assert_type(node.run(lambda inner: inner.run_task(fetch, "url")), bytes)
    assert_type(node.run(lambda inner: inner.group("workers")), Group)
    assert_type(node.run(lambda inner: inner.stop_soon()), None)
    assert_type(node.run(later), Any)


async def right_on_asyncio(node: AsyncioNode, pid: PID, alias: Alias) -> None:
    assert_type(node.name, str)
    begun: Coroutine[Any, Any, PID[Counter]] = node.spawn(Counter, 5)
    assert_type(await begun, PID[Counter])
    assert_type(await node.spawn(Counter, 5, name="counter", mailbox_size=10), PID[Counter])
    assert_type(node.send(pid, 1), bool)
    assert_type(await node.send_wait(pid, 1, timeout=2), bool)
    assert_type(await node.send_after(1.0, pid, "tick"), AsyncioTimer)
    assert_type(await (await node.send_every(1.0, pid, "tick")).cancel(), bool)
    assert_type(await node.call(pid, Total(), timeout=None), int)
    assert_type(await node.call(pid, "total"), Any)
    assert_type(await node.wait_ended(pid), Reason)
    supervisor = await node.supervise([ChildSpec("a", Counter, 1)], intensity=3)
    assert_type(supervisor, AsyncioSupervisor)
    assert_type(await supervisor.start_child("a", timeout=1), PID)
    assert_type(await supervisor.service("a"), AsyncioService)
    assert_type(await (await node.service("a")).call(Total(), retry=True), int)
    assert_type(await node.pool("workers"), AsyncioPool)
    assert_type(await (await node.pool("workers")).resize(3), int)
    users = await node.registry("users", unique=True)
    assert_type(users, AsyncioRegistry)
    assert_type(await users.lookup("ada"), list[Entry])
    assert_type(users.address("ada"), Key)
    workers = await node.group("workers")
    assert_type(workers, AsyncioGroup)
    assert_type(await workers.members(), list[PID])
    assert_type(await workers.broadcast("supper", sender=pid), int)
    assert_type(await node.tree(), TreeNode)
    assert_type(await node.info(), NodeInfo)
    assert_type(await node.at("b@site").ping(), float)
    assert_type(await node.inspect_meta(alias, "state"), dict[str, str])
    assert_type(await node.events(), dict[str, int])
    async for event in await node.events("prices", max_waiting=5):
        assert_type(event, Published)
    task: asyncio.Task[bytes] = node.run_task(fetch, "url")
    assert_type(await task, bytes)
    assert_type(await node.run_task(len, "abc"), int)
    assert_type(
        node.map_stream(fetch, ["url"], on_failure=FailedItem),
        AsyncioStream[bytes | FailedItem[str]],
    )
    assert_type(await node.run(lambda inner: inner.tree()), TreeNode)
    assert_type(await node.run(ask_it), int)
    assert_type(await node.run(lambda inner: inner.supervise([])), SupervisorHandle)
    assert_type(await node.run(lambda inner: inner.run_task(fetch, "url")), bytes)
    assert_type(await node.run(later), Any)


def wrong_without_async(node: BlockingNode, pid: PID) -> None:
    node.spawn(Counter, "five")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.spawn(Counter, 5, colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    node.send(5, "message")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.send_after("soon", pid, "tick")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.call(pid, Total()).upper()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    node.call(pid, Total(), timeout="soon")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    node.supervise(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.supervise([], intensity="often")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.supervise([]).start_child(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.inspect_meta("name")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.open_topic("prices", buffer="long")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.run(5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    node.supervize([])  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


async def wrong_on_asyncio(node: AsyncioNode, pid: PID) -> None:
    await node.spawn(Counter, "five")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await node.spawn(Counter, 5, colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    node.spawn(Counter, 5)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    node.send(5, "message")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.tree()  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    node.call(pid, Total())  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    await node.send_after("soon", pid, "tick")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    (await node.call(pid, Total())).upper()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    await node.call(pid, Total(), timeout="soon")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await node.supervise(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await node.supervise([], intensity="often")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.supervise([]).start_child("a")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    await (await node.supervise([])).start_child(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await (await node.group("workers")).join(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await node.run(5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await node.supervize([])  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


class Meter(Entity[int]):
    def handle_message(self, message: int, sender: object) -> None:
        self.state += message


@dataclass(frozen=True)
class Reading(Request[int, Meter]):
    pass


class Lamp(Entity[bool]):
    pass


def entities(node: BlockingNode) -> None:
    meter, lamp = node.entity(Meter, "a"), node.entity(Lamp, "a")
    assert_type(meter, BlockingEntity[Meter])
    assert_type(meter.call(Reading(), once="1"), int)
    meter.send(1)
    assert_type(meter.key, str)
    lamp.call(Reading())  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    meter.call(1, wrong=2)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


async def awaited_entities(node: AsyncioNode) -> None:
    meter, lamp = await node.entity(Meter, "a"), await node.entity(Lamp, "a")
    assert_type(meter, AsyncioEntity[Meter])
    assert_type(await meter.call(Reading(), fresh=True), int)
    meter.send(1)
    assert_type(meter.name, str)
    await lamp.call(Reading())  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
