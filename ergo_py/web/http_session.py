"""`HTTPSession`: the HTTP of a connection. It turns the bytes of the peer into calls of actors, and
their answers into responses, one exchange at a time.
"""

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol

import trio

from .._core.tables.pending_calls import Caller
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.errors import (
    InitError,
    MailboxFullError,
    NotAllowedError,
    SpawnError,
)
from .._core.vocabulary.ids import Alias, Ref
from ..meta.receivers import make_actor
from ..meta.sockets.messages import Address, Cause
from ..meta.sockets.streams.sessions import end_session
from .exchange import (
    BodyWriter,
    Exchange,
    StreamGuard,
    WrongLengthError,
    answer_of,
    unavailable,
)
from .limits import TimeLimits, Traffic
from .messages.requests import HTTPGone, HTTPRequest, ReadBody, read_path
from .messages.responses import HTTPError, Response, bare_response, response_head
from .parsing.http1 import Head, RequestError, RequestParser
from .routes import STREAM, Place
from .site import Site

__all__ = ["HTTPSession", "Phase", "Wire"]

_IN_A_ROW: Final = 64
"""Requests to begin in one step, so that other work gets its turn."""
_WAITING: Final = 64 * 1024
"""Bytes of requests, or of a body, that may wait here. Then nothing is read."""
_SKIPPED: Final = 64 * 1024
"""Bytes of an unwanted body that are read and dropped, so that the connection can go on."""
_EVENT_PAUSE: Final = 15.0
"""Seconds after which a silent stream of events gets a comment."""
_LARGE: Final = 16 * 1024
"""Bytes of a body that are not worth a copy behind the head."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_NORMAL: Final = Priority.NORMAL


class Wire(Traffic, Protocol):
    """The part of a connection that HTTP uses."""

    @property
    def id(self) -> Alias:
        """The alias of the connection."""
        ...

    peer: Address

    @property
    def pending(self) -> int:
        """Bytes that wait for the peer."""
        ...

    def put(self, data: bytes, caller: Caller | None = None) -> bool:
        """Write. True if the operating system has taken everything; else the caller is answered
        when it has.
        """
        ...

    def hang_up(self) -> None:
        """Close, after everything is written."""
        ...

    def cut(self, cause: Cause, detail: str) -> None:
        """End at once, so that the peer does not take a part for the whole."""
        ...

    def read_on(self) -> None:
        """Wake the reader, which waits because the session was paused."""
        ...

    def begin_beside(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run an async function beside the reader."""
        ...

    def upgrade(self, session: "HTTPSession", request: HTTPRequest, place: Any) -> None:
        """Begin to answer a request for a WebSocket."""
        ...


class Phase(Enum):
    """What the session waits for."""

    HEAD = "head"
    BODY = "body"
    UNDER_WAY = "under way"
    """An answer, or the rest of a streamed response."""
    SKIPS = "skips"
    """The rest of a body that was not read."""
    UPGRADING = "upgrading"
    """The decision about a WebSocket."""
    CLOSED = "closed"


_HEAD, _BODY, _UNDER_WAY = Phase.HEAD, Phase.BODY, Phase.UNDER_WAY
_SKIPS, _UPGRADING, _CLOSED = Phase.SKIPS, Phase.UPGRADING, Phase.CLOSED


