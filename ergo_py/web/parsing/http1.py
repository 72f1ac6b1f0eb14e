"""`RequestParser`: cuts the bytes of a peer into HTTP/1.1 requests. It does no I/O.

The parser accepts only a request that every recipient cuts at the same byte. It refuses everything
else with a `RequestError`, and the connection must end then: nothing behind an error can be cut
without doubt, and a guess would let a peer smuggle a request past a proxy.
"""

import re
from collections.abc import Mapping
from copy import copy
from typing import Final

__all__ = ["Head", "RequestError", "RequestParser", "is_host", "late_head", "may_become_head"]

MAX_LINE: Final = 8 * 1024
"""Bytes of a request line."""
MAX_HEAD: Final = 16 * 1024
"""Bytes of a head: request line and fields."""
MAX_FIELDS: Final = 100
"""Fields of a head, and of the trailers of a body."""
_MAX_CHUNK_LINE: Final = 256
_CHUNKS: Final = 512
"""Chunks to take in one step, so that many small chunks do not block the loop."""
_MAX_KEPT: Final = 2 * 1024
"""Bytes of the fields that a connection keeps, since its next head mostly has the same fields."""
_REMEMBERED: Final = 256
"""Names of fields in lower case that are remembered, of at most 32 characters each."""

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_VALUE: Final = rb"[\t -~\x80-\xff]"
_FIELDS: Final = rb"(?:" + _TOKEN + rb"++:" + _VALUE + rb"*+\r\n)*+"
_TARGET: Final = rb"(?:/|\*|[Hh][Tt][Tt][Pp][Ss]?://[A-Za-z0-9\[])[!\"$-~]*+"
_HEAD: Final = re.compile(
    rb"(" + _TOKEN + rb"++) (" + _TARGET + rb") HTTP/1\.([01])\r\n(" + _FIELDS + rb")\r\n"
)
_LINE: Final = re.compile(rb"(" + _TOKEN + rb"++) (/[!\"$-~]*+) HTTP/1\.([01])\r\n")
"""A request line whose target is a path."""
_REQUEST_LINE: Final = re.compile(_TOKEN + rb"+ ([!-~]+) HTTP/([0-9])\.([0-9])")
_FIELD: Final = re.compile(_TOKEN + rb"+:" + _VALUE + rb"*")
_TRAILERS: Final = re.compile(_FIELDS + rb"\r\n")
_CHUNK: Final = re.compile(
    rb"([0-9A-Fa-f]{1,8})(?:;"
    + _TOKEN
    + rb"++(?:=(?:"
    + _TOKEN
    + rb"++|\"[\t !#-\[\]-~]*+\"))?+)*+\r\n"
)
_MISPLACED: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?=[^\n])")
"""A control byte, a line feed without a carriage return, or the other way round."""
_HOST: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+;=%-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_LENGTH: Final = re.compile(r"[0-9]{1,18}", re.ASCII)

_NEVER_TRAILERS: Final = frozenset(
    ("connection", "content-length", "expect", "host", "trailer", "transfer-encoding", "upgrade")
)


