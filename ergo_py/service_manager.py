"""`ServiceManager`: tells systemd that a program is up, that it stops, and that its loop runs.

The protocol is that of ``sd_notify``: lines in a datagram to the socket that ``NOTIFY_SOCKET``
names. Without this variable nobody is told.
"""

import os
import socket
from collections.abc import Callable, Mapping, MutableMapping
from typing import Final

import trio

from ._core.vocabulary.errors import NotAllowedError

__all__ = ["ServiceManager", "StartStatus"]

_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_SHARE: Final = 0.5
"""The part of the watchdog's time after which the loop reports, as systemd advises: a single late
turn of the loop is forgiven.
"""


class ServiceManager:
    """The manager that has started this program, if there is one.

    Args:
        environ: the variables of the environment. Those of the protocol are removed from it until
            :meth:`close`: a program that this program starts must not speak for it.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if self._address.startswith(("/", "\0")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        self.watchdog: float | None = _read_watchdog(environ)
        """The seconds within which the manager expects a report of the loop; None for no report."""
        self.is_up: bool = False
        """Whether the manager was told that the program is up, and the program does not stop."""
        self._environ = environ
        self._taken = {name: environ.pop(name) for name in _VARIABLES if name in environ}

    @property
    def is_there(self) -> bool:
        """Whether a manager has started this program."""
        return self._socket is not None

    def tell(self, *lines: str) -> bool:
        """Tell the manager, without waiting for it. False if it cannot be told: it has ended, or
        has no room for the datagram.
        """
        if self._socket is None:
            return False
        try:
            self._socket.sendto("\n".join(lines).encode(errors="replace"), self._address)
        except OSError:
            return False
        return True

    def tell_up(self, *lines: str) -> None:
        """Tell the manager that the program is up."""
        self.is_up = True
        self.tell("READY=1", *lines)

    def begin_stop(self) -> None:
        """The program stops: it is not up any more, whatever ends later."""
        self.is_up = False

    async def watch_loop(self) -> None:
        """Report that the loop runs, for as long as it does. A loop that blocks reports too late,
        and the manager restarts the program.
        """
        if self.watchdog is None:
            return
        while True:
            self.tell("WATCHDOG=1")
            await trio.sleep(self.watchdog * _SHARE)

    def close(self) -> None:
        """Close the socket, and leave the environment to the next run in this process."""
        self._environ.update(self._taken)
        if self._socket is not None:
            self._socket.close()


class StartStatus:
    """The ``task_status`` of a main function: its ``started()`` says that the program is up."""

    def __init__(self, say: Callable[[], object]) -> None:
        self._say = say
        self._is_started = False

    def started(self, value: object = None) -> None:
        """Say that the program is up. The value is ignored.

        Raises:
            NotAllowedError: it was said before.
        """
        if self._is_started:
            raise NotAllowedError("task_status.started() was called twice; call it once")
        self._is_started = True
        self._say()


def _read_watchdog(environ: Mapping[str, str]) -> float | None:
    """The seconds of the watchdog, unless it expects another program."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        seconds = int(environ.get("WATCHDOG_USEC", "")) / 1e6
    except (ValueError, OverflowError):
        return None
    return seconds if seconds > 0 else None
