"""`DeviceRig`: the contract of bridges to devices, as tests for a bridge of your own."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from queue import SimpleQueue
from typing import ClassVar, Final, Protocol, TypeVar

import trio

from ..._core.vocabulary.ids import Alias
from ..._core.vocabulary.public_names import show_public_names
from ..._core.vocabulary.reasons import Normal
from ...actor import Actor
from ...devices.bridge import Device
from ...node import Node, open_node
from ...supervision.specs import Backoff
from ..fixtures import checked_node

__all__ = ["DeviceRig", "DeviceRule"]

T = TypeVar("T")

_LIMIT: Final = 60.0
"""Seconds after which a rule fails that still waits."""
_PAUSE: Final = 0.005
_AGAIN: Final = 0.1
"""Seconds after which a frame that did not come is sent again."""
_REOPEN: Final = Backoff(0.01, 0.01)
_GAPS: Final = 5


class DeviceRule(Protocol):
    """A rule of the contract of bridges to devices."""

    @property
    def __name__(self) -> str:
        """The rule in words."""
        ...

    async def __call__(self, rig: "DeviceRig", /) -> None:
        """Check the rule.

        Raises:
            AssertionError: the bridge breaks the rule.
            LeakError: the bridge leaves threads or descriptors behind, or its stop takes too long.
            TooSlowError: an expected message did not come within a minute.
        """


class DeviceRig(ABC):
    """A device for the ``RULES`` to plug and unplug: the far end of the bridge under test. It is
    absent until ``plug``. Subclass it for your device. No method may block for long.
    """

    RULES: ClassVar[tuple[DeviceRule, ...]]
    """The rules. Call each with a new rig."""

    @abstractmethod
    def bridge(self, *, reopen: Backoff, stuck_after: float) -> Device:
        """Make the bridge under test, with these options."""

    @abstractmethod
    def plug(self) -> None:
        """Attach the device."""

    @abstractmethod
    def unplug(self) -> None:
        """Take the device away, and release its far end. Data that was emitted before may be
        lost.
        """

    @abstractmethod
    def emit(self, number: int) -> None:
        """Let the device send a frame that contains the number."""

    @abstractmethod
    def number_in(self, data: object) -> int:
        """The number in the data of a `Device.Data`."""

    @abstractmethod
    def order(self, number: int) -> object:
        """The data of a `Device.Send` that contains the number."""

    @abstractmethod
    def taken(self) -> list[int]:
        """The numbers of all orders that the devices have got so far, in order."""


class _Receiver(Actor):
    """Owns the bridge, and hands its messages to the rule."""

    def __init__(
        self, bridge: Device, heard: trio.MemorySendChannel[object], stop_timeout: float
    ) -> None:
        self.bridge, self.heard, self.stop_timeout = bridge, heard, stop_timeout
        self.device: Alias | None = None

    async def init(self) -> None:
        """Spawn the bridge."""
        self.device = await self.spawn_meta(self.bridge, stop_timeout=self.stop_timeout)

    def handle_message(self, message: object, sender: object) -> None:
        """Hand a message on."""
        self.heard.send_nowait(message)

    def handle_call(self, request: object, caller: object) -> object:
        """Tell the address of the bridge."""
        return self.device


class _Trial:
    """A bridge under test, on a node of its own."""

    def __init__(
        self, rig: DeviceRig, node: Node, device: Alias, heard: trio.MemoryReceiveChannel[object]
    ) -> None:
        self.rig, self.node, self.device = rig, node, device
        self._heard = heard

    async def next(self, kind: type[T]) -> T:
        """The next message, which must be of a kind."""
        message = await self._heard.receive()
        if not isinstance(message, kind):
            raise AssertionError(f"expected a {kind.__name__}, found {message!r}")
        return message

    async def expect_numbers(self, *numbers: int) -> None:
        """Check the numbers in the next frames."""
        for expected in numbers:
            found = self.rig.number_in((await self.next(Device.Data)).data)
            if found != expected:
                raise AssertionError(f"expected the frame {expected}, found the frame {found}")

    async def write(self, number: int) -> None:
        """Have the device take an order."""
        await self.node.call(self.device, Device.Send(self.rig.order(number)), timeout=None)

    async def expect_refused(self, number: int, rule: str) -> None:
        """Check that the device is closed for an order."""
        try:
            await self.write(number)
        except Device.ClosedError:
            return
        raise AssertionError(rule)

    async def expect_taken(self, *numbers: int) -> None:
        """Wait until the device has got as many orders, and check them."""
        # The far end has no event for the loop.
        while len(found := self.rig.taken()) < len(numbers):  # noqa: ASYNC110
            await trio.sleep(_PAUSE)
        if found != list(numbers):
            raise AssertionError(f"expected the orders {list(numbers)}, found {found}")

    async def until_open(self) -> None:
        """Read messages until the device is open."""
        while not isinstance(await self._heard.receive(), Device.Opened):
            pass

    async def until_frame(self, number: int) -> None:
        """Let the device send a frame again and again, until the frame comes: a gap may lose it,
        and so may a bus while another member leaves.
        """
        while True:
            self.rig.emit(number)
            with trio.move_on_after(_AGAIN):
                while True:
                    match await self._heard.receive():
                        case Device.Data(_, data) if self.rig.number_in(data) == number:
                            return
                        case _:
                            continue


@asynccontextmanager
async def _trial(
    rig: DeviceRig, node: Node, bridge: Device, stop_timeout: float = 5.0
) -> AsyncIterator[_Trial]:
    sender, receiver = trio.open_memory_channel[object](1_000_000)
    with trio.fail_after(_LIMIT), sender, receiver:
        owner = await node.spawn(_Receiver, bridge, sender, stop_timeout)
        device: Alias = await node.call(owner, "device")
        yield _Trial(rig, node, device, receiver)
        node.send_exit(owner, Normal())
        await node.wait_ended(owner)


def _bridge_of(rig: DeviceRig, stuck_after: float = 30.0) -> Device:
    return rig.bridge(reopen=_REOPEN, stuck_after=stuck_after)


async def frames_and_orders_keep_their_order(rig: DeviceRig) -> None:
    """Frames come, and orders go, in the order in which they were sent."""
    rig.plug()
    async with checked_node() as node, _trial(rig, node, _bridge_of(rig)) as trial:
        await trial.next(Device.Opened)
        for number in range(50):
            rig.emit(number)
            await trial.write(number)
        await trial.expect_numbers(*range(50))
        await trial.expect_taken(*range(50))


async def an_absent_device_is_a_lost_device(rig: DeviceRig) -> None:
    """The bridge starts without its device, tells once that the device is lost, refuses calls, and
    opens the device when it comes.
    """
    async with checked_node() as node:
        async with _trial(rig, node, _bridge_of(rig)) as trial:
            await trial.next(Device.Lost)
            await trial.expect_refused(1, "a call to an absent device raises Device.ClosedError")
            rig.plug()
            await trial.next(Device.Opened)
            rig.emit(2)
            await trial.write(3)
            await trial.expect_numbers(2)
            await trial.expect_taken(3)
        # The check for leaks must not find the far end.
        rig.unplug()


async def every_gap_is_told(rig: DeviceRig) -> None:
    """Each loss is told, after the frames before it and before those after it."""
    rig.plug()
    async with checked_node() as node, _trial(rig, node, _bridge_of(rig)) as trial:
        for gap in range(_GAPS):
            await trial.next(Device.Opened)
            rig.emit(gap)
            await trial.expect_numbers(gap)
            rig.unplug()
            await trial.next(Device.Lost)
            rig.plug()
        await trial.next(Device.Opened)


async def a_stop_leaves_nothing_behind(rig: DeviceRig) -> None:
    """A stop ends a blocked read, and leaves no thread and no descriptor behind."""
    rig.plug()
    async with checked_node() as node:
        async with _trial(rig, node, _bridge_of(rig)) as trial:
            await trial.next(Device.Opened)
        if node.info().threads_abandoned:
            raise AssertionError("wake() did not wake the threads: the stop has abandoned them")


async def a_stuck_library_is_replaced(rig: DeviceRig) -> None:
    """If a write does not return, the device is lost, and the next opening works, also after the
    stuck write has returned.
    """
    rig.plug()
    gate: SimpleQueue[None] = SimpleQueue()
    bridge = _bridge_of(rig, stuck_after=0.2)
    _stick_once(bridge, gate)
    try:
        async with (
            open_node("stuck@test", log_level="critical", watchdog=None) as node,
            _trial(rig, node, bridge, stop_timeout=0.1) as trial,
        ):
            await trial.until_open()
            await trial.expect_refused(1, "a stuck write raises Device.ClosedError")
            await trial.until_open()
            await trial.until_frame(2)
            gate.put(None)
            await trial.until_frame(3)
    finally:
        gate.put(None)


def _stick_once(bridge: Device, gate: "SimpleQueue[None]") -> None:
    """Let the first write of a bridge block. Each opening works with a copy of the bridge, so the
    attribute is that of all openings.
    """
    waits = [gate]

    def write(data: object) -> None:
        if waits:
            waits.pop().get()

    bridge.__dict__["write"] = write


DeviceRig.RULES = (
    frames_and_orders_keep_their_order,
    an_absent_device_is_a_lost_device,
    every_gap_is_told,
    a_stop_leaves_nothing_behind,
    a_stuck_library_is_replaced,
)

show_public_names(__name__)
