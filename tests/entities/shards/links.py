"""Network namespaces with a link between each two of them. A test cuts each direction of a
link by itself.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path

import pytest

from tests.network.nats.server import program_of_server

__all__ = ["Links", "NatsServers"]

_NOWHERE = "02:00:00:00:ff:ff"
"""The hardware address of no namespace."""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


class Links:
    """Namespaces on a bridge. A cut drops frames without a word, as a broken switch does: the
    sender has a wrong hardware address for the receiver. That needs neither a firewall nor a
    queueing discipline, which the kernel may not have.
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self._prefix = f"ergo{os.getpid()}-"
        self._stack = ExitStack()

    def __enter__(self) -> "Links":
        if os.getuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
            pytest.skip("needs root, ip and nsenter for network namespaces")
        with ExitStack() as stack:
            for name in ("bridge", *self._names):
                space = self._prefix + name
                try:
                    _run("ip", "netns", "add", space)
                except subprocess.CalledProcessError as error:
                    pytest.skip(f"no network namespaces: {error.stderr.decode().strip()}")
                stack.callback(_run, "ip", "netns", "del", space)
                _run("ip", "-n", space, "link", "set", "lo", "up")
            self._build()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _build(self) -> None:
        bridge = self._prefix + "bridge"
        _run("ip", "-n", bridge, "link", "add", "bridge0", "type", "bridge")
        _run("ip", "-n", bridge, "link", "set", "bridge0", "up")
        for name in self._names:
            space = self._prefix + name
            _run(
                *("ip", "link", "add", "link0", "netns", space, "address", self._hardware(name)),
                *("type", "veth", "peer", "name", f"to-{name}", "netns", bridge),
            )
            _run("ip", "-n", bridge, "link", "set", f"to-{name}", "master", "bridge0", "up")
            _run("ip", "-n", space, "address", "add", f"{self.address(name)}/24", "dev", "link0")
            _run("ip", "-n", space, "link", "set", "link0", "up")
        self.heal()

    def _number(self, name: str) -> int:
        return self._names.index(name) + 1

    def _hardware(self, name: str) -> str:
        return f"02:00:00:00:00:{self._number(name):02x}"

    def address(self, name: str) -> str:
        """The address of a namespace."""
        return f"10.77.0.{self._number(name)}"

    def enter(self, name: str, user: str | None = None) -> list[str]:
        """The beginning of a command that runs in a namespace."""
        command = ["nsenter", f"--net=/run/netns/{self._prefix}{name}"]
        if user is not None:
            import pwd

            entry = pwd.getpwnam(user)
            command += ["-S", str(entry.pw_uid), "-G", str(entry.pw_gid)]
        return [*command, "--"]

    def cut(self, links: Sequence[tuple[str, str]]) -> None:
        """Drop all frames that the first of each pair sends to the second."""
        for sender, receiver in links:
            self._point(sender, receiver, _NOWHERE)

    def heal(self) -> None:
        """Deliver all again."""
        for sender, receiver in permutations(self._names, 2):
            self._point(sender, receiver, self._hardware(receiver))

    def _point(self, sender: str, receiver: str, hardware: str) -> None:
        neighbour = ("neigh", "replace", self.address(receiver), "lladdr", hardware)
        space = self._prefix + sender
        _run("ip", "-n", space, *neighbour, "dev", "link0", "nud", "permanent")


class NatsServers:
    """A NATS server in each of several namespaces, at its loopback interface for the node there,
    and routes between all of them.
    """

    def __init__(self, links: Links, names: Sequence[str], place: Path) -> None:
        self._links = links
        self._names = names
        self._place = place
        self._programs: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "NatsServers":
        routes = [f"nats://{self._links.address(each)}:6222" for each in self._names]
        for name in self._names:
            config = self._place / f"{name}.conf"
            # A node knows the server of its own namespace only: no way around a cut link.
            config.write_text(
                f"""
                listen: 127.0.0.1:4222
                server_name: {name}
                jetstream {{ store_dir: "{self._place}/{name}" }}
                cluster {{
                    name: links, listen: "{self._links.address(name)}:6222", no_advertise: true
                    routes: [{", ".join(routes)}]
                }}
                """,
                encoding="utf-8",
            )
            with (self._place / f"{name}.log").open("wb") as log:
                command = [*self._links.enter(name), program_of_server(), "-c", str(config)]
                self._programs.append(subprocess.Popen(command, stdout=log, stderr=log))
        return self

    def has_leader(self) -> bool:
        """Whether the servers have agreed upon a leader."""
        return any(
            b"cluster new metadata leader" in path.read_bytes()
            for path in self._place.glob("*.log")
        )

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.kill()
            program.wait()
