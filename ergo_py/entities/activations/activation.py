"""`Activation`: an entity that is awake. It runs the callbacks, and makes the record to store after
each.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from ..._core.processes.process import Process
from ..._core.runtime.parking import TrioTurns
from ..._core.tables.pending_calls import Caller
from ..._core.vocabulary.envelopes import STOP
from ..._core.vocabulary.errors import ErgoError, NotAllowedError, Reject
from ..._core.vocabulary.messages import NO_REPLY
from ..._core.vocabulary.reasons import Crashed, Reason, Shutdown
from ...entity_handles import Address, EntityHandle
from ..errors import EntityStoreError, StateTooLargeError, StateTypeError, StateUnreadableError
from ..record import Origin, Record, size_of_mark
from ..states.state_type import LARGE, StateType
from ..stores.store import Row, Write
from .changes import NO_CHANGES, Action, Changes
from .commands import Commands
from .deliveries import Ask, Deliver, Delivery, Done, Forget, Inquire, Leave, Run
from .held_handles import HeldEntity
from .held_output import HeldOutput
from .outbox import Outbox

if TYPE_CHECKING:
    from ...network.messages.message_types import MessageTypes
    from ..active_entities import Keeping
    from ..entity import Entity

__all__ = ["Activation"]

_MOVED: Final = Shutdown("its shard moves to another node")
_LATE: Final = 1.0
"""Seconds after which ids are surely forgotten: sums of moments are rounded."""
_ANSWER: Final = 16
_LITTLE: Final = 1000
"""Bytes of the rest of a record, at most: a record that is so close to ``max_state`` is encoded to
know its size.
"""
_INQUIRIES: Final = 8
"""Marks from before its sleep that an entity asks about when it wakes up."""


class Activation:
    """An entity that is awake."""

    __slots__ = (
        *("_base", "_entity", "_is_over", "_state_type", "_stored", "address", "changes"),
        *("_commands", "due", "is_started", "keeping", "name", "_output", "record"),
        *("_has_stored_marks", "_ids_until", "_outbox", "claim", "used"),
    )

    def __init__(
        self,
        keeping: "Keeping",
        address: Address,
        name: str,
        kind: "type[Entity[Any]]",
        row: Row | None,
        claim: tuple[int, int],
    ) -> None:
        self.keeping = keeping
        self.claim = claim
        """The shard, and the token under which the row was loaded: no later token will do."""
        self.address = address
        self.name = name
        """The address as a text, the same object as in the tables."""
        self.record: Record = Record() if row is None else Record.decode(row.record)
        self.due = self.record.due()
        """The moment at which the stored record is due."""
        self.changes: Changes | None = None
        """The changes of the callback in progress."""
        self.used: float = 0.0
        """When its last callback ended."""
        # Made on first use: most entities that are awake owe nothing and change nothing.
        self._output: HeldOutput | None = None
        self._outbox: Outbox | None = None
        self._commands: Commands | None = None
        self._entity: Entity[Any] | None = None
        self.is_started: bool = False
        """Its process has started, so that it may sleep."""
        self._is_over = False
        """Its process has ended."""
        self._base = 0 if row is None else row.version
        """The version that the store has, or gets with the commit under way; 0 for no row."""
        self._state_type: StateType = kind.__state_type__
        self._stored = b""
        """The bytes of the state as it was after the last callback."""
        self._has_stored_marks = False
        """Marks were removed that the stored record still has."""
        self._ids_until = 0.0
        """The moment for its ids that it has stored; 0 for none."""

    # -- start and end -----------------------------------------------------------------------------

    def become(self, entity: "Entity[Any]") -> object:
        """Become the activation of this behaviour. Returns the state to begin with.

        Raises:
            StateError: of kind ``"unreadable"``; the stored state does not fit its class.
        """
        self._entity = entity
        encoded, state_type = self.record.state, self._state_type
        if encoded is None:
            return state_type.new()
        try:
            return state_type.load(encoded)
        except ValueError as error:
            raise StateUnreadableError(
                self.address.kind, self.address.key, state_type.name, str(error)
            ) from None

    def start(self, moments: dict[int, float] | None) -> None:
        """Begin to work, when the process has started: ``moments`` are those of the next attempts
        that the last activation has told.

        Raises:
            StateError: of kind ``"type"``; ``init`` has put a value into the state that cannot be
                stored.
        """
        # Not the stored bytes: an older version of the class may have written them.
        self._stored = self._state_type.encode(self.entity.state, self.record.state)
        self.is_started = True
        self.rest()
        if self.record.owed:
            self.outbox.begin(moments)
        elif self.record.state is None and self.record.done:
            self.outbox.look_soon()
        # The end of its messages may have come while this entity could not store it, or their
        # sender has ended before it could tell. Few at a time: each wakes its sender.
        if self.record.seen:
            for origin, number in self._some_marks():
                sender = Address(origin.kind, origin.key)
                self.outbox.tell(sender, Inquire(origin, number, self.address))

    def _some_marks(self) -> Iterator[tuple[Origin, int]]:
        """Some of the marks, others at each start: the senders of the first may be no more."""
        marks = [*self.record.seen.items()]
        first = int(self.keeping.kernel.chance("entities").fraction() * len(marks))
        return islice(chain(marks[first:], marks[:first]), _INQUIRIES)

    def end(self) -> None:
        """Note that its process has ended. The commits under way end, and their replies and
        messages leave; but nothing more is stored: the next activation of the entity does that.
        """
        self._is_over = True

    def is_over(self) -> bool:
        """Whether its process has ended, is ending, or cannot store anything."""
        return self._is_over or self.has_failed() or not self.process.accepting

    def has_failed(self) -> bool:
        """Whether nothing of it can be stored: a commit has failed, or another node has it."""
        return self._error is not None

    def stop(self, reason: Reason) -> None:
        """End the process. Answers that wait for the store leave all the same."""
        self._outlive()
        self.process.end(STOP, reason)

    @property
    def types(self) -> "MessageTypes":
        """The classes of stored messages and answers."""
        return self.keeping.types

    @property
    def entity(self) -> "Entity[Any]":
        """Its behaviour."""
        assert self._entity is not None
        return self._entity

    @property
    def output(self) -> HeldOutput:
        """The replies and messages that wait for the store."""
        if self._output is None:
            self._output = HeldOutput(self._base, self)
        return self._output

    @property
    def held(self) -> int:
        """How many replies and messages wait for the store. From any thread."""
        return 0 if self._output is None else self._output.held

    @property
    def _error(self) -> EntityStoreError | None:
        return None if self._output is None else self._output.error

    @property
    def commands(self) -> Commands:
        """The calls whose answers are deferred, and commands with ids."""
        if self._commands is None:
            self._commands = Commands(self)
        return self._commands

    @property
    def outbox(self) -> Outbox:
        """The messages that it owes."""
        if self._outbox is None:
            self._outbox = Outbox(self)
        return self._outbox

    def moments(self) -> dict[int, float]:
        """The moments of the next attempts, for the next activation."""
        return {} if self._outbox is None else self._outbox.moments()

    @property
    def process(self) -> Process:
        """Its process."""
        return self.entity._process

    def handle(self, address: Address) -> EntityHandle:
        """The handle of another entity."""
        return HeldEntity(self.keeping.handle(address, self.process), self)

    def rest(self) -> None:
        """Be idle from now on."""
        self.used = self.keeping.note_used(self.name)

    def can_sleep(self, *, makes_room: bool = False) -> bool:
        """Whether it may end now: nothing is held back, and it has no work to do. To make room for
        another, it may also end while it waits until messages have taken effect elsewhere: perhaps
        just there. The answer wakes it again, or the moment of the next attempt.
        """
        if self.changes is not None or not (self._output is None or self._output.is_empty()):
            return False
        if self.process.deferred or (self._commands is not None and self._commands.are_open()):
            return False
        soon = self.keeping.now() + 1.0
        return all(
            self.outbox.may_wait(each, soon, makes_room=makes_room)
            for each in self.record.owed.values()
        )

    # -- callbacks ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a callback.

        Raises:
            EntityStoreError: a commit has failed.
        """
        if self._output is not None and self._output.error is not None:
            raise self._output.error
        self.changes = NO_CHANGES

    def begin_changes(self) -> Changes:
        """Begin a callback of the framework, which changes more than the state.

        Raises:
            EntityStoreError: a commit has failed.
        """
        self.begin()
        return self.in_callback()

    def in_callback(self, verb: str = "") -> Changes:
        """The changes of the callback in progress, to add some.

        Raises:
            NotAllowedError: no callback that is stored is in progress.
        """
        if self.changes is None:
            raise NotAllowedError(
                f"self.{verb} belongs to the commit of a callback: use it in handle_message, "
                "handle_call or an exposed method"
            )
        if self.changes is NO_CHANGES:
            self.changes = Changes()
        return self.changes

    def leave(self, action: Action) -> None:
        """Do an action when the callback in progress is stored."""
        self._leave(None, action, None)

    def reply(self, caller: Caller, value: object, error: BaseException | None) -> None:
        """Answer a call when the callback in progress is stored."""
        self._leave(caller, value, error)

    def _leave(self, caller: Caller | None, value: object, error: BaseException | None) -> None:
        if self.changes is not None:
            self.in_callback().after.append((caller, value, error))
        else:
            self.output.leave(caller, value, error)

    def undo(self) -> None:
        """Put the state back as it was before the callback, and drop all that it has done."""
        self.changes = None
        # Not only if it has changed: the callback may have made a state that cannot be compared.
        state = self._state_type.again(self._stored)
        self.entity.put_state(state)
        # Of a set that was loaded again, the order is another.
        self._stored = self._state_type.encode(state, self._stored)

    def check_unchanged(self) -> None:
        """Put the state back if it was changed outside of a callback that is stored.

        Raises:
            NotAllowedError: it was.
        """
        try:
            if self._state_type.encode(self.entity.state, self._stored) is self._stored:
                return
        except StateTypeError:
            pass  # it was changed to something that cannot be stored
        self.undo()
        raise NotAllowedError(
            f"handle_inspect of {self.address} has changed the state, which was put back: nothing "
            "would store it. Change the state in handle_call, handle_message or an exposed method"
        )

    def crash(self) -> None:
        """Undo a callback that ends the process. Earlier callbacks are still being stored: their
        answers leave then, although the process has ended.
        """
        self.undo()
        self.end()
        self._outlive()

    def _outlive(self) -> None:
        if self._output is not None:
            self._output.outlive()

    def answer(self, caller: Caller, value: object) -> object:
        """Answer a call when all that the entity has done so far is stored. Returns the result for
        the kernel.
        """
        return value if self._output is None else self._output.answer(caller, value)

    def refuse(self, caller: Caller, rejection: Reject, *, is_fresh: bool = False) -> object:
        """Undo the callback of a call, and hold its refusal back: until earlier callbacks are
        stored, or until a commit of its own.
        """
        self.undo()
        self.rest()
        if is_fresh:
            self.check_row()
        if self._output is None or self._output.is_stored():
            raise rejection
        self._output.leave(caller, None, rejection.error)
        return NO_REPLY

    def finish(self) -> None:
        """End a callback, and store its changes.

        Raises:
            StateError: of kind ``"type"``; the state cannot be stored; the callback was undone.
            StateError: of kind ``"too large"``; the same.
        """
        changes, before, keeping, entity = self.changes, self._stored, self.keeping, self._entity
        assert changes is not None
        assert entity is not None
        is_plain, commits = changes is NO_CHANGES, keeping.commits
        try:
            if changes.deleted:
                entity.put_state(self._state_type.new())
            encoded = self._state_type.encode(entity.state, before)
            is_same = encoded is before and (is_plain or changes.is_empty())
            if not (is_same or (is_plain and len(encoded) + self.record.rest <= commits.small)):
                self._check_size(encoded, changes)
        except ErgoError:
            self.undo()
            raise
        self.changes = None
        if not is_same:
            self._stored = encoded
            if is_plain:
                self.record.keep(encoded)
            else:
                self._record_changes(changes, encoded if encoded is not before else None)
            (self._output or self.output).next_version()
            commits.submit(self)
        if not is_plain:
            if changes.answered:
                self.commands.forget(changes.answered)
            for each in changes.after:
                self.output.leave(*each)
        self.used = keeping.note_used(self.name)
        if self._outbox is not None:
            self._outbox.after_callback()

    def check_row(self) -> None:
        """Let all that leaves next wait for a commit, also if nothing has changed: the store
        confirms that the row is that of this record. An answer from memory alone would be wrong if
        another node has the entity by now, or if the row has gone back to a backup.
        """
        output = self.output
        if output.version == output.committed:
            self.begin_changes().count()
            self.finish()

    def _check_size(self, encoded: bytes, changes: Changes) -> None:
        """Check the size of the whole record before anything changes, so that nothing is half
        done. A record that is too large already may change, but not grow: ``max_state`` may have
        been larger.
        """
        record, most, size = self.record, self.keeping.settings.max_state, len(encoded)
        added = sum(each.size for each in changes.owed)
        added += sum(
            _ANSWER + 4 * len(id) + len(answer or b"") for id, answer in changes.done.items()
        )
        if changes.seen is not None:
            added += size_of_mark(changes.seen[0])
        if size + record.rest + added + _LITTLE > most:
            after = record.copy()
            self._change(after, changes, encoded)
            whole = len(after.encode() or b"")
            if whole > most and whole > len(record.encode() or b""):
                raise StateTooLargeError(self.address.kind, whole, most, after.sizes())
        if size > LARGE and self._state_type.is_first_large(encoded):
            self.process.log.warning(
                "a large state is encoded after every callback, also of callbacks that only read",
                bytes=len(encoded),
                state=self._state_type.name,
                instead="keep the parts in entities of their own",
            )

    def _record_changes(self, changes: Changes, state: bytes | None) -> None:
        """Put the changes of a callback into the record, and its state if that is another."""
        record = self.record
        has_state = state is not None or record.state is not None
        self._change(record, changes, self._stored if has_state else None)
        for number in changes.removed:
            self.outbox.drop(number)
        if changes.owed:
            changes.leave(partial(self.outbox.confirm, record.last))

    def _change(self, record: Record, changes: Changes, state: bytes | None) -> None:
        """Put the changes of a callback into a record."""
        if changes.deleted:
            record.delete()
        elif state is not None:
            record.keep(state)
        for number in changes.removed:
            record.drop(number)
        for name in changes.cancelled:
            record.cancel(name)
        record.owe(changes.kept())
        if changes.seen is not None:
            origin, number = changes.seen
            record.see(origin, number)
        for id in changes.refused:
            record.forget(id)
        if changes.done:
            now = self.keeping.now()
            for id, answer in changes.done.items():
                record.remember(id, now, answer)
            self._forget_old(record)

    # -- commits -----------------------------------------------------------------------------------

    def take_write(self) -> Write:
        """The last version, which the store gets now. Of several versions that have waited, only
        the last is written, and encoded.
        """
        record, version, base = self.record, (self._output or self.output).version, self._base
        encoded = record.encode()
        self._has_stored_marks = False
        self._base = 0 if encoded is None else version
        due, (shard, token) = record.due(), self.claim
        if record.state is None and record.done:
            # Its row goes when its last id does, also if nobody calls it.
            moment = self._ids_until = self._end_of_ids() + self.keeping.id_clock.lag()
            due = moment if due is None else min(due, moment)
        return Write(self.address, base, version, token, due, encoded, shard)

    def release(self, write: Write, turns: TrioTurns | None = None) -> None:
        """Note that a version is stored, and let go all that waited for it."""
        self.due = write.due
        (self._output or self.output).release(write.version, turns)

    def fail(self, error: EntityStoreError, due: float | None = None) -> None:
        """Note that a commit has failed. Nothing that was held back leaves."""
        if due is not None:
            self.due = due  # the write may have happened
        if self._error is not None:
            return
        process, reason = self.process, Crashed(error)
        self.output.fail(error, reason)
        if process.accepting:
            process.end(STOP, reason)
            process.cut(reason)

    def warn(self, error: ErgoError) -> None:
        """Note that a message could not be sent."""
        self.process.log.warning("a message could not be sent", why=str(error))

    # -- the ids of an entity without a state: it was deleted, or has changed nothing yet ----------

    def _end_of_ids(self) -> float:
        """The moment at which its last id can be forgotten."""
        newest = max(moment for moment, _ in self.record.done.values())
        return newest + self.keeping.settings.remember + _LATE

    def _forget_old(self, record: Record) -> None:
        keeping, settings = self.keeping, self.keeping.settings
        record.forget_done(keeping.id_clock.now() - settings.remember, settings.max_remembered)

    def _forget_ids(self) -> None:
        """Forget ids that nothing but their age ends: without them the row goes. If the wall clock
        was set meanwhile, or ``remember`` is longer than it was, the row gets another moment.
        """
        record, keeping = self.record, self.keeping
        if record.state is not None or not record.done or self.is_over():
            return
        end = self._end_of_ids()
        if end <= keeping.now():
            self._forget_old(record)
        elif self._ids_until >= end:
            keeping.schedule(end, self.address)  # this look was for an earlier id
            return
        self.begin_changes().count()
        self.finish()

    # -- messages of the framework -----------------------------------------------------------------

    def arrive(self, message: Delivery) -> tuple[object, EntityHandle] | None:
        """Take a message of the framework. Returns the user's message in it, with its sender, if
        there is one to handle; its callback has begun then.
        """
        if isinstance(message, Deliver):
            return self._take_message(message)
        if isinstance(message, Run):
            taken = self._take_own(message)
            if taken is None:
                self.rest()
            return taken
        if isinstance(message, Done):
            self.outbox.was_done(message)
        elif isinstance(message, Forget):
            self._forget(message)
        elif isinstance(message, Ask):
            self._tell_mark(message)
        elif isinstance(message, Inquire):
            self.outbox.answer(message)
        elif isinstance(message, Leave):
            self.stop(_MOVED)
        else:
            self.outbox.look()
            self._forget_ids()
        self.rest()
        return None

    def _take_own(self, message: Run) -> tuple[object, EntityHandle] | None:
        owed = self.outbox.take_own(message)
        if owed is None:
            return None
        decoded = self.types.decode(owed.message)
        changes = self.begin_changes()
        changes.removed.append(owed.number)
        changes.leave(self.outbox.look)
        return decoded, self.handle(self.address)

    def _take_message(self, message: Deliver) -> tuple[object, EntityHandle] | None:
        if message.token != self.claim[1]:
            return None  # a late copy; the sender repeats what it still owes
        origin = message.origin
        last = self.record.seen.get(origin, 0)
        sender = Address(origin.kind, origin.key)
        tell = partial(self.outbox.tell, sender, Done(origin, message.number))
        if message.number <= last:
            self.check_row()
            self.output.hold(tell)
            return None
        if message.after > last:
            return None  # one before it is missing; the sender repeats both
        decoded = self.types.decode(message.message)
        changes = self.begin_changes()
        changes.see(origin, message.number)
        changes.leave(tell)
        return decoded, self.handle(sender)

    def _tell_mark(self, message: Ask) -> None:
        """Tell a sender which of its messages have taken effect. Those that it has sent before its
        question have been handled, and it sends none of them again while it has parked them.
        """
        origin = message.origin
        number = self.record.seen.get(origin, 0)
        answer = Inquire(origin, number, self.address, message.question)
        self.check_row()
        self.output.hold(partial(self.outbox.tell, Address(origin.kind, origin.key), answer))

    def _forget(self, message: Forget) -> None:
        if self.record.seen.get(message.origin) != message.number:
            return
        # Stored with the next commit, or before the sleep: a mark too many does no harm.
        self.record.forget_seen(message.origin)
        self._has_stored_marks = True
        if self.record.state is None:
            # It was deleted, and only this mark has kept the row.
            self.stores_marks()

    def stores_marks(self) -> bool:
        """Store that marks were removed. False if the stored record has no such marks."""
        if not self._has_stored_marks:
            return False
        self.begin_changes().count()
        self.finish()
        return True
