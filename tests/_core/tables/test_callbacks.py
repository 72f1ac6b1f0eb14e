import functools
import sys
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import trio

from ergo_py import PID, Actor, open_node
from ergo_py._core.tables.callbacks import CALLBACKS, META_CALLBACKS, Callbacks, default
from ergo_py._core.vocabulary.errors import BehaviourError
from tests.support import running_node

EVERY = [(CALLBACKS, name) for name in CALLBACKS] + [
    (META_CALLBACKS, name) for name in META_CALLBACKS
]


def plain(self: object, *args: object) -> None:
    """A callback that takes any arguments."""


async def coloured(self: object, *args: object) -> None:
    """The same, as an async function."""


def behaviour(**attributes: object) -> type[Any]:
    return type("Counter", (), attributes)


@pytest.mark.parametrize("table, name", EVERY)
def test_a_callback_is_known_with_its_colour(table: dict[str, tuple[str, ...]], name: str) -> None:
    waits, waits_not = (
        Callbacks(behaviour(**{name: function}), table) for function in (coloured, plain)
    )

    assert waits.defined == waits_not.defined == {name}
    assert waits.asynchronous == {name}
    assert waits_not.asynchronous == frozenset()


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_default_does_not_count(name: str) -> None:
    class Other(Actor):
        pass

    setattr(Other, name, plain)
    callbacks = Callbacks(Other)

    assert Callbacks(Actor).defined == frozenset()
    assert callbacks.defined == {name}


def test_default_returns_the_same_function() -> None:
    def handle_message(self: object, message: object, sender: object) -> str:
        return "unhandled"

    marked = default(handle_message)

    assert marked is handle_message
    assert Callbacks(behaviour(handle_message=marked)).defined == frozenset()


def test_any_async_does_not_count_init() -> None:
    assert not Callbacks(behaviour(init=coloured, handle_message=plain)).any_async
    assert Callbacks(behaviour(init=plain, terminate=coloured)).any_async


def test_the_behaviour_is_the_name_of_the_class() -> None:
    assert Callbacks(behaviour()).behaviour == "Counter"


def test_a_callback_set_to_none_is_not_defined() -> None:
    assert Callbacks(behaviour(handle_message=None)).defined == frozenset()


# -- signatures ------------------------------------------------------------------------------------


def wraps(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: object) -> object:
        return await function(*args)

    return wrapper


class Opaque:
    """A callable with a signature that cannot be read, as some written in C."""

    __signature__ = 5

    def __call__(self, *args: object) -> None: ...


RIGHT: list[tuple[str, object]] = [
    ("init", lambda self: None),
    ("init", lambda self, retries=3: None),
    ("handle_message", lambda self, message, sender: None),
    ("handle_message", lambda self, _m, _s, *rest, **more: None),
    ("handle_message", lambda self, *anything: None),
    ("handle_message", staticmethod(lambda message, sender: None)),
    ("handle_message", classmethod(lambda cls, message, sender: None)),
    ("handle_message", functools.partialmethod(lambda self, label, message, sender: None, "label")),
    ("handle_message", wraps(coloured)),
    ("handle_message", Opaque()),
    ("handle_inspect", lambda self, *items: {}),
    ("handle_inspect", lambda self, first="all", *items: {}),
    ("terminate", lambda self, reason: None),
]


@pytest.mark.parametrize("name, function", RIGHT)
def test_a_callback_that_can_be_called_is_taken(name: str, function: object) -> None:
    assert Callbacks(behaviour(**{name: function})).defined == {name}


WRONG: list[tuple[str, object, str]] = [
    ("init", lambda: None, "def init(self)"),
    ("init", lambda self, start: None, "def init(self)"),
    ("handle_message", lambda self, message: None, "def handle_message(self, message, sender)"),
    ("handle_message", lambda message, sender: None, "def handle_message(self, message, sender)"),
    (
        "handle_message",
        lambda self, message, sender, extra: None,
        "def handle_message(self, message, sender)",
    ),
    (
        "handle_message",
        lambda self, message, sender, *, loud: None,
        "def handle_message(self, message, sender)",
    ),
    (
        "handle_message",
        lambda self, *, message, sender: None,
        "def handle_message(self, message, sender)",
    ),
    (
        "handle_message",
        staticmethod(lambda sender: None),
        "def handle_message(self, message, sender)",
    ),
    (
        "handle_message",
        staticmethod(lambda me, message, sender: None),
        "def handle_message(self, message, sender)",
    ),
    (
        "handle_message",
        functools.wraps(lambda self, message: None)(lambda self, message, sender: None),
        "def handle_message(self, message, sender)",
    ),
    (
        "handle_message",
        classmethod(lambda cls, sender: None),
        "def handle_message(self, message, sender)",
    ),
    ("handle_call", lambda self, request: None, "def handle_call(self, request, caller)"),
    ("handle_event", lambda self: None, "def handle_event(self, event)"),
    ("handle_log", lambda self: None, "def handle_log(self, record)"),
    ("handle_inspect", lambda self: {}, "def handle_inspect(self, *items)"),
    ("handle_inspect", lambda self, item: {}, "def handle_inspect(self, *items)"),
    ("handle_inspect", lambda self, first, *items: {}, "def handle_inspect(self, *items)"),
    ("handle_inspect", lambda self, item=None: {}, "def handle_inspect(self, *items)"),
    ("handle_child_exit", lambda self, child: None, "def handle_child_exit(self, child, reason)"),
    ("terminate", lambda self: None, "def terminate(self, reason)"),
    ("handle_message", 5, "a method: def handle_message(self, message, sender)"),
]


