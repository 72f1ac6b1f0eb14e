"""The data of the server, and the commands that work on it: plain functions, no process and no waiting."""

import heapq
import time
from collections import deque
from collections.abc import Callable, Sequence

from .resp import NIL, OK, Command, array, bulk, error, integer

__all__ = ["CommandError", "Database"]

Value = bytes | deque[bytes]


class CommandError(Exception):
    """The command is refused; the text is the reply."""


_NOT_AN_INTEGER = "ERR value is not an integer or out of range"
_LARGEST = 2**63 - 1
_WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


def _number(text: bytes) -> int:
    if len(text) > 20 or not text.removeprefix(b"-").isdigit():
        raise CommandError(_NOT_AN_INTEGER)
    return _checked(int(text), _NOT_AN_INTEGER)


def _checked(number: int, refusal: str) -> int:
    """The number, if 64 bits can hold it."""
    if not -_LARGEST - 1 <= number <= _LARGEST:
        raise CommandError(refusal)
    return number


class Database:
    """Keys with their values: strings and lists. A key may have a deadline, after which it is gone."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.values: dict[bytes, Value] = {}
        self.deadlines: dict[bytes, float] = {}
        self.due: list[tuple[float, bytes]] = []
        """A heap of deadlines. An entry that differs from ``deadlines`` is void."""
        self.pushed: dict[bytes, None] = {}
        """Lists that got elements since somebody looked here last."""

    def execute(self, commands: Sequence[Command]) -> list[bytes]:
        """Execute commands in order, up to the first that is not known here; return a reply for each."""
        replies: list[bytes] = []
        for name, *words in commands:
            known = COMMANDS.get(name.upper())
            if known is None:
                break
            function, least, most = known
            if not least <= len(words) <= most:
                replies.append(error(f"ERR wrong number of arguments for '{name.decode(errors='replace')}' command"))
                continue
            try:
                replies.append(function(self, *words))
            except CommandError as refusal:
                replies.append(error(str(refusal)))
        return replies

    # -- keys ----------------------------------------------------------------------------------------------------------

    def find(self, key: bytes) -> Value | None:
        if self.deadlines and (deadline := self.deadlines.get(key)) is not None and deadline <= self.now():
            self.remove(key)
        return self.values.get(key)

    def remove(self, key: bytes) -> bool:
        self.deadlines.pop(key, None)
        return self.values.pop(key, None) is not None

    def remove_expired(self) -> None:
        while self.due and self.due[0][0] <= self.now():
            deadline, key = heapq.heappop(self.due)
            if self.deadlines.get(key) == deadline:
                self.remove(key)

    def set_deadline(self, key: bytes, seconds: float) -> None:
        self.deadlines[key] = deadline = self.now() + seconds
        heapq.heappush(self.due, (deadline, key))

    def delete(self, *keys: bytes) -> bytes:
        return integer(sum(self.find(key) is not None and self.remove(key) for key in keys))

    def exists(self, *keys: bytes) -> bytes:
        return integer(sum(self.find(key) is not None for key in keys))

    def expire(self, key: bytes, amount: bytes, unit: float = 1.0) -> bytes:
        if self.find(key) is None:
            return integer(0)
        self.set_deadline(key, _number(amount) * unit)
        return integer(1)

    def ttl(self, key: bytes, unit: float = 1.0) -> bytes:
        if self.find(key) is None:
            return integer(-2)
        deadline = self.deadlines.get(key)
        return integer(-1 if deadline is None else round((deadline - self.now()) / unit))

    def type(self, key: bytes) -> bytes:
        value = self.find(key)
        return b"+none\r\n" if value is None else b"+string\r\n" if isinstance(value, bytes) else b"+list\r\n"

    def flush(self, *_: bytes) -> bytes:
        for table in (self.values, self.deadlines, self.due):
            table.clear()
        return OK

    # -- strings -------------------------------------------------------------------------------------------------------

    def string(self, key: bytes) -> bytes | None:
        value = self.find(key)
        if isinstance(value, deque):
            raise CommandError(_WRONG_TYPE)
        return value

    def get(self, key: bytes) -> bytes:
        return bulk(self.string(key))

    def set(self, key: bytes, value: bytes, *options: bytes) -> bytes:
        seconds, words = None, [option.upper() for option in options]
        while words:
            match words.pop(0):
                case (b"EX" | b"PX") as unit if words and seconds is None:
                    seconds = _number(words.pop(0)) * (1.0 if unit == b"EX" else 0.001)
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
            self.set_deadline(key, seconds)
        return OK

    def increase(self, key: bytes, amount: bytes = b"1", sign: int = 1) -> bytes:
        total = _number(self.string(key) or b"0") + sign * _number(amount)
        _checked(total, "ERR increment or decrement would overflow")
        self.values[key] = b"%d" % total
        return integer(total)

    # -- lists ---------------------------------------------------------------------------------------------------------

    def elements(self, key: bytes) -> deque[bytes] | None:
        value = self.find(key)
        if isinstance(value, bytes):
            raise CommandError(_WRONG_TYPE)
        return value

    def push(self, key: bytes, *values: bytes, left: bool) -> bytes:
        elements = self.elements(key)
        if elements is None:
            elements = self.values[key] = deque()
        (elements.extendleft if left else elements.extend)(values)
        self.pushed[key] = None
        return integer(len(elements))

    def take(self, key: bytes, left: bool) -> bytes | None:
        elements = self.elements(key)
        if not elements:
            return None
        value = elements.popleft() if left else elements.pop()
        if not elements:
            self.remove(key)
        return value

    def range(self, key: bytes, first: bytes, last: bytes) -> bytes:
        values = list(self.elements(key) or ())
        begin, end = (n + len(values) if n < 0 else n for n in (_number(first), _number(last)))
        return array(bulk(value) for value in values[max(begin, 0) : max(end + 1, 0)])


ANY = 1 << 20
COMMANDS: dict[bytes, tuple[Callable[..., bytes], int, int]] = {
    b"GET": (Database.get, 1, 1),
    b"SET": (Database.set, 2, ANY),
    b"INCR": (Database.increase, 1, 1),
    b"INCRBY": (Database.increase, 2, 2),
    b"DECR": (lambda data, key: data.increase(key, sign=-1), 1, 1),
    b"DECRBY": (lambda data, key, amount: data.increase(key, amount, sign=-1), 2, 2),
    b"DEL": (Database.delete, 1, ANY),
    b"EXISTS": (Database.exists, 1, ANY),
    b"TYPE": (Database.type, 1, 1),
    b"EXPIRE": (Database.expire, 2, 2),
    b"PEXPIRE": (lambda data, key, amount: data.expire(key, amount, 0.001), 2, 2),
    b"TTL": (Database.ttl, 1, 1),
    b"PTTL": (lambda data, key: data.ttl(key, 0.001), 1, 1),
    b"FLUSHALL": (Database.flush, 0, 1),
    b"DBSIZE": (lambda data: integer(len(data.values)), 0, 0),
    b"LPUSH": (lambda data, key, *values: data.push(key, *values, left=True), 2, ANY),
    b"RPUSH": (lambda data, key, *values: data.push(key, *values, left=False), 2, ANY),
    b"LPOP": (lambda data, key: bulk(data.take(key, left=True)), 1, 1),
    b"RPOP": (lambda data, key: bulk(data.take(key, left=False)), 1, 1),
    b"LLEN": (lambda data, key: integer(len(data.elements(key) or ())), 1, 1),
    b"LRANGE": (Database.range, 3, 3),
}
