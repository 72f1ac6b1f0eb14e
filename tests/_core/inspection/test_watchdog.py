"""The watchdog names the process that blocks the loop, once, and no other process.

The loop is really blocked here, in each test until the watchdog has reported it: by an event that
its report sets.
"""

import inspect
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from ergo_py import PID, Actor, Alias, Caller, MetaProcess, Node, Reason
from ergo_py._core.inspection import watchdog as watchdog_module
from ergo_py._core.inspection.watchdog import (
    RunTimes,
    Watchdog,
    look_at_loop,
    of_program,
    run_times,
    was_starved,
)
from ergo_py._core.runtime.bridge import Bridge
from ergo_py._core.tables.callbacks import runs_callbacks
from ergo_py.info import BlockedReport
from tests._core.test_log import Terminal, break_stderr
from tests.actors import Puppet
from tests.support import (
    block_until_reported,
    last_blocked,
    replace_private,
    router_of,
    running_node,
    thread_of,
    write_log_to_console,
)

THRESHOLD = 0.2
"""Seconds. A machine that is so busy that it keeps the loop waiting for as long, just when a test
is about to block it, is rare.
"""
PATIENCE = 20.0


def watchdog_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ergo-watchdog"]


def alive(threads: list[threading.Thread]) -> list[threading.Thread]:
    """Those that do not end. The node waits for them, too, but not for as long as a busy machine
    may need.
    """
    for thread in threads:
        thread.join(PATIENCE)
    return [thread for thread in threads if thread.is_alive()]


class Reports:
    """The reports of a watchdog; a callback that blocks the loop may wait here for the report about
    it.
    """

    def __init__(self) -> None:
        self.all: list[BlockedReport] = []
        self.came = threading.Condition()

    def __call__(self, report: BlockedReport) -> None:
        with self.came:
            self.all.append(report)
            self.came.notify_all()

    def block_until(self, is_meant: Callable[[BlockedReport], bool], and_for: float = 0.0) -> bool:
        # A busy machine may also delay the loop, which is no mistake: so look for the report about
        # this process.
        with self.came:
            found = self.came.wait_for(lambda: any(map(is_meant, self.of_blocking())), PATIENCE)
        time.sleep(and_for)
        return found

    def of_blocking(self) -> list[BlockedReport]:
        """Reports about a loop that was blocked here, without those about a loop that the machine
        starved.
        """
        return [report for report in self.all if "in block_until" in report.stack]

    def about(self, pid: PID | Alias | None) -> list[BlockedReport]:
        return [report for report in self.of_blocking() if report.process == pid]


@asynccontextmanager
async def watched_node(reports: Reports, threshold: float = THRESHOLD) -> AsyncIterator[Node]:
    async with running_node() as node:
        watchdog = Watchdog(router_of(node).bridge, threshold, reports)
        try:
            yield node
        finally:
            await trio.to_thread.run_sync(watchdog.stop)


class Blocking(Actor):
    """Blocks the loop in the callback it was made for, until that is noticed."""

    def __init__(self, reports: Reports, callback: str) -> None:
        self.reports = reports
        self.callback = callback
        self.noticed = False

    def block_in(self, callback: str) -> None:
        if callback == self.callback:
            self.noticed = self.reports.block_until(lambda report: report.process == self.pid)

    async def init(self) -> None:
        self.block_in("init")

    async def handle_message(self, message: Any, sender: Any) -> None:
        self.block_in("handle_message")

    async def handle_call(self, request: Any, caller: Caller) -> object:
        self.block_in("handle_call")
        return self.noticed

    def handle_inspect(self, *items: str) -> dict[str, str]:
        self.block_in("handle_inspect")
        return {}

    async def terminate(self, reason: Reason) -> None:
        self.block_in("terminate")


async def use_every_callback(node: Node, pid: PID) -> None:
    node.send(pid, 1.5)
    await node.call(pid, "a request", timeout=PATIENCE)
    await node.inspect(pid, "item", timeout=PATIENCE)
    node.send_exit(pid)
    while pid in node.processes():
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    "callback,message_type",
    [
        ("init", None),
        ("handle_message", "float"),
        ("handle_call", "str"),
        ("handle_inspect", "tuple"),
        ("terminate", None),
    ],
)
async def test_a_callback_that_blocks_is_reported_with_all_known_facts(
    callback: str, message_type: str | None
) -> None:
    reports = Reports()

    async with watched_node(reports) as node:
        pid = await node.spawn(Blocking, reports, callback, name="blocking", init_timeout=PATIENCE)
        await use_every_callback(node, pid)

    [report] = reports.about(pid)
    assert (report.name, report.behaviour) == ("blocking", "Blocking")
    assert (report.callback, report.message_type) == (callback, message_type)
    assert report.seconds >= THRESHOLD
    assert "in block_until" in report.stack
    assert f"in {callback}" in report.stack


