"""Nodes of several programs on one machine: they are killed, stopped and flooded."""

import os
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import BadInputError, Down, Name, NodeName, NoNode, TargetDownError, Why, open_node
from ergo_py.network import Local, NetworkError, NodeNameTakenError
from ergo_py.network.carriers.nats.permissions import permissions_text
from ergo_py.network.protocol.frames import Hello, encode_frame
from tests.actors import Recorder
from tests.network.pairs import TYPES, Add, Echo, Total, carrier_of, make_network, network_of, until
from tests.network.programs import COUNTER, other_program, until_it_answers
from tests.network.support import bytes_of_partial_frames, new_way, readers_of, write_waiting
from tests.network.test_nodes import Counter, Talker
from tests.support import running_node


async def test_two_programs_send_call_and_watch(meeting_place: Path) -> None:
    heard: list[Any] = []
    network = make_network("local", meeting_place, patience=30.0)
    async with (
        running_node("a@test", network=network) as a,
        other_program(meeting_place) as program,
    ):
        for number in range(1000):
            a.send(COUNTER, Add(number))
        assert await a.call(COUNTER, Total()) == 499_500
        watcher = await a.spawn(Talker, heard)
        await a.call(watcher, lambda me: me.monitor(NodeName("b@test")))
        await a.call(watcher, lambda me: me.monitor(COUNTER))
        assert await a.discover() == ["b@test"]

        assert program.stdin is not None
        await program.stdin.aclose()
        assert await program.wait() == 0
        await until(lambda: len(heard) == 2)

    # The normal end keeps its place behind messages; the loss of a node is urgent.
    assert {str(down.reason) for down in heard} == {
        "shutdown",
        "no connection to node b@test: the node goes down",
    }


async def test_a_killed_program_is_noticed_at_once(meeting_place: Path) -> None:
    heard: list[Any] = []
    network = make_network("local", meeting_place, patience=600.0)
    async with running_node("a@test", network=network) as a:
        async with other_program(meeting_place, patience=600.0) as program:
            assert await a.call(COUNTER, Total()) == 0
            watcher = await a.spawn(Talker, heard)
            await a.call(watcher, lambda me: me.monitor(COUNTER))
            errors: list[BaseException] = []

            async def call() -> None:
                try:
                    await a.call(COUNTER, Echo("never"), timeout=None)
                except TargetDownError as error:
                    errors.append(error)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                assert await a.call(COUNTER, Total()) == 0
                program.kill()
        await until(lambda: heard and errors)
        assert heard == [Down(COUNTER, NoNode("b@test"))]

        async with other_program(meeting_place):
            # The socket file that the killed program has left is replaced.
            assert await a.call(COUNTER, Total()) == 0


async def test_a_stopped_program_is_invisible_within_the_patience(meeting_place: Path) -> None:
    network = make_network("local", meeting_place, beat=0.05, patience=600.0)
    async with (
        running_node("a@test", network=network) as a,
        other_program(meeting_place, 0.05, 600.0) as program,
    ):
        assert await a.call(COUNTER, Total()) == 0
        program.send_signal(signal.SIGSTOP)
        for _ in range(100):
            assert a.send(COUNTER, Add(1))
        await trio.sleep(0.2)
        program.send_signal(signal.SIGCONT)

        assert await a.call(COUNTER, Total(), timeout=30) == 100
        assert a.nodes() == ["b@test"]


async def test_a_stopped_program_is_down_after_the_patience(meeting_place: Path) -> None:
    network = make_network("local", meeting_place, beat=0.05, patience=0.3)
    async with (
        running_node("a@test", network=network) as a,
        other_program(meeting_place, 0.05, 0.3) as program,
    ):
        await until_it_answers(a)
        program.send_signal(signal.SIGSTOP)
        with pytest.raises(TargetDownError, match=r"to node b@test: it (is|does not)"):
            await a.call(COUNTER, Total(), timeout=30)
        a.send(COUNTER, Add(1))
        await until(lambda: [letter.why for letter in a.dead_letters()] == [Why.NO_NODE])
        program.send_signal(signal.SIGCONT)
        await until_it_answers(a)


