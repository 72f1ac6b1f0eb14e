"""HTTP requests to a process that has moved, and the responses, as plain values: the old program
has the connection of the peer, and the new program has the process.
"""

from contextlib import suppress
from typing import Final, TypeAlias

from .._core.kernel import Kernel
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.errors import MailboxFullError
from .._core.vocabulary.ids import PID, Alias, Ref
from ..meta.sockets.messages import Cause
from ..web.messages.requests import HTTPGone, HTTPRequest
from ..web.messages.responses import HTTPError, Response
from ..web.parsing.http1 import Head

__all__ = ["plain_request", "plain_response", "read_request", "read_response", "unavailable"]

PlainRequest: TypeAlias = tuple[
    str, list[str], bytes, str, str, str, str, int, str, bool, list[list[str]], dict[str, str]
]
PlainResponse: TypeAlias = tuple[int, bytes, list[list[str]], bool]
_TEXT: Final = b"content-type: text/plain; charset=utf-8\r\n"
"""The field that a response writes for a body of text."""


def unavailable() -> HTTPError:
    """The answer to a request that cannot be forwarded: its peer finds the new program."""
    return HTTPError(503, "the process has moved to the next program", [("retry-after", "1")])


def plain_request(request: object) -> PlainRequest | None:
    """The plain values of a request; None if the object is no request, or its body is a stream."""
    if not isinstance(request, HTTPRequest) or (request.head.length != 0 and not request.body):
        return None
    head = request.head
    return (
        request.method,
        list(request.path),
        request.body,
        str(request.peer),
        request.scheme,
        request.client,
        request.host,
        request.prefix,
        head.path,
        head.is_http_10,
        [list(pair) for pair in head.fields],
        dict(head.headers),
    )


class _ForwardedExchange:
    """Stands for the exchange, which is in the old program."""

    is_over = False

    def __init__(self, ref: Ref) -> None:
        self.ref = ref


def read_request(kernel: Kernel, plain: PlainRequest) -> HTTPRequest:
    """The request with these values. A response to it cannot be a stream."""
    method, path, body, peer, scheme, client, host, prefix, target, is_old, fields, headers = plain
    head = Head(method, target, is_old, [(name, text) for name, text in fields], headers)
    node, creation, number = kernel.pid.node, kernel.pid.creation, next(kernel.router.references)
    made = HTTPRequest(
        method,
        tuple(path),
        head,
        body,
        connection=Alias(node, creation, number),
        peer=peer,
        scheme=scheme,
        client=client,
        host=host,
    )
    made.begin(_ForwardedExchange(Ref(node, creation, number)), prefix)
    return made


def plain_response(
    kernel: Kernel, to: str | PID, request: object, answer: object
) -> PlainResponse | None:
    """The plain values of the response to a forwarded request; None for another answer. A process
    that has begun a stream hears that its peer has left.
    """
    if isinstance(answer, HTTPError):
        answer = answer.response
    if not isinstance(answer, Response) or not isinstance(request, HTTPRequest):
        return None
    if answer.stream or answer.is_events:
        gone = HTTPGone(request.connection, request.ref, Cause.FAILED)
        with suppress(MailboxFullError):
            kernel.router.send(kernel.pid, to, gone, Priority.NORMAL)
        answer = unavailable().response
    headers = [list(pair) for pair in answer.headers]
    return answer.status, answer.body, headers, answer.head.endswith(_TEXT)


def read_response(plain: PlainResponse) -> Response:
    """The response with these values."""
    status, body, headers, is_text = plain
    made = Response(status, headers=[(name, text) for name, text in headers])
    return made.with_body(body).with_lines(_TEXT if is_text else b"")
