"""Names and aliases: who answers to what. One name for a process, any number of aliases."""

from typing import Generic, Protocol, TypeVar

from ..vocabulary.errors import NameTakenError, NameUnknownError
from ..vocabulary.ids import PID, Alias

__all__ = ["Registry"]


class Holder(Protocol):
    """Somebody who can have a name."""

    @property
    def id(self) -> PID | Alias: ...


H = TypeVar("H", bound=Holder)


class Registry(Generic[H]):
    """Two tables, name → holder and alias → holder. A refused change changes nothing."""

    __slots__ = ("aliases", "names")

    def __init__(self) -> None:
        self.names: dict[str, H] = {}
        self.aliases: dict[Alias, H] = {}

    def take_name(self, name: str, holder: H) -> None:
        """Give ``name`` to ``holder``.

        Raises:
            NameTakenError: somebody holds it already.
        """
        self.check_free(name, holder)
        self.names[name] = holder

    def check_free(self, name: str, holder: H) -> None:
        """Refuse a name that belongs to another one.

        Raises:
            NameTakenError: somebody holds it already.
        """
        current = self.names.get(name, holder)
        if current is not holder:
            raise NameTakenError(name, current.id)

    def free_name(self, name: str) -> H:
        """Take ``name`` away from its holder, who is returned.

        Raises:
            NameUnknownError: nobody holds it.
        """
        try:
            return self.names.pop(name)
        except KeyError:
            raise NameUnknownError(name) from None

    def add_alias(self, alias: Alias, holder: H) -> None:
        """Let ``alias`` mean ``holder``. Aliases are made by the node and never repeat."""
        self.aliases[alias] = holder

    def drop_alias(self, alias: Alias) -> H:
        """Forget ``alias``.

        Raises:
            NameUnknownError: nobody holds it.
        """
        try:
            return self.aliases.pop(alias)
        except KeyError:
            raise NameUnknownError(alias) from None
