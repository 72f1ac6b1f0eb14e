"""`Directory`: finds and opens the files of a directory, and never a file outside of it."""

import os
import stat
from collections.abc import Iterable
from errno import EIO, EMFILE, ENFILE, ENOMEM
from typing import Final

from ..messages.responses import HTTPError
from .file_cache import Mark, mark_of
from .page_cache import open_cached, read_cached

__all__ = ["Directory", "OpenedFile"]

_LOCAL: Final = frozenset(
    (
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs"),
        *("tmpfs", "ramfs", "overlay", "squashfs", "erofs", "iso9660"),
    )
)
"""File systems in which a look at a file that was read before does not wait for another machine."""
_LATER: Final = frozenset((EMFILE, ENFILE, ENOMEM, EIO))
"""Errors of the machine and not of a path: the file may well be there, and a client or a proxy that
gets 404 may forget it.
"""
_INDEX: Final = "index.html"
WELL_KNOWN: Final = ".well-known"
"""The only name with a dot in front that is served: such a directory is public (RFC 8615)."""


class OpenedFile:
    """An open file of a directory."""

    __slots__ = ("_ahead", "encoding", "facts", "fd", "is_local", "marks", "name")

    def __init__(self, fd: int, name: str, encoding: str) -> None:
        self.fd: int = fd
        self.name: str = name
        """The name that tells the type."""
        self.encoding: str = encoding
        """The encoding, if this is a compressed form of the file that was asked for."""
        self.facts: os.stat_result = os.fstat(fd)
        self.is_local: bool = False
        """Whether a look at the file never waits for another machine."""
        self._ahead = b""
        """The first bytes of the file, if they are read."""
        self.marks: list[tuple[str, Mark | None]] = []
        """The paths that tell whether the file has changed, and their versions."""

    def read(self, begin: int, end: int) -> bytes:
        """A part of the file; shorter if the file has become shorter."""
        return os.pread(self.fd, end - begin, begin)

    def read_cached(self, begin: int, end: int) -> bytes:
        """A part of the file as far as it is in memory; empty if a thread has to read it."""
        return read_cached(self.fd, begin, end)

    def read_ahead(self, size: int) -> None:
        """Read the first bytes of the file."""
        self._ahead = self.read(0, size)

    def take_ahead(self, size: int) -> bytes:
        """The first bytes of the file that were read, once."""
        taken, self._ahead = self._ahead[:size], b""
        return taken

    def look_again(self) -> None:
        """Note the facts of the file as they are now."""
        self.facts = os.fstat(self.fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)


