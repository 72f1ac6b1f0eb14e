"""Programs that are killed: the file has every acknowledged command, once."""

import subprocess
import sys
from pathlib import Path

import trio

from ergo_py import ask
from ergo_py.entities import SQLite

from .bank import Account, open_bank
from .program import CLIENTS

ROOT = Path(__file__).parent.parent.parent
KILLS = 2


def _kill_after(path: Path, life: int, lines: int) -> tuple[int, int]:
    """Kill a program after some lines. Returns the sum of the acknowledged deposits, and how many
    further commands may have been carried out.
    """
    command = [sys.executable, "-m", "tests.entities.program", str(path), str(life)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        told = []
        for line in program.stdout:
            told.append(line)
            if len(told) > lines:
                break
        program.kill()
        told += program.stdout.readlines()
    whole = [line.split() for line in told if line.endswith("\n")]
    return sum(int(line[2]) for line in whole if line[0] == "deposit"), CLIENTS


def test_no_acknowledged_command_is_lost_when_the_program_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    acknowledged = unknown = 0
    for life in range(KILLS):
        deposits, more = _kill_after(path, life, 100 + 37 * life)
        acknowledged += deposits
        unknown += more

    async def look() -> None:
        async with open_bank(SQLite(path), now=trio.current_time) as node:
            total = 0
            for _ in range(100):
                await trio.sleep(0.05)
                total, entries = 0, 0
                for number in range(CLIENTS):
                    amount, got = await node.entity(Account, str(number)).call(
                        ask(Account.look), timeout=None
                    )
                    total, entries = total + amount, entries + len(got)
                if acknowledged <= total <= acknowledged + 2 * unknown and total % 2 == 0:
                    break
            # Money is neither lost nor made: transfers under way have arrived.
            assert acknowledged <= total <= acknowledged + 2 * unknown
            assert total % 2 == 0

    trio.run(look)
