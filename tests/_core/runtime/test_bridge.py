"""Threads and the loop: nothing is lost, nothing is overtaken, and nobody waits for what no longer
comes.

Races are looked for in two ways: with a switch interval of a microsecond, and with a bridge that
hesitates around every step that could be raced. The second way is shown to work: bridges that take
the steps in a wrong order are found out by it.
"""

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import trio
import trio.testing

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Caller,
    CallTimeoutError,
    Custom,
    Divert,
    Diverted,
    Killed,
    MailboxFullError,
    Node,
    NodeStoppedError,
    NotAllowedError,
    Overflow,
    Priority,
    ProcessUnknownError,
    Shutdown,
    TargetDownError,
    TargetTypeError,
    Why,
)
from ergo_py._core.runtime import bridge as bridge_module
from ergo_py._core.runtime.bridge import (
    Bridge,
    Parker,
    ReaderThread,
    bells,
    stack_of,
    thread_names,
    wait_in_slices,
)
from ergo_py._core.tables.mailbox import Mailbox, Verdict
from ergo_py._core.vocabulary.envelopes import MESSAGE, Lane
from tests.support import (
    Puppet,
    Recorder,
    kernel_of,
    needs_proc,
    open_descriptors,
    process_of,
    router_of,
    running_node,
    thread_of,
)

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds after which something is lost. Only a failing test takes that long."""


async def in_thread(function: Callable[[], T]) -> T:
    """Run something in a thread. A test that has run out of time does not wait for it."""
    return await trio.to_thread.run_sync(function, abandon_on_cancel=True)


async def in_threads(functions: list[Callable[[], object]]) -> None:
    async with trio.open_nursery() as nursery:
        for function in functions:
            nursery.start_soon(in_thread, function)


@pytest.fixture
def switching_fast() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# -- the bridge alone ------------------------------------------------------------------------------


def complain(error: BaseException) -> None:
    raise AssertionError("a job failed") from error


def make_bridge(kind: type[Bridge] = Bridge) -> Bridge:
    return kind("test@localhost", trio.lowlevel.current_trio_token(), complain)


def hesitate() -> None:
    # Nothing is waited for: it lets the other threads come in between, at moments that nobody
    # foresees.
    if random.random() < 0.4:
        time.sleep(random.random() * 0.001)


class Hesitant(Bridge):
    """Waits a random moment before each look at its state, and before and after each change of it."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("_armed", "_closed", "_inbox"):
            hesitate()
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        hesitate()
        super().__setattr__(name, value)
        hesitate()


class LooksAtTheFlagFirst(Hesitant):
    def post(self, job: Callable[..., object], *args: Any) -> None:
        if not self._armed:
            self._arm()
        self._inbox.append((job, args))


class TakesTheFlagDownLast(Hesitant):
    def _drain(self) -> None:
        while self._inbox:
            job, args = self._inbox.popleft()
            job(*args)
        self._armed = False


class RaisesTheFlagBeforeTheLoopHasPromised(Hesitant):
    def _arm(self) -> None:
        self._armed = True
        try:
            self._token.run_sync_soon(self._drain)
        except trio.RunFinishedError:
            self._closed = True
            raise NodeStoppedError(self._node) from None


def rounds_until_one_is_lost(bridge: Bridge, rounds: int, patience: float) -> int | None:
    """Post single jobs and wait for each. In a flood the next wake-up would hide that one was
    missing.
    """
    for number in range(rounds):
        done = threading.Event()
        bridge.post(done.set)
        if not done.wait(patience):
            return number
    return None


async def test_no_job_is_forgotten_however_the_steps_of_thread_and_loop_fall() -> None:
    bridge = make_bridge(Hesitant)

    with trio.fail_after(60):
        lost = await in_thread(partial(rounds_until_one_is_lost, bridge, 300, PATIENCE))

    assert lost is None


@pytest.mark.parametrize("mutant", [LooksAtTheFlagFirst, TakesTheFlagDownLast])
async def test_a_bridge_that_takes_the_steps_in_another_order_forgets_a_job(
    mutant: type[Bridge],
) -> None:
    bridge = make_bridge(mutant)

    with trio.fail_after(60):
        lost = await in_thread(partial(rounds_until_one_is_lost, bridge, 1000, 0.3))

    assert lost is not None


async def test_jobs_of_one_thread_run_in_its_order_on_the_loop(switching_fast: None) -> None:
    bridge = make_bridge()
    ran: list[tuple[int, int]] = []
    idents: set[int] = set()

    def job(thread: int, number: int) -> None:
        ran.append((thread, number))
        idents.add(threading.get_ident())

    def flood(thread: int) -> None:
        for number in range(2000):
            bridge.post(job, thread, number)

    with trio.fail_after(60):
        await in_threads([partial(flood, thread) for thread in range(4)])
        await in_thread(lambda: bridge.run(int))

    assert idents == {threading.get_ident()}
    for thread in range(4):
        assert [number for who, number in ran if who == thread] == list(range(2000))


@pytest.mark.parametrize("kind", [Bridge, Hesitant])
async def test_what_was_accepted_before_closing_is_run(
    kind: type[Bridge], switching_fast: None
) -> None:
    bridge = make_bridge(kind)
    ran: set[tuple[int, int]] = set()
    accepted: set[tuple[int, int]] = set()
    refused = threading.Barrier(5)

    def job(one: tuple[int, int]) -> None:
        ran.add(one)

    def flood(thread: int) -> None:
        for number in range(10**9):
            try:
                bridge.post(job, (thread, number))
            except NodeStoppedError:
                break
            accepted.add((thread, number))
        refused.wait(PATIENCE)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for thread in range(4):
                nursery.start_soon(in_thread, partial(flood, thread))
            while len(ran) < 20:
                await trio.lowlevel.checkpoint()
            bridge.close()
            await in_thread(lambda: refused.wait(PATIENCE))
    await trio.testing.wait_all_tasks_blocked()

    assert accepted
    assert accepted <= ran


def threads_left_hanging(kind: type[Bridge]) -> int:
    """How many of some threads that ask a loop which is over believe that they will be answered."""

    async def make() -> Bridge:
        return make_bridge(kind)

    bridge = trio.run(make)
    believed = []
    together = threading.Barrier(4)

    def ask() -> None:
        together.wait(PATIENCE)
        try:
            bridge.post(int)
        except NodeStoppedError:
            return
        believed.append(1)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return len(believed)


def test_nobody_is_promised_anything_by_a_loop_that_is_over() -> None:
    hanging = [threads_left_hanging(Hesitant) for _ in range(40)]

    assert sum(hanging) == 0


def test_a_bridge_that_raises_its_flag_too_early_promises_what_a_loop_that_is_over_cannot_keep() -> (
    None
):
    hanging = any(threads_left_hanging(RaisesTheFlagBeforeTheLoopHasPromised) for _ in range(400))

    assert hanging


