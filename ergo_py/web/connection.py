"""`WebConnection`: a connection of a web server. Its protocol speaks HTTP or WebSocket."""

import socket
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import Any, Final

import trio

from .._core.processes.process import Process
from .._core.tables.pending_calls import Caller
from .._core.vocabulary.errors import NotAllowedError, Reject, UnhandledCallError
from .._core.vocabulary.ids import Alias, Target
from .._core.vocabulary.messages import NO_REPLY
from .._core.vocabulary.reasons import Killed, Normal, Reason, Shutdown
from ..meta.readers import start_beside
from ..meta.sockets.messages import Cause, TCPClose, TCPConnected
from ..meta.sockets.options import StreamOptions
from ..meta.sockets.socket_setup import count_unacknowledged
from ..meta.sockets.streams.connection import AcceptingServer, StreamConnection
from ..meta.sockets.streams.parser import StreamParser
from ..meta.sockets.streams.sessions import end_session
from .http.exchange import unavailable
from .http.protocol import HTTPProtocol
from .http.response_stream import ResponseStream, WrongLengthError
from .http.traced_protocol import TracedHTTPProtocol
from .messages.requests import HTTPRequest, ReadBody
from .messages.responses import EndStream, SentEvent, WritePiece
from .messages.websockets import WSClose, WSConnected
from .parsing.deflate import Deflate
from .protocol_connection import ProtocolConnection
from .routes import Route
from .site import Site
from .upgrade import Agreement, Upgrade
from .websocket import WebSocket, call_websocket, serve_websocket, write_last

__all__ = ["WebConnection"]

_PATIENCE: Final = 0.8
"""The part of the time of a graceful shutdown that is left to the receivers of requests."""
_TAKES_NOTHING: Final = 1.0
"""Seconds that a graceful shutdown waits for a peer that takes nothing of its response."""
_GOING_AWAY: Final = 1001
"""The code of a WebSocket that ends during its move."""
_GIVES_WAY = "the server is full, and another peer waits"
_NO_STREAM = "there is no streamed response with this reference; it has ended, or has not begun"


