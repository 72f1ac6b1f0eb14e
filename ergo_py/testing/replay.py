"""`Tape` and `Replay`: record the messages of a meta-process, and replay them without the socket,
the program or the file.
"""

import dataclasses
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

import trio

from .._core.tables.pending_calls import Caller
from .._core.verbs.behaviour import Behaviour
from .._core.verbs.meta_process import MetaProcess
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.ids import PID, Alias, Target
from .._core.vocabulary.options import check_number
from .wrappers import GO_ON, before, subclass

__all__ = ["Replay", "Tape", "recording"]

B = TypeVar("B", bound=Behaviour)


@dataclass(frozen=True, slots=True)
class Recording:
    """The messages of a meta-process, in order, with the time between them."""

    messages: tuple[Any, ...]
    """With ``Replay.ME`` in place of its own alias."""
    gaps: tuple[float, ...]
    """Seconds before each message, by the clock of the loop."""

    def save(self, path: str | Path) -> None:
        """Write it to a file."""
        Path(path).write_bytes(pickle.dumps(self))

    @staticmethod
    def load(path: str | Path) -> "Recording":
        """Read a recording from a file that :meth:`save` has written. Only from a file you trust:
        it is a pickle, which may run code.

        Raises:
            BadInputError: the file contains something else.
        """
        loaded = pickle.loads(Path(path).read_bytes())
        if not isinstance(loaded, Recording):
            raise BadInputError("Replay.Recording.load(path)", path, "a file that save has written")
        return loaded


class Tape:
    """Records every message from meta-processes to processes of a class."""

    def __init__(self) -> None:
        self._tracks: dict[Alias, list[tuple[float, Any]]] = {}

    def recording(self, behaviour: type[B]) -> type[B]:
        """Make a subclass that records on this tape the messages of meta-processes, and otherwise
        behaves like the original.

        Spawn it in place of the original while the real source is there, and save
        ``tape.of(alias)``.
        """

        def hook(_: object, __: str, args: tuple[Any, ...]) -> object:
            message, sender = args
            if isinstance(sender, Alias):
                self.note(sender, message)
            return GO_ON

        return subclass(behaviour, ("handle_message",), before(hook))

    @property
    def aliases(self) -> list[Alias]:
        """The recorded meta-processes, in the order of their first message."""
        return list(self._tracks)

    def of(self, alias: Alias) -> Recording:
        """The recording of a meta-process.

        Raises:
            BadInputError: it sent no message.
        """
        track = self._tracks.get(alias)
        if track is None:
            raise BadInputError(
                "tape.of(alias)", alias, f"one of the recorded meta-processes: {self.aliases}"
            )
        moments = [track[0][0], *(moment for moment, _ in track)]
        gaps = tuple(later - earlier for earlier, later in pairwise(moments))
        return Recording(tuple(with_alias(message, alias, Replay.ME) for _, message in track), gaps)

    def note(self, alias: Alias, message: object) -> None:
        """Record a message."""
        self._tracks.setdefault(alias, []).append((trio.current_time(), message))


def recording(behaviour: type[B], tape: Tape) -> type[B]:
    """The old name of `Tape.recording`."""
    return tape.recording(behaviour)


class Replay(MetaProcess):
    """Sends recorded messages to its owner, in place of a socket, a program or a file, and keeps
    the messages it receives.

    Args:
        messages: the messages to send: a ``Replay.Recording``, or messages in which ``Replay.ME``
            stands for this meta-process.
        gap: seconds before each message, by the clock of the loop; None for the gaps of the
            recording.
        receiver: the receiver; by default the owner.
        answer: called with the request of each call to it. Without it, calls are answered with
            None.
        then: after the last message: ``stay``, like an open connection, or ``end``.
    """

    ME: Final = Alias("me", 0, 0)
    """Stands, in recorded messages, for the meta-process itself, which inserts its own alias."""
    Recording: TypeAlias = Recording

    kind = "replay"

    def __init__(
        self,
        messages: "Iterable[object] | Recording",
        *,
        gap: float | None = None,
        receiver: Target | None = None,
        answer: Callable[[Any], object] | None = None,
        then: Literal["stay", "end"] = "stay",
    ) -> None:
        if gap is not None:
            check_number("gap", gap, least=0.0)
        if then not in ("stay", "end"):
            raise BadInputError("then", then, "'stay' or 'end'")
        given = messages if isinstance(messages, Recording) else Recording(tuple(messages), ())
        self._messages: Sequence[object] = given.messages
        recorded = given.gaps if gap is None else ()
        self._gaps: Sequence[float] = recorded or (gap or 0.0,) * len(given.messages)
        self._receiver = receiver
        self._answer = answer
        self._then = then
        self.sent: int = 0
        """The number of messages sent."""
        self.received: list[Any] = []
        """The messages and requests received, in order."""
        self.senders: list[PID | Alias] = []
        """The sender of each of them."""

    async def start(self) -> None:
        """Send the recorded messages."""
        to = self.parent if self._receiver is None else self._receiver
        for gap, message in zip(self._gaps, self._messages, strict=True):
            if gap:
                await trio.sleep(gap)
            self.sent += 1
            await self.send_wait(to, with_alias(message, self.ME, self.id))
        if self._then == "stay":
            await trio.sleep_forever()

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        """Keep a message."""
        self.received.append(message)
        self.senders.append(sender)

    async def handle_call(self, request: object, caller: Caller) -> object:
        """Keep a request, and answer it."""
        self.received.append(request)
        self.senders.append(caller.pid)
        return None if self._answer is None else self._answer(request)


def with_alias(message: object, old: Alias, new: Alias) -> object:
    """Replace an alias in a message: the message itself, a field of a dataclass, or an item of a
    tuple or list.
    """
    if message == old and isinstance(message, Alias):
        return new
    if dataclasses.is_dataclass(message) and not isinstance(message, type):
        changes = {
            field.name: changed
            for field in dataclasses.fields(message)
            if field.init
            and (changed := with_alias(value := getattr(message, field.name), old, new))
            is not value
        }
        return dataclasses.replace(message, **changes) if changes else message
    if isinstance(message, tuple | list) and type(message) in (tuple, list):
        changed = [with_alias(item, old, new) for item in message]
        if any(item is not original for item, original in zip(changed, message, strict=True)):
            return type(message)(changed)
    return message
