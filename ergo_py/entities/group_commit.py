"""`GroupCommit`: writes all versions of entities that have gathered while the store was busy."""

from collections.abc import Callable

import trio

from ..entity_handles import Address
from .activations.activation import Activation
from .errors import EntityStoreError
from .settings import Totals
from .stores.store import Store, Write

__all__ = ["GroupCommit"]


class GroupCommit:
    """The versions that wait for the store, and the commit under way."""

    __slots__ = ("_finished", "_gathered", "_is_closed", "_ring", "_store", "_totals", "_written")

    def __init__(self, store: Store, totals: Totals, ring: Callable[[], None]) -> None:
        self._store = store
        self._totals = totals
        self._ring = ring
        """Wakes the task that commits."""
        self._gathered: dict[Address, tuple[Activation, Write]] = {}
        self._written: dict[Address, tuple[Activation, Write]] = {}
        """The versions of the commit under way."""
        self._finished: list[trio.Event] = []
        self._is_closed = False

    def submit(self, activation: Activation, write: Write) -> None:
        """Store a version. Of several versions of an entity that wait, only the last is written."""
        waiting = self._gathered.get(write.address)
        if waiting is not None:
            write = write._replace(base=waiting[1].base)
        self._gathered[write.address] = activation, write
        self._ring()

    def is_waiting(self) -> bool:
        """Whether a version waits."""
        return bool(self._gathered)

    def has(self, address: Address) -> bool:
        """Whether a version of an entity is not stored yet: it cannot be loaded now."""
        return address in self._gathered or address in self._written

    async def commit(self) -> list[tuple[Activation, Write]]:
        """Write all versions that wait. Returns them, or raises after their entities have failed.

        Raises:
            EntityStoreError: the store cannot write.
        """
        self._written, self._gathered = self._gathered, {}
        written = self._written
        began = trio.current_time()
        try:
            await self._store.commit([write for _, write in written.values()])
        except EntityStoreError as error:
            for address, (activation, write) in written.items():
                self._gathered.pop(address, None)  # later versions, of the same memory
                activation.fail(error, write)
            raise
        except BaseException:
            # Cancelled: the keeper ends, and with it all entities.
            self._gathered = {**written, **self._gathered}
            raise
        finally:
            self._written = {}
            self._tell_finished()
        self._totals.count_commit(len(written), trio.current_time() - began)
        return list(written.values())

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
        for activation, write in gathered.values():
            activation.fail(EntityStoreError("the keeper of the entity has ended"), write)
        self._tell_finished()

    def _tell_finished(self) -> None:
        finished, self._finished = self._finished, []
        for event in finished:
            event.set()
