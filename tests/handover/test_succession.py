"""A program and its successor. The tests play either program, and end the program after each
step.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import Actor, Node, NotAllowedError
from ergo_py.errors import ControlSocketError
from ergo_py.handover.channel import REQUEST, Channel, Part, connect, hand_over, make_turn
from ergo_py.handover.next_version import NextVersion
from ergo_py.handover.succession import Succession
from ergo_py.meta import TCP, TCPServer, UDPServer
from ergo_py.meta.inherited_sockets import InheritedSockets
from ergo_py.shell.cli import main as ergo
from ergo_py.shell.exit_codes import Status
from tests.support import loopback_of_this_program, running_node

FILE = "shop.handover"
KEEPALIVE = TCP.KeepAlive(idle=77, interval=7, count=3)
BUFFERS: dict[str, Any] = {"send_buffer": 40_000, "receive_buffer": 50_000}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> Path:
    """The directory of the sockets at which programs find each other."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    (short_path / "ergo").mkdir(mode=0o700)
    return short_path / "ergo"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> InheritedSockets:
    """The named sockets of this program."""
    made = InheritedSockets({})
    monkeypatch.setattr("ergo_py.meta.sockets.socket_setup.inherited_sockets", lambda: made)
    return made


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A socket of the predecessor."""
    with socket.create_server((loopback_of_this_program(), 0)) as sock:
        yield sock


class Echo(Actor):
    """Serves with a named socket."""

    def __init__(self, host: str, port: int) -> None:
        self.server = TCPServer(
            *(host, port), sock="echo", reader="task", keepalive=KEEPALIVE, **BUFFERS
        )

    async def init(self) -> None:
        await self.spawn_meta(self.server)

    def handle_message(self, message: Any, sender: Any) -> None:
        if isinstance(message, TCP.Data):
            self.send(message.connection, TCP.Send(message.data))


def channels() -> tuple[Channel, Channel]:
    ours, theirs = map(trio.socket.from_stdlib_socket, socket.socketpair())
    return Channel(ours), Channel(theirs)


STEPS: list[dict[str, object]] = [REQUEST, {"up": True}, {"taken": True}, {"mine": True}]
"""The lines of a successor without processes that take a state, up to its turn."""


class NoStates:
    """The program has no processes that move."""

    def __init__(self) -> None:
        self.fresh = list[str]()
        self.are_given = False

    async def suspend(self, wanted: Iterable[object], servers: Iterable[object] = ()) -> list[Part]:
        raise AssertionError

    async def resume(self) -> None:
        """Resume none."""


@asynccontextmanager
async def predecessor(
    place: Path, play: Callable[[Channel], Awaitable[None]]
) -> AsyncIterator[None]:
    """A program that waits for a successor, and plays its part with the first."""
    waiting = trio.socket.socket(socket.AF_UNIX)
    await waiting.bind(str(place / FILE))
    waiting.listen(1)

    async def meet() -> None:
        sock, _ = await waiting.accept()
        waiting.close()
        channel = Channel(sock)
        await play(channel)
        channel.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(meet)
        yield


@pytest.mark.parametrize("line", [{"take": 2}, {"up": True}, [1], "junk"])
async def test_a_program_gives_its_sockets_to_its_successor_only(
    line: Any, listening: socket.socket
) -> None:
    ours, theirs = channels()
    await theirs.say(line)

    sockets = {"echo": listening.fileno()}
    outcome = await hand_over(ours, await ours.hear(), sockets, NoStates())
    ours.close()

    asked = json.dumps(line.get("take")) if isinstance(line, dict) else "null"
    assert outcome.goes_on
    assert outcome.why == (
        "the running program hands over by the protocol 1 of ergo_py, and the next version by "
        f"{asked}; stop the running program, and start the next version"
    )
    assert await theirs.hear() == {"failed": outcome.why}
    assert await theirs.hear() == {}
    assert theirs.take_descriptors() == []
    theirs.close()


async def take_over(node: Node, succession: Succession, port: int = 1) -> trio.Event:
    """Start the server of a new program, and say that the program is up."""
    served = trio.Event()
    await node.spawn(Echo, loopback_of_this_program(), port, name="echo")
    succession.watch(node, served.set)()
    return served


def ask(address: Any, data: bytes) -> bytes:
    with socket.create_connection(address) as peer:
        peer.sendall(data)
        return peer.recv(20)


@pytest.mark.parametrize("steps", range(3))
async def test_a_successor_goes_on_without_its_predecessor(
    steps: int, place: Path, named: InheritedSockets, listening: socket.socket
) -> None:
    """The predecessor ends at once, after the line with the sockets, or after the last step."""
    succession, heard = Succession("shop", named), list[object]()

    async def precede(channel: Channel) -> None:
        heard.append(await channel.hear())
        if steps:
            await channel.say({"sockets": ["echo"]}, (listening.fileno(),))
            heard.append(await channel.hear())
        if steps == 2:
            assert named.is_held
            await channel.say({"states": 0, "fresh": []})
            heard.append(await channel.hear())
            turn = make_turn()
            await channel.say({"yours": True}, (turn,))
            os.close(turn)
            heard.append(await channel.hear())
            assert not named.is_held

    address = listening.getsockname()
    async with predecessor(place, precede):
        await succession.begin()
        assert named.is_held is (steps > 0)
        if steps:
            async with running_node() as node:
                await (await take_over(node, succession)).wait()
                assert await trio.to_thread.run_sync(ask, address, b"hello") == b"hello"
                assert (place / FILE).exists()
                await succession.end()

    up = {"up": True, "takes": [], "connections": []}
    assert heard == [REQUEST, up, *STEPS[2:]][: (1, 2, 4)[steps]]
    assert not (place / FILE).exists() or not steps


async def test_a_program_that_is_late_ends_and_has_accepted_no_connection(
    place: Path, named: InheritedSockets, listening: socket.socket
) -> None:
    succession = Succession("shop", named)

    async def precede(channel: Channel) -> None:
        await channel.hear()
        await channel.say({"sockets": ["echo"]}, (listening.fileno(),))
        await channel.hear()
        await channel.say({"late": 60})

    async with predecessor(place, precede):
        await succession.begin()
        with socket.create_connection(listening.getsockname()):
            with pytest.raises(NotAllowedError, match="goes on: this one was not up within 60 s"):
                async with running_node() as node:
                    try:
                        await take_over(node, succession)
                        await trio.sleep_forever()
                    finally:
                        await succession.end()
            # The connection is still in the queue, for the predecessor.
            listening.setblocking(False)
            listening.accept()[0].close()


async def test_a_program_ends_after_a_successor_of_its_user_and_leaves_its_file(
    place: Path, named: InheritedSockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = iter([os.geteuid() + 1, os.geteuid()])
    monkeypatch.setattr("ergo_py.handover.succession.peer_user", lambda _: next(users))
    succession, heard = Succession("shop", named), list[object]()
    await succession.begin()

    async def succeed() -> None:
        sock = trio.socket.socket(socket.AF_UNIX)
        await sock.connect(str(place / FILE))
        with closing(Channel(sock)) as channel:
            for line in STEPS:
                await channel.say(line)
                heard.append(await channel.hear())
                if not heard[-1]:
                    break
                (place / "next").touch()
                (place / "next").rename(place / FILE)
            else:
                await channel.say({"arrived": True})
                assert await channel.hear() == {}  # it keeps the channel until the program ends

    async with trio.open_nursery() as nursery, running_node() as node:
        try:
            await (await take_over(node, succession, 7780)).wait()
            with suppress(OSError):  # the first is refused, perhaps before its first line
                await succeed()
            nursery.start_soon(succeed)
            await trio.sleep_forever()
        finally:
            await succession.end()

    states = {"states": 0, "fresh": []}
    assert heard[-4:] == [{"sockets": ["echo"]}, states, {"yours": True}, {"moved": 0}]
    assert {} in heard[:-4] or len(heard) == 4
    assert (place / FILE).exists()
    os.close(named.to_hand_over()["echo"])


async def test_a_client_gets_the_news_of_an_upgrade_before_its_end(
    place: Path, named: InheritedSockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["sleep", "1000"])  # the test plays the next version
    succession, heard = Succession("shop", named), list[dict[str, Any]]()
    await succession.begin()

    async with running_node() as node:
        try:
            await (await take_over(node, succession, 7781)).wait()
            client, successor = await connect("shop"), await connect("shop")
            assert client is not None
            assert successor is not None
            with closing(client), closing(successor):
                await client.say({"upgrade": 1})
                heard.append(await client.hear())
                for line in STEPS:
                    await successor.say(line)
                    await successor.hear()
                await successor.say({"arrived": True})
                while "done" not in heard[-1]:
                    heard.append(await client.hear())
            await trio.sleep_forever()
        finally:
            await succession.end()

    started, *news = heard
    os.kill(started["started"], signal.SIGKILL)
    await trio.to_thread.run_sync(os.waitpid, started["started"], 0)
    sockets: dict[str, Any] = {"sockets": ["echo"], "states": [], "fresh": []}
    done: dict[str, Any] = {"done": True, "connections": 0, "staying": {}, "hangs": ""}
    assert (news[0], news[-1]) == (sockets, done)
    os.close(named.to_hand_over()["echo"])


async def test_the_sockets_of_named_servers_are_kept_and_survive_a_restart(
    place: Path, named: InheritedSockets
) -> None:
    host = loopback_of_this_program()
    succession = Succession("shop", named)
    await succession.begin()
    async with running_node() as node:
        owner = await node.spawn(Echo, host, 7779)

        async def datagrams(me: Any) -> None:
            await me.spawn_meta(UDPServer(host, 7779, sock="datagrams"))

        await node.spawn(_Spawner, datagrams)
        kept = named.to_hand_over()
        assert sorted(kept) == ["datagrams", "echo"]
        # The next version may have other options: its connections inherit none of these.
        with (
            socket.socket(fileno=os.dup(kept["echo"])) as listening,
            socket.socket(socket.AF_INET) as fresh,
        ):
            for option in [
                (socket.SOL_SOCKET, socket.SO_SNDBUF),
                (socket.SOL_SOCKET, socket.SO_RCVBUF),
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
            ]:
                assert listening.getsockopt(*option) == fresh.getsockopt(*option)
        node.kill(owner)
        await node.spawn(Echo, host, 7779)
        assert await trio.to_thread.run_sync(ask, (host, 7779), b"hello") == b"hello"
        assert named.to_hand_over() == kept
    await succession.end()
    for number in kept.values():
        os.close(number)


class _Spawner(Actor):
    def __init__(self, function: Any) -> None:
        self.function = function

    async def init(self) -> None:
        await self.function(self)


TRANSCRIPT = "ergo upgrade shop"
PROGRAM = """
import os, signal, sys, trio
from pathlib import Path
from examples.guide.moved_state import Visits
from ergo_py import Actor, ChildSpec, run
from ergo_py.handover import leaving_connections
from ergo_py.handover.channel import Channel
from ergo_py.meta import TCP, TCPServer

