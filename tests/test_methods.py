"""Typed methods: exposed methods serve calls and casts in sequence, and only these do."""

from typing import Any

import pytest
import trio

from ergo_py import (
    Actor,
    BadInputError,
    Caller,
    ChildSpec,
    NotAllowedError,
    Pool,
    PoolSpec,
    Reject,
    Routing,
    StateMachine,
    TargetDownError,
    Threads,
    ask,
    exposed,
)
from ergo_py.errors import BehaviourError, MethodUnknownError, UnhandledCallError
from ergo_py.methods import MethodCall, MethodCast, cast
from ergo_py.state_machine import state
from ergo_py.testing import Alone
from tests.actors import Failed
from tests.support import running_node


class Counter(Actor):
    def __init__(self, start: int = 0, *, step: int = 1) -> None:
        self.total = start
        self.step = step

    @exposed
    def add(self, amount: int, *, twice: bool = False) -> int:
        self.total += (2 if twice else 1) * amount * self.step
        return self.total

    @exposed
    def refuse(self) -> None:
        raise Reject(LookupError("not today"))

    @exposed
    def crash(self) -> None:
        raise Failed

    def hidden(self) -> str:
        return "hidden"


class Waiting(Counter):
    @exposed
    async def add_later(self, amount: int) -> int:
        await trio.lowlevel.checkpoint()
        return self.add(amount)

    @exposed
    async def refuse_later(self) -> None:
        await trio.lowlevel.checkpoint()
        raise Reject(LookupError("not today"))


@pytest.mark.parametrize("cls", [Counter, Waiting])
@pytest.mark.parametrize("options", [{}, {"dispatcher": Threads()}])
async def test_calls_and_casts_run_exposed_methods_in_order(
    cls: type[Counter], options: Any
) -> None:
    async with running_node() as node:
        pid = await node.spawn(cls, 10, **options)

        assert await node.call(pid, ask(Counter.add, 1)) == 11
        node.send(pid, cast(Counter.add, 2, twice=True))
        assert await node.call(pid, ask(Counter.add, 0)) == 15


async def test_an_async_method_is_awaited() -> None:
    async with running_node() as node:
        pid = await node.spawn(Waiting)
        node.send(pid, cast(Waiting.add_later, 4))

        assert await node.call(pid, ask(Waiting.add_later, 5)) == 9


@pytest.mark.parametrize("cls", [Counter, Waiting])
async def test_a_rejection_refuses_a_call_and_leaves_the_process_running(
    cls: type[Counter],
) -> None:
    async with running_node() as node:
        pid = await node.spawn(cls)
        with pytest.raises(LookupError, match="not today"):
            await node.call(pid, ask(Counter.refuse))
        node.send(pid, cast(Counter.refuse))
        if cls is Waiting:
            with pytest.raises(LookupError, match="not today"):
                await node.call(pid, ask(Waiting.refuse_later))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
            node.send(pid, cast(Waiting.refuse_later))

        assert await node.call(pid, ask(Counter.add, 1)) == 1


@pytest.mark.parametrize("cls", [Counter, Waiting])
async def test_an_exception_in_a_method_crashes_the_process(cls: type[Counter]) -> None:
    async with running_node() as node:
        called, sent = await node.spawn(cls), await node.spawn(cls)
        with pytest.raises(TargetDownError) as caught:
            await node.call(called, ask(Counter.crash))
        node.send(sent, cast(Counter.crash))
        reason = await node.wait_ended(sent)

    assert isinstance(caught.value.__cause__, Failed)
    assert "Failed" in str(reason)


async def test_a_subclass_may_replace_an_exposed_method() -> None:
    class Doubled(Counter):
        def add(self, amount: int, *, twice: bool = False) -> int:
            return super().add(2 * amount, twice=twice)

    async with running_node() as node:
        pid = await node.spawn(Doubled)

        assert await node.call(pid, ask(Counter.add, 3)) == 6


