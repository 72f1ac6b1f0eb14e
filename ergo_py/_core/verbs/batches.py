"""`serve_batches`: an actor with ``handle_batch`` collects its messages, and handles several at
once.

The message loop knows nothing of it: such a class has another ``handle_message``, which takes the
first message of a batch and collects the others, as a suspended process waits for its resumption.
Meanwhile the batch is with the postponed envelopes of the process, so that a process that ends
leaves it to its successor or to the dead letters, as it leaves its mailbox.
"""

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from trio.lowlevel import Task

from ..messaging.observer import Delivered
from ..processes.envelope_handlers import answer_inspection, callback
from ..runtime.parking import park, yield_turn
from ..tables.callbacks import BATCHES, BatchRule, own_function
from ..tables.pending_calls import Caller, Deadline
from ..vocabulary.envelopes import (
    FAILED,
    KILL,
    MAIN_LANE,
    MESSAGE,
    TRACED,
    Envelope,
)
from ..vocabulary.messages import ServedMessage

if TYPE_CHECKING:
    from ..processes.process import Process

__all__ = ["batch_items", "serve_batches"]

_LOSES_ALL: Final = (KILL, FAILED)
"""Signals that end a process without its batch."""


def serve_batches(cls: type[Any]) -> None:
    """Let a class with ``handle_batch`` collect its messages. Other classes keep their callbacks,
    and so does a class with a ``handle_message`` of its own, which is refused when it is spawned.
    """
    if getattr(cls.handle_batch, "__is_default__", False):
        return
    if getattr(own_function(cls.handle_message), "__is_default__", False):
        cls.handle_message = _collect


class _Collecting(Protocol):
    """An actor with batches."""

    _process: "Process"
    batch: BatchRule


async def _collect(self: _Collecting, message: object, sender: object) -> None:
    """Collect a batch that begins with this message, and handle it."""
    process = self._process
    first = process.handling
    if (
        first is None
        or first[0] not in (MESSAGE, TRACED)
        or first[3] is not message
        or process.lane() is not MAIN_LANE
    ):
        # A notice, or a message with a priority: it goes before the messages that wait. Or a
        # callback of the actor calls its own handle_message, with any object.
        await callback(process, "handle_batch", [message])
        return
    batch = process.begin_batch(first)
    # A call that was answered inline would overtake the batch.
    inline = process.allow_inline_calls(False)
    deadline = Deadline(process.wake)
    try:
        is_whole = await _fill(process, batch, self.batch.batch, self.batch.within, deadline)
    finally:
        deadline.abandon()
        process.allow_inline_calls(inline and process.callbacks.answers_at_once)
    if not is_whole:
        return
    if first[0] == TRACED:
        marks = [envelope[2] for envelope in batch if envelope[0] == TRACED]
        process.kernel.tracing.note_batch(process, marks, len(batch))
    await callback(process, "handle_batch", process.take_batch())
    # The burst of the message loop counts single messages, so it would let others run too late.
    assert isinstance(process.task, Task)
    await yield_turn(process.task)


setattr(_collect, BATCHES, True)


async def _fill(
    process: "Process", batch: deque[Envelope], size: int, within: float, deadline: Deadline
) -> bool:
    """Collect messages until the batch is full, its time is over, or the next envelope is none
    for a batch. False if the process ends without its batch.
    """
    box, main, task, is_armed = process.mailbox, process.main, process.task, False
    observer = process.kernel.observer
    assert isinstance(task, Task)
    while True:
        while not box.ahead and main and len(batch) < size:
            if not _joins(batch[0], main[0]):
                return True
            envelope = main.popleft()
            batch.append(envelope)
            if observer is not None:
                observer(Delivered(process.id, envelope[1], envelope[3]))
        if len(batch) >= size:
            return True
        if box.ahead:
            if await answer_inspection(process):
                continue
            return not (box.urgent and box.urgent[0][0] in _LOSES_ALL)
        if box.waiters and box.admit_waiters():
            continue
        if box.log or within <= 0.0 or deadline.settled:
            return True
        if not is_armed:
            is_armed = True
            process.kernel.clock.arm_call(deadline, within)
        process.end_turn()
        await park(task, main)
        process.begin_turn()


def _joins(first: Envelope, envelope: Envelope) -> bool:
    """Whether an envelope is a message for the batch. A message of a trace begins a batch, because
    the callback runs in the span of the first message.
    """
    kind, _, ref, payload = envelope
    if kind == TRACED and first[0] == TRACED and not isinstance(ref, Caller):
        kind = ref.kind
    return kind == MESSAGE and not isinstance(payload, ServedMessage)


def batch_items(process: "Process") -> dict[str, str]:
    """The batch that waits, for ``handle_inspect``; nothing for an actor without batches."""
    if "handle_batch" not in process.callbacks.defined:
        return {}
    rule: BatchRule = process.behaviour_itself.batch
    return {"batch": f"{len(process.postponed or ())} of {rule.batch}"}
