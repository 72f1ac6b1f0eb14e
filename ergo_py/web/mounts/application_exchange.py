"""`ApplicationExchange`: an exchange, as an application uses it that is no actor."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio

from ..._core.tables.pending_calls import Caller, Deadline
from ..._core.vocabulary.errors import NotAllowedError
from ..._core.vocabulary.ids import PID, Alias
from ..messages.requests import HTTPRequest, ReadBody
from ..messages.responses import Response

__all__ = ["ApplicationExchange", "PeerLeftError", "TaskCall"]

_HELD_BACK: Final = 0.005
"""Seconds for which the head of a response waits for the body: most applications send both at once,
and a single write is cheaper.
"""


class PeerLeftError(OSError):
    """The exchange has ended: its peer has left, or its time is over."""

    def __init__(self) -> None:
        super().__init__("the client has left, or the exchange has ended")


class ApplicationExchange:
    """Reads the body of a request, and writes its response. Nothing is written after the end of
    the exchange, since the connection may serve another request by then. On the loop.
    """

    __slots__ = ("_ended", "_http", "_stream", "request")

    def __init__(self, http: Any, request: HTTPRequest) -> None:
        self._http = http
        self._stream: Any = None
        self._ended: trio.Event | None = None
        self.request: HTTPRequest = request

    @property
    def has_ended(self) -> bool:
        """Whether the exchange has ended."""
        return self.request.gone

    async def wait_until_ended(self) -> None:
        """Wait until the response is complete, or the peer has left."""
        while not self.has_ended:
            if self._ended is None:
                self._ended = trio.Event()
                self.request.exchange.watch(self._ended.set)
            await self._ended.wait()

    # -- the request -------------------------------------------------------------------------------

    @property
    def body_is_done(self) -> bool:
        """Whether the whole body was read. Ask only before the exchange has ended."""
        done: bool = self._http.body_is_done
        return done

    async def read(self, most: int) -> bytes:
        """The next piece of the body; empty at its end.

        Raises:
            PeerLeftError: the exchange has ended.
        """
        if self.has_ended:
            raise PeerLeftError
        exchange = self.request.exchange
        waiter = TaskCall(exchange.pid, exchange.number, None, None)
        piece: bytes | None
        try:
            piece = self._http.read_body(ReadBody(exchange.ref, most), waiter)
            if piece is None:
                await waiter.wait()
                piece = waiter.result()
        except NotAllowedError:
            if self.has_ended:
                raise PeerLeftError from None
            raise
        assert piece is not None
        return piece

    # -- the response ------------------------------------------------------------------------------

    def begin(self, write_head: Callable[[], None]) -> Deadline:
        """The response has begun: its time limit is over. Call ``write_head`` if the response is
        not written soon.
        """
        due = Deadline(partial(self._write_head, write_head))
        if not self.has_ended:
            self.request.exchange.abandon()
            self._http.site.clock.arm_call(due, _HELD_BACK)
        return due

    def _write_head(self, write_head: Callable[[], None]) -> None:
        if not self.has_ended:
            try:
                write_head()
            except Exception as error:
                self.fail(error)

    def fail(self, error: Exception) -> None:
        """Tell the peer that there is no response."""
        site = self._http.site
        site.report(f"the application failed at {self.request!r}", error)
        self._http.fail(self.request.exchange, "an application failed at its response")

    def respond(self, response: Response) -> None:
        """Write a response, or the head of a streamed one.

        Raises:
            PeerLeftError: the exchange has ended.
        """
        if self.has_ended:
            raise PeerLeftError
        self._http.answer(self.request.exchange, response)
        if not self.has_ended:
            self._stream = self._http.stream

    async def write(self, data: bytes) -> None:
        """Write a piece of a streamed response, and wait while the peer is slow.

        Raises:
            PeerLeftError: the exchange has ended.
        """
        if self._stream is None or not self._stream.is_open:
            raise PeerLeftError
        await self._stream.write_and_wait(data)

    def end(self) -> None:
        """End a streamed response.

        Raises:
            PeerLeftError: the exchange has ended.
        """
        if self.has_ended:
            raise PeerLeftError
        self._http.end_stream()


class TaskCall(Caller):
    """A call that a task waits for."""

    __slots__ = ("_event",)

    def __init__(self, pid: PID | Alias, number: int, to: object, request: Any) -> None:
        super().__init__(pid, number, to, request)
        self._event = trio.Event()

    async def wait(self) -> None:
        """Wait until the call is settled."""
        await self._event.wait()

    def awaken(self) -> None:
        """The call is settled."""
        self._event.set()
