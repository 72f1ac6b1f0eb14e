"""A world runs whole nodes, applies the faults of its plan, and repeats its history."""

import random
from math import inf
from typing import Any

import pytest
import trio

from benchmarks.digests import EXPLORED, SMALL
from ergo_py import Actor, BadInputError, Caller, NodeStoppedError, NotAllowedError, TargetDownError
from ergo_py.testing import World
from ergo_py.testing.world.plan import Plan, PlanError
from ergo_py.testing.world.simulation import Simulation
from ergo_py.testing.world.world import CheckError, run_world
from tests.support import THOROUGH
from tests.testing.world import singletons
from tests.testing.world.programs import digests_of_programs


class Echo(Actor):
    """Answers with the request."""

    def handle_call(self, request: Any, caller: Caller) -> Any:
        return request


async def start_echo(node: Any) -> None:
    await node.spawn(Echo, name="echo")


def run(test: Any, plan: Plan | None = None, *, is_drawn: bool = False) -> World:
    world = World(plan or Plan(0), is_drawn=is_drawn)
    failure = run_world(world, test)
    if failure is not None:
        raise failure
    return world


def test_a_seed_repeats_its_history_in_other_programs() -> None:
    """For any salt of hashes, and with or without the C extension: the histories of worlds with
    singletons, with sockets and with threads, and of nodes without a world.
    """
    seeds = range(200 if THOROUGH else 2)

    digests = digests_of_programs(SMALL, seeds)

    assert digests[0] == digests[1]
    assert len(set(digests[0])) == len(SMALL) * len(seeds)


def test_the_worlds_that_check_promises_repeat_their_histories_in_other_programs() -> None:
    """A timer of an entity had the time of the system: only these worlds have such timers."""
    seeds = range(20 if THOROUGH else 1)

    digests = digests_of_programs(EXPLORED, seeds)

    assert digests[0] == digests[1]
    assert len(set(digests[0])) == len(EXPLORED) * len(seeds)


def test_a_plan_repeats_the_history_of_its_seed() -> None:
    drawn = run(singletons.quiet, Plan(5), is_drawn=True)
    again = run(singletons.quiet, Plan.read(str(drawn.plan)))

    assert drawn.plan.faults
    assert again.history.digest == drawn.history.digest
    assert again.history.events == drawn.history.events


def test_another_order_of_tasks_is_another_history() -> None:
    one = run(singletons.quiet, Plan(1))
    other = run(singletons.quiet, Plan(1, is_shuffled=False))

    assert one.history.digest != other.history.digest


def test_a_cut_loses_calls_until_it_ends() -> None:
    async def test(world: World) -> None:
        a, b = await world.start(2, start_echo)
        target = (await b.wait_up()).whereis("echo")
        assert await a.call(target, 1) == 1
        world.faults()
        await trio.sleep(1.5)
        began = trio.current_time()
        assert await a.call(target, 2, timeout=20) == 2
        assert trio.current_time() - began > 1.0
        await world.heal()

    world = run(test, Plan.read("seed=1; 1 cut a@world,b@world 3"))

    kinds = [event.kind for event in world.history.events if event.kind in ("fault", "answer")]
    assert kinds == ["answer", "fault", "answer"]


def test_a_stopped_program_answers_after_it_continues() -> None:
    async def test(world: World) -> None:
        a, b = await world.start(2, start_echo)
        target = (await b.wait_up()).whereis("echo")
        world.faults()
        await trio.sleep(1.5)
        assert world.is_paused("b@world")
        assert await a.call(target, 2, timeout=20) == 2
        assert trio.current_time() == 4.0

    world = run(test, Plan.read("seed=1; 1 pause b@world 3"))

    assert world.history.pauses == [("b@world", 1.0, 4.0)]


def test_clients_on_a_stopped_program_wait() -> None:
    async def test(world: World) -> None:
        a, b = await world.start(2, start_echo)
        target = (await b.wait_up()).whereis("echo")
        world.faults()
        await trio.sleep(1.5)
        assert await a.call(target, 2) == 2
        assert trio.current_time() == 4.0

    run(test, Plan.read("seed=1; 1 pause a@world 3"))


