"""Rows: a derived verb calls the method of its subject, also of a subclass, and looks like it."""

import inspect
from typing import Any

import pytest

from ergo_py.facades.facade import Blocking
from ergo_py.facades.rows import direct, handle, value, verb


class Lamp:
    def __init__(self) -> None:
        self.light = 0

    @property
    def colour(self) -> str:
        """The colour of the light."""
        return "white"

    def shine(self, level: int = 1, *, slowly: bool = False) -> int:
        """Give light."""
        self.light = level
        return level

    def twin(self) -> "Lamp":
        """Another lamp."""
        return Lamp()


class Dimmed(Lamp):
    def shine(self, level: int = 1, *, slowly: bool = False) -> int:
        return super().shine(level // 2)


def measure(lamp: Lamp, unit: str) -> str:
    """Measure the light."""
    return f"{lamp.light} {unit}"


class Twin(Blocking):
    colour = value(Lamp, lambda lamp: lamp.colour)


class BlockingLamp(Blocking):
    colour = value(Lamp, lambda lamp: lamp.colour)
    shine = verb(Lamp.shine)
    measure = direct(measure)
    twin = handle(Lamp.twin, blocking=Twin, asyncio=Twin)


class OwnedLamp(BlockingLamp):
    def shine(self, level: int = 1, *, slowly: bool = False) -> int:
        return -super().shine(level)


def facade(cls: type[Any], subject: Lamp) -> Any:
    kernel: Any = None
    return cls(subject, kernel)


def test_a_verb_calls_the_method_of_the_subject_and_of_its_subclass() -> None:
    assert facade(BlockingLamp, Lamp()).shine(8) == 8
    assert facade(BlockingLamp, Dimmed()).shine(8) == 4
    assert facade(OwnedLamp, Lamp()).shine(8) == -8


def test_a_verb_may_be_a_function_of_the_subject() -> None:
    lamp = facade(BlockingLamp, Lamp())
    lamp.shine(3)

    assert lamp.measure("lumen") == "3 lumen"


def test_a_handle_is_a_facade_and_a_value_is_read() -> None:
    lamp = facade(BlockingLamp, Lamp())

    assert isinstance(lamp.twin(), Twin)
    assert lamp.twin().colour == lamp.colour == "white"
    with pytest.raises(AttributeError):
        lamp.colour = "red"


def test_a_verb_has_the_name_the_signature_and_the_text_of_its_method() -> None:
    lamp: Any = BlockingLamp
    shine, twin = lamp.shine, lamp.twin

    assert inspect.signature(shine) == inspect.signature(Lamp.shine)
    assert inspect.signature(twin).return_annotation is Twin
    assert (shine.__doc__, shine.__module__) == ("Give light.", __name__)
    assert (shine.__name__, shine.__qualname__) == ("shine", "BlockingLamp.shine")
    assert lamp.colour.__doc__ == "The colour of the light."
