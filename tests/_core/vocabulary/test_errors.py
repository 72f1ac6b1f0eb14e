import inspect
import re
from typing import Any

import pytest

from ergo_py._core.verbs.common import check_error
from ergo_py._core.vocabulary import errors
from ergo_py._core.vocabulary.errors import (
    ApplicationError,
    ApplicationNeededError,
    ApplicationStartError,
    ApplicationUnknownError,
    BadInputError,
    BehaviourError,
    CallbackError,
    CallError,
    CallFailedError,
    CallTimeoutError,
    ChildBusyError,
    ChildDisabledError,
    ChildEnabledError,
    ChildError,
    ChildExistsError,
    ChildNotRunningError,
    ChildRunningError,
    ChildUnknownError,
    ControlSocketError,
    DeadlockError,
    ErgoError,
    EscalationError,
    EventTakenError,
    EventUnknownError,
    InitError,
    InitTimeoutError,
    KeyTakenError,
    MailboxFullError,
    MethodUnknownError,
    NameTakenError,
    NameUnknownError,
    NodeStoppedError,
    NotAllowedError,
    ProcessUnknownError,
    Reject,
    RelationExistsError,
    RelationUnknownError,
    SendError,
    ServiceBusyError,
    ServiceError,
    ServiceGoneError,
    ServiceTimeoutError,
    SpawnError,
    TargetDownError,
    TargetTypeError,
    TaskEndedError,
    TaskError,
    TaskTimeoutError,
    TooManyChildrenError,
    TooManyProcessesError,
    TooManyReadersError,
    TooManyTasksError,
    UnhandledCallError,
)
from ergo_py._core.vocabulary.errors.base import Kinds
from ergo_py._core.vocabulary.ids import PID
from ergo_py._core.vocabulary.reasons import Crashed, Killed, RestartLimit

ME = PID("demo@localhost", 7, 1)
OTHER = PID("demo@localhost", 7, 2)


class Order:
    """A message and a request."""


ORDER = Order()
PROBLEM = OSError("disk on fire")


# -- the tree --------------------------------------------------------------------------------------

Tree = dict[str, tuple[str | None, str | None]]
"""Each class: its parent in the tree, and the builtin it also is."""


def drawn_tree() -> Tree:
    tree: Tree = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"(    [ │├└─]*)([A-Z]\w+)(?: \((\w+)\))?(?: |$)", line)
        if not match:
            continue
        column, name = len(match[1]), match[2]
        while above and above[-1][0] >= column:
            above.pop()
        tree[name] = (above[-1][1] if above else None, match[3])
        above.append((column, name))
    return tree


def real_tree() -> Tree:
    tree: Tree = {}
    for name, cls in inspect.getmembers(errors, inspect.isclass):
        # The kinds of an error show themselves as it.
        if not issubclass(cls, BaseException) or cls.__name__ != name:
            continue
        ours = [base.__name__ for base in cls.__bases__ if hasattr(errors, base.__name__)]
        builtin = [
            base.__name__
            for base in cls.__bases__
            if base.__module__ == "builtins" and base is not Exception
        ]
        assert len(ours) <= 1
        assert len(builtin) <= 1
        tree[name] = (ours[0] if ours else None, builtin[0] if builtin else None)
    return tree


def test_the_drawing_is_the_tree() -> None:
    assert drawn_tree() == real_tree()


def test_every_error_is_public() -> None:
    kinds = {name for name in errors.__all__ if getattr(errors, name).__name__ != name}

    assert set(errors.__all__) - kinds == real_tree().keys()
    assert all(issubclass(getattr(errors, name), Kinds) for name in kinds)


def test_every_error_but_reject_is_an_ergo_error() -> None:
    strays = [name for name in errors.__all__ if not issubclass(getattr(errors, name), ErgoError)]

    assert strays == ["Reject"]


# -- texts -----------------------------------------------------------------------------------------


# An error, the facts it carries, and the words without which its text would not help.
class Handle:
    """Has the address of its process, and is none."""

    pid = PID("node@host", 1, 1)


HANDLE = Handle()


