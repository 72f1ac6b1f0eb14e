"""`Invoke` and `Apply`: requests to an object that lives outside of the loop."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from .._core.vocabulary.messages import Request
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.text import text_of
from ..streams.parts import PartStream

__all__ = ["Apply", "Invoke", "as_exception", "name_of_request"]

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, init=False)
class Invoke(Request[Any]):
    """Call a method of the target: ``Invoke("execute", "select 1")``. Its result or its exception
    is the answer.
    """

    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __init__(self, method: str, /, *args: object, **kwargs: object) -> None:
        for name, value in (("method", method), ("args", args), ("kwargs", kwargs)):
            object.__setattr__(self, name, value)

    def run(self, target: object) -> Any:
        """Call the method, in the thread of the target."""
        return getattr(target, self.method)(*self.args, **self.kwargs)


@dataclass(frozen=True, slots=True, init=False)
class Apply(Request[R]):
    """Call a function with the target and further arguments: several steps in a single request, in
    the target's thread, with a typed answer.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @overload
    def __init__(
        self: "Apply[PartStream[T]]",
        function: Callable[..., AsyncIterator[T]],
        /,
        *args: object,
        **kwargs: object,
    ) -> None: ...
    @overload
    def __init__(
        self: "Apply[T]", function: Callable[..., Awaitable[T]], /, *args: object, **kwargs: object
    ) -> None: ...
    @overload
    def __init__(
        self: "Apply[T]", function: Callable[..., T], /, *args: object, **kwargs: object
    ) -> None: ...
    def __init__(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> None:
        for name, value in (("function", function), ("args", args), ("kwargs", kwargs)):
            object.__setattr__(self, name, value)

    def run(self, target: object) -> Any:
        """Call the function, in the thread of the target."""
        return self.function(target, *self.args, **self.kwargs)


def name_of_request(request: Invoke | Apply[Any]) -> str:
    """The name of the method or function, for logs."""
    if isinstance(request, Invoke):
        return request.method
    return getattr(request.function, "__qualname__", "function")


def as_exception(error: BaseException) -> Exception:
    """Turn a ``BaseException`` into an exception for the caller: an exit that a library requests
    must not end the caller.
    """
    if isinstance(error, Exception):
        return error
    try:
        raise RuntimeError(f"it raised {type(error).__name__}: {text_of(error)}") from error
    except RuntimeError as wrapped:
        return wrapped


show_public_names(__name__)
