"""Typed methods: `exposed` marks the methods of an actor that others may call, `ask` and `cast`
make the messages that call them.
"""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from types import CoroutineType, MethodType
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, overload

from ._core.tables.callbacks import READING, SERVES_METHODS
from ._core.tables.pending_calls import Caller
from ._core.vocabulary.errors import (
    BadInputError,
    BehaviourError,
    MethodUnknownError,
    NotAllowedError,
    Reject,
)
from ._core.vocabulary.messages import B_contra, R_co, Relay, Request, ServedMessage
from ._core.vocabulary.public_names import show_public_names
from ._core.vocabulary.reasons import is_a

__all__ = ["ask", "cast", "exposed"]

F = TypeVar("F", bound=Callable[..., Any])
B = TypeVar("B")
P = ParamSpec("P")
R = TypeVar("R")

_MARK: Final = "__is_exposed__"
_NAMES: Final = "__exposed_methods__"
_SHAPES: Final = 64
"""Shapes of arguments that are kept for a method. Most methods are called in a single shape."""
_set: Final = object.__setattr__


def exposed(method: F) -> F:
    """Mark a method of an actor as callable from outside, plain or async.

    For example::

        from ergo_py import Actor, Node, ask, exposed, run

        class Counter(Actor):
            def init(self):
                self.total = 0

            @exposed
            def add(self, amount: int, *, twice: bool = False) -> int:
                self.total += 2 * amount if twice else amount
                return self.total

        async def main(node: Node):
            counter = await node.spawn(Counter)
            print(await node.call(counter, ask(Counter.add, 3, twice=True)))

        run(main)  # prints 6

    The method runs as ``handle_call`` and ``handle_message`` do: in sequence with other messages.
    An exception ends the process; ``raise Reject(error)`` refuses the call.

    Raises:
        BehaviourError: it is no function, or a generator, which would never run.
    """
    given = method
    name = getattr(given, "__qualname__", repr(given))
    if not inspect.isfunction(given):
        raise BehaviourError(
            "@exposed", method, "a method: `@exposed` above `def` or `async def`, in a class"
        )
    if inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        raise BehaviourError(
            f"@exposed {name}", method, "a method without `yield`; return a list of the values"
        )
    setattr(given, _MARK, _Exposed(given))
    return method


