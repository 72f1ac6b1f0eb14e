import gc
import inspect
import re
import traceback
import weakref
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any, cast, get_args

import pytest

from ergo_py._core.vocabulary.errors import NotAllowedError
from ergo_py._core.vocabulary.reasons import (
    Crashed,
    Custom,
    Killed,
    NoNode,
    NoProcess,
    Normal,
    Reason,
    RestartLimit,
    Shutdown,
    Unregistered,
    as_reason,
    error_of,
    is_failure,
)

# Every reason twice, made again each time, with its text and whether a transient child that ended
# so should come back.
REASONS: list[tuple[Callable[[], Reason], str, bool]] = [
    (Normal, "normal", False),
    (Shutdown, "shutdown", False),
    (lambda: Shutdown("node is stopping"), "shutdown: node is stopping", False),
    (Killed, "killed", True),
    (NoProcess, "no such process", True),
    (lambda: NoNode("other@host"), "no connection to node other@host", True),
    (Unregistered, "unregistered", True),
    (lambda: Custom(("quota", 5)), "('quota', 5)", True),
    (lambda: Crashed(ValueError("five")), "crashed: ValueError: five", True),
    (lambda: Crashed(ValueError()), "crashed: ValueError", True),
    (
        lambda: RestartLimit("db", 3, 5.0, Killed()),
        "more than 3 restarts in 5 s; the last child was 'db': killed",
        True,
    ),
]


@pytest.mark.parametrize("make, text, failure", REASONS)
def test_a_reason_is_a_value_with_a_text(
    make: Callable[[], Reason], text: str, failure: bool
) -> None:
    one, other = make(), make()

    assert one == other
    assert hash(one) == hash(other)
    assert str(one) == text
    assert is_failure(one) is failure


def test_no_reason_equals_another() -> None:
    reasons = [make() for make, _, _ in REASONS]

    assert len(set(reasons)) == len(reasons)


@pytest.mark.parametrize("reason", [Normal(), Shutdown("why"), Killed(), NoNode("n"), Custom(5)])
def test_a_reason_cannot_be_changed(reason: Reason) -> None:
    with pytest.raises((AttributeError, TypeError)):
        setattr(reason, "detail", "another")  # noqa: B010 - a checker would refuse the plain assignment

    assert reason == copy(reason)


def test_as_reason_makes_a_reason_of_a_users_value() -> None:
    error = ValueError("five")
    kept = Shutdown("mine")

    assert as_reason(kept) is kept
    assert as_reason("enough") == Custom("enough")
    assert as_reason(None) == Custom(None)
    crashed = as_reason(error)
    assert isinstance(crashed, Crashed)
    assert crashed.error is error


def test_the_first_error_is_found_below_any_number_of_supervisors() -> None:
    error = ValueError("five")
    inner = RestartLimit("db", 3, 5.0, Crashed(error))

    assert error_of(Crashed(error)) is error
    assert error_of(RestartLimit("root", 1, 1.0, inner)) is error
    assert error_of(RestartLimit("db", 3, 5.0, Killed())) is None
    assert error_of(Normal()) is None


# -- Crashed ---------------------------------------------------------------------------------------


class Local:
    """Something that only the frame of a failing function holds."""


def fail(witness: list[weakref.ref[Local]], error: BaseException) -> None:
    local = Local()
    witness.append(weakref.ref(local))
    raise error


def fail_from_a_cause(witness: list[weakref.ref[Local]]) -> None:
    try:
        fail(witness, LookupError("the cause"))
    except LookupError as error:
        fail_with(witness, ValueError("the effect"), error)


def fail_with(
    witness: list[weakref.ref[Local]], error: BaseException, cause: BaseException | None
) -> None:
    local = Local()
    witness.append(weakref.ref(local))
    raise error from cause


def fail_in_a_handler(witness: list[weakref.ref[Local]]) -> None:
    try:
        fail(witness, LookupError("the first"))
    except LookupError:
        fail(witness, ValueError("the second"))


def fail_hiding_a_chain(witness: list[weakref.ref[Local]]) -> None:
    try:
        fail_in_a_handler(witness)
    except ValueError:
        fail_with(witness, KeyError("the visible"), None)


def fail_with_a_cause_from_elsewhere(witness: list[weakref.ref[Local]]) -> None:
    try:
        fail_in_a_handler(witness)
    except ValueError:
        fail_with(witness, KeyError("the visible"), OSError("from elsewhere"))


