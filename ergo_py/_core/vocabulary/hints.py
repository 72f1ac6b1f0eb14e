"""`did_you_mean` and `explain`: hints for people who meet an error for the first time. They are
computed after a failure, never before.
"""

import re
from collections.abc import Iterable
from typing import Final

from .reasons import is_a
from .text import shown, text_of

__all__ = ["ASYNCIO", "MAY_NEED_HINT", "add_note", "did_you_mean", "explain", "near"]

_LONG: Final = 60
"""Most characters of a name that are compared with others."""

ASYNCIO: Final = (
    "hint: this code runs on trio, not on asyncio: write `await trio.sleep(…)` instead of `await "
    'asyncio.sleep(…)`. For asyncio libraries see the page "Coming from asyncio"'
)
_AWAIT: Final = (
    "hint: `await` is missing: an async function returned this coroutine; write `await` before the "
    "call, as in `await node.spawn(…)` or `await self.call(…)`"
)
_NO_AWAIT: Final = (
    "hint: `await` is too much: a plain function returned this value; write the call without "
    "`await`, as in `node.send(…)`"
)
_NO_LOOP: Final = re.compile("no running event loop|no current event loop")
_COROUTINE: Final = re.compile(r"'coroutine'|\bcoroutine object\b")
_NOT_AWAITABLE: Final = re.compile(
    r"(?:object |')(?:NoneType|bool|int|str|dict|PID|Alias|Timer)(?:' object)? can't be "
    r"(?:used in 'await'|awaited)"
)
"""For values that verbs return. Others have other causes, such as missing parentheses."""
_NO_SETTER: Final = re.compile(r"property '(\w+)' of '\w+' object has no setter")
_NOT_CALLABLE: Final = "object is not callable"
MAY_NEED_HINT: Final = (RuntimeError, AttributeError, TypeError)
"""The exceptions of Python that `explain` knows."""


def near(name: object, known: Iterable[str], alike: float = 0.7) -> str | None:
    """The known name that is most like ``name``: at least ``alike``, where 1.0 is the same name, or
    with the same letters in another order, which counts little in a short name.
    """
    if not isinstance(name, str) or len(name) > _LONG:
        return None
    from difflib import get_close_matches  # noqa: PLC0415 - needed only after a mistake

    others = [each for each in known if each != name]
    found = get_close_matches(name, others, 1, alike)
    found += [each for each in others if sorted(each) == sorted(name)]
    return found[0] if found else None


def did_you_mean(name: object, known: Iterable[str], show: str = "{!r}") -> str:
    """The end of a text about an unknown name: ``; did you mean 'counter'?`` or nothing."""
    found = near(name, known)
    return "" if found is None else f"; did you mean {show.format(found)}?"


def explain(error: BaseException, behaviour: object = None) -> None:
    """Add a note to an exception with a text that does not say what to write instead.
    ``behaviour`` is the actor or meta-process whose callback raised it.
    """
    if not is_a(error, MAY_NEED_HINT):
        return  # most errors of a program: a crash does not pay for more
    if type(error).__module__.partition(".")[0] == "ergo_py":
        return  # these explain themselves
    hint = _hint(error, behaviour)
    if hint is not None:
        add_note(error, hint)


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception of a program, once. Without effect if its class takes none."""
    try:
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    except Exception:
        # It is frozen, or has `__notes__` of its own, which are no list.
        return


def _hint(error: BaseException, behaviour: object) -> str | None:
    text = text_of(error)
    if is_a(error, RuntimeError) and _NO_LOOP.search(text):
        return ASYNCIO
    if is_a(error, AttributeError) and (found := _NO_SETTER.search(text)):
        return _taken_name(found[1], behaviour)
    if is_a(error, AttributeError) and error.name and error.obj is behaviour:
        return _skipped_init(error.name, type(behaviour))
    if is_a(error, (TypeError, AttributeError)) and _COROUTINE.search(text):
        return _AWAIT
    if is_a(error, TypeError) and _NOT_AWAITABLE.search(text):
        return _NO_AWAIT
    if is_a(error, TypeError) and _NOT_CALLABLE in text:
        return _overwritten_verb(behaviour)
    return None


def _taken_name(name: str, behaviour: object) -> str | None:
    owner = next((cls for cls in type(behaviour).__mro__ if name in vars(cls)), object)
    if owner.__module__.partition(".")[0] != "ergo_py":
        return None
    return (
        f"hint: ergo_py itself uses the name `self.{name}`; use another, such as `self.my_{name}`"
    )


def _skipped_init(attribute: str, behaviour: type) -> str | None:
    """The ``__init__`` of a base that sets the attribute, and did not run: the class or a base
    before it has another.
    """
    from dis import get_instructions  # noqa: PLC0415 - needed only after a mistake

    codes = [
        (cls.__name__, code)
        for cls in behaviour.__mro__
        if (code := getattr(vars(cls).get("__init__"), "__code__", None)) is not None
    ]
    if not codes or "__init__" in codes[0][1].co_names:
        return None
    for base, code in codes[1:]:
        if any(
            step.opname == "STORE_ATTR" and step.argval == attribute
            for step in get_instructions(code)
        ):
            return (
                f"hint: {base}.__init__ sets `self.{attribute}`, and has not run: write "
                f"`super().__init__(…)` in {codes[0][0]}.__init__"
            )
    return None


def _overwritten_verb(behaviour: object) -> str | None:
    for name, value in getattr(behaviour, "__dict__", {}).items():
        if not name.startswith("_") and not callable(value):
            verb = getattr(type(behaviour), name, None)
            if callable(verb) and verb.__module__.partition(".")[0] == "ergo_py":
                return (
                    f"hint: `self.{name}` is a verb of ergo_py, and the program has replaced it by "
                    f"{shown(value)[:_LONG]}; use another name, such as `self.my_{name}`"
                )
    return None
