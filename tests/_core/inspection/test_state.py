"""Inspecting a process that has no code for it: its state, holding it, and leaving it unchanged."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    LOOP,
    PID,
    Actor,
    BadInputError,
    CallTimeoutError,
    ChildSpec,
    Crashed,
    Down,
    Killed,
    MetaProcess,
    Node,
    NotAllowedError,
    Priority,
    Shutdown,
    TargetDownError,
    Threads,
)
from ergo_py._core.inspection.state import show
from ergo_py.errors import DeadlockError, ProcessUnknownError
from ergo_py.info import Dispatcher, State
from tests.actors import Failed, Puppet, Recorder
from tests.support import kernel_of, process_of, running_node


class Slotted(Actor):
    __slots__ = ("label", "unset")

    def __init__(self) -> None:
        self.label = "a"
        self.total = 1


class Busy:
    @staticmethod
    async def wait() -> None:
        await trio.sleep_forever()


# -- state -----------------------------------------------------------------------------------------


async def test_the_state_is_the_attributes_of_the_behaviour(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Slotted)

        state = await node.get_state(pid)

        assert state == {"label": "a", "total": 1}


async def test_the_state_is_read_between_two_messages_and_before_waiting_messages(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Puppet, heard)
        gate = trio.Event()

        async def wait(me: Puppet) -> None:
            await gate.wait()
            me.heard.append("first")

        node.send(pid, wait)
        node.send(pid, "second")
        await wait_all_tasks_blocked()
        states: list[Any] = []
        async with trio.open_nursery() as nursery:

            def note(state: Any) -> Any:
                states.append(list(state["heard"]))
                return state

            nursery.start_soon(node.replace_state, pid, note)
            await wait_all_tasks_blocked()
            gate.set()

        assert states == [["first"]]


async def test_the_state_can_be_replaced_and_attributes_come_and_go(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Slotted)

        new = await node.replace_state(pid, lambda state: {"label": "b", "more": 2})

        assert new == {"label": "b", "more": 2}
        assert await node.get_state(pid) == new


async def test_a_replacement_that_fails_leaves_state_and_process_unchanged(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Slotted)

        nothing: Any = lambda state: None  # noqa: E731
        no_function: Any = {"total": 2}

        def fails(state: dict[str, object]) -> dict[str, object]:
            raise Failed("on purpose")

        with pytest.raises(Failed):
            await node.replace_state(pid, fails)
        with pytest.raises(BadInputError, match="a dict from names"):
            await node.replace_state(pid, nothing)
        with pytest.raises(BadInputError, match="lambda state"):
            await node.replace_state(pid, no_function)
        with pytest.raises(AttributeError):
            await node.replace_state(pid, lambda state: {"total": 5, "pid": 3})

        assert await node.get_state(pid) == {"label": "a", "total": 1}


async def test_get_state_of_an_unknown_name_or_of_the_calling_process_is_refused(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)

        with pytest.raises(ProcessUnknownError):
            await node.get_state("nobody")
        with pytest.raises(TargetDownError) as caught:
            await node.call(pid, lambda me: me.node.get_state(me.pid))
        assert isinstance(caught.value.__cause__, DeadlockError)


async def test_get_state_raises_when_the_process_ends_before_it_answers(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        node.send(pid, lambda me: Busy.wait())
        await wait_all_tasks_blocked()

        with pytest.raises(CallTimeoutError):
            await node.get_state(pid, timeout=1)
        node.send_after(1, node.pid, None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_kill_later, node, pid)
            with pytest.raises(TargetDownError):
                await node.get_state(pid, timeout=10)


async def _kill_later(node: Node, pid: Any) -> None:
    await trio.sleep(2)
    node.kill(pid)


# -- holding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", [Recorder, Puppet])
async def test_a_suspended_process_takes_no_message_and_loses_no_message(
    behaviour: type[Recorder] | type[Puppet], autojump_clock: MockClock
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(behaviour, heard)
        node.send(pid, 1)

        assert await node.suspend(pid) is True
        assert await node.suspend(pid) is False
        await wait_all_tasks_blocked()
        with pytest.raises(CallTimeoutError):
            await node.call(pid, "nothing else waits", timeout=1)
        for message in (2, 3):
            node.send(pid, message)
        node.send(pid, "high", priority=Priority.HIGH)
        with pytest.raises(CallTimeoutError):
            await node.call(pid, "all", timeout=1)

        assert heard in ([], [1])
        assert node.process_info(pid).suspended
        assert node.process_info(pid).state is State.SLEEP
        assert await node.resume(pid) is True
        assert await node.resume(pid) is False
        assert await node.call(pid, "all") == heard
        assert sorted(map(str, heard)) == ["1", "2", "3", "high"]
        assert not node.process_info(pid).suspended
        assert kernel_of(node).watches == {}


async def test_the_time_of_a_suspension_is_not_spent_in_callbacks(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        began = time.perf_counter()
        pid = await node.spawn(Recorder)
        await node.suspend(pid)
        suspended = time.perf_counter()
        time.sleep(0.2)  # noqa: ASYNC251 - it is real time that is counted
        resumed = time.perf_counter()
        await node.resume(pid)
        await wait_all_tasks_blocked()

        assert (
            node.process_info(pid).running_time <= time.perf_counter() - resumed + suspended - began
        )


async def test_a_suspended_process_can_be_inspected(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        await node.suspend(pid)
        node.send(pid, "waits", priority=Priority.MAX)

        assert await node.inspect(pid) == {"heard": "0"}
        assert await node.get_state(pid) == {"heard": []}
        assert await node.replace_state(pid, lambda state: {"heard": [0]}) == {"heard": [0]}
        await node.resume(pid)
        assert await node.call(pid, "all") == [0, "waits"]


class Guarded(Actor):
    """Its diagnostics depend on the asker."""

    def handle_inspect(self, *items: str, asker: PID | None = None) -> dict[str, str]:
        return {"asker": str(asker), "items": ",".join(items)}


class GuardedInTurn(Guarded):
    """Waits before it answers."""

    async def handle_inspect(  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        self, *items: str, asker: PID | None = None
    ) -> dict[str, str]:
        await trio.lowlevel.checkpoint()
        return super().handle_inspect(*items, asker=asker)


@pytest.mark.parametrize("is_traced", [False, True])
@pytest.mark.parametrize("dispatcher", [LOOP, Threads()], ids=str)
@pytest.mark.parametrize("behaviour", [Guarded, GuardedInTurn])
async def test_an_inspection_passes_the_process_or_node_that_asks(
    behaviour: type[Guarded], dispatcher: Dispatcher, is_traced: bool
) -> None:
    async with running_node() as node, AsyncExitStack() as stack:
        pid = await node.spawn(behaviour, dispatcher=dispatcher)
        puppet = await node.spawn(Puppet)
        if is_traced:
            await stack.enter_async_context(node.trace(pid))

        by_node = await node.inspect(pid, "x")
        by_process = await node.call(puppet, lambda me: me.node.inspect(pid, "y"))

        assert by_node == {"asker": str(node.pid), "items": "x"}
        assert by_process == {"asker": str(puppet), "items": "y"}


@pytest.mark.parametrize("how", ["exit", "kill", "stop of the node"])
async def test_a_suspended_process_ends_when_asked_to(how: str, autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        await node.suspend(pid)
        if how == "stop of the node":
            return
        (node.send_exit if how == "exit" else node.kill)(pid)

        reason = await node.wait_ended(pid)

        assert reason == (Shutdown() if how == "exit" else Killed())
        assert kernel_of(node).watches == {}


async def test_exit_and_down_signals_of_a_suspended_process_wait_until_it_resumes(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        other, pid = await node.spawn(Puppet), await node.spawn(Puppet)

        def prepare(me: Puppet) -> None:
            me.trap_exit = True
            me.monitor(other)

        await node.call(pid, prepare)
        await node.suspend(pid)
        node.kill(other)
        await node.call(await node.spawn(Puppet), lambda me: me.send_exit(pid, "please"))
        await wait_all_tasks_blocked()

        assert node.process_info(pid).lanes["urgent"] == 1
        assert node.process_info(pid).lanes["system"] == 1
        await node.resume(pid)
        heard = await node.call(pid, "all")
        assert Down(other, Killed()) in heard
        assert len(heard) == 2


async def test_a_process_may_be_suspended_repeatedly(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard)
        for number in range(5):
            await node.suspend(pid)
            node.send(pid, number)
            await node.resume(pid)

        assert await node.call(pid, "all") == list(range(5))


# -- watching: the stand-in ------------------------------------------------------------------------


async def test_a_traced_supervisor_remains_a_supervisor(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        handle = await node.supervise([ChildSpec("child", Puppet)], name="root")
        async with node.trace("root") as trace:
            old = node.whereis("child")
            assert old is not None
            node.kill(old)
            await node.wait_ended(old)
            await node.service("child").call("all")

            assert node.supervisor("root").pid == handle.pid
            assert "child" in str(node.tree())
            assert node.process_info("root").supervision is not None
            assert await node.get_state("root") != {}
        assert trace.missed == 0
        assert "Supervisor" in type(process_of(node, "root").behaviour).__name__


async def test_a_traced_process_behaves_as_before_and_its_crash_has_its_own_error(
    autojump_clock: MockClock,
) -> None:
    class Rings(Recorder):
        def handle_call(self, request: Any, caller: Any) -> object:
            raise Failed("here")

    async with running_node() as node:
        pid = await node.spawn(Rings)
        async with node.trace(pid) as trace:
            with pytest.raises(TargetDownError) as caught:
                await node.call(pid, "go")

            entries = [entry async for entry in trace]

        assert isinstance(caught.value.__cause__, Failed)
        assert [(entry.callback, entry.error) for entry in entries] == [("handle_call", "Failed")]
        assert node.crashes()[0].reason == Crashed(Failed("here"))
        assert kernel_of(node).watches == {}


async def test_verbs_for_processes_refuse_a_meta_process_and_name_its_verbs(
    autojump_clock: MockClock,
) -> None:
    class Waits(MetaProcess):
        async def start(self) -> None:
            await trio.sleep_forever()

    async with running_node() as node:
        pid = await node.spawn(Puppet)
        alias = await node.call(pid, lambda me: me.spawn_meta(Waits()))

        verbs: dict[str, Callable[[], Awaitable[object]]] = {
            "get_state": lambda: node.get_state(alias),
            "replace_state": lambda: node.replace_state(alias, lambda state: state),
            "suspend": lambda: node.suspend(alias),
            "resume": lambda: node.resume(alias),
            "trace": lambda: node.trace(alias).__aenter__(),
        }
        for name, verb in verbs.items():
            with pytest.raises(
                NotAllowedError,
                match=f"{name} needs a process.*inspect_meta, meta_info, peek and stat",
            ):
                await verb()

        with pytest.raises(NotAllowedError, match="inspect_meta"):
            await node.get_state(alias)


async def test_a_value_with_a_failing_repr_is_shown_by_its_type() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise Failed("not me")

    async with running_node() as node:
        text = show(kernel_of(node), "message", Shy())

    assert "Shy whose repr raised Failed" in text
