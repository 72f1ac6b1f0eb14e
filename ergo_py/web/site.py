"""`Site`: the parts of a web server that its connections share: routes, options, counters."""

from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import trio

from .._core.messaging.calls import Calls
from .._core.messaging.clock import Clock
from .._core.messaging.router import Router
from .._core.metas.meta import Meta
from .._core.runtime.detached_task import DetachedTask
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.ids import Alias, Target
from .._core.vocabulary.reasons import Crashed
from ..meta.sockets.messages import Address, Endpoint
from .messages.requests import HTTPRequest, read_path
from .options import WebOptions
from .parsing.http1 import Head, RequestError
from .proxies import Proxies
from .request_figures import RequestFigures, request_figures
from .routes import Application, Place, Routes
from .task_pool import TaskPool

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

__all__ = ["Site", "host_name"]

_SHORT: Final = 64
"""Longer paths are not remembered: they are mostly different each time."""
_REMEMBERED: Final = 1024
"""Paths of at most ``_SHORT`` characters whose places are remembered."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a server ends."""

    code: int
    """The code with which it closes WebSockets."""
    refuses: bool = False
    """Whether it answers no request any more, also not the first of a connection."""


_DRAINS: Final = Ending(1001)
_IS_REPLACED: Final = Ending(1012)
"""The next program serves already: the peer may connect again at once."""


