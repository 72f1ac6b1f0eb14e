"""`WSGIApplication`: a WSGI application as a part of a server. It runs in threads."""

import io
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final

import trio

from ..._core.vocabulary.errors import BadInputError
from ...meta.sockets.messages import Endpoint
from ..messages.requests import HTTPRequest
from ..messages.responses import HOP_BY_HOP, Response
from ..site import Site, host_name
from .dialogue import Dialogue, PeerLeftError
from .running_tasks import RunningTasks

__all__ = ["WSGIApplication", "WSGICallable"]

WSGICallable = Callable[..., Iterable[bytes]]
"""``def app(environ, start_response)``."""

ExcInfo = tuple[type[BaseException], BaseException, TracebackType]
_PIECE: Final = 64 * 1024


class WSGIApplication:
    """Runs an application in at most ``threads`` threads. Further requests wait for a thread."""

    def __init__(self, app: WSGICallable, root: str, threads: int, site: Site) -> None:
        """``root`` is the prefix of the application's paths."""
        self._app = app
        self._root = root
        self._site = site
        self._tasks = RunningTasks()
        self._errors = ErrorLog(site)
        self._limiter = trio.CapacityLimiter(threads)

    async def start(self) -> None:
        """Nothing to start: WSGI has no lifespan."""

    async def stop(self) -> None:
        """End the requests that wait for a thread, and wait for the threads."""
        await self._tasks.end()
        if left := self._limiter.borrowed_tokens:
            self._site.log.error("threads of an application do not end", threads=left)

    async def answer(self, dialogue: Dialogue) -> None:
        """Let the application answer a request, in a thread."""
        scope = self._tasks.begin()
        call = WSGICall(self._app, self._environ(dialogue.request), dialogue)
        # A request whose client has left needs no thread.
        dialogue.request.exchange.watch(lambda: call.has_begun or scope.cancel())
        try:
            with scope:
                rest = await trio.to_thread.run_sync(
                    call.run, limiter=self._limiter, abandon_on_cancel=True
                )
                if rest is not None:
                    dialogue.respond(rest)
                elif call.is_streaming and not dialogue.has_ended:
                    dialogue.end()
        except PeerLeftError:
            pass
        finally:
            self._tasks.leave(scope)

    def _environ(self, request: HTTPRequest) -> dict[str, Any]:
        peer, local = request.peer, self._site.local
        inside = request.path[request.prefix :]
        environ: dict[str, Any] = {
            "REQUEST_METHOD": request.method,
            "SCRIPT_NAME": _native(self._root),
            "PATH_INFO": _native("/" + "/".join(inside)) if inside or not self._root else "",
            "QUERY_STRING": request.query_string,
            "SERVER_NAME": host_name(request.host) or local.host,
            "SERVER_PORT": str(local.port),
            "SERVER_PROTOCOL": f"HTTP/{request.version}",
            "REMOTE_ADDR": request.client,
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": request.scheme,
            "wsgi.errors": self._errors,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            "wsgi.input_terminated": True,
        }
        if isinstance(peer, Endpoint) and peer.host == request.client:
            environ["REMOTE_PORT"] = str(peer.port)
        for name, value in request.headers.items():
            # A name with an underscore would pass for the name with a hyphen, and HTTP_PROXY is an
            # environment variable.
            if name in ("content-type", "content-length"):
                environ[name.upper().replace("-", "_")] = value
            elif "_" not in name and name not in ("proxy", "transfer-encoding"):
                environ[f"HTTP_{name.upper().replace('-', '_')}"] = value
        return environ


class ErrorLog(io.TextIOBase):
    """``wsgi.errors``: each line is a line of the server's log."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def writable(self) -> bool:
        """It is written to."""
        return True

    def write(self, text: str, /) -> int:
        """Log the lines of a text."""
        for line in filter(None, text.splitlines()):
            self._site.log.warning("an application writes", line=line)
        return len(text)


def _native(text: str) -> str:
    """A text as WSGI has it: bytes in the shape of characters."""
    return text.encode().decode("latin-1")


class WSGICall:
    """A request, in the thread of the application."""

    def __init__(self, app: WSGICallable, environ: dict[str, Any], dialogue: Dialogue) -> None:
        self._app = app
        self._dialogue = dialogue
        self._environ = environ
        self._start: tuple[int, list[tuple[str, str]], int | None] | None = None
        self.has_begun = False
        """The thread runs."""
        self.is_streaming = False
        """The head of the response is written."""
        self._drops = False
        """The response has no body, whatever the application writes."""

    def run(self) -> Response | None:
        """Call the application. Returns the response if it is whole; otherwise its pieces are
        written.
        """
        self.has_begun = True
        self._environ["wsgi.input"] = io.BufferedReader(_Input(self._dialogue), _PIECE)
        result = self._app(self._environ, self._start_response)
        try:
            if isinstance(result, list | tuple) and not self.is_streaming:
                return self._response(b"".join(result))
            for piece in result:
                if piece:
                    self._write(piece)
            return None if self.is_streaming else self._response(b"")
        finally:
            close = getattr(result, "close", None)
            if close is not None:
                close()

    def _start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None
    ) -> Callable[[bytes], None]:
        if exc_info is not None:
            if self.is_streaming:
                raise exc_info[1].with_traceback(exc_info[2])
        elif self._start is not None:
            raise RuntimeError("start_response was called before")
        fields: list[tuple[str, str]] = []
        length: int | None = None
        for name, value in headers:
            key = name.lower()
            if key == "content-length":
                length = int(value)
            elif key not in HOP_BY_HOP:
                fields.append((key, value))
        try:
            self._start = int(status[:3]), fields, length
        except (TypeError, ValueError):
            raise BadInputError("start_response(status)", status, "'200 OK'") from None
        return self._write

    def _head(self) -> tuple[int, list[tuple[str, str]], int | None]:
        if self._start is None:
            raise RuntimeError("the application did not call start_response")
        return self._start

    def _response(self, body: bytes) -> Response:
        status, fields, length = self._head()
        if status in (204, 304):
            return Response(status, b"", fields)
        if self._dialogue.request.method == "HEAD":
            size = len(body) if length is None else length
            return Response(status, b"", fields, stream=True, length=size)
        if length is not None and length != len(body):
            raise ValueError(f"content-length says {length}, and the body has {len(body)} bytes")
        return Response(status, body, fields)

    def _write(self, data: bytes) -> None:
        if not self.is_streaming:
            status, fields, length = self._head()
            self.is_streaming = True
            stream = status not in (204, 304)
            response = Response(status, b"", fields, stream=stream, length=length)
            trio.from_thread.run_sync(self._dialogue.respond, response)
            self._drops = not stream or self._dialogue.request.method == "HEAD"
        if not self._drops:
            trio.from_thread.run(self._dialogue.write, bytes(data))


class _Input(io.RawIOBase):
    """The body of a request, for the thread of the application."""

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece: bytes = trio.from_thread.run(self._dialogue.read, len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)