class RequestError(Exception):
    """The bytes of the peer are no request that can be served. The connection must end."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        """The status of the response."""
        self.detail = detail


def is_host(text: str) -> bool:
    """Whether a text is a host, perhaps with a port, as the field ``Host`` names it."""
    return _HOST.fullmatch(text) is not None


def late_head(seconds: float) -> RequestError:
    """The refusal of a head that was not complete in its time."""
    return RequestError(408, f"the head took longer than {seconds:g} s")


def may_become_head(data: bytes, seen: int = 0) -> bool:
    """Whether ``data`` is the beginning of a head that is not complete, as far as its first look
    tells. False if a parser must decide. The first ``seen`` bytes were looked at before.
    """
    return (
        len(data) <= MAX_LINE
        and b"\r\n\r\n" not in data[max(0, seen - 3) :]
        and _MISPLACED.search(data, max(0, seen - 1)) is None
    )


class Head:
    """The head of a request."""

    __slots__ = (
        "expects_continue",
        "fields",
        "headers",
        "host",
        "is_http_10",
        "keeps_alive",
        "length",
        "method",
        "path",
        "target",
    )

    def __init__(
        self,
        method: str,
        target: str,
        is_http_10: bool,
        fields: list[tuple[str, str]],
        headers: Mapping[str, str],
    ) -> None:
        self.method: str = method
        self.target: str = target
        self.path: str = target
        """The target without scheme and host: the path, and the query if there is any."""
        self.is_http_10: bool = is_http_10
        self.fields: list[tuple[str, str]] = fields
        """All fields in their order, with the names in lower case."""
        self.headers: Mapping[str, str] = headers
        """The fields by name; the values of a repeated field are joined with a comma."""
        self.host: str = headers.get("host", "")
        """The host that the peer asks for; empty if the peer names none."""
        self.length: int | None = 0
        """Bytes of the body; None if it comes in chunks."""
        self.keeps_alive: bool = not is_http_10
        """The peer may send further requests."""
        self.expects_continue: bool = False
        """The peer waits for a sign before it sends the body."""

    def without_body(self) -> "Head":
        """The same head for a body of chunks that has turned out to be empty. The parser compares
        the next head with this one, which stays as it is.
        """
        made = copy(self)
        made.length = 0
        return made


class RequestParser:
    """Cuts a stream into requests: :meth:`next_head`, then :meth:`take_body` until
    :attr:`body_is_done`, then the next head.
    """

    __slots__ = (
        "_at",
        "_chunk",
        "_data",
        "_had_empty_line",
        "_kept",
        "_left",
        "_seen",
        "body_is_done",
        "has_more",
    )

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        """Where the bytes begin that are not cut yet."""
        self._kept: tuple[bytes, bytes, Head] | None = None
        """The fields of the last head as bytes, the digit of its version, and the head."""
        self._had_empty_line = False
        """An empty line came before the head."""
        self._seen = 0
        """How far the bytes of an incomplete head were searched."""
        self._left = 0
        """Bytes of the body, or of the chunk, that are still to come."""
        self._chunk: bool | None = None
        """Whether the data of a chunk has begun, if the body comes in chunks."""
        self.body_is_done: bool = True
        self.has_more: bool = False
        """The last step ended early: call :meth:`take_body` again without waiting for bytes."""

    def feed(self, data: bytes) -> None:
        """Add bytes of the peer."""
        at = self._at
        if at == len(self._data):
            self._data = data
        else:
            self._data = self._data[at:] + data
        self._seen = max(0, self._seen - at)
        self._at = 0

    @property
    def unread(self) -> int:
        """Bytes that are not cut yet."""
        return len(self._data) - self._at

    @property
    def left(self) -> int:
        """Bytes of the body that are still to come, as far as they are known."""
        return self._left

    def take_unread(self) -> bytes:
        """All bytes that are not cut yet, for a parser of another protocol."""
        rest = self._data[self._at :]
        self._data, self._at = b"", 0
        return rest

    # -- heads -------------------------------------------------------------------------------------

    def next_head(self) -> Head | None:
        """The head of the next request; None if it is not complete.

        Raises:
            RequestError: the peer must be refused.
        """
        data, at = self._data, self._at
        if self._kept is not None and (known := self._head_with_same_fields(*self._kept)):
            return known
        if not self._had_empty_line and data.startswith(b"\r\n", at):
            # Some clients write an empty line after a body: RFC 9112, section 2.2. A single line is
            # skipped, since a peer could send empty lines without an end.
            self._had_empty_line = True
            self._at = at = at + 2
        end = data.find(b"\r\n\r\n", max(at, self._seen - 3))
        if end < 0:
            if len(data) != at:
                self._check_incomplete()
            return None
        size = end + 4 - at
        match = _HEAD.match(data, at)
        if match is None or size > MAX_HEAD or match.end() != end + 4:
            raise _why_refused(data[at : end + 2], size)
        method, target, minor, block = match.groups()
        if len(method) + len(target) + 10 > MAX_LINE:
            raise RequestError(414, f"the request line is longer than {MAX_LINE} bytes")
        fields: list[tuple[str, str]] = []
        headers: dict[str, str] = {}
        for line in block.decode("latin-1").split("\r\n")[:-1]:
            name, _, value = line.partition(":")
            key = _names.get(name) or _lower(name)
            value = value.strip(" \t")
            fields.append((key, value))
            if key in headers:
                value = f"{headers[key]}{'; ' if key == 'cookie' else ', '}{value}"
            headers[key] = value
        if len(fields) > MAX_FIELDS:
            raise RequestError(431, f"more than {MAX_FIELDS} fields")
        head = Head(method.decode("ascii"), target.decode("ascii"), minor == b"0", fields, headers)
        self._at = end + 4
        self._seen = 0
        self._had_empty_line = False
        _read_fields(head)
        self._begin_body(head.length)
        # The fields of a request with another kind of target may not fit to a path.
        if len(block) <= _MAX_KEPT and target.startswith(b"/"):
            self._kept = block + b"\r\n", minor, head
        return head

    def _head_with_same_fields(self, block: bytes, version: bytes, last: Head) -> Head | None:
        """The next head, if its fields are the same bytes as those of the last head: then they need
        not be parsed again. None to parse the head as any other.
        """
        data, at = self._data, self._at
        line = _LINE.match(data, at)
        if line is None or not data.startswith(block, line.end()):
            return None
        method, target, minor = line.groups()
        size = line.end() - at
        if minor != version or method == b"CONNECT" or size > MAX_LINE:
            return None
        head = Head(
            method.decode("ascii"),
            target.decode("ascii"),
            last.is_http_10,
            last.fields,
            last.headers,
        )
        head.length = last.length
        head.keeps_alive = last.keeps_alive
        head.expects_continue = last.expects_continue
        self._at = line.end() + len(block)
        self._seen = 0
        self._had_empty_line = False
        self._begin_body(head.length)
        return head

    def _check_incomplete(self) -> None:
        data, at = self._data, self._at
        wrong = _MISPLACED.search(data, max(at, self._seen - 1))
        if wrong is not None:
            raise RequestError(400, f"the byte {wrong[0]!r} in the head")
        if data.startswith(b"\r\n", at):
            raise RequestError(400, "two empty lines before a request")
        self._seen = len(data)
        size = len(data) - at
        if size > MAX_LINE and not 0 <= data.find(b"\r\n", at, at + MAX_LINE + 2) - at <= MAX_LINE:
            raise RequestError(414, f"the request line is longer than {MAX_LINE} bytes")
        if size > MAX_HEAD:
            raise RequestError(431, f"the head is longer than {MAX_HEAD} bytes")

    # -- bodies ------------------------------------------------------------------------------------

    def _begin_body(self, length: int | None) -> None:
        self._left = length or 0
        self._chunk = False if length is None else None
        self.body_is_done = length == 0

    def take_body(self, most: int) -> bytes:
        """At most ``most`` bytes of the body, as far as they have come.

        Raises:
            RequestError: the peer must be refused.
        """
        if self._chunk is not None:
            return self._take_chunks(most)
        at = self._at
        data = self._data[at : at + min(self._left, most)]
        self._at = at + len(data)
        self._left -= len(data)
        self.body_is_done = self._left == 0
        return data

    def _take_chunks(self, most: int) -> bytes:
        pieces: list[bytes] = []
        self.has_more = False
        for _ in range(_CHUNKS):
            if not self._chunk:
                if not self._begin_chunk():
                    return b"".join(pieces)
                if self.body_is_done:
                    return b"".join(pieces)
            if most <= 0:
                return b"".join(pieces)
            at = self._at
            piece = self._data[at : at + min(self._left, most)]
            if not piece and self._left:
                return b"".join(pieces)
            pieces.append(piece)
            most -= len(piece)
            self._at = at = at + len(piece)
            self._left -= len(piece)
            if self._left:
                continue
            end = self._data[at : at + 2]
            if end != b"\r\n":
                if not b"\r\n".startswith(end):
                    raise RequestError(400, "no CRLF after a chunk")
                return b"".join(pieces)
            self._at = at + 2
            self._chunk = False
        self.has_more = True
        return b"".join(pieces)

    def _begin_chunk(self) -> bool:
        """Read the line before a chunk; after the last chunk, the trailers. False if they are not
        complete.
        """
        if self._left:
            return self._end_chunks()
        data, at = self._data, self._at
        end = data.find(b"\r\n", at, at + _MAX_CHUNK_LINE)
        if end < 0:
            if len(data) - at >= _MAX_CHUNK_LINE:
                raise RequestError(400, "the line before a chunk does not end")
            if _MISPLACED.search(data, at):
                raise RequestError(400, "a control byte in the line before a chunk")
            return False
        match = _CHUNK.match(data, at)
        if match is None or match.end() != end + 2:
            raise RequestError(400, "the line before a chunk is not a length")
        self._at = end + 2
        self._left = int(match[1], 16)
        if self._left:
            self._chunk = True
            return True
        self._left = -1  # the trailers follow
        return self._end_chunks()

    def _end_chunks(self) -> bool:
        data, at = self._data, self._at
        if data.startswith(b"\r\n", at):
            self._at = at + 2
        else:
            end = data.find(b"\r\n\r\n", at, at + MAX_HEAD)
            if end < 0:
                if len(data) - at >= MAX_HEAD:
                    raise RequestError(431, f"the trailers are longer than {MAX_HEAD} bytes")
                if _MISPLACED.search(data, at):
                    raise RequestError(400, "a misplaced byte after the last chunk")
                return False
            match = _TRAILERS.match(data, at)
            if match is None or match.end() != end + 4:
                raise RequestError(400, "the trailers after the last chunk are no fields")
            lines = data[at:end].split(b"\r\n")
            if len(lines) > MAX_FIELDS:
                raise RequestError(431, f"more than {MAX_FIELDS} fields in the trailers")
            for line in lines:
                name = line.partition(b":")[0].decode("ascii").lower()
                if name in _NEVER_TRAILERS:
                    raise RequestError(400, f"the field {name} in the trailers")
            self._at = end + 4
        self._left = 0
        self._chunk = None
        self.body_is_done = True
        return True


_names: Final[dict[str, str]] = {}


def _lower(name: str) -> str:
    key = name.lower()
    if len(_names) < _REMEMBERED and len(name) <= 32:
        _names[name] = key
    return key


def _read_fields(head: Head) -> None:
    """Read the fields that decide where the request ends, and what follows it."""
    headers = head.headers
    host = headers.get("host")
    if host is None:
        if not head.is_http_10:
            raise RequestError(400, "no field Host")
    elif host and _HOST.fullmatch(host) is None:
        raise RequestError(400, "the field Host is not a single host")
    if not head.target.startswith("/"):
        _read_target(head)
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None:
        if length is not None:
            raise RequestError(400, "both Content-Length and Transfer-Encoding")
        if head.is_http_10:
            raise RequestError(400, "Transfer-Encoding in HTTP/1.0")
        if coding.lower() != "chunked":
            raise RequestError(501, "a transfer coding other than chunked")
        head.length = None
    elif length is not None:
        if _LENGTH.fullmatch(length) is None:
            raise RequestError(400, "Content-Length is not a single number")
        head.length = int(length)
    if head.method == "CONNECT":
        raise RequestError(501, "CONNECT is not offered")
    options = headers.get("connection")
    if options is not None:
        tokens = {token.strip(" \t").lower() for token in options.split(",")}
        if "upgrade" in tokens and "upgrade" in headers and head.length != 0:
            # Some recipients take the body for the first bytes of the other protocol.
            raise RequestError(400, "a body in a request for another protocol")
        if "close" in tokens:
            head.keeps_alive = False
        elif "keep-alive" in tokens:
            head.keeps_alive = True
    expects = headers.get("expect")
    if expects is not None and not head.is_http_10:
        if expects.lower() != "100-continue":
            raise RequestError(417, "an expectation other than 100-continue")
        head.expects_continue = head.length != 0


def _read_target(head: Head) -> None:
    """Read a target that is not a path."""
    if head.target.startswith("*"):
        if head.target != "*" or head.method != "OPTIONS":
            raise RequestError(400, "the target * is for OPTIONS only")
        return
    authority, slash, path = head.target.partition("://")[2].partition("/")
    authority, question, query = authority.partition("?")
    if _HOST.fullmatch(authority) is None:
        raise RequestError(400, "the URL in the request line names no host")
    # RFC 9112 lets the target win. Two different hosts are refused, since a proxy or an application
    # may have read the field.
    if head.host and authority.lower() != head.host.lower():
        raise RequestError(400, "the target and the field Host name different hosts")
    head.host = authority
    head.path = f"/{path}" if slash and not question else f"/{question}{query}{slash}{path}"


def _why_refused(head: bytes, size: int) -> RequestError:
    """Say why a complete head is refused."""
    line, _, rest = head.partition(b"\r\n")
    if len(line) > MAX_LINE:
        return RequestError(414, f"the request line is longer than {MAX_LINE} bytes")
    if size > MAX_HEAD:
        return RequestError(431, f"the head is longer than {MAX_HEAD} bytes")
    wrong = _MISPLACED.search(head)
    if wrong is not None:
        return RequestError(400, f"the byte {wrong[0]!r} in the head")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        return RequestError(400, "the first line is not a method, a target and a version")
    if match[2] != b"1" or match[3] not in b"01":
        return RequestError(505, "a version other than HTTP/1.1 and HTTP/1.0")
    if line.startswith(b"CONNECT "):
        return RequestError(501, "CONNECT is not offered")
    if re.fullmatch(_TARGET, match[1]) is None:
        return RequestError(400, "the target is neither a path nor a URL of HTTP")
    wrong_line = next(
        (field for field in rest.split(b"\r\n") if _FIELD.fullmatch(field) is None), b""
    )
    if wrong_line[:1] in (b" ", b"\t"):
        return RequestError(400, "a folded line")
    return RequestError(400, "a line of the head is not a name, a colon and a value")
