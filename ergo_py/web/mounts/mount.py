"""`Mount`: an ASGI application below a prefix."""

from collections.abc import Awaitable, Sequence
from typing import Any

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.options import check_flag, check_number
from ..._core.vocabulary.public_names import show_public_names
from ..messages.requests import HTTPRequest
from ..parsing.http1 import Head
from ..routes import Application, Body, Place, read_origins
from ..site import Site
from .application_exchange import ApplicationExchange
from .asgi import ASGIApplication, ASGICallable

__all__ = ["Mount"]


class Mount(Place):
    """An ASGI application below a prefix: ``Mount("/api", asgi=app)``.

    The application runs on the node's own loop, which is trio's: it may ``await node.call(...)``.
    Frameworks that use anyio, such as Starlette and FastAPI, run on trio; an application that needs
    asyncio does not, and its requests are status 500 with a hint in the log. Run such an
    application, and a WSGI application, under its own server, and reach the node with ``node.ask``
    or ``ergo_py.blocking.handle(node)``.

    Args:
        prefix: the path of the application's root. The application sees it as its ``root_path``.
        asgi: an ASGI 3 application: http, websocket and lifespan.
        max_body: the longest body, in bytes; longer ones get status 413.
        request_timeout: seconds until the response begins, from the whole body or the piece that
            the application has read last; then the peer gets status 504.
        origins: for WebSockets: further values of ``Origin`` that may connect; by default only
            pages of the same scheme, host and port. ``"*"`` is any.
        max_message: for WebSockets: the longest message, in bytes.
        compress: for WebSockets: offer compression (permessage-deflate).
        ping_interval: for WebSockets: seconds between two pings.

    Raises:
        BadInputError: a value has a wrong type.
    """

    kind = "application"
    accept = None
    subprotocols: tuple[str, ...] = ()

    def __init__(
        self,
        prefix: str,
        *,
        asgi: ASGICallable,
        max_body: int = 1024 * 1024,
        request_timeout: float = 30.0,
        origins: Sequence[str] = (),
        max_message: int = 1024 * 1024,
        compress: bool = False,
        ping_interval: float = 20.0,
    ) -> None:
        super().__init__(
            prefix, body=Body.STREAM, max_body=max_body, request_timeout=request_timeout
        )
        if not callable(asgi):
            raise BadInputError("Mount(asgi)", asgi, "an application, which is callable")
        check_number("Mount(max_message)", max_message, least=1, whole=True)
        check_flag("Mount(compress)", compress)
        check_number("Mount(ping_interval)", ping_interval, least=0.001)
        self._asgi = asgi
        self.origins: frozenset[str] = read_origins("Mount(origins)", origins)
        self.max_message = max_message
        self.compress = compress
        self.ping_interval = ping_interval

    def application(self, site: Site) -> Application:
        """The application, as a part of a server."""
        return ASGIApplication(self._asgi, self.prefix.rstrip("/"), site)

    def takes_websocket(self, head: Head) -> bool:
        """Whether a request is for a WebSocket."""
        return "websocket" in head.headers.get("upgrade", "").lower()

    def answer(self, http: Any, request: HTTPRequest) -> Awaitable[None]:
        """Let the application answer."""
        running = http.site.applications[self]
        work: Awaitable[None] = running.answer(ApplicationExchange(http, request))
        mark = request.exchange.mark
        if mark is None:
            return work
        traced: Awaitable[None] = http.site.meta.kernel.tracing.inside(mark.context, work)
        return traced

    def talk(self, upgrade: Any, request: HTTPRequest) -> Awaitable[None]:
        """Let the application decide about a WebSocket, and use it."""
        running = upgrade.site.applications[self]
        work: Awaitable[None] = running.talk(upgrade, request)
        return work


show_public_names(__name__)