def fail_as_a_group(witness: list[weakref.ref[Local]]) -> None:
    parts: list[Exception] = []
    for attempt in (fail_from_a_cause, fail_in_a_handler):
        try:
            attempt(witness)
        except ValueError as error:
            parts.append(error)
    raise ExceptionGroup("several", parts)


def fail_hiding_a_group(witness: list[weakref.ref[Local]]) -> None:
    try:
        fail_as_a_group(witness)
    except ExceptionGroup:
        fail_with(witness, KeyError("the visible"), None)


def fail_in_a_ring(witness: list[weakref.ref[Local]]) -> None:
    try:
        fail_in_a_handler(witness)
    except ValueError as error:
        if error.__context__ is not None:
            error.__context__.__context__ = error
        raise


FAILURES = [
    fail_from_a_cause,
    fail_in_a_handler,
    fail_hiding_a_chain,
    fail_with_a_cause_from_elsewhere,
    fail_as_a_group,
    fail_hiding_a_group,
    fail_in_a_ring,
]


def crash(
    failure: Callable[[list[weakref.ref[Local]]], None],
) -> tuple[Crashed, list[weakref.ref[Local]], str]:
    """A crash, the values in its frames, and the text that Python itself would have printed."""
    witness: list[weakref.ref[Local]] = []
    try:
        failure(witness)
    except Exception as error:
        printed = "".join(traceback.format_exception(error))
        return Crashed(error), witness, printed
    raise AssertionError("it did not fail")


@pytest.mark.parametrize("failure", FAILURES)
def test_a_crash_frees_the_frames_of_all_errors_it_refers_to(
    failure: Callable[[list[weakref.ref[Local]]], None],
) -> None:
    reason, witness, _ = crash(failure)

    gc.collect()

    assert witness
    assert [ref() for ref in witness] == [None] * len(witness)
    assert reason.error.__traceback__ is None


def test_a_crash_frees_the_frames_of_an_error_that_refuses_assignments() -> None:
    class Refusing(AttributeError):
        def __setattr__(self, name: str, value: object) -> None:
            raise TypeError(name)

    with pytest.raises(Refusing) as caught:
        raise Refusing("no such thing", name="thing", obj=Local())

    reason = Crashed(caught.value)

    assert isinstance(reason.error, Refusing)
    assert (reason.error.__traceback__, reason.error.obj) == (None, None)
    assert "raise Refusing" in reason.traceback


def test_a_crash_in_a_module_with_a_number_as_its_name_keeps_its_lines() -> None:
    with pytest.raises(ValueError, match="odd") as caught:
        exec("raise ValueError('odd')", {"__name__": 7})

    reason = Crashed(caught.value)

    assert "<string>" in reason.traceback
    assert "ValueError: odd" in reason.traceback


@pytest.mark.parametrize("failure", FAILURES)
def test_a_crash_keeps_every_line_of_the_traceback_that_python_prints(
    failure: Callable[[list[weakref.ref[Local]]], None],
) -> None:
    reason, _, printed = crash(failure)

    kept = [line.strip() for line in reason.traceback.splitlines()]

    # A group is printed by Python as a tree drawn with bars and pluses; the words are the same.
    # Carets are not kept.
    wanted = [line.lstrip(" |+-") for line in printed.splitlines()]
    for line in wanted:
        if line.startswith(("File ", "raise ", "Traceback ")):
            assert line in kept
    for text in (
        "the cause",
        "the effect",
        "the first",
        "the second",
        "the visible",
        "from elsewhere",
        "several",
    ):
        assert (text in reason.traceback) == (text in printed)


def test_a_traceback_names_the_cause_before_the_effect() -> None:
    reason, _, _ = crash(fail_from_a_cause)

    cause, joint, effect = (
        reason.traceback.index(text)
        for text in (
            "LookupError: the cause",
            "The above exception was the direct cause",
            "ValueError: the effect",
        )
    )

    assert cause < joint < effect


def test_a_traceback_names_the_handled_error_before_the_error_raised_meanwhile() -> None:
    reason, _, _ = crash(fail_in_a_handler)

    first, joint, second = (
        reason.traceback.index(text)
        for text in (
            "LookupError: the first",
            "During handling of the above exception",
            "ValueError: the second",
        )
    )

    assert first < joint < second


