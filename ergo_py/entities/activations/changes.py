"""`Changes`: all that a callback of an entity does besides changing the state."""

from collections.abc import Callable
from typing import Final

from ..._core.tables.pending_calls import Caller
from ..record import Origin, Owed

__all__ = ["NO_CHANGES", "Action", "Changes", "Leaving"]

Action = Callable[[], object]
"""A message that leaves an entity: it is called when the callback is stored."""
Leaving = tuple[Caller | None, object, BaseException | None]
"""A caller with its answer, a value or an error; or None with an action."""


class Changes:
    """The effects of a callback. They take effect with the commit."""

    __slots__ = (
        *("after", "answered", "cancelled", "deleted", "done"),
        *("is_counted", "owed", "refused", "removed", "seen"),
    )

    def __init__(self) -> None:
        self.after: list[Leaving] = []
        """Replies and messages that leave when the callback is stored, in order."""
        self.owed: list[Owed] = []
        self.removed: list[int] = []
        """Numbers of messages that are not owed any more."""
        self.cancelled: list[str] = []
        """Names of timers."""
        self.seen: tuple[Origin, int] | None = None
        """The message of another entity that takes effect."""
        self.done: dict[str, bytes | None] = {}
        """The ids of commands that are done, and their encoded answers; None for an answer that is
        deferred.
        """
        self.answered: list[str] = []
        """The ids of commands whose deferred answers are given."""
        self.refused: list[str] = []
        """Those whose answers are errors. These ids are free again."""
        self.deleted: bool = False
        self.is_counted: bool = False
        """Attempts were counted, or a mark was removed: the record has changed already."""

    def leave(self, action: Action) -> None:
        """Do an action when the callback is stored."""
        self.after.append((None, action, None))

    def delete(self) -> None:
        """Delete the entity."""
        self.deleted = True

    def count(self) -> None:
        """Note that the record has changed already."""
        self.is_counted = True

    def see(self, origin: Origin, number: int) -> None:
        """Note that a message of another entity takes effect."""
        self.seen = origin, number

    def cancel(self, name: str) -> None:
        """Cancel a timer, also of this callback."""
        self.owed = [each for each in self.owed if each.name != name]
        self.cancelled.append(name)

    def kept(self) -> list[Owed]:
        """The messages that the entity owes from now on. Its timers and jobs go with it, also those
        that the callback has made after `delete`: they would make the entity again.
        """
        return [each for each in self.owed if each.outlives_owner] if self.deleted else self.owed

    def is_empty(self) -> bool:
        """Whether the record stays as it is, apart from the state."""
        return not (
            self.owed
            or self.removed
            or self.cancelled
            or self.seen
            or self.done
            or self.refused
            or self.deleted
            or self.is_counted
        )


NO_CHANGES: Final = Changes()
"""Stands for the changes of all callbacks that have done nothing but change the state, as most do.
`Activation.in_callback` replaces it.
"""
