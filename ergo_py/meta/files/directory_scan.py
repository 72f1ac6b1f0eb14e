"""`Tree`: the state of a directory tree at the last scan, and its changes since."""

import os
import stat
from collections.abc import Callable, Iterator
from enum import Enum

__all__ = ["Change", "Tree"]

_Mark = tuple[int, ...]


class Change(Enum):
    """The kind of a change of a path."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


class Tree:
    """A snapshot of a directory tree. Each scan compares it with the file system, returns the
    changes, and updates it.

    Links are not followed. A path that cannot be read, or disappears during a scan, counts as
    missing.
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
        """All paths of the snapshot."""
        return list(self._marks)

    def is_directory(self, path: str) -> bool:
        """Whether the path was a directory at the last scan."""
        return len(self._marks.get(path, ())) == 1

    def look(self, *paths: str) -> list[tuple[Change, str]]:
        """Compare these paths and all paths below them; without arguments, the whole tree."""
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
        # A new directory comes before its content, a deleted directory after its content.
        gone.sort(reverse=True)
        changes.sort(key=lambda change: change[1])
        return [*((Change.DELETED, path) for path in gone), *changes]

    def _known(self, paths: tuple[str, ...]) -> set[str]:
        """The paths of the snapshot that are among these, or below them."""
        if paths == (self.root,):
            return set(self._marks)
        known = {path for path in paths if path in self._marks}
        # Only a directory can have had paths below it, and finding those means to search the whole
        # snapshot.
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
            except OSError:  # gone meanwhile, or not readable: it counts as empty
                continue


def _mark(path: str) -> _Mark | None:
    """The facts that reveal a change. For a directory only its inode: its other facts change with
    each entry in it.
    """
    try:
        status = os.lstat(path)
    except OSError:  # gone: the scan reports it as deleted
        return None
    if stat.S_ISDIR(status.st_mode):
        return (status.st_ino,)
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode
