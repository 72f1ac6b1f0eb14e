"""Pools: how work is shared out, the overflow policies of full pools, and workers that come and
go.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

import pytest
import trio
from trio.lowlevel import checkpoint
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    Actor,
    Backoff,
    BadInputError,
    CallTimeoutError,
    ChildSpec,
    Divert,
    Diverted,
    InitError,
    MailboxFullError,
    Node,
    Overflow,
    Pool,
    PoolSpec,
    Priority,
    RestartLimit,
    Routing,
    TargetDownError,
    Why,
)
from ergo_py._core.messaging.router import Router
from ergo_py._core.vocabulary.errors import ChildBusyError
from ergo_py._core.vocabulary.info import Phase
from ergo_py.errors import DeadlockError, ProcessUnknownError
from ergo_py.supervision import Redirect
from ergo_py.supervision.pool_mailbox import PoolMailbox
from tests.actors import Failed, Puppet, Recorder
from tests.supervised import Log
from tests.support import process_of, replace_key_owners, running_node


@dataclass(frozen=True)
class Job:
    key: int
    number: int = 0


class Worker(Actor):
    """Writes down each worker and its job, fails when told to, and does nothing while its gate is
    closed.
    """

    def __init__(self, done: Log, gate: trio.Event | None = None) -> None:
        self.done = done
        self.gate = gate

    async def handle_message(self, message: Any, sender: Any) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(message, Exception):
            raise message
        self.done.append((self.pid, message))

    async def handle_call(self, request: Any, caller: Any) -> Any:
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(request, Exception):
            raise request
        return self.pid, request


async def start(node: Node, spec: PoolSpec) -> Any:
    await node.spawn(Pool, spec, name="pool")
    return node.pool("pool")


def by_worker(done: Log) -> dict[Any, Log]:
    """The jobs of each worker, in order."""
    found: dict[Any, Log] = {}
    for pid, what in done:
        found.setdefault(pid, []).append(what)
    return found


# -- sharing out -----------------------------------------------------------------------------------


async def test_round_robin_gives_each_worker_its_turn() -> None:
    done: Log = []
    async with running_node() as node:
        pool = await start(node, PoolSpec(Worker, done, size=3))

        for number in range(9):
            assert node.send("pool", number)
        await wait_all_tasks_blocked()

        assert sorted(by_worker(done).values()) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
        assert set(by_worker(done)) == set(pool.workers())


async def test_workers_answer_calls_directly_to_the_caller() -> None:
    async with running_node() as node:
        pool = await start(node, PoolSpec(Worker, [], size=3))

        answers = [await node.call("pool", number) for number in range(6)]

        assert [number for _, number in answers] == list(range(6))
        assert Counter(pid for pid, _ in answers) == dict.fromkeys(pool.workers(), 2)


async def test_the_least_loaded_worker_gets_the_next_message() -> None:
    done: Log = []
    gates = [trio.Event(), trio.Event()]
    taken = iter(gates)

    class Gated(Worker):
        def __init__(self) -> None:
            super().__init__(done, next(taken))

    async with running_node() as node:
        await start(node, PoolSpec(Gated, size=2, routing=Routing.LEAST_LOADED))
        node.send("pool", "first")
        node.send("pool", "second")
        await wait_all_tasks_blocked()
        # Both are busy with a message each; the second worker gets rid of its message.
        gates[1].set()
        await wait_all_tasks_blocked()

        for number in range(3):
            node.send("pool", number)
            await wait_all_tasks_blocked()
        gates[0].set()
        await wait_all_tasks_blocked()

        assert [what for what in by_worker(done).values() if "second" in what] == [
            ["second", 0, 1, 2]
        ]


async def test_the_same_key_goes_to_the_same_worker_also_when_workers_are_added() -> None:
    done: Log = []
    async with running_node() as node:
        pool = await start(
            node, PoolSpec(Worker, done, size=3, routing=Routing.BY_KEY, key=lambda job: job.key)
        )
        for key in range(30):
            node.send("pool", Job(key, 1))
        await wait_all_tasks_blocked()
        owners = {job.key: pid for pid, job in done}
        assert Counter(owners.values()) == dict.fromkeys(pool.workers(), 10)

        [added] = await pool.add_workers()
        for key in range(40):
            node.send("pool", Job(key, 2))
        await wait_all_tasks_blocked()

        later = {job.key: pid for pid, job in done if job.number == 2}
        assert {key: later[key] for key in owners} == owners
        assert {later[key] for key in range(30, 40)} == {added}


async def test_the_keys_of_a_worker_that_is_removed_go_to_others_and_no_other_key_moves() -> None:
    done: Log = []
    async with running_node() as node:
        pool = await start(
            node, PoolSpec(Worker, done, size=3, routing=Routing.BY_KEY, key=lambda job: job.key)
        )
        for key in range(30):
            node.send("pool", Job(key, 1))
        await wait_all_tasks_blocked()
        owners = {job.key: pid for pid, job in done}

        [removed] = await pool.remove_workers()
        for key in range(30):
            node.send("pool", Job(key, 2))
        await wait_all_tasks_blocked()

        later = {job.key: pid for pid, job in done if job.number == 2}
        assert removed not in later.values()
        assert all(later[key] == owner for key, owner in owners.items() if owner != removed)


class CountedWalks(dict[int, str]):
    """Counts how often it is iterated over."""

    walks = 0

    def values(self) -> Any:
        self.walks += 1
        return super().values()


async def test_the_cost_of_a_new_key_does_not_depend_on_the_number_of_keys() -> None:
    async with running_node() as node:
        pool = await start(
            node, PoolSpec(Worker, [], size=3, routing=Routing.BY_KEY, key=lambda job: job.key)
        )
        owners = CountedWalks()
        replace_key_owners(pool, owners)

        for key in range(300):
            node.send("pool", Job(key))
        await pool.remove_workers()
        for key in range(300):
            node.send("pool", Job(key))

        assert owners.walks == 0
        assert sorted(Counter(owners.values()).values()) == [150, 150]


async def test_messages_for_the_keys_of_a_restarting_worker_wait_in_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    done: Log = []
    async with running_node() as node:
        spec = PoolSpec(
            Worker,
            done,
            size=2,
            routing=Routing.BY_KEY,
            key=lambda job: getattr(job, "key", 0),
            backoff=Backoff(1.0, 1.0),
        )
        await start(node, spec)
        node.send("pool", Job(0, 1))
        node.send("pool", Job(1, 1))
        node.send("pool", Failed("the worker of key 0"))
        node.send("pool", Job(0, 2))
        await wait_all_tasks_blocked()

        node.send("pool", Job(0, 3))
        node.send("pool", Job(1, 2))
        pid, request = await node.call("pool", Job(0, 4))

        assert trio.current_time() == pytest.approx(1.0)
        assert [job.number for _, job in done if job.key == 0] == [1, 2, 3]
        assert by_worker(done)[pid] == [Job(0, 2), Job(0, 3)]
        assert request == Job(0, 4)


async def test_a_failing_key_function_crashes_neither_pool_nor_worker() -> None:
    async with running_node() as node:
        pool = await start(
            node, PoolSpec(Worker, [], size=2, routing=Routing.BY_KEY, key=lambda job: job.key)
        )

        node.send("pool", "has no key")
        with pytest.raises(AttributeError):
            await node.call("pool", "has no key")

        assert [letter.message_type for letter in node.dead_letters()] == ["str"]
        assert len(pool.workers()) == 2


async def test_a_worker_that_calls_its_own_pool_is_answered_by_another_worker() -> None:
    class Asking(Worker):
        async def handle_call(self, request: Any, caller: Any) -> Any:
            if request == "ask the pool":
                # Another worker's turn goes by, and then it would be its own.
                self.send("pool", "something")
                return self.pid, await self.call("pool", "who are you", timeout=20.0)
            return self.pid

    async with running_node() as node:
        for routing in (Routing.ROUND_ROBIN, Routing.LEAST_LOADED):
            pool = await start(node, PoolSpec(Asking, [], size=2, routing=routing))

            for _ in range(4):
                one, other = await node.call("pool", "ask the pool")
                assert one != other

            node.send_exit("pool")
            await node.wait_ended(pool.pid)


async def test_a_single_worker_that_calls_its_own_pool_gets_a_deadlock_error() -> None:
    class Asking(Worker):
        async def handle_call(self, request: Any, caller: Any) -> Any:
            with pytest.raises(DeadlockError):
                await self.call("pool", "who are you", timeout=None)
            return "told"

    async with running_node() as node:
        await start(node, PoolSpec(Asking, [], size=1))

        assert await node.call("pool", "ask the pool") == "told"


async def test_a_pool_can_be_addressed_in_every_way_and_by_threads() -> None:
    done: Log = []
    async with running_node() as node:
        pool = await start(node, PoolSpec(Worker, done, size=2))
        other = await node.spawn(Puppet)

        node.send(pool.pid, "by pid")
        await node.send_wait("pool", "waiting")
        await node.call(other, lambda me: me.send("pool", "from an actor"))
        await trio.to_thread.run_sync(node.send, "pool", "from a thread")
        answer = await trio.to_thread.run_sync(
            lambda: node.call_from_thread("pool", "asked by a thread")
        )
        await wait_all_tasks_blocked()

        assert {what for _, what in done} == {"by pid", "waiting", "from an actor", "from a thread"}
        assert answer[1] == "asked by a thread"


async def test_requests_with_a_higher_priority_go_to_the_pool_itself() -> None:
    class Talking(Pool):
        def workers(self) -> PoolSpec:
            return PoolSpec(Worker, [], size=2)

        def handle_call(self, request: Any, caller: Any) -> Any:
            return f"the pool has {self.count_children().running} workers"

    async with running_node() as node:
        await node.spawn(Talking, name="talking")

        assert await node.call("talking", "you", priority=Priority.HIGH) == "the pool has 2 workers"
        assert (await node.call("talking", "anybody"))[1] == "anybody"


# -- full pools ------------------------------------------------------------------------------------


async def full_pool(node: Node, gate: trio.Event, done: Log, **options: Any) -> Any:
    """Two workers that are busy, with a message each in their mailboxes, and room for no more."""
    pool = await start(node, PoolSpec(Worker, done, gate, size=2, mailbox_size=1, **options))
    for number in range(2):
        node.send("pool", number)
    await wait_all_tasks_blocked()
    for number in range(2, 4):
        node.send("pool", number)
    return pool


@pytest.mark.parametrize("routing", [Routing.ROUND_ROBIN, Routing.LEAST_LOADED])
@pytest.mark.parametrize("overflow", [*Overflow, Divert("spare")], ids=str)
async def test_calls_are_refused_at_once_when_all_workers_are_full(
    overflow: Any, routing: Any
) -> None:
    gate = trio.Event()
    async with running_node() as node:
        await full_pool(node, gate, [], overflow=overflow, routing=routing)

        if not isinstance(overflow, Divert):
            with pytest.raises(MailboxFullError):
                await node.call("pool", "too much", timeout=None)
        gate.set()
        await wait_all_tasks_blocked()

        assert (await node.call("pool", "now"))[1] == "now"


async def test_with_overflow_raise_the_sender_gets_an_error() -> None:
    gate, done = trio.Event(), list[Any]()
    async with running_node() as node:
        await full_pool(node, gate, done, overflow=Overflow.RAISE)

        with pytest.raises(MailboxFullError) as caught:
            node.send("pool", "too much")
        gate.set()
        await wait_all_tasks_blocked()

        assert caught.value.message == "too much"
        assert caught.value.limit == 2
        assert sorted(what for _, what in done) == [0, 1, 2, 3]
        assert [letter.why for letter in node.dead_letters()] == [Why.FULL]
        assert node.process_info("pool").dropped == 1


@pytest.mark.parametrize(
    "overflow, left",
    [(Overflow.DROP_NEWEST, [0, 1, 2, 3]), (Overflow.DROP_OLDEST, [0, 1, 3, "new"])],
)
async def test_with_overflow_drop_a_message_is_dropped_and_counted(
    overflow: Overflow, left: Log
) -> None:
    gate, done = trio.Event(), list[Any]()
    async with running_node() as node:
        await full_pool(node, gate, done, overflow=overflow)

        assert node.send("pool", "new") == (overflow is Overflow.DROP_OLDEST)
        gate.set()
        await wait_all_tasks_blocked()

        assert {what for _, what in done} == set(left)
        assert len(node.dead_letters()) == 1
        assert node.process_info("pool").dropped == 1


async def test_with_divert_a_message_goes_to_another_process() -> None:
    gate, heard = trio.Event(), list[Any]()
    async with running_node() as node:
        await node.spawn(Recorder, heard, name="spare")
        pool = await full_pool(node, gate, [], overflow=Divert("spare", "full"))

        assert node.send("pool", "new")
        await wait_all_tasks_blocked()

        gate.set()
        assert heard == [Diverted(pool.pid, "full", "new", node.pid)]


@pytest.mark.parametrize("routing", [Routing.ROUND_ROBIN, Routing.LEAST_LOADED, Routing.BY_KEY])
async def test_waiting_senders_wait_for_room_in_order(routing: Any) -> None:
    gate, done = trio.Event(), list[Any]()
    keys: dict[str, Any] = {"key": lambda message: 0} if routing is Routing.BY_KEY else {}
    async with running_node() as node:
        size = 1 if routing is Routing.BY_KEY else 2
        await start(
            node,
            PoolSpec(
                Worker,
                done,
                gate,
                size=2,
                mailbox_size=1,
                overflow=Overflow.WAIT,
                routing=routing,
                **keys,
            ),
        )
        for number in range(2 * size):
            node.send("pool", number)
            await wait_all_tasks_blocked()

        async def send(what: int) -> None:
            assert await node.send_wait("pool", what)

        async with trio.open_nursery() as nursery:
            for number in range(10, 14):
                nursery.start_soon(send, number)
                await wait_all_tasks_blocked()
            with pytest.raises(MailboxFullError):
                node.send("pool", "a plain send does not wait")
            with pytest.raises(MailboxFullError):
                await node.send_wait("pool", "nor one without time", timeout=0.0)
            gate.set()
        await wait_all_tasks_blocked()

        assert sorted(what for _, what in done) == [*range(2 * size), 10, 11, 12, 13]
        assert all(part == sorted(part) for part in by_worker(done).values())


async def test_threads_are_refused_or_wait_like_other_senders() -> None:
    gate, done = trio.Event(), list[Any]()
    async with running_node() as node:
        await full_pool(node, gate, done)

        def flood() -> int:
            with pytest.raises(MailboxFullError):
                for _ in range(100):
                    node.send("pool", "from a thread")
            return 1

        assert await trio.to_thread.run_sync(flood) == 1
        gate.set()


# -- workers that come and go ----------------------------------------------------------------------


async def test_a_worker_that_fails_is_started_again_and_its_queue_is_kept() -> None:
    done: Log = []
    async with running_node() as node:
        pool = await start(node, PoolSpec(Worker, done, size=1))
        node.send("pool", Failed("x"))
        node.send("pool", "kept")

        await wait_all_tasks_blocked()

        assert done == [(pool.workers()[0], "kept")]
        assert pool.children()[0].restarts == 1
        assert node.dead_letters() == []


async def test_a_worker_that_is_down_gets_no_message_while_others_are_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    done: Log = []
    async with running_node() as node:
        pool = await start(node, PoolSpec(Worker, done, size=2, backoff=Backoff(5.0, 5.0)))
        node.send("pool", Failed("x"))
        await wait_all_tasks_blocked()

        for number in range(4):
            node.send("pool", number)
        await wait_all_tasks_blocked()

        assert [what for _, what in done] == [0, 1, 2, 3]
        assert [child.phase for child in pool.children()].count(Phase.BACKING_OFF) == 1


async def test_messages_and_calls_wait_while_all_workers_restart(
    autojump_clock: trio.testing.MockClock,
) -> None:
    done: Log = []
    async with running_node() as node:
        await start(node, PoolSpec(Worker, done, size=2, backoff=Backoff(1.0, 1.0)))
        for _ in range(2):
            node.send("pool", Failed("x"))
        await wait_all_tasks_blocked()

        node.send("pool", "patient")
        answer = await node.call("pool", "patient, too")

        assert answer[1] == "patient, too"
        assert [what for _, what in done] == ["patient"]


async def test_a_call_that_gave_up_waiting_for_a_worker_is_not_handled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    handled: Log = []

    class Noting(Worker):
        async def handle_call(self, request: Any, caller: Any) -> Any:
            handled.append(request)

    async with running_node() as node:
        await start(node, PoolSpec(Noting, [], size=1, backoff=Backoff(3.0, 3.0)))
        node.send("pool", Failed("x"))
        await wait_all_tasks_blocked()

        with pytest.raises(CallTimeoutError):
            await node.call("pool", "too late", timeout=1.0)
        await trio.sleep(5)

        assert handled == []


async def test_calls_that_wait_for_workers_fail_when_the_pool_gives_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    failures = [False, True, True]

    class Unlucky(Worker):
        def init(self) -> None:
            if failures.pop(0):
                raise Failed("start")

    async with running_node() as node:
        pool = await start(
            node, PoolSpec(Unlucky, [], size=1, backoff=Backoff(1.0, 1.0), intensity=1)
        )
        pid = pool.pid
        process = process_of(node, pid)
        node.send("pool", Failed("x"))
        await wait_all_tasks_blocked()
        node.send("pool", "a letter")

        with pytest.raises(TargetDownError):
            await node.call("pool", "patient", timeout=None)

        assert isinstance(process.reason, RestartLimit)
        assert [letter.message_type for letter in node.dead_letters()] == ["str"]


async def test_a_removed_worker_finishes_its_queue() -> None:
    gate, done = trio.Event(), list[Any]()
    async with running_node() as node:
        pool = await start(node, PoolSpec(Worker, done, gate, size=2))
        oldest = pool.workers()[0]
        for number in range(6):
            node.send("pool", number)
        await wait_all_tasks_blocked()
        removed: Log = []

        async def remove() -> None:
            removed.extend(await pool.remove_workers())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(remove)
            await wait_all_tasks_blocked()
            for number in range(6, 10):
                node.send("pool", number)
            assert removed == []
            gate.set()
        await wait_all_tasks_blocked()

        assert removed == [oldest]
        assert by_worker(done)[oldest] == [0, 2, 4]
        assert sorted(what for _, what in done) == list(range(10))
        assert node.dead_letters() == []
        assert oldest not in node.processes()


async def test_removed_workers_end_even_if_the_caller_of_remove_workers_times_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    gate = trio.Event()
    async with running_node() as node:
        pool = await start(node, PoolSpec(Worker, [], gate, size=3))
        for number in range(3):
            node.send("pool", number)

        with pytest.raises(CallTimeoutError):
            await pool.remove_workers(2, timeout=1.0)
        gate.set()
        await wait_all_tasks_blocked()

        assert len(pool.workers()) == pool.count().total == 1


async def test_a_worker_gets_work_after_its_removal_was_refused() -> None:
    gate, done = trio.Event(), list[Any]()
    async with running_node() as node:
        pool = await start(node, PoolSpec(Worker, done, gate, size=2))
        node.send("pool", "be busy")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.restart_child, "worker-1")
            await wait_all_tasks_blocked()
            with pytest.raises(ChildBusyError):
                await pool.remove_workers()
            gate.set()
        for number in range(4):
            node.send("pool", number)
        await wait_all_tasks_blocked()

        assert len(pool.workers()) == 2
        assert {pid for pid, what in done if what != "be busy"} == set(pool.workers())


async def test_a_pool_can_be_resized_and_keeps_its_last_worker() -> None:
    async with running_node() as node:
        pool = await start(node, PoolSpec(Worker, [], size=2))

        assert await pool.resize(5) == 3
        assert len(pool.workers()) == 5
        assert await pool.resize(1) == -4
        assert len(pool.workers()) == 1
        assert await pool.resize(1) == 0
        with pytest.raises(BadInputError):
            await pool.remove_workers()

        assert (await node.call("pool", "still here"))[1] == "still here"


async def test_a_pool_may_change_its_size_from_inside() -> None:
    class Growing(Pool):
        def workers(self) -> PoolSpec:
            return PoolSpec(Worker, [], size=1)

        async def handle_call(self, request: Any, caller: Any) -> Any:
            if request == "grow":
                return await self.add_workers(2)
            return await self.remove_workers(2)

    async with running_node() as node:
        await node.spawn(Growing, name="growing")

        added = await node.call("growing", "grow", priority=Priority.HIGH)
        removed = await node.call("growing", "shrink", priority=Priority.HIGH)

        assert node.pool("growing").workers() == [added[1]]
        assert added[0] in removed


async def test_a_pool_may_be_supervised_and_its_mailbox_is_kept_through_its_restart(
    autojump_clock: trio.testing.MockClock,
) -> None:
    done: Log = []
    async with running_node() as node:
        await node.supervise(
            [ChildSpec("pool", Pool, PoolSpec(Worker, done, size=2), backoff=Backoff(1.0, 1.0))]
        )
        service = node.service("pool")

        node.kill("pool")
        await wait_all_tasks_blocked()
        service.send("waits")
        answer = await service.call("waits, too")
        # Each has a worker of its own.
        await wait_all_tasks_blocked()

        assert answer[1] == "waits, too"
        assert [what for _, what in done] == ["waits"]


async def test_the_inspection_of_a_pool_shows_its_workers() -> None:
    gate = trio.Event()
    async with running_node() as node:
        await full_pool(node, gate, [])

        answer = await node.inspect("pool")
        gate.set()

        assert answer["routing"] == "round robin"
        assert answer["queue worker-1"] == "1"
        assert answer["child worker-2"].startswith("running")
        assert "worker-1 Worker" in str(node.tree())


async def test_the_workers_of_a_pool_are_stopped_all_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    gate = trio.Event()
    async with running_node() as node:
        await start(node, PoolSpec(Worker, [], gate, size=10, shutdown=3.0))
        for number in range(10):
            node.send("pool", number)
        await wait_all_tasks_blocked()

        node.send_exit("pool")
        await node.wait_ended("pool")

        assert 3.0 <= trio.current_time() < 4.0


async def test_a_process_that_is_no_pool_is_refused() -> None:
    async with running_node() as node:
        await node.supervise([ChildSpec("a", Recorder)], name="top")

        with pytest.raises(BadInputError):
            node.pool("top")
        with pytest.raises(ProcessUnknownError, match="no supervisor at 'a'"):
            node.pool("a")
        with pytest.raises(InitError):
            await node.spawn(Pool, 5)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "options",
    [
        {"size": 0},
        {"size": 1.5},
        {"size": (0, 4)},
        {"size": (4, 2)},
        {"size": [2, 4]},
        {"size": (2, 4), "wait": 0},
        {"routing": "round robin"},
        {"routing": Routing.BY_KEY},
        {"key": len},
        {"routing": Routing.BY_KEY, "key": 5},
        {"overflow": "drop"},
        {"mailbox_size": 0},
        {"intensity": -1},
        {"period": 0},
        {"mailbox": Redirect},
        {"unknown": 1},
    ],
    ids=str,
)
def test_an_invalid_pool_spec_is_refused(
    options: dict[str, Any],
) -> None:
    with pytest.raises(BadInputError):
        PoolSpec(Worker, [], **options)


@pytest.mark.parametrize("routing", [Routing.ROUND_ROBIN, Routing.LEAST_LOADED, Routing.BY_KEY])
async def test_a_pool_without_a_bound_refuses_no_message_during_a_restart(
    routing: Routing, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: Log = []
    # A task that may let others run between two steps does so, each time.
    monkeypatch.setattr(Router, "pause_is_due", lambda self: True)
    key = (lambda job: job.key) if routing is Routing.BY_KEY else None
    async with running_node() as node:
        spec = PoolSpec(Worker, done, size=1, routing=routing, key=key, intensity=1000)
        pool = await node.spawn(Pool, spec)
        sent = 0
        for _ in range(20):
            [worker] = node.pool(pool).workers()
            node.kill(worker)
            while node.pool(pool).workers() in ([], [worker]):
                assert node.send(pool, Job(1, sent))
                sent += 1
                await checkpoint()
            assert node.send(pool, Job(1, sent))
            sent += 1
            await node.call(pool, Job(1))
        await wait_all_tasks_blocked()

        assert [job.number for _, job in done] == list(range(sent))
        assert node.dead_letters() == []


class Counted(dict[str, Any]):
    """The workers of a pool; counts how often all of them are read."""

    reads = 0

    def items(self) -> Any:
        self.reads += 1
        return super().items()


def test_a_pool_arranges_its_workers_once_when_all_start() -> None:
    running = Counted()
    box: Any = PoolMailbox(cast("Any", None), running, Routing.ROUND_ROBIN, None, 3, Overflow.RAISE)

    for number in range(100):
        running[f"worker-{number}"] = number
        box.arrange()

    assert box.limit == 300
    assert box.ring == list(range(100))
    assert box.ring == list(range(100))
    assert running.reads == 1


def test_workers_that_leave_get_no_work_and_give_no_room() -> None:
    running = Counted(first=1, second=2)
    box: Any = PoolMailbox(cast("Any", None), running, Routing.ROUND_ROBIN, None, 3, Overflow.RAISE)

    box.leaving.update({"second", "third"})
    box.arrange()

    assert (box.ring, box.limit) == ([1], 3)
    running.clear()
    box.arrange()
    assert (box.ring, box.limit) == ([], 3)


# -- bounds ----------------------------------------------------------------------------------------


def has_timer(node: Node, pool: Any) -> bool:
    """Whether the pool is going to look at its workers."""
    return any(timer.active for timer in process_of(node, pool.pid).timers or ())


async def test_a_pool_grows_while_messages_wait_and_shrinks_when_workers_are_free(
    autojump_clock: MockClock,
) -> None:
    gate, done = trio.Event(), list[Any]()
    async with running_node() as node:
        pool = await start(node, PoolSpec(Worker, done, gate, size=(1, 3), wait=0.1))

        for number in range(20):
            node.send("pool", number)
            await trio.sleep(0.07)  # never at the moment of a look
        assert len(pool.workers()) == 3

        gate.set()
        await trio.sleep(0.85)
        assert len(pool.workers()) == 3
        await trio.sleep(6.0)
        assert len(pool.workers()) == 1
        assert not has_timer(node, pool)
        assert sorted(number for _, number in done) == list(range(20))


async def test_a_pool_does_not_grow_for_messages_that_a_further_worker_would_not_get(
    autojump_clock: MockClock,
) -> None:
    gate = trio.Event()
    async with running_node() as node:
        pool = await start(node, PoolSpec(Worker, [], gate, size=(1, 9), wait=0.1))

        for number in range(20):
            node.send("pool", number)
        await trio.sleep(0.15)
        node.send("pool", "before the further worker")
        await trio.sleep(0.7)

        assert len(pool.workers()) == 2
        gate.set()


async def test_a_pool_does_not_grow_while_each_message_is_handled_in_time(
    autojump_clock: MockClock,
) -> None:
    class Steady(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            await trio.sleep(0.06)

    async with running_node() as node:
        pool = await start(node, PoolSpec(Steady, size=(1, 9), wait=0.1))

        for _ in range(30):
            node.send("pool", "first")
            node.send("pool", "second")  # waits for 0.06 seconds
            await trio.sleep(0.14)

        assert len(pool.workers()) == 1


async def test_a_pool_with_free_workers_keeps_its_least_size_and_sets_no_timer(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pool = await start(node, PoolSpec(Worker, [], size=(2, 9), wait=0.1))

        for number in range(20):
            await node.call("pool", number)

        assert len(pool.workers()) == 2
        assert not has_timer(node, pool)


async def test_a_pool_that_cannot_start_a_further_worker_goes_on_with_its_workers(
    autojump_clock: MockClock,
) -> None:
    gate, done = trio.Event(), list[Any]()
    starts = iter([None])

    class Scarce(Worker):
        def init(self) -> None:
            next(starts)

    async with running_node() as node:
        pool = await start(node, PoolSpec(Scarce, done, gate, size=(1, 2), wait=0.1))

        for number in range(5):
            node.send("pool", number)
            await trio.sleep(0.07)
        gate.set()
        await trio.sleep(6.0)

        assert len(pool.workers()) == 1
        assert [number for _, number in done] == list(range(5))


async def test_a_pool_leaves_a_worker_alone_that_the_program_removes(
    autojump_clock: MockClock,
) -> None:
    gate = trio.Event()
    async with running_node() as node:
        pool = await start(node, PoolSpec(Worker, [], gate, size=(1, 2), wait=0.1))
        for number in range(6):
            node.send("pool", number)
            await trio.sleep(0.07)
        assert len(pool.workers()) == 2
        gate.set()

        await pool.remove_workers()
        await trio.sleep(6.0)

        assert len(pool.workers()) == 1