class BlockingInPlainInit(Blocking):
    """Its ``init`` does not wait, and so is called elsewhere than an async ``init``."""

    def init(self) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self.block_in("init")


async def test_a_plain_init_that_blocks_is_reported() -> None:
    reports = Reports()

    async with watched_node(reports) as node:
        pid = await node.spawn(BlockingInPlainInit, reports, "init", name="blocking")

    [report] = reports.about(pid)
    assert (report.name, report.callback) == ("blocking", "init")
    assert "in init" in report.stack


class BlockingMeta(MetaProcess):
    """Blocks the loop, which a meta-process must not do in an ``async def`` or in
    ``handle_inspect``, until that is noticed.
    """

    def __init__(self, reports: Reports, callback: str) -> None:
        self.reports = reports
        self.callback = callback

    def block_in(self, callback: str) -> None:
        if callback == self.callback:
            self.reports.block_until(lambda report: report.process == self.id)

    async def init(self) -> None:
        self.block_in("init")

    async def start(self) -> None:
        self.block_in("start")
        await trio.sleep_forever()

    async def handle_message(self, message: Any, sender: Any) -> None:
        self.block_in("handle_message")

    async def handle_call(self, request: Any, caller: Caller) -> object:
        self.block_in("handle_call")
        return None

    def handle_inspect(self, *items: str) -> dict[str, str]:
        self.block_in("handle_inspect")
        return {}

    async def terminate(self, reason: Reason) -> None:
        self.block_in("terminate")


@pytest.mark.parametrize(
    "callback,message_type",
    [
        ("init", None),
        ("start", None),
        ("handle_message", "float"),
        ("handle_call", "str"),
        ("handle_inspect", "tuple"),
        ("terminate", None),
    ],
)
async def test_a_meta_process_that_blocks_the_loop_is_reported_by_its_alias(
    callback: str, message_type: str | None
) -> None:
    reports = Reports()
    meta = BlockingMeta(reports, callback)

    async with watched_node(reports) as node:
        owner = await node.spawn(Puppet)
        alias: Alias = await node.call(
            owner,
            lambda me: me.spawn_meta(meta, init_timeout=PATIENCE, stop_timeout=PATIENCE),
            timeout=PATIENCE,
        )
        node.send(alias, 1.5)
        await node.call(alias, "a request", timeout=PATIENCE)
        await node.inspect_meta(alias, "item", timeout=PATIENCE)
        node.send_exit(alias)
        await node.wait_ended(alias)

    [report] = reports.about(alias)
    assert (report.name, report.behaviour) == (None, "BlockingMeta")
    assert (report.callback, report.message_type) == (callback, message_type)
    assert f"in {callback}" in report.stack
    assert reports.about(owner) == []


async def test_a_child_that_blocks_when_ended_asleep_is_reported_and_not_its_owner() -> None:
    reports = Reports()

    class Plain(Puppet):
        def terminate(self, reason: Reason) -> None:
            reports.block_until(lambda report: report.process == self.pid)

    async with watched_node(reports) as node:
        owner = await node.spawn(Puppet)
        child = await node.call(owner, lambda me: me.spawn(Plain), timeout=PATIENCE)
        await trio.testing.wait_all_tasks_blocked()

        node.send_exit(owner, "enough")
        while child in node.processes():
            await trio.lowlevel.checkpoint()

    assert [report.callback for report in reports.about(child)] == ["terminate"]
    assert reports.about(owner) == []


async def test_a_callee_that_answers_inline_is_reported_and_not_its_caller() -> None:
    reports = Reports()

    class Plain(Actor):
        def handle_call(self, request: Any, caller: Caller) -> object:
            return reports.block_until(lambda report: report.process == self.pid)

    async with watched_node(reports) as node:
        callee = await node.spawn(Plain)
        caller = await node.spawn(Puppet)
        await trio.testing.wait_all_tasks_blocked()
        noticed = await node.call(
            caller, lambda me: me.call(callee, b"request", timeout=PATIENCE), timeout=PATIENCE
        )

    assert noticed
    assert [(report.callback, report.message_type) for report in reports.about(callee)] == [
        ("handle_call", "bytes")
    ]
    assert reports.about(caller) == []


