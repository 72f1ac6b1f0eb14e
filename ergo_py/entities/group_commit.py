"""`GroupCommit`: writes all versions of entities that have gathered while the store was busy."""

from collections.abc import Callable
from itertools import chain

import trio

from ..entity_handles import Address
from .activations.activation import Activation
from .errors import EntityStoreError
from .settings import Totals
from .state_types import LARGE
from .stores.store import Store, Write

__all__ = ["GroupCommit"]


class GroupCommit:
    """The versions that wait for the store, and the commit under way."""

    __slots__ = (
        *("_finished", "_gathered", "_is_closed", "_ring", "_store", "_totals", "_written"),
        "small",
    )

    def __init__(
        self, store: Store, totals: Totals, ring: Callable[[], None], max_state: int
    ) -> None:
        self.small: int = min(LARGE, max_state)
        """Bytes of a state that is neither large nor too large."""
        self._store = store
        self._totals = totals
        self._ring = ring
        """Wakes the task that commits."""
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
        """Write all versions that wait. Returns them, or raises after their entities have failed.

        Raises:
            EntityStoreError: the store cannot write.
        """
        self._written, self._gathered = self._gathered, {}
        written = self._written
        writes = [activation.take_write() for activation in written.values()]
        began = trio.current_time()
        try:
            await self._store.commit(writes)
        except EntityStoreError as error:
            for activation, write in zip(written.values(), writes, strict=True):
                self._gathered.pop(write.address, None)  # a later version, of the same memory
                activation.fail(error, write.due)
            raise
        except BaseException:
            # Cancelled: the keeper ends, and with it all entities.
            self._gathered = {**written, **self._gathered}
            raise
        finally:
            self._written = {}
            self._tell_finished()
        self._totals.count_commit(len(writes), trio.current_time() - began)
        return list(zip(written.values(), writes, strict=True))

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
