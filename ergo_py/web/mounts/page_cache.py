"""Files that the operating system has in memory: opened and read on the loop, without blocking.

Linux resolves a path and reads bytes on condition that it need not wait for a disk, and refuses
otherwise. A refused caller asks a thread, which waits.
"""

import ctypes
import os
from collections.abc import Callable
from errno import EPERM
from functools import lru_cache
from io import BytesIO
from struct import pack
from typing import Final

__all__ = ["open_cached", "read_cached"]

_OPENAT2: Final = 437
"""The number of the system call: C libraries have no function for it. Alpha and MIPS count
otherwise: there the operating system refuses this number, and a thread opens the file.
"""
_AT_FDCWD: Final = -100
_NO_XDEV, _NO_SYMLINKS, _BENEATH, _CACHED = 0x01, 0x04, 0x08, 0x20


@lru_cache(maxsize=1)
def _calls() -> tuple[Callable[..., int], bytes, bytes] | None:
    """The system call, with its rules for the root directory and for a file below it; None if this
    operating system has none, or the C library no way to it. Made late: Windows has neither the
    flags nor the library.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    # PyDLL keeps the lock of the interpreter: another thread would hold it for longer than the
    # call takes.
    syscall = getattr(ctypes.PyDLL(None, use_errno=True), "syscall", None)
    if syscall is None:
        return None
    root = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    # A pipe would block, and a device is no file.
    file = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    return (
        syscall,
        pack("QQQ", root, 0, _NO_SYMLINKS | _CACHED),
        pack("QQQ", file, 0, _NO_SYMLINKS | _BENEATH | _NO_XDEV | _CACHED),
    )


def open_cached(root: str, path: str) -> int:
    """Open a file below a directory if the operating system has every step of its path in memory,
    on the file system of the directory, and if no step is a link.

    Raises:
        OSError: there is no such file, or a thread has to look for it.
    """
    calls = _calls()
    if calls is None:
        raise OSError(EPERM, "the operating system opens no file without blocking")
    syscall, of_root, of_file = calls
    place = _open(syscall, _AT_FDCWD, root, of_root)
    try:
        return _open(syscall, place, path, of_file)
    finally:
        os.close(place)


def _open(syscall: Callable[..., int], place: int, path: str, rules: bytes) -> int:
    # The C library passes the arguments on as they are: those of type long must be that wide.
    number, size = ctypes.c_long(_OPENAT2), ctypes.c_size_t(len(rules))
    fd = syscall(number, place, os.fsencode(path), rules, size)
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return fd


def read_cached(fd: int, begin: int, end: int) -> bytes:
    """The part of a file that the operating system has in memory, from ``begin`` on; empty if a
    thread has to read it.
    """
    if end <= begin:
        return b""
    # The buffer of a BytesIO becomes its value without a copy. A copy would double the costs, and
    # more than that for a megabyte, whose memory would come from the operating system each time.
    made = BytesIO()
    made.seek(end - begin - 1)
    made.write(b"\0")
    try:
        with made.getbuffer() as buffer:
            size = os.preadv(fd, [buffer], begin, os.RWF_NOWAIT)
    except OSError:
        return b""
    made.truncate(size)
    return made.getvalue()
