"""`StoredFile`: a small file in memory. `FileCache`: such files of a directory."""

import os
import time
from collections.abc import Sequence
from typing import Final

from ..messages.responses import Response
from .file_facts import FileFacts

__all__ = ["MOST_BYTES", "FileCache", "Key", "Mark", "StoredFile", "mark_of"]

MOST_BYTES: Final = 1024 * 1024
"""The longest file to keep in memory."""
_MOST_FILES: Final = 4096
_SETTLED: Final = 2.0
"""Seconds after which a further change of a file changes its times: some file systems count in
seconds, so that a file could change twice at the same time.
"""

Mark = tuple[int, int, int, int, int]
"""The identity of a version of a file: device, inode, size, and the times of its last changes."""
Key = tuple[tuple[str, ...], bool]
"""The parts of a path, and whether the client takes gzip."""


def mark_of(facts: os.stat_result) -> Mark:
    """The identity of the version of a file that has these facts."""
    return (
        facts.st_dev,
        facts.st_ino,
        facts.st_size,
        facts.st_mtime_ns,
        facts.st_ctime_ns,
    )


class StoredFile:
    """A file in memory, and the paths that tell whether it has changed."""

    __slots__ = ("_marks", "changed", "facts", "is_local", "whole")

    def __init__(
        self,
        facts: FileFacts,
        whole: Response,
        marks: Sequence[tuple[str, Mark | None]],
        *,
        is_local: bool,
        changed: float,
    ) -> None:
        """``marks``: which version is at a path, or that there is none."""
        self._marks = marks
        self.facts: FileFacts = facts
        self.whole: Response = whole
        """The response with the whole file."""
        self.changed: float = changed
        """When the file had changed last, after it was read."""
        self.is_local: bool = is_local
        """The file is on a local file system: a look at it does not block."""

    def is_current(self) -> bool:
        """Whether the file has not changed: its paths lead to the same versions. This also holds if
        a link was changed and leads to the same file.
        """
        for path, mark in self._marks:
            try:
                found = mark_of(os.stat(path))
            except OSError:
                found = None
            if found != mark:
                return False
        return True


class FileCache:
    """Small files in memory; the files that were not used for the longest time go first. The loop
    uses it, and no thread.
    """

    __slots__ = ("_files", "_limit", "size")

    def __init__(self, limit: int) -> None:
        """``limit`` is how many bytes the files may have together."""
        self._limit = limit
        self._files: dict[Key, StoredFile] = {}
        self.size: int = 0
        """The bytes of all files."""

    def __len__(self) -> int:
        return len(self._files)

    def get(self, key: Key) -> StoredFile | None:
        """The file, if it is in memory."""
        stored = self._files.pop(key, None)
        if stored is not None:
            self._files[key] = stored
        return stored

    def put(self, key: Key, stored: StoredFile) -> None:
        """Keep a file, unless it may change without a trace."""
        self.drop(key)
        if stored.changed + _SETTLED > time.time() or len(stored.whole.body) > self._limit:
            return
        self._files[key] = stored
        self.size += len(stored.whole.body)
        while self.size > self._limit or len(self._files) > _MOST_FILES:
            self.drop(next(iter(self._files)))

    def drop(self, key: Key) -> None:
        """Forget a file."""
        stored = self._files.pop(key, None)
        if stored is not None:
            self.size -= len(stored.whole.body)
