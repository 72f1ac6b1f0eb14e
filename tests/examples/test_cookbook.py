"""The programs of the cookbook: each starts without its broker, and handles items with it."""

import os
import runpy
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import ChildSpec, Node, pipelines
from ergo_py.pipelines import Pipeline, Sink
from tests.examples.programs import EXAMPLES, ROOT
from tests.meta.owner import eventually
from tests.pipelines.brokers.rigs import put
from tests.pipelines.brokers.servers import missing, started
from tests.support import process_of, running_node

WISHES = {
    "serial": "serial",
    "can bus": "can",
    "modbus": "modbus",
    "zeromq": "zeromq",
    "udp": "udp",
    "sqlite": "sqlite",
    "postgres": "postgresql",
    "notifications of postgres": "postgres-listen",
    "redis": "redis",
    "rabbitmq": "rabbitmq",
    "mqtt": "mqtt",
    "jetstream": "jetstream",
    "kafka": "kafka",
    "fastapi": "fastapi",
}
"""The words that a reader searches for, and the page that is first among those found: the search of
the site puts titles first.
"""
NOWHERE = "127.0.0.1:1"
PROGRAMS = {
    "postgres_jobs.py": ("psycopg", "jobs", f"host=127.0.0.1 port=1 dbname={NOWHERE}"),
    "redis_clicks.py": ("redis", "clicks", f"redis://{NOWHERE}"),
    "rabbitmq_orders.py": ("pika", "orders", f"amqp://guest:guest@{NOWHERE}/"),
    "mqtt_readings.py": ("paho", "readings", f"mqtt://{NOWHERE}"),
    "jetstream_parcels.py": ("nats", "parcels", f"nats://{NOWHERE}"),
}
"""The package of each program, the function that makes its children, and an address without a
server.
"""
WITH_SERVERS = pytest.mark.skipif(
    "ERGO_BROKERS" not in os.environ, reason="`python -m benchmarks brokers` starts the servers"
)


def test_each_recipe_has_the_word_of_its_readers_in_its_title() -> None:
    recipes = {page.stem: page for page in (ROOT / "docs" / "cookbook").glob("*.md")}
    del recipes["index"]
    titles = {name: page.read_text(encoding="utf-8") for name, page in recipes.items()}

    assert {*WISHES.values()} == {*recipes}
    assert [
        word for word, name in WISHES.items() if word not in titles[name].splitlines()[0].lower()
    ] == []


def children(program: str, address: str, folder: Path) -> list[ChildSpec]:
    package, function, _ = PROGRAMS[program]
    pytest.importorskip(package)
    make: Callable[..., Any] = runpy.run_path(str(EXAMPLES / "cookbook" / program))[function]
    more = [str(folder / "readings.db")] if program == "mqtt_readings.py" else []
    made = make(address, *more)
    return made if isinstance(made, list) else [made]


def pipeline_of(node: Any, program: str) -> Pipeline:
    found = process_of(node, node.whereis(PROGRAMS[program][1])).behaviour
    assert isinstance(found, Pipeline)
    return found


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_program_starts_without_its_broker_and_tells_why(
    program: str, tmp_path: Path
) -> None:
    async with running_node() as node:
        await node.supervise(children(program, PROGRAMS[program][2], tmp_path))
        pipeline = pipeline_of(node, program)
        await eventually(lambda: "Error" in str(pipeline.pipeline_facts()["lost"]))


async def spawned(node: Node, program: str, name: str, *args: object) -> Any:
    """An actor of a program."""
    behaviour = runpy.run_path(str(EXAMPLES / "cookbook" / program))[name]
    return process_of(node, await node.spawn(behaviour, *args)).behaviour


async def test_the_speed_comes_from_the_bus() -> None:
    can = pytest.importorskip("can", reason="needs python-can")
    async with running_node() as node:
        with can.Bus(interface="virtual", channel="cookbook") as bus:
            speed = await spawned(node, "can_speed.py", "Speed", "virtual", "cookbook")
            await eventually(lambda: bus.recv(0) is not None)  # it asks
            bus.send(can.Message(arbitration_id=0x123, data=[0x27, 0x10]))
            await eventually(lambda: bool(speed.kilometers == 100.0))


async def test_the_temperature_is_that_of_the_line_until_it_is_lost(short_path: Path) -> None:
    pytest.importorskip("serial", reason="needs pyserial")
    from tests.devices.cable import Cable

    line = Cable(short_path)
    line.plug()
    async with running_node() as node:
        thermometer = await spawned(node, "serial_thermometer.py", "Thermometer", str(line.path))
        await eventually(lambda: line.read() == b"T?\n")
        line.send(b"21.5\n")
        await eventually(lambda: bool(thermometer.degrees == 21.5))
        line.unplug()
        await eventually(lambda: thermometer.degrees is None)


