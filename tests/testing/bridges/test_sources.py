"""Each rule of sources finds a source that breaks it."""

from collections import deque
from collections.abc import Sequence

import pytest

from ergo_py.pipelines import Item, Source
from ergo_py.testing.bridges import SourceRig
from ergo_py.testing.bridges import sources as rules
from ergo_py.testing.bridges.sources import SourceRule


class Memory(Source):
    """A queue in memory. The subclasses break a rule each."""

    def __init__(self, queue: "MemoryRig") -> None:
        self.queue = queue

    def open(self) -> None:
        queue = self.queue
        left = sorted(queue.delivered.items())
        queue.delivered.clear()
        queue.ready.extendleft((number, body, True) for number, body in reversed(left))

    def take(self, most: int) -> list[Item]:
        items = []
        for _ in range(min(most, len(self.queue.ready))):
            number, body, again = self.queue.ready.popleft()
            self.queue.delivered[number] = body
            items.append(Item(body, receipt=number, redelivered=again))
        return items

    def ack(self, items: list[Item]) -> None:
        for item in items:
            self.queue.delivered.pop(item.receipt, None)


class MemoryRig(SourceRig):
    def __init__(self, kind: type[Memory]) -> None:
        self.kind = kind
        self.ready: deque[tuple[int, bytes, bool]] = deque()
        self.delivered: dict[int, bytes] = {}
        self.count = 0

    def source(self) -> Source:
        return self.kind(self)

    def put(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self.count += 1
            self.ready.append((self.count, body, False))

    def left(self) -> int:
        return len(self.ready) + len(self.delivered)


class Backwards(Memory):
    def take(self, most: int) -> list[Item]:
        return super().take(most)[::-1]


class Greedy(Memory):
    def take(self, most: int) -> list[Item]:
        return super().take(most + 1)


class Repeating(Memory):
    """Delivers the unacknowledged items again when the queue is empty."""

    def take(self, most: int) -> list[Item]:
        if not self.queue.ready:
            super().open()
        return super().take(most)


class Impatient(Memory):
    """Has no empty list for an empty queue."""

    def take(self, most: int) -> list[Item]:
        return super().take(most) or [Item(b"nothing")]


class Careless(Memory):
    """Acknowledges the last item only."""

    def ack(self, items: list[Item]) -> None:
        super().ack(items[-1:])


class Unmarked(Memory):
    def take(self, most: int) -> list[Item]:
        return [Item(item.body, receipt=item.receipt) for item in super().take(most)]


class Forgetful(Memory):
    """Drops the items that the opening before has left."""

    def open(self) -> None:
        self.queue.delivered.clear()


class Hoarding(Memory):
    """Fetches all items at once, whatever the bound."""

    def open(self) -> None:
        super().open()
        self.fetched = super().take(1000)

    def take(self, most: int) -> list[Item]:
        items, self.fetched = self.fetched[:most], self.fetched[most:]
        return items


class Stalling(Memory):
    """Has a broker that counts the items of ``fail``, and sends no more than the bound."""

    def take(self, most: int) -> list[Item]:
        return super().take(min(most, self.most_unacknowledged - len(self.queue.delivered)))


class Strict(Memory):
    """Refuses an acknowledgement of an item that was not delivered."""

    def ack(self, items: list[Item]) -> None:
        for item in items:
            del self.queue.delivered[item.receipt]


class Fragile(Memory):
    """Cannot be closed unless it is open."""

    is_open = False

    def open(self) -> None:
        super().open()
        self.is_open = True

    def close(self) -> None:
        if not self.is_open:
            raise RuntimeError("not open")
        self.is_open = False


@pytest.mark.parametrize("rule", SourceRig.RULES, ids=[rule.__name__ for rule in SourceRig.RULES])
def test_a_source_in_memory_keeps_the_rule(rule: SourceRule) -> None:
    rule(MemoryRig(Memory))


@pytest.mark.parametrize(
    "rule, broken",
    [
        (rules.items_are_taken_whole_and_in_order, Backwards),
        (rules.no_more_is_taken_than_asked, Greedy),
        (rules.no_more_is_taken_than_asked, Repeating),
        (rules.an_empty_queue_does_not_block, Impatient),
        (rules.unacknowledged_items_return, Unmarked),
        (rules.no_more_is_delivered_than_the_bound, Hoarding),
        (rules.an_acknowledgement_may_come_late, Strict),
        (rules.it_opens_and_closes_in_any_order, Fragile),
    ],
    ids=lambda value: value.__name__,
)
def test_a_rule_finds_a_source_that_breaks_it(rule: SourceRule, broken: type[Memory]) -> None:
    with pytest.raises((AssertionError, KeyError, RuntimeError)):
        rule(MemoryRig(broken))


@pytest.mark.parametrize(
    "rule, broken",
    [
        (rules.acknowledged_items_do_not_return, Careless),
        (rules.unacknowledged_items_return, Forgetful),
        (rules.items_that_are_given_up_stop_no_others, Stalling),
    ],
    ids=lambda value: value.__name__,
)
def test_a_rule_finds_a_source_that_loses_items(
    rule: SourceRule, broken: type[Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "_LIMIT", 0.5)

    with pytest.raises(AssertionError):
        rule(MemoryRig(broken))