async def test_own_callbacks_get_all_other_messages() -> None:
    class Both(Actor):
        def __init__(self, heard: list[Any]) -> None:
            self.heard = heard

        @exposed
        def name(self) -> str:
            return "both"

        def handle_message(self, message: Any, sender: Any) -> Any:
            self.heard.append(message)

        def handle_call(self, request: Any, caller: Caller) -> object:
            return ("own", request)

    class Asynchronous(Both):
        async def handle_call(self, request: Any, caller: Caller) -> object:
            return ("async", request)

        async def handle_message(self, message: Any, sender: Any) -> None:
            self.heard.append(message)

    for cls, kind in ((Both, "own"), (Asynchronous, "async")):
        heard: list[Any] = []
        async with running_node() as node:
            pid = await node.spawn(cls, heard)
            node.send(pid, "hello")
            assert await node.call(pid, ask(Both.name)) == "both"
            assert await node.call(pid, "other") == (kind, "other")
        assert heard == ["hello"]


async def test_an_unknown_method_is_refused_with_the_names_of_the_known() -> None:
    class Other(Actor):
        @exposed
        def other(self) -> None: ...

    async with running_node() as node:
        pid = await node.spawn(Other)
        with pytest.raises(MethodUnknownError, match="exposes no method 'add'; it exposes other"):
            await node.call(pid, ask(Counter.add, 1))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
        node.send(pid, cast(Counter.add, 1))
        await node.call(pid, ask(Other.other))
        assert node.process_info(pid).unhandled == 1
        plain = await node.spawn(Actor)
        with pytest.raises(UnhandledCallError, match=r"cannot answer Counter\.add"):
            await node.call(plain, ask(Counter.add, 1))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_a_method_without_the_mark_is_refused_at_the_caller() -> None:
    with pytest.raises(BadInputError, match="write `@exposed` above `def hidden`"):
        ask(Counter.hidden)
    with pytest.raises(BadInputError, match="write `@exposed` above `def handle_inspect`"):
        cast(Counter.handle_inspect)


def test_an_address_instead_of_a_method_is_refused_with_the_line_to_write() -> None:
    address: Any = "counter"
    with pytest.raises(
        BadInputError, match=r"`await node\.call\(counter, ask\(Counter\.add, 3\)\)`"
    ):
        ask(address)
    with pytest.raises(BadInputError, match=r"`node\.send\(counter, cast\(Counter\.add, 3\)\)`"):
        cast(address)


@pytest.mark.parametrize("behaviour", [Counter, Waiting])
async def test_a_cast_cannot_be_called_and_a_request_cannot_be_sent(
    behaviour: type[Counter],
) -> None:
    async with running_node() as node:
        pid = await node.spawn(behaviour)
        with pytest.raises(NotAllowedError, match=r"write `call\(…, ask\(Counter.add, …\)\)`"):
            await node.call(pid, cast(Counter.add, 1))
        node.send(pid, ask(Counter.add, 1))

        assert await node.call(pid, ask(Counter.add, 0)) == 0
        assert node.process_info(pid).unhandled == 1


def test_a_method_of_an_instance_is_refused_at_the_caller() -> None:
    with pytest.raises(BadInputError, match="belongs to its process"):
        bound: Any = Counter().add
        ask(bound, 1)


def test_wrong_arguments_are_refused_at_the_caller_with_the_signature() -> None:
    add: Any = Counter.add
    with pytest.raises(BadInputError, match=r"Counter\.add\(self, amount.*missing"):
        ask(add)
    with pytest.raises(BadInputError, match="thrice"):
        cast(add, 3, thrice=True)


def test_anything_but_a_method_cannot_be_exposed() -> None:
    def values(self: Any) -> Any:
        yield 1

    with pytest.raises(BehaviourError, match="without `yield`"):
        exposed(values)
    thing: Any = 5
    with pytest.raises(BehaviourError, match="@exposed"):
        exposed(thing)


