"""Applications on a node: started all or nothing, stopped in order, watched, and visible."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    Actor,
    Application,
    BadInputError,
    ChildSpec,
    Crashed,
    InitError,
    Needs,
    Node,
    Normal,
    NotAllowedError,
    Reason,
    RestartPolicy,
    Shutdown,
    Strategy,
    Supervisor,
    SupervisorSpec,
)
from ergo_py._core.vocabulary.errors import (
    ApplicationNeededError,
    ApplicationStartError,
    ApplicationUnknownError,
)
from ergo_py._core.vocabulary.info import Phase
from ergo_py.errors import EscalationError
from tests.actors import Failed, Recorder
from tests.supervised import Child, Fragile, Log
from tests.support import kernel_of, running_node

PENDING, RUNNING, COMPLETED, FAILED = Phase.PENDING, Phase.RUNNING, Phase.COMPLETED, Phase.FAILED


class Talking(Application):
    """Writes down when its callbacks are called; fails in those that it is told to."""

    def __init__(self, log: Log, name: str, *args: Any, fails: str = "", **options: Any) -> None:
        super().__init__(name, *args, **options)
        self.log_of_test = log
        self.fails = fails

    def _say(self, what: str) -> None:
        self.log_of_test.append(f"{what} {self.name}")
        if self.fails == what:
            raise Failed(what)

    async def before_start(self, node: Node) -> None:
        await trio.lowlevel.checkpoint()
        self._say("before start")

    def after_start(self, node: Node) -> None:
        self._say("after start")

    def before_stop(self, node: Node, reason: Reason) -> None:
        self._say("before stop")

    async def after_stop(self, node: Node, reason: Reason) -> None:
        await trio.lowlevel.checkpoint()
        self._say("after stop")


def one(log: Log, name: str, *depends_on: str, fails: str = "", **options: Any) -> Talking:
    return Talking(
        log,
        name,
        [ChildSpec(f"{name}-1", Child, log, name)],
        depends_on=depends_on,
        fails=fails,
        **options,
    )


def phases(node: Node) -> dict[str, Phase]:
    return {info.name: info.phase for info in node.applications()}


# -- start and stop --------------------------------------------------------------------------------


async def test_applications_start_after_their_dependencies_and_stop_in_reverse_order(
    autojump_clock: MockClock,
) -> None:
    log: Log = []
    async with running_node() as node:
        started = await node.start_applications(one(log, "web", "db"), one(log, "db"))
        running = phases(node)
        stopped = await node.stop_applications()

        assert (started, stopped) == (["db", "web"], ["web", "db"])
        assert running == {"db": RUNNING, "web": RUNNING}
        assert phases(node) == {"db": COMPLETED, "web": COMPLETED}
        assert node.processes() == []
    assert log == [
        *[
            "before start db",
            "+db",
            "after start db",
            "before start web",
            "+web",
            "after start web",
        ],
        *["before stop web", "-web", "after stop web", "before stop db", "-db", "after stop db"],
    ]


async def test_the_end_of_the_node_stops_applications_in_order_with_their_callbacks(
    autojump_clock: MockClock,
) -> None:
    log: Log = []
    async with running_node() as node:
        await node.start_applications(one(log, "web", "db"), one(log, "db"))
        log.clear()

    assert log == [
        "before stop web",
        "-web",
        "after stop web",
        "before stop db",
        "-db",
        "after stop db",
    ]


async def test_an_application_starts_with_its_dependencies_only(
    autojump_clock: MockClock,
) -> None:
    log: Log = []
    async with running_node() as node:
        node.load_applications(one(log, "web", "db"), one(log, "db"), one(log, "other"))

        started = await node.start_applications("web")
        again = await node.start_applications("web")

        assert (started, again) == (["db", "web"], [])
        assert phases(node) == {"db": RUNNING, "web": RUNNING, "other": PENDING}


async def test_an_application_that_has_ended_can_be_started_again(
    autojump_clock: MockClock,
) -> None:
    log: Log = []
    web = one(log, "web")
    async with running_node() as node:
        await node.start_applications(web)
        await node.stop_applications("web")

        assert await node.start_applications(web) == ["web"]

        assert phases(node) == {"web": RUNNING}


@pytest.mark.parametrize("fails", ["before start", "a child", "after start"])
async def test_a_start_that_fails_in_the_middle_leaves_no_process_running(
    fails: str, autojump_clock: MockClock
) -> None:
    log: Log = []
    children = [
        ChildSpec("first", Child, log, "first"),
        ChildSpec("second", Fragile, log, [fails != "a child"], "second"),
    ]
    async with running_node() as node:
        node.load_applications(
            one(log, "db"),
            Talking(log, "web", children, depends_on=["db"], fails=fails),
            one(log, "last", "web"),
        )

        with pytest.raises(ApplicationStartError) as caught:
            await node.start_applications("last")

        assert node.processes() == []
        assert kernel_of(node).services == {}
        assert phases(node) == {"db": PENDING, "web": FAILED, "last": PENDING}
        assert (caught.value.application, caught.value.undone) == ("web", ("db",))
        assert isinstance(caught.value.__cause__, InitError if fails == "a child" else Failed)
        assert log[-3:] == ["before stop db", "-db", "after stop db"]
        assert ("after stop web" in log) == (fails != "before start")
        assert not any("last" in str(entry) for entry in log)


async def test_a_start_that_is_cancelled_leaves_no_process_running(
    autojump_clock: MockClock,
) -> None:
    class Slow(Actor):
        async def init(self) -> None:
            await trio.sleep(100)

    log: Log = []
    async with running_node() as node:
        web = Talking(log, "web", [ChildSpec("slow", Slow, init_timeout=1000)], depends_on=["db"])

        with trio.move_on_after(1) as scope:
            await node.start_applications(web, one(log, "db"))

        assert scope.cancelled_caught
        assert node.processes() == []
        assert phases(node) == {"db": PENDING, "web": FAILED}
        assert log[-4:] == ["after stop web", "before stop db", "-db", "after stop db"]


async def test_mistakes_are_found_before_any_application_is_loaded_or_started(
    autojump_clock: MockClock,
) -> None:
    log: Log = []
    async with running_node() as node:
        with pytest.raises(BadInputError):
            await node.start_applications(one(log, "db"), one(log, "web", "bd"))
        with pytest.raises(BadInputError, match="an Application, such as"):
            await node.start_applications(7)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        with pytest.raises(ApplicationUnknownError, match="there are: none"):
            await node.start_applications("web")

        assert (log, node.applications()) == ([], [])


async def test_an_application_is_not_stopped_before_its_dependents(
    autojump_clock: MockClock,
) -> None:
    log: Log = []
    async with running_node() as node:
        await node.start_applications(one(log, "web", "db"), one(log, "db"))

        with pytest.raises(ApplicationNeededError, match=r"stop_applications\('web', 'db'\)"):
            await node.stop_applications("db")

        assert phases(node) == {"db": RUNNING, "web": RUNNING}
        assert await node.stop_applications("db", "web") == ["web", "db"]


async def test_a_callback_of_an_application_cannot_start_another(autojump_clock: MockClock) -> None:
    class Eager(Application):
        async def before_start(self, node: Node) -> None:
            await node.start_applications("db")

    log: Log = []
    async with running_node() as node:
        node.load_applications(one(log, "db"))

        with pytest.raises(ApplicationStartError, match="depends_on") as caught:
            await node.start_applications(Eager("web", []))

        assert isinstance(caught.value.__cause__, NotAllowedError)


async def test_an_after_stop_that_fails_does_not_hide_why_the_start_failed(
    autojump_clock: MockClock,
) -> None:
    log: Log = []
    async with running_node() as node:
        web = Talking(log, "web", [ChildSpec("a", Fragile, log, [False], "a")], fails="after stop")

        with pytest.raises(ApplicationStartError) as caught:
            await node.start_applications(web)

        assert isinstance(caught.value.error, InitError)


# -- its end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mode, end, stops",
    [
        (RestartPolicy.TEMPORARY, Failed(), False),
        (RestartPolicy.TRANSIENT, Failed(), True),
        (RestartPolicy.TRANSIENT, Normal(), False),
        (RestartPolicy.PERMANENT, Normal(), True),
    ],
)
async def test_the_mode_decides_whether_the_end_of_an_application_stops_the_node(
    mode: RestartPolicy, end: Any, stops: bool, autojump_clock: MockClock
) -> None:
    log: Log = []
    spec = SupervisorSpec(
        [ChildSpec("a", Child, log, "a", restart=RestartPolicy.TRANSIENT)],
        Strategy.ONE_FOR_ONE,
        intensity=0,
    )
    raised: list[BaseException] = []
    goes_on = False
    try:
        async with running_node() as node:
            await node.start_applications(Application("web", spec, mode=mode))
            node.send("a", end)
            await trio.sleep(1)
            goes_on = True
            assert phases(node) == {"web": FAILED if isinstance(end, Failed) else COMPLETED}
    except EscalationError as error:
        raised.append(error)

    assert goes_on is not stops
    assert bool(raised) is stops


async def test_an_application_that_is_asked_to_stop_does_not_stop_the_node(
    autojump_clock: MockClock,
) -> None:
    log: Log = []
    async with running_node() as node:
        await node.start_applications(one(log, "web", mode=RestartPolicy.PERMANENT))

        await node.stop_applications("web")
        await trio.sleep(1)

        assert not node.stopping


async def test_the_termination_reason_of_an_application_is_kept(autojump_clock: MockClock) -> None:
    log: Log = []
    async with running_node() as node:
        await node.start_applications(one(log, "web"))

        node.kill("web")
        await trio.sleep(1)

        [info] = node.applications()
        assert (info.phase, str(info.reason), info.pid, info.uptime) == (
            FAILED,
            "killed",
            None,
            0.0,
        )


async def test_an_application_that_ends_during_its_start_fails_to_start(
    autojump_clock: MockClock,
) -> None:
    class Suicidal(Application):
        async def after_start(self, node: Node) -> None:
            node.kill("web")
            await trio.sleep(1)

    async with running_node() as node:
        with pytest.raises(ApplicationStartError, match="ended while it was being started"):
            await node.start_applications(Suicidal("web", [ChildSpec("a", Recorder)]))

        assert phases(node) == {"web": FAILED}


# -- services and environment of members -----------------------------------------------------------


class Member(Actor):
    db = Needs("db")

    async def handle_call(self, request: Any, caller: Any) -> object:
        return self.env.get("colour") if request == "colour" else await self.db.call(request)


class Named(Actor):
    def __init__(self, answer: str) -> None:
        self.answer = answer

    def handle_call(self, request: Any, caller: Any) -> object:
        return (self.answer, caller.pid)


async def test_a_member_gets_the_service_of_a_dependency_of_its_application(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        await node.start_applications(
            Application("store", [ChildSpec("db", Named, "the store's")]),
            Application("web", [ChildSpec("member", Member)], depends_on=["store"]),
        )

        answer = await node.call("member", "who")

        assert answer == ("the store's", node.whereis("member"))


async def test_a_member_gets_the_nearest_service_of_a_name(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        await node.start_applications(
            Application("store", [ChildSpec("db", Named, "the store's")]),
            Application(
                "web",
                [
                    ChildSpec("db", Named, "its own", register=False),
                    ChildSpec("inner", Supervisor, [ChildSpec("member", Member)]),
                ],
                depends_on=["store"],
            ),
        )

        assert (await node.call("member", "who"))[0] == "its own"


async def test_the_service_of_a_member_survives_a_restart_of_its_process(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        await node.start_applications(
            Application("web", [ChildSpec("db", Named, "db"), ChildSpec("member", Member)])
        )
        await node.call("member", "who")

        node.kill("db")
        await node.wait_ended("db")

        assert (await node.call("member", "who"))[0] == "db"


async def test_members_have_the_environment_of_their_application_over_that_of_the_node(
    autojump_clock: MockClock,
) -> None:
    async with running_node(env={"colour": "red"}) as node:
        db = ChildSpec("db", Named, "db")
        await node.start_applications(
            Application("web", [db, ChildSpec("member", Member)], env={"colour": "blue"})
        )

        assert await node.call("member", "colour") == "blue"


# -- looking ---------------------------------------------------------------------------------------


async def test_phases_are_shown_by_the_tree_and_by_inspect(autojump_clock: MockClock) -> None:
    log: Log = []
    async with running_node() as node:
        node.load_applications(one(log, "web", "db"), one(log, "db", mode=RestartPolicy.TRANSIENT))
        await node.start_applications("db")
        await wait_all_tasks_blocked()

        lines = str(node.tree()).splitlines()
        told = await node.inspect("db")

        assert lines[1].startswith("├─ db Application <PID")
        assert lines[1].endswith("(one for one)")
        assert lines[3] == "└─ web Application (pending)"
        assert [told[key] for key in ("application", "phase", "mode", "depends on")] == [
            "db",
            "running",
            "transient",
            "",
        ]
        assert told["child db-1"].startswith("running")


async def test_an_application_with_a_slow_stop_is_terminating(
    autojump_clock: MockClock,
) -> None:
    class Slow(Application):
        async def before_stop(self, node: Node, reason: Reason) -> None:
            await trio.sleep(2)

    async with running_node() as node, trio.open_nursery() as nursery:
        await node.start_applications(Slow("web", [ChildSpec("a", Recorder)]))
        nursery.start_soon(node.stop_applications, "web")
        await trio.sleep(1)

        assert phases(node) == {"web": Phase.TERMINATING}
        assert "terminating" in str(node.tree())


async def test_every_change_of_phase_is_published(autojump_clock: MockClock) -> None:
    heard: Log = []

    class Listener(Actor):
        def init(self) -> None:
            self.subscribe("ergo.application_phase")

        def handle_event(self, event: Any) -> None:
            heard.append((event.message.name, event.message.phase.value, event.message.reason))

    log: Log = []
    async with running_node() as node:
        await node.spawn(Listener)
        await node.start_applications(one(log, "web"))
        await node.stop_applications("web")
        with pytest.raises(ApplicationStartError):
            await node.start_applications(one(log, "bad", fails="before start"))
        await wait_all_tasks_blocked()

        assert [(name, phase) for name, phase, _ in heard] == [
            ("web", "pending"),
            ("web", "running"),
            ("web", "terminating"),
            ("web", "completed"),
            ("bad", "pending"),
            ("bad", "failed"),
        ]
        assert isinstance(heard[3][2], Shutdown)
        assert isinstance(heard[5][2], Crashed)
