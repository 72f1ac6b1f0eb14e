"""The data of the server, and the commands that work on it: plain functions, no process and no
waiting.
"""

import heapq
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .resp import NIL, OK, Command, array, bulk, error, integer

__all__ = ["CommandError", "Database"]

INTEGERS = range(-(2**63), 2**63)


class CommandError(Exception):
    """The command is refused; the text is the reply."""


def number(text: bytes) -> int:
    if len(text) > 20 or not text.removeprefix(b"-").isdigit() or int(text) not in INTEGERS:
        raise CommandError("ERR value is not an integer or out of range")
    return int(text)


class Database:
    """Keys with their values: strings and lists. A key may have a deadline; then it is gone."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.values: dict[bytes, bytes | deque[bytes]] = {}
        self.deadlines: dict[bytes, float] = {}
        self.due: list[tuple[float, bytes]] = []
        """A heap of deadlines. An entry that differs from ``deadlines`` is void."""
        self.pushed: dict[bytes, None] = {}
        """Lists that got elements since the store last looked."""

    def execute(self, commands: Sequence[Command]) -> list[bytes]:
        """Execute commands in order, up to the first that is not known here; return a reply for
        each.
        """
        replies: list[bytes] = []
        for name, *words in commands:
            if (known := COMMANDS.get(name.upper())) is None:
                break
            function, least, most = known
            try:
                if not least <= len(words) <= most:
                    raise CommandError(
                        f"ERR wrong number of arguments for '{name.decode(errors='replace')}' "
                        "command"
                    )
                replies.append(function(self, *words))
            except CommandError as refusal:
                replies.append(error(str(refusal)))
        return replies

    # -- keys --------------------------------------------------------------------------------------

    def find(self, key: bytes, kind: type[object] = object) -> Any:
        """The value of a key, which has to be of that kind; or None."""
        if key in self.deadlines and self.deadlines[key] <= self.now():
            self.remove(key)
        value = self.values.get(key)
        if value is not None and not isinstance(value, kind):
            raise CommandError("WRONGTYPE Operation against a key holding the wrong kind of value")
        return value

    def remove(self, key: bytes) -> bool:
        self.deadlines.pop(key, None)
        return self.values.pop(key, None) is not None

    def remove_expired(self) -> None:
        while self.due and self.due[0][0] <= self.now():
            deadline, key = heapq.heappop(self.due)
            if self.deadlines.get(key) == deadline:
                self.remove(key)

    def expire(self, key: bytes, seconds: float) -> bytes:
        if self.find(key) is None:
            return integer(0)
        self.deadlines[key] = deadline = self.now() + seconds
        heapq.heappush(self.due, (deadline, key))
        return integer(1)

    def ttl(self, key: bytes) -> bytes:
        if self.find(key) is None:
            return integer(-2)
        return integer(round(self.deadlines[key] - self.now()) if key in self.deadlines else -1)

    def flush(self, *_: bytes) -> bytes:
        for table in (self.values, self.deadlines, self.due):
            table.clear()
        return OK

    # -- strings -----------------------------------------------------------------------------------

    def set(self, key: bytes, value: bytes, *options: bytes) -> bytes:
        seconds, words = None, [option.upper() for option in options]
        while words:
            match words.pop(0):
                case (b"EX" | b"PX") as unit if words and seconds is None:
                    seconds = number(words.pop(0)) / (1 if unit == b"EX" else 1000)
                    if seconds <= 0:
                        raise CommandError("ERR invalid expire time in 'set' command")
                case (b"NX" | b"XX") as condition:
                    if (self.find(key) is None) != (condition == b"NX"):
                        return NIL
                case _:
                    raise CommandError("ERR syntax error")
        self.values[key] = value
        self.deadlines.pop(key, None)
        if seconds is not None:
            self.expire(key, seconds)
        return OK

    def increase(self, key: bytes, amount: bytes = b"1") -> bytes:
        total = number(self.find(key, bytes) or b"0") + number(amount)
        if total not in INTEGERS:
            raise CommandError("ERR increment or decrement would overflow")
        self.values[key] = b"%d" % total
        return integer(total)

    # -- lists -------------------------------------------------------------------------------------

    def elements(self, key: bytes) -> deque[bytes]:
        return self.find(key, deque) or deque()

    def push(self, key: bytes, *values: bytes, left: bool) -> bytes:
        self.values[key] = elements = self.elements(key)
        (elements.extendleft if left else elements.extend)(values)
        self.pushed[key] = None
        return integer(len(elements))

    def take(self, key: bytes, left: bool) -> bytes | None:
        if not (elements := self.elements(key)):
            return None
        value = elements.popleft() if left else elements.pop()
        if not elements:
            self.remove(key)
        return value

    def range(self, key: bytes, first: bytes, last: bytes) -> bytes:
        values = list(self.elements(key))
        begin, end = (n + len(values) if n < 0 else n for n in (number(first), number(last)))
        return array(bulk(value) for value in values[max(begin, 0) : max(end + 1, 0)])


ANY = 1 << 20
COMMANDS: dict[bytes, tuple[Callable[..., bytes], int, int]] = {
    b"GET": (lambda data, key: bulk(data.find(key, bytes)), 1, 1),
    b"SET": (Database.set, 2, ANY),
    b"INCR": (Database.increase, 1, 1),
    b"INCRBY": (Database.increase, 2, 2),
    b"DEL": (
        lambda data, *keys: integer(
            sum(data.find(key) is not None and data.remove(key) for key in keys)
        ),
        1,
        ANY,
    ),
    b"EXISTS": (
        lambda data, *keys: integer(sum(data.find(key) is not None for key in keys)),
        1,
        ANY,
    ),
    b"EXPIRE": (lambda data, key, amount: data.expire(key, number(amount)), 2, 2),
    b"PEXPIRE": (lambda data, key, amount: data.expire(key, number(amount) / 1000), 2, 2),
    b"TTL": (Database.ttl, 1, 1),
    b"FLUSHALL": (Database.flush, 0, 1),
    b"LPUSH": (lambda data, key, *values: data.push(key, *values, left=True), 2, ANY),
    b"RPUSH": (lambda data, key, *values: data.push(key, *values, left=False), 2, ANY),
    b"LPOP": (lambda data, key: bulk(data.take(key, left=True)), 1, 1),
    b"RPOP": (lambda data, key: bulk(data.take(key, left=False)), 1, 1),
    b"LLEN": (lambda data, key: integer(len(data.elements(key))), 1, 1),
    b"LRANGE": (Database.range, 3, 3),
}
