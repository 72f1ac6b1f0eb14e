"""Supervision performed on a real node: order, limits, back-off, operations."""

import inspect
import itertools
import json
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    Actor,
    Backoff,
    BadInputError,
    ChildSpec,
    Crashed,
    InitError,
    Killed,
    MailboxFullError,
    MetaProcess,
    NameTakenError,
    Node,
    Normal,
    Overflow,
    Reason,
    RestartLimit,
    RestartPolicy,
    Shutdown,
    Strategy,
    Supervisor,
    SupervisorSpec,
    open_node,
)
from ergo_py._core.tables.child_slot import ChildSlot
from ergo_py._core.vocabulary.errors import ChildDisabledError, ChildUnknownError
from ergo_py._core.vocabulary.info import Phase
from ergo_py.errors import BehaviourError, EscalationError, InitTimeoutError, ProcessUnknownError
from ergo_py.supervision import Budget, Decision, Fate
from tests.actors import Failed, Recorder, SlowStart, Stubborn
from tests.supervised import Child, Deaf, Fragile, Log, crash, info_of, phases, three
from tests.support import kernel_of, process_of, running_node

# -- starting and stopping -------------------------------------------------------------------------


async def test_children_start_in_order_each_ready_before_the_next() -> None:
    log: Log = []

    class Slow(Child):
        async def init(self) -> None:
            await trio.sleep(0.001)
            await super().init()
            self.log_of_test.append(f"{self.label} is ready")

    async with running_node() as node:
        await node.supervise([ChildSpec(name, Slow, log, name) for name in "abc"])

        assert log == ["+a", "a is ready", "+b", "b is ready", "+c", "c is ready"]


async def test_children_stop_in_the_reverse_order_of_the_spec_also_after_restarts() -> None:
    log: Log = []
    async with running_node() as node:
        tree = await node.supervise(three(log))
        await crash(node, "a")
        await crash(node, "b")
        log.clear()

        node.send_exit(tree.pid)
        await node.wait_ended(tree.pid)

        assert log == ["-c", "-b", "-a"]


async def test_children_from_a_template_stop_all_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running_node() as node:
        template = ChildSpec("child", Deaf, trio.Event(), shutdown=3.0)
        tree = await node.supervise([template], strategy=Strategy.SIMPLE_ONE_FOR_ONE, name="top")
        for _ in range(10):
            pid = await tree.start_child("child")
            node.send(pid, "be deaf")
        await wait_all_tasks_blocked()
        began = trio.current_time()

        node.send_exit("top")
        await node.wait_ended("top")

        assert 3.0 <= trio.current_time() - began < 4.0


async def test_a_failed_start_stops_the_other_children_and_the_error_names_the_child() -> None:
    log: Log = []
    async with running_node() as node:
        specs = [ChildSpec("good", Child, log, "good"), ChildSpec("bad", Fragile, log, [], "bad")]

        with pytest.raises(InitError) as caught:
            await node.supervise(specs, name="top")

        assert log == ["+good", "+bad", "-good"]
        assert node.processes() == []
        assert node.whereis("good") is None
        assert isinstance(caught.value.__cause__, Failed)
        assert "child 'bad'" in "".join(caught.value.__notes__)
        with pytest.raises(ChildUnknownError):
            node.service("good")


async def test_the_start_of_many_children_may_take_longer_than_a_single_init_timeout(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Root(Supervisor):
        def children(self) -> list[ChildSpec]:
            return [ChildSpec(name, SlowStart, 4.0) for name in "abc"]

    async with running_node() as node:
        await node.spawn(Root)

        assert len(node.processes()) == 4


@pytest.mark.parametrize("shutdown, seconds", [(2.0, 2.0), (0.0, 0.0), (inf, 50.0)])
async def test_a_child_is_given_its_shutdown_time_and_killed_then(
    autojump_clock: trio.testing.MockClock, shutdown: float, seconds: float
) -> None:
    hears = trio.Event()
    async with running_node(limit=1000.0) as node:
        tree = await node.supervise([ChildSpec("deaf", Deaf, hears, shutdown=shutdown)])
        pid = node.service("deaf").pid
        assert pid is not None
        node.send(pid, "be deaf")
        await wait_all_tasks_blocked()
        began = trio.current_time()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tree.stop_child, "deaf")
            await trio.sleep(50 if shutdown == inf else 0)
            if shutdown == inf:
                hears.set()

        assert trio.current_time() - began == pytest.approx(seconds, abs=0.1)


