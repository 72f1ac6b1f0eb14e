"""The telemetry gateway: input is stored although any part may die; and only the losses in its
README may occur.
"""

import fcntl
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from ergo_py import PID, Actor, Down, Killed, Node, Reason
from ergo_py.testing import no_leaks
from examples.gateway.__main__ import start, where
from examples.gateway.decode import encode
from examples.gateway.gateway import FRAMES, Program, connect
from examples.gateway.load import Device, fire, reading, value_of
from tests.examples.programs import ROOT, running
from tests.meta.owner import owning
from tests.support import needs_proc, running_node


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    with no_leaks(grace=10.0):
        yield


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "telemetry.db"


@asynccontextmanager
async def gateway(database: Path, patience: float = 5.0) -> AsyncIterator[Node]:
    """A node with a gateway, which comes down without killed or abandoned processes."""
    async with running_node("gateway@localhost", limit=100) as node:
        await start(node, database, patience=patience)
        yield node
    report = node.exit_report
    assert report is not None
    assert not report.killed
    assert not report.abandoned


def stored(database: Path, source: int) -> set[int]:
    """The numbers of the readings of a source with the right values: there may be no reading that
    was not sent.
    """
    with closing(connect(database)) as connection:
        rows = list(
            connection.execute("select number, value from reading where source = ?", (source,))
        )
    assert all(value == value_of(source, number) for number, value in rows)
    return {number for number, _ in rows}


async def all_stored(database: Path, source: int, numbers: set[int]) -> None:
    """Wait for datagrams, for which there is no event; the time limit of the node bounds it."""
    while not stored(database, source) >= numbers:  # noqa: ASYNC110 - there is no event
        await trio.sleep(0.01)


def decoders(program: int) -> list[int]:
    """The decoders that a program has started, whichever of its threads did it."""
    lists = [
        path.read_text(encoding="utf-8")
        for path in Path(f"/proc/{program}/task").glob("*/children")
    ]
    return [
        number
        for number in (int(number) for numbers in lists for number in numbers.split())
        if b"decode.py" in Path(f"/proc/{number}/cmdline").read_bytes()
    ]


async def decoder_of_this_program() -> int:
    """The decoder, when it has begun. A decoder that starts slowly is replaced: for a moment there
    is none.
    """
    while not (found := decoders(os.getpid())):  # noqa: ASYNC110 - there is no event
        await trio.sleep(0.01)
    return found[0]


# -- mishaps ---------------------------------------------------------------------------------------


async def kill_the_program(node: Node, _: Device) -> None:
    for program in decoders(os.getpid()):
        os.kill(program, signal.SIGKILL)


async def kill_the_decoder(node: Node, _: Device) -> None:
    node.kill("decoder")


async def kill_the_pipeline(node: Node, _: Device) -> None:
    node.kill("readings")


async def end_the_thread_of_the_store(node: Node, _: Device) -> None:
    pipeline = node.whereis("readings")
    node.kill(next(alias for alias in node.metas() if node.meta_info(alias).parent == pipeline))


async def end_the_device(node: Node, _: Device) -> None:
    decoder = node.whereis("decoder")
    node.kill(next(alias for alias in node.metas() if node.meta_info(alias).parent == decoder))


async def kill_the_tcp_side(node: Node, _: Device) -> None:
    node.kill("tcp")


async def cut_off_the_client(_: Node, device: Device) -> None:
    device.break_off()


# -- tests -----------------------------------------------------------------------------------------


async def test_all_readings_are_stored_and_damaged_datagrams_are_counted(
    database: Path,
) -> None:
    async with gateway(database) as node:
        udp = await where(node, "udp")
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            for damaged in (b"rubbish", bytes(1025), encode(1, 300, "pressure", math.nan)):
                sock.sendto(damaged, udp)
        await fire(partial(where, node, "udp"), 1, 300)
        await Device(partial(where, node, "tcp"), 2, 300).deliver()

        # An inspection overtakes waiting messages, so the last of them may not have been counted
        # yet.
        while await node.inspect("udp") != {"stored": "300", "damaged": "3"}:  # noqa: ASYNC110
            await trio.sleep(0.01)

    assert stored(database, 1) == stored(database, 2) == set(range(300))


