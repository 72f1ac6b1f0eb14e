"""`open_node(cpu=)`: the thread of the loop stays on its CPU, and other threads do not."""

import os
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from ergo_py import BadInputError, MetaProcess, Threads
from ergo_py.blocking import open_node
from ergo_py.workers.worker_node import core_count
from tests.dispatched import Doer
from tests.support import running_node

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="no CPU affinity on this platform"
)

ABSENT = 100_000


def cpus() -> set[int]:
    return os.sched_getaffinity(0)


class Reader(MetaProcess):
    """Reads the CPUs of its thread."""

    def __init__(self) -> None:
        self.cpus: set[int] = set()
        self.has_read = trio.Event()

    def start(self) -> None:
        self.cpus = cpus()
        trio.from_thread.run_sync(self.has_read.set)


async def test_the_loop_stays_on_its_cpu_while_the_node_is_up() -> None:
    before = cpus()
    cpu = max(before)

    async with running_node(cpu=cpu), running_node("other@here", cpu=cpu):
        inside = cpus()
    async with running_node(cpu=cpu):
        again = cpus()

    assert (inside, again, cpus()) == ({cpu}, {cpu}, before)
    assert threading.Thread.start.__module__ == "threading"


async def test_threads_and_programs_of_a_pinned_loop_use_all_cpus() -> None:
    before, found = cpus(), list[Any]()
    cpu = max(before)
    async with running_node(cpu=cpu) as node:
        doer = await node.spawn(Doer, dispatcher=Threads())
        found.append(await node.call(doer, lambda _me: cpus()))
        found.append(await node.run_task(cpus))
        found.append(await trio.to_thread.run_sync(cpus))
        reader = Reader()
        await node.call(doer, lambda me: me.spawn_meta(reader))
        await reader.has_read.wait()
        found.append(reader.cpus)
        own = threading.Thread(target=lambda: found.append(cpus()))
        own.start()
        await trio.to_thread.run_sync(own.join)
        below = threading.Thread(target=lambda: found.append(cpus()))
        await trio.to_thread.run_sync(below.start)
        await trio.to_thread.run_sync(below.join)
        program = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
        done = await trio.run_process(program, capture_stdout=True)
        found.append(done.stdout.decode())

        assert found == [before] * 6 + [f"{sorted(before)}\n"]
        assert core_count() == len(before)
        assert cpus() == {cpu}


async def test_a_pinned_dispatcher_has_its_own_cpu() -> None:
    first, last = min(cpus()), max(cpus())
    async with running_node(cpu=first) as node:
        doer = await node.spawn(Doer, dispatcher=Threads(cpu=last))

        assert await node.call(doer, lambda _me: cpus()) == {last}


async def test_a_cpu_that_the_program_may_not_use_is_refused_with_those_that_it_may() -> None:
    listed = ", ".join(map(str, sorted(cpus())))

    with pytest.raises(BadInputError, match=f"one of the CPUs that this program may use: {listed}"):
        async with running_node(cpu=ABSENT):
            pass
    with pytest.raises(BadInputError, match="the number of a CPU"):
        async with running_node(cpu=-1):
            pass


async def test_nodes_of_a_loop_have_the_same_cpu() -> None:
    first, *others = sorted(cpus())
    if not others:
        pytest.skip("a single CPU")
    async with running_node(cpu=first):
        with pytest.raises(BadInputError, match=f"{first}, the CPU of another node of this loop"):
            async with running_node("other@here", cpu=others[0]):
                pass

        assert cpus() == {first}


async def test_the_log_says_that_a_loop_cannot_be_pinned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_pid: int, _cpus: object) -> None:
        raise OSError("not permitted")

    cpu = max(cpus())
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    async with running_node(cpu=cpu, log_output="stdlib"):
        pass
    monkeypatch.delattr(os, "sched_setaffinity")
    async with running_node(cpu=ABSENT, log_output="stdlib"):
        pass

    told = [record.getMessage() for record in caplog.records]
    assert ["not permitted" in told[0], "no CPU affinity" in told[1], len(told)] == [True, True, 2]


def test_the_loop_of_a_node_without_async_is_pinned() -> None:
    before = cpus()
    cpu = max(before)
    with open_node(cpu=cpu) as node:
        assert node.run(lambda _node: cpus()) == {cpu}
        assert cpus() == before


async def test_a_thread_that_another_library_starts_has_no_pin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, started, found = threading.Thread.start, list[str](), list[set[int]]()

    def start(thread: threading.Thread) -> None:
        started.append(thread.name)
        plain(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    async with running_node(cpu=max(cpus())):
        own = threading.Thread(target=lambda: found.append(cpus()), name="own")
        own.start()
        await trio.to_thread.run_sync(own.join)

        def later(thread: threading.Thread, inner: Any = threading.Thread.start) -> None:
            inner(thread)

        monkeypatch.setattr(threading.Thread, "start", later)

    assert "own" in started
    assert found == [cpus()]
    assert threading.Thread.start is later  # the function of another library stays


async def test_a_node_that_does_not_start_keeps_no_pin() -> None:
    before = cpus()

    def fail(_name: str) -> None:
        raise OSError("no collector")

    tracing: Any = SimpleNamespace(start=fail, serve=fail)
    with pytest.raises(OSError, match="no collector"):
        async with running_node(cpu=max(before), tracing=tracing):
            pass

    assert cpus() == before
    assert threading.Thread.start.__module__ == "threading"
