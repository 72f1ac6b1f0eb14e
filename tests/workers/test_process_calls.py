"""Functions in programs of their own: `ProcessCalls`."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from errno import EAGAIN, EMFILE
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import Backoff, BadInputError, InitError, MailboxFullError, Node, TargetDownError
from ergo_py.errors import UnhandledCallError
from ergo_py.meta.programs.program import Program
from ergo_py.network import RemoteError
from ergo_py.network.errors import MessageTypeError
from ergo_py.testing import checked_node
from ergo_py.workers import Compute, ProcessCalls
from tests.network.pairs import until
from tests.workers import samples
from tests.workers.samples import OddError, Pair


@asynccontextmanager
async def cores(**options: Any) -> AsyncIterator[tuple[Node, Any]]:
    """A node with programs for functions. Nothing of them may be left afterwards."""
    settings: Any = {"types": [samples], "count": 1, **options}
    with trio.fail_after(120):
        async with checked_node(grace=10.0, log_output="none") as node:
            yield node, await node.spawn(ProcessCalls.spec(**settings))


async def ask(node: Node, pid: Any, request: Any) -> Any:
    return await node.call(pid, request, timeout=60)


async def written(path: Path) -> int:
    """The number of the program that has written this file."""
    found: list[str] = []

    def is_written() -> bool:
        found[:] = [path.read_text(encoding="utf-8")] if path.exists() else []
        return bool(found and found[0])

    await until(is_written)
    return int(found[0])


async def test_a_function_runs_in_another_program_and_its_result_or_error_is_the_answer() -> None:
    async with cores() as (node, pid):
        pair = await ask(node, pid, Compute(samples.swap, Pair(1, [2, 3]), times=2))
        assert pair == Pair(10, [1])
        first = await ask(node, pid, Compute(samples.program))
        assert first == await ask(node, pid, Compute(samples.program)) != os.getpid()
        with pytest.raises(LookupError, match="none") as caught:
            await ask(node, pid, Compute(samples.fail, "none"))
        assert "In the program that ran tests.workers.samples:fail" in caught.value.__notes__[0]
        assert "raise LookupError(error)" in caught.value.__notes__[0]
        with pytest.raises(OddError, match="very"):
            await ask(node, pid, Compute(samples.fail, "odd"))
        with pytest.raises(RemoteError, match="HiddenError: secret"):
            await ask(node, pid, Compute(samples.fail, "unknown"))
        with pytest.raises(RemoteError, match=r"LookupError: x\\udcff"):
            await ask(node, pid, Compute(samples.fail, "not UTF-8"))
        with pytest.raises(RuntimeError, match="it raised SystemExit: 3"):
            await ask(node, pid, Compute(samples.fail, "exit"))
        with pytest.raises(TypeError, match=r"the result of \S+:unsendable cannot travel"):
            await ask(node, pid, Compute(samples.unsendable))
        with pytest.raises(BadInputError, match="at the top of a module"):
            await ask(node, pid, Compute(lambda: 1))
        with pytest.raises(MessageTypeError, match="an argument of say cannot travel"):
            wrong: Any = object()
            await ask(node, pid, Compute(samples.say, wrong))
        with pytest.raises(UnhandledCallError):
            await ask(node, pid, "something else")
        assert await ask(node, pid, Compute(samples.say, "printed")) == "printed"
        large = {number: number + 1 for number in range(20_000)}
        assert await ask(node, pid, Compute(samples.turned, large)) == samples.turned(large)
        assert (await node.inspect(pid))["done"] == "11"


async def test_a_program_that_ends_is_replaced_and_its_call_fails() -> None:
    async with cores() as (node, pid):
        first = await ask(node, pid, Compute(samples.program))
        with pytest.raises(
            ProcessCalls.LostError, match="samples:die has ended with status 7"
        ) as caught:
            await ask(node, pid, Compute(samples.die, 7))
        assert caught.value.lines == ("about to die",)
        second = await ask(node, pid, Compute(samples.program))
        assert second != first
        os.kill(second, signal.SIGKILL)  # idle: no call fails
        await until_shown(node, pid, "lost", 2)
        assert await ask(node, pid, Compute(samples.program)) not in (first, second)


async def test_a_program_that_answers_twice_answers_no_other_call() -> None:
    async with cores(timeout=30) as (node, pid):
        assert await ask(node, pid, Compute(samples.fork_and_return)) == "parent"
        assert await ask(node, pid, Compute(samples.say, "mine")) == "mine"
        with pytest.raises(ProcessCalls.LostError, match="by signal 9") as caught:
            await ask(node, pid, Compute(samples.write_answer, bytes(8)))
        assert "its answer was refused" in caught.value.lines[-1]
        assert await ask(node, pid, Compute(samples.say, "mine")) == "mine"


async def test_requests_wait_in_order_and_no_more_than_allowed(tmp_path: Path) -> None:
    answers: list[str] = []
    async with (
        cores(max_waiting=3) as (node, pid),
        trio.open_nursery() as nursery,
    ):

        async def say(text: str) -> None:
            answers.append(await ask(node, pid, Compute(samples.say, text)))

        async def hang() -> None:
            with pytest.raises(ProcessCalls.LostError, match="samples:hang has ended by signal 9"):
                await ask(node, pid, Compute(samples.hang, str(tmp_path / "a")))
            answers.append("killed")

        nursery.start_soon(hang)
        busy = await written(tmp_path / "a")
        with trio.move_on_after(0.01):  # it is dropped: its caller has given up
            await node.call(pid, Compute(samples.hang, str(tmp_path / "never")))
        for number in (1, 2):
            nursery.start_soon(say, str(number))
            await until_shown(node, pid, "waiting", 1 + number)
        with pytest.raises(MailboxFullError, match="as its max_waiting=3 allows"):
            await ask(node, pid, Compute(samples.say, "3"))
        os.kill(busy, signal.SIGKILL)

    assert answers == ["killed", "1", "2"]
    assert os.listdir(tmp_path) == ["a"]


async def test_a_function_that_hangs_is_killed_after_the_timeout(tmp_path: Path) -> None:
    async with cores(timeout=0.1) as (node, pid):
        with pytest.raises(
            ProcessCalls.LostError, match=r"samples:hang did not return within 0\.1 s"
        ):
            await ask(node, pid, Compute(samples.hang, str(tmp_path / "a")))
        await until_shown(node, pid, "programs", 1)


async def until_shown(node: Node, pid: Any, item: str, value: int) -> None:
    """Wait until the process shows this value."""
    while (await node.inspect(pid))[item] != str(value):  # noqa: ASYNC110
        await trio.sleep(0.001)


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed starts are repeated at once."""
    monkeypatch.setattr("ergo_py.workers.process_calls._BACKOFF", Backoff(0.0, 0.0))


