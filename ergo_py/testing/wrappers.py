"""Subclasses that do something before a callback of the original, in the colour that it has."""

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, Final, TypeVar

from .._core.tables.callbacks import CALLBACKS, META_CALLBACKS
from .._core.verbs.behaviour import Behaviour
from .._core.verbs.meta_process import MetaProcess
from .._core.vocabulary.errors import BadInputError, BehaviourError

__all__ = ["GO_ON", "Around", "Hook", "before", "message_of", "subclass"]

B = TypeVar("B", bound=Behaviour | MetaProcess)

Hook = Callable[[Any, str, tuple[Any, ...]], object]
"""Called with the instance, the name of the callback and its arguments: ``GO_ON``, or what to
return in its place.
"""
Around = Callable[[str, Callable[..., Any]], Callable[..., Any]]

GO_ON: Final = object()
"""Said by a hook: let the original callback run."""


def subclass(behaviour: type[B], callbacks: Collection[str], around: Around) -> type[B]:
    """A subclass with the same name, whose ``callbacks`` are what ``around`` makes of the original
    ones.

    Raises:
        BehaviourError: it is no class of behaviours or meta-processes.
        BadInputError: it has no such callback.
    """
    if not (isinstance(behaviour, type) and issubclass(behaviour, Behaviour | MetaProcess)):
        raise BehaviourError(
            "behaviour", behaviour, "a subclass of Actor or of MetaProcess, not an instance"
        )
    known = META_CALLBACKS if issubclass(behaviour, MetaProcess) else CALLBACKS
    namespace: dict[str, Any] = {
        "__module__": behaviour.__module__,
        "__qualname__": behaviour.__qualname__,
    }
    namespace["__doc__"] = behaviour.__doc__
    for name in callbacks:
        original = getattr(behaviour, name, None) if name in known else None
        if original is None:
            raise BadInputError(
                "callbacks", name, f"callbacks of {behaviour.__qualname__}: {', '.join(known)}"
            )
        namespace[name] = _not_default(around(name, original))
    kind: Any = type(behaviour)
    made: type[B] = kind(behaviour.__name__, (behaviour,), namespace)
    return made


def before(hook: Hook) -> Around:
    """Have ``hook`` asked before each callback; the callback keeps its colour."""

    def around(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(original):

            @wraps(original)
            async def async_callback(self: Any, *args: Any) -> Any:
                instead = hook(self, name, args)
                return await original(self, *args) if instead is GO_ON else instead

            return async_callback

        @wraps(original)
        def plain_callback(self: Any, *args: Any) -> Any:
            instead = hook(self, name, args)
            return original(self, *args) if instead is GO_ON else instead

        return plain_callback

    return around


def message_of(name: str, args: tuple[Any, ...]) -> Any:
    """What a callback is about: the message, the request, the event, the reason; None for ``init``
    and its like.
    """
    return args[1] if name.endswith(("_name", "_alias")) else args[0] if args else None


def _not_default(function: Callable[..., Any]) -> Callable[..., Any]:
    # The mark of a do-nothing callback was copied with everything else; the kernel would not call
    # this one.
    function.__dict__.pop("__is_default__", None)
    return function
