"""`HeldOutput`: the replies and messages of an entity that wait for commits.

The rule: whatever leaves an entity waits for the version that the entity had when it was made.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from ..._core.messaging.calls import Calls
from ..._core.tables.pending_calls import Caller
from ..._core.vocabulary.errors import ErgoError, TargetDownError
from ..._core.vocabulary.reasons import Reason
from ..errors import EntityStoreError
from .changes import Action

if TYPE_CHECKING:
    from .activation import Activation

__all__ = ["HeldOutput", "Reply"]


class Reply:
    """The answer to a call, and to its repetitions."""

    __slots__ = ("_callers", "_calls", "_error", "_value")

    def __init__(
        self,
        calls: Calls,
        callers: Caller | list[Caller],
        value: object,
        error: BaseException | None,
    ) -> None:
        self._calls = calls
        self._callers = callers
        """A list only for a command with an id: the most frequent reply has no list."""
        self._value = value
        self._error = error

    def __call__(self) -> None:
        """Answer the callers."""
        callers = self._callers
        if not isinstance(callers, list):
            if not callers.settle(self._value, self._error):
                self._calls.count_late_reply()
            return
        for caller in callers:
            if not caller.settle(self._value, self._error):
                self._calls.count_late_reply()

    def outlive(self) -> None:
        """Leave when it is stored, although the process of the entity has ended by then."""
        for caller in self._all():
            caller.undefer()

    def fail(self, reason: Reason) -> None:
        """Tell the callers that the entity has ended."""
        for caller in self._all():
            caller.settle(None, TargetDownError(caller.to, caller.request, reason))

    def _all(self) -> Sequence[Caller]:
        callers = self._callers
        return callers if isinstance(callers, list) else (callers,)


class HeldOutput:
    """Replies and messages that wait until the version of the entity that made them is stored."""

    __slots__ = ("_activation", "_held", "_waiting", "committed", "error", "version")

    def __init__(self, version: int, activation: "Activation") -> None:
        self.version = self.committed = version
        """The version in memory, and the last that is stored."""
        self.error: EntityStoreError | None = None
        """A commit has failed: memory is ahead of the store, and nothing leaves any more."""
        self._activation = activation
        self._held: list[tuple[int, Action]] | None = None
        """What waits, in order. Made when something waits: most entities that are awake do
        nothing.
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
        if self.is_stored():
            self._let_go(action)
        else:
            self.keep(action)

    def keep(self, action: Action) -> None:
        """Do an action when the version in memory is stored, which it is not yet."""
        if self._held is None:
            self._held = [(self.version, action)]
        else:
            self._held.append((self.version, action))

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

    def release(self, version: int) -> None:
        """Note that a version is stored, and let go all that waited for it."""
        self.committed = version
        held = self._held
        if held is not None:
            # All stay in the list until the last has left: what these actions hold back in turn
            # must not overtake them.
            count = 0
            while count < len(held) and held[count][0] <= version:
                self._let_go(held[count][1])
                count += 1
            if count == len(held):
                self._held = None
            else:
                del held[:count]
        if self._waiting is not None:
            self._wake_waiting()

    def outlive(self) -> None:
        """Let replies leave when they are stored, although the process has ended by then."""
        for _, action in self._held or ():
            if isinstance(action, Reply):
                action.outlive()

    def fail(self, error: EntityStoreError, reason: Reason) -> None:
        """Note that a commit has failed. Nothing that waited leaves."""
        self.error = error
        held, self._held = self._held, None
        for _, action in held or ():
            if isinstance(action, Reply):
                action.fail(reason)
        self._wake_waiting()

    def _let_go(self, action: Action) -> None:
        try:
            action()
        except ErgoError as error:
            # The callback is stored, so it cannot fail any more.
            self._activation.warn(error)

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        for event in waiting or ():
            event.set()
