"""The handshakes of a listening socket: they are kept out, and those under way are told."""

import errno
import select
import socket
from struct import pack
from typing import Any, Self

import pytest
import trio

from ergo_py.meta.sockets.handshakes import drop_new_peers, handshakes_at
from tests.meta.wires import dial_with_late_ack, needs_handshakes

_DETACH_FILTER = 27
"""``SO_DETACH_FILTER`` of Linux: without a filter it fails with ENOENT."""


class Netlink:
    """A socket of netlink with prepared answers."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def send(self, question: bytes) -> None:
        pass

    def recv(self, size: int) -> bytes:
        return self.answers.pop(0)


def message(kind: int, content: bytes) -> bytes:
    return pack("=IHHII", 16 + len(content), kind, 0, 1, 0) + content


def handshake(repeats: int, cookie: bytes) -> bytes:
    """A handshake whose answer was repeated so often."""
    return message(20, bytes([socket.AF_INET, 3, 1, repeats]) + bytes(40) + cookie + bytes(20))


def look(monkeypatch: pytest.MonkeyPatch, netlink: Any) -> frozenset[bytes] | None:
    with socket.create_server(("127.0.0.1", 0)) as listening, monkeypatch.context() as patch:
        patch.setattr("ergo_py.meta.sockets.handshakes.socket.socket", netlink)
        return handshakes_at(listening)


def test_a_draining_socket_takes_no_new_peer_and_keeps_those_in_its_queue() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        try:
            listening.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
        except OSError as error:
            if error.errno != errno.ENOENT:
                pytest.skip("the system has no filters of sockets")
        with (
            socket.create_connection(listening.getsockname(), timeout=60) as early,
            socket.socket() as late,
        ):
            drop_new_peers(listening)
            late.setblocking(False)
            late.connect_ex(listening.getsockname())

            # On loopback a connection that is not dropped is complete at once.
            assert select.select([], [late], [], 0.1)[1] == []
            accepted, _ = listening.accept()
            with accepted:
                accepted.sendall(b"welcome")
                assert early.recv(7) == b"welcome"


@needs_handshakes
async def test_a_handshake_is_under_way_until_its_last_ack() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_server(("127.0.0.1", 0)) as other,
        trio.fail_after(60),
    ):
        late = dial_with_late_ack(listening.getsockname())
        while not handshakes_at(listening):
            # On a slow machine, the last ACK may be faster than the look.
            late = dial_with_late_ack(listening.getsockname())
        elsewhere = handshakes_at(other)
        await late.send_all(b"hello")

        assert elsewhere == frozenset()
        assert not handshakes_at(listening)
        await late.aclose()


def test_abandoned_handshakes_are_not_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = handshake(0, b"fresh..."), handshake(1, b"repeated"), handshake(2, b"given up")
    netlink = Netlink(listed[0] + listed[1], listed[2], message(3, bytes(4)))

    assert look(monkeypatch, lambda *_: netlink) == frozenset({b"fresh...", b"repeated"})


def test_a_system_that_does_not_list_handshakes_tells_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPROTONOSUPPORT, "no netlink")

    unknown = Netlink(message(2, pack("=i", -errno.ENOENT)))

    assert look(monkeypatch, lambda *_: unknown) is None
    assert look(monkeypatch, refuse) is None
    left, right = socket.socketpair()
    with left, right:
        assert handshakes_at(left) is None
