"""Checkers of histories: `at_most_one`, `all_answered`, `kept`. A checker is a function of the
history that yields a line for each fault.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from .history import History, Lifetime, Operation, text_of

__all__ = ["Checker", "NamedCheck", "all_answered", "at_most_one", "kept"]


class Checker(Protocol):
    """A function that looks at a history."""

    def __call__(self, history: History, /) -> Iterable[str]:
        """Yield a line for each fault that it finds."""
        ...


@dataclass(frozen=True, slots=True)
class NamedCheck:
    """A checker with the name under which a failure shows it."""

    name: str
    find: Callable[[History], Iterator[str]]

    def __call__(self, history: History) -> Iterator[str]:
        """Yield a line for each fault that it finds."""
        return self.find(history)

    def __str__(self) -> str:
        return self.name


def at_most_one(name: str, *, grace: float = 1.0) -> Checker:
    """Check that no two processes of this name, or of a behaviour of this name, lived at once on
    two nodes.

    The lifetimes count, not the answers to clients: two holders of a lease mostly overlap between
    two calls. A stopped program does nothing, so the lifetimes of its processes do not count
    from its stop until ``grace`` seconds after it continues: it has to notice that its time is
    over.
    """

    def check(history: History) -> Iterator[str]:
        lives = [life for life in history.lifetimes if name in (life.name, life.behaviour)]
        spans = sorted(
            (began, ended, life.node)
            for life in lives
            for began, ended in _active(life, history, grace)
        )
        latest = (-inf, -inf, "")
        for span in spans:
            began, _, node = span
            if began < latest[1] and node != latest[2]:
                yield (
                    f"{name} runs on {node} from {began:.2f} s, and on {latest[2]} from "
                    f"{latest[0]:.2f} s until {latest[1]:.2f} s"
                )
            latest = max(latest, span, key=lambda each: each[1])

    return NamedCheck(f"at_most_one({name!r})", check)


def _active(life: Lifetime, history: History, grace: float) -> list[tuple[float, float]]:
    """The lifetime of a process without the times in which its program was stopped."""
    spans = [(life.began, min(life.ended, history.now()))]
    for node, began, ended in history.pauses:
        if node == life.node:
            spans = [
                part
                for first, last in spans
                for part in ((first, min(last, began)), (max(first, ended + grace), last))
                if part[0] < part[1]
            ]
    return spans


def all_answered() -> Checker:
    """Check that each call of a client was answered, or has failed: none is left open."""

    def check(history: History) -> Iterator[str]:
        for operation in history.operations:
            if operation.ended == inf:
                yield (
                    f"the call of {operation.client} at {operation.began:.2f} s has no answer: "
                    f"{text_of(operation.request)}"
                )

    return NamedCheck("all_answered()", check)


def kept(
    written: type | Callable[[Operation], bool],
    held: Callable[[], Iterable[Any]],
) -> Checker:
    """Check that each request that was answered is kept.

    Args:
        written: the class of the requests that must not be lost, or a function that says whether
            an operation is such a request.
        held: the requests that the system holds now.
    """

    def check(history: History) -> Iterator[str]:
        present = list(held())
        for operation in history.operations:
            counts = (
                isinstance(operation.request, written)
                if isinstance(written, type)
                else written(operation)
            )
            if counts and operation.is_answered and operation.request not in present:
                yield f"{text_of(operation.request)} was confirmed at {operation.ended:.2f} s"

    return NamedCheck(f"kept({getattr(written, '__name__', written)})", check)