async def test_a_task_that_is_no_process_is_reported_by_its_stack() -> None:
    reports = Reports()

    async def foreign() -> None:
        reports.block_until(lambda report: "in foreign" in report.stack)

    async with watched_node(reports) as node:
        pid = await node.spawn(Puppet)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(foreign)

    [report] = [report for report in reports.all if "in foreign" in report.stack]
    assert (report.process, report.name, report.behaviour) == (None, None, None)
    assert (report.callback, report.message_type) == (None, None)
    assert reports.about(pid) == []


async def test_a_blockage_is_reported_once_and_the_next_blockage_again() -> None:
    reports = Reports()

    class Blocks(Actor):
        def handle_message(self, message: int, sender: Any) -> None:
            # Long enough for several more reports, if there were any.
            reports.block_until(
                lambda _: len(reports.about(self.pid)) == message, and_for=THRESHOLD * 3
            )

    async with watched_node(reports) as node:
        pid = await node.spawn(Blocks)
        counts = []
        for number in (1, 2, 3):
            node.send(pid, number)
            await node.inspect(pid, timeout=PATIENCE)
            counts.append(len(reports.about(pid)))

    assert counts == [1, 2, 3]


class Counting(Bridge):
    """Counts how often a sign of life is asked for."""

    __slots__ = ("asked",)

    def post(self, job: Callable[..., object], *args: Any) -> None:
        self.asked = getattr(self, "asked", 0) + 1
        super().post(job, *args)


def counting_bridge() -> Counting:
    return Counting("test@localhost", trio.lowlevel.current_trio_token(), lambda _: None)


class NodeInspection(Watchdog):
    """Counts how often it looks at the loop."""

    looks = 0

    def _frame(self) -> Any:
        self.looks += 1
        return super()._frame()


async def test_a_loop_that_waits_is_neither_reported_nor_disturbed() -> None:
    bridge = counting_bridge()
    watchdog = NodeInspection(bridge, 0.02, Reports())

    def look_on() -> int:
        """From a thread that the loop waits for: how often the loop is asked while it does."""
        while look_at_loop(bridge, 0.0) is not None or watchdog.asked is not None:
            time.sleep(0.001)
        asked, enough = getattr(bridge, "asked", 0), watchdog.looks + 20
        while watchdog.looks < enough:
            time.sleep(0.001)
        return getattr(bridge, "asked", 0) - asked

    asked = await trio.to_thread.run_sync(look_on)
    await trio.to_thread.run_sync(watchdog.stop)

    # A question may have been on its way already when the loop began to wait.
    assert asked <= 1
    bridge.close()


class StoppedAsItLooks(Watchdog):
    """Is stopped between its look at the loop and its question."""

    def _frame(self) -> Any:
        self._stop.set()
        self._alive.set()
        return inspect.currentframe()


def test_a_watchdog_that_is_stopped_as_it_looks_does_not_wait_for_the_loop() -> None:
    asked: list[None] = []

    def answer(sign: Callable[[], None]) -> None:
        asked.append(None)
        sign()

    bridge: Any = SimpleNamespace(loop_thread=threading.get_ident(), post=answer)
    watchdog = StoppedAsItLooks(bridge, 0.01, Reports())
    thread_of(watchdog).join(PATIENCE)

    assert asked == []


@pytest.fixture
def switching_fast() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


async def test_a_loop_that_is_busy_and_yields_is_not_reported(switching_fast: None) -> None:
    reports = Reports()
    bridge = counting_bridge()
    watchdog = Watchdog(bridge, 0.5, reports)
    longest, began = 0.0, time.perf_counter()

    with trio.fail_after(PATIENCE):
        while getattr(bridge, "asked", 0) < 3:
            # Longer than the switch interval: beside shorter turns the watchdog itself would hardly
            # ever run.
            for _ in range(5000):
                pass
            await trio.lowlevel.checkpoint()
            longest, began = max(longest, time.perf_counter() - began), time.perf_counter()
    await trio.to_thread.run_sync(watchdog.stop)

    # A machine that had no time for the loop for so long is not told from a callback that had.
    assert reports.all == [] or longest > 0.1
    bridge.close()


