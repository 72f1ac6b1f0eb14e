"""`NatsCarrier`: carries the frames of a node over NATS.

A frame from ``a`` to ``b`` is published to ``ergo.<cluster>.n.<b>.<a>``, and each node subscribes
to ``ergo.<cluster>.n.<me>.*``. With permissions that let a node publish as itself only, the server
vouches for the sender. If no node listens, the server says so to the reply subject,
``ergo.<cluster>.x.<me>.<to>``. A node looks for others with ``ergo.<cluster>.d.<me>``. Answers of
JetStream, which keeps the names of the cluster, come to ``ergo.<cluster>.x.<me>.<random token>``.

Of several nodes with one name, a single node is a member of the network; the others leave it, and
try again with a pause. A node whose connection broke is a member again when the server says that no
other node listens under its name, or when no other node has answered for a while.
"""

import json
from collections.abc import Callable, Sequence
from math import inf
from ssl import SSLContext
from typing import Final
from urllib.parse import quote, unquote

import trio
from trio.lowlevel import Task

from ...._core.kernel import Kernel
from ...carrier import Sink
from ...errors import NetworkError, NodeNameTakenError
from ...stores.nats_store import NatsStore, subjects_of_store
from .client import Client
from .login import Credentials, ServerAddress
from .wire import Message, ServerInfo, publish_head

__all__ = ["NatsCarrier", "subjects_of"]

# The numbers of the subscriptions, in the order of `subjects_of`.
_FRAMES: Final = 1
_HINTS: Final = 2

# The first byte of a message tells its kind. Kinds are letters, and never become a "{": any node
# can let JetStream send its answers, which are JSON objects, to the subjects of another node.
_FRAME: Final = b"f"
_CLAIM: Final = b"c"
_PRESENT: Final = b"d"

_OPERATION: Final = 48 << 10
"""Bytes of the longest operation of a frame: the smallest servers that are accepted take it."""
_NO_RESPONDERS: Final = 503

# How well a node is entitled to its name, the best first. A program that was stopped or cut off
# does not take its name back from a successor that has served meanwhile.
_MEMBER: Final = 0
_RETURNS: Final = 1
"""It was a member until its connection broke. Of two such nodes, the younger has served last."""
_LATE: Final = 2
"""The same, and it was away for longer than the patience."""
_OPENS: Final = 3
_LEFT: Final = 4
"""It has left the network before, and tries to join it again."""

_HOLD: Final = 0.2
"""Seconds for which a node that connects again carries no frames if the server does not say that it
is alone: another node of its name may answer. Usually this takes a round trip to the server. Frames
to a node with a successor would end the sessions of the successor.
"""
_PAUSE: Final = 10.0
"""Seconds between the attempts of a node that has left the network to join it again."""
_DISCOVERY: Final = 1.0
"""Seconds in which a node answers a single discovery of another node."""
_SEARCHERS: Final = 1000
"""How many nodes a node answers in that time."""


