"""Sending from a meta-process: the reader within a bound, the handler at once, without overtaking
each other.
"""

from typing import TYPE_CHECKING

from trio.lowlevel import current_task

from ..messaging.router import LANES, check_priority
from ..messaging.waiters import TaskWaiter
from ..runtime.bridge import get_ident
from ..runtime.parking import park_as
from ..vocabulary.envelopes import Lane, Priority
from ..vocabulary.errors import NotAllowedError
from ..vocabulary.ids import Target
from ..vocabulary.messages import Why
from ..vocabulary.options import Behind
from .outbox import envelope
from .reader import in_reader

if TYPE_CHECKING:
    from .meta import Meta

__all__ = ["send", "send_wait", "wait_for_room"]


def send(meta: "Meta", to: Target, message: object, priority: Priority | None) -> bool:
    """Send from the reader, the handler, or any other code."""
    chosen = _check(meta, priority)
    thread = meta.thread
    if thread is not None and get_ident() == thread.ident:
        return meta.outbox.put(to, message, chosen)
    if thread is None and in_reader(meta):
        return meta.outbox.offer(to, message, chosen)
    meta.sent += 1
    # The handler must not overtake earlier messages of the reader.
    if len(meta.outbox) and meta.outbox.follow(to, message, chosen):
        return True
    return meta.router.send(meta.id, to, message, chosen)


async def send_wait(meta: "Meta", to: Target, message: object, priority: Priority | None) -> bool:
    """Send from async code. Waits while the receiver is too far behind, as the reader's thread
    does.
    """
    chosen = _check(meta, priority)
    lane = LANES[chosen]
    if meta.options.when_behind is not Behind.WAIT and in_reader(meta):
        sent = meta.outbox.offer(to, message, chosen)
        await meta.router.pause()
        return sent
    if len(meta.outbox):
        await meta.outbox.wait_until_empty()
    receiver = meta.router.resolve(to)
    meta.sent += 1
    if receiver is None or not receiver.accepting or not meta.outbox.is_behind(receiver, lane):
        sent = meta.router.send(meta.id, to, message, chosen)
        await meta.router.pause()
        return sent
    waiter = TaskWaiter(current_task())
    receiver.mailbox.wait_for_room(
        lane, envelope(receiver, meta.id, to, message), waiter, meta.outbox.backlog
    )
    try:
        await park_as(waiter.task, waiter)
    finally:
        if waiter.admitted is None:
            receiver.mailbox.stop_waiting(lane, waiter)
    if not waiter.admitted:
        meta.router.dead_letters.add(meta.id, to, message, Why.STOPPING)
    return bool(waiter.admitted)


async def wait_for_room(meta: "Meta", to: Target, lane: Lane = Lane.MAIN) -> bool:
    """Wait while a receiver is full or too far behind. Returns whether it waited. Cancellation
    loses nothing.
    """
    waited = False
    while True:
        receiver = meta.router.resolve(to)
        if receiver is None or not receiver.accepting or not meta.outbox.is_behind(receiver, lane):
            return waited
        waiter = TaskWaiter(current_task())
        receiver.mailbox.wait_for_room(lane, None, waiter, meta.outbox.backlog)
        waited = True
        try:
            await park_as(waiter.task, waiter)
        finally:
            if waiter.admitted is None:
                receiver.mailbox.stop_waiting(lane, waiter)


def _check(meta: "Meta", priority: Priority | None) -> Priority:
    if meta.silenced or (meta.reader_abandoned and in_reader(meta)):
        raise NotAllowedError(
            f"{meta} was stopped; this thread or task did not end in time and was abandoned, so it "
            "cannot send any more"
        )
    return meta.priority if priority is None else check_priority(priority)