def cases() -> list[tuple[BaseException, dict[str, Any], list[str]]]:
    """An error of each class, with its attributes and words of its text."""
    return [
        (
            BadInputError("mailbox_size", -5, "a whole number from 1 up"),
            {"what": "mailbox_size", "given": -5, "allowed": "a whole number from 1 up"},
            ["mailbox_size", "got -5", "allowed is a whole number from 1 up"],
        ),
        (
            BehaviourError(
                "spawn(behaviour)", 5, "a subclass of Actor, such as `spawn(Counter, 5)`"
            ),
            {"what": "spawn(behaviour)", "given": 5},
            ["got 5", "`spawn(Counter, 5)`"],
        ),
        (
            TargetTypeError(5.5),
            {"what": "target", "given": 5.5},
            ["got 5.5", "a PID, an Alias, a Name, a Key, or a str"],
        ),
        (
            TargetTypeError(HANDLE),
            {"what": "target", "given": HANDLE},
            ["a PID, an Alias", "write its `.pid`"],
        ),
        (
            InitError("Counter", PROBLEM),
            {"behaviour": "Counter", "error": PROBLEM},
            ["Counter", "OSError: disk on fire"],
        ),
        (
            InitTimeoutError("Counter", 0.25),
            {"behaviour": "Counter", "timeout": 0.25},
            ["Counter", "0.25 s", "larger init_timeout"],
        ),
        (
            TooManyProcessesError(10),
            {"limit": 10},
            ["max_processes=10", "open_node(max_processes=…)"],
        ),
        (
            TooManyReadersError(10),
            {"limit": 10},
            ["max_reader_threads=10", "open_node(max_reader_threads=…)"],
        ),
        (
            NameTakenError("db", OTHER),
            {"name": "db", "holder": OTHER},
            ["'db'", str(OTHER), "free again once"],
        ),
        (NameUnknownError("db"), {"name": "db"}, ["'db'", "no process on this node"]),
        (
            EventTakenError("prices", OTHER),
            {"name": "prices", "producer": OTHER},
            ["'prices'", str(OTHER), "free again once"],
        ),
        (
            EventUnknownError("prices"),
            {"name": "prices"},
            ["no event 'prices'", "register_event('prices')"],
        ),
        (ProcessUnknownError(OTHER), {"target": OTHER}, ["no process", repr(OTHER)]),
        (
            RelationExistsError("link", OTHER),
            {"target": OTHER},
            ["already", "link", repr(OTHER), "a second link is not needed"],
        ),
        (RelationUnknownError("monitor", OTHER), {"target": OTHER}, ["no monitor", repr(OTHER)]),
        (SendError("lost", OTHER, ORDER), {"target": OTHER, "message": ORDER}, ["lost"]),
        (
            MailboxFullError(OTHER, ORDER, 3),
            {"target": OTHER, "message": ORDER, "limit": 3},
            [
                repr(OTHER),
                "mailbox_size=3",
                "send later",
                "`await send_wait(...)`",
                "another overflow",
            ],
        ),
        (
            MailboxFullError(OTHER, ORDER, 3, "max_waiting"),
            {"target": OTHER, "message": ORDER, "limit": 3, "option": "max_waiting"},
            [repr(OTHER), "max_waiting=3", "call later", "a larger max_waiting="],
        ),
        (CallError("lost", OTHER, ORDER), {"target": OTHER, "request": ORDER}, ["lost"]),
        (
            TargetDownError(OTHER, ORDER, Killed()),
            {"target": OTHER, "request": ORDER, "reason": Killed(), "__cause__": None},
            [repr(OTHER), "cannot answer", "killed"],
        ),
        (
            CallFailedError(OTHER, ORDER, Crashed(PROBLEM)),
            {"target": OTHER, "request": ORDER, "reason": Crashed(PROBLEM), "__cause__": PROBLEM},
            [repr(OTHER), "failed on Order", "continues", "OSError: disk on fire"],
        ),
        (
            CallTimeoutError(OTHER, ORDER, 1.5),
            {"target": OTHER, "request": ORDER, "timeout": 1.5},
            [repr(OTHER), "did not answer Order", "1.5 s"],
        ),
        (
            DeadlockError(OTHER, ORDER, [ME, OTHER, ME]),
            {"target": OTHER, "request": ORDER, "ring": (ME, OTHER, ME)},
            [f"{ME} → {OTHER} → {ME}", "send a message instead", "NO_REPLY"],
        ),
        (
            UnhandledCallError(OTHER, ORDER, "Counter"),
            {"target": OTHER, "request": ORDER},
            ["Counter", repr(OTHER), "no handle_call", "Order"],
        ),
        (ChildError("refused", "db"), {"child": "db"}, ["refused"]),
        (
            ChildUnknownError("db", ["a", "b"]),
            {"child": "db"},
            ["no child 'db'", "there are 'a', 'b'"],
        ),
        (ChildUnknownError("db"), {"child": "db"}, ["no child 'db'", "there is none"]),
        (TooManyChildrenError("db", 3), {"child": "db", "limit": 3}, ["max_children=3", "'db'"]),
        (ChildExistsError("db"), {"child": "db"}, ["'db' already", "remove_child('db')"]),
        (
            ChildRunningError("db", OTHER),
            {"child": "db", "pid": OTHER},
            ["runs already", str(OTHER), "restart_child('db')"],
        ),
        (
            ChildNotRunningError("db", "completed"),
            {"child": "db"},
            ["'db' does not run", "it is completed"],
        ),
        (ChildDisabledError("db"), {"child": "db"}, ["disabled", "enable_child('db')"]),
        (ChildEnabledError("db"), {"child": "db"}, ["not disabled", "start_child('db')"]),
        (
            ChildBusyError("db", "stopping"),
            {"child": "db"},
            ["'db' is stopping", "another operation", "try again"],
        ),
        (ServiceError("lost", "db", ORDER), {"service": "db", "message": ORDER}, ["lost"]),
        (
            ServiceGoneError("db", ORDER, Crashed(PROBLEM)),
            {"service": "db", "message": ORDER, "reason": Crashed(PROBLEM), "__cause__": PROBLEM},
            ["'db' is gone", "OSError: disk on fire"],
        ),
        (
            ServiceBusyError("db", ORDER, 3),
            {"service": "db", "limit": 3},
            ["'db'", "max_waiters=3", "try later"],
        ),
        (
            ServiceTimeoutError("db", ORDER, 1.5),
            {"service": "db", "timeout": 1.5},
            ["'db'", "within 1.5 s"],
        ),
        (ApplicationError("lost", "web"), {"application": "web"}, ["lost"]),
        (
            ApplicationUnknownError("wbe", ["db", "web"]),
            {"application": "wbe", "known": ("db", "web")},
            ["'wbe'", "there are: db, web"],
        ),
        (
            ApplicationStartError("web", PROBLEM, ["db"]),
            {"application": "web", "error": PROBLEM, "undone": ("db",)},
            ["'web' could not be started", "disk on fire", "stopped again", "db"],
        ),
        (
            ApplicationNeededError("db", ["web"]),
            {"application": "db", "needed_by": ("web",)},
            ["web run and depend on 'db'", "stop_applications('web', 'db')"],
        ),
        (
            EscalationError("<Root <PID 1>>", RestartLimit("db", 3, 5.0, Crashed(PROBLEM))),
            {"__cause__": PROBLEM},
            [
                "<Root <PID 1>> gave up",
                "more than 3 restarts in 5 s",
                "'db'",
                "OSError: disk on fire",
            ],
        ),
        (
            NodeStoppedError("demo@localhost"),
            {"node": "demo@localhost"},
            ["demo@localhost has stopped;", "open_node(...)"],
        ),
        (
            NodeStoppedError("demo@localhost", "it starts nothing"),
            {"node": "demo@localhost"},
            ["demo@localhost has stopped: it starts nothing;", "open_node(...)"],
        ),
        (
            KeyTakenError("users", ("user", 1), OTHER),
            {"registry": "users", "key": ("user", 1), "holder": OTHER},
            ["('user', 1)", "'users'", str(OTHER), "once that process has terminated"],
        ),
        (
            MethodUnknownError("Counter", "ad", ["add", "total"]),
            {"behaviour": "Counter", "method": "ad", "known": ("add", "total")},
            ["Counter exposes no method 'ad'", "it exposes add, total"],
        ),
        (TaskError("fetch", "it has no result"), {"name": "fetch"}, ["it has no result"]),
        (
            TaskTimeoutError("fetch", 2.0),
            {"name": "fetch", "timeout": 2.0},
            ["the task fetch took more than 2 s"],
        ),
        (
            TaskEndedError("fetch", Killed()),
            {"name": "fetch", "reason": Killed()},
            ["the task fetch ended before its function returned: killed"],
        ),
        (
            TooManyTasksError("fetch", 5),
            {"name": "fetch", "limit": 5},
            ["the task fetch was not started", "TaskSupervisor(max_tasks=…)"],
        ),
        (SpawnError("killed during its init"), {}, ["killed during its init"]),
        (NotAllowedError("not here; do it in init"), {}, ["not here; do it in init"]),
        (ControlSocketError("set XDG_RUNTIME_DIR"), {}, ["set XDG_RUNTIME_DIR"]),
        (CallbackError("write `async def init`"), {}, ["write `async def init`"]),
        (Reject(PROBLEM), {"error": PROBLEM}, ["disk on fire"]),
    ]


