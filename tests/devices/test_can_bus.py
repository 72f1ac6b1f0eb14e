"""CAN buses on the virtual bus of python-can."""

from typing import Any, ClassVar

import pytest

pytest.importorskip("can", reason="needs python-can")

import can

from ergo_py import Backoff, BadInputError
from ergo_py.devices import CAN, Device
from ergo_py.testing.bridges import DeviceRig
from ergo_py.testing.bridges.devices import DeviceRule
from tests.meta.owner import owning


class Plugged(CAN):
    """A virtual bus, which is always there, behind an adapter to plug and unplug."""

    buses: ClassVar[list[Any]] = []
    is_plugged: ClassVar[bool] = False

    def open(self) -> None:
        if not self.is_plugged:
            raise can.CanInitializationError("no adapter")
        super().open()
        self.buses.append(self._bus)


class Adapter(DeviceRig):
    """Another member of the bus."""

    def __init__(self) -> None:
        Plugged.is_plugged = False
        self._bus = can.Bus(interface="virtual", channel="test")
        self._got: list[int] = []

    def bridge(self, *, reopen: Backoff, stuck_after: float) -> CAN:
        return Plugged("virtual", "test", reopen=reopen, stuck_after=stuck_after)

    def plug(self) -> None:
        Plugged.is_plugged = True

    def unplug(self) -> None:
        Plugged.is_plugged = False
        Plugged.buses.pop().shutdown()

    def emit(self, number: int) -> None:
        self._bus.send(self.order(number))

    def number_in(self, data: object) -> int:
        assert isinstance(data, can.Message)
        return int.from_bytes(data.data, "big")

    def order(self, number: int) -> can.Message:
        return can.Message(arbitration_id=0x123, data=number.to_bytes(4, "big"))

    def taken(self) -> list[int]:
        while (message := self._bus.recv(0)) is not None:
            self._got.append(self.number_in(message))
        return self._got

    def close(self) -> None:
        self._bus.shutdown()


@pytest.mark.parametrize("rule", DeviceRig.RULES, ids=lambda rule: rule.__name__)
async def test_a_can_bus_keeps_the_rules_of_devices(rule: DeviceRule) -> None:
    adapter = Adapter()
    await rule(adapter)
    adapter.close()


async def test_a_can_bus_takes_messages_of_its_library_only() -> None:
    async with owning() as owned:
        device = await owned.spawn(CAN("virtual", "test"))
        await owned.until(Device.Opened)
        with pytest.raises(BadInputError, match=r"can\.Message"):
            await owned.node.call(device, Device.Send(b"bytes"))


def test_a_can_bus_that_python_can_does_not_know_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"CAN\(interface\): got 'carrier pigeon'.*socketcan"):
        CAN("carrier pigeon", "can0")
    with pytest.raises(BadInputError, match=r"CAN\(channel\).*can0"):
        CAN("virtual", "")
