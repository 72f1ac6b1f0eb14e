"""What is in a directory tree, and what has changed since the last look."""

import os
import stat
from collections.abc import Callable, Iterator
from enum import Enum

__all__ = ["Change", "Tree"]

_Mark = tuple[int, ...]


class Change(Enum):
    """What happened to a path."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


class Tree:
    """A picture of a directory tree. Each look compares it with what is there, tells the
    difference, and is the picture afterwards.

    Links are not followed. What cannot be read, or disappears in the middle of a look, counts as
    not there.
    """

    def __init__(
        self, root: str, *, recursive: bool = True, ignore: Callable[[str], bool] | None = None
    ) -> None:
        self.root = root
        self._recursive = recursive
        self._ignore = ignore
        self._marks: dict[str, _Mark] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def paths(self) -> list[str]:
        """What is there."""
        return list(self._marks)

    def is_directory(self, path: str) -> bool:
        """Whether this was a directory at the last look."""
        return len(self._marks.get(path, ())) == 1

    def look(self, *paths: str) -> list[tuple[Change, str]]:
        """Compare these paths and all below them, or, without any, everything."""
        if not paths or self.root in paths:
            paths = (self.root,)
        found: dict[str, _Mark] = {}
        for path in paths:
            found.update(self._found(path))
        gone = [path for path in self._known(paths) if path not in found]
        for path in gone:
            del self._marks[path]
        changes = []
        for path, mark in found.items():
            known = self._marks.get(path)
            if known != mark:
                changes.append((Change.ADDED if known is None else Change.MODIFIED, path))
        self._marks.update(found)
        # A directory before what is in it when it comes, and after it when it goes.
        gone.sort(reverse=True)
        changes.sort(key=lambda change: change[1])
        return [*((Change.DELETED, path) for path in gone), *changes]

    def _known(self, paths: tuple[str, ...]) -> set[str]:
        """These paths and all below them, as far as they are in the picture."""
        if paths == (self.root,):
            return set(self._marks)
        known = {path for path in paths if path in self._marks}
        # Only what was a directory can have had something below it, and to look for that means to
        # look at everything.
        below = tuple(path + os.sep for path in known if len(self._marks[path]) == 1)
        if below:
            known.update(path for path in self._marks if path.startswith(below))
        return known

    def _found(self, path: str) -> Iterator[tuple[str, _Mark]]:
        # Not by recursion: directories may be nested deeper than Python's stack.
        waiting = [path]
        while waiting:
            path = waiting.pop()
            if path != self.root:
                if self._ignore is not None and self._ignore(path):
                    continue
                mark = _mark(path)
                if mark is None:
                    continue
                yield path, mark
                if len(mark) > 1 or not self._recursive:
                    continue
            try:
                with os.scandir(path) as entries:
                    waiting.extend(entry.path for entry in entries)
            except OSError:  # gone meanwhile, or not ours to look into: then nothing more is in it
                continue


def _mark(path: str) -> _Mark | None:
    """By what a change of a file is seen; of a directory only that it is another one, since it
    changes with each thing in it.
    """
    try:
        status = os.lstat(path)
    except OSError:  # gone; what was there is told as deleted
        return None
    if stat.S_ISDIR(status.st_mode):
        return (status.st_ino,)
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode
