"""`upgrade_child`: another class takes over a running process, with everything that it has."""

import json
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    Actor,
    Caller,
    ChildSpec,
    Crashed,
    Node,
    NotAllowedError,
    Pool,
    PoolSpec,
    Priority,
    RestartPolicy,
    StateMachine,
    Strategy,
    Supervisor,
    SupervisorSpec,
    TargetDownError,
    Threads,
)
from ergo_py._core.vocabulary.envelopes import LOG, Lane
from ergo_py._core.vocabulary.errors import (
    ChildBusyError,
    ChildNotRunningError,
    ChildUnknownError,
)
from ergo_py.errors import BadInputError, BehaviourError, CallTimeoutError, DeadlockError
from ergo_py.state_machine import MachineState, state
from ergo_py.supervision.handle import SupervisorHandle
from tests.actors import Failed
from tests.support import kernel_of, process_of, running_node


class Old(Actor):
    """Keeps what it gets, with the number of its version."""

    version = 1

    def __init__(self, heard: list[Any] | None = None) -> None:
        self.heard: list[Any] = [] if heard is None else heard
        self.held: Caller | None = None

    def handle_message(self, message: Any, sender: Any) -> Any:
        if isinstance(message, Exception):
            raise message
        self.heard.append((self.version, message))

    def handle_call(self, request: Any, caller: Caller) -> object:
        if request == "hold":
            self.held = caller
            self.send_after(5, self.pid, "timer")
            return NO_REPLY
        return self.version, list(self.heard)

    def handle_log(self, record: Any) -> None:
        self.heard.append((self.version, "log"))


class New(Old):
    """The next version. Its callbacks are plain."""

    version = 2

    def handle_message(self, message: Any, sender: Any) -> Any:
        if message == "release" and self.held is not None:
            self.reply(self.held, self.version)
        elif message == "kill yourself":
            self.kill(self.pid)
            raise Failed("all the same")
        else:
            super().handle_message(message, sender)


class Awaiting(New):
    """The same with async callbacks, which wait."""

    version = 3

    async def handle_message(self, message: Any, sender: Any) -> None:
        await trio.sleep(1)
        super().handle_message(message, sender)

    async def handle_call(self, request: Any, caller: Caller) -> object:
        await trio.sleep(1)
        return super().handle_call(request, caller)


class Gated(Old):
    """Waits in each message until the test opens the gate."""

    def __init__(self, gate: trio.Event) -> None:
        super().__init__()
        self.gate = gate

    async def handle_message(self, message: Any, sender: Any) -> None:
        await self.gate.wait()
        super().handle_message(message, sender)


class Watcher(Actor):
    """Monitors and links a process, and keeps what it is told."""

    def __init__(self, target: Any, told: list[Any]) -> None:
        self.target, self.told = target, told

    def init(self) -> None:
        self.trap_exit = True
        self.monitor(self.target)
        self.link(self.target)

    def handle_message(self, message: Any, sender: Any) -> None:
        self.told.append(type(message).__name__)


async def supervised(node: Node, *specs: ChildSpec, **options: Any) -> SupervisorHandle:
    return await node.supervise(list(specs), name="top", **options)


class Logging(Old):
    """Logs each call."""

    def handle_call(self, request: Any, caller: Caller) -> object:
        self.log = self.log.bind(order=5)
        self.log.warning("called")
        return None


class LoggingAgain(Logging):
    """The next version."""

    def handle_call(self, request: Any, caller: Caller) -> object:
        self.log.warning("called")
        return None


