"""`Callbacks`: the callbacks that a behaviour class defines. Inspected once per class, so that no
message pays for it.
"""

import inspect
import sys
from collections.abc import Callable, Container, Mapping
from copy import copy
from types import (
    AsyncGeneratorType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
)
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from ..vocabulary.errors import BadInputError, BehaviourError, CallbackError
from ..vocabulary.text import brief
from ..vocabulary.unmatched import Unmatched

__all__ = [
    "BATCHES",
    "CALLBACKS",
    "META_CALLBACKS",
    "NOTICES_IDLENESS",
    "READING",
    "SERVES_METHODS",
    "BatchRule",
    "Callbacks",
    "check_batches",
    "check_plain",
    "check_waiting",
    "default",
    "diagnostics",
    "own_function",
    "process_of",
    "runs_callbacks",
]

F = TypeVar("F", bound=Callable[..., Any])

CALLBACKS: Final[dict[str, tuple[str, ...]]] = {
    "init": (),
    "post_start": (),
    "post_restart": ("reason",),
    "handle_message": ("message", "sender"),
    "handle_batch": ("messages",),
    "handle_call": ("request", "caller"),
    "handle_response": ("response",),
    "handle_event": ("event",),
    "handle_log": ("record",),
    "handle_inspect": ("*items",),
    "handle_child_exit": ("child", "reason"),
    "handle_idle": (),
    "handle_reload": (),
    "hand_over": (),
    "take_over": ("state",),
    "pre_stop": ("reason",),
    "pre_restart": ("reason",),
    "terminate": ("reason",),
}
"""The callbacks of a behaviour, each with its parameters."""

READING: Final[dict[str, Any]] = {}
"""Keywords for `inspect.signature`, which must not evaluate annotations."""
if sys.version_info >= (3, 14):  # pragma: no cover - each Python version takes a single branch
    import annotationlib

    # From Python 3.14 on, reading annotations evaluates them. That fails for names imported under
    # TYPE_CHECKING.
    READING["annotation_format"] = annotationlib.Format.FORWARDREF


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
"""The callbacks of a meta-process, each with its parameters."""


BATCHES: Final = "__collects_batches__"
"""The mark of the ``handle_message`` of a class that handles its messages in batches."""
NOTICES_IDLENESS: Final = "__notices_idleness__"
SERVES_METHODS: Final = "__serves_methods__"
"""The attributes in which a wrapped callback keeps the function inside: that of an actor which
notices when it is idle, and that of an actor with exposed methods.
"""


@runtime_checkable
class BatchRule(Protocol):
    """How an actor collects its messages: `ergo_py.pipelines.Batch`, which is in a room above."""

    batch: int
    within: float


_RUNS_CALLBACKS: Final[dict[CodeType, str]] = {}


def runs_callbacks(function: F, attribute: str = "meta") -> F:
    """Mark a kernel function that calls callbacks. Its first argument must be their process, or an
    object that names it in an attribute: the parts of a meta-process have the attribute ``meta``.

    The watchdog looks for these functions on the loop's stack. Make it the outermost decorator:
    others may replace the code object.
    """
    code: CodeType = function.__code__
    _RUNS_CALLBACKS[code] = attribute
    return function


def process_of(frame: FrameType) -> Any:
    """The process or meta-process for which a marked function runs a callback in this frame; None
    for any other function.
    """
    code = frame.f_code
    if code not in _RUNS_CALLBACKS:
        return None
    first = frame.f_locals[code.co_varnames[0]]
    return getattr(first, _RUNS_CALLBACKS[code], first)


def default(function: F) -> F:
    """Mark the empty default of a callback, so that the kernel can tell which callbacks a class
    overrides.
    """
    setattr(function, "__is_default__", True)  # noqa: B010 - no type checker knows the attribute
    return function


def own_function(callback: object) -> object:
    """The function that a class of the program or its base class has written for a callback."""
    callback = getattr(callback, NOTICES_IDLENESS, callback)
    return getattr(callback, SERVES_METHODS, callback)


