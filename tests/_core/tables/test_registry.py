from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from ergo_py._core.tables.registry import Registry
from ergo_py._core.vocabulary.errors import NameTakenError, NameUnknownError
from ergo_py._core.vocabulary.ids import PID, Alias


class Holder:
    """A holder of names. All look alike, so that only identity distinguishes them."""

    def __init__(self, number: int) -> None:
        self.id = PID("test@localhost", number, 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Holder)

    def __hash__(self) -> int:
        return 1


names = st.sampled_from(["db", "cache", "web"])


class RegistryMachine(RuleBasedStateMachine):
    """Names and aliases against two lists of pairs."""

    holders = Bundle[Holder]("holders")
    aliases = Bundle[Alias]("aliases")

    def __init__(self) -> None:
        super().__init__()
        self.registry: Registry[Holder] = Registry()
        self.named: list[tuple[str, Holder]] = []
        self.aliased: list[tuple[Alias, Holder]] = []
        self.numbers = count(1)

    @rule(target=holders)
    def somebody_comes(self) -> Holder:
        return Holder(next(self.numbers))

    @rule(name=names, holder=holders)
    def somebody_takes_a_name(self, name: str, holder: Holder) -> None:
        current = [one for taken, one in self.named if taken == name]
        if not current:
            self.named.append((name, holder))
            self.registry.take_name(name, holder)
        elif current[0] is holder:
            self.registry.take_name(name, holder)
        else:
            with pytest.raises(NameTakenError) as caught:
                self.registry.take_name(name, holder)

            assert caught.value.name == name
            assert caught.value.holder == current[0].id

    @rule(name=names)
    def a_name_is_given_up(self, name: str) -> None:
        current = [one for taken, one in self.named if taken == name]
        self.named = [pair for pair in self.named if pair[0] != name]
        if current:
            assert self.registry.free_name(name) is current[0]
        else:
            with pytest.raises(NameUnknownError) as caught:
                self.registry.free_name(name)

            assert caught.value.name == name

    @rule(target=aliases, holder=holders)
    def somebody_makes_an_alias(self, holder: Holder) -> Alias:
        alias = Alias("demo@localhost", 7, next(self.numbers))
        self.aliased.append((alias, holder))

        self.registry.aliases[alias] = holder
        return alias

    @rule(alias=aliases)
    def an_alias_is_given_up(self, alias: Alias) -> None:
        current = [one for taken, one in self.aliased if taken == alias]
        self.aliased = [pair for pair in self.aliased if pair[0] != alias]
        if current:
            assert self.registry.drop_alias(alias) is current[0]
        else:
            with pytest.raises(NameUnknownError) as caught:
                self.registry.drop_alias(alias)

            assert caught.value.name == alias

    @invariant()
    def everybody_answers_to_what_they_took(self) -> None:
        assert [(name, id(holder)) for name, holder in self.registry.names.items()] == [
            (name, id(holder)) for name, holder in self.named
        ]
        assert [(alias, id(holder)) for alias, holder in self.registry.aliases.items()] == [
            (alias, id(holder)) for alias, holder in self.aliased
        ]


TestRegistry = RegistryMachine.TestCase


def test_taking_a_name_in_use_leaves_its_holder() -> None:
    registry: Registry[Holder] = Registry()
    first, second = Holder(1), Holder(2)
    registry.take_name("db", first)

    with pytest.raises(NameTakenError):
        registry.take_name("db", second)

    assert registry.names["db"] is first


def test_a_name_that_was_given_up_can_be_taken_by_another() -> None:
    registry: Registry[Holder] = Registry()
    first, second = Holder(1), Holder(2)
    registry.take_name("db", first)

    registry.free_name("db")
    registry.take_name("db", second)

    assert registry.names["db"] is second
