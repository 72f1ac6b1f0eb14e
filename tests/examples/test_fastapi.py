"""`examples/web/fastapi_shop.py`: FastAPI beside actors."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec

import pytest
import trio

from ergo_py import Node, open_node
from tests.web.rig import Peer, get, post, until
from tests.web.test_websocket import Client, upgrade

pytestmark = pytest.mark.skipif(find_spec("fastapi") is None, reason="FastAPI is not installed")

JSON = "Content-Type: application/json"


@asynccontextmanager
async def shopping() -> AsyncIterator[tuple[Node, Peer]]:
    # Not by each worker that collects tests: the import takes most of a second.
    from examples.web.fastapi_shop import Shop

    async with open_node("shop@localhost", log_output="none") as node:
        await node.spawn(Shop, node, 0)
        peer = Peer(await trio.open_tcp_stream("127.0.0.1", await node.call("door", "port")))
        yield node, peer
        await peer.aclose()


def order(article: str, count: object) -> bytes:
    return post("/api/orders", json.dumps({"article": article, "count": count}).encode(), JSON)


async def test_fastapi_and_plain_routes_share_the_actors() -> None:
    async with shopping() as (_, peer):
        reply = await peer.ask(order("apple", 4))
        assert (reply.status, json.loads(reply.body)) == (201, {"left": 6})
        assert json.loads((await peer.ask(get("/stock"))).body)["apple"] == 6
        assert (await peer.ask(get("/api/count/apple"))).body == b"6"


async def test_fastapi_checks_bodies_and_turns_a_reject_into_a_status() -> None:
    async with shopping() as (_, peer):
        assert (await peer.ask(order("pear", 4))).status == 409
        assert (await peer.ask(order("pear", "many"))).status == 422
        assert (await peer.ask(get("/api/nowhere"))).status == 404
        assert b"/api/openapi.json" in (await peer.ask(get("/api/docs"))).body


async def test_a_websocket_of_fastapi_calls_actors() -> None:
    async with shopping() as (_, peer):
        assert (await peer.ask(upgrade("/api/watch/pear"))).status == 101
        client = Client(peer)
        await client.send(1, b"?")
        assert await client.next() == (1, "3", 0)


async def test_a_crash_of_an_actor_is_a_500_of_fastapi_and_the_next_request_works() -> None:
    async with shopping() as (node, peer):
        before = node.whereis("stock")
        assert before is not None
        node.kill(before)
        await until(lambda: node.whereis("stock") not in (None, before))
        assert (await peer.ask(order("apple", 1))).status == 201
