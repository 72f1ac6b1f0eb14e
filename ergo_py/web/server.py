"""`WebServer`: a meta-process that serves HTTP and WebSocket."""

import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import inf
from typing import Final

from .._core.processes.process import Process
from .._core.tables.pending_calls import Deadline
from .._core.vocabulary.errors import BadInputError, NotAllowedError
from .._core.vocabulary.options import check_flag
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import Reason
from ..meta.receivers import Receivers
from ..meta.sockets.listener import Listener
from ..meta.sockets.messages import Endpoint, WhenFull, WhenSlow
from ..meta.sockets.options import StreamOptions
from ..meta.sockets.socket_setup import (
    INET,
    GivenSocket,
    endpoint,
    of_address,
    open_listener,
)
from ..meta.sockets.tcp import check_endpoint
from ..meta.sockets.tls import TLSFiles
from .connection import WebConnection
from .http.limits import FIRST
from .options import WebOptions
from .parsing.forwarded import X_FORWARDED
from .proxies import Proxies
from .routes import Place, Route, Routes
from .site import Site
from .waiting_peers import WaitingPeers

__all__ = ["WebServer"]

_GRACE: Final = 1.0
"""Seconds for which a peer without a request keeps its place while others wait: the first bytes of
a peer far away come some time after its connection.
"""
_LOOKED_AT: Final = 256
"""Connections, the oldest first, among which a full server looks for the connection to end."""
_IN_TURN: Final = 12
"""How many peers are accepted in a turn of the loop: the first request of each may have come with
it, and is served in the same turn.
"""


