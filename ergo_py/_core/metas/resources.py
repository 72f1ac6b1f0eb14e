"""`Resources`: the sockets, files and programs of a reader thread, and how to wake the thread when
it blocks in a system call on them.

``close`` does not wake a blocked thread, and lets the next ``open`` reuse the descriptor while the
thread still reads from it. So a registered resource is woken first, and closed only when its thread
is known to be gone.
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
from contextlib import suppress
from typing import Any, Final

from ..runtime.bridge import poll_in_thread
from ..vocabulary.errors import BadInputError
from .wakeable_file import can_block, make_wakeable

__all__ = ["Doorbell", "Resources"]

# Not measured: a killed program is gone in milliseconds, unless the kernel holds it, and the loop
# stands still as long as this waits.
_REAP: Final = 0.5
"""Seconds to wait for the exit of a killed program."""


class Doorbell:
    """A descriptor that becomes readable when rung, and stays so. A thread selects on it beside its
    own descriptors.
    """

    __slots__ = ("_read", "_write")

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        # The loop rings: it must not wait for a pipe that is full of rings.
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """The descriptor to select on."""
        return self._read

    def ring(self) -> None:
        """Wake all threads that wait for the bell, now and from now on."""
        try:
            os.write(self._write, b"!")
        except BlockingIOError:  # the pipe is full, so it is readable already
            return

    def hush(self) -> None:
        """Wake no thread until the next ring. Call it only when no thread can be selecting."""
        os.set_blocking(self._read, False)
        with suppress(BlockingIOError):
            while True:
                os.read(self._read, 65_536)

    def close(self) -> None:
        """Close the descriptors. Call it only when no thread can be selecting on them."""
        for fd in (self._read, self._write):
            os.close(fd)


class Resources:
    """The resources of a reader: wakes a thread that is blocked in them, and closes them at the
    end.
    """

    __slots__ = ("_bell", "_closed", "_known", "_report", "stopping")

    def __init__(self, report: Callable[[str, BaseException], None]) -> None:
        self._report = report
        self._known: list[tuple[Any, Callable[[], object] | None]] = []
        self._bell: Doorbell | None = None
        self._closed = False
        self.stopping: bool = False
        """The meta-process is stopping: the reader is to return."""

    def add(self, resource: object, unblock: Callable[[], object] | None) -> None:
        """Register a resource that a thread may block in.

        Raises:
            BadInputError: a thread that is blocked in the resource could not be woken.
        """
        if unblock is None:
            self._prepare(resource)
        # Before the look at `stopping`, which the loop sets before it goes through the list: so
        # either of the two wakes the resource.
        self._known.append((resource, unblock))
        if self.stopping:
            # The reader opened it while the meta-process was stopping. Wake it now, since
            # unblock() may not be called again.
            self._wake(resource, unblock)
            if self._closed:
                self._close_all()

    def _prepare(self, resource: object) -> None:
        if isinstance(resource, selectors.BaseSelector):
            resource.register(self.bell(), selectors.EVENT_READ)
        elif isinstance(resource, subprocess.Popen):
            # Killing the program is not enough: a program that it started may hold the pipe open.
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
        except (OSError, ValueError):  # in memory, or closed: no read can block
            return
        if can_block(fd) and not make_wakeable(file, self.bell()):
            raise BadInputError(
                "opened(resource)",
                file,
                "a buffered file, or `unblock=` as well: an unbuffered read from a pipe cannot be "
                "woken; or self.wait_readable(file) before each read",
            )

    def bell(self) -> Doorbell:
        """The doorbell, created on first use."""
        if self._bell is None:
            self._bell = Doorbell()
            if self.stopping:
                self._bell.ring()
        return self._bell

    def wait_readable(self, fd: Any, timeout: float | None) -> bool:
        """Block until ``fd`` is readable. False on timeout, or when the meta-process stops."""
        poll = select.poll()
        bell = self.bell()
        poll.register(fd, select.POLLIN | select.POLLHUP | select.POLLERR)
        poll.register(bell, select.POLLIN)
        ready = poll_in_thread(poll, timeout)
        return not self.stopping and any(number != bell.fileno() for number, _ in ready)

    def pause(self, seconds: float) -> bool:
        """Block for some seconds. False when the meta-process stops."""
        poll = select.poll()
        poll.register(self.bell(), select.POLLIN)
        poll_in_thread(poll, seconds)
        return not self.stopping

    def begin_stop(self) -> None:
        """Tell the reader to return, without waking it."""
        self.stopping = True

    def unblock(self) -> None:
        """Wake all blocked threads. Call it on the loop, any number of times."""
        self.begin_stop()
        if self._bell is not None:
            self._bell.ring()
        # A copy: the reader, in its thread, may register another resource meanwhile.
        for resource, unblock in list(self._known):
            self._wake(resource, unblock)

    def close(self) -> None:
        """Close all resources that are still open. Call it only when no thread uses them."""
        self.stopping = self._closed = True
        self._close_all()
        if self._bell is not None:
            self._bell.close()
            self._bell = None

    def _close_all(self) -> None:
        known, self._known = self._known, []
        # The last opened first: a file that wraps another is closed before the other.
        for resource, _ in reversed(known):
            try:
                if isinstance(resource, subprocess.Popen):
                    _end_program(resource)
                elif hasattr(resource, "close"):
                    resource.close()
            except (OSError, ValueError):  # broken, or closed by the reader's own code
                continue
            except BaseException as error:
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
        except (OSError, ValueError):  # closed already, so no thread is blocked in it
            return
        except BaseException as error:
            self._report("unblocking", error)


def _shut_down(sock: socket.socket) -> None:
    if sock.fileno() >= 0:
        # On an unconnected datagram socket this raises ENOTCONN, and wakes the reader nevertheless.
        sock.shutdown(socket.SHUT_RDWR)


def _wake_socket_below(fd: int) -> None:
    """Wake the reader of an object that wraps a socket: a ``makefile()``, or a connection of
    ``multiprocessing``.
    """
    if stat.S_ISSOCK(os.fstat(fd).st_mode):
        with socket.socket(fileno=os.dup(fd)) as sock:
            _shut_down(sock)


def _kill(program: "subprocess.Popen[Any]") -> None:
    if program.poll() is None:
        if os.getpgid(program.pid) == program.pid:
            # The program leads its own process group: kill the programs that it started, too.
            os.killpg(program.pid, signal.SIGKILL)
        else:
            program.kill()


def _end_program(program: "subprocess.Popen[Any]") -> None:
    try:
        _kill(program)
    except OSError:  # it has exited in the meantime
        pass
    for stream in (program.stdin, program.stdout, program.stderr):
        if stream is not None:
            try:
                stream.close()
            except (OSError, ValueError):  # unwritten data is lost with the program
                continue
    try:
        program.wait(_REAP)
    except subprocess.TimeoutExpired:  # stuck in the kernel, and the loop must not wait for it
        return
