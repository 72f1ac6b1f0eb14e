"""`GroupCommit`: writes all versions of entities that have gathered while the store was busy."""

from collections.abc import Callable
from itertools import chain
from typing import Final

import trio

from .._core.vocabulary.text import text_of
from ..entity_handles import Address
from .activations.activation import Activation
from .errors import EntityStoreError
from .settings import Totals
from .states.state_type import LARGE
from .stores.store import Store, Write

__all__ = ["GroupCommit"]

_MOST: Final = 8 << 20
"""Bytes of records after which a commit takes no more. The time of a large statement of PostgreSQL
grows faster than its size: with 16 MiB some 3 s, with 32 MiB 13 s, for which all others wait.
"""


class GroupCommit:
    """The versions that wait for the store, and the commit under way."""

    __slots__ = (
        *("_finished", "_gathered", "_is_closed", "_note_failure", "_ring", "_store", "_totals"),
        *("_written", "small"),
    )

    def __init__(
        self,
        store: Store,
        totals: Totals,
        ring: Callable[[], None],
        note_failure: Callable[[str, EntityStoreError], None],
        max_state: int,
    ) -> None:
        self.small: int = min(LARGE, max_state)
        """Bytes of a state that is neither large nor too large."""
        self._store = store
        self._totals = totals
        self._ring = ring
        """Wakes the task that commits."""
        self._note_failure = note_failure
        """Logs and counts the failure of a single entity."""
        self._gathered: dict[Address, Activation] = {}
        self._written: dict[Address, Activation] = {}
        """The entities of the commit under way."""
        self._finished: list[trio.Event] = []
        self._is_closed = False

    def submit(self, activation: Activation) -> None:
        """Store the version of an entity that waits, or a later one."""
        if not self._gathered:
            self._ring()
        self._gathered[activation.address] = activation

    def is_waiting(self) -> bool:
        """Whether a version waits."""
        return bool(self._gathered)

    def has(self, address: Address) -> bool:
        """Whether a version of an entity is not stored yet: it cannot be loaded now."""
        return address in self._gathered or address in self._written

    def has_shard(self, shard: int) -> bool:
        """Whether a version of an entity of this shard is not stored yet."""
        return any(
            each.claim[0] == shard
            for each in chain(self._gathered.values(), self._written.values())
        )

    async def commit(self) -> list[tuple[Activation, Write]]:
        """Write all versions that wait. Returns those that are stored, or raises after their
        entities have failed. An entity whose record cannot be encoded fails alone.

        Raises:
            EntityStoreError: the store cannot write.
        """
        self._written, self._gathered = self._gathered, {}
        written = self._written
        writes: list[Write] = []
        try:
            self._take_writes(writes)
            if not writes:
                return []
            began = trio.current_time()
            await self._store.commit(writes)
        except EntityStoreError as error:
            self._fail(writes, error)
            raise
        except Exception as error:
            # No store should raise it: it costs the entities of the batch, and not their keeper.
            failure = EntityStoreError(f"the store raised {type(error).__name__}: {text_of(error)}")
            self._fail(writes, failure)
            raise failure from error
        except BaseException:
            # Cancelled: the keeper ends, and with it all entities.
            self._gathered = {**written, **self._gathered}
            raise
        finally:
            self._written = {}
            self._tell_finished()
        self._totals.count_commit(len(writes), trio.current_time() - began)
        return list(zip(written.values(), writes, strict=True))

    def _take_writes(self, writes: list[Write]) -> None:
        written, size = self._written, 0
        for activation in list(written.values()):
            if activation.has_failed():
                # Another node has its shard: the store would refuse the writes of all others, too.
                del written[activation.address]
                continue
            if size >= _MOST:
                self._gathered[activation.address] = written.pop(activation.address)
                continue
            try:
                write = activation.take_write()
            except Exception as error:
                del written[activation.address]
                self._fail_encoding(activation, error)
            else:
                writes.append(write)
                size += len(write.record or b"")

    def _fail(self, writes: list[Write], error: EntityStoreError) -> None:
        """Fail the entities of the commit under way."""
        for activation, write in zip(self._written.values(), writes, strict=True):
            self._gathered.pop(write.address, None)  # a later version, of the same memory
            activation.fail(error, write.due)

    def _fail_encoding(self, activation: Activation, error: Exception) -> None:
        """Fail an entity whose record has no encoding: no other one depends on it."""
        failure = EntityStoreError(
            f"the record of {activation.address} cannot be encoded: {type(error).__name__}: "
            f"{text_of(error)}; nothing of it was written"
        )
        self._note_failure("a record cannot be encoded; its entity ends", failure)
        activation.fail(failure)

    async def finish(self) -> None:
        """Wait until all that was submitted is stored, or has failed."""
        while (self._gathered or self._written) and not self._is_closed:
            self._ring()
            event = trio.Event()
            self._finished.append(event)
            await event.wait()

    def close(self) -> None:
        """Commit nothing any more. Entities whose versions wait fail, also those that have ended
        before: their callers still wait for answers.
        """
        self._is_closed = True
        gathered, self._gathered = self._gathered, {}
        for activation in gathered.values():
            activation.fail(EntityStoreError("the keeper of the entity has ended"))
        self._tell_finished()

    def _tell_finished(self) -> None:
        finished, self._finished = self._finished, []
        for event in finished:
            event.set()
