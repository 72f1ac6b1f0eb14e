from collections.abc import Iterator

import trio

from ergo_py import Actor, Caller, open_node
from ergo_py.tasks import FailedItem


def pages() -> Iterator[int]:
    page = 0
    while True:  # the stream takes only as many as the consumer needs
        page += 1
        yield page


async def fetch(page: int) -> str:
    await trio.sleep(0.01 / page)  # later pages are faster
    if page == 3:
        raise OSError(f"page {page} is missing")
    return f"text {page}"


class Search(Actor):
    async def handle_call(self, request: str, caller: Caller) -> str:
        async for text in self.map_stream(fetch, pages(), at_once=4, on_failure=FailedItem):
            if isinstance(text, FailedItem):
                print("failed:", text.error)
                continue
            print("read:", text)
            if text == request:
                return text  # the fetches in progress are cancelled
        raise LookupError(request)


async def main() -> None:
    async with open_node() as node:
        search = await node.spawn(Search)
        print("found:", await node.call(search, "text 5"))
        lengths = node.map_stream(len, ["thread", "loop"])  # plain: in threads
        print([length async for length in lengths])


if __name__ == "__main__":
    trio.run(main)