class WebConnection(ProtocolConnection):
    """A connection of a web server. It receives the callbacks; its protocol decides."""

    kind = "http"
    _http: HTTPProtocol
    _websocket: WebSocket | None = None
    _prefix = ""
    """The prefix of the route of the WebSocket."""
    _progress: trio.Event | None = None
    """Wakes a graceful shutdown when the peer has taken bytes, or is gone."""
    _is_broken = False
    """Nothing more can be written to the peer."""

    def __init__(
        self,
        server: AcceptingServer,
        options: StreamOptions,
        site: Site,
        sock: socket.socket,
        address: object,
        early: bytes = b"",
        head_since: float | None = None,
    ) -> None:
        """Take a socket that the ``server`` of a site has accepted. The server has read the bytes
        ``early``; ``head_since`` says that a head began then, which is not complete.
        """
        StreamConnection.__init__(
            self,
            None,
            options,
            "task",
            given=sock,
            server=server,
            address=address,
            new_parser=self._begin_http,
            early=early,
        )
        self._site = site
        self._head_since = head_since
        """Since when a head has begun, among the first bytes, which is not complete."""
        self._serve_in_passing = self._serve_now

    def _begin_http(self, alias: Alias) -> HTTPProtocol:
        self.alias = alias
        kind = HTTPProtocol if self._meta.kernel.tracing is None else TracedHTTPProtocol
        self._http = kind(self, self._writer, self._site)
        return self._http

    def _receiver(self) -> Target:
        # Until there is a WebSocket, there are no messages.
        return self._meta.id if self._to is None else self._to

    def _greet(self) -> TCPConnected | None:
        self._http.limits.begin(self._head_since)
        return None

    # -- for the protocol --------------------------------------------------------------------------

    def begin_beside(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run an async function beside the reader."""
        start_beside(self, work)

    @property
    def idle_since(self) -> float | None:
        """Since when there is no request; None if there is one, or a WebSocket, or if the
        connection ends already. A WebSocket that only waits for the close of its peer gives way at
        once.
        """
        if self.connected is None or self.cause is not None:
            return None
        if self._websocket is not None:
            return self._closing_since(self._websocket)
        return max(self.last_in, self.last_out) if self._http.is_idle else None

    def _closing_since(self, websocket: WebSocket) -> float | None:
        if websocket.takes_messages:
            return None
        if self._writer.pending or count_unacknowledged(self._socket):
            # Until now, the peer has not had all messages: look again, and do not cut them.
            return self.now()
        return -inf

    def give_way(self) -> None:
        """End an idle connection without waiting for its peer. From now on there is a cause."""
        self._http.give_way()
        self._shutdown.close(TCPClose(linger=0.0))
        # A WebSocket that has hung up already waits for its peer, with a patience of its own.
        self._shutdown.end(Cause.ASKED, _GIVES_WAY)

    def drain(self) -> None:
        """End in order."""
        if self._websocket is None:
            self._http.drain()
        elif (ending := self._site.ending) is not None:
            self._websocket.close(WSClose(ending.code))

    # -- WebSocket ---------------------------------------------------------------------------------

    def upgrade(self, http: HTTPProtocol, request: HTTPRequest, place: Any) -> None:
        """Begin to answer a request for a WebSocket."""
        Upgrade(self, http, request, place, self._site).begin()

    def begin_websocket(self, agreement: Agreement) -> None:
        """Go on as a WebSocket: the actor that was spawned for it owns the connection now."""
        actor, meta = agreement.actor, self._meta
        assert actor is not None
        if self.stopping or meta.ending.over or agreement.request.gone:
            end_session(actor, self.id)
            return
        if not actor.accepting:
            self._http.refuse_upgrade(agreement.request, unavailable())
            return
        agreement.begin()
        rest = self._http.leave()
        self._belong_to(actor)
        vars(actor.behaviour).setdefault("connection", self.id)
        meta.hand_to(actor)
        self._to = actor.id
        self._reader.use(self._socket, actor.id)
        websocket = self._make_websocket(agreement.place, agreement.deflate, rest)
        self._writer.put(agreement.answer, in_turn=True)
        self.send(actor.id, WSConnected(self.id, agreement.request, agreement.subprotocol))
        self._input.use(websocket, self._now)
        websocket.begin()
        self.read_on()
        if self._site.ending is not None:
            self.drain()

    def _make_websocket(self, place: Route, deflate: Deflate | None, rest: bytes) -> WebSocket:
        self._prefix = place.prefix
        self._websocket = WebSocket(
            self,
            self._writer,
            is_client=False,
            max_message=place.max_message,
            interval=place.ping_interval,
            deflate=deflate,
            rest=rest,
        )
        return self._websocket

    # -- the move to the next program --------------------------------------------------------------

    @property
    def protocol(self) -> tuple[object, ...]:
        """The prefix of the route of the WebSocket, and the window of its compression."""
        assert self._websocket is not None
        return self._prefix, self._websocket.window_bits

    def end_stream(self, is_ending: bool) -> bool:
        """Close a WebSocket that ends. It ends, too, if a process has closed it."""
        websocket = self._websocket
        assert websocket is not None
        if is_ending:
            websocket.say_last(_GOING_AWAY)
        return not websocket.takes_messages

    def go_on_as_websocket(self, place: Route, window_bits: int) -> None:
        """Be a WebSocket of the program before, which agreed on the compression."""
        self._new_parser = partial(self._begin_moved, place, window_bits)

    def _begin_moved(self, place: Route, window_bits: int, alias: Alias) -> StreamParser:
        self._begin_http(alias).give_way()
        deflate = Deflate(window_bits) if window_bits else None
        websocket = self._make_websocket(place, deflate, b"")
        websocket.begin()
        return websocket

    def arrive(self, session: Process) -> None:
        """Go on for a session that knows its peer already."""
        super().arrive(session)
        self._to = session.id

    def write_late(self, data: bytes, closes: bool) -> None:
        """Write the frames that processes of the program before have sent during the move. The last
        is the close, if the WebSocket was closed there.
        """
        websocket = self._websocket
        if websocket is None or not websocket.takes_messages:
            return  # this side has closed meanwhile
        if data:
            self._writer.put(data, in_turn=True)
        if closes and data:
            websocket.note_close()
        elif closes:
            websocket.close(WSClose(_GOING_AWAY))

    # -- messages ----------------------------------------------------------------------------------

    def _serve_message(self, message: Any) -> bool:
        """Serve a message about a streamed response or a WebSocket. False if it is none."""
        if self._websocket is not None:
            return serve_websocket(self._websocket, message)
        http, kind = self._http, type(message)
        if kind not in (WritePiece, SentEvent, EndStream):
            return False
        if (stream := http.stream_of(message.ref)) is not None:
            try:
                if kind is EndStream:
                    http.end_stream()
                else:
                    stream.write(message.data if kind is WritePiece else message.encode())
            except WrongLengthError:
                pass  # the connection is cut
        return True

    async def handle_call(self, request: Any, caller: Caller) -> object:
        """Serve requests about bodies, streamed responses and WebSockets."""
        http, kind = self._http, type(request)
        if self._websocket is not None:
            answer = call_websocket(self._websocket, request, caller)
        elif kind is ReadBody:
            try:
                piece = http.read_body(request, caller)
            except NotAllowedError as error:
                raise Reject(error) from None
            return NO_REPLY if piece is None else piece
        elif kind not in (WritePiece, SentEvent, EndStream):
            raise Reject(UnhandledCallError(self.id, request, type(self).__qualname__))
        elif (stream := http.stream_of(request.ref)) is None:
            raise Reject(BrokenPipeError(_NO_STREAM))
        else:
            answer = self._call_stream(stream, request, caller)
        if answer is NO_REPLY and self._writer.is_slow:
            await self._peer_is_slow()
        return answer

    def _call_stream(self, stream: ResponseStream, request: Any, caller: Caller) -> object:
        try:
            if type(request) is EndStream:
                self._http.end_stream()
                return None
            data = request.data if type(request) is WritePiece else request.encode()
            return len(data) if stream.write(data, caller) else NO_REPLY
        except WrongLengthError as error:
            raise Reject(ValueError(str(error))) from None

    def _written(self) -> None:
        super()._written()
        if self._progress is not None:
            self._progress.set()
        if self._websocket is None:
            self._http.written()

    # -- the end -----------------------------------------------------------------------------------

    async def terminate(self, reason: Reason) -> None:
        """Graceful shutdown: a response that another process or an application is about to give is
        still written.
        """
        is_graceful = isinstance(reason, Normal | Shutdown)
        if is_graceful and self._websocket is None and self.cause is None:
            try:
                with trio.move_on_after(self._meta.options.stop_timeout * _PATIENCE):
                    await self._finish_response()
            except BaseException:
                # A kill cuts this short: the socket must not close in order inside a response.
                self._write_last(Killed())
                raise
        await super().terminate(reason)

    async def _finish_response(self) -> None:
        exchange = self._http.finish_exchange()
        if exchange is not None:
            answered = trio.Event()
            exchange.watch(answered.set)
            await answered.wait()
        while self._http.stream is None and self._writer.pending and not self._is_broken:
            self._progress = trio.Event()
            with trio.move_on_after(_TAKES_NOTHING) as patience:
                await self._progress.wait()
            if patience.cancelled_caught:
                return

    def _broken(self, error: OSError) -> None:
        super()._broken(error)
        self._is_broken = True
        if self._progress is not None:
            self._progress.set()

    def _write_last(self, reason: Reason) -> bool:
        if self._shutdown.is_silent:
            pass  # the WebSocket goes on in the next program
        elif self._websocket is not None:
            write_last(self._meta, self._websocket, reason)
        elif self._http.stream is not None:
            # An orderly end would make this part of a response look like the whole.
            self._shutdown.abort(Cause.ASKED, "inside a streamed response")
        elif self.cause is None:
            self._http.say_last()
        return super()._write_last(reason)

    def _close_for_good(self) -> Any:
        super()._close_for_good()
        cause = self.cause or Cause.ASKED
        self._http.gone(cause)
        if self._websocket is None or self._shutdown.is_silent:
            return None
        return self._websocket.disconnected(cause, self.detail)

    # -- looking inside ----------------------------------------------------------------------------

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The counters and the state of the connection, by name."""
        facts = super().handle_inspect()
        facts["requests"] = str(self._http.requests)
        websocket = self._websocket
        facts["phase"] = (
            self._http.phase.value if websocket is None else f"websocket {websocket.state.value}"
        )
        return {item: facts[item] for item in items if item in facts} if items else facts
