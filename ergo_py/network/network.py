"""`Network`: the other nodes of a running node, and their deadlines.

All methods run on the loop's thread, unless they say otherwise.
"""

from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Final, cast

import trio
from trio.lowlevel import Task, current_task

from .._core.messaging.publisher import NODE_DOWN, NODE_UP
from .._core.messaging.remote import RemoteNodes
from .._core.processes.process import Process
from .._core.runtime.parking import park, wake
from .._core.tables.pending_calls import Deadline
from .._core.vocabulary.errors import CallTimeoutError, TargetDownError
from .._core.vocabulary.ids import PID, NodeName, ServiceName
from .._core.vocabulary.messages import NodeDown, NodeUp, Published
from .._core.vocabulary.options import check_name
from .._core.vocabulary.reasons import Reason
from .._core.vocabulary.text import brief, shown
from .carrier import Carrier
from .context import NetworkContext
from .errors import NetworkError
from .messages.message_types import MessageTypes
from .node_connection import NodeConnection
from .node_names import check_other_node, is_node_name
from .outgoing.batch import Batch
from .outgoing.look import Ping
from .outgoing.peer import Peer
from .protocol.frames import NOT_A_FRAME, read_frame
from .services.remote_service import RemoteService
from .services.service_receiver import ServiceReceiver
from .traffic.info import NetworkInfo

__all__ = ["Network"]

# The simulation `python -m benchmarks sizing` has as many nodes.
_NODES: Final = 1000
"""The most other nodes that a node knows at a time."""
# Not measured. A node that is forgotten loses its figures in `node.network()`, and nothing else:
# its next message makes a new record.
_IDLE: Final = 64
"""The most other nodes without a session that are remembered, with their accounts."""
_WINDOWS: Final = 32 << 20
"""Most bytes that all other nodes together may have on the way here. A NATS server disconnects a
reader for which it holds twice as many.
"""
_SMALLEST: Final = 32 << 10
"""Bytes that each of `_NODES` nodes may have on the way here."""
_SERVICE_RECEIVERS: Final = 1024
"""The most services whose end is remembered for other nodes."""
# Not measured: a node that starts is found within half a second, and a node that does not come
# costs two attempts a second.
_FIRST_DELAY: Final = 0.01
"""Seconds after which a node that cannot be reached is tried again. Each further delay is twice as
long.
"""
_LONGEST_DELAY: Final = 0.5
"""The longest of these delays."""


