"""The protocol of NATS, byte by byte, and what a hostile server may send."""

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.budgets import Budget
from ergo_py.network.carriers.nats import wire
from ergo_py.network.carriers.nats.wire import (
    Message,
    Ping,
    Pong,
    ServerError,
    ServerInfo,
    ServerParser,
    WireError,
)

STREAM = (
    b'INFO {"server_name":"one","version":"2.15.1","max_payload":8192,"nonce":"n",'
    b'"headers":true,"tls_required":true,"tls_available":true,"auth_required":true,"ldm":true,'
    b'"connect_urls":["10.0.0.1:4222",7]}\r\n'
    b"PING\r\n+OK\r\nPONG\r\n"
    b"MSG a.b 1 5\r\nhe\r\no\r\n"
    b"MSG a.b 12 back 0\r\n\r\n"
    b"HMSG x.y 2 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    b"HMSG x.y 2 back 21 26\r\nNATS/1.0\r\nKey: is\r\n\r\nhello\r\n"
    b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n"
    b"msg\ta\t3\t1\r\nx\r\n"
)
OPERATIONS = [
    ServerInfo("one", "2.15.1", 8192, "n", True, True, True, True, True, ("10.0.0.1:4222",)),
    Ping(),
    Pong(),
    Message("a.b", 1, "", 0, b"he\r\no"),
    Message("a.b", 12, "back", 0, b""),
    Message("x.y", 2, "", 503, b""),
    Message("x.y", 2, "back", 0, b"hello"),
    ServerError('Permissions Violation for Publish to "a"'),
    Message("a", 3, "", 0, b"x"),
]


def parsed(*chunks: bytes) -> list[object]:
    parser = ServerParser()
    return [operation for chunk in chunks for operation in parser.feed(chunk)]


def test_the_operations_of_a_server_are_read() -> None:
    assert parsed(STREAM) == OPERATIONS


def test_a_cut_at_any_byte_changes_nothing() -> None:
    for cut in range(1, len(STREAM)):
        assert parsed(STREAM[:cut], STREAM[cut:]) == OPERATIONS


def test_single_bytes_change_nothing() -> None:
    assert parsed(*(STREAM[n : n + 1] for n in range(len(STREAM)))) == OPERATIONS


def test_a_long_line_that_comes_in_pieces_is_not_copied_for_each_piece() -> None:
    parser = ServerParser()
    long = b'INFO {"server_name":"' + b"x" * 500_000
    for piece in (long, b"x", b"x"):
        assert list(parser.feed(piece)) == []

    def feed(piece: bytes) -> str:
        return f"{len(list(parser.feed(piece)))} operations"

    budget = Budget(memory=100_000, memory_per_byte=0)
    assert budget.spend(feed, b"x").outcome == "0 operations"

    assert list(parser.feed(b'"}\r')) == []
    assert list(parser.feed(b"\nPING\r\n")) == [ServerInfo("x" * 500_004), Ping()]


def test_a_long_line_that_comes_in_pieces_is_refused_at_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "_LINE", 100)
    parser = ServerParser()
    for piece in (b"INFO ", b"x" * 90, b"x" * 5):
        assert list(parser.feed(piece)) == []

    with pytest.raises(WireError, match="a line is longer than 100 bytes"):
        list(parser.feed(b"x"))