class Directory:
    """The files below a directory."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        self._inside = self._root.rstrip("/") + "/"
        device = os.stat(self._root).st_dev
        self._local_device = device if is_local(device) else None

    def open(self, parts: tuple[str, ...], takes_gzip: bool, is_folder: bool) -> OpenedFile | None:
        """Find and open the file of a path. ``is_folder`` says that the path ends with a slash.
        Returns None for a directory with an index whose path does not. Blocks: call it in a thread.

        Raises:
            HTTPError: there is no such file, or the machine cannot open it now.
        """
        if not _are_names(parts):
            raise HTTPError(404)
        asked = self._inside + "/".join(parts)
        try:
            path = os.path.realpath(asked, strict=True)
            is_directory = os.path.isdir(path)
            if is_directory:
                asked = os.path.join(asked, _INDEX)
                path = os.path.realpath(asked, strict=True)
            elif is_folder:
                raise FileNotFoundError(asked)
            plain = self._open(path, os.path.basename(path), "")
        except (OSError, ValueError) as error:
            raise HTTPError(503 if getattr(error, "errno", None) in _LATER else 404) from None
        if is_directory and not is_folder:
            plain.close()
            return None
        plain.marks.append((asked, mark_of(plain.facts)))
        return self._packed(plain, asked, path) if takes_gzip else plain

    def open_cached(
        self, parts: tuple[str, ...], takes_gzip: bool, is_folder: bool
    ) -> OpenedFile | None:
        """Open the file of a path without blocking, if its path has no links and the operating
        system has it in memory. Returns None if a thread has to look.
        """
        if self._local_device is None or not _are_names(parts):
            return None
        if is_folder:
            parts = (*parts, _INDEX)
        if not parts:
            return None
        path = "/".join(parts)
        try:
            plain = self._open_cached(path, parts[-1], "")
        except (OSError, ValueError):
            return None
        plain.marks.append((self._inside + path, mark_of(plain.facts)))
        if not takes_gzip:
            return plain
        beside = f"{path}.gz"
        try:
            packed = self._open_cached(beside, plain.name, "gzip")
        except FileNotFoundError:
            plain.marks.append((self._inside + beside, None))
            return plain
        except OSError:
            plain.close()
            return None
        packed.marks = [*plain.marks, (self._inside + beside, mark_of(packed.facts))]
        plain.close()
        return packed

    def _open_cached(self, path: str, name: str, encoding: str) -> OpenedFile:
        opened = OpenedFile(open_cached(self._root, path), name, encoding)
        if not stat.S_ISREG(opened.facts.st_mode):
            opened.close()
            raise IsADirectoryError(path)
        opened.is_local = True
        return opened

    def _packed(self, plain: OpenedFile, asked: str, path: str) -> OpenedFile:
        """The compressed file beside a file, or the file itself."""
        beside = f"{path}.gz"
        try:
            packed = self._open(os.path.realpath(beside, strict=True), plain.name, "gzip")
        except (OSError, ValueError):
            plain.marks.append((beside, None))
            return plain
        packed.marks = [*plain.marks, (beside, mark_of(packed.facts))]
        plain.close()
        return packed

    def _open(self, path: str, name: str, encoding: str) -> OpenedFile:
        """Open a path without links. Each step refuses a link, since another program could have put
        it there after the path was resolved.

        Raises:
            OSError: there is no such file, it is no plain file, or it is outside.
        """
        if not path.startswith(self._inside):
            raise FileNotFoundError(path)
        parts = path[len(self._inside) :].split("/")
        if any(map(is_hidden, parts)):
            raise FileNotFoundError(path)
        # Not at the top of the module: Windows, where the server does not run, has no such flags.
        read = os.O_RDONLY | os.O_NOFOLLOW
        place = os.open(self._root, read | os.O_DIRECTORY)
        try:
            for part in parts[:-1]:
                inner = os.open(part, read | os.O_DIRECTORY, dir_fd=place)
                os.close(place)
                place = inner
            # A pipe would block, and a device is no file.
            fd = os.open(parts[-1], read | os.O_NONBLOCK, dir_fd=place)
        finally:
            os.close(place)
        opened = OpenedFile(fd, name, encoding)
        if not stat.S_ISREG(opened.facts.st_mode):
            opened.close()
            raise FileNotFoundError(path)
        opened.is_local = opened.facts.st_dev == self._local_device
        return opened


def is_hidden(part: str) -> bool:
    """Whether a name does not exist for clients."""
    return part.startswith(".") and part != WELL_KNOWN


def _are_names(parts: tuple[str, ...]) -> bool:
    """Whether the parts of a path can be names of files for clients."""
    return not any(not part or is_hidden(part) or _is_no_name(part) for part in parts)


def _is_no_name(part: str) -> bool:
    return "/" in part or "\\" in part or "\0" in part


def is_local(device: int) -> bool:
    """Whether a device has a local file system; False if that is not known."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            return has_local_mount(mounts, f"{os.major(device)}:{os.minor(device)}")
    except OSError:
        return False


def has_local_mount(mounts: Iterable[str], device: str) -> bool:
    for line in mounts:
        before, _, after = line.partition(" - ")
        if before.split(" ")[2:3] == [device]:
            return after.split(" ")[0] in _LOCAL
    return False
