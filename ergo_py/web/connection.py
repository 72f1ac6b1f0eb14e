"""`WebConnection`: a connection of a web server. Its session speaks HTTP or WebSocket."""

import socket
from collections.abc import Awaitable, Callable
from typing import Any, Self

from .._core.tables.pending_calls import Caller
from .._core.verbs.meta_process import MetaProcess
from .._core.vocabulary.errors import NotAllowedError, Reject, UnhandledCallError
from .._core.vocabulary.ids import PID, Alias, Target
from .._core.vocabulary.messages import NO_REPLY
from ..meta.readers import start_beside
from ..meta.sockets.messages import Cause, TCPClose, TCPConnected, TCPDisconnected
from ..meta.sockets.options import StreamOptions
from ..meta.sockets.streams.connection import AcceptingServer
from ..meta.sockets.streams.parser import StreamParser
from ..meta.sockets.streams.shutdown import Reminder
from ..meta.sockets.tcp import TCPConnection
from .exchange import WrongLengthError
from .http_session import HTTPSession
from .messages.requests import End, HTTPRequest, ReadBody, SentEvent, Write
from .site import Site

__all__ = ["WebConnection"]

_NO_STREAM = "there is no streamed response with this reference; it has ended, or has not begun"


class WebConnection(TCPConnection):
    """A connection of a web server. It receives the callbacks; its session decides."""

    kind = "http"
    _http: HTTPSession
    _site: Site

    @classmethod
    def accepted_by(
        cls,
        server: AcceptingServer,
        sock: socket.socket,
        address: Any,
        options: StreamOptions,
        site: Site,
    ) -> Self:
        """Make the connection of a socket that ``server`` has accepted."""
        self = cls._accepted(server, sock, address, None, options, "task", None)
        self._site = site
        self._new_parser = self._begin_http
        self._serve_in_passing = self._serve_now
        return self

    def _begin_http(self, _alias: Alias) -> StreamParser:
        self._http = HTTPSession(self, self._site)
        return self._http

    def _receiver(self) -> Target:
        # Until there is a WebSocket, there are no messages.
        return self.id if self._to is None else self._to

    def _greet(self) -> TCPConnected | None:
        self._http.begin()
        return None

    # -- for the session ---------------------------------------------------------------------------

    @property
    def last_out(self) -> float:
        """When the operating system last took bytes for the peer."""
        return self._writer.last

    def put(self, data: bytes, caller: Caller | None = None) -> bool:
        """Write. True if the operating system has taken everything; else the caller is answered
        when it has.
        """
        done = self._writer.put(data, caller)
        if not done and self._writer.is_slow:
            self._drop_if_slow()
        return done

    def hang_up(self) -> None:
        """Close, after everything is written."""
        self._shutdown.close(TCPClose())

    def cut(self, cause: Cause, detail: str) -> None:
        """End at once: the peer sees a reset."""
        self._shutdown.abort(cause, detail)
        self._shutdown.end(cause, detail)

    def read_on(self) -> None:
        """Wake the reader, which waits because its session was paused."""
        self._reader.wait.ring()

    def begin_beside(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run an async function beside the reader."""
        start_beside(self, work)

    def upgrade(self, session: HTTPSession, request: HTTPRequest, place: Any) -> None:
        """Begin to answer a request for a WebSocket."""
        raise NotImplementedError

    def drain(self) -> None:
        """End in order."""
        self._http.drain()

    # -- messages ----------------------------------------------------------------------------------

    def _serve_now(self, message: Any, _sender: PID | Alias) -> bool:
        """Serve a message in the sender's turn, if nothing waits for the peer."""
        if self._writer.pending:
            return False
        return self._serve_stream(message)

    def _serve_stream(self, message: Any) -> bool:
        """Serve a message about a streamed response. False if it is none."""
        http, kind = self._http, type(message)
        if kind not in (Write, SentEvent, End):
            return False
        if http.is_current(message.ref):
            try:
                if kind is End:
                    http.end_stream()
                else:
                    http.write(message.data if kind is Write else message.encode())
            except WrongLengthError:
                pass  # the connection is cut
        return True

    async def handle_message(self, message: Any, sender: PID | Alias) -> None:
        """Serve the pieces of streamed responses."""
        if self._serve_stream(message):
            if self._writer.is_slow:
                await self._peer_is_slow()
        elif isinstance(message, Reminder):
            await super().handle_message(message, sender)
        else:
            MetaProcess.handle_message(self, message, sender)

    async def handle_call(self, request: Any, caller: Caller) -> object:
        """Serve requests about bodies and streamed responses."""
        http, kind = self._http, type(request)
        if kind is ReadBody:
            try:
                piece = http.read_body(request, caller)
            except NotAllowedError as error:
                raise Reject(error) from None
            return NO_REPLY if piece is None else piece
        if kind not in (Write, SentEvent, End):
            raise Reject(UnhandledCallError(self.id, request, type(self).__qualname__))
        if not http.is_current(request.ref):
            raise Reject(BrokenPipeError(_NO_STREAM))
        try:
            if kind is End:
                http.end_stream()
                return None
            data = request.data if kind is Write else request.encode()
            done = http.write(data, caller)
        except WrongLengthError as error:
            raise Reject(ValueError(str(error))) from None
        if done:
            return len(data)
        if self._writer.is_slow:
            await self._peer_is_slow()
        return NO_REPLY

    def _written(self) -> None:
        super()._written()
        self._http.advance()

    # -- the end -----------------------------------------------------------------------------------

    def _close_for_good(self) -> TCPDisconnected | None:
        super()._close_for_good()
        self._http.gone(self.cause or Cause.ASKED)
        return None

    # -- looking inside ----------------------------------------------------------------------------

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The counters and the state of the connection, by name."""
        facts = super().handle_inspect()
        facts["requests"] = str(self._http.requests)
        facts["phase"] = self._http.phase.value
        return {item: facts[item] for item in items if item in facts} if items else facts
