"""`MetricsPage`, `HealthPage`: the metrics and the health of a node as targets of web routes."""

import trio

from .._core.verbs.node_access import check_node
from .._core.vocabulary.public_names import show_public_names
from ..actor import Actor
from ..web.messages.requests import HTTPRequest
from ..web.messages.responses import HTTPError, Response
from .health import Health
from .text import render_metrics

__all__ = ["HealthPage", "MetricsPage"]


class MetricsPage:
    """The metrics of a node, as the target of a route: ``Route("/metrics", to=MetricsPage(node))``.

    A scraper that takes OpenMetrics gets OpenMetrics 1.0, others the text format 0.0.4 of
    Prometheus. Scrapes that come faster than one a second get the last figures. A thread reads the
    figures, so that a scrape of many processes does not hold up the loop.

    Args:
        node: a node of this program.

    Raises:
        BadInputError: the value is no open node.
    """

    def __init__(self, node: object) -> None:
        self._node = check_node("MetricsPage(node)", node)

    def __call__(self) -> Actor:
        """The actor that answers a request."""
        return _MetricsAnswer(self._node)


class HealthPage:
    """The probes of a node, as the target of routes.

    For example::

        page = HealthPage(Health(node, checks={"database": "store"}))
        WebServer(routes=[Route("/healthz", to=page), Route("/readyz", to=page)])

    The last part of the path chooses the probe: ``healthz``, ``readyz`` or ``startupz``. This page
    is served by the loop itself, so a blocked loop does not answer at all, and the time limit of
    the probe decides. ``Health.answer`` works from a thread, too.

    Args:
        health: a ``Health``, or a node of this program for a ``Health`` without own checks.

    Raises:
        BadInputError: the value is neither.
    """

    def __init__(self, health: object) -> None:
        self._health = health if isinstance(health, Health) else Health(health)

    def __call__(self) -> Actor:
        """The actor that answers a request."""
        return _HealthAnswer(self._health)


class _MetricsAnswer(Actor):
    def __init__(self, node: object) -> None:
        self._scraped = node

    async def handle_call(self, request: object, caller: object) -> Response:
        assert isinstance(request, HTTPRequest)
        if request.method not in ("GET", "HEAD"):
            return _not_allowed()
        accept = request.headers.get("accept", "")
        content_type, body = await trio.to_thread.run_sync(render_metrics, self._scraped, accept)
        return _response(200, body, content_type)


class _HealthAnswer(Actor):
    def __init__(self, health: Health) -> None:
        self._health = health

    async def handle_call(self, request: object, caller: object) -> Response:
        assert isinstance(request, HTTPRequest)
        if request.method not in ("GET", "HEAD"):
            return _not_allowed()
        path = "/" + "/".join(request.path)
        status, body = await trio.to_thread.run_sync(self._health.answer, path)
        return _response(status, body, "application/json")


def _response(status: int, body: bytes, content_type: str) -> Response:
    return Response(status, body, [("content-type", content_type), ("cache-control", "no-store")])


def _not_allowed() -> Response:
    return HTTPError(405, headers=[("allow", "GET, HEAD")]).response


show_public_names(__name__)
