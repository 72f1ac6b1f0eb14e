"""`identity_of`: which file a path has. A library that keeps a file open goes on with it after the
file was removed, and no other program finds what it writes there.
"""

import os
from pathlib import Path

__all__ = ["identity_of"]


def identity_of(path: Path | str, least: int = 0) -> tuple[int, int] | None:
    """The device and number of a file; None for none, and for one with fewer bytes."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return None if found.st_size < least else (found.st_dev, found.st_ino)
