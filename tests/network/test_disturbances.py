"""Frames of a `Memory` are lost, doubled, delayed and cut in a single direction."""

from typing import Any

import pytest
import trio

from ergo_py import BadInputError
from ergo_py.network import Memory
from ergo_py.network.carriers.disturbances import Disturbance


class Noting(Memory):
    """A network without nodes, which notes the frames that arrive, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived: list[tuple[float, str, str, bytes]] = []
        self._names.update(("a@test", "b@test", "c@test"))

    def _hand_over(self, sender: str, to: str, frame: bytes) -> None:
        self.arrived.append((trio.current_time(), sender, to, frame))

    def send(self, count: int, sender: str = "a@test", to: str = "b@test") -> list[bytes]:
        before = len(self.arrived)
        for number in range(count):
            self.carry(sender, to, b"%d" % number)
        return [frame for *_, frame in self.arrived[before:]]


async def test_a_cut_in_a_single_direction_leaves_frames_back(autojump_clock: Any) -> None:
    network = Noting()
    network.cut("a@test", "b@test", one_way=True)

    assert network.send(2) == []
    assert len(network.send(2, "b@test", "a@test")) == 2
    network.heal("a@test", "b@test")
    assert len(network.send(2)) == 2


async def test_a_share_of_the_frames_is_lost_or_doubled(autojump_clock: Any) -> None:
    network = Noting()
    lossy = network.disturb(lose=0.3, seed=1)
    assert 600 < len(network.send(1000)) < 800
    lossy.end()
    network.disturb(double=0.3, seed=1)
    assert 1200 < len(network.send(1000)) < 1400
    network.heal()

    assert len(network.send(1000)) == 1000


async def test_a_disturbance_of_a_direction_leaves_the_others(autojump_clock: Any) -> None:
    network = Noting()
    network.disturb("a@test", "b@test", lose=1.0)

    assert network.send(1) == []
    assert network.send(1, "a@test", "c@test") == [b"0"]
    assert network.send(1, "b@test", "a@test") == [b"0"]


async def test_disturbances_add_up_and_end_alone(autojump_clock: Any) -> None:
    network = Noting()
    first, second = network.disturb(delay=(1.0, 1.0)), network.disturb(delay=(2.0, 2.0))
    network.send(1)
    first.end()
    first.end()
    network.send(1)
    second.end()
    network.send(1)
    await trio.sleep(10)

    assert [at for at, *_ in network.arrived] == [0.0, 2.0, 3.0]


async def test_delayed_frames_overtake_each_other(autojump_clock: Any) -> None:
    network = Noting()
    network.disturb(delay=(0.0, 5.0), seed=3)
    network.send(20)
    await trio.sleep(10)

    frames = [int(frame) for *_, frame in network.arrived]
    assert sorted(frames) == [*range(20)]
    assert frames != [*range(20)]
    assert all(at <= 5.0 for at, *_ in network.arrived)


async def test_wrong_values_are_refused(autojump_clock: Any) -> None:
    network = Noting()

    with pytest.raises(BadInputError, match="lose"):
        network.disturb(lose=1.1)
    with pytest.raises(BadInputError, match="double"):
        network.disturb(double=-0.1)
    with pytest.raises(BadInputError, match="delay"):
        network.disturb(delay=(2.0, 1.0))
    with pytest.raises(BadInputError, match="x@test"):
        network.disturb("x@test")


def test_a_lost_frame_does_not_change_the_fate_of_the_next() -> None:
    lossy, other = (
        Disturbance(None, None, lose, 0.5, (0.0, 0.0), 7, lambda _: None) for lose in (0.9, 0.0)
    )

    assert [lossy.draw().is_doubled for _ in range(50)] == [
        other.draw().is_doubled for _ in range(50)
    ]


async def test_a_slow_store_carries_out_requests_that_were_given_up(autojump_clock: Any) -> None:
    network = Noting()
    store = network.store_of("a@test")
    network.slow_store("a@test", 2.0, seed=1)
    with trio.move_on_after(0.01) as scope:
        await store.put("key", b"value", 0)
    assert scope.cancelled_caught
    await trio.sleep(5)
    network.slow_store("a@test", 0.0)

    before = trio.current_time()
    entry = await store.get("key")
    assert entry is not None
    assert entry.value == b"value"
    assert trio.current_time() == before


async def test_a_store_that_is_too_slow_does_not_answer(autojump_clock: Any) -> None:
    from ergo_py.network import StoreError

    network = Noting()
    network.slow_store("a@test", 1000.0, seed=1)

    with pytest.raises(StoreError, match="does not answer"):
        await network.store_of("a@test").get("key")