def test_a_fault_kills_a_process_of_the_chosen_names() -> None:
    async def start(node: Any) -> None:
        await node.spawn(Echo, name="first")
        await node.spawn(Echo, name="second")
        await node.spawn(Echo)

    async def test(world: World) -> None:
        await world.start(1, start)
        world.faults(victims=["second", "Echo"])
        await trio.sleep(5)
        ended = [life.name for life in world.history.lifetimes if life.ended < 5]
        assert ended == ["second", "Echo"]

    run(
        test,
        Plan.read("seed=0; 1 kill a@world 0.1 0; 2 kill a@world 0.1 0.9; 3 kill a@world 0.1 0"),
    )


def test_a_disk_fails_and_is_slow_until_the_faults_end() -> None:
    async def test(world: World) -> None:
        (a,) = await world.start(1)
        file = a.disk.file("journal")
        world.faults()
        await trio.sleep(1.5)
        with pytest.raises(OSError, match="fails"):
            file.write(b"lost")
        began = trio.current_time()
        await a.disk.wait()
        assert trio.current_time() > began
        await world.heal()
        file.write(b"kept")
        file.sync()
        began = trio.current_time()
        await a.disk.wait()
        assert (file.read(), trio.current_time()) == (b"kept", began)

    run(test, Plan.read("seed=0; 1 fail_disk a@world 9 1; 1 slow_disk a@world 9 1"))


def test_a_client_that_runs_a_function_ends_with_the_crash_of_its_node() -> None:
    async def test(world: World) -> None:
        (a,) = await world.start(1)
        world.faults()
        assert await a.run(lambda node: node.call("nobody", 1, timeout=0.5)) is None

    async def wait(_node: Any) -> None:
        await trio.sleep(9)

    async def crashed(world: World) -> None:
        (a,) = await world.start(1)
        world.faults()
        with pytest.raises(NodeStoppedError, match="crashed"):
            await a.run(wait)
        assert trio.current_time() == 1.0

    with pytest.raises(TargetDownError):
        run(test)
    run(crashed, Plan.read("seed=0; 1 crash a@world 1"))


def test_heal_ends_faults_early() -> None:
    async def test(world: World) -> None:
        a, b = await world.start(2, start_echo)
        target = (await b.wait_up()).whereis("echo")
        world.faults()
        await trio.sleep(2)
        await world.heal()
        assert trio.current_time() == 2
        assert await a.call(target, 2) == 2

    plan = "1 cut a@world,b@world 100; 1 pause b@world 100; 1 lose * 100 1; 50 pause a@world 9"
    run(test, Plan.read(f"seed=1; {plan}"))


def test_a_failing_test_ends_although_a_program_is_stopped() -> None:
    async def test(world: World) -> None:
        await world.start(2, start_echo)
        world.faults()
        await trio.sleep(2)
        raise LookupError

    with pytest.raises(LookupError):
        run(test, Plan.read("seed=1; 1 pause a@world 100"))


def test_a_failing_start_fails_the_world() -> None:
    async def start(node: Any) -> None:
        raise LookupError(node.name)

    async def test(world: World) -> None:
        await world.start(1, start)

    with pytest.raises(LookupError, match="a@world"):
        run(test)


def test_failed_calls_are_in_the_history() -> None:
    async def test(world: World) -> None:
        (a,) = await world.start(1)
        with pytest.raises(TargetDownError):
            await a.call("nobody", 1)

    world = run(test)

    (operation,) = world.history.operations
    assert isinstance(operation.error, TargetDownError)
    assert not operation.is_answered


def test_random_numbers_of_the_test_follow_from_the_seed() -> None:
    drawn: list[float] = []

    async def test(world: World) -> None:
        drawn.extend([random.random(), world.random.random()])

    state = random.getstate()
    for seed in (1, 1, 2):
        run(test, Plan(seed))

    assert drawn[:2] == drawn[2:4]
    assert not set(drawn[:2]) & set(drawn[4:])
    assert random.getstate() == state


def test_verbs_refuse_wrong_values() -> None:
    async def test(world: World) -> None:
        with pytest.raises(NotAllowedError, match="network"):
            _ = world.network
        (a,) = await world.start(["x@world"])
        with pytest.raises(BadInputError, match="x@world"):
            await world.start(["x@world"])
        with pytest.raises(BadInputError, match="melt"):
            world.faults(melt=1.0)
        with pytest.raises(BadInputError, match="cut"):
            world.faults(cut=-1.0)
        world.faults()
        with pytest.raises(NotAllowedError, match="before"):
            world.faults()
        assert "x@world" in repr(a)

    run(test)
    world = World(Plan(0))
    with pytest.raises(NotAllowedError):
        world.faults(cut=1.0)


