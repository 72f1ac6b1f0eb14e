"""Rows: each makes a verb of a facade out of the method that defines the verb. The method gives
name, arguments, documentation and types; the kind of the facade gives the way to wait.

``supervise = verb(Node.supervise)`` is ``node.supervise(…)`` of a blocking facade, and ``await
node.supervise(…)`` of an asyncio facade.
"""

import sys
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from inspect import iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from .verb_call import VerbCall

if TYPE_CHECKING:
    from .facade import Asyncio, Blocking, Facade

__all__ = [
    "Direct",
    "DirectRow",
    "Handle",
    "Row",
    "Value",
    "Verb",
    "as_async",
    "as_method",
    "awaited",
    "blocked",
    "direct",
    "handle",
    "plain",
    "value",
    "verb",
]

A = TypeVar("A")
B = TypeVar("B")
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

Function = Callable[..., Any]


class Row:
    """A verb that the node's loop runs. ``wrappers`` have the class of the result for a kind of
    facade, if it is not the result of the method. ``undo`` takes the subject and the result if
    the caller is cancelled or interrupted: no caller knows the new process then.
    """

    def __init__(
        self, function: Function, undo: Function | None = None, **wrappers: Function | None
    ) -> None:
        self.function = function
        self.undo = undo
        self.wrappers = wrappers

    def derive(self, cls: "type[Facade]", name: str) -> object:
        """The attribute of a class of facades."""
        wrapper = self.wrappers.get(cls._kind)
        make = getattr(self, f"_{cls._kind}")
        made = make(_finder(self.function), wrapper or _unchanged)
        wraps(self.function)(made)
        made.__name__, made.__qualname__ = name, f"{cls.__qualname__}.{name}"
        made.__module__ = cls.__module__
        if isinstance(wrapper, type):
            made.__signature__ = signature(self.function).replace(return_annotation=wrapper)
        return made

    def _blocking(self, find: Function, wrap: Function) -> Function:
        if not iscoroutinefunction(self.function):
            return _here(find, wrap)
        undo = self.undo

        def verb(self: "Blocking", /, *args: object, **keywords: object) -> object:
            run = partial(find(self._subject), *args, **keywords)
            take_back = None if undo is None else partial(undo, self._subject)
            return wrap(self._wait(run, take_back), self._kernel)

        return verb

    def _asyncio(self, find: Function, wrap: Function) -> Function:
        is_async, undo = iscoroutinefunction(self.function), self.undo

        def verb(self: "Asyncio", /, *args: object, **keywords: object) -> object:
            run = partial(find(self._subject), *args, **keywords)

            async def begin() -> object:
                take_back = None if undo is None else partial(undo, self._subject)
                result = await self._wait(
                    run if is_async else partial(_as_coroutine, run), take_back
                )
                return wrap(result, self._kernel)

            return VerbCall(self._variable, verb.__qualname__, begin)

        return as_async(verb)


class DirectRow(Row):
    """A verb that needs no loop, and returns at once in every thread."""

    def _blocking(self, find: Function, wrap: Function) -> Function:
        return _here(find, wrap)

    _asyncio = _blocking


def _here(find: Function, wrap: Function) -> Function:
    def verb(self: "Facade", /, *args: object, **keywords: object) -> object:
        return wrap(find(self._subject)(*args, **keywords), self._kernel)

    return verb


def as_async(function: Function) -> Function:
    """The function, marked as async: FastAPI and `unittest` look at the function, and not at its
    result, to decide whether to await it.
    """
    if sys.version_info >= (3, 12):
        from inspect import markcoroutinefunction  # noqa: PLC0415

        return markcoroutinefunction(function)
    # As `asyncio.coroutine` did. A node imports asyncio in any case, since structlog does.
    from asyncio import coroutines  # noqa: PLC0415

    vars(function)["_is_coroutine"] = vars(coroutines)["_is_coroutine"]
    return function


async def _as_coroutine(function: Callable[[], R]) -> R:
    return function()


def _text_of(subject: type, name: str) -> str | None:
    """The documentation of a property; None if the value is an attribute of the instance."""
    found = getattr(subject, name, None)
    return found.__doc__ if isinstance(found, property) else None


def _unchanged(result: R, _kernel: object) -> R:
    return result


def _finder(function: Function) -> Function:
    """A function that finds the verb of a subject: its method, as a subclass may have redefined it,
    or a function of a module that takes the subject.
    """
    name = function.__name__
    if function.__qualname__ == name:
        return partial(partial, function)
    return lambda subject: getattr(subject, name)


