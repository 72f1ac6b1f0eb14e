"""`HeldOutput`: the replies and messages of an entity that wait for commits.

The rule: whatever leaves an entity waits for the version that the entity had when it was made.
"""

from collections import deque
from collections.abc import Callable

import trio

from ..._core.messaging.calls import Calls
from ..._core.tables.pending_calls import Caller
from ..._core.vocabulary.errors import ErgoError, TargetDownError
from ..._core.vocabulary.reasons import Reason
from ..errors import EntityStoreError
from .changes import Action

__all__ = ["HeldOutput", "Reply"]


class Reply:
    """The answer to a call, and to its repetitions."""

    __slots__ = ("_callers", "_calls", "_error", "_value")

    def __init__(
        self, calls: Calls, callers: list[Caller], value: object, error: BaseException | None
    ) -> None:
        self._calls = calls
        self._callers = callers
        self._value = value
        self._error = error

    def __call__(self) -> None:
        """Answer the callers."""
        for caller in self._callers:
            self._calls.reply(caller, self._value, self._error)

    def outlive(self) -> None:
        """Leave when it is stored, although the process of the entity has ended by then."""
        for caller in self._callers:
            caller.undefer()

    def fail(self, reason: Reason) -> None:
        """Tell the callers that the entity has ended."""
        for caller in self._callers:
            caller.settle(None, TargetDownError(caller.to, caller.request, reason))


class HeldOutput:
    """Replies and messages that wait until the version of the entity that made them is stored."""

    __slots__ = ("_held", "_refused", "_waiting", "committed", "error", "version")

    def __init__(self, version: int, refused: Callable[[ErgoError], None]) -> None:
        self.version = self.committed = version
        """The version in memory, and the last that is stored."""
        self.error: EntityStoreError | None = None
        """A commit has failed: memory is ahead of the store, and nothing leaves any more."""
        self._refused = refused
        """Told of a message that could not be sent."""
        self._held: deque[tuple[int, Action]] = deque()
        self._waiting: list[trio.Event] = []

    @property
    def held(self) -> int:
        """How many replies and messages wait."""
        return len(self._held)

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
            self._held.append((self.version, action))

    async def wait_stored(self) -> None:
        """Wait until all earlier callbacks are stored.

        Raises:
            EntityStoreError: a commit has failed.
        """
        while self.version != self.committed and self.error is None:
            event = trio.Event()
            self._waiting.append(event)
            await event.wait()
        if self.error is not None:
            raise self.error

    def release(self, version: int) -> None:
        """Note that a version is stored, and let go all that waited for it."""
        self.committed = version
        held = self._held
        while held and held[0][0] <= version:
            self._let_go(held.popleft()[1])
        self._wake_waiting()

    def outlive(self) -> None:
        """Let replies leave when they are stored, although the process has ended by then."""
        for _, action in self._held:
            if isinstance(action, Reply):
                action.outlive()

    def fail(self, error: EntityStoreError, reason: Reason) -> None:
        """Note that a commit has failed. Nothing that waited leaves."""
        self.error = error
        held, self._held = self._held, deque()
        for _, action in held:
            if isinstance(action, Reply):
                action.fail(reason)
        self._wake_waiting()

    def _let_go(self, action: Action) -> None:
        try:
            action()
        except ErgoError as error:
            # The callback is stored, so it cannot fail any more.
            self._refused(error)

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()
