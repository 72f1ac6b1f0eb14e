"""The processes behind the sessions: the store, which owns the data, and the channels of publish and subscribe."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ergo_py import NO_REPLY, PID, Actor, Alias, Caller, Down, Reject, Request, Timer
from ergo_py.meta import TCPSend

from .database import CommandError, Database
from .resp import Command, array, bulk, integer

__all__ = ["Channels", "Execute", "Pop", "Publish", "Store", "Subscribe", "Unsubscribe"]


@dataclass(frozen=True)
class Execute(Request[list[bytes]]):
    """Execute commands in order, up to the first that the store does not know. The answer: their replies."""

    commands: Sequence[Command]


@dataclass(frozen=True)
class Pop(Request[tuple[bytes, bytes] | None]):
    """Take an element of the first list that has one, or wait for one. The answer: key and element, or None after the time."""

    keys: list[bytes]
    left: bool
    seconds: float | None


@dataclass(frozen=True)
class Waiting:
    """A session that waits for an element, and the timer that ends its wait."""

    caller: Caller
    request: Pop
    timer: Timer | None


@dataclass(frozen=True)
class TimeIsUp:
    session: PID


class Sweep:
    """Tells the store to remove keys whose time is over."""


class Store(Actor):
    """Executes commands. The database is an argument, so it survives when a supervisor restarts the store."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.waiting: dict[PID, Waiting] = {}
        self.queues: dict[bytes, dict[PID, None]] = {}
        self.watched: set[PID] = set()

    def init(self) -> None:
        self.send_every(1.0, self.pid, Sweep())

    def handle_message(self, message: object, sender: PID) -> None:
        match message:
            case TimeIsUp(session) if session in self.waiting:
                self.reply(self.dismiss(session).caller, None)
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
            case Pop(), PID() as session:
                return self.pop(request, caller, session)
        raise Reject(LookupError(f"no answer to {request!r}"))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"keys": str(len(self.database.values)), "blocked_clients": str(len(self.waiting))}

    def pop(self, request: Pop, caller: Caller, session: PID) -> object:
        """Answer at once, or later: a session waits in at most one call at a time."""
        try:
            for key in request.keys:
                if (value := self.database.take(key, request.left)) is not None:
                    return key, value
        except CommandError as error:
            raise Reject(error) from None
        timer = self.send_after(request.seconds, self.pid, TimeIsUp(session)) if request.seconds else None
        self.waiting[session] = Waiting(caller, request, timer)
        if session not in self.watched:
            self.watched.add(session)
            self.monitor(session)
        for key in request.keys:
            self.queues.setdefault(key, {})[session] = None
        return NO_REPLY

    def serve_waiting(self) -> None:
        """Hand new elements to the sessions that wait for them, first come, first served."""
        database = self.database
        for key in database.pushed:
            # A later command of the same batch may have removed the list, or set a string in its place.
            while (queue := self.queues.get(key)) and isinstance(database.find(key), deque):
                waiting = self.dismiss(next(iter(queue)))
                left = waiting.request.left
                value = database.take(key, left)
                if value is not None and not self.reply(waiting.caller, (key, value)):
                    database.push(key, value, left=left)  # the session has just ended
        database.pushed.clear()

    def dismiss(self, session: PID) -> Waiting:
        waiting = self.waiting.pop(session)
        if waiting.timer is not None:
            waiting.timer.cancel()
        for key in set(waiting.request.keys):
            del self.queues[key][session]
            if not self.queues[key]:
                del self.queues[key]
        return waiting


# -- publish and subscribe ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subscribe(Request[int]):
    """Listen to channels. The answer: the number of channels that the connection listens to now."""

    connection: Alias
    channels: list[bytes]


@dataclass(frozen=True)
class Unsubscribe(Subscribe):
    """Leave channels, or all of them if none is named."""


@dataclass(frozen=True)
class Publish(Request[int]):
    """Tell a channel. The answer: the number of connections that listen to it."""

    channel: bytes
    payload: bytes


class Channels(Actor):
    """Knows which connection listens to which channel.

    It writes to the connections itself, confirmations as well, so that no message of a channel can overtake its confirmation.
    """

    def __init__(self) -> None:
        self.listeners: dict[bytes, dict[Alias, None]] = {}
        self.sessions: dict[PID, tuple[Alias, dict[bytes, None]]] = {}

    def handle_call(self, request: object, caller: Caller) -> int:
        match request, caller.pid:
            case Publish(channel, payload), _:
                listeners = self.listeners.get(channel, {})
                message = TCPSend(array(map(bulk, (b"message", channel, payload))))
                for connection in listeners:
                    self.send(connection, message)
                return len(listeners)
            case Unsubscribe(connection, channels), PID() as session:
                _, joined = self.sessions.get(session, (connection, {}))
                if not channels and not joined:
                    self.confirm(connection, b"unsubscribe", None, 0)
                for channel in channels or list(joined):
                    self.leave(connection, joined, channel)
                    self.confirm(connection, b"unsubscribe", channel, len(joined))
                return len(joined)
            case Subscribe(connection, channels), PID() as session:
                if session not in self.sessions:
                    self.monitor(session)
                _, joined = self.sessions.setdefault(session, (connection, {}))
                for channel in channels:
                    joined[channel] = self.listeners.setdefault(channel, {})[connection] = None
                    self.confirm(connection, b"subscribe", channel, len(joined))
                return len(joined)
        raise Reject(LookupError(f"no answer to {request!r}"))

    def handle_message(self, message: object, sender: PID) -> None:
        match message:
            case Down(PID() as session):
                connection, joined = self.sessions.pop(session)
                for channel in list(joined):
                    self.leave(connection, joined, channel)

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"channels": str(len(self.listeners)), "listening": str(len(self.sessions))}

    def leave(self, connection: Alias, joined: dict[bytes, None], channel: bytes) -> None:
        if channel in joined:
            del joined[channel], self.listeners[channel][connection]
            if not self.listeners[channel]:
                del self.listeners[channel]

    def confirm(self, connection: Alias, kind: bytes, channel: bytes | None, count: int) -> None:
        self.send(connection, TCPSend(array([bulk(kind), bulk(channel), integer(count)])))
