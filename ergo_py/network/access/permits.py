"""`Permits`: the acts that this node permits each other node, as ``allow=`` of a network says."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from glob import escape
from typing import Final

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.hints import did_you_mean

__all__ = ["DEFAULT_PERMITS", "PERMITS", "Allow", "Permits", "refusal_text"]

Allow = str | Iterable[str] | Mapping[str, str | Iterable[str]]
"""Permits of all nodes, or of each pattern of names of nodes."""

PERMITS: Final = {
    "send": "send messages to its processes",
    "call": "call its processes, and ask for their names",
    "watch": "link to its processes, monitor them, and subscribe to its events",
    "exit": "ask its processes to end",
    "forward": "send messages of a third node",
    "look": "look into it",
    "kill": "kill its processes",
    "spawn": "start processes on it",
}
"""Each permit, and the act that it permits."""

DEFAULT_PERMITS: Final = frozenset({"send", "call", "watch", "exit", "forward"})
"""The permits of a node that ``allow=`` does not name."""

_DEFAULT: Final = "default"
_EXAMPLE: Final = "allow={'ops@*': 'default,look,spawn'}"


class Permits:
    """The permits of all other nodes.

    Raises:
        BadInputError: a permit or a pattern is invalid.
    """

    def __init__(self, allow: Allow | None = None) -> None:
        if allow is None:
            allow = {}
        elif not isinstance(allow, Mapping):
            allow = {"*": allow}
        self._patterns = [(pattern, _read(pattern, given)) for pattern, given in allow.items()]
        # The longest pattern that fits counts, and of equally long ones the first.
        self._patterns.sort(key=lambda entry: -len(entry[0]))
        # A name counts before all patterns, also a name with brackets, which reads as a pattern.
        self._names = dict(reversed(self._patterns))

    def of(self, node: str) -> frozenset[str]:
        """The permits of a node."""
        if node in self._names:
            return self._names[node]
        for pattern, permits in self._patterns:
            if fnmatchcase(node, pattern):
                return permits
        return DEFAULT_PERMITS


def refusal_text(here: str, node: str, permit: str) -> str:
    """Says that a node lacks a permit, and how to give it."""
    return (
        f"the node {here!r} does not permit {node!r} to {PERMITS[permit]}; open the network of "
        f"{here!r} with allow={{{escape(node)!r}: 'default,{permit}'}}"
    )


def _read(pattern: object, given: object) -> frozenset[str]:
    if not isinstance(pattern, str) or not pattern:
        raise BadInputError("allow", pattern, f"patterns of names of nodes, as in {_EXAMPLE}")
    words = given.split(",") if isinstance(given, str) else given
    if not isinstance(words, Iterable):
        raise BadInputError("allow", given, f"permits with commas between them, as in {_EXAMPLE}")
    permits: set[str] = set()
    for word in words:
        name = word.strip() if isinstance(word, str) else word
        if name == _DEFAULT:
            permits |= DEFAULT_PERMITS
        elif isinstance(name, str) and name in PERMITS:
            permits.add(name)
        elif name != "":
            raise BadInputError(
                "allow",
                name,
                f"{', '.join(PERMITS)}, or default, which is "
                f"{', '.join(sorted(DEFAULT_PERMITS))}{did_you_mean(str(name), PERMITS)}",
            )
    return frozenset(permits)
