"""`Activation`: an entity that is awake. It runs the callbacks, makes the record to store after
each, and holds back all that must not leave the entity before.

The rule: whatever leaves an entity waits for the version that the entity had when it was made.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from .._core.processes.process import Process
from .._core.tables.pending_calls import Caller
from .._core.vocabulary.envelopes import STOP, Priority
from .._core.vocabulary.errors import (
    BadInputError,
    ErgoError,
    Reject,
    ServiceError,
    TargetDownError,
)
from .._core.vocabulary.messages import NO_REPLY
from .._core.vocabulary.reasons import Crashed
from ..entity_handles import Address, EntityHandle, Post
from ..network.messages.listed_class import RefusedValueError
from ..network.messages.message_types import MessageTypes
from .errors import EntityStoreError, StateTooLargeError, StateTypeError, StateUnreadableError
from .record import Origin, Owed, Record
from .state_types import StateType
from .stores.store import Row, Write

if TYPE_CHECKING:
    from .keeper import Keeping

__all__ = ["INTERNAL", "Activation", "Look"]

_NOW: Final = Priority.NORMAL
_TOKEN: Final = 0
"""The fencing token of a node that has its store alone."""


class Deliver(NamedTuple):
    """A message of an entity, for another."""

    origin: Origin
    number: int
    after: int
    """The number of the message before it, which must have taken effect; 0 if it is the first."""
    message: bytes


class Done(NamedTuple):
    """The answer: the message has taken effect, and that is stored."""

    number: int


class Forget(NamedTuple):
    """The sender has stored that it owes this message no longer, and will never repeat it."""

    origin: Origin
    number: int


class Run(NamedTuple):
    """A message that an entity owes to itself is due."""

    number: int


class Look(NamedTuple):
    """Look for messages that are due."""


INTERNAL = frozenset({Deliver, Done, Forget, Run, Look})
"""The messages of the framework to an entity."""


class Changes:
    """What a callback does besides changing the state. It takes effect with the commit."""

    __slots__ = ("after", "cancelled", "deleted", "done", "is_counted", "owed", "removed", "seen")

    def __init__(self) -> None:
        self.after: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        """Functions to call when the callback is stored: replies and messages, in order."""
        self.owed: list[Owed] = []
        self.removed: list[int] = []
        """Numbers of messages that are not owed any more."""
        self.cancelled: list[str] = []
        """Names of timers."""
        self.seen: tuple[Origin, int] | None = None
        self.done: tuple[str, bytes] | None = None
        self.deleted = False
        self.is_counted = False
        """Attempts were counted, or a mark was removed: the record has changed already."""

    def delete(self) -> None:
        """Delete the entity."""
        self.deleted = True

    def cancel(self, name: str) -> None:
        """Cancel a timer, also of this callback."""
        self.owed = [each for each in self.owed if each.name != name]
        self.cancelled.append(name)

    def is_empty(self) -> bool:
        """Whether the record stays as it is, apart from the state."""
        return not (
            self.owed
            or self.removed
            or self.cancelled
            or self.seen
            or self.done
            or self.deleted
            or self.is_counted
        )


class Tries:
    """The attempts to deliver the messages that an entity owes."""

    __slots__ = ("confirmed", "looks_again", "next_try", "running")

    def __init__(self, confirmed: int) -> None:
        self.next_try: dict[int, float] = {}
        """When each message is to be tried again."""
        self.confirmed = confirmed
        """The number of the last message that is owed by a stored version. Later messages must not
        leave: the callbacks that owe them are not stored.
        """
        self.looks_again = False
        """The entity was to look for messages that are due while a callback was in progress."""
        self.running = 0
        """The number of the message to itself that the entity handles; 0 for none."""

    def confirm(self, number: int) -> None:
        """Note that the messages up to this number are owed by a stored version."""
        self.confirmed = number

    def look_again(self, again: bool) -> None:
        """Note whether to look after the callback in progress."""
        self.looks_again = again

    def run(self, number: int) -> None:
        """Note which message to itself the entity handles."""
        self.running = number


class Activation:
    """An entity that is awake."""

    def __init__(
        self, keeping: "Keeping", address: Address, kind: type[Any], row: Row | None
    ) -> None:
        self.keeping = keeping
        self.address = address
        self.entity: Any = None
        self.record = Record() if row is None else Record.decode(row.record)
        self.version = self.committed = self._base = 0 if row is None else row.version
        """The version in memory; the last that is stored; the one that the store has or gets
        next. """
        self.due = self.record.due()
        """The moment at which the stored record is due."""
        self.changes: Changes | None = None
        """The changes of the callback in progress."""
        self.broken: EntityStoreError | None = None
        """A commit has failed: memory is ahead of the store, so the process ends."""
        self.used = 0.0
        """When its last callback ended."""
        self._tries = Tries(self.record.last)
        self._held: deque[tuple[int, Callable[..., object], tuple[Any, ...]]] = deque()
        self._waiting: list[trio.Event] = []
        self._in_progress: dict[str, list[Caller]] = {}
        """The callers of commands with ids whose answers are deferred."""
        self._id_of: dict[Caller, str] = {}
        self._state_type: StateType = kind.__state_type__
        self._stored = b""
        """The bytes of the state as it was after the last callback."""

    def become(self, entity: Any) -> Any:
        """Become the activation of this behaviour. Returns the state to begin with.

        Raises:
            StateUnreadableError: the stored state does not fit its class.
        """
        self.entity = entity
        encoded, state_type = self.record.state, self._state_type
        if encoded is None:
            state = state_type.new()
        else:
            try:
                state = state_type.load(encoded)
            except ValueError as error:
                raise StateUnreadableError(
                    self.address.kind, self.address.key, state_type.name, str(error)
                ) from None
        # Not the stored bytes: an older version of the class may have written them.
        self._stored = state_type.encode(state)
        return state

    @property
    def process(self) -> Process:
        """Its process."""
        process: Process = self.entity._process
        return process

    @property
    def _types(self) -> MessageTypes:
        return self.keeping.types

    def handle(self, address: Address) -> EntityHandle:
        """The handle of another entity."""
        return self.keeping.handle(address, self.process)

    # -- callbacks ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a callback."""
        if self.broken is not None:
            raise self.broken
        self.changes = Changes()

    def undo(self) -> None:
        """Put the state back as it was before the callback, and drop all that it has done."""
        self.changes = None
        if self._state_type.encode(self.entity.state) != self._stored:
            self.entity.put_state(self._state_type.again(self._stored))

    def crash(self) -> None:
        """Undo a callback that ends the process. Earlier callbacks are still being stored: their
        answers leave then, although the process has ended.
        """
        self.undo()
        for _, function, args in self._held:
            if function == self._reply:
                args[0].undefer()

    def finish(self) -> None:
        """End a callback, and store what it has changed.

        Raises:
            StateTypeError: the state cannot be stored; the callback was undone.
            StateTooLargeError: the same.
        """
        changes = self.changes
        assert changes is not None
        try:
            if self._has_changed(changes):
                self._commit()
        except (StateTypeError, StateTooLargeError):
            self._restore()
            raise
        self.changes = None
        for function, args in changes.after:
            self.hold(function, *args)
        self.rest()
        self.keeping.note_used(self)
        if self._tries.looks_again:
            self._tries.look_again(False)
            self.hold(self.look)

    def rest(self) -> None:
        """Be idle from now on."""
        self.used = trio.current_time()

    def _restore(self) -> None:
        # Not undo(): the state that cannot be encoded is the reason.
        self.changes = None
        self.entity.put_state(self._state_type.again(self._stored))

    def _has_changed(self, changes: Changes) -> bool:
        """Take over what a callback has changed. False if nothing is to be stored."""
        record, state_type = self.record, self._state_type
        if changes.deleted:
            self.entity.put_state(state_type.new())
        encoded = state_type.encode(self.entity.state)
        is_new_state = encoded != self._stored
        if not is_new_state and changes.is_empty():
            return False
        if is_new_state:
            state_type.check(encoded)
        # Checked before anything changes, so that nothing is half done.
        size = len(encoded) + sum(len(each.message) for each in changes.owed)
        if size > self.keeping.settings.max_state:
            raise StateTooLargeError(self.address.kind, size, self.keeping.settings.max_state)
        self._stored = encoded
        if changes.deleted:
            record.keep(None)
            record.done.clear()
            for number, each in list(record.owed.items()):
                if each.target is None:
                    del record.owed[number]
        elif is_new_state or record.state is not None:
            record.keep(encoded)
        for number in changes.removed:
            record.owed.pop(number, None)
            self._tries.next_try.pop(number, None)
        for name in changes.cancelled:
            record.cancel(name)
        record.owe(changes.owed)
        if changes.seen is not None:
            origin, number = changes.seen
            record.seen[origin] = number
        if changes.done is not None:
            now = self.keeping.now()
            record.done[changes.done[0]] = now, changes.done[1]
            record.forget_done(
                now - self.keeping.settings.remember, self.keeping.settings.max_remembered
            )
        return True

    def _commit(self) -> None:
        record = self.record
        encoded = record.encode()
        self.version += 1
        write = Write(self.address, self._base, self.version, _TOKEN, record.due(), encoded)
        self._base = 0 if encoded is None else self.version
        self.keeping.submit(self, write)
        changes = self.changes
        assert changes is not None
        if changes.owed:
            changes.after.append((self._confirm, (record.last,)))

    def _confirm(self, last: int) -> None:
        self._tries.confirm(last)
        self.look()

    # -- holding back ------------------------------------------------------------------------------

    def hold(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function when all that the entity has done so far is stored."""
        if self.version == self.committed and not self._held:
            self._let_go(function, args)
        else:
            self._held.append((self.version, function, args))

    def leave(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function when the callback in progress is stored."""
        if self.changes is not None:
            self.changes.after.append((function, args))
        else:
            self.hold(function, *args)

    def is_stored(self) -> bool:
        """Whether all that it has done is stored."""
        return self.version == self.committed

    async def wait_stored(self) -> None:
        """Wait until all earlier callbacks are stored.

        Raises:
            EntityStoreError: a commit has failed.
        """
        while self.version != self.committed:
            if self.broken is not None:
                raise self.broken
            event = trio.Event()
            self._waiting.append(event)
            await event.wait()
        if self.broken is not None:
            raise self.broken

    def release(self, write: Write) -> None:
        """Note that a version is stored, and let go what waited for it."""
        self.committed, self.due = write.version, write.due
        held = self._held
        while held and held[0][0] <= write.version:
            _, function, args = held.popleft()
            self._let_go(function, args)
        self._wake_waiting()

    def _let_go(self, function: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            function(*args)
        except ErgoError as error:
            # The callback is stored, so it cannot fail any more.
            self.process.log.warning("a message could not be sent", why=str(error))

    def fail(self, error: EntityStoreError) -> None:
        """Note that a commit has failed. Nothing that was held back leaves."""
        if self.broken is not None:
            return
        self.broken = error
        process, reason = self.process, Crashed(error)
        held, self._held = self._held, deque()
        for _, function, args in held:
            if function == self._reply:
                caller = args[0]
                caller.settle(None, TargetDownError(caller.to, caller.request, reason))
        self._wake_waiting()
        if process.accepting:
            process.end(STOP, reason)
            process.cut(reason)

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()

    def can_sleep(self, *, makes_room: bool = False) -> bool:
        """Whether it may end now: nothing is held back, and it has no work to do. To make room for
        another, it may also end while it waits until messages have taken effect elsewhere: perhaps
        just there. The answer wakes it again, or the moment of the next attempt.
        """
        if self._held or self._waiting or self.changes is not None or not self.is_stored():
            return False
        if self._id_of or self.process.deferred:
            return False
        soon = self.keeping.now() + 1.0
        return all(
            each.is_parked
            or each.due > soon
            or (makes_room and each.target is not None and each.number in self._tries.next_try)
            for each in self.record.owed.values()
        )

    # -- calls -------------------------------------------------------------------------------------

    def answer_of(self, id: str, caller: Caller) -> bool:
        """Answer the repetition of a command, which has been done or is in progress. False if it
        is a new command.
        """
        if id in self.record.done:
            answer = self.record.done[id][1]
            self.hold(self._reply, caller, self._types.decode(answer) if answer else None, None)
            return True
        if id in self._in_progress:
            self._in_progress[id].append(caller)
            return True
        return False

    def end_call(self, caller: Caller, value: object, once: str | None) -> object:
        """End the callback of a call, and hold its answer back. Returns the result for the
        kernel.
        """
        assert self.changes is not None
        if value is NO_REPLY:
            if once is not None and not caller.settled:
                self._in_progress[once] = []
                self._id_of[caller] = once
            self._finish_call()
            return NO_REPLY
        if once is not None:
            self._note_done(once, value)
        self._finish_call()
        if self.is_stored() and not self._held:
            return value
        self.hold(self._reply, caller, value, None)
        return NO_REPLY

    def _note_done(self, once: str, value: object) -> None:
        assert self.changes is not None
        try:
            self.changes.done = once, b"" if value is None else self._types.encode(value)
        except RefusedValueError as error:
            self.undo()
            raise Reject(
                StateTypeError(
                    f"the answer to a command with once={once!r} is stored, and this one cannot "
                    f"be: {error}; the command was undone"
                )
            ) from None

    def _finish_call(self) -> None:
        try:
            self.finish()
        except (StateTypeError, StateTooLargeError) as error:
            raise Reject(error) from None

    def refuse_call(self, caller: Caller, rejection: Reject) -> object:
        """Undo the callback of a call, and hold its refusal back."""
        self.undo()
        if self.is_stored() and not self._held:
            raise rejection
        self.hold(self._reply, caller, None, rejection.error)
        return NO_REPLY

    def reply(self, caller: Caller, value: object, error: BaseException | None) -> bool:
        """Answer a call that was deferred, when the callback in progress is stored."""
        once = self._id_of.pop(caller, None)
        if once is not None:
            also = self._in_progress.pop(once)
            if error is None and self.changes is not None:
                self._note_done(once, value)
            for each in also:
                self.leave(self._reply, each, value, error)
        self.leave(self._reply, caller, value, error)
        return not caller.settled

    def _reply(self, caller: Caller, value: object, error: BaseException | None) -> None:
        self.process.kernel.calls.reply(caller, value, error)

    def post(self, request: Post) -> None:
        """Store a message to itself."""
        self.owe(None, request.message)

    # -- messages that it owes ---------------------------------------------------------------------

    def owe(self, to: Address | None, message: object, name: str = "", due: float = 0.0) -> int:
        """Owe a message to another entity, or to itself. Returns its number.

        Raises:
            BadInputError: the message cannot be stored.
        """
        changes, record = self.changes, self.record
        if changes is None:
            raise BadInputError(
                "send to an entity", message, "inside a callback, whose commit it belongs to"
            )
        try:
            encoded = self._types.encode(message)
        except RefusedValueError as error:
            raise BadInputError(
                "message to an entity",
                message,
                f"a value that can be stored: {error}; list its class in `Entities(…, types=[…])`",
            ) from None
        if not record.birth:
            record.begin_numbers(self.keeping.new_birth())
        number = self._next_number()
        target = None if to is None or to == self.address else to
        kind, key = ("", "") if target is None else target
        changes.owed.append(Owed(number, kind, key, encoded, name, due))
        return number

    def owe_timer(self, to: Address, message: object, name: str, due: float) -> str:
        """Owe a message from a moment on. Returns the name of the timer."""
        chosen = name or f"#{self._next_number()}"
        self.owe(to, message, chosen, due)
        return chosen

    def _next_number(self) -> int:
        assert self.changes is not None
        return max([self.record.last, *(each.number for each in self.changes.owed)]) + 1

    def look(self) -> None:
        """Try the messages that are due. A message that was tried before is counted first, and that
        is stored: a message that ends the whole program must not be tried without end.
        """
        if self.broken is not None:
            return
        if self.changes is not None:
            self._tries.look_again(True)
            return
        now = self.keeping.now()
        counted: list[Owed] = []
        own: list[Owed] = []
        earliest = inf
        for each in list(self.record.owed.values()):
            if each.is_parked or each.number > self._tries.confirmed:
                continue
            moment = self._tries.next_try.get(each.number, each.due)
            if moment > now:
                earliest = min(earliest, moment)
            elif each.target is None:
                own.append(each)
            elif each.number in self._tries.next_try and not self.record.before(each.number):
                counted.append(each)
            else:
                # A message behind another one was not tried, so it is not counted.
                self._try(each)
        if own and not self._tries.running:
            # One at a time, so that none is counted for the failure of another.
            first = min(own, key=lambda each: (each.attempts, each.number))
            if first.number in self._tries.next_try:
                counted.append(first)
            else:
                self._try(first)
        if counted:
            self._count(counted)
        if earliest < inf:
            self.keeping.schedule(earliest, self.address)

    def _count(self, counted: list[Owed]) -> None:
        self.changes = Changes()
        self.changes.is_counted = True
        for each in counted:
            if each.count(self.keeping.settings.attempts):
                self.changes.after.append((self._try, (each,)))
            else:
                self._tries.next_try.pop(each.number, None)
                self.keeping.note_parked(self.address, each)
                self._tries.look_again(True)
        self.finish()

    def tries(self) -> dict[int, float]:
        """The moments of the next attempts, for its next activation."""
        return {number: moment for number, moment in self._tries.next_try.items() if moment < inf}

    def begin_owed(self, tries: dict[int, float] | None) -> None:
        """Begin with the messages of the stored record. They may have been tried before: by the
        last activation, if it has told its ``tries``, or by a program that has ended.
        """
        now = self.keeping.now()
        self._tries.next_try.update(tries or {})
        for each in self.record.owed.values():
            if not each.is_parked and each.due <= now and each.number not in self._tries.next_try:
                pause = self.keeping.pause(each.attempts) if each.attempts else 0.0
                self._tries.next_try[each.number] = now + pause
        if self.record.owed:
            # Behind the messages that have waited: these may be answers.
            self._send_itself(Look())

    def _send_itself(self, message: object) -> None:
        process = self.process
        process.router.send(process.id, process.id, message, _NOW)

    def _try(self, owed: Owed) -> None:
        if owed.number not in self.record.owed:
            return
        now = self.keeping.now()
        if owed.target is None:
            # It runs, or the process ends.
            self._tries.next_try[owed.number] = inf
            self._tries.run(owed.number)
            self._send_itself(Run(owed.number))
            return
        moment = now + self.keeping.pause(owed.attempts)
        self._tries.next_try[owed.number] = moment
        self.keeping.schedule(moment, self.address)
        record = self.record
        origin = Origin(*self.address, record.birth)
        self._tell(
            owed.target,
            Deliver(origin, owed.number, record.before(owed.number), owed.message),
        )

    def _tell(self, address: Address, message: object) -> None:
        try:
            self.keeping.handle(address, None).send(message)
        except ServiceError:
            pass  # the sender repeats it

    # -- messages of the framework -----------------------------------------------------------------

    def arrive(self, message: Any) -> "tuple[object, EntityHandle] | None":
        """Take a message of the framework. Returns the user's message in it, with its sender, if
        there is one to handle; its callback has begun then.
        """
        if type(message) is Deliver:
            return self._arrive(message)
        if type(message) is Run:
            owed = self.record.owed.get(message.number)
            self._tries.run(0)
            if owed is None:
                self.look()
                return None
            decoded = self._types.decode(owed.message)
            self.begin()
            assert self.changes is not None
            self.changes.removed.append(owed.number)
            self.changes.after.append((self.look, ()))
            return decoded, self.handle(self.address)
        if type(message) is Done:
            self._was_done(message.number)
        elif type(message) is Forget:
            self._forget(message)
        else:
            self.look()
        return None

    def _arrive(self, message: Deliver) -> "tuple[object, EntityHandle] | None":
        origin = message.origin
        last = self.record.seen.get(origin, 0)
        sender = Address(origin.kind, origin.key)
        if message.number <= last:
            self.hold(self._tell, sender, Done(message.number))
            return None
        if message.after > last:
            return None  # one before it is missing; the sender repeats both
        decoded = self._types.decode(message.message)
        self.begin()
        assert self.changes is not None
        self.changes.seen = origin, message.number
        self.changes.after.append((self._tell, (sender, Done(message.number))))
        return decoded, self.handle(sender)

    def _was_done(self, number: int) -> None:
        owed = self.record.owed.get(number)
        if owed is None or owed.target is None:
            return
        target = owed.target
        self.begin()
        assert self.changes is not None
        self.changes.removed.append(number)
        if not any(
            each.target == target and each.number != number for each in self.record.owed.values()
        ):
            origin = Origin(*self.address, self.record.birth)
            self.changes.after.append((self._tell, (target, Forget(origin, number))))
        self.finish()

    def _forget(self, message: Forget) -> None:
        if self.record.seen.get(message.origin, 0) != message.number:
            return
        # Stored with the next commit: a mark too many does no harm.
        del self.record.seen[message.origin]
        if self.record.state is None:
            # It was deleted, and only this mark has kept the row.
            self.begin()
            assert self.changes is not None
            self.changes.is_counted = True
            self.finish()
