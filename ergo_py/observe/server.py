"""`Server`: the actor that owns the web server of the page, its files and its list of nodes."""

import hashlib
import secrets
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from ipaddress import ip_address
from mimetypes import guess_type
from typing import Any, Final

from .._core.vocabulary.errors import BadInputError
from ..actor import Actor
from ..meta.sockets.messages import Endpoint
from ..meta.sockets.tls import TLSFiles
from ..telemetry import HealthPage, MetricsPage
from ..web import HTTPError, HTTPRequest, Route, WebServer
from ..web import Response as HTTPResponse
from .node_list import NodeList, Plan
from .strangers import Strangers
from .viewer import Viewer

__all__ = ["Listening", "Server", "Url", "check_address", "new_token"]

_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
_HEADERS: Final = (
    ("content-security-policy", _CSP),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-embedder-policy", "require-corp"),
    ("permissions-policy", "camera=(), microphone=(), geolocation=()"),
    ("cache-control", "no-cache"),
)
_MESSAGE: Final = 64 * 1024
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")


def new_token() -> str:
    """A secret for the address of the page."""
    return secrets.token_urlsafe(24)


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the page listens."""

    host: str = "127.0.0.1"
    port: int = 9911
    tls: ssl.SSLContext | TLSFiles | None = None
    hosts: Sequence[str] = ()
    """Further names of this host that requests may use."""
    probes: dict[str, Any] = field(default_factory=dict)
    """The targets of further routes: metrics and probes."""


def check_address(host: str, tls: object, insecure: bool) -> None:
    """Refuse an address that other machines reach, unless the connection is secured.

    Raises:
        BadInputError: there is neither TLS nor the word that none is wanted.
    """
    if not _is_loopback(host) and tls is None and not insecure:
        raise BadInputError(
            "host",
            host,
            "127.0.0.1; for other machines Observe(tls=TLSFiles(certificate, key)); or, if the "
            "network is trusted, insecure=True or --insecure",
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Url:
    """Ask the server for its address, with the token in the fragment."""


class Server(Actor):
    """Serves the page. Its files need no token and hold no data; the data comes over a WebSocket,
    after the token.
    """

    def __init__(self, plan: Plan, listening: Listening) -> None:
        self._plan = plan
        self._listening = listening
        self._url = ""

    async def init(self) -> None:
        """Listen."""
        listening = self._listening
        node_list = await self.spawn(partial(NodeList, self._plan))
        version = _version()
        is_loopback = _is_loopback(listening.host)
        names = _names(listening)
        files = await self.spawn(partial(_Files, None if is_loopback else names))
        server = WebServer(
            listening.host,
            listening.port,
            tls=listening.tls,
            max_connections=64,
            hosts=names if is_loopback else None,
            routes=[
                Route("/", to=files, methods=["GET"], max_body=0),
                Route(
                    "/ws",
                    websocket=partial(Viewer, node_list, Strangers(), self._plan, version),
                    max_message=_MESSAGE,
                    accept=None if is_loopback else partial(_check_host, names),
                ),
                *(
                    Route(f"/{name}", to=target, methods=["GET"], max_body=0)
                    for name, target in listening.probes.items()
                ),
            ],
        )
        await self.spawn_meta(server)
        self._url = _url(listening, server.local, self._plan.token)

    def handle_call(self, request: object, caller: object) -> object:
        """Tell the address of the page."""
        return self._url if isinstance(request, Url) else None


def _names(listening: Listening) -> list[str]:
    """The names that requests may use for this host."""
    host = listening.host
    own = f"[{host}]" if ":" in host else host
    return [*_LOOPBACK, own, *listening.hosts]


def _check_host(names: Sequence[str], request: HTTPRequest) -> HTTPError | None:
    host = request.host
    name = host[: host.index("]") + 1] if host.startswith("[") else host.partition(":")[0]
    if name.lower().rstrip(".") in {each.lower() for each in names}:
        return None
    return HTTPError(421, "this page is not served under that name; see hosts=")


def _url(listening: Listening, local: Endpoint, token: str) -> str:
    scheme = "http" if listening.tls is None else "https"
    host = "127.0.0.1" if listening.host in ("0.0.0.0", "localhost") else listening.host
    return f"{scheme}://{Endpoint(host, local.port)}/#token={token}"


def _version() -> str:
    try:
        return metadata.version("ergo_py")
    except metadata.PackageNotFoundError:
        return ""


class _Files(Actor):
    """The files of the page, which it reads once."""

    def __init__(self, names: Sequence[str] | None) -> None:
        self._names = names
        self._files: dict[tuple[str, ...], tuple[bytes, str, str]] = {}

    def init(self) -> None:
        _read_folder(resources.files("ergo_py.observe") / "page", (), self._files)

    def handle_call(self, request: object, caller: object) -> object:
        assert isinstance(request, HTTPRequest)
        refusal = None if self._names is None else _check_host(self._names, request)
        if refusal is not None:
            return refusal.response
        path = request.path if request.path not in ((), ("",)) else ("index.html",)
        found = self._files.get(path)
        if found is None:
            return HTTPResponse(404, "there is no such file", [*_HEADERS])
        content, kind, tag = found
        headers = [*_HEADERS, ("etag", tag)]
        known = [each.strip(" \t") for each in request.headers.get("if-none-match", "").split(",")]
        if tag in known:
            return HTTPResponse(304, b"", headers)
        return HTTPResponse(200, content, [*headers, ("content-type", kind)])


def _read_folder(
    folder: Traversable,
    parts: tuple[str, ...],
    found: dict[tuple[str, ...], tuple[bytes, str, str]],
) -> None:
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.is_dir():
            _read_folder(entry, (*parts, entry.name), found)
        elif not entry.name.endswith(".py"):
            content = entry.read_bytes()
            kind = _KINDS.get(entry.name.rpartition(".")[2]) or guess_type(entry.name)[0]
            tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            found[*parts, entry.name] = (content, kind or "application/octet-stream", tag)


_KINDS: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}


def probes_of(node: object, *, metrics: bool, health: object) -> dict[str, Any]:
    """The targets of the routes for metrics and probes. They read the node from a thread, so they
    answer also while its loop is blocked.
    """
    found: dict[str, Any] = {}
    if metrics:
        found["metrics"] = MetricsPage(node)
    if health is not None:
        page = HealthPage(health)
        found |= {"healthz": page, "readyz": page, "startupz": page}
    return found
