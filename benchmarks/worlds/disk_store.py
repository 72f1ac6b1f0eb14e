"""`DiskStore`: a store of entities on the disk of a node of a world, with all that a power failure
does to it.
"""

from collections.abc import Callable, Sequence
from zlib import crc32

import msgspec
import trio

from ergo_py import Actor
from ergo_py.entities import EntityStoreError, FencedError
from ergo_py.entities.record import Record
from ergo_py.entities.stores.store import Due, Row, Write
from ergo_py.entity_handles import Address
from ergo_py.testing.world.disk import WorldDisk

__all__ = ["DiskStore"]

_HEAD = 8
"""Bytes before an entry: its length, and its checksum."""


class DiskStore:
    """Keeps rows in a log. A commit writes an entry for each row, and syncs: a crash before the
    sync may keep some rows of it, and lose others.
    """

    def __init__(
        self, disk: WorldDisk, audit: Callable[[Sequence[Write]], None] = lambda _writes: None
    ) -> None:
        self._disk = disk
        self._audit = audit
        """Looks at the rows of each commit when they are synced, before :attr:`rows` has them."""
        self._file = disk.file("entities")
        self.rows: dict[Address, tuple[Row, float | None]] = {}
        """All rows, with the moment at which each is due."""
        self.complaints: list[str] = []
        """Writes that no correct keeper asks for."""
        self.loads: list[tuple[float, Address, float | None]] = []
        """The rows that were read: when, and the moment at which each is due."""
        self._read()

    def records(self) -> dict[Address, Record]:
        """The stored records."""
        return {address: Record.decode(row.record) for address, (row, _) in self.rows.items()}

    def _read(self) -> None:
        """Read the log up to its first entry that is lost or torn."""
        self.rows.clear()
        data, start = self._file.read(), 0
        while start + _HEAD <= len(data):
            size = int.from_bytes(data[start : start + 4], "big")
            entry = data[start + _HEAD : start + _HEAD + size]
            if not size or crc32(entry) != int.from_bytes(data[start + 4 : start + _HEAD], "big"):
                break
            kind, key, version, due, record = msgspec.msgpack.decode(entry)
            self._put(Address(kind, key), version, due, record)
            start += _HEAD + size
        self._file.truncate(start)

    def _put(self, address: Address, version: int, due: float | None, record: bytes | None) -> None:
        if record is None:
            self.rows.pop(address, None)
        else:
            self.rows[address] = Row(version, record), due

    async def open(self, owner: Actor, *, shared: bool = False) -> None:
        """Open the log, which another process may have left in the middle of a commit."""
        self._recover()

    def _recover(self) -> None:
        self._file.crash()
        self._read()

    async def close(self) -> None:
        """Do nothing."""

    async def claim(self, shard: int, token: int) -> None:
        """Do nothing: the disk has a single writer."""

    async def load(self, addresses: Sequence[Address]) -> list[Row | None]:
        """The rows at these addresses."""
        await self._disk.wait()
        self._check()
        found = [self.rows.get(address, (None, None)) for address in addresses]
        now = trio.current_time()
        self.loads += [(now, each, due) for each, (_, due) in zip(addresses, found, strict=True)]
        return [row for row, _ in found]

    def fill(self, rows: dict[Address, tuple[Row, float | None]]) -> None:
        """Begin with rows that an earlier program has left."""
        for address, (row, due) in rows.items():
            self._append(address, row.version, due, row.record)
        self._file.sync()
        self.rows.update(rows)

    def _append(
        self, address: Address, version: int, due: float | None, record: bytes | None
    ) -> None:
        entry = msgspec.msgpack.encode((*address, version, due, record))
        sizes = len(entry).to_bytes(4, "big") + crc32(entry).to_bytes(4, "big")
        self._file.write(sizes + entry)

    async def commit(self, writes: Sequence[Write]) -> None:
        """Write rows, and sync. A slow disk takes its time before the writes, before the sync, and
        before the answer.
        """
        await self._disk.wait()
        for write in writes:
            found = self.rows.get(write.address)
            version = 0 if found is None else found[0].version
            if version != write.base:
                text = f"{write.address} has the version {version}, not {write.base}"
                self.complaints.append(text)  # the keeper is alone, and knows the versions
                raise FencedError(text)
        try:
            for write in writes:
                self._append(write.address, write.version, write.due, write.record)
            await self._disk.wait()
            self._file.sync()
        except OSError as error:
            self._recover()
            raise EntityStoreError(f"cannot write: {error}") from error
        self._audit(writes)
        for write in writes:
            self._put(write.address, write.version, write.due, write.record)
        await self._disk.wait()
        self._check()

    async def due(self, before: float, limit: int) -> list[Due]:
        """The entities with work to do before a moment."""
        await self._disk.wait()
        self._check()
        found = [
            Due(due, address)
            for address, (_, due) in self.rows.items()
            if due is not None and due < before
        ]
        return sorted(found)[:limit]

    async def keys(self, kind: str, start: str, limit: int) -> list[str]:
        """The keys of a kind."""
        found = [each.key for each in self.rows if each.kind == kind and each.key >= start]
        return sorted(found)[:limit]

    def _check(self) -> None:
        try:
            self._disk.check()
        except OSError as error:
            raise EntityStoreError(f"no answer: {error}") from error