@pytest.mark.parametrize("is_child", [True, False])
async def test_a_shutdown_of_a_supervisor_equal_to_the_actor_default_is_kept(
    autojump_clock: trio.testing.MockClock, is_child: bool
) -> None:
    class Root(Supervisor):
        def children(self) -> list[ChildSpec]:
            return [ChildSpec("deaf", Deaf, trio.Event(), shutdown=inf)]

    async with running_node(limit=1000.0) as node:
        if is_child:
            await node.supervise([ChildSpec("root", Root, shutdown=5.0)], name="top")
        else:
            await node.spawn(Root, name="root", shutdown=5.0)
        node.send("deaf", "be deaf")
        await wait_all_tasks_blocked()
        began = trio.current_time()

    assert trio.current_time() - began == pytest.approx(5.0, abs=1.0)


async def test_the_children_of_a_supervisor_with_a_time_limit_must_be_ready_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Root(Supervisor):
        def children(self) -> list[ChildSpec]:
            return [ChildSpec(name, SlowStart, 4.0) for name in "ab"]

    async with running_node() as node:
        with pytest.raises(InitTimeoutError):
            await node.spawn(Root, init_timeout=5.0)

        assert node.processes() == []


async def test_a_child_that_survives_a_kill_does_not_delay_its_supervisor_forever() -> None:
    async with running_node() as node:
        tree = await node.supervise(
            [ChildSpec("stubborn", Stubborn, shutdown=0.01, terminate_timeout=0.01)]
        )
        node.send("stubborn", "go")
        await wait_all_tasks_blocked()

        with trio.fail_after(30):
            await tree.restart_child("stubborn")

        assert phases(tree) == {"stubborn": Phase.RUNNING}


async def test_the_supervisor_answers_while_a_child_takes_its_time_to_stop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    hears = trio.Event()
    async with running_node() as node:
        tree = await node.supervise([ChildSpec("deaf", Deaf, hears, shutdown=30.0)], name="top")
        node.send("deaf", "be deaf")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tree.stop_child, "deaf")
            await wait_all_tasks_blocked()
            answer = await node.inspect("top", timeout=0.1)
            hears.set()

        assert answer["child deaf"].startswith("stopping")


# -- strategies ------------------------------------------------------------------------------------


TOGETHER: dict[Strategy, Callable[[str], str]] = {
    Strategy.ONE_FOR_ONE: lambda victim: victim,
    Strategy.ALL_FOR_ONE: lambda victim: "abc",
    Strategy.REST_FOR_ONE: lambda victim: "abc"["abc".index(victim) :],
}


@pytest.mark.parametrize("strategy", TOGETHER)
@pytest.mark.parametrize("victim", "abc")
async def test_the_strategy_decides_which_children_restart_and_in_which_order(
    strategy: Strategy, victim: str
) -> None:
    log: Log = []
    async with running_node() as node:
        tree = await node.supervise(three(log), strategy=strategy)
        before = {child.name: child.pid for child in tree.children()}
        log.clear()

        await crash(node, victim)

        group = TOGETHER[strategy](victim)
        others = [name for name in group if name != victim]
        assert log == [
            f"-{victim}",
            *(f"-{name}" for name in reversed(others)),
            *(f"+{name}" for name in group),
        ]
        after = {child.name: child.pid for child in tree.children()}
        assert {name for name in "abc" if before[name] != after[name]} == set(group)


@pytest.mark.parametrize("strategy", [Strategy.ALL_FOR_ONE, Strategy.REST_FOR_ONE])
async def test_a_restart_of_a_group_takes_time_linear_in_its_size(
    strategy: Strategy,
) -> None:
    class CountingSlots(dict[str, ChildSlot]):
        """Slots that count how many of them are iterated over."""

        walked = 0

        def values(self) -> Any:
            self.walked += len(self)
            return super().values()

    size = 40
    log: Log = []
    async with running_node() as node:
        specs = [ChildSpec(f"{number}", Child, log, f"{number}") for number in range(size)]
        tree = await node.supervise(specs, strategy=strategy)
        process = process_of(node, tree.pid)
        assert process.slots is not None
        slots = process.slots = CountingSlots(process.slots)

        await crash(node, "0")

        assert [child.restarts for child in tree.children()] == [1] * size
        assert slots.walked <= 3 * size


