"""Processes that share threads: pods, pools, and the CPUs on which they run."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    PID,
    Actor,
    BadInputError,
    ChildSpec,
    Node,
    NotAllowedError,
    Priority,
    Supervisor,
    SupervisorSpec,
    TargetDownError,
    Threads,
    Why,
)
from ergo_py._core.processes import threaded_process as threaded_process_module
from ergo_py.info import Dispatcher
from ergo_py.supervision import Fate
from tests._core.processes.threaded import forever, run_out_of_time
from tests.actors import Recorder
from tests.dispatched import Doer, Gate, heard
from tests.meta.owner import eventually
from tests.support import hop_of, needs_proc, process_behind, process_of, running_node


async def test_the_processes_of_a_pod_share_a_thread_and_never_run_at_once() -> None:
    order: list[Any] = []
    inside: list[int] = []

    def step(me: Doer) -> None:
        inside.append(1)
        order.append((me.registered_name, len(inside), threading.get_ident()))
        # Long enough for another callback to begin, were there a second thread.
        time.sleep(0.0005)
        inside.pop()

    async with running_node() as node:
        for name in "abc":
            await node.spawn(Doer, dispatcher=Threads("pod"), name=name)
        threads = node.info().dispatcher_threads
        for _ in range(20):
            for name in "abc":
                node.send(name, step)
        for name in "abc":
            await heard(node, name)

        assert threads == 1
        assert {at_once for _, at_once, _ in order} == {1}
        assert len({ident for _, _, ident in order}) == 1
        assert len(order) == 60


async def test_a_waiting_process_of_a_pod_is_served_before_the_backlog_of_another() -> None:
    gate = Gate()
    order: list[Any] = []

    def note(me: Doer) -> None:
        order.append(me.registered_name)

    async with running_node() as node:
        for name in "ab":
            await node.spawn(Doer, dispatcher=Threads("pod"), name=name)
        node.send("a", gate)
        for _ in range(5):
            node.send("a", note)
        await gate.wait_reached()
        node.send("b", note)
        await wait_all_tasks_blocked()

        gate.opened.set()
        for name in "ab":
            await heard(node, name)

        assert order == ["b", *"aaaaa"]


async def test_messages_between_processes_of_a_pod_keep_their_order() -> None:
    async with running_node() as node:
        receiver = await node.spawn(Doer, dispatcher=Threads("pod"))

        def send(me: Doer) -> None:
            for number in range(100):
                me.send(receiver, number)

        sender = await node.spawn(Doer, dispatcher=Threads("pod"))
        await node.call(sender, send)

        assert await heard(node, receiver) == list(range(100))


async def test_a_pool_runs_as_many_callbacks_at_once_as_it_has_threads() -> None:
    gates = [Gate() for _ in range(3)]
    async with running_node() as node:
        pids = [await node.spawn(Doer, dispatcher=Threads("three", 3)) for _ in range(4)]
        for pid, gate in zip(pids, gates, strict=False):
            node.send(pid, gate)
        for gate in gates:
            await gate.wait_reached()
        late = Gate()
        late.opened.set()
        node.send(pids[3], late)
        await wait_all_tasks_blocked()
        reached_too_early = late.reached.is_set()

        gates[0].opened.set()
        await late.wait_reached()

        assert not reached_too_early
        assert node.info().dispatcher_threads == 3
        for gate in gates:
            gate.opened.set()


async def test_threads_end_with_the_last_process_that_uses_them() -> None:
    async with running_node() as node:
        pids = [
            await node.spawn(Doer, dispatcher=one)
            for one in (Threads(), Threads("p", 2), Threads("p", 2), Threads("q"))
        ]
        names = {thread.name for thread in threading.enumerate()}
        counts = [node.info().dispatcher_threads]
        for pid in pids:
            node.kill(pid)
            await node.wait_ended(pid)
            counts.append(node.info().dispatcher_threads)

        assert {f"process-{pids[0].number}", "p-1", "p-2", "q-1"} <= names
        assert counts == [4, 3, 3, 1, 0]


async def test_threads_of_the_same_name_and_another_size_are_refused() -> None:
    async with running_node() as node:
        await node.spawn(Doer, dispatcher=Threads("p", 2))

        with pytest.raises(
            BadInputError,
            match=r"Threads\(name='p', size=2, cpu=None\), which exists and is used by 1",
        ):
            await node.spawn(Doer, dispatcher=Threads("p", 3), name="other")

        assert node.whereis("other") is None


async def test_a_supervisor_stays_on_the_loop() -> None:
    async with running_node() as node:
        with pytest.raises(BadInputError, match="give the dispatcher to its children"):
            await node.spawn(Supervisor, [ChildSpec("a", Doer)], dispatcher=Threads())


@needs_proc
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no CPU affinity on this platform")
@pytest.mark.parametrize(
    "make", [lambda cpu: Threads(cpu=cpu), lambda cpu: Threads("pod", cpu=cpu)]
)
async def test_a_pinned_thread_stays_on_its_cpu_as_proc_shows(
    make: Callable[[int], Dispatcher],
) -> None:
    cpu = max(os.sched_getaffinity(0))
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=make(cpu))

        [thread] = node.process_info(pid).threads
        status = await trio.Path(f"/proc/self/task/{thread}/status").read_text(encoding="utf-8")
        allowed = status.split("Cpus_allowed_list:")[1].split()[0]
        others = os.sched_getaffinity(0)

        assert allowed == str(cpu)
        assert cpu in others
        assert await node.call(pid, lambda _: threading.get_native_id()) == thread


async def test_a_missing_cpu_is_reported_and_another_cpu_is_used() -> None:
    records: list[Any] = []

    class Keeper(Recorder):
        def handle_log(self, record: Any) -> None:
            records.append(record.event)

    async with running_node() as node:
        node.add_logger(await node.spawn(Keeper), "warning")

        pid = await node.spawn(Doer, dispatcher=Threads(cpu=100_000))
        await wait_all_tasks_blocked()

        assert await heard(node, pid) == []
        assert records == ["a thread cannot be pinned to its CPU, and runs on any"]


@pytest.mark.parametrize(
    "wrong, hint",
    [
        (lambda: Threads(cpu=-1), r"Threads\(cpu\)"),
        (lambda: Threads(cpu=True), "the number of a CPU"),
        (lambda: Threads(""), r"Threads\(name\)"),
        (lambda: Threads("p", 0), "from 1 up"),
        (
            lambda: ChildSpec("a", Doer, dispatcher="pinned"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            r"LOOP, Threads\(\), Threads\(cpu=…\), Threads\(name, size\) or Threads.MAIN",
        ),
    ],
)
def test_an_invalid_dispatcher_is_refused(wrong: Callable[[], object], hint: str) -> None:
    with pytest.raises(BadInputError, match=hint):
        wrong()


async def test_a_callback_that_ends_while_an_inspect_is_answered_is_noticed() -> None:
    gate = threading.Event()

    class Inspected(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            gate.wait(20)

        async def handle_inspect(self, *items: str) -> dict[str, str]:
            hop = hop_of(process_behind(self))
            gate.set()
            while hop.job.outcome is None:  # noqa: ASYNC110 - a thread sets no event of trio's
                await trio.sleep(0.001)
            return {"answered": "yes"}

        def handle_call(self, request: Any, caller: Any) -> object:
            return request

    async with running_node() as node:
        pid = await node.spawn(Inspected, dispatcher=Threads())
        node.send(pid, "block")
        await wait_all_tasks_blocked()

        told = await node.inspect(pid, timeout=20)

        assert told == {"answered": "yes"}
        assert await node.call(pid, "alive", timeout=20) == "alive"


@pytest.mark.parametrize("priority", list(Priority))
@pytest.mark.parametrize("options", [{}, {"mailbox_size": 5}], ids=["unbounded", "bounded"])
async def test_a_message_with_a_callback_that_never_began_is_a_dead_letter(
    priority: Priority, options: dict[str, Any]
) -> None:
    gate, began = threading.Event(), threading.Event()

    class Blocks(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            began.set()
            gate.wait(20)

    class Waits(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            raise AssertionError("its turn never comes")

    async with running_node() as node:
        first = await node.spawn(Blocks, dispatcher=Threads("shared"))
        second = await node.spawn(Waits, dispatcher=Threads("shared"), **options)
        node.send(first, "block")
        await trio.to_thread.run_sync(began.wait, 20)
        node.send(second, "never begun", priority=priority)
        await wait_all_tasks_blocked()

        node.kill(second)
        await node.wait_ended(second)
        gate.set()

        assert node.info().dead_letters == {Why.UNHANDLED_AT_EXIT: 1}


class Inspecting(Actor):
    """Blocks in a thread, and is asked about itself meanwhile, for as long as a test likes."""

    def __init__(self, block: Callable[["Inspecting"], object], asked: trio.Event) -> None:
        self.block = block
        self.asked = asked

    def handle_message(self, message: Any, sender: Any) -> None:
        self.block(self)

    async def handle_inspect(self, *items: str) -> dict[str, str]:
        self.asked.set()
        await trio.sleep_forever()
        raise AssertionError("nothing wakes it")


async def test_a_wait_that_a_callback_begins_while_its_process_is_killed_is_refused() -> None:
    gate, asked = Gate(), trio.Event()
    refused: list[Exception] = []

    def wait(me: Inspecting) -> None:
        gate()
        try:
            me.wait_for(forever())
        except NotAllowedError as error:
            refused.append(error)

    async with running_node() as node, trio.open_nursery() as nursery:
        pid = await node.spawn(Inspecting, wait, asked, dispatcher=Threads())
        process = process_of(node, pid)
        node.send(pid, "block")
        await gate.wait_reached()
        nursery.start_soon(inspect_in_vain, node, pid)
        await asked.wait()
        gate.opened.set()
        # Its task answers an inspection, and has not come to the wait of the callback.
        await eventually(lambda: hop_of(process).verb is not None)

        node.kill(pid)
        await node.wait_ended(pid)
        await eventually(lambda: bool(refused))

    assert "was abandoned in its thread" in str(refused[0])


async def test_a_callback_that_ended_while_its_process_was_killed_is_not_abandoned() -> None:
    gate, asked = Gate(), trio.Event()

    async with running_node() as node, trio.open_nursery() as nursery:
        pid = await node.spawn(Inspecting, gate, asked, dispatcher=Threads())
        process = process_of(node, pid)
        node.send(pid, "block")
        await gate.wait_reached()
        nursery.start_soon(inspect_in_vain, node, pid)
        await asked.wait()
        gate.opened.set()
        await eventually(lambda: process.job.outcome is not None)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

        node.kill(pid)
        await node.wait_ended(pid)

        assert node.info().threads_abandoned == 0
        assert node.info().dead_letters == {}


async def test_a_wait_that_a_callback_begins_as_it_is_abandoned_is_refused() -> None:
    gate = Gate()

    class Blocked(Doer):
        def init(self) -> None:
            hops.append(hop_of(process_behind(self)))
            gate()

    hops: list[Any] = []
    async with running_node() as node:
        await run_out_of_time(node, Blocked, gate.wait_reached)
        owner = process_of(node, await node.spawn(Doer, dispatcher=Threads()))
        detached = threaded_process_module._AsyncVerb(forever(), cast(Any, owner))

        # As it comes through the bridge if it was posted a moment before.
        hops[0].take(detached)
        gate.opened.set()

        with pytest.raises(NotAllowedError, match="was abandoned in its thread"):
            detached.parker.value.unwrap()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]


async def inspect_in_vain(node: Node, pid: PID) -> None:
    with pytest.raises(TargetDownError):
        await node.inspect(pid, timeout=60)


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("bound", [None, 8])
async def test_a_message_that_a_kill_takes_back_from_a_threads_queue_keeps_its_place(
    priority: Priority, bound: int | None
) -> None:
    gate, heard_later = Gate(), []
    pod = Threads("shared")

    class Keeps(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            heard_later.append(message)

    async with running_node() as node:
        child = ChildSpec("kept", Keeps, mailbox=Fate.KEEP, dispatcher=pod, mailbox_size=bound)
        await node.spawn(Supervisor, SupervisorSpec([child]))
        busy = await node.spawn(Doer, dispatcher=pod)
        node.send(busy, gate)
        await gate.wait_reached()
        first = node.whereis("kept")
        assert first is not None
        for number in range(4):
            node.send("kept", number, priority=priority)
        node.send("kept", "after", priority=Priority.NORMAL)
        await wait_all_tasks_blocked()
        # The first message waits for the thread, the others in the mailbox.
        node.kill(first)
        await node.wait_ended(first)
        await eventually(lambda: node.whereis("kept") is not None)
        gate.opened.set()
        await eventually(lambda: len(heard_later) == 5)

        assert heard_later == [0, 1, 2, 3, "after"]
