"""A disk that is full, read-only or broken: commands fail and are never acknowledged, and service
returns with the disk, in the same program.
"""

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from ergo_py import CallError, InitError, Node, ask
from ergo_py.entities import EntityStoreError, SQLite
from tests.entities.bank import Account, open_bank
from tests.support import THOROUGH

from .recorded_disk import Event, RecordedDisk, can_record, recorded

FULL, READ_ONLY, CANNOT_OPEN = 13, 8, 14
SHARED_MEMORY = 10 | 19 << 8
WRITE_ERROR, SYNC_ERROR = 10 | 3 << 8, 10 | 4 << 8
ROOT = Path(__file__).parent.parent.parent.parent

needs_recorder = pytest.mark.skipif(not can_record(), reason="SQLite is linked into this Python")


async def deposit(node: Node) -> int:
    """Deposit a coin. Returns how many were acknowledged: 1, or 0 if the command has failed."""
    try:
        await node.entity(Account, "ada").call(ask(Account.deposit, 1), timeout=None)
    except (CallError, EntityStoreError):
        return 0
    return 1


async def balance(node: Node) -> int:
    """The coins of the account."""
    amount, _ = await node.entity(Account, "ada").call(ask(Account.look), timeout=None)
    return amount


@needs_recorder
@pytest.mark.parametrize(
    "error, verbs",
    [
        (FULL, ("write",)),
        (WRITE_ERROR, ("write", "truncate")),
        (SYNC_ERROR, ("sync",)),
    ],
)
async def test_a_disk_that_fails_acknowledges_nothing_and_service_returns_with_it(
    error: int, verbs: tuple[str, ...], tmp_path: Path
) -> None:
    with trio.fail_after(60), recorded(tmp_path) as disk:
        async with open_bank(SQLite(tmp_path / "state.db")) as node:
            assert await deposit(node) == 1

            disk.fault = lambda event: error if event.verb in verbs else 0
            assert [await deposit(node) for _ in range(3)] == [0, 0, 0]
            assert await balance(node) in (1, 2, 3, 4)  # a command that failed may have happened

            disk.fault = None
            before = await balance(node)
            assert await deposit(node) == 1
            assert await balance(node) == before + 1
    assert await later_balance(tmp_path / "state.db") == before + 1


async def later_balance(path: Path) -> int:
    """The coins that a later program finds."""
    async with open_bank(SQLite(path)) as node:
        return await balance(node)


@needs_recorder
async def test_a_full_disk_can_be_read(tmp_path: Path) -> None:
    with trio.fail_after(60), recorded(tmp_path) as disk:
        async with open_bank(SQLite(tmp_path / "state.db")) as node:
            assert await deposit(node) == 1
            disk.fault = lambda event: FULL if event.verb == "write" else 0
            assert await deposit(node) == 0
            assert await balance(node) == 1
            disk.fault = None


