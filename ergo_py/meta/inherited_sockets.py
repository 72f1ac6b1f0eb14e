"""`InheritedSockets`: the sockets that a service manager has opened for this program (socket
activation of systemd), or that its predecessor has handed over.

The manager listens before the program runs, and goes on when the program ends: connections wait in
the queue of the system while a program is replaced, and none is refused or reset.
"""

import errno
import os
import socket
from collections.abc import Mapping, MutableMapping
from functools import cache
from typing import Final

__all__ = ["InheritedSockets", "inherited_sockets"]

_FIRST: Final = 3
"""The descriptor of the first socket, as ``sd_listen_fds`` says."""
_DIGITS: Final = 5
"""Digits of the largest number of sockets; systems allow a program fewer."""
_NAMELESS: Final = "unknown"
"""The name of all sockets if the manager gives no names, as ``sd_listen_fds_with_names`` says."""


class InheritedSockets:
    """The sockets by their names. They stay open as long as the program runs: a server that is
    restarted listens with the same socket again.

    Args:
        environ: the variables of the environment. Those of the protocol are removed from it, and
            the sockets are not inherited by the programs that this program starts.
        first: the first descriptor.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ, first: int = _FIRST) -> None:
        pid = environ.pop("LISTEN_PID", "")
        count = environ.pop("LISTEN_FDS", "")
        names = environ.pop("LISTEN_FDNAMES", "")
        self._descriptors: list[tuple[str, int]] = []
        self._missing: set[int] = set()
        """The descriptors that the manager names and has not passed: if they are open, or will be,
        they are of this program.
        """
        self._kept: dict[str, int] = {}
        """The descriptors of the sockets that a predecessor has handed over, or that servers of
        this program have opened for a successor.
        """
        self.former_sizes: dict[str, dict[int, int]] = {}
        """The sizes of buffers from before the first server, of this program or of a former one, by
        the name of the socket.
        """
        self.keeps: bool = False
        """Whether the sockets that servers open under a name are kept for a successor."""
        self.is_held: bool = False
        """Whether the servers accept no connection yet: the predecessor still serves."""
        self.is_left: bool = False
        """Whether another program goes on with the sockets: their options are its own."""
        self._other_pid = pid if pid and pid != str(os.getpid()) else ""
        """The process that got the sockets, if it is another."""
        if not pid or self._other_pid or not count.isdecimal() or len(count) > _DIGITS:
            return
        given = names.split(":") if names else [_NAMELESS] * int(count)
        for number, name in zip(range(first, first + int(count)), given, strict=False):
            try:
                # What Python itself opens is not inheritable, and what was inherited is.
                is_passed = os.get_inheritable(number)
                os.set_inheritable(number, False)
            except OSError:
                is_passed = False
            if not is_passed:  # `open` says so when a server asks for it
                self._missing.add(number)
            self._descriptors.append((name, number))

    def __len__(self) -> int:
        return len(self._descriptors)

    @property
    def is_for_another(self) -> bool:
        """Whether the manager has passed the sockets to another process, such as a wrapper that
        has started this program.
        """
        return bool(self._other_pid)

    # -- predecessor and successor -----------------------------------------------------------------

    def begin_to_keep(self) -> None:
        """Keep the sockets that servers open under a name from now on."""
        self.keeps = True

    def keep(self, name: str, sock: socket.socket) -> None:
        """Keep a copy of a socket that a server has opened under a name."""
        self._kept[name] = os.dup(sock.fileno())

    def take_over(
        self, descriptors: Mapping[str, int], former_sizes: Mapping[str, dict[int, int]]
    ) -> None:
        """Take the sockets of a predecessor, and hold the servers until :meth:`release`: if this
        program does not start, no connection is lost with it.
        """
        self._kept |= descriptors
        self.former_sizes |= former_sizes
        self.is_held = True

    def release(self) -> None:
        """Let the servers accept connections."""
        self.is_held = False

    def leave(self) -> None:
        """Leave the sockets and their options to another program, which serves."""
        self.is_left = True

    def take_back(self) -> None:
        """Go on with the sockets: the other program has ended."""
        self.is_left = False

    def to_hand_over(self) -> dict[str, int]:
        """The descriptors of all sockets that have a name of their own."""
        names = [name for name, _ in self._descriptors]
        single = {
            name: number
            for name, number in self._descriptors
            if names.count(name) == 1 and number not in self._missing
        }
        return single | self._kept

    def has(self, name: str) -> bool:
        """Whether a socket of this name is kept."""
        return name in self._kept

    def pass_on(self) -> None:
        """Let the program that this process executes next inherit the sockets."""
        for _, number in self._descriptors:
            if number not in self._missing:
                os.set_inheritable(number, True)

    def open(self, name: str) -> socket.socket:
        """A copy of the socket with a name.

        Raises:
            OSError: there is no such socket. The text says which there are.
        """
        found = [number for known, number in self._descriptors if known == name]
        if name in self._kept:
            found = [self._kept[name]]
        if len(found) != 1:
            raise OSError(f"cannot listen with the inherited socket {name!r}: {self._why(name)}")
        if found[0] in self._missing:
            raise OSError(
                errno.EBADF,
                f"the inherited socket {name!r}, descriptor {found[0]}, was not passed: LISTEN_FDS "
                "counts it, and it was not open; let ExecStart= start the program itself, or a "
                "wrapper that leaves the descriptors open",
            )
        try:
            copy = os.dup(found[0])
        except OSError as error:
            raise OSError(
                error.errno,
                f"the inherited socket {name!r}, descriptor {found[0]}, is not open: the program "
                "has closed it",
            ) from None
        try:
            return socket.socket(fileno=copy)
        except OSError as error:
            os.close(copy)
            raise OSError(
                error.errno,
                f"the inherited descriptor {name!r} is no socket; its unit needs ListenStream= "
                "for a stream, or ListenDatagram= for datagrams",
            ) from None

    def _why(self, name: str) -> str:
        """Why there is not exactly one socket with this name."""
        if self.is_for_another:
            return (
                f"LISTEN_PID names the process {self._other_pid}, and this is {os.getpid()}; let "
                "ExecStart= start the program itself, or its wrapper exec it"
            )
        if not self._descriptors:
            return (
                "no service manager has passed a socket to this program; start it by its .socket "
                "unit, or give the server an address for this case"
            )
        names = [known for known, _ in self._descriptors]
        if name in names:
            return (
                f"{names.count(name)} sockets have this name; write a .socket unit for each, with "
                "a FileDescriptorName= of its own"
            )
        known = ", ".join(map(repr, dict.fromkeys(names)))
        return f"there are {known}; FileDescriptorName= of the .socket unit is its name"


@cache
def inherited_sockets() -> InheritedSockets:
    """The sockets of this program. The first call takes them out of the environment."""
    return InheritedSockets()
