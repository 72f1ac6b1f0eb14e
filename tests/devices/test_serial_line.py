"""Serial lines over pseudo-terminals."""

import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("serial", reason="needs pyserial")

from ergo_py import Alias, Backoff, BadInputError, Node
from ergo_py.devices import Device, Serial
from ergo_py.testing.bridges import DeviceRig
from ergo_py.testing.bridges.devices import DeviceRule
from tests.devices.cable import Cable
from tests.meta.owner import eventually, owning
from tests.meta.wires import MovableClock

AT_ONCE = Backoff(0.0, 0.0)


@pytest.fixture
def cable(short_path: Path) -> Iterator[Cable]:
    cable = Cable(short_path)
    yield cable
    cable.close()


@pytest.mark.parametrize("rule", DeviceRig.RULES, ids=lambda rule: rule.__name__)
async def test_a_serial_line_keeps_the_rules_of_devices(cable: Cable, rule: DeviceRule) -> None:
    await rule(cable)


@pytest.mark.parametrize("name", ["tcsetattr", "tcflush"])
async def test_a_line_that_is_unplugged_while_it_is_opened_is_lost(
    name: str, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = getattr(termios, name)

    def unplug_and_call(*terms: object) -> object:
        monkeypatch.setattr(termios, name, call)
        cable.unplug()
        return call(*terms)

    cable.plug()
    monkeypatch.setattr(termios, name, unplug_and_call)
    async with owning() as owned:
        await owned.spawn(cable.bridge(reopen=AT_ONCE, stuck_after=60.0))
        assert isinstance(await owned.next(), Device.Lost)
        cable.plug()
        assert isinstance(await owned.next(), Device.Opened)


async def test_the_bytes_of_a_broken_line_are_dropped_and_told(cable: Cable) -> None:
    cable.plug()
    async with owning() as owned:
        device = await owned.spawn(cable.bridge(reopen=AT_ONCE, stuck_after=60.0))
        await owned.until(Device.Opened)
        cable.send(b"whole\nbrok")
        assert await owned.next() == Device.Data(device, b"whole")
        bytes_in = 0
        while bytes_in < 10:  # the hang-up of a terminal may overtake its last bytes
            bytes_in = int((await owned.node.inspect_meta(device))["bytes_in"])
        cable.unplug()

        lost = await owned.next()
        cable.plug()
        await owned.until(Device.Opened)
        cable.send(b"next\n")
        assert await owned.next() == Device.Data(device, b"next")
        assert isinstance(lost, Device.Lost)
        assert lost.dropped == 4


async def test_both_directions_of_a_line_flow_at_the_same_time(cable: Cable) -> None:
    # Each direction is much larger than the buffers of a terminal: a thread that writes without
    # reading would never return.
    cable.plug()
    sent = b"".join(b"%07d\n" % number for number in range(5000))
    async with owning() as owned, trio.open_nursery() as nursery:
        device = await owned.spawn(cable.bridge(reopen=AT_ONCE, stuck_after=60.0))
        await owned.until(Device.Opened)
        nursery.start_soon(trio.to_thread.run_sync, cable.send, sent)
        nursery.start_soon(lambda: owned.node.call(device, Device.Send(sent), timeout=None))

        lines = [(await owned.next()).data for _ in range(5000)]
        assert b"\n".join([*lines, b""]) == sent
        await eventually(lambda: cable.read() == sent)


async def test_a_stuck_write_to_a_line_is_interrupted(cable: Cable, clock: MovableClock) -> None:
    cable.plug()
    failed: list[Device.ClosedError] = []

    async def write(node: Node, device: Alias) -> None:
        with pytest.raises(Device.ClosedError) as caught:
            await node.call(device, Device.Send(b"x" * 1_000_000), timeout=None)
        failed.append(caught.value)

    async with owning(limit=1100.0) as owned, trio.open_nursery() as nursery:
        device = await owned.spawn(cable.bridge(reopen=AT_ONCE, stuck_after=1000.0))
        await owned.until(Device.Opened)
        nursery.start_soon(write, owned.node, device)
        await eventually(lambda: owned.node.meta_info(device).callback is not None)
        clock.move(1001)

        assert isinstance(await owned.next(), Device.Lost)
        assert isinstance(await owned.next(), Device.Opened)
        assert owned.node.info().threads_abandoned == 0

    assert len(failed) == 1


@pytest.mark.parametrize("port", ["", 7, "http://line", "a.b://line", "://line"])
def test_a_line_that_pyserial_cannot_open_is_refused(port: Any) -> None:
    with pytest.raises(BadInputError, match=r"Serial\(port\).*path of a serial device, or a URL"):
        Serial(port)


@pytest.mark.parametrize("port", ["/dev/ttyUSB0", "COM3", "socket://host:1", "RFC2217://host:1"])
def test_a_line_may_be_a_path_or_a_url_of_pyserial(port: str) -> None:
    Serial(port)
    with pytest.raises(BadInputError, match=r"Serial\(baudrate\)"):
        Serial(port, 0)


async def test_a_line_takes_bytes_only(cable: Cable) -> None:
    cable.plug()
    async with owning() as owned:
        device = await owned.spawn(cable.bridge(reopen=AT_ONCE, stuck_after=60.0))
        await owned.until(Device.Opened)
        with pytest.raises(BadInputError, match="bytes"):
            await owned.node.call(device, Device.Send("text"))


async def test_a_line_behind_a_url_is_read_and_written() -> None:
    async with owning() as owned:
        device = await owned.spawn(Serial("loop://", settings={"timeout": 0.01}))
        await owned.until(Device.Opened)
        await owned.node.call(device, Device.Send(b"echo"))

        heard = b""
        while heard != b"echo":
            heard += (await owned.next()).data
