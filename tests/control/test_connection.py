"""A client's lines, in and out: bounded, and never waited for."""

import selectors
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ergo_py.control.connection import Connection
from ergo_py.control.protocol import MAX_ANSWER, MAX_REQUEST


class Pair:
    """A connection, and the client at its other end."""

    def __init__(self) -> None:
        ours, self.peer = socket.socketpair()
        self.peer.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.written: list[str] = []
        self.connection = Connection(
            ours,
            self.selector,
            SimpleNamespace(_kernel=None),
            lambda _, text: self.written.append(text),
        )

    def events(self) -> int:
        """The events that the selector watches for."""
        known = self.selector.get_map()
        return known[self.connection.sock].events if self.connection.sock in known else 0


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.connection.close()
    pair.peer.close()
    pair.selector.close()


def test_lines_are_taken_singly_however_the_stream_is_cut(pair: Pair) -> None:
    one = pair.connection

    pair.peer.send(b"fi")
    assert one.receive()
    assert not one.has_line
    assert one.line_began is not None
    pair.peer.send(b"rst\nsecond\nth")
    assert one.receive()

    assert one.has_line
    assert (one.first_line(), one.take_line(), one.take_line(), one.first_line()) == (
        b"first",
        b"first",
        b"second",
        b"th",
    )
    assert not one.has_line


def test_reading_stops_at_the_maximum_length_of_a_line(pair: Pair) -> None:
    one = pair.connection
    total = 0
    for _ in range(10):
        try:
            total += pair.peer.send(b"x" * MAX_REQUEST)
        except BlockingIOError:
            break
    while pair.events() & selectors.EVENT_READ:
        assert one.receive()

    assert one.is_oversized
    assert len(one.first_line()) <= 2 * MAX_REQUEST
    assert total > len(one.first_line())


def test_unsent_output_waits_and_its_time_counts_from_the_first_write(pair: Pair) -> None:
    one = pair.connection
    text = b"x" * MAX_ANSWER

    assert one.say(text)
    began = one.write_began
    assert began is not None
    assert not one.has_sent_all
    assert pair.events() & selectors.EVENT_WRITE
    assert one.say(b"more")
    assert one.write_began == began
    taken = 0
    while taken < len(text) + 4:
        taken += len(pair.peer.recv(1 << 20))
        assert one.flush()

    assert one.has_sent_all
    assert one.write_began is None
    assert pair.events() == selectors.EVENT_READ


def test_too_much_unsent_output_is_noticed(pair: Pair) -> None:
    pair.connection.say(b"x" * (2 * MAX_ANSWER))

    assert pair.connection.is_full


def test_the_end_of_the_peer_is_noticed(pair: Pair) -> None:
    pair.peer.close()

    assert not pair.connection.receive()
    assert not pair.connection.say(b"anybody?")


def test_a_leaving_connection_reads_no_lines_and_ends_after_its_last_write(pair: Pair) -> None:
    one: Any = pair.connection
    one.leaving = True
    pair.peer.send(b"please\n")

    assert one.receive()
    assert not one.has_line
    assert not one.say(b"goodbye\n")
    assert pair.peer.recv(100) == b"goodbye\n"
