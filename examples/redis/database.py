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
        self.on_push: Callable[[bytes], None] = lambda _key: None
        """Called after elements were added to a list."""

    def execute(self, commands: Sequence[Command]) -> list[bytes]:
        """Execute commands in order, up to the first that is not known here; return a reply for
        each.
        """
        replies: list[bytes] = []
        for name, *words in commands:
            if (known := COMMANDS.get(name.upper())) is None:
                break
            least, most, function = known
            try:
                if not least <= len(words) <= most:
                    text = name.decode(errors="replace")
                    raise CommandError(f"ERR wrong number of arguments for '{text}' command")
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

    def remove_all(self, *keys: bytes) -> bytes:
        return integer(sum(self.find(key) is not None and self.remove(key) for key in keys))

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

    def clear(self, *_: bytes) -> bytes:
        self.values.clear()
        self.deadlines.clear()
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
        length = len(elements)
        self.on_push(key)
        return integer(length)

    def take(self, key: bytes, left: bool) -> bytes | None:
        elements = self.elements(key)
        value = (elements.popleft() if left else elements.pop()) if elements else None
        if not elements:
            self.remove(key)
        return value

    def range(self, key: bytes, first: bytes, last: bytes) -> bytes:
        values = list(self.elements(key))
        begin, end = (n + len(values) if n < 0 else n for n in (number(first), number(last)))
        return array(map(bulk, values[max(begin, 0) : max(end + 1, 0)]))


ANY = 1 << 20
COMMANDS: dict[bytes, tuple[int, int, Callable[..., bytes]]] = {
    b"GET": (1, 1, lambda data, key: bulk(data.find(key, bytes))),
    b"SET": (2, ANY, Database.set),
    b"INCR": (1, 1, Database.increase),
    b"INCRBY": (2, 2, Database.increase),
    b"DEL": (1, ANY, Database.remove_all),
    b"EXISTS": (1, ANY, lambda data, *keys: integer(sum(data.find(k) is not None for k in keys))),
    b"EXPIRE": (2, 2, lambda data, key, amount: data.expire(key, number(amount))),
    b"PEXPIRE": (2, 2, lambda data, key, amount: data.expire(key, number(amount) / 1000)),
    b"TTL": (1, 1, Database.ttl),
    b"FLUSHALL": (0, 1, Database.clear),
    b"LPUSH": (2, ANY, lambda data, key, *values: data.push(key, *values, left=True)),
    b"RPUSH": (2, ANY, lambda data, key, *values: data.push(key, *values, left=False)),
    b"LPOP": (1, 1, lambda data, key: bulk(data.take(key, left=True))),
    b"RPOP": (1, 1, lambda data, key: bulk(data.take(key, left=False))),
    b"LLEN": (1, 1, lambda data, key: integer(len(data.elements(key)))),
    b"LRANGE": (3, 3, Database.range),
    b"PING": (0, 1, lambda _, text=None: b"+PONG\r\n" if text is None else bulk(text)),
    b"ECHO": (1, 1, lambda _, text: bulk(text)),
    **dict.fromkeys([b"SELECT", b"CLIENT"], (1, ANY, lambda *_: OK)),
    **dict.fromkeys([b"COMMAND", b"CONFIG"], (0, ANY, lambda *_: array([]))),
}
