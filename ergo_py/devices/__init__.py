"""Devices behind blocking libraries: serial lines, buses, brokers. One address for both directions,
opened again whenever the device is lost.

`DeviceBridge` is the base class; the other bridges need the extra of their library.
"""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .bridge import DeviceBridge
    from .messages import DeviceClosedError, DeviceData, DeviceLost, DeviceOpened, DeviceSend
    from .serial_line import Serial

__all__ = [
    "DeviceBridge",
    "DeviceClosedError",
    "DeviceData",
    "DeviceLost",
    "DeviceOpened",
    "DeviceSend",
    "Serial",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "bridge": "DeviceBridge",
            "messages": "DeviceClosedError DeviceData DeviceLost DeviceOpened DeviceSend",
            "serial_line": "Serial",
        },
    )
