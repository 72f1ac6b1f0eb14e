"""`ReaderWait`: a reader, in a thread or in a task, waits for the loop. And functions for readers
that are either, as their user chooses; they behave the same either way.
"""

from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from math import ceil, inf
from typing import Any, Final, Literal

import trio

from .._core.messaging.receiver import Receiver
from .._core.metas.meta import Meta
from .._core.processes.process import Process
from .._core.runtime.bridge import Parker
from .._core.tables.pending_calls import Caller, Deadline
from .._core.verbs.meta_process import MetaProcess
from .._core.vocabulary.envelopes import FENCE, Lane
from .._core.vocabulary.errors import BadInputError, NodeStoppedError
from .._core.vocabulary.ids import PID, Alias, Target
from .._core.vocabulary.states import MetaState, State

__all__ = [
    "ReaderKind",
    "ReaderWait",
    "check_reader",
    "hand_over",
    "has_receiver",
    "has_served",
    "is_asleep",
    "post_to_loop",
    "run_at_once",
    "start_beside",
    "when_served",
]

ReaderKind = Literal["thread", "task"]


_WITH_STATE: Final = (Process, Meta)
_ASLEEP: Final = (State.SLEEP, MetaState.SLEEP)


def check_reader(reader: ReaderKind) -> ReaderKind:
    """Refuse a reader that is neither a thread nor a task."""
    if reader not in ("thread", "task"):
        raise BadInputError("reader", reader, "'thread' or 'task'")
    return reader


class ReaderWait:
    """Lets the reader of a meta-process wait for the loop, in a thread or in a task."""

    __slots__ = ("_process", "_waits")

    def __init__(self, process: MetaProcess) -> None:
        self._process = process
        self._waits: Parker[None] | trio.Event | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the reader waits."""
        return self._waits is not None

    def ring(self) -> None:
        """Let a waiting reader check its condition again. On the loop only."""
        waits = self._waits
        if isinstance(waits, trio.Event):
            waits.set()
        elif waits is not None:
            waits.settle(None)

    def in_thread(self, until: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block until ``until()`` holds; it is checked after each ring. False if the time is over
        or the stop has come.
        """
        process = self._process
        end = inf if timeout is None else process._now() + timeout
        alarm: Deadline | None = None
        try:
            while not process.stopping:
                # Publish the parker before checking: the loop changes the condition first and rings
                # after, so no change is missed.
                self._waits = parker = Parker[None]()
                if until():
                    return True
                if process.stopping or process._now() >= end:
                    return False
                if timeout is not None and alarm is None:
                    alarm = Deadline(self.ring)
                    # The clock has a queue for each duration: round it up to 1/64 s, so that many
                    # connections share a queue.
                    arm = process._meta.kernel.clock.arm_call
                    process._meta.router.bridge.post(arm, alarm, ceil(timeout * 64) / 64)
                parker.wait(None)
        finally:
            self._waits = None
            if alarm is not None:
                alarm.abandon()
        return False

    async def in_task(self, until: Callable[[], bool], timeout: float | None = None) -> bool:
        """The same for a task; a stop cancels it."""
        try:
            # The time may have run out since it was computed; trio refuses a negative timeout.
            with trio.move_on_after(inf if timeout is None else max(0.0, timeout)):
                while True:
                    self._waits = event = trio.Event()
                    if until():
                        return True
                    await event.wait()
        finally:
            self._waits = None
        return False


def start_beside(process: MetaProcess, work: Callable[[], Awaitable[None]]) -> None:
    """Run an async function beside reader and handler. If it raises, the meta-process ends with a
    crash.
    """
    meta = process._meta

    def failed(error: Exception) -> None:
        meta.finish(meta.failed("start", error))

    # In an empty context: the task must not see the context variables of the process that runs now.
    name = f"{meta.callbacks.behaviour}: beside its reader"
    Context().run(lambda: meta.kernel.start(work, name=name, failed=failed))


def post_to_loop(meta: Meta, function: Callable[..., object], *args: object) -> None:
    """Call a function on the loop, from a reader thread, without waiting for it."""
    try:
        meta.router.bridge.post(function, *args)
    except NodeStoppedError:  # the thread was abandoned, and nothing waits for it
        return


def run_at_once(steps: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end in this thread. It blocks where it has to wait, and never
    suspends.
    """
    try:
        steps.send(None)
    except StopIteration:
        return
    steps.close()
    raise RuntimeError("a step of a reader thread has suspended")


async def hand_over(meta: Meta, to: Target, message: object) -> bool:
    """Send from a reader task. Only if the receiver is behind, wait, or do as ``when_behind``
    says.
    """
    return meta.outbox.forward(to, message, meta.priority) or await meta.send_wait(
        to, message, None
    )


def has_receiver(meta: Meta, to: Target) -> bool:
    """Whether a process takes the messages for ``to``."""
    receiver = meta.router.resolve(to)
    return receiver is not None and receiver.accepting


def when_served(meta: Meta, receiver: Receiver | None, then: Callable[[], None]) -> None:
    """Call ``then`` when ``receiver`` has served all messages that it has been sent by now, or is
    gone. On the loop.
    """
    if receiver is None or has_served(receiver):
        then()
    else:
        fence = _Fence(meta.id, receiver, then)
        # Behind the messages, in the same lane.
        meta.router.signal(receiver, Lane.MAIN, (FENCE, meta.id, fence, None))


def has_served(receiver: Receiver | None) -> bool:
    """Whether ``receiver`` is known to have served all messages that it has been sent, or is gone.
    On the loop.
    """
    if receiver is None or not receiver.accepting:
        return True
    return is_asleep(receiver) and not len(receiver.mailbox)


def is_asleep(receiver: Receiver) -> bool:
    """Whether ``receiver`` is known to be in no callback. On the loop."""
    return isinstance(receiver, _WITH_STATE) and receiver.state in _ASLEEP


class _Fence(Caller):
    """Waits in a mailbox like a message, and calls its function when its turn has come."""

    __slots__ = ("_then",)

    def __init__(self, sender: PID | Alias, receiver: Receiver, then: Callable[[], None]) -> None:
        super().__init__(sender, 0, receiver.id, None)
        self.callee = receiver
        self._then = then

    def awaken(self) -> None:
        self._then()
