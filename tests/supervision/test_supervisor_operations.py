"""Operations on the children of a supervisor, from inside and outside."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    Actor,
    BadInputError,
    ChildSpec,
    InitError,
    Killed,
    NameTakenError,
    Node,
    Normal,
    NotAllowedError,
    Reason,
    RestartPolicy,
    Shutdown,
    Strategy,
    Supervisor,
    SupervisorSpec,
    TargetDownError,
)
from ergo_py._core.vocabulary.errors import (
    ChildDisabledError,
    ChildEnabledError,
    ChildExistsError,
    ChildNotRunningError,
    ChildRunningError,
    ChildUnknownError,
    TooManyChildrenError,
)
from ergo_py._core.vocabulary.info import Phase
from ergo_py.errors import DeadlockError, ProcessUnknownError
from ergo_py.supervision import AutoShutdown
from tests.actors import Recorder
from tests.supervised import Child, Deaf, Fragile, Log, crash, phases, three
from tests.support import plan_of, process_of, running_node

# -- operations ------------------------------------------------------------------------------------


class Operated(Supervisor):
    """A supervisor that performs the operations it is called with on its children, from inside."""

    def __init__(self, specs: Sequence[ChildSpec]) -> None:
        self.specs = specs

    def children(self) -> SupervisorSpec:
        return SupervisorSpec(self.specs, auto_shutdown=False)

    async def handle_call(self, request: Callable[[Any], Awaitable[Any]], caller: Any) -> Any:
        try:
            return await request(self)
        except Exception as error:
            return error


Operate = Callable[..., Awaitable[Any]]


@pytest.fixture(params=["outside", "inside"])
def side(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def operator(node: Node, side: str) -> Operate:
    async def operate(verb: str, *args: Any) -> Any:
        if side == "outside":
            return await getattr(node.supervisor("top"), verb)(*args)
        result = await node.call("top", lambda me: getattr(me, verb)(*args))
        if isinstance(result, Exception):
            raise result
        return result

    return operate


class Counted(dict[str, Any]):
    """Counts how many of its values are looked at in sequence."""

    seen = 0

    def values(self) -> Any:
        for value in super().values():
            self.seen += 1
            yield value


async def test_an_operation_on_a_child_does_not_walk_over_the_others(side: str) -> None:
    log: Log = []
    async with running_node() as node:
        names = [str(number) for number in range(200)]
        top = await node.spawn(
            Operated, [ChildSpec(name, Child, log, name) for name in names], name="top"
        )
        plan = plan_of(process_of(node, top).behaviour)
        children = plan.children = Counted(plan.children)
        do = operator(node, side)

        for name in reversed(names[-20:]):
            await do("restart_child", name)
            await do("remove_child", name)
        seen = children.seen

        assert seen < 200
        assert len(node.supervisor("top").children()) == 180


async def test_children_can_be_added_stopped_started_restarted_and_removed(side: str) -> None:
    log: Log = []
    async with running_node() as node:
        await node.spawn(Operated, [ChildSpec("a", Child, log, "a")], name="top")
        tree, do = node.supervisor("top"), operator(node, side)
        a = node.whereis("a")

        b = await do("add_child", ChildSpec("b", Child, log, "b"))
        assert node.whereis("b") == b
        assert await do("stop_child", "a") == a
        assert phases(tree) == {"a": Phase.COMPLETED, "b": Phase.RUNNING}
        started = await do("start_child", "a")
        assert started != a
        restarted = await do("restart_child", started)
        assert node.whereis("a") == restarted
        assert await do("disable_child", "a") == restarted
        assert phases(tree)["a"] is Phase.DISABLED
        assert await do("enable_child", "a") == node.whereis("a")
        assert await do("remove_child", "b") == b

        assert phases(tree) == {"a": Phase.RUNNING}
        assert log == ["+a", "+b", "-a", "+a", "-a", "+a", "-a", "+a", "-b"]
        assert tree.count().total == 1
        assert tree.count().running == 1


async def test_a_refused_operation_raises_and_changes_no_child(side: str) -> None:
    log: Log = []
    async with running_node() as node:
        await node.spawn(Recorder, name="taken")
        specs = [ChildSpec(name, Child, log, name) for name in ("running", "stopped", "disabled")]
        await node.spawn(Operated, specs, name="top")
        tree, do = node.supervisor("top"), operator(node, side)
        await tree.stop_child("stopped")
        await tree.disable_child("disabled")
        before, log[:] = tree.children(), []

        refusals: list[tuple[type[Exception], str, Any]] = [
            (ChildUnknownError, "start_child", "nobody"),
            (ChildUnknownError, "stop_child", node.pid),
            (ChildRunningError, "start_child", "running"),
            (ChildDisabledError, "start_child", "disabled"),
            (ChildDisabledError, "restart_child", "disabled"),
            (ChildDisabledError, "disable_child", "disabled"),
            (ChildEnabledError, "enable_child", "running"),
            (ChildNotRunningError, "stop_child", "stopped"),
            (ChildNotRunningError, "stop_child", "disabled"),
            (ChildExistsError, "add_child", ChildSpec("running", Child, log, "again")),
            (NameTakenError, "add_child", ChildSpec("taken", Child, log, "taken")),
            (InitError, "add_child", ChildSpec("bad", Fragile, log, [], "bad")),
            (BadInputError, "add_child", Child),
        ]
        for error, verb, argument in refusals:
            with pytest.raises(error):
                await do(verb, argument)
        with pytest.raises(BadInputError):
            await do("start_child", "stopped", "an argument")

        assert tree.children() == before
        assert [entry for entry in log if not entry.endswith("bad")] == []


async def test_a_child_can_be_named_by_its_pid_and_other_values_are_unknown() -> None:
    async with running_node() as node:
        tree = await node.supervise(three([]))
        pid = node.whereis("a")
        assert pid is not None

        assert tree.service(pid).name == "a"
        with pytest.raises(ChildUnknownError):
            await tree.stop_child(["a"])  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("look", [Supervisor.which_children, Supervisor.count_children])
async def test_the_children_of_a_supervisor_cannot_be_read_while_children_runs(
    look: Callable[[Supervisor], object],
) -> None:
    class Early(Supervisor):
        def children(self) -> list[ChildSpec]:
            look(self)
            return []

    async with running_node() as node:
        with pytest.raises(InitError) as caught:
            await node.spawn(Early)

        assert isinstance(caught.value.__cause__, NotAllowedError)


async def test_a_failed_requested_start_leaves_the_child_unchanged(side: str) -> None:
    log: Log = []
    async with running_node() as node:
        await node.spawn(Operated, [ChildSpec("a", Fragile, log, [True], "a")], name="top")
        tree, do = node.supervisor("top"), operator(node, side)
        await tree.stop_child("a")

        with pytest.raises(InitError):
            await do("start_child", "a")

        assert phases(tree) == {"a": Phase.COMPLETED}


async def test_a_failed_requested_restart_is_tried_again_like_a_failure(
    side: str,
) -> None:
    log: Log = []
    async with running_node() as node:
        await node.spawn(
            Operated, [ChildSpec("a", Fragile, log, [True, False, True], "a")], name="top"
        )
        tree, do = node.supervisor("top"), operator(node, side)

        with pytest.raises(InitError):
            await do("restart_child", "a")
        await wait_all_tasks_blocked()

        assert phases(tree) == {"a": Phase.RUNNING}
        assert log == ["+a", "-a", "+a", "+a"]


async def test_a_simple_supervisor_creates_children_from_its_template_only() -> None:
    log: Log = []
    async with running_node() as node:
        tree = await node.supervise(
            [ChildSpec("conn", Child, log)], strategy=Strategy.SIMPLE_ONE_FOR_ONE
        )
        pid = await tree.start_child("conn", "one")
        [child] = tree.children()

        for operation in (
            partial(tree.add_child, ChildSpec("other", Child, log)),
            partial(tree.disable_child, child.name),
            partial(tree.enable_child, child.name),
        ):
            with pytest.raises(NotAllowedError):
                await operation()
        assert await tree.stop_child(pid) == pid

        assert tree.children() == []


async def kill_later(node: Node, name: str) -> None:
    await wait_all_tasks_blocked()
    node.kill(name)


async def test_an_operation_fails_when_its_supervisor_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running_node() as node:
        tree = await node.supervise(
            [ChildSpec("deaf", Deaf, trio.Event(), shutdown=30.0)], name="top"
        )
        node.send("deaf", "be deaf")
        await wait_all_tasks_blocked()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_later, node, "top")
            with pytest.raises(TargetDownError):
                await tree.restart_child("deaf")


async def test_an_operation_on_the_supervisor_from_the_init_of_a_child_is_a_deadlock() -> None:
    errors: Log = []

    class Impatient(Actor):
        async def init(self) -> None:
            try:
                await self.node.supervisor(self.parent).stop_child("a")
            except DeadlockError as error:
                errors.append(error)

    async with running_node() as node:
        await node.supervise([ChildSpec("a", Child, [], "a"), ChildSpec("impatient", Impatient)])

        assert len(errors) == 1


async def test_a_handle_by_name_finds_the_successor_of_a_supervisor() -> None:
    log: Log = []
    async with running_node() as node:
        inner = SupervisorSpec([ChildSpec("leaf", Child, log, "leaf")], intensity=0)
        await node.supervise([ChildSpec("inner", Supervisor, inner)])
        handle = node.supervisor("inner")
        first = handle.pid

        await crash(node, "leaf")

        assert handle.pid != first
        assert [child.name for child in handle.children()] == ["leaf"]
        with pytest.raises(ProcessUnknownError):
            node.supervisor("leaf")


# -- when a supervisor ends by itself --------------------------------------------------------------


@pytest.mark.parametrize(
    "restart, reason", [(RestartPolicy.TRANSIENT, Normal()), (RestartPolicy.TEMPORARY, Killed())]
)
async def test_the_final_end_of_a_significant_child_ends_the_supervisor(
    restart: RestartPolicy, reason: Reason
) -> None:
    log: Log = []
    async with running_node() as node:
        specs = [
            ChildSpec("main", Child, log, "main", significant=True, restart=restart),
            ChildSpec("b", Child, log),
        ]
        tree = await node.supervise(specs)
        process = process_of(node, tree.pid)

        node.send("main", reason)
        await wait_all_tasks_blocked()

        assert isinstance(process.reason, Shutdown)
        assert "'main'" in process.reason.detail
        assert node.processes() == []


async def test_a_significant_child_that_restarts_does_not_end_the_supervisor() -> None:
    async with running_node() as node:
        tree = await node.supervise(
            [ChildSpec("main", Child, [], significant=True, restart=RestartPolicy.TRANSIENT)]
        )

        await crash(node, "main")

        assert phases(tree) == {"main": Phase.RUNNING}


@pytest.mark.parametrize("automatic", [True, False])
async def test_auto_shutdown_decides_whether_a_supervisor_ends_with_its_last_child(
    automatic: bool,
) -> None:
    async with running_node() as node:
        specs = [ChildSpec(name, Child, [], restart=RestartPolicy.TRANSIENT) for name in "ab"]
        tree = await node.supervise(specs, auto_shutdown=automatic, name="top")

        node.send("a", Normal())
        await wait_all_tasks_blocked()
        assert phases(tree) == {"a": Phase.COMPLETED, "b": Phase.RUNNING}
        node.send("b", Normal())
        await wait_all_tasks_blocked()

        assert (node.whereis("top") is None) == automatic


async def test_the_reason_of_a_supervisor_without_children_names_the_option_that_keeps_it() -> None:
    async with running_node() as node:
        spec = ChildSpec("a", Child, [], restart=RestartPolicy.TRANSIENT)
        tree = await node.supervise([spec], name="top")

        node.send("a", Normal())

        assert "auto_shutdown=False keeps the supervisor" in str(await node.wait_ended(tree.pid))


@pytest.mark.parametrize(
    "policy, ends_after",
    [
        (AutoShutdown.LAST_CHILD, 1),
        (AutoShutdown.ANY_SIGNIFICANT, 1),
        (AutoShutdown.ALL_SIGNIFICANT, 2),
    ],
)
async def test_auto_shutdown_decides_which_significant_children_end_the_supervisor(
    policy: AutoShutdown, ends_after: int
) -> None:
    async with running_node() as node:
        specs = [
            ChildSpec("a", Child, [], significant=True, restart=RestartPolicy.TRANSIENT),
            ChildSpec("b", Child, [], significant=True, restart=RestartPolicy.TEMPORARY),
            ChildSpec("c", Child, []),
            ChildSpec("d", Child, [], significant=True, restart=RestartPolicy.TRANSIENT),
        ]
        tree = await node.supervise(specs, auto_shutdown=policy, name="top")
        # A child that is stopped has not ended by itself.
        await tree.stop_child("d")
        await crash(node, "a")
        assert node.whereis("top") is not None

        for number, name in enumerate(("b", "a"), 1):
            node.send(name, Normal())
            await wait_all_tasks_blocked()
            assert (node.whereis("top") is None) == (number >= ends_after)
            if number >= ends_after:
                break

        assert node.processes() == []


async def test_a_significant_child_is_refused_under_a_supervisor_that_never_ends() -> None:
    async with running_node() as node:
        tree = await node.supervise(
            [ChildSpec("a", Child, [], restart=RestartPolicy.TEMPORARY)],
            auto_shutdown=AutoShutdown.NEVER,
            name="top",
        )
        with pytest.raises(BadInputError, match=r"AutoShutdown\.NEVER"):
            await tree.add_child(
                ChildSpec("b", Child, [], significant=True, restart=RestartPolicy.TEMPORARY)
            )
        node.send("a", Normal())
        await wait_all_tasks_blocked()

        assert node.whereis("top") == tree.pid
        assert phases(tree) == {"a": Phase.COMPLETED}


async def test_many_significant_children_that_end_in_a_row_take_a_single_scan_each() -> None:
    async with running_node() as node:
        tree = await node.supervise(
            [
                ChildSpec(
                    f"child {number}", Child, [], significant=True, restart=RestartPolicy.TEMPORARY
                )
                for number in range(50)
            ],
            auto_shutdown=AutoShutdown.ALL_SIGNIFICANT,
        )
        top = process_of(node, tree.pid)
        for number in range(50):
            assert top.reason is None
            node.send(f"child {number}", Normal())
            await wait_all_tasks_blocked()

        assert isinstance(top.reason, Shutdown)
        assert "'child 49'" in top.reason.detail


async def test_max_children_bounds_the_children_of_a_template() -> None:
    async with running_node() as node:
        template = ChildSpec.template(
            "worker", Child, [], register=False, restart=RestartPolicy.TEMPORARY
        )
        tree = await node.supervise(
            [template], strategy=Strategy.SIMPLE_ONE_FOR_ONE, max_children=2
        )
        first = await tree.start_child("worker")
        await tree.start_child("worker")
        with pytest.raises(TooManyChildrenError, match="max_children=2"):
            await tree.start_child("worker")
        assert tree.count().running == 2

        node.send(first, Normal())
        await wait_all_tasks_blocked()
        await tree.start_child("worker")

        assert tree.count().total == 2


async def test_a_child_that_cannot_start_takes_no_place_of_max_children() -> None:
    async with running_node() as node:
        template = ChildSpec.template("worker", Fragile, [], register=False)
        tree = await node.supervise(
            [template], strategy=Strategy.SIMPLE_ONE_FOR_ONE, max_children=1
        )
        for _ in range(3):
            with pytest.raises(InitError):
                await tree.start_child("worker", [False])
        await tree.start_child("worker", [True])

        assert tree.count().running == 1


async def test_max_children_bounds_added_children() -> None:
    async with running_node() as node:
        tree = await node.supervise([ChildSpec("a", Child, [])], max_children=2)
        await tree.add_child(ChildSpec("b", Child, []))
        with pytest.raises(TooManyChildrenError, match="'c' was not started"):
            await tree.add_child(ChildSpec("c", Child, []))
        await tree.remove_child("a")
        await tree.add_child(ChildSpec("c", Child, []))

        assert [child.name for child in tree.children()] == ["b", "c"]


async def test_stopping_the_last_child_does_not_end_the_supervisor() -> None:
    async with running_node() as node:
        tree = await node.supervise([ChildSpec("a", Child, [])], name="top")

        await tree.stop_child("a")
        await wait_all_tasks_blocked()

        assert node.whereis("top") == tree.pid
