"""Changes in a directory tree as messages."""

import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from errno import ENOENT, ENOTDIR
from importlib import import_module
from math import inf
from typing import Any, Final

from .._core.errors import BadInputError
from .._core.ids import Alias, Target
from .._core.meta import MetaProcess
from .._core.options import check_number
from .receivers import check_receiver
from .tree import Change, Tree

__all__ = ["Change", "DirectoryWatch", "PathChanged"]

_RESCAN: Final = 60.0
"""Seconds after which everything is compared even if the operating system told nothing: its queue may have overflowed."""
_STEP: Final = 50
_TIMEOUT: Final = 500


@dataclass(frozen=True, slots=True)
class PathChanged:
    """A file or directory came, changed or went; several changes in a short time may be told as one."""

    source: Alias
    change: Change
    path: str


class DirectoryWatch(MetaProcess):
    """Watches a directory tree, in a thread of its own.

    With the extra ``watch`` (the package watchfiles) the operating system tells when something has changed; without it, or with
    ``polling=True``, the tree is compared with what it was every ``interval`` seconds. What is told is the same either way. What a
    directory contains is not its own change. A directory that is removed while it is watched ends the meta-process, after what was
    in it was told as deleted.

    Args:
        path: the directory.
        recursive: watch what is below its subdirectories, too.
        initial: tell what is there at the beginning, as added.
        polling: True never, False always relies on the operating system; None does if the package is there.
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
        if self._package is not None:
            self._listen()
        else:
            while self.pause(self._interval):
                self._tell()
                self._check_root()

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """What is watched, and how."""
        return {
            "path": self._path,
            "backend": "polling" if self._package is None else "watchfiles",
            "paths": str(len(self._tree)),
            "told": str(self._told),
        }

    def _listen(self) -> None:
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
        # At once when the first batch comes: something may have changed before the listening began.
        compare_at = -inf
        with closing(batches):
            for batch in batches:
                if time.monotonic() >= compare_at:
                    compare_at = time.monotonic() + _RESCAN
                    self._tell()
                elif batch:
                    self._tell(*{path for _, path in batch})
                self._check_root()

    def _tell(self, *paths: str) -> None:
        to = self.parent if self._receiver is None else self._receiver
        for change, path in self._tree.look(*paths):
            self._told += 1
            self.send(to, PathChanged(self.id, change, path))

    def _check_root(self) -> None:
        root = self._tree.root
        if not os.path.isdir(root):
            number = ENOTDIR if os.path.exists(root) else ENOENT
            raise OSError(number, "there is no such directory to watch", self._path)


class _Stop:
    """Looks like a ``threading.Event`` to the package, which asks for it now and then."""

    def __init__(self, watch: DirectoryWatch) -> None:
        self._watch = watch

    def is_set(self) -> bool:
        return self._watch.stopping
