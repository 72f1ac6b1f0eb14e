"""Waking a thread that sits in a system call: what works for which kind of thing.

``close`` frees nobody, and lets the next ``open`` take over the number while the thread still reads from it. So what is registered
here is woken first, and closed only when its thread is known to be gone.
"""

import os
import select
import selectors
import socket
import stat
import subprocess
from collections.abc import Callable
from math import ceil
from typing import Any

__all__ = ["Doorbell", "Resources"]


class Doorbell:
    """A descriptor that becomes readable when rung, and stays so: what a thread selects on beside its own."""

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
        except (BlockingIOError, OSError):  # full is as good as rung; closed means that nobody waits
            return

    def close(self) -> None:
        """Give the descriptors back; only once no thread can be selecting on them."""
        for fd in (self._read, self._write):
            os.close(fd)


class Resources:
    """What a reader has opened, how to free a thread that is blocked in it, and closing it in the end."""

    __slots__ = ("_bell", "_known", "stopping")

    def __init__(self) -> None:
        self._known: list[tuple[Any, Callable[[], object] | None]] = []
        self._bell: Doorbell | None = None
        self.stopping = False

    def add(self, resource: Any, unblock: Callable[[], object] | None) -> None:
        """Remember something that a thread may block in."""
        self._known.append((resource, unblock))
        if isinstance(resource, selectors.BaseSelector):
            resource.register(self.bell(), selectors.EVENT_READ)
        if self.stopping:
            # Opened while the stop was under way: woken now, since nobody will come round again.
            _wake(resource, unblock)

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
        ready = poll.poll(None if timeout is None else max(0.0, timeout * 1000))
        return not self.stopping and any(number != bell.fileno() for number, _ in ready)

    def pause(self, seconds: float) -> bool:
        """Block for some time; False when the stop has come."""
        poll = select.poll()
        poll.register(self.bell(), select.POLLIN)
        # Rounded up: a pause that ends early makes a loop around it spin.
        poll.poll(ceil(min(seconds, 1e6) * 1000))
        return not self.stopping

    def unblock(self) -> None:
        """Free whoever is blocked. From any thread, any number of times."""
        self.stopping = True
        if self._bell is not None:
            self._bell.ring()
        for resource, unblock in list(self._known):
            _wake(resource, unblock)

    def close(self) -> None:
        """Close what is still open. Only when no thread uses it any more."""
        known, self._known = self._known, []
        for resource, _ in reversed(known):
            # A bare number is not closed: whoever opened it may have closed it, and it may be somebody else's by now.
            if hasattr(resource, "close"):
                try:
                    resource.close()
                except (OSError, ValueError):
                    continue
            elif isinstance(resource, subprocess.Popen):
                _end_program(resource)
        if self._bell is not None:
            self._bell.close()
            self._bell = None


def _wake(resource: Any, unblock: Callable[[], object] | None) -> None:
    try:
        if unblock is not None:
            unblock()
        elif isinstance(resource, socket.socket):
            _wake_socket(resource)
        elif isinstance(resource, subprocess.Popen):
            if resource.poll() is None:
                resource.kill()
        elif hasattr(resource, "fileno") or isinstance(resource, int):
            _wake_descriptor(resource if isinstance(resource, int) else resource.fileno())
    except (OSError, ValueError):  # closed already: then nobody is blocked in it
        return


def _wake_socket(sock: socket.socket) -> None:
    if sock.fileno() < 0:
        return
    # On a datagram socket this raises ENOTCONN, and wakes the reader all the same.
    sock.shutdown(socket.SHUT_RDWR)


def _wake_descriptor(fd: int) -> None:
    """Wake the reader of a pipe or fifo by a byte of our own: it comes round, and sees that it is to stop."""
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return
    writer = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(writer, b"\n")
    finally:
        os.close(writer)


def _end_program(program: "subprocess.Popen[Any]") -> None:
    if program.poll() is None:
        program.kill()
    for stream in (program.stdin, program.stdout, program.stderr):
        if stream is not None:
            try:
                stream.close()
            except (OSError, ValueError):
                continue
    program.wait()