def token(name: str) -> str:
    """The name of a node or of a cluster as a token of a subject."""
    return quote(name, safe="@", errors="backslashreplace").replace(".", "%2E")


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
        self._creation = kernel.pid.creation
        self._lot = kernel.chance("name").bits(48)
        """Decides between two nodes that were started in the same moment."""
        self._title = _OPENS
        """How well this node is entitled to its name."""
        self._returned_at = -inf
        """When this node has connected again."""
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
        self._searches = 0
        """How many searches for other nodes are under way."""
        self._found: dict[str, float] = {}
        """The nodes that have answered a search, and when."""
        self._answered: dict[str, float] = {}
        """The nodes whose searches this node has answered within `_DISCOVERY`, the first first."""
        self._is_member = False
        """This node has its name for itself: it carries frames."""
        self._connected = trio.Event()
        self._is_offline = False
        self._is_alone = trio.Event()
        """The server says that no other node listens under this name."""
        self._is_decided = trio.Event()
        """This node is alone under its name, or has lost it."""
        self._claimed_at = 0.0
        """When this node, or a younger node that will leave, last claimed the name."""
        self.taken = ""
        """Why this node has left the network."""
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
            self.client,
            cluster,
            f"{self._prefix}.x.{self._me}",
            kernel.logger.warning,
            lambda: kernel.chance("requests to the store").bits(128),
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
                await self._take_part(task_status.started)
                while True:
                    self._is_member, self._title = False, _LEFT
                    sink.left(self.taken)
                    await self._take_part_again(sink)
            finally:
                self._nursery = None

    async def _take_part_again(self, sink: Sink) -> None:
        """Join the network when the name is free, and be a member until another node has it."""

        def joined() -> None:
            self.taken = ""
            sink.joined()

        while self._title == _LEFT:
            await trio.sleep(_PAUSE)
            try:
                await self._take_part(joined)
            except* NetworkError as group:
                self._logger.debug("this node cannot join its network", error=str(group))

    async def _take_part(self, joined: Callable[[], None]) -> None:
        """Connect, claim the name, and be a member of the network until the name is lost."""
        self._connected, self._has_lost = trio.Event(), trio.Event()
        self._is_alone, self._is_decided = trio.Event(), trio.Event()
        async with trio.open_nursery() as connection:
            connection.start_soon(self.client.run)
            await self._connected.wait()
            await self._claim_first()
            if self._title == _LEFT:
                # The member may only be connecting to the server again: it comes first.
                with trio.move_on_after(self._patience + self._grace):
                    await self._has_lost.wait()
                    raise NodeNameTakenError(self.taken)
            self._title, self._is_member = _MEMBER, True
            joined()
            while not self._has_lost.is_set():
                with trio.move_on_after(self._patience):
                    await self._has_lost.wait()
                self._claim()
            connection.cancel_scope.cancel()

    async def _claim_first(self) -> None:
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
            _CLAIM + json.dumps(self._rank()).encode(),
        )

    def _rank(self) -> list[int]:
        """Of two nodes with the same name, the node with the lower rank keeps it."""
        age = -self._creation if self._title in (_RETURNS, _LATE) else self._creation
        return [self._title, age, self._lot]

    def _receive_claim(self, data: bytes) -> None:
        try:
            other = json.loads(data)
        except (ValueError, RecursionError):
            return
        if type(other) is not list or [type(value) for value in other] != [int, int, int]:
            return
        if other < self._rank():
            self.taken = f"another node has the name {self._name!r}; give each node its own name"
            self._is_member = False
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
        if self._is_member:
            self._publish(to, frame)
        elif self.taken:
            self._nursery.start_soon(self._refuse, to, self.taken)

    def _publish(self, to: str, frame: bytes) -> None:
        head = self._subjects.get(to)
        if head is None:
            place, prefix = token(to), self._prefix
            head = publish_head(f"{prefix}.n.{place}.{self._me}", f"{prefix}.x.{self._me}.{place}")
            self._subjects[to] = head
        self.client.send(b"%b%d\r\n%b%b\r\n" % (head, 1 + len(frame), _FRAME, frame))

    async def _refuse(self, to: str, why: str) -> None:
        self._fail(to, why)

    def _fail(self, to: str, why: str) -> None:
        self._subjects.pop(to, None)
        if self._sink is not None:
            self._sink.unreachable(to, why)

    async def discover(self, seconds: float, /) -> list[str]:
        """Ask all nodes of the cluster for their names, and wait for the answers."""
        since = trio.current_time() - _DISCOVERY
        # A node that has answered within this time does not answer now.
        self._found = {node: at for node, at in self._found.items() if at > since}
        self._searches += 1
        try:
            with trio.move_on_after(seconds):
                while True:
                    self.client.publish(f"{self._prefix}.d.{self._me}", "", b"")
                    await trio.sleep(1.1 * _DISCOVERY)
        finally:
            self._searches -= 1
        return sorted(node for node, at in self._found.items() if at > since)

    def _answer_discovery(self, node: str) -> None:
        """Tell a node that looks for others of this node, once in `_DISCOVERY`."""
        now, answered = trio.current_time(), self._answered
        while answered and next(iter(answered.values())) <= now - _DISCOVERY:
            del answered[next(iter(answered))]
        if node not in answered and len(answered) < _SEARCHERS:
            answered[node] = now
            self.client.publish(f"{self._prefix}.n.{token(node)}.{self._me}", "", _PRESENT)

    # -- the client --------------------------------------------------------------------------------

    def connected(self, info: ServerInfo) -> None:
        """The client is connected, perhaps again, and perhaps to another server."""
        self._store.reconnected()
        if not self._connected.is_set():
            self._connected.set()
        else:
            self._is_offline = False
            self._returned_at = now = trio.current_time()
            self._logger.info("the NATS server is connected again", server=info.name)
            if self._title <= _LATE:
                is_late = now > self.client.heard_at + self._patience
                self._title = _LATE if is_late else _RETURNS
            if self._is_member and self._nursery is not None:
                self._is_member = False
                self._nursery.start_soon(self._resume_later, self.client.connected)
        self._claim()

    async def _resume_later(self, connected: int) -> None:
        await trio.sleep(_HOLD)
        if self.client.connected == connected:
            self._resume()

    def _resume(self) -> None:
        """Be a member again, after the connection was lost."""
        is_held = not self._is_member and self._title <= _LATE and not self.taken
        if is_held and self._sink is not None:
            self._is_member = True
            for node in list(self._subjects):
                self._sink.connected(node)

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
                if self._is_member and self._sink is not None:
                    self._sink.frame(sender, memoryview(payload)[1:])
            else:
                self._receive(sender, payload)
        elif message.subscription == _HINTS:
            if "@" not in sender:  # the name of a node has an @
                self._store.receive(sender, message.status, message.payload)
            elif message.status == _NO_RESPONDERS:
                self._note_absent(sender)
        elif sender != self._name and self._is_member:
            self._answer_discovery(sender)

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
        elif kind == _PRESENT and self._searches:
            self._found[sender] = trio.current_time()

    def _note_absent(self, node: str) -> None:
        """The server says that no client listens under the name of a node."""
        if node == self._name:
            if not self._has_lost.is_set():
                self._note_alone()
        elif (
            # A connected node may only be connecting to the server again: its session has patience.
            self._sink is not None
            and not self._sink.is_up(node)
            and not self._has_just_returned(self._grace)
        ):
            self._fail(node, "no client of the NATS server listens under its name")

    def _has_just_returned(self, seconds: float) -> bool:
        """Whether this node has connected again within this time. Others may still be doing so."""
        return trio.current_time() < self._returned_at + seconds

    def _note_alone(self) -> None:
        # The node is open from this moment on: a claim that follows in the same turn of the reader
        # must find it so.
        waits = self._title == _LATE and self._has_just_returned(self._patience + self._grace)
        if self._title != _LEFT and not waits:
            self._title = _MEMBER
        self._resume()
        self._is_alone.set()
        self._is_decided.set()