class _Method:
    """A message that calls a method: its name, and the arguments."""

    __slots__ = ("args", "kwargs", "method")
    __match_args__ = ("method", "args", "kwargs")

    method: str
    """The name of the method."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __init__(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        _set(self, "method", method)
        _set(self, "args", args)
        _set(self, "kwargs", kwargs)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a message cannot be changed: {self!r}")

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Method)
            and type(self) is type(other)
            and (self.method, self.args, self.kwargs) == (other.method, other.args, other.kwargs)
        )

    def __hash__(self) -> int:
        return hash((self.method, self.args, tuple(self.kwargs.items())))

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{key}={value!r}" for key, value in self.kwargs.items())]
        return f"{type(self).__qualname__}({', '.join(given)})"

    def run(self, behaviour: object) -> Any:
        """Call the method of the behaviour.

        Raises:
            MethodUnknownError: its class exposes no such method.
        """
        cls = type(behaviour)
        # Most classes have noted their methods: a look without a call of _exposed_by().
        if self.method not in cls.__dict__.get(_NAMES, ()) and self.method not in _exposed_by(cls):
            raise MethodUnknownError(cls.__qualname__, self.method, sorted(_exposed_by(cls)))
        return getattr(behaviour, self.method)(*self.args, **self.kwargs)


class MethodCall(_Method, Request[R_co, B_contra], Generic[R_co, B_contra]):
    """The request that ``ask`` makes: a call of a method. Logs and traces show it under the name of
    the method, such as ``Counter.add``.
    """

    __slots__ = ()


class MethodCast(_Method, ServedMessage):
    """The message that ``cast`` makes: a call of a method without an answer."""

    __slots__ = ()


@overload
def ask(
    method: Callable[Concatenate[B, P], Coroutine[Any, Any, R]],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> MethodCall[R, B | Relay[B]]: ...
@overload
def ask(
    method: Callable[Concatenate[B, P], R], /, *args: P.args, **kwargs: P.kwargs
) -> MethodCall[R, B | Relay[B]]: ...
def ask(method: Callable[..., Any], /, *args: object, **kwargs: object) -> MethodCall[Any, Any]:
    """Make the request that calls an exposed method.

    Write ``await self.call(counter, ask(Counter.add, 3))``. Type checkers know the arguments and
    the answer. The request is an ordinary message: it goes through ``call``, ``request``, a service
    or a pool, with their timeouts and errors.

    Raises:
        BadInputError: the method is not marked with ``@exposed``, or the arguments do not fit.
    """
    mark = _mark_of("ask", method)
    mark.check("ask", args, kwargs)
    return mark.call(mark.name, args, kwargs)


def cast(
    method: Callable[Concatenate[Any, P], Any], /, *args: P.args, **kwargs: P.kwargs
) -> MethodCast:
    """Make the message that calls an exposed method without an answer.

    Write ``self.send(counter, cast(Counter.add, 3))``. The return value of the method is dropped.

    Raises:
        BadInputError: the method is not marked with ``@exposed``, or the arguments do not fit.
    """
    mark = _mark_of("cast", method)
    mark.check("cast", args, kwargs)
    return mark.cast(mark.name, args, kwargs)


def _mark_of(verb: str, method: object) -> "_Exposed":
    mark = getattr(method, _MARK, None)
    if type(mark) is _Exposed and type(method) is not MethodType:
        return mark
    name = getattr(method, "__qualname__", "Counter.add")
    if isinstance(mark, _Exposed):
        right = (
            f"the method of the class, `{verb}({name}, …)`, since the instance belongs to its "
            "process"
        )
    elif inspect.isroutine(method):
        right = f"a method that other code may call: write `@exposed` above `def {method.__name__}`"
    else:
        use = "await node.call(counter, {})" if verb == "ask" else "node.send(counter, {})"
        right = f"a method of a class: `{use.format(f'{verb}(Counter.add, 3)')}`"
    raise BadInputError(f"{verb}(method)", method, right)


class _Exposed:
    """The mark of an exposed method: the types of its messages, and its signature."""

    __slots__ = ("_method", "_shapes", "_signature", "call", "cast", "name")

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self._signature: inspect.Signature | None = None
        self.name: str = method.__name__
        self._shapes: set[object] = set()
        """The arguments that fit, by their number and names: `bind` of the signature looks at
        nothing else, and takes longer than the rest of a call.
        """
        # Logs show the type of a message and not its content, so the type has the method's name.
        self.call: type[MethodCall[Any, Any]] = _named(MethodCall, method)
        self.cast: type[MethodCast] = _named(MethodCast, method)

    def check(self, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check the arguments where they are given."""
        shape = (len(args), *kwargs) if kwargs else len(args)
        if shape in self._shapes:
            return
        method = self._method
        if self._signature is None:
            self._signature = inspect.signature(method, **READING)
        try:
            self._signature.bind(None, *args, **kwargs)
        except TypeError as problem:
            raise BadInputError(
                f"{verb}({method.__qualname__}, …)",
                (args, kwargs),
                f"the arguments of {method.__qualname__}{self._signature}: {problem}",
            ) from None
        if len(self._shapes) < _SHAPES:
            self._shapes.add(shape)


def _named(base: type[Any], method: Callable[..., Any]) -> type[Any]:
    shown = {"__module__": method.__module__, "__qualname__": method.__qualname__}
    return type(method.__name__, (base,), {"__slots__": (), **shown})


