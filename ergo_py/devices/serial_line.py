"""`Serial`: a serial line, with pyserial."""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, ClassVar, Unpack

import serial

from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_public_names
from .bridge import Device, DeviceKeywords

__all__ = ["Serial"]

if sys.platform == "win32":
    _GONE: tuple[type[Exception], ...] = (OSError,)
else:
    import termios

    # pyserial lets the errors of a line pass that is unplugged while it is opened.
    _GONE = (OSError, termios.error)


class Serial(Device):
    """A serial line. `Device.Send` takes bytes, and ``framing`` cuts the bytes that come.

    Args:
        port: the path of the device, such as ``/dev/ttyUSB0``, or a URL of pyserial such as
            ``socket://10.0.0.7:4001``.
        baudrate: the speed.
        settings: further settings of ``serial.Serial``, such as ``{"parity": "E"}``.
        options: those of `Device`.

    Raises:
        BadInputError: the port is empty, or pyserial knows no such URL.
    """

    kind = "serial"
    full_duplex = True
    lost_by: ClassVar[tuple[type[Exception], ...]] = _GONE

    def __init__(
        self,
        port: str,
        baudrate: int = 9600,
        *,
        settings: Mapping[str, Any] = MappingProxyType({}),
        **options: Unpack[DeviceKeywords],
    ) -> None:
        super().__init__(**options)
        if not isinstance(port, str) or not port or not _knows(port.partition("://")):
            wish = "the path of a serial device, or a URL of pyserial such as socket://host:4001"
            raise BadInputError("Serial(port)", port, wish)
        check_number("Serial(baudrate)", baudrate, least=1, whole=True)
        # A port behind a URL cannot be woken: let each read end soon.
        timeout = 0.5 if "://" in port else None
        self._settings = {"url": port, "baudrate": baudrate, "timeout": timeout, **settings}

    def open(self) -> None:
        """Open the line."""
        self._line = serial.serial_for_url(**self._settings)

    def read(self) -> bytes | None:
        """The bytes that have come, at least one unless the time is over."""
        data: bytes = self._line.read(self._line.in_waiting or 1)
        return data or None

    def write(self, data: object) -> None:
        """Write bytes."""
        if not isinstance(data, bytes):
            raise BadInputError("Device.Send", data, "bytes; encode text first")
        if self._line.write(data) != len(data):
            raise serial.SerialException("the write was interrupted")

    def wake(self) -> None:
        """Interrupt ``read`` and ``write``."""
        if hasattr(self._line, "cancel_read"):
            self._line.cancel_read()
            self._line.cancel_write()

    def close(self) -> None:
        """Close the line."""
        self._line.close()


def _knows(url: tuple[str, str, str]) -> bool:
    """Whether pyserial has a module for this kind of URL; a path is none."""
    kind = f"protocol_{url[0].lower()}"
    places = serial.protocol_handler_packages
    return not url[1] or (
        kind.isidentifier() and any(find_spec(f"{place}.{kind}") for place in places)
    )


show_public_names(__name__)