async def test_an_upgraded_child_logs_as_its_new_class_with_the_values_that_it_has_bound(
    autojump_clock: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_node(log_output="json") as node:
        top = await supervised(node, ChildSpec("child", Logging))
        await node.call("child", "log")
        await top.upgrade_child("child", LoggingAgain)
        await node.call("child", "log")

        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        assert [(line["behaviour"], line["order"]) for line in lines] == [
            ("Logging", 5),
            ("LoggingAgain", 5),
        ]


@pytest.mark.parametrize("cls", [New, Awaiting])
async def test_an_upgraded_child_keeps_pid_name_mailbox_links_and_monitors(
    cls: type[Old], autojump_clock: Any
) -> None:
    async with running_node() as node:
        gate, told = trio.Event(), list[Any]()
        top = await supervised(
            node, ChildSpec("child", Gated, gate, restart=RestartPolicy.TEMPORARY)
        )
        pid = node.whereis("child")
        await node.spawn(Watcher, "child", told)
        node.send("child", 0)
        await wait_all_tasks_blocked()
        node.send("child", 1)
        node.send("child", 2)
        process = process_of(node, "child")
        process.router.signal(process, Lane.LOG, (LOG, process.id, None, "record"))
        node.send("child", "high", priority=Priority.HIGH)
        node.send("child", "max", priority=Priority.MAX)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(top.upgrade_child, "child", cls)
            await wait_all_tasks_blocked()
            node.send("child", "later", priority=Priority.HIGH)
            gate.set()
        await wait_all_tasks_blocked()
        await trio.sleep(10)
        heard = (await node.call("child", "heard"))[1]

        version = cls.version
        assert node.whereis("child") == pid
        assert heard == [
            *((1, 0), (1, "max"), (1, "high")),
            *((version, "later"), (version, 1), (version, 2), (version, "log")),
        ]
        assert node.process_info("child").behaviour == cls.__qualname__
        assert told == []
        node.kill("child")
        await wait_all_tasks_blocked()
        assert sorted(told) == ["Down", "Exit"]


async def test_calls_messages_and_timers_of_the_old_class_reach_the_other(
    autojump_clock: Any,
) -> None:
    """The callbacks of both classes are plain or async, in any order."""
    async with running_node() as node:
        top = await supervised(node, ChildSpec("child", Old))
        answers = list[Any]()

        async def hold() -> None:
            answers.append(await node.call("child", "hold"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold)
            await wait_all_tasks_blocked()
            await top.upgrade_child("child", Awaiting)
            assert (await node.call("child", "?"))[0] == 3
            await top.upgrade_child("child", New)
            assert (await node.call("child", "?"))[0] == 2
            node.send("child", "release")

        assert answers == [2]
        await trio.sleep(6)
        assert (await node.call("child", "?")) == (2, [(2, "timer")])


async def test_a_child_is_upgraded_while_it_is_suspended(autojump_clock: Any) -> None:
    async with running_node() as node:
        top = await supervised(node, ChildSpec("child", Old))
        await node.suspend("child")
        node.send("child", 1)

        await top.upgrade_child("child", Awaiting)

        assert process_of(node, "child").behaviour_itself.heard == []
        with pytest.raises(CallTimeoutError):
            await node.call("child", "?", timeout=1)
        await node.resume("child")
        for _ in range(2):
            assert await node.call("child", "?") == (3, [(3, 1)])


async def test_observers_and_changed_verbs_see_the_new_class() -> None:
    async with running_node() as node:
        top = await supervised(node, ChildSpec("child", Old))
        async with node.trace("child", limit=2) as trace:
            await top.upgrade_child("child", New)
            behaviour = process_of(node, "child").behaviour_itself
            behaviour.send("child", 1)
            seen = [entry.callback async for entry in trace]
        node.send("child", 2)
        await wait_all_tasks_blocked()

        assert seen == ["send", "handle_message"]
        assert behaviour.heard == [(2, 1), (2, 2)]
        assert "send" not in vars(behaviour)


@pytest.mark.parametrize("wrong", ["constructor", "migrate"])
async def test_an_upgrade_that_raises_changes_nothing(wrong: str) -> None:
    class Faulty(New):
        def __init__(self, *_: object) -> None:
            raise Failed("constructor")

    def migrate(_old: Old, new: New) -> None:
        new.heard = ["lost"]
        raise Failed("migrate")

    async with running_node() as node:
        top = await supervised(node, ChildSpec("child", Old))
        node.send("child", 1)
        failing = (
            top.upgrade_child("child", Faulty)
            if wrong == "constructor"
            else top.upgrade_child("child", New, migrate=migrate)
        )

        with pytest.raises(Failed, match=wrong) as caught:
            await failing

        assert caught.value.__notes__[-1].endswith("has changed nothing.")
        assert await node.call("child", "?") == (1, [(1, 1)])
        node.kill("child")
        await wait_all_tasks_blocked()
        assert await node.call("child", "?") == (1, [])


async def test_a_restart_after_an_upgrade_uses_the_new_class() -> None:
    def migrate(old: Old, new: New) -> None:
        new.heard = [*old.heard, "moved"]

    async with running_node() as node:
        top = await supervised(node, ChildSpec("child", Old, ["first"]))
        pid = node.whereis("child")

        assert await top.upgrade_child("child", New, ["second"], migrate=migrate) == pid
        assert await node.call("child", "?") == (2, ["first", "moved"])
        node.send("child", Failed("now"))
        await wait_all_tasks_blocked()

        assert node.whereis("child") != pid
        assert await node.call("child", "?") == (2, ["second"])


@pytest.mark.parametrize("cls", [New, Awaiting])
async def test_a_plain_class_ends_as_plain_classes_do_after_any_other(cls: type[New]) -> None:
    async with running_node() as node:
        top = await supervised(node, ChildSpec("child", cls, restart=RestartPolicy.TEMPORARY))
        await top.upgrade_child("child", New)

        node.send("child", "kill yourself")
        await wait_all_tasks_blocked()

        (ended,) = node.crashes()
        assert isinstance(ended.reason, Crashed)


async def test_an_upgrade_does_not_happen_after_its_caller_has_given_up(
    autojump_clock: Any,
) -> None:
    async with running_node() as node:
        gate = trio.Event()
        top = await supervised(node, ChildSpec("child", Gated, gate))
        node.send("child", 1)
        await wait_all_tasks_blocked()

        with pytest.raises(CallTimeoutError):
            await top.upgrade_child("child", New, timeout=1)
        gate.set()

        assert await node.call("child", "?") == (1, [(1, 1)])


async def test_a_child_that_ends_before_its_turn_is_not_upgraded() -> None:
    async with running_node() as node:
        top = await supervised(node, ChildSpec("child", Gated, trio.Event()))
        node.send("child", 1)
        await wait_all_tasks_blocked()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused_upgrade, top)
            await wait_all_tasks_blocked()
            node.kill("child")

        assert node.process_info("child").behaviour == Gated.__qualname__


async def refused_upgrade(top: SupervisorHandle) -> None:
    with pytest.raises(TargetDownError):
        await top.upgrade_child("child", New)


class Inside(Supervisor):
    """Upgrades its child from inside."""

    def __init__(self, name: str) -> None:
        self.name = name

    def children(self) -> SupervisorSpec:
        return SupervisorSpec([ChildSpec(self.name, Old)])

    async def handle_call(self, request: Any, caller: Caller) -> object:
        return await self.upgrade_child(self.name, request)


class Selfish(Old):
    """Wants to upgrade itself, and waits for it."""

    async def handle_call(self, request: Any, caller: Caller) -> object:
        with pytest.raises(DeadlockError):
            await self.node.supervisor("top").upgrade_child("child", New)
        return "refused"


async def test_a_supervisor_upgrades_its_child_and_a_child_does_not_wait_for_itself() -> None:
    async with running_node() as node:
        await node.spawn(Inside, "child", name="top")

        assert await node.call("top", Selfish) == node.whereis("child")
        assert await node.call("child", "?") == "refused"


class Plain(StateMachine):
    """A state machine does not follow an actor."""

    @state
    def first(self, message: Any, sender: Any) -> str:
        return "first"


async def test_an_upgrade_that_cannot_work_is_refused_with_the_cause() -> None:
    async def awaits(_old: Old, _new: New) -> None: ...

    async with running_node() as node:
        top = await supervised(
            node,
            ChildSpec("child", Old),
            ChildSpec("inner", Inside, "below"),
            ChildSpec("thread", Old, dispatcher=Threads()),
        )
        upgrade: Any = top.upgrade_child
        with pytest.raises(ChildUnknownError):
            await upgrade("other", New)
        with pytest.raises(BehaviourError, match="a subclass of Actor"):
            await upgrade("child", object)
        with pytest.raises(BehaviourError, match="restart_child"):
            await upgrade("inner", New)
        with pytest.raises(BehaviourError, match="restart_child"):
            await upgrade("child", Inside)
        with pytest.raises(BehaviourError, match="the same kind as Old"):
            await upgrade("child", Plain)
        with pytest.raises(NotAllowedError, match="in a thread"):
            await upgrade("thread", New)
        with pytest.raises(BadInputError, match="a plain function"):
            await upgrade("child", New, migrate=awaits)
        with pytest.raises(BadInputError, match="a plain function"):
            await upgrade("child", New, migrate=lambda old, new: awaits(new, old))
        await top.stop_child("child")
        with pytest.raises(ChildNotRunningError):
            await upgrade("child", New)
        await node.supervise(
            [ChildSpec.template("each", Old)], strategy=Strategy.SIMPLE_ONE_FOR_ONE, name="many"
        )
        with pytest.raises(NotAllowedError, match="upgrade_child is not for SIMPLE_ONE_FOR_ONE"):
            await node.supervisor("many").upgrade_child("each", New)


async def test_a_child_that_is_being_stopped_is_busy() -> None:
    async with running_node() as node:
        gate = trio.Event()
        top = await supervised(
            node,
            *(ChildSpec("gated", Gated, gate), ChildSpec("sibling", Old)),
            strategy=Strategy.ALL_FOR_ONE,
        )
        pool = await node.spawn(Pool, PoolSpec(partial(Gated, gate), size=2))
        oldest = node.supervisor(pool).children()[0].name
        node.send("gated", 1)
        for number in range(2):
            node.send(pool, number)
        await wait_all_tasks_blocked()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy_upgrade, node.supervisor(pool), oldest)
            await wait_all_tasks_blocked()
            nursery.start_soon(node.pool(pool).remove_workers, 1)
            node.kill("sibling")
            await wait_all_tasks_blocked()
            await busy_upgrade(top, "gated")
            gate.set()


