"""Context variables of meta-processes: a copy of the spawner's, shared by the callbacks of the
handler, and a copy for the reader.
"""

import threading
from contextvars import ContextVar
from typing import Any

import pytest
import trio

from ergo_py import Actor, Alias, Caller, InitError, MetaProcess, Node, Reason
from ergo_py.meta import TCPServer
from tests.actors import Failed
from tests.support import running_node

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


class Plain(MetaProcess):
    """Notes the tenant that each callback sees, and sets another."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen
        self.over = threading.Event()

    def note(self, callback: str) -> None:
        self.seen.append((callback, TENANT.get()))
        TENANT.set(callback)

    def init(self) -> Any:
        self.note("init")

    def start(self) -> Any:
        self.note("start")
        while not self.stopping:
            self.pause(20)
        self.note("end of start")

    def handle_message(self, message: Any, sender: Any) -> Any:
        self.note("message")

    def handle_call(self, request: Any, caller: Caller) -> Any:
        self.note("call")

    def handle_inspect(self, *items: str) -> dict[str, str]:
        self.note("inspect")
        return {}

    def terminate(self, reason: Reason) -> Any:
        self.note("terminate")


class Async(Plain):
    """The same on the loop."""

    async def init(self) -> None:
        await trio.lowlevel.checkpoint()
        self.note("init")
        await trio.lowlevel.checkpoint()

    async def start(self) -> None:
        self.note("start")
        try:
            await trio.sleep_forever()
        finally:
            self.note("end of start")

    async def handle_message(self, message: Any, sender: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.note("message")

    async def handle_call(self, request: Any, caller: Caller) -> None:
        self.note("call")

    async def terminate(self, reason: Reason) -> None:
        await trio.lowlevel.checkpoint()
        self.note("terminate")


class Owner(Actor):
    """Spawns the meta-process that it is called with, and answers with the tenant that it sees
    afterwards.
    """

    async def handle_call(self, request: MetaProcess, caller: Caller) -> tuple[Alias, str]:
        TENANT.set("owner")
        alias = await self.spawn_meta(request)
        return alias, TENANT.get()

    def handle_message(self, message: Any, sender: Any) -> None:
        self.stop()


async def owned(node: Node, meta: MetaProcess) -> tuple[Any, Alias]:
    owner = await node.spawn(Owner)
    alias, seen = await node.call(owner, meta)
    assert seen == "owner"
    return owner, alias


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("colour", [Plain, Async])
async def test_callbacks_of_a_meta_process_share_a_context_of_their_own(
    colour: type[Plain], inline: bool
) -> None:
    seen: list[Any] = []
    TENANT.set("test")
    async with running_node(inline_calls=inline) as node:
        owner, alias = await owned(node, colour(seen))
        for _ in range(2):
            TENANT.set("sender")
            node.send(alias, "hello")
            await node.call(alias, "hello")
            await node.inspect_meta(alias)
            assert TENANT.get() == "sender"
        node.send(owner, "stop")
        await node.wait_ended(owner)

    assert [each for each in seen if "start" not in each[0]] == [
        ("init", "owner"),
        ("message", "init"),
        ("call", "message"),
        ("inspect", "call"),
        ("message", "inspect"),
        ("call", "message"),
        ("inspect", "call"),
        ("terminate", "inspect"),
    ]
    # The reader runs beside the handler, so it has a copy.
    assert [each for each in seen if "start" in each[0]] == [
        ("start", "init"),
        ("end of start", "start"),
    ]


@pytest.mark.parametrize("colour", [Plain, Async])
async def test_an_init_of_a_meta_process_that_fails_leaves_the_owners_context(
    colour: type[Plain],
) -> None:
    class Fails(colour):  # type: ignore[valid-type, misc]
        def note(self, callback: str) -> None:
            TENANT.set("broken")
            raise Failed(callback)

    class Tries(Actor):
        async def handle_call(self, request: Any, caller: Caller) -> str:
            with pytest.raises(InitError):
                await self.spawn_meta(request)
            return TENANT.get()

    TENANT.set("test")
    async with running_node() as node:
        assert await node.call(await node.spawn(Tries), Fails([])) == "test"


async def test_a_meta_process_that_a_thread_spawns_has_a_copy_of_the_threads_context() -> None:
    seen: list[Any] = []
    inner: list[Any] = []

    class Outer(Plain):
        def start(self) -> None:
            TENANT.set("reader")
            self.spawn(Plain(inner))
            self.note("start")
            super().start()

    async with running_node() as node:
        await owned(node, Outer(seen))
        while not any(each[0] == "start" for each in inner):  # noqa: ASYNC110 - a thread
            await trio.sleep(0.001)

    assert ("init", "reader") in inner
    assert ("start", "reader") in seen


@pytest.mark.parametrize("reader", ["thread", "task"])
async def test_the_actor_of_a_connection_has_a_copy_of_the_context_of_its_server(
    reader: Any,
) -> None:
    seen: list[str] = []
    told = trio.Event()

    class Session(Actor):
        def init(self) -> None:
            seen.append(TENANT.get())
            told.set()

        def handle_message(self, message: Any, sender: Any) -> None:
            pass

    class Server(Actor):
        async def init(self) -> None:
            TENANT.set("server")
            self.server = TCPServer(receiver=Session, reader=reader)
            await self.spawn_meta(self.server)
            TENANT.set("later")

        def handle_call(self, request: Any, caller: Caller) -> int:
            return self.server.local[1]

    TENANT.set("test")
    async with running_node() as node:
        port = await node.call(await node.spawn(Server), "port")
        TENANT.set("client")
        async with await trio.open_tcp_stream("127.0.0.1", port):
            await told.wait()

    assert seen == ["server"]