class Site:
    """Shared by the connections of a web server. Everything here happens on the loop."""

    meta: Meta

    def __init__(
        self, routes: Routes, options: WebOptions, proxies: Proxies, is_secure: bool
    ) -> None:
        self.routes = routes
        self.options = options
        self._proxies = proxies
        self.has_proxies: bool = bool(proxies)
        """Whether there are proxies whose words about a client count."""
        self.scheme = "https" if is_secure else "http"
        self.places: dict[str, tuple[tuple[str, ...], Place | None]] = {}
        """The decoded parts and the places of paths that were asked for lately; only short ones."""
        self.hosts: Hosts | None = None if options.hosts is None else Hosts(options.hosts)
        """The hosts that are served; None for all."""
        self.ending: Ending | None = None
        """How the server ends; None while it serves."""
        self.applications: Applications = Applications(self)
        """The mounted applications."""
        self.is_timed: bool = options.access_log or options.metrics
        """Whether exchanges are timed, for the access log or for metrics."""
        self._figures: RequestFigures | None = None
        self.make_room: Callable[[], None] | None = None
        """Tells a full server, which accepts no peer until a connection ends or is idle, that one
        is idle; None while the server has room.
        """
        self.statuses: list[int] = [0] * 6
        """Responses by the first digit of their status."""

    def open(self, meta: Meta) -> None:
        """Use the kernel of this server."""
        self.meta = meta
        self.router: Router = meta.router
        self.calls: Calls = meta.kernel.calls
        self.clock: Clock = meta.kernel.clock
        self.now: Callable[[], float] = meta.kernel.clock.now
        self.next_reference: Callable[[], int] = meta.router.references.__next__
        """The number of the next exchange."""
        self.applications.tasks.open(meta.router.turns)
        if self.options.metrics:
            self._figures = request_figures(meta.kernel)

    def begin_beside(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run an async function in a task of its own. It must raise no exception."""
        DetachedTask().start(self.meta.kernel, work, "a mounted application")

    @property
    def log(self) -> "FilteringBoundLogger":
        """The log of the server."""
        return self.meta.log

    def report(self, what: str, error: Exception) -> None:
        """Log an exception of user code, and continue."""
        self.log.error(what, exception=Crashed(error).traceback)

    def soon(self, work: Callable[[], None]) -> None:
        """Call a function in another turn of the loop."""
        self.router.bridge.post(work)

    def tell(self, sender: Alias, to: Target, message: object) -> None:
        """Send a message in the name of a connection."""
        self.router.send(sender, to, message, Priority.NORMAL)

    def begin_exchange(self) -> float:
        """Count an exchange that begins. Returns the time."""
        if self._figures is not None:
            self._figures.begin()
        return self.now()

    def end_exchange(
        self,
        request: HTTPRequest | None,
        place: Place | None,
        status: int,
        sent: int,
        since: float,
    ) -> None:
        """Note a response of ``sent`` bytes, for the metrics and the access log. The exchange began
        at ``since``; 0.0 if the request could not be read.
        """
        figures = self._figures
        if figures is not None and since:
            route = "" if place is None else place.prefix
            method = "" if request is None else request.method
            figures.finish(method, route, status, self.now() - since)
        if self.options.access_log:
            self.log_access(request, status, sent, since or self.now())

    def give_up_exchange(self) -> None:
        """Count an exchange that ends without a response."""
        if self._figures is not None:
            self._figures.give_up()

    def log_access(self, request: HTTPRequest | None, status: int, sent: int, since: float) -> None:
        """Write a line about a response of ``sent`` bytes to a request that came at ``since``; the
        request is None if it could not be read.
        """
        self.log.info(
            "request",
            client="" if request is None else request.client,
            method="" if request is None else request.method,
            path="" if request is None else "/" + "/".join(request.path),
            status=status,
            bytes=sent,
            seconds=round(self.now() - since, 6),
        )

    def tell_of_room(self, make_room: Callable[[], None] | None) -> None:
        """Call a function of the server, which is full, when a connection is idle; None if it has
        room.
        """
        self.make_room = make_room

    def begin_drain(self, *, is_replaced: bool = False) -> None:
        """Let each connection end with the exchange that is under way, or with its first. With
        ``is_replaced``, the next program takes further requests.
        """
        self.ending = self.ending or (_IS_REPLACED if is_replaced else _DRAINS)

    def refuse(self) -> None:
        """Take no request at all: the server stops."""
        self.ending = replace(self.ending or _DRAINS, refuses=True)

    def end_drain(self) -> None:
        """Take requests again: the next program has ended."""
        self.ending = None

    def find(self, target: str) -> tuple[tuple[str, ...], Place | None]:
        """The decoded parts of a path, and its place. Short paths are remembered in ``places``.

        Raises:
            RequestError: the path is wrong.
        """
        path = read_path(target)
        place = self.routes.find(path)
        if place is not None and place.kind == "application":
            self._check_slashes(path, place)
        if len(target) <= _SHORT:
            if len(self.places) >= _REMEMBERED:
                self.places.clear()
            self.places[target] = path, place
        return path, place

    def _check_slashes(self, path: tuple[str, ...], place: Place) -> None:
        """Refuse a path with ``%2F`` whose place is another, once the parts of the path are joined:
        a mounted application sees them joined, and the route of the other place may be its guard.
        """
        joined = "/".join(path)
        if joined.count("/") >= len(path) > 0 and self.routes.find((*joined.split("/"),)) != place:
            raise RequestError(400, "an escaped slash leads past a route")

    def client_of(self, peer: Address, head: Head) -> tuple[str, str, str]:
        """The address of the client, the scheme and the host of a request. Words of a proxy count
        only from the trusted networks.
        """
        client = peer.host if isinstance(peer, Endpoint) else peer
        return self._proxies.client_of(client, self.scheme, head.host, head.headers)


class Applications:
    """The mounted applications of a server that run, and the tasks of the requests that they
    answer.
    """

    __slots__ = ("_running", "_site", "local", "tasks")

    def __init__(self, site: Site) -> None:
        self._site = site
        self._running: dict[Place, Application] = {}
        self.tasks: TaskPool = TaskPool(self._start_task)
        """The tasks of requests that applications answer."""
        self.local: Endpoint = Endpoint("", 0)
        """The endpoint at which the server listens."""

    def __getitem__(self, place: Place) -> Application:
        return self._running[place]

    async def start(self, local: Endpoint) -> None:
        """Start the applications; the server listens at ``local``.

        Raises:
            Exception: an application could not start; those before it are stopped.
        """
        self.local = local
        try:
            for place in self._site.routes:
                application = place.application(self._site)
                if application is not None:
                    self._running[place] = application
                    await application.start()
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the applications, the last first."""
        while self._running:
            _, application = self._running.popitem()
            await application.stop()
        self.tasks.close()

    def _start_task(self, work: Callable[[], Awaitable[None]]) -> None:
        start = self._site.meta.kernel.start
        # In an empty context: the task must not see the variables of the process that runs now.
        Context().run(lambda: start(work, name="requests of applications"))


class Hosts:
    """The hosts that a server serves, without ports."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name.lower().rstrip(".") for name in names}

    def serve(self, *hosts: str) -> bool:
        """Whether requests for all these hosts are served."""
        return all(host_name(host).lower().rstrip(".") in self._names for host in hosts)


def host_name(host: str) -> str:
    """A host without its port."""
    return host[: host.index("]") + 1] if host.startswith("[") else host.partition(":")[0]
