"""Worlds of the test kit: what a simulated second costs, idle and under calls, and a whole world;
beside the same nodes on a `VirtualClock`, and the same calls by hand.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import msgspec
import trio
from trio.testing import MockClock

from ergo_py import PID, Actor, Caller, Node, open_node
from ergo_py.network import Memory
from ergo_py.testing import VirtualClock, World
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.world import run_world

from ..clocks import Stopwatch
from ..harness import Case, Figures, Goal, Line

__all__ = ["CASES"]

_NODES = 5


class Echo(Actor):
    """Answers with the request."""

    def handle_call(self, request: object, caller: Caller) -> object:
        return request


async def _start(node: Node) -> None:
    await node.spawn(Echo, name="echo")


async def _spend(watch: Stopwatch, nodes: list[Node], calls: int, seconds: int) -> None:
    """Connect all nodes with each other, and let so many simulated seconds pass. In each of them so
    many calls are made, by all nodes together.
    """
    targets = [node.whereis("echo") for node in nodes]

    async def client(node: Node, target: PID | None) -> None:
        assert target is not None
        for number in range(seconds * calls // len(nodes)):
            await node.call(target, number, timeout=5.0)
            await trio.sleep(len(nodes) / calls)

    for node in nodes:
        for target in targets:
            assert target is not None
            await node.call(target, "hello")
    with watch:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, seconds)
            for node, target in zip(nodes, targets[1:] + targets[:1], strict=True):
                nursery.start_soon(client, node, target)


def _run(world: World, test: Callable[[World], Awaitable[object]]) -> None:
    failure = run_world(world, test)
    if failure is not None:
        raise failure


def _in_world(calls: int, size: int) -> Figures:
    watch = Stopwatch()

    async def test(world: World) -> None:
        nodes = [each.node for each in await world.start(_NODES, _start)]
        await _spend(watch, nodes, calls, size)

    _run(World(Plan(1)), test)
    return watch.each(size)


def _on_virtual_clock(calls: int, size: int) -> Figures:
    watch = Stopwatch()

    async def test() -> None:
        network = Memory()
        async with AsyncExitStack() as stack:
            nodes = []
            for number in range(_NODES):
                node = open_node(
                    f"n{number}@bench", network=network, watchdog=None, log_output="none"
                )
                nodes.append(await stack.enter_async_context(node))
                await _start(nodes[-1])
            await _spend(watch, nodes, calls, size)

    trio.run(test, clock=VirtualClock())
    return watch.each(size)


class _Wire:
    """The least that carries calls: frames to a node, and the events of its callers."""

    def __init__(self) -> None:
        self.frames, self.get = trio.open_memory_channel[bytes](1000)
        self.answers = dict[int, trio.Event]()


async def _serve_by_hand(wires: list[_Wire], own: int) -> None:
    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode
    async for frame in wires[own].get:
        caller, number, _ = decode(frame)
        if caller == own:
            wires[own].answers.pop(number).set()
        else:
            wires[caller].frames.send_nowait(encode((caller, number, number)))


def _by_hand(calls: int, size: int) -> Figures:
    """Tasks of trio that call each other by frames, each call with its limit of time: nothing is
    sent again, nobody is watched, nothing can be cut, and no history is kept.
    """
    watch, encode = Stopwatch(), msgspec.msgpack.encode

    async def client(wires: list[_Wire], own: int) -> None:
        to = wires[(own + 1) % _NODES].frames
        for number in range(size * calls // _NODES):
            wires[own].answers[number] = answered = trio.Event()
            to.send_nowait(encode((own, number, None)))
            with trio.fail_after(5.0):
                await answered.wait()
            await trio.sleep(_NODES / calls)

    async def test() -> None:
        wires = [_Wire() for _ in range(_NODES)]
        async with trio.open_nursery() as servers:
            for own in range(_NODES):
                servers.start_soon(_serve_by_hand, wires, own)
            with watch:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep, size)
                    for own in range(_NODES):
                        nursery.start_soon(client, wires, own)
            servers.cancel_scope.cancel()

    trio.run(test, clock=MockClock(autojump_threshold=0))
    return watch.each(size)


def _whole(size: int) -> Figures:
    """Worlds of three nodes that are cut now and then, of 30 simulated seconds each."""

    async def test(world: World) -> None:
        await world.start(3, _start)
        world.faults(cut=0.2, delay=0.2)
        await trio.sleep(30)
        await world.heal()

    with Stopwatch() as watch:
        for seed in range(size):
            _run(World(Plan(seed)), test)
    return watch.each(size)


def _case(calls: int, size: int, most: float) -> Case:
    what = f"{calls} calls a second" if calls else "idle"
    return Case(
        name=f"world, {what}",
        about=f"each simulated second of {_NODES} nodes that are connected with each other, {what}",
        unit="µs",
        size=size,
        least=1,
        variants={
            "ergo": partial(_in_world, calls),
            "VirtualClock": partial(_on_virtual_clock, calls),
            **({"by hand": partial(_by_hand, calls)} if calls else {}),
        },
        lines=[Line("a simulated second", "ergo", goals=(Goal("simulation", most),))],
        rounds=2,
        reference="VirtualClock",
    )


CASES = [
    _case(0, 200, 1_000.0),
    _case(500, 4, 1e6 / 15),
    Case(
        name="world, whole",
        about="open 3 nodes, cut them for 30 simulated seconds, close them",
        unit="µs",
        size=20,
        least=1,
        variants={"ergo": _whole},
        lines=[Line("a world", "ergo", goals=(Goal("simulation", 20_000.0),))],
        rounds=2,
        reference="ergo",
    ),
]
