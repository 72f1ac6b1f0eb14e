"""Parts of many tests: a quiet node with a time limit, and actors that a test directs."""

import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from ergo_py import Caller, Node, open_node
from ergo_py._core.kernel import Kernel
from ergo_py._core.log import _writer
from ergo_py._core.messaging.router import Router
from ergo_py._core.processes.process import Process
from ergo_py.info import BlockedReport, NodeInfo
from ergo_py.testing.leaks import _descriptors

__all__ = [
    "Collected",
    "THOROUGH",
    "block_until_reported",
    "counted_messages",
    "crash_sites",
    "cut_ending_short",
    "epoll_of_loop",
    "hop_of",
    "io_of_loop",
    "kernel_of",
    "last_blocked",
    "let_init_time_out",
    "loggers_of",
    "loopback_of_this_program",
    "looks_at_mailboxes",
    "needs_proc",
    "open_descriptors",
    "plan_of",
    "process_behind",
    "process_of",
    "process_of_ending",
    "promise_answer",
    "refused",
    "relation_tables",
    "replace_key_owners",
    "replace_private",
    "replace_router",
    "replace_timer_action",
    "router_of",
    "running_node",
    "short_directory",
    "thread_of",
    "timer_action",
    "timers_kept",
    "waiters_of",
    "waiting_for_sockets",
    "without_blockages",
    "write_log_to_console",
]

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
"""Whether a test may take its time: ``python -m benchmarks test-deep``. Only the number of
tries depends on it.
"""


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


def loopback_of_this_program() -> str:
    """An address of this machine at which no other program of the tests listens: every port is
    free there.
    """
    pid = os.getpid()
    return f"127.{pid >> 16 & 255}.{pid >> 8 & 255}.{pid & 255}"


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
    "clock of new processes": "ergo_py._core.processes.process.perf_counter",
    "clock of processes": "ergo_py._core.processes.lifecycle.perf_counter",
    "clock of the census": "ergo_py._core.inspection.census.perf_counter",
    "clock of snapshots": "ergo_py._core.inspection.snapshots.perf_counter",
    "clock of the watchdog": "ergo_py._core.inspection.watchdog.perf_counter",
    "clock of thread fairness": "ergo_py._core.runtime.thread_fairness.perf_counter",
    "clock of time slices": "ergo_py._core.sources.slice_clock",
    "clock of traces": "ergo_py._core.inspection.trace.perf_counter",
    "connections made in a turn": "ergo_py.meta.sockets.acceptor._IN_TURN",
    "connections that wait for actors": "ergo_py.meta.sockets.acceptor._AT_ONCE",
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
    "members of a group in a message": "ergo_py.cluster.group_keeper._PART",
    "node of the loop thread": "ergo_py.blocking.loop_thread.open_async_node",
    "passes of a world without time": "ergo_py.testing.world.clock.PASSES",
    "seconds between checks of the test of a world": "ergo_py.testing.world.clock.CHECK_SECONDS",
    "jumps between collections of a world": "ergo_py.testing.world.clock._COLLECT",
    "jumps between checks of the test of a world": "ergo_py.testing.world.clock.CHECK_JUMPS",
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


class Passes(trio.abc.Instrument):
    """Counts the passes of the loop."""

    number = 0

    def before_io_wait(self, timeout: float) -> None:
        self.number += 1


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


def timer_heap(timers: Any) -> Any:
    """The heap of a table of timers: of the extension, or its Python twin."""
    return timers._heap


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


def promise_answer(caller: Caller) -> None:
    """Let a call be deferred, without a callee that would have to end."""
    caller._deferred = True