def test_an_error_has_its_facts_as_attributes_and_in_its_text() -> None:
    for error, facts, words in cases():
        carried = {name: getattr(error, name) for name in facts}

        assert carried == facts
        assert [word for word in words if word not in str(error)] == []


def test_the_table_above_leaves_no_error_out() -> None:
    covered = {type(error).__name__ for error, _, _ in cases()}

    assert real_tree().keys() - covered <= {"ErgoError"}


def test_no_error_prints_the_content_of_a_message() -> None:
    secret = "the password is swordfish"

    texts = [
        str(MailboxFullError(OTHER, secret, 3)),
        str(TargetDownError(OTHER, secret, Killed())),
        str(CallTimeoutError(OTHER, secret, 1.5)),
        str(DeadlockError(OTHER, secret, [ME, OTHER])),
        str(UnhandledCallError(OTHER, secret, "Counter")),
        str(CallFailedError(OTHER, secret, Crashed(PROBLEM))),
        str(ServiceGoneError("db", secret, Killed())),
        str(ServiceBusyError("db", secret, 3)),
        str(ServiceTimeoutError("db", secret, 1.5)),
    ]

    assert not [text for text in texts if "swordfish" in text]


def test_a_value_with_a_long_text_is_cut_short() -> None:
    error = BadInputError("name", "x" * 10_000, "a short one")

    assert len(str(error)) < 200
    assert error.given == "x" * 10_000


