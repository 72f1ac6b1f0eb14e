"""`Memory(strict=True)`: messages between processes of a node are encoded, too."""

import threading
from typing import Any

import pytest
import trio

from ergo_py import Actor, Caller, MetaProcess, Overflow
from ergo_py.errors import CallFailedError
from ergo_py.network import Memory
from ergo_py.network.errors import MessageTypeError
from tests.actors import Recorder
from tests.network.pairs import TYPES, Add, Echo, Total, two_nodes, until
from tests.network.test_nodes import Counter
from tests.support import running_node


class Mirror(Actor):
    """Keeps messages and publications, and answers with its request or with a value that cannot
    travel.
    """

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    def init(self) -> None:
        self.subscribe("news")

    def handle_message(self, message: Any, sender: Any) -> None:
        self.heard.append(message)

    def handle_event(self, event: Any) -> None:
        self.heard.append(event.message)

    def handle_call(self, request: Any, caller: Caller) -> Any:
        self.heard.append(request)
        return object() if request == Echo("object") else request


@pytest.fixture(params=["plain", "observed"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A plain node and an observed node have different routers."""
    return {"observer": lambda _: None} if request.param == "observed" else {}


async def test_a_strict_node_copies_messages_requests_answers_and_publications(
    options: dict[str, Any],
) -> None:
    heard: list[Any] = []
    async with running_node("a@test", network=Memory(types=TYPES, strict=True), **options) as a:
        a.open_topic("news")
        pid = await a.spawn(Mirror, heard)
        sent = [Add(1)]
        a.send(pid, sent)
        await a.send_wait(pid, sent)
        a.publish("news", sent)
        answer = await a.call(pid, sent)
        sent.append(Add(2))

        assert heard == [[Add(1)]] * 4
        assert answer == [Add(1)]
        assert len({id(copy) for copy in [*heard, answer, sent]}) == 6


async def test_a_strict_node_refuses_values_that_cannot_travel(options: dict[str, Any]) -> None:
    heard: list[Any] = []
    async with running_node("a@test", network=Memory(types=TYPES, strict=True), **options) as a:
        a.open_topic("news")
        pid = await a.spawn(Mirror, heard)
        with pytest.raises(MessageTypeError, match="a object cannot travel to <PID"):
            a.send(pid, object())
        with pytest.raises(MessageTypeError):
            await a.send_wait(pid, object())
        with pytest.raises(MessageTypeError):
            await a.call(pid, object())
        with pytest.raises(MessageTypeError):
            a.publish("news", object())
        with pytest.raises(CallFailedError, match="cannot travel"):
            await a.call(pid, Echo("object"))

        assert heard == [Echo("object")]


@pytest.mark.counted
async def test_a_thread_of_a_strict_node_gets_the_refusal_itself() -> None:
    refused: list[Any] = []

    def work() -> None:
        a.send(pid, [1])
        refused.append(a.call_from_thread(pid, [2]))
        for verb in (a.send, a.call_from_thread):
            try:
                verb(pid, object())
            except MessageTypeError as error:
                refused.append(type(error))
        try:
            a.call_from_thread(pid, Echo("object"))
        except CallFailedError as error:
            refused.append(type(error))

    heard: list[Any] = []
    async with running_node("a@test", network=Memory(types=TYPES, strict=True)) as a:
        a.open_topic("news")
        pid = await a.spawn(Mirror, heard)
        thread = threading.Thread(target=work)
        thread.start()
        await trio.to_thread.run_sync(thread.join)

    assert refused == [[2], MessageTypeError, MessageTypeError, CallFailedError]
    assert heard == [[1], [2], Echo("object")]


class Source(MetaProcess):
    """Sends an object to its process."""

    def start(self) -> None:
        self.send(self.parent, self)


class Owner(Actor):
    """Gets objects from itself and from its meta-process."""

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    async def init(self) -> None:
        self.send(self.pid, self)
        await self.spawn_meta(Source())

    def handle_message(self, message: Any, sender: Any) -> None:
        self.heard.append(type(message))


async def test_messages_to_itself_and_of_its_meta_processes_stay_as_they_are() -> None:
    heard: list[Any] = []
    async with running_node("a@test", network=Memory(strict=True)) as a:
        await a.spawn(Owner, heard)
        await until(lambda: len(heard) == 2)

    assert set(heard) == {Owner, Source}


async def test_a_strict_node_talks_to_another_strict_node(autojump_clock: Any) -> None:
    async with two_nodes(Memory(types=TYPES, strict=True), limit=1000) as (a, b):
        pid = await b.spawn(Counter)
        full = await b.spawn(Recorder, mailbox_size=1, overflow=Overflow.WAIT)
        a.send(pid, Add(1))
        b.send(pid, Add(2))

        assert await a.call(pid, Total()) == await b.call(pid, Total()) == 3
        assert await a.send_wait(full, [1])
        assert await b.call(full, []) == [[1]]
