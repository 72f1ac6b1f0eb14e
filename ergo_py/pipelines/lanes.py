"""`Lanes`: a step of a pipeline at work, in one or more lanes. A lane is a task, mostly with a
thread, that handles items in sequence.
"""

import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Final, TypeVar
from zlib import crc32

import trio

from .._core import sources
from .._core.tables.pending_calls import Caller
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import Custom
from .._core.vocabulary.text import shown
from ..actor import Actor
from ..meta.blocking_calls import BlockingCalls
from ..supervision.specs import Backoff
from .item import Item
from .source import ALIVE, Source, name_of, why
from .steps import Batch, Batched, Stage, Step, ToActor

__all__ = ["Entry", "Lanes", "Retry"]

R = TypeVar("R")

_SLICE: Final = 0.005
"""Seconds after which the thread of a stage gives back the items that it has handled. A shorter
time costs a hand-over for each few items, a longer time delays their acknowledgement.
"""
_CHUNK: Final = 256
"""The most items that a lane gives to its thread at once."""
_STOP: Final = 5.0
"""Seconds that the thread of a step has for its end, or fewer if it counts as stuck earlier."""
_CLOSE: Final = 5.0
"""Seconds that the ``close`` of an async step may take."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a pipeline tries an item again after an error, and the delays between the tries.

    Raises:
        BadInputError: a value is invalid.
    """

    times: int
    backoff: Backoff
    deliveries: int | None = None
    """How often the broker may deliver an item. An item that comes again after that goes to
    ``poison`` without another try: it may end each program that handles it. None for no limit.
    """

    def __post_init__(self) -> None:
        if self.deliveries is not None:
            check_number("Retry(deliveries)", self.deliveries, least=2, whole=True)
        check_number("Retry(times)", self.times, least=0, whole=True)
        if not isinstance(self.backoff, Backoff):
            raise BadInputError(
                "Retry(backoff)", self.backoff, "a Backoff, such as Backoff(0.1, 5)"
            )


class Entry:
    """An open item on its way through the pipeline."""

    __slots__ = ("caller", "error", "item", "key", "origin", "taken", "tries")

    def __init__(self, item: Item, taken: float, caller: Caller | None = None) -> None:
        self.origin: Item = item
        """As it was taken."""
        self.item: Item = item
        """As the last stage has left it."""
        self.key: Hashable = None
        """Its key in the step where it is."""
        self.tries: int = 0
        """The tries in this step that have failed."""
        self.taken: float = taken
        """When it was taken."""
        self.caller: Caller | None = caller
        """Gets the answer, if the item is a call. Not a part of the item, which may travel to
        another node.
        """
        self.error: Exception | None = None
        """The error for which it was given up. The steps of ``poison`` do not take it away."""

    def go_on(self, body: object) -> None:
        """Take the result of a stage."""
        self.item = self.item.with_body(body)

    def give_up(self, error: Exception) -> None:
        """Become an item for ``poison``: as it was taken, with its error."""
        self.error = error
        self.item = self.origin.with_error(error)

    def count_failure(self) -> int:
        """Count a try that has failed. Returns the number of those before."""
        self.tries += 1
        return self.tries - 1