@pytest.mark.usefixtures("no_delay")
@pytest.mark.parametrize("count", [1, 2])
async def test_programs_that_cannot_start_crash_the_process(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    async with checked_node(
        expect_crash=ProcessCalls.LostError, grace=10.0, log_output="none"
    ) as node:
        pid = await node.spawn(ProcessCalls.spec(count=count))
        with pytest.raises(TargetDownError, match="before it was ready"):
            await ask(node, pid, Compute(samples.program))


@pytest.mark.usefixtures("no_delay")
async def test_a_program_that_ends_before_it_is_ready_is_replaced() -> None:
    async with cores() as (node, pid):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONHOME", "/nowhere")
            cores_in_vain = await node.spawn(ProcessCalls.spec(count=2))
        assert await ask(node, cores_in_vain, Compute(samples.program)) != os.getpid()

        # Its count begins again with each program that was ready.
        for _ in range(2):
            first = await ask(node, pid, Compute(samples.program))
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PYTHONHOME", "/nowhere")
                with pytest.raises(ProcessCalls.LostError):
                    await ask(node, pid, Compute(samples.die, 7))
                await until_failed(node, pid, 3)
            assert await ask(node, pid, Compute(samples.program)) != first


@pytest.mark.usefixtures("no_delay")
async def test_a_start_that_the_system_refuses_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, refusals = Program.start, iter([EAGAIN, EMFILE, EAGAIN, EMFILE])

    async def refuse(options: Any) -> Program:
        for number in refusals:
            raise OSError(number, os.strerror(number))
        return await start(options)

    async with cores() as (node, pid):
        first = await ask(node, pid, Compute(samples.program))
        monkeypatch.setattr(Program, "start", refuse)
        with pytest.raises(ProcessCalls.LostError):
            await ask(node, pid, Compute(samples.die, 7))
        assert await ask(node, pid, Compute(samples.program)) != first
        assert next(refusals, None) is None


async def test_the_first_start_that_the_system_refuses_fails_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(options: Any) -> Program:
        raise OSError(EAGAIN, os.strerror(EAGAIN))

    monkeypatch.setattr(Program, "start", refuse)
    async with checked_node(log_output="none") as node:
        with pytest.raises(InitError):
            await node.spawn(ProcessCalls.spec(count=1))


async def until_failed(node: Node, pid: Any, least: int) -> None:
    """Wait until so many starts in a row have failed."""
    while int((await node.inspect(pid, timeout=60.0))["failed_starts"]) < least:  # noqa: ASYNC110
        await trio.sleep(0.001)


PROGRAM = """
import sys, trio
from ergo_py import open_node
from ergo_py.workers import Compute, ProcessCalls
from tests.workers import samples

async def main():
    async with open_node("main@here", watchdog=None) as node:
        pid = await node.spawn(ProcessCalls.spec(count=1))
        await node.call(pid, Compute(getattr(samples, sys.argv[2]), sys.argv[1]), timeout=None)

trio.run(main)
"""


@pytest.mark.parametrize(
    "function",
    [
        "hang",
        pytest.param(
            "hold_lock", marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux ends it")
        ),
    ],
)
async def test_a_busy_program_ends_with_a_program_that_is_killed(
    tmp_path: Path, function: str
) -> None:
    first = await trio.lowlevel.open_process(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "a"), function],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.DEVNULL,
    )
    with trio.fail_after(120):
        worker = await written(tmp_path / "a")
        first.kill()
        await first.wait()
        with pytest.raises(ProcessLookupError):
            while True:
                os.kill(worker, 0)
                await trio.sleep(0.01)


def test_arguments_of_process_calls_are_checked() -> None:
    wrong: Any
    for wrong in ({"count": 0}, {"timeout": 0}, {"max_waiting": 0}):
        with pytest.raises(BadInputError, match=next(iter(wrong))):
            ProcessCalls(**wrong)
    listed: Any = type("Local", (), {"__module__": "__main__"})
    with pytest.raises(BadInputError, match="types"):
        ProcessCalls(types=[listed])
