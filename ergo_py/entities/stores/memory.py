"""`MemoryStore`: a store for tests. Its rows last as long as the program."""

from collections.abc import Awaitable, Callable, Sequence

import trio

from ..._core.vocabulary.public_names import show_public_names
from ...actor import Actor
from ...entity_handles import Address
from ..errors import EntityStoreError, FencedError
from .store import Due, Row, Write

__all__ = ["MemoryStore"]


class MemoryStore:
    """Keeps rows in a dict. A test can set faults.

    * ``before_commit`` is awaited with the number of the commit and its writes, before they take
      effect. If it raises an `EntityStoreError`, nothing is written.
    * ``after_commit`` is awaited after they took effect. If it raises an `EntityStoreError`, the
      caller sees a failed write that has happened.
    * ``before_load`` is awaited before rows are read.
    """

    def __init__(self) -> None:
        self.rows: dict[Address, tuple[Row, float | None]] = {}
        """All rows, with the moment at which each is due."""
        self.commits: int = 0
        """How many commits were begun."""
        self.before_commit: Callable[[int, Sequence[Write]], Awaitable[None]] | None = None
        self.after_commit: Callable[[int, Sequence[Write]], Awaitable[None]] | None = None
        self.before_load: Callable[[Sequence[Address]], Awaitable[None]] | None = None
        self.tokens: dict[int, int] = {}
        """The last token that each shard was claimed with."""
        self._owners = 0
        self._is_shared = False

    async def open(self, owner: "Actor", *, shared: bool = False) -> None:
        """Open it.

        Raises:
            EntityStoreError: another process has it open, and does not share it.
        """
        if self._owners and not (shared and self._is_shared):
            raise EntityStoreError("this MemoryStore is open already; give each Entities its own")
        self._is_shared = shared
        self._owners += 1

    async def close(self) -> None:
        """Close it; the rows stay."""
        self._owners = max(0, self._owners - 1)  # a test closes it for a program that has ended

    def _check_open(self) -> None:
        if not self._owners:
            raise EntityStoreError("this MemoryStore is not open")

    async def claim(self, shard: int, token: int) -> None:
        """Refuse writes to a shard with lower tokens from now on."""
        self._check_open()
        await trio.lowlevel.checkpoint()
        claimed = self.tokens.get(shard, 0)
        if token < claimed:
            raise FencedError(f"the token {token} of shard {shard} is older than {claimed}")
        self.tokens[shard] = token

    async def load(self, addresses: Sequence[Address]) -> list[Row | None]:
        """The rows at these addresses."""
        self._check_open()
        await trio.lowlevel.checkpoint()
        if self.before_load is not None:
            await self.before_load(addresses)
        found = [self.rows.get(address) for address in addresses]
        return [None if each is None else each[0] for each in found]

    async def commit(self, writes: Sequence[Write]) -> None:
        """Write rows."""
        self._check_open()
        await trio.lowlevel.checkpoint()
        self.commits += 1
        number = self.commits
        if self.before_commit is not None:
            await self.before_commit(number, writes)
        for write in writes:
            found = self.rows.get(write.address)
            version = 0 if found is None else found[0].version
            if version != write.base:
                raise FencedError(
                    f"{write.address} has the version {version}, and the write expects {write.base}"
                )
            claimed = self.tokens.get(write.shard, 0)
            if write.token < claimed:
                raise FencedError(
                    f"the token {write.token} of {write.address} is older than {claimed}"
                )
        for write in writes:
            if write.record is None:
                self.rows.pop(write.address, None)
            else:
                self.rows[write.address] = (Row(write.version, write.record), write.due)
        if self.after_commit is not None:
            await self.after_commit(number, writes)

    async def due(self, before: float, limit: int) -> list[Due]:
        """The entities with work to do before a moment."""
        self._check_open()
        found = [
            Due(due, address)
            for address, (_, due) in self.rows.items()
            if due is not None and due < before
        ]
        return sorted(found)[:limit]

    async def keys(self, kind: str, start: str, limit: int) -> list[str]:
        """The keys of a kind."""
        self._check_open()
        found = [each.key for each in self.rows if each.kind == kind and each.key >= start]
        # Code points sort as their UTF-8 does.
        return sorted(found)[:limit]


show_public_names(__name__)
