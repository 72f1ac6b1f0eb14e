"""``TwoLanes``: the mailbox of a meta-process."""

from collections import deque
from typing import ClassVar

from ..tables.mailbox import Mailbox, Verdict, Waiter
from ..vocabulary.envelopes import EVENT, Envelope, Lane

__all__ = ["TwoLanes"]


def _lane(lane: Lane) -> Lane:
    return Lane.SYSTEM if lane is Lane.URGENT else lane


class TwoLanes(Mailbox):
    """The mailbox of a meta-process: user messages go to the lane SYSTEM or MAIN.

    Signals use the URGENT lane, so an inspection overtakes every waiting message. A worker thread
    may pop messages while the loop reads the lanes, so no method may assume that a lane stays as
    full as it was a line before.
    """

    __slots__ = ()

    main_type: ClassVar[type[deque[Envelope]]] = deque
    """Always a deque: a connection compares envelopes by identity, which the lane of the C
    extension does not keep.
    """

    def push(self, lane: Lane, envelope: Envelope) -> None:
        """Append without checking the bound."""
        super().push(_lane(lane) if envelope[0] <= EVENT else lane, envelope)

    def has_room(self, lane: Lane) -> bool:
        """Say whether a user message would be accepted."""
        return super().has_room(_lane(lane))

    def admit(self, lane: Lane, envelope: Envelope) -> tuple[Verdict, Envelope | None]:
        """Add a user message, as far as the bound and the overflow policy allow."""
        return super().admit(_lane(lane), envelope)

    def depth(self, lane: Lane) -> int:
        """Count the envelopes that wait in a lane."""
        return super().depth(_lane(lane))

    def promise(self, lane: Lane) -> bool:
        """Reserve a place for a message that is on its way."""
        return super().promise(_lane(lane))

    def redeem(self, lane: Lane) -> None:
        """Return a reserved place."""
        super().redeem(_lane(lane))

    def wait_for_room(
        self, lane: Lane, envelope: Envelope | None, waiter: Waiter, depth: int = 0
    ) -> None:
        """Queue an envelope until there is room for it."""
        super().wait_for_room(_lane(lane), envelope, waiter, depth)

    def stop_waiting(self, lane: Lane, waiter: Waiter) -> bool:
        """Forget a waiter that gave up. False if it did not wait."""
        return super().stop_waiting(_lane(lane), waiter)

    def depths(self) -> dict[str, int]:
        """Count the envelopes that wait in each lane."""
        return {"system": len(self.urgent) + len(self.system), "main": len(self.main)}

    def take_oldest_user_message(self, lane: Lane) -> Envelope | None:
        """Take the oldest user message out of a lane, while a worker thread may take it as well."""
        if lane is not Lane.MAIN:
            return super().take_oldest_user_message(lane)
        kept: list[Envelope] = []
        oldest: Envelope | None = None
        try:
            while (oldest := self.main.popleft())[0] > EVENT:
                # Overflow displaces only user messages, so keep this envelope.
                kept.append(oldest)
        except IndexError:  # the worker thread took the last message: there is room now
            oldest = None
        self.main.extendleft(reversed(kept))
        return oldest
