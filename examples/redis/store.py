"""The processes behind the sessions: the store, which owns the data, and the channels of
publish/subscribe.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ergo_py import NO_REPLY, PID, Actor, Caller, Down, Reject, Request, Timer

from .database import CommandError, Database
from .resp import Command

__all__ = ["Channels", "Execute", "Pop", "Store"]


@dataclass
class Execute(Request[list[bytes]]):
    """Execute commands in order, up to the first that the store does not know. The answer: their
    replies.
    """

    commands: Sequence[Command]


@dataclass
class Pop(Request[tuple[bytes, bytes] | None]):
    """Take the first element of the first list that is not empty, or wait. The answer: key and
    element, or None after the time.
    """

    keys: list[bytes]
    seconds: float


@dataclass
class TimeIsUp:
    session: PID


class Sweep:
    """Tells the store to remove keys whose deadline has passed."""


class Store(Actor):
    """Executes commands. The database is an argument, so it survives when a supervisor restarts the
    store.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.waiting: dict[PID, tuple[Caller, set[bytes], Timer | None]] = {}
        self.queues: dict[bytes, dict[PID, None]] = {}
        self.watched: set[PID] = set()

    def init(self) -> None:
        self.send_every(1.0, self.pid, Sweep())

    def handle_message(self, message: object, sender: PID) -> None:
        match message:
            case TimeIsUp(session) if session in self.waiting:
                self.reply(self.dismiss(session), None)
            case Down(PID() as session):
                self.watched.discard(session)
                if session in self.waiting:
                    self.dismiss(session)
            case Sweep():
                self.database.remove_expired()

    def handle_call(self, request: object, caller: Caller) -> object:
        match request, caller.pid:
            case Execute(commands), _:
                replies = self.database.execute(commands)
                if self.database.pushed:
                    self.serve_waiting()
                return replies
            case Pop(keys, seconds), PID() as session:
                return self.pop(keys, seconds, caller, session)
        raise Reject(LookupError(f"no answer to {request!r}"))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"keys": str(len(self.database.values)), "blocked_clients": str(len(self.waiting))}

    def pop(self, keys: list[bytes], seconds: float, caller: Caller, session: PID) -> object:
        """Answer at once, or later: a session waits in at most a single call at a time."""
        try:
            for key in keys:
                if (value := self.database.take(key, left=True)) is not None:
                    return key, value
        except CommandError as error:
            raise Reject(error) from None
        timer = self.send_after(seconds, self.pid, TimeIsUp(session)) if seconds else None
        self.waiting[session] = caller, set(keys), timer
        for key in keys:
            self.queues.setdefault(key, {})[session] = None
        if session not in self.watched:
            self.watched.add(session)
            self.monitor(session)
        return NO_REPLY

    def serve_waiting(self) -> None:
        """Give new elements to the sessions that wait for them, first come, first served."""
        database = self.database
        for key in database.pushed:
            # A later command of the same batch may have removed the list, or set a string in its
            # place.
            while (queue := self.queues.get(key)) and isinstance(database.find(key), deque):
                caller, value = self.dismiss(next(iter(queue))), database.take(key, left=True)
                if value is not None and not self.reply(caller, (key, value)):
                    database.push(key, value, left=True)  # the session has just ended
        database.pushed.clear()

    def dismiss(self, session: PID) -> Caller:
        """Remove a session from the waiting list."""
        caller, keys, timer = self.waiting.pop(session)
        if timer is not None:
            timer.cancel()
        for key in keys:
            del self.queues[key][session]
            if not self.queues[key]:
                del self.queues[key]
        return caller


class Channels(Actor):
    """Owns an event for each channel. When it fails, its events end, and every subscribed session
    is told.
    """

    def __init__(self) -> None:
        self.events: set[str] = set()

    def handle_call(self, request: str, caller: Caller) -> None:
        """Make the event of that name, which any process may publish, unless it exists."""
        if request not in self.events:
            self.register_event(request, open=True)
            self.events.add(request)
