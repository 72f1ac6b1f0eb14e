# The mistakes are on purpose, and type checkers see them.
# pyright: reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false
# pyright: reportUnusedCoroutine=false, reportUnusedExpression=false, reportCallIssue=false
# pyright: reportIncompatibleVariableOverride=false, reportArgumentType=false
# pyright: reportAssignmentType=false, reportIndexIssue=false, reportSelfClsParameterName=false

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from ergo_py import Actor, MetaProcess, StateMachine, Supervisor
from ergo_py._core.tables.callbacks import CALLBACKS, META_CALLBACKS, Callbacks
from ergo_py._core.tables.class_mistakes import check_names, misspelled
from ergo_py.errors import BehaviourError

# -- names of the framework ------------------------------------------------------------------------


class InInit(Actor):
    def __init__(self, stop: bool) -> None:
        self.stop = stop  # type: ignore[method-assign, assignment]


class InSend(Actor):
    def init(self) -> None:
        self.send = None  # type: ignore[method-assign, assignment]


class InCallback(Actor):
    async def handle_message(self, message: object, sender: object) -> None:
        if message:
            self.count, self.call = 5, [message]  # type: ignore[method-assign, assignment]


class InInnerFunction(Actor):
    def init(self) -> None:
        def later() -> None:
            self.link = None  # type: ignore[method-assign, assignment]

        later()


class InMixin:
    def set_up(me: Any) -> None:  # noqa: N805 - the first argument may have any name
        me.publish = 5


class WithMixin(InMixin, Actor):  # type: ignore[misc]
    """Inherits the mistake."""


@dataclass
class InDataclass(Actor):
    monitor: str  # type: ignore[assignment]


class InProperty(Actor):
    def init(self) -> None:
        self.pid = 5  # type: ignore[misc, assignment]


class InStateMachine(StateMachine):
    def opened(self, message: object, sender: object) -> None:
        self.become = "closed"  # type: ignore[method-assign, assignment]


class InMeta(MetaProcess):
    def start(self) -> None:
        self.request = 5  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize(
    "cls, method, name, line",
    [
        (InInit, "InInit.__init__", "stop", "self.stop = stop"),
        (InSend, "InSend.init", "send", "self.send = None"),
        (InCallback, "InCallback.handle_message", "call", "self.count, self.call = 5"),
        (InInnerFunction, "InInnerFunction.init", "link", "self.link = None"),
        (WithMixin, "InMixin.set_up", "publish", "me.publish = 5"),
        (InDataclass, "InDataclass.__init__", "monitor", "line"),
        (InProperty, "InProperty.init", "pid", "self.pid = 5"),
        (InStateMachine, "InStateMachine.opened", "become", "self.become"),
        (InMeta, "InMeta.start", "request", "self.request = 5"),
    ],
)
def test_an_assignment_to_a_name_of_the_framework_is_refused_with_its_line(
    cls: type, method: str, name: str, line: str
) -> None:
    known = META_CALLBACKS if issubclass(cls, MetaProcess) else CALLBACKS

    with pytest.raises(BehaviourError) as caught:
        check_names(cls, known)

    text = str(caught.value)
    assert text.startswith(f"{method} replaces `self.{name}` of ergo_py: got '{line}")
    assert text.endswith(f"allowed is another name, such as `self.my_{name}`")


def test_a_value_of_the_class_with_a_name_of_the_framework_is_refused() -> None:
    class Clock(Actor):
        stop = False  # type: ignore[assignment]

    with pytest.raises(
        BehaviourError, match=r"Clock\.stop replaces `self\.stop` of ergo_py: got F"
    ):
        check_names(Clock, CALLBACKS)


def test_a_class_that_splits_its_handlers_learns_the_replacement() -> None:
    class Split(Actor):
        split_handle = True

    with pytest.raises(BehaviourError, match=r"Split\.split_handle: got True.* handle_message;"):
        check_names(Split, CALLBACKS)


