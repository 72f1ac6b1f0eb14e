"""`SourceRig`: the contract of sources of pipelines, as tests for a source of your own."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from typing import ClassVar, Final, Protocol

import trio

from ..._core.vocabulary.public_names import show_public_names
from ...node import open_node
from ...pipelines.item import Item
from ...pipelines.pipeline import Pipeline
from ...pipelines.source import Source
from ...pipelines.steps import Sink
from ...supervision.specs import Backoff, Budget, ChildSpec

__all__ = ["SourceRig", "SourceRule"]

_LIMIT: Final = 30.0
"""Seconds after which a rule fails that still waits."""
_PAUSE: Final = 0.01
_KILLS: Final = 3
_BOUND: Final = 10
_MANY: Final = 200


class SourceRule(Protocol):
    """A rule of the contract of sources."""

    @property
    def __name__(self) -> str:
        """The rule in words."""
        ...

    def __call__(self, rig: "SourceRig", /) -> None:
        """Check the rule, in this thread.

        Raises:
            AssertionError: the source breaks the rule.
        """


class SourceRig(ABC):
    """A broker for the ``RULES``, with a queue that is empty at first. Subclass it for your broker.

    The rules are functions, each with its rule as its name. A test calls each of them::

        @pytest.mark.parametrize("rule", SourceRig.RULES, ids=lambda rule: rule.__name__)
        def test_my_source_keeps_the_rule(rule):
            rule(MyRig())
    """

    RULES: ClassVar[tuple[SourceRule, ...]]
    """The rules. Call each with a new rig."""

    @abstractmethod
    def source(self) -> Source:
        """Make a source of the queue."""

    @abstractmethod
    def put(self, bodies: Sequence[bytes]) -> None:
        """Put items into the queue, without the source."""

    @abstractmethod
    def left(self) -> int:
        """The items that are not acknowledged, by the broker's own count."""


def _expect(found: object, expected: object, question: str) -> None:
    if found != expected:
        raise AssertionError(f"{question}: expected {expected!r}, found {found!r}")


def _pause(seconds: float) -> bool:
    sleep(seconds)
    return True


@contextmanager
def _opened(rig: SourceRig, most_unacknowledged: int = 1000) -> Iterator[Source]:
    source = rig.source()
    source.work_with(_pause, most_unacknowledged)
    try:
        source.open()
        yield source
    finally:
        source.close()


def _take(source: Source, count: int, most: int = 100) -> list[Item]:
    """Take so many items: a broker may take its time."""
    items: list[Item] = []
    end = monotonic() + _LIMIT
    while len(items) < count:
        if monotonic() > end:
            raise AssertionError(f"{len(items)} of {count} items were taken in {_LIMIT:g} s")
        room = min(most, count - len(items))
        found = source.take(room)
        if len(found) > room:
            raise AssertionError(f"take({room}) returned {len(found)} items")
        items += found
        if not found:
            source.wait(0.05)
    return items


def _expect_left(rig: SourceRig, count: int, question: str) -> None:
    """Compare the broker's count, which may come late."""
    end = monotonic() + _LIMIT
    while (left := rig.left()) != count and monotonic() < end:
        sleep(_PAUSE)
    _expect(left, count, question)


def _bodies(items: Sequence[Item]) -> list[bytes]:
    return [item.body for item in items]


def items_are_taken_whole_and_in_order(rig: SourceRig) -> None:
    """The bodies of a queue with one consumer come as they were put, all bytes of them."""
    bodies = [b"", bytes(range(256)), b"x" * 100_000, *(b"%d" % number for number in range(20))]
    with _opened(rig) as source:
        rig.put(bodies)
        items = _take(source, len(bodies))
        _expect(_bodies(items), bodies, "the bodies")
        _expect(sum(item.redelivered > 0 for item in items), 0, "redelivered items")


def no_more_is_taken_than_asked(rig: SourceRig) -> None:
    """``take(most)`` returns at most that many items, and none of them twice."""
    bodies = [b"%d" % number for number in range(7)]
    with _opened(rig) as source:
        rig.put(bodies)
        _expect(_bodies(_take(source, 7, most=2)), bodies, "the bodies, two at a time")
        _expect(source.take(5), [], "take() of a queue whose items are all taken")


def an_empty_queue_does_not_block(rig: SourceRig) -> None:
    """``take`` returns an empty list, and ``wait`` returns after its time."""
    with _opened(rig) as source:
        _expect(source.take(5), [], "take() of an empty queue")
        began = monotonic()
        source.wait(0.05)
        if monotonic() - began > _LIMIT:
            raise AssertionError(f"wait(0.05) took {monotonic() - began:.1f} s")
        rig.put([b"late"])
        _expect(_bodies(_take(source, 1)), [b"late"], "an item that was put later")


def acknowledged_items_do_not_return(rig: SourceRig) -> None:
    """An acknowledged item is gone, in any order, also for the next opening."""
    with _opened(rig) as source:
        rig.put([b"a", b"b", b"c"])
        items = _take(source, 3)
        _expect_left(rig, 3, "items left before ack()")
        source.ack([items[2], items[0]])
        _expect_left(rig, 1, "items left after ack() of two")
        source.ack([items[1]])
        _expect_left(rig, 0, "items left after ack() of all")
    with _opened(rig) as source:
        _expect(source.take(5), [], "take() after ack() of all")


