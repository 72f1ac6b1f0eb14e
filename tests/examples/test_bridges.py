"""The recipes for libraries that block: serial ports, Kafka and PostgreSQL."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any

import pytest
import trio

from ergo_py import Crashed, Shutdown, TargetDownError
from ergo_py.meta import BlockingCalls, Invoke, Port
from tests.examples.programs import EXAMPLES, promises
from tests.meta.owner import Owned, eventually, owning
from tests.postgres import database_at, needs_postgres, postgres_programs, server_user


def run(script: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- serial ports and Kafka ------------------------------------------------------------------------


@pytest.fixture
def recipes() -> ModuleType:
    spec = spec_from_file_location("recipes", EXAMPLES / "blocking" / "recipes.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["recipes"] = module
    spec.loader.exec_module(module)
    return module


class FakeSerial:
    """Lines that another thread puts in; a read waits for a line, or for its cancellation."""

    def __init__(self) -> None:
        self.lines: SimpleQueue[bytes] = SimpleQueue()
        self.is_open = True

    def readline(self) -> bytes:
        return self.lines.get()

    def cancel_read(self) -> None:
        self.lines.put(b"")

    def close(self) -> None:
        self.is_open = False


async def test_the_recipe_for_serial_ports_turns_lines_into_messages_and_ends_a_read(
    recipes: ModuleType,
) -> None:
    serial = FakeSerial()
    async with owning() as owned:
        poller = await owned.spawn(recipes.serial_lines(serial))

        serial.lines.put(b"hello\n")
        assert await owned.next() == recipes.SerialLine(b"hello\n")
        owned.node.send_exit(poller)

        assert await owned.down() == Shutdown()
        assert not serial.is_open


# pytest-trio drops the reason of a skip inside an asynchronous test; a fixture keeps it.
@pytest.fixture
def serial() -> Any:
    return pytest.importorskip("serial", reason="needs the package pyserial")


async def test_the_recipe_for_serial_ports_works_with_pyserial_on_a_terminal(
    recipes: ModuleType, serial: Any
) -> None:
    master, slave = os.openpty()
    try:
        async with owning() as owned:
            poller = await owned.spawn(
                recipes.serial_lines(serial.Serial(os.ttyname(slave), timeout=None))
            )

            os.write(master, b"hello\n")
            assert await owned.next() == recipes.SerialLine(b"hello\n")
            owned.node.send_exit(poller)

            assert await owned.down() == Shutdown()
    finally:
        os.close(master)
        os.close(slave)


@dataclass
class FakeRecord:
    content: bytes
    failure: str | None = None

    def error(self) -> str | None:
        return self.failure

    def topic(self) -> str:
        return "fruit"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes:
        return self.content


class FakeConsumer:
    def __init__(self) -> None:
        self.records: SimpleQueue[FakeRecord] = SimpleQueue()
        self.has_left = False

    def poll(self, timeout: float) -> FakeRecord | None:
        try:
            return self.records.get(timeout=timeout)
        except Empty:
            return None

    def close(self) -> None:
        self.has_left = True


async def test_the_recipe_for_kafka_turns_records_into_messages_and_an_error_into_the_end(
    recipes: ModuleType,
) -> None:
    consumer = FakeConsumer()
    async with owning() as owned:
        await owned.spawn(recipes.kafka_records(consumer))

        consumer.records.put(FakeRecord(b"apple"))
        assert await owned.next() == recipes.KafkaRecord("fruit", 0, 7, None, b"apple")
        consumer.records.put(FakeRecord(b"", "broker down"))

        reason = await owned.down()
        assert isinstance(reason, Crashed)
        assert str(reason.error) == "broker down"
        assert consumer.has_left


@pytest.fixture
def kafka() -> Any:
    return pytest.importorskip("confluent_kafka", reason="needs the package confluent-kafka")


async def test_the_recipe_for_kafka_works_with_confluent_kafka(
    recipes: ModuleType, kafka: Any
) -> None:
    # Its library brings a broker for tests, which lives in the producer.
    producer = kafka.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "unused"})
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    producer.produce("fruit", b"apple")
    producer.flush(10)
    consumer = kafka.Consumer(
        {
            "bootstrap.servers": f"{broker.host}:{broker.port}",
            "group.id": "test",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["fruit"])
    async with owning() as owned:
        poller = await owned.spawn(recipes.kafka_records(consumer))

        record = await owned.next()
        owned.node.send_exit(poller)

        assert (record.topic, record.value) == ("fruit", b"apple")
        assert await owned.down() == Shutdown()


# -- PostgreSQL ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def database_directory() -> Iterator[Path]:
    with database_at() as place:
        yield place


@asynccontextmanager
async def postgres(place: Path) -> AsyncIterator[tuple[Owned, str]]:
    """A server, run by a port, that ends with the node; and how to connect to it."""
    programs = postgres_programs()
    assert programs is not None
    command = [
        str(programs / "postgres"),
        "-D",
        "data",
        "-k",
        str(place),
        "-c",
        "listen_addresses=",
        "-F",
    ]
    async with owning(limit=60) as owned:
        # SIGTERM waits until every client has left, so the program has its time.
        await owned.spawn(
            Port(command, cwd=place, user=server_user(), stop=Port.StopTimes(0.0, 8.0, 1.0)),
            stop_timeout=10.0,
        )
        while "ready to accept connections" not in (await owned.until(Port.ErrorLine)).line:
            pass
        yield owned, f"host={place} user=ergo dbname=postgres"
    assert not owned.of(Port.Exited)


@needs_postgres
async def test_the_recipe_for_postgresql_receives_notifications(database_directory: Path) -> None:
    async with postgres(database_directory) as (_, conninfo):
        printed = await trio.to_thread.run_sync(
            run, EXAMPLES / "blocking" / "postgres.py", conninfo
        )

    assert (
        printed
        == dict(promises("blocking"))[
            'python examples/blocking/postgres.py "host=localhost dbname=postgres"'
        ]
    )


@needs_postgres
async def test_a_stop_cancels_a_query_in_progress(database_directory: Path) -> None:
    import psycopg

    async with postgres(database_directory) as (owned, conninfo):
        calls = await owned.spawn(
            BlockingCalls(
                factory=lambda: psycopg.connect(conninfo), interrupt=psycopg.Connection.cancel
            ),
            stop_timeout=60,
        )
        ended: list[BaseException] = []

        async def ask() -> None:
            try:
                await owned.node.call(calls, Invoke("execute", "select pg_sleep(60)"), timeout=50)
            except (psycopg.errors.QueryCanceled, TargetDownError) as error:
                ended.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await eventually(lambda: owned.node.meta_info(calls).messages_in == 1)
            await trio.sleep(0.1)
            with trio.fail_after(25):
                owned.node.send_exit(calls)
                assert await owned.down() == Shutdown()

        assert len(ended) == 1
