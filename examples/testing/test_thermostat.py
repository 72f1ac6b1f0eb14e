"""Tests of the thermostat, a test for each part of the test kit. `trio_mode = true` in
pyproject.toml makes async functions tests.
"""

import os

import pytest
import trio

from ergo_py import ChildSpec, Node, Shutdown, TargetDownError
from ergo_py.testing import (
    Alone,
    Probe,
    Replay,
    Tape,
    VirtualClock,
    checked_node,
    crashing,
    delaying,
    expect_crash,
    explore,
    settle,
)
from examples.testing.thermostat import Heat, Mean, Reading, Sensor, Silence, Thermostat


async def test_a_cold_room_is_heated(node: Node) -> None:
    heater = await Probe.start(node)
    thermostat = await node.spawn(Thermostat, None, heater.pid)

    node.send(thermostat, Reading(15.0))
    command = await heater.expect(Heat)

    assert command.on
    assert heater.sender == thermostat


async def test_commands_follow_the_readings(node: Node) -> None:
    heater = await Probe.start(node)
    thermostat = await node.spawn(Thermostat, None, heater.pid)

    for celsius in (15.0, 25.0, 16.0):
        node.send(thermostat, Reading(celsius))

    await heater.expect_in_order(Heat(True), Heat(False), Heat(True))


async def test_a_silent_sensor_turns_the_heater_off(
    node: Node, virtual_clock: VirtualClock
) -> None:
    heater = await Probe.start(node)
    await node.spawn(Thermostat, None, heater.pid, 20.0, 3600.0)

    await heater.expect_none(3599)
    await heater.expect(Heat(False), timeout=2)

    assert virtual_clock.current_time() == 3600


async def test_a_thread_is_waited_for(node: Node, virtual_clock: VirtualClock) -> None:
    heater = await Probe.start(node)
    reading, writing = os.pipe()
    await node.spawn(Thermostat, Sensor(reading), heater.pid)

    await trio.sleep(30)
    os.write(writing, b"15.0\n16.0\n")
    await settle(node)

    assert heater.messages == [Heat(True), Heat(True)]
    assert virtual_clock.current_time() == 30
    os.close(writing)


async def test_nonsense_crashes_the_thermostat(node: Node) -> None:
    thermostat = await node.spawn(Thermostat, None, "heater")

    async with expect_crash(node, ValueError, match="300"):
        node.send(thermostat, Reading(300.0))


@pytest.mark.ergo_node(expect_crash=OSError)
async def test_a_thermostat_that_fails_is_started_again(
    node: Node, virtual_clock: VirtualClock
) -> None:
    flaky = crashing(Thermostat, on=2, error=OSError("unplugged"))
    await node.supervise([ChildSpec("thermostat", flaky, None, "heater")])
    thermostat = node.service("thermostat")

    thermostat.send(Reading(15.0))
    with pytest.raises(TargetDownError):
        await thermostat.call(Mean())
    await settle(node)

    with pytest.raises(LookupError, match="no reading yet"):
        await thermostat.call(Mean())


async def test_the_thermostat_can_be_slow(node: Node, virtual_clock: VirtualClock) -> None:
    thermostat = await node.spawn(
        delaying(Thermostat, 10.0, callbacks=["handle_call"]), None, "heater"
    )
    node.send(thermostat, Reading(15.0))

    mean = await node.call(thermostat, Mean(), timeout=11)

    assert mean == 15.0
    assert virtual_clock.current_time() == 10


async def test_recorded_readings_take_the_place_of_a_sensor(
    node: Node, virtual_clock: VirtualClock
) -> None:
    heater = await Probe.start(node)
    sensor = Replay([Reading(15.0), Reading(25.0)], gap=30.0)

    await node.spawn(Thermostat, sensor, heater.pid)

    await heater.expect_in_order(Heat(True), Heat(False), timeout=61)
    await heater.expect(Heat(False), timeout=61)
    assert virtual_clock.current_time() == 120


async def test_the_readings_of_a_real_sensor_are_recorded(node: Node) -> None:
    tape = Tape()
    reading, writing = os.pipe()
    await node.spawn(tape.recording(Thermostat), Sensor(reading), "heater")

    os.write(writing, b"15.0\n25.0\n")
    await settle(node)
    os.close(writing)

    recorded: Replay.Recording = tape.of(tape.aliases[0])
    assert recorded.messages == (Reading(15.0), Reading(25.0))


async def test_alone_without_a_node() -> None:
    alone = Alone(Thermostat, None, "heater")

    await alone.message(Reading(15.0))
    await alone.message(Reading(25.0))
    mean = await alone.call(Mean())
    await alone.pass_time(60)

    assert mean == 20.0
    assert alone.messages == [Heat(True), Heat(False), Heat(False)]
    assert [timer.message for timer in alone.timers] == []
    assert Silence() not in alone.messages
    assert alone.stopped is None


def test_the_thermostat_is_right_in_every_order() -> None:
    async def program() -> None:
        async with checked_node() as node:
            heater = await Probe.start(node, name="heater")
            thermostat = await node.spawn(Thermostat, None, "heater")
            node.send(thermostat, Reading(15.0))
            await settle(node)
            node.send_exit(thermostat, Shutdown())
            assert heater.messages == [Heat(True)]

    explore(program, range(5), clock=VirtualClock)
