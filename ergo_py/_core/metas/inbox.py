"""What comes into a meta-process: two lanes, and the answers to its own requests."""

from typing import TYPE_CHECKING

from ..tables.mailbox import Mailbox, Verdict, Waiter
from ..tables.pending_calls import Caller
from ..vocabulary.envelopes import EVENT, RESPONSE, Envelope, Lane
from ..vocabulary.messages import Response

if TYPE_CHECKING:
    from .meta import Meta

__all__ = ["RequestCaller", "TwoLanes"]


def _lane(lane: Lane) -> Lane:
    return Lane.SYSTEM if lane is Lane.URGENT else lane


class TwoLanes(Mailbox):
    """The mailbox of a meta-process: what users send goes to SYSTEM or MAIN.

    Signals use the lane before both, so that an inspect overtakes every waiting message. A worker
    thread may take messages while the loop looks at them, so nothing here may rely on a lane being
    as full as it was a line before.
    """

    __slots__ = ()

    def push(self, lane: Lane, envelope: Envelope) -> None:
        """Append without looking at any bound."""
        super().push(_lane(lane) if envelope[0] <= EVENT else lane, envelope)

    def has_room(self, lane: Lane) -> bool:
        """Say whether a user message would be accepted."""
        return super().has_room(_lane(lane))

    def admit(self, lane: Lane, envelope: Envelope) -> tuple[Verdict, Envelope | None]:
        """Put a user message, as far as bound and overflow rule allow."""
        return super().admit(_lane(lane), envelope)

    def depth(self, lane: Lane) -> int:
        """How many envelopes wait in a lane."""
        return super().depth(_lane(lane))

    def promise(self, lane: Lane) -> bool:
        """Keep a place for a message that is on its way."""
        return super().promise(_lane(lane))

    def redeem(self, lane: Lane) -> None:
        """Give a kept place back."""
        super().redeem(_lane(lane))

    def wait_for_room(
        self, lane: Lane, envelope: Envelope | None, waiter: Waiter, depth: int = 0
    ) -> None:
        """Queue an envelope that goes in as soon as there is room."""
        super().wait_for_room(_lane(lane), envelope, waiter, depth)

    def stop_waiting(self, lane: Lane, waiter: Waiter) -> None:
        """Forget a waiter that gave up."""
        super().stop_waiting(_lane(lane), waiter)

    def depths(self) -> dict[str, int]:
        """How many envelopes wait in each lane."""
        return {"system": len(self.urgent) + len(self.system), "main": len(self.main)}

    def _take_oldest_user_message(self, lane: Lane) -> Envelope | None:
        if lane is not Lane.MAIN:
            return super()._take_oldest_user_message(lane)
        kept: list[Envelope] = []
        oldest: Envelope | None = None
        try:
            while (oldest := self.main.popleft())[0] > EVENT:
                # Not a user's message, so it is not displaced.
                kept.append(oldest)
        except IndexError:  # the worker thread was faster: then there is room
            oldest = None
        self.main.extendleft(reversed(kept))
        return oldest


class RequestCaller(Caller):
    """A request of a meta-process: its answer is a message to the handler."""

    __slots__ = ("meta",)

    def __init__(self, meta: "Meta", number: int, to: object, request: object) -> None:
        super().__init__(meta.id, number, to, request)
        self.meta = meta

    def awaken(self) -> None:
        """Hand the answer to the handler, unless the meta-process is ending."""
        meta = self.meta
        meta.requests.pop(self.number, None)
        if meta.reason is None:
            # As the answer to a call does, it comes before the messages that wait.
            meta.mailbox.push(
                Lane.SYSTEM, (RESPONSE, self.pid, None, Response(self.ref, self.value, self.error))
            )
            meta.wake()