@WITH_SERVERS
async def test_the_lamp_follows_its_switch() -> None:
    if reason := missing("mosquitto"):
        pytest.skip(reason)
    with started("mosquitto") as server:
        url = server.text("").split('"')[1]
        lamp = pipelines.MQTT(url, "hall/lamp", session="lamp")
        lamp.open()
        async with running_node() as node:
            await spawned(node, "mqtt_lamp.py", "Lamp", url)

            def press_and_look() -> bool:
                # Again and again: a subscription takes its time.
                put(pipelines.MQTT(url, "hall/switch"), [b"1"])
                lamp.wait(0.05)
                return b"on" in [item.body for item in lamp.take(10)]

            await eventually(press_and_look)
        lamp.close()


async def test_the_prices_come_from_the_publisher(short_path: Path) -> None:
    zmq = pytest.importorskip("zmq", reason="needs pyzmq")
    address = f"ipc://{short_path}/prices"
    async with running_node() as node:
        with zmq.Context.instance().socket(zmq.PUB) as publisher:
            publisher.bind(address)
            prices = await spawned(node, "zmq_prices.py", "Prices", address)

            def has_come() -> bool:
                # Again and again: a subscription takes its time.
                publisher.send_multipart([b"price.gold", b"12.5"])
                return bool(prices.last == {"price.gold": 12.5})

            await eventually(has_come)
            publisher.close(0)


@WITH_SERVERS
async def test_the_stock_follows_its_table() -> None:
    if reason := missing("postgres"):
        pytest.skip(reason)
    import psycopg

    with started("postgres") as server:
        address = server.text("").split('"')[1]
        with psycopg.connect(address, autocommit=True) as session:
            session.execute("create table stock (name text, count int)")
            session.execute("insert into stock values ('bolts', 3)")
            async with running_node() as node:
                stock = await spawned(node, "postgres_stock.py", "Stock", address)
                await eventually(lambda: bool(stock.counts == {"bolts": 3}))
                session.execute("select pg_notify('stock', 'nuts=7')")
                await eventually(lambda: bool(stock.counts == {"bolts": 3, "nuts": 7}))


BODIES = {
    "postgres": [b'{"order": 1, "price": 5, "count": 3}', b"{}"],
    "redis": [b"/home", b"/home", b"/help"],
    "rabbitmq": [b'{"amount": 3}', b'{"amount": 4}', b"no order"],
    "mosquitto": [b"21.5", b"warm"],
    "jetstream": [b'{"kilos": 3}', b"{}"],
}
SINKS = {
    "postgres": ("postgres_jobs.py", "PostgresQueue", "jobs"),
    "redis": ("redis_clicks.py", "RedisStream", "clicks"),
    "rabbitmq": ("rabbitmq_orders.py", "AMQP", "orders"),
    "mosquitto": ("mqtt_readings.py", "MQTT", "sensors/hall"),
    "jetstream": ("jetstream_parcels.py", "JetStream", "parcels parcels.berlin"),
}

RESULTS = {"postgres": ("results", "dead-jobs"), "jetstream": ("prices", "dead-parcels")}


@WITH_SERVERS
@pytest.mark.parametrize("broker", SINKS)
async def test_a_program_handles_the_items_of_its_broker(broker: str, tmp_path: Path) -> None:
    if reason := missing(broker):
        pytest.skip(reason)
    program, kind, queue = SINKS[broker]
    with started(broker) as server:
        address = server.text("").split('"')[1]
        async with running_node() as node:
            await node.supervise(children(program, address, tmp_path))
            pipeline = pipeline_of(node, program)
            await eventually(lambda: not pipeline.pipeline_facts()["lost"])
            sink: Sink = getattr(pipelines, kind)(address, *queue.split())
            await trio.to_thread.run_sync(put, sink, BODIES[broker])
            await eventually(lambda: pipeline.figures().acknowledged == len(BODIES[broker]))
            failed = pipeline.figures().failed
            total = await node.inspect("billing") if broker == "rabbitmq" else {}
        left = {name: server.left(name) for name in RESULTS.get(broker, ())}
        clicks = clicks_at(address) if broker == "redis" else {}

    rows = readings_in(tmp_path) if broker == "mosquitto" else []
    assert (failed, total, left, clicks, rows) == {
        "postgres": (1, {}, {"results": 1, "dead-jobs": 1}, {}, []),
        "redis": (0, {}, {}, {b"/home": b"2", b"/help": b"1"}, []),
        "rabbitmq": (1, {"total": "7"}, {}, {}, []),
        "mosquitto": (1, {}, {}, {}, [("sensors/hall", 21.5)]),
        "jetstream": (1, {}, {"prices": 1, "dead-parcels": 1}, {}, []),
    }[broker]


def clicks_at(address: str) -> dict[bytes, bytes]:
    import redis

    with redis.Redis.from_url(address) as client:
        found: Any = client.hgetall("clicks-of-pages")
    return dict(found)


def readings_in(folder: Path) -> list[Any]:
    file = sqlite3.connect(folder / "readings.db")
    try:
        return file.execute("select * from reading").fetchall()
    finally:
        file.close()