SMALL = """
import subprocess
import sys
from pathlib import Path

import trio

from ergo_py.entities import SQLite
from tests.entities.bank import open_bank
from tests.entities.stores.test_disk_faults import balance, deposit


def fill(path: Path) -> None:
    try:
        with open(path, "ab", buffering=0) as file:
            while True:
                file.write(bytes(512))
    except OSError:
        pass


async def main(path: Path) -> None:
    async with open_bank(SQLite(path)) as node:
        await deposit(node)
    filler = path.with_name("filler")
    fill(filler)
    async with open_bank(SQLite(path)) as node:
        print("full", await balance(node), await deposit(node), await balance(node))
        filler.unlink()
        print("room", await deposit(node), await balance(node))


directory = Path(sys.argv[1])
mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(directory)]
if subprocess.run(mount, capture_output=True, check=False).returncode:
    print("cannot mount")
else:
    trio.run(main, directory / "state.db")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="unshare is of Linux")
def test_a_file_is_opened_and_read_on_a_full_disk(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no file system of its own")
    command = [*(unshare, "-rm", sys.executable, "-c", SMALL, str(tmp_path))]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    if done.stderr.startswith("unshare") or done.stdout == "cannot mount\n":
        pytest.skip("no file system of its own")
    assert (done.stdout, done.stderr) == ("full 1 0 1\nroom 1 2\n", "")


@needs_recorder
async def test_a_file_that_cannot_have_shared_memory_is_not_opened(tmp_path: Path) -> None:
    with recorded(tmp_path) as disk:
        disk.fault = lambda event: SHARED_MEMORY if event.verb == "open" else 0
        with pytest.raises(InitError, match="cannot open"):
            async with open_bank(SQLite(tmp_path / "state.db")):
                pass


@needs_recorder
async def test_a_read_only_disk_acknowledges_nothing_and_service_returns(tmp_path: Path) -> None:
    def is_read_only(event: Event) -> int:
        return {"open": CANNOT_OPEN, "sync": 0}.get(event.verb, READ_ONLY)

    with trio.fail_after(60), recorded(tmp_path) as disk:
        async with open_bank(SQLite(tmp_path / "state.db")) as node:
            assert await deposit(node) == 1
            disk.fault = is_read_only
            assert [await deposit(node) for _ in range(3)] == [0, 0, 0]
            with pytest.raises(EntityStoreError, match="cannot open"):
                await balance(node)
            disk.fault = None
            assert await balance(node) == 1
            assert await deposit(node) == 1


async def _run_with_fault(disk: RecordedDisk, path: Path, number: int, error: int) -> int:
    """Run commands; the call of SQLite with this number fails. Returns how many calls there were,
    from the first command to the end of the program.
    """
    calls = 0

    def fault(_event: Event) -> int:
        nonlocal calls
        calls += 1
        return error if calls == number else 0

    async with open_bank(SQLite(path)) as node:
        disk.fault = fault
        acknowledged = sum([await deposit(node) for _ in range(4)])
        assert acknowledged >= 3
        found = await balance(node)
        assert acknowledged <= found <= 4
    disk.fault = None
    assert await later_balance(path) == found
    return calls


@needs_recorder
@pytest.mark.parametrize("error", [FULL, WRITE_ERROR])
async def test_each_call_for_a_file_may_fail(error: int, tmp_path: Path) -> None:
    number, calls = 1, 1
    while number <= calls:
        directory = tmp_path / str(number)
        directory.mkdir()
        with trio.fail_after(60), recorded(directory) as disk:
            calls = max(calls, await _run_with_fault(disk, directory / "state.db", number, error))
        number += 1 if THOROUGH else 3
    assert calls >= 12


async def test_a_replaced_file_fails_commands_and_service_returns_with_it(tmp_path: Path) -> None:
    path, moved = tmp_path / "state.db", tmp_path / "moved.db"
    other = tmp_path / "other.db"
    async with open_bank(SQLite(other)) as node:
        assert await deposit(node) == 1
    before = other.read_bytes()
    async with open_bank(SQLite(path)) as node:
        assert await deposit(node) == 1
        path.rename(moved)
        other.rename(path)

        assert [await deposit(node) for _ in range(3)] == [0, 0, 0]
        assert path.read_bytes() == before

        path.rename(other)
        moved.rename(path)
        assert await deposit(node) == 1
        assert await balance(node) == 2


async def test_a_removed_log_loses_no_command(tmp_path: Path) -> None:
    path, log = tmp_path / "state.db", tmp_path / "state.db-wal"
    async with open_bank(SQLite(path)) as node:
        assert await deposit(node) == 1
        log.unlink()
        assert await deposit(node) == 1
        # A later program would find these files.
        copy = tmp_path / "copy"
        copy.mkdir()
        (copy / path.name).write_bytes(path.read_bytes())
        (copy / log.name).write_bytes(log.read_bytes())
        connection = sqlite3.connect(copy / path.name)
        assert connection.execute("select version from entities").fetchall() == [(2,)]
        connection.close()


PROGRAM = """
import resource
import sys
from pathlib import Path

import trio

from ergo_py.entities import SQLite
from tests.entities.bank import open_bank
from tests.entities.stores.test_disk_faults import balance, deposit


async def main(path: Path) -> None:
    async with open_bank(SQLite(path)) as node:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, most))
        acknowledged = 0
        while await deposit(node):
            acknowledged += 1
        print("full", await balance(node) == acknowledged)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        print("again", await deposit(node), await balance(node) == acknowledged + 1)


trio.run(main, Path(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="it has no limit for the size of files")
def test_a_limit_of_the_system_fails_commands_and_service_returns_without_it(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "state.db")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("full True\nagain 1 True\n", "")