class Lanes:
    """The lanes of a step, and the entries that wait for them.

    Args:
        step: the stage or sink; each lane has a copy.
        retry: how often to try an entry again.
        reopen: the delays between two tries to open the step.
        done: called with the entries that the step has handled, in order.
        give_up: called with an entry that has failed for the last time, and its error.
        stuck: called when a call of the step did not return in time, and so the pipeline ends.
    """

    def __init__(
        self,
        step: Step,
        retry: Retry,
        reopen: Backoff,
        done: Callable[[Sequence[Entry]], None],
        give_up: Callable[[Entry, Exception], None],
        stuck: Callable[[], None],
    ) -> None:
        self.step: Step = step
        self.retry: Retry = retry
        self.reopen: Backoff = reopen
        self._done, self._give_up = done, give_up
        self.tell_stuck: Callable[[], None] = stuck
        self.inside: int = 0
        """Entries in the step: those that wait, and those that a lane handles."""
        self.retried = 0
        """Entries that were tried again, each as often as it was."""
        self.is_hurried: bool = False
        """Whether no lane waits for a full batch any more."""
        self.shared: deque[Entry] = deque()
        """Entries without a key: the next lane that is free takes them."""
        self._lanes: list[_Lane] = []
        self._news = trio.Event()

    async def start(self, pipeline: Actor) -> None:
        """Start the lanes, as background tasks of the pipeline."""
        kind = _BatchLane if isinstance(self.step, Batched) else _StageLane
        for number in range(self.step.threads):
            lane = kind(self, copy(self.step), pipeline)
            if isinstance(lane.step, ToActor):
                lane.step.call_by(pipeline, number)
            await lane.start()
            self._lanes.append(lane)

    def put(self, entries: Sequence[Entry]) -> None:
        """Let entries wait for a lane: those with equal keys for the same."""
        key_of, lanes = self.step.key, self._lanes
        # All keys have the same lane then: a hash that is quicker is enough to refuse a bad key.
        number_of = _stable_hash if len(lanes) > 1 else hash
        self.inside += len(entries)
        for entry in entries:
            try:
                key = key_of(entry.item)
                queue = self.shared if key is None else lanes[number_of(key) % len(lanes)].own
            except Exception as error:  # of the key function, or the key has no hash
                self.give_up(entry, error)
                continue
            # Without a method: these lines cost each item the most time.
            entry.key, entry.tries = key, 0
            queue.append(entry)
        self.ring()

    def pass_on(self, entries: Sequence[Entry]) -> None:
        """The step has handled these entries."""
        self.inside -= len(entries)
        self._done(entries)

    def give_up(self, entry: Entry, error: Exception) -> None:
        """The entry has failed for the last time."""
        self.inside -= 1
        self._give_up(entry, error)

    def hurry(self) -> None:
        """Wait for full batches no longer."""
        self.is_hurried = True
        self.ring()

    def ring(self) -> None:
        """Let all lanes look again for entries."""
        self._news.set()
        self._news = trio.Event()

    async def wait(self, until: float) -> bool:
        """Wait for news, at most until a time. False if there are none."""
        with trio.move_on_at(until) as timer:
            await self._news.wait()
        return not timer.cancelled_caught

    @property
    def share(self) -> int:
        """How many entries without a key a lane takes, so that the others have some, too."""
        return min(_CHUNK, -(-len(self.shared) // len(self._lanes)))


class _Lane:
    """Handles entries in sequence. The subclasses know how: one by one, or in batches."""

    def __init__(self, lanes: Lanes, step: Step, pipeline: Actor) -> None:
        self.own: deque[Entry] = deque()
        """Entries with keys, which no other lane may handle."""
        self._lanes, self.step, self._pipeline = lanes, step, pipeline
        self._calls: BlockingCalls | None = None
        """The thread of the step; None if it runs on the loop."""
        self._chance = sources.chance(pipeline.pid.node, "pipelines").fraction

    async def start(self) -> None:
        """Start the thread and the task."""
        step, pipeline = self.step, self._pipeline
        if not _is_async(step):
            # The thread closes the step, not the task: the task ends at a cancellation, while the
            # thread may be in a call.
            self._calls = BlockingCalls(
                step, close=self._close_at_end, interrupt=lambda step: step.wake()
            )
            patience = min(_STOP, step.stuck_after)
            await pipeline.spawn_meta(self._calls, needed=True, stop_timeout=patience)
        pipeline.start_task(self._run, name=type(step).__qualname__)

    async def _run(self) -> None:
        """Handle entries until the task is cancelled."""
        try:
            await self._open()
            while True:
                await self._handle_next()
        finally:
            if self._calls is None:
                with trio.move_on_after(_CLOSE, shield=True):
                    await self._close()

    async def _handle_next(self) -> None:
        raise NotImplementedError

    async def _in_place(self, function: Callable[[], R | Awaitable[R]]) -> R:
        """Call a function of the step: in the thread, or on the loop."""
        if self._calls is not None:
            result = await self._in_thread(self._calls, function)
        else:
            result = function()
        if inspect.isawaitable(result):
            return await result
        return result

    async def _in_thread(self, calls: BlockingCalls, function: Callable[[], R]) -> R:
        """Call a function in the thread of the step. A thread that does not return in time ends
        the pipeline, which abandons it: a thread cannot be ended, and may hold the library.
        """
        limit = self.step.stuck_after
        # A cancel scope for each call costs 3 % of a pipeline that does nothing.
        with nullcontext() if limit == inf else trio.move_on_after(limit):
            return await calls.run(lambda _step: function())
        calls.end(Custom(f"{type(self.step).__qualname__} did not return for {limit:g} s"))
        self._lanes.tell_stuck()
        await trio.sleep_forever()  # until the end of the pipeline cancels this task
        raise AssertionError

    async def _open(self) -> None:
        """Open the step, for as many tries as it takes."""
        tries = 0
        while True:
            try:
                return await self._in_place(self.step.open)
            except Exception as error:
                self._log("a step of a pipeline does not open", error, tries=tries + 1)
            await self._close()
            await trio.sleep(self._lanes.reopen.delay(tries, self._chance()))
            tries += 1

    async def _close(self) -> None:
        try:
            await self._in_place(self.step.close)
        except Exception as error:
            self._log("a step of a pipeline did not close", error)

    def _close_at_end(self, step: Step) -> None:
        try:
            step.close()
        except Exception as error:
            self._log("a step of a pipeline did not close", error)

    async def _reopen(self) -> None:
        if self.step.reopens:
            await self._close()
            await self._open()

    def _delay(self, tries: int) -> float:
        return self._lanes.retry.backoff.delay(tries, self._chance())

    def _log(self, event: str, error: Exception, **facts: object) -> None:
        self._pipeline.log.warning(event, step=name_of(self.step), error=why(error), **facts)


class _Held:
    """The entries of a key behind an entry that is to be tried again."""

    __slots__ = ("first", "rest")

    def __init__(self, first: Entry) -> None:
        self.first = first
        self.rest: deque[Entry] = deque()


class _StageLane(_Lane):
    """Handles entries one by one. An entry that is tried again later holds back the entries of its
    key, and no others.
    """

    def __init__(self, lanes: Lanes, step: Step, pipeline: Actor) -> None:
        super().__init__(lanes, step, pipeline)
        self._later: list[tuple[float, int, Entry]] = []
        """Entries to try again: the time, a number that keeps their order, the entry."""
        self._failures = 0
        self._held: dict[Hashable, _Held] = {}

    async def _handle_next(self) -> None:
        lanes = self._lanes
        while self._later and self._later[0][0] <= trio.current_time():
            entry = heappop(self._later)[2]
            (lanes.shared if entry.key is None else self.own).appendleft(entry)
        chunk = self._next_chunk()
        if not chunk:
            await lanes.wait(self._later[0][0] if self._later else inf)
            return
        step = self.step
        assert isinstance(step, Stage)
        if self._calls is None:
            try:
                results: list[object] = [await self._in_place(partial(step.handle, chunk[0].item))]
            except Exception as error:
                results = [_Failure(error)]
            await trio.lowlevel.checkpoint()
        else:
            results = await self._in_thread(self._calls, partial(_handle_some, step, chunk))
        self._put_back(chunk[len(results) :])
        self._note(chunk, results)
        if any(isinstance(result, _Failure) for result in results):
            await self._reopen()

    def _next_chunk(self) -> list[Entry]:
        """Take entries: those with keys first. On the loop, a stage handles a single entry at a
        time.
        """
        shared, own, held = self._lanes.shared, self.own, self._held
        chunk: list[Entry] = []
        most = 1 if self._calls is None else _CHUNK
        while own and len(chunk) < most:
            entry = own.popleft()
            hold = held.get(entry.key)
            if hold is None or hold.first is entry:
                chunk.append(entry)
            else:
                hold.rest.append(entry)
        share = min(self._lanes.share, most - len(chunk))
        return chunk + [shared.popleft() for _ in range(share)]

    def _put_back(self, rest: Sequence[Entry]) -> None:
        """The time slice of the thread has ended before these entries."""
        for entry in reversed(rest):
            (self._lanes.shared if entry.key is None else self.own).appendleft(entry)
        if rest:
            self._lanes.ring()

    def _note(self, chunk: Sequence[Entry], results: Sequence[object]) -> None:
        done: list[Entry] = []
        skipped: list[Entry] = []
        for entry, result in zip(chunk, results, strict=False):
            if result is _SKIPPED:
                hold = self._held.get(entry.key)
                (skipped if hold is None else hold.rest).append(entry)
            elif isinstance(result, _Failure):
                self._try_later(entry, result.error)
            else:
                entry.go_on(result)
                done.append(entry)
                self._release(entry)
        self._put_back(skipped)
        if done:
            self._lanes.pass_on(done)

    def _try_later(self, entry: Entry, error: Exception) -> None:
        tries = entry.count_failure()
        if tries >= self._lanes.retry.times:
            self._lanes.give_up(entry, error)
            self._release(entry)
            return
        if entry.key is not None and entry.key not in self._held:
            self._held[entry.key] = _Held(entry)
        self._failures += 1
        self._lanes.retried += 1
        heappush(self._later, (trio.current_time() + self._delay(tries), self._failures, entry))

    def _release(self, entry: Entry) -> None:
        """The entry is done or given up: those behind it may go on."""
        held = self._held.get(entry.key)
        if held is not None and held.first is entry:
            del self._held[entry.key]
            self.own.extendleft(reversed(held.rest))


class _BatchLane(_Lane):
    """Handles entries in batches. While a batch is tried again, no other is: mostly the database
    behind the step has an outage.
    """

    def __init__(self, lanes: Lanes, step: Step, pipeline: Actor) -> None:
        super().__init__(lanes, step, pipeline)
        idle = getattr(type(step), "keep_alive", None)
        self._stays_alive = idle not in (Batched.keep_alive, Source.keep_alive)

    async def _handle_next(self) -> None:
        batch = await self._next_batch()
        tries = 0
        while (error := await self._try(batch)) is not None:
            if tries == self._lanes.retry.times:
                await self._isolate(batch, error, type(error))
                return
            await trio.sleep(self._delay(tries))
            tries += 1
            self._lanes.retried += len(batch)

    async def _next_batch(self) -> list[Entry]:
        step, lanes, own = self.step, self._lanes, self.own
        assert isinstance(step, Batched)
        until = inf
        while True:
            waiting = len(own) + len(lanes.shared)
            if not waiting:
                until = inf  # another lane has taken the items
            elif until == inf:
                until = trio.current_time() + step.within
            is_due = lanes.is_hurried or trio.current_time() >= until
            if waiting >= step.batch or (waiting and is_due):
                batch = [own.popleft() for _ in range(min(step.batch, len(own)))]
                rest = min(step.batch - len(batch), len(lanes.shared))
                return batch + [lanes.shared.popleft() for _ in range(rest)]
            if waiting or not self._stays_alive:
                await lanes.wait(until)
            elif not await lanes.wait(trio.current_time() + ALIVE):
                await self._keep_alive(step.keep_alive)

    async def _keep_alive(self, keep_alive: Callable[[], None]) -> None:
        try:
            await self._in_place(keep_alive)
        except Exception as error:
            self._log("an idle step of a pipeline has lost its connection", error)
            await self._reopen()

    async def _try(self, batch: Sequence[Entry]) -> Exception | None:
        step = self.step
        assert isinstance(step, Batched)
        try:
            handle = partial(step.handle_batch, [entry.item for entry in batch])
            results: object = await self._in_place(handle)
            if isinstance(step, Batch):
                _take_results(batch, results)
        except Exception as error:
            self._log("a batch has failed", error, items=len(batch))
            await self._reopen()
            return error
        self._lanes.pass_on(batch)
        return None

    async def _isolate(
        self, batch: Sequence[Entry], error: Exception, of_whole: type[Exception]
    ) -> None:
        """Find the entries that fail the batch: handle its halves, down to single entries."""
        if len(batch) == 1:
            await self._try_alone(batch, error, of_whole)
            return
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            problem = await self._try(half)
            if problem is not None:
                await self._isolate(half, problem, of_whole)

    async def _try_alone(
        self, single: Sequence[Entry], error: Exception, of_whole: type[Exception]
    ) -> None:
        """Give up the entry, unless it fails in another way than the batch. Mostly the database has
        an outage then, and the entry is a good one.
        """
        tries = 0
        problem: Exception | None = error
        while problem is not None:
            if type(problem) is of_whole or tries == self._lanes.retry.times:
                self._lanes.give_up(single[0], problem)
                return
            await trio.sleep(self._delay(tries))
            tries += 1
            self._lanes.retried += 1
            problem = await self._try(single)


def _take_results(batch: Sequence[Entry], results: object) -> None:
    if not isinstance(results, Sequence) or len(results) != len(batch):
        raise TypeError(
            f"handle_batch must return a body for each of the {len(batch)} items, and returned "
            f"{shown(results)}"
        )
    for entry, body in zip(batch, results, strict=True):
        entry.go_on(body)


class _Failure:
    """An exception that ``handle`` has raised."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


_SKIPPED: Final = object()
"""The result of an entry that comes after a failed entry of the same key."""


def _handle_some(step: Stage, chunk: Sequence[Entry]) -> list[object]:
    """Handle entries, in the thread of the stage, for the length of a time slice. Returns their
    results, which may be fewer than the entries.
    """
    results: list[object] = []
    failed: set[Hashable] = set()
    end = sources.slice_clock() + _SLICE
    for entry in chunk:
        if entry.key is not None and entry.key in failed:
            results.append(_SKIPPED)
            continue
        try:
            results.append(step.handle(entry.item))
        except Exception as error:
            results.append(_Failure(error))
            failed.add(entry.key)
        if sources.slice_clock() >= end:
            break
    return results


def _stable_hash(key: Hashable) -> int:
    """A hash that is equal for equal keys, and the same in every program for texts, bytes, numbers
    and tuples of them. So a simulated world repeats its history, and a lane may cache by key.
    """
    # The hash function, not the class, decides: equal keys of several classes share it.
    kind = type(key).__hash__
    if kind is str.__hash__:
        assert isinstance(key, str)
        return crc32(str.encode(key, errors="surrogatepass"))
    if kind is bytes.__hash__:
        assert isinstance(key, bytes)
        return crc32(key)
    if kind is tuple.__hash__:
        assert isinstance(key, tuple)
        return crc32(repr([_stable_hash(part) for part in key]).encode())
    return 0 if key is None else hash(key)  # None has the hash of an address before Python 3.12


def _is_async(step: Step) -> bool:
    handle = step.handle_batch if isinstance(step, Batched) else getattr(step, "handle", None)
    return inspect.iscoroutinefunction(handle)


show_public_names(__name__)
