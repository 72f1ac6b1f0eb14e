"""`DirectoryWatch`: changes in a directory tree, as messages."""

import os
import stat
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from errno import ENOSPC, ENOTDIR
from importlib import import_module
from typing import Any, Final, TypeAlias

from ..._core.verbs.meta_process import MetaProcess
from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.ids import Alias, Target
from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.public_names import show_members, show_public_names
from ..receivers import check_receiver
from .directory_scan import Change, Tree
from .inotify import lacks_watches

__all__ = ["Change", "DirectoryWatch", "PathChanged"]

_RESCAN: Final = 60.0
"""Seconds after which the whole tree is compared even without a report of the operating system,
since its queue may have overflowed.
"""
_PATIENCE: Final = 5
"""How often in a row the package may fail."""
_STEP: Final = 50
_TIMEOUT: Final = 500


@dataclass(frozen=True, slots=True)
class PathChanged:
    """A file or directory was added, modified or deleted. Several changes in a short time may come
    as a single message.
    """

    source: Alias
    change: Change
    path: str


class DirectoryWatch(MetaProcess):
    """Watches a directory tree, in a thread of its own.

    With the extra ``watch`` (the package watchfiles) the operating system reports changes. Without
    it, or with ``polling=True``, the thread scans the tree every ``interval`` seconds. The messages
    are the same either way. A change of a directory's content is not a change of the directory. If
    the watched directory is removed, the meta-process ends, after it has reported the content as
    deleted; a directory that takes its place at once is watched instead.

    If the system allows the user no more watches (``fs.inotify.max_user_watches``), the tree is
    polled, and the log says so. A name that is not UTF-8 is reported with surrogates, as
    :func:`os.fsdecode` makes them.

    Args:
        path: the directory.
        recursive: watch the content of its subdirectories, too.
        initial: report the paths that are there at the beginning, as added.
        polling: True never relies on the operating system; None relies on it if possible; False
            raises an error if that is not possible at the beginning.
        interval: seconds between two scans, when polling.
        ignore: a function; if it returns True for a path, no change of the path or below it is
            reported.
        receiver: the address that gets the messages; None for the owner.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    Changed: TypeAlias = PathChanged

    kind = "watch"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        recursive: bool = True,
        initial: bool = False,
        polling: bool | None = None,
        interval: float = 0.5,
        ignore: Callable[[str], bool] | None = None,
        receiver: Target | None = None,
    ) -> None:
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            raise BadInputError("path", path, "a str or a path")
        check_number("interval", interval, least=0.001)
        self._path = os.fspath(path)
        self._initial = initial
        self._polling = polling
        self._interval = interval
        self._recursive = recursive
        self._receiver = check_receiver(receiver)
        self._tree = Tree(os.path.abspath(self._path), recursive=recursive, ignore=ignore)
        self._package: Any = None
        self._failures = 0
        """How often in a row the package has failed before it reported anything."""
        self._told = 0

    def init(self) -> None:
        """Check that the directory exists, and scan it."""
        self._check_root()
        if not self._polling:
            try:
                self._package = import_module("watchfiles")
            except ImportError:
                if self._polling is False:
                    raise BadInputError(
                        "polling", False, "True or None, or install the extra: ergo_py[watch]"
                    ) from None
        if not self._initial:
            self._tree.look()

    def start(self) -> None:
        """Report changes until the stop."""
        if self._initial:
            self._tell()
        while self._package is not None and not self.stopping:
            self._listen()
        while self.pause(self._interval):
            self._tell()
            self._look_at_root()

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The watched path, the backend and the counters."""
        return {
            "path": self._path,
            "backend": "polling" if self._package is None else "watchfiles",
            "paths": str(len(self._tree)),
            "told": str(self._told),
        }

    def _listen(self) -> None:
        """Report the changes that the package hears of, until the stop, or until the package has to
        be restarted or given up.
        """
        batches = self._package.watch(
            self._tree.root,
            watch_filter=None,
            step=_STEP,
            stop_event=_Stop(self),
            rust_timeout=_TIMEOUT,
            yield_on_timeout=True,
            raise_interrupt=False,
            recursive=self._recursive,
            ignore_permission_denied=True,
        )
        root = self._look_at_root()
        compare_at: float | None = None
        with closing(batches):
            while True:
                try:
                    batch = next(batches, None)
                except Exception as error:
                    self._look_at_root()
                    if isinstance(error, OSError) and compare_at is None:
                        self._poll(error, may_raise=True)
                    else:
                        self._restart_package(error)
                    return
                if batch is None:
                    return
                self._failures = 0
                paths = {path for _, path in batch}
                # With the first batch, compare the whole tree: a path may have changed before the
                # package began to listen.
                if compare_at is None or time.monotonic() >= compare_at or self._tree.root in paths:
                    # Look for new directories: out of watches, the system does not listen to them,
                    # and does not report that either.
                    grew = self._tell() or compare_at is None
                    had_begun, compare_at = compare_at is not None, time.monotonic() + _RESCAN
                else:
                    grew, had_begun = bool(paths) and self._tell(*paths), True
                if self._look_at_root() != root or self._tree.root in paths:
                    # Another directory may have taken the place of the watched directory.
                    return
                if grew and lacks_watches():
                    self._poll(_no_watches(), may_raise=not had_begun)
                    return

    def _restart_package(self, error: Exception) -> None:
        """The package has failed, for example over a name that is not UTF-8. After repeated
        failures, poll instead.
        """
        self._failures += 1
        if self._failures > _PATIENCE:
            self._poll(error, may_raise=False)
            return
        self.log.info("watchfiles failed, and is restarted", path=self._path, error=repr(error))
        # Its reports are lost, so compare the whole tree; but not more often than polling does.
        self._tell()
        self.pause(self._interval)

    def _poll(self, error: Exception, *, may_raise: bool) -> None:
        """Poll from now on, without the package."""
        if may_raise and self._polling is False:
            raise error
        self.log.warning(
            "the tree is polled from now on",
            path=self._path,
            error=repr(error),
            interval=self._interval,
        )
        self._package = None

    def _tell(self, *paths: str) -> bool:
        """Report the changes at these paths, or anywhere. True if there are more directories to
        listen to than before.
        """
        to = self.parent if self._receiver is None else self._receiver
        grew = False
        for change, path in self._tree.look(*paths):
            grew = grew or (change is Change.ADDED and self._tree.is_directory(path))
            self._told += 1
            self.send(to, PathChanged(self.id, change, path))
        return grew

    def _look_at_root(self) -> tuple[int, int]:
        """The same as :meth:`_check_root`. If the directory is gone, report its content as deleted
        before the error ends the watch.
        """
        try:
            return self._check_root()
        except OSError:
            self._tell()
            raise

    def _check_root(self) -> tuple[int, int]:
        """Device and inode of the directory; another directory at its path has others."""
        root = self._tree.root
        try:
            status = os.stat(root)
        except OSError as error:
            raise OSError(error.errno, "there is no such directory to watch", self._path) from None
        if not stat.S_ISDIR(status.st_mode):
            raise OSError(ENOTDIR, "there is no such directory to watch", self._path)
        return status.st_dev, status.st_ino


class _Stop:
    """Looks like a ``threading.Event`` to the package, which checks it from time to time."""

    def __init__(self, watch: DirectoryWatch) -> None:
        self._watch = watch

    def is_set(self) -> bool:
        return self._watch.stopping


def _no_watches() -> OSError:
    return OSError(
        ENOSPC,
        "the system allows this user no more watches of directories; raise "
        "fs.inotify.max_user_watches, or poll: polling=True",
    )


show_public_names(__name__)
show_members(DirectoryWatch)