async def test_a_batch_of_jobs_wakes_the_loop_once() -> None:
    soon, done = list[Callable[[], None]](), list[int]()
    loop: Any = SimpleNamespace(run_sync_soon=soon.append)
    bridge = Bridge("test@localhost", loop, complain)

    for number in range(3):
        bridge.post(done.append, number)

    (come,) = soon
    come()
    assert done == [0, 1, 2]


async def test_a_job_is_done_at_once_on_the_loop_and_soon_for_a_thread() -> None:
    bridge, done, soon = make_bridge(), list[str](), trio.Event()

    bridge.do(done.append, "now")
    at_once = list(done)
    await in_thread(lambda: bridge.do(soon.set))

    assert at_once == ["now"]
    with trio.fail_after(PATIENCE):
        await soon.wait()


async def test_what_threads_have_handed_over_can_be_done_before_anything_else() -> None:
    bridge, done = make_bridge(), list[int]()
    bridge.post(done.append, 1)

    bridge.catch_up()

    assert done == [1]


@needs_proc
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="names of threads are not files here"
)
def test_a_thread_is_named_in_the_system_and_that_leaves_no_file_open() -> None:
    named, release, held, names = threading.Event(), threading.Event(), list[str](), list[str]()

    def stay() -> None:
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", encoding="utf-8") as comm:
            names.append(comm.read().strip())
        named.set()
        release.wait(PATIENCE)

    thread = ReaderThread("ergo-named-1", stay)
    thread.start()
    named.wait(PATIENCE)
    stack = thread.stack()
    held += [path for _, path in open_descriptors() if path.endswith("/comm")]
    release.set()
    thread_of(thread).join(PATIENCE)

    assert names == ["ergo-named-1"]
    assert "in stay" in stack
    assert thread_of(thread).daemon
    assert held == []


def test_no_slice_of_a_wait_is_longer_than_what_is_left() -> None:
    slices: list[float] = []

    def wait(seconds: float) -> bool:
        slices.append(seconds)
        return False

    came = wait_in_slices(wait, 0.01)

    assert came is False
    assert 0.0 <= min(slices) <= max(slices) <= 0.01


async def test_a_bridge_whose_loop_is_over_says_so_from_then_on() -> None:
    asked: list[Any] = []

    def refuse(job: Callable[[], None]) -> None:
        asked.append(job)
        raise trio.RunFinishedError

    loop: Any = SimpleNamespace(run_sync_soon=refuse)
    bridge = Bridge("test@localhost", loop, complain)

    for _ in range(2):
        with pytest.raises(NodeStoppedError, match="its event loop has ended"):
            bridge.post(list)

    assert len(asked) == 1


class ClosedMeanwhile(Bridge):
    """Is closed by somebody who has done what there was to do, just before a job comes."""

    def _arm(self) -> None:
        self._closed = True
        super()._arm()


async def test_a_job_that_nobody_will_come_for_is_refused() -> None:
    asked: list[Any] = []
    loop: Any = SimpleNamespace(run_sync_soon=asked.append)
    bridge = ClosedMeanwhile("test@localhost", loop, complain)

    with pytest.raises(NodeStoppedError):
        bridge.post(list)

    assert asked == []


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="there is no other bell here")
async def test_where_there_is_a_bell_trio_is_not_asked() -> None:
    asked: list[Any] = []
    loop: Any = SimpleNamespace(run_sync_soon=asked.append)
    bridge = Bridge("test@localhost", loop, complain)
    bridge.hang_bell()

    bridge.post(list)

    rung = os.eventfd_read(bridge._bell)
    os.close(bridge._bell)
    assert (rung, asked) == (1, [])


async def test_closing_does_what_was_accepted_before_it_returns() -> None:
    bridge, done = make_bridge(), list[int]()
    bridge.post(done.append, 1)

    bridge.close()

    assert done == [1]
    with pytest.raises(NodeStoppedError):
        bridge.post(done.append, 2)


def test_the_stack_of_a_thread_says_what_it_is_doing() -> None:
    nobody = max(thread_names()) + 1

    here, nowhere = stack_of(threading.get_ident()), stack_of(nobody)

    assert "test_the_stack_of_a_thread_says_what_it_is_doing" in here
    assert nowhere == ""


async def test_a_job_that_fails_is_told_and_the_next_one_runs() -> None:
    failures: list[BaseException] = []
    ran = threading.Event()
    bridge = Bridge("test@localhost", trio.lowlevel.current_trio_token(), failures.append)

    def both() -> None:
        bridge.post(divmod, 1, 0)
        bridge.post(ran.set)

    await in_thread(both)
    with trio.fail_after(PATIENCE):
        await in_thread(lambda: ran.wait(PATIENCE))

    assert ran.is_set()
    assert [type(failure) for failure in failures] == [ZeroDivisionError]


async def test_jobs_that_make_new_jobs_leave_others_their_turns() -> None:
    bridge = make_bridge()
    turns = 0
    left = 100

    def again() -> None:
        nonlocal left
        left -= 1
        if left:
            bridge.post(again)

    bridge.post(again)
    with trio.fail_after(PATIENCE):
        while left:
            turns += 1
            await trio.lowlevel.checkpoint()

    assert turns >= 50


async def test_a_job_may_close_the_bridge_and_what_was_accepted_runs_before() -> None:
    bridge = make_bridge()
    ran: list[str] = []

    bridge.post(bridge.close)
    bridge.post(ran.append, "accepted before")
    await trio.testing.wait_all_tasks_blocked()

    assert ran == ["accepted before"]
    with pytest.raises(NodeStoppedError):
        bridge.post(int)


async def test_run_gives_the_result_or_the_error_to_the_thread() -> None:
    bridge = make_bridge()

    result = await in_thread(lambda: bridge.run(threading.get_ident))
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: bridge.run(divmod, 1, 0))

    assert result == threading.get_ident()


async def test_run_on_the_loop_itself_does_not_wait_for_the_loop() -> None:
    bridge = make_bridge()

    assert bridge.run(divmod, 7, 2) == (3, 1)


class Interrupted(Bridge):
    """Gets a signal around each step that could be raced, and one at a time."""

    __slots__ = ("is_inside",)

    def __getattribute__(self, name: str) -> Any:
        if name in ("_armed", "_closed", "_inbox"):
            self.interrupt()
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "_armed":
            self.interrupt()

    def interrupt(self) -> None:
        if not getattr(self, "is_inside", True):
            self.is_inside = True
            signal.raise_signal(signal.SIGUSR1)
            self.is_inside = False