@pytest.mark.parametrize("threshold", [THRESHOLD, 0.9])
async def test_the_node_keeps_the_last_report_and_counts_reports(threshold: float) -> None:
    async with running_node(watchdog=threshold) as node:
        pid = await node.spawn(Puppet)
        info: Any = None
        while info is None:
            info = await node.call(pid, lambda _: block_until_reported(node, pid), timeout=PATIENCE)

    assert info.times_blocked >= 1
    assert info.last_blocked is not None
    assert info.last_blocked.process == pid
    assert info.last_blocked.callback == "handle_call"
    assert info.last_blocked.seconds >= threshold


async def test_a_report_is_logged_without_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    class Secret:
        def __repr__(self) -> str:
            return "the secret"

    class Blocks(Actor):
        def handle_call(self, request: Secret, caller: Caller) -> object:
            return block_until_reported(self.node, self.pid)

    async with running_node(watchdog=THRESHOLD, log_output="json") as node:
        pid = await node.spawn(Blocks)
        while not await node.call(pid, Secret(), timeout=PATIENCE):
            pass
        during = watchdog_threads()
    assert not alive(during)
    logged = capsys.readouterr().err

    # Which of the two a busy machine decides.
    assert "the event loop is blocked" in logged or "the event loop gets no time to run" in logged
    assert "Secret" in logged
    assert "the secret" not in logged


async def test_the_watchdog_thread_ends_with_the_node() -> None:
    async with running_node(watchdog=60):
        during = watchdog_threads()

    assert len(during) == 1
    assert not alive(during)


async def test_the_watchdog_thread_ends_when_the_loop_was_blocked_until_the_end() -> None:
    reports = Reports()

    class BlocksAtTheEnd(Actor):
        def terminate(self, reason: Reason) -> None:
            while last_blocked(self.node) is None:
                with reports.came:
                    reports.came.wait(0.001)

    async with running_node(watchdog=THRESHOLD) as node:
        await node.spawn(BlocksAtTheEnd)
        during = watchdog_threads()

    assert len(during) == 1
    assert not alive(during)


async def test_a_node_without_watchdog_has_no_watchdog_thread() -> None:
    async with running_node(watchdog=None):
        assert watchdog_threads() == []


async def test_a_watchdog_ends_when_its_node_has_stopped() -> None:
    bridge = Bridge("test@localhost", trio.lowlevel.current_trio_token(), print)
    bridge.close()

    # The loop is held up by the waiting below, so it is asked for a sign of life.
    watchdog = Watchdog(bridge, 0.01, print)
    thread_of(watchdog).join(20)

    assert not thread_of(watchdog).is_alive()


def test_a_sign_of_life_at_the_deadline_counts() -> None:
    reports: list[BlockedReport] = []
    enough = threading.Event()

    class LastMoment:
        """A loop that shows its sign of life when the watchdog has just given up waiting for it."""

        def __init__(self) -> None:
            self.asked = 0
            self.sign: Callable[[], None] | None = None
            self.thread = threading.get_ident()

        @property
        def loop_thread(self) -> int:
            if self.sign is not None:
                self.sign()
                self.sign = None
            return self.thread

        def post(self, sign: Callable[[], None]) -> None:
            self.sign = sign
            self.asked += 1
            if self.asked == 3:
                enough.set()

    bridge: Any = LastMoment()
    watchdog = Watchdog(bridge, 0.01, reports.append)
    asked_again = enough.wait(PATIENCE)
    watchdog.stop()

    assert asked_again
    assert reports == []


# -- a watchdog that goes on -----------------------------------------------------------------------


async def test_the_watchdog_continues_when_a_report_cannot_be_taken() -> None:
    reports = Reports()

    def refuse_first(report: BlockedReport) -> None:
        reports(report)
        if len(reports.all) == 1:
            raise OSError("no space left")

    class Blocks(Actor):
        def handle_message(self, message: int, sender: Any) -> None:
            reports.block_until(lambda _: len(reports.all) >= message)

    async with running_node() as node:
        watchdog = Watchdog(router_of(node).bridge, THRESHOLD, refuse_first)
        try:
            pid = await node.spawn(Blocks)
            for number in (1, 2):
                node.send(pid, number)
                await node.inspect(pid, timeout=PATIENCE)
            assert thread_of(watchdog).is_alive()
        finally:
            await trio.to_thread.run_sync(watchdog.stop)

    assert len(reports.all) >= 2


