"""The floor: the speed of trio with just a mailbox written by hand, and nothing else. Ours can only
come near.
"""

from collections import deque
from collections.abc import Callable, Generator
from types import coroutine
from typing import Any

import outcome
import trio
from trio.lowlevel import (
    Abort,
    RaiseCancelT,
    Task,
    checkpoint,
    current_task,
    reschedule,
    wait_task_rescheduled,
)

from .clocks import Stopwatch
from .harness import Figures

__all__ = ["Door", "FloorActor", "Question", "ask", "step"]

_BURST = 256


class FloorActor:
    """A task with a deque: woken by ``reschedule``, drained in batches. Ends when ``handle`` says
    True.
    """

    __slots__ = ("_asleep", "_task", "handle", "queue")

    def __init__(self, handle: Callable[[Any], object]) -> None:
        self.handle = handle
        self.queue: deque[Any] = deque()
        self._asleep = False
        self._task: Task | None = None

    def put(self, message: object) -> None:
        self.queue.append(message)
        if self._asleep and self._task is not None:
            self._asleep = False
            reschedule(self._task)

    async def run(self) -> None:
        self._task = current_task()
        queue, handle, left = self.queue, self.handle, _BURST
        while True:
            while queue:
                if handle(queue.popleft()):
                    return
                left -= 1
                if not left:
                    await checkpoint()
                    left = _BURST
            self._asleep = True
            await wait_task_rescheduled(self._abort)
            left = _BURST

    def _abort(self, _raise_cancel: RaiseCancelT) -> Abort:
        self._asleep = False
        return Abort.SUCCEEDED


class Question:
    """A call: the task that waits, and its request."""

    __slots__ = ("_task", "request")

    def __init__(self, task: Task, request: object) -> None:
        self._task = task
        self.request = request

    def answer(self, value: object) -> None:
        reschedule(self._task, outcome.Value(value))


def _succeeded(_raise_cancel: RaiseCancelT) -> Abort:
    return Abort.SUCCEEDED


async def ask(actor: FloorActor, request: object) -> Any:
    """Put a question and wait for its answer."""
    actor.put(Question(current_task(), request))
    return await wait_task_rescheduled(_succeeded)


class Door:
    """From a thread to an actor: a deque and a flag, a single wake-up of the loop for each
    batch.
    """

    __slots__ = ("_armed", "_queue", "_target", "_token")

    def __init__(self, target: FloorActor) -> None:
        self._target = target
        self._token = trio.lowlevel.current_trio_token()
        self._queue: deque[object] = deque()
        self._armed = False

    def put(self, message: object) -> None:
        self._queue.append(message)
        if not self._armed:
            self._armed = True
            self._token.run_sync_soon(self._drain)

    def _drain(self) -> None:
        self._armed = False
        queue, put = self._queue, self._target.put
        for _ in range(len(queue)):
            put(queue.popleft())


@coroutine
def _pause() -> Generator[None, None, None]:
    yield


async def _stepped(queue: deque[object]) -> None:
    while True:
        await _pause()
        queue.popleft()


def step(size: int) -> Figures:
    """The unit F: append, resume a coroutine, pop inside. No trio at all."""
    queue: deque[object] = deque()
    running = _stepped(queue)
    send, append, message = running.send, queue.append, object()
    send(None)
    with Stopwatch() as watch:
        for _ in range(size):
            append(message)
            send(None)
    running.close()
    return watch.each(size)