def test_arguments_are_checked_again_in_another_shape() -> None:
    add: Any = Counter.add
    ask(add, 3)
    ask(add, amount=3)

    wrong: list[tuple[tuple[int, ...], dict[str, int]]] = [
        *(((), {}), ((3, 4), {})),
        *(((3,), {"amount": 3}), ((), {"other": 3})),
    ]
    for args, keywords in wrong:
        with pytest.raises(BadInputError, match=r"the arguments of Counter\.add"):
            ask(add, *args, **keywords)


def test_the_message_shows_the_method_and_its_arguments() -> None:
    call, sent = ask(Counter.add, 3, twice=True), cast(Counter.add, 3)

    assert repr(call) == "Counter.add(3, twice=True)"
    assert isinstance(call, MethodCall)
    assert isinstance(sent, MethodCast)
    assert type(call).__qualname__ == "Counter.add"
    assert call == ask(Counter.add, 3, twice=True)
    assert call != ask(Counter.add, 3)
    assert call != sent
    assert len({call, ask(Counter.add, 3, twice=True)}) == 1
    match call:
        case MethodCall("add", (amount,), {"twice": True}):
            assert amount == 3
        case _:
            raise AssertionError(call)
    with pytest.raises(AttributeError, match="cannot be changed"):
        call.method = "other"


async def test_a_trace_shows_the_call_of_a_method() -> None:
    async with running_node() as node:
        pid = await node.spawn(Counter)
        node.send(pid, cast(Counter.add, 3))
        node.send("nobody", cast(Counter.add, 3))

        assert [letter.message_type for letter in node.dead_letters()] == ["Counter.add"]


async def test_methods_work_through_a_pool_and_a_service() -> None:
    async with running_node() as node:
        await node.supervise([ChildSpec("counter", Counter.spec(5, step=2))])
        assert await node.service("counter").call(ask(Counter.add, 1)) == 7
        spec = PoolSpec(Counter.spec(step=3), size=2, routing=Routing.ROUND_ROBIN)
        pool = await node.spawn(Pool, spec)
        assert await node.call(pool, ask(Counter.add, 1)) == 3


async def test_a_state_machine_has_methods_in_every_state() -> None:
    class Door(StateMachine):
        @exposed
        def current(self) -> str:
            return self.state_name

        @state
        def shut(self, message: Any, sender: Any) -> object:
            self.become("open")
            return "opened"

        @state
        def open(self, message: Any, sender: Any) -> object:
            return None

    async with running_node() as node:
        door = await node.spawn(Door)
        before = await node.call(door, ask(Door.current))
        assert await node.call(door, "push") == "opened"
        after = await node.call(door, ask(Door.current))

    assert "shut" in before
    assert "open" in after


async def test_methods_of_a_behaviour_alone() -> None:
    alone = Alone(Counter.spec(5, step=2))
    await alone.message(cast(Counter.add, 1))

    assert alone.behaviour.total == 7


# -- keyword arguments of behaviours ---------------------------------------------------------------


async def test_a_spec_takes_keyword_arguments_beside_the_options_of_spawn() -> None:
    async with running_node() as node:
        pid = await node.spawn(Counter.spec(1, step=4), name="counter", mailbox_size=10)

        assert await node.call(pid, ask(Counter.add, 1)) == 5
        assert node.process_info(pid).behaviour == "Counter"


@pytest.mark.counted
def test_a_spec_with_wrong_arguments_is_refused_at_once() -> None:
    counter: Any = Counter
    with pytest.raises(BadInputError, match=r"Counter\.spec.*steps"):
        counter.spec(1, steps=4)


async def test_the_error_about_a_keyword_of_the_behaviour_names_the_spec() -> None:
    async with running_node() as node:
        options: Any = {"step": 4}
        with pytest.raises(BadInputError, match=r"Behaviour\.spec\(key=value\)"):
            await node.spawn(Counter, 1, **options)
