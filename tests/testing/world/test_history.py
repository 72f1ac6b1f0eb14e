"""The story of a failing world fits on a screen, and its digest counts all that has happened."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from ergo_py import Actor, Node
from ergo_py.meta import UDP, UDPClient, UDPServer
from ergo_py.testing import World
from ergo_py.testing.world.history import History
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.world import run_world
from tests.testing.world.machine.connected import CONNECTS, Client
from tests.testing.world.machine.connected import start as start_servers


def story_of(notes: int) -> list[str]:
    async def test(world: World) -> None:
        await world.start(2)
        world.faults()
        for number in range(notes):
            await trio.sleep(1)
            world.note(f"number {number}")
        raise LookupError("the end")

    world = World(Plan.read("seed=1; 2 cut a@world,b@world 3"), is_drawn=False)
    failure = run_world(world, test)
    assert failure is not None
    return world.history.tell(failure).splitlines()


def test_a_short_story_is_complete_and_in_order() -> None:
    lines = story_of(5)

    assert [line.split("number ")[1] for line in lines if "number" in line] == [*"01234"]
    assert lines[-1].endswith("LookupError: the end")
    assert sum("!" in line for line in lines) == 1


def test_a_long_story_keeps_its_faults_and_its_end() -> None:
    lines = story_of(500)

    assert len(lines) <= 42
    assert any("no frame passes" in line for line in lines)
    assert "number 499" in lines[-2]
    assert any("more events" in line for line in lines)


def digest_of(*passes: int) -> str:
    history = History(lambda: 1.0)
    for tasks in passes:
        history.mix_pass(tasks)
    return history.digest


def test_each_pass_of_the_loop_counts_for_the_digest() -> None:
    many = [1] * 10_000  # more than wait for the digest

    assert digest_of(1, 2) == digest_of(1, 2) != digest_of(2, 1)
    assert len({digest_of(*many), digest_of(*many[1:], 2), digest_of(2, *many[1:])}) == 3


def test_a_look_at_the_digest_does_not_change_it() -> None:
    history = History(lambda: 1.0)

    history.mix_pass(1)
    first = history.digest

    assert history.digest == first


class Silent(Actor):
    """Takes each message, also from a UDP server of its own."""

    async def init(self) -> None:
        await self.spawn_meta(UDPServer(port=9000))

    def handle_message(self, message: Any, sender: Any) -> None:
        pass


class Caster(Silent):
    """Sends a datagram."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    async def init(self) -> None:
        client = await self.spawn_meta(UDPClient("localhost", 9000))
        self.send(client, UDP.Send(self.content))


async def start_silent(node: Node) -> None:
    if node.name == "a@world":
        await node.spawn(Silent, name="silent")


async def send_frame(a: Node, b: Node, content: bytes) -> None:
    target = a.whereis("silent")
    assert target is not None
    b.send(target, content)


async def send_bytes(_a: Node, b: Node, content: bytes) -> None:
    await b.spawn(Client, CONNECTS[0], [content])


async def send_datagram(_a: Node, b: Node, content: bytes) -> None:
    await b.spawn(Caster, content)


@pytest.mark.parametrize(
    "start, send",
    [
        (start_silent, send_frame),
        (start_servers, send_bytes),
        (start_silent, send_datagram),
    ],
    ids=["frame", "bytes", "datagram"],
)
def test_the_content_of_all_that_travels_counts_for_the_digest(
    start: Callable[[Node], Any], send: Callable[[Node, Node, bytes], Any]
) -> None:
    def digest_with(content: bytes) -> str:
        async def test(world: World) -> None:
            a, b = await world.start(2, start)
            await send(a.node, b.node, content)
            await trio.sleep(1)

        world = World(Plan(1))
        assert run_world(world, test) is None
        return world.history.digest

    assert digest_with(b"one\n") == digest_with(b"one\n") != digest_with(b"two\n")