class SmallPipes(Program):
    def open(self) -> None:
        super().open()
        for pipe in (self.program.stdin, self.program.stdout):
            assert pipe is not None
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)


@pytest.mark.skipif(sys.platform != "linux", reason="sets the size of pipes")
async def test_the_program_takes_any_number_of_frames_through_small_pipes() -> None:
    largest = (1 << 32) - 1, (1 << 32) - 1, "temperature", -sys.float_info.max
    frames = [encode(*largest)] * 100 + [bytes(FRAMES.max_frame)] * 100
    async with owning(limit=100) as owned:
        device = await owned.spawn(SmallPipes())

        assert await owned.node.call(device, Program.Send(frames)) == [largest] * 100


@needs_proc
async def test_a_program_that_is_stopped_is_replaced(database: Path) -> None:
    async with gateway(database, patience=0.2) as node:
        stopped = await decoder_of_this_program()
        with suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGSTOP)
        await Device(partial(where, node, "tcp"), 2, 10).deliver()

        assert stopped not in decoders(os.getpid())
    assert stored(database, 2) == set(range(10))


@pytest.mark.parametrize(
    "mishap",
    [
        pytest.param(kill_the_program, marks=needs_proc),
        kill_the_decoder,
        end_the_device,
        kill_the_pipeline,
        end_the_thread_of_the_store,
        kill_the_tcp_side,
        cut_off_the_client,
    ],
)
async def test_no_reading_is_lost_when_any_part_dies(
    database: Path, mishap: Callable[[Node, Device], Awaitable[None]]
) -> None:
    async with gateway(database) as node:
        device = Device(partial(where, node, "tcp"), 2, 400)

        async def strike() -> None:
            while device.next < 150:  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.001)
            await mishap(node, device)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(fire, partial(where, node, "udp"), 1, 400))
            nursery.start_soon(device.deliver)
            nursery.start_soon(strike)
        await all_stored(database, 1, set(range(400)))

    assert stored(database, 1) == stored(database, 2) == set(range(400))


class Watch(Actor):
    """Notes the reasons for which processes have ended."""

    def __init__(self, reasons: list[Reason]) -> None:
        self.reasons = reasons

    def handle_call(self, request: PID, caller: object) -> None:
        self.monitor(request)

    def handle_message(self, message: Down, sender: object) -> None:
        self.reasons.append(message.reason)


@needs_proc
async def test_the_parts_end_in_order_when_decoder_and_supervisor_die_at_once(
    database: Path,
) -> None:
    """The decoder comes back while the front end stops, which so needs none of its time limit."""
    async with gateway(database) as node:
        reasons: list[Reason] = []
        watch = await node.spawn(Watch.spec(reasons))
        program = await decoder_of_this_program()
        os.kill(program, signal.SIGSTOP)
        device = Device(partial(where, node, "tcp"), 2, 10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.deliver)
            await fire(partial(where, node, "udp"), 1, 10)
            while (await node.inspect("readings"))["open"] != "2":  # noqa: ASYNC110
                await trio.sleep(0.001)
            for pid in [each for each in node.processes() if is_at_the_front(node, each)]:
                await node.call(watch, pid)
            node.kill("decoder")
            node.kill("gateway")
        while len(reasons) < 3:  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.001)

    # A session may also end with its connection: the device has all its answers.
    assert [reason for reason in reasons if isinstance(reason, Killed)] == []
    assert stored(database, 2) == set(range(10))


def is_at_the_front(node: Node, pid: PID) -> bool:
    return node.process_info(pid).behaviour in ("Datagrams", "Intake", "Session")


