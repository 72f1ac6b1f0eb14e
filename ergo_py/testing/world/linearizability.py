"""`linearizable`: check that the answers of clients are those of a single, sequential object.

The search is that of Wing and Gong, with the pruning of Lowe: no pair of a set of operations that
have taken effect and a state of the object is tried twice.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from math import inf
from typing import Any, Protocol, TypeVar

from .checkers import Checker, NamedCheck
from .history import History, Operation, text_of

__all__ = ["Model", "linearizable"]

S = TypeVar("S", bound=Hashable)


class Model(Protocol[S]):
    """A sequential object."""

    def start(self) -> S:
        """The first state. States are hashable."""
        ...

    def step(self, state: S, request: Any, /) -> tuple[S, Any]:
        """The next state after a request, and the answer."""
        ...


def linearizable(
    model: Model[Any], *, key: Callable[[Any], object] = lambda _request: None
) -> Checker:
    """Check that there is an order of the calls of all clients, each between its call and its
    answer, in which the model gives the same answers. A call that has failed may have had its
    effect at any time after it, or never.

    Args:
        model: the object that the clients call.
        key: the part of the object that a request concerns, if the parts do not depend on each
            other: each part is checked alone, which is much faster.
    """

    def check(history: History) -> Iterator[str]:
        parts: dict[object, list[Operation]] = {}
        for operation in history.operations:
            parts.setdefault(key(operation.request), []).append(operation)
        for part, operations in parts.items():
            if not _is_linearizable(model, operations):
                about = "" if part is None else f" of {text_of(part)}"
                calls = "; ".join(map(_told, operations[:10]))
                count = len(operations)
                yield f"no order of the {count} calls{about} explains the answers: {calls}"

    return NamedCheck("linearizable()", check)


def _told(operation: Operation) -> str:
    answer = text_of(operation.answer) if operation.is_answered else "failed"
    until = "" if operation.ended == inf else f" to {operation.ended:.2f}"
    return f"{operation.began:.2f}{until} s {text_of(operation.request)} → {answer}"


def _is_linearizable(model: Model[Any], operations: Sequence[Operation]) -> bool:
    begins = [(each.began, each.began_as) for each in operations]
    ends = [(each.ended if each.is_answered else inf, each.ended_as) for each in operations]
    needed = sum(1 << number for number, each in enumerate(operations) if each.is_answered)
    tried: set[tuple[int, Hashable]] = set()
    stack: list[tuple[int, Any]] = [(0, model.start())]
    while stack:
        done, state = stack.pop()
        if done & needed == needed:
            return True
        if (done, state) in tried:
            continue
        tried.add((done, state))
        # No operation can come first that began after another has ended.
        limit = min(end for number, end in enumerate(ends) if not done >> number & 1)
        for number, operation in enumerate(operations):
            if done >> number & 1 or begins[number] > limit:
                continue
            after, answer = model.step(state, operation.request)
            if not operation.is_answered or answer == operation.answer:
                stack.append((done | 1 << number, after))
    return False
