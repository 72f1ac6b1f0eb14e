"""`Outbox`: the messages that an entity owes, and the attempts to deliver them."""

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

import trio

from ..._core.vocabulary.envelopes import Priority
from ..._core.vocabulary.errors import BadInputError, ErgoError
from ...entity_handles import Address
from ...network.messages.listed_class import RefusedValueError
from ..record import Origin, Owed
from .changes import Changes
from .deliveries import Ask, Deliver, Done, Forget, Inquire, Look, Run

if TYPE_CHECKING:
    from .activation import Activation

__all__ = ["Outbox"]

_NOW: Final = Priority.NORMAL
_LEAST_PAUSE: Final = 0.001


class Outbox:
    """The messages that an entity owes to others and to itself. They are part of its record."""

    __slots__ = (
        "_activation",
        "_confirmed",
        "_keeping",
        "_looks_again",
        "_next_try",
        "_question",
        "_record",
        "_running",
        "_settled",
    )

    def __init__(self, activation: "Activation") -> None:
        self._activation = activation
        self._keeping = activation.keeping
        self._record = activation.record
        self._next_try: dict[int, float] = {}
        """When each message is to be tried again, by trio's clock: pauses do not depend on the wall
        clock, which may be set.
        """
        self._confirmed = self._record.last
        """The number of the last message that is owed by a stored version. Later messages must not
        leave: the callbacks that owe them are not stored.
        """
        self._looks_again = False
        """The entity was to look for messages that are due while a callback was in progress."""
        self._running = 0
        """The number of the message to itself that the entity handles; 0 for none."""
        self._question = 0
        """The number of the present question about parked messages. Another message that is
        parked, or tried again, is not covered by the answer to an earlier one.
        """
        self._settled = 0
        """The version that says which parked messages have not arrived. No message passes these
        before it is stored: a later activation would take them for arrived.
        """

    # -- new messages ------------------------------------------------------------------------------

    def owe(
        self,
        changes: Changes,
        to: Address | None,
        message: object,
        name: str = "",
        due: float = 0.0,
    ) -> None:
        """Owe a message to another entity, or to itself, with the commit of a callback.

        Raises:
            BadInputError: the message cannot be stored.
            NotAllowedError: the receiver has another keeper, on several nodes.
        """
        record = self._record
        if to is not None:
            self._keeping.check_messages_to(to)
        try:
            encoded = self._keeping.types.encode(message)
        except RefusedValueError as error:
            raise BadInputError(
                "message to an entity", message, f"a value that can be stored: {error}"
            ) from None
        if not record.birth:
            record.begin_numbers(self._keeping.new_birth())
        target = None if to is None or to == self._activation.address else to
        kind, key = ("", "") if target is None else target
        changes.owed.append(Owed(self._next_number(changes), kind, key, encoded, name, due))

    def owe_timer(
        self, changes: Changes, to: Address, message: object, name: str, due: float
    ) -> str:
        """Owe a message from a moment on. Returns the name of the timer."""
        chosen = name or f"#{self._next_number(changes)}"
        self.owe(changes, to, message, chosen, due)
        return chosen

    def retry(self, changes: Changes) -> int:
        """Give parked messages new attempts, with the commit of a callback. Returns how many there
        are.
        """
        parked = [each for each in self._record.owed.values() if each.is_parked]
        for each in parked:
            if each.may_have_arrived:
                # Under its number, which its receiver knows if it has arrived.
                each.unpark()
            else:
                # Under a new number: its receiver may have seen later messages.
                self._record.renumber(each.number)
        if parked:
            self._question += 1
            changes.count()
            changes.leave(partial(self.confirm, self._record.last))
        return len(parked)

    def _next_number(self, changes: Changes) -> int:
        return max([self._record.last, *(each.number for each in changes.owed)]) + 1

    # -- attempts ----------------------------------------------------------------------------------

    def confirm(self, last: int) -> None:
        """Note that the messages up to this number are owed by a stored version, and try them."""
        self._confirmed = last
        self.look()

    def drop(self, number: int) -> None:
        """Try a message no more: it is not owed any longer."""
        self._next_try.pop(number, None)

    def may_wait(self, owed: Owed, soon: float, *, makes_room: bool) -> bool:
        """Whether the entity need not be awake for a message."""
        return (
            owed.is_parked
            or owed.due > soon
            or (makes_room and owed.target is not None and owed.number in self._next_try)
        )

    def after_callback(self) -> None:
        """Look for messages that became due while the callback was in progress."""
        if self._looks_again:
            self._looks_again = False
            self._activation.output.hold(self.look)

    def look(self) -> None:
        """Try the messages that are due. A message that was tried before is counted first, and that
        is stored: a message that ends the whole program must not be tried without end.

        The outbox of an entity that has ended does nothing: its next activation has them.
        """
        if self._activation.is_over():
            return
        if self._activation.changes is not None:
            self._looks_again = True
            return
        own: list[Owed] = []
        fired: list[Owed] = []
        counted: list[Owed] = []
        earliest = inf
        for each in list(self._record.owed.values()):
            if each.is_parked or each.number > self._confirmed:
                continue
            delay = self._delay(each)
            if delay > 0.0:
                earliest = min(earliest, delay)
            elif each.target is None:
                own.append(each)
            elif each.due:
                fired.append(each)
            elif each.number in self._next_try and self._is_first(each):
                counted.append(each)
            else:
                # A message behind another one was not tried, so it is not counted.
                self._try(each)
        if fired:
            self._fire(fired)
        if own and not self._running:
            counted += self._look_at_own(own)
        if counted:
            self._count(counted)
        if earliest < inf:
            self._look_in(earliest)

    def _is_first(self, owed: Owed) -> bool:
        """Whether it is the first message to its receiver that is tried."""
        before = self._record.before(owed.number)
        return before is None or before.is_parked

    def _delay(self, owed: Owed) -> float:
        """Seconds until a message is due, or is to be tried again."""
        moment = self._next_try.get(owed.number)
        return owed.due - self._keeping.now() if moment is None else moment - trio.current_time()

    def _look_in(self, seconds: float) -> None:
        # Rounded up: a look that is early by a rounding error would follow itself at once.
        moment = self._keeping.now() + max(seconds, _LEAST_PAUSE)
        self._keeping.schedule(moment, self._activation.address)

    def _look_at_own(self, own: list[Owed]) -> list[Owed]:
        """Try a message to itself, if it was not tried before. Returns it otherwise.

        A single one, so that none is counted for the failure of another.
        """
        first = min(own, key=lambda each: (each.attempts, each.number))
        if first.number in self._next_try:
            return [first]
        self._try(first)
        return []

    def _fire(self, timers: list[Owed]) -> None:
        """Give timers to other entities their places among the messages to these. Before, they had
        none: later messages did not wait for them.
        """
        changes = self._activation.begin_changes()
        changes.count()
        for each in timers:
            self.drop(each.number)
            self._record.renumber(each.number)
        changes.leave(partial(self.confirm, self._record.last))
        self._activation.finish()

    def _count(self, counted: list[Owed]) -> None:
        activation = self._activation
        changes = activation.begin_changes()
        changes.count()
        for each in counted:
            if each.count(self._keeping.settings.attempts):
                changes.leave(partial(self._try, each))
            else:
                self.drop(each.number)
                self._question += 1
                self._keeping.note_parked(activation.address, each)
                self._looks_again = True
        activation.finish()

    def _try(self, owed: Owed) -> None:
        activation, record = self._activation, self._record
        if owed.number not in record.owed or owed.is_parked or activation.is_over():
            return
        target = owed.target
        if target is None:
            # It runs, or the process ends.
            self._next_try[owed.number] = inf
            self._running = owed.number
            self._send_itself(Run(record.birth, owed.number))
            return
        if activation.output.committed < self._settled:
            activation.output.hold(partial(self._try, owed))
            return
        pause = self._keeping.pause(owed.attempts)
        self._next_try[owed.number] = trio.current_time() + pause
        self._look_in(pause)
        before, origin = record.before(owed.number), self._origin()
        if before is not None and before.is_parked:
            # Nothing passes a message that may have arrived: its receiver remembers the number of
            # the last message only.
            self.tell(target, Ask(origin, self._question_id()))
            return
        after = 0 if before is None else before.number
        token = self._keeping.token_of(target)
        self.tell(target, Deliver(origin, owed.number, after, token, owed.message))

    def tell(self, address: Address, message: Deliver | Done | Forget | Ask | Inquire) -> None:
        """Send a message of the framework to another entity."""
        try:
            self._keeping.tell(self._activation, address, message)
        except ErgoError:
            # The sender repeats it, and parks it after so many attempts: it may be too large for
            # the network, or too much waits for that node.
            pass

    def _send_itself(self, message: Run | Look) -> None:
        process = self._activation.process
        process.router.send(process.id, process.id, message, _NOW)

    def _question_id(self) -> str:
        """The present question, unlike those of all other activations."""
        return f"{self._activation.process.id} {self._question}"

    def _origin(self) -> Origin:
        return Origin(*self._activation.address, self._record.birth)

    # -- across sleep ------------------------------------------------------------------------------

    def moments(self) -> dict[int, float]:
        """The moments of the next attempts, for the next activation."""
        return {number: moment for number, moment in self._next_try.items() if moment < inf}

    def begin(self, moments: dict[int, float] | None) -> None:
        """Begin with the messages of the stored record, if it has any. They may have been tried
        before: by the last activation, if it has told its moments, or by a program that has ended.
        """
        owed = self._record.owed
        now = self._keeping.now()
        self._next_try.update((each, at) for each, at in (moments or {}).items() if each in owed)
        for each in owed.values():
            if not each.is_parked and each.due <= now and each.number not in self._next_try:
                pause = self._keeping.pause(each.attempts) if each.attempts else 0.0
                self._next_try[each.number] = trio.current_time() + pause
        if owed:
            # Behind the messages that have waited: these may be answers.
            self.look_soon()

    def look_soon(self) -> None:
        """Look for work behind the messages that wait."""
        self._send_itself(Look())

    # -- ends --------------------------------------------------------------------------------------

    def take_own(self, message: Run) -> Owed | None:
        """The message to itself that is to be handled now; None if it is not owed any more."""
        if message.birth != self._record.birth:
            return None  # of an entity of the same key that was deleted
        self._running = 0
        owed = self._record.owed.get(message.number)
        if owed is None or owed.is_parked:
            self.look()
            return None
        return owed

    def was_done(self, message: Done) -> None:
        """Owe a message no longer: it has taken effect."""
        if message.origin == self._origin():
            self._is_done(message.number)

    def _is_done(self, number: int) -> None:
        owed = self._record.owed.get(number)
        if owed is None or owed.target is None:
            return
        target = owed.target
        changes = self._activation.begin_changes()
        changes.removed.append(number)
        # A parked message that has not arrived, and a timer, have a new number when they are tried.
        if not any(
            each.target == target and each.number != number and each.keeps_place
            for each in self._record.owed.values()
        ):
            forget = Forget(self._origin(), number)
            changes.leave(partial(self.tell, target, forget))
        self._activation.finish()

    def answer(self, message: Inquire) -> None:
        """Tell an entity to forget a mark: the messages that it stands for have taken effect there,
        and are not owed any more.
        """
        if message.origin == self._origin():
            for each in list(self._record.owed.values()):
                is_seen = each.target == message.receiver and each.number <= message.number
                if is_seen and each.keeps_place:
                    self._is_done(each.number)
            if message.question == self._question_id():
                self._settle(message.receiver)
        forget = Forget(message.origin, message.number)
        # Held back: until it is stored that a message is not owed, the message may come again.
        self._activation.check_row()
        self._activation.output.hold(partial(self.tell, message.receiver, forget))

    def _settle(self, receiver: Address) -> None:
        """Note that the parked messages to a receiver have not arrived, and let others pass."""
        there = [each for each in self._record.owed.values() if each.target == receiver]
        if not any(each.may_have_arrived for each in there):
            return
        changes = self._activation.begin_changes()
        changes.count()
        for each in there:
            each.settle()
            self.drop(each.number)
        changes.leave(self.look)
        self._activation.finish()
        self._settled = self._activation.output.version
