"""`ASGIApplication`: an ASGI application as a part of a server."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from ..._core.tables.pending_calls import Deadline
from ..._core.vocabulary.hints import add_note
from ..._core.vocabulary.text import text_of
from ...meta.sockets.messages import Endpoint
from ..messages.requests import HTTPRequest
from ..messages.responses import HOP_BY_HOP, Response
from ..site import Site
from .application_exchange import ApplicationExchange, PeerLeftError
from .asgi_websocket import Talk
from .lifespan import Lifespan
from .running_tasks import RunningTasks

__all__ = ["ASGIApplication", "ASGICallable"]

ASGICallable = Callable[..., Awaitable[None]]
"""``async def app(scope, receive, send)``."""

Message = dict[str, Any]
_PIECE: Final = 64 * 1024
_VERSION: Final = {"version": "3.0", "spec_version": "2.4"}
_NEEDS_ASYNCIO: Final = (
    "no running event loop",
    "no current event loop",
    "unrecognized yield message",  # trio's word about an awaited future of asyncio
)


class ASGIApplication:
    """Runs an application on the node's loop: a task for each request and each WebSocket, and a
    task for its lifespan.
    """

    def __init__(self, app: ASGICallable, root: str, site: Site) -> None:
        """``root`` is the prefix of the application's paths."""
        self._app = app
        self._root = root
        self._site = site
        self._tasks = RunningTasks()
        self._lifespan = Lifespan(app, _VERSION, site.report)

    async def start(self) -> None:
        """Start the application.

        Raises:
            ApplicationError: it could not start.
        """
        await self._lifespan.start(self._site.begin_beside)

    async def stop(self) -> None:
        """End the tasks of the application, and shut it down."""
        left = await self._tasks.end()
        if left:
            self._site.log.error("tasks of an application do not end", tasks=left)
        await self._lifespan.stop()

    async def answer(self, exchange: ApplicationExchange) -> None:
        """Let the application answer a request."""
        http = HTTPExchange(exchange)
        task = self._site.applications.tasks.current()
        self._tasks.enter(task)
        try:
            facts = self._scope(exchange.request, "http")
            await self._app(facts, http.receive, http.send)
        except Exception as error:
            if http.heard_of_end:
                # Frameworks raise an exception of their own when the client has left.
                self._site.log.info("an application ended after its client", error=text_of(error))
                return
            self._explain(error)
            raise
        finally:
            self._tasks.leave(task)
        if not exchange.has_ended:
            self._site.log.error("an application has ended without a whole response")

    async def talk(self, upgrade: object, request: HTTPRequest) -> None:
        """Let the application decide about a WebSocket, and use it."""
        talk = Talk(upgrade, request)
        scope = self._tasks.begin()
        try:
            with scope:
                facts = self._scope(request, "websocket")
                facts["subprotocols"] = talk.offered
                facts["extensions"] = {"websocket.http.response": {}}
                await self._app(facts, talk.receive, talk.send)
        except Exception as error:
            if not talk.heard_of_end:
                self._explain(error)
                self._site.report(f"the application failed at {request!r}", error)
            talk.fail()
            return
        finally:
            self._tasks.leave(scope)
        talk.finish()

    def _scope(self, request: HTTPRequest, kind: str) -> Message:
        peer, local = request.peer, self._site.applications.local
        port = peer.port if isinstance(peer, Endpoint) and peer.host == request.client else 0
        scheme = request.scheme
        return {
            "type": kind,
            "asgi": _VERSION,
            "http_version": request.version,
            "method": request.method,
            "scheme": scheme if kind == "http" else "wss" if scheme == "https" else "ws",
            "path": "/" + "/".join(request.path),
            "raw_path": request.head.path.partition("?")[0].encode("ascii"),
            "query_string": request.query_string.encode("ascii"),
            "root_path": self._root,
            "headers": [
                (name.encode("latin-1"), value.encode("latin-1"))
                for name, value in request.head.fields
            ],
            "client": (request.client, port),
            "server": (local.host, local.port),
            "state": self._lifespan.state.copy(),
        }

    def _explain(self, error: Exception) -> None:
        if isinstance(error, RuntimeError | TypeError) and any(
            words in text_of(error) for words in _NEEDS_ASYNCIO
        ):
            add_note(
                error,
                "This application needs asyncio, and a mounted application runs on trio. Use the "
                "parts of its framework that run on anyio, or run it under its own server and "
                "reach the node with ergo_py.blocking.open_node() and node.ask().",
            )


