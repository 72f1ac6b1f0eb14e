"""Redis and PostgreSQL for tests: each on a socket in a directory of its own, and their rigs."""

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import psycopg
import redis

from ergo_py.pipelines import PostgresQueue, RedisStream, Source
from ergo_py.testing.bridges import SourceRig
from tests.pipelines.brokers.rigs import put
from tests.postgres import PostgresServer, running_postgres
from tests.support import short_directory

__all__ = ["PostgresRig", "RedisRig", "RedisServer", "Restartable", "started"]


class Restartable(Protocol):
    """A server that a test kills and starts again."""

    def start(self) -> None:
        """Start it, and wait until it takes connections."""

    def stop(self, how: signal.Signals = ..., /) -> None:
        """End it by a signal."""


class RedisServer:
    """A server that writes each command to its file before it answers."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.url = f"unix://{place}/redis"
        self._program: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = ["redis-server", "--port", "0", "--unixsocket", f"{self.place}/redis", "--dir"]
        self._program = subprocess.Popen(
            [*command, str(self.place), "--appendonly", "yes", "--appendfsync", "always"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        end = time.monotonic() + 60
        while True:
            try:
                with redis.Redis.from_url(self.url) as client:
                    client.ping()
                    return
            except redis.ConnectionError:  # also while it reads its file
                if time.monotonic() > end or self._program.poll() is not None:
                    raise
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        program, self._program = self._program, None
        if program is not None:
            program.send_signal(how)
            program.wait(60)


class RedisRig(SourceRig):
    def __init__(self, server: RedisServer, stream: str) -> None:
        self.server, self.stream = server, stream

    def source(self) -> Source:
        return RedisStream(self.server.url, self.stream)

    def put(self, bodies: Sequence[bytes]) -> None:
        put(RedisStream(self.server.url, self.stream), bodies)

    def left(self) -> int:
        with redis.Redis.from_url(self.server.url, decode_responses=True) as client:
            groups: object = client.xinfo_groups(self.stream)
            assert isinstance(groups, list)
            [group] = groups
            later: object = client.xrange(self.stream, min=f"({group['last-delivered-id']}")
        assert isinstance(later, list)
        return int(group["pending"]) + len(later)


class PostgresRig(SourceRig):
    def __init__(self, server: PostgresServer, queue: str) -> None:
        self.server, self.queue = server, queue

    def source(self) -> Source:
        return PostgresQueue(self.server.conninfo, self.queue)

    def put(self, bodies: Sequence[bytes]) -> None:
        put(PostgresQueue(self.server.conninfo, self.queue), bodies)

    def left(self) -> int:
        with psycopg.connect(self.server.conninfo) as connection:
            query = "select count(*) from ergo_items where queue = %s"
            found = connection.execute(query, (self.queue,)).fetchone()
        assert found is not None
        return int(found[0])


@contextmanager
def started(broker: str) -> Iterator[RedisServer | PostgresServer]:
    """A server of this kind, started."""
    with ExitStack() as stack:
        if broker == "postgres":
            yield stack.enter_context(running_postgres())
            return
        assert shutil.which("redis-server")
        server = RedisServer(stack.enter_context(short_directory()))
        try:
            server.start()
            yield server
        finally:
            server.stop()
