"""Parts of many tests: a quiet node with a time limit, and actors that a test directs."""

import inspect
import os
import re
import shutil
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from ergo_py import Actor, Caller, Node, Reason, open_node
from ergo_py._core.kernel import Kernel
from ergo_py._core.log import _writer
from ergo_py._core.messaging.router import Router
from ergo_py._core.metas.meta import Meta
from ergo_py._core.processes.process import Process
from ergo_py.entities import SQLite, Store
from ergo_py.entities.active_entities import Keeping
from ergo_py.entities.schedule import Schedule
from ergo_py.entities.stores.threaded import ThreadedStore
from ergo_py.info import BlockedReport, NodeInfo
from ergo_py.meta.programs import process_groups as process_groups_module
from ergo_py.meta.sockets.streams.writer import Output
from ergo_py.testing.leaks import _descriptors

__all__ = [
    "Collected",
    "Failed",
    "Puppet",
    "Recorder",
    "Shielded",
    "Stubborn",
    "THOROUGH",
    "Witness",
    "ask_jetstream",
    "begin_search",
    "block_until_reported",
    "bytes_of_partial_frames",
    "connection_options",
    "connections_of",
    "connections_under_way",
    "counted_messages",
    "crash_sites",
    "cut_ending_short",
    "epoll_of_loop",
    "checkpoint_often",
    "database_setting",
    "fill_file",
    "set_synchronous",
    "found_nodes",
    "has_searched_mailbox",
    "has_unfinished_frame",
    "has_unfinished_record",
    "hop_of",
    "io_of_loop",
    "is_closing",
    "is_half_closed",
    "is_held_up",
    "is_parked",
    "keeping_of",
    "table_sizes",
    "kernel_of",
    "largest_number",
    "last_blocked",
    "let_init_time_out",
    "loggers_of",
    "loopback_of_this_program",
    "look_at_clock",
    "look_at_close",
    "looks_at_mailboxes",
    "meta_of",
    "needs_proc",
    "new_way",
    "open_descriptors",
    "open_files",
    "pause_after",
    "plan_of",
    "process_behind",
    "process_groups",
    "process_of",
    "process_of_ending",
    "publish_to_jetstream",
    "queue_of",
    "read_size",
    "readers_of",
    "receiver_of",
    "refused",
    "relation_tables",
    "replace_key_owners",
    "replace_logger",
    "replace_private",
    "replace_process_groups",
    "replace_queue",
    "replace_router",
    "replace_sending",
    "replace_sink",
    "replace_timer_action",
    "router_of",
    "routes_of",
    "running_node",
    "set_cause",
    "set_read_size",
    "short_directory",
    "signal_comes",
    "sink_of",
    "socket_of",
    "thread_of",
    "timer_action",
    "timers_kept",
    "wait_at_receiver",
    "wait_for_backlog",
    "waiters_of",
    "waiting_for_sockets",
    "waits_to_close",
    "without_blockages",
    "write_log_to_console",
    "write_waiting",
]

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
"""Whether a test may take its time: ``python -m benchmarks test-deep``. Only the number of
tries depends on it.
"""


class Failed(Exception):
    """The error that a test's own actor raises on purpose."""


@asynccontextmanager
async def running_node(
    name: str = "test@localhost", *, limit: float = 60.0, **options: Any
) -> AsyncIterator[Node]:
    """A node without watchdog and without log lines, for at most ``limit`` seconds."""
    settings: dict[str, Any] = {"watchdog": None, "log_output": "none", **options}
    with trio.fail_after(limit):
        async with open_node(name, **settings) as node:
            yield node


class Collected:
    """Stands in for the coroutine of a task. The garbage collector runs when a wake-up makes the
    method `send`, and a finalizer calls `finalize`.
    """

    def __init__(self, task: Any, finalize: Callable[[], object]) -> None:
        self._real: Any = task.coro
        self._finalize: Callable[[], object] | None = finalize
        task.coro = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property
    def send(self) -> Any:
        finalize, self._finalize = self._finalize, None
        if finalize is not None:
            finalize()
        return self._real.send


class Recorder(Actor):
    """Keeps its messages, in order, in a list that the test holds. Only plain callbacks."""

    def __init__(self, heard: list[Any] | None = None) -> None:
        self.heard: list[Any] = [] if heard is None else heard

    def handle_message(self, message: Any, sender: Any) -> None:
        self.heard.append(message)

    def handle_call(self, request: Any, caller: Caller) -> object:
        return list(self.heard)