class Callbacks:
    """The callbacks that a class defines, and the coroutine functions among them."""

    __slots__ = (
        "answers_at_once",
        "any_async",
        "asynchronous",
        "behaviour",
        "defined",
        "has_start_hooks",
        "has_stop_hooks",
        "suspects",
        "supervises",
        "takes_asker",
        "unmatched",
    )

    def __init__(
        self, cls: type[Any], callbacks: Mapping[str, tuple[str, ...]] = CALLBACKS
    ) -> None:
        self.behaviour: str = cls.__qualname__
        self.defined: frozenset[str]
        self.asynchronous: frozenset[str]
        self.takes_asker: bool = False
        """Whether ``handle_inspect`` has the optional parameter ``asker``."""
        defined, asynchronous = set(), set()
        for name, parameters in callbacks.items():
            function = getattr(cls, name, None)
            if function is None or getattr(function, "__is_default__", False):
                continue
            taken = _check_signature(cls, name, function, parameters)
            if name == "handle_inspect":
                self.takes_asker = "asker" in taken
            _check_runs(cls, name, function)
            defined.add(name)
            if inspect.iscoroutinefunction(function):
                asynchronous.add(name)
        self.defined = frozenset(defined)
        self.suspects: Mapping[str, str] = {}
        """Methods that are no callbacks and look like misspelled ones, with the callbacks that may
        be meant.
        """
        self.unmatched: Unmatched | None = None
        """Judges messages that the ``match`` in ``handle_message`` may not know."""
        self.asynchronous = frozenset(asynchronous)
        self.answers_at_once: bool = "handle_call" in defined - asynchronous
        """Whether ``handle_call`` is plain, so that a call can be served in the caller's task."""
        self.has_start_hooks: bool = bool(defined & {"post_start", "post_restart"})
        self.has_stop_hooks: bool = bool(defined & {"pre_stop", "pre_restart"})
        # An async init alone does not count: it runs in the spawner's task. A supervisor counts in
        # any case: the init of its children runs in its callbacks, and may sleep.
        self.supervises: bool = getattr(cls, "is_supervisor", False)
        self.any_async: bool = bool(self.asynchronous - {"init"}) or self.supervises

    def shown_as(self, behaviour: str) -> "Callbacks":
        """A copy with another text for the behaviour."""
        changed = copy(self)
        changed.behaviour = behaviour
        return changed

    def suspect(self, names: Mapping[str, str]) -> None:
        """Note methods that look like misspelled callbacks."""
        self.suspects = names

    def judge_by(self, unmatched: Unmatched | None) -> None:
        """Have each new type of message judged, if the class needs it."""
        self.unmatched = unmatched

    def with_asynchronous(self, names: frozenset[str]) -> "Callbacks":
        """A copy in which these callbacks count as coroutine functions."""
        changed = copy(self)
        changed.asynchronous |= names
        changed.answers_at_once &= "handle_call" not in names
        changed.any_async = True
        return changed


def _check_runs(cls: type[Any], name: str, function: object) -> None:
    """Refuse a generator function: a call creates a generator, and its body never runs."""
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise BehaviourError(
            f"{cls.__qualname__}.{name} is a generator, because there is a `yield` in it; it "
            "would never run",
            function,
            f"`def {name}(…)` or `async def {name}(…)` without `yield`; to let others run, `await "
            "trio.sleep(0)`",
        )