@pytest.mark.parametrize("strategy", TOGETHER)
async def test_a_failure_during_a_group_restart_starts_it_again_and_counts(
    strategy: Strategy,
) -> None:
    log: Log = []
    successes = [True, False, False, True]
    async with running_node() as node:
        tree = await node.supervise(
            [
                ChildSpec("a", Child, log, "a"),
                ChildSpec("b", Fragile, log, successes, "b"),
                ChildSpec("c", Child, log, "c"),
            ],
            strategy=strategy,
            intensity=3,
        )

        await crash(node, "b")

        assert phases(tree) == dict.fromkeys("abc", Phase.RUNNING)
        supervision = node.process_info(tree.pid).supervision
        assert supervision is not None
        assert len(supervision.restarts) == 3


@pytest.mark.parametrize(
    "policy, reason, comes_back",
    [
        (RestartPolicy.PERMANENT, Normal(), True),
        (RestartPolicy.PERMANENT, Shutdown(), True),
        (RestartPolicy.PERMANENT, Killed(), True),
        (RestartPolicy.PERMANENT, Failed("x"), True),
        (RestartPolicy.TRANSIENT, Normal(), False),
        (RestartPolicy.TRANSIENT, Shutdown(), False),
        (RestartPolicy.TRANSIENT, Killed(), True),
        (RestartPolicy.TRANSIENT, Failed("x"), True),
        (RestartPolicy.TEMPORARY, Normal(), False),
        (RestartPolicy.TEMPORARY, Killed(), False),
        (RestartPolicy.TEMPORARY, Failed("x"), False),
    ],
)
async def test_the_restart_policy_decides_after_which_ends_a_child_restarts(
    policy: RestartPolicy, reason: object, comes_back: bool
) -> None:
    log: Log = []
    async with running_node() as node:
        tree = await node.supervise(
            [ChildSpec("a", Child, log, "a", restart=policy), ChildSpec("b", Child, log, "b")]
        )

        node.send("a", reason)
        await wait_all_tasks_blocked()

        failed = Phase.FAILED if isinstance(reason, Killed | Failed) else Phase.COMPLETED
        assert phases(tree)["a"] is (Phase.RUNNING if comes_back else failed)
        assert log.count("+a") == (2 if comes_back else 1)


def test_the_policies_have_synonyms() -> None:
    assert (RestartPolicy.ALWAYS, RestartPolicy.ON_FAILURE, RestartPolicy.NEVER) == (
        RestartPolicy.PERMANENT,
        RestartPolicy.TRANSIENT,
        RestartPolicy.TEMPORARY,
    )


async def test_a_temporary_child_stops_with_its_siblings_and_does_not_restart() -> None:
    log: Log = []
    async with running_node() as node:
        specs = [
            ChildSpec("a", Child, log, "a"),
            ChildSpec("once", Child, log, "once", restart=RestartPolicy.TEMPORARY),
        ]
        tree = await node.supervise(specs, strategy=Strategy.ALL_FOR_ONE)

        await crash(node, "a")

        assert phases(tree) == {"a": Phase.RUNNING, "once": Phase.COMPLETED}


async def test_children_made_from_a_template_keep_their_arguments_through_restarts() -> None:
    log: Log = []
    async with running_node() as node:
        tree = await node.supervise(
            [ChildSpec("conn", Child, log)], strategy=Strategy.SIMPLE_ONE_FOR_ONE
        )
        assert tree.children() == []
        first = await tree.start_child("conn", "one")
        second = await tree.start_child("conn", "two")
        assert [child.name for child in tree.children()] == ["conn-1", "conn-2"]

        node.send(first, Failed("x"))
        await wait_all_tasks_blocked()

        assert log == ["+one", "+two", "-one", "+one"]
        assert second in [child.pid for child in tree.children()]
        assert len(tree.children()) == 2


async def test_a_finished_child_from_a_template_leaves_no_slot_behind() -> None:
    log: Log = []
    async with running_node() as node:
        template = ChildSpec("conn", Child, log, restart=RestartPolicy.TEMPORARY)
        tree = await node.supervise([template], strategy=Strategy.SIMPLE_ONE_FOR_ONE)
        pid = await tree.start_child("conn", "one")

        node.send(pid, Normal())
        await wait_all_tasks_blocked()

        assert tree.children() == []
        assert node.process_info(tree.pid).state.value == "sleep"
        process = process_of(node, tree.pid)
        assert process.slots == {}


