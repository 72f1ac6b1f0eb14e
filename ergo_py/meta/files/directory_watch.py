"""Changes in a directory tree as messages."""

import os
import stat
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from errno import ENOSPC, ENOTDIR
from importlib import import_module
from typing import Any, Final

from ..._core.verbs.meta_process import MetaProcess
from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.ids import Alias, Target
from ..._core.vocabulary.options import check_number
from ..receivers import check_receiver
from .directory_scan import Change, Tree
from .inotify import lacks_watches

__all__ = ["Change", "DirectoryWatch", "PathChanged"]

_RESCAN: Final = 60.0
"""Seconds after which everything is compared even if the operating system told nothing: its queue
may have overflowed.
"""
_PATIENCE: Final = 5
"""How often in a row the package may fail."""
_STEP: Final = 50
_TIMEOUT: Final = 500


@dataclass(frozen=True, slots=True)
class PathChanged:
    """A file or directory came, changed or went; several changes in a short time may be told as
    one.
    """

    source: Alias
    change: Change
    path: str


class DirectoryWatch(MetaProcess):
    """Watches a directory tree, in a thread of its own.

    With the extra ``watch`` (the package watchfiles) the operating system tells when something has
    changed; without it, or with ``polling=True``, the tree is compared with what it was every
    ``interval`` seconds. What is told is the same either way. What a directory contains is not its
    own change. A directory that is removed while it is watched ends the meta-process, after what
    was in it was told as deleted; one that takes its place at once is watched instead.

    Where the system lets a user listen to no more directories (``fs.inotify.max_user_watches``),
    the tree is polled, and the log says so. A name that is not UTF-8 is told with surrogates, as
    :func:`os.fsdecode` makes them.

    Args:
        path: the directory.
        recursive: watch what is below its subdirectories, too.
        initial: tell what is there at the beginning, as added.
        polling: True never relies on the operating system, and None does if it can; False makes it
            an error if it cannot at the beginning.
        interval: seconds between two looks, when polling.
        ignore: says of a path that nothing is to be told of it or of what is below it.
        receiver: who is told; the owner if not given.

    Raises:
        BadInputError: an argument can never be right.
    """

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
        """How often in a row the package has failed before it told anything."""
        self._told = 0

    def init(self) -> None:
        """See that there is a directory, and what is in it."""
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
        """Tell of changes until the stop comes."""
        if self._initial:
            self._tell()
        while self._package is not None and not self.stopping:
            self._listen()
        while self.pause(self._interval):
            self._tell()
            self._look_at_root()

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """What is watched, and how."""
        return {
            "path": self._path,
            "backend": "polling" if self._package is None else "watchfiles",
            "paths": str(len(self._tree)),
            "told": str(self._told),
        }

    def _listen(self) -> None:
        """Tell what the package hears, until the stop comes, or until it has to begin anew, or has
        to be done without.
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
                        self._begin_anew(error)
                    return
                if batch is None:
                    return
                self._failures = 0
                paths = {path for _, path in batch}
                # Everything when the first batch comes: something may have changed before the
                # listening began.
                if compare_at is None or time.monotonic() >= compare_at or self._tree.root in paths:
                    # What the system does not listen to, for want of watches, is not told of
                    # either.
                    grew = self._tell() or compare_at is None
                    had_begun, compare_at = compare_at is not None, time.monotonic() + _RESCAN
                else:
                    grew, had_begun = bool(paths) and self._tell(*paths), True
                if self._look_at_root() != root or self._tree.root in paths:
                    # Another directory may have taken the place of the one that is listened to.
                    return
                if grew and lacks_watches():
                    self._poll(_no_watches(), may_raise=not had_begun)
                    return

    def _begin_anew(self, error: Exception) -> None:
        """The package has failed, as over a name that is not UTF-8. If it goes on to, it is done
        without.
        """
        self._failures += 1
        if self._failures > _PATIENCE:
            self._poll(error, may_raise=False)
            return
        self.log.info("watchfiles failed, and begins anew", path=self._path, error=repr(error))
        # What it has heard is lost with it, so everything is compared; not more often than by
        # polling.
        self._tell()
        self.pause(self._interval)

    def _poll(self, error: Exception, *, may_raise: bool) -> None:
        """Do without the package from now on."""
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
        """Tell what has changed at these paths, or anywhere; True if there are more directories to
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
        """The same as :meth:`_check_root`; what was in a directory that is gone is told before that
        ends the watch.
        """
        try:
            return self._check_root()
        except OSError:
            self._tell()
            raise

    def _check_root(self) -> tuple[int, int]:
        """By what the directory is known; another one at its path has something else."""
        root = self._tree.root
        try:
            status = os.stat(root)
        except OSError as error:
            raise OSError(error.errno, "there is no such directory to watch", self._path) from None
        if not stat.S_ISDIR(status.st_mode):
            raise OSError(ENOTDIR, "there is no such directory to watch", self._path)
        return status.st_dev, status.st_ino


class _Stop:
    """Looks like a ``threading.Event`` to the package, which asks for it now and then."""

    def __init__(self, watch: DirectoryWatch) -> None:
        self._watch = watch

    def is_set(self) -> bool:
        return self._watch.stopping


def _no_watches() -> OSError:
    return OSError(
        ENOSPC,
        "the system lets this user listen to no more directories; raise "
        "fs.inotify.max_user_watches, or poll: polling=True",
    )
