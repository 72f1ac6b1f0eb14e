"""`NatsCarrier`: carries the frames of a node over NATS.

A frame from ``a`` to ``b`` is published to ``ergo.<cluster>.n.<b>.<a>``, and each node subscribes
to ``ergo.<cluster>.n.<me>.*``. With permissions that let a node publish as itself only, the server
vouches for the sender. If no node listens, the server says so to the reply subject,
``ergo.<cluster>.x.<me>.<to>``. A node looks for others with ``ergo.<cluster>.d.<me>``. Answers of
JetStream, which keeps the names of the cluster, come to ``ergo.<cluster>.x.<me>.<number>``.
"""

import json
from collections.abc import Sequence
from ssl import SSLContext
from typing import Final
from urllib.parse import quote, unquote

import trio
from trio.lowlevel import Task

from ...._core.kernel import Kernel
from ...errors import NodeNameTakenError
from ...stores.nats_store import NatsStore, subjects_of_store
from ..carrier import Sink
from .client import Client
from .login import Credentials, ServerAddress
from .wire import Message, ServerInfo, publish_head

__all__ = ["NatsCarrier", "subjects_of"]

# The numbers of the subscriptions, in the order of `subjects_of`.
_FRAMES: Final = 1
_HINTS: Final = 2

# The first byte of a message tells its kind.
_FRAME: Final = b"f"
_PROBE: Final = b"p"
_CLAIM: Final = b"c"
_PRESENT: Final = b"d"

_OPERATION: Final = 48 << 10
"""Bytes of the longest operation of a frame: the smallest servers that are accepted take it."""
_NO_RESPONDERS: Final = 503


def token(name: str) -> str:
    """The name of a node or of a cluster as a token of a subject."""
    return quote(name, safe="@").replace(".", "%2E")


def subjects_of(cluster: str, node: str, may_create: bool = False) -> tuple[list[str], list[str]]:
    """The subjects that a node publishes and subscribes to: all the permissions that it needs; with
    ``may_create``, also those to make the bucket of names.
    """
    prefix, me = f"ergo.{token(cluster)}", token(node)
    publishes = [f"{prefix}.n.*.{me}", f"{prefix}.d.{me}", *subjects_of_store(cluster, may_create)]
    subscribes = [f"{prefix}.n.{me}.*", f"{prefix}.x.{me}.*", f"{prefix}.d.*"]
    return publishes, subscribes


