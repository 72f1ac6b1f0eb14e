import gc
import weakref
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ergo_py import BadInputError
from ergo_py._core.tables.dead_letters import DeadLetters, MissedAddresses
from ergo_py._core.vocabulary.envelopes import MESSAGE
from ergo_py._core.vocabulary.ids import PID, Alias, EventName, Name
from ergo_py._core.vocabulary.messages import DeadLetter, MayBeLate, Published, Why
from ergo_py._core.vocabulary.reasons import Killed, Reason
from tests.support import replace_private

NODE = "demo@localhost"
SENDERS: list[PID | Alias] = [PID(NODE, 7, 1), Alias(NODE, 7, 2)]
TARGETS: list[object] = [PID(NODE, 7, 3), "db"]


class Order:
    """A message that may hold secrets."""

    class Line:
        """Another."""


class DeadLettersMachine(RuleBasedStateMachine):
    """A ring and its counts against a list of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.capacity = 0
        self.letters = DeadLetters(0)
        self.all: list[tuple[PID | Alias, object, str, Why]] = []

    @initialize(capacity=st.integers(0, 4))
    def begin(self, capacity: int) -> None:
        self.capacity = capacity
        self.letters = DeadLetters(capacity)

    @rule(
        sender=st.sampled_from(SENDERS),
        to=st.sampled_from(TARGETS),
        message=st.sampled_from([Order(), Order.Line(), "text", None, 5]),
        why=st.sampled_from(Why),
    )
    def a_message_has_nowhere_to_go(
        self, sender: PID | Alias, to: object, message: object, why: Why
    ) -> None:
        self.all.append((sender, to, type(message).__qualname__, why))

        self.letters.add(sender, to, message, why)

    @rule(
        messages=st.lists(st.sampled_from([Order(), "text", None, 5]), max_size=6),
        to=st.sampled_from(TARGETS),
        is_announced=st.booleans(),
    )
    def one_ends_that_did_not_come_to_some(
        self, messages: list[object], to: object, is_announced: bool
    ) -> None:
        announced: list[DeadLetter] = []
        expected = [
            (SENDERS[0], to, type(message).__qualname__, Why.UNHANDLED_AT_EXIT)
            for message in messages
        ]
        self.all += expected
        self.letters.announce = announced.append if is_announced else None

        self.letters.add_all(
            [(MESSAGE, SENDERS[0], None, one) for one in messages], to, Why.UNHANDLED_AT_EXIT
        )

        self.letters.announce = None
        assert [
            (one.sender, one.target, one.message_type, one.why) for one in announced
        ] == expected * is_announced

    @rule(count=st.none() | st.integers(0, 6))
    def somebody_looks(self, count: int | None) -> None:
        kept = self.all[len(self.all) - min(self.capacity, len(self.all)) :]
        expected = kept if count is None else kept[max(0, len(kept) - count) :]

        found = self.letters.last(count)

        assert [(one.sender, one.target, one.message_type, one.why) for one in found] == expected

    @invariant()
    def everything_is_counted_even_what_is_no_longer_kept(self) -> None:
        assert self.letters.counts == Counter(why for _, _, _, why in self.all)
        assert self.letters.total == len(self.all)


TestDeadLetters = DeadLettersMachine.TestCase


def test_a_dead_letter_does_not_keep_its_message() -> None:
    letters = DeadLetters(10)
    order = Order()
    witness = weakref.ref(order)

    letters.add(SENDERS[0], "db", order, Why.NO_PROCESS)
    del order
    gc.collect()

    assert witness() is None
    assert [one.message_type for one in letters.last()] == ["Order"]


def test_a_dead_letter_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_private(monkeypatch, "clock of dead letters", SimpleNamespace(time=lambda: 1234.5))
    letters = DeadLetters(10)

    letters.add(SENDERS[0], "db", "text", Why.NO_PROCESS)

    assert [one.at for one in letters.last()] == [1234.5]


def test_the_announce_function_gets_each_dead_letter() -> None:
    letters, announced = DeadLetters(1), list[DeadLetter]()

    letters.add(SENDERS[0], "db", "too early", Why.NO_PROCESS)
    letters.announce = announced.append
    letters.add(SENDERS[0], "db", 5, Why.FULL)
    letters.add(SENDERS[1], "db", 2.5, Why.NO_PROCESS)

    assert [(one.sender, one.message_type, one.why) for one in announced] == [
        (SENDERS[0], "int", Why.FULL),
        (SENDERS[1], "float", Why.NO_PROCESS),
    ]
    assert letters.last() == announced[1:]


def test_the_newest_dead_letter_comes_last() -> None:
    letters = DeadLetters(2)

    for message in (1, 2.5, "three"):
        letters.add(SENDERS[0], "db", message, Why.FULL)

    assert [one.message_type for one in letters.last()] == ["float", "str"]
    assert [one.message_type for one in letters.last(1)] == ["str"]
    assert letters.total == 3


class Goodbye(MayBeLate):
    """A message that often comes too late."""


@pytest.mark.parametrize("why", [Why.NO_PROCESS, Why.STOPPING, Why.UNHANDLED_AT_EXIT])
def test_a_message_that_may_be_late_is_no_dead_letter_if_its_receiver_has_ended(why: Why) -> None:
    letters = DeadLetters(10)

    letters.add(SENDERS[0], "db", Goodbye(), why)
    letters.add_all(
        [(MESSAGE, SENDERS[0], None, one) for one in (Goodbye(), Order(), Goodbye())], "db", why
    )

    assert letters.late == 3
    assert letters.counts == {why: 1}
    assert [letter.message_type for letter in letters.last()] == ["Order"]


@pytest.mark.parametrize("why", [Why.NO_NODE, Why.FULL, Why.DISPLACED])
def test_a_late_kind_of_message_lost_to_a_living_process_is_a_dead_letter(why: Why) -> None:
    letters = DeadLetters(10)

    letters.add(SENDERS[0], "db", Goodbye(), why)
    letters.add_all([(MESSAGE, SENDERS[0], None, Goodbye())], "db", why)

    assert letters.late == 0
    assert letters.counts == {why: 2}


def test_a_late_message_is_not_announced() -> None:
    letters = DeadLetters(10)
    announced: list[DeadLetter] = []
    letters.announce = announced.append

    letters.add_all(
        [(MESSAGE, SENDERS[0], None, one) for one in (Goodbye(), Order())],
        "db",
        Why.UNHANDLED_AT_EXIT,
    )

    assert [letter.message_type for letter in announced] == ["Order"]
    assert letters.late == 1


class Unbound:
    """A lazy proxy without an object behind it, as werkzeug's and Django's are outside of a
    request.
    """

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("working outside of request context")


@pytest.mark.parametrize("is_announced", [False, True])
def test_a_lazy_proxy_without_an_object_is_a_dead_letter(is_announced: bool) -> None:
    letters = DeadLetters(10)
    if is_announced:
        letters.announce_to(lambda letter: None)

    letters.add(SENDERS[0], TARGETS[0], Unbound(), Why.NO_PROCESS)
    letters.add_all([(MESSAGE, SENDERS[0], None, Unbound())], TARGETS[0], Why.UNHANDLED_AT_EXIT)

    assert [letter.message_type for letter in letters.last()] == ["Unbound", "Unbound"]
    assert letters.late == 0


def kept(letters: DeadLetters) -> list[Any]:
    """The message of each dead letter, None for a dead letter without its message."""
    return [letters.message_of(letter.number, None) for letter in letters.last()]


def test_kept_messages_have_at_most_the_given_size_and_the_newest_stay() -> None:
    each = bytes(1000)
    letters = DeadLetters(DeadLetter.Keep(bytes=3500))

    for number in range(5):
        letters.add(SENDERS[0], "db", each[:-1] + bytes([number]), Why.NO_PROCESS)
    letters.add(SENDERS[0], "db", bytes(4000), Why.NO_PROCESS)

    assert [message and message[-1] for message in kept(letters)] == [None, None, 2, 3, 4, None]


def test_the_size_of_a_message_includes_its_attributes_and_no_classes() -> None:
    letters = DeadLetters(DeadLetter.Keep(bytes=3500))
    order = Order()
    vars(order).update(lines=[{"text": bytes(2000)}], kind=Order, check=kept)
    again = [order, order]

    letters.add(SENDERS[0], "db", again, Why.NO_PROCESS)
    letters.add(SENDERS[0], "db", [bytes(2000), bytes(2000)], Why.NO_PROCESS)

    assert kept(letters) == [again, None]


def test_a_dead_letter_that_leaves_the_ring_takes_its_message_with_it() -> None:
    letters = DeadLetters(DeadLetter.Keep(bytes=10_000, count=1))
    order = Order()
    witness = weakref.ref(order)

    letters.add(SENDERS[0], "db", order, Why.NO_PROCESS)
    del order
    letters.add_type(SENDERS[0], "db", str, Why.UNCONFIRMED)

    assert witness() is None
    assert kept(letters) == [None]


def test_a_message_is_handed_out_once() -> None:
    letters = DeadLetters(DeadLetter.Keep(bytes=10_000))
    letters.add_all(
        [(MESSAGE, SENDERS[0], None, one) for one in ("first", "second")],
        "db",
        Why.UNHANDLED_AT_EXIT,
    )

    assert [letters.take(2, None), letters.take(2, None)] == ["second", None]
    assert kept(letters) == ["first", None]


class Sizeless:
    """A message with a fault."""

    def __sizeof__(self) -> int:
        raise ValueError("no size")


def test_late_messages_publications_and_faulty_messages_are_not_kept() -> None:
    letters = DeadLetters(DeadLetter.Keep(bytes=10_000))

    letters.add(SENDERS[0], "db", Goodbye(), Why.NO_PROCESS)
    letters.add(SENDERS[0], "db", Sizeless(), Why.NO_PROCESS)
    letters.add(SENDERS[0], "db", Published(EventName("tick"), 1, 0.0), Why.FULL)
    letters.add(SENDERS[0], "db", proxy := Unbound(), Why.NO_PROCESS)

    found = kept(letters)

    assert [message is proxy for message in found] == [False, False, True]
    assert found[:2] == [None, None]


@pytest.mark.parametrize("options", [{"bytes": -1}, {"bytes": 1, "count": 0.5}])
def test_a_wrong_limit_of_kept_messages_is_refused(options: Any) -> None:
    with pytest.raises(BadInputError):
        DeadLetter.Keep(**options)


def misses(*names: str, reasons: dict[object, Reason] | None = None) -> tuple[Any, list[str]]:
    """The counts of a node with these names, where ``gone`` has ended, and their warnings."""
    known, told = reasons or {}, list[str]()
    ends: Any = SimpleNamespace(reason_of=known.get, has_named="gone".__eq__)
    return MissedAddresses(names, ends, lambda target: "", told.append), told


@pytest.mark.parametrize(
    "name, known", [("order-stroe", "order-store"), ("orderstore", "order-store")]
)
def test_a_misspelled_word_of_a_name_is_told_of(name: str, known: str) -> None:
    missed, told = misses(known)

    missed.note(name)

    assert [text.rpartition("mean ")[2] for text in told] == [f"{known!r}?"]


def test_a_node_compares_few_missing_names() -> None:
    missed, told = misses("counter")

    for number in range(20):
        missed.note(f"key {number}")
    missed.note("conter")

    assert told == []


def test_the_tenth_message_to_a_name_is_told_of_with_the_service_that_waits() -> None:
    missed, told = misses()

    for _ in range(10):
        missed.note("counter")

    assert [text.partition("; ")[2] for text in told] == [
        "if it is a child that restarts, `service` of its name waits for the successor"
    ]


@pytest.mark.parametrize("target", ["conter", Name("conter")])
def test_a_name_that_is_almost_a_name_is_told_of_at_its_first_message(target: object) -> None:
    missed, told = misses("counter", "log")

    missed.note(target)
    missed.note(target)

    assert told == [
        "no process is named 'conter', so `send` returned False; did you mean 'counter'?"
    ]


@pytest.mark.parametrize(
    "name, names",
    [
        ("session-7", ["session-8"]),
        ("gone", ["gonee"]),
        ("database", ["counter"]),
        ("conter", ["counter", *map(str, range(100))]),
        ("orders-us", ["orders-eu"]),
        ("3fa9c0d1", ["3fb9c0d1"]),
        ("a3f9c0d1", ["a3f95c0d1"]),
    ],
    ids=["a number", "has ended", "another word", "many names", "a place", "a key", "longer key"],
)
def test_a_name_that_may_be_right_is_not_told_of(name: str, names: list[str]) -> None:
    missed, told = misses(*names)

    missed.note(name)

    assert told == []


def test_the_tenth_message_to_an_ended_process_is_told_of_with_its_reason() -> None:
    pid, other = PID(NODE, 7, 3), PID(NODE, 7, 4)
    missed, told = misses(reasons={pid: Killed()})

    for _ in range(9):
        missed.note(pid)
        missed.note(other)
    assert told == []
    for _ in range(9):
        missed.note(other)
        missed.note(pid)

    assert [text.partition(", so")[0] for text in told] == [
        f"10 messages to {other!r} found no process: there is none",
        f"10 messages to {pid!r} found no process: it has ended (killed)",
    ]


def test_a_node_warns_of_few_addresses_counts_some_and_passes_over_aliases() -> None:
    missed, told = misses("counter")

    for number in range(101):  # forgets the counts
        missed.note(PID(NODE, 7, number))
    for _ in range(20):
        missed.note(Alias(NODE, 7, 1))
    assert told == []
    for kind in ("ounter", "conter", "couter", "counte", "countr", "countre", "coutner"):
        missed.note(kind)

    assert len(told) == 5
