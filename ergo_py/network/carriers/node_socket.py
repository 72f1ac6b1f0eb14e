"""`NodeSocket`: the socket of a node in a `Local` network, and the lock of the node's name.

The lock is on a file beside the socket and belongs to the node for as long as its program runs. So
two nodes that start at the same time cannot both get the name, and a socket file that a killed
program has left behind can be replaced.
"""

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..stores.file_locks import is_same_file, locked_file

__all__ = ["NodeSocket", "remove_leftovers"]

_LEFTOVER: Final = 60.0
"""Seconds after which the files of a program that has ended are removed. A node touches its lock
each second.
"""


class NodeSocket:
    """A socket that listens under the name of a node."""

    def __init__(self, path: Path) -> None:
        """Lock the name, and listen.

        Raises:
            BlockingIOError: another program has the name, or looks at its lock at this moment.
            OSError: the system refuses.
        """
        self._path = path
        self._lock_path = path.with_suffix(".lock")
        self._lock = locked_file(self._lock_path)
        self.listener: Final = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        hidden = path.with_name(f".{os.getpid()}+{id(self):x}")
        try:
            # Under a hidden name, and renamed when it listens: another node that finds the path
            # must not be refused by a socket that does not listen yet. A rename also replaces the
            # file of a killed program.
            self.listener.bind(str(hidden))
            os.chmod(hidden, 0o600)
            self.listener.listen(128)
            self.listener.setblocking(False)
            self._inode = hidden.stat().st_ino
            os.rename(hidden, path)
        except OSError:
            with suppress(OSError):
                hidden.unlink()
            self._inode = 0
            self.close()
            raise
        self.touch()

    def touch(self) -> None:
        """Show cleaners of temporary files that the lock is in use."""
        with suppress(OSError):
            os.utime(self._lock)

    def keep(self) -> str:
        """Check that other nodes find this node under its name. A lock that was removed is made
        again, unless another node has the name by now. Returns why the node is not found; empty if
        all is well.
        """
        self.touch()
        try:
            if not is_same_file(self._lock, self._lock_path):
                fresh = locked_file(self._lock_path)
                # After the new lock is taken, so that this node holds a lock at each moment.
                os.close(self._lock)
                self._lock = fresh
            if self._path.stat().st_ino != self._inode:
                return f"another node has replaced its socket {self._path}"
        except BlockingIOError:
            return f"another node has its name: the lock {self._lock_path} was removed"
        except OSError as error:
            return f"its socket {self._path} was removed: {error.strerror or error}"
        return ""

    def close(self) -> None:
        """Give the name up."""
        lock, self._lock = self._lock, -1
        if lock < 0:
            return
        # Remove the socket first: a node that finds it may believe that this node listens.
        with suppress(OSError):
            # Not the socket of a successor, which has replaced this file.
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        self.listener.close()
        with suppress(OSError):
            if is_same_file(lock, self._lock_path):
                self._lock_path.unlink()
        os.close(lock)

    def forked(self) -> None:
        """Close the copies of a forked child: they would keep the name and the socket when the
        program of the node has ended.
        """
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)
            self.listener.close()


def remove_leftovers(place: Path) -> None:
    """Remove the sockets and locks of programs that were killed."""
    for path in place.glob("*.lock"):
        with suppress(OSError):
            if path.stat().st_mtime > time.time() - _LEFTOVER:
                continue
            # Only with the lock of the program: without it, the files of a program that is about to
            # start could be removed.
            lock = locked_file(path)
            try:
                path.with_suffix(".node").unlink(missing_ok=True)
                path.unlink()
            finally:
                os.close(lock)