@pytest.mark.parametrize("name, function, wanted", WRONG)
def test_a_callback_that_cannot_be_called_is_refused_with_the_right_signature(
    name: str, function: object, wanted: str
) -> None:
    with pytest.raises(BehaviourError) as caught:
        Callbacks(behaviour(**{name: function}))

    assert f"Counter.{name}" in str(caught.value)
    assert wanted in str(caught.value)


@pytest.mark.parametrize("table, name", EVERY)
def test_every_callback_with_too_many_parameters_is_refused(
    table: dict[str, tuple[str, ...]], name: str
) -> None:
    def greedy(self: object, a: object, b: object, c: object, d: object, *rest: object) -> None: ...

    with pytest.raises(BehaviourError) as caught:
        Callbacks(behaviour(**{name: greedy}), table)

    assert f"Counter.{name}" in str(caught.value)
    assert f"`def {name}({', '.join(('self', *table[name]))})`, plain or async" in str(caught.value)


@pytest.mark.skipif(
    sys.version_info < (3, 14), reason="annotations are evaluated when the function is made"
)
def test_an_annotation_that_exists_only_for_type_checkers_is_accepted() -> None:
    scope: dict[str, Any] = {}
    exec("def handle_message(self, message: OnlyForCheckers, sender: object): ...", scope)

    callbacks = Callbacks(behaviour(handle_message=scope["handle_message"]))

    assert callbacks.defined == {"handle_message"}


# -- once ------------------------------------------------------------------------------------------


class Noticed:
    """A method that counts how often it is looked up on its class, and not on an instance."""

    def __init__(self) -> None:
        self.times = 0

    def __get__(self, instance: Any, owner: type[Any]) -> Callable[..., Any]:
        self.times += instance is None
        return self.handle if instance is None else functools.partial(self.handle, instance)

    @staticmethod
    def handle(_actor: Actor, message: trio.Event, _sender: PID) -> None:
        message.set()


async def test_the_callbacks_of_a_class_are_read_once_for_all_its_processes() -> None:
    noticed = Noticed()
    cls: type[Actor] = type("Counter", (Actor,), {"handle_message": noticed})
    with trio.fail_after(30):
        async with open_node(watchdog=None, log_output="none") as node:
            for _ in range(3):
                pid = await node.spawn(cls)
                done = trio.Event()
                node.send(pid, done)
                await done.wait()

    assert noticed.times == 1


async def test_a_class_with_a_callback_that_cannot_be_called_is_not_started() -> None:
    cls: type[Actor] = type("Counter", (Actor,), {"handle_message": lambda self: None})
    with trio.fail_after(30):
        async with open_node(watchdog=None, log_output="none") as node:
            with pytest.raises(BehaviourError):
                await node.spawn(cls, name="counter")

            assert node.processes() == []
            assert node.whereis("counter") is None


async def yields_and_waits(self: object, *args: object) -> AsyncIterator[None]:
    yield


def yields(self: object, *args: object) -> Iterator[None]:
    yield


@pytest.mark.parametrize("table, name", EVERY)
@pytest.mark.parametrize(
    "function",
    [
        yields_and_waits,
        yields,
        types.coroutine(yields),
        staticmethod(functools.partial(yields, None)),
    ],
    ids=["async generator", "generator", "types.coroutine", "partial"],
)
def test_a_callback_with_a_yield_in_it_is_refused(
    table: dict[str, tuple[str, ...]], name: str, function: Callable[..., Any]
) -> None:
    with pytest.raises(
        BehaviourError, match=rf"Counter.{name} is a generator, because there is a `yield` in it"
    ):
        Callbacks(behaviour(**{name: function}), table)


async def test_an_actor_with_a_generator_as_handler_is_refused_when_it_is_spawned() -> None:
    class Yields(Actor):
        async def handle_message(self, message: Any, sender: PID) -> Any:
            yield

    async with running_node() as node:
        with pytest.raises(BehaviourError, match=r"to let others run, `await trio.sleep\(0\)`"):
            await node.spawn(Yields)
        assert node.processes() == []
