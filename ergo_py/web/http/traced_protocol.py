"""`TracedHTTPProtocol`: the HTTP of a connection of a traced node. An exchange has a span, and its
call carries the context.
"""

from typing import Any

from ..._core.messaging.traces import Mark
from ..._core.vocabulary.envelopes import MESSAGE
from ...meta.sockets.messages import Cause
from ..messages.requests import HTTPRequest
from ..routes import Place
from .exchange import Exchange
from .protocol import HTTPProtocol

__all__ = ["TracedHTTPProtocol"]


class TracedHTTPProtocol(HTTPProtocol):
    """An HTTP protocol with spans. A node without tracing has none."""

    __slots__ = ("_span",)

    _span: Any

    def _begin_call(self, place: Place, request: HTTPRequest) -> Exchange:
        exchange = super()._begin_call(place, request)
        tracing = self.site.meta.kernel.tracing
        self._span = span = tracing.begin_request(
            request.method, place.prefix, request.headers, self.site.log
        )
        if span is not None:
            exchange.carry(Mark(MESSAGE, None, span.context))
        return exchange

    def _finish(self, status: int, sent: int) -> None:
        self._end_span(status)
        super()._finish(status, sent)

    def gone(self, cause: Cause) -> None:
        """The connection has ended."""
        self._end_span(None)
        super().gone(cause)

    def leave(self) -> bytes:
        """End HTTP on this connection, for another protocol. Returns the bytes after it."""
        self._end_span(101)
        return super().leave()

    def _end_span(self, status: int | None) -> None:
        span = getattr(self, "_span", None)
        if span is not None:
            self._span = None
            span.end(status)