class Network:
    """The network of a running node."""

    def __init__(self, context: NetworkContext) -> None:
        self.context = context
        """The parts that all other nodes share."""
        kernel = context.kernel
        self.kernel: Final = kernel
        """The kernel of the node."""
        self.peers: dict[str, Peer] = {}
        """The other nodes that are known by now, as receivers, by their names."""
        self.connections: dict[str, NodeConnection] = {}
        """The connections of the same nodes."""
        self.why_left: str = ""
        """Why this node has left its network; empty while it is a member. From any thread."""
        self._window = context.timing.window
        """Bytes that each connected node may have on the way here."""
        self._service_receivers: dict[ServiceName, ServiceReceiver] = {}
        """The services here that other nodes use."""
        self._dirty: list[Batch] = []
        """The batches that go out when the tasks that run now have run."""
        self._flusher: Task | None = None
        """The task that sends them."""
        self._in_pass = False
        """A reader hands over frames, in this turn."""
        self._is_root = False
        """The pass runs the processes that it wakes."""
        self._held: list[Batch] = []
        """The batches that go out at the end of the pass."""
        self._alarm: Deadline | None = None
        """Wakes the network at the next deadline of a session."""
        self._alarm_at = inf
        """The moment of the alarm, by the node's clock."""
        self._failure: Exception | None = None
        """Why the node could not join the network."""
        self._joined = trio.Event()
        """The node has joined the network, or could not."""
        self._scope = trio.CancelScope()
        """Ends the carrier."""
        kernel.router.join_network(cast(RemoteNodes, self))
        kernel.add_setting("allow", self._read_permits)

    @property
    def types(self) -> MessageTypes:
        """The types of messages, and their encoding."""
        return self.context.types

    @property
    def carrier(self) -> Carrier:
        """Carries the frames of all sessions."""
        return self.context.carrier

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
        # Until the node has joined, `open` waits for this error and raises it. After that, no
        # caller waits: it is an error of a task of the node.
        except Exception as error:
            if self._joined.is_set():
                raise
            self._failure = _alone(error)
        finally:
            self._joined.set()

    async def _carrier_task(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self.carrier.run(self, task_status=task_status)

    def _read_permits(self) -> None:
        self.context.read_permits()
        for connection in self.connections.values():
            connection.executor.read_permits()

    def refuse_calls(self) -> None:
        """Take no new calls of other nodes: this node drains."""
        for connection in self.connections.values():
            connection.executor.refuse_calls()

    def calls_in(self) -> int:
        """How many calls of other nodes are not answered."""
        return sum(each.executor.calls_in_flight for each in self.connections.values())

    async def close(self, seconds: float) -> None:
        """Send what is queued, for at most ``seconds``, and say farewell to all other nodes."""
        with trio.move_on_after(seconds):
            for peer in list(self.peers.values()):
                await peer.batch.wait_sent()
        for peer in list(self.peers.values()):
            # Behind the queued operations: a farewell ends the session of the peer, which would
            # drop all that comes later.
            peer.session.close("the node goes down", True)
        with trio.move_on_after(seconds), suppress(OSError):
            # A socket that is closed while unread data waits in it drops the bytes that are still
            # to be sent: the farewell would be lost, and the peer would wait for its patience.
            await self.carrier.flush()
        self._scope.cancel()
        if self._flusher is not None:
            # None first: the task ends if it finds None after the wake-up.
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
            fresh = partial(self._fresh_number, node)
            connection = NodeConnection(self.context, node, fresh, self)
            self.connections[node] = connection
            peer = self.peers[node] = connection.peer
        return peer

    def _fresh_number(self, node: str) -> int:
        """A number for a new session with a node."""
        # Drawn, not counted: a program that starts again must not use a number of its earlier
        # start, whose frames may still be under way. 0 stands for no number.
        return self.kernel.chance(f"sessions with {node}").bits(63) or 1

    def _forget_idle(self) -> None:
        """Forget the peers that were met first: programs may restart under new names."""
        idle = [name for name, connection in self.connections.items() if connection.is_idle]
        kept = _IDLE - 1 if len(self.peers) < _NODES else 0
        for name in idle[: max(0, len(idle) - kept)]:
            del self.peers[name], self.connections[name]
        if len(self.peers) >= _NODES:
            raise NetworkError(f"a node is connected to at most {_NODES} other nodes")

    def copied(self, to: object, message: object) -> object:
        """The message as another node would get it."""
        return self.context.copied(to, message)

    def service(self, name: str, node: str, process: Process | None) -> RemoteService:
        """The service of a child on another node, for the messages and calls of a process."""
        check_other_node(node, self.kernel.pid.node)
        wait_up = partial(self.wait_up, node)
        return RemoteService(self.kernel, node, check_name(name), wait_up, process)

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
        self._connection(target.node).watches.add(target, watcher)

    def unwatch(self, target: Any) -> None:
        """End the watch of a target on another node. Never raises, also if the node is forgotten,
        as that of a lost event whose subscribers follow it: a process ends meanwhile, and its end
        must not fail.
        """
        connection = self.connections.get(target.node)
        if connection is not None:
            connection.watches.remove(target)

    def tell(self, watcher: PID, target: object, reason: Reason) -> None:
        """Tell another node that a process it watches here has ended. Never raises: the process
        ends meanwhile, and its end must not fail.
        """
        connection = self.connections.get(watcher.node)
        # An earlier start of that node has watched: the present start does not know the watch.
        if connection is None or connection.peer.creation != watcher.creation:
            return
        try:
            connection.executor.watched.tell(target, reason)
        except Exception as error:
            # Without its session, the other node tells its watchers that this node is lost.
            self.log_once(f"an end cannot be told to node {watcher.node}", shown(error))
            connection.session.fail("an end could not be told")

    def publish(
        self, subscriber: PID, publication: Published, producer: PID, context: object
    ) -> bool:
        """Send a publication to a subscribed node, with the context of its trace. False if it was
        dropped.
        """
        connection = self.connections.get(subscriber.node)
        if connection is None or connection.peer.creation != subscriber.creation:
            return False
        number = connection.executor.watched.number_of(publication.event)
        return number is not None and connection.peer.send_publication(
            number, 0, producer, publication, context
        )

    def _connection(self, node: str) -> NodeConnection:
        self.peer(node)
        return self.connections[node]

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
        peers = {name: each.info() for name, each in sorted(self.connections.items())}
        return NetworkInfo(self.kernel.pid.node, peers, self.why_left)

    def suspect(self, process: object) -> None:
        """A process here is about to wait for a process that waits, too: perhaps for a process of
        another node, in a ring.
        """
        self.context.deadlocks.suspect(process)

    async def wait_up(self, node: str, timeout: float | None) -> None:
        """Wait until a node can be reached. It may start later than this call.

        Raises:
            CallTimeoutError: the node was not reached within ``timeout`` seconds.
        """
        failure: TargetDownError | None = None
        delay = _FIRST_DELAY
        with trio.move_on_after(inf if timeout is None else timeout):
            while True:
                try:
                    # Without a time limit of its own: an attempt ends with the patience of the
                    # session, and the limit of the caller is around all attempts.
                    await self.peer(node).ask("ping", Ping(), None, None)
                except TargetDownError as error:
                    failure = error
                else:
                    return
                await trio.sleep(delay)
                delay = min(2 * delay, _LONGEST_DELAY)
        raise CallTimeoutError(NodeName(node), Ping(), timeout or 0.0) from failure

    def _share_windows(self) -> None:
        """Grant each connected node its share of the bytes that may be on the way here."""
        count = sum(peer.is_up for peer in self.peers.values())
        window = share_of_window(self.context.timing.window, count)
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
        """Log a fault, but no other fault of the same text."""
        self.context.log_once(what, error)

    # -- the carrier -------------------------------------------------------------------------------

    def frame(self, sender: str, data: bytes | memoryview) -> None:
        """Take a frame of another node."""
        connection = self.connections.get(sender)
        try:
            frame = read_frame(data)
        except NOT_A_FRAME as error:
            why = f"not a frame of this protocol: {error}"
            if connection is not None:
                # Sent again, the frame would be as unreadable: the session could not go on.
                connection.session.close(why, False)
            self.log_once(f"a frame of node {sender} is unreadable", why)
            return
        if connection is None:
            connection = self._new_connection(sender)
            if connection is None:
                return
        connection.receive(frame, len(data), self._held if self._in_pass else None)

    def _new_connection(self, sender: str) -> NodeConnection | None:
        """The connection of a node that sends its first frame; None if the frame is dropped."""
        if sender == self.kernel.pid.node:
            return None
        if not is_node_name(sender):
            self.log_once("a frame of a node without a proper name is dropped", brief(sender, 100))
            return None
        try:
            return self._connection(sender)
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
                # Before the batches go out, so that the answers of the processes leave in the same
                # frames.
                turns.serve(reader)
        finally:
            self._in_pass = False
            while self._held:
                # Also after an error in a step of a process: a batch that stays open would keep its
                # operations for good.
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
            # Not after their patience: no frame of this node reaches them, and a successor under
            # its name may have sessions with them already.
            peer.session.fail(why)

    def joined(self) -> None:
        """The carrier says that this node has joined the network again."""
        self.why_left = ""
        self.kernel.logger.info("this node has joined its network again")

    # -- sending -----------------------------------------------------------------------------------

    def flush_later(self, batch: Batch) -> None:
        """Send the operations of a batch when the tasks that run now have run."""
        self._dirty.append(batch)
        if self._flusher is not None:
            wake(self._flusher)

    async def _flush(self) -> None:
        self._flusher = task = current_task()
        while self._flusher is not None:
            # A flush lets senders in, which may make a batch dirty again: the loop must not go
            # through a list that grows.
            dirty, self._dirty = self._dirty, []
            for batch in dirty:
                batch.flush()
            # A wake-up finds the task parked, or has no effect. A batch that became dirty in the
            # loop above is seen here, and there is no checkpoint between this look and the park.
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
        # Before tick(): a session arms its next deadline there, and arm() would compare it with an
        # alarm that is over.
        self._alarm = None
        now = self.kernel.clock.now()
        for connection in list(self.connections.values()):
            deadline = connection.session.next_deadline()
            if deadline <= now:
                connection.tick()
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
