"""Locks on files (``flock``) that are removed by their owners, or by a cleaner of temporary files.

A lock belongs to an open file, not to its name: two programs could lock two files of the same name,
the first of which was removed. So a program compares the file that it has locked with the file that
has the name.
"""

import fcntl
import os
from pathlib import Path

__all__ = ["is_same_file", "is_unlocked", "locked_file"]


def locked_file(path: Path) -> int:
    """Open and lock the file of a name; make it if it is missing. Returns its descriptor.

    Raises:
        BlockingIOError: another program has locked it.
        OSError: the file cannot be opened.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        # The owner may remove the file between open() and flock(): the lock would then belong to a
        # file without a name, and a second program would lock the next file of this name.
        if is_same_file(descriptor, path):
            return descriptor
        os.close(descriptor)  # its owner has removed it meanwhile


def is_same_file(descriptor: int, path: Path) -> bool:
    """Whether a name still belongs to an open file."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def is_unlocked(path: Path) -> bool:
    """Whether no program holds the lock of a file.

    Raises:
        OSError: there is no such file.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