@pytest.mark.parametrize("stream", ["none", "closed"])
async def test_the_watchdog_continues_without_a_standard_error(
    stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(watchdog=THRESHOLD, log_output="console") as node:
        pid = await node.spawn(Puppet)
        with monkeypatch.context() as patch:
            break_stderr(patch, stream)
            info = None
            while info is None:
                info = await node.call(
                    pid, lambda _: block_until_reported(node, pid), timeout=PATIENCE
                )
            [thread] = watchdog_threads()
            assert thread.is_alive()
            while not node.info().log_lines_lost:  # it reports first, and logs then
                await trio.lowlevel.checkpoint()


def test_a_stack_that_cannot_be_read_is_reported_without_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports: list[BlockedReport] = []
    came = threading.Event()

    def keep(report: BlockedReport) -> None:
        reports.append(report)
        came.set()

    def refuse(*args: object) -> Any:
        raise KeyError("self")

    replace_private(monkeypatch, "description of a stack", refuse)
    bridge: Any = SimpleNamespace(loop_thread=threading.get_ident(), post=lambda sign: None)
    watchdog = Watchdog(bridge, 0.01, keep)
    assert came.wait(PATIENCE)
    watchdog.stop()

    assert reports[0].process is None
    assert "KeyError('self')" in reports[0].stack


def test_a_program_that_was_stopped_meanwhile_is_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watchdog's own wait took far too long: so the loop had no more time than the watchdog."""
    reports: list[BlockedReport] = []
    enough = threading.Event()

    class StoodStill(threading.Event):
        """Time passes in which no thread runs; the loop gives its sign of life afterwards."""

        waits = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.waits += 1
            if self.waits % 2:
                clock[0] += 6.0
                return False
            clock[0] += 0.001
            if self.waits == 6:
                enough.set()
            return True

    class Standing(Watchdog):
        _alive = property(lambda self: still, lambda self, _: None)

    clock, still = [100.0], StoodStill()
    replace_private(monkeypatch, "clock of the watchdog", lambda: clock[0])
    bridge: Any = SimpleNamespace(loop_thread=threading.get_ident(), post=lambda sign: None)
    watchdog = Standing(bridge, 0.01, reports.append)
    assert enough.wait(PATIENCE)
    watchdog.stop()

    assert reports == []


# -- blocked, or starved ---------------------------------------------------------------------------


def times(at: float, ran: float, queued: float, waits: int, others_ran: float) -> RunTimes:
    return RunTimes(50.0 + at, 3.0 + ran, 2.0 + queued, 17 + waits, 9.0 + others_ran)


BEFORE = times(0.0, 0.0, 0.0, 0, 0.0)


@pytest.mark.parametrize(
    "after,starved",
    [
        pytest.param(times(0.5, 0.0, 0.004, 1, 0.0), False, id="a callback that sleeps"),
        pytest.param(
            times(0.5, 0.0, 0.004, 1, 0.5), False, id="a callback that sleeps beside busy threads"
        ),
        pytest.param(times(0.5, 0.005, 0.0, 90, 0.0), False, id="a callback that polls"),
        pytest.param(times(0.5, 0.48, 0.02, 4, 0.0), False, id="a callback that computes"),
        pytest.param(times(0.5, 0.02, 0.48, 4, 0.0), True, id="a busy machine"),
        pytest.param(
            times(0.56, 0.001, 0.05, 50, 0.37),
            True,
            id="busy threads that have the lock of the interpreter",
        ),
        pytest.param(None, False, id="a system that does not tell"),
    ],
)
def test_a_starved_loop_is_distinguished_from_a_blocked_loop(
    after: RunTimes | None, starved: bool
) -> None:
    assert was_starved(BEFORE, after) is starved
    assert was_starved(None, after) is False


@pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="this system does not count that"
)
def test_the_times_of_a_thread_are_read() -> None:
    before = run_times(threading.get_ident())
    sum(range(200_000))
    after = run_times(threading.get_ident())

    assert before is not None
    assert after is not None
    assert after.ran > before.ran
    assert after.at > before.at


def test_a_thread_that_has_ended_has_no_times() -> None:
    assert run_times(0) is None


