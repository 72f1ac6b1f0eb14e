"""Ctrl-C under plain ``trio.run``: wherever it strikes, the node stops in order, and the program
gets it.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from ergo_py import (
    PID,
    Actor,
    Caller,
    ChildSpec,
    Node,
    Shutdown,
    Supervisor,
    SupervisorSpec,
    open_node,
)
from ergo_py._core import kernel
from ergo_py._core.messaging import clock, links, router
from ergo_py._core.messaging.waiters import TaskCaller
from ergo_py._core.processes import envelope_handlers as envelope_handlers_module
from ergo_py._core.processes import process as process_module
from ergo_py._core.processes import termination as termination_module
from ergo_py._core.runtime import bridge
from ergo_py._core.runtime import keyboard_interrupt as keyboard_interrupt_module
from ergo_py._core.runtime.handoff import SWITCH, turns_of_loop
from ergo_py._core.runtime.parking import park_as
from ergo_py._core.tables import child_slot as child_slot_module
from ergo_py._core.tables import mailbox
from tests.actors import Shielded, Witness
from tests.support import replace_private


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """As in a program: the runner of the tests may have another handler, and then trio does not
    take the signal.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


class Fragile(Actor):
    def handle_message(self, message: Any, sender: Any) -> None:
        raise ValueError(message)


class Busy(Actor):
    """Does, on each message, a bit of everything."""

    async def handle_message(self, message: Any, sender: Any) -> None:
        child = await self.spawn(Fragile)
        self.monitor(child)
        self.send(child, "crash")
        await self.call("server", 1)
        self.send("fragile", "crash")
        self.kill(await self.spawn(Server))
        self.send_after(0.001, self.pid, message)

    def handle_child_exit(self, child: Any, reason: Any) -> None:
        pass


class Server(Actor):
    async def handle_call(self, request: Any, caller: Caller) -> object:
        await trio.lowlevel.checkpoint()
        return request

    async def terminate(self, reason: object) -> None:
        await trio.lowlevel.checkpoint()


POINTS: list[tuple[Any, str]] = [
    (process_module.Process, "begin_to_end"),
    (termination_module, "release"),
    (termination_module, "answer"),
    (process_module.Process, "end_at_once"),
    (termination_module, "drop_slots"),
    (links.Links, "tell"),
    (kernel.Kernel, "note_crash"),
    (clock.Clock, "arm_call"),
    (clock.Clock, "arm_timer"),
    (router.Router, "signal"),
    (mailbox.Mailbox, "push_first"),
    (child_slot_module.ChildSlot, "vacate"),
    (child_slot_module.ChildSlot, "occupy"),
    (envelope_handlers_module, "check_plain"),
    (termination_module.Ending, "undo"),
    (bridge.Bridge, "close"),
    (process_module.Process, "as_ended"),
]


@pytest.mark.parametrize("place, name", POINTS, ids=lambda part: getattr(part, "__name__", part))
def test_an_interrupt_at_any_point_stops_the_node_in_order_and_reaches_the_program(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str
) -> None:
    armed: list[bool] = []
    ends: list[Any] = []
    opened: list[Node] = []
    original = getattr(place, name)

    def interrupted(*args: Any, **keywords: Any) -> Any:
        if armed:
            armed.clear()
            press()
        return original(*args, **keywords)

    monkeypatch.setattr(place, name, interrupted)

    async def main() -> None:
        with trio.fail_after(30):
            async with open_node(log_output="none", watchdog=None) as node:
                opened.append(node)
                await node.spawn(Witness, ends)
                children = [
                    ChildSpec("server", Server),
                    ChildSpec("fragile", Fragile),
                    ChildSpec("busy", Busy),
                ]
                await node.spawn(Supervisor, SupervisorSpec(children, intensity=1_000_000))
                node.send("busy", "begin")
                armed.append(True)
                if place is bridge.Bridge or name in ("as_ended", "end_at_once", "drop_slots"):
                    return
                if name == "undo":
                    await node.spawn(Unwilling)
                await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)

    assert not armed
    assert ends == [Shutdown()]
    report = opened[0].exit_report
    assert report is not None
    assert (report.killed, report.abandoned) == ((), ())


class Unwilling(Actor):
    def init(self) -> None:
        raise ValueError("not now")