class Puppet(Actor):
    """Follows orders: a function it is sent or asked runs inside its callback, with the puppet as
    argument.

    Other messages are kept in ``heard``. So a test can say ``await node.call(pid, lambda me:
    me.link(other))``.
    """

    def __init__(self, heard: list[Any] | None = None) -> None:
        self.heard: list[Any] = [] if heard is None else heard

    async def handle_message(self, message: Any, sender: Any) -> None:
        if inspect.isfunction(message):
            await _result(message, self)
        else:
            self.heard.append(message)

    async def handle_call(self, request: Any, caller: Caller) -> object:
        if not inspect.isfunction(request):
            return list(self.heard)
        return await _result(request, self)

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"heard": str(len(self.heard)), **dict.fromkeys(items, "asked")}


class Witness(Puppet):
    """A puppet that notes its end in a list that the test holds."""

    def __init__(self, ends: list[Any], label: object = None) -> None:
        super().__init__()
        self.ends = ends
        self.label = label

    def terminate(self, reason: Reason) -> None:
        self.ends.append(reason if self.label is None else self.label)


class Stubborn(Actor):
    """Never ends by itself: it swallows every exception, cancellation too."""

    async def handle_message(self, message: Any, sender: Any) -> None:
        while True:
            try:
                await trio.sleep(1)
            except BaseException:
                pass


class Shielded(Actor):
    """Waits where no cancellation reaches it."""

    async def handle_message(self, message: Any, sender: Any) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()


def block_until_reported(node: Node, pid: Any) -> NodeInfo | None:
    """Block the loop, in a callback of this process, until the watchdog has said so; returns the
    report of the node.

    None if it did not. It speaks once for each turn of the loop, and may have spoken of a busy
    machine in this turn: try again.
    """
    deadline = time.monotonic() + 5
    while (last := last_blocked(node)) is None or last.process != pid:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.001)
    return node.info()


async def _result(function: Callable[[Any], Any], puppet: Puppet) -> Any:
    result = function(puppet)
    return await result if inspect.iscoroutine(result) else result


def refused(error: type[Exception], verb: Any, match: str | None = None) -> Callable[[Any], Any]:
    """Something for a puppet to do: try the verb, and see it refused."""

    async def attempt(me: Any) -> str:
        with pytest.raises(error, match=match) as caught:
            result = verb(me)
            if result is not None and hasattr(result, "__await__"):
                await result
        return str(caught.value)

    return attempt


needs_proc = pytest.mark.skipif(
    not os.path.exists("/proc/self/stat"), reason="there is no /proc here"
)
"""For a test that looks at threads or programs as the operating system sees them."""

_ROOM: Final = 40
"""Bytes that the path of a directory may have if sockets are to have their place in it; the systems
allow 104 or 108.
"""


@contextmanager
def short_directory() -> Iterator[Path]:
    """A new directory for sockets, with a path that is short however long TMPDIR is."""
    places = [
        place
        for place in (tempfile.gettempdir(), "/tmp", "/var/tmp")
        if len(os.fsencode(place)) <= _ROOM
    ]
    path = Path(tempfile.mkdtemp(prefix="ergo", dir=places[0]))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


_BLOCKAGE: Final = re.compile(
    r"^[\d:]+ \[warning *\] the event loop (?:is blocked|gets no time to run).*\n(?: .*\n)*",
    re.MULTILINE,
)


def without_blockages(logged: str) -> str:
    """The log of a program without the reports of the watchdog, which a busy machine causes."""
    return _BLOCKAGE.sub("", logged)


def open_descriptors() -> set[tuple[int, str]]:
    """The descriptors of this program, each with its kind.

    To see that nothing was left open ask for ``open_descriptors() <= before``. Their number says
    nothing: descriptors that an earlier test forgot are closed whenever Python finds them.
    """
    # A thread that has just begun tells the system its name through a file, and closes that at
    # once.
    return {one for one in _descriptors() if not one[1].endswith("/comm")}


# -- private parts ---------------------------------------------------------------------------------
# A test that has to look behind the public verbs does it through these functions. After a private
# attribute has moved or got another name, only they change; `test_private_access.py` counts the
# rest.
#
# Names of modules.