class Innocent(Actor):
    """Uses names of the framework, and replaces none of them by accident."""

    other: Any = None
    connection = None

    @property
    def parent(self) -> Any:  # a decision, not an accident
        return None

    def kill(self, to: Any) -> bool:
        return super().kill(to)

    link = partial(print)

    @property
    def monitor(self) -> Any:
        return self._monitor

    @monitor.setter
    def monitor(self, value: Any) -> None:
        self._monitor = value

    def init(self) -> None:
        self.other.stop = True
        self.trap_exit = True
        self.log = self.log.bind(order=5)
        self.connection = None
        self.monitor = 5
        self.handle_message = self.handle_call  # type: ignore[method-assign, assignment]
        stop = self.stop
        stop()

    @staticmethod
    def set_up(other: Any) -> None:
        other.stop = True

    def no_self() -> None:  # type: ignore[misc]
        """A mistake of another kind."""


@pytest.mark.parametrize("cls", [Innocent, Actor, Supervisor, StateMachine])
def test_other_uses_of_names_of_the_framework_are_allowed(cls: type) -> None:
    check_names(cls, CALLBACKS)


# -- misspelled callbacks --------------------------------------------------------------------------


def with_methods(*names: str, base: type = Actor) -> type:
    """A behaviour class with methods of these names."""

    def method(self: Any, *args: Any) -> None:
        """Do nothing."""

    return type("Some", (base,), dict.fromkeys(names, method))


def suspects(cls: type, known: Any = CALLBACKS) -> dict[str, str]:
    return misspelled(cls, known, Callbacks(cls, known).defined)


@pytest.mark.parametrize(
    "name, meant",
    [
        ("handle_mesage", "handle_message"),
        ("handle_messages", "handle_message"),
        ("handle_massage", "handle_message"),
        ("handle_cal", "handle_call"),
        ("handle_inspct", "handle_inspect"),
        ("handle_child_exits", "handle_child_exit"),
        ("terminte", "terminate"),
        ("handleMessage", "handle_message"),
        ("HandleCall", "handle_call"),
        ("Terminate", "terminate"),
        ("handle_info", "handle_message"),
        ("handle_cast", "handle_message"),
        ("on_start", "init or post_start"),
        ("on_receive", "handle_message or handle_call"),
        ("onReceive", "handle_message or handle_call"),
        ("receive", "handle_message or handle_call"),
        ("pre_start", "init"),
        ("post_stop", "terminate"),
    ],
)
def test_a_method_that_looks_like_a_callback_is_a_suspect(name: str, meant: str) -> None:
    assert suspects(with_methods(name)) == {name: meant}


@pytest.mark.parametrize(
    "names",
    [
        ["handle_message", "handle_messages"],
        ["handle_call", "receive"],
        ["post_start", "on_start"],
        ["handle_image", "handle_chat", "handle_data", "handle_starttag"],
        ["_handle_mesage", "__handle_cal__"],
        ["start", "stop", "run", "setup", "initialise", "close", "restart", "update"],
        list(CALLBACKS),
        ["send", "call", "service"],
    ],
    ids=lambda names: names[0],
)
def test_other_methods_are_no_suspects(names: list[str]) -> None:
    cls = with_methods(*(name for name in names if name != "handle_inspect"))

    assert suspects(cls) == {}


def test_a_method_that_the_class_uses_is_no_suspect() -> None:
    class Direct(Actor):
        def init(self) -> None:
            self.handle_calls()

        def handle_calls(self) -> None:
            """Called above."""

    class Inner(Actor):
        def init(self) -> None:
            def later() -> Callable[[], None]:
                return self.handle_calls

            later()

        def handle_calls(self) -> None:
            """Used above."""

    class Inherited(Direct):
        def handle_calls(self) -> None:
            """Called by the class above."""

    assert [suspects(cls) for cls in (Direct, Inner, Inherited)] == [{}, {}, {}]


def test_an_inherited_method_can_be_a_suspect() -> None:
    assert suspects(type("Heir", (with_methods("handle_mesage"),), {})) == {
        "handle_mesage": "handle_message"
    }


def test_callbacks_of_a_meta_process_have_their_own_names() -> None:
    cls = with_methods("handle_respnse", "start", "on_start", "post_start", base=MetaProcess)

    assert suspects(cls, META_CALLBACKS) == {"handle_respnse": "handle_response"}
