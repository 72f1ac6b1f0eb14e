"""`NodeConnection`: the session with another node, and the parts of this node that use it.

It takes the frames of that node, has its operations carried out, and tells all parts when the
session begins and ends.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from .._core.runtime.time_slices import in_slices
from .._core.vocabulary.reasons import NoNode, Reason, Shutdown
from .._core.vocabulary.text import shown
from .access.limits import ADDRESS, ANSWERS, LARGEST
from .context import NetworkContext
from .incoming.executor import Executor
from .incoming.routes import ViolationError
from .incoming.watches import Watches
from .outgoing.batch import Batch, Schedule
from .outgoing.peer import Peer
from .protocol.frames import Frame, encode_frame
from .protocol.operations import (
    NOT_AN_OPERATION,
    Answer,
    Counts,
    Ended,
    Event,
    Failed,
    Part,
    Probe,
    Subscribed,
    read_operation,
)
from .protocol.session import Session, State
from .refusals import Refusals
from .traffic.info import PeerInfo

__all__ = ["ConnectionOwner", "NodeConnection"]

_LARGEST_WHOLE: Final = LARGEST + 2 * ADDRESS
"""Most bytes of an operation that comes in parts."""


class ConnectionOwner(Schedule, Protocol):
    """The network, which is told of connected and lost nodes."""

    def note_up(self, peer: Peer, /) -> None:
        """Announce a node that is connected now."""

    def note_down(self, peer: Peer, reason: Reason, /) -> None:
        """Announce a node that is lost."""


class NodeConnection:
    """The connection to a single other node. Its session ends and begins again as often as
    needed.
    """

    def __init__(
        self, network: NetworkContext, node: str, fresh: Callable[[], int], owner: ConnectionOwner
    ) -> None:
        """``fresh`` returns a number for a new session."""
        self._network = network
        """The parts that all connections share."""
        self._owner = owner
        """The network, which announces nodes."""
        kernel = network.kernel
        session = Session(
            self,
            kernel.router.creation,
            network.timing,
            kernel.clock.now,
            fresh,
            network.longest_operation,
        )
        self.session: Session = session
        """The protocol with that node."""
        peer = Peer(network, node, session, owner)
        self.peer: Peer = peer
        """The node, as the receiver of messages and calls."""
        self.refusals: Refusals = Refusals(peer)
        """The operations that either node has refused the other."""
        self.executor: Executor = Executor(peer, self.refusals)
        """Carries out the operations of that node."""
        self.watches: Watches = Watches(peer)
        """The targets there that processes here watch."""
        self._parts = bytearray()
        """The parts of an operation that has not arrived whole."""
        self._next_part = 0
        """The number of the part that comes next."""
        self._most_waiting = network.backlog + ANSWERS
        """Bytes that may wait for that node before its session ends."""
        self._frames_out = self._frames_in = 0
        """Frames to that node, and from it."""
        self._bytes_out = self._bytes_in = 0
        """The bytes of these frames."""
        # The same table: a node that drains replaces an entry of it.
        self._handlers: dict[type, Callable[[Any], None]] = self.executor.handlers
        """The function that carries out each kind of operation."""
        self._handlers |= {
            Answer: peer.take_answer,
            Failed: peer.take_failure,
            Ended: self.watches.end,
            Event: self.watches.publish,
            Subscribed: self.watches.note_subscribed,
            Probe: self._take_probe,
            Part: self._take_part,
            Counts: self.refusals.note_counts,
        }

    @property
    def is_idle(self) -> bool:
        """Whether the connection can be forgotten: no session, no attempt, no watch."""
        is_unused = not self.watches and not self.peer.mailbox.waiters
        return self.session.state is State.IDLE and is_unused

    # -- operations of that node -------------------------------------------------------------------

    def receive(self, frame: Frame, size: int, held: list[Batch] | None) -> None:
        """Take a frame of that node. In a pass, operations to it are kept until the end of the
        pass, and ``held`` lists the batches that keep some.
        """
        self._frames_in += 1
        self._bytes_in += size
        session, batch = self.session, self.peer.batch
        if held is not None and batch.hold():
            held.append(batch)
        session.receive(frame)
        # Senders here are stopped by the backlog; answers are not, since a callee cannot wait for
        # another node. A node that asks on and takes no answer would fill the memory.
        if session.queued_bytes > self._most_waiting:
            session.close("it asks for more than it takes", False)
        if not batch.is_open:
            batch.settle()

    def deliver(self, data: bytes | bytearray, is_whole: bool = False) -> None:
        """Carry out an operation of that node; ``is_whole`` if it came in parts."""
        try:
            op = read_operation(data)
        except NOT_AN_OPERATION as error:
            self.session.close(f"not an operation of this protocol: {error}", False)
            return
        if is_whole and type(op) is Part:  # parts of parts could be nested without end
            self.session.close("a part of an operation is cut into parts", False)
            return
        try:
            self._handlers[type(op)](op)
        except ViolationError as error:
            self.session.close(str(error), False)
        except Exception as error:
            # An operation of another node must not end the tasks of this node.
            self._network.log_once(f"an operation of node {self.peer.node} failed", shown(error))

    def _take_part(self, op: Part) -> None:
        """Take a part of a long operation. The last part completes it."""
        parts = self._parts
        if op.number != self._next_part:
            self.session.close("a part of an operation is missing or comes twice", False)
            return
        parts += op.data
        # The bytes are counted as they come: no part tells the size of the whole, and a hostile
        # node would not tell the truth.
        if len(parts) > _LARGEST_WHOLE:
            self.session.close("an operation is larger than any that a node sends", False)
        elif op.is_last:
            self._forget_parts()
            self.deliver(parts, is_whole=True)
        else:
            self._next_part += 1

    def _forget_parts(self) -> None:
        # A new buffer: the old one may be read, and a copy of it would take as long as a read.
        self._parts = bytearray()
        self._next_part = 0

    def _take_probe(self, op: Probe) -> None:
        caller = self.executor.call_in_flight(op.number)
        if caller is not None:
            self._network.deadlocks.take(caller, op)

    # -- the session -------------------------------------------------------------------------------

    def transmit(self, frame: Frame) -> None:
        """Give a frame of the session to the carrier."""
        data = encode_frame(frame)
        self._frames_out += 1
        self._bytes_out += len(data)
        self._network.carrier.send(self.peer.node, data)

    def session_up(self, creation: int) -> None:
        """Note that the node is connected."""
        self.peer.note_up(creation)
        self.refusals.begin(creation)
        self._owner.arm(self.session.next_deadline())
        self._owner.note_up(self.peer)

    def session_down(self, why: str, is_orderly: bool, lost: list[bytes]) -> None:
        """Note that the node is lost, in one step: no task runs in between."""
        peer = self.peer
        reason = NoNode(peer.node, why)
        # First, so that code which is told of the loss finds its reason in the peer.
        creation = peer.note_lost(reason)
        self._forget_parts()
        calls = peer.forget_calls()
        # Calls that still wait for room end as not begun; those that were sent may have begun
        # there. The caller learns which, and may repeat the former.
        peer.mailbox.refuse_waiters()
        for caller in calls:
            caller.fail_begun(reason)
        if lost:
            name = f"network: lost {peer.node}"
            # In a task, in slices: a lost backlog of short messages would hold the loop if it were
            # counted in a single step.
            self._network.kernel.start(self._add_dead_letters, lost, bool(creation), name=name)
        self.watches.end_all(reason)
        peer.tell_lost()
        self.executor.forget(creation)
        # A node that never answered was not connected: its loss is no news for subscribers of
        # NodeDown.
        if creation:
            self._owner.note_down(peer, Shutdown(why) if is_orderly else reason)

    async def _add_dead_letters(self, lost: list[bytes], was_up: bool) -> None:
        await in_slices(self.executor.dead_letters(lost, was_up))

    def tick(self) -> None:
        """Act on the deadlines of the session that have come."""
        self.session.tick()
        self.peer.batch.settle()

    # -- looking inside ----------------------------------------------------------------------------

    def info(self) -> PeerInfo:
        """A snapshot of the traffic with that node."""
        peer, session, refusals = self.peer, self.session, self.refusals
        totals = session.totals
        return PeerInfo(
            node=peer.node,
            state=session.state.value,
            sessions=totals.sessions,
            sent=session.sent,
            confirmed=totals.confirmed,
            on_the_way=session.unacknowledged,
            waiting=session.queued,
            unconfirmed=totals.unconfirmed,
            unsent=totals.unsent,
            resent=totals.resent,
            received=totals.received,
            refused=refusals.here(),
            refused_there=refusals.there(),
            dropped=peer.mailbox.dropped,
            waiting_bytes=session.queued_bytes,
            on_the_way_bytes=session.unacknowledged_bytes,
            bytes_out=self._bytes_out,
            bytes_in=self._bytes_in,
            frames_out=self._frames_out,
            frames_in=self._frames_in,
            window=session.window,
            round_trip=session.round_trip,
            calls=peer.calls_in_flight,
            calls_in=self.executor.calls_in_flight,
            watches=len(self.watches),
            watches_in=self.executor.watched.count,
        )
