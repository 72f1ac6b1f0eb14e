"""A PostgreSQL server for tests, with a directory of its own and no port."""

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import short_directory

__all__ = [
    "PostgresServer",
    "database_at",
    "needs_postgres",
    "postgres_programs",
    "running_postgres",
    "server_user",
]


def postgres_programs() -> Path | None:
    """The directory of the programs, if PostgreSQL is installed."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next(
        (
            place
            for place in places
            if (place / "postgres").exists() and (place / "initdb").exists()
        ),
        None,
    )


def server_user() -> str | None:
    """The user for the server: PostgreSQL does not run as root. None for this user."""
    if os.getuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in known), "")


needs_postgres = pytest.mark.skipif(
    postgres_programs() is None or server_user() == "" or find_spec("psycopg") is None,
    reason="needs initdb and postgres of PostgreSQL, a user to run them and the package psycopg",
)


@contextmanager
def database_at() -> Iterator[Path]:
    """A directory with the files of an empty server in ``data``."""
    # Not below pytest's own directory, into which another user may not look.
    with short_directory() as place:
        user = server_user()
        if user:
            try:
                shutil.chown(place, user)
            except PermissionError:
                pytest.skip("this root may not give a directory to another user")
        programs = postgres_programs()
        assert programs is not None
        command = [str(programs / "initdb"), "-D", f"{place}/data", "-A", "trust", "-U", "ergo"]
        subprocess.run(
            [*command, "-N", "-E", "UTF8", "--locale=C"],
            user=user,
            cwd=place,
            check=True,
            capture_output=True,
            timeout=200,
        )
        yield place


class PostgresServer:
    """A server that a test starts, kills and stops for a while.

    ``listen`` is an address for connections over TCP, and ``within`` the beginning of a command
    that runs in a network namespace, as the user of the server.
    """

    def __init__(self, place: Path, listen: str = "", within: Sequence[str] = ()) -> None:
        self.place = place
        self._listen = listen
        self._within = within
        self.conninfo = f"host={place} user=ergo dbname=postgres"
        self._program: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        log = self.place / "log"
        if self._listen:
            with (self.place / "data/pg_hba.conf").open("a", encoding="utf-8") as rules:
                rules.write("host all all samenet trust\n")
        program = self._program = self._launched(log)
        deadline = time.monotonic() + 60
        while b"ready to accept connections" not in (said := log.read_bytes()):
            has_ended, is_late = program.poll() is not None, time.monotonic() > deadline
            if has_ended and not is_late and b"shared memory block" in said:
                # The sessions of a server that was killed end a little later than it.
                program = self._program = self._launched(log)
            elif has_ended or is_late:
                raise RuntimeError(f"PostgreSQL does not start: {said.decode()}")
            time.sleep(0.02)

    def _launched(self, log: Path) -> subprocess.Popen[bytes]:
        programs = postgres_programs()
        assert programs is not None
        log.write_bytes(b"")
        with log.open("ab") as output:
            return subprocess.Popen(
                [
                    *self._within,
                    str(programs / "postgres"),
                    "-D",
                    "data",
                    "-k",
                    str(self.place),
                    "-F",
                    "-c",
                    f"listen_addresses={self._listen}",
                ],
                cwd=self.place,
                user=None if self._within else server_user(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT ends the connections first, SIGQUIT recovers at the next start."""
        program, self._program = self._program, None
        if program is not None:
            program.send_signal(how)
            program.wait(60)


@contextmanager
def running_postgres(listen: str = "", within: Sequence[str] = ()) -> Iterator[PostgresServer]:
    """A server, started."""
    with database_at() as place:
        server = PostgresServer(place, listen, within)
        try:
            server.start()
            yield server
        finally:
            server.stop()
