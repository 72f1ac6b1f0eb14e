"""`Spawns`: the behaviours that other nodes may start on this node, by the names they are listed
under.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..._core.verbs.behaviour import Behaviour, behaviour_of
from ..._core.vocabulary.errors import BadInputError, SpawnError
from ..._core.vocabulary.hints import did_you_mean
from .limits import Budget

__all__ = ["SpawnBudget", "SpawnList", "Spawns"]

SpawnList = Mapping[str, Callable[..., Behaviour]]
"""Classes of behaviours, or ``Worker.spec(…)``, by the names under which other nodes start them."""

# Not measured: a start takes some 15 µs beside the `init` of the program, so a hundred of them are
# a small part of a second of the loop.
_RATE: Final = 100
"""Processes that another node may start in a second, and at once."""


class Spawns:
    """The listed behaviours.

    Raises:
        BadInputError: a name or a behaviour is invalid.
    """

    def __init__(self, listed: SpawnList | None = None) -> None:
        if listed is not None and not isinstance(listed, Mapping):
            raise BadInputError("spawns", listed, "a dict, as in spawns={'worker': Worker}")
        self._listed: dict[str, Any] = dict(listed or {})
        for name, behaviour in self._listed.items():
            if not isinstance(name, str) or not name:
                raise BadInputError("spawns", name, "names, as in spawns={'worker': Worker}")
            # For its error only: a class that is no behaviour is refused where the network is
            # written down.
            behaviour_of(behaviour)

    def find(self, here: str, name: str) -> Any:
        """The behaviour of this name.

        Raises:
            SpawnError: no behaviour has the name.
        """
        if name not in self._listed:
            known = ", ".join(map(repr, self._listed)) or "none"
            raise SpawnError(
                f"the node {here!r} lists no behaviour {name!r}, but {known}; open its network "
                f"with spawns={{{name!r}: …}}{did_you_mean(name, self._listed)}"
            )
        return self._listed[name]


class SpawnBudget:
    """How many processes another node may start now."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._budget = Budget(_RATE, now)

    def take(self, here: str) -> None:
        """Count a process.

        Raises:
            SpawnError: the other node starts too many.
        """
        if not self._budget.take():
            raise SpawnError(
                f"another node may start {_RATE} processes in a second on {here!r}; start fewer, "
                "or have a process there start them"
            )
