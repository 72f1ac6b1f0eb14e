"""The process that owns the data."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ergo_py import NO_REPLY, PID, Actor, Caller, Request

from .database import CommandError, Database
from .resp import Command, array, bulk, error

__all__ = ["Execute", "Pop", "Store"]


@dataclass
class Execute(Request[list[bytes]]):
    """Execute commands in order, up to the first that the store does not know. The answer: their
    replies.
    """

    commands: Sequence[Command]


@dataclass
class Pop(Request[bytes]):
    """Take the first element of the first list that is not empty, or wait for one. The answer is
    the reply.
    """

    keys: list[bytes]


class Store(Actor):
    """Executes commands. The database is an argument, so it survives when a supervisor restarts the
    store.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        database.on_push = self.serve_waiting
        self.waiting: dict[bytes, deque[Caller]] = {}

    def init(self) -> None:
        self.send_every(1.0, self.pid, "tidy up")

    def handle_message(self, message: object, sender: PID) -> None:
        self.database.remove_expired()
        for key, queue in [*self.waiting.items()]:
            self.waiting[key] = deque(caller for caller in queue if not caller.settled)
            if not self.waiting[key]:
                del self.waiting[key]

    def handle_call(self, request: Execute | Pop, caller: Caller) -> object:
        if isinstance(request, Execute):
            return self.database.execute(request.commands)
        return self.pop(request.keys, caller)

    def handle_inspect(self, *items: str) -> dict[str, str]:
        callers = {caller for queue in self.waiting.values() for caller in queue}
        blocked = sum(not caller.settled for caller in callers)
        return {"keys": str(len(self.database.values)), "blocked_clients": str(blocked)}

    def pop(self, keys: list[bytes], caller: Caller) -> object:
        try:
            for key in keys:
                if (value := self.database.take(key, left=True)) is not None:
                    return array([bulk(key), bulk(value)])
        except CommandError as refusal:
            return error(str(refusal))
        for key in keys:
            self.waiting.setdefault(key, deque()).append(caller)
        return NO_REPLY

    def serve_waiting(self, key: bytes) -> None:
        """Give new elements to the callers that wait for them, first come, first served."""
        queue = self.waiting.get(key)
        while queue and (elements := self.database.elements(key)):
            caller = queue.popleft()
            if not caller.settled and self.reply(caller, array([bulk(key), bulk(elements[0])])):
                self.database.take(key, left=True)
