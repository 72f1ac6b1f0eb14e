"""`subclass` and `before`: wrap callbacks of a behaviour; a ``def`` stays ``def``, an ``async def``
stays ``async def``.
"""

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
"""Called with the instance, the name of the callback and its arguments; returns ``GO_ON``, or the
value to return instead.
"""
Around = Callable[[str, Callable[..., Any]], Callable[..., Any]]

GO_ON: Final = object()
"""Returned by a hook: run the original callback."""


def subclass(behaviour: type[B], callbacks: Collection[str], around: Around) -> type[B]:
    """Make a subclass with the same name, whose ``callbacks`` are wrapped by ``around``.

    Raises:
        BehaviourError: ``behaviour`` is no class of behaviours or meta-processes.
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
    """Call ``hook`` before each callback; the callback stays ``def`` or ``async def``."""

    def around(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(original):

            @wraps(original)
            async def async_callback(self: Any, *args: object) -> Any:
                instead = hook(self, name, args)
                return await original(self, *args) if instead is GO_ON else instead

            return async_callback

        @wraps(original)
        def plain_callback(self: Any, *args: object) -> Any:
            instead = hook(self, name, args)
            return original(self, *args) if instead is GO_ON else instead

        return plain_callback

    return around


def message_of(args: tuple[Any, ...]) -> Any:
    """The subject of a callback: the message, request, event or reason; None for ``init`` and
    others without arguments.
    """
    return args[0] if args else None


def _not_default(function: Callable[..., Any]) -> Callable[..., Any]:
    # `wraps` has copied the mark of a do-nothing callback; with it the kernel would skip this
    # function.
    function.__dict__.pop("__is_default__", None)
    return function