def test_a_body_may_catch_an_interrupt_as_under_trio_alone() -> None:
    caught: list[str] = []

    async def main() -> None:
        async with open_node(log_output="none", watchdog=None):
            try:
                press()
                await trio.sleep_forever()
            except KeyboardInterrupt:
                caught.append("inside")

    trio.run(main)

    assert caught == ["inside"]


def test_a_callback_is_not_interrupted() -> None:
    steps: list[str] = []

    class Works(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            press()
            steps.append("went on")
            await trio.lowlevel.checkpoint()
            steps.append("finished")

    async def main() -> None:
        async with open_node(log_output="none", watchdog=None) as node:
            node.send(await node.spawn(Works), 1)
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)

    assert steps == ["went on", "finished"]


def test_a_second_interrupt_while_the_node_stops_cuts_the_stop_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_private(monkeypatch, "time of one Ctrl-C", 0.0)
    ends: list[Any] = []
    opened: list[Node] = []

    class Slow(Witness):
        async def terminate(self, reason: object) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
            press()
            try:
                await trio.sleep_forever()
            finally:
                self.ends.append("cut off")

    async def main() -> None:
        with trio.fail_after(30):
            async with open_node(log_output="none", watchdog=None) as node:
                opened.append(node)
                await node.spawn(Slow, ends, terminate_timeout=1_000)
                await trio.sleep(0.001)
                press()
                await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)

    assert ends == ["cut off"]
    assert opened[0].exit_report is not None
    assert len(opened[0].exit_report.killed) == 1


def test_an_interrupt_while_the_node_stops_is_not_lost() -> None:
    ends: list[Any] = []

    class Presses(Witness):
        async def terminate(self, reason: object) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
            press()
            await trio.lowlevel.checkpoint()
            self.ends.append(reason)

    async def main() -> None:
        async with open_node(log_output="none", watchdog=None) as node:
            await node.spawn(Presses, ends)

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)

    assert ends == [Shutdown()]


def test_an_interrupt_while_the_node_opens_leaves_no_thread_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = kernel.Kernel

    def interrupted(*args: Any, **keywords: Any) -> Any:
        press()
        return original(*args, **keywords)

    replace_private(monkeypatch, "kernel of new nodes", interrupted)

    async def main() -> None:
        async with open_node(log_output="none"):
            raise AssertionError("there is no node")

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)

    assert threading.active_count() == len(threading.enumerate())


def test_two_interrupts_at_once_count_once() -> None:
    ends: list[Any] = []

    async def main() -> None:
        async with open_node(log_output="none", watchdog=None) as node:
            await node.spawn(Witness, ends)
            press()
            press()
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)

    assert ends == [Shutdown()]


def test_a_second_interrupt_interrupts_code_that_blocks_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_private(monkeypatch, "time of one Ctrl-C", 0.0)
    steps: list[str] = []

    class Endless(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            press()
            steps.append("the first one waits")
            press()
            steps.append("never reached")

    async def main() -> None:
        async with open_node(log_output="none", watchdog=None) as node:
            node.send(await node.spawn(Endless), 1)
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)

    assert steps == ["the first one waits"]


def test_a_task_that_is_being_abandoned_may_be_interrupted() -> None:
    """trio looks at the coroutine of the present task when the signal comes."""
    opened: list[Node] = []

    class Stubborn(Shielded):
        async def handle_message(self, message: Any, sender: Any) -> None:
            try:
                await super().handle_message(message, sender)
            finally:
                press()

    async def main() -> None:
        with trio.fail_after(30):
            async with open_node(log_output="none", watchdog=None, stop_timeout=0.01) as node:
                opened.append(node)
                node.send(await node.spawn(Stubborn), 1)
                await trio.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)

    assert opened[0].exit_report is not None
    assert len(opened[0].exit_report.abandoned) == 1


@pytest.mark.parametrize("closed_first", ["inner", "outer"])
def test_trios_handler_is_restored_when_the_last_node_has_stopped(closed_first: str) -> None:
    handlers: list[Any] = []

    async def main() -> None:
        trios = signal.getsignal(signal.SIGINT)
        nodes = [
            open_node(f"{name}@localhost", log_output="none", watchdog=None)
            for name in ("one", "two")
        ]
        for node in nodes:
            await node.__aenter__()
            assert signal.getsignal(signal.SIGINT) is not trios
        for node in reversed(nodes):
            # Their scopes close in order, in whichever order the nodes stop.
            await node.__aexit__(None, None, None)
            handlers.append(signal.getsignal(signal.SIGINT))
        handlers.append(trios)

    trio.run(main)

    assert handlers[0] is not handlers[1]
    assert handlers[1] is handlers[2]