class HTTPSession:
    """The HTTP of a connection: a parser, as the connection's reader sees it. Everything here
    happens on the loop.
    """

    __slots__ = (
        "_advances",
        "_body_reader",
        "_continues",
        "_exchange",
        "_guard",
        "_head",
        "_limits",
        "_parser",
        "_pieces",
        "_place",
        "_request",
        "_response",
        "_room",
        "_since",
        "_site",
        "_size",
        "_sent",
        "_stream",
        "_wire",
        "closes",
        "count",
        "error",
        "has_more",
        "paused",
        "phase",
        "requests",
        "unfinished",
    )

    def __init__(self, wire: Wire, site: Site) -> None:
        self._wire = wire
        self._site = site
        self._parser = RequestParser()
        self.phase = _HEAD
        self._head: Head | None = None
        self._request: HTTPRequest | None = None
        self._place: Place | None = None
        self._exchange: Exchange | None = None
        self._response: Response | None = None
        self._stream: BodyWriter | None = None
        """Frames the pieces of a streamed response, while there is any."""
        self._guard: StreamGuard | None = None
        self._room: trio.Event | None = None
        """Wakes an application that waits for a slow peer."""
        self._body_reader: tuple[Caller, int] | None = None
        """A call of ``ReadBody`` that waits for the peer, and how much it takes."""
        self._pieces: list[bytes] = []
        self._size = 0
        self._sent = 0
        """Bytes of the response's body."""
        self._continues = False
        """The peer waits for ``100 Continue``."""
        self._advances = False
        self._limits = TimeLimits(wire, site, self._check_time)
        self._since = 0.0
        """When the exchange began, for the access log."""
        self.closes = False
        """The connection ends after the response."""
        self.requests = 0
        # The parser of the connection's input
        self.has_more = False
        self.paused = False
        """Nothing may be read: enough waits here, or the protocol may change."""
        self.unfinished = self.count = 0
        self.error: str | None = None

    # -- the reader --------------------------------------------------------------------------------

    def begin(self) -> None:
        """The connection is ready: the peer has its time from now on."""
        self._limits.check_by(self._site.now() + self._site.options.idle_timeout)

    def feed(self, data: bytes) -> Sequence[object]:
        """Take bytes of the peer, and begin what they ask for."""
        if self.phase is not _CLOSED:
            if data:
                self._parser.feed(data)
            self.advance()
            self.has_more = self.paused
        return ()

    def advance(self) -> None:
        """Go as far as the bytes of the peer allow."""
        if self._advances:
            # A step has led here: its loop goes on.
            return
        self._advances = True
        try:
            for _ in range(_IN_A_ROW):
                if not self._step():
                    break
            else:
                self._site.soon(self.advance)
        except RequestError as error:
            self._refuse(error)
        finally:
            self._advances = False
        is_full = self.phase is _UPGRADING or (
            self.phase is _UNDER_WAY and self._parser.unread >= _WAITING
        )
        if is_full is not self.paused:
            self.paused = is_full
            if not is_full:
                self._wire.read_on()

    def _step(self) -> bool:
        phase = self.phase
        if phase is _HEAD:
            if self._wire.pending > self._site.options.write_limit:
                return False
            head = self._parser.next_head()
            if head is None:
                if self._parser.unread:
                    self._limits.begin_head()
                return False
            if self._limits.in_head:
                self._limits.end_head()
            self._begin_exchange(head)
            return True
        if phase is _BODY:
            return self._collect()
        if phase is _SKIPS:
            return self._skip()
        if self._body_reader is not None:
            return self._give_to_reader()
        return False

    # -- requests ----------------------------------------------------------------------------------

    def _begin_exchange(self, head: Head) -> None:
        site, wire = self._site, self._wire
        self.requests += 1
        self._head = head
        self._continues = head.expects_continue
        self.closes = not head.keeps_alive
        if site.options.access_log:
            self._since = site.now()
        client, scheme, host = site.client_of(wire.peer, head)
        path = read_path(head.path)
        request = self._request = HTTPRequest(
            head.method,
            path,
            head,
            connection=wire.id,
            peer=wire.peer,
            scheme=scheme,
            client=client,
            host=host,
        )
        if site.is_draining:
            self._respond(unavailable())
            return
        if not site.serves(host):
            self._respond(bare_response(421))
            return
        place = self._place = site.routes.find(path)
        if place is None:
            self._respond(bare_response(404))
            return
        if place.kind == "websocket":
            self.phase = _UPGRADING
            wire.upgrade(self, request, place)
            return
        refusal = place.refusal(head.method)
        if refusal is not None:
            self._respond(refusal.response)
        elif head.length is not None and head.length > place.max_body:
            self._respond(bare_response(413))
        elif self._parser.body_is_done or place.body is STREAM:
            self._ask()
        else:
            self._want_body()
            self._pieces = []
            self._size = 0
            self.phase = _BODY

    def _want_body(self) -> None:
        """The body is wanted now: its time counts."""
        self._limits.begin_body()
        if self._continues:
            self._continues = False
            self._wire.put(_CONTINUE)

    def _collect(self) -> bool:
        """Collect a whole body. Returns whether there is more to do without waiting."""
        place, parser = self._place, self._parser
        assert place is not None
        assert self._request is not None
        piece = parser.take_body(place.max_body - self._size + 1)
        self._size += len(piece)
        if self._size > place.max_body:
            raise RequestError(413, f"the body is longer than {place.max_body} bytes")
        if piece:
            self._pieces.append(piece)
        if not parser.body_is_done:
            return parser.has_more
        self._request.take_body(b"".join(self._pieces))
        self._pieces = []
        self._ask()
        return True

    def _skip(self) -> bool:
        """Drop the rest of a body that was not read."""
        self._size += len(self._parser.take_body(_SKIPPED))
        if self._parser.body_is_done:
            self.phase = _HEAD
            return True
        if self._size > _SKIPPED:
            self._close()
            return False
        return self._parser.has_more

    # -- calls -------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Let the place answer: an actor, an actor of its own, or an application."""
        place, request, site = self._place, self._request, self._site
        assert place is not None
        assert request is not None
        self.phase = _UNDER_WAY
        self._size = 0
        exchange = self._exchange = Exchange(
            self._wire.id, site.next_reference(), None, request, self._settled
        )
        request.begin(exchange, len(place.parts))
        work = place.answer(self, request)
        if work is not None:
            self._wire.begin_beside(partial(self._let_answer, exchange, work))
            return
        receivers: Any = place
        try:
            plan = receivers.receivers.plan_actor()
        except SpawnError as error:
            self._could_not_spawn(exchange, error)
            return
        if plan is None:
            self._call(exchange, receivers.receivers.next() or site.owner)
        else:
            self._wire.begin_beside(partial(self._call_new_actor, exchange, plan))

    def _call(self, exchange: Exchange, to: Any) -> None:
        site, place = self._site, self._place
        assert place is not None
        receiver = site.router.resolve(to)
        if receiver is None or not receiver.accepting:
            self._respond(unavailable())
            return
        exchange.redirect(to, exchange.request)
        try:
            site.calls.begin(exchange, _NORMAL)
        except MailboxFullError:
            self._respond(unavailable())
            return
        if not exchange.settled:
            site.clock.arm_call(exchange, place.request_timeout)

    async def _call_new_actor(self, exchange: Exchange, plan: Any) -> None:
        try:
            actor = await make_actor(self._site.meta, plan)
        except SpawnError as error:
            if exchange is self._exchange:
                self._could_not_spawn(exchange, error)
            return
        exchange.belong_to(actor)
        if exchange is self._exchange and not exchange.is_over:
            self._call(exchange, actor.id)
        else:
            end_session(actor, self._wire.id)

    def _could_not_spawn(self, exchange: Exchange, error: SpawnError) -> None:
        is_fault = isinstance(error, InitError)
        self._site.log.warning("no actor could be made for a request", error=str(error))
        self._respond(bare_response(500) if is_fault else unavailable())

    async def _let_answer(self, exchange: Exchange, work: Awaitable[None]) -> None:
        """Run an application, or read a file."""
        try:
            await work
        except Exception as error:
            self._site.report(f"an application failed at {self._place!r}", error)
            if exchange is self._exchange and not exchange.is_over:
                if self._stream is None:
                    self._respond(bare_response(500))
                else:
                    self._wire.cut(Cause.FAILED, "an application failed inside its response")

    def _settled(self, exchange: Exchange) -> None:
        if exchange is not self._exchange or exchange.is_over:
            return
        response, told = answer_of(exchange)
        if told:
            self._site.log.error(told, request=repr(exchange.request))
        self._respond(response)

    # -- responses ---------------------------------------------------------------------------------

    def _respond(self, response: Response) -> None:
        """Write a response, or the beginning of a streamed one."""
        head, parser, wire = self._head, self._parser, self._wire
        is_http_10 = head is not None and head.is_http_10
        has_body = head is None or head.method != "HEAD"
        if not self.closes and (self._site.is_draining or not parser.body_is_done):
            # A peer that still waits for `100 Continue` may send its body or not.
            self.closes = self._site.is_draining or self._continues or parser.left > _SKIPPED
        self._response = response
        if response.stream:
            if response.length is None and is_http_10:
                self.closes = True
            start = response_head(response, self.closes, is_http_10)
            self._sent = 0
            wire.put(start)
            if has_body:
                chunked = response.length is None and not is_http_10
                self._begin_stream(BodyWriter(response.length, chunked))
                return
        else:
            start = response_head(response, self.closes, is_http_10)
            body = response.body if has_body else b""
            self._sent = len(body)
            if len(body) <= _LARGE:
                wire.put(start + body)
            else:
                wire.put(start)
                wire.put(body)
        self._finish()

    def _begin_stream(self, stream: BodyWriter) -> None:
        self._stream = stream
        exchange = self._exchange
        assert exchange is not None
        callee = exchange.callee
        if callee is not None:
            # If its actor ends before the response does, the peer must not take a part for the
            # whole.
            self._guard = guard = StreamGuard(exchange, self._lost_actor)
            guard.assign(callee)
            guard.defer(callee)
        if self._response is not None and self._response.is_events:
            self._limits.check_by(self._site.now() + _EVENT_PAUSE)

    def _lost_actor(self) -> None:
        self._guard = None
        self._wire.cut(Cause.FAILED, "the actor of a streamed response has ended before its End")

    def is_current(self, ref: Ref) -> bool:
        """Whether a streamed response with this reference is under way."""
        exchange = self._exchange
        return self._stream is not None and exchange is not None and exchange.ref == ref

    @property
    def sends_events(self) -> bool:
        """Whether a stream of events is under way."""
        return self._stream is not None and self._response is not None and self._response.is_events

    def write(self, data: bytes, caller: Caller | None = None) -> bool:
        """Write a piece of the streamed response. True if the operating system has taken it.

        Raises:
            WrongLengthError: it is longer than its length; the connection is cut.
        """
        assert self._stream is not None
        try:
            framed = self._stream.frame(data)
        except WrongLengthError as error:
            self._wire.cut(Cause.FAILED, f"a response is longer than its length: {error}")
            raise
        self._sent += len(data)
        return not framed or self._wire.put(framed, caller)

    def end_stream(self) -> None:
        """End the streamed response.

        Raises:
            WrongLengthError: it is shorter than its length; the connection is cut.
        """
        assert self._stream is not None
        try:
            last = self._stream.end()
        except WrongLengthError as error:
            self._wire.cut(Cause.FAILED, f"a response is shorter than its length: {error}")
            raise
        if last:
            self._wire.put(last)
        self._stream = None
        self._finish()

    def respond(self, response: Response) -> None:
        """Answer for an application: it writes the rest if the response is a stream."""
        self._respond(response)

    async def write_all(self, data: bytes) -> None:
        """Write a piece for an application, and wait while the peer is slow."""
        if self._stream is None:
            return
        self.write(data)
        while self._stream is not None and self._wire.pending > _WAITING:
            self._room = room = trio.Event()
            await room.wait()

    def written(self) -> None:
        """Some of the waiting bytes are out."""
        if self._room is not None and self._wire.pending <= _WAITING:
            self._room.set()
            self._room = None
        self.advance()

    def say_last(self) -> None:
        """The connection ends on this side: tell a peer that waits for its response."""
        if self._stream is None and self.phase in (_BODY, _UNDER_WAY, _UPGRADING):
            last = unavailable()
            self._wire.put(response_head(last, True, False) + last.body)

    def _finish(self) -> None:
        """The response is written: go on with the next request, or close."""
        response = self._response
        if response is not None:
            self._site.count(response.status)
            if self._site.options.access_log:
                self._log_access(response)
        self._end_exchange()
        self._head = self._request = self._place = self._response = None
        if self.closes:
            self._close()
        elif self._parser.body_is_done:
            self.phase = _HEAD
        else:
            self.phase = _SKIPS
            self._size = 0
            self._limits.begin_body()
        if not self._advances:
            self.advance()

    def _end_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if self._guard is not None:
            self._guard.abandon()
            self._guard = None
        self._stream = None
        if self._body_reader is not None:
            (caller, _), self._body_reader = self._body_reader, None
            self._site.calls.reply(caller, None, NotAllowedError("the exchange has ended"))
        if exchange is not None:
            exchange.finish()
            if exchange.actor is not None:
                end_session(exchange.actor, self._wire.id)

    def _log_access(self, response: Response) -> None:
        request = self._request
        self._site.log.info(
            "request",
            client="" if request is None else request.client,
            method="" if request is None else request.method,
            path="" if request is None else "/" + "/".join(request.path),
            status=response.status,
            bytes=self._sent,
            seconds=round(self._site.now() - self._since, 6),
        )

    # -- the end -----------------------------------------------------------------------------------

    def _refuse(self, error: RequestError) -> None:
        """Refuse what cannot be read, and close."""
        self.closes = True
        if self._stream is not None:
            self._wire.cut(Cause.PROTOCOL_ERROR, error.detail)
            return
        self._end_exchange()
        self._pieces = []
        self._parser = RequestParser()
        self._continues = False
        self._respond(HTTPError(error.status, error.detail).response)

    def _close(self) -> None:
        self.phase = _CLOSED
        self.paused = False
        self._limits.stop()
        self._wire.hang_up()

    def drain(self) -> None:
        """End in order: at once if there is no exchange under way, else after it."""
        if self.phase is _CLOSED or self.phase is _UPGRADING:
            return
        if self.phase is _HEAD and not self._limits.in_head and not self._parser.unread:
            self._close()
            return
        self.closes = True
        if self.sends_events:
            self.end_stream()

    def gone(self, cause: Cause) -> None:
        """The connection has ended."""
        exchange, stream = self._exchange, self._stream
        self.phase = _CLOSED
        self._limits.stop()
        callee = None if exchange is None else exchange.callee
        if exchange is not None and stream is not None and callee is not None:
            self._site.tell(self._wire.id, callee.id, HTTPGone(self._wire.id, exchange.ref, cause))
        self._end_exchange()
        if self._room is not None:
            self._room.set()
            self._room = None

    # -- bodies that are pulled --------------------------------------------------------------------

    def read_body(self, request: ReadBody, caller: Caller) -> bytes | None:
        """The next piece of the body; None if the caller has to wait for it.

        Raises:
            NotAllowedError: there is no such exchange, or it has a reader already.
        """
        exchange = self._exchange
        if exchange is None or exchange.ref != request.ref or self.phase is not _UNDER_WAY:
            raise NotAllowedError("the exchange of this ReadBody has ended")
        if self._body_reader is not None:
            raise NotAllowedError("another ReadBody waits for the same body")
        if self._parser.body_is_done:
            return b""
        self._body_reader = caller, request.most
        self._want_body()
        self.advance()
        return None

    def _give_to_reader(self) -> bool:
        assert self._body_reader is not None
        assert self._place is not None
        caller, most = self._body_reader
        piece = self._parser.take_body(most)
        if piece or self._parser.body_is_done:
            self._size += len(piece)
            if self._size > self._place.max_body:
                raise RequestError(413, f"the body is longer than {self._place.max_body} bytes")
            self._body_reader = None
            self._site.calls.reply(caller, piece, None)
            return False
        return self._parser.has_more

    # -- time --------------------------------------------------------------------------------------

    def _check_time(self) -> None:
        """Act if a time limit has passed; otherwise check again."""
        if self.phase is _CLOSED:
            return
        options, wire, now = self._site.options, self._wire, self._site.now()
        if wire.pending and now >= wire.last_out + options.idle_timeout:
            wire.cut(Cause.TIMEOUT, f"the peer took nothing for {options.idle_timeout:g} s")
            return
        try:
            moment = self._next_limit(now)
        except RequestError as error:
            self._refuse(error)
            return
        if moment <= now:
            self._close()
        else:
            self._limits.check_by(moment)

    def _next_limit(self, now: float) -> float:
        """When the next time limit passes; a time in the past if an idle connection has to end.

        Raises:
            RequestError: a time limit for the peer has passed.
        """
        if self.phase is _HEAD:
            return self._limits.of_head(now)
        if self.phase is _BODY or self.phase is _SKIPS or self._body_reader is not None:
            return self._limits.of_body(now)
        if self.sends_events:
            last = self._wire.last_out
            if now >= last + _EVENT_PAUSE and not self._wire.pending:
                self.write(b":\n\n")
                last = now
            return max(last + _EVENT_PAUSE, now + 1.0)
        return now + self._site.options.idle_timeout

    # -- another protocol --------------------------------------------------------------------------

    def refuse_upgrade(self, response: Response) -> None:
        """Answer a request for a WebSocket with a response."""
        if self.phase is _UPGRADING:
            self.phase = _UNDER_WAY
            self._respond(response)

    def leave(self) -> bytes:
        """End HTTP on this connection, for another protocol. Returns the bytes after it."""
        rest = self._parser.take_unread()
        self._site.count(101)
        self.phase = _CLOSED
        self._limits.stop()
        self._head = self._request = self._place = None
        return rest
