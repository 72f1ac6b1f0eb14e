"""`DeviceMessages`: what a device and its receiver tell each other, and the error of a call to a
device that is lost. They are members of `Device`.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from .._core.vocabulary.errors import ErgoError
from .._core.vocabulary.ids import Alias
from .._core.vocabulary.messages import MayBeLate, Request
from ..meta.checks import setters

__all__ = ["DeviceMessages"]

T = TypeVar("T")


class DeviceMessages:
    """The messages of a device, and the error of a call to it."""

    @dataclass(frozen=True, slots=True)
    class Opened(MayBeLate):
        """The device is open: the data that follows belongs to this opening."""

        device: Alias

    @dataclass(frozen=True, slots=True, init=False)
    class Data(MayBeLate, Generic[T]):
        """A frame, or without a framing the result of a single ``read``."""

        device: Alias
        data: T

        def __init__(self, device: Alias, data: T) -> None:
            _set_device(self, device)
            _set_data(self, data)

    @dataclass(frozen=True, slots=True)
    class Lost(MayBeLate):
        """The device is gone, or was absent from the start. The bridge goes on trying to open it;
        the next message is `Device.Opened`.
        """

        device: Alias
        why: str
        """The error of the library."""
        dropped: int = 0
        """The bytes of a frame whose rest did not come. They are in no `Device.Data`."""

    @dataclass(frozen=True, slots=True)
    class Send(Request[object]):
        """Tell a device to write. With ``call``, it answers when the library has taken the data, by
        the result of ``write``: None, or the answer of a device that answers each request.

        A call while the device is lost raises `Device.ClosedError`; a message that is sent
        meanwhile becomes a dead letter.
        """

        data: object

    class ClosedError(ErgoError, ConnectionError):
        """The device is lost: nothing was written, or an unknown part of it if the loss came during
        the call.
        """

        def __init__(self, device: Alias, why: str) -> None:
            super().__init__(f"the device {device} is lost: {why}")
            self.device = device
            self.why = why
            """The error of the library."""


_set_device, _set_data = setters(DeviceMessages.Data)
