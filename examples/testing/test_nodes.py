"""Tests of the thermostat with its heater on another node."""

import trio

from ergo_py import Down, Name, NodeName, NoNode
from ergo_py.network import Memory
from ergo_py.testing import Probe, VirtualClock, checked_nodes, settle
from examples.testing import thermostat
from examples.testing.thermostat import Heat, Reading, Thermostat

HEATER = Name("heater", "cellar@test")


async def test_a_heater_in_the_cellar_is_cut_off_for_a_while(virtual_clock: VirtualClock) -> None:
    network = Memory(types=[thermostat])
    async with checked_nodes("room@test", "cellar@test", network=network) as (room, cellar):
        heater = await Probe.start(cellar, name="heater")
        pid = await room.spawn(Thermostat, None, HEATER)
        room.send(pid, Reading(15.0))
        await settle(room, cellar)
        assert heater.messages == [Heat(True)]

        network.cut("room@test", "cellar@test")
        room.send(pid, Reading(25.0))
        await trio.sleep(3)
        assert heater.messages == [Heat(True)]
        network.heal()
        await trio.sleep(1)
        assert heater.messages == [Heat(True), Heat(False)]


async def test_the_loss_of_a_node_is_told(virtual_clock: VirtualClock) -> None:
    network = Memory(types=[thermostat], patience=5.0)
    async with checked_nodes("room@test", "cellar@test", network=network) as (room, _):
        watcher = await Probe.start(room)
        await watcher.monitor(NodeName("cellar@test"))
        await settle(room)

        network.freeze("cellar@test")
        await watcher.expect_none(3)
        await watcher.expect(Down(NodeName("cellar@test"), NoNode("cellar@test")), timeout=3)
        network.thaw("cellar@test")
