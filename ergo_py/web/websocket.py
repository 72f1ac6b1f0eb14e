"""`WebSocket`: the WebSocket of a connection, of a server or of a client. It turns the bytes of the
peer into messages for the actor, and messages of the actor into frames.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, Protocol

from .._core.metas.meta import Meta
from .._core.tables.pending_calls import Caller, Deadline
from .._core.vocabulary.envelopes import MESSAGE, Lane
from .._core.vocabulary.errors import Reject, UnhandledCallError
from .._core.vocabulary.ids import Alias
from .._core.vocabulary.messages import NO_REPLY
from .._core.vocabulary.reasons import Normal, Reason, Shutdown
from ..meta.sockets.messages import Cause
from ..meta.sockets.streams.writer import Writer
from .messages.websockets import WSBinary, WSClose, WSDisconnected, WSSend, WSText
from .parsing.deflate import SMALLEST, Deflate
from .parsing.frames import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    FrameError,
    WebSocketParser,
    encode_frame,
)

__all__ = ["Line", "WebSocket", "call_websocket", "serve_websocket", "write_last"]

_NO_CODE: Final = 1005
_LINGER: Final = 5.0
"""Seconds that a close waits for the close of the peer."""


class Line(Protocol):
    """The part of a connection that a WebSocket uses, beside its writer."""

    alias: Alias

    @property
    def is_held_up(self) -> bool:
        """Whether this side does not read, since its receiver is behind."""
        ...

    def now(self) -> float:
        """The time on the node's clock."""
        ...

    def arm(self, deadline: Deadline, seconds: float) -> None:
        """Let a deadline expire."""
        ...

    def hang_up(self) -> None:
        """Close, after everything is written."""
        ...

    def cut(self, cause: Cause, detail: str) -> None:
        """End at once."""
        ...

    def when_answered(self, then: Callable[[], None]) -> None:
        """Call ``then`` when the receiver has served all messages, and its answers are written."""
        ...

    def blame(self, detail: str) -> None:
        """End because of an error of the peer, after everything is written."""
        ...


class State(Enum):
    """How far the closing handshake has come."""

    OPEN = "open"
    CLOSING = "closing"
    """Our close is sent; that of the peer is awaited."""
    ANSWERING = "answering"
    """The close of the peer has come; the receiver may still answer earlier messages."""
    CLOSED = "closed"


