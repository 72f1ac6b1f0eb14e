"""`Deadlocks`: finds processes of several nodes that wait for each other in calls, in a ring.

A call to a process that itself waits is a suspect. If it is not answered after a while, a probe
follows the processes that wait, from node to node. If it comes back to a process that still waits
in the call that the probe began with, that call fails with the whole ring.
"""

from typing import Any, Final, Protocol

from .._core.kernel import Kernel
from .._core.tables.pending_calls import Caller, Deadline, present
from .._core.vocabulary.ids import PID, Alias
from .protocol.operations import Operation, Probe, Withdraw, sender_of, sender_place

__all__ = ["Deadlocks"]

_AFTER: Final = 0.1
"""Seconds after which a call that is not answered is followed. A ring stays, and most calls to a
busy process are answered before.
"""
# Not measured. A call that is not followed ends by its timeout; each that is followed keeps its
# process for a tenth of a second.
_SUSPECTS: Final = 10_000
"""Most calls that are followed at a time. Further calls are not."""
_LONGEST: Final = 64
"""Most processes of a ring that is found."""


class RemoteCallee(Protocol):
    """Another node, as the callee of a process here."""

    @property
    def is_up(self) -> bool:
        """Whether there is a session with it."""
        ...

    def number_of(self, caller: Caller, /) -> int | None:
        """The number of a call to that node, as it knows it."""
        ...

    def push(self, op: Operation, /) -> None:
        """Queue an operation, and send it soon."""


class Deadlocks:
    """The suspects of a node."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._suspects: list[Any] = []
        self._is_armed = False

    def suspect(self, waiting: object) -> None:
        """Follow a call in a while: ``waiting`` is the call, or the process here that makes it."""
        if len(self._suspects) < _SUSPECTS:
            self._suspects.append(waiting)
        if not self._is_armed:
            # A single deadline for all: a call that becomes a suspect just before it is followed
            # early, which costs a probe and refuses nothing that is no ring.
            self._is_armed = True
            self._kernel.clock.arm_call(Deadline(self.follow_suspects), _AFTER)

    def follow_suspects(self) -> None:
        """Send the probes that are due."""
        self._is_armed = False
        # A suspect may be a process: its call is read now, and a process that waits no longer has
        # none.
        suspects, self._suspects = self._suspects, []
        for suspect in suspects:
            caller = suspect if isinstance(suspect, Caller) else suspect.waiting
            if isinstance(caller, Caller):
                self._follow(caller.pid, caller.number, [caller.pid], caller)

    def take(self, caller: Caller, probe: Probe) -> None:
        """Follow a probe of another node further: the last process of its path waits in the
        call.
        """
        if len(probe.path) < _LONGEST:
            path = [sender_of(place) for place in probe.path]
            self._follow(sender_of(probe.origin), probe.call, path, caller)

    def _follow(
        self, origin: PID | Alias, number: int, path: list[PID | Alias], caller: Caller
    ) -> None:
        """Follow the call, in which the last process of the path waits."""
        waits_for: Any = caller
        while waits_for is not None and len(path) < _LONGEST:
            if isinstance(waits_for, Caller):
                caller = waits_for
                # As in `ring_of`: neither a deferred nor a settled call is an edge.
                callee = None if caller.deferred or caller.settled else present(caller.callee)
            else:
                callee = waits_for  # a child whose start the process waits for
            if callee is None:
                return
            if callee.is_remote:
                self._probe(callee, origin, number, path, caller)
                return
            is_known = callee.id in path
            path.append(callee.id)
            waits_for = callee.waiting
            if callee.id == origin:
                if (
                    isinstance(waits_for, Caller)
                    and waits_for.number == number
                    and self._leaves(waits_for)
                ):
                    self._refuse(waits_for, path)
                return
            # The order of the two tests matters: the origin is in the path, too, and closes this
            # ring.
            if is_known:
                return  # another ring, which has suspects of its own

    def _leaves(self, waits_for: Any) -> bool:
        """Whether a call leads to another node. A probe that says so of another call is forged."""
        # Bounded: a ring of waits on this node alone never leaves it.
        for _ in range(_LONGEST):
            is_call = isinstance(waits_for, Caller)
            callee: Any = present(waits_for.callee) if is_call else waits_for
            if callee is None or callee.is_remote:
                return callee is not None
            waits_for = callee.waiting
        return False

    def _refuse(self, caller: Caller, ring: list[PID | Alias]) -> None:
        """Fail the call that closes a ring, and take its request back."""
        error = self._kernel.router.deadlock(caller.to, caller.request, ring)
        self.withdraw(caller)
        caller.settle(None, error)

    def withdraw(self, caller: Caller) -> None:
        """Take the request of a call back, wherever it waits. It might close the ring again."""
        callee: Any = present(caller.callee)
        if callee is None:
            return
        if not callee.is_remote:
            callee.mailbox.withdraw(caller)
        elif (number := callee.number_of(caller)) is not None and callee.is_up:
            callee.push(Withdraw(number))

    def _probe(
        self,
        peer: RemoteCallee,
        origin: PID | Alias,
        number: int,
        path: list[PID | Alias],
        caller: Caller,
    ) -> None:
        there = peer.number_of(caller)
        if there is not None and peer.is_up:
            places = [sender_place(pid) for pid in path]
            peer.push(Probe(sender_place(origin), number, places, there))
