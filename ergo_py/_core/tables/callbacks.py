"""What a behaviour class can be called for: found out once for each class, so that no message pays
for it.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

from ..vocabulary.errors import BehaviourError

__all__ = ["CALLBACKS", "META_CALLBACKS", "Callbacks", "default", "process_of", "runs_callbacks"]

F = TypeVar("F", bound=Callable[..., Any])

CALLBACKS: Final[dict[str, tuple[str, ...]]] = {
    "init": (),
    "post_start": (),
    "post_restart": ("reason",),
    "handle_message": ("message", "sender"),
    "handle_call": ("request", "caller"),
    "handle_message_name": ("name", "message", "sender"),
    "handle_message_alias": ("alias", "message", "sender"),
    "handle_call_name": ("name", "request", "caller"),
    "handle_call_alias": ("alias", "request", "caller"),
    "handle_event": ("event",),
    "handle_log": ("record",),
    "handle_inspect": ("*items",),
    "handle_child_exit": ("child", "reason"),
    "pre_stop": ("reason",),
    "pre_restart": ("reason",),
    "terminate": ("reason",),
}
"""The callbacks of a behaviour and what each is called with."""

_READING: Final[dict[str, Any]] = {}
if sys.version_info >= (
    3,
    14,
):  # pragma: no cover - the whole of it, since a version takes one way only
    import annotationlib

    # Annotations are evaluated when they are asked for; names imported for type checkers only do
    # not exist then.
    _READING["annotation_format"] = annotationlib.Format.FORWARDREF


META_CALLBACKS: Final[dict[str, tuple[str, ...]]] = {
    "init": (),
    "start": (),
    "handle_message": ("message", "sender"),
    "handle_call": ("request", "caller"),
    "handle_response": ("response",),
    "handle_inspect": ("*items",),
    "terminate": ("reason",),
    "unblock": (),
}
"""The callbacks of a meta-process and what each is called with."""


_RUNS_CALLBACKS: Final[set[CodeType]] = set()


def runs_callbacks(function: F) -> F:
    """Mark a kernel function that calls callbacks; its first argument is the process or
    meta-process they belong to.

    The watchdog looks for these functions on the loop's stack. The outermost decorator: others may
    replace the code.
    """
    code: CodeType = function.__code__
    _RUNS_CALLBACKS.add(code)
    return function


def process_of(frame: FrameType) -> Any:
    """The process or meta-process whose callback a marked function calls in this frame; None for
    any other function.
    """
    code = frame.f_code
    return frame.f_locals[code.co_varnames[0]] if code in _RUNS_CALLBACKS else None


def default(function: F) -> F:
    """Mark the do-nothing version of a callback, so that the kernel knows which ones a class really
    has.
    """
    setattr(function, "__is_default__", True)  # noqa: B010 - no type checker knows the attribute
    return function


class Callbacks:
    """Which callbacks a class defines, and which of them are coroutine functions."""

    __slots__ = (
        "any_async",
        "asynchronous",
        "behaviour",
        "defined",
        "greets",
        "parts",
        "splits",
        "supervises",
    )

    def __init__(
        self, cls: type[Any], callbacks: Mapping[str, tuple[str, ...]] = CALLBACKS
    ) -> None:
        self.behaviour = cls.__qualname__
        self.defined: frozenset[str]
        self.asynchronous: frozenset[str]
        self.splits: bool = getattr(cls, "split_handle", False)
        defined, asynchronous = set(), set()
        for name, parameters in callbacks.items():
            function = getattr(cls, name, None)
            if function is None or getattr(function, "__is_default__", False):
                continue
            _check_signature(cls, name, function, parameters)
            _check_runs(cls, name, function)
            defined.add(name)
            if inspect.iscoroutinefunction(function):
                asynchronous.add(name)
        self.defined = frozenset(defined)
        self.asynchronous = frozenset(asynchronous)
        self.greets = bool(defined & {"post_start", "post_restart"})
        self.parts = bool(defined & {"pre_stop", "pre_restart"})
        # init runs in the spawner's task, so it alone does not make a process one that can be
        # asleep in a callback. A supervisor can: what its children do in their init happens in its
        # callbacks.
        self.supervises: bool = getattr(cls, "is_supervisor", False)
        self.any_async = bool(self.asynchronous - {"init"}) or self.supervises


def _check_runs(cls: type[Any], name: str, function: Any) -> None:
    """Refuse a function with ``yield`` in it: calling it makes a generator, and nothing of its body
    runs.
    """
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise BehaviourError(
            f"{cls.__qualname__}.{name} is a generator, because there is a `yield` in it; it "
            "would never run",
            function,
            f"`def {name}(…)` or `async def {name}(…)` without `yield`; to let others run, `await "
            "trio.sleep(0)`",
        )


def _check_signature(cls: type[Any], name: str, function: Any, parameters: tuple[str, ...]) -> None:
    wanted = f"def {name}({', '.join(('self', *parameters))})"
    if not callable(function):
        raise BehaviourError(f"{cls.__qualname__}.{name}", function, f"a method: {wanted}")
    try:
        signature = inspect.signature(function, **_READING)
    except (
        TypeError,
        ValueError,
    ):  # something written in C: it will say itself what it does not take
        return
    positional: list[object] = (
        [] if isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod) else [None]
    )
    # "*items" stands for any number of arguments, none included.
    variadic = bool(parameters) and parameters[-1].startswith("*")
    try:
        signature.bind(*positional, *(parameters * 2 if variadic else parameters))
        if variadic:
            signature.bind(*positional)
    except TypeError as problem:
        raise BehaviourError(
            f"{cls.__qualname__}.{name}{signature} cannot be called ({problem})",
            signature,
            f"`{wanted}`, plain or async",
        ) from None
