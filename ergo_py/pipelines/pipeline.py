"""`Pipeline`: the process of a pipeline, from its source to its sink."""

from collections import deque
from collections.abc import Sequence
from copy import copy
from typing import ClassVar, Final, NamedTuple

import trio

from .._core.tables.pending_calls import Caller
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.hints import did_you_mean
from .._core.vocabulary.ids import Target
from .._core.vocabulary.messages import NO_REPLY, Drain
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import Reason, is_failure
from ..actor import Actor
from ..supervision.specs import Backoff
from .calls import CallIntake
from .item import Item
from .lanes import Entry, Lanes, Retry
from .reader import SourceReader
from .source import Source, why
from .steps import Batch, Batched, Sink, Stage, Step, ToActor

__all__ = ["Pipeline", "PipelineFigures"]

_RETRY: Final = Retry(3, Backoff(0.1, 5.0))
_REOPEN: Final = Backoff(0.1, 10.0)
_ON_STOP: Final = Drain(10.0)
_RECENT: Final = 10
"""Seconds of the rate."""


class PipelineFigures(NamedTuple):
    """The counters of a pipeline since its start."""

    open: int
    """Items between ``take`` and ``ack`` now."""
    most: int
    """The bound of the open items."""
    taken: int
    acknowledged: int
    failed: int
    """Items that were given up after their last try."""
    redelivered: int
    """Items that the broker has delivered before."""
    retried: int
    """Tries of items after the first, in all steps."""
    delay: float
    """Seconds from ``take`` to the end of the last item."""
    waiting: int
    """Calls beyond the bound; 0 with a source."""


class Pipeline(Actor):
    """Takes items from a source, passes them through stages to a sink, and acknowledges each.
    Without a source, each call to the process is an item, and the answer its acknowledgement.

    An item is acknowledged when the sink has returned for it. Start it under a supervisor::

        ChildSpec("jobs", Pipeline.spec(Jobs(), Parse().times(4), Insert(batch=500, within=0.05)))

    Each start works with copies of the source, the stages and the sink.

    Args:
        source: the source; or the first of the steps, for a pipeline whose items are calls.
        steps: the stages, and at the end a sink or a stage.
        most_unacknowledged: the bound: how many items may be open, counted from ``take`` until
            ``ack`` has returned.
        retry: how often a failed item is tried again.
        poison: gets an item after its last try: the address of an actor, which is called with the
            `Item`, or a sink. When it returns, the item is acknowledged. None leaves the item to
            the broker, by ``Source.fail``.
        on_stop: the time that an orderly stop has for the open items.
        reopen: the delays between tries to open a source or a step that is lost.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    drains: ClassVar[bool] = True
    bounds_its_end: ClassVar[bool] = True

    def __init__(
        self,
        source: Source | Step,
        *steps: Step,
        most_unacknowledged: int = 1000,
        retry: Retry = _RETRY,
        poison: Target | Step | None = None,
        on_stop: Drain = _ON_STOP,
        reopen: Backoff = _REOPEN,
    ) -> None:
        check_number("most_unacknowledged", most_unacknowledged, least=1, whole=True)
        steps = steps if isinstance(source, Source) else (source, *steps)
        _check_steps(source, steps, poison)
        for name, given, kind in (
            ("retry", retry, Retry),
            ("on_stop", on_stop, Drain),
            ("reopen", reopen, Backoff),
        ):
            if not isinstance(given, kind):
                raise BadInputError(name, given, f"a {kind.__name__}")
        if retry.deliveries is not None and poison is None:
            raise BadInputError("retry", retry, "poison=…, for items after their last delivery")
        self._deliveries = retry.deliveries
        self._on_stop = on_stop
        self._reader = (
            SourceReader(copy(source), most_unacknowledged, reopen, self._take)
            if isinstance(source, Source)
            else CallIntake(self, most_unacknowledged, self._enter)
        )
        self._most = most_unacknowledged
        self._delay = 0.0
        self._failed = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=_RECENT + 1)
        """The items that ended in each of the last seconds, with the second."""
        self._poison: Lanes | None = None
        stuck = self._reader.drained.set
        if poison is not None:
            step = poison if isinstance(poison, Step) else ToActor(poison)
            self._poison = Lanes(step, retry, reopen, self._acknowledge, self._leave, stuck)
        # From the last step to the first: each passes its entries on to the next.
        self._steps: list[Lanes] = []
        done = self._acknowledge
        for step in reversed(steps):
            lanes = Lanes(step, retry, reopen, done, self._give_up, stuck)
            self._steps.insert(0, lanes)
            done = lanes.put

    async def init(self) -> None:
        """Start the threads. The source and the steps open later, and may be absent for now."""
        for lanes in self._all_lanes():
            await lanes.start(self)
        if isinstance(self._reader, SourceReader):
            await self.spawn_meta(self._reader, needed=True)

    # -- the way of an item ------------------------------------------------------------------------

    def _take(self, items: list[Item]) -> None:
        now = trio.current_time()
        self._enter([Entry(item, now) for item in items])

    def _enter(self, entries: Sequence[Entry]) -> None:
        most = self._deliveries
        if most is not None:
            for entry in entries:
                if entry.item.redelivered >= most:
                    self._give_up(entry, RuntimeError(f"delivered {most} times, and never done"))
            entries = [entry for entry in entries if entry.item.redelivered < most]
        self._steps[0].put(entries)

    def _acknowledge(self, entries: Sequence[Entry]) -> None:
        self._settle(entries, None)

    def _give_up(self, entry: Entry, error: Exception) -> None:
        self._failed += 1
        self.log.warning(
            "a pipeline has given an item up",
            error=why(error),
            poison=self._poison is not None,
        )
        if self._poison is None:
            self._settle([entry], error)
        else:
            entry.give_up(error)
            self._poison.put([entry])

    def _leave(self, entry: Entry, error: Exception) -> None:
        """The poison step has failed, too: the broker keeps the item."""
        self.log.error("an item did not reach its poison", error=why(error))
        self._settle([entry], error)

    def _settle(self, entries: Sequence[Entry], error: Exception | None) -> None:
        now = trio.current_time()
        self._delay = now - min([entry.taken for entry in entries])
        recent, ended = self._recent, len(entries)
        if recent and recent[-1][0] == int(now):
            ended += recent.pop()[1]
        recent.append((int(now), ended))
        self._reader.settle(entries, error)

    # -- the end -----------------------------------------------------------------------------------

    async def pre_stop(self, reason: Reason) -> None:
        """Finish the open items, and acknowledge them, within the time of ``on_stop``."""
        if not is_failure(reason):
            await self._drain(self._on_stop.timeout)

    async def pre_restart(self, reason: Reason) -> None:
        """The same, if a supervisor stops the pipeline in order to start it again."""
        await self.pre_stop(reason)

    def handle_call(self, request: object, caller: Caller) -> object:
        """Answer `Drain`: take no more items, and finish those that are open. Without a source,
        make an item of any other request.
        """
        if isinstance(request, Drain):
            if isinstance(self._reader, CallIntake):
                self._reader.refuse()
            self.start_task(self._drain_for, request, caller)
        elif isinstance(self._reader, CallIntake):
            self._reader.put(request, caller)
        else:
            return super().handle_call(request, caller)
        return NO_REPLY

    async def _drain_for(self, request: Drain, caller: Caller) -> None:
        self.reply(caller, await self._drain(request.timeout))

    async def _drain(self, seconds: float) -> int:
        """Returns the number of items that are still open when the time is over."""
        self._reader.begin_drain()
        for lanes in self._all_lanes():
            lanes.hurry()
        with trio.move_on_after(seconds):
            await self._reader.drained.wait()
        return self._reader.open

    def _all_lanes(self) -> list[Lanes]:
        return self._steps if self._poison is None else [*self._steps, self._poison]

    # -- looking inside ----------------------------------------------------------------------------

    def figures(self) -> PipelineFigures:
        """The counters, from any thread."""
        reader = self._reader
        return PipelineFigures(
            reader.open,
            self._most,
            reader.taken,
            reader.acknowledged,
            self._failed,
            reader.redelivered,
            sum(lanes.retried for lanes in self._all_lanes()),
            self._delay,
            reader.waiting,
        )

    def pipeline_facts(self) -> dict[str, object]:
        """The figures, the rate of the last seconds, the steps and the state of the source, as JSON
        values, for commands and the observer page.
        """
        return {
            "pid": self.pid.number,
            "name": self.registered_name,
            **self.figures()._asdict(),
            "rate": self._rate(),
            "lost": self._reader.lost,
            "steps": [
                {
                    "name": "poison" if lanes is self._poison else type(lanes.step).__qualname__,
                    "threads": lanes.step.threads,
                    "inside": lanes.inside,
                    "retried": lanes.retried,
                }
                for lanes in self._all_lanes()
            ],
        }

    def _rate(self) -> float:
        """Items a second that have ended lately. The present second, which still fills, is left
        out.
        """
        now = int(trio.current_time())
        ended = [count for second, count in self._recent if now - _RECENT <= second < now]
        return sum(ended) / _RECENT

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The facts as texts."""
        lost, figures = self._reader.lost, self.figures()
        return {
            **{name: str(value) for name, value in figures._asdict().items()},
            "delay": f"{figures.delay:.3f} s",
            "rate": f"{self._rate():g} a second",
            "source": f"lost: {lost}" if lost else "open",
        }