async def test_a_new_child_never_overlaps_the_old_child(
    autojump_clock: trio.testing.MockClock,
) -> None:
    alive: list[int] = []

    class Careful(Actor):
        def init(self) -> None:
            assert alive == []
            alive.append(1)

        async def terminate(self, reason: Reason) -> None:
            await trio.sleep(2)
            alive.pop()

        def handle_message(self, message: Any, sender: Any) -> None:
            raise Failed

    async with running_node() as node:
        tree = await node.supervise([ChildSpec("careful", Careful)])

        for _ in range(3):
            service = node.service("careful")
            service.send("fail")
            await trio.sleep(2.5)

        assert phases(tree) == {"careful": Phase.RUNNING}
        assert alive == [1]


# -- limits ----------------------------------------------------------------------------------------


async def test_more_restarts_than_allowed_end_the_supervisor_with_the_reason_of_the_child() -> None:
    log: Log = []
    async with running_node() as node:
        tree = await node.supervise([ChildSpec("a", Child, log, "a")], intensity=2, period=5.0)
        pid = tree.pid
        for _ in range(2):
            await crash(node, "a")
        assert phases(tree) == {"a": Phase.RUNNING}

        async with trio.open_nursery() as nursery:
            reasons: list[Reason] = []

            async def wait() -> None:
                reasons.append(await node.wait_ended(pid))

            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            node.send("a", Failed("third"))

        assert reasons == [RestartLimit("a", 2, 5.0, Crashed(Failed("third")))]
        assert node.processes() == []