async def test_a_name_that_is_taken_is_refused(meeting_place: Path) -> None:
    network = make_network("local", meeting_place)
    async with running_node("a@test", network=network):
        with pytest.raises(NodeNameTakenError, match="a running node has the name 'a@test'"):
            async with running_node("a@test", network=network):
                pass
    async with running_node("a@test", network=network) as again:
        assert again.nodes() == []


async def test_a_node_in_a_network_needs_a_name_and_a_place() -> None:
    with pytest.raises(BadInputError, match="such as 'shop@berlin'"):
        async with running_node("alone", network=make_network("memory")):
            pass


ODD_NAMES = [
    ("a\0@x", "printable characters"),
    ("a@x\n", "printable characters"),
    ("a\u202e@x", "printable characters"),
    ("\udcff@x", "printable characters"),
    (".hidden@x", "does not begin with a dot"),
    ("a" * 300 + "@x", "at most 255 bytes"),
    ("nodename", "a name and a place"),
    ("@x", "a name and a place"),
]


@pytest.mark.counted
@pytest.mark.parametrize("name, text", ODD_NAMES)
async def test_a_name_that_would_be_trouble_in_logs_and_paths_is_refused(
    meeting_place: Path, name: str, text: str
) -> None:
    for network in (make_network("memory"), make_network("local", meeting_place)):
        with pytest.raises(BadInputError, match=rf"name: got .*{text}"):
            async with running_node(name, network=network):
                pass
    with pytest.raises(BadInputError, match=text):
        permissions_text("c", ["a@x", name])
    assert os.listdir(meeting_place) == []


@pytest.mark.parametrize("name", ["shop 1@berlin", "bücher@x", "a@b@c", "web[1]@x", "*@*", "a.b@x"])
async def test_other_names_are_found(meeting_place: Path, name: str) -> None:
    network = make_network("local", meeting_place)
    async with running_node("me@x", network=network) as me, running_node(name, network=network):
        assert await me.discover() == [name]
        assert await me.at(name).ping() >= 0.0


@pytest.mark.parametrize("kind", ["memory", "local"])
async def test_an_address_on_a_node_with_an_odd_name_is_down(
    meeting_place: Path, kind: str
) -> None:
    async with running_node("a@test", network=make_network(kind, meeting_place)) as a:
        for name in ("\udcff@x", "a\n@x", ".a@x"):
            with trio.fail_after(30), pytest.raises(TargetDownError):
                await a.call(Name("x", name), Total())


async def test_frames_of_a_node_with_an_odd_name_are_dropped(meeting_place: Path) -> None:
    async with running_node("a@test", network=make_network("local", meeting_place)) as a:
        for name in (b"a\nb@x", b"alone", "\u202eb@x".encode()):
            network_of(a).frame(name.decode(), encode_frame(Hello(1, 1, 1, 0, 1)))
        assert a.network().peers == {}


async def test_files_that_are_no_sockets_of_nodes_are_no_nodes(meeting_place: Path) -> None:
    network = make_network("local", meeting_place)
    async with running_node("a@x", network=network) as a, running_node("b@x", network=network):
        (meeting_place / "file@x.node").write_text("", encoding="utf-8")
        (meeting_place / "link@x.node").symlink_to(meeting_place / "b@x.node")
        (meeting_place / "lost@x.node").symlink_to(meeting_place / "none")
        (meeting_place / "loop@x.node").symlink_to(meeting_place / "loop@x.node")
        (meeting_place / "folder@x.node").mkdir()
        assert await a.discover() == ["b@x"]
        for name in ("file@x", "link@x", "lost@x", "loop@x", "folder@x", "none@x"):
            with trio.fail_after(30), pytest.raises(TargetDownError, match="no such node"):
                await a.call(Name("x", name), Total())


