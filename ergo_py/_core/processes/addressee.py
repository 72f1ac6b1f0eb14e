"""`Addressee`: the side of a process that others see: its identity, its addresses and its
mailbox.
"""

from collections import deque
from typing import TYPE_CHECKING

from trio.lowlevel import Task, enable_ki_protection

from ..kernel import Kernel
from ..messaging.router import Router
from ..runtime.bridge import get_ident
from ..runtime.parking import ENDED, PARKED, TaskPlaceholder
from ..tables.callbacks import Callbacks
from ..tables.child_slot import ChildSlot
from ..tables.mailbox import Mailbox
from ..vocabulary.envelopes import Envelope
from ..vocabulary.ids import PID, Alias
from ..vocabulary.options import Options
from .unhandled_messages import sweep

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

__all__ = ["Addressee"]


class Addressee:
    """An object with a PID and a mailbox. All methods run on the loop's thread, unless they say
    otherwise.

    A base class, and not a part of the process: every send reads ``takes_direct``, ``main`` and
    ``task``, and would pay for another object in between.
    """

    __slots__ = (
        *("_logger", "aliases", "callbacks", "id", "kernel", "name", "options", "router"),
        *("accepting", "inline", "takes_bounded", "takes_direct"),
        *("left_to", "mailbox", "main", "slot", "task", "wake_requested"),
    )

    is_remote = False

    # The constructor of `Process` sets these: each spawn would pay for another constructor.
    kernel: Kernel
    """The shared parts of its node."""
    router: Router
    """The router of its node, which each send would otherwise look up in the kernel."""
    id: PID
    """Its PID, which no other process ever gets."""
    callbacks: Callbacks
    """The callbacks that its class has; all processes of the class share them."""
    options: Options
    """The options of its spawn."""
    name: str | None
    """Its registered name."""
    aliases: dict[Alias, None] | None
    """Its further addresses; None while it has none."""
    _logger: "FilteringBoundLogger | None"
    """Its logger; None until it logs."""
    mailbox: Mailbox
    """The messages and signals that wait for it."""
    main: deque[Envelope]
    """The lane of its mailbox for plain messages, to which most senders append."""
    task: Task | TaskPlaceholder
    """The task that reads the mailbox, or a placeholder before its first step and after its
    last.
    """
    accepting: bool
    """Whether it takes messages of users: until it begins to end."""
    takes_direct: bool
    """Whether senders may append to the main lane without any check, from any thread. Every send
    tests this first. Once False it stays False: otherwise a direct append could overtake a message
    that a thread sent through the loop.
    """
    takes_bounded: bool
    """Whether senders may append to the main lane after checking only the mailbox's bound."""
    wake_requested: bool
    """Whether a thread has already asked the loop to wake this process."""
    inline: bool
    """Whether a call may be served inline, in the caller's task, while this process sleeps."""
    slot: ChildSlot | None
    """Its slot under a supervisor."""
    left_to: ChildSlot | None
    """The slot whose next process inherits its main lane."""

    @property
    def log(self) -> "FilteringBoundLogger":
        """The logger bound to this process."""
        if self._logger is None:
            self._logger = self._make_logger()
        return self._logger

    def use_logger(self, logger: "FilteringBoundLogger") -> None:
        """Bind the logger also to the values of another logger, in place of those bound before."""
        self._logger = self.kernel.log.rebound(self._make_logger(), logger)

    def _make_logger(self) -> "FilteringBoundLogger":
        return self.kernel.log.logger(
            self.id, self.options.log_level, name=self.name, behaviour=self.callbacks.behaviour
        )

    def __repr__(self) -> str:
        called = f" {self.name!r}" if self.name else ""
        return f"<{self.callbacks.behaviour}{called} {self.id}>"

    def be_called(self, name: str | None) -> None:
        """Change the name, or remove it, in the log from now on."""
        self.name = name
        if self._logger is not None:
            self.use_logger(self._logger.try_unbind("name"))

    def be_shown_as(self, behaviour: str) -> None:
        """Show another text for its behaviour: in the log, in snapshots, in the tree."""
        self.callbacks = self.callbacks.shown_as(behaviour)
        self._logger = None

    def use_callbacks(self, callbacks: Callbacks) -> None:
        """Serve with the callbacks of another class from now on."""
        self.callbacks = callbacks
        if self._logger is not None:
            self.use_logger(self._logger.try_unbind("behaviour"))
        # Never back to True: a suspension, or a mailbox of another kind, may have said False.
        self.inline = self.inline and callbacks.answers_at_once

    # -- mailbox -----------------------------------------------------------------------------------

    def begin_mailbox(self, mailbox: Mailbox) -> None:
        """Read another mailbox from the next envelope on."""
        self.mailbox, self.main = mailbox, mailbox.main

    def use_mailbox(self, mailbox: Mailbox) -> None:
        """Replace the mailbox by another kind, which decides about every envelope. The queued
        envelopes move there.
        """
        former = self.mailbox
        self.begin_mailbox(mailbox)
        # Before the envelopes move, so that no direct append comes between them.
        self.takes_direct = self.takes_bounded = self.inline = False
        for lane, envelope in former.leave():
            mailbox.push(lane, envelope)

    def allow_inline_calls(self, allowed: bool) -> bool:
        """Say whether calls may be served inline. Returns whether they could before."""
        before, self.inline = self.inline, allowed
        return before

    def close_mailbox(self) -> None:
        """Let no sender append to its mailbox from now on."""
        self.accepting = self.takes_direct = self.takes_bounded = False

    def refuse(self) -> None:
        """Refuse user messages from now on, also those of senders that wait for room."""
        self.accepting = self.takes_direct = self.takes_bounded = False
        if self.slot is not None:
            self.slot.vacate(self.id)
        if self.mailbox.waiters:
            self.mailbox.refuse_waiters()

    def leave_lane(self, slot: ChildSlot) -> None:
        """Leave the main lane itself to the successor: a single step for any number of messages."""
        self.left_to = slot
        slot.keep_lane(self.main)

    def serves_in_passing(self, _message: object, _sender: PID | Alias, /) -> bool:
        """Always False: a process serves messages in its own turn only."""
        return False

    # -- wake-ups ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the task if it sleeps in its mailbox."""
        self.router.turns.wake(self)

    @enable_ki_protection
    def wake_from_any_thread(self) -> None:
        """Wake the task after an append to its open mailbox. Callable from any thread, including
        the loop's.
        """
        mark = self.task.custom_sleep_data
        if mark is PARKED:
            if get_ident() == self.router.loop_thread:
                self.router.turns.wake(self)
            elif not self.wake_requested:
                # A single wake-up for each batch of messages. If posting it fails, the next sender
                # must try again.
                try:
                    self.wake_requested = True
                    self.router.bridge.post(self._wake_on_loop)
                except BaseException:
                    self.wake_requested = False
                    raise
        elif mark is ENDED:
            # The process ended between the check of `takes_direct` and the append: dispose of the
            # late messages.
            self.router.bridge.do(sweep, self)

    def _wake_on_loop(self) -> None:
        self.wake_requested = False
        self.router.turns.wake(self)
