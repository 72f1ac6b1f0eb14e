"""`VerbCall`: a verb of an asyncio facade that has been called, and not awaited yet."""

import sys
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar
from warnings import warn

__all__ = ["VerbCall"]

R = TypeVar("R")

_OF_COROUTINES: Final = ("__name__", "__qualname__")


class VerbCall(Coroutine[Any, Any, R]):
    """A coroutine that says which ``await`` is missing: where a prompt shows it, where a program
    uses it in place of the result, and where a program drops it. Nothing runs before the first
    step.
    """

    __slots__ = ("_begin", "_begun", "_qualname", "_variable")

    def __init__(
        self, variable: str, qualname: str, begin: Callable[[], Coroutine[Any, Any, R]]
    ) -> None:
        self._begun: Coroutine[Any, Any, R] | None = None
        self._variable = variable
        self._qualname = qualname
        self._begin = begin

    def __repr__(self) -> str:
        text = self._text()
        return f"<{text}>" if self._begun else f"<{text} has not begun: write `await {text}`>"

    def __del__(self) -> None:
        if self._begun is None:
            text = self._text()
            warn(
                f"{text} was never awaited, and nothing was done: write `await {text}`",
                RuntimeWarning,
                stacklevel=2,
            )

    def __await__(self) -> Generator[Any, Any, R]:
        return self._coroutine().__await__()

    def send(self, value: object, /) -> Any:
        """Run it up to its next pause, as a task of asyncio does."""
        return self._coroutine().send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an exception in it, as a task of asyncio does."""
        return self._coroutine().throw(*error)

    def close(self) -> None:
        """End it."""
        self._coroutine().close()

    def _coroutine(self) -> Coroutine[Any, Any, R]:
        if self._begun is None:
            self._begun = self._begin()
        return self._begun

    def _text(self) -> str:
        return f"{self._variable}.{self._qualname.rpartition('.')[2]}(…)"

    if not TYPE_CHECKING:  # type checkers report this themselves

        def __getattr__(self, name: str) -> Any:
            if name in _OF_COROUTINES:
                return self._qualname
            if name.startswith(("_", "cr_", "gi_")):  # asyncio and debuggers ask for them
                raise AttributeError(name)
            text = self._text()
            raise AttributeError(
                f"`await` is missing: write `result = await {text}`, and `result.{name}` then"
            )

        def _refuse(self, *_: object) -> NoReturn:
            raise TypeError(f"`await` is missing: write `await {self._text()}`")

        # What a program does with a result first.
        __call__ = __contains__ = __getitem__ = __iter__ = __len__ = _refuse
        __aenter__ = __aexit__ = __aiter__ = __enter__ = __exit__ = _refuse
        __float__ = __index__ = __int__ = __ge__ = __gt__ = __le__ = __lt__ = _refuse
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refuse

        def __bool__(self) -> bool:
            # The repr of a task looks whether it has a coroutine, from Python 3.13 on.
            if sys._getframe(1).f_globals.get("__name__") != "asyncio.base_tasks":
                self._refuse()
            return True
