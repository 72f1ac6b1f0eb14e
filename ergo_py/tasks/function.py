"""`Work`: the function of a task, and where it runs: on the loop, or in a thread."""

import inspect
from collections.abc import Callable
from functools import partial
from os.path import dirname
from types import CoroutineType
from typing import Any, Final

from .._core.processes.process import Process
from .._core.vocabulary.dispatchers import LOOP, Dispatcher, check_dispatcher
from .._core.vocabulary.errors import BadInputError, CallbackError
from .._core.vocabulary.hints import did_you_mean
from .thread_call import call_in_thread

__all__ = ["Work", "name_of", "refuse_keywords", "without_own_frames"]

_OWN: Final = dirname(__file__)
_OPTIONS: Final = ("dispatcher", "name", "reply_to", "timeout", "under")


class Work:
    """A checked function. An async function runs on the loop; a plain function in a thread, or as
    its dispatcher says.
    """

    __slots__ = ("_dispatcher", "_is_async", "_on_loop", "function")

    def __init__(
        self, function: Callable[..., Any], dispatcher: Dispatcher | None, where: str, right: str
    ) -> None:
        if not callable(function):
            raise BadInputError(
                where,
                function,
                f"a function, plain or async, and its arguments beside it: `{right}`",
            )
        self.function: Final = function
        self._is_async = _is_async(function)
        self._on_loop = dispatcher == LOOP
        self._dispatcher = dispatcher
        if dispatcher is not None:
            check_dispatcher(dispatcher)
            if self._is_async and not self._on_loop:
                raise BadInputError(
                    "dispatcher",
                    dispatcher,
                    f"no dispatcher for the async function {name_of(function)}, which runs on the "
                    "loop; a plain function may have one",
                )

    async def call(self, process: Process, *args: object) -> Any:
        """Call the function, for the process that waits for it."""
        if self._is_async:
            return await self.function(*args)
        if self._on_loop:
            result = self.function(*args)
        else:
            result = await call_in_thread(process, partial(self.function, *args), self._dispatcher)
        if isinstance(result, CoroutineType):
            result.close()
            raise CallbackError(
                f"{name_of(self.function)} is no `async def` but returned a coroutine; give the "
                "async function itself and its arguments: `run_task(fetch, url)`"
            )
        return result


def name_of(function: object) -> str:
    """The name of a function, for the log."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).replace("<locals>.", "")


def refuse_keywords(function: object, unknown: dict[str, Any]) -> None:
    """Refuse keywords that ``run_task`` does not know: most are for the function.

    Raises:
        BadInputError: there are any.
    """
    for key, value in unknown.items():
        raise BadInputError(
            f"run_task(…, {key}=…)",
            value,
            f"one of {', '.join(_OPTIONS)}; keywords of the function go into "
            f"`run_task(functools.partial({name_of(function)}, {key}=…))`"
            + did_you_mean(key, _OPTIONS, "{}"),
        )


def without_own_frames(error: Exception) -> Exception:
    """The exception that a function raised, with the frames of the function and of code below it
    only.
    """
    traceback = error.__traceback__
    while traceback is not None and dirname(traceback.tb_frame.f_code.co_filename) == _OWN:
        traceback = traceback.tb_next
    return error if traceback is None else error.with_traceback(traceback)


def _is_async(function: object) -> bool:
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004 - whether it is async
    )
