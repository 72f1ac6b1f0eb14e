from typing import Any

import trio
import trio.testing

from ergo_py import Actor, Caller, TaskSupervisor, blocking, first_of, open_node
from ergo_py.errors import TaskError
from ergo_py.tasks import TaskResult


async def price_at(shop: str, seconds: float) -> int:
    await trio.sleep(seconds)
    if shop == "closed":
        raise LookupError("the shop is closed")
    return len(shop)


def factorial(number: int) -> int:
    return 1 if number < 2 else number * factorial(number - 1)


class Buyer(Actor):
    async def handle_call(self, request: str, caller: Caller) -> object:
        match request:
            case "both":
                one = self.run_task(price_at, "corner", 0.02)
                other = self.run_task(price_at, "market", 0.01)
                return await one + await other  # both run at the same time
            case "first":
                one = self.run_task(price_at, "corner", 60)
                other = self.run_task(price_at, "market", 0.01)
                winner = await first_of(one, other)
                one.cancel()
                return winner.result()
            case "patient":
                try:
                    return await self.run_task(price_at, "corner", 60, timeout=0.05)
                except TaskError as error:
                    return f"{error.kind}: {error}"
            case _:
                return await self.run_task(factorial, 20)  # plain: in a thread

    def handle_message(self, message: Any, sender: object) -> None:
        match message:
            case TaskResult(value=price, error=None):
                print("a message:", price)
            case TaskResult(error=error):
                print("a message:", repr(error))
            case _:
                _ = self.run_task(price_at, message, 0, reply_to=self.pid)


async def main() -> None:
    async with open_node(log_level="off") as node:
        buyer = await node.spawn(Buyer)
        for request in ("both", "first", "patient", "factorial"):
            print(f"{request}:", await node.call(buyer, request))
        for shop in ("market", "closed"):
            node.send(buyer, shop)
            await trio.testing.wait_all_tasks_blocked()

        await node.spawn(TaskSupervisor, name="tasks")
        task = node.run_task(price_at, "harbour", 0, under="tasks")
        print("supervised:", await task)


def plain_code() -> None:
    with blocking.open_node(log_level="off") as node:
        tasks = [node.run_task(factorial, number) for number in (3, 4, 5)]
        print("futures:", [task.result(timeout=5) for task in tasks])
        with node.map_stream(factorial, range(1_000_000), at_once=4) as results:
            print("the first two:", next(results), next(results))


if __name__ == "__main__":
    trio.run(main)
    plain_code()
