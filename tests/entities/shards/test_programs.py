"""A fleet of three programs and a PostgreSQL server, all of which are killed and stopped:
`python -m benchmarks test-deep tests/entities/shards/test_programs.py`.
"""

import signal
from collections import Counter

import pytest
import trio

from ergo_py import ErgoError, Node
from tests.entities.shards.programs import (
    LEASE,
    Ledger,
    Note,
    Pass,
    fleet_network,
    fleet_program,
    start_fleet,
)
from tests.postgres import needs_postgres, running_postgres
from tests.support import THOROUGH, running_node, short_directory

pytestmark = [
    needs_postgres,
    pytest.mark.skipif(not THOROUGH, reason="stops programs for longer than their leases"),
]
KEYS = [f"ledger {number}" for number in range(10)]


class Clients:
    """Clients that note ids, and repeat each until it is acknowledged."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.noted: dict[str, str] = {}
        """The ledgers of acknowledged ids."""
        self.passed: dict[str, str] = {}
        """The ledgers that acknowledged ids were passed to."""
        self.is_over = False

    async def work(self, number: int) -> None:
        step = 0
        while not self.is_over:
            step += 1
            id = f"{number}.{step}"
            key, other = KEYS[(number + step) % 10], KEYS[(number + 3 * step + 1) % 10]
            request = Pass(id, other) if step % 3 == 0 else Note(id)
            await self.until_done(key, request, id)
            self.noted[id] = key
            if isinstance(request, Pass):
                self.passed[id] = other
            await trio.sleep(0.01)

    async def until_done(self, key: str, request: Note | Pass, id: str | None) -> list[str] | None:
        while True:
            try:
                entity = self.node.entity(Ledger, key)
                return await entity.call(request, once=id, timeout=2.0)
            except ErgoError:
                await trio.sleep(0.05)

    async def check(self) -> None:
        """Each acknowledged id is there once, and so is each that was passed on."""
        with trio.fail_after(120):
            while True:
                ids = {key: await self.until_done(key, Note(), None) or [] for key in KEYS}
                arrived = all(f"got {id}" in ids[to] for id, to in self.passed.items())
                if arrived:
                    break
                await trio.sleep(0.1)
        for key in KEYS:
            assert [id for id, count in Counter(ids[key]).items() if count > 1] == []
        assert [id for id, key in self.noted.items() if id not in ids[key]] == []


async def test_a_fleet_loses_and_doubles_no_acknowledged_command() -> None:
    from ergo_py.entities import Postgres

    with running_postgres() as server, short_directory() as place:
        network, database = fleet_network(place), server.conninfo
        async with (
            running_node("test@test", network=network, limit=600.0) as node,
            fleet_program("a@test", place, database) as stopped,
        ):
            await start_fleet(node, Postgres(database))
            clients = Clients(node)
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    nursery.start_soon(clients.work, number)
                async with fleet_program("b@test", place, database) as killed:
                    await trio.sleep(4)
                    # A stopped program finds another token when it continues.
                    stopped.send_signal(signal.SIGSTOP)
                    await trio.sleep(3 * LEASE)
                    stopped.send_signal(signal.SIGCONT)
                    await trio.sleep(2)
                    # The server comes back, and no program is restarted.
                    server.stop(signal.SIGQUIT)
                    await trio.sleep(1)
                    server.start()
                    await trio.sleep(3)
                    killed.kill()
                    await trio.sleep(LEASE)
                await node.drain(timeout=20)
                clients.is_over = True
            await clients.check()
