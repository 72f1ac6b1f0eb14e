import copy
import pickle
import types
from collections.abc import Callable, Hashable
from dataclasses import FrozenInstanceError, dataclass, is_dataclass
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NewType,
    Optional,
    Protocol,
    TypeVar,
    Union,
    runtime_checkable,
)

import pytest

from ergo_py import Actor
from ergo_py._core.vocabulary import messages
from ergo_py._core.vocabulary.ids import PID, Ref
from ergo_py._core.vocabulary.messages import (
    NO_REPLY,
    DeadLetter,
    Diverted,
    Down,
    Exit,
    LogRecord,
    NoReply,
    Request,
    Response,
    Why,
    answer_but_not_none,
)
from ergo_py._core.vocabulary.reasons import Killed
from ergo_py.methods import MethodCall

R = TypeVar("R")
S = TypeVar("S")
Number = NewType("Number", int)


class Sized(Protocol):
    """Cannot be checked at run time."""

    size: int


@runtime_checkable
class Closing(Protocol):
    def close(self) -> None: ...


class Plain(Request[int]):
    """Declares a class."""


class Heir(Plain):
    """Inherits the declaration."""


class Addressed(Request[int, Actor]):
    """Declares the class that answers, too."""


class Called(MethodCall[int]):
    """Declares no class that answers."""

    def __init__(self) -> None:
        super().__init__("add", (), {})


class Pair(Request[R], Generic[R, S]):
    """Has parameters of its own."""


class Paired(Pair[int, str]):
    """Declares an answer through a generic class with two parameters."""


class Unknown(Request[R], Generic[R]):
    """Declares nothing that can be known."""


class Filled(Unknown[int]):
    """Declares an answer through another generic class."""


class Undeclared(Request):  # type: ignore[type-arg]  # pyright: ignore[reportMissingTypeArgument]
    """Declares nothing."""


@pytest.mark.parametrize(
    "kind, declared",
    [
        (Plain, "int"),
        (Heir, "int"),
        (Addressed, "int"),
        (Paired, ""),
        (Called, ""),
        (Unknown, ""),
        (Filled, ""),
        (Undeclared, ""),
        (object, ""),
    ],
)
def test_a_request_declares_its_answer_by_its_base_class(kind: type, declared: str) -> None:
    assert answer_but_not_none(kind()) == declared


@pytest.mark.parametrize(
    "answer, excludes_none",
    [
        (int, True),
        (bytes | str, True),
        (list[int], True),
        (dict[str, int | None], True),
        (Callable[[], None], True),
        (Literal["on", "off"], True),
        (Annotated[int, "a number"], True),
        (Number, True),
        (Closing, True),
        (None, False),
        (int | None, False),
        (Optional[int], False),  # noqa: UP045 - the old way to write it
        (Union[None, int, str], False),  # noqa: UP007 - the old way to write it
        (object, False),
        (Any, False),
        (Hashable, False),
        (Literal["on", None], False),
        (Annotated[int | None, "perhaps"], False),
        (Sized, False),
        (R, False),
        ("int", False),
    ],
    ids=repr,
)
def test_the_declared_answer_decides_whether_it_may_be_none(
    answer: Any, excludes_none: bool
) -> None:
    kind = types.new_class("Some", (Request[answer],))

    assert bool(answer_but_not_none(kind())) is excludes_none


PID_1 = PID("demo@localhost", 7, 1)
PID_2 = PID("demo@localhost", 7, 2)

MESSAGES: list[tuple[Any, str]] = [
    (Exit(PID_1, Killed()), "reason"),
    (Down(PID_1, Killed()), "reason"),
    (Diverted(PID_1, "spill", "hello", PID_2), "tag"),
    (DeadLetter(PID_1, PID_2, "Order", Why.FULL, 1.5), "why"),
    (LogRecord("info", "hello", 1.5, "demo@localhost", PID_1), "level"),
    (Response(Ref("demo@localhost", 7, 3), 5, None), "value"),
]


@pytest.mark.parametrize(
    "kind",
    [kind for kind in vars(messages).values() if isinstance(kind, type) and is_dataclass(kind)],
)
def test_every_kind_of_message_is_frozen_and_has_no_room_for_more(kind: Any) -> None:
    assert kind.__dataclass_params__.frozen
    assert "__dict__" not in dir(kind)


@pytest.mark.parametrize("message, attribute", MESSAGES, ids=lambda value: type(value).__name__)
def test_a_message_of_the_kernel_is_an_immutable_value(message: Any, attribute: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(message, attribute, None)

    assert message == copy.copy(message)
    assert not hasattr(message, "__dict__")


def test_log_records_do_not_share_their_fields() -> None:
    one, other = (LogRecord("info", "hello", 1.5, "demo@localhost", PID_1) for _ in range(2))

    assert one.fields == {}
    assert one.fields is not other.fields


def test_no_reply_stays_the_same_object_after_a_copy_or_a_pickle() -> None:
    assert copy.deepcopy(NO_REPLY) is NO_REPLY
    assert pickle.loads(pickle.dumps(NO_REPLY)) is NO_REPLY
    assert list(NoReply) == [NO_REPLY]


def test_a_request_may_be_a_slotted_dataclass() -> None:
    @dataclass(frozen=True, slots=True)
    class Total(Request[int]):
        since: int

    request = Total(5)

    assert request == Total(5)
    assert request.answer_with(7) == 7
    assert not hasattr(request, "__dict__")


def test_a_response_is_a_value_or_an_error_to_raise() -> None:
    ref, error = Ref("demo@localhost", 7, 3), LookupError("no such key")

    with pytest.raises(LookupError) as caught:
        Response(ref, None, error).result()

    assert caught.value is error
    assert Response(ref, None, None).result() is None
    assert Response(ref, 5, None).result() == 5


def test_every_cause_of_a_dead_letter_has_its_own_text() -> None:
    assert len({why.value for why in Why}) == len(Why)
    assert all(len(why.value.split()) > 3 for why in Why)
