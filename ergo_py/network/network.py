"""`Network`: the other nodes of a running node, and their deadlines.

All methods run on the loop's thread, unless they say otherwise.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from math import inf
from types import ModuleType
from typing import Any, Final, cast

import trio
from trio.lowlevel import Task, current_task

from .._core.kernel import Kernel
from .._core.messaging.publisher import NODE_DOWN, NODE_UP
from .._core.messaging.remote import RemoteNodes
from .._core.messaging.traces import Mark
from .._core.runtime.parking import park, wake
from .._core.tables.pending_calls import Deadline
from .._core.tables.relations import Kind
from .._core.vocabulary.envelopes import EVENT, TRACED, Lane
from .._core.vocabulary.ids import PID, Alias, EventName, ServiceName
from .._core.vocabulary.messages import NodeDown, NodeUp, Published
from .._core.vocabulary.options import check_name
from .._core.vocabulary.reasons import Reason
from .._core.vocabulary.text import brief, shown
from .carrier import Carrier
from .deadlocks import Deadlocks
from .errors import MessageTooLargeError, MessageTypeError, NetworkError
from .messages.message_types import MessageTypes, RefusedValueError
from .messages.signals import SIGNALS
from .node_names import is_node_name
from .node_requests.permits import PERMITS, Permits, refusal_text
from .node_requests.snapshots import snapshot_types
from .node_requests.spawns import Spawns
from .peer import Peer
from .protocol.frames import NOT_A_FRAME, read_frame
from .protocol.session import Timing
from .services.service_receiver import ServiceReceiver
from .traffic.info import NetworkInfo
from .traffic.limits import LARGEST, Limits, too_large

__all__ = ["Network"]

_NODES: Final = 1000
"""The most other nodes that a node knows at a time."""
_IDLE: Final = 64
"""The most other nodes without a session that are remembered, with their accounts."""
_WINDOWS: Final = 32 << 20
"""Most bytes that all other nodes together may have on the way here. A NATS server disconnects a
reader for which it holds twice as many.
"""
_SMALLEST: Final = 32 << 10
"""Bytes that each of `_NODES` nodes may have on the way here."""
_SENDERS: Final = 100_000
"""The most processes here whose messages other nodes may forward back."""
_SERVICE_RECEIVERS: Final = 1024
"""The most services whose end is remembered for other nodes."""


class Network:
    """The network of a running node."""

    def __init__(
        self,
        kernel: Kernel,
        carrier: Carrier,
        types: Iterable[type | ModuleType],
        timing: Timing,
        backlog: int,
        permits: Permits,
        spawns: Spawns,
        limits: Limits,
    ) -> None:
        self.kernel = kernel
        self.types = MessageTypes(types)
        self.snapshots = snapshot_types(types)
        """The types of messages, and those of snapshots of a node."""
        self.permits = permits
        self.spawns = spawns
        self.limits = limits
        self.deadlocks = Deadlocks(self)
        self.timing = timing
        self.backlog = backlog
        self.carrier = carrier
        self.peers: dict[str, Peer] = {}
        self.why_left = ""
        """Why this node has left its network; empty while it is a member. From any thread."""
        self._window = timing.window
        """Bytes that each connected node may have on the way here."""
        self._service_receivers: dict[ServiceName, ServiceReceiver] = {}
        """The services here that other nodes use."""
        self._dirty: list[Peer] = []
        self._flusher: Task | None = None
        self._in_pass = False
        """A reader hands over frames, in this turn."""
        self._is_root = False
        self._held: list[Peer] = []
        """The peers whose operations go out at the end of the pass."""
        self._alarm: Deadline | None = None
        """Wakes the network at the next deadline of a session."""
        self._alarm_at = inf
        """The moment of the alarm, by the node's clock."""
        self._logged: set[str] = set()
        self._senders: dict[PID | Alias, None] = {}
        """The processes here that have sent to other nodes, those that sent last at the end."""
        self._failure: Exception | None = None
        self._joined = trio.Event()
        self._scope = trio.CancelScope()
        kernel.router.join_network(cast(RemoteNodes, self))

    # -- lifecycle ---------------------------------------------------------------------------------

    async def open(self) -> None:
        """Join the network.

        Raises:
            NetworkError: the node cannot join it.
        """
        self.kernel.start(self._run_carrier, name="network")
        self.kernel.start(self._flush, name="network: sender")
        await self._joined.wait()
        if self._failure is not None:
            raise self._failure

    async def _run_carrier(self) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._carrier_task)
                    self._joined.set()
        except Exception as error:
            if self._joined.is_set():
                raise
            self._failure = _alone(error)
        finally:
            self._joined.set()

    async def _carrier_task(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self.carrier.run(self, task_status=task_status)

    def refuse_calls(self) -> None:
        """Take no new calls of other nodes: this node drains."""
        for peer in self.peers.values():
            peer.executor.refuse_calls()

    def calls_in(self) -> int:
        """How many calls of other nodes are not answered."""
        return sum(peer.executor.calls_in_flight for peer in self.peers.values())

    async def close(self, seconds: float) -> None:
        """Send what is queued, for at most ``seconds``, and say farewell to all other nodes."""
        with trio.move_on_after(seconds):
            for peer in list(self.peers.values()):
                await peer.wait_sent()
        for peer in list(self.peers.values()):
            peer.session.close("the node goes down", True)
        with trio.move_on_after(seconds), suppress(OSError):
            await self.carrier.flush()
        self._scope.cancel()
        if self._flusher is not None:
            flusher, self._flusher = self._flusher, None
            wake(flusher)
        if self._alarm is not None:
            self._alarm.abandon()

    # -- the kernel's interface --------------------------------------------------------------------

    def peer(self, node: str) -> Peer:
        """The other node of this name."""
        peer = self.peers.get(node)
        if peer is None:
            if len(self.peers) > _IDLE:
                self._forget_idle()
            peer = self.peers[node] = Peer(self, node, lambda: self._fresh_number(node))
        return peer

    def _fresh_number(self, node: str) -> int:
        """A number for a new session with a node."""
        return self.kernel.chance(f"sessions with {node}").bits(63) or 1

    def _forget_idle(self) -> None:
        """Forget the peers that were met first: programs may restart under new names."""
        idle = [name for name, peer in self.peers.items() if peer.is_idle]
        kept = _IDLE - 1 if len(self.peers) < _NODES else 0
        for name in idle[: max(0, len(idle) - kept)]:
            del self.peers[name]
        if len(self.peers) >= _NODES:
            raise NetworkError(f"a node is connected to at most {_NODES} other nodes")

    def copied(self, to: Any, message: object) -> object:
        """The message as another node would get it. Messages of the framework that are not listed
        stay as they are.
        """
        if type(message).__module__.startswith("ergo_py"):
            return message
        return self.types.decode(self.encode(to, message))

    def encode(self, to: Any, message: object) -> bytes:
        """Encode a message, in the turn and in the thread of its sender.

        Raises:
            MessageTypeError: the message cannot travel.
            MessageTooLargeError: it is larger than `LARGEST`.
        """
        if type(message) in SIGNALS:
            raise MessageTypeError(
                f"a {type(message).__qualname__} cannot travel to {to!r}: it is a message of the "
                "runtime about a process, and its receiver could not tell it from its own; send a "
                "message of your own that holds it",
                to,
                message,
            )
        try:
            body = self.types.encode(message)
        except RefusedValueError as error:
            raise MessageTypeError(
                f"a {type(message).__qualname__} cannot travel to {to!r}: {error}", to, message
            ) from None
        if len(body) > LARGEST:
            what = f"a {type(message).__qualname__}"
            raise MessageTooLargeError(too_large(what, body, to), to, message)
        return body

    def note_sender(self, sender: PID | Alias) -> None:
        """Note that a process sends to another node, which may forward its messages."""
        if sender.node == self.kernel.pid.node:
            self._senders.pop(sender, None)
            self._senders[sender] = None
            if len(self._senders) > _SENDERS:
                del self._senders[next(iter(self._senders))]

    def has_sent(self, sender: PID | Alias) -> bool:
        """Whether a process of this node has sent to another node."""
        return sender in self._senders

    def service(self, name: str, node: str, process: Any) -> Any:
        """The service of a child on another node, for the messages and calls of a process."""
        # These modules are above this one: they ask the network.
        from .remote_node import RemoteNode  # noqa: PLC0415
        from .services.remote_service import RemoteService  # noqa: PLC0415

        remote = RemoteNode(self.kernel, self, node)
        return RemoteService(self.kernel, remote, check_name(name), process)

    def service_receiver(self, address: ServiceName) -> ServiceReceiver:
        """Takes messages and calls of other nodes to the service of a child of this node."""
        receiver = self._service_receivers.get(address)
        if receiver is None:
            receiver = ServiceReceiver(self.kernel, address)
            if address.name in self.kernel.services:
                if len(self._service_receivers) >= _SERVICE_RECEIVERS:
                    self._service_receivers.clear()
                self._service_receivers[address] = receiver
        return receiver

    def watch(self, target: Any, watcher: PID) -> None:
        """Watch a target on another node."""
        self.peer(target.node).watches.add(target, watcher)

    def unwatch(self, target: Any) -> None:
        """End the watch of a target on another node."""
        self.peer(target.node).watches.remove(target)

    def tell(self, watcher: PID, target: Any, reason: Reason) -> None:
        """Tell another node that a process it watches here has ended. Never raises: the process
        ends meanwhile, and its end must not fail.
        """
        peer = self.peers.get(watcher.node)
        if peer is None or peer.creation != watcher.creation:
            return
        try:
            peer.executor.tell(target, reason)
        except Exception as error:
            # Without its session, the other node tells its watchers that this node is lost.
            self.log_once(f"an end cannot be told to node {peer.node}", shown(error))
            peer.session.fail("an end could not be told")

    def publish(self, subscriber: PID, publication: Published, producer: PID, context: Any) -> bool:
        """Send a publication to a subscribed node, with the context of its trace. False if it was
        dropped.
        """
        peer = self.peers.get(subscriber.node)
        if peer is None or peer.creation != subscriber.creation:
            return False
        number = peer.executor.number_of(publication.event)
        return number is not None and peer.send_publication(
            number, 0, producer, publication, context
        )

    def hand_out(
        self,
        name: EventName,
        producer: PID | Alias,
        publication: Published,
        gets: Callable[[PID], bool],
        headers: dict[str, str] | None,
    ) -> None:
        """Give a publication of another node to the subscribers here that get it."""
        context = self.context_of(headers)
        envelope: Any = (
            (EVENT, producer, None, publication)
            if context is None
            else (TRACED, producer, Mark(EVENT, name, context), publication)
        )
        relations, router = self.kernel.relations, self.kernel.router
        watchers = chain(
            relations.of_target(name, Kind.LINK), relations.of_target(name, Kind.MONITOR)
        )
        for pid in dict.fromkeys(watchers):
            process = router.processes.get(pid)
            if process is not None and gets(pid):
                router.post(process, pid, Lane.MAIN, envelope)

    def context_of(self, headers: dict[str, str] | None) -> Any:
        """The context of a message of another node; None if it belongs to no sampled trace."""
        tracing = self.kernel.tracing
        if not headers or tracing is None:
            return None
        return tracing.context_of(headers, self.kernel.logger)

    # -- nodes -------------------------------------------------------------------------------------

    def nodes(self) -> list[str]:
        """The names of the connected nodes."""
        return sorted(name for name, peer in self.peers.items() if peer.is_up)

    async def discover(self, seconds: float) -> list[str]:
        """The names of all nodes of the network that can be reached."""
        return sorted(await self.carrier.discover(seconds))

    def is_up(self, node: str) -> bool:
        """Whether a node is connected."""
        peer = self.peers.get(node)
        return peer is not None and peer.is_up

    def info(self) -> NetworkInfo:
        """A snapshot of the traffic with all other nodes."""
        peers = {name: peer.refusals.info() for name, peer in sorted(self.peers.items())}
        return NetworkInfo(self.kernel.pid.node, peers, self.why_left)

    def suspect(self, process: Any) -> None:
        """A process here is about to wait for a process that waits, too: perhaps for a process of
        another node, in a ring.
        """
        self.deadlocks.suspect(process)

    def warn_of_refusal(self, node: str, permit: str) -> None:
        """Log that another node does not permit an act to this node."""
        self.log_once(
            f"the node {node} does not permit this node to {PERMITS[permit]}"
            if permit in PERMITS
            else f"the node {node} refuses an act of this node",
            refusal_text(node, self.kernel.pid.node, permit) if permit in PERMITS else permit[:100],
        )

    def _share_windows(self) -> None:
        """Grant each connected node its share of the bytes that may be on the way here."""
        count = sum(peer.is_up for peer in self.peers.values())
        window = share_of_window(self.timing.window, count)
        if window != self._window:
            self._window = window
            for peer in list(self.peers.values()):
                peer.session.grant(window)

    def note_up(self, peer: Peer) -> None:
        """Announce a node that is connected now."""
        self._share_windows()
        self.kernel.logger.info("a node is connected", peer=peer.node)
        self.kernel.publisher.announce(NODE_UP, NodeUp(peer.node))

    def note_down(self, peer: Peer, reason: Reason) -> None:
        """Announce a node that is lost."""
        self._share_windows()
        self.kernel.logger.info("a node is gone", peer=peer.node, reason=str(reason))
        self.kernel.publisher.announce(NODE_DOWN, NodeDown(peer.node, reason))

    def log_once(self, what: str, error: str) -> None:
        """Log a fault of messages only the first time: a flood of them must not flood the log."""
        if what not in self._logged and len(self._logged) < _NODES:
            self._logged.add(what)
            self.kernel.logger.warning(what, error=error, note="later ones are not logged")

    # -- the carrier -------------------------------------------------------------------------------

    def frame(self, sender: str, data: bytes | memoryview) -> None:
        """Take a frame of another node."""
        peer = self.peers.get(sender)
        try:
            frame = read_frame(data)
        except NOT_A_FRAME as error:
            why = f"not a frame of this protocol: {error}"
            if peer is not None:
                peer.session.close(why, False)
            self.log_once(f"a frame of node {sender} is unreadable", why)
            return
        if peer is None:
            peer = self._new_peer(sender)
            if peer is None:
                return
        peer.receive(frame, len(data), self._held if self._in_pass else None)

    def _new_peer(self, sender: str) -> Peer | None:
        """The peer of a node that sends its first frame; None if the frame is dropped."""
        if sender == self.kernel.pid.node:
            return None
        if not is_node_name(sender):
            self.log_once("a frame of a node without a proper name is dropped", brief(sender, 100))
            return None
        try:
            return self.peer(sender)
        except NetworkError as error:
            self.log_once("a frame of a further node is dropped", str(error))
            return None

    def begin_pass(self, reader: Task) -> None:
        """The reader of a carrier hands over frames. The processes that it wakes run in its turn,
        and the operations that come of the frames go out together.
        """
        self._is_root = self.kernel.router.turns.begin(reader)
        self._in_pass = True

    def end_pass(self, reader: Task) -> bool:
        """The reader has handed over all frames that it has. True if no other task is ready."""
        turns = self.kernel.router.turns
        try:
            if self._is_root:
                turns.serve(reader)
        finally:
            self._in_pass = False
            while self._held:
                self._held.pop().end_hold()
        return turns.is_alone()

    def connected(self, node: str) -> None:
        """The carrier reaches a node, perhaps again: the session says where it is."""
        peer = self.peers.get(node)
        if peer is not None:
            peer.session.say_again()

    def unreachable(self, node: str, why: str) -> None:
        """The carrier says that no node of this name listens."""
        peer = self.peers.get(node)
        if peer is not None:
            peer.session.fail(why)

    def left(self, why: str) -> None:
        """The carrier says that this node has left the network: no other node can be reached."""
        self.why_left = why
        self.kernel.logger.error("this node has left its network", reason=why)
        for peer in list(self.peers.values()):
            peer.session.fail(why)

    def joined(self) -> None:
        """The carrier says that this node has joined the network again."""
        self.why_left = ""
        self.kernel.logger.info("this node has joined its network again")

    # -- sending -----------------------------------------------------------------------------------

    def flush_later(self, peer: Peer) -> None:
        """Send what a peer has queued when the tasks that run now have run."""
        self._dirty.append(peer)
        if self._flusher is not None:
            wake(self._flusher)

    async def _flush(self) -> None:
        self._flusher = task = current_task()
        while self._flusher is not None:
            dirty, self._dirty = self._dirty, []
            for peer in dirty:
                peer.flush()
            if not self._dirty:
                await park(task)

    # -- deadlines ---------------------------------------------------------------------------------

    def arm(self, deadline: float) -> None:
        """Wake the network at ``deadline``, if that is earlier than its next alarm."""
        if deadline == inf or (self._alarm is not None and self._alarm_at <= deadline):
            return
        if self._alarm is not None:
            self._alarm.abandon()
        self._alarm, self._alarm_at = Deadline(self._ring), deadline
        clock = self.kernel.clock
        clock.arm_call(self._alarm, max(0.0, deadline - clock.now()))

    def _ring(self) -> None:
        """Act on all deadlines that have come."""
        self._alarm = None
        now = self.kernel.clock.now()
        for peer in list(self.peers.values()):
            deadline = peer.session.next_deadline()
            if deadline <= now:
                peer.tick()
            else:
                self.arm(deadline)


def share_of_window(window: int, nodes: int) -> int:
    """Bytes that each of so many nodes may have on the way here: at most ``window``, and all
    together at most `_WINDOWS`. A power of two below that, so that it seldom changes.
    """
    share = _WINDOWS // max(1, nodes)
    return min(window, max(_SMALLEST, 1 << (share.bit_length() - 1)))


def _alone(error: Exception) -> Exception:
    """The error of a nursery with a single task."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