class NatsCarrier:
    """The end of a node in a network over NATS."""

    def __init__(
        self,
        kernel: Kernel,
        servers: Sequence[ServerAddress],
        cluster: str,
        credentials: Credentials | None,
        context: SSLContext | None,
        tls_first: bool,
        patience: float,
        grace: float,
    ) -> None:
        self.max_operation = _OPERATION
        self._logger = kernel.logger
        self._name = kernel.pid.node
        self._me = token(self._name)
        self._prefix = f"ergo.{token(cluster)}"
        self._rank = [1, kernel.pid.creation, kernel.chance("name").bits(48)]
        """Of two nodes with the same name, the node with the lower rank keeps it: a node that is
        open comes before a node that opens, then the older.
        """
        self._patience = patience
        self._grace = grace
        self._sink: Sink | None = None
        self._nursery: trio.Nursery | None = None
        self._subjects: dict[str, bytes] = {}
        """The first bytes of a publication with the subjects for frames and for hints, by the names
        of the nodes that got frames.
        """
        self._senders: dict[str, str] = {}
        """The nodes at the ends of subjects."""
        self._absent: dict[str, float] = {}
        """When the server first said that a connected node does not listen."""
        self._searches: list[set[str]] = []
        self._connected = trio.Event()
        self._graced_until = 0.0
        """Until then, other nodes may still be connecting again."""
        self._is_offline = False
        self._is_alone = trio.Event()
        """The server says that no other node listens under this name."""
        self._is_decided = trio.Event()
        """This node is alone under its name, or has lost it."""
        self._claimed_at = 0.0
        """When this node, or a younger node that will leave, last claimed the name."""
        self.taken = ""
        """Why this node has lost its name."""
        self._has_lost = trio.Event()
        self.client = Client(
            servers,
            self,
            name=self._name,
            subscriptions=subjects_of(cluster, self._name)[1],
            credentials=credentials,
            context=context,
            tls_first=tls_first,
            patience=patience,
        )

        self._store = NatsStore(
            self.client, cluster, f"{self._prefix}.x.{self._me}", kernel.logger.warning
        )

    def store(self) -> NatsStore:
        """The store of the cluster."""
        return self._store

    # -- lifecycle ---------------------------------------------------------------------------------

    async def run(self, sink: Sink, *, task_status: trio.TaskStatus[None]) -> None:
        """Carry frames until cancelled."""
        self._sink = sink
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                async with trio.open_nursery() as connection:
                    connection.start_soon(self.client.run)
                    await self._claim_first()
                    task_status.started()
                    while not self._has_lost.is_set():
                        with trio.move_on_after(self._patience):
                            await self._has_lost.wait()
                        self._claim()
                    connection.cancel_scope.cancel()
                self._logger.error("this node has left its network", reason=self.taken)
                for node in list(self._subjects):
                    sink.unreachable(node, self.taken)
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def _claim_first(self) -> None:
        await self._connected.wait()
        self._claimed_at = trio.current_time()
        while trio.current_time() < self._claimed_at + 2 * self._grace:
            if self._has_lost.is_set():
                break
            if self._is_alone.is_set():
                return
            with trio.move_on_after(0.1):
                await self._is_decided.wait()
                continue
            self._claim()
        raise NodeNameTakenError(
            self.taken
            or f"another client of the server listens under the name {self._name!r} and does not "
            "answer; give each node its own name"
        )

    def _claim(self) -> None:
        """Ask for other nodes with this name."""
        me = self._me
        self.client.publish(
            f"{self._prefix}.n.{me}.{me}",
            f"{self._prefix}.x.{me}.{me}",
            _CLAIM + json.dumps(self._rank).encode(),
        )

    def _receive_claim(self, data: bytes) -> None:
        try:
            other = json.loads(data)
            is_older = other < self._rank
        except (ValueError, TypeError, RecursionError):
            return
        if is_older:
            self.taken = f"an older node has the name {self._name!r}; give each node its own name"
            self._has_lost.set()
            self._is_decided.set()
        else:
            self._claimed_at = trio.current_time()
            self._claim()  # the other node compares, and leaves

    async def flush(self) -> None:
        """Wait until the server has got all frames. If the connection were closed before, the
        operating system could throw frames away that wait to be sent.
        """
        await self.client.flush()

    # -- sending -----------------------------------------------------------------------------------

    def send(self, to: str, frame: bytes) -> None:
        """Carry a frame to a node. Dropped while there is no connection to a server."""
        if self._nursery is None:  # the node goes down
            return
        if self.taken:
            self._nursery.start_soon(self._refuse, to, self.taken)
        else:
            self._publish(to, _FRAME, frame)

    def _publish(self, to: str, kind: bytes, payload: bytes) -> None:
        head = self._subjects.get(to)
        if head is None:
            place, prefix = token(to), self._prefix
            head = publish_head(f"{prefix}.n.{place}.{self._me}", f"{prefix}.x.{self._me}.{place}")
            self._subjects[to] = head
        self.client.send(b"%b%d\r\n%b%b\r\n" % (head, len(kind) + len(payload), kind, payload))

    async def _refuse(self, to: str, why: str) -> None:
        self._fail(to, why)

    def _fail(self, to: str, why: str) -> None:
        self._subjects.pop(to, None)
        self._absent.pop(to, None)
        if self._sink is not None:
            self._sink.unreachable(to, why)

    async def discover(self, seconds: float, /) -> list[str]:
        """Ask all nodes of the cluster for their names, and wait for the answers."""
        found: set[str] = set()
        self._searches.append(found)
        try:
            self.client.publish(f"{self._prefix}.d.{self._me}", "", b"")
            await trio.sleep(seconds)
        finally:
            self._searches.remove(found)
        return sorted(found)

    # -- the client --------------------------------------------------------------------------------

    def connected(self, info: ServerInfo) -> None:
        """The client is connected, perhaps again, and perhaps to another server."""
        self._absent.clear()
        if self._connected.is_set():
            self._is_offline = False
            self._graced_until = trio.current_time() + self._grace
            self._logger.info("the NATS server is connected again", server=info.name)
            self._store.reconnected()
            self._claim()
            for node in list(self._subjects):
                if self._sink is not None:
                    self._sink.connected(node)
        else:
            self._connected.set()
            self._claim()

    def disconnected(self, why: str) -> None:
        """The connection is lost. The client connects again."""
        if not self._is_offline:
            self._is_offline = True
            self._logger.warning("the NATS server is lost", reason=why)
        else:
            self._logger.debug("the NATS server cannot be reached", reason=why)

    def refused(self, text: str) -> None:
        """The server has refused to publish or to subscribe."""
        self._store.refuse(text)
        if self._sink is not None:
            self._sink.log_once(
                f"the NATS server refuses an operation: {text}",
                "`ergo nats permissions` prints the permissions that a node needs",
            )

    def begin_pass(self, reader: Task) -> None:
        """The client hands over all messages that have arrived together."""
        if self._sink is not None:
            self._sink.begin_pass(reader)

    def end_pass(self, reader: Task) -> bool:
        """The client has handed them over. True if no other task is ready to run."""
        return self._sink is not None and self._sink.end_pass(reader)

    def message(self, message: Message) -> None:
        """Take a message of another node, or a hint of the server."""
        subject, subscription, _, _, payload = message
        sender = self._senders.get(subject) or self._sender(subject)
        if subscription == _FRAMES:
            if payload[:1] == _FRAME and sender != self._name:
                if self._absent:
                    self._absent.pop(sender, None)
                if self._sink is not None:
                    self._sink.frame(sender, memoryview(payload)[1:])
            else:
                self._receive(sender, payload)
        elif message.subscription == _HINTS:
            if sender.isdigit():  # the name of a node has an @
                self._store.receive(sender, message.status, message.payload)
            elif message.status == _NO_RESPONDERS:
                self._note_absent(sender)
        elif sender != self._name:
            self.client.publish(f"{self._prefix}.n.{token(sender)}.{self._me}", "", _PRESENT)

    def _sender(self, subject: str) -> str:
        """The node at the end of a subject."""
        if len(self._senders) >= 10_000:
            self._senders.clear()
        name = self._senders[subject] = unquote(subject.rpartition(".")[2])
        return name

    def _receive(self, sender: str, payload: bytes) -> None:
        kind = payload[:1]
        if sender == self._name:
            if kind == _CLAIM:
                self._receive_claim(payload[1:])
        elif kind == _PRESENT:
            for found in self._searches:
                found.add(sender)

    def _note_absent(self, node: str) -> None:
        """The server says that no client listens under the name of a node."""
        if node == self._name:
            # The node is open from this moment on: a claim that follows in the same turn of the
            # reader must find it so.
            if not self._has_lost.is_set():
                self._rank[0] = 0
                self._is_alone.set()
                self._is_decided.set()
            return
        if self._sink is None or self._nursery is None:
            return
        now = trio.current_time()
        if not self._sink.is_up(node):
            if now >= self._graced_until:
                self._fail(node, "no such node in the cluster")
            return
        # A connected node may only be connecting to the server again.
        first = self._absent.get(node)
        if first is None:
            self._absent[node] = now
            self._nursery.start_soon(self._probe_later, node)
        elif now >= first + self._grace:
            self._fail(node, "its program has ended")

    async def _probe_later(self, node: str) -> None:
        await trio.sleep(self._grace)
        if node in self._absent:
            self._publish(node, _PROBE, b"")
