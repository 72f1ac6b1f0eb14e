"""`NetworkContext`: the parts of a network that everything about a single other node uses."""

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Final

from .._core.kernel import Kernel
from .._core.vocabulary.ids import PID, Alias
from .access.limits import LARGEST, Limits, too_large
from .access.permits import PERMITS, Permits, refusal_text
from .access.spawns import Spawns
from .carrier import Carrier
from .deadlocks import Deadlocks
from .errors import MessageTooLargeError, MessageTypeError
from .messages.listed_class import RefusedValueError
from .messages.message_types import MessageTypes
from .messages.signals import SIGNALS
from .messages.snapshots import snapshot_types
from .protocol.long_operations import PART_HEAD
from .protocol.session import Timing

__all__ = ["NetworkContext"]

_SENDERS: Final = 100_000
"""The most processes here whose messages other nodes may forward back."""
# Other nodes choose parts of the texts: without a limit, invented names would fill the table.
_LOGGED: Final = 1000
"""The most faults that are logged: each once, and none after these."""


class NetworkContext:
    """The settings of a node's network, its codec, and the notes that all other nodes share."""

    def __init__(
        self,
        kernel: Kernel,
        carrier: Carrier,
        types: Iterable[type | ModuleType],
        timing: Timing,
        backlog: int,
        read_permits: Callable[[], Permits],
        spawns: Spawns,
        limits: Limits,
    ) -> None:
        self.kernel = kernel
        """The kernel of the node, in which operations of other nodes are carried out."""
        self.carrier = carrier
        """Carries the frames of all sessions."""
        self.types: MessageTypes = MessageTypes(types)
        """The types of messages, and their encoding."""
        self.snapshots: MessageTypes = snapshot_types(types)
        """The types of messages, and those of snapshots of a node."""
        self.timing = timing
        """The limits of sessions, in seconds and bytes."""
        self.backlog = backlog
        """Bytes that may wait for each other node."""
        self._read_permits = read_permits
        self.permits: Permits = read_permits()
        """The acts that other nodes are permitted here."""
        self.spawns = spawns
        """The behaviours that other nodes may start here."""
        self.limits = limits
        """How many calls and watches there may be between two nodes."""
        self.deadlocks: Deadlocks = Deadlocks(kernel)
        """Finds rings of calls over several nodes."""
        self._logged: set[str] = set()
        """The faults that were logged."""
        self._senders: dict[PID | Alias, None] = {}
        """The processes here that have sent to other nodes, those that sent last at the end."""

    @property
    def longest_operation(self) -> int:
        """Most bytes of an operation that travels whole: a frame of it can be compressed, if other
        frames are.
        """
        longest, inflates = self.carrier.max_operation, self.timing.inflates
        return min(longest, inflates - PART_HEAD) if inflates else longest

    def read_permits(self) -> None:
        """Read the permits of other nodes again.

        Raises:
            BadInputError: a permit or a pattern is invalid; the old permits stay.
        """
        self.permits = self._read_permits()

    def copied(self, to: object, message: object) -> object:
        """The message as another node would get it. Messages of the framework that are not listed
        stay as they are.
        """
        if type(message).__module__.startswith("ergo_py"):
            return message
        # The way over bytes, not a deep copy: a strict test has to fail where the wire would change
        # a value.
        return self.types.decode(self.encode(to, message))

    def encode(self, to: object, message: object) -> bytes:
        """Encode a message, in the turn and in the thread of its sender.

        Raises:
            MessageError: of kind ``"type"``; the message cannot travel.
            MessageError: of kind ``"too large"``; it is larger than `LARGEST`.
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
            # Removed and put back, so that the table forgets the process that has sent to a new
            # receiver the longest time ago.
            self._senders.pop(sender, None)
            self._senders[sender] = None
            if len(self._senders) > _SENDERS:
                del self._senders[next(iter(self._senders))]

    def has_sent(self, sender: PID | Alias) -> bool:
        """Whether a process of this node has sent to another node."""
        return sender in self._senders

    def trace_of(self, headers: dict[str, str] | None) -> object:
        """The trace context of a message of another node; None if it belongs to no sampled
        trace.
        """
        tracing = self.kernel.tracing
        if not headers or tracing is None:
            return None
        return tracing.context_of(headers, self.kernel.logger)

    def headers_of(self, trace: object) -> dict[str, str] | None:
        """A trace context, as it travels."""
        tracing = self.kernel.tracing
        if trace is None or tracing is None:
            return None
        headers: dict[str, str] | None = tracing.headers_of(trace, self.kernel.logger)
        return headers

    def warn_of_refusal(self, node: str, permit: str) -> None:
        """Log that another node does not permit an act to this node."""
        self.log_once(
            f"the node {node} does not permit this node to {PERMITS[permit]}"
            if permit in PERMITS
            else f"the node {node} refuses an act of this node",
            refusal_text(node, self.kernel.pid.node, permit) if permit in PERMITS else permit[:100],
        )

    def log_once(self, what: str, error: str) -> None:
        """Log a fault of messages only the first time: a flood of them must not flood the log."""
        if what not in self._logged and len(self._logged) < _LOGGED:
            self._logged.add(what)
            self.kernel.logger.warning(what, error=error, note="later ones are not logged")