def unacknowledged_items_return(rig: SourceRig) -> None:
    """The next opening takes the items that the opening before has left, marked."""
    with _opened(rig) as source:
        rig.put([b"a", b"b", b"c"])
        items = _take(source, 3)
        source.ack([items[1]])
    with _opened(rig) as source:
        items = _take(source, 2)
        _expect(sorted(_bodies(items)), [b"a", b"c"], "the items without ack()")
        _expect([item.redelivered for item in items], [1, 1], "their mark")
        source.ack(items)
    _expect_left(rig, 0, "items left at the end")


def no_more_is_delivered_than_the_bound(rig: SourceRig) -> None:
    """A broker that sends items without being asked sends no more than the pipeline may have open.
    The next opening takes the others as new.
    """
    bodies = [b"%d" % number for number in range(5 * _BOUND)]
    rig.put(bodies)
    with _opened(rig, _BOUND) as source:
        _take(source, 1)
        for _ in range(3):
            source.wait(0.05)
    with _opened(rig) as source:
        items = _take(source, len(bodies))
        source.ack(items)
    marked = sum(item.redelivered > 0 for item in items)
    if not 1 <= marked <= _BOUND:
        raise AssertionError(f"{marked} items are marked after one was taken, bound {_BOUND}")


def items_that_are_given_up_stop_no_others(rig: SourceRig) -> None:
    """After ``fail`` of as many items as may be open, the others come, perhaps behind those of
    ``fail``. If the source raises, it is opened again.
    """
    bodies = [b"%d" % number for number in range(2 * _BOUND)]
    rig.put(bodies)
    with _opened(rig, _BOUND) as source:
        source.fail(_take(source, _BOUND), ValueError("given up"))
        others, end = {*bodies[_BOUND:]}, monotonic() + _LIMIT
        while others and monotonic() < end:
            try:
                items = source.take(_BOUND)
                source.ack(items)
                others -= {*_bodies(items)}
                source.wait(0.05 if others else 0.0)
            except ConnectionError:
                source.close()
                source.open()
        _expect(sorted(others), [], "items that did not come")


def an_acknowledgement_may_come_late(rig: SourceRig) -> None:
    """``ack`` of an item of the opening before, or a second time, does no harm to others."""
    with _opened(rig) as source:
        rig.put([b"a", b"b"])
        items = _take(source, 2)
        source.close()
        source.open()
        for _ in range(2):
            source.ack([items[0]])
        # Of the opening before, a source may keep items, or take them again.
        if rig.left() < 1:
            raise AssertionError("a late ack() of one of two items has acknowledged the other")
        source.ack([items[1]])
        if left := rig.left():
            source.ack(_take(source, left))
        _expect_left(rig, 0, "items left at the end")


def it_opens_and_closes_in_any_order(rig: SourceRig) -> None:
    """``close`` may come first, and twice."""
    source = rig.source()
    source.close()
    source.open()
    source.close()
    source.close()
    source.open()
    try:
        rig.put([b"a"])
        source.ack(_take(source, 1))
    finally:
        source.close()


class _Collect(Sink):
    def __init__(self, bodies: list[bytes]) -> None:
        super().__init__(batch=3)
        self.bodies = bodies

    async def handle_batch(self, items: list[Item]) -> None:
        self.bodies += [item.body for item in items]
        await trio.sleep(0.001)


def a_pipeline_loses_nothing_through_kills(rig: SourceRig) -> None:
    """A pipeline that is killed a few times handles every item, and twice no more than its bound
    for each kill.
    """
    bodies = [b"%d" % number for number in range(_MANY)]
    rig.put(bodies)
    handled: list[bytes] = []

    async def run() -> None:
        plan = Pipeline.spec(
            rig.source(),
            _Collect(handled),
            most_unacknowledged=_BOUND,
            reopen=Backoff(0.01, 0.1),
        )
        async with open_node("bridge@test", log_level="critical") as node:
            await node.supervise([ChildSpec("jobs", plan, budget=Budget(1000, 1.0))])
            for kill in range(1, _KILLS + 1):
                while len({*handled}) < kill * _MANY // (_KILLS + 1):  # noqa: ASYNC110
                    await trio.sleep(_PAUSE)
                node.kill("jobs")
                await trio.sleep(_PAUSE)
            pause = _PAUSE
            while rig.left():
                await trio.sleep(pause)
                # A broker that counts slowly holds up the loop, and so the pipeline.
                pause *= 2

    async def run_within() -> None:
        with trio.fail_after(_LIMIT):
            await run()

    trio.run(run_within)
    _expect({*handled}, {*bodies}, "the bodies")
    doubles = sum(Counter(handled).values()) - _MANY
    if doubles > _KILLS * _BOUND:
        raise AssertionError(f"{doubles} doubles after {_KILLS} kills, with a bound of {_BOUND}")


SourceRig.RULES = (
    items_are_taken_whole_and_in_order,
    no_more_is_taken_than_asked,
    an_empty_queue_does_not_block,
    acknowledged_items_do_not_return,
    unacknowledged_items_return,
    no_more_is_delivered_than_the_bound,
    items_that_are_given_up_stop_no_others,
    an_acknowledgement_may_come_late,
    it_opens_and_closes_in_any_order,
    a_pipeline_loses_nothing_through_kills,
)

show_public_names(__name__)
