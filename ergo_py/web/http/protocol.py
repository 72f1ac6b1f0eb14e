"""`HTTPProtocol`: the HTTP of a connection. It turns the bytes of the peer into calls of actors,
and their answers into responses, one exchange at a time.
"""

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, Final

from ..._core.tables.pending_calls import Caller
from ..._core.vocabulary.errors import NotAllowedError
from ..._core.vocabulary.ids import Ref
from ...meta.sockets.messages import Cause, Endpoint
from ...meta.sockets.streams.sessions import end_session
from ...meta.sockets.streams.writer import Writer
from ..messages.requests import HTTPGone, HTTPRequest, ReadBody
from ..messages.responses import HTTPError, Response, bare_response, response_head
from ..parsing.http1 import Head, RequestError, RequestParser
from ..routes import Body, Place
from ..site import Site
from .exchange import Exchange, ask, unavailable
from .limits import EVENT_PAUSE, TimeLimits
from .phase import NEXT, Phase, Step
from .request_body import MOST_SKIPPED, RequestBody
from .response_stream import BodyWriter, ResponseStream
from .wire import Wire

__all__ = ["HTTPProtocol"]

_IN_A_ROW: Final = 8
"""Requests to begin in one step, so that other work gets its turn. Mostly a step begins one: only
requests that are answered at once, such as those for files, follow each other. With 64, some
hundred peers with such requests held the loop for 0.4 s.
"""
_WAITING: Final = 64 * 1024
"""Bytes of requests, or of a body, that may wait here. Then nothing is read."""
_LARGE: Final = 16 * 1024
"""Bytes of a body that are not worth a copy behind the head."""
_TURNS: Final = 3
"""Turns of the reader before it handles the end of the peer, after a call. A receiver that was
woken takes its step in the next pass of the loop, in any order with the reader: it may be the last
of that pass, and the reader may have had a turn in the pass of the call, after it.
"""

_HEAD, _BODY, _UNDER_WAY = Phase.HEAD, Phase.BODY, Phase.UNDER_WAY
_SKIPS, _UPGRADING, _CLOSED = Phase.SKIPS, Phase.UPGRADING, Phase.CLOSED


class _Advance(Enum):
    """Whether a step of a connection is under way, or due in another turn of the loop."""

    IDLE = "idle"
    NOW = "now"
    LATER = "later"


_IDLE, _NOW, _LATER = _Advance.IDLE, _Advance.NOW, _Advance.LATER