async def test_a_signal_handler_may_post_in_the_middle_of_posting_and_of_draining() -> None:
    bridge = make_bridge(Interrupted)
    assert isinstance(bridge, Interrupted)
    ran: Counter[str] = Counter()
    asked = 0

    def on_signal(_number: int, _frame: object) -> None:
        nonlocal asked
        asked += 1
        bridge.post(ran.update, ["signal"])

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        bridge.is_inside = False
        with trio.fail_after(PATIENCE):
            for number in range(20):
                bridge.post(ran.update, ["loop"])
                # One at a time, since the next one would hide that one was missing.
                while ran["loop"] <= number:
                    await trio.lowlevel.checkpoint()
        bridge.is_inside = True
        await trio.testing.wait_all_tasks_blocked()
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert asked >= 20
    assert ran == {"loop": 20, "signal": asked}


def test_a_parker_gives_its_first_value_only() -> None:
    parker: Parker[str] = Parker()

    parker.settle("first")
    parker.settle("second")

    assert parker.wait(0)
    assert parker.value == "first"


def test_a_parker_without_a_value_lets_go_in_time() -> None:
    parker: Parker[str] = Parker()

    assert not parker.wait(0.001)
    assert parker.value is None


def test_a_parker_takes_a_timeout_longer_than_a_lock_can_wait() -> None:
    parker: Parker[str] = Parker()
    parker.settle("here")

    assert parker.wait(1e300)


# -- sending from threads --------------------------------------------------------------------------


@dataclass(frozen=True)
class Numbered:
    thread: int
    number: int


class Collection:
    """What a process was sent, for the test to look at, and whether that is all it waits for."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.got: list[Any] = []
        self.complete = trio.Event()

    def add(self, message: Any) -> None:
        self.got.append(message)
        if len(self.got) == self.expected:
            self.complete.set()

    def numbers_of(self, thread: int) -> list[int]:
        return [one.number for one in self.got if one.thread == thread]


class Collector(Actor):
    def __init__(self, collection: Collection) -> None:
        self.collection = collection

    def handle_message(self, message: Any, sender: Any) -> None:
        self.collection.add(message)


class AsyncCollector(Actor):
    def __init__(self, collection: Collection) -> None:
        self.collection = collection

    async def handle_message(self, message: Any, sender: Any) -> None:
        self.collection.add(message)


class Gate:
    """Where a process stops, while its mailbox fills."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.reached = trio.Event()
        self.opened = trio.Event()


class Gated(Actor):
    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    async def handle_message(self, message: Any, sender: Any) -> None:
        if message == "stop here":
            self.gate.reached.set()
            await self.gate.opened.wait()
        else:
            self.gate.heard.append(message)


async def spawn_gated(node: Node, **options: Any) -> tuple[PID, Gate]:
    """A process that sits in a callback, with an empty mailbox."""
    gate = Gate()
    pid = await node.spawn(Gated, gate, shutdown=0, **options)
    node.send(pid, "stop here")
    await gate.reached.wait()
    return pid, gate


@pytest.mark.parametrize("behaviour", [Collector, AsyncCollector])
async def test_messages_of_each_thread_arrive_in_its_order(
    behaviour: type[Collector | AsyncCollector], switching_fast: None
) -> None:
    collection = Collection(6 * 1500)

    async with running_node() as node:
        pid = await node.spawn(behaviour, collection)

        def flood(thread: int) -> None:
            for number in range(1500):
                assert node.send(pid, Numbered(thread, number))

        await in_threads([partial(flood, thread) for thread in range(6)])
        await collection.complete.wait()

    for thread in range(6):
        assert collection.numbers_of(thread) == list(range(1500))


@pytest.mark.parametrize("by", ["pid", "name"])
async def test_a_thread_s_messages_keep_their_order_inside_each_priority(
    by: str, switching_fast: None
) -> None:
    collection = Collection(3 * 600)
    priorities = list(Priority)

    async with running_node() as node:
        pid = await node.spawn(Collector, collection, name="collector")
        target = pid if by == "pid" else "collector"

        def flood() -> None:
            for number in range(600):
                for priority in priorities:
                    node.send(target, Numbered(priority, number), priority=priority)

        await in_thread(flood)
        await collection.complete.wait()

    for priority in priorities:
        assert collection.numbers_of(priority) == list(range(600))