async def busy_upgrade(top: SupervisorHandle, child: str) -> None:
    with pytest.raises(ChildBusyError):
        await top.upgrade_child(child, New)


class OldDoor(StateMachine):
    """A door that a method and a class describe."""

    def __init__(self) -> None:
        self.opened = 0

    class Open(MachineState["OldDoor"]):
        """Knows who has opened the door."""

        by: object = None

        def handle(self, message: Any, sender: Any) -> object:
            if isinstance(message, tuple):
                self.by = message[1]
            return "old", self.by

    states = (Open,)

    @state
    def closed(self, message: Any, sender: Any) -> str:
        if message == "wait":
            self.postpone()
        elif message == "open":
            self.become("Open")
        return "old closed"

    def first_state(self) -> str:
        self.start_timeout("night", 60)
        return "closed"


class NewDoor(StateMachine):
    """The next version of the door, with an async state."""

    def __init__(self) -> None:
        self.opened = 10

    class Open(MachineState["NewDoor"]):
        """Stays as it was opened."""

        by: object = None

        def handle(self, message: Any, sender: Any) -> object:
            return "new", self.by

    states = (Open,)

    @state
    async def closed(self, message: Any, sender: Any) -> object:
        if message == "open":
            self.become("Open")
        return "new closed", type(message).__name__, self.opened

    def first_state(self) -> str:
        raise AssertionError("an upgrade enters no state")


