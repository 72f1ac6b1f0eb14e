"""The examples of programs, files and blocking libraries print what their READMEs say."""

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
import trio

from ergo_py import Shutdown, TargetDownError
from ergo_py.meta import BlockingCalls, Invoke, Port, PortErrorLine, PortExited, StopTimes
from tests.meta.owner import Owned, eventually, owning

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def run(script: Path, *arguments: str, given: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def promised(name: str) -> str:
    (found,) = re.findall(
        r"^```text\n(.*?)^```$", (EXAMPLES / name / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    return str(found)


@pytest.mark.parametrize("name", ["port", "files", "fd", "signals", "watch"])
def test_an_example_prints_what_its_readme_says(name: str) -> None:
    assert run(EXAMPLES / name / "main.py") == promised(name)


def test_the_example_of_standard_input_reads_what_the_readme_pipes_into_it() -> None:
    assert run(EXAMPLES / "stdin" / "main.py", given="hello\nworld\n") == promised("stdin")


def test_the_recipe_for_sqlite_prints_what_its_readme_says() -> None:
    assert run(EXAMPLES / "blocking" / "sqlite.py") == promised("blocking")


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


def postgres_programs() -> Path | None:
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "postgres").exists() and (place / "initdb").exists()), None)


def server_user() -> str | None:
    """PostgreSQL does not run as root."""
    if os.getuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in known), "")


needs_postgres = pytest.mark.skipif(
    postgres_programs() is None or server_user() == "" or find_spec("psycopg") is None,
    reason="needs the programs of PostgreSQL (initdb, postgres), a user to run them and the package psycopg",
)


@pytest.fixture(scope="module")
def database_directory() -> Iterator[Path]:
    # Not below pytest's own directory, into which another user may not look.
    with tempfile.TemporaryDirectory(prefix="ergo-pg-") as place:
        user = server_user()
        if user:
            shutil.chown(place, user)
        programs = postgres_programs()
        assert programs is not None
        subprocess.run(
            [programs / "initdb", "-D", f"{place}/data", "-A", "trust", "-U", "ergo", "-N", "-E", "UTF8", "--locale=C"],
            user=user,
            cwd=place,
            check=True,
            capture_output=True,
            timeout=60,
        )
        yield Path(place)


@asynccontextmanager
async def postgres(place: Path) -> AsyncIterator[tuple[Owned, str]]:
    """A server, run by a port, that ends with the node; and how to connect to it."""
    programs = postgres_programs()
    assert programs is not None
    command = [str(programs / "postgres"), "-D", "data", "-k", str(place), "-c", "listen_addresses=", "-F"]
    async with owning(limit=60) as owned:
        # SIGTERM waits until every client has left, so the program has its time.
        await owned.spawn(
            Port(command, cwd=place, user=server_user(), stop=StopTimes(0.0, 8.0, 1.0)), stop_timeout=10.0
        )
        while "ready to accept connections" not in (await owned.until(PortErrorLine)).line:
            pass
        yield owned, f"host={place} user=ergo dbname=postgres"
    assert not owned.of(PortExited)


@needs_postgres
async def test_the_recipe_for_postgresql_hears_what_is_notified(database_directory: Path) -> None:
    async with postgres(database_directory) as (_, conninfo):
        printed = await trio.to_thread.run_sync(run, EXAMPLES / "blocking" / "postgres.py", conninfo)

    assert printed == "news: first\nnews: second\n"


@needs_postgres
async def test_a_query_in_progress_is_cancelled_by_the_stop(database_directory: Path) -> None:
    import psycopg

    async with postgres(database_directory) as (owned, conninfo):
        calls = await owned.spawn(
            BlockingCalls(factory=lambda: psycopg.connect(conninfo), interrupt=psycopg.Connection.cancel)
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
            with trio.fail_after(4):
                owned.node.send_exit(calls)
                assert await owned.down() == Shutdown()

        assert len(ended) == 1
