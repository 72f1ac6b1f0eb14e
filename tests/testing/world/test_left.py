"""A world fails if its nodes leave something behind, or if its tasks run and no time passes."""

import gc
import time
from typing import Any

import pytest
import trio

from ergo_py import Actor, Caller, Threads
from ergo_py.meta.sockets.socket_source import connect, listen
from ergo_py.testing import World
from ergo_py.testing.leaks import LeakError
from ergo_py.testing.world.clock import EndlessWaitError, LivelockError, StandstillError
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.world import run_world
from tests.support import replace_private


def run(test: Any, plan: str = "seed=1") -> World:
    world = World(Plan.read(plan), is_drawn=False)
    failure = run_world(world, test)
    if failure is not None:
        raise failure
    return world


class Stubborn(Actor):
    """Does not return from its thread."""

    def handle_call(self, request: Any, caller: Caller) -> Any:
        time.sleep(1_000_000.0)


def test_a_thread_that_outlives_its_node_is_found() -> None:
    async def test(world: World) -> None:
        (a,) = await world.start(1)
        pid = await a.run(lambda node: node.spawn(Stubborn, dispatcher=Threads()))
        a.node.send(pid, "x")
        with pytest.raises(Exception, match="did not answer"):
            await a.call(pid, "x")

    with pytest.raises(LeakError, match="thread process-1 of a@world is left"):
        run(test)


def test_sockets_that_outlive_their_nodes_are_found() -> None:
    left: list[Any] = []

    async def refuse() -> Any:
        raise AssertionError

    async def test(world: World) -> None:
        (a,) = await world.start(1)
        left.append(await a.run(lambda _: listen("/run/left", 1, refuse)))
        left.append(await a.run(lambda _: connect("/run/left", 1, refuse)))

    with pytest.raises(LeakError) as raised:
        run(test)
    for sock in left:
        sock.close()

    assert "a socket of a@world that listens at /run/left is left" in raised.value.left
    assert "a socket of a@world to /run/left is left" in raised.value.left


def test_a_failure_of_the_test_comes_before_a_leak() -> None:
    async def test(world: World) -> None:
        (a,) = await world.start(1)
        pid = await a.run(lambda node: node.spawn(Stubborn, dispatcher=Threads()))
        with trio.move_on_after(1):
            await a.call(pid, "x")
        raise LookupError

    with pytest.raises(LookupError):
        run(test)


def test_tasks_that_run_without_time_end_the_world_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_private(monkeypatch, "passes of a world without time", 500)

    async def spin_for_ever() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    async def test(world: World) -> None:
        await trio.sleep(1)
        await spin_for_ever()

    with pytest.raises(LivelockError, match="spin_for_ever") as raised:
        run(test)

    assert isinstance(raised.value, StandstillError)
    assert "test_left.py" in raised.value.tasks[0]


class Bells(Actor):
    """Rings each bell, so many seconds after the one before."""

    def __init__(self, bells: list[trio.Event], seconds: float) -> None:
        self.bells, self.seconds = iter(bells), seconds

    def init(self) -> None:
        self.send_after(self.seconds, self.pid, next(self.bells))

    def handle_message(self, message: trio.Event, sender: Any) -> None:
        message.set()
        bell = next(self.bells, None)
        if bell is not None:
            self.send_after(self.seconds, self.pid, bell)


async def connected(world: World) -> None:
    a, b = await world.start(2)
    await a.run(lambda node: node.at(b.name).ping())


@pytest.fixture
def early_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_private(monkeypatch, "seconds between checks of the test of a world", 60.0)
    replace_private(monkeypatch, "jumps between checks of the test of a world", 30)


@pytest.mark.usefixtures("early_checks")
@pytest.mark.parametrize("is_shielded", [False, True])
def test_a_test_that_waits_without_end_while_its_nodes_run_on_fails(is_shielded: bool) -> None:
    async def wait_for_nothing() -> None:
        with trio.CancelScope(shield=is_shielded):
            await trio.Event().wait()

    async def test(world: World) -> None:
        await connected(world)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_nothing)

    with pytest.raises(EndlessWaitError, match=r"fail_after(.|\n)*in wait_for_nothing") as raised:
        run(test)

    assert isinstance(raised.value, StandstillError)
    assert ["test_left.py" in task for task in raised.value.tasks] == [True, True]


@pytest.mark.usefixtures("early_checks")
def test_a_long_sleep_of_a_test_is_no_endless_wait() -> None:
    async def test(world: World) -> None:
        await connected(world)
        await trio.sleep(600)

    run(test)


@pytest.mark.usefixtures("early_checks")
def test_a_test_that_goes_on_now_and_then_does_not_wait_without_end() -> None:
    async def test(world: World) -> None:
        await connected(world)
        bells = [trio.Event() for _ in range(15)]
        await world.nodes["a@world"].run(lambda node: node.spawn(Bells, bells, 50.0))
        for bell in bells:
            await bell.wait()

    run(test)


@pytest.mark.usefixtures("early_checks")
def test_a_test_may_wait_for_a_few_late_timers() -> None:
    async def test(world: World) -> None:
        [a] = await world.start(1)
        bells = [trio.Event() for _ in range(10)]
        await a.run(lambda node: node.spawn(Bells, bells, 86_400.0))
        await bells[-1].wait()

    run(test)


def test_many_passes_with_time_between_them_are_no_livelock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_private(monkeypatch, "passes of a world without time", 500)

    async def test(world: World) -> None:
        for _ in range(2_000):
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            await trio.sleep(0.001)

    run(test)


def test_finalizers_run_at_the_same_step_beside_older_garbage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_private(monkeypatch, "jumps between collections of a world", 1_000)

    class Cycle:
        def __init__(self, note: Any) -> None:
            self.me = self
            self.note = note

        def __del__(self) -> None:
            self.note("collected")

    async def test(world: World) -> None:
        assert not gc.isenabled()
        for _ in range(1_500):
            Cycle(world.note)
            await trio.sleep(0.01)

    gc.collect()
    first = run(test)
    rubbish = [[] for _ in range(50_000)]  # type: ignore[var-annotated]
    second = run(test)

    assert len(rubbish) == 50_000
    assert gc.isenabled()
    assert second.history.digest == first.history.digest
    assert len(first.history.events) >= 999
