"""A cluster is upgraded node by node: two versions of a message travel in both directions."""

from dataclasses import dataclass
from typing import Any

from ergo_py import Why
from tests.actors import Recorder
from tests.network.pairs import make_network, until
from tests.network.test_nodes import Counter
from tests.support import running_node


@dataclass(frozen=True)
class OldOrder:
    """The first version."""

    __wire__ = "Order"
    item: str


@dataclass(frozen=True)
class NewOrder:
    """The second version has a further field."""

    __wire__ = "Order"
    item: str
    pieces: int = 1


@dataclass(frozen=True)
class Cancelled:
    """A type that only the second version knows."""

    item: str


async def test_two_versions_of_a_message_travel_in_both_directions(server: Any) -> None:
    old = make_network("nats", server.url, cluster="shop", types=[OldOrder])
    new = make_network("nats", server.url, cluster="shop", types=[NewOrder, Cancelled])
    got_by_old: list[Any] = []
    got_by_new: list[Any] = []
    async with (
        running_node("old@test", network=old) as one,
        running_node("new@test", network=new) as two,
    ):
        to_old = await one.spawn(Recorder, got_by_old)
        to_new = await two.spawn(Recorder, got_by_new)
        assert await two.send_wait(to_old, NewOrder("tea", 3))
        assert await one.send_wait(to_new, OldOrder("milk"))
        # Senders of a new type come last: a receiver that does not know it has a dead letter.
        assert not await two.send_wait(to_old, Cancelled("tea"))
        assert [letter.why for letter in one.dead_letters()] == [Why.UNREADABLE]

    assert got_by_old == [OldOrder("tea")]
    assert got_by_new == [NewOrder("milk", 1)]


async def test_a_restarted_node_of_the_next_version_is_reached_by_its_name(server: Any) -> None:
    """A rolling upgrade: the callers keep the name, and see the end of the old node."""
    network = make_network("nats", server.url, cluster="shop")
    async with running_node("caller@test", network=network) as caller:
        for _ in range(2):
            async with running_node("a@test", network=network) as a:
                pid = await a.spawn(Counter, name="counter")
                assert await caller.at("a@test").whereis("counter") == pid
            await until(lambda: caller.nodes() == [])