async def test_a_starved_loop_is_reported_and_logged_as_starved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_private(monkeypatch, "starvation of the watchdog", lambda before, after: True)

    async with running_node(watchdog=THRESHOLD, log_output="json") as node:
        pid = await node.spawn(Puppet)
        info = None
        while info is None:
            info = await node.call(pid, lambda _: block_until_reported(node, pid), timeout=PATIENCE)
        assert info.last_blocked.starved
        during = watchdog_threads()
    assert not alive(during)

    logged = capsys.readouterr().err
    assert "the event loop gets no time to run" in logged
    assert "the event loop is blocked" not in logged


async def test_the_kernels_work_for_a_process_is_not_attributed_to_its_callback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crash is written to a log that is slow, after the callback is over."""
    reports = Reports()

    class SlowError(Terminal):
        def write(self, text: str) -> int:
            if "process crashed" in text:
                reports.block_until(lambda report: report.process == pid)
            return len(text)

    class Crashing(Actor):
        def handle_message(self, message: object, sender: Any) -> None:
            raise ValueError("five")

    async with watched_node(reports) as node:
        pid = await node.spawn(Crashing)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", SlowError())
            patch.setattr(logging.getLogger(), "handlers", [])
            write_log_to_console(node)
            node.send(pid, 1)
            await node.wait_ended(pid)

    [report] = reports.about(pid)
    assert (report.process, report.callback, report.message_type) == (pid, None, None)


@runs_callbacks
def _call_back(process: Any, callback: Callable[[], None]) -> None:
    callback()


def test_a_callback_that_moves_on_while_its_stack_is_read_is_still_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, returned, lock = threading.Event(), threading.Event(), threading.Lock()
    # The callback is inside a generator of the kernel. Its frame has a caller only while it runs.
    kernel: dict[str, Any] = {"__name__": "ergo_py._core.inspection.snapshots"}
    exec("def count(lock):\n    return sum(lock.acquire() for _ in range(1))", kernel)
    process = SimpleNamespace(
        id=PID("a@b", 1, 2),
        name="busy",
        callbacks=SimpleNamespace(behaviour="Busy"),
        current_callback=lambda: "handle_message",
        handling=(0, None, None, "a message"),
    )

    def callback() -> None:
        started.set()
        kernel["count"](lock)

    def run() -> None:
        _call_back(process, callback)
        returned.set()

    def format_stack(*_: object) -> list[str]:
        lock.release()
        assert returned.wait(PATIENCE)
        return ["the stack"]

    lock.acquire()
    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(PATIENCE)
    end = time.monotonic() + PATIENCE
    while sys._current_frames()[thread.ident or 0].f_code.co_name != "<genexpr>":
        assert time.monotonic() < end
        time.sleep(0.001)
    monkeypatch.setattr("traceback.format_stack", format_stack)
    bridge: Any = SimpleNamespace(loop_thread=thread.ident)

    report = look_at_loop(bridge, 1.0)

    thread.join(PATIENCE)
    assert report is not None
    assert (report.callback, report.message_type) == ("handle_message", "str")


# -- the line of the log ---------------------------------------------------------------------------

KERNEL = (
    f'  File "{Path(watchdog_module.__file__).parents[1] / "loop.py"}", line 5, in serve\n    x()\n'
)
TRIO = f'  File "{Path(trio.__file__).parent / "_run.py"}", line 9, in unrolled_run\n    y()\n'
START = '  File "shop.py", line 90, in <module>\n    trio.run(main)\n'
CALLBACK = '  File "shop.py", line 7, in handle_message\n    time.sleep(5)\n'
LIBRARY = '  File "json/decoder.py", line 7, in decode\n'


@pytest.mark.parametrize(
    "stack, shown",
    [
        (START + TRIO + KERNEL + CALLBACK, CALLBACK),
        (START + TRIO + KERNEL + CALLBACK + LIBRARY + KERNEL, CALLBACK + LIBRARY),
        (START + TRIO + KERNEL, START + TRIO + KERNEL),
        (KERNEL + CALLBACK, CALLBACK),
        ("", ""),
    ],
    ids=["callback", "library", "kernel only", "cut", "empty"],
)
def test_the_log_shows_the_frames_of_the_program_that_block_the_loop(
    stack: str, shown: str
) -> None:
    assert of_program(stack) == shown