@pytest.mark.parametrize("size", [None, 1, 2, 20])
async def test_no_message_is_left_with_a_process_that_sleeps(
    size: int | None, switching_fast: None
) -> None:
    lost: list[tuple[int, int]] = []

    class Acknowledging(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            message.set()

    async with running_node() as node:
        pids = [
            await node.spawn(Acknowledging, mailbox_size=size, overflow=Overflow.WAIT)
            for _ in range(3)
        ]

        def one_at_a_time(thread: int) -> None:
            for number in range(300):
                done = threading.Event()
                node.send(pids[thread], done)
                if not done.wait(PATIENCE):
                    lost.append((thread, number))
                    return

        await in_threads([partial(one_at_a_time, thread) for thread in range(3)])

    assert lost == []


async def test_a_process_may_send_from_a_thread_in_its_own_name() -> None:
    senders: list[Any] = []
    heard = trio.Event()

    class Sees(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            senders.append(sender)
            heard.set()

    async with running_node() as node:
        other = await node.spawn(Sees)
        pid = await node.spawn(Puppet)
        await node.call(pid, lambda me: in_thread(lambda: me.send(other, "from a thread")))
        await heard.wait()

    assert senders == [pid]


async def test_two_nodes_in_two_threads_send_to_each_other() -> None:
    heard: list[str] = []
    arrived = trio.Event()
    other_is_up = threading.Event()
    others: list[tuple[Node, PID]] = []
    let_go = threading.Event()

    class Echo(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            home, back, text = message
            home.send(back, f"{text}, answered by {self.node.name}")

    class Hears(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            heard.append(message)
            arrived.set()

    async def other() -> None:
        async with running_node("other@localhost") as node:
            others.append((node, await node.spawn(Echo)))
            other_is_up.set()
            await in_thread(lambda: let_go.wait(PATIENCE))

    async with running_node() as node, trio.open_nursery() as nursery:
        pid = await node.spawn(Hears)
        nursery.start_soon(in_thread, partial(trio.run, other))
        await in_thread(lambda: other_is_up.wait(PATIENCE))
        far, echo = others[0]
        far.send(echo, (node, pid, "hello"))
        await arrived.wait()
        let_go.set()

    assert heard == ["hello, answered by other@localhost"]


async def test_a_thread_that_sends_to_nobody_gets_false_and_leaves_a_dead_letter() -> None:
    async with running_node() as node:
        gone = await node.spawn(Recorder)
        node.kill(gone)
        while gone in node.processes():
            await trio.lowlevel.checkpoint()

        sent = [await in_thread(partial(node.send, to, "hello")) for to in (gone, "nobody")]
        info = node.info()

    assert sent == [False, False]
    assert info.dead_letters == {Why.NO_PROCESS: 2}


async def test_a_thread_is_told_at_once_that_its_target_is_no_address() -> None:
    async with running_node() as node:
        with pytest.raises(TargetTypeError):
            await in_thread(lambda: node.send(42, "hello"))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


# -- bounded mailboxes -----------------------------------------------------------------------------

BOUND = 3


@pytest.mark.parametrize("priority", list(Priority))
async def test_a_full_mailbox_refuses_a_thread_and_gives_the_message_back(
    priority: Priority,
) -> None:
    refused: list[MailboxFullError] = []

    async with running_node() as node:
        pid, gate = await spawn_gated(node, mailbox_size=BOUND)

        def flood() -> None:
            for number in range(10):
                try:
                    node.send(pid, number, priority=priority)
                except MailboxFullError as error:
                    refused.append(error)

        await in_thread(flood)
        depth = max(node.process_info(pid).lanes.values())
        info, dropped = node.info(), node.process_info(pid).dropped
        gate.opened.set()
        await trio.testing.wait_all_tasks_blocked()

    assert gate.heard == [0, 1, 2]
    assert [(error.target, error.message, error.limit) for error in refused] == [
        (pid, number, BOUND) for number in range(3, 10)
    ]
    assert depth == BOUND
    assert dropped == 7
    assert info.dead_letters == {Why.FULL: 7}


@pytest.mark.parametrize("priority", list(Priority))
async def test_a_place_kept_for_a_thread_is_not_given_to_somebody_else(priority: Priority) -> None:
    async with running_node() as node:
        pid, gate = await spawn_gated(node, mailbox_size=1)
        refused = []

        def send_while_the_loop_is_here() -> None:
            thread = threading.Thread(
                target=node.send, args=(pid, "from the thread"), kwargs={"priority": priority}
            )
            thread.start()
            thread.join(PATIENCE)

        send_while_the_loop_is_here()
        try:
            node.send(pid, "from the loop", priority=priority)
        except MailboxFullError as error:
            refused.append(error.message)
        gate.opened.set()
        await trio.testing.wait_all_tasks_blocked()
        await in_thread(partial(node.send, pid, "afterwards", priority=priority))
        await trio.testing.wait_all_tasks_blocked()

    assert refused == ["from the loop"]
    assert gate.heard == ["from the thread", "afterwards"]


async def test_a_process_with_nothing_to_do_sleeps_until_a_promised_message_is_there() -> None:
    heard: list[Any] = []

    class Logging(Recorder):
        def handle_log(self, record: object) -> None: ...

    async with running_node() as node:
        pid = await node.spawn(Logging, heard, mailbox_size=1, overflow=Overflow.WAIT)
        node.add_logger(pid)
        for _ in range(20):
            thread = threading.Thread(target=node.send, args=(pid, "from the thread"))
            thread.start()
            thread.join(PATIENCE)
            # The process has to look at its mailbox, where somebody waits for a place and the only
            # one is promised.
            node.log.warning("look")
            await node.send_wait(pid, "from the loop")
            await until(lambda: len(heard) % 2 == 0)

    assert heard == ["from the thread", "from the loop"] * 20


@pytest.mark.parametrize("lane", [Lane.MAIN, Lane.SYSTEM, Lane.URGENT])
def test_who_has_seen_room_where_senders_wait_is_not_refused_because_a_thread_was_faster(
    lane: Lane,
) -> None:
    box = Mailbox(1, Overflow.WAIT)
    has_room = box.has_room(lane)
    promised = box.promise(lane)

    verdict, _ = box.admit(lane, (MESSAGE, None, None, "from the loop"))
    next_verdict, _ = box.admit(lane, (MESSAGE, None, None, "too many"))

    assert has_room
    assert promised
    assert verdict is Verdict.ACCEPTED
    assert next_verdict is Verdict.REFUSED


@pytest.mark.parametrize("bound", [1, 2, BOUND, 18, 40])
async def test_threads_wait_for_room_and_lose_neither_message_nor_order(
    bound: int, switching_fast: None
) -> None:
    collection = Collection(4 * 200)
    deepest = 0

    class Watching(Collector):
        def handle_message(self, message: Any, sender: Any) -> None:
            nonlocal deepest
            deepest = max(deepest, self.node.process_info(self.pid).lanes["main"])
            super().handle_message(message, sender)

    async with running_node() as node:
        pid = await node.spawn(Watching, collection, mailbox_size=bound, overflow=Overflow.WAIT)

        def flood(thread: int) -> None:
            for number in range(200):
                assert node.send(pid, Numbered(thread, number))

        await in_threads([partial(flood, thread) for thread in range(4)])
        await collection.complete.wait()
        info = node.info()

    for thread in range(4):
        assert collection.numbers_of(thread) == list(range(200))
    assert deepest <= bound
    assert not info.dead_letters


@pytest.mark.parametrize("end", ["the receiver", "the node"])
async def test_threads_that_wait_for_room_are_freed_when_it_never_comes(end: str) -> None:
    results: list[bool] = []

    async with trio.open_nursery() as nursery, running_node() as node:
        pid, _ = await spawn_gated(node, mailbox_size=1, overflow=Overflow.WAIT)
        node.send(pid, "fills it")
        for _ in range(3):
            nursery.start_soon(in_thread, lambda: results.append(node.send(pid, "waits")))
        await until(lambda: waiters_of(node, pid) == 3)
        if end == "the receiver":
            node.kill(pid)
            await until(lambda: len(results) == 3)

    assert results == [False, False, False]
    counts = Counter(letter.why for letter in node.dead_letters())
    assert counts == {Why.STOPPING: 3, Why.UNHANDLED_AT_EXIT: 1}


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop go on until something holds that depends on a thread."""
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.lowlevel.checkpoint()


def waiters_of(node: Node, pid: PID) -> int:
    waiting = process_of(node, pid).mailbox.waiters or {}
    return sum(map(len, waiting.values()))


@pytest.mark.parametrize(
    "overflow,heard,why",
    [
        (Overflow.DROP_NEWEST, [0, 1, 2], Why.FULL),
        (Overflow.DROP_OLDEST, [7, 8, 9], Why.DISPLACED),
    ],
)
async def test_what_a_thread_sends_too_much_is_dropped_and_counted(
    overflow: Overflow, heard: list[int], why: Why
) -> None:
    async with running_node() as node:
        pid, gate = await spawn_gated(node, mailbox_size=BOUND, overflow=overflow)

        def flood() -> None:
            for number in range(10):
                node.send(pid, number)

        await in_thread(flood)
        dropped = await in_thread(lambda: node.process_info(pid).dropped)
        gate.opened.set()
        await trio.testing.wait_all_tasks_blocked()
        info = node.info()

    assert gate.heard == heard
    assert dropped == 7
    assert info.dead_letters == {why: 7}


async def test_what_a_thread_sends_too_much_is_diverted() -> None:
    diverted: list[Any] = []

    async with running_node() as node:
        await node.spawn(Recorder, diverted, name="spare")
        pid, _ = await spawn_gated(node, mailbox_size=1, overflow=Divert(to="spare", tag="full"))

        def flood() -> None:
            for number in range(3):
                node.send(pid, number)

        await in_thread(flood)
        await until(lambda: len(diverted) == 2)

    assert diverted == [Diverted(pid, "full", 1, node.pid), Diverted(pid, "full", 2, node.pid)]


# -- calling from threads --------------------------------------------------------------------------


class Answering(Actor):
    """Answers, refuses, crashes, or keeps the caller waiting, as it is asked."""

    def __init__(self) -> None:
        self.kept: list[Caller] = []

    async def handle_call(self, request: Any, caller: Caller) -> object:
        match request:
            case "crash":
                raise LookupError("on purpose")
            case "none":
                return None
            case threading.Event():
                self.kept.append(caller)
                request.set()
                return NO_REPLY
        return (request, caller.pid)


async def test_a_thread_gets_the_answer() -> None:
    async with running_node() as node:
        await node.spawn(Answering, name="answering")

        answers = await in_thread(
            lambda: [node.call_from_thread("answering", one) for one in (1, "none", 2)]
        )

    assert answers == [(1, node.pid), None, (2, node.pid)]


async def test_a_thread_gets_the_error_of_the_callee_that_crashed() -> None:
    async with running_node() as node:
        pid = await node.spawn(Answering)

        with pytest.raises(TargetDownError) as caught:
            await in_thread(lambda: node.call_from_thread(pid, "crash"))

    assert isinstance(caught.value.__cause__, LookupError)


async def test_a_thread_that_calls_nobody_is_told_so() -> None:
    async with running_node() as node:
        with pytest.raises(TargetDownError):
            await in_thread(lambda: node.call_from_thread("nobody", 1))
        with pytest.raises(TargetTypeError):
            await in_thread(lambda: node.call_from_thread(42, 1))  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]


async def test_a_thread_does_not_wait_longer_than_it_said_and_a_late_answer_is_dropped() -> None:
    async with running_node() as node:
        pid = await node.spawn(Answering)

        with pytest.raises(CallTimeoutError) as caught:
            await in_thread(lambda: node.call_from_thread(pid, threading.Event(), timeout=0.01))
        kept = process_of(node, pid).behaviour.kept
        await until(lambda: kept and not process_of(node, pid).deferred)
        answered = node.reply(kept[0], "too late")
        info = node.info()

    assert caught.value.timeout == 0.01
    assert not answered
    assert info.late_replies == 1


async def test_a_thread_does_not_wait_longer_than_it_said_while_the_loop_is_blocked() -> None:
    gave_up = threading.Event()
    errors: list[BaseException] = []

    async with running_node() as node:
        pid = await node.spawn(Answering)

        def ask() -> None:
            try:
                node.call_from_thread(pid, 1, timeout=0.01)
            except CallTimeoutError as error:
                errors.append(error)
            gave_up.set()

        thread = threading.Thread(target=ask)
        thread.start()
        came_back = gave_up.wait(PATIENCE)
        thread.join(PATIENCE)
        await trio.testing.wait_all_tasks_blocked()

    assert came_back
    assert len(errors) == 1


@pytest.mark.parametrize("queued", [True, False], ids=["queued", "deferred"])
async def test_a_thread_is_told_when_its_callee_dies(queued: bool) -> None:
    asked = threading.Event()
    errors: list[TargetDownError] = []

    async with running_node() as node:
        pid = (await spawn_gated(node))[0] if queued else await node.spawn(Answering)

        def ask() -> None:
            try:
                node.call_from_thread(pid, asked, timeout=None)
            except TargetDownError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, ask)
            if queued:
                await until(lambda: node.process_info(pid).lanes["main"] == 1)
            else:
                await in_thread(lambda: asked.wait(PATIENCE))
            node.kill(pid)

    assert [error.reason for error in errors] == [Killed()]


async def test_a_thread_is_told_when_the_node_stops_while_it_waits() -> None:
    asked = threading.Event()
    errors: list[BaseException] = []

    async with trio.open_nursery() as nursery, running_node() as node:
        pid = await node.spawn(Answering)

        def ask() -> None:
            try:
                node.call_from_thread(pid, asked, timeout=None)
            except TargetDownError as error:
                errors.append(error)

        nursery.start_soon(in_thread, ask)
        await in_thread(lambda: asked.wait(PATIENCE))

    assert [error.reason for error in errors if isinstance(error, TargetDownError)] == [Shutdown()]


async def test_calls_of_threads_race_with_the_end_of_the_node_and_all_end(
    switching_fast: None,
) -> None:
    ends: list[Exception] = []
    begun = threading.Semaphore(0)

    async with trio.open_nursery() as nursery, running_node() as node:
        pid = await node.spawn(Answering)

        def ask() -> None:
            while True:
                try:
                    node.call_from_thread(pid, 1, timeout=None)
                except (TargetDownError, NodeStoppedError) as error:
                    ends.append(error)
                    return
                begun.release()

        for _ in range(4):
            nursery.start_soon(in_thread, ask)
        for _ in range(20):
            await in_thread(lambda: begun.acquire(timeout=PATIENCE))

    assert len(ends) == 4


async def test_a_blocking_call_on_the_loop_itself_is_refused() -> None:
    async with running_node() as node:
        pid = await node.spawn(Answering)

        with pytest.raises(NotAllowedError, match=r"await node\.call"):
            node.call_from_thread(pid, 1)


def test_an_interrupted_call_leaves_nothing_behind() -> None:
    ready = threading.Event()
    finish = threading.Event()
    nodes: list[tuple[Node, PID]] = []
    left: list[object] = []
    main = threading.main_thread().ident or 0

    class Interrupting(Actor):
        def handle_call(self, request: Any, caller: Caller) -> object:
            self.caller = caller
            signal.pthread_kill(main, signal.SIGINT)
            return NO_REPLY

    async def other_thread() -> None:
        async with running_node(inline_calls=False) as node:
            pid = await node.spawn(Interrupting)
            process = process_of(node, pid)
            nodes.append((node, pid))
            ready.set()
            await in_thread(lambda: finish.wait(PATIENCE))
            left.append(set(process.deferred or ()))
            left.append(node.reply(process.behaviour.caller, "too late"))

    thread = threading.Thread(target=trio.run, args=(other_thread,))
    thread.start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert ready.wait(PATIENCE)
        node, pid = nodes[0]
        with pytest.raises(KeyboardInterrupt):
            node.call_from_thread(pid, "interrupt me", timeout=PATIENCE)
    finally:
        signal.signal(signal.SIGINT, before)
        finish.set()
        thread.join(PATIENCE)

    assert left == [set(), False]


def test_an_interrupted_send_that_waited_for_room_is_taken_back() -> None:
    ready = threading.Event()
    finish = threading.Event()
    nodes: list[tuple[Node, PID]] = []
    heard: list[Any] = []
    main = threading.main_thread().ident or 0

    async def other_thread() -> None:
        async with running_node() as node:
            pid, gate = await spawn_gated(node, mailbox_size=1, overflow=Overflow.WAIT)
            node.send(pid, "fills it")
            nodes.append((node, pid))
            ready.set()
            await until(lambda: waiters_of(node, pid) == 1)
            signal.pthread_kill(main, signal.SIGINT)
            await in_thread(lambda: finish.wait(PATIENCE))
            gate.opened.set()
            await trio.testing.wait_all_tasks_blocked()
            heard.extend(gate.heard)

    thread = threading.Thread(target=trio.run, args=(other_thread,))
    thread.start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert ready.wait(PATIENCE)
        node, pid = nodes[0]
        with pytest.raises(KeyboardInterrupt):
            node.send(pid, "waits")
    finally:
        signal.signal(signal.SIGINT, before)
        finish.set()
        thread.join(PATIENCE)

    assert heard == ["fills it"]


# -- the other verbs from threads ------------------------------------------------------------------


async def test_a_thread_answers_a_deferred_call() -> None:
    async with running_node() as node:
        pid = await node.spawn(Answering)
        kept = process_of(node, pid).behaviour.kept
        asked = [threading.Event(), threading.Event()]

        def answer() -> None:
            assert asked[0].wait(PATIENCE)
            assert node.reply(kept[0], "from a thread")
            assert asked[1].wait(PATIENCE)
            assert node.reply_error(kept[1], KeyError("refused in a thread"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, answer)
            first = await node.call(pid, asked[0])
            with pytest.raises(KeyError, match="refused in a thread"):
                await node.call(pid, asked[1])

    assert first == "from a thread"


async def test_a_thread_hands_a_deferred_call_on_and_it_is_done_by_the_loop() -> None:
    where: list[int] = []

    class Answers(Actor):
        def handle_call(self, request: Any, caller: Caller) -> object:
            where.append(threading.get_ident())
            return f"{request} by another"

    async with running_node() as node:
        first, other = await node.spawn(Answering), await node.spawn(Answers)
        behaviour = process_of(node, first).behaviour
        asked = threading.Event()

        def hand_on() -> None:
            assert asked.wait(PATIENCE)
            behaviour.forward(other, "answered", behaviour.kept[0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, hand_on)
            answer = await node.call(first, asked)

    assert answer == "answered by another"
    assert where == [threading.get_ident()]


async def test_a_thread_sees_the_node_and_its_processes() -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder, name="recorder")

        seen = await in_thread(
            lambda: (
                node.info().processes,
                node.process_info("recorder").pid,
                node.processes(),
                node.whereis("recorder"),
                node.dead_letters(),
            )
        )
        with pytest.raises(ProcessUnknownError):
            await in_thread(lambda: node.process_info("nobody"))

    assert seen == (1, pid, [pid], pid, [])


async def test_a_thread_names_asks_to_exit_and_kills() -> None:
    async with running_node() as node:
        asked = await node.spawn(Recorder)
        killed = await node.spawn(Recorder)

        await in_thread(partial(node.register, "named", asked))
        named = node.whereis("named")
        reasons: list[object] = []

        async def watch(pid: PID) -> None:
            reasons.append((pid, await node.wait_ended(pid)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, asked)
            nursery.start_soon(watch, killed)
            await trio.testing.wait_all_tasks_blocked()
            exits = await in_thread(lambda: (node.send_exit("named", "enough"), node.kill(killed)))
        gone = await in_thread(lambda: (node.send_exit("named", "enough"), node.kill(killed)))

    assert named == asked
    assert exits == (True, True)
    assert sorted(reasons, key=str) == sorted(
        [(asked, Custom("enough")), (killed, Killed())], key=str
    )
    assert gone == (False, False)


async def test_a_thread_arms_a_timer() -> None:
    heard: list[Any] = []

    async with running_node() as node:
        pid = await node.spawn(Recorder, heard)
        await in_thread(lambda: node.send_after(0.0, pid, "now"))
        await until(lambda: heard == ["now"])


async def test_a_thread_takes_a_timer_back() -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        timer = node.send_after(3600.0, pid, "later")

        said = [await in_thread(timer.cancel) for _ in range(2)]

        assert said == [True, False]
        assert len(kernel_of(node).clock.timers) == 0

    assert timer.cancel() is False


async def test_a_timer_of_a_node_that_has_stopped_is_over_for_threads_too() -> None:
    async with running_node() as node:
        timer = node.send_after(3600.0, "nobody", "later")

    assert await in_thread(timer.cancel) is False


async def test_verbs_that_wait_on_the_loop_say_so_in_a_thread() -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)

        async def misplaced() -> None:
            await node.call(pid, 1)

        with pytest.raises(NotAllowedError, match="call_from_thread"):
            await in_thread(partial(trio.run, misplaced))


async def test_a_thread_stops_the_node() -> None:
    async with running_node() as node:
        await in_thread(node.stop)
        await trio.sleep_forever()

    assert node.exit_report is not None


# -- after the end ---------------------------------------------------------------------------------

Verbs = dict[str, Callable[[Node, PID], object]]
VERBS: Verbs = {
    "send": lambda node, pid: node.send(pid, "hello"),
    "send high": lambda node, pid: node.send(pid, "hello", priority=Priority.HIGH),
    "send to a name": lambda node, _pid: node.send("somebody", "hello"),
    "info": lambda node, _pid: node.info(),
    "process_info": lambda node, pid: node.process_info(pid),
    "kill": lambda node, pid: node.kill(pid),
    "send_exit": lambda node, pid: node.send_exit(pid),
    "register": lambda node, pid: node.register("name", pid),
    "send_after": lambda node, pid: node.send_after(1, pid, "hello"),
    "stop": lambda node, _pid: node.stop(),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("thread", [True, False], ids=["in a thread", "on the loop"])
async def test_a_node_that_has_stopped_says_so(verb: str, thread: bool) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)

    with pytest.raises(NodeStoppedError, match="open_node"):
        if thread:
            await in_thread(lambda: VERBS[verb](node, pid))
        else:
            VERBS[verb](node, pid)


@pytest.mark.parametrize("verb", [*VERBS, "call_from_thread"])
@pytest.mark.parametrize("thread", [True, False], ids=["in a thread", "in the loop's thread"])
def test_a_node_whose_loop_is_over_says_so(verb: str, thread: bool) -> None:
    async def whole() -> tuple[Node, PID]:
        async with running_node() as node:
            return node, await node.spawn(Recorder)

    node, pid = trio.run(whole)
    verbs: Verbs = {
        **VERBS,
        "call_from_thread": lambda node, pid: node.call_from_thread(pid, "hello"),
    }
    errors: list[BaseException] = []

    def attempt() -> None:
        try:
            verbs[verb](node, pid)
        except BaseException as error:
            errors.append(error)

    if thread:
        other = threading.Thread(target=attempt)
        other.start()
        other.join(PATIENCE)
    else:
        attempt()

    expected = NotAllowedError if verb == "call_from_thread" and not thread else NodeStoppedError
    assert [type(error) for error in errors] == [expected]


async def test_what_a_thread_logs_after_the_end_is_no_error() -> None:
    class Logger(Actor):
        def handle_log(self, record: object) -> None: ...

    async with running_node() as node:
        node.add_logger(await node.spawn(Logger))
        # As if the thread had looked before the loggers were gone.
        log = kernel_of(node).log
    log.watched = True

    await in_thread(lambda: node.log.error("afterwards"))


FORK = """
import os, sys, threading
import trio
from ergo_py import Actor, NodeStoppedError, Priority, open_node

class Echo(Actor):
    def handle_message(self, message, sender):
        pass

    def handle_call(self, request, caller):
        return request

bounded = []

def child(node, pid):
    verbs = {
        "send": lambda: node.send(pid, 1),
        "high": lambda: node.send(pid, 1, priority=Priority.HIGH),
        "bounded": lambda: node.send("bounded", 1),
        "bounded pid": lambda: node.send(bounded[0], 1),
        "name": lambda: node.send("nobody", 1),
        "info": node.info,
        "kill": lambda: node.kill(pid),
        "stop": node.stop,
        "thread": lambda: node.call_from_thread(pid, 1),
    }
    for name, verb in verbs.items():
        try:
            verb()
        except NodeStoppedError:
            os.write(1, f"{name} refused, ".encode())
        else:
            os.write(1, f"{name} accepted, ".encode())
    os._exit(0)

def fork(node, pid):
    process = os.fork()
    if not process:
        child(node, pid)
    return os.waitpid(process, 0)[1]

async def main():
    async with open_node(watchdog=None) as node:
        pid = await node.spawn(Echo)
        bounded.append(await node.spawn(Echo, name="bounded", mailbox_size=100))
        where = sys.argv[1]
        if where == "loop":
            status = fork(node, pid)
        elif where == "thread":
            status = await trio.to_thread.run_sync(fork, node, pid)
        else:
            # The loop has been asked to come and has not come yet: nobody would ask it again.
            results = []
            def ask_and_fork():
                node.send(pid, "before")
                results.append(fork(node, pid))
            thread = threading.Thread(target=ask_and_fork)
            thread.start()
            thread.join()
            status = results[0]
        answer = await trio.to_thread.run_sync(node.call_from_thread, pid, "undisturbed")
        print(status, await node.call(pid, answer))

trio.run(main)
"""


@pytest.mark.parametrize("where", ["loop", "thread", "armed"])
def test_a_forked_copy_has_no_node_and_the_original_is_undisturbed(where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", FORK, where],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    verbs = ["send", "high", "bounded", "bounded pid", "name", "info", "kill", "stop", "thread"]
    assert done.stderr == ""
    assert done.stdout == "".join(f"{verb} refused, " for verb in verbs) + "0 undisturbed\n"


# -- many jobs at once -----------------------------------------------------------------------------


@pytest.mark.parametrize("has_bell", [True, False], ids=["own bell", "trio's door"])
async def test_many_jobs_are_done_in_several_turns_and_in_order(has_bell: bool) -> None:
    bridge, done, seen = make_bridge(Bridge), list[int](), list[int]()
    async with trio.open_nursery() as nursery:
        if has_bell:
            bridge.hang_bell()
        nursery.start_soon(bridge.serve)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(2_000):
            bridge.post(done.append, number)

        while len(done) < 2_000:
            await trio.lowlevel.checkpoint()
            seen.append(len(done))
        bridge.close()

    assert done == list(range(2_000))
    # In two turns of the scheduler at most two batches, since it shuffles its tasks.
    assert max(later - earlier for earlier, later in pairwise([0, *seen])) <= 2 * 256


@pytest.mark.parametrize("way", ["close", "catch_up"])
async def test_all_of_many_jobs_are_done_at_once_where_they_must_be(way: str) -> None:
    bridge, done = make_bridge(Bridge), list[int]()
    for number in range(2_000):
        bridge.post(done.append, number)

    getattr(bridge, way)()

    assert done == list(range(2_000))
    bridge.close()


# -- a bell of the bridge's own --------------------------------------------------------------------


class TakesARingForNothing(Hesitant):
    """Leaves the flag up when there is nothing to do."""

    def _drain(self) -> None:
        if self._inbox:
            super()._drain()


async def served(kind: type[Bridge], use: Callable[[Bridge], T]) -> T:
    """Use a bridge from a thread while it is served."""
    bridge = make_bridge(kind)
    async with trio.open_nursery() as nursery:
        bridge.hang_bell()
        nursery.start_soon(bridge.serve)
        await trio.testing.wait_all_tasks_blocked()
        try:
            return await in_thread(lambda: use(bridge))
        finally:
            bridge.close()


def rounds_in_threads_until_one_is_lost(
    rounds: int, patience: float, bridge: Bridge
) -> list[int | None]:
    lost: list[int | None] = []
    threads = [
        threading.Thread(
            target=lambda: lost.append(rounds_until_one_is_lost(bridge, rounds, patience))
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return lost


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="there is no other bell here")
async def test_bells_are_counted_for_the_loop_they_hang_at_and_while_they_hang() -> None:
    before = bells()

    during, elsewhere = await served(Bridge, lambda bridge: (bridge.run(bells), bells()))

    assert (during - before, elsewhere, bells()) == (1, 0, before)


async def test_jobs_that_are_not_done_are_counted() -> None:
    bridge = make_bridge(Bridge)
    counted: list[int] = []

    for _ in range(3):
        bridge.post(lambda: counted.append(bridge.pending))
    before = bridge.pending
    await trio.testing.wait_all_tasks_blocked()

    assert (before, counted, bridge.pending) == (3, [2, 1, 0], 0)


async def test_no_job_is_forgotten_while_the_bridge_has_a_bell_of_its_own() -> None:
    with trio.fail_after(60):
        lost = await served(Hesitant, partial(rounds_in_threads_until_one_is_lost, 100, PATIENCE))

    assert lost == [None] * 3


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="there is no other bell here")
async def test_a_bridge_that_takes_a_ring_for_nothing_forgets_a_job() -> None:
    with trio.fail_after(60):
        lost = await served(
            TakesARingForNothing, partial(rounds_in_threads_until_one_is_lost, 1000, 0.3)
        )

    assert lost != [None] * 3


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="there is no other bell here")
@pytest.mark.parametrize("kind", [Bridge, Hesitant])
async def test_the_bell_is_never_rung_after_it_is_gone(
    kind: type[Bridge], switching_fast: None
) -> None:
    def flood(bridge: Bridge) -> int:
        for number in range(10**9):
            try:
                bridge.post(int)
            except NodeStoppedError:
                return number
            # The loop is to fall asleep between two posts, so that the bell is rung for each.
            time.sleep(0.0001)
        return 0

    for _ in range(5):
        bridge = make_bridge(kind)
        accepted: list[int] = []
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:

                async def flood_in_thread(
                    bridge: Bridge = bridge, accepted: list[int] = accepted
                ) -> None:
                    accepted.append(await in_thread(lambda: flood(bridge)))

                bridge.hang_bell()
                nursery.start_soon(bridge.serve)
                for _ in range(3):
                    nursery.start_soon(flood_in_thread)
                for _ in range(5):
                    await trio.sleep(0.001)
                bridge.close()
                # Whoever takes over the number of the bell now must not be written to.
                taken = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3)]
        for fd in taken:
            with pytest.raises(BlockingIOError):
                os.eventfd_read(fd)
            os.close(fd)

        assert len(accepted) == 3


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="there is no other bell here")
async def test_serving_ends_with_the_bridge_and_leaves_nothing() -> None:
    before = open_descriptors()
    bridge = make_bridge()
    ran: list[str] = []
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            bridge.hang_bell()
            nursery.start_soon(bridge.serve)
            await trio.testing.wait_all_tasks_blocked()
            while_served = open_descriptors()
            bridge.post(ran.append, "job")
            bridge.close()

    assert ran == ["job"]
    assert len(while_served - before) == 1
    assert open_descriptors() <= before


async def test_a_bridge_whose_serving_was_cancelled_goes_on_without_a_bell() -> None:
    bridge = make_bridge()
    ran: list[str] = []
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            bridge.hang_bell()
            nursery.start_soon(bridge.serve)
            await trio.testing.wait_all_tasks_blocked()
            bridge.post(ran.append, "while it was served")
            nursery.cancel_scope.cancel()
        await in_thread(lambda: bridge.run(ran.append, "afterwards"))

    assert ran == ["while it was served", "afterwards"]


async def test_where_there_is_no_eventfd_trio_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd", raising=False)
    bridge = make_bridge()

    bridge.hang_bell()
    await bridge.serve()

    assert await in_thread(lambda: bridge.run(lambda: 42)) == 42


async def test_where_there_is_no_descriptor_left_trio_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exhausted(*_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "eventfd", exhausted, raising=False)
    bridge = make_bridge()

    bridge.hang_bell()
    await bridge.serve()

    assert await in_thread(lambda: bridge.run(lambda: 42)) == 42


async def test_a_ring_that_nobody_takes_any_more_does_not_leave_the_flag_up() -> None:
    bridge = make_bridge()
    ran: list[str] = []
    async with trio.open_nursery() as nursery:
        bridge.hang_bell()
        nursery.start_soon(bridge.serve)
        await trio.testing.wait_all_tasks_blocked()
        bridge.post(ran.append, "done by the way")
        bridge._inbox.popleft()
        nursery.cancel_scope.cancel()

    with trio.fail_after(10):
        await in_thread(lambda: bridge.run(ran.append, "afterwards"))

    assert ran == ["afterwards"]


async def test_a_thread_is_heard_while_time_stands_still(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running_node() as node:
        heard: list[Any] = []
        pid = await node.spawn(Recorder, heard)
        for number in range(20):
            thread = threading.Thread(target=node.send, args=(pid, number))
            thread.start()
            thread.join(PATIENCE)
            await trio.testing.wait_all_tasks_blocked()

    assert heard == list(range(20))


async def test_what_is_marked_dead_as_in_a_forked_copy_refuses_everything() -> None:
    async with running_node() as other:
        async with running_node("marked@localhost") as node:
            bridge, router = router_of(node).bridge, router_of(node)
            pid = await node.spawn(Recorder)
            thread = bridge.loop_thread

            bridge.forked()
            errors = []
            for verb in (lambda: node.send(pid, "hello"), lambda: bridge.post(print)):
                with pytest.raises(NodeStoppedError) as caught:
                    verb()
                errors.append(str(caught.value))
            stopped = router.stopped
            # The node is not in a copy at all, and has to come down.
            bridge._closed, bridge.loop_thread, router.loop_thread, router.stopped = (
                False,
                thread,
                thread,
                False,
            )

        assert stopped
        assert all("forked" in error for error in errors)
        assert not router_of(other).stopped


async def test_every_bridge_is_marked_dead_in_a_forked_copy() -> None:
    bridges = [make_bridge(), make_bridge()]
    marked: list[int] = []
    bridges[0].when_forked(lambda: marked.append(0))

    bridge_module._mark_dead_in_copy()

    assert marked == [0]
    for bridge in bridges:
        with pytest.raises(NodeStoppedError, match="forked"):
            bridge.check_open()
        assert not bridge.on_loop()


def test_a_thread_starts_where_its_stack_cannot_be_made_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(size: int = 0) -> int:
        if size:
            raise ValueError("no such size")
        return 0

    monkeypatch.setattr(threading, "stack_size", refuse)
    ran = threading.Event()

    ReaderThread("ergo-test-1", ran.set).start()

    assert ran.wait(PATIENCE)


def test_a_thread_runs_where_the_system_does_not_take_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, refused = os.open, list[str]()

    def refuse(path: Any, *args: Any, **options: Any) -> int:
        if str(path).endswith("/comm"):
            refused.append(path)
            raise FileNotFoundError(path)
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    ran = threading.Event()

    ReaderThread("ergo-test-1", ran.set).start()

    assert ran.wait(PATIENCE)
    assert len(refused) == 1


async def test_catching_up_does_what_was_handed_over_before_anything_else() -> None:
    bridge = make_bridge()
    done: list[str] = []
    await in_thread(lambda: bridge.post(done.append, "handed over"))

    bridge.catch_up()
    done.append("next")

    assert done[:2] == ["handed over", "next"]


async def test_what_is_refused_is_not_kept() -> None:
    bridge = make_bridge()
    bridge.close()

    with pytest.raises(NodeStoppedError):
        bridge.post(print, "late")

    assert bridge.pending == 0


def test_threads_are_known_by_their_names() -> None:
    begun, over = threading.Event(), threading.Event()

    def stay() -> None:
        begun.set()
        over.wait(PATIENCE)

    thread = ReaderThread("ergo-test-names-1", stay)
    thread.start()
    begun.wait(PATIENCE)

    names = thread_names()
    over.set()

    assert names[thread.ident] == "ergo-test-names-1"
    assert names[threading.get_ident()] == threading.current_thread().name


def test_the_main_thread_comes_up_for_air_while_it_waits() -> None:
    answers, asked = iter([False, False, True]), list[float]()

    def wait(seconds: float) -> bool:
        asked.append(seconds)
        return next(answers)

    came = wait_in_slices(wait, None)

    assert came
    # In the main thread, where tests run.
    assert len(asked) == 3
    assert 0 < max(asked) < 1
