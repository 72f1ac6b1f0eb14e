"""The fleet of `examples/fleet`: devices report to nodes that drain and die."""

import re
import signal
from contextlib import ExitStack

import pytest
import trio

from ergo_py.entities import MemoryStore
from ergo_py.network import Memory
from examples.fleet.devices import Device as SimulatedDevice
from examples.fleet.devices import Total, ask
from examples.fleet.fleet import TYPES, Fleet
from tests.examples.programs import EXAMPLES, Program, running
from tests.postgres import needs_postgres, running_postgres
from tests.support import THOROUGH, running_node


async def test_devices_lose_no_report_when_a_node_drains() -> None:
    network, store = Memory(types=TYPES), MemoryStore()
    total = Total()
    async with (
        running_node("fleet@berlin", network=network, log_output="none") as berlin,
        running_node("fleet@paris", network=network, log_output="none") as paris,
    ):
        places = []
        for node in (berlin, paris):
            await node.spawn(Fleet, store, "127.0.0.1", 0, name="fleet")
            host, _, port = (await node.call("gate", "where")).rpartition(":")
            places.append((host, int(port)))
        async with trio.open_nursery() as nursery:
            for number in range(5):
                device = SimulatedDevice(f"device-{number}", places, total)
                nursery.start_soon(device.run, 20, 0.0)
            await paris.drain()

        assert (total.stored, total.wrong) == (100, [])
        # What is not a report has an answer, too.
        async with await trio.open_tcp_stream(*places[0]) as stream:
            assert await ask(stream, "device-1 x 1") == (
                "error: invalid literal for int() with base 10: 'x'"
            )
            assert (await ask(stream, "a b")).startswith("error: write NAME NUMBER VALUE")
            assert (await ask(stream, "device-1 7 3")) == "ok 20"
            assert (await ask(stream, "device-1")).startswith("reports=20 value=20.0 ")


@needs_postgres
@pytest.mark.skipif(not THOROUGH, reason="waits for a lease")
def test_a_fleet_of_programs_loses_no_report_when_a_node_is_killed() -> None:
    readme = (EXAMPLES / "fleet" / "README.md").read_text(encoding="utf-8")
    command = re.findall(r"^ergo (run .*@berlin .*)$", readme, re.MULTILINE)[0]
    with running_postgres() as server, ExitStack() as stack:
        programs: list[Program] = []
        for place in ("berlin", "paris", "rome"):
            words = command.replace("berlin", place).split()[:-2]
            program = stack.enter_context(running("-m", "ergo_py", *words, server.conninfo, 0))
            programs.append(program)
        places = [f"127.0.0.1:{each.port()}" for each in programs]
        devices = stack.enter_context(
            running("examples/fleet/devices.py", "--reports", 100, *places)
        )
        while int(devices.line().split()[0]) < 300:
            pass
        programs[0].process.kill()
        lines = list(devices.process.stdout or ())

        assert devices.process.wait(100) == 0
        assert lines[-1].startswith("2000 reports stored, ")
        assert lines[-1].endswith("none lost, none doubled\n")
        for each in programs[1:]:
            each.process.send_signal(signal.SIGTERM)
            assert each.process.wait(60) == 0
