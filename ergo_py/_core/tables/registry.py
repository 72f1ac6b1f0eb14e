"""`Registry`: names and aliases of processes. A process has at most a single name, and any number
of aliases.
"""

from typing import Generic, Protocol, TypeVar

from ..vocabulary.errors import NameTakenError, NameUnknownError
from ..vocabulary.ids import PID, Alias

__all__ = ["Registry"]


class Holder(Protocol):
    """An object that can have a name: a process or meta-process."""

    @property
    def id(self) -> PID | Alias: ...


H = TypeVar("H", bound=Holder)


class Registry(Generic[H]):
    """Two tables, name → holder and alias → holder. A failed change leaves both unchanged."""

    __slots__ = ("aliases", "names")

    def __init__(self) -> None:
        self.names: dict[str, H] = {}
        self.aliases: dict[Alias, H] = {}
        """The node creates aliases, and never repeats them: their owners add them here."""

    def take_name(self, name: str, holder: H) -> None:
        """Register ``holder`` as ``name``.

        Raises:
            NameTakenError: another process holds the name.
        """
        current = self.names.setdefault(name, holder)
        if current is not holder:
            raise NameTakenError(name, current.id)

    def free_name(self, name: str) -> H:
        """Unregister ``name``, and return its holder.

        Raises:
            NameUnknownError: no process holds the name.
        """
        try:
            return self.names.pop(name)
        except KeyError:
            raise NameUnknownError(name) from None

    def drop_alias(self, alias: Alias) -> H:
        """Unregister ``alias``, and return its holder.

        Raises:
            NameUnknownError: no process holds the alias.
        """
        try:
            return self.aliases.pop(alias)
        except KeyError:
            raise NameUnknownError(alias) from None
