"""FastAPI under uvicorn, with a node for as long as the application lives."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request

from ergo_py import Actor, Caller, ChildSpec, Reject
from ergo_py.aio import AsyncioNode, open_node


class Stock(Actor):
    """The only owner of the numbers, so no request needs a lock."""

    def __init__(self) -> None:
        self.left = {"apple": 1000}

    def handle_call(self, request: tuple[str, int], caller: Caller) -> int:
        article, count = request
        if self.left.get(article, 0) < count:
            raise Reject(LookupError(f"not enough of {article}"))
        self.left[article] -= count
        return self.left[article]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, AsyncioNode]]:
    async with open_node("shop@localhost") as node:
        await node.supervise([ChildSpec("stock", Stock)])
        yield {"node": node}


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{article}/{count}")
async def order(request: Request, article: str, count: int) -> dict[str, Any]:
    node: AsyncioNode = request.state.node
    try:
        return {"left": await node.call("stock", (article, count))}
    except LookupError as error:
        raise HTTPException(409, str(error)) from error