def check_batches(cls: type[Any], handles_batches: bool) -> None:
    """Refuse a class that has only a part of what batches need, or a second callback for its
    messages.

    Raises:
        BehaviourError: it does.
    """
    rule: object = getattr(cls, "batch", None)
    has_rule = isinstance(rule, BatchRule)
    if handles_batches and not has_rule:
        raise BehaviourError(
            f"{cls.__qualname__}.batch, beside its handle_batch",
            rule,
            "`batch = Batch(100, within=0.01)`, from ergo_py.pipelines: at most 100 messages at "
            "once, and at most 0.01 seconds to wait for them",
        )
    if has_rule and not handles_batches:
        raise BehaviourError(
            f"{cls.__qualname__}.batch",
            rule,
            "`def handle_batch(self, messages)` beside it, which gets the messages; or no `batch`",
        )
    if handles_batches and not hasattr(cls.handle_message, BATCHES):
        raise BehaviourError(
            f"{cls.__qualname__}.handle_message, beside its handle_batch",
            own_function(cls.handle_message),
            "handle_batch alone, which gets all messages, a single message as a list of one; or "
            "handle_message, without `batch`",
        )


def _is_plain_method(
    cls: type[Any], name: str, function: object, parameters: tuple[str, ...]
) -> bool:
    """Whether a callback is a method with as many parameters as it gets arguments, as most are.
    Each node looks at each of its classes, and a signature takes many times as long.
    """
    found = next((each.__dict__[name] for each in cls.__mro__ if name in each.__dict__), None)
    # A static method and a function in a wrapper show another function than the class has.
    if found is not function or type(found) is not FunctionType or found.__dict__:
        return False
    code = found.__code__
    if code.co_kwonlyargcount:
        return False
    if parameters == ("*items",):
        return code.co_argcount == 1 and bool(code.co_flags & inspect.CO_VARARGS)
    return code.co_argcount == 1 + len(parameters)


def _check_signature(
    cls: type[Any], name: str, function: object, parameters: tuple[str, ...]
) -> Container[str]:
    """Check that a callback can be called with its parameters. Returns the names of a callback that
    may have more.
    """
    if _is_plain_method(cls, name, function, parameters):
        return ()
    wanted = f"def {name}({', '.join(('self', *parameters))})"
    if not callable(function):
        raise BehaviourError(f"{cls.__qualname__}.{name}", function, f"a method: {wanted}")
    try:
        signature = inspect.signature(function, **READING)
    except (TypeError, ValueError):  # a function written in C has no signature to check
        return ()
    positional: list[object] = (
        [] if isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod) else [None]
    )
    # "*items" means any number of arguments, including none.
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
    return signature.parameters


def check_plain(process: Any, name: str, result: object) -> None:
    """Raise if a plain callback of a process or meta-process returned a coroutine, another
    awaitable or a generator: its work would never run.

    The reply to a call may be any value except a coroutine, since no other code could await it.
    """
    if result is None:
        return
    callback = f"{process.callbacks.behaviour}.{name}"
    kind = type(result)  # not isinstance(), which asks a lazy proxy for its `__class__`
    if type(result) is CoroutineType:
        result.close()
        raise CallbackError(
            f"{callback} is a plain `def` but returned a coroutine; write `async def {name}`"
        )
    if name.startswith("handle_call"):
        return
    if kind in (GeneratorType, AsyncGeneratorType) or hasattr(kind, "__await__"):
        raise CallbackError(
            f"{callback} is a plain `def` but returned {kind.__qualname__}, which would "
            f"never run; write `async def {name}`, and `await` it there"
        )


def diagnostics(process: Any, answer: Any) -> dict[str, str]:
    """The result of ``handle_inspect``, as strings.

    Raises:
        CallbackError: it is no dict.
    """
    try:
        items = dict(answer).items()
    except (TypeError, ValueError):
        raise CallbackError(
            f"{process.callbacks.behaviour}.handle_inspect returned {brief(answer, 60)}; it must "
            f'return a dict of strings, such as {{"state": "open"}}'
        ) from None
    return {str(key): str(value) for key, value in items}


def check_waiting(given: object) -> None:
    """Raise unless ``given`` is a coroutine."""
    if not isinstance(given, CoroutineType):
        raise BadInputError(
            "wait_for(waiting)",
            given,
            "the coroutine of an async verb: `self.wait_for(self.call(to, request))`",
        )