async def test_the_end_of_the_udp_intake_loses_only_datagrams_of_that_moment(
    database: Path,
) -> None:
    async with gateway(database) as node:
        find = partial(where, node, "udp")
        await fire(find, 1, 100)
        await all_stored(database, 1, set(range(100)))
        device = Device(partial(where, node, "tcp"), 2, 100)

        old = node.whereis("udp")
        await fire(find, 1, 100, first=100)
        node.kill("udp")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.deliver)
            while node.whereis("udp") in (None, old):  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.001)
            await fire(find, 1, 100, first=200)
            await all_stored(database, 1, set(range(200, 300)))

    assert stored(database, 1) >= set(range(100)) | set(range(200, 300))
    assert stored(database, 2) == set(range(100))


async def test_complete_frames_are_stored_although_their_client_dies_in_the_next(
    database: Path,
) -> None:
    async with gateway(database) as node:
        stream = await trio.open_tcp_stream(*await where(node, "tcp"))
        frames = b"".join(FRAMES.encode(reading(3, number)) for number in range(50))

        await stream.send_all(frames + FRAMES.encode(reading(3, 50))[:9])
        await stream.aclose()
        await all_stored(database, 3, set(range(50)))

    assert stored(database, 3) == set(range(50))


async def test_a_reading_that_is_acknowledged_is_in_the_database(database: Path) -> None:
    async with gateway(database) as node:
        stream = await trio.open_tcp_stream(*await where(node, "tcp"))
        for number in range(20):
            await stream.send_all(FRAMES.encode(reading(4, number)))
            acknowledged = b""
            while len(acknowledged) < 4:
                acknowledged += await stream.receive_some(4 - len(acknowledged))

            assert int.from_bytes(acknowledged, "big") == number + 1
            assert number in stored(database, 4)
        await stream.aclose()


async def test_the_tree_shows_the_parts_and_their_meta_processes(database: Path) -> None:
    async with gateway(database) as node:
        tree = str(node.tree())

    for part in ("readings Pipeline", "decoder Decoder", "udp Datagrams", "tcp Intake"):
        assert part in tree
    for part in ("BlockingCalls", "Program", "UDPServer", "TCPServer"):
        assert part in tree


def test_the_gateway_serves_devices_in_other_programs_until_ctrl_c(database: Path) -> None:
    with running("-m", "examples.gateway", "serve", database, 0, 0) as program:
        tcp, udp = program.port(), program.port()
        arguments = ("--tcp", str(tcp), "--udp", str(udp), "--devices", "2", "--readings", "100")
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "examples.gateway.load", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        status = program.interrupt()

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("200 datagrams sent, 200 readings acknowledged")
    assert status == 0
    assert stored(database, 0) == stored(database, 1) == set(range(100))


@needs_proc
async def test_a_killed_program_loses_no_acknowledged_reading_and_leaves_no_decoder(
    database: Path,
) -> None:
    ports: list[int] = []

    async def find() -> tuple[str, int]:
        return "127.0.0.1", ports[-1]

    device = Device(find, 5, 600, pause=0.001)
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            with running("-m", "examples.gateway", "serve", database, 0, 0) as first:
                ports.append(first.port())
                nursery.start_soon(device.deliver)
                while device.next < 200:  # noqa: ASYNC110 - there is no event
                    await trio.sleep(0.001)
                programs = decoders(first.process.pid)
                acknowledged = set(range(device.next)) - set(device.kept)
                first.process.kill()
                first.process.wait()

            kept = stored(database, 5)
            with running("-m", "examples.gateway", "serve", database, 0, 0) as second:
                ports.append(second.port())
                while not device.is_done:  # noqa: ASYNC110 - there is no event
                    await trio.sleep(0.001)
                status = second.interrupt()
        while any(Path(f"/proc/{program}").exists() for program in programs):  # noqa: ASYNC110, ASYNC240
            await trio.sleep(0.01)

    assert len(programs) == 1
    assert kept >= acknowledged
    assert status == 0
    assert stored(database, 5) == set(range(600))
