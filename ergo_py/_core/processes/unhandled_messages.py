"""`answer`, `discard`, `sweep`: messages and calls that are still queued when their process
ends. Calls fail, messages become dead letters, or the successor inherits them.

There may be millions of messages. So these functions are generators that yield after every few
hundred messages, and callers that can wait run them in time slices. An ending process refuses user
messages first, so only late threads still add to its mailbox. The last check of the mailbox runs
without a pause, after the mark that makes late threads see the end of the process.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from ..kernel import Kernel
from ..messaging.receiver import Receiver
from ..messaging.router import Router
from ..runtime.time_slices import at_once, in_slices
from ..tables.child_slot import ChildSlot, Fate, Redirect
from ..tables.pending_calls import Caller
from ..vocabulary.envelopes import EVENT, MAIN_LANE, Envelope, Lane, Priority
from ..vocabulary.errors import MailboxFullError
from ..vocabulary.messages import Why
from ..vocabulary.reasons import Reason
from ..vocabulary.states import TERMINATED

if TYPE_CHECKING:
    from .addressee import Addressee
    from .process import Process

__all__ = [
    "answer",
    "close_slot",
    "close_slots",
    "discard",
    "drop_slot",
    "drop_slots",
    "refuse",
    "skip_given_up",
    "sweep",
]

# Not measured: a quarter of a millisecond at a microsecond for each message.
_CHUNK: Final = 256
"""How many messages are processed between two looks at the clock."""


def answer(process: "Process", reason: Reason) -> Iterator[None]:
    """Fail every queued and every deferred call. The other messages become dead letters, unless the
    supervisor's rule for the slot says otherwise.
    """
    process.turn.handle_again(None)
    if process.postponed:
        process.requeue_postponed()
    if process.deferred:
        yield from refuse(list(process.deferred), reason)
    slot = process.slot
    if slot is None or slot.rules.fate is Fate.DEAD_LETTER:
        yield from discard(process.router, process, reason)
        return
    box = process.mailbox
    # The successor inherits an unmixed main lane as a whole.
    leaves_lane = slot.rules.fate is Fate.KEEP and not box.holds_signals()
    for number, (lane, envelope) in enumerate(box.leave(with_main=not leaves_lane), 1):
        _hand_on(process, slot, lane, envelope, reason)
        if not number % _CHUNK:
            yield


def refuse(callers: Iterable[Caller], reason: Reason) -> Iterator[None]:
    """Fail calls because their callee has ended."""
    for number, caller in enumerate(callers, 1):
        caller.fail_begun(reason)
        if not number % _CHUNK:
            yield


def discard(router: Router, ended: Receiver, reason: Reason) -> Iterator[None]:
    """Fail the calls in a mailbox, and turn its messages into dead letters."""
    box, letters = ended.mailbox, router.dead_letters
    while chunk := box.take(_CHUNK):
        dead = _settle_calls(chunk, reason)
        letters.add_all(dead, ended.id, Why.UNHANDLED_AT_EXIT)
        yield


def _settle_calls(envelopes: Iterable[Envelope], reason: Reason) -> list[Envelope]:
    """Fail the calls among the envelopes. Returns the user messages."""
    messages: list[Envelope] = []
    for envelope in envelopes:
        caller = envelope[2]
        if isinstance(caller, Caller):
            caller.fail_queued(reason)
        elif envelope[0] <= EVENT:
            messages.append(envelope)
    return messages


def _hand_on(
    process: "Process", slot: ChildSlot, lane: Lane, envelope: Envelope, reason: Reason
) -> None:
    """Apply the supervisor's rule to an envelope left in the mailbox of a supervised child."""
    kind, sender, ref, payload = envelope
    caller, fate = ref if isinstance(ref, Caller) else None, slot.rules.fate
    if kind <= EVENT and fate is Fate.KEEP:
        slot.keep(lane, envelope)
    elif kind <= EVENT and isinstance(fate, Redirect):
        try:
            # As forwarded, with its sender or its caller: an answer goes to the process that asked.
            process.kernel.calls.forward(fate.to, payload, caller or sender, Priority.NORMAL)
        except MailboxFullError:
            # The message has become a dead letter. Its sender is not waiting for a result any more.
            return
    elif caller is not None:
        caller.fail_queued(reason)
    elif kind <= EVENT:
        slot.count_dropped()


# -- from a process to its successor ---------------------------------------------------------------


def skip_given_up(lane: deque[Envelope]) -> None:
    """Drop calls whose callers have stopped waiting, from the first envelopes of a lane that a
    successor inherits.
    """
    # Only the first: a lane of millions is inherited in a single step, and a settled call further
    # behind is served, and its answer counted as late.
    first = [lane.popleft() for _ in range(min(_CHUNK, len(lane)))]
    lane.extendleft(
        envelope
        for envelope in reversed(first)
        if not (isinstance(envelope[2], Caller) and envelope[2].settled)
    )


def sweep(process: "Addressee") -> None:
    """Dispose of envelopes that threads appended to the main lane while the process ended."""
    lane, slot = process.main, process.slot
    if slot is not None:
        if slot.kept.get(MAIN_LANE) is lane:
            return  # the successor inherits it with the rest
        successor = slot.successor
        if successor is not None and successor.main is lane and successor.state is not TERMINATED:
            successor.wake()
            return
    process.router.sweep(process.id, lane)


# -- slots of children -----------------------------------------------------------------------------


def close_slot(kernel: Kernel, slot: ChildSlot, reason: Reason) -> None:
    """Close the slot of a child that is not restarted, and all slots below it."""
    for closing in _with_inner(slot):
        kept = closing.close(reason)
        if len(kept) <= _CHUNK:
            at_once(_discard_kept(kernel, closing.name, kept, reason))
        else:
            kernel.start(
                in_slices,
                _discard_kept(kernel, closing.name, kept, reason),
                name=f"discard the messages for {closing.name}",
            )


def close_slots(kernel: Kernel, slots: Iterable[ChildSlot], reason: Reason) -> Iterator[None]:
    """Close many slots, and all slots below them."""
    for inner in _with_all_inner(slots):
        yield from _discard_kept(kernel, inner.name, inner.close(reason), reason)
        yield


def _discard_kept(
    kernel: Kernel, name: str, kept: deque[Envelope], reason: Reason
) -> Iterator[None]:
    while kept:
        chunk = [kept.popleft() for _ in range(min(_CHUNK, len(kept)))]
        dead = _settle_calls(chunk, reason)
        kernel.router.dead_letters.add_all(dead, name, Why.UNHANDLED_AT_EXIT)
        yield


def _with_inner(slot: ChildSlot) -> list[ChildSlot]:
    """A slot, the slots of the children of its supervisor process, and so on down."""
    found = [slot]
    for outer in found:
        found.extend(outer.inner.values())
    return found


def _with_all_inner(slots: Iterable[ChildSlot]) -> list[ChildSlot]:
    return [inner for slot in slots for inner in _with_inner(slot)]


def drop_slot(kernel: Kernel, slot: ChildSlot, reason: Reason) -> None:
    """Close a slot and remove its name: a process that is started under this name later has nothing
    to do with it.
    """
    close_slot(kernel, slot, reason)
    at_once(drop_slots(kernel, [slot], reason))


def drop_slots(kernel: Kernel, slots: Iterable[ChildSlot], reason: Reason) -> Iterator[None]:
    """Close and remove all slots of a supervisor that has no successor."""
    yield from close_slots(kernel, slots, reason)
    for inner in _with_all_inner(slots):
        if kernel.services.get(inner.name) is inner:
            del kernel.services[inner.name]
        yield
