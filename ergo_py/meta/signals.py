"""`Signals`: signals of the operating system, as messages."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, TypeAlias

import trio

from .._core.verbs.meta_process import MetaProcess
from .._core.vocabulary.errors import BadInputError, NodeStoppedError, NotAllowedError
from .._core.vocabulary.ids import Alias, Target
from .._core.vocabulary.public_names import show_members, show_public_names
from .receivers import check_receiver

__all__ = ["SignalReceived", "Signals"]

_REFUSED: Final = frozenset(
    # The first two cannot be caught. The others mean that the program itself is broken, and come
    # again at once if it continues.
    getattr(signal, name)
    for name in ("SIGKILL", "SIGSTOP", "SIGSEGV", "SIGFPE", "SIGILL", "SIGBUS")
    if hasattr(signal, name)
)


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """A signal came, ``count`` times since the last message about it.

    Signals that come at almost the same time may count as a single signal: the operating system
    merges pending signals, and Python merges those that come before its handler has run, real-time
    signals included.
    """

    source: Alias
    signal: signal.Signals | int
    """A number for a real-time signal that has no name."""
    count: int = 1


class Signals(MetaProcess):
    """Replaces the default action of signals by messages. When it ends, it restores the former
    handlers.

    Python handles signals in the main thread only, so the node must run there; elsewhere
    ``spawn_meta`` raises an error. A signal belongs to a single such meta-process at a time.
    ``ergo_py.run`` stops the node on SIGINT, SIGTERM and SIGHUP; a signal that is taken here does
    not stop the node until it is given back.

    Args:
        wanted: the signals, such as ``signal.SIGHUP``.
        receiver: the address that gets the messages; None for the owner.

    Raises:
        BadInputError: no signal is given, or a signal cannot be caught.
    """

    Received: TypeAlias = SignalReceived

    kind = "signals"

    def __init__(self, *wanted: int, receiver: Target | None = None) -> None:
        for number in wanted or (None,):
            if (
                not isinstance(number, int)
                or isinstance(number, bool)
                or number not in signal.valid_signals()
                or number in _REFUSED
            ):
                raise BadInputError(
                    "Signals(...)", number, "signals that can be caught, such as signal.SIGHUP"
                )
        self._wanted = tuple(dict.fromkeys(map(int, wanted)))
        self._receiver = check_receiver(receiver)
        self._pending: dict[int, int] = {}
        self._came = trio.Event()
        self._told = 0

    async def init(self) -> None:
        """Take the signals; all of them or none."""
        # Cleanup is certain: the signals are given back with the meta-process, however it ends.
        taken = self.opened(_Taken(self.id, self._signalled), unblock=_nothing)
        for number in self._wanted:
            taken.take(number)

    async def start(self) -> None:
        """Send a message for each signal that came."""
        to = self.parent if self._receiver is None else self._receiver
        while True:
            await self._came.wait()
            self._came = trio.Event()
            while self._pending:
                number = next(iter(self._pending))
                # Read the count after the wait: signals that come meanwhile are counted in the same
                # message.
                await self._meta.wait_for_room(to)
                self._told += 1
                self.send(to, SignalReceived(self.id, _known(number), self._pending.pop(number)))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The taken signals, and the number of messages."""
        return {"signals": " ".join(map(_name, self._wanted)), "told": str(self._told)}

    def _signalled(self, number: int) -> None:
        """Runs anywhere, even inside the scheduler: so it does only what any thread may do."""
        try:
            self._meta.router.bridge.post(self._note, number)
        except NodeStoppedError:  # the handlers are about to be restored
            return

    def _note(self, number: int) -> None:
        self._pending[number] = self._pending.get(number, 0) + 1
        self._came.set()


class _Taken:
    """Signals that are taken for a while, and their former handlers."""

    def __init__(self, owner: Alias, tell: Callable[[int], None]) -> None:
        self.owner = owner
        self._tell = tell
        self._before: dict[int, Any] = {}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. The handler is an object of this class, so that a second taker
        recognises it.
        """
        self._tell(number)

    def take(self, number: int) -> None:
        before = signal.getsignal(number)
        if isinstance(before, _Taken):
            raise NotAllowedError(
                f"{_name(number)} belongs to {before.owner}; let its receiver pass the message on"
            )
        try:
            signal.signal(number, self)
        except ValueError:
            raise NotAllowedError(
                "signals can be taken in the main thread only; run this node there, or this "
                "meta-process on a node that does"
            ) from None
        self._before[number] = before

    def close(self) -> None:
        """Restore the former handlers, except where another handler was installed since."""
        for number, before in self._before.items():
            if signal.getsignal(number) is self:
                # None stands for a handler that was not installed from Python, and that Python
                # cannot restore.
                signal.signal(number, signal.SIG_DFL if before is None else before)
        self._before = {}


def _known(number: int) -> signal.Signals | int:
    try:
        return signal.Signals(number)
    except ValueError:  # between SIGRTMIN and SIGRTMAX
        return number


def _name(number: int) -> str:
    known = _known(number)
    return known.name if isinstance(known, signal.Signals) else f"signal {known}"


def _nothing() -> None:
    """Nothing to unblock: the reader of signals is a task, and is cancelled."""


show_public_names(__name__)
show_members(Signals)
