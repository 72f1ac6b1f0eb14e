"""`store_callbacks`: lets the callbacks of an entity begin and end its changes."""

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from .._core.tables.pending_calls import Caller
from .._core.vocabulary.errors import BadInputError, BehaviourError, Reject
from .._core.vocabulary.messages import NO_REPLY
from ..entity_handles import Fresh, Once, Post, Retry
from .activations.activation import Activation
from .activations.deliveries import INTERNAL
from .errors import StateTooLargeError, StateTypeError

if TYPE_CHECKING:
    from .entity import Entity

__all__ = ["store_callbacks"]

Callback = Callable[..., Any]


def store_callbacks(cls: "type[Entity[Any]]") -> None:
    """Wrap the callbacks of a class, so that each is stored whole or not at all."""
    if not hasattr(cls.handle_batch, "__is_default__"):
        raise BehaviourError(
            f"{cls.__qualname__}.handle_batch",
            cls.handle_batch,
            "`handle_message`: an entity stores its state after each message; the store itself "
            "writes the changes of several entities at once",
        )
    for name, wrap in (("handle_message", _storing_messages), ("handle_call", _storing_calls)):
        own = getattr(cls, name)
        setattr(cls, name, _as_kind(wrap(own), own))
    looking = cls.handle_inspect
    if not hasattr(looking, "__is_default__") and not hasattr(looking, "__only_reads__"):
        setattr(cls, "handle_inspect", _reading(looking))  # noqa: B010 - mypy knows a method


def _reading(own: Callback) -> Callback:
    """``handle_inspect``, which must leave the state as it is: nothing stores its changes."""

    @wraps(own)
    def handle_inspect(self: "Entity[Any]", *items: str, **keywords: object) -> object:
        told = own(self, *items, **keywords)
        self._activation.check_unchanged()
        return told

    @wraps(own)
    async def handle_inspect_later(self: "Entity[Any]", *items: str, **keywords: object) -> object:
        told = await own(self, *items, **keywords)
        self._activation.check_unchanged()
        return told

    reading = handle_inspect_later if inspect.iscoroutinefunction(own) else handle_inspect
    setattr(reading, "__only_reads__", True)  # noqa: B010 - no type checker knows the attribute
    return reading


def _as_kind(storing: Callback, own: Callback) -> Callback:
    """The wrapped callback, async if the callback is."""
    wrapped = _as_async(storing) if inspect.iscoroutinefunction(own) else storing
    # `wraps` has copied the mark of a default callback, and this is none.
    wrapped.__dict__.pop("__is_default__", None)
    wrapped.__dict__.pop("__wrapped__", None)
    return wrapped


def _as_async(function: Callback) -> Callback:
    @wraps(function)
    async def run(*args: object) -> Any:
        result = function(*args)
        return await result if isinstance(result, CoroutineType) else result

    return run


def _storing_messages(own: Callback) -> Callback:
    @wraps(own)
    def handle_message(self: "Entity[Any]", message: Any, sender: Any) -> Any:
        activation = self._activation
        if activation.changes is not None:
            return own(self, message, sender)  # super().handle_message(…)
        if type(message) in INTERNAL:
            arrived = activation.arrive(message)
            if arrived is None:
                return None
            message, sender = arrived
        else:
            activation.begin()
        return _run(activation, own, self, message, sender)

    return handle_message


def _run(activation: Activation, own: Callback, *args: object) -> Any:
    try:
        result = own(*args)
        if type(result) is CoroutineType:
            return _finish_later(activation, result)
        activation.finish()
    except BaseException:
        activation.crash()
        raise
    return result


async def _finish_later(activation: Activation, running: Coroutine[Any, Any, Any]) -> None:
    try:
        await running
        activation.finish()
    except BaseException:
        activation.crash()
        raise


def _storing_calls(own: Callback) -> Callback:
    @wraps(own)
    def handle_call(self: "Entity[Any]", request: Any, caller: Caller) -> Any:
        activation = self._activation
        if activation.changes is not None:
            return own(self, request, caller)  # super().handle_call(…)
        once = None
        if type(request) is Once:
            once, request = request.id, request.request
            if activation.commands.answer(once, caller):
                return NO_REPLY
        is_fresh = type(request) is Fresh
        if is_fresh:
            request = request.request
        activation.begin()
        if once is not None:
            activation.commands.begin(once, caller)
        result: object = None
        try:
            if is_fresh:
                activation.in_callback().count()
            if type(request) is Post:
                _post(activation, request)
            elif type(request) is Retry:
                result = activation.outbox.retry(activation.in_callback())
            else:
                result = own(self, request, caller)
        except Reject as rejection:
            return _refuse(activation, caller, rejection, once, is_fresh=is_fresh)
        except BaseException:
            activation.crash()
            raise
        if type(result) is CoroutineType:
            return _answer_later(activation, result, caller, once, is_fresh)
        return _end(activation, result, caller, once, is_fresh)

    return handle_call


def _end(
    activation: Activation, value: object, caller: Caller, once: str | None, is_fresh: bool
) -> object:
    """End the callback of a call, and hold its answer back. Returns the result for the kernel."""
    try:
        if once is not None:
            activation.commands.note(once, value)
        activation.finish()
    except (StateTypeError, StateTooLargeError) as error:
        return _refuse(activation, caller, Reject(error), once, is_fresh=is_fresh)
    return NO_REPLY if value is NO_REPLY else activation.answer(caller, value)


def _refuse(
    activation: Activation,
    caller: Caller,
    rejection: Reject,
    once: str | None,
    *,
    is_fresh: bool = False,
) -> object:
    """End the callback of a call with a refusal. Its id stays free."""
    if once is not None:
        activation.commands.forget([once])
        # The command may have been done on another node, if this program was stopped: only a
        # commit shows that it was not.
        is_fresh = is_fresh or activation.keeping.host is not None
    return activation.refuse(caller, rejection, is_fresh=is_fresh)


def _post(activation: Activation, request: Post) -> None:
    """Store a message of a client to the entity itself."""
    try:
        activation.outbox.owe(activation.in_callback(), None, request.message)
    except BadInputError as error:
        raise Reject(error) from None


async def _answer_later(
    activation: Activation,
    running: Coroutine[Any, Any, Any],
    caller: Caller,
    once: str | None,
    is_fresh: bool,
) -> object:
    try:
        result = await running
    except Reject as rejection:
        return _refuse(activation, caller, rejection, once, is_fresh=is_fresh)
    except BaseException:
        activation.crash()
        raise
    return _end(activation, result, caller, once, is_fresh)
