"""Behaviours that a function chooses at each start of a child or a worker."""

from contextvars import ContextVar
from typing import Any, Generic, TypeVar

import pytest

from ergo_py import (
    Actor,
    ChildSpec,
    InitError,
    Pool,
    PoolSpec,
    Routing,
    Strategy,
    Supervisor,
    SupervisorSpec,
)
from ergo_py.errors import BehaviourError
from tests.actors import Failed
from tests.support import running_node

T = TypeVar("T")


class Worker(Actor):
    """Tells its class, and its number."""

    def __init__(self, number: int = 0) -> None:
        self.number = number

    def handle_call(self, request: Any, caller: Any) -> Any:
        if request == "crash":
            raise Failed("asked for")
        return type(self).__name__, self.number


class Patient(Worker):
    """A worker whose callback is async, so that its process differs from that of a `Worker`."""

    async def handle_call(self, request: Any, caller: Any) -> Any:
        return super().handle_call(request, caller)


class OfParts(Actor, Generic[T]):
    """Has a type parameter."""


async def crash(node: Any, name: str) -> None:
    with pytest.raises(Exception, match="asked for"):
        await node.service(name).call("crash")


async def test_a_child_has_the_behaviour_that_a_function_chooses_at_each_start() -> None:
    classes = [Patient, Worker, Patient]

    def choose(number: int) -> Worker:
        return classes.pop()(number)

    async with running_node() as node:
        await node.spawn(Supervisor, SupervisorSpec([ChildSpec("child", choose, 5)]))
        answers = []
        for _ in range(3):
            answers.append(await node.service("child").call("who"))
            if classes:
                await crash(node, "child")

        assert answers == [("Patient", 5), ("Worker", 5), ("Patient", 5)]


async def test_each_worker_of_a_pool_has_a_behaviour_of_its_own() -> None:
    numbers = iter(range(100))

    class Factory:
        def choose(self) -> Worker:
            number = next(numbers)
            return (Patient if number % 2 else Worker)(number)

    async with running_node() as node:
        spec = PoolSpec(Factory().choose, size=4, routing=Routing.ROUND_ROBIN)
        await node.spawn(Pool, spec, name="pool")
        answers = {await node.call("pool", "who") for _ in range(4)}

        assert answers == {("Worker", 0), ("Patient", 1), ("Worker", 2), ("Patient", 3)}


async def test_a_template_appends_the_arguments_of_its_children_for_the_function() -> None:
    def choose(kind: str, number: int) -> Worker:
        return (Patient if kind == "patient" else Worker)(number)

    spec = SupervisorSpec(
        [ChildSpec.template("w", choose, "patient", register=False)], Strategy.SIMPLE_ONE_FOR_ONE
    )
    async with running_node() as node:
        await node.spawn(Supervisor, spec, name="root")
        pid = await node.supervisor("root").start_child("w", 7)

        assert await node.call(pid, "who") == ("Patient", 7)


async def test_a_function_that_fails_is_a_failed_start() -> None:
    def choose() -> Worker:
        raise Failed("no worker")

    async with running_node() as node:
        with pytest.raises(InitError) as caught:
            await node.spawn(Supervisor, SupervisorSpec([ChildSpec("child", choose)]))

        assert "no worker" in str(caught.value)


async def test_a_chosen_behaviour_is_new_and_of_the_declared_class() -> None:
    class Inner(Supervisor):
        """Has no children."""

    kept, wrong = Worker(), Actor()

    def same() -> Worker:
        return kept

    def other() -> Worker:
        return wrong  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    def supervisor() -> Actor:
        return Inner(SupervisorSpec([]))

    async with running_node() as node:
        for functions, text in (
            ((same, same), "a new instance for each start"),
            ((other,), "a Worker, as it declares"),
            ((supervisor,), "a supervisor has a ChildSpec of its own"),
        ):
            children = [ChildSpec(f"c{at}", each) for at, each in enumerate(functions)]
            with pytest.raises(InitError, match=text):
                await node.spawn(Supervisor, SupervisorSpec(children))


async def test_context_variables_of_the_function_do_not_reach_its_supervisor() -> None:
    variable = ContextVar("variable", default="unset")

    def choose() -> Worker:
        variable.set("of the function")
        return Worker()

    class Root(Supervisor):
        def handle_call(self, request: Any, caller: Any) -> Any:
            return variable.get()

    async with running_node() as node:
        root = await node.spawn(Root, SupervisorSpec([ChildSpec("child", choose)]))

        assert await node.call(root, "variable") == "unset"


def _undeclared():  # type: ignore[no-untyped-def]
    return Worker()


def _unknown() -> "Unknown":  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    return Worker()


def _supervising() -> Supervisor:
    return Supervisor(SupervisorSpec([]))


def _number() -> int:
    return 5


async def _waiting() -> Worker:
    return Worker()


def _generating() -> Worker:  # type: ignore[misc]  # pyright: ignore[reportInvalidTypeForm]
    yield Worker()  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(
    "function", [_undeclared, _unknown, _supervising, _number, _waiting, _generating]
)
def test_a_function_declares_the_class_of_an_actor(function: Any) -> None:
    with pytest.raises(BehaviourError, match=r"as in `def choose\(\) -> Worker`"):
        ChildSpec("child", function)


def test_only_the_returned_class_of_a_function_is_looked_up() -> None:
    def choose(_hidden: "Unknown") -> OfParts[int]:  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
        return OfParts()

    assert ChildSpec("child", choose, None).is_chosen
    with pytest.raises(BehaviourError, match="not NameError: name 'Unknown' is not defined"):
        ChildSpec("child", _unknown)