_PRIVATE: Final = {
    "checkpoint of time slices": "ergo_py._core.runtime.time_slices.checkpoint",
    "clearing of the tables": "ergo_py._core.processes.termination._clear",
    "clock of callback watches": "ergo_py._core.inspection.callback_watch.perf_counter",
    "clock of dead letters": "ergo_py._core.tables.dead_letters.time",
    "clock of inline calls": "ergo_py._core.processes.inline_calls.perf_counter",
    "clock of message loops": "ergo_py._core.processes.message_loop.perf_counter",
    "clock of meta-processes": "ergo_py._core.verbs.meta_process.MetaProcess._now",
    "clock of processes": "ergo_py._core.processes.lifecycle.perf_counter",
    "clock of the census": "ergo_py._core.inspection.census.perf_counter",
    "clock of snapshots": "ergo_py._core.inspection.snapshots.perf_counter",
    "clock of the watchdog": "ergo_py._core.inspection.watchdog.perf_counter",
    "clock of thread fairness": "ergo_py._core.runtime.thread_fairness.perf_counter",
    "clock of time slices": "ergo_py._core.sources.slice_clock",
    "clock of traces": "ergo_py._core.inspection.trace.perf_counter",
    "connections made in a turn": "ergo_py.meta.sockets.acceptor._IN_TURN",
    "connections that wait for actors": "ergo_py.meta.sockets.births._AT_ONCE",
    "CPU time of a thread": "ergo_py.testing.threads._cpu",
    "description of a stack": "ergo_py._core.inspection.watchdog._describe",
    "details of trio that differ": "ergo_py._core.runtime.handoff._UNMET",
    "directory of descriptors": "ergo_py.meta.sockets.unix._DESCRIPTORS",
    "directory of threads": "ergo_py.testing.threads._TASKS",
    "grace of meta-processes": "ergo_py._core.metas.termination._GRACE",
    "grace of processes": "ergo_py._core.processes.spawn.GRACE",
    "grace of threads": "ergo_py._core.processes.threaded_process._GRACE",
    "greeting timeout of the shell": "ergo_py.control.client.GREETING",
    "kernel of new nodes": "ergo_py._core.node_lifecycle.Kernel",
    "lack of directory watches": "ergo_py.meta.files.directory_watch.lacks_watches",
    "length of a time slice": "ergo_py._core.runtime.time_slices.SLICE",
    "mailboxes looked at in a turn": "ergo_py._core.inspection.mailbox_backlog._AT_A_TIME",
    "many children": "ergo_py._core.processes.ownership.MANY",
    "node of the loop thread": "ergo_py.blocking.loop_thread.open_async_node",
    "passes of a world without time": "ergo_py.testing.world.clock.PASSES",
    "patience of worlds with threads": "ergo_py.testing.world.machine.threads._PATIENCE",
    "patience with a half-closed peer": "ergo_py.meta.sockets.streams.shutdown._TAKES_NOTHING",
    "reader threads made in a turn": "ergo_py.meta.sockets.acceptor._THREADS_IN_TURN",
    "rescan period of directories": "ergo_py.meta.files.directory_watch._RESCAN",
    "serving of meta-processes": "ergo_py._core.metas.handler.Handler.serve",
    "short directory of control sockets": "ergo_py.control.socket_paths._SHORT",
    "sleep of thread fairness": "ergo_py._core.sources.time.sleep",
    "start of readers": "ergo_py._core.metas.reader.Reader.start",
    "starvation of the watchdog": "ergo_py._core.inspection.watchdog.was_starved",
    "stop of a node's processes": "ergo_py._core.node_lifecycle.stop_all",
    "time of one Ctrl-C": "ergo_py._core.runtime.keyboard_interrupt.REPEAT",
    "undoing of a spawn": "ergo_py._core.processes.termination.Ending.undo",
    "user of a control client": "ergo_py.control.server.peer_user",
}
"""The names that tests replace, each by its meaning."""


def io_of_loop() -> Any:
    """The part of trio's loop that waits for sockets."""
    task: Any = trio.lowlevel.current_task()
    return task._runner.io_manager


def epoll_of_loop() -> Any:
    """The epoll of trio's loop."""
    return io_of_loop()._epoll


def waiting_for_sockets() -> dict[int, Any]:
    """The tasks that wait for sockets, by descriptors."""
    table: dict[int, Any] = io_of_loop()._registered
    return table