def serve_methods(cls: type[Any]) -> None:
    """Let the callbacks of a class serve calls of its exposed methods. Classes without any keep
    their callbacks.
    """
    names = _exposed_by(cls)
    if not names:
        return
    is_async = any(inspect.iscoroutinefunction(getattr(cls, name)) for name in names)
    for callback, kind, wrap in (
        ("handle_call", MethodCall, _serving_calls),
        ("handle_message", MethodCast, _serving_casts),
    ):
        own = getattr(cls, callback)
        own = getattr(own, SERVES_METHODS, own)
        setattr(cls, callback, wrap(own, is_async or inspect.iscoroutinefunction(own), kind))


def _serving_calls(
    own: Callable[..., Any], is_async: bool, kind: type[_Method]
) -> Callable[..., Any]:
    @wraps(own)
    def handle_call(self: Any, request: Any, caller: Caller) -> object:
        if isinstance(request, kind):
            try:
                return request.run(self)
            except MethodUnknownError as error:
                raise Reject(error) from None
        if isinstance(request, MethodCast):
            raise Reject(NotAllowedError(_wrong_verb("call", request, "ask", "send", "cast")))
        return own(self, request, caller)

    @wraps(own)
    async def handle_call_async(self: Any, request: Any, caller: Caller) -> object:
        result = handle_call(self, request, caller)
        return await result if isinstance(result, CoroutineType) else result

    return _marked(handle_call_async if is_async else handle_call, own)


def _serving_casts(
    own: Callable[..., Any], is_async: bool, kind: type[_Method]
) -> Callable[..., Any]:
    @wraps(own)
    def handle_message(self: Any, message: Any, sender: Any) -> Any:
        if not isinstance(message, kind):
            if not isinstance(message, MethodCall):
                return own(self, message, sender)
            return _refuse(self, message, _sent_call(message))
        try:
            message.run(self)
        except (MethodUnknownError, Reject) as error:
            _refuse(self, message, error)
        return None

    @wraps(own)
    async def handle_message_async(self: Any, message: Any, sender: Any) -> None:
        if not isinstance(message, kind):
            if isinstance(message, MethodCall):
                _refuse(self, message, _sent_call(message))
            elif isinstance(result := own(self, message, sender), CoroutineType):
                await result
            return
        try:
            if isinstance(result := message.run(self), CoroutineType):
                await result
        except (MethodUnknownError, Reject) as error:
            _refuse(self, message, error)

    return _marked(handle_message_async if is_async else handle_message, own)


def _marked(serving: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    setattr(serving, SERVES_METHODS, own)
    # `wraps` has copied the mark of a default callback, and this is none.
    serving.__dict__.pop("__is_default__", None)
    serving.__dict__.pop("__wrapped__", None)
    return serving


def _wrong_verb(verb: str, message: _Method, right: str, other: str, made_by: str) -> str:
    shown = type(message).__qualname__
    return (
        f"`{made_by}({shown}, …)` is for {other}, and not for {verb}: write `{verb}(…, "
        f"{right}({shown}, …))`"
    )


def _sent_call(message: _Method) -> NotAllowedError:
    return NotAllowedError(_wrong_verb("send", message, "cast", "call", "ask"))


def _refuse(behaviour: Any, message: _Method, error: Exception) -> None:
    """Log a message that was refused: there is no caller that could get the error."""
    process = behaviour._process
    if not is_a(error, Reject):
        process.count_unhandled()
    process.log.warning(
        "a cast was refused" if isinstance(message, MethodCast) else "a message was refused",
        message_type=type(message).__qualname__,
        why=str(error.error if is_a(error, Reject) else error),
    )


def _exposed_by(cls: type[Any]) -> frozenset[str]:
    """The names of the methods that a class and its bases expose."""
    found: frozenset[str] | None = vars(cls).get(_NAMES)
    if found is None:
        found = frozenset(
            name
            for base in cls.__mro__
            for name, member in vars(base).items()
            if getattr(member, _MARK, None) is not None
        )
        setattr(cls, _NAMES, found)
    return found


show_public_names(__name__)