def test_a_handler_of_the_user_is_not_replaced() -> None:
    came: list[int] = []

    def mine(number: int, _frame: object) -> None:
        came.append(number)

    async def main() -> None:
        signal.signal(signal.SIGINT, mine)
        async with open_node(log_output="none", watchdog=None):
            press()
            assert signal.getsignal(signal.SIGINT) is mine
        async with open_node(log_output="none", watchdog=None):
            pass
        signal.signal(signal.SIGINT, signal.default_int_handler)

    trio.run(main)

    assert came == [signal.SIGINT]


def test_a_handler_that_is_set_while_the_node_runs_stays() -> None:
    def mine(number: int, _frame: object) -> None:
        raise AssertionError

    async def main() -> None:
        async with open_node(log_output="none", watchdog=None):
            signal.signal(signal.SIGINT, mine)
        assert signal.getsignal(signal.SIGINT) is mine
        signal.signal(signal.SIGINT, signal.default_int_handler)

    trio.run(main)


def test_a_handler_that_is_restored_too_late_interrupts_as_python_does() -> None:
    kept: list[Any] = []

    async def main() -> None:
        async with open_node(log_output="none", watchdog=None):
            kept.append(signal.getsignal(signal.SIGINT))

    trio.run(main)
    signal.signal(signal.SIGINT, kept[0])

    with pytest.raises(KeyboardInterrupt):
        press()

    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_node_in_another_thread_installs_no_handler() -> None:
    async def main() -> None:
        async with open_node(log_output="none", watchdog=None):
            pass

    errors: list[BaseException] = []

    def run(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    # While a loop of the main thread has trio's handler.
    async def beside() -> None:
        await trio.to_thread.run_sync(run, lambda: trio.run(main))

    trio.run(beside)

    assert errors == []


def test_a_node_in_another_thread_keeps_the_handler_of_the_main_thread() -> None:
    opened, close = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    async def beside() -> None:
        async with open_node("beside", log_output="none"):
            opened.set()
            await trio.to_thread.run_sync(close.wait)

    def run() -> None:
        try:
            trio.run(beside)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)

    async def main() -> None:
        async with open_node(log_output="none"):
            thread.start()
            await trio.to_thread.run_sync(opened.wait)

    trio.run(main)
    # The node of the main thread has stopped, the other node runs.
    handler = signal.getsignal(signal.SIGINT)
    close.set()
    thread.join()

    assert handler is signal.default_int_handler
    assert errors == []


def test_random_interrupts_under_load_stop_the_program_in_order() -> None:
    # The time that an end takes says more about the machine than about the code.
    command = [sys.executable, "-m", "benchmarks.interrupts", "--trials", "6", "--slow", "100"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ}, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_an_interrupt_just_before_the_node_exists_reaches_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = keyboard_interrupt_module.Interrupts.hold

    def hold(one: keyboard_interrupt_module.Interrupts) -> None:
        original(one)
        press()

    monkeypatch.setattr(keyboard_interrupt_module.Interrupts, "hold", hold)

    async def main() -> None:
        async with open_node(log_output="none"):
            raise AssertionError("there is no node")

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)


def test_ctrl_c_reaches_the_main_task_that_runs_in_the_turn_of_a_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    calls: list[TaskCaller] = []
    steps: list[str] = []

    async def bring(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.testing.wait_all_tasks_blocked()
        turns, root = turns_of_loop(True), trio.lowlevel.current_task()
        await trio.lowlevel.checkpoint()
        assert turns.begin(root)
        calls[0].settle_in(turns, "answer", None)
        assert turns.serve(root)
        # As in trio's loop: the main task that begins to wait gets it at once.
        assert calls[0].task.custom_sleep_data is None
        steps.append("served")

    # Not `press` itself: trio marks the code of a function for good, and the other tests share it.
    @trio.lowlevel.enable_ki_protection
    def press_protected() -> None:
        press()

    async def main() -> None:
        task = trio.lowlevel.current_task()
        async with trio.open_nursery() as nursery:
            await nursery.start(bring)
            calls.append(TaskCaller(PID("test", 1, 0), 1, "callee", "request", task))
            await park_as(task, calls[0])
            press_protected()
            steps.append("pressed")
            await park_as(task, calls[0])

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(main)

    assert caught.group_contains(KeyboardInterrupt)
    assert steps == ["pressed", "served"]