def replace_private(monkeypatch: pytest.MonkeyPatch, meaning: str, value: object) -> None:
    """Replace a private name of a module for the time of a test."""
    monkeypatch.setattr(_PRIVATE[meaning], value)


# The kernel and its processes.


def kernel_of(node: Any) -> Kernel:
    """The kernel of a node."""
    kernel: Kernel = node._kernel
    return kernel


def router_of(node: Any) -> Router:
    """The router of a node."""
    router: Router = node._router
    return router


def process_of(node: Any, target: Any) -> Process:
    """The process at this address."""
    process: Process = node._find(target)
    return process


def process_behind(actor: Any) -> Process:
    """The process that runs the callbacks of this actor."""
    process: Process = actor._process
    return process


def process_of_ending(ending: Any) -> Process:
    """The process that ends."""
    process: Process = ending._process
    return process


def hop_of(process: Any) -> Any:
    """The visit of a threaded process in its thread, while a callback runs there."""
    return process._hop


def cut_ending_short(process: Any) -> None:
    """Let the time be over that ``terminate`` has."""
    process.ending.cut_short()


def let_init_time_out(process: Any) -> None:
    """Let the time be over that ``init`` has."""
    process.turn.scope.deadline = trio.current_time()


def loggers_of(node: Any) -> dict[Any, Any]:
    """The processes that are told the log records of a node."""
    loggers: dict[Any, Any] = node._kernel._loggers
    return loggers


def write_log_to_console(node: Any) -> None:
    """Let a node write its log as ``log_output="console"`` does, from now on."""
    node._kernel.log._write = _writer("console")


def last_blocked(node: Any) -> BlockedReport | None:
    """The last report of the watchdog. ``node.info()`` has it too, and needs the loop."""
    report: BlockedReport | None = node._last_blocked
    return report


def looks_at_mailboxes(node: Any) -> bool:
    """Whether the watchdog of a node looks for mailboxes that grow."""
    return node._watchdog._look is not None


def thread_of(owner: Any) -> threading.Thread:
    """The thread of a watchdog or a ``ReaderThread``."""
    thread: threading.Thread = owner._thread
    return thread


def timer_action(clock: Any) -> Callable[[Any], None]:
    """The function that a clock calls for each timer that is due."""
    action: Callable[[Any], None] = clock._fire
    return action


def replace_timer_action(clock: Any, action: Callable[[Any], None]) -> None:
    """Let a clock call this function for each timer that is due."""
    clock._fire = action


# Tables.