@pytest.mark.parametrize("error", [PermissionError(13, "no"), BlockingIOError(11, "full")])
async def test_a_socket_that_may_not_be_opened_is_no_node(
    meeting_place: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    network = make_network("local", meeting_place)
    async with running_node("a@x", network=network) as a, running_node("b@x", network=network):

        class Refusing(socket.socket):
            def connect(self, address: Any) -> None:
                raise error

        monkeypatch.setattr("ergo_py.network.carriers.local_carrier.socket.socket", Refusing)
        is_full = isinstance(error, BlockingIOError)
        assert await a.discover() == (["b@x"] if is_full else [])


async def connected(meeting_place: Path, name: bytes, data: bytes) -> socket.socket:
    """A connection of a program that calls itself a node."""
    stranger = socket.socket(socket.AF_UNIX)
    stranger.connect(str(meeting_place / "a@test.node"))
    stranger.setblocking(False)
    writer = trio.socket.from_stdlib_socket(stranger)
    rest = struct.pack(">I", len(name)) + name + data
    while rest:
        rest = rest[await writer.send(rest) :]
    stranger.setblocking(False)
    return stranger


async def test_a_new_connection_of_a_node_replaces_the_earlier_connection(
    meeting_place: Path,
) -> None:
    """Half of a frame is kept once for each node, not once for each connection."""
    half = struct.pack(">I", 1 << 20) + bytes(1 << 19)
    async with running_node("a@test", network=make_network("local", meeting_place)) as a:
        carrier, open_ones = carrier_of(a), []
        for _ in range(5):
            open_ones.append(await connected(meeting_place, b"c@test", half))
            await until(lambda: bytes_of_partial_frames(carrier) <= 16 * (16 << 20) - (1 << 19))
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert list(readers_of(carrier)) == ["c@test"]
        assert bytes_of_partial_frames(carrier) >= 16 * (16 << 20) - (1 << 20)
        for old in open_ones[:-1]:
            assert old.recv(1) == b""
        with pytest.raises(BlockingIOError):
            open_ones[-1].recv(1)
        for connection in open_ones:
            connection.close()
        await until(lambda: not readers_of(carrier))
        assert bytes_of_partial_frames(carrier) == 16 * (16 << 20)


@pytest.mark.parametrize(
    "settings,text",
    [
        ({"beat": 0}, "beat: got 0"),
        ({"patience": 1.0, "beat": 1.0}, "at least two beats of 1 s"),
        ({"backlog": 0}, "backlog: got 0"),
        ({"window": 5}, "window: got 5"),
        ({"types": Add}, "a list of classes and modules"),
    ],
)
def test_a_setting_that_is_wrong_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(BadInputError, match=text):
        Local(**settings)


@pytest.mark.counted
def test_an_object_that_is_no_network_is_refused() -> None:
    wrong: Any = "local"
    with pytest.raises(BadInputError, match=r"network: got 'local'; allowed is a network, such as"):
        open_node("a@test", network=wrong)


async def test_a_directory_that_others_may_enter_is_refused(meeting_place: Path) -> None:
    os.chmod(meeting_place, 0o755)
    with pytest.raises(NetworkError, match=r"may be entered by others .* another directory="):
        async with running_node("a@test", network=make_network("local", meeting_place)):
            pass


async def test_a_directory_that_does_not_exist_is_an_error(meeting_place: Path) -> None:
    with pytest.raises(NetworkError, match="no socket in"):
        async with running_node("a@test", network=make_network("local", meeting_place / "no")):
            pass


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff\xff\xff",
        struct.pack(">I", 6) + b"c@test" + b"\xff\xff\xff\xff",
        struct.pack(">I", 6) + b"c@test" + struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        struct.pack(">I", 6) + b"b@test" + struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        struct.pack(">I", 6) + b"c@test" + struct.pack(">I", 6) + b"\x94\x03\x01\x02\xa1\xff",
        struct.pack(">I", 6) + b"a@test" + struct.pack(">I", 1) + b"\x90",
        struct.pack(">I", 3) + b"\xff\xfe\xfd",
    ],
)
async def test_garbage_on_the_socket_harms_no_node(meeting_place: Path, data: bytes) -> None:
    network = make_network("local", meeting_place)
    async with (
        running_node("a@test", network=network) as a,
        running_node("b@test", network=network) as b,
    ):
        pid = await b.spawn(Counter)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(meeting_place / "a@test.node"))
            stranger.sendall(data)
            await trio.testing.wait_all_tasks_blocked(0.01)
        await trio.testing.wait_all_tasks_blocked(0.01)

        async def answers() -> bool:
            try:
                return await a.call(pid, Total()) == 0
            except TargetDownError:  # the stranger has spoken in the name of b
                return False

        with trio.fail_after(30):
            while not await answers():
                pass


