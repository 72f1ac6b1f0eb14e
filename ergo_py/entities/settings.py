"""`Settings`: the settings of a keeper, checked. `Totals`: its sums."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.options import check_number
from ..entity_handles import check_kind
from ..supervision.specs import Backoff
from .entity import Entity, state_type_of

__all__ = ["Settings", "Totals", "names_of"]

_MOST_STATE: Final = 256 << 20
"""Bytes of a record that every store takes: SQLite and PostgreSQL have rows of 1 GB at most."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a keeper.

    Raises:
        BadInputError: a value is not allowed.
    """

    max_awake: int
    idle: float
    remember: float
    max_remembered: int
    attempts: int
    backoff: Backoff
    max_state: int
    max_waiting: int
    now: Callable[[], float]

    def __post_init__(self) -> None:
        check_number("max_awake", self.max_awake, least=1, whole=True)
        check_number("idle", self.idle, least=0.0)
        check_number("remember", self.remember, least=0.0)
        check_number("max_remembered", self.max_remembered, least=1, whole=True)
        check_number("attempts", self.attempts, least=1, whole=True)
        check_number("max_state", self.max_state, least=1, most=_MOST_STATE, whole=True)
        check_number("max_waiting", self.max_waiting, least=1, whole=True)


def names_of(kinds: Iterable[type[Entity[Any]]]) -> dict[str, type[Entity[Any]]]:
    """The classes of entities by the names of their kinds.

    Raises:
        BadInputError: it has no class, or two of a name, or a class that is not of entities or
            whose name cannot be stored.
    """
    names: dict[str, type[Entity[Any]]] = {}
    for kind in kinds:
        state_type_of(kind)
        # Again, since the class may have got another name after it was defined.
        name = check_kind(kind, kind.kind)
        if name is not kind.kind:
            raise BadInputError(f"{kind.__name__}.kind", kind.kind, "a str, and no subclass of it")
        if name in names:
            raise BadInputError(
                "Entities(kinds)",
                kind,
                f"classes whose `kind` differ; {names[name].__qualname__} is {name!r}, too",
            )
        names[name] = kind
    if not names:
        raise BadInputError("Entities(kinds)", kinds, "at least one class of entities")
    return names


class Totals:
    """The sums of a keeper."""

    __slots__ = (
        *("commits", "failures", "last_error", "parked", "seconds", "sleeps", "versions"),
        "wakings",
    )

    def __init__(self) -> None:
        self.commits: int = 0
        self.versions: int = 0
        self.parked: int = 0
        self.failures: int = 0
        self.wakings: int = 0
        self.sleeps: int = 0
        self.seconds: float = 0.0
        """The time that all commits have taken."""
        self.last_error: dict[str, object] | None = None
        """The last failure of the store: its text, and its moment of the wall clock."""

    def count_commit(self, versions: int, seconds: float) -> None:
        """Count a commit of so many versions, and the time that it took."""
        self.commits += 1
        self.versions += versions
        self.seconds += seconds

    def count_waking(self) -> None:
        """Count an entity that has woken up."""
        self.wakings += 1

    def count_sleep(self) -> None:
        """Count an entity that was put to sleep."""
        self.sleeps += 1

    def count_failure(self, error: Exception, at: float) -> None:
        """Count a failure of the store."""
        self.failures += 1
        self.last_error = {"text": str(error), "at": at}

    def count_parked(self) -> None:
        """Count a message that is not tried any more."""
        self.parked += 1