def test_the_traceback_of_a_group_names_each_of_its_parts() -> None:
    reason, _, _ = crash(fail_as_a_group)

    assert reason.traceback.count("An exception in the ExceptionGroup:") == 2
    assert reason.traceback.endswith("ExceptionGroup: several (2 sub-exceptions)\n")


def test_a_traceback_ends_with_the_notes_of_the_error() -> None:
    error = ValueError("five")
    error.add_note("while counting")

    assert Crashed(error).traceback == "ValueError: five\nwhile counting\n"


def test_a_frame_without_a_source_is_named_without_its_line() -> None:
    scope: dict[str, Callable[[], None]] = {}
    exec(compile("def nowhere():\n    raise ValueError('five')", "<nowhere>", "exec"), scope)
    with pytest.raises(ValueError, match="five") as caught:
        scope["nowhere"]()

    reason = Crashed(caught.value)

    assert reason.traceback.splitlines()[-2:] == [
        '  File "<nowhere>", line 2, in nowhere',
        "ValueError: five",
    ]


def test_an_attribute_error_releases_the_object_that_lacks_the_attribute() -> None:
    local = Local()
    witness = weakref.ref(local)
    error = AttributeError("no attribute 'missing'", name="missing", obj=local)

    reason = Crashed(error)
    del local
    gc.collect()

    assert witness() is None
    assert str(reason) == "crashed: AttributeError: no attribute 'missing'"


def test_crashes_are_equal_if_their_errors_look_alike() -> None:
    one = Crashed(ValueError("five"))

    assert one == Crashed(one.error)
    assert one == Crashed(ValueError("five"))
    assert one != Crashed(ValueError("six"))
    assert one != Crashed(LookupError("five"))
    assert one != Custom("crashed: ValueError: five")
    assert repr(one) == "Crashed(ValueError('five'))"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_that_cannot_be_printed_is_a_valid_reason() -> None:
    one, other = Crashed(Unprintable()), Crashed(Unprintable())

    assert one == other
    assert hash(one) == hash(other)
    assert str(one) == "crashed: Unprintable: <its __str__ raised>"
    assert one.traceback == f"{__name__}.Unprintable: <its __str__ raised>\n"


@pytest.mark.parametrize("kind", get_args(Reason), ids=lambda kind: kind.__name__)
def test_a_reason_is_matched_by_the_positions_of_its_constructor(kind: type[Any]) -> None:
    parameters = tuple(inspect.signature(kind).parameters)

    assert kind.__match_args__ == parameters


def test_a_crash_is_matched_with_its_error() -> None:
    error = ValueError("five")

    match Crashed(error):
        case Crashed(ValueError() as found):
            assert found is error
        case other:
            pytest.fail(f"not matched: {other}")


def test_a_users_reason_that_cannot_be_printed_is_a_valid_reason() -> None:
    class Unspeakable(Exception):
        def __repr__(self) -> str:
            raise RuntimeError("no words")

        __str__ = __repr__

    assert str(Custom(Unspeakable())) == "<its __str__ raised>"
    assert repr(Custom(Unspeakable())) == "Custom(detail=<Unspeakable: its __repr__ raised>)"
    assert repr(Crashed(Unspeakable())) == "Crashed(<Unspeakable: its __repr__ raised>)"
    assert repr(Custom(5)) == "Custom(detail=5)"


class OddNotes(Exception):
    def __init__(self, notes: Any) -> None:
        super().__init__("odd")
        self.__notes__ = notes


class Speechless:
    def __str__(self) -> str:
        raise SystemExit

    __repr__ = __str__


@pytest.mark.parametrize(
    "notes, shown",
    [
        (["one", "two"], "one\ntwo\n"),
        (("one",), "one\n"),
        ("one", "'one'\n"),
        (7, "7\n"),
        (None, "None\n"),
        (Speechless(), "<its __notes__ cannot be shown>\n"),
        ([Speechless()], "<its __notes__ cannot be shown>\n"),
    ],
    ids=["list", "tuple", "text", "number", "nothing", "unprintable", "unprintable inside"],
)
def test_notes_of_any_kind_are_shown(notes: Any, shown: str) -> None:
    assert Crashed(OddNotes(notes)).traceback == f"{__name__}.OddNotes: odd\n{shown}"


# -- frames of the framework -----------------------------------------------------------------------


