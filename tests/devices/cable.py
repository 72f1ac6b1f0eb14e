"""A serial line between a bridge and a test: the two ends of a pseudo-terminal."""

import os
from pathlib import Path

from ergo_py import Backoff
from ergo_py.devices import Serial
from ergo_py.meta import Delimiter
from ergo_py.testing.bridges import DeviceRig

__all__ = ["Cable"]


class Cable(DeviceRig):
    """The far end of a serial line. Each plug is a new pseudo-terminal, behind the same path."""

    def __init__(self, path: Path) -> None:
        self.path = path / "tty"
        self._end: int | None = None
        self._got = b""

    def bridge(self, *, reopen: Backoff, stuck_after: float) -> Serial:
        return Serial(
            str(self.path), 115_200, framing=Delimiter(), reopen=reopen, stuck_after=stuck_after
        )

    def plug(self) -> None:
        self._end, other = os.openpty()
        os.set_blocking(self._end, False)
        new = self.path.with_suffix(".new")
        new.symlink_to(os.ttyname(other))
        os.close(other)
        new.rename(self.path)

    def unplug(self) -> None:
        assert self._end is not None
        self.path.unlink()
        self.read()
        os.close(self._end)
        self._end = None

    def send(self, data: bytes) -> None:
        """Send from the far end."""
        assert self._end is not None
        while data:
            try:
                data = data[os.write(self._end, data) :]
            except BlockingIOError:
                self.read()

    def read(self) -> bytes:
        """All bytes that have come to the far end so far."""
        while self._end is not None:
            try:
                self._got += os.read(self._end, 65_536)
            except (BlockingIOError, OSError):  # nothing more, or the bridge has closed its end
                break
        return self._got

    def emit(self, number: int) -> None:
        self.send(b"%d\n" % number)

    def number_in(self, data: object) -> int:
        assert isinstance(data, bytes)
        return int(data)

    def order(self, number: int) -> bytes:
        return b"%d\n" % number

    def taken(self) -> list[int]:
        return [int(line) for line in self.read().split(b"\n")[:-1]]

    def close(self) -> None:
        if self._end is not None:
            self.unplug()
