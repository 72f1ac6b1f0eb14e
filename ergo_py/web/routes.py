"""`Route`: which process answers a path. `Routes`: a table of them."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import Enum
from typing import Any, Protocol, TypeAlias

from .._core.verbs.behaviour import Behaviour
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.ids import Target
from .._core.vocabulary.options import check_flag, check_number
from .._core.vocabulary.public_names import show_public_names
from ..meta.receivers import ReceiverOption, Receivers
from .messages.requests import HTTPRequest, read_path
from .messages.responses import HTTPError
from .messages.websockets import Accept
from .parsing.handshake import plain_origin
from .parsing.http1 import Head, RequestError

__all__ = [
    "Application",
    "Body",
    "Place",
    "Route",
    "Routes",
    "read_origins",
]

AcceptOption = Callable[[HTTPRequest], Accept | HTTPError | None] | Target | None


class Body(Enum):
    """How a route gets the bodies of its requests."""

    WHOLE = "whole"
    """The request comes when its body is complete."""
    STREAM = "stream"
    """The request comes at once, and ``HTTPRequest.ReadBody`` reads its body."""


class Application(Protocol):
    """An application that a server runs below a prefix."""

    async def start(self) -> None:
        """Start the application. An exception keeps the server from starting."""
        ...

    async def stop(self) -> None:
        """End all tasks of the application, within bounded time."""
        ...


class Place:
    """A prefix of paths, and the limits of its requests. Routes, mounted applications and files are
    such places.
    """

    kind = "place"

    def __init__(
        self,
        prefix: str,
        *,
        methods: Sequence[str] | None = None,
        body: Body = Body.WHOLE,
        max_body: int = 1024 * 1024,
        request_timeout: float = 30.0,
    ) -> None:
        what = type(self).__name__
        self.prefix = prefix
        self.parts: tuple[str, ...] = _read_prefix(what, prefix)
        self.body = body
        self.max_body = max_body
        self.request_timeout = request_timeout
        if not isinstance(body, Body):
            raise BadInputError(f"{what}(body)", body, "Route.Body.WHOLE or Route.Body.STREAM")
        check_number(f"{what}(max_body)", max_body, least=0, whole=True)
        check_number(f"{what}(request_timeout)", request_timeout, least=0.001)
        self.methods: frozenset[str] | None = None
        if methods is not None:
            if isinstance(methods, str) or not all(
                isinstance(method, str) and method.isascii() and method.isupper()
                for method in methods
            ):
                raise BadInputError(
                    f"{what}(methods)", methods, "names in capitals, such as ['GET', 'POST']"
                )
            self.methods = frozenset(methods)
            if "GET" in self.methods:
                self.methods |= {"HEAD"}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.prefix}>"

    def takes_websocket(self, head: Head) -> bool:
        """Whether a request is for a WebSocket."""
        return self.kind == "websocket"

    def answer(self, http: object, request: HTTPRequest) -> Awaitable[None] | None:
        """The work that answers a request, for an application or a file; None if the request is
        answered.
        """
        raise NotImplementedError

    def talk(self, upgrade: object, request: HTTPRequest) -> Awaitable[None] | None:
        """The work of an application that decides about a WebSocket and uses it; None if an actor
        does.
        """
        return None

    def application(self, site: Any) -> Application | None:
        """The application of this place, as a part of a server; None if there is none."""
        return None

    def refusal(self, method: str) -> HTTPError | None:
        """The error for a method that is not offered here."""
        if self.methods is None or method in self.methods:
            return None
        return HTTPError(405, headers=[("allow", ", ".join(sorted(self.methods)))])


class Route(Place):
    """Requests below a prefix go to an actor, as calls.

    Args:
        prefix: the path, such as ``"/orders"``; requests of this path and of all paths below it
            belong to the route. The longest prefix of whole parts counts.
        to: the receiver: None for the owner of the server, the address of a process or a pool,
            several addresses that take turns, or a behaviour (or ``functools.partial`` of it) to
            spawn for each request.
        websocket: for WebSocket connections instead of requests: a behaviour to spawn for each
            connection.
        methods: the methods that are offered; others get status 405. None for all.
        body: ``Route.Body.WHOLE``: the request comes with its body. ``Route.Body.STREAM``: the
            actor reads the body with ``HTTPRequest.ReadBody``.
        max_body: the longest body, in bytes; longer ones get status 413.
        request_timeout: seconds for the answer, from the whole body on; then the peer gets status
            504. With ``Route.Body.STREAM``, each piece that the actor reads begins the time again.
        origins: for WebSockets: further values of ``Origin`` that may connect; by default only
            pages of the same scheme, host and port. ``"*"`` is any.
        accept: for WebSockets: a quick function of the request, or the address of a process that is
            asked ``WS.Upgrade(request)``. It answers with ``Accept(…)``, or an ``HTTPError`` to
            refuse.
        subprotocols: for WebSockets: the names that are offered, the best first.
        max_message: for WebSockets: the longest message, in bytes.
        compress: for WebSockets: offer compression (permessage-deflate).
        ping_interval: for WebSockets: seconds between two pings. A peer that does not answer within
            the same time is gone.

    Raises:
        BadInputError: a value has a wrong type, or two values exclude each other.
    """

    Body: TypeAlias = Body

    kind: str = "actor"

    def __init__(
        self,
        prefix: str,
        to: ReceiverOption = None,
        *,
        websocket: Callable[[], Behaviour] | None = None,
        methods: Sequence[str] | None = None,
        body: Body = Body.WHOLE,
        max_body: int = 1024 * 1024,
        request_timeout: float = 30.0,
        origins: Sequence[str] = (),
        accept: AcceptOption = None,
        subprotocols: Sequence[str] = (),
        max_message: int = 1024 * 1024,
        compress: bool = False,
        ping_interval: float = 20.0,
    ) -> None:
        super().__init__(
            prefix, methods=methods, body=body, max_body=max_body, request_timeout=request_timeout
        )
        if websocket is not None:
            if to is not None:
                raise BadInputError("Route(to)", to, "either to or websocket")
            if not callable(websocket):
                raise BadInputError("Route(websocket)", websocket, "a behaviour")
            self.kind = "websocket"
        self.receivers: Receivers = Receivers(to if websocket is None else websocket)
        self.origins: frozenset[str] = read_origins("Route(origins)", origins)
        self.accept: AcceptOption = accept
        self.subprotocols: tuple[str, ...] = tuple(_strings("Route(subprotocols)", subprotocols))
        self.max_message = max_message
        self.compress = compress
        self.ping_interval = ping_interval
        check_number("Route(max_message)", max_message, least=1, whole=True)
        check_flag("Route(compress)", compress)
        check_number("Route(ping_interval)", ping_interval, least=0.001)


def _strings(name: str, values: Sequence[str]) -> Sequence[str]:
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise BadInputError(name, values, "a list of str")
    return values


def read_origins(name: str, origins: Sequence[str]) -> frozenset[str]:
    """The origins whose pages may open WebSockets.

    Raises:
        BadInputError: a value is no origin.
    """
    for origin in _strings(name, origins):
        if origin not in ("null", "*") and ("://" not in origin or origin.endswith("/")):
            raise BadInputError(name, origin, "an origin such as 'https://example.org'")
    return frozenset(plain_origin(origin) for origin in origins)


def _read_prefix(what: str, prefix: object) -> tuple[str, ...]:
    if not isinstance(prefix, str) or not prefix.startswith("/") or "?" in prefix:
        raise BadInputError(f"{what}(prefix)", prefix, "a path such as '/orders'")
    try:
        parts = read_path(prefix.removesuffix("/") or "/")
    except RequestError as error:
        raise BadInputError(f"{what}(prefix)", prefix, f"a path: {error}") from error
    if "" in parts:
        raise BadInputError(f"{what}(prefix)", prefix, "a path without empty parts")
    return parts


class Routes:
    """Finds the place of a path: the longest prefix of whole parts."""

    def __init__(self, places: Sequence[Place]) -> None:
        """Check the places.

        Raises:
            BadInputError: two places have the same prefix, or a value is no place.
        """
        self._places: dict[tuple[str, ...], Place] = {}
        for place in places:
            if not isinstance(place, Place):
                raise BadInputError("WebServer(routes)", place, "a Route, a Mount or Files")
            if place.parts in self._places:
                raise BadInputError(
                    "WebServer(routes)", place.prefix, "each prefix once; this is there twice"
                )
            self._places[place.parts] = place
        self._only = self._places.get(()) if len(self._places) == 1 else None
        self._depths = sorted({len(parts) for parts in self._places}, reverse=True)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places.values())

    def find(self, path: tuple[str, ...]) -> Place | None:
        """The place of a path; None if there is none."""
        if self._only is not None:
            return self._only
        for depth in self._depths:
            if depth <= len(path) and (place := self._places.get(path[:depth])) is not None:
                return place
        return None


show_public_names(__name__)
