"""`Commands`: the commands with ids of an entity, each of which is done once."""

from typing import TYPE_CHECKING

from ..._core.tables.pending_calls import Caller
from ...network.messages.listed_class import RefusedValueError
from ..errors import StateTypeError

if TYPE_CHECKING:
    from .activation import Activation

__all__ = ["Commands"]


class Commands:
    """The commands with ids of an entity that is awake, and deferred answers."""

    __slots__ = ("_activation", "_id_of", "_in_progress")

    def __init__(self, activation: "Activation") -> None:
        self._activation = activation
        self._in_progress: dict[str, list[Caller]] | None = None
        """The ids of commands whose answers are deferred, with their callers: that of the command
        first, then those of its repetitions. Made with the first such command.
        """
        self._id_of: dict[Caller, str] | None = None
        """The ids of these commands, by their first callers."""

    def are_open(self) -> bool:
        """Whether a caller of a command with an id waits for a deferred answer. A caller that has
        given up does not.
        """
        return self._in_progress is not None and any(
            not caller.settled for callers in self._in_progress.values() for caller in callers
        )

    def answer(self, id: str, caller: Caller) -> bool:
        """Answer the repetition of a command, which has been done or is in progress. False if it
        is a new command.
        """
        done = self._activation.record.done.get(id)
        if done is not None:
            encoded = done[1]
            value = self._activation.types.decode(encoded) if encoded else None
            self._activation.output.leave(caller, value, None)
            self._activation.rest()
            return True
        callers = None if self._in_progress is None else self._in_progress.get(id)
        if callers is None:
            return False
        callers.append(caller)
        return True

    def note_done(self, id: str, value: object) -> None:
        """Note that a command is done with the callback in progress, and its answer.

        Raises:
            StateTypeError: the answer cannot be stored.
        """
        self._activation.in_callback().done[id] = self._encode(id, value)

    def keep_open(self, id: str, caller: Caller) -> None:
        """Note that the answer to a command is deferred."""
        if self._in_progress is None or self._id_of is None:
            self._in_progress, self._id_of = {}, {}
        self._in_progress[id] = [caller]
        self._id_of[caller] = id

    def reply(self, caller: Caller, value: object, error: BaseException | None) -> bool:
        """Answer a call that was deferred, when the callback in progress is stored.

        Raises:
            StateTypeError: the command has an id, and its answer cannot be stored.
        """
        activation, callers = self._activation, [caller]
        once = None if self._id_of is None else self._id_of.get(caller)
        if once is not None and self._in_progress is not None:
            changes = activation.in_callback("reply(caller, …) to a command with an id")
            if error is None:
                changes.done[once] = self._encode(once, value)
            changes.answered.append(once)
            callers = self._in_progress[once]
        for each in callers:
            activation.reply(each, value, error)
        return not caller.settled

    def forget(self, ids: list[str]) -> None:
        """Forget commands whose deferred answers are given by a callback that has ended."""
        if self._in_progress is None or self._id_of is None:
            return
        for once in ids:
            for caller in self._in_progress.pop(once, ()):
                self._id_of.pop(caller, None)

    def _encode(self, once: str, value: object) -> bytes:
        try:
            return b"" if value is None else self._activation.types.encode(value)
        except RefusedValueError as error:
            raise StateTypeError(
                f"the answer to a command with once={once!r} is stored, and this one cannot be: "
                f"{error}; the command was undone"
            ) from None
