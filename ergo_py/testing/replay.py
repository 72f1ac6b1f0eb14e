"""Recorded input: note what a meta-process sends, and have it sent again without the socket, the
program or the file.
"""

import dataclasses
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import trio

from .._core.tables.pending_calls import Caller
from .._core.verbs.behaviour import Behaviour
from .._core.verbs.meta_process import MetaProcess
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.ids import PID, Alias, Target
from .._core.vocabulary.options import check_number
from .wrappers import GO_ON, before, subclass

__all__ = ["ME", "Recording", "Replay", "Tape", "recording"]

B = TypeVar("B", bound=Behaviour)

ME: Final = Alias("me", 0, 0)
"""Stands, in recorded messages, for the meta-process itself: ``Replay`` puts its own alias there.
"""


@dataclass(frozen=True, slots=True)
class Recording:
    """What one meta-process has sent, in order, with the time between."""

    messages: tuple[Any, ...]
    """With ``ME`` wherever its own alias was."""
    gaps: tuple[float, ...]
    """Seconds before each, by the clock of the loop."""

    def save(self, path: str | Path) -> None:
        """Write it to a file."""
        Path(path).write_bytes(pickle.dumps(self))

    @staticmethod
    def load(path: str | Path) -> "Recording":
        """Read it from a file that :meth:`save` has written. Only from one you trust: it is a
        pickle, which may run code.

        Raises:
            BadInputError: there is something else in the file.
        """
        loaded = pickle.loads(Path(path).read_bytes())
        if not isinstance(loaded, Recording):
            raise BadInputError(
                "Recording.load(path)", path, "a file that Recording.save has written"
            )
        return loaded


class Tape:
    """What ``recording`` notes: everything that meta-processes have sent to processes of one class."""

    def __init__(self) -> None:
        self._tracks: dict[Alias, list[tuple[float, Any]]] = {}

    @property
    def aliases(self) -> list[Alias]:
        """Who was heard, in the order of the first message."""
        return list(self._tracks)

    def of(self, alias: Alias) -> Recording:
        """What one of them has sent.

        Raises:
            BadInputError: it was not heard.
        """
        track = self._tracks.get(alias)
        if track is None:
            raise BadInputError(
                "tape.of(alias)", alias, f"one of those that were heard: {self.aliases}"
            )
        moments = [track[0][0], *(moment for moment, _ in track)]
        gaps = tuple(later - earlier for earlier, later in pairwise(moments))
        return Recording(tuple(with_alias(message, alias, ME) for _, message in track), gaps)

    def note(self, alias: Alias, message: object) -> None:
        """Note a message."""
        self._tracks.setdefault(alias, []).append((trio.current_time(), message))


def recording(behaviour: type[B], tape: Tape) -> type[B]:
    """A subclass that notes on a tape what meta-processes send to it, and otherwise is the
    original.

    Spawn it in place of the original while the real thing is there, and save ``tape.of(alias)``.
    """

    def hook(_: Any, __: str, args: tuple[Any, ...]) -> object:
        message, sender = args
        if isinstance(sender, Alias):
            tape.note(sender, message)
        return GO_ON

    return subclass(behaviour, ("handle_message",), before(hook))


class Replay(MetaProcess):
    """Sends recorded messages to its owner, in place of a socket, a program or a file, and keeps
    what it is sent.

    Args:
        messages: what to send: a :class:`Recording`, or messages, in which ``ME`` stands for this
            meta-process.
        gap: seconds before each message, by the clock of the loop; for a recording None means as it
            was.
        receiver: who gets them; by default the owner.
        answer: called with the request of each call to it. Without it, calls are answered with
            None.
        then: what to do after the last message: ``stay``, as a connection does that is open, or
            ``end``.
    """

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
        self.sent = 0
        """How many messages have gone out."""
        self.received: list[Any] = []
        """The messages and requests that came, in order."""
        self.senders: list[PID | Alias] = []
        """Who sent each of them."""

    async def start(self) -> None:
        """Send what was recorded."""
        to = self.parent if self._receiver is None else self._receiver
        for gap, message in zip(self._gaps, self._messages, strict=True):
            if gap:
                await trio.sleep(gap)
            self.sent += 1
            await self.send_wait(to, with_alias(message, ME, self.id))
        if self._then == "stay":
            await trio.sleep_forever()

    async def handle_message(self, message: Any, sender: PID | Alias) -> None:
        """Keep it."""
        self.received.append(message)
        self.senders.append(sender)

    async def handle_call(self, request: Any, caller: Caller) -> object:
        """Keep it, and answer."""
        self.received.append(request)
        self.senders.append(caller.pid)
        return None if self._answer is None else self._answer(request)


def with_alias(message: Any, old: Alias, new: Alias) -> Any:
    """A message with another alias where the old one was: itself, in a field of a dataclass, or in
    a tuple or list.
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
        changed = [with_alias(one, old, new) for one in message]
        if any(one is not other for one, other in zip(changed, message, strict=True)):
            return type(message)(changed)
    return message
