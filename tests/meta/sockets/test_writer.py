"""Writing to a stream socket bit by bit."""

import select
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.lowlevel import checkpoint, current_task

from ergo_py import Actor
from ergo_py._core.runtime.handoff import SWITCH, turns_of_loop
from ergo_py._core.runtime.parking import TrioTurns
from ergo_py._core.tables.pending_calls import Caller
from ergo_py._core.vocabulary.ids import PID
from ergo_py.meta import TCP, TCPServer
from ergo_py.meta.sockets.options import StreamOptions
from ergo_py.meta.sockets.streams.tls_layer import TLSLayer
from ergo_py.meta.sockets.streams.writer import Writer, WriterReports
from tests.meta.wires import Ear, Mail, spawn_meta, until, wired_node
from tests.support import replace_private

SENDER = PID("node", 0, 1)


async def test_an_empty_write_does_not_keep_the_writer_busy() -> None:
    works: list[Callable[[], Awaitable[None]]] = []
    writer = Writer(
        TLSLayer(start_tls=False),
        StreamOptions(),
        WriterReports(works.append, lambda: None, lambda _caller, _size: None),
        failed=lambda _: None,
        slow=lambda: None,
    )
    ours, theirs = socket.socketpair()
    writer.use(ours, trio.current_time, TrioTurns())
    while writer.write(bytes(65536)):
        pass
    whole = writer.written + writer.pending

    done_at_once = writer.write(b"")
    with trio.socket.from_stdlib_socket(theirs) as peer, trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(works[0])
            got = 0
            while got < whole:
                got += len(await peer.recv(65536))

    assert not done_at_once
    assert writer.pending == 0
    writer.close()
    ours.close()


@pytest.mark.parametrize("moves", [False, True], ids=["stays", "moves"])
async def test_data_for_a_frozen_writer_waits_for_the_program_that_goes_on(moves: bool) -> None:
    works: list[Callable[[], Awaitable[None]]] = []
    answers: list[tuple[int, int]] = []
    writer = Writer(
        TLSLayer(start_tls=False),
        StreamOptions(write_limit=1000),
        WriterReports(
            works.append,
            lambda: None,
            lambda _caller, size: answers.append((size, writer.pending)),
        ),
        failed=lambda _: None,
        slow=lambda: None,
    )
    ours, theirs = socket.socketpair()
    writer.use(ours, trio.current_time, TrioTurns())
    size, caller = 4_000_000, Caller(SENDER, 1, SENDER, None)
    assert not writer.write(bytes(size))  # more than the system takes at once
    assert len(writer.freeze()) == size - writer.written

    assert not writer.put(b"late", caller)

    assert not writer.is_slow
    with trio.socket.from_stdlib_socket(theirs) as peer, trio.fail_after(30):
        if moves:
            writer.close()  # its session has ended: the data is still to be forwarded
            assert (writer.take_late(), writer.take_late()) == (b"late", b"")
        else:
            writer.thaw()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(works[0])
                got = b""
                while len(got) < size + 4:
                    got += await peer.recv(65_536)
            assert got[-4:] == b"late"
    assert answers == [(4, 0)]  # when no byte waits for the peer
    writer.close()
    ours.close()


# -- output at the end of a root's turn ------------------------------------------------------------


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)


class Pair:
    """A writer in the turn of a root that wakes many processes, and the socket of its peer."""

    def __init__(self, tls: Any = None) -> None:
        self.turns = turns_of_loop(True)
        self.failures: list[OSError] = []
        self.slow = 0
        self.writer = Writer(
            tls or TLSLayer(start_tls=False),
            StreamOptions(write_limit=100_000),
            WriterReports(lambda _work: None, lambda: None, lambda _caller, _size: None),
            failed=self.failures.append,
            slow=self.count_slow,
        )
        self.ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.writer.use(self.ours, trio.current_time, self.turns)

    def count_slow(self) -> None:
        self.slow += 1

    def __enter__(self) -> "Pair":
        assert self.turns.begin(current_task(), True)
        return self

    def __exit__(self, *_error: object) -> None:
        self.turns.end(current_task())
        self.writer.close()
        self.ours.close()
        self.theirs.close()

    def send(self, data: Any) -> None:
        assert self.writer.serve(TCP.Send(data), SENDER)

    def got(self) -> bytes:
        try:
            return self.theirs.recv(1_000_000)
        except BlockingIOError:
            return b""


async def test_a_root_writes_the_messages_of_its_turn_together_at_its_end() -> None:
    await checkpoint()
    with Pair() as pair:
        pair.send(b"one ")
        pair.send(bytearray(b"two"))
        assert pair.got() == b""

        pair.turns.end(current_task())

        assert pair.got() == b"one two"
        assert pair.writer.messages == 2
        assert pair.writer.written == 7