# -- types: the descriptors that type checkers see in place of the derived attributes -------------


class Verb(Row, Generic[P, R]):
    """A verb that blocks, or is awaited."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, facade: None, owner: object) -> "Verb[P, R]": ...
        @overload
        def __get__(self, facade: "Blocking", owner: object) -> Callable[P, R]: ...
        @overload
        def __get__(
            self, facade: "Asyncio", owner: object
        ) -> Callable[P, Coroutine[Any, Any, R]]: ...
        def __get__(self, facade: object, owner: object) -> object: ...


class Handle(Row, Generic[P, B, A]):
    """A verb that blocks, or is awaited, and returns a handle for the kind of the facade."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, facade: None, owner: object) -> "Handle[P, B, A]": ...
        @overload
        def __get__(self, facade: "Blocking", owner: object) -> Callable[P, B]: ...
        @overload
        def __get__(
            self, facade: "Asyncio", owner: object
        ) -> Callable[P, Coroutine[Any, Any, A]]: ...
        def __get__(self, facade: object, owner: object) -> object: ...


class Direct(DirectRow, Generic[P, B, A]):
    """A verb that returns at once, with a result for the kind of the facade."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, facade: None, owner: object) -> "Direct[P, B, A]": ...
        @overload
        def __get__(self, facade: "Blocking", owner: object) -> Callable[P, B]: ...
        @overload
        def __get__(self, facade: "Asyncio", owner: object) -> Callable[P, A]: ...
        def __get__(self, facade: object, owner: object) -> object: ...


class Value(Row, Generic[R]):
    """A value that can be read in every thread."""

    def __init__(self, subject: type, read: Function) -> None:
        super().__init__(read)
        self._of = subject

    def derive(self, cls: "type[Facade]", name: str) -> object:
        """A property with the documentation of the property of the subject."""
        read = self.function
        return property(lambda facade: read(facade._subject), doc=_text_of(self._of, name))

    if TYPE_CHECKING:

        @overload
        def __get__(self, facade: None, owner: object) -> "Value[R]": ...
        @overload
        def __get__(self, facade: "Facade", owner: object) -> R: ...
        def __get__(self, facade: object, owner: object) -> object: ...


@overload
def verb(
    function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], undo: Function | None = None
) -> Verb[P, R]: ...
@overload
def verb(
    function: Callable[Concatenate[Any, P], R], undo: Function | None = None
) -> Verb[P, R]: ...
def verb(function: Function, undo: Function | None = None) -> object:
    """A row for a plain or async method."""
    return Verb(function, undo)


@overload
def handle(
    function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
    undo: Function | None = None,
    *,
    blocking: Callable[[R, Any], B],
    asyncio: Callable[[R, Any], A],
) -> Handle[P, B, A]: ...
@overload
def handle(
    function: Callable[Concatenate[Any, P], R],
    *,
    blocking: Callable[[R, Any], B],
    asyncio: Callable[[R, Any], A],
) -> Handle[P, B, A]: ...
@overload
def handle(
    function: Callable[Concatenate[Any, P], R], *, asyncio: Callable[[Any, Any], A]
) -> Handle[P, R, A]: ...
def handle(function: Function, undo: Function | None = None, **wrappers: Function) -> Any:
    """A row for a method that returns a handle. A handle that works in every thread needs no
    class for blocking facades.
    """
    return Handle(function, undo, **wrappers)


@overload
def direct(
    function: Callable[Concatenate[Any, P], R],
    *,
    blocking: Callable[[R, Any], B],
    asyncio: Callable[[R, Any], A],
) -> Direct[P, B, A]: ...
@overload
def direct(function: Callable[Concatenate[Any, P], R]) -> Direct[P, R, R]: ...
def direct(function: Function, **wrappers: Function) -> object:
    """A row for a plain method that returns at once in every thread."""
    return Direct(function, **wrappers)


def value(subject: type[S], read: Callable[[S], R]) -> Value[R]:
    """A row for a property."""
    return Value(subject, read)


# Methods with overloads: a descriptor would keep the first overload only. So these rows are for a
# single kind of facade, and type checkers take them for its methods.


def plain(
    function: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], R]:
    """A row for a plain method that returns at once, or blocks by itself."""
    return as_method(DirectRow(function))


def blocked(
    function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """A row of blocking facades, for an async method."""
    return as_method(Row(function))


def awaited(
    function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A row of asyncio facades, for an async method."""
    return as_method(Row(function))


def as_method(row: Any) -> Function:
    """The row, for type checkers a method."""
    found: Function = row
    return found
