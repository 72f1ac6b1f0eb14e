"""`lacks_watches`: whether this user may watch no further directory with inotify."""

import ctypes
import os
from errno import ENOSPC

__all__ = ["lacks_watches"]

_IN_DELETE_SELF = 0x400


def lacks_watches() -> bool:
    """True if no watch is left. A program that adds many watches does not always hear of it, so
    request a watch and release it.

    False where there is no inotify.
    """
    try:
        library = ctypes.CDLL(None, use_errno=True)
        begin, add = library.inotify_init1, library.inotify_add_watch
    except (OSError, AttributeError, TypeError):  # another system
        return False
    fd = begin(os.O_CLOEXEC)
    if fd < 0:
        return False
    try:
        return add(fd, b"/", _IN_DELETE_SELF) < 0 and ctypes.get_errno() == ENOSPC
    finally:
        os.close(fd)
