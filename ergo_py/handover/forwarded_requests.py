"""HTTP requests to a process that has moved, and the responses, as plain values: the old program
has the connection of the peer, and the new program has the process.
"""

from contextlib import suppress
from typing import TypeAlias

from .._core.kernel import Kernel
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.errors import MailboxFullError
from .._core.vocabulary.ids import PID, Alias, Ref
from ..meta.sockets.messages import Cause, Endpoint
from ..web.messages.requests import HTTPGone, HTTPRequest
from ..web.messages.responses import HTTPError, Response
from ..web.parsing.http1 import Head

__all__ = ["plain_request", "plain_response", "read_request", "read_response", "unavailable"]

PlainAddress: TypeAlias = tuple[str, int] | str
PlainHead: TypeAlias = tuple[str, str, bool, list[list[str]], dict[str, str]]
PlainRequest: TypeAlias = tuple[str, list[str], bytes, PlainAddress, str, str, str, int, PlainHead]
PlainResponse: TypeAlias = tuple[int, bytes, list[list[str]], bytes]


def unavailable() -> HTTPError:
    """The answer to a request that cannot be forwarded: its peer finds the new program."""
    return HTTPError(503, "the process has moved to the next program", [("retry-after", "1")])


def plain_request(request: object) -> PlainRequest | None:
    """The plain values of a request; None if the object is no request, or its body is a stream."""
    if not isinstance(request, HTTPRequest) or (request.head.length != 0 and not request.body):
        return None
    head, peer = request.head, request.peer
    fields = [list(pair) for pair in head.fields]
    return (
        request.method,
        list(request.path),
        request.body,
        (peer.host, peer.port) if isinstance(peer, Endpoint) else peer,
        request.scheme,
        request.client,
        request.host,
        request.prefix,
        (head.target, head.path, head.is_http_10, fields, dict(head.headers)),
    )


class _ForwardedHead(Head):
    """The head of a request that the old program has parsed."""

    def __init__(self, method: str, plain: PlainHead) -> None:
        target, path, is_http_10, fields, headers = plain
        super().__init__(method, target, is_http_10, [(n, text) for n, text in fields], headers)
        self.path = path


class _ForwardedExchange:
    """Stands for the exchange, which is in the old program."""

    is_over = False

    def __init__(self, ref: Ref) -> None:
        self.ref = ref


def read_request(kernel: Kernel, plain: PlainRequest) -> HTTPRequest:
    """The request with these values. A response to it cannot be a stream."""
    method, path, body, peer, scheme, client, host, prefix, plain_head = plain
    head = _ForwardedHead(method, plain_head)
    node, creation, number = kernel.pid.node, kernel.pid.creation, next(kernel.router.references)
    made = HTTPRequest(
        method,
        tuple(path),
        head,
        body,
        connection=Alias(node, creation, number),
        peer=peer if isinstance(peer, str) else Endpoint(*peer),
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
    return answer.status, answer.body, headers, answer.head


def read_response(plain: PlainResponse) -> Response:
    """The response with these values."""
    status, body, headers, head = plain
    made = Response(status, headers=[(name, text) for name, text in headers]).with_body(body)
    return made.with_lines(head.removeprefix(made.head))
