"""`Talk`: ``receive`` and ``send`` of a WebSocket of an ASGI application. `SocketActor`: the actor
of its connection.
"""

from collections import deque
from enum import Enum
from typing import Any, Final

import trio

from ..._core.vocabulary.envelopes import Priority
from ..._core.vocabulary.ids import PID, Alias
from ..._core.vocabulary.messages import Request
from ..._core.vocabulary.reasons import Reason
from ...actor import Actor
from ..messages.requests import HTTPRequest
from ..messages.responses import HOP_BY_HOP, Response, bare_response
from ..messages.websockets import (
    Accept,
    WSBinary,
    WSClose,
    WSConnected,
    WSDisconnected,
    WSSend,
    WSText,
)
from ..parsing.handshake import offered_names
from .application_exchange import PeerLeftError, TaskCall

__all__ = ["SocketActor", "Talk"]

Message = dict[str, Any]
_WAITING: Final = 16
"""Messages of the peer that may wait for the application. Then the actor waits, and so its
connection is not read.
"""
_NO_CLOSE: Final = 1006


class Stage(Enum):
    """How far a WebSocket of an application has come."""

    ASKED = "asked"
    """The application has not decided yet."""
    OPEN = "open"
    CLOSED = "closed"
    """The peer has left, or was refused, or the application has closed."""


class Talk:
    """A WebSocket, as an application uses it. On the loop."""

    def __init__(self, upgrade: Any, request: HTTPRequest) -> None:
        self._upgrade = upgrade
        self._request = request
        self._stage = Stage.ASKED
        self._was_asked = False
        self._refusal: Message | None = None
        self._refusal_body = b""
        self._waiting: deque[Message] = deque()
        self._changed = trio.Event()
        """Set when a message has come or was taken, or the WebSocket has ended."""
        self._end: Message | None = None
        self.offered: list[str] = list(offered_names(request.head))
        """The subprotocols that the client offers."""
        self.heard_of_end: bool = False
        """The application was told that its client has left."""
        request.exchange.watch(self._upgrade_ended)

    # -- the application ---------------------------------------------------------------------------

    async def receive(self) -> Message:
        """The next message of the peer."""
        if not self._was_asked:
            self._was_asked = True
            return {"type": "websocket.connect"}
        while not self._waiting and self._end is None:
            await self._changed.wait()
        if self._waiting:
            message = self._waiting.popleft()
            self._change()
            return message
        assert self._end is not None
        self.heard_of_end = True
        return self._end

    async def send(self, message: Message) -> None:
        """Decide about the WebSocket, send a message, or close.

        Raises:
            PeerLeftError: the WebSocket has ended.
        """
        kind = message["type"]
        if self._stage is Stage.CLOSED or (self._stage is Stage.OPEN and self._end is not None):
            self.heard_of_end = True
            raise PeerLeftError
        if self._stage is Stage.ASKED:
            await self._decide(kind, message)
        elif kind == "websocket.send":
            text = message.get("text")
            await self._tell(WSSend(bytes(message["bytes"]) if text is None else text))
        elif kind == "websocket.close":
            self._stage = Stage.CLOSED
            await self._tell(WSClose(message.get("code", 1000), message.get("reason") or ""))
        else:
            raise ValueError(f"{kind!r} is no message of an open WebSocket")

    async def _decide(self, kind: str, message: Message) -> None:
        if kind == "websocket.accept":
            headers = _fields(message.get("headers", ()))
            decision = Accept(message.get("subprotocol"), headers)
            await self._upgrade.accept(decision, (lambda: SocketActor(self), SocketActor))
            while self._stage is Stage.ASKED:
                await self._changed.wait()
            if self._end is not None:
                raise PeerLeftError
        elif kind == "websocket.close":
            self._refuse(bare_response(403))
        elif kind == "websocket.http.response.start":
            self._refusal = message
        elif kind == "websocket.http.response.body" and self._refusal is not None:
            self._refusal_body += bytes(message.get("body", b""))
            if not message.get("more_body", False):
                fields = _fields(self._refusal.get("headers", ()))
                self._refuse(Response(self._refusal["status"], self._refusal_body, fields))
        else:
            raise ValueError(f"{kind!r} is no decision about a WebSocket")

    def _refuse(self, response: Response) -> None:
        self._stage = Stage.CLOSED
        self._upgrade.refuse(response)

    async def _tell(self, message: Request[Any]) -> None:
        connection, site = self._request.connection, self._upgrade.site
        if self._upgrade.has_room:
            site.tell(connection, connection, message)
            # Other tasks get their turn even if the application sends without an end.
            await trio.lowlevel.checkpoint()
            return
        call = TaskCall(connection, site.next_reference(), connection, message)
        site.calls.begin(call, Priority.NORMAL)
        await call.wait()

    def fail(self) -> None:
        """The application has failed."""
        if self._stage is Stage.ASKED:
            self._refuse(bare_response(500))
        else:
            self._close(1011)

    def finish(self) -> None:
        """The application has returned."""
        if self._stage is Stage.ASKED:
            self._upgrade.site.log.error("an application has ended without a decision")
            self._refuse(bare_response(500))
        else:
            self._close(1000)

    def _close(self, code: int) -> None:
        if self._stage is Stage.OPEN and self._end is None:
            self._stage = Stage.CLOSED
            connection = self._request.connection
            self._upgrade.site.tell(connection, connection, WSClose(code))
        # Nobody takes further messages: the actor must not wait for the application.
        self._waiting.clear()
        self._stage = Stage.CLOSED
        self._change()

    # -- the connection ----------------------------------------------------------------------------

    def _upgrade_ended(self) -> None:
        """The exchange of the upgrade has ended: it was accepted, refused, or the peer has left."""
        if self._upgrade.has_begun:
            self._stage = Stage.OPEN
        else:
            self._stage = Stage.CLOSED
            self.end(_NO_CLOSE, "")
        self._change()

    async def take(self, message: Message) -> None:
        """Hand a message of the peer to the application, and wait while it has enough."""
        if self._stage is Stage.OPEN:
            self._waiting.append(message)
            self._change()
        while len(self._waiting) >= _WAITING:
            await self._changed.wait()

    def end(self, code: int, reason: str) -> None:
        """The WebSocket has ended."""
        if self._end is None:
            self._end = {"type": "websocket.disconnect", "code": code, "reason": reason}
            self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class SocketActor(Actor):
    """Owns the connection of a WebSocket of an application, and hands its messages over."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        """Hand a message of the peer over, and wait while the application has enough."""
        match message:
            case WSText(_, text):
                await self._talk.take({"type": "websocket.receive", "text": text})
            case WSBinary(_, data):
                await self._talk.take({"type": "websocket.receive", "bytes": data})
            case WSDisconnected(_, code, reason):
                self._talk.end(_NO_CLOSE if code is None else code, reason)
            case WSConnected():
                pass

    def terminate(self, reason: Reason) -> None:
        """Tell the application that its WebSocket has ended."""
        self._talk.end(_NO_CLOSE, "")


def _fields(headers: Any) -> list[tuple[str, str]]:
    fields = [
        (bytes(name).decode("latin-1").lower(), bytes(value).decode("latin-1"))
        for name, value in headers
    ]
    return [(name, value) for name, value in fields if name not in HOP_BY_HOP]
