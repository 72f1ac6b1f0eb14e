"""`HeldOutput`: the replies and messages of an entity that wait for commits.

The rule: whatever leaves an entity waits for the version that the entity had when it was made.
"""

from typing import TYPE_CHECKING, cast

import trio

from ..._core.runtime.parking import TrioTurns
from ..._core.tables.pending_calls import Caller
from ..._core.vocabulary.errors import ErgoError
from ..._core.vocabulary.messages import NO_REPLY
from ..._core.vocabulary.reasons import Reason
from ..errors import EntityStoreError
from .changes import Action

if TYPE_CHECKING:
    from .activation import Activation

__all__ = ["HeldOutput"]


class HeldOutput:
    """Replies and messages that wait until the version of the entity that made them is stored."""

    __slots__ = ("_activation", "_held", "_waiting", "committed", "error", "version")

    def __init__(self, version: int, activation: "Activation") -> None:
        self.version: int = version
        self.committed: int = version
        """The version in memory, and the last that is stored."""
        self.error: EntityStoreError | None = None
        """A commit has failed: memory is ahead of the store, and nothing leaves any more."""
        self._activation = activation
        self._held: list[tuple[int, Caller | None, object, BaseException | None]] | None = None
        """What waits, in order: the version, and the caller with its answer, or None with an
        action. Tuples, since each command makes one. The list is made when something waits: most
        entities that are awake do nothing.
        """
        self._waiting: list[trio.Event] | None = None

    @property
    def held(self) -> int:
        """How many replies and messages wait."""
        return len(self._held or ())

    def next_version(self) -> int:
        """Begin the next version."""
        self.version += 1
        return self.version

    def is_empty(self) -> bool:
        """Whether all is stored, and nothing waits."""
        return self.version == self.committed and not (self._held or self._waiting)

    def is_stored(self) -> bool:
        """Whether all that the entity has done is stored, and has left it."""
        return self.version == self.committed and not self._held

    def hold(self, action: Action) -> None:
        """Do an action when all that the entity has done so far is stored."""
        self.leave(None, action, None)

    def answer(self, caller: Caller, value: object) -> object:
        """Answer a call when all that the entity has done so far is stored. Returns the result for
        the kernel.
        """
        if self.is_stored():
            return value
        self._keep(caller, value, None)
        return NO_REPLY

    def leave(self, caller: Caller | None, value: object, error: BaseException | None) -> None:
        """Answer a call, or do an action, when all that the entity has done so far is stored."""
        if self.is_stored():
            self._let_go(caller, value, error)
        else:
            self._keep(caller, value, error)

    def _keep(self, caller: Caller | None, value: object, error: BaseException | None) -> None:
        if self._held is None:
            self._held = [(self.version, caller, value, error)]
        else:
            self._held.append((self.version, caller, value, error))

    async def wait_stored(self) -> None:
        """Wait until all earlier callbacks are stored.

        Raises:
            EntityStoreError: a commit has failed.
        """
        while self.version != self.committed and self.error is None:
            event = trio.Event()
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(event)
            await event.wait()
        if self.error is not None:
            raise self.error

    def release(self, version: int, turns: TrioTurns | None) -> None:
        """Note that a version is stored, and let go all that waited for it: callers take their
        steps in these turns, or in turns of trio.
        """
        self.committed = version
        held = self._held
        if held is not None:
            # All stay in the list until the last has left: what these actions hold back in turn
            # must not overtake them.
            count = 0
            for made_in, caller, value, error in held:
                if made_in > version:
                    break
                if caller is None or turns is None:
                    self._let_go(caller, value, error)
                elif not caller.settle_in(turns, value, error):
                    self._note_late()
                count += 1
            if count == len(held):
                self._held = None
            else:
                del held[:count]
        if self._waiting is not None:
            self._wake_waiting()

    def outlive(self) -> None:
        """Let replies leave when they are stored, although the process has ended by then."""
        for _, caller, _, _ in self._held or ():
            if caller is not None:
                caller.undefer()

    def fail(self, error: EntityStoreError, reason: Reason) -> None:
        """Note that a commit has failed. Nothing that waited leaves."""
        self.error = error
        held, self._held = self._held, None
        for _, caller, _, _ in held or ():
            if caller is not None:
                caller.fail_begun(reason)
        self._wake_waiting()

    def _let_go(self, caller: Caller | None, value: object, error: BaseException | None) -> None:
        if caller is not None:
            if not caller.settle(value, error):
                self._note_late()
            return
        try:
            cast(Action, value)()
        except ErgoError as failure:
            # The callback is stored, so it cannot fail any more.
            self._activation.warn(failure)

    def _note_late(self) -> None:
        self._activation.keeping.kernel.calls.count_late_reply()

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        for event in waiting or ():
            event.set()