class HTTPProtocol:
    """The HTTP of a connection: a parser, as the connection's reader sees it. Everything here
    happens on the loop.
    """

    __slots__ = (
        "_advance",
        "_exchange",
        "_has_ended",
        "_made_body",
        "_parser",
        "_place",
        "_request",
        "_since",
        "_turns_left",
        "_wire",
        "_writer",
        "closes",
        "limits",
        "paused",
        "phase",
        "requests",
        "site",
        "stream",
    )

    # The parser of the connection's input: no message is cut out of the bytes.
    unfinished = count = produced = 0
    error: str | None = None

    def __init__(self, wire: Wire, writer: Writer, site: Site) -> None:
        self._wire = wire
        self._writer = writer
        self.site: Site = site
        self._parser = RequestParser()
        self.phase: Phase = _HEAD
        """How far the exchange is."""
        self._request: HTTPRequest | None = None
        """The request that is under way; None before its head is complete."""
        self._place: Place | None = None
        """The route of the request, if there is one."""
        self._exchange: Exchange | None = None
        """The call of the route's actor, or its counterpart for other routes."""
        self.stream: ResponseStream | None = None
        """The streamed response under way, if there is any."""
        self._advance = _IDLE
        """Whether a step is under way or due."""
        self._has_ended = False
        """The peer has closed its half."""
        self._turns_left = 0
        """Turns of the reader in which the last receiver may answer, after the end of the peer."""
        self.limits: TimeLimits = TimeLimits(wire, site, self._check_time)
        """The time that the peer has."""
        self._made_body: RequestBody | None = None
        """The bodies of the requests; None before the first request with a body."""
        self._since = 0.0
        """When the timed exchange began; 0.0 without such an exchange."""
        self.closes: bool = False
        """The connection ends after the response."""
        self.requests: int = 0
        """Requests so far."""
        self.paused: bool = False
        """Nothing may be read, nor the end of the peer handled: enough waits here, or the
        protocol may change.
        """

    # -- the reader --------------------------------------------------------------------------------

    def feed(self, data: bytes) -> Sequence[object]:
        """Take bytes of the peer, and begin what they ask for."""
        if self.phase is not _CLOSED:
            if data:
                self._parser.feed(data)
            else:
                self._turns_left -= 1
            self.advance()
        return ()

    def end(self) -> None:
        """The peer has closed its half. The whole requests before that are begun first, as far as
        they wait only for another turn of the loop, or for room for their responses. The receiver
        of each, also of the one that is under way, has a turn in which it may answer.
        """
        self._has_ended, self._turns_left = True, _TURNS
        if self.phase is not _CLOSED:
            self._pause_if_full()

    @property
    def has_more(self) -> bool:
        """Whether the reader has to come again before it handles the end of the peer."""
        return self.paused or (
            self._has_ended and self._turns_left > 0 and self.phase is _UNDER_WAY
        )

    def rest(self) -> None:
        """Keep the connection in this program: an exchange is more than its bytes."""

    def advance(self) -> None:
        """Go as far as the bytes of the peer allow."""
        if self._advance is _NOW:
            # A step has led here: its loop goes on.
            return
        if self._advance is _LATER:
            self._pause_if_full()
            return
        self._advance = _NOW
        has_more = False
        try:
            for _ in range(_IN_A_ROW):
                if not self._step():
                    break
                if self._parser.has_more:
                    has_more = True  # the step was long
                    break
            else:
                has_more = True
        except RequestError as error:
            self._refuse(error)
        finally:
            self._advance = _IDLE
        if has_more:
            self._step_later()
        self._pause_if_full()

    def _pause_if_full(self) -> None:
        unread = self._parser.unread
        is_full = self.phase is _UPGRADING or (
            (self._advance is _LATER or self.phase is _UNDER_WAY) and unread >= _WAITING
        )
        if self._has_ended and unread and not is_full:
            is_full = self._advance is _LATER or (
                self.phase is _HEAD and self._writer.pending > self.site.options.write_limit
            )
        if is_full is not self.paused:
            self.paused = is_full
            if not is_full:
                self._wire.read_on()

    def _step_later(self) -> None:
        # A single turn is due at a time: bytes that come meanwhile must not add further ones.
        self.site.soon(self._go_on)
        self._advance = _LATER

    def _go_on(self) -> None:
        self._advance = _IDLE
        self.advance()

    def _step(self) -> bool:
        phase = self.phase
        if phase is _HEAD:
            # A peer that does not take its responses gets no further ones.
            if self._writer.pending > self.site.options.write_limit:
                return False
            head = self._parser.next_head()
            if head is None:
                if self._parser.unread:
                    self.limits.begin_head()
                return False
            self.limits.end_head()
            self._begin_exchange(head)
            return True
        if phase is _BODY:
            return self._collect()
        if phase is _SKIPS:
            return self._skip()
        body = self._made_body
        if body is not None and body.has_reader:
            assert self._place is not None
            return body.give(self._parser, self._place.max_body)
        return False

    # -- requests ----------------------------------------------------------------------------------

    def _begin_exchange(self, head: Head) -> None:
        site, wire = self.site, self._wire
        self.requests += 1
        if head.length != 0:
            self._body.begin(head.expects_continue)
        self.closes = not head.keeps_alive
        if site.is_timed:
            self._since = site.begin_exchange()
        peer = wire.peer
        client, scheme, host = (
            site.client_of(peer, head)
            if site.has_proxies
            else (peer.host if isinstance(peer, Endpoint) else peer, site.scheme, head.host)
        )
        path, place = site.places.get(head.path) or site.find(head.path)
        request = self._request = HTTPRequest(
            head.method,
            path,
            head,
            connection=wire.alias,
            peer=peer,
            scheme=scheme,
            client=client,
            host=host,
        )
        if site.ending is not None and site.ending.refuses:
            self.respond(unavailable())
            return
        if site.hosts is not None and not site.hosts.serve(host, head.host):
            self.respond(bare_response(421))
            return
        self._place = place
        if place is None:
            self.respond(bare_response(404))
            return
        is_route = place.kind == "actor"
        if not is_route and place.takes_websocket(head):
            if site.ending is not None:
                self.respond(unavailable())
                return
            self.phase = NEXT[self.phase][Step.UPGRADE]
            self._begin_call(place, request)
            wire.upgrade(self, request, place)
            return
        refusal = None if place.methods is None else place.refusal(head.method)
        if refusal is not None:
            self.respond(refusal.response)
        elif head.length is not None and head.length > place.max_body:
            self.respond(bare_response(413))
        elif self._parser.body_is_done or place.body is Body.STREAM:
            self._ask()
        else:
            self._body.want()
            self.phase = NEXT[self.phase][Step.WANT_BODY]

    @property
    def _body(self) -> RequestBody:
        if self._made_body is None:
            self._made_body = RequestBody(self.limits, self._writer.put, self.site.calls.reply)
        return self._made_body

    def _collect(self) -> bool:
        """Collect a whole body. Returns whether there is more to do without waiting."""
        place, parser, request = self._place, self._parser, self._request
        assert place is not None
        assert request is not None
        whole = self._body.collect(parser, place.max_body)
        if whole is None:
            return parser.has_more
        request.take_body(whole)
        self._ask()
        return True

    def _skip(self) -> bool:
        """Drop the rest of a body that was not read."""
        parser = self._parser
        if not self._body.skip(parser):
            self._close()
            return False
        if parser.body_is_done:
            self.phase = NEXT[self.phase][Step.SKIPPED]
            if self.site.make_room is not None:
                self.site.make_room()
            return True
        return parser.has_more

    # -- calls -------------------------------------------------------------------------------------

    def _ask(self) -> None:
        place, request = self._place, self._request
        assert place is not None
        assert request is not None
        self.phase = NEXT[self.phase][Step.ASK]
        self._turns_left = _TURNS
        ask(self._begin_call(place, request), place)

    def _begin_call(self, place: Place, request: HTTPRequest) -> Exchange:
        exchange = self._exchange = Exchange(
            self._wire.alias, self.site.next_reference(), None, request, self
        )
        request.begin(exchange, len(place.parts))
        return exchange

    def begin_beside(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run an async function beside the reader."""
        self._wire.begin_beside(work)

    def limit(self, exchange: Exchange, timeout: float) -> None:
        """Let the exchange expire ``timeout`` seconds after its request is complete."""
        if self._parser.body_is_done:
            self.site.clock.arm_call(exchange, timeout)
        else:
            self._body.limit_answer(exchange, timeout)

    def answer(self, exchange: Exchange, response: Response) -> None:
        """Write a response, unless the exchange has ended."""
        if not exchange.is_over:
            # The time for the answer is over with its beginning.
            exchange.abandon()
            self.respond(response)

    def fail(self, exchange: Exchange, detail: str) -> None:
        """Tell the peer that there is no response, or no whole one, unless the exchange has
        ended.
        """
        if exchange.is_over:
            return
        if self.stream is None:
            self.answer(exchange, bare_response(500))
        else:
            self._wire.cut(Cause.FAILED, detail)

    # -- responses ---------------------------------------------------------------------------------

    def respond(self, response: Response) -> None:
        """Write a response, or the beginning of a streamed one."""
        request, parser, writer = self._request, self._parser, self._writer
        head = None if request is None else request.head
        is_http_10 = head is not None and head.is_http_10
        has_body = head is None or head.method != "HEAD"
        is_ending = self.site.ending is not None
        if not self.closes and (is_ending or not parser.body_is_done):
            # A peer that still waits for `100 Continue` may send its body or not.
            self.closes = is_ending or self._body.awaits_sign or parser.left > MOST_SKIPPED
        sent = 0
        if response.stream:
            if response.length is None and is_http_10:
                self.closes = True
            start = response_head(response, self.closes, is_http_10)
            writer.put(start, in_turn=True)
            if has_body:
                self._begin_stream(response, chunked=response.length is None and not is_http_10)
                return
        else:
            start = response_head(response, self.closes, is_http_10)
            body = response.body if has_body else b""
            sent = len(body)
            if sent <= _LARGE:
                writer.put(start + body, in_turn=True)
            else:
                writer.put(start, in_turn=True)
                writer.put(body, in_turn=True)
        self._finish(response.status, sent)

    def _begin_stream(self, response: Response, *, chunked: bool) -> None:
        exchange = self._exchange
        assert exchange is not None
        self.stream = ResponseStream(
            self._writer,
            self._wire.cut,
            exchange,
            BodyWriter(response.length, chunked),
            response.status,
            is_events=response.is_events,
        )
        if not response.is_events:
            return
        if self.site.ending is not None:
            self.end_stream()
        else:
            self.limits.check_by(self.site.now() + EVENT_PAUSE)

    def stream_of(self, ref: Ref) -> ResponseStream | None:
        """The streamed response with this reference, if it is under way."""
        exchange = self._exchange
        return self.stream if exchange is not None and exchange.ref == ref else None

    def end_stream(self) -> None:
        """End the streamed response.

        Raises:
            WrongLengthError: it is shorter than its length; the connection is cut.
        """
        stream = self.stream
        assert stream is not None
        stream.end()
        self._finish(stream.status, stream.sent)

    def written(self) -> None:
        """Some of the waiting bytes are out."""
        if self.stream is not None:
            self.stream.written()
        if self.site.make_room is not None:
            self.site.make_room()
        self.advance()

    def say_last(self) -> None:
        """The connection ends on this side: tell a peer that waits for its response."""
        if self.stream is None and self.phase in (_BODY, _UNDER_WAY, _UPGRADING):
            last = unavailable()
            self._writer.put(response_head(last, True, False) + last.body, in_turn=True)

    def _finish(self, status: int, sent: int) -> None:
        """The response is written, with so many bytes of a body: go on with the next request, or
        close.
        """
        self.site.statuses[status // 100] += 1
        if self.site.is_timed:
            self._end_timed(status, sent)
        self._end_exchange()
        self._request = self._place = None
        if self.closes:
            self._close()
        elif self._parser.body_is_done:
            self.phase = NEXT[self.phase][Step.ANSWERED]
            if self.site.make_room is not None:
                self.site.make_room()
        else:
            self.phase = NEXT[self.phase][Step.ANSWERED_EARLY]
            self._body.begin_skipping()
        if self._advance is not _NOW and (self._parser.unread or self.paused):
            self.advance()

    def _end_timed(self, status: int, sent: int) -> None:
        self.site.end_exchange(self._request, self._place, status, sent, self._since)
        self._since = 0.0

    def _end_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if self.stream is not None:
            self.stream.close()
            self.stream = None
        if self._made_body is not None:
            self._made_body.leave_reader()
        if exchange is not None:
            exchange.finish()
            if exchange.actor is not None:
                end_session(exchange.actor, self._wire.alias)

    # -- the end -----------------------------------------------------------------------------------

    def _refuse(self, error: RequestError) -> None:
        """Refuse what cannot be read, and close."""
        self.closes = True
        if self.stream is not None:
            self._wire.cut(Cause.PROTOCOL_ERROR, error.detail)
            return
        self._end_exchange()
        if self._made_body is not None:
            self._made_body.drop()
        self._parser = RequestParser()
        self.respond(HTTPError(error.status, error.detail).response)

    def _close(self) -> None:
        self.give_way()
        self._wire.hang_up()

    def give_way(self) -> None:
        """Take no further request: the connection closes."""
        self.phase = NEXT[self.phase][Step.CLOSE]
        self.limits.stop()
        if self.paused:
            self.paused = False
            self._wire.read_on()

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun, and everything is written."""
        return (
            self.phase is _HEAD
            and not self.limits.in_head
            and not self._parser.unread
            and not self._writer.pending
        )

    def drain(self) -> None:
        """End in order: at once if there is no exchange under way, else after it. The first request
        has a moment to come.
        """
        if self.phase is _CLOSED or self.phase is _UPGRADING:
            return
        if self.phase is _HEAD and not self.limits.in_head and not self._parser.unread:
            if self.requests:
                self._close()
            else:
                self.limits.hasten()
            return
        self.closes = True
        if self.stream is not None and self.stream.is_events:
            self.end_stream()

    def finish_exchange(self) -> Exchange | None:
        """The connection is stopping, and reads no further: end a stream of events in order.
        Returns the exchange whose response can still become complete, if there is any.
        """
        exchange, place, stream = self._exchange, self._place, self.stream
        if stream is not None and stream.is_events:
            self.closes = True
            self.end_stream()
            return None
        if exchange is None or place is None or self.phase is not _UNDER_WAY:
            return None
        if place.kind != "actor":
            # The rest of a body that an application waits for does not come any more.
            return None if self._body.has_reader else exchange
        callee: Any = exchange.callee
        if stream is not None or callee is None or not callee.accepting:
            return None  # the messages of an actor's stream are not served any more
        return exchange

    def gone(self, cause: Cause) -> None:
        """The connection has ended."""
        exchange = self._exchange
        self.phase = NEXT[self.phase][Step.CLOSE]
        self.limits.stop()
        callee = None if exchange is None else exchange.callee
        if exchange is not None and self.stream is not None and callee is not None:
            alias = self._wire.alias
            self.site.tell(alias, callee.id, HTTPGone(alias, exchange.ref, cause))
        if self._since:
            self.site.give_up_exchange()
            self._since = 0.0
        self._end_exchange()

    # -- bodies that are pulled --------------------------------------------------------------------

    def read_body(self, request: ReadBody, caller: Caller) -> bytes | None:
        """The next piece of the body; None if the caller has to wait for it.

        Raises:
            NotAllowedError: there is no such exchange, or it has a reader already.
        """
        exchange = self._exchange
        if exchange is None or exchange.ref != request.ref or self.phase is not _UNDER_WAY:
            raise NotAllowedError("the exchange of this HTTPRequest.ReadBody has ended")
        if self._parser.body_is_done:
            return b""
        self._body.read(caller, request.most)
        self.advance()
        return None

    @property
    def body_is_done(self) -> bool:
        """Whether the whole body of the request was read."""
        return self._parser.body_is_done

    # -- time --------------------------------------------------------------------------------------

    def _check_time(self) -> None:
        """Act if a time limit has passed; otherwise check again."""
        if self.phase is _CLOSED:
            return
        options, now = self.site.options, self.site.now()
        if self._writer.pending and now >= self._writer.last + options.idle_timeout:
            self._wire.cut(Cause.TIMEOUT, f"the peer took nothing for {options.idle_timeout:g} s")
            return
        try:
            moment = self.limits.next(
                self.phase, now, stream=self.stream, reads_body=self._body.has_reader
            )
        except RequestError as error:
            self._refuse(error)
            return
        if moment <= now:
            self._close()
        else:
            self.limits.check_by(moment)

    # -- another protocol --------------------------------------------------------------------------

    def refuse_upgrade(self, request: HTTPRequest, response: Response) -> None:
        """Answer a request for a WebSocket with a response, unless its exchange has ended."""
        if not request.gone:
            self.phase = NEXT[self.phase][Step.REFUSE]
            self.answer(request.exchange, response)

    def leave(self) -> bytes:
        """End HTTP on this connection, for another protocol. Returns the bytes after it."""
        rest = self._parser.take_unread()
        self.site.statuses[1] += 1
        if self._since:
            self._end_timed(101, 0)
        self.phase = NEXT[self.phase][Step.CLOSE]
        self.limits.stop()
        self._end_exchange()
        self._request = self._place = None
        return rest
