"""`SQLiteQueue`: a queue in a file, as a source and as a sink."""

from pathlib import Path
from typing import ClassVar, Final, Unpack

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.public_names import show_public_names
from ..item import Item
from .broker import BatchKeywords
from .queue_file import QueueFile

__all__ = ["SQLiteQueue"]

_TAKE: Final = "select id, key, body from items where queue = ? and id > ? order by id limit ?"
_NOTE: Final = "insert or replace into taken values (?, ?)"
_PUT: Final = "insert into items (queue, key, body, error) values (?, ?, ?, ?)"
_LOOK: Final = 0.02
"""Seconds between two looks for items of other programs."""


class SQLiteQueue(QueueFile):
    """A queue in a file: a source, a sink, or ``poison``. Bodies are bytes or texts.

    Any number of programs put items. One pipeline at a time takes them: another waits, with its
    ``reopen``, until the first has ended. Items that were taken and not acknowledged, also items
    that were given up without ``poison``, are taken again at the next opening.

    Args:
        path: the file; made if it is missing. Its directory must exist, on a local disk.
        queue: the name of the queue: a file has any number of them.
        options: as a sink, ``batch`` and ``within``, as those of `Sink`.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    names: ClassVar[tuple[bytes, str]] = (rb"[^/\0]{1,100}", "a name of 1 to 100 bytes, without /")

    def __init__(
        self, path: str | Path, queue: str = "items", **options: Unpack[BatchKeywords]
    ) -> None:
        super().__init__(**options)
        if not isinstance(path, str | Path) or not str(path) or str(path) == ":memory:":
            raise BadInputError("SQLiteQueue(path)", path, 'the path of a file: "jobs.db"')
        [self._queue] = self.named(queue=queue)
        self.path: Path = Path(path)
        self.where: str = str(path)
        self._last = self._highest = 0

    def begin_to_take(self) -> None:
        """Take the lock of the queue. The system releases it when the program ends, in any way."""
        self.lock(self._queue)
        # The loss of power may take back an acknowledgement: the item is taken again.
        self.link.execute("pragma synchronous = normal")
        highest = "select highest from taken where queue = ?"
        found = self.link.execute(highest, (self._queue,)).fetchone()
        self._last, self._highest = 0, found[0] if found else 0

    def receive(self, most: int, seconds: float = 0.0) -> None:
        """Find the next items: behind those that were found in this opening."""
        while not self.found:
            rows = self.link.execute(_TAKE, (self._queue, self._last, most)).fetchall()
            if not rows:
                return
            known = self._highest
            self.find([(body, key, number, number <= known, number) for number, key, body in rows])
            self._last = rows[-1][0]
        if self._last > self._highest:
            self.link.execute(_NOTE, (self._queue, self._last))

    def wait(self, seconds: float) -> None:
        """Wait until another program has written."""
        seen = self.version()
        for _ in range(round(seconds / _LOOK)):
            if not self.pause(_LOOK) or self.version() != seen:
                return

    def confirm(self, places: list[int]) -> None:
        """Delete items, in a transaction."""
        with self.link:
            self.link.execute("begin immediate")
            self.check_file()
            self.link.executemany(
                "delete from items where id = ?", [(number,) for number in places]
            )

    def handle_batch(self, items: list[Item]) -> None:
        """Put items, in a transaction."""
        rows = [(self._queue, *self.row_of(item)) for item in items]
        with self.link:  # commits, or undoes all of it
            self.link.execute("begin immediate")
            self.link.executemany(_PUT, rows)
            self.check_file()


show_public_names(__name__)
