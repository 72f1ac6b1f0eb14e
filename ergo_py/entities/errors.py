"""The errors of entities and of their stores."""

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

from .._core.vocabulary.errors import ErgoError
from .._core.vocabulary.errors.base import Kinds
from .._core.vocabulary.public_names import show_public_names

__all__ = [
    "AnswerUnknownError",
    "FencedError",
    "StateError",
    "StateTooLargeError",
    "StateTypeError",
    "StateUnreadableError",
    "EntityStoreError",
]


_INSTEAD_OF_STATE: Final = (
    "keep large parts in entities of their own, or in files, and only their keys here"
)
_INSTEAD: Final = {
    "messages and timers": "give them to entities of their own, and send keys and not contents",
    "answers to commands with ids": (
        "answer with less, or let Entities(remember=…, max_remembered=…) keep fewer"
    ),
}


class EntityStoreError(ErgoError):
    """A store could not read or write. A write that failed may have happened all the same."""


class FencedError(EntityStoreError):
    """The store refused a write: another activation of the entity has written since. Nothing was
    written.
    """


class AnswerUnknownError(ErgoError):
    """A command with this id has been taken before, and is not carried out again. Its answer cannot
    be given: it was deferred, and the entity has ended before it gave the answer; or the program
    cannot read the kept answer, as without its class in ``types``.
    """

    def __init__(self, kind: str, key: str, id: str, problem: str) -> None:
        super().__init__(
            f"{kind} {key!r} has taken the command with once={id!r} before and does not carry it "
            f"out again, but its answer is not known: {problem}. Read the state of the entity to "
            "see what the command has done"
        )
        self.kind = kind
        self.key = key
        self.id = id


class StateError(Kinds, ErgoError):
    """The state of an entity cannot be stored or read. Nothing was changed.

    ``kind`` says why: its class, or a value in it, cannot be stored (``"type"``, which is also a
    :class:`TypeError`), the record with the messages, timers and answers that are stored with it is
    larger than ``max_state`` (``"too large"``, with its ``size``), or the stored state does not fit
    its class (``"unreadable"``, with the ``behaviour`` and ``key`` of the entity).
    """

    kind: ClassVar[Literal["type", "too large", "unreadable"]]
    size: int | None = None
    behaviour: str | None = None
    """The kind of the entity in its store."""
    key: str | None = None


class StateTypeError(StateError, TypeError):
    """A state cannot be stored: its class, or a value in it. Nothing was changed."""

    kind = "type"


class StateTooLargeError(StateError):
    """A record is larger than ``max_state``: the state with the messages, timers and answers that
    are stored with it. Nothing was changed.
    """

    kind = "too large"

    def __init__(
        self, behaviour: str, size: int, most: int, parts: Mapping[str, int] | None = None
    ) -> None:
        largest = max(parts, key=parts.__getitem__) if parts else "the state"
        of = f", most of it {largest}" if parts else ""
        super().__init__(
            f"the record of this {behaviour} would have {size:,} bytes{of}, and max_state allows "
            f"{most:,}; {_INSTEAD.get(largest, _INSTEAD_OF_STATE)}"
        )
        self.size = size


class StateUnreadableError(StateError):
    """A stored state does not fit its class. The stored record is unchanged."""

    kind = "unreadable"

    def __init__(self, behaviour: str, key: str, state: str, problem: str) -> None:
        super().__init__(
            f"the stored state of {behaviour} {key!r} is not a {state}: {problem}; nothing was "
            "changed. A newer version of the program may have written it; if this version is the "
            f"newer one, add `@classmethod def upgrade(cls, data: dict) -> dict` to {state}"
        )
        self.behaviour = behaviour
        self.key = key


show_public_names(__name__)
