"""A fleet of three programs and a PostgreSQL server, all of which are killed and stopped:
`python -m benchmarks test-deep tests/entities/shards/test_programs.py`.
"""

import signal
from collections import Counter

import pytest
import trio

from tests.entities.shards.programs import (
    KEYS,
    LEASE,
    Clients,
    Note,
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


async def check(clients: Clients) -> None:
    """Each acknowledged id is there once, and so is each that was passed on."""
    with trio.fail_after(120):
        while True:
            ids = {key: await clients.until_done(key, Note(), None) or [] for key in KEYS}
            arrived = all(f"got {id}" in ids[to] for id, to in clients.passed.items())
            if arrived:
                break
            await trio.sleep(0.1)
    for key in KEYS:
        assert [id for id, count in Counter(ids[key]).items() if count > 1] == []
    assert [id for id, key in clients.noted.items() if id not in ids[key]] == []


async def test_a_fleet_loses_and_doubles_no_acknowledged_command() -> None:
    from ergo_py.entities import Postgres

    with running_postgres() as server, short_directory() as path:
        place = str(path)
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
            await check(clients)
