"""Guest mode: trio and asyncio take turns in the same thread, and asyncio is the host."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import outcome
import trio

from ergo_py import Actor, Caller, Node, open_node

T = TypeVar("T")


async def trio_in_asyncio(main: Callable[[], Awaitable[T]]) -> T:
    """Run an async function of trio as a guest of the running asyncio loop."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[outcome.Outcome[T]] = loop.create_future()
    trio.lowlevel.start_guest_run(
        main,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        run_sync_soon_not_threadsafe=loop.call_soon,
        host_uses_signal_set_wakeup_fd=True,
        done_callback=done.set_result,
    )
    return (await done).unwrap()


class Greeter(Actor):
    def handle_message(self, message: str, sender: object) -> None:
        print("hello", message)
        self.stop()

    async def handle_call(self, request: str, caller: Caller) -> str:
        await trio.sleep(0.001)
        return f"hello {request}"


async def use_asyncio(node: Node) -> None:
    """A task of asyncio, in the same thread: it sends without a hop to another thread."""
    await asyncio.sleep(0.001)
    node.send("greeter", "from asyncio")


async def guest() -> None:
    async with open_node() as node:
        greeter = await node.spawn(Greeter, name="greeter")
        print(await node.call(greeter, "from trio"))
        task = asyncio.get_running_loop().create_task(use_asyncio(node))
        print(await node.wait_ended(greeter), task.done())


async def run_host() -> None:
    await trio_in_asyncio(guest)


if __name__ == "__main__":
    asyncio.run(run_host())