class Wall(StateMachine):
    """Has no door."""

    @state
    def solid(self, message: Any, sender: Any) -> None: ...


async def test_a_state_machine_goes_on_in_its_state_with_timeouts_and_postponed_messages(
    autojump_clock: Any,
) -> None:
    async with running_node() as node:
        top = await supervised(node, ChildSpec("door", OldDoor))
        with pytest.raises(BadInputError, match="a state of Wall: solid"):
            await top.upgrade_child("door", Wall)
        with pytest.raises(BehaviourError, match="the same kind as OldDoor"):
            await top.upgrade_child("door", New)
        answers = list[Any]()

        async def wait() -> None:
            answers.append(await node.call("door", "wait"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()

            await top.upgrade_child("door", NewDoor)

            assert (await node.inspect("door"))["timeout night"].startswith("in ")
            assert await node.call("door", "?") == ("new closed", "str", 0)
            assert await node.call("door", "open") == ("new closed", "str", 0)
        assert answers == [("new", None)]


async def test_a_state_that_is_a_class_keeps_its_attributes() -> None:
    async with running_node() as node:
        top = await supervised(node, ChildSpec("door", OldDoor))
        await node.call("door", "open")
        await node.call("door", ("by", "guest"))

        await top.upgrade_child("door", NewDoor)

        assert await node.call("door", "?") == ("new", "guest")


class Idler(Old):
    """Counts its idle times."""

    def init(self) -> None:
        self.set_idle_timeout(10)

    def handle_idle(self) -> None:
        self.heard.append((self.version, "idle"))


class NewIdler(Idler):
    """The next version. It has the timeout of its predecessor."""

    version = 2

    def init(self) -> None:
        raise AssertionError("an upgrade calls no init")


async def test_an_idle_timeout_goes_on(autojump_clock: Any) -> None:
    async with running_node() as node:
        top = await supervised(node, ChildSpec("child", Idler))
        with pytest.raises(BehaviourError, match=r"set_idle_timeout\(None\)"):
            await top.upgrade_child("child", New)
        await trio.sleep(9)

        await top.upgrade_child("child", NewIdler)
        await trio.sleep(2)

        assert (await node.call("child", "?"))[1] == [(2, "idle")]


async def test_counters_of_a_behaviour_do_not_fall_with_an_upgrade() -> None:
    async with running_node() as node:
        top = await supervised(node, ChildSpec("child", Old))
        for number in range(3):
            node.send("child", number)
        await wait_all_tasks_blocked()
        kernel = kernel_of(node)

        await top.upgrade_child("child", New)

        process = process_of(node, "child")
        behaviours = kernel.lifetimes.past.read(lambda: None)[1].behaviours
        assert behaviours["Old"].handled == process.handled
        assert behaviours["New"].handled == -process.handled
        node.kill("child")
        await wait_all_tasks_blocked()
        assert kernel.lifetimes.past.read(lambda: None)[1].behaviours["New"].handled >= 0