def relation_tables(relations: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The relations by watcher, and by target."""
    return relations.by_watcher, relations.by_target


def timers_kept(timers: Any) -> int:
    """The entries of a table of timers, including cancelled entries that are not yet removed."""
    return len(timers._heap) + len(timers._leaving)


def counted_messages(mailbox: Any, lane: Any) -> int:
    """The messages of a lane that count against its bound."""
    count: int = mailbox._users(lane)
    return count


def crash_sites(obituaries: Any) -> dict[Any, Any]:
    """The callback of each crash without a noted end of its process."""
    sites: dict[Any, Any] = obituaries._sites
    return sites


# Services and supervision.


def waiters_of(service: Any) -> dict[Any, Any]:
    """The callers and senders that wait for a service's child."""
    waiters: dict[Any, Any] = service._slot.waiters
    return waiters


def replace_router(service: Any, router: object) -> None:
    """Let a service send through this router."""
    service._router = router


def plan_of(supervisor: Any) -> Any:
    """The strategy of a supervisor and its children."""
    return supervisor._plan


def replace_key_owners(pool: Any, owners: dict[Any, Any]) -> None:
    """Let a pool keep in this dictionary which worker gets which key."""
    pool._pool()._pool_mailbox._owners = owners


# Programs and signals.


def signal_comes(signals: Any, number: int) -> None:
    """Call the signal handler of ``ergo_py.run``."""
    signals._came(number, None)


def process_groups() -> dict[int, None]:
    """The process groups that are killed when this program is left."""
    return process_groups_module._groups


def replace_process_groups(monkeypatch: pytest.MonkeyPatch, groups: dict[int, None]) -> None:
    """Let these be the process groups that are killed when this program is left."""
    monkeypatch.setattr(process_groups_module, "_groups", groups)


# Meta-processes.


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


# Sockets.


def connections_of(server: Any) -> list[Any]:
    """The connections of a server that are open, oldest first."""
    return list(server._open)


def connections_under_way(server: Any) -> int:
    """The accepted connections that still wait for their meta-processes."""
    return len(server._births._under_way)


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


# -- networks --------------------------------------------------------------------------------------


def receiver_of(connection: Any) -> Any:
    """The process that a connection hands its messages to."""
    return connection._reader._target


def replace_sink(carrier: Any, sink: object) -> None:
    """Have a carrier of NATS hand its frames to another object than its network."""
    carrier._sink = sink


def sink_of(carrier: Any) -> Any:
    return carrier._sink


def begin_search(carrier: Any) -> None:
    """A carrier of NATS is a member of its network, and searches for nodes."""
    carrier._is_member, carrier._discovery.searches = True, 1


def found_nodes(carrier: Any) -> dict[str, Any]:
    """The nodes that a carrier of NATS has found in its search."""
    found: dict[str, Any] = carrier._discovery.found
    return found


def largest_number(seen: Any) -> int:
    """The largest number that a recollection of a store has seen."""
    largest: int = seen._largest
    return largest


async def ask_jetstream(store: Any, subject: str, request: dict[str, Any]) -> Any:
    """Ask the server of a store in its own words."""
    return await store._ask(subject, request)


async def publish_to_jetstream(store: Any, subject: str, headers: dict[str, str]) -> Any:
    """Write an empty entry with these headers past the methods of a store."""
    return await store._publish(subject, b"", headers)


def open_files(store: Any) -> None:
    """Have a store of files open them, without an entry."""
    store._prepare()


def routes_of(executor: Any) -> dict[bytes, Any]:
    """The routes that an executor remembers."""
    routes: dict[bytes, Any] = executor._known_routes
    return routes


def readers_of(carrier: Any) -> dict[str, Any]:
    """The connections that a carrier of files reads, by the names of their nodes."""
    readers: dict[str, Any] = carrier._readers
    return readers


def bytes_of_partial_frames(carrier: Any) -> int:
    """How many bytes of unfinished frames a carrier of files may still hold."""
    left: int = carrier._partial_frames._left
    return left


def new_way(connection: object) -> Any:
    """The writer of a connection to another node."""
    from ergo_py.network.carriers.frame_writer import FrameWriter  # an extra

    way: Any = FrameWriter()
    way._socket = connection
    return way


async def write_waiting(way: Any, connection: object) -> int:
    """Write all frames that wait, and return how many bytes are left."""
    while way._waiting:
        await way._write(connection)
    left: int = way._size
    return left


def keeping_of(node: Node, kind: type[Actor]) -> Keeping:
    """The work of the keeper of a class of entities."""
    keeping = node._entities[kind].keeping
    assert isinstance(keeping, Keeping)
    return keeping


async def database_setting(store: Store, name: str) -> str:
    """A setting of the session of a PostgreSQL database."""

    def read(database: Any) -> str:
        row = database._connection.execute("select current_setting(%s)", (name,)).fetchone()
        return str(row[0])

    assert isinstance(store, ThreadedStore)
    return await store.run(read)


def table_sizes(keeping: Keeping) -> dict[str, int]:
    """How many entries each table of a keeper has."""
    tables = {**vars(keeping), "slots": keeping.table.slots}
    return {name: len(each) for name, each in tables.items() if isinstance(each, dict | Schedule)}


async def fill_file(store: SQLite) -> None:
    """Let no page be added to the file, by the connection that is open now."""

    def limit(file: Any) -> None:
        connection = file._open()
        pages = connection.execute("pragma page_count").fetchone()[0]
        connection.execute(f"pragma max_page_count = {pages}")

    await store.run(limit)


async def checkpoint_often(store: SQLite, pages: int) -> None:
    """Let the log be copied to the file after so many pages."""

    def limit(file: Any) -> None:
        file._open().execute(f"pragma wal_autocheckpoint = {pages}")

    await store.run(limit)


def set_synchronous(store: SQLite, value: str) -> None:
    """Let the file be opened with another ``pragma synchronous``, also one that is not allowed."""
    unchecked: Any = store
    unchecked._synchronous = value


def loopback_of_this_program() -> str:
    """An address of this machine at which no other program of the tests listens: every port is
    free there.
    """
    pid = os.getpid()
    return f"127.{pid >> 16 & 255}.{pid >> 8 & 255}.{pid & 255}"