leaving_connections._BATCH = 2
host, port, file, *states = sys.argv[1:]
version, taken, say = Path(file).read_text(encoding="utf-8"), [], Channel.say

def end():
    match version:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exits":
            os._exit(0)
        case "stops the old":
            os.kill(os.getppid(), signal.SIGTERM)

class Session(Actor):
    def handle_message(self, message, sender):
        if isinstance(message, TCP.Data):
            self.send(message.connection, TCP.Send(version.encode()))
    def hand_over(self):
        return None
    def take_over(self, state):
        taken.append(state)
        if len(taken) == 5:
            end()

class Door(Actor):
    async def init(self):
        options = {"sock": "echo", "reader": "task", "receiver": Session}
        await self.spawn_meta(TCPServer(host, int(port), **options))

async def say_or_end(self, line, *args, **options):
    if version == "killed at last" and "arrived" in line:
        os.kill(os.getpid(), signal.SIGKILL)
    await say(self, line, *args, **options)

async def main(node, task_status):
    moved = [ChildSpec(name, Visits) for name in states]
    await node.supervise([ChildSpec("door", Door), *moved])
    if version == "broken":
        raise RuntimeError("this version does not start")
    if version == "waits":
        print("waits", os.getpid(), flush=True)
        await trio.sleep_forever()
    task_status.started()
    print("up", flush=True)
    await trio.sleep_forever()

