"""`check_names`, `check_plain` and `misspelled`: mistakes in the callbacks of a behaviour class,
found once for each class, before its first process starts.
"""

import dis
import linecache
import re
from collections.abc import Container, Iterator, Mapping
from functools import lru_cache
from types import CodeType, FunctionType, MethodDescriptorType
from typing import Any, Final

from ..vocabulary.errors import BehaviourError
from ..vocabulary.hints import near

__all__ = ["check_names", "check_plain", "misspelled"]

_ELSEWHERE: Final[Mapping[str, tuple[str, ...]]] = {
    "handle_cast": ("handle_message",),
    "handle_continue": ("post_start",),
    "handle_down": ("handle_message",),
    "handle_exit": ("handle_message",),
    "handle_info": ("handle_message",),
    "handle_msg": ("handle_message",),
    "on_exit": ("terminate",),
    "on_failure": ("terminate",),
    "on_init": ("init",),
    "on_message": ("handle_message",),
    "on_receive": ("handle_message", "handle_call"),
    "on_start": ("init", "post_start"),
    "on_stop": ("terminate", "pre_stop"),
    "post_stop": ("terminate",),
    "pre_start": ("init",),
    "receive": ("handle_message", "handle_call"),
    "receive_message": ("handle_message",),
}
"""Names of callbacks in other actor libraries, and their counterparts here."""


_ALIKE: Final = 0.88
"""How much the name of a method is like that of a callback, if it is taken for a typing mistake."""


def check_plain(behaviour: str, asynchronous: Container[str]) -> None:
    """Refuse a meta-process with an async callback that the kernel calls from any thread.

    Raises:
        BehaviourError: it has one.
    """
    for name in ("handle_inspect", "unblock"):
        if name in asynchronous:
            raise BehaviourError(
                f"{behaviour}.{name}", f"async def {name}", f"a plain, quick `def {name}`"
            )


def check_names(cls: type[Any], callbacks: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse a class that gives a name of the framework another meaning: ``self.stop = False``
    would replace the verb.

    Raises:
        BehaviourError: it does. The error shows the line.
    """
    own = {name: value for each in _programs_classes(cls) for name, value in vars(each).items()}
    if own.get("split_handle"):
        raise BehaviourError(
            f"{cls.__qualname__}.split_handle",
            own["split_handle"],
            "no such attribute, it has left ergo_py: messages to a name and to an alias go to "
            "handle_message; put into the message what the callback has to tell apart, or spawn "
            "a process for each address",
        )
    taken = _taken_names(_base(cls), frozenset(callbacks))
    for name in sorted(taken & own.keys()):
        # A descriptor, such as a property, is a decision to replace the verb.
        if not callable(own[name]) and not hasattr(type(own[name]), "__get__"):
            raise BehaviourError(
                f"{cls.__qualname__}.{name} replaces `self.{name}` of ergo_py",
                own[name],
                f"another name, such as `my_{name}`",
            )
    for owner, _, function in _functions(cls):
        code = function.__code__
        if not code.co_argcount:
            continue
        for name, line in _assigned(code, taken - own.keys(), code.co_varnames[0]):
            source = linecache.getline(code.co_filename, line).strip()
            raise BehaviourError(
                f"{owner.__qualname__}.{function.__name__} replaces `self.{name}` of ergo_py",
                source or f"line {line} of {code.co_filename}",
                f"another name, such as `self.my_{name}`",
            )


def misspelled(
    cls: type[Any], callbacks: Mapping[str, tuple[str, ...]], defined: frozenset[str]
) -> dict[str, str]:
    """The methods of a class that look like callbacks and are none, each with the callback that
    may be meant.

    A method is no suspect if the class has that callback as well, or if its code uses the method.
    """
    suspects: dict[str, str] = {}
    base = _base(cls)
    for _, name, _ in _functions(cls):
        if name in callbacks or name.startswith("_") or hasattr(base, name):
            continue
        meant = _meant(name, callbacks)
        if meant and not defined.intersection(meant):
            suspects[name] = " or ".join(meant)
    if suspects:
        used = {name for _, _, function in _functions(cls) for name in _names_in(function.__code__)}
        suspects = {name: meant for name, meant in suspects.items() if name not in used}
    return suspects


def _meant(name: str, callbacks: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    # As in Go and Java: HandleMessage, handleMessage.
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if plain in callbacks:
        return (plain,)
    if plain in _ELSEWHERE and "post_start" in callbacks:
        return _ELSEWHERE[plain]
    found = near(plain, callbacks, _ALIKE)
    return () if found is None else (found,)


def _is_framework(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "ergo_py"


def _base(cls: type[Any]) -> type:
    """The class of the framework that a class extends."""
    return next(base for base in cls.__mro__ if _is_framework(base) or base is object)


@lru_cache(maxsize=1000)  # each node looks at the classes that it spawns
def _taken_names(base: type, callbacks: frozenset[str]) -> frozenset[str]:
    """The verbs of a class of the framework, and its properties without a setter. Callbacks may be
    replaced.
    """
    return frozenset(
        name
        for name in dir(base)
        if not name.startswith("_")
        and name not in callbacks
        and (
            # A method descriptor is a verb in the C extension.
            isinstance(value := getattr(base, name), FunctionType | MethodDescriptorType)
            or (isinstance(value, property) and value.fset is None)
        )
    )


def _programs_classes(cls: type[Any]) -> Iterator[type[Any]]:
    return (each for each in cls.__mro__ if each is not object and not _is_framework(each))


def _functions(cls: type[Any]) -> Iterator[tuple[type[Any], str, FunctionType]]:
    """The functions that the classes of the program define, each with its class and name."""
    for each in _programs_classes(cls):
        for name, value in vars(each).items():
            if isinstance(value, FunctionType):
                yield each, name, value


def _assigned(code: CodeType, taken: frozenset[str], me: str) -> Iterator[tuple[str, int]]:
    """The names in ``taken`` that a method assigns to attributes of ``me``, each with its line."""
    if not taken.isdisjoint(code.co_names):
        yield from (each for each in _assignments(code, me) if each[0] in taken)
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and me in constant.co_freevars:
            yield from _assigned(constant, taken, me)


@lru_cache(maxsize=1000)  # each node looks at the classes that it spawns
def _assignments(code: CodeType, me: str) -> tuple[tuple[str, int], ...]:
    """The attributes of ``me`` that a function assigns, each with its line."""
    found: list[tuple[str, int]] = []
    before, line = None, code.co_firstlineno
    for step in dis.get_instructions(code):
        line = (step.positions.lineno if step.positions else None) or line
        if step.opname == "STORE_ATTR" and _loads(before, me):
            found.append((step.argval, line))
        before = step
    return tuple(found)


def _loads(step: dis.Instruction | None, name: str) -> bool:
    """Whether an instruction puts a local variable on top of the stack."""
    if step is None or not step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
        return False
    # From Python 3.13 on, an instruction may load two variables; the second is on top.
    loaded: object = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
    return loaded == name


def _names_in(code: CodeType) -> Iterator[str]:
    """The names that a function uses, and the functions inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
