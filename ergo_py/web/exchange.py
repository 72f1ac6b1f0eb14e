"""`Exchange`: a request under way and its response. `BodyWriter`: the frames of a streamed
response.
"""

from collections.abc import Callable
from typing import Any

from .._core.processes.process import Process
from .._core.tables.pending_calls import Caller
from .._core.vocabulary.errors import (
    CallTimeoutError,
    MailboxFullError,
    TargetDownError,
)
from .._core.vocabulary.ids import Alias
from .._core.vocabulary.reasons import NoProcess, Normal, Shutdown
from .messages.requests import HTTPRequest
from .messages.responses import HTTPError, Response, bare_response

__all__ = ["BodyWriter", "Exchange", "StreamGuard", "WrongLengthError", "answer_of"]


class Exchange(Caller):
    """A request under way: a call whose answer becomes the response. The connection calls, and does
    not wait.
    """

    __slots__ = ("_settled", "actor", "is_over")

    request: HTTPRequest

    def __init__(
        self,
        connection: Alias,
        number: int,
        to: Any,
        request: HTTPRequest,
        settled: "Callable[[Exchange], None]",
    ) -> None:
        super().__init__(connection, number, to, request)
        self._settled = settled
        self.actor: Process | None = None
        """The actor that was spawned for this exchange."""
        self.is_over = False
        """The exchange has ended, with or without a response."""

    def awaken(self) -> None:
        """Write the response."""
        self._settled(self)

    def belong_to(self, actor: Process) -> None:
        """Note the actor that was spawned for this exchange."""
        self.actor = actor
        self.to = actor.id

    def finish(self) -> None:
        """Note that the exchange has ended. An answer that comes now is late."""
        self.is_over = True
        if not self.settled:
            self.abandon()
        self.value = self.error = self.callee = None


class StreamGuard(Caller):
    """Hears of the end of the actor that streams a response."""

    __slots__ = ("_ended",)

    def __init__(self, exchange: Exchange, ended: Callable[[], None]) -> None:
        super().__init__(exchange.pid, exchange.number, exchange.to, None)
        self._ended = ended

    def awaken(self) -> None:
        """The actor has ended."""
        self._ended()


def answer_of(exchange: Exchange) -> tuple[Response, str]:
    """The response for the outcome of a call, and a line for the log, if there is anything to tell.
    Nothing of a failure is in the response.
    """
    error, value = exchange.error, exchange.value
    if error is None:
        if isinstance(value, Response):
            return value, ""
        return bare_response(500), f"the answer to a request is a {type(value).__qualname__}"
    if isinstance(error, HTTPError):
        return error.response, ""
    # The call itself failed; the same error in a Reject is an answer of the actor.
    if isinstance(error, CallTimeoutError) and error.request is exchange.request:
        return bare_response(504), ""
    if isinstance(error, MailboxFullError) and error.message is exchange.request:
        return unavailable(), ""
    if (
        isinstance(error, TargetDownError)
        and error.request is exchange.request
        and isinstance(error.reason, NoProcess | Normal | Shutdown)
    ):
        return unavailable(), ""
    return bare_response(500), f"a request failed: {type(error).__qualname__}: {error}"


def unavailable() -> Response:
    """The response while there is no process to answer."""
    return bare_response(503, [("retry-after", "1")])


class WrongLengthError(Exception):
    """A streamed response is longer or shorter than its length."""


class BodyWriter:
    """Frames a streamed response: in chunks, by its length, or until the connection closes."""

    __slots__ = ("_chunked", "_left")

    def __init__(self, length: int | None, chunked: bool) -> None:
        self._left = length
        self._chunked = chunked

    def frame(self, data: bytes) -> bytes:
        """The bytes to write for a piece.

        Raises:
            WrongLengthError: the response is longer than its length.
        """
        if self._left is not None:
            if len(data) > self._left:
                raise WrongLengthError(f"{len(data)} bytes, and {self._left} are left")
            self._left -= len(data)
        # An empty chunk would be the end.
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked and data else bytes(data)

    def end(self) -> bytes:
        """The bytes after the last piece.

        Raises:
            WrongLengthError: the response is shorter than its length.
        """
        if self._left:
            raise WrongLengthError(f"{self._left} bytes are missing")
        return b"0\r\n\r\n" if self._chunked else b""