class HTTPExchange:
    """``receive`` and ``send`` of a request."""

    __slots__ = (
        *("_asked", "_exchange", "_drops", "_head_due", "_is_done", "_is_streaming", "_start"),
        "heard_of_end",
    )

    def __init__(self, exchange: ApplicationExchange) -> None:
        self._exchange = exchange
        self._start: Message | None = None
        self._head_due: Deadline | None = None
        """Writes the head of a response whose body does not come at once."""
        self._asked = False
        """The whole body was handed over."""
        self._is_streaming = False
        self._drops = False
        """The response is written, and the rest of its body does not belong to it."""
        self._is_done = False
        """The application has sent its last piece."""
        self.heard_of_end: bool = False
        """The application was told that its client has left."""

    async def receive(self) -> Message:
        """The next piece of the body, or the end of the exchange."""
        exchange = self._exchange
        if not self._asked:
            try:
                piece = b"" if exchange.body_is_done else await exchange.read(_PIECE)
                self._asked = exchange.body_is_done
                return {"type": "http.request", "body": piece, "more_body": not self._asked}
            except PeerLeftError:
                # The exchange ends: the application hears of it below, as ASGI says.
                pass
        await exchange.wait_until_ended()
        self.heard_of_end = True
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Write a part of the response.

        Raises:
            PeerLeftError: the exchange has ended.
        """
        kind = message["type"]
        if kind == "http.response.start":
            if self._start is not None:
                raise RuntimeError("http.response.start was sent before")
            self._start = message
            self._head_due = self._exchange.begin(self._write_head)
        elif kind == "http.response.body":
            if self._start is None:
                raise RuntimeError("http.response.start must be sent before http.response.body")
            try:
                await self._write(bytes(message.get("body", b"")), message.get("more_body", False))
            except PeerLeftError:
                self.heard_of_end = True
                raise
        else:
            raise ValueError(f"{kind!r} is no message of a response")

    async def _write(self, body: bytes, more: bool) -> None:
        exchange = self._exchange
        if self._is_done:
            raise RuntimeError("the response is complete: http.response.body had no more_body")
        self._is_done = not more
        if self._drops:
            return
        if exchange.has_ended:
            raise PeerLeftError
        if not self._is_streaming:
            self._write_head(body, more)
            if self._drops:
                return
        if body:
            await exchange.write(body)
        if not more:
            exchange.end()

    def _write_head(self, body: bytes = b"", more: bool = True) -> None:
        """Write the response, or the head of a streamed one."""
        assert self._start is not None
        assert self._head_due is not None
        self._head_due.abandon()
        is_head = self._exchange.request.method == "HEAD"
        response = make_response(self._start, body, more, is_head)
        self._drops = is_head or not response.stream
        self._is_streaming = True
        self._exchange.respond(response)


def make_response(start: Message, body: bytes, more: bool, is_head: bool) -> Response:
    """The response that an application describes: whole, or the head of a stream.

    Raises:
        ValueError: the body is not as long as the application says.
    """
    status: int = start["status"]
    fields, length = read_fields(start.get("headers", ()))
    if status in (204, 304):
        return Response(status, b"", fields)
    if more or is_head:
        return Response(status, b"", fields, stream=True, length=length)
    if length is not None and length != len(body):
        raise ValueError(f"content-length says {length}, and the body has {len(body)} bytes")
    return Response(status, body, fields)


def read_fields(
    headers: Iterable[tuple[bytes, bytes]],
) -> tuple[list[tuple[str, str]], int | None]:
    """The fields of a response without those that the server writes itself, and the length of the
    body if they tell it.
    """
    fields: list[tuple[str, str]] = []
    length: int | None = None
    for name, value in headers:
        key, text = bytes(name).decode("latin-1").lower(), bytes(value).decode("latin-1")
        if key == "content-length":
            length = int(text)
        elif key not in HOP_BY_HOP:
            fields.append((key, text.strip(" \t")))
    return fields, length
