"""Waking a thread that sits in a system call: what works for which kind of thing.

``close`` frees nobody, and lets the next ``open`` take over the number while the thread still reads
from it. So what is registered here is woken first, and closed only when its thread is known to be
gone.
"""

import io
import os
import select
import selectors
import signal
import socket
import stat
import subprocess
from collections.abc import Callable
from math import ceil
from typing import Any, Final

from ..vocabulary.errors import BadInputError
from .wakeable_file import can_block, make_wakeable

__all__ = ["Doorbell", "Resources"]

_REAP: Final = 0.5
"""Seconds for a program that was killed to be gone."""


class Doorbell:
    """A descriptor that becomes readable when rung, and stays so: what a thread selects on beside
    its own.
    """

    __slots__ = ("_read", "_write")

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """What to select on."""
        return self._read

    def ring(self) -> None:
        """Wake whoever waits, now and from now on."""
        try:
            os.write(self._write, b"!")
        except BlockingIOError:  # full is as good as rung
            return

    def close(self) -> None:
        """Give the descriptors back; only once no thread can be selecting on them."""
        for fd in (self._read, self._write):
            os.close(fd)


class Resources:
    """What a reader has opened, how to free a thread that is blocked in it, and closing it in the
    end.
    """

    __slots__ = ("_bell", "_closed", "_known", "_report", "stopping")

    def __init__(self, report: Callable[[str, Exception], None]) -> None:
        self._report = report
        self._known: list[tuple[Any, Callable[[], object] | None]] = []
        self._bell: Doorbell | None = None
        self._closed = False
        self.stopping = False

    def add(self, resource: Any, unblock: Callable[[], object] | None) -> None:
        """Remember something that a thread may block in.

        Raises:
            BadInputError: a thread that is blocked in it could not be woken.
        """
        if unblock is None:
            self._prepare(resource)
        self._known.append((resource, unblock))
        if self.stopping:
            # Opened while the stop was under way: woken now, since nobody may come round again.
            self._wake(resource, unblock)
            if self._closed:
                self._close_all()

    def _prepare(self, resource: Any) -> None:
        if isinstance(resource, selectors.BaseSelector):
            resource.register(self.bell(), selectors.EVENT_READ)
        elif isinstance(resource, subprocess.Popen):
            # Killing the program is not enough if a program that it started holds the pipe.
            for stream in (resource.stdin, resource.stdout, resource.stderr):
                if stream is not None:
                    make_wakeable(stream, self.bell())
        elif isinstance(resource, int):
            raise BadInputError(
                "opened(resource)",
                resource,
                "a file, such as os.fdopen(fd, 'rb'): a bare number cannot be woken",
            )
        elif isinstance(resource, io.IOBase):
            self._prepare_file(resource)

    def _prepare_file(self, file: io.IOBase) -> None:
        try:
            fd = file.fileno()
        except (OSError, ValueError):  # in memory, or closed: nobody blocks in it
            return
        if can_block(fd) and not make_wakeable(file, self.bell()):
            raise BadInputError(
                "opened(resource)",
                file,
                "a buffered file, or `unblock=` as well: a read without a buffer cannot be woken "
                "from a pipe; "
                "or self.wait_readable(file) before each read",
            )

    def bell(self) -> Doorbell:
        """The doorbell, made when first needed."""
        if self._bell is None:
            self._bell = Doorbell()
            if self.stopping:
                self._bell.ring()
        return self._bell

    def wait_readable(self, fd: Any, timeout: float | None) -> bool:
        """Block until ``fd`` can be read; False when the time is over or the stop has come."""
        poll = select.poll()
        bell = self.bell()
        poll.register(fd, select.POLLIN | select.POLLHUP | select.POLLERR)
        poll.register(bell, select.POLLIN)
        ready = poll.poll(None if timeout is None else ceil(min(timeout, 1e6) * 1000))
        return not self.stopping and any(number != bell.fileno() for number, _ in ready)

    def pause(self, seconds: float) -> bool:
        """Block for some time; False when the stop has come."""
        poll = select.poll()
        poll.register(self.bell(), select.POLLIN)
        # Rounded up: a pause that ends early makes a loop around it spin.
        poll.poll(ceil(min(seconds, 1e6) * 1000))
        return not self.stopping

    def unblock(self) -> None:
        """Free whoever is blocked. On the loop, any number of times."""
        self.stopping = True
        if self._bell is not None:
            self._bell.ring()
        for resource, unblock in list(self._known):
            self._wake(resource, unblock)

    def close(self) -> None:
        """Close what is still open. Only when no thread uses it any more."""
        self.stopping = self._closed = True
        self._close_all()
        if self._bell is not None:
            self._bell.close()
            self._bell = None

    def _close_all(self) -> None:
        known, self._known = self._known, []
        for resource, _ in reversed(known):
            try:
                if isinstance(resource, subprocess.Popen):
                    _end_program(resource)
                elif hasattr(resource, "close"):
                    resource.close()
            except (OSError, ValueError):  # it was broken, or closed by somebody else
                continue
            except Exception as error:
                self._report("closing", error)

    def _wake(self, resource: Any, unblock: Callable[[], object] | None) -> None:
        try:
            if unblock is not None:
                unblock()
            elif isinstance(resource, socket.socket):
                _shut_down(resource)
            elif isinstance(resource, subprocess.Popen):
                _kill(resource)
            elif hasattr(resource, "fileno"):
                _wake_socket_below(resource.fileno())
        except (OSError, ValueError):  # closed already: then nobody is blocked in it
            return
        except Exception as error:
            self._report("unblocking", error)


def _shut_down(sock: socket.socket) -> None:
    if sock.fileno() >= 0:
        # On a datagram socket this raises ENOTCONN, and wakes the reader all the same.
        sock.shutdown(socket.SHUT_RDWR)


def _wake_socket_below(fd: int) -> None:
    """Free the reader of what is made of a socket: ``makefile()``, a connection of multiprocessing."""
    if stat.S_ISSOCK(os.fstat(fd).st_mode):
        with socket.socket(fileno=os.dup(fd)) as sock:
            _shut_down(sock)


def _kill(program: "subprocess.Popen[Any]") -> None:
    if program.poll() is None:
        if os.getpgid(program.pid) == program.pid:
            # It has a group of its own, so those that it started are in there, too.
            os.killpg(program.pid, signal.SIGKILL)
        else:
            program.kill()


def _end_program(program: "subprocess.Popen[Any]") -> None:
    try:
        _kill(program)
    except OSError:  # gone in the meantime
        pass
    for stream in (program.stdin, program.stdout, program.stderr):
        if stream is not None:
            try:
                stream.close()
            except (OSError, ValueError):  # what it did not take is lost with it
                continue
    try:
        program.wait(_REAP)
    except (
        subprocess.TimeoutExpired
    ):  # stuck in the system: nothing ends it, and the loop must not wait
        return
