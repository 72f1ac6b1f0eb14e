"""The service of a child on another node: what differs from a service on the own node."""

from typing import Any

import pytest
import trio

from ergo_py import (
    Actor,
    Backoff,
    CallTimeoutError,
    ChildSpec,
    NodeStoppedError,
    NoNode,
    NotAllowedError,
    Response,
    Supervisor,
    SupervisorSpec,
    TargetDownError,
    Why,
)
from ergo_py._core.vocabulary.errors import ChildUnknownError, ServiceTimeoutError
from tests.actors import Puppet
from tests.network.pairs import Add, Echo, Total, make_network, two_nodes, until
from tests.support import running_node


class Counter(Actor):
    """Adds numbers."""

    def __init__(self) -> None:
        self.total = 0

    def handle_message(self, message: Any, sender: Any) -> None:
        match message:
            case Add(number):
                self.total += number
            case _:
                raise ValueError("unknown")

    def handle_call(self, request: Any, caller: Any) -> Any:
        match request:
            case Total():
                return self.total
            case Echo("crash"):
                raise ValueError("on purpose")
            case Echo(value):
                return value


def counters(**options: Any) -> list[ChildSpec]:
    return [ChildSpec("counter", Counter, **options)]


async def test_an_unknown_child_is_refused_with_the_names_there_are() -> None:
    async with two_nodes(make_network("memory")) as (a, b):
        await b.supervise(counters())
        service = a.at("b@test").service("countre")

        with pytest.raises(ChildUnknownError) as caught:
            await service.call(Total())
        with pytest.raises(ChildUnknownError):
            await service.send_wait(Add(1))
        assert service.send(Add(1))
        await a.at("b@test").ping()

        assert str(caught.value) == "there is no child 'countre'; there are 'counter'"
        assert [letter.why for letter in b.dead_letters()] == [Why.NO_PROCESS] * 2


async def test_a_lost_node_fails_the_call_unless_it_may_be_repeated(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = make_network("memory", patience=2.0)
    async with running_node("a@test", network=network) as a:
        service = a.at("b@test").service("counter")
        async with running_node("b@test", network=network) as b:
            await b.supervise(counters())
            assert await service.call(Total()) == 0
        with pytest.raises(TargetDownError) as caught:
            await service.call(Total())
        assert caught.value.reason == NoNode("b@test")
        assert not await service.send_wait(Add(1))
        with pytest.raises(CallTimeoutError):
            await service.call(Total(), retry=True, timeout=3)
        answers: list[int] = []

        async def ask() -> None:
            answers.append(await service.call(Total(), retry=True, timeout=60))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(5)
            async with running_node("b@test", network=network) as again:
                await again.supervise(counters())
                await until(lambda: answers)

        assert answers == [0]


@pytest.mark.counted
async def test_a_request_is_repeated_by_the_node_of_the_child(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with two_nodes(make_network("memory")) as (a, b):
        await b.supervise(counters(backoff=Backoff(1.0, 1.0)), intensity=100)
        service = a.at("b@test").service("counter")

        with pytest.raises(TargetDownError):
            await service.call(Echo("crash"))
        with pytest.raises(CallTimeoutError):
            await service.call(Echo("crash"), retry=True, timeout=3.5)
        with pytest.raises(ServiceTimeoutError):
            await service.send_wait(Add(1), timeout=0.1)


async def test_an_actor_gets_the_response_to_a_request_through_a_service() -> None:
    heard: list[Response] = []

    class Asking(Puppet):
        def handle_response(self, response: Response) -> None:
            heard.append(response)

    async with two_nodes(make_network("memory")) as (a, b):
        await b.supervise(counters())
        asking = await a.spawn(Asking)

        ref = await a.call(asking, lambda me: me.service("counter", "b@test").request(Echo("this")))
        await until(lambda: heard)
        with pytest.raises(NotAllowedError, match="only a process"):
            a.at("b@test").service("counter").request(Total())

        assert (heard[0].ref, heard[0].value) == (ref, "this")


async def test_a_supervisor_reaches_a_service_of_another_node() -> None:
    class Root(Supervisor):
        async def handle_call(self, request: Any, caller: Any) -> Any:
            return await self.service("counter", "b@test").call(request)

    async with two_nodes(make_network("memory")) as (a, b):
        await b.supervise(counters())
        root = await a.spawn(Root, SupervisorSpec(counters()))

        assert await a.call(root, Echo("over there")) == "over there"


async def test_a_node_alone_has_no_services_of_other_nodes() -> None:
    async with running_node() as node:
        actor = await node.spawn(Puppet)

        def ask(me: Puppet) -> str:
            with pytest.raises(NotAllowedError) as caught:
                me.service("counter", "b@test")
            return str(caught.value)

        assert "no network, so it reaches no service of 'b@test'" in await node.call(actor, ask)


async def test_messages_of_a_thread_reach_the_child(short_path: Any) -> None:
    async with two_nodes(make_network("local", short_path)) as (a, b):
        await b.supervise(counters())
        service = a.at("b@test").service("counter")

        def use() -> Any:
            for number in range(10):
                service.send(Add(number))
            return service.call_from_thread(Total())

        assert await trio.to_thread.run_sync(use) == 45


async def test_a_node_that_has_stopped_reaches_no_service() -> None:
    async with two_nodes(make_network("memory")) as (a, b):
        await b.supervise(counters())
        service = a.at("b@test").service("counter")
        assert await service.call(Total()) == 0

    with pytest.raises(NodeStoppedError):
        service.send(Add(1))
    with pytest.raises(NodeStoppedError):
        await service.call(Total())
    with pytest.raises(NodeStoppedError):
        await service.send_wait(Add(1))
