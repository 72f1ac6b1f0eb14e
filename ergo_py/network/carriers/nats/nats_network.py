"""`NATS`: a network of nodes on any machines, over the servers of a NATS cluster."""

import os
import ssl
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from types import ModuleType

from ...._core.kernel import Kernel
from ...._core.vocabulary.errors import BadInputError
from ...._core.vocabulary.options import Rereadable, check_number
from ...._core.vocabulary.public_names import show_public_names
from ....meta.sockets.tls import TLSContexts, TLSFiles
from ...access.permits import Allow
from ...access.spawns import SpawnList
from ...network import Network
from ...settings import NetworkSettings
from .carrier import NatsCarrier
from .login import URL_WISH, Credentials, ServerAddress, without_login

__all__ = ["NATS"]


class NATS:
    """The network of all nodes that are connected to a NATS server or cluster.

    For example::

        network = NATS("nats://127.0.0.1:4222", cluster="shop", types=[messages])
        async with open_node("orders@berlin", network=network) as node:
            total = await node.call(Name("counter", "stock@paris"), Total())

    A broken connection, a restarted server or a change to another server is invisible to processes,
    if it takes less than ``patience`` seconds.

    Args:
        urls: the addresses of servers of one NATS cluster, as a list or with commas between:
            ``nats://host:4222``, ``tls://host``, ``nats://user:password@host``. Further servers
            that these name are used, too.
        cluster: nodes of the same name meet, so that several clusters can share a server.
        types: the classes of messages that travel, or modules that define them.
        credentials: a file with the credentials of this node, ``.creds`` or an nkey. It is read
            at each login, so another program may renew it.
        tls: a TLS context, or the file of the authority that has signed the certificate of the
            server; if the file changes, later connections use the new content. None uses the
            authorities of the system for ``tls://``.
        tls_first: encrypt before the server greets, as a server with ``handshake_first`` wants.
        beat: seconds between the heartbeats of an idle session.
        patience: a break of the connection that is shorter than this is invisible. A node that
            is silent for longer than this, a beat and the ``grace`` is down.
        grace: seconds that a node may take to connect to the server again after a break.
        backlog: bytes that may wait for a node before ``send`` refuses.
        window: bytes that may be on the way to a node.
        spawns: the behaviours that other nodes may start here, by name, as in
            ``spawns={"worker": Worker}``. A node needs the permit ``spawn`` as well.
        allow: the acts that other nodes are permitted, by patterns of their names; the name
            itself counts first, then the longest pattern that fits. The permits are ``send``,
            ``call``, ``watch``, ``exit``, ``forward``, which all nodes have by ``default``, and
            ``look``, ``kill``, ``spawn``, as in ``allow={"ops@*": "default,look"}``; or
            a function that returns this, which ``node.reload()`` calls again.
        max_calls: calls between two nodes, in each direction, that may wait for an answer.
        max_watches: processes, names and events of a node that another node may watch.
        compress: compress frames from 1 KiB on to other nodes that ask for this, too, if they
            become smaller. It costs time of the loop, and saves bytes of a slow line.

    Raises:
        BadInputError: a value is invalid.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        *,
        cluster: str = "ergo",
        types: Iterable[type | ModuleType] = (),
        credentials: str | os.PathLike[str] | None = None,
        tls: ssl.SSLContext | str | os.PathLike[str] | None = None,
        tls_first: bool = False,
        beat: float = 1.0,
        patience: float = 5.0,
        grace: float = 1.0,
        backlog: int = 16 << 20,
        window: int = 1 << 20,
        spawns: SpawnList | None = None,
        allow: Rereadable[Allow] | None = None,
        max_calls: int = 100_000,
        max_watches: int = 100_000,
        compress: bool = False,
    ) -> None:
        check_number("grace", grace, least=0.001)
        self._settings = NetworkSettings(
            types,
            beat,
            patience,
            backlog,
            window,
            spawns,
            allow,
            max_calls,
            max_watches,
            grace,
            compress,
        )
        self._servers = _servers(urls, is_tls=tls is not None or tls_first)
        if not isinstance(cluster, str) or not cluster.strip():
            raise BadInputError("cluster", cluster, "the name of a cluster, such as 'shop'")
        if grace > patience:
            raise BadInputError("grace", grace, f"at most the patience of {patience:g} s")
        self.hooks: tuple[()] = ()
        """Messages between processes of a node are never encoded."""
        self._cluster = cluster
        self._credentials = None if credentials is None else Credentials(credentials)
        self._tls = _contexts(tls)
        self._tls_first = tls_first
        self._patience = patience
        self._grace = grace

    def __repr__(self) -> str:
        urls = ",".join(map(str, self._servers))
        return f"NATS({urls!r}, cluster={self._cluster!r})"

    def join_network(self, kernel: Kernel) -> Network:
        """Make the network of a node that opens."""
        for server in self._servers:
            if not server.is_tls and not server.is_loopback:
                kernel.logger.warning(
                    "messages to the NATS server are not encrypted; write tls:// in its URL",
                    server=str(server),
                )

        def cannot_read(error: Exception) -> None:
            kernel.logger.error(
                "the authorities have changed and cannot be read; the old ones stay in use",
                error=str(error),
            )

        if self._tls is not None:
            kernel.add_setting("NATS(tls)", self._tls.reload)
        carrier = NatsCarrier(
            kernel,
            self._servers,
            self._cluster,
            self._credentials,
            None if self._tls is None else partial(self._tls.current, cannot_read),
            self._tls_first,
            self._patience,
            self._grace,
        )
        return self._settings.make(kernel, carrier)


def _servers(urls: object, is_tls: bool) -> list[ServerAddress]:
    if isinstance(urls, str):
        pieces = [url.strip() for url in urls.split(",") if url.strip()]
        if len(pieces) > 1 and any("@" in piece and "://" not in piece for piece in pieces):
            # A comma inside of a password: each piece, also one that looks like an address, may be
            # a part of the password.
            raise BadInputError("urls", without_login(urls), URL_WISH)
        urls = pieces
    if not isinstance(urls, Iterable) or not (listed := list(urls)):
        raise BadInputError(
            "urls", type(urls), "the URLs of servers, such as 'nats://127.0.0.1:4222'"
        )
    servers = [ServerAddress.parse(url) for url in listed]
    return [replace(server, is_tls=True) for server in servers] if is_tls else servers


def _contexts(tls: object) -> TLSContexts | None:
    if tls is None:
        return None
    if isinstance(tls, ssl.SSLContext):
        return TLSContexts(tls, server_side=False)
    if not isinstance(tls, str | os.PathLike):
        raise BadInputError("tls", tls, "an ssl.SSLContext, or the path of a file of authorities")
    try:
        return TLSContexts(TLSFiles(authorities=tls), server_side=False)
    except OSError as error:
        raise BadInputError("tls", tls, f"a readable file of authorities ({error})") from None


show_public_names(__name__)
