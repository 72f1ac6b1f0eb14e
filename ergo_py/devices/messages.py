"""The messages between a device and its receiver, and the error of a call to a device that is
lost.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from .._core.vocabulary.errors import ErgoError
from .._core.vocabulary.ids import Alias
from .._core.vocabulary.messages import MayBeLate, Request
from .._core.vocabulary.public_names import show_public_names
from ..meta.checks import setters

__all__ = ["DeviceClosedError", "DeviceData", "DeviceLost", "DeviceOpened", "DeviceSend"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeviceOpened(MayBeLate):
    """The device is open: the data that follows belongs to this opening."""

    device: Alias


@dataclass(frozen=True, slots=True, init=False)
class DeviceData(MayBeLate, Generic[T]):
    """A frame, or without a framing the result of a single ``read``."""

    device: Alias
    data: T

    def __init__(self, device: Alias, data: T) -> None:
        _set_device(self, device)
        _set_data(self, data)


_set_device, _set_data = setters(DeviceData)


@dataclass(frozen=True, slots=True)
class DeviceLost(MayBeLate):
    """The device is gone, or was absent from the start. The bridge goes on trying to open it; the
    next message is `DeviceOpened`.
    """

    device: Alias
    why: str
    """The error of the library."""
    dropped: int = 0
    """The bytes of a frame whose rest did not come. They are in no `DeviceData`."""


@dataclass(frozen=True, slots=True)
class DeviceSend(Request[object]):
    """Tell a device to write. With ``call``, it answers when the library has taken the data, by
    the result of ``write``: None, or the answer of a device that answers each request.

    A call while the device is lost raises `DeviceClosedError`; a message that is sent meanwhile
    becomes a dead letter.
    """

    data: object


class DeviceClosedError(ErgoError, ConnectionError):
    """The device is lost: nothing was written, or an unknown part of it if the loss came during the
    call.
    """

    def __init__(self, device: Alias, why: str) -> None:
        super().__init__(f"the device {device} is lost: {why}")
        self.device = device
        self.why = why
        """The error of the library."""


show_public_names(__name__)
