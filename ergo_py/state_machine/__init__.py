"""`StateMachine`: an actor whose handlers depend on its state."""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .states import MachineState, state

__all__ = [
    "MachineState",
    "state",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "states": "MachineState state",
        },
    )