async def test_restarts_before_the_period_do_not_count(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log: Log = []
    async with running_node(limit=1000) as node:
        tree = await node.supervise([ChildSpec("a", Child, log, "a")], intensity=2, period=5.0)

        for _ in range(10):
            await crash(node, "a")
            await trio.sleep(2.6)

        assert phases(tree) == {"a": Phase.RUNNING}


async def test_a_child_with_a_failing_init_is_tried_up_to_the_restart_limit() -> None:
    log: Log = []
    async with running_node() as node:
        tree = await node.supervise(
            [ChildSpec("a", Fragile, log, [True], "a")], intensity=5, period=60.0
        )
        pid = tree.pid

        await crash(node, "a")

        with pytest.raises(ProcessUnknownError):
            node.process_info(pid)
        assert log.count("+a") == 1 + 5


async def test_endless_restarts_of_a_child_do_not_block_the_supervisor() -> None:
    tries: Log = []

    class Hopeless(Actor):
        def init(self) -> None:
            tries.append(1)
            if len(tries) > 1:
                raise Failed

        def handle_message(self, message: Any, sender: Any) -> None:
            raise Failed

    async with running_node() as node:
        tree = await node.supervise(
            [ChildSpec("a", Hopeless), ChildSpec("b", Child, [])], intensity=10**9, name="top"
        )

        node.send("a", "fail")
        for _ in range(100):
            await trio.lowlevel.checkpoint()
        answer = await node.inspect("top", timeout=20.0)
        await tree.stop_child("b")
        node.send_exit("top")
        await node.wait_ended("top")

        assert "child a" in answer
        assert 10 < len(tries) < 10_000


async def test_the_parent_of_a_supervisor_that_gave_up_applies_its_own_strategy() -> None:
    log: Log = []
    async with running_node() as node:
        inner = SupervisorSpec([ChildSpec("leaf", Child, log, "leaf")], intensity=1)
        tree = await node.supervise(
            [ChildSpec("inner", Supervisor, inner)], intensity=1, name="outer"
        )
        first = node.whereis("inner")

        for _ in range(2):
            await crash(node, "leaf")

        assert phases(tree) == {"inner": Phase.RUNNING}
        assert node.whereis("inner") != first
        assert isinstance(info_of(tree, "inner").reason, RestartLimit)
        assert log == ["+leaf", "-leaf", "+leaf", "-leaf", "+leaf"]


async def test_after_an_escalation_the_node_continues_without_the_tree_by_default() -> None:
    log: Log = []
    async with running_node() as node:
        inner = SupervisorSpec([ChildSpec("leaf", Child, log, "leaf")], intensity=0)
        await node.supervise([ChildSpec("inner", Supervisor, inner)], intensity=0)

        await crash(node, "leaf")

        assert node.processes() == []
        await node.spawn(Recorder)


async def test_with_on_escalation_stop_a_node_stops_when_a_tree_gives_up() -> None:
    log: Log = []
    inner = SupervisorSpec([ChildSpec("leaf", Child, log, "leaf")], intensity=0)

    nodes: list[Node] = []

    with pytest.raises(EscalationError) as caught, trio.fail_after(30):
        async with open_node(
            "stops@localhost", on_escalation="stop", watchdog=None, log_output="none"
        ) as node:
            nodes.append(node)
            await node.spawn(Recorder, name="other")
            await node.supervise([ChildSpec("inner", Supervisor, inner)], intensity=0, name="top")
            node.send("leaf", Failed("the root of it all"))
            await trio.sleep_forever()

    assert isinstance(caught.value.__cause__, Failed)
    report = nodes[0].exit_report
    assert report is not None
    assert report.escalated is not None
    assert report.escalated.name == "top"
    assert "gave up" in str(report)
    assert [one.name for one in report.stopped] == ["other"]


async def test_with_on_escalation_stop_a_node_survives_a_normal_end_of_a_tree() -> None:
    async with running_node(on_escalation="stop") as node:
        tree = await node.supervise(
            [ChildSpec("a", Child, [], "a", restart=RestartPolicy.TRANSIENT)]
        )

        node.send("a", Normal())
        await node.wait_ended(tree.pid)

        assert node.processes() == []
        assert not node.stopping


async def test_a_used_up_budget_disables_the_child_and_the_supervisor_continues() -> None:
    log: Log = []
    async with running_node() as node:
        specs = [
            ChildSpec("a", Child, log, "a", budget=Budget(2, 5.0)),
            ChildSpec("b", Child, log, "b"),
        ]
        tree = await node.supervise(specs, intensity=0)

        for _ in range(3):
            await crash(node, "a")

        assert phases(tree) == {"a": Phase.DISABLED, "b": Phase.RUNNING}
        with pytest.raises(ChildDisabledError):
            await tree.start_child("a")
        await tree.enable_child("a")
        assert phases(tree)["a"] is Phase.RUNNING


# -- back-off --------------------------------------------------------------------------------------


async def test_restarts_back_off_and_a_healthy_time_resets_the_delay(
    autojump_clock: trio.testing.MockClock,
) -> None:
    starts: list[float] = []

    class Noting(Actor):
        def init(self) -> None:
            starts.append(trio.current_time())

        def handle_message(self, message: Any, sender: Any) -> None:
            raise Failed

    async with running_node(limit=1000) as node:
        backoff = Backoff(1.0, 4.0, 2.0, healthy=30.0)
        await node.supervise([ChildSpec("a", Noting, backoff=backoff)], intensity=100)

        ends = []
        for pause in (0, 0, 0, 0, 31, 0):
            await trio.sleep(pause)
            ends.append(trio.current_time())
            node.service("a").send("fail")
            await trio.sleep(5)

        delays = [start - end for start, end in zip(starts[1:], ends, strict=True)]
        assert delays == pytest.approx([1, 2, 4, 4, 1, 2])


class Device(MetaProcess):
    """A bridge to a device that may be absent."""

    def __init__(self, plugged: list[bool]) -> None:
        self.plugged = plugged

    async def init(self) -> None:
        if not self.plugged:
            raise FileNotFoundError("no such device")

    async def start(self) -> None:
        while self.plugged:  # noqa: ASYNC110 - a device knows no events
            await trio.sleep(1.0)
        raise ConnectionResetError("unplugged")


class Operator(Actor):
    """Opens its device as the first thing."""

    def __init__(self, plugged: list[bool], starts: list[float]) -> None:
        self.plugged = plugged
        self.starts = starts

    async def init(self) -> None:
        self.starts.append(trio.current_time())
        await self.spawn_meta(Device(self.plugged), needed=True)

    def handle_call(self, request: object, caller: object) -> object:
        return "here"


async def test_a_device_that_is_absent_at_first_is_tried_until_it_is_there(
    autojump_clock: trio.testing.MockClock,
) -> None:
    plugged: list[bool] = []
    starts: list[float] = []
    async with running_node(limit=1000) as node:
        began = trio.current_time()
        patience = Backoff(1.0, 8.0, until_started=True)
        tree = await node.supervise(
            [
                ChildSpec("press", Operator, plugged, starts, backoff=patience),
                ChildSpec("b", Child, [], "b"),
            ],
            intensity=1,
        )
        at_first = phases(tree)
        shown = str(node.tree())
        await trio.sleep(6.5)
        plugged.append(True)
        answer = await node.service("press").call("?", retry=True)
        assert (trio.current_time() - began, answer) == (7.0, "here")

        # It vanishes for longer than the tries of a restart would be counted, and comes back.
        plugged.clear()
        await trio.sleep(60.0)
        while_lost = phases(tree)
        plugged.append(True)
        await trio.sleep(8.0)
        assert phases(tree) == {"press": Phase.RUNNING, "b": Phase.RUNNING}

    assert at_first == {"press": Phase.BACKING_OFF, "b": Phase.RUNNING}
    assert "backing off" in shown
    assert while_lost["press"] is Phase.BACKING_OFF
    assert [start - began for start in starts[:4]] == [0.0, 1.0, 3.0, 7.0]


async def test_a_node_stops_at_once_while_a_first_start_is_tried_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    starts: list[float] = []
    async with running_node(limit=1000) as node:
        patience = Backoff(100.0, 100.0, until_started=True)
        await node.supervise([ChildSpec("press", Operator, [], starts, backoff=patience)])
        await trio.sleep(150.0)
        began = trio.current_time()

    assert trio.current_time() == began
    assert len(starts) == 2


async def test_decide_may_end_the_tries_of_a_first_start() -> None:
    def escalate(error: Exception) -> Decision:
        return Decision.ESCALATE

    def give_up(error: Exception) -> Decision:
        return Decision.STOP

    patience = Backoff(100.0, 100.0, until_started=True)
    async with running_node() as node:
        press = ChildSpec("press", Operator, [], [], backoff=patience, decide=give_up)
        tree = await node.supervise([press, ChildSpec("b", Child, [], "b")])
        assert phases(tree)["press"] is Phase.FAILED
        other = ChildSpec("other", Operator, [], [], backoff=patience, decide=escalate)
        with pytest.raises(InitError, match="no such device"):
            await node.supervise([other])


async def test_a_supervisor_answers_at_once_while_a_child_backs_off(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Root(Supervisor):
        def children(self) -> list[ChildSpec]:
            return [
                ChildSpec("a", Child, [], "a", backoff=Backoff(100.0, 100.0)),
                ChildSpec("b", Child, [], "b"),
            ]

        def handle_call(self, request: Any, caller: Any) -> Any:
            return f"{request} too"

    async with running_node(limit=1000) as node:
        root = await node.spawn(Root, name="root")
        tree = node.supervisor("root")
        await crash(node, "a")
        began = trio.current_time()

        assert phases(tree)["a"] is Phase.BACKING_OFF
        assert "backing off, starts in 100 s" in (await node.inspect("root"))["child a"]
        assert await node.call("root", "this") == "this too"
        await tree.restart_child("b")
        node.send_exit(root)
        await node.wait_ended(root)

        assert trio.current_time() == began


async def test_a_full_mailbox_of_the_supervisor_does_not_prevent_a_restart(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log: Log = []

    class Busy(Supervisor):
        def children(self) -> list[ChildSpec]:
            return [ChildSpec("a", Child, log, "a", backoff=Backoff(1.0, 1.0))]

        async def handle_message(self, message: Any, sender: Any) -> None:
            await trio.sleep(10)

    async with running_node(limit=1000) as node:
        await node.spawn(Busy, name="busy", mailbox_size=1)
        with pytest.raises(MailboxFullError):
            for _ in range(3):
                node.send("busy", "work")

        await crash(node, "a")
        await trio.sleep(12)

        assert log == ["+a", "-a", "+a"]


async def test_an_operation_on_a_child_that_backs_off_takes_effect_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log: Log = []
    async with running_node() as node:
        tree = await node.supervise(
            three(log, backoff=Backoff(100.0, 100.0)), strategy=Strategy.ALL_FOR_ONE
        )
        await crash(node, "b")
        assert phases(tree) == {"a": Phase.PENDING, "b": Phase.BACKING_OFF, "c": Phase.PENDING}
        began = trio.current_time()

        await tree.start_child("b")
        await wait_all_tasks_blocked()

        # No child in the group has anything left to wait for.
        assert phases(tree) == dict.fromkeys("abc", Phase.RUNNING)
        assert trio.current_time() == began


# -- looking inside --------------------------------------------------------------------------------


async def test_phases_and_restarts_show_in_inspect_and_in_process_info(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log: Log = []
    async with running_node(limit=1000.0) as node:
        backoff = Backoff(2.0, 2.0)
        tree = await node.supervise(
            [ChildSpec("a", Child, log, "a", backoff=backoff)], name="top", intensity=100
        )
        assert node.process_info("a").phase is Phase.RUNNING
        assert node.process_info("top").phase is None
        for _ in range(60):
            await crash(node, "a")
            await trio.sleep(2.5)

        info = node.process_info("top").supervision
        answer = await node.inspect("top")

        assert info is not None
        assert [record.child for record in info.restarts] == ["a"] * 50
        assert {record.delay for record in info.restarts} == {2.0}
        assert {record.reason for record in info.restarts} == {Crashed(Failed("a"))}
        assert [b.at - a.at for a, b in itertools.pairwise(info.restarts)] == pytest.approx(
            [2.5] * 49, abs=0.1
        )
        assert info_of(tree, "a").restarts == 60
        assert "60 restarts" in answer["child a"]
        assert "restart 50" in answer
        assert "restart 51" not in answer


async def test_the_tree_shows_supervisors_children_and_their_phases(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log: Log = []
    async with running_node("tree@localhost") as node:
        inner = SupervisorSpec(
            [ChildSpec("leaf", Child, log), ChildSpec("other", Child, log)], Strategy.ALL_FOR_ONE
        )
        await node.supervise(
            [
                ChildSpec("inner", Supervisor, inner),
                ChildSpec("slow", Child, log, backoff=Backoff(3.0, 3.0)),
                ChildSpec("deaf", Deaf, trio.Event()),
            ],
            name="top",
        )
        await crash(node, "slow")
        for _ in range(3):
            node.send("deaf", "wait")
        await wait_all_tasks_blocked()

        tree = node.tree()

        numbers = {
            found.name: found.id.number
            for found in (tree.find("top"), tree.find("leaf"))
            if found and found.id
        }
        text = str(tree)
        assert text.splitlines()[0] == "tree@localhost"
        assert (
            text.splitlines()[1]
            == f"└─ top Supervisor <PID {numbers['top']} tree@localhost> (one for one)"
        )
        assert f"   │  ├─ leaf Child <PID {numbers['leaf']} tree@localhost>" in text
        assert "   ├─ slow Child (backing off, starts in 3 s)" in text
        assert text.splitlines()[-1].endswith("(mailbox 2)")
        slow = tree.find("slow")
        assert slow is not None
        assert slow.phase is Phase.BACKING_OFF
        assert tree.find("nobody") is None


async def test_the_tree_shows_unsupervised_processes_too() -> None:
    class Parent(Actor):
        async def init(self) -> None:
            await self.spawn(Recorder, name="child")

    async with running_node() as node:
        await node.spawn(Parent, name="parent")

        tree = node.tree()

        parent = tree.find("parent")
        assert parent is not None
        assert [child.name for child in parent.children] == ["child"]
        assert parent.phase is None


# -- writing supervisors ---------------------------------------------------------------------------


async def test_a_supervisor_may_have_callbacks_of_its_own() -> None:
    ends: Log = []

    class Root(Supervisor):
        async def children(self) -> list[ChildSpec]:
            await trio.lowlevel.checkpoint()
            return [ChildSpec("a", Child, [], "a")]

        def handle_child_exit(self, child: Any, reason: Reason) -> None:
            ends.append(reason)

        def handle_call(self, request: Any, caller: Any) -> Any:
            return [child.name for child in self.which_children()], self.count_children().running

    async with running_node() as node:
        await node.spawn(Root, name="root")

        await crash(node, "a")

        assert ends == [Crashed(Failed("a"))]
        assert await node.call("root", "who") == (["a"], 1)


def test_the_error_about_a_supervisor_with_an_init_suggests_children() -> None:
    async def init(self: object) -> None: ...

    with pytest.raises(BehaviourError) as caught:
        type("Wrong", (Supervisor,), {"init": init})

    assert "children" in str(caught.value)


@pytest.mark.parametrize("given", [None, 5, "abc", [5]])
async def test_an_invalid_spec_is_refused_before_any_child_starts(given: Any) -> None:
    class Root(Supervisor):
        def children(self) -> Any:
            return given

    async with running_node() as node:
        with pytest.raises(InitError) as caught:
            await node.spawn(Root)
        assert isinstance(caught.value.__cause__, BadInputError)
        with pytest.raises(InitError):
            await node.spawn(Supervisor)


async def test_keywords_beside_a_whole_spec_are_refused() -> None:
    async with running_node() as node:
        with pytest.raises(BadInputError):
            await node.supervise(SupervisorSpec([]), intensity=5)


async def test_two_supervisors_cannot_register_children_under_the_same_name() -> None:
    async with running_node() as node:
        await node.supervise([ChildSpec("a", Child, [])])

        with pytest.raises(InitError) as caught:
            await node.supervise([ChildSpec("a", Child, [])])
        await node.supervise([ChildSpec("a", Child, [], register=False)])

        assert isinstance(caught.value.__cause__, NameTakenError)
        assert "register=False" in "".join(caught.value.__cause__.__notes__)


async def test_a_supervisor_may_be_supervised_with_every_kind_of_spec() -> None:
    async with running_node() as node:
        tree = await node.supervise(
            [
                ChildSpec("list", Supervisor, [ChildSpec("a", Child, [])]),
                ChildSpec("spec", Supervisor, SupervisorSpec([ChildSpec("b", Child, [])])),
            ]
        )

        assert tree.count().supervisors == 2
        assert info_of(tree, "list").phase is Phase.RUNNING
        assert {name for name in "ab" if node.whereis(name)} == {"a", "b"}


async def test_the_options_of_spawn_reach_the_child() -> None:
    async with running_node() as node:
        await node.supervise(
            [ChildSpec("a", Child, [], mailbox_size=7, overflow=Overflow.DROP_OLDEST, env={"x": 1})]
        )

        info = node.process_info("a")

        assert info.mailbox_size == 7


async def test_ended_supervisors_leave_no_services_names_timers_or_relations() -> None:
    async with running_node() as node:
        for _ in range(20):
            tree = await node.supervise(
                [
                    *three([], mailbox=Fate.KEEP),
                    ChildSpec("d", Child, [], backoff=Backoff(9.0, 9.0)),
                ]
            )
            await crash(node, "a")
            await crash(node, "d")
            node.service("d").send("waits")
            node.send_exit(tree.pid)
            await node.wait_ended(tree.pid)

        info = node.info()

        assert kernel_of(node).services == {}
        assert (info.processes, info.names, info.timers, info.relations) == (0, 0, 0, 0)


def test_the_default_fate_is_dead_letter() -> None:
    assert ChildSpec("a", Child, []).mailbox is Fate.DEAD_LETTER


# -- the log ---------------------------------------------------------------------------------------


async def test_a_restart_is_logged_at_the_usual_level(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with open_node(watchdog=None, log_output="json") as node:
        handle = await node.supervise([ChildSpec("a", Child, [], "a")])
        await crash(node, "a")
        await wait_all_tasks_blocked()
        assert info_of(handle, "a").restarts == 1

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (line,) = [line for line in lines if line["event"] == "child started again"]
    assert (line["level"], line["child"]) == ("warning", "a")
    assert line["after"].startswith("crashed: ")


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("unspeakable")

    __str__ = __repr__


class Leaving(Actor):
    """Ends for a reason that cannot be shown."""

    def handle_message(self, message: object, sender: object) -> None:
        self.stop(Unspeakable())


async def test_a_child_starts_again_although_its_reason_cannot_be_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with open_node(watchdog=None, log_output="json", log_level="debug") as node:
        handle = await node.supervise(
            [ChildSpec("a", Leaving), ChildSpec("b", Leaving, restart=RestartPolicy.TEMPORARY)]
        )
        for child in ("a", "b"):
            node.send(info_of(handle, child).pid or "", "leave")
        await wait_all_tasks_blocked()
        assert info_of(handle, "a").restarts == 1
        assert info_of(handle, "b").phase is Phase.FAILED

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (line,) = [line for line in lines if line["event"] == "child started again"]
    assert line["after"] == "<its __str__ raised>"


async def test_each_level_of_a_tree_takes_few_frames_of_the_stack() -> None:
    """The recursion limit bounds how deep a tree can be: each init runs inside that of the
    supervisor above.
    """
    depths: list[int] = []

    class Leaf(Actor):
        def init(self) -> None:
            depths.append(len(inspect.stack(0)))

    def tree(levels: int) -> ChildSpec:
        if levels == 0:
            return ChildSpec("leaf", Leaf, register=False)
        return ChildSpec("inner", Supervisor, SupervisorSpec([tree(levels - 1)]), register=False)

    async with running_node() as node:
        for levels in (1, 11):
            await node.spawn(Supervisor, SupervisorSpec([tree(levels)]))

    assert depths[1] - depths[0] == 10 * 5
