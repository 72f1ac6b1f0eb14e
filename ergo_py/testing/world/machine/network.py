"""`WorldNetwork`: the network of a world, whose frames are part of the digest."""

from typing import Any

from ....network.carriers.memory import Memory
from ..history import History

__all__ = ["WorldNetwork"]


class WorldNetwork(Memory):
    """A `Memory` that notes its frames in a history."""

    def __init__(self, history: History, **options: Any) -> None:
        super().__init__(**options)
        self._history = history

    def carry(self, sender: str, to: str, frame: bytes) -> None:
        """Carry a frame, and note it."""
        self._history.mix(sender, to, data=frame)
        super().carry(sender, to, frame)