class WebServer(Listener):
    """An HTTP/1.1 and WebSocket server: each request is a call of an actor.

    Without routes, the owner of the server answers all requests::

        from ergo_py import Actor, Caller, Reject
        from ergo_py.web import HTTPError, HTTPRequest, Response, WebServer


        class Hello(Actor):
            async def init(self) -> None:
                await self.spawn_meta(WebServer("127.0.0.1", 8080))

            def handle_call(self, request: object, caller: Caller) -> object:
                match request:
                    case HTTPRequest("GET", ("hello", name)):
                        return Response(200, f"Hello {name}")
                raise Reject(HTTPError(404))

    A ``Reject(HTTPError(status))`` is that status; a crash is status 500, and supervision; no
    answer within 30 seconds is 504. ``NO_REPLY`` defers the answer as in any call.

    Args:
        host: the address to listen at; loopback by default.
        port: the port; 0, as None, for a free port, which ``local`` of the spawned server tells.
        sock: the socket to listen with, as for :class:`TCPServer`: a socket that listens, or the
            name of a socket that systemd has opened for this program.
        routes: which process answers which path: ``Route``, ``Mount`` and ``Files``. By default,
            the owner answers everything.
        tls: ``TLSFiles(certificate, key)`` or an ``ssl.SSLContext``; None for no TLS.
        max_connections: how many connections may be open at once; None for no limit.
        when_full: ``TCP.WhenFull.PAUSE``: further connections wait in the operating system;
            ``TCP.WhenFull.REFUSE``: the server closes them at once. A connection that has been
            without a request for a second gives way to another, the oldest first.
        head_timeout: seconds from the first byte of a request to the end of its head, and from the
            connection to the first byte of its first request.
        body_timeout: seconds that a body may pause.
        body_rate: bytes a second that a body must reach, over 30 seconds.
        idle_timeout: seconds after which an idle connection ends, and after which a peer that takes
            nothing is given up.
        hosts: the hosts that are served, without ports; requests for others get status 421. With
            ``forwarded_host``, it must name the host of the proxy and that of ``Host``. None for
            all.
        trusted: networks of proxies whose words about the client and the scheme count.
        forwarded: the fields that these proxies write: ``"x-forwarded-for"`` for
            ``X-Forwarded-For`` and ``X-Forwarded-Proto``, ``"forwarded"`` for ``Forwarded``. The
            server ignores the other fields, which a proxy passes on as the client sends them.
        forwarded_host: let a proxy name the host, too: in ``X-Forwarded-Host``, or in
            ``Forwarded``. Otherwise ``Host`` counts.
        access_log: write a line of level ``info`` for each response, without query strings and
            headers.
        metrics: count responses and their durations by method, route and status, for the metrics of
            the node.
        write_limit: bytes that may wait for a peer before it counts as slow.
        when_slow: ``TCP.WhenSlow.WAIT``: further pieces of a streamed response for a slow peer
            wait; ``TCP.WhenSlow.DROP``: its connection is dropped.
        handshake_timeout: seconds within which the TLS handshake must be done.
        linger: how long, in seconds, closing waits for a peer that does not close its side.
        queue: how many connections may wait in the operating system to be accepted.
        reuse_port: let several servers share the port.
        dual_stack: let an IPv6 address serve IPv4, too, where it stands for both.

    Raises:
        BadInputError: a value has a wrong type, or two routes have the same prefix.
    """

    kind = "web"

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int | None = None,
        *,
        sock: socket.socket | str | None = None,
        routes: Sequence[Place] | None = None,
        tls: ssl.SSLContext | TLSFiles | None = None,
        max_connections: int | None = None,
        when_full: WhenFull = WhenFull.PAUSE,
        head_timeout: float = 10.0,
        body_timeout: float = 10.0,
        body_rate: float = 256.0,
        idle_timeout: float = 60.0,
        hosts: Sequence[str] | None = None,
        trusted: Sequence[str] = (),
        forwarded: str = X_FORWARDED,
        forwarded_host: bool = False,
        access_log: bool = False,
        metrics: bool = False,
        write_limit: int = 1024 * 1024,
        when_slow: WhenSlow = WhenSlow.WAIT,
        handshake_timeout: float = 10.0,
        linger: float = 5.0,
        queue: int = 1024,
        reuse_port: bool = False,
        dual_stack: bool = True,
    ) -> None:
        is_placed, port = port is not None, 0 if port is None else port
        check_endpoint("WebServer", host, port, least=0)
        tls = _with_http(tls)
        for name, flag in (("reuse_port", reuse_port), ("dual_stack", dual_stack)):
            check_flag(name, flag)
        if isinstance(routes, str | Place):
            raise BadInputError("WebServer(routes)", routes, "a list of routes")
        options = WebOptions(
            *(head_timeout, body_timeout, body_rate, idle_timeout),
            *(write_limit, hosts, access_log, metrics),
        )
        streams = StreamOptions(
            tls=tls,
            write_limit=write_limit,
            when_slow=when_slow,
            handshake_timeout=handshake_timeout,
            linger=linger,
        )
        given = GivenSocket("WebServer", sock, socket.SOCK_STREAM, INET, is_placed=is_placed)
        super().__init__(None, streams, "task", max_connections, when_full, queue, given, _IN_TURN)
        self._host, self._port = host, port
        self._reuse_port = reuse_port
        self._dual_stack = dual_stack
        self._site = Site(
            Routes([Route("/")] if routes is None else routes),
            options,
            Proxies(trusted, forwarded, forwarded_host),
            tls is not None,
        )
        self._waiting: WaitingPeers[WebConnection] | None = None
        self._next_look: Deadline | None = None
        """Looks again for a connection that may give way."""

    async def init(self) -> None:
        """Open the socket: if the port is taken, ``spawn_meta`` raises the error."""
        self._site.open(self._meta)
        await super().init()
        if self.poller is not None and self._contexts is None:
            self._waiting = WaitingPeers(
                self._site,
                self.poller,
                self._options.linger,
                make=partial(WebConnection, self, self._options, self._site),
                begin=self._births.begin,
                ended=self._waiting_ended,
            )
            self._acceptor.give_to(self._waiting.admit)
        await self._site.applications.start(self.local)

    async def _listen(self) -> socket.socket:
        return await open_listener(
            self._host,
            self._port,
            socket.SOCK_STREAM,
            reuse_port=self._reuse_port,
            dual_stack=self._dual_stack,
            buffer=None,
        )

    @property
    def local(self) -> Endpoint:
        """The endpoint at which the server listens; with port 0, read the port here. Known once the
        server is spawned.
        """
        return self._local or Endpoint(self._host, self._port)

    def _address(self, sock: socket.socket) -> Endpoint:
        return endpoint(sock.getsockname())

    def _properties(self, sock: socket.socket) -> dict[str, tuple[object, object]]:
        return of_address(sock, self._host, self._port, self._reuse_port, self._dual_stack)

    def _make(self, sock: socket.socket, address: object) -> WebConnection:
        return WebConnection(self, self._options, self._site, sock, address)

    def _has_place(self, more: int = 0) -> bool:
        """Whether there is a place for a further peer, or a connection that gives way."""
        self._site.tell_of_room(None)
        if super()._has_place(more):
            return True
        since, _ = self._find_idle()
        left = since + _GRACE - self._now()
        if left <= 0:
            return True
        self._site.tell_of_room(self._wait.ring)
        if left < inf and (self._next_look is None or self._next_look.settled):
            self._next_look = Deadline(self._wait.ring)
            self._meta.kernel.clock.arm_call(self._next_look, left)
        return False

    def _find_idle(self) -> tuple[float, Callable[[], None]]:
        """Since when the connection or the peer has no request that has to give way first, and the
        function that ends it. Infinity if there is none.
        """
        waiting, first, give_way = self._waiting, inf, lambda: None
        if waiting is not None and (since := waiting.oldest) is not None:
            first, give_way = since, waiting.end_oldest
        for connection in islice(self._open, _LOOKED_AT):
            assert isinstance(connection, WebConnection)
            if (since := connection.idle_since) is not None and since < first:
                first, give_way = since, connection.give_way
        return first, give_way

    def _make_place(self, more: int) -> bool:
        """Let a connection give way, if the server is full. It is counted until its socket is
        closed, in one of the next turns, and is not asked a second time. So the server has at most
        one connection more than ``max_connections`` for each that ends: to keep the accepted socket
        waiting for this would not make it fewer sockets.
        """
        if not self._has_place(more):
            return False
        if not super()._has_place(more):
            _, give_way = self._find_idle()
            give_way()
        return True

    def _waiting_ended(self, received: int, sent: int) -> None:
        """Count a peer that has ended without a connection, and make room for another."""
        self._births.count()
        self._ended.add(received, sent)
        self._wait.ring()
        if not self.connections:
            self._answer_drains(0)

    @property
    def connections(self) -> int:
        """How many connections are open, with those whose first request has not come."""
        return len(self._open) + (0 if self._waiting is None else len(self._waiting))

    # -- the move to the next program --------------------------------------------------------------

    @property
    def session_classes(self) -> Sequence[type | None]:
        """The classes of the actors of WebSockets; None stands for those that a function
        chooses.
        """
        return [
            place.receivers.session_class
            for place in self._site.routes
            if isinstance(place, Route) and place.kind == "websocket"
        ]

    def _route_of(self, protocol: Sequence[object]) -> Route:
        if not protocol:
            raise NotAllowedError("the connection is no WebSocket; a WebServer takes only these")
        # Not the route of a shorter prefix: its sessions may be of another kind.
        path, place = self._site.find(str(protocol[0]).removesuffix("/") or "/")
        if isinstance(place, Route) and place.kind == "websocket" and place.parts == path:
            return place
        raise NotAllowedError(f"there is no route with the prefix {protocol[0]!r} for WebSockets")

    def _receivers_of(self, protocol: Sequence[object]) -> Receivers:
        return self._route_of(protocol).receivers

    def _make_moved(
        self, sock: socket.socket, unread: bytes, protocol: Sequence[object]
    ) -> WebConnection:
        connection = WebConnection(self, self._options, self._site, sock, None, unread)
        bits = protocol[1]
        connection.go_on_as_websocket(
            self._route_of(protocol), bits if isinstance(bits, int) else 0
        )
        return connection

    # -- the end -----------------------------------------------------------------------------------

    def _cut_all(self) -> None:
        if self._waiting is not None:
            self._waiting.end_all()
        super()._cut_all()

    def _stop_accepting(self) -> Sequence[Process]:
        self._site.refuse()
        if self._waiting is not None:
            self._waiting.end_all()
        return super()._stop_accepting()

    async def begin_drain(self, seconds: float, *, is_replaced: bool = False) -> None:
        """Accept no further connections, and end those that wait for a further request. Those whose
        first request has not come have a moment for it. With ``is_replaced``, WebSockets may move
        to the next program; a later drain ends those that have not.
        """
        self._site.begin_drain(is_replaced=is_replaced)
        await super().begin_drain(seconds, is_replaced=is_replaced)
        if self._waiting is not None:
            self._waiting.end_within(min(FIRST, seconds))
        for connection in list(self._open):
            may_move = is_replaced and connection.session is not None
            if (
                isinstance(connection, WebConnection)
                and connection.connected is not None
                and not may_move
            ):
                connection.drain()

    def accept_again(self) -> None:
        """Accept connections and requests as before :meth:`begin_drain`."""
        super().accept_again()
        if not self._closing.is_draining and not self._closing.is_shut:
            self._site.end_drain()
            if self._waiting is not None:
                self._waiting.end_within(inf)

    async def terminate(self, reason: Reason) -> None:
        """Wait for the connections, and stop the mounted applications."""
        self._stop_accepting()
        await super().terminate(reason)
        await self._site.applications.stop()

    @property
    def is_draining(self) -> bool:
        """Whether the server ends in order, and takes no further requests."""
        return self._site.ending is not None

    # -- looking inside ----------------------------------------------------------------------------

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The counters and the state of the server, by name."""
        facts = super().handle_inspect()
        del facts["receiver"]
        statuses = self._site.statuses
        facts["routes"] = ", ".join(place.prefix for place in self._site.routes)
        facts["requests"] = str(sum(statuses))
        for digit in range(2, 6):
            facts[f"{digit}xx"] = str(statuses[digit])
        return {item: facts[item] for item in items if item in facts} if items else facts


def _with_http(tls: object) -> ssl.SSLContext | TLSFiles | None:
    """Check the certificates of a server, and let them agree on HTTP/1.1."""
    if not isinstance(tls, ssl.SSLContext | TLSFiles | None) or (
        isinstance(tls, TLSFiles) and tls.certificate is None
    ):
        raise BadInputError(
            "WebServer(tls)", tls, "an ssl.SSLContext or TLSFiles(certificate, key)"
        )
    if isinstance(tls, TLSFiles) and not tls.alpn:
        return replace(tls, alpn=("http/1.1",))
    return tls


show_public_names(__name__)
