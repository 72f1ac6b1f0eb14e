"""The HTTP parser: which bytes are a request, where it ends, and which are refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.http_judges import cut, judge
from ergo_py.web.parsing.http1 import (
    MAX_FIELDS,
    MAX_HEAD,
    MAX_LINE,
    Head,
    RequestError,
    RequestParser,
    late_head,
    may_become_head,
)

SMALL = b"GET /a?b=c HTTP/1.1\r\nHost: a\r\n\r\n"
WITH_BODY = b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'5;x;y=z;q="a b"\r\nhello\r\nA\r\n0123456789\r\n0\r\nTrailer-A: 1\r\n\r\n'
)


def read(data: bytes) -> Head:
    parser = RequestParser()
    parser.feed(data)
    head = parser.next_head()
    assert head is not None
    return head


def refused(data: bytes) -> RequestError:
    _, error = cut([data])
    assert error is not None
    return error


def with_field(field: bytes, body: bytes = b"") -> bytes:
    return b"POST / HTTP/1.1\r\nHost: a\r\n" + field + b"\r\n\r\n" + body


# -- requests --------------------------------------------------------------------------------------


def test_a_head_has_method_target_and_fields() -> None:
    head = read(b"GET /a?b HTTP/1.1\r\nHost: a:80\r\nX-Name:\t value \t\r\nEmpty:\r\n\r\n")

    assert (head.method, head.target, head.path) == ("GET", "/a?b", "/a?b")
    assert head.fields == [("host", "a:80"), ("x-name", "value"), ("empty", "")]
    assert head.keeps_alive
    assert not head.is_http_10
    assert head.length == 0


FIELDS = b"Host: a\r\nX: 1\r\nContent-Length: 2\r\n\r\n"


@pytest.mark.parametrize(
    "line",
    [
        b"POST /b HTTP/1.1",
        b"PUT /b?c HTTP/1.1",
        b"POST /b HTTP/1.0",
        b"POST http://a/b HTTP/1.1",
        b"POST http://b/b HTTP/1.1",
        b"CONNECT /b HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"POST /" + b"b" * MAX_LINE + b" HTTP/1.1",
        b"POST /b  HTTP/1.1",
        b"POST /b HTTP/1.2",
        b"POST /b#c HTTP/1.1",
    ],
)
def test_a_head_with_the_fields_of_the_last_is_read_as_any_other(line: bytes) -> None:
    second = line + b"\r\n" + FIELDS + b"yy"
    requests, error = cut([b"POST /a HTTP/1.1\r\n" + FIELDS + b"xx" + second])

    alone, error_alone = cut([second])
    assert [(each.method, each.target, each.fields, each.body) for each in requests[1:]] == [
        (each.method, each.target, each.fields, each.body) for each in alone
    ]
    assert (error and error.status) == (error_alone and error_alone.status)


def test_fields_that_only_begin_like_those_of_the_last_head_are_parsed() -> None:
    requests, error = cut([SMALL + SMALL[:-2] + b"X: 1\r\n\r\n" + SMALL])

    assert error is None
    assert len(requests) == 3


def test_a_head_with_the_same_fields_may_come_in_pieces() -> None:
    parser = RequestParser()
    parser.feed(SMALL)
    assert parser.next_head() is not None
    for byte in SMALL[:-1]:
        parser.feed(bytes([byte]))
        assert parser.next_head() is None
    parser.feed(SMALL[-1:])
    head = parser.next_head()

    assert head is not None
    assert (head.path, head.fields, parser.unread) == ("/a?b=c", [("host", "a")], 0)


def test_values_of_a_repeated_field_are_joined() -> None:
    head = read(b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\nX: 2\r\nCookie: a=b\r\nCookie: c=d\r\n\r\n")

    assert head.headers == {"host": "a", "x": "1, 2", "cookie": "a=b; c=d"}


@pytest.mark.parametrize(
    "line,field,keeps",
    [
        (b"GET / HTTP/1.1", b"X: y", True),
        (b"GET / HTTP/1.1", b"Connection: x, Close", False),
        (b"GET / HTTP/1.0", b"X: y", False),
        (b"GET / HTTP/1.0", b"Connection: Keep-Alive", True),
        (b"GET / HTTP/1.1", b"Connection: other", True),
    ],
)
def test_version_and_connection_field_decide_about_keeping_alive(
    line: bytes, field: bytes, keeps: bool
) -> None:
    head = read(line + b"\r\nHost: a\r\n" + field + b"\r\n\r\n")

    assert head.keeps_alive is keeps


def test_http_1_0_needs_no_host() -> None:
    assert read(b"GET / HTTP/1.0\r\n\r\n").is_http_10


@pytest.mark.parametrize(
    "target,path",
    [
        ("http://a/b?c", "/b?c"),
        ("HTTPS://A/b", "/b"),
        ("http://a", "/"),
        ("http://a?q=/x", "/?q=/x"),
        ("*", "*"),
    ],
)
def test_a_target_may_be_a_url_or_an_asterisk(target: str, path: str) -> None:
    head = read(f"OPTIONS {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())

    assert head.path == path


@pytest.mark.parametrize(
    "target,field,host",
    [
        ("/", "a:80", "a:80"),
        ("/", "", ""),
        ("*", "", ""),
        ("http://a:80/", "A:80", "a:80"),
        ("http://a/", "", "a"),
        ("http://[::1]/", "[::1]", "[::1]"),
        ("http://[2001:DB8::1]:8080/x", "[2001:db8::1]:8080", "[2001:DB8::1]:8080"),
        ("http://[::1]", "", "[::1]"),
    ],
)
def test_the_host_is_that_of_the_target_or_of_the_field(target: str, field: str, host: str) -> None:
    head = read(f"OPTIONS {target} HTTP/1.1\r\nHost: {field}\r\n\r\n".encode())

    assert head.host == host
    assert read(b"GET http://b/ HTTP/1.0\r\n\r\n").host == "b"
    assert read(b"GET / HTTP/1.0\r\n\r\n").host == ""


@pytest.mark.parametrize("stream", [SMALL, WITH_BODY, CHUNKED])
def test_an_empty_line_before_a_request_line_is_skipped(stream: bytes) -> None:
    requests = [request.body for request in judge(stream * 3)]

    assert [request.body for request in judge(b"\r\n" + (stream + b"\r\n") * 3)] == requests
    found, error = cut([bytes([byte]) for byte in (stream + b"\r\n") * 3])
    assert ([request.body for request in found], error) == (requests, None)


def test_an_empty_line_is_not_the_beginning_of_a_head() -> None:
    parser = RequestParser()
    parser.feed(SMALL + b"\r\n")

    assert parser.next_head() is not None
    assert parser.next_head() is None
    assert parser.unread == 0
    parser.feed(b"\r\n" + SMALL)
    with pytest.raises(RequestError):
        parser.next_head()


def test_expect_counts_only_with_a_body() -> None:
    expect = b"Expect: 100-Continue"

    assert read(with_field(expect + b"\r\nContent-Length: 1")).expects_continue
    assert read(with_field(expect + b"\r\nTransfer-Encoding: chunked")).expects_continue
    assert not read(with_field(expect)).expects_continue


def test_bodies_of_both_kinds_are_cut() -> None:
    found, error = cut([WITH_BODY + CHUNKED + SMALL])

    assert error is None
    assert [request.body for request in found] == [b"hello", b"hello0123456789", b""]


def test_a_head_without_its_body_is_a_copy() -> None:
    head = Head("POST", "/a", False, [("a", "b")], {"a": "b"})
    head.length = None
    made = head.without_body()
    assert (made.target, made.fields, made.length) == ("/a", [("a", "b")], 0)
    assert head.length is None


def test_a_body_is_taken_in_parts() -> None:
    for stream in (WITH_BODY, CHUNKED):
        parser = RequestParser()
        parser.feed(stream)
        parser.next_head()
        taken = [parser.take_body(2), parser.take_body(2)]
        assert taken == [b"he", b"ll"]
        while not parser.body_is_done:
            taken.append(parser.take_body(2))
        assert b"".join(taken) in (b"hello", b"hello0123456789")
        assert parser.unread == 0


def test_many_small_chunks_take_several_steps() -> None:
    parser = RequestParser()
    parser.feed(with_field(b"Transfer-Encoding: chunked") + b"1\r\nx\r\n" * 2_000 + b"0\r\n\r\n")
    parser.next_head()
    first = parser.take_body(1 << 20)

    assert parser.has_more
    assert len(first) == 512
    rest = first
    while not parser.body_is_done:
        rest += parser.take_body(1 << 20)
    assert rest == b"x" * 2_000


def test_a_parser_knows_how_much_of_a_body_is_still_to_come() -> None:
    parser = RequestParser()
    parser.feed(WITH_BODY)
    parser.next_head()

    assert parser.left == 5
    assert parser.take_body(3) == b"hel"
    assert parser.left == 2


def test_unread_bytes_can_be_taken_for_another_protocol() -> None:
    parser = RequestParser()
    parser.feed(SMALL + b"rest")
    parser.next_head()

    assert parser.unread == 4
    assert parser.take_unread() == b"rest"
    assert parser.unread == 0


# -- cutting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [SMALL, WITH_BODY, CHUNKED, WITH_BODY + CHUNKED + SMALL])
def test_every_split_in_two_gives_the_same_requests(stream: bytes) -> None:
    whole = cut([stream])

    for at in range(len(stream)):
        assert cut([stream[:at], stream[at:]]) == whole


def test_single_bytes_give_the_same_requests() -> None:
    stream = SMALL + CHUNKED + WITH_BODY

    assert cut([bytes([byte]) for byte in stream]) == cut([stream])


_STREAMS = st.lists(st.sampled_from([SMALL, WITH_BODY, CHUNKED]), max_size=3).map(b"".join)


@given(_STREAMS, st.lists(st.integers(0, 500), max_size=8))
def test_any_splits_give_the_requests_of_a_naive_model(stream: bytes, places: list[int]) -> None:
    ends = sorted({min(place, len(stream)) for place in places})
    pieces = [
        stream[begin:end] for begin, end in zip([0, *ends], [*ends, len(stream)], strict=True)
    ]

    found, error = cut(pieces)

    assert error is None
    expected = re.findall(rb"(GET|POST) (/\w)", stream)
    assert [(one.method.encode(), one.target.encode()[:2]) for one in found] == expected


@given(_STREAMS, st.integers(0, 400), st.binary(max_size=3))
def test_judges_see_the_same_requests_in_a_changed_stream(
    stream: bytes, at: int, new: bytes
) -> None:
    judge(stream[:at] + new + stream[at + len(new) // 2 :])


# -- refusals --------------------------------------------------------------------------------------

BAD = {
    "bare line feed": b"GET / HTTP/1.1\nHost: a\n\n",
    "bare line feed in a field": b"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
    "bare carriage return": b"GET / HTTP/1.1\rHost: a\r\r",
    "bare carriage return in a value": with_field(b"X: a\rb"),
    "NUL": with_field(b"X: a\x00b"),
    "control byte": with_field(b"X: \x01"),
    "DEL": with_field(b"X: \x7f"),
    "TLS on a plain port": b"\x16\x03\x01\x02\x00\x01",
    "folded line": with_field(b"X: a\r\n b"),
    "folded first line": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "blank before the colon": with_field(b"X : a"),
    "name is no token": with_field(b"X(y): a"),
    "empty name": with_field(b": a"),
    "no colon": with_field(b"X"),
    "name with a high byte": with_field(b"X\xff: a"),
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "an empty host and another": b"GET / HTTP/1.1\r\nHost:\r\nHost: a\r\n\r\n",
    "two empty hosts": b"GET / HTTP/1.1\r\nHost:\r\nHost:\r\n\r\n",
    "host with a path": b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "host with a user": b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
    "host of two hosts": b"GET / HTTP/1.1\r\nHost: a,b\r\n\r\n",
    "target of another host": b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "target of another port": b"GET http://a:81/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "target of another IPv6 host": b"GET http://[::1]/ HTTP/1.1\r\nHost: [::2]\r\n\r\n",
    "target of half an IPv6 host": b"GET http://[::1/ HTTP/1.1\r\nHost: [::1]\r\n\r\n",
    "target with a user": b"GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "two lengths": with_field(b"Content-Length: 1\r\nContent-Length: 1"),
    "list of lengths": with_field(b"Content-Length: 1, 1"),
    "signed length": with_field(b"Content-Length: +1"),
    "negative length": with_field(b"Content-Length: -1"),
    "hexadecimal length": with_field(b"Content-Length: 0x1"),
    "empty length": with_field(b"Content-Length:"),
    "length in other digits": with_field(b"Content-Length: \xb2"),
    "huge length": with_field(b"Content-Length: " + b"9" * 19),
    "length and coding": with_field(b"Content-Length: 1\r\nTransfer-Encoding: chunked"),
    "coding in 1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "body with an upgrade": with_field(b"Connection: upgrade\r\nUpgrade: x\r\nContent-Length: 1"),
    "no version": b"GET /\r\n\r\n",
    "two blanks": b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
    "tab in the request line": b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "two empty lines": b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a bare line feed before": b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a bare carriage return before": b"\rGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "method is no token": b"G(T / HTTP/1.1\r\nHost: a\r\n\r\n",
    "relative target": b"GET a HTTP/1.1\r\nHost: a\r\n\r\n",
    "target with a fragment": b"GET /#a HTTP/1.1\r\nHost: a\r\n\r\n",
    "asterisk for GET": b"GET * HTTP/1.1\r\nHost: a\r\n\r\n",
    "asterisk and more": b"OPTIONS *a HTTP/1.1\r\nHost: a\r\n\r\n",
    "lower case version": b"GET / http/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("stream", BAD.values(), ids=BAD)
def test_doubtful_heads_are_refused_with_400(stream: bytes) -> None:
    assert refused(stream).status == 400


@pytest.mark.parametrize("stream", BAD.values(), ids=BAD)
def test_doubtful_heads_are_refused_in_single_bytes(stream: bytes) -> None:
    found, error = cut([bytes([byte]) for byte in stream])

    assert found == []
    assert error is not None
    assert error.status == 400


BAD_CHUNKS = {
    "line feed after the length": b"5\nhello\r\n0\r\n\r\n",
    "blank after the length": b"5 \r\nhello\r\n0\r\n\r\n",
    "sign": b"+5\r\nhello\r\n0\r\n\r\n",
    "prefix": b"0x5\r\nhello\r\n0\r\n\r\n",
    "too many digits": b"000000005\r\nhello\r\n0\r\n\r\n",
    "no length": b"\r\nhello",
    "line feed after a chunk": b"5\r\nhello\n0\r\n\r\n",
    "longer than it says": b"5\r\nhello!\r\n0\r\n\r\n",
    "line feed after the last chunk": b"0\r\n\n",
    "bytes after the last chunk": b"0\r\nXX\r\n\r\n",
    "bad extension": b"5;(=)\r\nhello\r\n0\r\n\r\n",
    "endless extension": b"5;" + b"a" * 300,
    "folded trailer": b"0\r\nA: b\r\n c\r\n\r\n",
    "length in the trailers": b"0\r\nContent-Length: 5\r\n\r\n",
    "host in the trailers": b"0\r\nHost: b\r\n\r\n",
    "control byte in the trailers": b"0\r\nA: \x00",
}


@pytest.mark.parametrize("body", BAD_CHUNKS.values(), ids=BAD_CHUNKS)
def test_doubtful_chunks_are_refused_with_400(body: bytes) -> None:
    assert refused(with_field(b"Transfer-Encoding: chunked", body)).status == 400


@pytest.mark.parametrize(
    "stream,status",
    [
        (with_field(b"Transfer-Encoding: gzip"), 501),
        (with_field(b"Transfer-Encoding: gzip, chunked"), 501),
        (with_field(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), 501),
        (b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", 501),
        (b"CONNECT / HTTP/1.1\r\nHost: a:80\r\n\r\n", 501),
        (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (with_field(b"Expect: something\r\nContent-Length: 1"), 417),
    ],
)
def test_other_versions_codings_and_methods_have_statuses_of_their_own(
    stream: bytes, status: int
) -> None:
    assert refused(stream).status == status


# -- limits ----------------------------------------------------------------------------------------


def line_of(size: int) -> bytes:
    return b"GET /" + b"a" * (size - len(b"GET / HTTP/1.1")) + b" HTTP/1.1"


@pytest.mark.parametrize("has_end", [True, False])
def test_a_request_line_has_a_limit(has_end: bool) -> None:
    rest = b"\r\nHost: a\r\n\r\n" if has_end else b"a"

    assert read(line_of(MAX_LINE) + b"\r\nHost: a\r\n\r\n").method == "GET"
    assert refused(line_of(MAX_LINE + 1) + rest).status == 414


def test_a_request_line_has_the_same_limit_in_an_incomplete_head() -> None:
    assert refused(line_of(MAX_LINE + 1) + b"\r\nHost: a\r\n").status == 414
    assert cut([line_of(MAX_LINE) + b"\r\nHost: a\r\n"]) == ([], None)


@pytest.mark.parametrize("has_end", [True, False])
def test_a_head_has_a_limit(has_end: bool) -> None:
    begin = b"GET / HTTP/1.1\r\nHost: a\r\nX: "
    fits = begin + b"a" * (MAX_HEAD - len(begin) - 4) + b"\r\n\r\n"
    over = begin + b"a" * (MAX_HEAD - len(begin) + 1) + (b"\r\n\r\n" if has_end else b"")

    assert len(fits) == MAX_HEAD
    assert read(fits).method == "GET"
    assert refused(over).status == 431


def test_a_head_over_both_limits_is_refused_for_its_line() -> None:
    assert refused(b"GET /" + b"a" * MAX_HEAD + b" HTTP/1.1\r\nHost: a\r\n\r\n").status == 414


def test_fields_have_a_limit() -> None:
    fields = b"X: y\r\n" * (MAX_FIELDS - 1)
    begin = b"GET / HTTP/1.1\r\nHost: a\r\n"

    assert len(read(begin + fields + b"\r\n").fields) == MAX_FIELDS
    assert refused(begin + fields + b"X: y\r\n\r\n").status == 431


def test_trailers_have_both_limits() -> None:
    begin = with_field(b"Transfer-Encoding: chunked") + b"0\r\n"

    assert cut([begin + b"X: y\r\n" * MAX_FIELDS + b"\r\n"])[1] is None
    assert refused(begin + b"X: y\r\n" * (MAX_FIELDS + 1) + b"\r\n").status == 431
    assert refused(begin + b"X: " + b"y" * MAX_HEAD).status == 431


def test_names_that_are_long_or_many_are_not_remembered() -> None:
    for number in range(400):
        read(with_field(b"X-%d: 1\r\n%s: 1" % (number, b"Y" * 40)))

    from ergo_py.web.parsing import http1

    assert len(http1._names) <= 256
    assert "Y" * 40 not in http1._names


def test_a_line_before_a_chunk_that_does_not_end_is_refused() -> None:
    chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"

    error = refused(chunked + b"1;" + b"x" * 300)

    assert (error.status, error.detail) == (400, "the line before a chunk does not end")


def test_a_control_byte_in_a_line_before_a_chunk_is_refused_at_once() -> None:
    chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"

    error = refused(chunked + b"1\x00")

    assert (error.status, error.detail) == (400, "a control byte in the line before a chunk")


def test_the_limits_are_those_of_the_promises() -> None:
    assert (MAX_LINE, MAX_HEAD, MAX_FIELDS) == (8_192, 16_384, 100)


def test_a_new_parser_waits_for_a_head_and_has_no_body() -> None:
    assert RequestParser().body_is_done


@pytest.mark.parametrize(
    "head, detail",
    [
        (b"GET x HTTP/1.1\r\nHost: a\r\n\r\n", "the target is neither a path nor a URL of HTTP"),
        (b"GET / HTTP/1.1\r\nHost a\r\n\r\n", "a line of the head is not a name"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", "a folded line"),
        (b"\r\n\r\n", "two empty lines before a request"),
        (b"\r\n\r\n\r\n\r\n", "the first line is not a method"),
    ],
)
def test_a_refusal_says_which_rule_is_broken(head: bytes, detail: str) -> None:
    assert refused(head).detail.startswith(detail)


@pytest.mark.parametrize(
    "data, seen, may",
    [
        (b"", 0, True),
        (b"GET / HTTP/1.1\r\nHost: a\r\n", 0, True),
        (b"GET / HTTP/1.1\r\nHost: a\r", 0, True),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 0, False),
        # The end of the head lies across two pieces.
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 24, False),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 26, False),
        (b"a\rb", 2, False),
        (b"a\0", 0, False),
        (b"a\nb", 0, False),
        (b"a" * 8_192, 0, True),
        (b"a" * 8_193, 8_192, False),
    ],
)
def test_the_beginning_of_a_head_is_told_from_bytes_that_a_parser_decides(
    data: bytes, seen: int, may: bool
) -> None:
    assert may_become_head(data, seen) is may


def test_a_late_head_is_refused_with_408_and_its_time_limit() -> None:
    error = late_head(2.5)

    assert (error.status, str(error)) == (408, "the head took longer than 2.5 s")
