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
from ...._core.vocabulary.options import Rereadable
from ...carrier import Sink
from ...errors import NetworkError, NodeNameTakenError
from ...stores.nats_store import NatsStore, subjects_of_store
from .client import Client
from .discovery import Discovery
from .login import Credentials, ServerAddress
from .name_claim import LATE, LEFT, MEMBER, RETURNS, NameClaim
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

# A frame of a single such operation, with its head and its kind, stays below 60,000 bytes, and so
# does a frame of several, of at most 16 KiB.
_OPERATION: Final = 48 << 10
"""Bytes of the longest operation of a frame: the smallest servers that are accepted take it."""
_NO_RESPONDERS: Final = 503

_HOLD: Final = 0.2
"""Seconds for which a node that connects again carries no frames if the server does not say that it
is alone: another node of its name may answer. Usually this takes a round trip to the server. Frames
to a node with a successor would end the sessions of the successor.
"""
_PAUSE: Final = 10.0
"""Seconds between the attempts of a node that has left the network to join it again."""


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
        context: Rereadable[SSLContext | None],
        tls_first: bool,
        patience: float,
        grace: float,
    ) -> None:
        self.max_operation = _OPERATION
        self._logger = kernel.logger
        self._name = kernel.pid.node
        self._me = token(self._name)
        self._prefix = f"ergo.{token(cluster)}"
        self.claim: NameClaim = NameClaim(
            self._name, kernel.pid.creation, kernel.chance("name").bits(48)
        )
        """The claim of this node to its name."""
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
        self._discovery = Discovery()
        """The searches for other nodes."""
        self._is_member = False
        """This node has its name for itself: it carries frames."""
        self._connected = trio.Event()
        """The client has a connection, the first time since this node takes part."""
        self._is_offline = False
        """The log has said that the server is lost."""
        self.client: Client = Client(
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
                    self._is_member = False
                    self.claim.is_entitled(LEFT)
                    sink.left(self.claim.taken)
                    await self._take_part_again(sink)
            finally:
                self._nursery = None

    async def _take_part_again(self, sink: Sink) -> None:
        """Join the network when the name is free, and be a member until another node has it."""

        def joined() -> None:
            self.claim.joined()
            sink.joined()

        while self.claim.title == LEFT:
            await trio.sleep(_PAUSE)
            try:
                await self._take_part(joined)
            except* NetworkError as group:
                self._logger.debug("this node cannot join its network", error=str(group))

    async def _take_part(self, joined: Callable[[], None]) -> None:
        """Connect, claim the name, and be a member of the network until the name is lost."""
        claim, self._connected = self.claim, trio.Event()
        claim.begin()
        async with trio.open_nursery() as connection:
            connection.start_soon(self.client.run)
            await self._connected.wait()
            await self._claim_first()
            if claim.title == LEFT:
                # The member may only be connecting to the server again: it comes first.
                with trio.move_on_after(self._patience + self._grace):
                    await claim.lost.wait()
                    raise NodeNameTakenError(claim.taken)
            claim.is_entitled(MEMBER)
            self._is_member = True
            joined()
            while not claim.lost.is_set():
                with trio.move_on_after(self._patience):
                    await claim.lost.wait()
                self._publish_claim()
            # The connection ends as well: as long as a client listens under the name, the server
            # does not tell the successor that it is alone.
            connection.cancel_scope.cancel()

    async def _claim_first(self) -> None:
        claim = self.claim
        claim.renew()
        while trio.current_time() < claim.claimed_at + 2 * self._grace:
            if claim.lost.is_set():
                break
            if claim.alone.is_set():
                return
            # The claim is repeated: a break of the connection loses the claim, or its answer.
            with trio.move_on_after(0.1):
                await claim.decided.wait()
                continue
            self._publish_claim()
        raise NodeNameTakenError(
            claim.taken
            or f"another client of the server listens under the name {self._name!r} and does not "
            "answer; give each node its own name"
        )

    def _publish_claim(self) -> None:
        """Ask for other nodes with this name."""
        me = self._me
        self.client.publish(
            f"{self._prefix}.n.{me}.{me}",
            f"{self._prefix}.x.{me}.{me}",
            _CLAIM + json.dumps(self.claim.rank()).encode(),
        )

    def _receive_claim(self, data: bytes) -> None:
        keeps = self.claim.meet(data)
        if keeps:
            self._publish_claim()  # the other node compares, and leaves
        elif keeps is not None:
            self._is_member = False

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
        elif self.claim.taken:
            # In a task, since the session is in the middle of a step when it sends.
            self._nursery.start_soon(self._refuse, to, self.claim.taken)

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
        return await self._discovery.search(
            seconds, lambda: self.client.publish(f"{self._prefix}.d.{self._me}", "", b"")
        )

    def _answer_discovery(self, node: str) -> None:
        """Tell a node that looks for others of this node."""
        if self._discovery.may_answer(node):
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
            if self.claim.title <= LATE:
                is_late = now > self.client.heard_at + self._patience
                self.claim.is_entitled(LATE if is_late else RETURNS)
            # No frames until the name is decided: this node may have been away for so long that a
            # successor has its name, and its frames would end the sessions of the successor.
            if self._is_member and self._nursery is not None:
                self._is_member = False
                self._nursery.start_soon(self._resume_later, self.client.connected)
        self._publish_claim()

    async def _resume_later(self, connected: int) -> None:
        await trio.sleep(_HOLD)
        # Not after a further break: the connection after it has a hold of its own.
        if self.client.connected == connected:
            self._resume()

    def _resume(self) -> None:
        """Be a member again, after the connection was lost."""
        is_held = not self._is_member and self.claim.title <= LATE and not self.claim.taken
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
        # Any node can let JetStream send its answers to this subject: the store knows its own
        # answers by their random numbers.
        elif message.subscription == _HINTS:
            if "@" not in sender:  # the name of a node has an @
                self._store.receive(sender, message.status, message.payload)
            elif message.status == _NO_RESPONDERS:
                self._note_absent(sender)
        elif sender != self._name and self._is_member:
            self._answer_discovery(sender)

    def _sender(self, subject: str) -> str:
        """The node at the end of a subject."""
        # Subjects are chosen by other clients: without permissions at the server, they could be any
        # number.
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
            self._discovery.note_present(sender)

    def _note_absent(self, node: str) -> None:
        """The server says that no client listens under the name of a node."""
        if node == self._name:
            if not self.claim.lost.is_set():
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
        claim = self.claim
        is_late = claim.title == LATE
        claim.note_alone(is_late and self._has_just_returned(self._patience + self._grace))
        self._resume()
        claim.decide_alone()
