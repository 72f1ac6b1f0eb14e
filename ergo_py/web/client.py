"""`WebSocketClient`: a WebSocket connection to a server."""

import os
import ssl
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import trio
from trio.lowlevel import wait_readable

from .._core.tables.pending_calls import Caller
from .._core.vocabulary.errors import BadInputError, Reject, UnhandledCallError
from .._core.vocabulary.ids import Alias, Target
from .._core.vocabulary.messages import NO_REPLY
from .._core.vocabulary.options import check_flag, check_number
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import Reason
from ..meta.receivers import check_receiver
from ..meta.sockets.messages import Cause, Endpoint, WhenSlow
from ..meta.sockets.options import StreamOptions
from ..meta.sockets.streams.connection import Goal, StreamConnection
from ..meta.sockets.streams.parser import StreamParser
from ..meta.sockets.tls import TLSFiles
from .messages.responses import Headers, Response
from .messages.websockets import WSConnected, WSDisconnected
from .parsing.deflate import Deflate, offered_deflate
from .parsing.handshake import client_request, read_answer
from .protocol_connection import ProtocolConnection
from .websocket import WebSocket, call_websocket, serve_websocket, write_last

__all__ = ["WebSocketClient"]

_MAX_HEAD: Final = 16 * 1024
_AT_ONCE: Final = 64 * 1024


