"""The states of a machine: how they are read from a class."""

from typing import Any

import pytest

from ergo_py import BadInputError
from ergo_py.errors import BehaviourError
from ergo_py.state_machine import MachineState, state
from ergo_py.state_machine.states import StateMethod, is_async, read_states


def nothing_is_taken(name: str) -> bool:
    return False


class Plain(MachineState[Any]):
    def handle(self, message: Any, sender: Any) -> None: ...


class IdleHandlers(MachineState[Any]):
    def handle(self, message: Any, sender: Any) -> None: ...

    async def exit(self, following: str) -> None: ...


class Base:
    @state
    def first(self, message: Any, sender: Any) -> None: ...

    @state(timeout=1.0)
    async def second(self, message: Any, sender: Any) -> None: ...


class Derived(Base):
    @state
    def third(self, message: Any, sender: Any) -> None: ...

    @state
    def first(self, message: Any, sender: Any) -> None: ...


def test_states_keep_their_order_and_a_subclass_may_replace_a_state() -> None:
    table = read_states(Derived, (Plain, IdleHandlers), nothing_is_taken)

    assert list(table) == ["first", "second", "third", "Plain", "IdleHandlers"]
    assert table["first"] is Derived.first


def test_a_state_is_async_if_any_part_of_it_is() -> None:
    table = read_states(Derived, (Plain, IdleHandlers), nothing_is_taken)

    assert [name for name, one in table.items() if is_async(one)] == ["second", "IdleHandlers"]


def test_a_method_keeps_its_timeout_and_its_hooks() -> None:
    def hook(self: Any, other: str | None) -> None: ...

    method = Base.second
    assert isinstance(method, StateMethod)

    assert method.enter(hook) is hook
    assert method.exit(hook) is hook

    assert (method.name, method.timeout, method.on_enter, method.on_exit) == (
        "second",
        1.0,
        hook,
        hook,
    )


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(BehaviourError, match="another name for this state"):
        read_states(Derived, (), lambda name: name == "third")


def test_a_negative_timeout_is_refused() -> None:
    with pytest.raises(BadInputError, match="timeout"):
        state(timeout=-1.0)