def function_of(module: str, source: str) -> Callable[..., Any]:
    """A function ``run`` that counts as one of ``module``."""
    scope: dict[str, Any] = {"__name__": module}
    exec(compile(source, f"<{module}>", "exec"), scope)
    return cast(Callable[..., Any], scope["run"])


def crash_in(*modules: str, error: BaseException | None = None) -> Crashed:
    """A crash in a function of the last module, which the functions of the others call in order."""
    given = ValueError("five") if error is None else error
    inner = function_of(modules[-1], "def run(given):\n    raise given")
    for module in reversed(modules[:-1]):
        outer = function_of(module, "def run(inner, given):\n    inner(given)")
        inner = partial(outer, inner)
    with pytest.raises(type(given)) as caught:
        inner(given)
    # Without the frame of this function.
    frames = caught.value.__traceback__
    assert frames is not None
    return Crashed(caught.value.with_traceback(frames.tb_next))


def modules_in(text: str) -> list[str]:
    return re.findall(r'File "<([\w.]+)>"', text)


@pytest.mark.parametrize(
    "modules, shown",
    [
        (["ergo_py._core.loop", "shop"], ["shop"]),
        (["ergo_py._core.loop", "shop", "json.decoder"], ["shop", "json.decoder"]),
        (["trio._core._run", "outcome._impl", "shop", "ergo_py._core.verbs"], ["shop"]),
        (["trio_shop", "ergo_py_shop"], ["trio_shop", "ergo_py_shop"]),
        (["ergo_py._core.loop", "trio._core"], ["ergo_py._core.loop", "trio._core"]),
        (["ergo_py._core.loop", "ergo_py.shell.demo.plant"], ["ergo_py.shell.demo.plant"]),
    ],
)
def test_a_traceback_shows_the_frames_of_the_program_first(
    modules: list[str], shown: list[str]
) -> None:
    reason = crash_in(*modules)

    assert modules_in(reason.traceback) == shown
    assert modules_in(reason.full_traceback) == modules
    assert reason.traceback.endswith("\nValueError: five\n")


def test_every_crash_shows_the_lines_of_the_package_at_which_it_happened() -> None:
    source = "def serve(callback, again):\n    if again:\n        callback()\n    callback()\n"
    names: dict[str, Any] = {"__name__": "ergo_py._core.lines"}
    exec(compile(source, "<ergo_py._core.lines>", "exec"), names)

    def crash(again: bool) -> Crashed:
        with pytest.raises(ZeroDivisionError) as caught:
            names["serve"](lambda: 1 // 0, again)
        return Crashed(caught.value)

    found = [crash(again).full_traceback for again in (True, False, True)]

    lines = [re.findall(r'"<ergo_py._core.lines>", line (\d+)', text) for text in found]
    assert lines == [["3"], ["4"], ["3"]]


def test_an_error_that_the_framework_raised_by_itself_has_no_frames() -> None:
    reason = crash_in("ergo_py._core.loop", "ergo_py._core.verbs", error=NotAllowedError("no"))

    assert reason.traceback == "ergo_py.NotAllowedError: no\n"
    assert modules_in(reason.full_traceback) == ["ergo_py._core.loop", "ergo_py._core.verbs"]


def test_a_cause_without_a_frame_of_the_program_is_only_named() -> None:
    cause = crash_in("ergo_py._core.loop", error=OSError("in use")).error
    error = ValueError("five")
    error.__cause__ = cause
    cause.__traceback__ = None

    reason = crash_in("ergo_py._core.loop", "shop", error=error)

    assert modules_in(reason.traceback) == ["shop"]
    assert reason.traceback.startswith("OSError: in use\n\nThe above exception was the direct")


def test_an_environment_variable_shows_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = crash_in("ergo_py._core.loop", "shop")

    monkeypatch.setenv("ERGO_FULL_TRACEBACKS", "1")

    assert reason.traceback == reason.full_traceback
    assert modules_in(reason.traceback) == ["ergo_py._core.loop", "shop"]


def test_the_place_of_a_crash_is_its_traceback_without_the_error() -> None:
    error = ValueError("five")
    error.add_note("while counting")

    reason = crash_in("ergo_py._core.loop", "shop", error=error)

    assert reason.where() == (
        'Traceback (most recent call last):\n  File "<shop>", line 2, in run\n'
    )
    assert reason.traceback == reason.where() + "ValueError: five\nwhile counting\n"