class WebSocket:
    """The WebSocket of a connection: a parser, as the connection's reader sees it. Everything here
    happens on the loop.
    """

    __slots__ = (
        "_close",
        "_deflate",
        "_interval",
        "_line",
        "_new_key",
        "_parser",
        "_pinged",
        "_rest",
        "_watch",
        "_writer",
        "count",
        "error",
        "has_more",
        "messages_out",
        "paused",
        "produced",
        "state",
        "unfinished",
    )

    def __init__(
        self,
        line: Line,
        writer: Writer,
        *,
        is_client: bool,
        max_message: int,
        interval: float,
        deflate: Deflate | None,
        rest: bytes,
        new_key: Callable[[], bytes] | None = None,
    ) -> None:
        """``rest`` are bytes that came behind the handshake. ``new_key`` makes the masks of a
        client.
        """
        self._line = line
        self._writer = writer
        self._parser = WebSocketParser(
            is_masked=not is_client, max_message=max_message, deflate=deflate
        )
        self._deflate = deflate
        self._interval = interval
        self._rest = rest
        self._new_key = new_key
        self._close: tuple[int, str] | None = None
        """The code and the reason of the peer's close."""
        self._pinged: float | None = None
        """When a ping was sent that is not answered yet."""
        self._watch: Deadline | None = None
        self.state: State = State.OPEN
        self.messages_out: int = 0
        # The parser of the connection's input
        self.has_more: bool = bool(rest)
        self.paused: bool = False
        self.unfinished: int = 0
        self.count: int = 0
        self.produced: int = 0
        self.error: str | None = None

    def begin(self) -> None:
        """The connection is open: send pings from now on."""
        self._alarm(self._interval)

    # -- the peer ----------------------------------------------------------------------------------

    def end(self) -> None:
        """All whole messages are handed over already, or ``has_more`` is true."""

    def feed(self, data: bytes) -> Sequence[WSText | WSBinary]:
        """The messages that these bytes complete, as far as one step goes."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        messages: list[WSText | WSBinary] = []
        if self.state is State.CLOSED or self.state is State.ANSWERING:
            self.has_more, self.count = False, 0
            if not data and self.state is State.ANSWERING:
                # The messages before the close are handed over.
                self._line.when_answered(self._answer_close)
            return messages
        events, error = self._parser.feed(data)
        self._pinged = None
        alias = self._line.alias
        for kind, content, code in events:
            if kind == TEXT:
                messages.append(WSText(alias, content))
            elif kind == BINARY:
                messages.append(WSBinary(alias, content))
            elif kind == PING:
                if self.state is State.OPEN:
                    self._write(PONG, content)
            elif kind == CLOSE:
                self._closed_by_peer(code, content)
                error = None
                break
        if error is not None:
            self._refuse(error)
        is_open = self._is_open()
        self.has_more = self._parser.has_more if is_open else self._is_answering()
        self.unfinished = self._parser.unfinished if is_open else 0
        self.count = len(messages)
        self.produced = sum(len(message[1]) for message in events) if self._deflate else 0
        return messages

    def rest(self) -> bytes | None:
        """The bytes of an incomplete message; None for a WebSocket that closes, and cannot move."""
        return self._parser.rest() if self.state is State.OPEN else None

    def _is_open(self) -> bool:
        return self.state is State.OPEN or self.state is State.CLOSING

    def _is_answering(self) -> bool:
        return self.state is State.ANSWERING

    def _closed_by_peer(self, code: int, reason: str) -> None:
        self._close = code, reason
        if self.state is State.OPEN:
            self.state = State.ANSWERING
            self._alarm(_LINGER)
        else:
            self._end()

    def _answer_close(self) -> None:
        """Answer the close of the peer."""
        if self.state is State.ANSWERING:
            assert self._close is not None
            code, _ = self._close
            self._write(CLOSE, b"" if code == _NO_CODE else code.to_bytes(2, "big"))
            self._end()

    def _refuse(self, error: FrameError) -> None:
        """Tell the peer of its error, and end."""
        if self.state is State.OPEN:
            self._write(CLOSE, error.code.to_bytes(2, "big") + error.detail.encode()[:100])
        self._shut()
        self._line.blame(error.detail)

    def _end(self) -> None:
        self._shut()
        self._line.hang_up()

    @property
    def takes_messages(self) -> bool:
        """Whether messages to the peer are part of the stream."""
        return self.state is State.OPEN or self.state is State.ANSWERING

    # -- the actor ---------------------------------------------------------------------------------

    def send(self, message: WSSend, caller: Caller | None = None) -> tuple[bool, int]:
        """Write a message. Returns whether the operating system has taken it, and its bytes."""
        data = message.data
        opcode, payload = (TEXT, data.encode()) if isinstance(data, str) else (BINARY, bytes(data))
        size, deflate = len(payload), self._deflate
        self.messages_out += 1
        if deflate is not None and size >= SMALLEST:
            payload, is_compressed = deflate.compress(payload), True
        else:
            is_compressed = False
        return self._write(opcode, payload, caller, is_compressed), size

    def close(self, message: WSClose) -> None:
        """Close with a code and a reason. The peer answers with its own close."""
        if self.state is not State.OPEN:
            return
        reason = message.reason.encode(errors="replace")
        self._write(CLOSE, message.code.to_bytes(2, "big") + reason)
        self.note_close()

    def say_last(self, code: int) -> None:
        """Tell the peer why the connection ends on this side, if it has not been told."""
        if self.state is State.ANSWERING:
            self._answer_close()
        elif self.state is State.OPEN:
            self._write(CLOSE, code.to_bytes(2, "big"))
        self._shut()

    def note_close(self) -> None:
        """Note that a close was written for this side: the peer answers it."""
        if self.state is State.OPEN:
            self.state = State.CLOSING
            self._alarm(_LINGER)
        else:
            self._end()

    def _shut(self) -> None:
        self.state = State.CLOSED
        self._stop()

    @property
    def window_bits(self) -> int:
        """The size of the window of the agreed compression; 0 without compression."""
        return 0 if self._deflate is None else self._deflate.bits

    def _write(
        self,
        opcode: int,
        payload: bytes,
        caller: Caller | None = None,
        is_compressed: bool = False,
    ) -> bool:
        """Write a frame. Returns whether the operating system has taken it; otherwise the caller is
        answered when it has.
        """
        key = None if self._new_key is None else self._new_key()
        frame = encode_frame(opcode, payload, key, compressed=is_compressed)
        return self._writer.put(frame, caller, in_turn=True)

    def disconnected(self, cause: Cause, detail: str) -> WSDisconnected:
        """The last message about this connection."""
        self._shut()
        code, reason = (None, "") if self._close is None else self._close
        return WSDisconnected(self._line.alias, code, reason, cause, detail)

    # -- time --------------------------------------------------------------------------------------

    def _alarm(self, seconds: float) -> None:
        self._stop()
        self._watch = watch = Deadline(self._check_time)
        self._line.arm(watch, seconds)

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.abandon()
            self._watch = None

    def _check_time(self) -> None:
        self._watch = None
        if self.state is State.CLOSING:
            # The peer did not answer the close.
            self._end()
        elif self.state is State.ANSWERING:
            self._answer_close()
        elif self.state is State.OPEN:
            line = self._line
            if self._pinged is not None and not line.is_held_up:
                self.state = State.CLOSED
                line.cut(Cause.TIMEOUT, f"no answer to a ping within {self._interval:g} s")
                return
            self._pinged = line.now()
            self._write(PING, b"")
            self._alarm(self._interval)


def serve_websocket(websocket: WebSocket, message: Any) -> bool:
    """Serve a message of the actor. False if it is none of a WebSocket."""
    kind = type(message)
    if kind is WSSend:
        # A message after the close is not part of the stream.
        if websocket.takes_messages:
            websocket.send(message)
        return True
    if kind is WSClose:
        websocket.close(message)
        return True
    return False


def call_websocket(websocket: WebSocket, request: Any, caller: Caller) -> object:
    """Serve a call of the actor.

    Raises:
        Reject: the connection is closing, or the request is none of a WebSocket.
    """
    kind = type(request)
    if kind is WSClose:
        websocket.close(request)
        return None
    if kind is not WSSend:
        raise Reject(UnhandledCallError(caller.to, request, "WebSocket"))
    if not websocket.takes_messages:
        raise Reject(BrokenPipeError("the connection is closing"))
    is_done, size = websocket.send(request, caller)
    return size if is_done else NO_REPLY


def write_last(meta: Meta, websocket: WebSocket, reason: Reason) -> None:
    """The connection ends on this side: write the messages that were sent before, and tell the peer
    why.
    """
    waiting = list(meta.mailbox.drain())
    for envelope in waiting:
        if envelope[0] != MESSAGE or not serve_websocket(websocket, envelope[3]):
            meta.mailbox.push(Lane.MAIN, envelope)
    match reason:
        case Normal():
            websocket.say_last(1000)
        case Shutdown():
            websocket.say_last(1001)
        case _:
            websocket.say_last(1011)
