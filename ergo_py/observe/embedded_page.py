"""`Observe`: the page of a node, served from a thread of its program."""

import os
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from .._core.node_lifecycle import read_permissions
from .._core.verbs.node_access import kernel_of
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.options import Rereadable, check_flag, read_now
from .._core.vocabulary.public_names import show_public_names
from ..blocking.loop_thread import open_node
from ..meta.sockets.tcp import check_endpoint
from ..meta.sockets.tls import TLSFiles
from ..telemetry import Health
from .node_list import Plan
from .server import Listening, Server, Url, check_address, new_token, probes_of

__all__ = ["Observe"]

_VARIABLE: Final = "ERGO_OBSERVE_TOKEN"
_CLOSING: Final = 5.0
"""Seconds that the end of the page may take."""


class Observe:
    """The observer page of a node, on a port of its own, for ``open_node(beside=[…])``.

    For example::

        async with open_node("shop@localhost", beside=[Observe(port=9911)]) as node:
            ...

    The page runs in a thread with a loop of its own, and looks through the node's control socket.
    So it goes on while the node's loop is blocked, and costs nothing while no page is open. The
    address of the page, with its secret token, is ``observe.url``; at a terminal it is printed.

    Args:
        port: the port, or 0 for a free port.
        host: the address to listen at. Another than loopback needs ``tls`` or ``insecure``.
        permit: the permissions of pages: ``look``, or ``look,act``; or a function that returns
            them, which ``node.reload()`` calls again.
        metrics: serve ``/metrics``, without a token.
        health: serve ``/healthz``, ``/readyz`` and ``/startupz``, without a token.
        checks: own checks of ``/readyz``, as for ``Health``.
        tls: ``TLSFiles(certificate, key)`` or an ``ssl.SSLContext``; None for no TLS.
        insecure: listen without TLS at an address that other machines reach.
        hosts: further names under which the page may be asked for.
        token: the secret of the page; by default the environment variable ``ERGO_OBSERVE_TOKEN``,
            or a new secret for each start.

    Raises:
        BadInputError: a value is wrong.
    """

    def __init__(
        self,
        port: int = 9911,
        *,
        host: str = "127.0.0.1",
        permit: Rereadable[str | Sequence[str]] = "look",
        metrics: bool = False,
        health: bool = False,
        checks: Mapping[str, Any] | None = None,
        tls: ssl.SSLContext | TLSFiles | None = None,
        insecure: bool = False,
        hosts: Sequence[str] = (),
        token: str | None = None,
    ) -> None:
        check_endpoint("Observe", host, port, least=0)
        for name, flag in (("metrics", metrics), ("health", health), ("insecure", insecure)):
            check_flag(f"Observe({name})", flag)
        check_address(host, tls, insecure)
        if token is not None and (not isinstance(token, str) or len(token) < 16):
            raise BadInputError("Observe(token)", "…", "a secret of at least 16 characters")
        self._host = host
        self._port = port
        self._permit = permit
        self._read_permit()
        self._metrics = metrics
        self._health = health
        self._checks = checks or {}
        self._tls = tls
        self._hosts = hosts
        self._is_given = token is not None or bool(os.environ.get(_VARIABLE))
        self._token = token or os.environ.get(_VARIABLE) or new_token()
        self.url: str = ""
        """The address of the page, while it is open."""

    @property
    def control(self) -> frozenset[str]:
        """The permissions that it needs of the node's control socket."""
        return frozenset({"look"}) | self._may

    def _read_permit(self) -> None:
        given = read_now(self._permit)
        permissions = read_permissions(given)
        if not permissions or "attach" in permissions:
            raise BadInputError("Observe(permit)", given, "'look', or 'look,act'")
        self._may = permissions
        """The permissions of pages now."""

    def open(self, node: Any) -> Callable[[], object]:
        """Serve the page of a node whose control socket is open; return the function that ends it.
        Blocks this thread for a moment.

        Raises:
            BadInputError: the port is taken.
        """
        path: Path = node.control_path
        plan = Plan(self._token, lambda: self._may, lambda _name, found: found == path)
        health = Health(node, checks=self._checks) if self._health else None
        listening = Listening(
            self._host,
            self._port,
            self._tls,
            self._hosts,
            probes_of(node, metrics=self._metrics, health=health),
        )
        own = open_node(f"observe-{node.name}", watchdog=None)
        try:
            server = own.spawn(Server, plan, listening)
            self.url = own.call(server, Url())
        except BaseException as error:
            own.close()
            cause = error.__cause__ or error
            if isinstance(cause, OSError):
                raise BadInputError(
                    "Observe(port)", self._port, f"a free port of {self._host}: {cause}"
                ) from error
            raise
        kernel = kernel_of(node)
        kernel.router.bridge.run(kernel.add_setting, "Observe(permit)", self._read_permit)
        if not self._is_given and sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write(f"observer page: {self.url}\n")
        return lambda: own.close(_CLOSING)


show_public_names(__name__)
