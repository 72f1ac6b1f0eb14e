# The mistakes are on purpose, and type checkers see them.
# pyright: reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false
# pyright: reportUnusedCoroutine=false, reportUnusedExpression=false, reportCallIssue=false
# pyright: reportIncompatibleVariableOverride=false, reportArgumentType=false
# pyright: reportAssignmentType=false, reportIndexIssue=false

import asyncio
from typing import Any

import pytest

from ergo_py import Actor
from ergo_py._core.vocabulary.errors import CallbackError
from ergo_py._core.vocabulary.hints import did_you_mean, explain, near

NAMES = ["counter", "worker-1", "worker-2", "log"]


@pytest.mark.parametrize(
    "name, found",
    [
        ("conter", "counter"),
        ("Counter", "counter"),
        ("worker1", "worker-1"),
        ("lgo", "log"),
        ("counter", None),
        ("database", None),
        ("", None),
        ("x" * 100_000, None),
        (None, None),
        (5, None),
    ],
)
def test_the_nearest_name_is_proposed_if_it_is_near(name: object, found: str | None) -> None:
    assert near(name, NAMES) == found


def test_the_end_of_a_text_proposes_a_name_or_is_empty() -> None:
    assert did_you_mean("conter", NAMES) == "; did you mean 'counter'?"
    assert did_you_mean("conter", NAMES, "{}") == "; did you mean counter?"
    assert did_you_mean("database", NAMES) == ""


class Leaf(Actor):
    def __init__(self) -> None:
        self.total = 5


def raised(source: str) -> BaseException:
    """The exception that Python itself raises, with its own text."""

    async def work() -> int:
        return 5

    names = {"asyncio": asyncio, "leaf": Leaf(), "coroutine": (made := work())}
    try:
        exec(source, names)
    except Exception as error:
        return error
    finally:
        made.close()
    raise AssertionError(f"{source} raises nothing")


@pytest.mark.parametrize(
    "source, hint",
    [
        ("asyncio.get_running_loop()", "`await trio.sleep(…)`"),
        ("coroutine + 1", "`await` is missing"),
        ("1 + coroutine", "`await` is missing"),
        ("coroutine.total", "`await` is missing"),
        ("a, b = coroutine", "`await` is missing"),
        ("coroutine[0]", "`await` is missing"),
        ("for each in coroutine: pass", "`await` is missing"),
        ("len(coroutine)", "`await` is missing"),
        ("async def wait(): await True\nwait().send(None)", "`await` is too much"),
        ("leaf.pid = 5", "uses the name `self.pid`; use another, such as `self.my_pid`"),
        ("leaf.stop = [5]; leaf.stop()", "`self.stop` is a verb of ergo_py, and the program has"),
    ],
)
def test_an_error_of_python_gets_a_hint_once(source: str, hint: str) -> None:
    error = raised(source)
    leaf = Leaf()
    leaf.stop = [5]  # type: ignore[method-assign, assignment]

    explain(error, leaf)
    explain(error, leaf)

    [note] = error.__notes__
    assert note.startswith("hint: ")
    assert hint in note


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no running event loop"),
        RuntimeError("the loop is not running"),
        TypeError("'int' object is not callable"),
        TypeError("object function can't be used in 'await' expression"),
        TypeError("'list' object can't be awaited"),
        TypeError("the door can't be awaited"),
        AttributeError("property 'total' of 'Leaf' object has no setter"),
        CallbackError("a plain `def` but returned a coroutine object"),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("behaviour", [None, Leaf()], ids=["outside", "in an actor"])
def test_other_errors_get_no_hint(error: BaseException, behaviour: object) -> None:
    explain(error, behaviour)

    assert not hasattr(error, "__notes__")


class Other:
    limit = 7


class Base(Actor):
    def __init__(self) -> None:
        self.total = Other.limit


class Forgets(Base):
    def __init__(self) -> None:
        self.count = 0


class Deep(Forgets):
    def __init__(self) -> None:
        self.size = 0


class Remembers(Base):
    def __init__(self) -> None:
        super().__init__()
        del self.total


@pytest.mark.parametrize(
    "behaviour, attribute, hint",
    [
        (
            Forgets,
            "total",
            "hint: Base.__init__ sets `self.total`, and has not run: write `super().__init__(…)` "
            "in Forgets.__init__",
        ),
        (
            Deep,
            "total",
            "hint: Base.__init__ sets `self.total`, and has not run: write `super().__init__(…)` "
            "in Deep.__init__",
        ),
        (Forgets, "other", None),
        (Forgets, "limit", None),  # read, and not set
        (Remembers, "total", None),
        (Actor, "total", None),
    ],
)
def test_a_missing_call_of_the_init_of_a_base_is_named(
    behaviour: type[Actor], attribute: str, hint: str | None
) -> None:
    actor = behaviour()
    with pytest.raises(AttributeError) as caught:
        getattr(actor, attribute)

    explain(caught.value, actor)

    assert getattr(caught.value, "__notes__", [None]) == [hint]


def test_an_error_with_odd_notes_stays_as_it_is() -> None:
    class Odd(TypeError):
        __notes__: Any = 5

    error = Odd("'coroutine' object")

    explain(error)

    assert error.__notes__ == 5


def test_an_error_that_refuses_notes_stays_as_it_is() -> None:
    class Refusing(TypeError):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    error = Refusing("'coroutine' object")

    explain(error)

    assert not hasattr(error, "__notes__")
