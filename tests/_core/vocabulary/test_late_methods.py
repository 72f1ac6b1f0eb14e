"""Dataclasses whose methods are written on first use are those of the standard library."""

import copy
import dataclasses
import inspect
import pickle
from typing import ClassVar

import pytest

from ergo_py._core.vocabulary.late_methods import dataclass, of_defaults

pytestmark = pytest.mark.counted


@dataclass(frozen=True, slots=True)
class Sum:
    """A late dataclass with a default, a factory and a constant."""

    account: str
    amount: int = 5
    tags: list[str] = dataclasses.field(default_factory=list, compare=False)
    CURRENCY: ClassVar[str] = "EUR"

    def doubled(self) -> int:
        return 2 * self.amount


@dataclass(frozen=True, slots=True)
class TaxedSum(Sum):
    """A late dataclass with a late base."""

    tax: float = 0.2


@dataclass(slots=True)
class Total:
    """A late dataclass that may change."""

    total: int = 0


@dataclass(frozen=True, slots=True, init=False)
class Parsed:
    """A late dataclass with a constructor of its own."""

    number: int

    def __init__(self, text: str) -> None:
        object.__setattr__(self, "number", int(text))


def are_written(cls: type) -> bool:
    return cls.__repr__.__qualname__ == f"{cls.__qualname__}.__repr__"


@pytest.fixture
def unused() -> type[Sum]:
    """A class of which nothing has been used."""

    @dataclass(frozen=True, slots=True)
    class Unused(Sum):
        note: str = "none"

    assert not are_written(Unused)
    return Unused


def test_no_method_is_written_before_it_is_used(unused: type[Sum]) -> None:
    value = unused("a")

    assert are_written(unused)
    assert (value.account, value.amount, value.tags, value.doubled()) == ("a", 5, [], 10)


def test_the_value_of_a_class_without_fields_has_no_method_written() -> None:
    @dataclass(frozen=True, slots=True)
    class Stopped:
        pass

    stopped = Stopped()

    assert not are_written(Stopped)
    assert (stopped, repr(stopped), hash(stopped)) == (
        Stopped(),
        f"{Stopped.__qualname__}()",
        hash(Stopped()),
    )
    with pytest.raises(TypeError, match="Stopped"):
        Stopped(1)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


def test_values_compare_hash_print_and_match_by_their_fields() -> None:
    assert Sum("a", 1, ["x"]) == Sum("a", 1) != Sum("a", 2)
    assert len({Sum("a", 1), Sum("a", 1), Sum("b", 1)}) == 2
    assert repr(TaxedSum("a", 1)) == "TaxedSum(account='a', amount=1, tags=[], tax=0.2)"
    match TaxedSum("a", 1):
        case TaxedSum(account, amount):
            assert (account, amount) == ("a", 1)


def test_a_frozen_value_refuses_changes_and_has_no_dictionary() -> None:
    value = Sum("a")

    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, "amount", 3)  # noqa: B010 - type checkers refuse the statement
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(value, "amount")
    assert not hasattr(value, "__dict__")
    assert Sum.CURRENCY == "EUR"


def test_a_value_that_may_change_has_no_hash() -> None:
    total = Total()
    total.total += 2

    assert total == Total(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(total)


def test_a_constructor_of_its_own_stays() -> None:
    assert Parsed("7") == Parsed("7")
    assert repr(Parsed("7")) == "Parsed(number=7)"
    assert str(inspect.signature(Parsed)) == "(text: str) -> None"


def test_the_standard_library_reads_a_class_of_which_nothing_was_used(unused: type[Sum]) -> None:
    assert dataclasses.is_dataclass(unused)
    assert [field.name for field in dataclasses.fields(unused)] == [
        "account",
        "amount",
        "tags",
        "note",
    ]
    assert list(inspect.signature(unused).parameters) == ["account", "amount", "tags", "note"]


def test_values_are_copied_pickled_and_replaced() -> None:
    value = TaxedSum("a", 1, ["x"], 0.5)

    assert copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value
    assert dataclasses.replace(value, tax=0.1) == TaxedSum("a", 1, ["x"], 0.1)


def test_a_value_made_without_its_constructor_has_the_methods(unused: type[Sum]) -> None:
    bare = unused.__new__(unused)
    vars(unused)["__setstate__"](bare, ["a", 1, [], "none"])

    assert bare == unused("a", 1)


def test_an_instance_of_defaults_equals_a_made_instance_and_writes_no_methods() -> None:
    @dataclass(frozen=True, slots=True)
    class Rate:
        name: str
        percent: int = 5
        tags: frozenset[str] = dataclasses.field(default=frozenset("a"), repr=False)

    constant = of_defaults(Rate, name="vat")
    was_written = are_written(Rate)
    made = Rate("vat")

    assert not was_written
    assert (constant, hash(constant), repr(constant)) == (made, hash(made), repr(made))
    assert of_defaults(Rate, name="vat") == made  # the methods are written by now
