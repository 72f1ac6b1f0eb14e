"""`CAN`: a CAN bus, with python-can."""

from typing import Any, ClassVar, Final, Unpack

import can

from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.public_names import show_public_names
from .bridge import Device, DeviceKeywords

__all__ = ["CAN"]

_WAIT: Final = 0.1
"""Seconds of a read: most interfaces of python-can cannot be woken, so this bounds a stop."""


class CAN(Device):
    """A CAN bus. `Device.Data` and `Device.Send` have objects of ``can.Message``.

    Args:
        interface: the kind of the interface, such as ``socketcan``.
        channel: the name of the bus, such as ``can0``.
        settings: further settings of ``can.Bus``, such as ``{"bitrate": 500_000}``.
        options: those of `Device`.

    Raises:
        BadInputError: python-can has no such interface, or the bus has no name.
    """

    kind = "can"
    full_duplex = True
    lost_by: ClassVar[tuple[type[Exception], ...]] = (can.CanError, OSError)

    def __init__(
        self,
        interface: str,
        channel: str,
        *,
        settings: dict[str, Any] | None = None,
        **options: Unpack[DeviceKeywords],
    ) -> None:
        super().__init__(**options)
        if interface not in can.VALID_INTERFACES:
            # It would be lost again and again: python-can says so when it opens the bus.
            raise BadInputError("CAN(interface)", interface, ", ".join(can.VALID_INTERFACES))
        if not isinstance(channel, str | int) or channel == "":
            raise BadInputError("CAN(channel)", channel, 'the name of a bus, such as "can0"')
        self._settings = {"interface": interface, "channel": channel, **(settings or {})}

    def open(self) -> None:
        """Open the bus."""
        self._bus = can.Bus(**self._settings)

    def read(self) -> object:
        """The next message; None if the time is over."""
        return self._bus.recv(_WAIT)

    def write(self, data: object) -> None:
        """Send a message."""
        if not isinstance(data, can.Message):
            raise BadInputError("Device.Send", data, "a can.Message")
        self._bus.send(data)

    def close(self) -> None:
        """Leave the bus."""
        self._bus.shutdown()


show_public_names(__name__)
