"""`VerbChain`: the only owner of the verbs that the kernel puts into an instance of a behaviour.

Several parts of the kernel change the verbs of a single process: its dispatcher, the tracing of its
node, its observers. Each has a rank, and the rank decides which verb calls which. So the parts come
and go in any order, and none has to know of the others.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

__all__ = ["Rank", "VerbChain", "Wrapper"]

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes a verb from the verb below it."""


class Rank(IntEnum):
    """The parts that change verbs, from the innermost to the outermost."""

    DISPATCHER = 0
    FAST_CALL = 1
    TRACED = 2
    REPORTED = 3
    REFUSED = 4


class VerbChain:
    """The changed verbs of an instance. A verb without wrappers is the verb of the class, or the
    attribute that the user has put into the instance.
    """

    __slots__ = ("_behaviour", "_bases", "_tops", "_wrappers")

    def __init__(self, behaviour: object) -> None:
        self._behaviour = behaviour
        self._wrappers: dict[str, dict[Rank, Wrapper]] = {}
        self._bases: dict[str, tuple[Any, bool]] = {}
        """For each changed verb: the verb below all wrappers, and whether it is an attribute of the
        instance.
        """
        self._tops: dict[str, Any] = {}
        """For each changed verb: the attribute of the instance."""

    def push(self, name: str, rank: Rank, wrapper: Wrapper) -> None:
        """Change a verb. A second wrapper of the same rank replaces the first."""
        self._find_base(name)
        self._wrappers.setdefault(name, {})[rank] = wrapper
        self._build(name)

    def pop(self, name: str, rank: Rank) -> None:
        """Take the wrapper of this rank out, if there is any. Others stay."""
        if rank in self._wrappers.get(name, ()):
            self._find_base(name)
            del self._wrappers[name][rank]
            self._build(name)

    def take(self, other: "VerbChain") -> None:
        """Change the verbs that another chain changes, in the same way."""
        for name, wrappers in other._wrappers.items():
            for rank, wrapper in wrappers.items():
                self.push(name, rank, wrapper)

    def has(self, name: str, rank: Rank) -> bool:
        """Whether a verb has a wrapper of this rank."""
        return rank in self._wrappers.get(name, ())

    def _find_base(self, name: str) -> None:
        # Not through `__dict__`: Python is slower with objects that have one.
        present = getattr(self._behaviour, name)
        if name not in self._tops:
            of_class = getattr(type(self._behaviour), name).__get__(self._behaviour)
            self._bases[name] = present, present != of_class
        elif present is not self._tops[name]:
            # The user has put an attribute there meanwhile.
            self._bases[name] = present, True

    def _build(self, name: str) -> None:
        wrappers = self._wrappers[name]
        verb, is_own = self._bases[name]
        if wrappers or is_own:
            for _, wrapper in sorted(wrappers.items()):
                verb = wrapper(verb)
            object.__setattr__(self._behaviour, name, verb)
            self._tops[name] = verb
        else:
            object.__delattr__(self._behaviour, name)
        if not wrappers:
            del self._wrappers[name], self._bases[name]
            self._tops.pop(name, None)
