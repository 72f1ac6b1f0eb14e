"""`Device`: a device behind a blocking library. One address for both directions, opened again
whenever the device is lost.
"""

from collections import Counter
from copy import copy
from typing import ClassVar, Final, TypedDict

import trio

from .._core.tables.pending_calls import Caller
from .._core.verbs.meta_process import MetaProcess
from .._core.vocabulary.errors import BadInputError, Reject, SpawnError
from .._core.vocabulary.ids import PID, Alias, Target
from .._core.vocabulary.messages import Why
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_members, show_public_names
from .._core.vocabulary.reasons import Crashed, Custom, Shutdown
from ..meta.parsing.framing import Framing
from ..meta.receivers import check_receiver
from ..supervision.specs import Backoff
from .messages import DeviceMessages
from .opening import Driver, Opening, why_lost

__all__ = ["Device", "DeviceKeywords"]

_REOPEN: Final = Backoff(0.1, 10.0)


class DeviceKeywords(TypedDict, total=False):
    """The options of a `Device`, which explains each."""

    framing: Framing | None
    reopen: Backoff
    stuck_after: float
    receiver: Target | None


class Device(DeviceMessages, MetaProcess):
    """Base class for a device behind a blocking library. Define ``open``, ``read`` and ``write``,
    and ``wake`` and ``close`` as the library needs them. A device that only answers has no
    ``read``, and its ``write`` returns the answer.

    The receiver gets `Device.Opened`, a `Device.Data` for each frame, and `Device.Lost` for each
    gap, in this order. The bridge opens a lost device again, and a device that is absent at first
    is a device that is lost: ``spawn_meta`` succeeds. Send or call it `Device.Send`.

    The five functions run in a thread of the opening, and may block. Each opening has its own
    thread and its own copy of the object that ``__init__`` has made: the attributes that ``open``
    sets belong to this opening, and a library that is stuck keeps those of its own.
    ``self.stopping``, ``self.pause``, ``self.wait_readable`` and ``self.opened`` work as in the
    reader of any meta-process.

    Args:
        framing: how the bytes of ``read`` are cut into frames; None delivers each result of
            ``read`` as it is.
        reopen: the delays before the next tries to open.
        stuck_after: seconds that ``open``, ``write`` and ``close`` may take. After them, the device
            is lost, and its thread is abandoned and reported.
        receiver: the address that gets the messages; None for the owner.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    kind = "device"

    lost_by: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    """The exceptions by which the library tells that the device is gone. Any other exception of
    ``write`` is the answer to its caller, and of another function a crash of the bridge.
    """
    full_duplex: ClassVar[bool] = False
    """False for a library that a single thread may use: ``wake`` makes ``read`` return before each
    ``write``. True runs ``write`` in a second thread, beside ``read``.
    """

    def __init__(
        self,
        *,
        framing: Framing | None = None,
        reopen: Backoff = _REOPEN,
        stuck_after: float = 10.0,
        receiver: Target | None = None,
    ) -> None:
        if framing is not None and not isinstance(framing, Framing):
            raise BadInputError("framing", framing, "a framing such as Delimiter(), or None")
        if not isinstance(reopen, Backoff):
            raise BadInputError("reopen", reopen, "Backoff(first, ceiling)")
        check_number("stuck_after", stuck_after, least=0.001)
        self._framing = framing
        self._reopen = reopen
        self._stuck_after = stuck_after
        self._receiver = check_receiver(receiver)
        self._opening: Opening | None = None
        self._past: Counter[str] = Counter()
        self._is_told = False
        self._why = "it was not opened yet"
        self._has_result = trio.Event()
        """Set when the first ``open`` has returned or failed."""

    # -- the library -------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the device. If it raises, ``close`` is not called."""
        raise NotImplementedError

    def read(self) -> object:
        """Block until there is data, and return it; None if there is none, such as after ``wake``
        or a timeout. An exception of ``lost_by`` tells that the device is gone.
        """
        raise NotImplementedError

    def write(self, data: object) -> object:
        """Write the data of a `Device.Send`; return when the library has taken all of it. The call
        returns the same, such as the answer of a device that answers each request.
        """
        raise BadInputError("Device.Send", data, f"nothing: {type(self).__name__} only reads")

    def wake(self) -> None:
        """Make ``read`` return, and with ``full_duplex`` a blocked ``write``, too. Called from
        another thread while the device is open: quick, and its effect must last until the next
        ``read``, which may begin a moment later.
        """

    def close(self) -> None:
        """Close the device. No other function runs meanwhile, or follows."""

    @property
    def only_answers(self) -> bool:
        """Whether no data comes but the answers of ``write``: then ``read`` is not defined."""
        return type(self).read is Device.read

    # -- the reader --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the device, again and again."""
        tries = 0
        while True:
            began = self._now()
            opening = self._opening = self._new_opening()
            if not await self._follow(opening):
                return
            if opening.figures()["openings"] and self._reopen.is_healthy(self._now() - began):
                tries = 0
            chance = self._meta.kernel.chance("devices").fraction()
            await trio.sleep(self._reopen.delay(tries, chance))
            tries += 1

    def _new_opening(self) -> Opening:
        decoder = None if self._framing is None else self._framing.decoder()
        return Opening(self._driver_of, self.id, self._to, decoder, tells_failure=not self._is_told)

    def _driver_of(self, opening: Opening) -> Driver:
        driver: Device = copy(self)
        # Its `stopping`, `pause` and `opened` are those of the opening.
        driver._meta = opening._meta
        return driver

    async def _follow(self, opening: Opening) -> bool:
        """Run an opening to its end. False if this meta-process is to end as well."""
        options = self._meta.options
        try:
            await self.spawn_meta(
                opening,
                backlog=options.backlog,
                when_behind=options.when_behind,
                priority=options.priority,
                stop_timeout=options.stop_timeout,
            )
        except SpawnError as error:  # such as at the limit of reader threads
            await self._lost(opening, why_lost(error))
            return True
        while not opening.has_ended:
            if opening.is_open:
                self._has_result.set()
            left = opening.patience_left(self._stuck_after)
            if left <= 0.0:
                opening.end(Custom(f"the library did not return for {self._stuck_after:g} s"))
                break
            with trio.move_on_after(left):
                await opening.wait_for_news()
        await opening._meta.wait_gone()
        reason = opening._meta.reason
        if isinstance(reason, Crashed):
            self._why = opening.why or str(reason)
            self._has_result.set()
            self._meta.finish(reason)
            return False
        await self._lost(opening, opening.why or str(reason))
        return True

    async def _lost(self, opening: Opening, why: str) -> None:
        """Note the end of an opening, and tell the receiver what the thread could not."""
        counts = opening.figures()
        self._past.update(counts)
        self._opening, self._why = None, why
        was_told, self._is_told = self._is_told, True
        self._has_result.set()
        if not counts["losses"] and (counts["openings"] or not was_told):
            self._past["losses"] += 1
            await self.send_wait(self._to, DeviceMessages.Lost(self.id, why))

    @property
    def _to(self) -> Target:
        return self.parent if self._receiver is None else self._receiver

    # -- the handler -------------------------------------------------------------------------------

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        """Write. The log has the error of a library that refuses the data."""
        if not isinstance(message, DeviceMessages.Send):
            super().handle_message(message, sender)
            return
        try:
            await self._write(message)
        except DeviceMessages.ClosedError:
            self._meta.router.dead_letters.add(sender, self.id, message, Why.STOPPING)
        except Exception as error:
            self._meta.report("write", error)

    async def handle_call(self, request: object, caller: Caller) -> object:
        """Write; an error is the answer."""
        if not isinstance(request, DeviceMessages.Send):
            return super().handle_call(request, caller)
        try:
            return await self._write(request)
        except Exception as error:
            raise Reject(error) from None

    async def _write(self, order: DeviceMessages.Send) -> object:
        # One write at a time: the others wait in the mailbox, where `mailbox_size` bounds them and
        # `drain` finds them.
        await self._has_result.wait()
        opening = self._opening
        if opening is None or not opening.is_open:
            raise DeviceMessages.ClosedError(self.id, self._why_lost())
        return await opening.write(order.data)

    def unblock(self) -> None:
        """End the opening, for which the handler may wait."""
        self._has_result.set()
        if self._opening is not None:
            self._opening.end(Shutdown())

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The state of the device, and the counts of all its openings."""
        opening = self._opening
        counts = Counter(self._past)
        if opening is not None:
            counts.update(opening.figures())
        is_open = opening is not None and opening.is_open
        state = "lost" if self._is_told or (opening is not None and opening.why) else "opening"
        names = ("openings", "losses", "frames_in", "bytes_in", "frames_out", "bytes_out")
        return {
            "state": "open" if is_open else state,
            "why": "" if is_open else self._why_lost(),
            **{name: str(counts[name]) for name in names},
        }

    def _why_lost(self) -> str:
        opening = self._opening
        return self._why if opening is None else opening.why or self._why


show_public_names(__name__)
show_members(Device, DeviceMessages)
