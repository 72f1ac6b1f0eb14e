"""Context variables: a process has a context of its own, which its callbacks share wherever they run."""

import types
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, Final, TypeVar

__all__ = ["adopt", "run_in"]

T = TypeVar("T")

_NOTHING: Final = object()


@types.coroutine
def run_in(context: Context, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await a coroutine in this task, with each of its steps in another context than the task's own."""
    step: Any = coroutine.send
    answer: Any = None
    try:
        while True:
            trap = context.run(step, answer)
            try:
                answer = yield trap
                step = coroutine.send
            except BaseException as error:
                step, answer = coroutine.throw, error
    except StopIteration as end:
        result: T = end.value
        return result


def adopt(changed: Context, before: Context) -> None:
    """Set, in the present context, what was set in a copy of ``before`` since it was made."""
    for variable, value in changed.items():
        if before.get(variable, _NOTHING) is not value:
            variable.set(value)
