"""`Exchange`: a request under way and its response."""

from collections.abc import Callable
from typing import Any

from ..._core.processes.process import Process
from ..._core.tables.pending_calls import Caller
from ..._core.vocabulary.errors import (
    CallTimeoutError,
    MailboxFullError,
    TargetDownError,
)
from ..._core.vocabulary.ids import Alias
from ..._core.vocabulary.reasons import NoProcess, Normal, Shutdown
from ..messages.requests import HTTPRequest
from ..messages.responses import HTTPError, Response, bare_response

__all__ = ["Exchange", "answer_of", "unavailable"]


class Exchange(Caller):
    """A request under way: a call whose answer becomes the response. The connection calls, and does
    not wait.
    """

    __slots__ = ("_settled", "_watch", "actor", "is_over")

    request: Any
    """The request; None after the end."""

    def __init__(
        self,
        connection: Alias,
        number: int,
        to: Any,
        request: HTTPRequest,
        settled: "Callable[[Exchange], None]",
    ) -> None:
        # Caller.__init__ inlined: each request pays for this.
        self.settled = self._deferred = False
        self.pid = connection
        self.number = number
        self.to = to
        self.request = request
        self.callee = None
        self.value = self.error = None
        self._settled = settled
        self.actor: Process | None = None
        """The actor that was spawned for this exchange."""
        self.is_over = False
        """The exchange has ended, with or without a response."""
        self._watch: tuple[Callable[[], None], ...] = ()

    def awaken(self) -> None:
        """Write the response."""
        self._settled(self)

    def go_to(self, to: Any) -> None:
        """Note the address that is called."""
        self.to = to

    def belong_to(self, actor: Process) -> None:
        """Note the actor that was spawned for this exchange."""
        self.actor = actor
        self.to = actor.id

    def watch(self, ended: Callable[[], None]) -> None:
        """Call ``ended`` when the exchange has ended."""
        self._watch = (*self._watch, ended)

    def finish(self) -> None:
        """Note that the exchange has ended. An answer that comes now is late."""
        self.is_over = True
        if not self.settled:
            self.abandon()
        # Without the request, there is no cycle for the garbage collector, and a deadline that is
        # still queued does not keep a body.
        self.value = self.error = self.callee = self.request = None
        for ended in self._watch:
            ended()


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
