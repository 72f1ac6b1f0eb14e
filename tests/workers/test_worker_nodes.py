"""Worker nodes: programs of their own, supervised as children."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import Actor, BadInputError, InitError, LogRecord, Name, Node, TargetDownError
from ergo_py.network import Local, Memory
from ergo_py.workers import worker_nodes
from ergo_py.workers.worker_node import WorkerFailedError, WorkerNode
from tests.examples.programs import promises
from tests.support import running_node
from tests.workers import samples
from tests.workers.samples import Ask

WORKER = Name("answerer", "worker-1@here")


@pytest.fixture
def network() -> Iterator[Local]:
    """A network of its own, with short paths."""
    with tempfile.TemporaryDirectory(prefix="ergo-", dir="/tmp") as directory:
        os.chmod(directory, 0o700)
        yield Local(types=[samples], directory=directory, patience=60.0)


async def ask(node: Node, about: str) -> Any:
    """Ask the worker, as soon as it runs."""
    with trio.fail_after(60):
        while True:
            try:
                return await node.call(WORKER, Ask(about), timeout=60)
            except TargetDownError:
                await trio.sleep(0.02)


async def test_worker_nodes_run_in_programs_of_their_own(network: Local) -> None:
    async with running_node("main@here", network=network, limit=120) as node:
        await node.supervise(worker_nodes(samples.start, network, count=2))
        programs: set[Any] = {os.getpid()}
        for number in (1, 2):
            worker = Name("answerer", f"worker-{number}@here")
            assert await node.call(worker, Ask("hello"), timeout=60) == "hello!"
            programs.add(await node.call(worker, Ask("program"), timeout=60))
        assert len(programs) == 3
        assert await node.discover() == ["worker-1@here", "worker-2@here"]
    for program in programs - {os.getpid()}:
        with pytest.raises(ProcessLookupError):
            os.kill(program, 0)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no CPU affinity on this platform")
async def test_the_loop_of_a_worker_node_is_pinned_to_its_cpu(network: Local) -> None:
    cpu, absent = max(os.sched_getaffinity(0)), 4096
    async with running_node("main@here", network=network, cpu=cpu, limit=120) as node:
        await node.supervise(worker_nodes(samples.start, network, cpus=[cpu]))

        assert await ask(node, "cpus") == [cpu]
        with pytest.raises(BadInputError, match="CPUs that this program may use: "):
            worker_nodes(samples.start, network, cpus=[absent])


@pytest.mark.parametrize("cpus", [[0, 1], [-1], ["0"], []])
def test_a_worker_node_has_a_cpu_of_its_own(network: Local, cpus: Any) -> None:
    with pytest.raises(BadInputError, match="cpus"):
        worker_nodes(samples.start, network, count=1, cpus=cpus)


async def test_a_worker_program_that_ends_is_started_again(network: Local) -> None:
    async with running_node("main@here", network=network, limit=120) as node:
        await node.supervise(worker_nodes(samples.start, network, count=1), intensity=5)
        first = await ask(node, "program")
        os.kill(first, signal.SIGKILL)
        while (second := await ask(node, "program")) == first:
            pass
        with pytest.raises(TargetDownError):
            await node.call(WORKER, Ask("die"), timeout=60)
        while (third := await ask(node, "program")) == second:
            pass

        assert third not in (first, second)
        told = [str(one.reason) for one in node.crashes() if one.behaviour.endswith("WorkerNode")]
        for ending in ("by signal 9", "with status 7"):
            text = f"the program of node worker-1@here has ended {ending}"
            assert sum(text in reason for reason in told) == 1
        assert len(told) == 2


class Logger(Actor):
    """Keeps the log of its node."""

    def __init__(self, records: list[LogRecord]) -> None:
        self.records = records

    def handle_log(self, record: LogRecord) -> None:
        self.records.append(record)


def _tells_crash(record: LogRecord, number: int) -> bool:
    return (
        record.event == "process crashed"
        and record.level == "error"
        and record.fields["worker"] == f"worker-{number}@here"
        and "ArithmeticError: on purpose" in str(record.fields["exception"])
    )


async def test_logs_crashes_and_processes_of_all_workers_are_shown_together(
    network: Local, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    records: list[LogRecord] = []

    async def ergo(command: str, *options: str) -> str:
        program = [sys.executable, "-m", "ergo_py", command, "worker-*", *options]
        done = await trio.run_process(program, capture_stdout=True)
        return done.stdout.decode()

    async with running_node("main@here", network=network, limit=120) as node:
        node.add_logger(await node.spawn(Logger, records))
        await node.supervise(worker_nodes(samples.start, network, count=2, control="look"))
        top = await ergo("top", "--count", "1")
        for number in (1, 2):
            with pytest.raises(TargetDownError):
                worker = Name("answerer", f"worker-{number}@here")
                await node.call(worker, Ask("crash"), timeout=60)
        listed, tree, crashes = [await ergo(command) for command in ("ps", "tree", "crashes")]
        for number in (1, 2):
            while not any(_tells_crash(record, number) for record in records):  # noqa: ASYNC110
                await trio.sleep(0.01)

    for number in (1, 2):
        for text in (listed, tree, crashes):
            assert f"worker-{number}@here:" in text
        assert f"worker-{number}@here (program " in top
    assert crashes.count("crashed: ArithmeticError: on purpose") == 2
    assert top.count("answerer  Answerer") == 2


async def test_a_worker_that_cannot_start_tells_its_last_lines(network: Local) -> None:
    async with running_node("main@here", network=network, limit=120) as node:
        with pytest.raises(InitError) as caught:
            await node.spawn(
                WorkerNode, "w@here", samples.fail_to_start, network, init_timeout=60.0
            )
        cause = caught.value.__cause__
        assert isinstance(cause, WorkerFailedError)
        assert "a line of the program" in cause.lines
        assert any("LookupError: no such thing" in line for line in cause.lines)


PROGRAM = """
import sys, trio
from ergo_py import open_node
from ergo_py.network import Local
from ergo_py.workers import worker_nodes
from ergo_py.workers import worker_node
from tests.workers import samples
from tests.workers.test_worker_nodes import ask

