"""`DatagramReader`: many datagrams with a single system call, as messages."""

import errno
import gc
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from ergo_py._core.speed.installation import datagram_reader
from ergo_py.meta import UDPServer
from ergo_py.meta.sockets.datagrams import UDPData
from tests.meta.wires import Ear, Mail, spawn_meta, wired_node

needs_reader = pytest.mark.skipif(datagram_reader is None, reason="there is no such reader here")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as receiver,
        closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        sender.connect(receiver.getsockname())
        yield receiver, sender


def make(most: int = 65535, peer_of: Callable[[Any], object] = lambda address: address) -> Any:
    return datagram_reader(UDPData, "the socket", most, peer_of)


def sizes(messages: list[UDPData]) -> list[int]:
    return [len(message.data) for message in messages]


@needs_reader
def test_a_read_takes_all_datagrams_that_have_arrived(pair: Any) -> None:
    receiver, sender = pair
    texts = [b"", b"x", bytes(2047), bytes(2048), b"y" * 2049, b"z" * 9000]
    for text in texts:
        sender.send(text)

    messages, size, truncated = make().read(receiver.fileno(), 64, True)

    address = sender.getsockname()
    assert [(message.peer, message.data, message.truncated) for message in messages] == [
        (address, text, False) for text in texts
    ]
    assert {message.socket for message in messages} == {"the socket"}
    assert (size, truncated) == (sum(map(len, texts)), 0)


@needs_reader
@pytest.mark.parametrize("most", [1, 100, 2047, 2048, 3000])
def test_a_longer_datagram_is_truncated(pair: Any, most: int) -> None:
    receiver, sender = pair
    for length in (most - 1, most, most + 1, most + 500):
        sender.send(bytes(length))

    messages, size, truncated = make(most).read(receiver.fileno(), 64, True)

    assert sizes(messages) == [most - 1, most, most, most]
    assert [message.truncated for message in messages] == [False, False, True, True]
    assert (size, truncated) == (4 * most + 1, 2)


@needs_reader
def test_a_read_takes_no_more_than_it_is_asked_for(pair: Any) -> None:
    receiver, sender = pair
    reader = make()
    for number in range(10):
        sender.send(bytes(number))

    assert sizes(reader.read(receiver.fileno(), 4, False)[0]) == [0, 1, 2, 3]
    assert sizes(reader.read(receiver.fileno(), 64, True)[0]) == [4, 5, 6, 7, 8, 9]
    with pytest.raises(BlockingIOError):
        reader.read(receiver.fileno(), 64, False)


@needs_reader
def test_the_endpoint_of_a_peer_is_asked_for_when_the_peer_changes(pair: Any) -> None:
    receiver, first = pair
    asked: list[Any] = []

    def peer_of(address: Any) -> Any:
        asked.append(address)
        return f"peer {len(asked)}"

    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as second:
        second.connect(receiver.getsockname())
        for sender in (first, first, second, first):
            sender.send(b"x")
        messages, _, _ = make(100, peer_of).read(receiver.fileno(), 64, True)
        assert asked == [each.getsockname() for each in (first, second, first)]

    assert [message.peer for message in messages] == ["peer 1", "peer 1", "peer 2", "peer 3"]


@needs_reader
@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6 here")
def test_addresses_of_ipv6_are_those_of_the_socket_module() -> None:
    asked: list[Any] = []
    with (
        closing(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as receiver,
        closing(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as sender,
    ):
        try:
            receiver.bind(("::1", 0))
        except OSError:
            pytest.skip("there is no IPv6 here")
        sender.connect(receiver.getsockname())
        sender.send(b"x")
        make(100, asked.append).read(receiver.fileno(), 1, True)

        assert asked == [sender.getsockname()]


@needs_reader
def test_errors_are_those_of_the_socket_module(pair: Any) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number follows
        make().read(-1, 64, True)
    assert caught.value.errno == errno.EBADF

    def fails(address: Any) -> Any:
        raise LookupError(address)

    receiver, sender = pair
    sender.send(b"x")
    with pytest.raises(LookupError):
        make(100, fails).read(receiver.fileno(), 64, True)


@needs_reader
@pytest.mark.parametrize(
    "given",
    [(), (UDPData, "a", 0, print), (UDPData, "a", 65536, print), (int, "a", 5, print), (5,) * 4],
)
def test_a_reader_is_made_for_messages_of_datagrams_only(given: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)):
        datagram_reader(*given)


@needs_reader
def test_a_shutdown_wakes_a_reader_without_a_message(pair: Any) -> None:
    receiver, _ = pair
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(make().read(receiver.fileno(), 64, True)), daemon=True
    )
    thread.start()
    while not found:
        try:
            receiver.shutdown(socket.SHUT_RD)
        except OSError:  # "not connected": it wakes the reader all the same
            pass
        thread.join(0.01)

    assert found == [([], 0, 0)]


@needs_reader
def test_a_read_leaves_no_references(pair: Any) -> None:
    receiver, sender = pair
    peer = object()
    reader = make(100, lambda _address: peer)
    counts = []
    for _ in range(3):
        for _ in range(50):
            sender.send(b"x" * 50)
        reader.read(receiver.fileno(), 64, True)
        gc.collect()
        counts.append(sys.getrefcount(peer))

    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("in_c", [True, False])
@pytest.mark.parametrize("reader", ["thread", "task"])
async def test_a_server_counts_the_same_with_and_without_it(
    monkeypatch: pytest.MonkeyPatch, reader: Any, in_c: bool
) -> None:
    if in_c and datagram_reader is None:
        pytest.skip("there is no such reader here")
    if not in_c:
        monkeypatch.setattr(UDPServer, "_reader_type", None)
    async with wired_node() as node:
        mail = Mail()
        owner = await node.spawn(Ear, mail)
        server = UDPServer(reader=reader, max_datagram=10)
        await spawn_meta(node, owner, server)
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
            sender.connect((server.local.host, server.local.port))
            for length in range(5, 15):
                sender.send(bytes(length))
            messages = await mail.wait_for(UDPData, 10)

        assert sizes(messages) == [5, 6, 7, 8, 9, 10, 10, 10, 10, 10]
        assert [message.truncated for message in messages] == [False] * 6 + [True] * 4
        assert {message.peer.port for message in messages} == {messages[0].peer.port}
        facts = server.handle_inspect("messages in", "bytes in", "truncated")
        assert facts == {"messages in": "10", "bytes in": "89", "truncated": "4"}
