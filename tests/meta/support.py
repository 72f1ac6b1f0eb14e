"""The private parts of meta-processes and their sockets that tests look at."""

import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ergo_py._core.metas.meta import Meta
from ergo_py.meta.programs import process_groups as process_groups_module
from ergo_py.meta.sockets.streams.writer import Output

__all__ = [
    "connection_options",
    "connections_of",
    "connections_under_way",
    "drains_of",
    "has_searched_mailbox",
    "has_unfinished_frame",
    "has_unfinished_record",
    "hold_ends_of_drains",
    "is_closing",
    "is_half_closed",
    "is_held_up",
    "is_parked",
    "look_at_clock",
    "look_at_close",
    "meta_of",
    "pause_after",
    "process_groups",
    "queue_of",
    "read_size",
    "receiver_of",
    "replace_logger",
    "replace_process_groups",
    "replace_queue",
    "replace_sending",
    "set_cause",
    "set_read_size",
    "signal_comes",
    "socket_of",
    "wait_at_receiver",
    "wait_for_backlog",
    "waits_to_close",
]


def signal_comes(signals: Any, number: int) -> None:
    """Call the signal handler of ``ergo_py.run``."""
    signals._came(number, None)


def process_groups() -> dict[int, None]:
    """The process groups that are killed when this program is left."""
    return process_groups_module._groups


def replace_process_groups(monkeypatch: pytest.MonkeyPatch, groups: dict[int, None]) -> None:
    """Let these be the process groups that are killed when this program is left."""
    monkeypatch.setattr(process_groups_module, "_groups", groups)


def meta_of(behaviour: Any) -> Meta:
    """The kernel's side of a meta-process, from its behaviour."""
    meta: Meta = behaviour._meta
    return meta


def replace_logger(behaviour: Any, logger: object) -> None:
    """Let a meta-process log to this object. Its node builds log lines even without an output."""
    behaviour._meta.kernel.log._write = lambda *_line: True
    behaviour._meta._logger = logger


def queue_of(outbox: Any) -> deque[Any]:
    """The messages of a reader that the loop has not yet taken."""
    queue: deque[Any] = outbox._queue
    return queue


def replace_queue(outbox: Any, queue: deque[Any]) -> None:
    """Let a reader put its messages in this queue."""
    outbox._queue = queue


def wait_for_backlog(outbox: Any) -> None:
    """Wait as a reader's thread does at a full queue."""
    outbox._wait()


def wait_at_receiver(outbox: Any, receiver: object) -> None:
    """Wait as a reader's thread does at a receiver that is behind."""
    outbox._wait_at(receiver)


def is_parked(outbox: Any) -> bool:
    """Whether the reader's thread really waits, and does not merely intend to."""
    waits = outbox._waits
    return waits is not None and waits._lock.locked()


def connections_of(server: Any) -> list[Any]:
    """The connections of a server that are open, oldest first."""
    return list(server._open)


def connections_under_way(server: Any) -> int:
    """The accepted connections that still wait for their meta-processes."""
    return len(server._births.under_way)


def drains_of(server: Any) -> int:
    """How many callers wait, or have waited, for the end of all connections of a server."""
    return len(server._closing.drains)


def hold_ends_of_drains(server: Any) -> list[Callable[[], None]]:
    """Let the test say when the time of a drain of a server is over: the list gets a function for
    each whose time is over.
    """
    end, held = server._end_drain, list[Callable[[], None]]()
    server._end_drain = lambda caller: held.append(partial(end, caller))
    return held


def pause_after(server: Any, error: OSError) -> float:
    """The seconds that a server waits after an ``accept`` that failed with this error."""
    pause: float = server._acceptor.pause_after(error)
    return pause


def socket_of(bridge: Any) -> socket.socket:
    """The socket of a server, a connection or a UDP socket."""
    sock: socket.socket = bridge._socket
    return sock


def connection_options(connection: Any) -> Any:
    """The options of a connection, as they are now."""
    return connection._options


def look_at_clock(connection: Any) -> None:
    """Let a connection look now whether a time limit of it is over."""
    connection._deadlines.check()


def look_at_close(connection: Any) -> None:
    """Let a connection that is closing look now whether its peer has taken too long."""
    connection._shutdown.look()


def set_cause(connection: Any, cause: Any) -> None:
    """Let a connection end for this cause, whatever comes later."""
    connection._shutdown.set_cause(cause)


def is_closing(connection: Any) -> bool:
    """Whether a connection was told to close, and has come to that."""
    closing: bool = connection._writer.is_closing
    return closing


def waits_to_close(connection: Any) -> bool:
    """Whether a close is under way, or waits behind unsent data."""
    return connection._shutdown._close_waits is not None


def has_searched_mailbox(connection: Any) -> bool:
    """Whether a connection with a slow peer has looked for a close among its messages."""
    return connection._shutdown._looked_at is not None


def is_half_closed(connection: Any) -> bool:
    """Whether a connection has closed its half."""
    return connection._writer.state is Output.HALF_CLOSED


def is_held_up(connection: Any) -> bool:
    """Whether a connection reads nothing because its receiver is behind."""
    held_up: bool = connection._reader.is_held_up()
    return held_up


def has_unfinished_frame(connection: Any) -> bool:
    """Whether a connection has read a part of a frame."""
    return bool(connection._input.unfinished)


def has_unfinished_record(connection: Any) -> bool:
    """Whether a connection with TLS has read a part of a record."""
    return bool(connection._tls.session.unfinished)


def read_size(connection: Any) -> int:
    """The bytes that a connection reads at once."""
    size: int = connection._input.size
    return size


def set_read_size(connection: Any, size: int) -> None:
    """Let a connection read so many bytes at once."""
    connection._input.size = size


def replace_sending(connection: Any, send: Callable[..., int]) -> Callable[..., int]:
    """Let a connection write to its socket with this function; returns the function before."""
    before: Callable[..., int] = connection._writer._send
    connection._writer._send = send
    return before


def receiver_of(connection: Any) -> Any:
    """The process that a connection hands its messages to."""
    return connection._reader._target