def _check_steps(source: object, steps: Sequence[object], poison: object) -> None:
    if not steps:
        raise BadInputError(
            "Pipeline(…)",
            source,
            "a sink, or a stage, after the source: a broker that comes first is the source. In "
            "front of a broker that stores calls, write a stage",
        )
    for step in steps:
        if not isinstance(step, Stage | Batch | Sink):
            part = "Source, Stage, Batch or Sink" if step is steps[0] else "Stage, Batch or Sink"
            raise BadInputError("Pipeline(…)", step, f"an object of a subclass of {part}")
        if isinstance(step, Sink) and step is not steps[-1]:
            raise BadInputError("Pipeline(…)", step, "stages before the sink, which comes last")
    for step in (source, *steps, poison):
        _check_methods(step, is_source=step is source)
        if isinstance(step, Source):
            step.check_use(is_source=step is source)
        if isinstance(step, Step):
            check_number(f"{type(step).__qualname__}.stuck_after", step.stuck_after, least=0.001)


def _check_methods(step: object, *, is_source: bool) -> None:
    """Check that a class has the methods that its base class leaves to it. Each item of the broker
    would fail for a name that is misspelt.
    """
    cls = type(step)
    for name in ("take", "ack") if is_source else ("handle", "handle_batch"):
        unmade = [
            vars(base)[name] for base in (Source, Stage, Batched, Batch, Sink) if name in vars(base)
        ]
        if getattr(cls, name, None) in unmade:
            known = [each for each in vars(cls) if not each.startswith("_")]
            raise BadInputError(
                f"Pipeline(…): {cls.__qualname__}",
                step,
                f"a class with the method `{name}`{did_you_mean(name, known, '`{}`')}",
            )


show_public_names(__name__)
