"""DispatcherThreads: threads that take jobs in turn, and end with their last user."""

import os
import sys
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from ergo_py import BadInputError, NotAllowedError, Threads
from ergo_py._core.runtime.bridge import Bridge
from ergo_py._core.runtime.dispatcher_threads import DispatcherThreads, Job, Lender, ThreadGroup
from ergo_py._core.runtime.thread_fairness import ThreadFairness
from ergo_py.info import Dispatcher
from tests.meta.owner import eventually


class Yard:
    """DispatcherThreads without a node."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.warnings: list[str] = []
        self.thread_fairness = ThreadFairness()
        self.bridge = Bridge(
            "test@localhost", trio.lowlevel.current_trio_token(), self.errors.append
        )
        self.dispatcher_threads = DispatcherThreads(
            self.bridge,
            self.thread_fairness,
            lambda dispatcher, why: self.warnings.append(str(dispatcher)),
        )

    async def do(self, dispatcher: Dispatcher, *functions: Any) -> list[Any]:
        """Have a thread_group do some jobs, and wait until it has."""
        thread_group = self.dispatcher_threads.join(dispatcher, 1)
        done = [trio.Event() for _ in functions]
        jobs = [Job(function, event.set) for function, event in zip(functions, done, strict=True)]
        for job in jobs:
            thread_group.put(job)
        with trio.fail_after(30):
            for event in done:
                await event.wait()
        self.dispatcher_threads.leave(thread_group)
        return [job.outcome.unwrap() for job in jobs if job.outcome is not None]


async def test_the_jobs_of_a_thread_are_done_in_order() -> None:
    order: list[int] = []
    yard = Yard()

    def note(number: int) -> int:
        order.append(number)
        return number

    results = await yard.do(
        Threads(), *[lambda number=number: note(number) for number in range(50)]
    )

    assert results == order == list(range(50))


async def test_an_error_of_a_job_is_its_outcome_and_the_thread_continues() -> None:
    def fail() -> None:
        raise SystemExit(3)

    yard = Yard()
    thread_group = yard.dispatcher_threads.join(Threads(), 1)
    failing, event = Job(fail, lambda: None), trio.Event()
    following = Job(threading.get_ident, event.set)

    thread_group.put(failing)
    thread_group.put(following)
    with trio.fail_after(30):
        await event.wait()
    yard.dispatcher_threads.leave(thread_group)

    assert failing.outcome is not None
    with pytest.raises(SystemExit):
        failing.outcome.unwrap()
    assert following.outcome is not None


async def test_a_withdrawn_job_is_not_done_and_a_job_that_has_begun_cannot_be_withdrawn() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), trio.Event()

    def work() -> bool:
        begun.set()
        return go_on.wait(10)

    yard = Yard()
    thread_group = yard.dispatcher_threads.join(Threads(), 1)
    done: list[str] = []
    first, second, third = (
        Job(work, lambda: None),
        Job(lambda: done.append("2"), lambda: None),
        Job(bool, ended.set),
    )
    for job in (first, second, third):
        thread_group.put(job)
    assert await trio.to_thread.run_sync(begun.wait, 10)

    withdrawn = [first.withdraw(), second.withdraw(), second.withdraw()]
    stack = first.stack()
    go_on.set()
    with trio.fail_after(30):
        await ended.wait()
    yard.dispatcher_threads.leave(thread_group)

    assert withdrawn == [False, True, False]
    assert "in work" in stack
    assert first.stack() == ""
    assert done == []


def _look(found: list[object], thread_group: ThreadGroup) -> None:
    found.append(thread_group.holder())


async def test_the_holder_of_a_single_thread_is_known_while_it_has_the_thread() -> None:
    yard = Yard()
    found: list[object] = []
    for dispatcher in (Threads(), Threads("io"), Threads("io", 2)):
        thread_group, ended = yard.dispatcher_threads.join(dispatcher, 1), trio.Event()
        job = Job(partial(_look, found, thread_group), ended.set, "owner")

        thread_group.put(job)
        with trio.fail_after(30):
            await ended.wait()
        found.append(thread_group.holder())
        yard.dispatcher_threads.leave(thread_group)

    assert found == ["owner", None] * 2 + [None, None]


async def test_a_thread_group_is_shared_by_name_and_counted() -> None:
    yard = Yard()

    dispatcher_threads = [
        yard.dispatcher_threads.join(one, 1)
        for one in (
            Threads("a", 2),
            Threads("a", 2),
            Threads("c"),
            Threads("b"),
            Threads(),
            Threads(),
        )
    ]
    counted = yard.dispatcher_threads.threads
    left = []
    for thread_group in dispatcher_threads:
        yard.dispatcher_threads.leave(thread_group)
        left.append(yard.dispatcher_threads.threads)

    assert dispatcher_threads[0] is dispatcher_threads[1]
    assert len(set(map(id, dispatcher_threads))) == 5
    assert counted == 6
    assert left == [6, 4, 3, 2, 1, 0]


async def test_a_different_group_of_the_same_name_is_refused_while_the_first_is_used() -> None:
    yard = Yard()
    thread_group = yard.dispatcher_threads.join(Threads("a", 2), 1)

    with pytest.raises(BadInputError, match="which exists and is used by 1"):
        yard.dispatcher_threads.join(Threads("a", 1), 2)
    yard.dispatcher_threads.leave(thread_group)
    other = yard.dispatcher_threads.join(Threads("a", 1), 3)
    yard.dispatcher_threads.leave(other)

    assert yard.dispatcher_threads.threads == 0


async def test_threads_are_named_after_their_dispatcher() -> None:
    yard = Yard()

    names = [
        *await yard.do(Threads(), lambda: threading.current_thread().name),
        *await yard.do(Threads("io"), lambda: threading.current_thread().name),
    ]

    assert names == ["process-1", "io-1"]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no CPU affinity on this platform")
async def test_a_thread_stays_on_its_cpu_and_its_neighbours_do_not() -> None:
    yard = Yard()
    everything = os.sched_getaffinity(0)
    cpu = min(everything)

    [allowed] = await yard.do(Threads(cpu=cpu), lambda: os.sched_getaffinity(0))
    [others] = await yard.do(Threads(), lambda: os.sched_getaffinity(0))

    assert (allowed, others) == ({cpu}, everything)
    assert yard.warnings == []


async def test_a_missing_cpu_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    yard = Yard()
    await yard.do(Threads(cpu=100_000), bool)
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)

    await yard.do(Threads("io", cpu=0), bool)

    assert yard.warnings == ["thread on CPU 100000", "thread io on CPU 0"]


async def test_a_pool_that_gets_only_some_of_its_threads_ends_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    yard = Yard()
    started: list[threading.Thread] = []
    original = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        original(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        yard.dispatcher_threads.join(Threads("pool", 5), 1)

    for thread in started:
        thread.join(20)
    assert [thread.is_alive() for thread in started] == [False, False]
    assert yard.dispatcher_threads.threads == 0
    monkeypatch.undo()
    assert await yard.do(Threads("pool", 2), lambda: "done") == ["done"]


async def test_a_job_is_lent_at_a_cost_that_does_not_grow_with_the_queue() -> None:
    yard, length, order, looks = Yard(), 256, list[int](), list[str]()
    thread_group = yard.dispatcher_threads.join(Threads("pod"), 1)
    lender, begun, done = Lender("caller", lambda: iter(())), threading.Event(), trio.Event()

    def wait_and_lend() -> None:
        begun.set()
        thread_group.serve(lender, waiting)

    def note(_frame: object, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in ("get", "put"):
            looks.append(function.__name__)

    waiting = Job(wait_and_lend, lambda: None)
    jobs = [Job(partial(order.append, number), lambda: None) for number in range(length)]
    first = [number for number in reversed(range(length)) if number % 3]
    for job in (waiting, *jobs, Job(bool, done.set)):
        thread_group.put(job)
    assert await trio.to_thread.run_sync(begun.wait, 30)
    thread_group.begin_wait(lender)
    sys.setprofile(note)
    lent = [thread_group.lend_to(jobs[number]) for number in (*first, *first)]
    sys.setprofile(None)
    thread_group.end_wait(lender)
    lender.end()
    with trio.fail_after(30):
        await done.wait()
    yard.dispatcher_threads.leave(thread_group)

    assert lent == [True] * 2 * len(first)
    assert order == [*first, *range(length)[::3]]
    assert 0 < len(looks) <= 4 * length  # jobs that were lent leave the queue, all of them at once


async def test_a_job_that_was_lent_is_run_by_no_other_thread() -> None:
    yard, ran, done, rest = Yard(), list[int](), trio.Event(), trio.Event()
    group = yard.dispatcher_threads.join(Threads("pool", 2), 1)
    go_on = [threading.Event(), threading.Event()]
    idents: list[int] = [0, 0]
    jobs: list[Job] = []
    owner = SimpleNamespace(thread_group=group, job=None)
    lenders = [Lender("one", lambda: iter([owner])), Lender("other", lambda: iter(()))]

    def wait(number: int) -> None:
        idents[number] = threading.get_ident()
        go_on[number].wait(30)
        group.serve(lenders[number], jobs[number])

    for number in (0, 1):
        jobs.append(Job(partial(wait, number), lambda: None))
        group.put(jobs[number])
    await eventually(lambda: all(idents))
    owner.job = Job(lambda: ran.append(threading.get_ident()), done.set, owner)
    group.put(owner.job)
    group.put(Job(bool, rest.set))
    for lender in lenders:
        group.begin_wait(lender)
    group.end_wait(lenders[1])
    lenders[1].end()

    # The other thread comes to the lent job in the queue first, and to the job behind it.
    go_on[1].set()
    with trio.fail_after(30):
        await rest.wait()
    assert ran == []
    go_on[0].set()
    with trio.fail_after(30):
        await done.wait()
    group.end_wait(lenders[0])
    lenders[0].end()
    yard.dispatcher_threads.leave(group)

    assert ran == [idents[0]]


async def test_a_job_that_was_lent_twice_is_run_by_its_last_lender() -> None:
    yard, ran = Yard(), list[str]()
    group = yard.dispatcher_threads.join(Threads("pod"), 1)
    job, waiting = Job(lambda: ran.append("job"), lambda: None), Job(bool, lambda: None)
    lenders = [Lender(name, lambda: iter(())) for name in ("first", "last")]
    for lender in lenders:
        lender.take(job)
        lender.end()

    def serve(lender: Lender) -> list[str]:
        group.serve(lender, waiting)
        return list(ran)

    assert await yard.do(Threads("pod"), *(partial(serve, each) for each in lenders)) == [
        [],
        ["job"],
    ]
    yard.dispatcher_threads.leave(group)


async def test_threads_lend_only_if_none_of_them_runs_a_job() -> None:
    yard, done = Yard(), trio.Event()
    group = yard.dispatcher_threads.join(Threads("pool", 2), 1)
    owner = SimpleNamespace(thread_group=group, job=None)
    lenders = [Lender(name, lambda: iter([owner])) for name in ("one", "other")]
    for lender in lenders:
        group.begin_wait(lender)
    above, first, second = (Job(bool, done.set, owner) for _ in range(3))

    lenders[0].take(above)
    group.put(first)
    with trio.fail_after(30):
        await done.wait()
    above.withdraw()
    group.put(second)
    yard.dispatcher_threads.leave(group)

    assert first.lender is None
    assert second.lender is lenders[0]


async def test_the_jobs_of_a_main_thread_that_has_left_end_with_an_error() -> None:
    yard, finished = Yard(), list[str]()
    group = yard.dispatcher_threads.join_main()
    queued = Job(bool, lambda: finished.append("queued"))
    later = Job(bool, lambda: finished.append("later"))
    withdrawn = Job(bool, lambda: finished.append("withdrawn"))
    for job in (withdrawn, queued):
        group.put(job)
    withdrawn.withdraw()
    group.dismiss()

    yard.dispatcher_threads.leave_main(group)
    group.put(later)

    assert finished == ["queued", "later"]
    for job in (queued, later):
        assert job.outcome is not None
        with pytest.raises(NotAllowedError, match="an exception has ended run_main"):
            job.outcome.unwrap()
    assert yard.dispatcher_threads.threads == 0
    with pytest.raises(NotAllowedError):
        yard.dispatcher_threads.check(Threads.MAIN)
