"""Subclasses with a hook before a callback."""

from typing import Any

import pytest

from ergo_py import Actor
from ergo_py._core.tables.callbacks import Callbacks
from ergo_py.testing.wrappers import GO_ON, before, message_of, subclass


class Greeter(Actor):
    """Says hello."""

    def handle_call(self, request: Any, caller: Any) -> object:
        return f"hello {request}"


def test_a_hook_lets_the_original_run_or_returns_in_its_place() -> None:
    made = subclass(
        Greeter,
        ["handle_call"],
        before(lambda me, name, args: GO_ON if args[0] == "you" else (name, args[0])),
    )

    greeter: Any = made()

    assert greeter.handle_call("you", None) == "hello you"
    assert greeter.handle_call("me", None) == ("handle_call", "me")
    assert made.__doc__ == "Says hello."


def test_the_kernel_calls_a_wrapped_callback_that_the_original_lacks() -> None:
    made = subclass(Greeter, ["handle_message"], before(lambda me, name, args: None))

    assert "handle_message" not in Callbacks(Greeter).defined
    assert "handle_message" in Callbacks(made).defined
    assert getattr(Actor.handle_message, "__is_default__", False)


@pytest.mark.parametrize(
    "args, expected", [(("message", "sender"), "message"), (("reason",), "reason"), ((), None)]
)
def test_message_of_returns_the_message_of_a_callback(
    args: tuple[Any, ...], expected: object
) -> None:
    assert message_of(args) == expected