@pytest.mark.parametrize(
    "plan, told",
    [
        ("1 crash c@world 1", "got 'c@world'; allowed is a node of this world: a@world, b@world"),
        ("1 cut a@world,B@world 1", "'B@world'.*did you mean 'b@world'"),
        ("1 cut_store a@world 1", "'1 cut_store a@world 1'.*has: crash, cut, kill.*cut_store=0.1"),
        ("1 kill a@world 1 0", r"victims: got \['Ecko'\].*\['echo'\]"),
    ],
)
def test_a_plan_that_does_not_fit_the_test_is_refused(plan: str, told: str) -> None:
    async def test(world: World) -> None:
        await world.start(2, start_echo)
        world.faults(crash=0.1, cut=0.1, kill=0.1, victims=["Ecko"])
        await trio.sleep(5)

    with pytest.raises(PlanError, match=told):
        Simulation(test, 1).run_plan(Plan.read(f"seed=1; {plan}"))


def test_faults_of_a_plan_are_refused_by_a_test_without_faults() -> None:
    async def test(world: World) -> None:
        await world.start(2)

    run(test, Plan.read("seed=1"))
    with pytest.raises(PlanError, match=r"does not call world\.faults"):
        run(test, Plan.read("seed=1; 1 crash a@world 1"))


def test_faults_of_nodes_that_never_start_are_refused() -> None:
    """They would go well for each seed."""

    async def misspelled(world: World) -> None:
        await world.start(["shop@world"])
        world.faults(nodes=["shop"], crash=0.5)

    async def early(world: World) -> None:
        world.faults(crash=0.5)
        await world.start(1)

    with pytest.raises(PlanError, match=r"'shop'; .* a node of this world: shop@world"):
        Simulation(misspelled, 1).run()
    with pytest.raises(NotAllowedError, match="has no node"):
        run(early, is_drawn=True)


@pytest.mark.parametrize(
    "options, told",
    [
        ({"crahs": 0.1}, "did you mean 'crash'"),
        ({"cut": inf}, "cut: got inf"),
        ({"seconds": inf}, "seconds: got inf"),
        ({"limits": {"dealy": (0.0, 1.0)}}, "limits: got 'dealy'.*did you mean 'delay'"),
        ({"limits": {"pause": (0.0, 1.0)}}, "limits: got 'pause'"),
        ({"limits": {"delay": (2.0, 1.0)}}, "limits of delay: got 1.0; .*from 2 "),
        ({"limits": {"lose": 5}}, "limits of lose: got 5; .*smallest and the largest"),
        ({"limits": {"lose": (5.0, 50.0)}}, "limits of lose: got 5.0; .*from 0 to 1"),
    ],
)
def test_options_of_faults_that_have_no_effect_are_refused(
    options: dict[str, Any], told: str
) -> None:
    async def test(world: World) -> None:
        await world.start(1)
        world.faults(**options)

    with pytest.raises(BadInputError, match=told):
        run(test, is_drawn=True)


def test_a_node_that_is_down_has_no_node() -> None:
    async def test(world: World) -> None:
        (a,) = await world.start(1)
        await a.close()
        assert not a.is_up
        with pytest.raises(NodeStoppedError, match="a@world"):
            _ = a.node

    run(test)


def test_a_checker_that_finds_a_fault_fails_the_world() -> None:
    async def test(world: World) -> None:
        await world.start(2, start_echo)
        await trio.sleep(1)
        world.check(World.at_most_one("other"))
        world.check(World.at_most_one("echo"))

    with pytest.raises(CheckError, match="at_most_one") as raised:
        run(test)
    assert raised.value.checker == "at_most_one('echo')"


def test_a_behaviour_counts_also_for_processes_with_a_name() -> None:
    async def test(world: World) -> None:
        await world.start(2, start_echo)
        await trio.sleep(1)
        world.check(World.at_most_one("Echo"))

    with pytest.raises(CheckError, match="at_most_one"):
        run(test)
