from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ergo_py._core.tables.verb_chain import Rank, VerbChain, Wrapper

NAMES = st.sampled_from(["send", "call"])
RANKS = st.sampled_from(Rank)


class Talker:
    """A behaviour with two verbs, which return the wrappers that they were called through."""

    def send(self) -> list[object]:
        return ["class"]

    def call(self) -> list[object]:
        return ["class"]


def wrapper(label: object) -> Wrapper:
    def wrap(plain: Callable[[], list[object]]) -> Callable[[], list[object]]:
        return lambda: [label, *plain()]

    return wrap


def own(label: object) -> Callable[[], list[object]]:
    return lambda: [label]


class VerbChainMachine(RuleBasedStateMachine):
    """The verbs of an instance against a model: the base, and a wrapper for each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.talker = Talker()
        self.chain = VerbChain(self.talker)
        self.bases: dict[str, object] = {"send": "class", "call": "class"}
        self.pushed: dict[str, dict[Rank, object]] = {"send": {}, "call": {}}

    @rule(name=NAMES, rank=RANKS, number=st.integers(0, 3))
    def a_part_changes_a_verb(self, name: str, rank: Rank, number: int) -> None:
        self.chain.push(name, rank, wrapper((rank, number)))
        self.pushed[name][rank] = (rank, number)

    @rule(name=NAMES, rank=RANKS)
    def a_part_leaves_a_verb(self, name: str, rank: Rank) -> None:
        self.chain.pop(name, rank)
        self.pushed[name].pop(rank, None)

    @rule(name=NAMES, rank=RANKS, number=st.integers(0, 3))
    def the_user_puts_an_attribute_there(self, name: str, rank: Rank, number: int) -> None:
        setattr(self.talker, name, own(number))
        self.bases[name] = number
        # The wrappers come back with the next change.
        self.a_part_changes_a_verb(name, rank, number)

    @invariant()
    def each_verb_goes_through_its_wrappers_by_rank(self) -> None:
        for name, pushed in self.pushed.items():
            labels = [pushed[rank] for rank in sorted(pushed, reverse=True)]
            assert getattr(self.talker, name)() == [*labels, self.bases[name]]
            assert all(self.chain.has(name, rank) is (rank in pushed) for rank in Rank)

    @invariant()
    def a_verb_without_wrappers_is_as_it_was(self) -> None:
        for name, pushed in self.pushed.items():
            is_own = bool(pushed) or self.bases[name] != "class"
            assert (name in vars(self.talker)) is is_own


TestVerbChain = VerbChainMachine.TestCase


def test_a_thousand_wrappers_of_a_rank_are_a_single_wrapper() -> None:
    talker = Talker()
    chain = VerbChain(talker)

    for number in range(1_000):
        chain.push("send", Rank.TRACED, wrapper(number))

    assert talker.send() == [999, "class"]
    chain.pop("send", Rank.TRACED)
    assert vars(talker) == {}


def test_a_class_that_overrides_a_verb_keeps_it() -> None:
    class Overrides(Talker):
        def send(self) -> list[object]:
            return ["overrides", *super().send()]

    talker: Any = Overrides()
    chain = VerbChain(talker)

    chain.push("send", Rank.REPORTED, wrapper("reported"))

    assert talker.send() == ["reported", "overrides", "class"]
    chain.pop("send", Rank.REPORTED)
    assert vars(talker) == {}