async def test_a_node_leaves_no_socket_behind(meeting_place: Path) -> None:
    async with running_node("a@test", network=make_network("local", meeting_place)):
        assert sorted(os.listdir(meeting_place)) == ["a@test.lock", "a@test.node"]
    assert os.listdir(meeting_place) == []


async def test_many_large_messages_pass_a_slow_socket(meeting_place: Path) -> None:
    network = Local(types=TYPES, directory=meeting_place, window=4 << 20)
    async with (
        running_node("a@test", network=network) as a,
        running_node("b@test", network=network) as b,
    ):
        pid = await b.spawn(Counter)
        answers: list[int] = []

        async def call(number: int) -> None:
            value = await a.call(pid, Echo(bytes([number]) * 300_000), timeout=60)
            assert value == bytes([number]) * 300_000
            answers.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(call, number)
        assert sorted(answers) == list(range(50))


class Narrow:
    """A socket that takes ten bytes at a time."""

    def __init__(self) -> None:
        self.written = b""
        self.given: list[Any] = []

    def send(self, data: Any) -> int:
        self.given.append(data)
        self.written += bytes(data[:10])
        return min(10, len(data))


async def test_the_rest_of_a_frame_that_is_partly_written_is_not_copied() -> None:
    narrow = Narrow()
    way = new_way(narrow)
    way.send(b"x" * 96)
    way.send(b"y" * 6)
    left = await write_waiting(way, narrow)

    assert narrow.written == b"\0\0\0\x60" + b"x" * 96 + b"\0\0\0\x06" + b"y" * 6
    rests = [data for data in narrow.given if isinstance(data, memoryview)]
    assert len(rests) == 9
    assert len({id(rest.obj) for rest in rests}) == 1
    assert left == 0


async def test_a_node_survives_a_peer_that_closes_its_connections(meeting_place: Path) -> None:
    network = make_network("local", meeting_place, beat=0.02, patience=600.0)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(meeting_place / "c@test.node"))
        listener.listen(8)
        async with (
            running_node("a@test", network=network) as a,
            running_node("b@test", network=network) as b,
        ):
            pid = await b.spawn(Counter)
            trio_listener = trio.socket.from_stdlib_socket(listener.dup())
            with trio_listener:
                for _ in range(20):
                    a.send(Name("x", "c@test"), b"x" * 300_000)
                    connection, _ = await trio_listener.accept()
                    connection.close()
                    a.send(Name("x", "c@test"), b"x" * 300_000)

            assert await a.call(pid, Total()) == 0


async def test_a_prompt_joins_the_network(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    async with running_node("b@here", network=Local(), limit=120) as node:
        await node.spawn(Recorder, name="recorder")
        program = [sys.executable, "-m", "ergo_py", "shell", "--network", "local"]
        inputs = (
            "print(await node.discover())\n"
            "print(await node.send_wait(Name('recorder', 'b@here'), 'from the prompt'))\n"
        )
        done = await trio.run_process(
            [*program, "--name", "me@here"], stdin=inputs.encode(), capture_stdout=True
        )
        heard = await node.call("recorder", "what did you hear")

    assert done.stdout.decode().startswith("['b@here']\nTrue\n")
    assert heard == ["from the prompt"]