Channel.say = say_or_end
run(main, handover="shop", log_output="none")
"""
"""Its sessions answer with the text of the version."""


def _command(address: tuple[str, int], version: Path, *states: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, *map(str, address), str(version), *states]


class Running:
    """A program whose versions a test starts, each at the end of the version before."""

    def __init__(self, place: Path, port: int, *states: str) -> None:
        self.address = loopback_of_this_program(), port
        self._version = place / "version"
        self._version.write_text("1", encoding="utf-8")
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        """Hears which version serves, as a service manager does."""
        self.manager.bind(str(place / "manager"))
        self.first = subprocess.Popen(
            _command(self.address, self._version, *states),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "NOTIFY_SOCKET": str(place / "manager")},
            process_group=0,
        )
        assert self.first.stdout is not None
        self.output = self.first.stdout
        """Of all versions: its end is that of the last version."""
        assert self.output.readline() == b"up\n"
        assert self.hear_serving() == self.first.pid

    def hear_serving(self) -> int:
        """The process that has taken over, and can be upgraded."""
        told = self.manager.recv(1000).decode()
        ready, _, process = told.partition("READY=1\nSTATUS=node@localhost is up\nMAINPID=")
        assert ready == ""
        return int(process)

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        self.output.close()
        self.manager.close()
        with suppress(ProcessLookupError):
            os.killpg(self.first.pid, signal.SIGKILL)  # if a test has failed
        self.first.wait()

    def upgrade(self, version: str) -> int:
        self._version.write_text(version, encoding="utf-8")
        return ergo(["upgrade", "shop"])

    def ask(self) -> bytes:
        """The version that accepts connections."""
        return ask(self.address, b"?")

    def ask_each(self, peers: list[socket.socket]) -> list[bytes]:
        """The versions that serve the peers; empty if none does."""
        return sorted(map(_answer, peers))


def _answer(peer: socket.socket) -> bytes:
    with suppress(ConnectionError):
        peer.sendall(b"?")
        return peer.recv(20)
    return b""


def without_numbers(text: str) -> str:
    """What ``ergo upgrade`` says, without the numbers that differ from run to run."""
    return re.sub(r"process \d+", "process N", re.sub(r"(?m)^ *[\d.]+ s", "  N s", text))


def test_two_versions_of_a_program_replace_each_other_without_a_gap(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def upgrade(version: str) -> tuple[int, str]:
        status = program.upgrade(version)
        said = capsys.readouterr()
        return status, without_numbers(said.out + said.err)

    with Running(place, 7777, "visits") as program:
        with socket.create_connection(program.address) as old:
            assert program.ask_each([old]) == [b"1"]

            started = "  N s  the next version has started: process N\n"
            status, text = upgrade("broken")
            assert status == Status.FAILED
            assert text.startswith(f"{started}ergo: the next version has ended")
            assert text.endswith("; the running program goes on\n")
            assert program.ask() == b"1"
            page = Path(__file__).parents[2] / "docs" / "deploying.md"
            shown = page.read_text(encoding="utf-8").partition(
                f"<!-- transcript: {TRANSCRIPT} -->\n"
            )[2]
            shown = shown.partition(f"$ {TRANSCRIPT}\n")[2].partition("```")[0]
            assert upgrade("2") == (Status.DONE, without_numbers(shown))
            assert program.ask() == b"2"
            assert program.ask_each([old]) == [b"2"]  # the connection has moved
        assert program.first.wait(60) == 0
        os.kill(program.hear_serving(), signal.SIGTERM)
        assert program.output.read() == b"up\n"
        # Neither the broken version nor the first has told that the service stops.
        assert program.manager.recv(1000) == b"STOPPING=1\nSTATUS=node@localhost stops"
        program.manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            program.manager.recv(1000)
    assert not (place / FILE).exists()


def test_an_upgrade_without_a_running_program_says_how_to_start_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def advice(name: str) -> str:
        assert ergo(["upgrade", name]) == Status.NO_NODE
        unknown = f"ergo: no running program has the name {name!r} for its next version; "
        return capsys.readouterr().err.removeprefix(unknown)

    (place / "shops.handover").touch()  # of a program that was killed
    (place / f"{'shop' * 30}.handover").touch()
    for name in ("shops", "shopp", "sh\udcffp"):
        assert advice(name) == f"start it with run(main, handover={name!r})\n"
    with socket.socket(socket.AF_UNIX) as program:
        program.bind(str(place / FILE))
        program.listen()
        assert advice("shopp") == "did you mean 'shop'?\n"


NEWS = [
    {"started": 7},
    {"sockets": ["echo", "web"], "states": ["visits"], "fresh": ["total"]},
    {"moving": 4000, "of": 9000},
    {"done": True, "connections": 8990, "staying": {"busy": 9, "HTTP": 1}, "hangs": "it hangs"},
]

TEXTS = [
    "the next version has started: process N",
    "listening sockets handed over: echo, web",
    "states handed over: visits",
    "states not taken, since the next version has no process of this name with take_over: total",
    "connections under way: 4000 of 9000 handed over",
    "connections handed over: 8990",
    "connections that the old version serves to their end: 1 (HTTP), 9 (busy)",
]
"""The lines of ``ergo upgrade`` for these news."""


def test_an_upgrade_to_a_version_that_hangs_after_its_turn_says_so(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket(socket.AF_UNIX) as program:
        program.bind(str(place / FILE))
        program.listen(1)

        def answer() -> None:
            peer, _ = program.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"".join(b"%s\n" % json.dumps(line).encode() for line in NEWS))

        answering = threading.Thread(target=answer)
        answering.start()
        assert ergo(["upgrade", "shop"]) == Status.FAILED
        answering.join()
    said = capsys.readouterr()
    assert without_numbers(said.out) == "".join(f"  N s  {line}\n" for line in TEXTS)
    assert said.err == (
        "ergo: it hangs, and the old version finishes its open work; kill the next version if it "
        "still runs, and start the program again when the old version has ended\n"
    )


def test_a_name_with_too_long_a_path_of_its_socket_is_refused(
    place: Path, named: InheritedSockets
) -> None:
    with pytest.raises(ControlSocketError, match="is longer than 100 bytes"):
        Succession("shop" * 30, named)


@asynccontextmanager
async def upgrade(version: NextVersion, patience: float) -> AsyncIterator[Channel]:
    """The channel of a client that has asked for an upgrade."""
    ours, theirs = channels()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(version.upgrade, ours, patience)
        yield theirs
    ours.close()
    theirs.close()


async def test_a_next_version_that_does_not_ask_in_time_is_ended(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["sleep", "1000"])
    version = NextVersion()

    async with upgrade(version, 60.0) as client:
        assert "started" in await client.hear()
        async with upgrade(version, 60.0) as second:
            assert await second.hear() == {"failed": "another upgrade is under way"}
        assert await client.hear() == {
            "failed": "the next version did not ask for the hand-over within 60 s"
        }

    for outcome in ({"failed": "it hangs"}, {"done": True}):
        async with upgrade(version, 60.0) as client:
            pid = (await client.hear())["started"]
            version.report({"begun": True})  # from now on the hand-over has its own limits of time
            await trio.sleep(100)  # virtual
            version.report({"moving": 7, "of": 9})
            assert await client.hear() == {"moving": 7, "of": 9}
            version.report(outcome)
            assert await client.hear() == outcome
        if "failed" in outcome:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
            await trio.to_thread.run_sync(os.waitpid, pid, 0)

    # The hand-over of a program that ends in its middle reports the loss.
    async with upgrade(version, 60.0) as client:
        pid = (await client.hear())["started"]
        version.report({"begun": True})
        os.kill(pid, signal.SIGKILL)
        await trio.sleep(100)  # virtual
        version.report({"moving": 7, "of": 9})
        version.report({"failed": "seven have ended"})
        assert await client.hear() == {"moving": 7, "of": 9}
        assert await client.hear() == {"failed": "seven have ended"}

    monkeypatch.setattr(sys, "orig_argv", ["false"])
    async with upgrade(NextVersion(), inf) as client:
        assert "started" in await client.hear()
        assert await client.hear() == {"failed": "the next version has ended with status 1"}
    monkeypatch.setattr(sys, "orig_argv", ["no such command"])
    async with upgrade(NextVersion(), 60.0) as client:
        assert "the next version cannot be started" in str(await client.hear())


def starts_wait(monkeypatch: pytest.MonkeyPatch) -> tuple[trio.Event, threading.Event]:
    """Return an event that is set when a program is to start, and one that lets it start."""
    begun, go_on, start = trio.Event(), threading.Event(), subprocess.Popen

    def start_later(*args: Any, **options: Any) -> Any:
        trio.from_thread.run_sync(begun.set)
        go_on.wait()
        return start(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", start_later)
    return begun, go_on


async def test_a_second_upgrade_is_refused_while_the_first_starts_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["false"])
    version = NextVersion()
    begun, go_on = starts_wait(monkeypatch)
    async with upgrade(version, inf) as client:
        await begun.wait()
        async with upgrade(version, inf) as second:
            assert await second.hear() == {"failed": "another upgrade is under way"}
        go_on.set()
        assert "started" in await client.hear()
        assert "failed" in await client.hear()


async def test_a_next_version_that_starts_while_its_program_is_stopped_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["sleep", "1000"])
    version = NextVersion()
    begun, go_on = starts_wait(monkeypatch)
    async with upgrade(version, inf) as client:
        await begun.wait()
        version.stop()
        go_on.set()
        pid = (await client.hear())["started"]
        assert await client.hear() == {
            "failed": "the running program was stopped before its next version had its turn, and "
            "has stopped it, too",
            "ends": True,
        }
    with suppress(ChildProcessError):  # it was waited for
        _, status = await trio.to_thread.run_sync(os.waitpid, pid, 0)
        assert os.WTERMSIG(status) == signal.SIGTERM


async def test_a_next_version_starts_where_its_program_runs_if_pwd_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["sh", "-c", 'pwd -P > "$TOLD"'])
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    monkeypatch.setenv("PWD", str(tmp_path / "nowhere"))
    async with upgrade(NextVersion(), inf) as client:
        assert "started" in await client.hear()
        assert "failed" in await client.hear()
    assert (tmp_path / "told").read_text(encoding="utf-8").strip() == str(Path.cwd().resolve())


async def test_a_program_of_another_protocol_is_refused_before_anything_moves(
    place: Path, named: InheritedSockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Succession("shop", named)
    await first.begin()
    async with running_node() as node:
        await (await take_over(node, first, 7782)).wait()
        monkeypatch.setattr("ergo_py.handover.succession.REQUEST", {"take": 2})
        sockets = InheritedSockets({})
        with pytest.raises(NotAllowedError) as caught:
            await Succession("shop", sockets).begin()
        assert str(caught.value) == (
            "the running program 'shop' goes on: the running program hands over by the protocol 1 "
            "of ergo_py, and the next version by 2; stop the running program, and start the next "
            "version"
        )
        assert sockets.to_hand_over() == {}
        assert first.serves
        await first.end()
    os.close(named.to_hand_over()["echo"])


async def test_a_program_does_not_start_beside_a_program_that_never_answers(
    place: Path, named: InheritedSockets
) -> None:
    """It closes each connection without a word."""
    waiting = trio.socket.socket(socket.AF_UNIX)
    await waiting.bind(str(place / FILE))
    waiting.listen(1)
    asked = list[object]()

    async def refuse() -> None:
        while True:
            sock, _ = await waiting.accept()
            with closing(Channel(sock)) as channel:
                asked.append(await channel.hear())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refuse)
        with pytest.raises(NotAllowedError, match="goes on: it did not answer 10 requests"):
            await Succession("shop", named).begin()
        nursery.cancel_scope.cancel()
    waiting.close()
    assert asked == [REQUEST] * 10


async def test_a_program_that_stops_while_it_waits_for_its_predecessor_closes_the_channel(
    place: Path, named: InheritedSockets
) -> None:
    heard, asked = list[object](), trio.Event()

    async def precede(channel: Channel) -> None:
        heard.append(await channel.hear())
        asked.set()
        heard.append(await channel.hear())

    async with predecessor(place, precede), trio.open_nursery() as nursery:
        nursery.start_soon(Succession("shop", named).begin)
        await asked.wait()
        nursery.cancel_scope.cancel()
    assert heard == [REQUEST, {}]


@pytest.mark.parametrize("end, lost", [("killed", 4), ("exits", 4), ("killed at last", 7)], ids=str)
def test_an_upgrade_to_a_version_that_ends_in_the_middle_counts_lost_connections(
    end: str, lost: int, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = 7 - lost
    with Running(place, 7783) as program:
        peers = [socket.create_connection(program.address) for _ in range(7)]
        assert program.ask_each(peers) == [b"1"] * 7

        assert program.upgrade(end) == Status.FAILED
        assert capsys.readouterr().err == (
            f"ergo: the next version has ended after it has taken over, and with it {lost} of 7 "
            "connections; the running program goes on\n"
        )
        assert program.ask_each(peers) == [b""] * lost + [b"1"] * kept
        assert program.ask() == b"1"

        assert program.upgrade("2") == Status.DONE
        said = capsys.readouterr().out
        assert ("connections handed over: 3" in said) is (kept == 3)
        assert program.ask_each(peers) == [b""] * lost + [b"2"] * kept
        assert program.first.wait(60) == 0
        (process,) = re.findall(r"process (\d+)", said)
        os.kill(int(process), signal.SIGTERM)
        assert program.output.read() == b"up\n" * 2  # of the version that has ended, and the last
        for peer in peers:
            peer.close()


def test_a_program_that_is_stopped_in_the_middle_moves_all_connections(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Running(place, 7784, "visits") as program:
        peers = [socket.create_connection(program.address) for _ in range(7)]
        assert program.ask_each(peers) == [b"1"] * 7
        assert program.upgrade("stops the old") == Status.DONE
        said = capsys.readouterr().out
        assert "connections handed over: 7" in said
        assert program.first.wait(60) == 0
        assert program.ask_each(peers) == [b"stops the old"] * 7
        assert program.ask() == b"stops the old"
        (process,) = re.findall(r"process (\d+)", said)
        os.kill(int(process), signal.SIGTERM)
        assert program.output.read() == b"up\n"
        for peer in peers:
            peer.close()


def test_a_program_that_waits_for_its_predecessor_stops_at_a_signal(
    place: Path, tmp_path: Path
) -> None:
    (tmp_path / "version").write_text("2", encoding="utf-8")
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.bind(str(place / FILE))
        waiting.listen()
        command = _command((loopback_of_this_program(), 7786), tmp_path / "version")
        with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
            asked, _ = waiting.accept()
            with asked:
                assert json.loads(asked.recv(1000)) == REQUEST
                program.terminate()  # the predecessor does not answer
                assert asked.recv(1000) == b""
            assert program.communicate()[0] == b""
            assert program.returncode == 0
    assert os.listdir(place) == [FILE]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("side", ["old", "new"])
def test_an_upgrade_says_which_version_was_ended_before_the_turn_and_which_goes_on(
    side: str,
    number: signal.Signals,
    place: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The signal comes while the next version starts, and has the sockets."""
    with Running(place, 7785) as program:
        status, first = list[int](), program.first
        upgrading = threading.Thread(target=lambda: status.append(program.upgrade("waits")))
        upgrading.start()
        waits, _, text = program.output.readline().decode().partition(" ")
        assert waits == "waits"
        following = int(text)
        os.kill(first.pid if side == "old" else following, number)
        upgrading.join()
        assert status == [Status.FAILED]
        said = capsys.readouterr().err.removeprefix("ergo: ").rstrip()
        if side == "new":
            assert said == (
                "the next version has ended before it was up; the running program goes on"
            )
            assert program.ask() == b"1"
            os.kill(first.pid, signal.SIGTERM)
        elif number == signal.SIGTERM:
            assert said == (
                "the running program was stopped before its next version had its turn, and has "
                "stopped it, too"
            )
        else:
            assert said == (
                "the running program 'shop' has ended without a word; its next version, process "
                f"{following}, goes on with all that it has got"
            )
            os.kill(following, signal.SIGTERM)
        assert program.output.read() == b""  # both have ended
        assert first.wait(60) == (-number if (side, number) == ("old", signal.SIGKILL) else 0)