worker_node._GRACE = 0.0 if sys.argv[2] == "stuck" else 60.0

async def main():
    network = Local(types=[samples], directory=sys.argv[1])
    async with open_node("main@here", network=network, watchdog=None) as node:
        await node.supervise(worker_nodes(samples.start, network, count=1))
        print(await ask(node, "program"), flush=True)
        if sys.argv[2] == "stuck":
            await ask(node, "stick")
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.parametrize("state", ["idle", "stuck"])
async def test_a_worker_program_ends_with_a_program_that_is_killed(
    network: Local, state: str
) -> None:
    directory = network.settings["directory"]
    first = await trio.lowlevel.open_process(
        [sys.executable, "-c", PROGRAM, str(directory), state],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert first.stdout is not None
    async with first.stdout:
        with trio.fail_after(120):
            worker = int(await first.stdout.receive_some(100))
            first.kill()
            await first.wait()
            # On Linux the lifeline would end it, too, but only after 29 seconds.
            with trio.fail_after(20), pytest.raises(ProcessLookupError):
                while True:
                    os.kill(worker, 0)
                    await trio.sleep(0.01)


async def local_start(node: Node) -> None:
    """Not a sample: but at the top of a module."""


def test_a_start_function_that_cannot_be_imported_is_refused() -> None:
    async def inner(node: Node) -> None:
        pass

    network = Local(types=[samples])
    for start in (inner, lambda node: inner(node)):  # noqa: PLW0108 - a lambda is refused, too
        with pytest.raises(BadInputError, match="at the top of a module"):
            worker_nodes(start, network)
    with pytest.raises(BadInputError, match="move it into a module of its own"):
        main: Any = type("start", (), {"__module__": "__main__"})
        worker_nodes(main, network)
    assert len(worker_nodes(local_start, network, count=3)) == 3


def test_arguments_of_worker_nodes_are_checked() -> None:
    wrong: Any = Memory()
    network = Local(types=[samples])
    with pytest.raises(BadInputError, match="count: got 0"):
        worker_nodes(local_start, network, count=0)
    with pytest.raises(BadInputError, match=r"the Local\(types=\[…\]\) of this node"):
        worker_nodes(local_start, wrong)
    assert len(worker_nodes(local_start, network)) >= 1


def test_the_example_of_all_cores_prints_its_promised_output(network: Local) -> None:
    (promise,) = promises("cores")
    done = subprocess.run(
        [sys.executable, "-m", "examples.cores.main"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "XDG_RUNTIME_DIR": str(network.settings["directory"])},
        timeout=120,
        check=True,
    )

    assert done.stdout == promise[1]
