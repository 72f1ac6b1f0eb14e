"""The parts of the test kit that type checkers must understand; `make types` runs this, and nothing
else does.
"""

from dataclasses import dataclass
from typing import Any, assert_type

from ergo_py import Actor, MetaProcess, Node, Request
from ergo_py.testing import Alone, Probe, Tape, crashing, delaying, dropping


@dataclass(frozen=True)
class Tick:
    number: int


@dataclass(frozen=True)
class Total(Request[int]):
    pass


class Counter(Actor):
    def __init__(self, start: int) -> None:
        self.total = start


class Lines(MetaProcess):
    def __init__(self, path: str) -> None:
        self.path = path

    def start(self) -> None: ...


async def right_for_a_probe(node: Node) -> None:
    probe = await Probe.start(node, name="probe")
    assert_type(await probe.expect(Tick), Tick)
    assert_type(await probe.expect(Tick, timeout=2), Tick)
    assert_type(await probe.expect(Tick(1)), Tick)
    assert_type(await probe.expect(str), str)
    assert_type(await probe.fish(Tick), Tick)
    assert_type(await probe.call("other", Total()), int)
    assert_type((await probe.expect(Tick)).number, int)
    assert_type(await probe.do(lambda me: me.pid.number), int)
    any_message: Any = await probe.expect(lambda message: message.number == 1)
    assert_type(any_message, Any)


async def right_for_one_alone() -> None:
    alone = Alone(Counter, 5)
    assert_type(alone, Alone[Counter])
    assert_type(alone.behaviour.total, int)
    assert_type(await alone.call(Total()), int)


async def right_for_faults(node: Node) -> None:
    assert_type(crashing(Counter, on=3), type[Counter])
    assert_type(dropping(Counter, on=lambda message: message == 1), type[Counter])
    assert_type(delaying(Lines, 0.5), type[Lines])
    assert_type(Tape().recording(Counter), type[Counter])
    await node.spawn(crashing(Counter), 5)


def wrong() -> None:
    Alone(Counter, "five")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    crashing(int)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Tape().recording(Lines)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
