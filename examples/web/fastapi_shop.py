"""FastAPI beside actors: a mounted FastAPI application calls the same actors as plain routes do,
on the node's own loop. It needs ``pip install fastapi``.

    python fastapi_shop.py [PORT]

and then http://127.0.0.1:8080/api/docs in a browser.
"""

import sys
from dataclasses import dataclass

import trio
from fastapi import FastAPI, HTTPException, WebSocket
from pydantic import BaseModel, Field

from ergo_py import (
    Actor,
    Caller,
    ChildSpec,
    Node,
    Reject,
    Request,
    Supervisor,
    blocking,
    run,
)
from ergo_py.web import HTTPError, HTTPRequest, Mount, Response, Route, WebServer


@dataclass(frozen=True)
class Take(Request[int]):
    """Take some of an article. The answer is how many are left."""

    article: str
    count: int


@dataclass(frozen=True)
class Count(Request[int]):
    """How many of an article are there?"""

    article: str


class SoldOutError(Exception):
    """There are not so many."""


class Stock(Actor):
    """Knows how many there are of each article. It answers calls, and plain requests, too."""

    def __init__(self) -> None:
        self.counts = {"apple": 10, "pear": 3}

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Take(article, count):
                left = self.counts.get(article, 0) - count
                if left < 0:
                    raise Reject(SoldOutError(article))
                self.counts[article] = left
                return left
            case Count(article):
                return self.counts.get(article, 0)
            case HTTPRequest("GET", ("stock",)):
                return Response.json(self.counts)
        raise Reject(HTTPError(404))


class Order(BaseModel):
    """The body of an order, as FastAPI checks it."""

    article: str
    count: int = Field(gt=0)


def make_app(node: Node) -> FastAPI:
    """An application whose endpoints call actors."""
    app = FastAPI(title="Shop")

    @app.post("/orders", status_code=201)
    async def order(wanted: Order) -> dict[str, int]:
        try:
            return {"left": await node.call("stock", Take(wanted.article, wanted.count))}
        except SoldOutError:
            raise HTTPException(409, "sold out") from None

    @app.get("/count/{article}")
    def count(article: str) -> int:
        # A plain endpoint runs in a thread.
        return blocking.handle(node).call("stock", Count(article))

    @app.websocket("/watch/{article}")
    async def watch(socket: WebSocket, article: str) -> None:
        await socket.accept()
        async for _ in socket.iter_text():
            await socket.send_json(await node.call("stock", Count(article)))

    return app


class Door(Actor):
    """Owns the web server: plain routes and FastAPI share it."""

    def __init__(self, node: Node, port: int) -> None:
        self.server = WebServer(
            "127.0.0.1",
            port,
            routes=[Route("/stock", to="stock"), Mount("/api", asgi=make_app(node))],
        )

    async def init(self) -> None:
        await self.spawn_meta(self.server)

    def handle_call(self, request: object, caller: Caller) -> int:
        return self.server.local.port


class Shop(Supervisor):
    """The stock and the door, each restarted for itself."""

    def __init__(self, node: Node, port: int) -> None:
        super().__init__([ChildSpec("stock", Stock), ChildSpec("door", Door, node, port)])


async def main(node: Node) -> None:
    await node.spawn(Shop, node, int(sys.argv[1]) if len(sys.argv) > 1 else 8080)
    print(f"http://127.0.0.1:{await node.call('door', 'port')}/", flush=True)
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="shop@localhost")
