"""The verbs of a node: for code that is no process, from the loop and from threads, before and
after its end.
"""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Caller,
    Custom,
    Down,
    Killed,
    MetaProcess,
    Name,
    NameTakenError,
    Node,
    NodeStoppedError,
    Normal,
    NotAllowedError,
    Priority,
    Shutdown,
    TargetDownError,
    Unregistered,
    Why,
)
from ergo_py.errors import ProcessUnknownError
from tests.actors import Deferring, Puppet, Recorder, SlowEnd, Witness
from tests.support import running_node


async def test_a_node_has_its_name_pid_environment_and_repr(autojump_clock: MockClock) -> None:
    async with running_node("demo@localhost", env={"key": "value"}) as node:
        await node.spawn(Puppet)

        assert node.name == "demo@localhost"
        assert node.pid.node == "demo@localhost"
        assert node.pid.number == 0
        assert dict(node.env) == {"key": "value"}
        assert repr(node) == "<Node demo@localhost 1 processes>"
        assert not node.stopping


async def test_processes_are_listed_oldest_first(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pids = [await node.spawn(Puppet) for _ in range(5)]
        node.kill(pids.pop(2))
        await wait_all_tasks_blocked()

        assert node.processes() == pids == sorted(pids)


# -- names -----------------------------------------------------------------------------------------


async def test_a_node_registers_and_unregisters_names(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid, watcher = await node.spawn(Puppet), await node.spawn(Puppet, heard)

        node.register("given", pid)
        node.register("given", pid)
        await node.call(watcher, lambda me: me.monitor("given"))
        held = node.whereis("given"), await node.call("given", lambda me: me.registered_name)
        node.unregister("given")
        await wait_all_tasks_blocked()

        assert held == (pid, "given")
        assert node.whereis("given") is None
        assert heard == [Down(Name("given", node.name), Unregistered())]
        assert node.processes() == [pid, watcher]


async def test_a_name_is_not_registered_twice_nor_for_a_process_with_another_name(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        holder, other = await node.spawn(Puppet, name="held"), await node.spawn(Puppet)

        with pytest.raises(NameTakenError):
            node.register("held", other)
        with pytest.raises(NotAllowedError, match="one name at a time"):
            node.register("second", holder)

        assert node.whereis("held") == holder
        assert node.whereis("second") is None
        assert node.process_info(other).name is None


NOBODY = pytest.mark.parametrize(
    "target", ["nobody", Name("nobody"), PID("test@localhost", 1, 1)], ids=repr
)


@NOBODY
async def test_verbs_of_the_node_raise_for_an_unknown_target(
    autojump_clock: MockClock, target: Any
) -> None:
    async with running_node() as node:
        plain: list[Callable[[], Any]] = [
            lambda: node.process_info(target),
            lambda: node.register("name", target),
            lambda: node.add_logger(target),
            lambda: node.remove_logger(target),
        ]

        for verb in plain:
            with pytest.raises(ProcessUnknownError, match="no process at") as caught:
                verb()
            assert caught.value.target == target
            assert isinstance(caught.value, LookupError)
        for look in (node.inspect, node.wait_ended):
            with pytest.raises(ProcessUnknownError):
                await look(target)
        with pytest.raises(ProcessUnknownError):
            node.unregister("nobody")

        assert node.info().names == 0


# -- from outside ----------------------------------------------------------------------------------


async def test_a_node_sends_exits_as_the_parent_of_its_processes(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        pids = [await node.spawn(Witness, ends) for _ in range(2)]

        sent = node.send_exit(pids[0]), node.send_exit(pids[1], "enough")
        await wait_all_tasks_blocked()

        assert sent == (True, True)
        assert sorted(ends, key=str) == [Custom("enough"), Shutdown()]


async def test_a_node_arms_its_own_timers(autojump_clock: MockClock) -> None:
    senders: list[Any] = []

    class Receiver(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            senders.append((message, sender))

    async with running_node() as node:
        await node.spawn(Receiver, name="receiver")

        once = node.send_after(1, "receiver", "once", priority=Priority.HIGH)
        often = node.send_every(1, "receiver", "often")
        await trio.sleep(2.5)
        cancelled = once.cancel(), often.cancel()
        await trio.sleep(5)

        assert sorted(senders) == [("often", node.pid), ("often", node.pid), ("once", node.pid)]
        assert cancelled == (False, True)
        assert node.info().timers == 0


async def test_a_node_answers_deferred_calls(autojump_clock: MockClock) -> None:
    callers: list[Caller] = []

    async with running_node() as node:
        pid = await node.spawn(Deferring, callers)
        answers: list[Any] = []

        async def ask() -> None:
            try:
                answers.append(await node.call(pid, 1))
            except LookupError as error:
                answers.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(ask)
                await wait_all_tasks_blocked()
            accepted = (
                node.reply(callers[0], "answer"),
                node.reply_error(callers[1], LookupError("refused")),
            )
            late = node.reply(callers[0], "again")

        assert accepted == (True, True)
        assert late is False
        assert sorted(map(str, answers)) == ["answer", "refused"]


# -- threads ---------------------------------------------------------------------------------------


async def test_a_thread_may_use_the_verbs_of_a_node() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard, name="receiver")
        victim = await node.spawn(Puppet)
        polite = await node.spawn(Puppet)

        def work() -> list[Any]:
            node.send_after(1_000, "receiver", "never")
            node.register("given by a thread", victim)
            results = [
                node.send("receiver", "from a thread"),
                node.call_from_thread("receiver", None),
                node.whereis("receiver"),
                node.process_info("receiver").pid,
                node.info().processes,
                node.processes(),
                node.kill(victim),
                node.send_exit(polite, Normal()),
                node.send_exit("nobody", Normal()),
            ]
            node.unregister("receiver")
            return results

        results = await trio.to_thread.run_sync(work)
        await wait_all_tasks_blocked(0.01)

        assert results == [
            True,
            ["from a thread"],
            pid,
            pid,
            3,
            [pid, victim, polite],
            True,
            True,
            False,
        ]
        assert node.processes() == [pid]
        assert node.whereis("receiver") is None
        assert node.info().timers == 1


async def test_verbs_that_wait_are_refused_on_another_loop(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        errors: list[str] = []

        async def elsewhere() -> None:
            for verb in (
                lambda: node.spawn(Puppet),
                lambda: node.call(pid, 1),
                lambda: node.send_wait(pid, 1),
                lambda: node.inspect(pid),
            ):
                with pytest.raises(NotAllowedError, match="call_from_thread") as caught:
                    await verb()
                errors.append(str(caught.value))

        await trio.to_thread.run_sync(trio.run, elsewhere)

        assert len(errors) == 4
        assert node.processes() == [pid]


async def test_a_deferred_call_may_be_answered_by_a_thread() -> None:
    async with running_node() as node:
        callers: list[Caller] = []
        pid = await node.spawn(Deferring, callers)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await node.call(pid, 1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            await trio.to_thread.run_sync(node.reply, callers[0], "from a thread")

        assert answers == ["from a thread"]


# -- after the end ---------------------------------------------------------------------------------


STOPPED: dict[str, Callable[[Node, PID], Any]] = {
    "spawn": lambda node, pid: node.spawn(Puppet),
    "send": lambda node, pid: node.send(pid, 1),
    "send to a name": lambda node, pid: node.send("name", 1),
    "send_wait": lambda node, pid: node.send_wait(pid, 1),
    "send_after": lambda node, pid: node.send_after(1, pid, 1),
    "send_every": lambda node, pid: node.send_every(1, pid, 1),
    "call": lambda node, pid: node.call(pid, 1),
    "inspect": lambda node, pid: node.inspect(pid),
    "send_exit": lambda node, pid: node.send_exit(pid),
    "kill": lambda node, pid: node.kill(pid),
    "register": lambda node, pid: node.register("name", pid),
    "unregister": lambda node, pid: node.unregister("name"),
    "info": lambda node, pid: node.info(),
    "process_info": lambda node, pid: node.process_info(pid),
    "add_logger": lambda node, pid: node.add_logger(pid),
    "remove_logger": lambda node, pid: node.remove_logger(pid),
    "stop": lambda node, pid: node.stop(),
    "stop_soon": lambda node, pid: node.stop_soon(),
    "call_from_thread": lambda node, pid: trio.to_thread.run_sync(node.call_from_thread, pid, 1),
    "send from a thread": lambda node, pid: trio.to_thread.run_sync(node.send, pid, 1),
    "info from a thread": lambda node, pid: trio.to_thread.run_sync(node.info),
}


@pytest.mark.parametrize("verb", STOPPED)
async def test_verbs_of_a_stopped_node_raise_and_suggest_open_node(verb: str) -> None:
    with trio.fail_after(30):
        async with running_node() as node:
            pid = await node.spawn(Puppet)

        with pytest.raises(NodeStoppedError, match=r"open a new node with open_node\(") as caught:
            result = STOPPED[verb](node, pid)
            await result

        assert caught.value.node == "test@localhost"
        assert isinstance(caught.value, RuntimeError)


async def test_a_stopped_node_still_answers_questions_about_itself(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet, name="name")
        node.send("nobody", 1)

    assert node.stopping
    assert node.processes() == []
    assert node.whereis("name") is None
    assert node.alive() == []
    assert [letter.why for letter in node.dead_letters()] == [Why.NO_PROCESS]
    assert node.exit_report is not None
    assert [one.pid for one in node.exit_report.stopped] == [pid]


async def test_a_call_that_waits_when_the_node_stops_ends(autojump_clock: MockClock) -> None:
    reasons: list[Any] = []

    async def call(node: Node, pid: PID) -> None:
        with pytest.raises(TargetDownError) as caught:
            await node.call(pid, lambda me: NO_REPLY, timeout=None)
        reasons.append(caught.value.reason)

    async with trio.open_nursery() as nursery, running_node() as node:
        pid = await node.spawn(Puppet)
        nursery.start_soon(call, node, pid)
        await wait_all_tasks_blocked()

    assert reasons == [Shutdown()]


async def test_a_thread_that_waits_for_an_answer_when_the_node_stops_is_freed() -> None:
    reasons: list[Any] = []

    async def in_thread(node: Node, pid: PID) -> None:
        def call() -> None:
            with pytest.raises(TargetDownError) as caught:
                node.call_from_thread(pid, "keep", timeout=None)
            reasons.append(caught.value.reason)

        await trio.to_thread.run_sync(call)

    entered = trio.Event()

    class Keeping(Actor):
        def handle_call(self, request: Any, caller: Caller) -> object:
            entered.set()
            return NO_REPLY

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery, running_node() as node:
            pid = await node.spawn(Keeping)
            nursery.start_soon(in_thread, node, pid)
            await entered.wait()

    assert reasons == [Shutdown()]


async def test_alive_shows_the_state_of_each_process(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        idle, busy = await node.spawn(Puppet, name="idle"), await node.spawn(Puppet)
        node.send(busy, lambda me: trio.Event().wait())
        await wait_all_tasks_blocked()

        assert node.alive() == [
            f"<Puppet 'idle' {idle}> sleep",
            f"<Puppet {busy}> running in handle_message",
        ]


async def test_alive_with_stacks_shows_where_callbacks_wait(
    autojump_clock: MockClock,
) -> None:
    async def wait_for_good(me: Puppet) -> None:
        await trio.sleep_forever()

    async with running_node() as node:
        await node.spawn(Puppet, name="idle")
        busy = await node.spawn(Puppet)
        node.send(busy, wait_for_good)
        await wait_all_tasks_blocked()

        idle, working, *stack = node.alive(stacks=True)

        assert idle.endswith("sleep")
        assert working == f"<Puppet {busy}> running in handle_message"
        assert "await trio.sleep_forever()" in "\n".join(stack)
        where = [line.rpartition(", in ")[2] for line in stack if line.startswith("  File")]
        loop = "serve" if "serve" in where else "serve_batches"  # of the C extension
        assert where.index(loop) < where.index("handle_message") < where.index("wait_for_good")


async def test_alive_with_stacks_shows_where_tasks_of_meta_processes_wait(
    autojump_clock: MockClock,
) -> None:
    class InTasks(MetaProcess):
        async def start(self) -> None:
            await trio.sleep_forever()

        async def handle_message(self, message: object, sender: object) -> None:
            await trio.Event().wait()

    async with running_node() as node:
        owner = await node.spawn(Puppet)
        meta = InTasks()
        await node.call(owner, lambda me: me.spawn_meta(meta))
        await wait_all_tasks_blocked()
        before = "\n".join(node.alive(stacks=True))
        node.send(meta.id, None)
        await wait_all_tasks_blocked()
        after = "\n".join(node.alive(stacks=True))

        assert ", in start\n" in before
        assert ", in handle_message\n" not in before
        assert ", in start\n" in after
        assert ", in handle_message\n" in after


async def test_wait_ended_waits_until_the_name_is_released(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(SlowEnd, 2.0, name="slow")
        node.kill(pid)

        reason = await node.wait_ended("slow")

        assert reason == Killed()
        assert trio.current_time() == 2
        assert node.whereis("slow") is None


async def test_spawn_meta_on_the_node_raises_and_suggests_self_spawn_meta(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        with pytest.raises(AttributeError, match=r"await self\.spawn_meta"):
            node.spawn_meta  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018
        with pytest.raises(AttributeError, match="'Node' object has no attribute 'spwan'"):
            node.spwan  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018
        assert not hasattr(Node, "spawn_meta")
        assert not hasattr(Node, "__getattr__")  # which slows down each verb
