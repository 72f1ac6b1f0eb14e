"""`Commands`: the commands with ids of an entity, each of which is done once."""

from typing import TYPE_CHECKING, Any, Final

from ..._core.tables.pending_calls import Caller
from ..._core.vocabulary.messages import NO_REPLY
from ...network.messages.listed_class import RefusedValueError, UnreadableValueError
from ..errors import AnswerUnknownError, StateTypeError

if TYPE_CHECKING:
    from .activation import Activation

__all__ = ["Commands"]

_DEFERRED: Final = (
    "it was deferred, and the entity has ended, as by a crash, a restart or its sleep, before it "
    "has answered"
)


class Commands:
    """The commands with ids of an entity that is awake, and deferred answers."""

    __slots__ = ("_activation", "_id_of", "_in_progress")

    def __init__(self, activation: "Activation") -> None:
        self._activation = activation
        self._in_progress: dict[str, list[Caller]] = {}
        """The ids of commands that are not answered yet, with their callers: that of the command
        first, then those of its repetitions.
        """
        self._id_of: dict[Caller, str] = {}
        """The ids of these commands, by their first callers."""

    def are_open(self) -> bool:
        """Whether a caller of a command with an id waits for a deferred answer. A caller that has
        given up does not.
        """
        return any(
            not caller.settled for callers in self._in_progress.values() for caller in callers
        )

    def answer(self, id: str, caller: Caller) -> bool:
        """Answer the repetition of a command, which was taken before. False if it is a new command.

        The answer to a deferred command that is under way comes with its first answer.
        """
        callers = self._in_progress.get(id)
        if callers is not None:
            callers.append(caller)
            return True
        done = self._activation.record.done.get(id)
        if done is None:
            return False
        value, error, encoded = None, None, done[1]
        if encoded is None:
            error = self._unknown(id, _DEFERRED)
        elif encoded:
            value, error = self._kept(id, encoded)
        # An acknowledgement as the first answer was: the caller does not repeat the command again.
        self._activation.check_row()
        self._activation.output.leave(caller, value, error)
        self._activation.rest()
        return True

    def _kept(self, id: str, encoded: bytes) -> tuple[Any, AnswerUnknownError | None]:
        """A kept answer, or the error for its caller alone: the entity serves others as before."""
        try:
            return self._activation.types.decode(encoded), None
        except UnreadableValueError as error:
            return None, self._unknown(id, f"it cannot be read: {error} of `Entities`")

    def _unknown(self, id: str, problem: str) -> AnswerUnknownError:
        return AnswerUnknownError(*self._activation.address, id, problem)

    def begin(self, id: str, caller: Caller) -> None:
        """Note that the callback in progress carries out a command, which it may answer."""
        self._in_progress[id] = [caller]
        self._id_of[caller] = id

    def note(self, id: str, value: object) -> None:
        """Note the answer to the command of the callback in progress, which is stored with it; or
        with NO_REPLY that the command was taken, unless the callback has answered it.

        Raises:
            StateError: of kind ``"type"``; the answer cannot be stored.
        """
        changes = self._activation.in_callback()
        if id in changes.answered:
            return  # the first answer is the one that is stored
        if value is NO_REPLY:
            changes.done[id] = None
        else:
            changes.done[id] = self._encode(id, value)
            changes.answered.append(id)

    def reply(self, caller: Caller, value: object, error: BaseException | None) -> bool:
        """Answer a call that was deferred, when the callback in progress is stored. With an error
        its id is free again: the entity has refused the command.

        Raises:
            StateError: of kind ``"type"``; the command has an id, and its answer cannot be stored.
        """
        activation, callers = self._activation, [caller]
        once = self._id_of.get(caller)
        if once is not None:
            changes = activation.in_callback("reply(caller, …) to a command with an id")
            if once in changes.answered:
                return False  # the first answer is the one that is stored
            if error is None:
                changes.done[once] = self._encode(once, value)
            else:
                changes.refused.append(once)
            changes.answered.append(once)
            callers = self._in_progress[once]
        for each in callers:
            activation.reply(each, value, error)
        return not caller.settled

    def forget(self, ids: list[str]) -> None:
        """Forget the callers of commands that are answered by a callback that has ended."""
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