def test_messages_with_a_known_header_are_read_as_the_first() -> None:
    assert parsed(STREAM * 3) == OPERATIONS * 3
    assert parsed(STREAM, *(STREAM[n : n + 1] for n in range(len(STREAM)))) == OPERATIONS * 2
    many = b"".join(b"MSG %d.%s 1 1\r\nx\r\n" % (n, b"s" * (n // 2)) for n in range(1500))
    assert parsed(many, many) == [
        Message(f"{n}.{'s' * (n // 2)}", 1, "", 0, b"x") for n in [*range(1500)] * 2
    ]


@pytest.mark.parametrize(
    "data", [b"MSG a 1 1\r\nxyz\r\n", b"MSG a 1 99999999999\r\n", b"MSG a 1 -1\r\n"]
)
def test_a_known_header_is_checked_as_the_first(data: bytes) -> None:
    with pytest.raises(WireError):
        parsed(b"MSG a 1 1\r\nx\r\n", data)


def test_only_refused_operations_leave_the_connection_open() -> None:
    assert ServerError('Permissions Violation for Publish to "a"').is_permission
    assert not ServerError("Authorization Violation").is_permission


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\n",
        b"MSG a 1\r\n",
        b"MSG a 1 b 2 3\r\n",
        b"MSG a 1 -1\r\n",
        b"MSG a 1 x\r\n",
        b"MSG a 1 \xb2\r\n",
        b"MSG a b 1\r\nx\r\n",
        b"MSG a 1 99999999999\r\n",
        b"MSG a 1 1\r\nxyz\r\n",
        b"HMSG a 1 5\r\nhello\r\n",
        b"HMSG a 1 9 5\r\nhello\r\n",
        b"INFO\r\n",
        b"INFO nothing\r\n",
        b"INFO []\r\n",
        b"INFO " + b"[" * 100_000 + b"\r\n",
        b"x" * ((1 << 20) + 1),
    ],
)
def test_bytes_that_no_server_sends_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        parsed(data)


@pytest.mark.parametrize(
    "headers", [b"", b"\r\n", b"hello", b"NATS/1.1 503\r\n\r\n", b"XXXX/9.9\r\n\r\n", b"NATS/1.0"]
)
def test_headers_of_another_client_are_no_fault_of_the_server(headers: bytes) -> None:
    """The server passes the headers of any client on."""
    sizes = b"%d %d" % (len(headers), len(headers) + 4)
    data = b"HMSG a 1 %b\r\n%bbody\r\nPING\r\n" % (sizes, headers)
    assert parsed(data) == [Message("a", 1, "", 0, b"body"), Ping()]


@pytest.mark.parametrize("space", ["\v", "\f", "\x00", "\x85", "\r"])
def test_odd_characters_in_a_reply_subject_of_another_client_are_no_fault(space: str) -> None:
    """The server passes the reply subject of any client on."""
    data = f"MSG a 1 re{space}ply 1\r\nx\r\n".encode()
    message = Message("a", 1, f"re{space}ply", 0, b"x")
    assert parsed(data, data, b"PING\r\n") == [message, message, Ping()]


def test_values_of_a_wrong_type_in_a_greeting_count_as_missing() -> None:
    greeting = b'INFO {"max_payload":"x","headers":1,"connect_urls":5,"nonce":null}\r\n'
    assert parsed(greeting) == [ServerInfo()]


@given(st.binary(max_size=200))
@example(b"HMSG a 1 2 2\r\n\r\n\r\n")
def test_any_bytes_are_operations_or_refused(data: bytes) -> None:
    with suppress(WireError):
        parsed(data)


@given(
    st.lists(st.tuples(st.sampled_from(["a", "a.b.c"]), st.sampled_from(["", "r.s"]), st.binary())),
    st.integers(1, 7),
)
def test_published_messages_are_read_as_a_server_passes_them_on(
    messages: list[tuple[str, str, bytes]], size: int
) -> None:
    # A server adds the number of the subscription.
    parser = ServerParser()
    passed = b""
    for subject, reply, payload in messages:
        sent = wire.publish(subject, reply, payload)
        head, _, rest = sent.partition(b"\r\n")
        words = head.split()
        words[0] = b"MSG"
        words.insert(2, b"7")
        passed += b" ".join(words) + b"\r\n" + rest
    chunks = [passed[n : n + size] for n in range(0, len(passed), size)]
    assert [op for chunk in chunks for op in parser.feed(chunk)] == [
        Message(subject, 7, reply, 0, payload) for subject, reply, payload in messages
    ]


def test_a_reader_that_leaves_early_gets_the_rest_later() -> None:
    parser = ServerParser()
    for operation in parser.feed(b"PING\r\nPONG\r\n"):
        assert operation == Ping()
        break
    assert list(parser.feed(b"")) == [Pong()]


def test_the_bytes_of_a_client() -> None:
    assert wire.connect({"verbose": False}) == b'CONNECT {"verbose":false}\r\n'
    assert wire.subscribe("a.*", 3) == b"SUB a.* 3\r\n"
    assert wire.publish("a", "", b"xy") == b"PUB a 2\r\nxy\r\n"
    assert wire.publish("a", "b", b"") == b"PUB a b 0\r\n\r\n"
