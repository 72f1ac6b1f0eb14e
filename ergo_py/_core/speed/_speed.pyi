"""The C extension, as type checkers see it. `speed.h` describes its files."""

from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, Literal

from ..tables import timers
from ..tables.pending_calls import Caller
from ..vocabulary.envelopes import Envelope

INTERFACE: Final[int]

# Not a deque, but all that the package does with the deque of a main lane.
class MainLane(deque[Envelope]):
    def __init__(self) -> None: ...

# Not a list, but all that `Timers` does with the list of a heap.
class TimerHeap(timers.TimerHeap):
    def __init__(self) -> None: ...

class Batch:
    def run(
        self,
    ) -> Envelope | tuple[Awaitable[object], Caller] | Awaitable[object] | Literal[True] | None: ...
    def serve_in_place(self) -> bool | None: ...
    def is_over(self) -> bool: ...
    def start(self) -> None: ...
    def restart(self) -> None: ...
    def begin_turn(self) -> bool: ...
    def end_turn(self) -> None: ...

def batch(
    process: object,
    turn: object,
    mailbox: object,
    lane: deque[Envelope],
    handle_message: Callable[[Any, Any], Any],
    message_is_async: bool,
    handle_call: Callable[[Any, Any], Any],
    call_is_async: bool,
    event_is_plain: bool,
    burst: int,
    seen: object,
    unmatched: object,
    /,
) -> Batch: ...

class DatagramReader:
    def __init__(
        self, message_type: type, alias: object, most: int, peer_of: Callable[[Any], object], /
    ) -> None: ...
    def read(self, descriptor: int, most: int, waits: bool, /) -> tuple[list[Any], int, int]: ...

class BufferQueue:
    def __init__(self) -> None: ...
    def fileno(self) -> int: ...
    def pop(self) -> tuple[Callable[[], None], bool] | None: ...

class StreamBuffer:
    def __init__(self, queue: BufferQueue, callback: Callable[[], None], /) -> None: ...
    def read(self, descriptor: int, size: int, /) -> bool: ...
    def take(self, size: int, /) -> bytes: ...
    def end(self) -> None: ...

def bind(objects: dict[str, Any], /) -> None: ...
def bind_streams(objects: dict[str, Any], /) -> None: ...
def short_cut(
    calls: object,
    process: object,
    sender: object,
    to: object,
    request: object,
    priority: object,
    /,
) -> Any: ...
def trace_verb(
    name: str,
    variable: ContextVar[Any],
    behaviour: object,
    function: Callable[..., Any],
    /,
) -> Callable[..., Any]: ...
def method(owner: type, name: str, /) -> Any: ...
