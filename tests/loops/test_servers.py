"""Libraries of asyncio against real servers: asyncpg with PostgreSQL, redis.asyncio with Redis."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import CallTimeoutError, TargetDownError
from ergo_py.meta import Apply, AsyncioCalls, Invoke, Port
from tests.examples.test_bridges import database_directory, postgres
from tests.meta.owner import Owned, owning
from tests.postgres import needs_postgres

__all__ = ["database_directory"]  # a fixture

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="needs the program redis-server"
)


# -- asyncpg ---------------------------------------------------------------------------------------


async def rows(pool: Any, count: int) -> AsyncIterator[int]:
    async with pool.acquire() as connection, connection.transaction():
        query = "select n from generate_series(1, $1) n"
        async for row in connection.cursor(query, count, prefetch=20):
            yield row["n"]


async def sleeping(pool: Any) -> int:
    """The number of queries that the server still runs."""
    found: int = await pool.fetchval(
        "select count(*) from pg_stat_activity where query like '%pg_sleep%' and state = 'active' "
        "and pid <> pg_backend_pid()"
    )
    return found


@asynccontextmanager
async def asyncpg_pool(place: Path) -> AsyncIterator[tuple[Owned, Any]]:
    asyncpg = pytest.importorskip("asyncpg")

    def connect() -> Any:
        return asyncpg.create_pool(
            host=str(place), user="ergo", database="postgres", min_size=1, max_size=4
        )

    async with postgres(place) as (owned, _):
        pool = await owned.spawn(AsyncioCalls(factory=connect), init_timeout=20)
        yield owned, pool
        owned.node.send_exit(pool)
        await owned.node.wait_ended(pool)


@needs_postgres
async def test_asyncpg_answers_queries_streams_rows_and_cancels(database_directory: Path) -> None:
    async with asyncpg_pool(database_directory) as (owned, pool):
        node = owned.node
        assert await node.call(pool, Invoke("fetchval", "select 6 * $1::int", 7)) == 42
        with pytest.raises(Exception, match="no_such_table"):
            await node.call(pool, Invoke("fetch", "select * from no_such_table"))

        # Many callers share four connections.
        answers = [0] * 50

        async def ask(number: int) -> None:
            answers[number] = await node.call(pool, Invoke("fetchval", "select $1::int", number))

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, number)
        assert answers == list(range(50))

        taken = [row async for row in node.call_stream(pool, Apply(rows, 500))]
        assert taken == list(range(1, 501))
        async with node.call_stream(pool, Apply(rows, 10_000_000)) as some:
            assert [await anext(some) for _ in range(3)] == [1, 2, 3]

        # The timeout of a call ends the query in the server.
        with pytest.raises(CallTimeoutError):
            await node.call(pool, Invoke("fetchval", "select pg_sleep(60)"), timeout=0.2)
        while await node.call(pool, Apply(sleeping)):  # noqa: ASYNC110 - the server decides when
            await trio.sleep(0.01)


# -- redis.asyncio ---------------------------------------------------------------------------------


async def listen(client: Any, channel: str) -> AsyncIterator[str]:
    async with client.pubsub() as subscription:
        await subscription.subscribe(channel)
        async for message in subscription.listen():
            yield message["type"] if message["type"] == "subscribe" else message["data"]


@asynccontextmanager
async def redis_client(place: Path) -> AsyncIterator[tuple[Owned, Any]]:
    redis = pytest.importorskip("redis.asyncio")
    path = place / "redis"
    command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", ""]

    async def connect() -> Any:
        client = redis.Redis(unix_socket_path=str(path), decode_responses=True)
        while True:
            try:
                await client.ping()
            except (redis.ConnectionError, OSError):
                await asyncio.sleep(0.01)
            else:
                return client

    async with owning(limit=60) as owned:
        await owned.spawn(
            Port([*command, "--dir", str(place)], stop=Port.StopTimes(0.0, 8.0, 1.0)),
            init_timeout=20,
            stop_timeout=10.0,
        )
        client = await owned.spawn(AsyncioCalls(factory=connect), init_timeout=20)
        yield owned, client


@needs_redis
@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")
async def test_redis_answers_commands_and_publications_arrive(short_path: Path) -> None:
    async with redis_client(short_path) as (owned, client):
        node = owned.node
        await node.call(client, Invoke("set", "fruit", "apple"))
        assert await node.call(client, Invoke("get", "fruit")) == "apple"

        async with node.call_stream(client, Apply(listen, "prices")) as prices:
            assert await anext(prices) == "subscribe"
            for price in range(20):
                await node.call(client, Invoke("publish", "prices", price))
            assert [await anext(prices) for _ in range(20)] == [str(n) for n in range(20)]
        shown = await node.call(client, Invoke("pubsub_numsub", "prices"))
        assert shown == [("prices", 0)]

        # A call that waits in the server ends with its caller, and with the meta-process.
        with pytest.raises(CallTimeoutError):
            await node.call(client, Invoke("blpop", "empty"), timeout=0.1)
        errors: list[Exception] = []

        async def wait() -> None:
            try:
                await node.call(client, Invoke("blpop", "empty"), timeout=None)
            except TargetDownError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await node.call(client, Invoke("ping"))
            node.kill(client)
        assert len(errors) == 1
