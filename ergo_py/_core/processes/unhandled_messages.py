"""What a process did not come to: its calls are answered, its messages buried, or left to its
successor.

There may be millions of messages. So this is work that yields after every few hundred of them, and
whoever can wait does it in slices. What users send to a process that ends is refused before, so
that nothing is added but by threads that were just too late; the last look is taken at once, when
these find the mark that the process is gone.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from ..kernel import Kernel
from ..runtime.time_slices import at_once, in_slices
from ..tables.child_slot import ChildSlot, Fate, Redirect
from ..tables.pending_calls import Caller
from ..vocabulary.envelopes import EVENT, MAIN_LANE, Envelope, Lane, Priority
from ..vocabulary.errors import MailboxFullError, TargetDownError
from ..vocabulary.messages import Why
from ..vocabulary.reasons import Reason
from ..vocabulary.states import TERMINATED

if TYPE_CHECKING:
    from ..metas.meta import Meta
    from .process import Process

__all__ = [
    "answer",
    "bury",
    "close_slot",
    "close_slots",
    "drop_slot",
    "drop_slots",
    "hand_over",
    "refuse",
    "skip_given_up",
    "sweep",
]

_CHUNK: Final = 256
"""How many messages are dealt with between two looks at the clock."""


def answer(process: "Process", reason: Reason) -> Iterator[None]:
    """Answer every call that was queued or deferred; the other messages become dead letters, or
    what the supervisor says.
    """
    process.handling = None
    if process.postponed:
        process.main.extendleft(reversed(process.postponed))
        process.postponed = None
    if process.deferred:
        yield from refuse(list(process.deferred), reason)
    slot = process.slot
    if slot is None or slot.fate is Fate.DEAD_LETTER:
        yield from bury(process, reason)
        return
    box = process.mailbox
    # What a successor gets of an unmixed main lane is the lane itself.
    leaves_lane = slot.fate is Fate.KEEP and not box.mixed
    for number, (lane, envelope) in enumerate(box.leave(with_main=not leaves_lane), 1):
        _hand_on(process, slot, lane, envelope, reason)
        if not number % _CHUNK:
            yield


def refuse(callers: Iterable[Caller], reason: Reason) -> Iterator[None]:
    """Tell callers that they get no answer, since the one they asked has ended."""
    for number, caller in enumerate(callers, 1):
        caller.settle(None, TargetDownError(caller.to, caller.request, reason))
        if not number % _CHUNK:
            yield


def bury(one: "Process | Meta", reason: Reason) -> Iterator[None]:
    """Answer the calls in a mailbox, and count the messages in it as dead letters."""
    box, letters = one.mailbox, one.router.dead_letters
    while chunk := box.take(_CHUNK):
        dead = _settle_calls(chunk, reason)
        letters.add_all(dead, one.id, Why.UNHANDLED_AT_EXIT)
        yield


def _settle_calls(envelopes: Iterable[Envelope], reason: Reason) -> list[Envelope]:
    """Answer the calls among them. Returns those that are messages of users."""
    messages: list[Envelope] = []
    for envelope in envelopes:
        caller = envelope[2]
        if isinstance(caller, Caller):
            caller.settle(None, TargetDownError(caller.to, caller.request, reason))
        elif envelope[0] <= EVENT:
            messages.append(envelope)
    return messages


def _hand_on(
    process: "Process", slot: ChildSlot, lane: Lane, envelope: Envelope, reason: Reason
) -> None:
    """Treat what was left in the mailbox of a supervised child as its supervisor was told to."""
    kind, sender, ref, payload = envelope
    caller = ref if isinstance(ref, Caller) else None
    if kind <= EVENT and slot.fate is Fate.KEEP:
        slot.keep(lane, envelope)
    elif kind <= EVENT and isinstance(slot.fate, Redirect):
        try:
            process.kernel.calls.forward(slot.fate.to, payload, caller or sender, Priority.NORMAL)
        except MailboxFullError:
            # It has become a dead letter; there is no sender left who could be told.
            return
    elif caller is not None:
        caller.settle(None, TargetDownError(caller.to, caller.request, reason))
    elif kind <= EVENT:
        slot.dropped += 1


# -- from one process to the next ------------------------------------------------------------------


def hand_over(process: "Process", slot: ChildSlot) -> None:
    """Leave the main lane itself to the successor, however long it is: that takes one step."""
    if slot.fate is Fate.KEEP and not process.mailbox.mixed:
        process.left_to = slot
        slot.keep_lane(process.main)


def skip_given_up(lane: deque[Envelope]) -> None:
    """Take calls away whose callers have stopped to wait, as far as they are among the first in a
    lane that a successor gets.
    """
    first = [lane.popleft() for _ in range(min(_CHUNK, len(lane)))]
    lane.extendleft(
        one for one in reversed(first) if not (isinstance(one[2], Caller) and one[2].settled)
    )


def sweep(process: "Process") -> None:
    """Account for what threads have appended to the main lane in the moment in which its owner
    ended.
    """
    lane, slot = process.main, process.slot
    if slot is not None:
        if slot.kept.get(MAIN_LANE) is lane:
            return  # it waits for the successor with the rest
        heir = slot.heir
        if heir is not None and heir.main is lane and heir.state is not TERMINATED:
            heir.wake()
            return
    process.router.sweep(process.id, lane)


# -- the places of children ------------------------------------------------------------------------


def close_slot(kernel: Kernel, slot: ChildSlot, reason: Reason) -> None:
    """Note that nobody comes back to a child's place, nor to those of its own children."""
    for one in _with_inner(slot):
        kept = one.close(reason)
        if len(kept) <= _CHUNK:
            at_once(_bury_kept(kernel, one.name, kept, reason))
        else:
            kernel.start(
                in_slices, _bury_kept(kernel, one.name, kept, reason), name=f"bury {one.name}"
            )


def close_slots(kernel: Kernel, slots: Iterable[ChildSlot], reason: Reason) -> Iterator[None]:
    """Note the same of many places."""
    for one in [inner for slot in slots for inner in _with_inner(slot)]:
        yield from _bury_kept(kernel, one.name, one.close(reason), reason)
        yield


def _bury_kept(kernel: Kernel, name: str, kept: deque[Envelope], reason: Reason) -> Iterator[None]:
    while kept:
        chunk = [kept.popleft() for _ in range(min(_CHUNK, len(kept)))]
        dead = _settle_calls(chunk, reason)
        kernel.router.dead_letters.add_all(dead, name, Why.UNHANDLED_AT_EXIT)
        yield


def _with_inner(slot: ChildSlot) -> list[ChildSlot]:
    """A place, those of the children of the one who has it, theirs, and so on."""
    found = [slot]
    for one in found:
        found.extend(one.inner.values())
    return found


def drop_slot(kernel: Kernel, slot: ChildSlot, reason: Reason) -> None:
    """Close a place for good: what is started under its name later is something else."""
    close_slot(kernel, slot, reason)
    at_once(drop_slots(kernel, [slot], reason))


def drop_slots(kernel: Kernel, slots: Iterable[ChildSlot], reason: Reason) -> Iterator[None]:
    """Close all places of a supervisor that has no successor for good."""
    yield from close_slots(kernel, slots, reason)
    for one in [inner for slot in slots for inner in _with_inner(slot)]:
        if kernel.services.get(one.name) is one:
            del kernel.services[one.name]
        yield