def test_the_error_of_a_crashed_callee_is_the_cause_and_its_traceback_a_note() -> None:
    try:
        raise PROBLEM
    except OSError as problem:
        reason = Crashed(problem)

    error = TargetDownError(OTHER, ORDER, reason)

    assert error.__cause__ is PROBLEM
    [note] = error.__notes__
    assert note.startswith(f"in {OTHER!r}:\nTraceback (most recent call last):\n")
    assert note.endswith("    raise PROBLEM")


def crash_in_a_chain(length: int, *, wraps: bool) -> Exception:
    """The error of the last of so many callers, each of which fails with the callee before it."""
    error: Exception = ValueError("deep")
    for number in range(length):
        try:
            try:
                raise error
            except TargetDownError as down:
                if wraps:
                    raise RuntimeError("wrapped") from down
                raise
        except Exception as failure:
            error = TargetDownError(PID("node", 1, number), "request", Crashed(failure))
    return error


@pytest.mark.parametrize("wraps", [False, True])
def test_the_traceback_of_a_chain_of_callers_grows_with_its_length(wraps: bool) -> None:
    errors = [crash_in_a_chain(length, wraps=wraps) for length in (3, 5, 15)]

    # Each tells its own frames, and its cause those before: no error has the notes of another.
    notes = [re.sub("[0-9]+", "", "".join(each.__notes__)) for each in errors]
    assert notes[0] == notes[1] == notes[2]
    assert "raise error" in notes[2]
    short, long = (len(Crashed(each).traceback.splitlines()) for each in errors[1:])
    assert long < 4 * short


@pytest.mark.parametrize("given", ["no such key", LookupError, None])
def test_a_call_can_be_refused_with_an_exception_only(given: Any) -> None:
    with pytest.raises(BadInputError) as caught:
        Reject(given)

    assert caught.value.given is given
    assert "Reject(ValueError('why'))" in str(caught.value)


@pytest.mark.parametrize("given", [StopIteration(1), StopAsyncIteration()])
def test_a_call_cannot_be_refused_with_an_exception_that_no_coroutine_raises(given: Any) -> None:
    with pytest.raises(BadInputError, match="turns StopIteration into a RuntimeError"):
        Reject(given)

    with pytest.raises(BadInputError, match="turns StopIteration into a RuntimeError"):
        check_error(given)
