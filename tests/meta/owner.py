"""A process that owns meta-processes for a test, and hands their messages on."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio

from ergo_py import Alias, Down, MetaProcess, Node, Reject, SpawnError
from tests.actors import Puppet
from tests.support import running_node

__all__ = ["Owned", "Owner", "UnprintableExit", "eventually", "owning"]

T = TypeVar("T")


class UnprintableExit(BaseException):
    """An exit of a library that has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Owner(Puppet):
    """Puts its messages into a channel, for the test to wait for."""

    def __init__(self, channel: trio.MemorySendChannel[Any]) -> None:
        super().__init__()
        self.channel = channel
        self.handled = trio.Event()

    async def handle_message(self, message: Any, sender: Any) -> None:
        if callable(message):
            await super().handle_message(message, sender)
        else:
            self.channel.send_nowait(message)


class Owned:
    """A test's view of an owner and the messages of its meta-processes, in order."""

    def __init__(self, node: Node, owner: Any, channel: trio.MemoryReceiveChannel[Any]) -> None:
        self.node = node
        self.owner = owner
        self._channel = channel
        self.heard: list[Any] = []
        self._downs: list[Down] = []

    async def spawn(self, meta: MetaProcess, **options: Any) -> Alias:
        """Have the owner spawn and monitor it."""

        async def spawn(owner: Owner) -> Alias:
            try:
                alias = await owner.spawn_meta(meta, **options)
            except SpawnError as error:
                raise Reject(error) from error
            owner.monitor(alias)
            return alias

        alias: Alias = await self.node.call(self.owner, spawn, timeout=20)
        return alias

    async def spawn_for(self, make: Callable[[Any], MetaProcess], **options: Any) -> Alias:
        """Have another process, the ``spawner``, spawn a meta-process that sends to the owner; the
        owner monitors it.
        """
        self.spawner = await self.node.spawn(Puppet)
        meta = make(self.owner)

        async def spawn(other: Puppet) -> Alias:
            return await other.spawn_meta(meta, **options)

        alias: Alias = await self.node.call(self.spawner, spawn, timeout=20)
        await self.node.call(self.owner, lambda owner: owner.monitor(alias))
        return alias

    async def spawn_elsewhere(self, meta: MetaProcess, **options: Any) -> Alias:
        """Have another process spawn it, so that the owner may be busy and still be its
        receiver.
        """

        async def spawn(other: Puppet) -> Alias:
            return await other.spawn_meta(meta, **options)

        alias: Alias = await self.node.call(await self.node.spawn(Puppet), spawn, timeout=20)
        return alias

    async def filled(self, count: int) -> int:
        """Wait until as many messages wait for a busy owner; how many there are at most in the next
        moments.
        """
        await eventually(lambda: self._queued() >= count)
        most = 0
        for _ in range(10):
            await trio.sleep(0.002)
            most = max(most, self._queued())
        return most

    def _queued(self) -> int:
        return self.node.process_info(self.owner).lanes["main"]

    async def next(self) -> Any:
        """The next message."""
        return self._note(await self._channel.receive())

    async def until(self, kind: type[T]) -> T:
        """The next message of this kind; earlier messages are kept in ``heard``."""
        while True:
            message = await self.next()
            if isinstance(message, kind):
                return message

    async def down(self) -> Any:
        """Why a meta-process ended; everything that it has sent is in ``heard`` then."""
        down = self._downs.pop(0) if self._downs else None
        while down is None:
            await self.next()
            down = self._downs.pop(0) if self._downs else None
        # It comes before the messages in the main lane; a call comes after them.
        await self.node.call(self.owner, lambda owner: None)
        while True:
            try:
                self._note(self._channel.receive_nowait())
            except trio.WouldBlock:
                return down.reason

    def _note(self, message: Any) -> Any:
        self.heard.append(message)
        if isinstance(message, Down):
            self._downs.append(message)
        return message

    def of(self, kind: type[T]) -> list[T]:
        """The messages of a kind."""
        return [message for message in self.heard if isinstance(message, kind)]

    async def hold(self) -> Callable[[], None]:
        """Keep the owner busy until the returned function is called."""
        begun, over = trio.Event(), trio.Event()

        async def wait(owner: Owner) -> None:
            begun.set()
            await over.wait()

        self.node.send(self.owner, wait)
        await begun.wait()
        return over.set


@asynccontextmanager
async def owning(*, limit: float = 60.0, **options: Any) -> AsyncIterator[Owned]:
    """A node with an owner on it."""
    sender, receiver = trio.open_memory_channel[Any](10_000_000)
    with sender, receiver:
        async with running_node(limit=limit, **options) as node:
            owner = await node.spawn(Owner, sender)
            yield Owned(node, owner, receiver)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a change in the operating system for which there is no event."""
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.005)