class WebSocketClient(ProtocolConnection):
    """A WebSocket connection to a server, as a meta-process.

    Its owner gets ``WS.Connected``, ``WS.Text``, ``WS.Binary`` and ``WS.Disconnected``, and sends
    ``WS.Send`` and ``WS.Close``::

        await self.spawn_meta(WebSocketClient("wss://example.org/chat"))

    ``spawn_meta`` raises ``InitError`` if there is no connection, with the error as ``__cause__``.
    To connect again is the work of supervision: a supervised owner starts again, and with it its
    client.

    Args:
        url: ``ws://…`` or ``wss://…``.
        headers: further fields of the request, such as ``authorization``.
        subprotocols: the names to offer, the best first.
        receiver: the address that gets the messages; None for the owner.
        tls: for ``wss``: None trusts the authorities of the system; or
            ``TLSFiles(authorities=…)``, or an ``ssl.SSLContext``.
        connect_timeout: seconds within which the connection must be made.
        max_message: the longest message, in bytes.
        compress: offer compression.
        ping_interval: seconds between two pings. A server that does not answer within the same time
            is gone.
        write_limit: bytes that may wait for the server before it counts as slow.
        when_slow: ``TCP.WhenSlow.WAIT`` or ``TCP.WhenSlow.DROP``.

    Raises:
        BadInputError: a value is wrong.
    """

    kind = "websocket"
    _rest = b""
    _websocket: WebSocket | None = None

    def __init__(
        self,
        url: str,
        *,
        headers: Headers = (),
        subprotocols: Sequence[str] = (),
        receiver: Target | None = None,
        tls: ssl.SSLContext | TLSFiles | None = None,
        connect_timeout: float = 10.0,
        max_message: int = 1024 * 1024,
        compress: bool = False,
        ping_interval: float = 20.0,
        write_limit: int = 1024 * 1024,
        when_slow: WhenSlow = WhenSlow.WAIT,
    ) -> None:
        scheme, host, port, self._path, self._authority = _read_url(url)
        if isinstance(subprotocols, str) or not all(
            isinstance(name, str) and name for name in subprotocols
        ):
            raise BadInputError("WebSocketClient(subprotocols)", subprotocols, "a list of str")
        check_number("WebSocketClient(connect_timeout)", connect_timeout, least=0.001)
        check_number("WebSocketClient(max_message)", max_message, least=1, whole=True)
        check_number("WebSocketClient(ping_interval)", ping_interval, least=0.001)
        check_flag("WebSocketClient(compress)", compress)
        self._fields = list(Response(200, headers=headers).headers)
        self._subprotocols = tuple(subprotocols)
        self._max_message = max_message
        self._compress = compress
        self._ping_interval = ping_interval
        self._agreed: tuple[str | None, Deflate | None] = (None, None)
        if tls is not None and scheme == "ws":
            raise BadInputError("WebSocketClient(tls)", tls, "tls with a URL of wss://")
        options = StreamOptions(
            tls=(True if tls is None else tls) if scheme == "wss" else None,
            write_limit=write_limit,
            when_slow=when_slow,
            handshake_timeout=connect_timeout,
        )
        StreamConnection.__init__(
            self,
            check_receiver(receiver),
            options,
            "task",
            goal=Goal(Endpoint(host, port), connect_timeout),
        )
        self._new_parser = self._begin_websocket
        self._serve_in_passing = self._serve_now

    # -- birth -------------------------------------------------------------------------------------

    def _begin_websocket(self, alias: Alias) -> StreamParser:
        """Until the handshake is done, nothing is read."""
        self.alias = alias
        return self._new_websocket(b"", None)

    def _new_websocket(self, rest: bytes, deflate: Deflate | None) -> WebSocket:
        self._websocket = WebSocket(
            self,
            self._writer,
            is_client=True,
            max_message=self._max_message,
            interval=self._ping_interval,
            deflate=deflate,
            rest=rest,
            new_key=lambda: os.urandom(4),
        )
        return self._websocket

    async def init(self) -> None:
        """Connect, and do the handshake."""
        await super().init()
        assert self._goal is not None
        with trio.move_on_after(self._goal.timeout) as scope:
            await self._shake_hands()
        if scope.cancelled_caught:
            raise TimeoutError(f"no WebSocket within {self._goal.timeout:g} s")

    async def _shake_hands(self) -> None:
        key = b64encode(os.urandom(16)).decode()
        fields = list(self._fields)
        tracing = self._meta.kernel.tracing
        if tracing is not None:
            fields += tracing.fields_out(self.log)
        if self._subprotocols:
            fields.append(("Sec-WebSocket-Protocol", ", ".join(self._subprotocols)))
        if self._compress:
            fields.append(("Sec-WebSocket-Extensions", offered_deflate(None)[0]))
        self._writer.put(client_request(self._authority, self._path, key, fields))
        data = b""
        while b"\r\n\r\n" not in data:
            if len(data) > _MAX_HEAD:
                raise ConnectionError(f"the answer of the server is longer than {_MAX_HEAD} bytes")
            data += await self._read_some()
        head, _, rest = data.partition(b"\r\n\r\n")
        answer = read_answer(head, key)
        subprotocol = answer.get("sec-websocket-protocol")
        if subprotocol is not None and subprotocol not in self._subprotocols:
            raise ConnectionError(f"the server has chosen {subprotocol!r}, which was not offered")
        extensions = answer.get("sec-websocket-extensions")
        if extensions and not self._compress:
            raise ConnectionError(f"the server uses {extensions!r}, which was not offered")
        deflate = offered_deflate(extensions)[1]
        self._agreed = subprotocol, deflate
        self._input.use(self._new_websocket(rest, deflate), self._now)

    async def _read_some(self) -> bytes:
        """Clear bytes of the server, before the reader runs."""
        session = self._tls.session
        while True:
            data = b"" if session is None else session.take_rest()
            while not data:
                try:
                    data = self._socket.recv(_AT_ONCE)
                except BlockingIOError:
                    await wait_readable(self._socket)
                    continue
                if not data:
                    raise ConnectionError("the server closed the connection during the handshake")
            if session is None:
                return data
            clear, has_ended, error = session.decrypt(data)
            if error is not None:
                raise error
            if clear:
                return clear
            if has_ended:
                raise ConnectionError("the server closed the connection during the handshake")

    def _greet(self) -> Any:
        assert self._websocket is not None
        self._websocket.begin()
        return WSConnected(self.id, None, self._agreed[0])

    # -- messages ----------------------------------------------------------------------------------

    def _serve_message(self, message: object) -> bool:
        assert self._websocket is not None
        return serve_websocket(self._websocket, message)

    async def handle_call(self, request: object, caller: Caller) -> object:
        """Serve calls: the caller waits until the operating system has taken the message."""
        if self._websocket is None:
            raise Reject(UnhandledCallError(self.id, request, type(self).__qualname__))
        answer = call_websocket(self._websocket, request, caller)
        if answer is NO_REPLY and self._writer.is_slow:
            await self._peer_is_slow()
        return answer

    # -- the end -----------------------------------------------------------------------------------

    def _write_last(self, reason: Reason) -> bool:
        assert self._websocket is not None
        write_last(self._meta, self._websocket, reason)
        return super()._write_last(reason)

    def _close_for_good(self) -> Any:
        ended = super()._close_for_good()
        if self._websocket is None or ended is None:
            return None
        message: WSDisconnected = self._websocket.disconnected(
            self.cause or Cause.ASKED, ended.detail
        )
        return message


def _read_url(url: object) -> tuple[str, str, int, str, str]:
    """The scheme, host, port, target and ``Host`` field of a URL."""
    expected = "a URL such as 'wss://example.org/chat'"
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        raise BadInputError("WebSocketClient(url)", url, expected)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadInputError("WebSocketClient(url)", url, expected) from None
    host = parts.hostname
    if parts.scheme not in ("ws", "wss") or not host or "@" in parts.netloc or parts.fragment:
        raise BadInputError("WebSocketClient(url)", url, expected)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    default = 443 if parts.scheme == "wss" else 80
    return parts.scheme, host, default if port is None else port, path, parts.netloc


show_public_names(__name__)