async def test_a_response_is_written_at_the_end_of_the_turn_or_at_once_without_a_root() -> None:
    await checkpoint()
    with Pair() as pair:
        assert pair.writer.put(b"one ", None, in_turn=True)
        pair.send(b"two ")
        assert pair.got() == b""

        assert pair.writer.put(b"x" * 20_000, None, in_turn=True)
        assert pair.got().startswith(b"one two x")
        pair.writer.put(b"three", None, in_turn=True)
        pair.turns.end(current_task())
        assert pair.got() == b"three"

        assert pair.writer.put(b"four", None, in_turn=True)
        assert pair.got() == b"four"
        pair.writer.stop_accepting()
        assert pair.turns.begin(current_task(), True)
        pair.writer.put(b"five", None, in_turn=True)
        assert [type(error) for error in pair.failures] == [BrokenPipeError]


async def test_a_mutable_buffer_may_change_after_it_was_sent() -> None:
    await checkpoint()
    data = bytearray(b"before")
    with Pair() as pair:
        pair.send(data)
        data[:] = b"after!"
        pair.turns.end(current_task())

        assert pair.got() == b"before"


@pytest.mark.parametrize(
    "then",
    [
        pytest.param(lambda pair: pair.send(b"x" * 20_000), id="a large message"),
        pytest.param(lambda pair: pair.writer.put(b"x" * 20_000, None), id="a call"),
        pytest.param(lambda pair: pair.writer.stop_accepting(), id="a close"),
        pytest.param(lambda pair: pair.writer.close(), id="the end"),
    ],
)
async def test_held_data_is_written_before_anything_else(then: Callable[[Pair], object]) -> None:
    await checkpoint()
    with Pair() as pair:
        pair.send(b"first ")
        then(pair)

        assert pair.got().removesuffix(b"x" * 20_000) == b"first "


class NumberedRecords:
    """Stands for a TLS layer: its records have the numbers in which they were made."""

    phase = None
    holds_data = False

    def __init__(self) -> None:
        self.session = self
        self.made = 0

    def encrypt(self, data: bytes, _caller: object = None) -> bytes:
        self.made += 1
        return b"%d:%b " % (self.made, data)

    def take(self) -> bytes:
        return self.encrypt(b"answer")

    def take_early(self) -> list[object]:
        return []

    def goodbye(self) -> bytes:
        return self.encrypt(b"goodbye")


@pytest.mark.parametrize(
    "then, last",
    [
        pytest.param(lambda pair: pair.writer.write_tls(), b"answer", id="TLS itself"),
        pytest.param(lambda pair: pair.writer.put(b"put", None), b"put", id="a call"),
        pytest.param(lambda pair: pair.send(b"x" * 20_000), b"x" * 20_000, id="a large message"),
        pytest.param(lambda pair: pair.writer.stop_accepting(), b"goodbye", id="a close"),
        pytest.param(lambda pair: pair.writer.say_goodbye(), b"goodbye", id="a goodbye"),
    ],
)
async def test_records_of_tls_are_written_in_the_order_in_which_they_are_made(
    then: Callable[[Pair], object], last: bytes
) -> None:
    await checkpoint()
    with Pair(NumberedRecords()) as pair:
        pair.send(b"held")
        then(pair)

        assert pair.got() == b"1:held 2:%b " % last


async def test_a_writer_holds_a_limited_number_of_messages() -> None:
    await checkpoint()
    with Pair() as pair:
        for _ in range(64):
            pair.send(b".")
        assert pair.got() == b""

        pair.send(b".")

        assert pair.got() == b"." * 64 + b"."


async def test_a_peer_that_does_not_take_held_data_is_slow_and_a_broken_socket_fails() -> None:
    await checkpoint()
    with Pair() as pair:
        for _ in range(60):
            pair.send(b"x" * 16_384)
        pair.turns.end(current_task())
        assert pair.slow == 1
    with Pair() as pair:
        pair.send(b"x")
        pair.theirs.close()
        pair.turns.end(current_task())
        assert len(pair.failures) == 1


async def test_replies_to_many_connections_are_written_after_all_their_callbacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_private(monkeypatch, "clock of time slices", lambda: 0.0)
    answered: list[int] = []

    class Session(Actor):
        def handle_message(self, message: object, sender: object) -> None:
            if isinstance(message, TCP.Data):
                self.send(self.connection, TCP.Send(message.data))
                self.send(self.connection, TCP.Send(b"."))
                answered.append(sum(map(has_data, peers)))

    async with wired_node() as node:
        server = TCPServer(receiver=Session, reader="task")
        await spawn_meta(node, await node.spawn(Ear, Mail()), server)
        peers = [socket.create_connection(server.local, timeout=60) for _ in range(5)]
        # The system may deliver a few requests late: then try again.
        for _ in range(20):
            answered.clear()
            for peer in peers:
                peer.sendall(b"x")
            for peer in peers:
                assert await read_exactly(peer, 2) == b"x."
            if answered == [0] * 5:
                break
        for peer in peers:
            peer.close()

    assert answered == [0] * 5


def has_data(peer: socket.socket) -> bool:
    return bool(select.select([peer], [], [], 0)[0])


async def read_exactly(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        await until(partial(has_data, peer))
        data += peer.recv(count - len(data))
    return data
