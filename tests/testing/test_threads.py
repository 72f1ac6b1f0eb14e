"""Which threads are at work, and which are asleep."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py.testing import threads
from ergo_py.testing.threads import children, look, stirring
from tests.support import needs_proc, replace_private


@contextmanager
def thread(body: Callable[[], object], name: str = "body") -> Iterator[threading.Thread]:
    running = threading.Thread(target=body, name=name)
    running.start()
    try:
        yield running
    finally:
        running.join(10)


@contextmanager
def computing(name: str) -> Iterator[threading.Thread]:
    """A thread that does not sleep, and that calls nothing: at a call, its frame does not tell that
    it goes on.
    """
    goes_on, turns = [True], [0]

    def compute() -> None:
        while goes_on:
            turns[0] += 1

    with thread(compute, name) as computer:
        while not turns[0]:
            time.sleep(0.001)
        try:
            yield computer
        finally:
            goes_on.clear()


def looks(pause: float = 0.02) -> list[str]:
    before = look()
    time.sleep(pause)
    return stirring(before, look())


def wait_until_asleep(who: threading.Thread, limit: float = 60.0) -> None:
    deadline = time.monotonic() + limit
    while any(who.name in name for name in looks()):
        assert time.monotonic() < deadline


def test_a_thread_that_waits_for_a_lock_is_quiet() -> None:
    end = threading.Event()
    with thread(end.wait, "waiter") as waiter:
        wait_until_asleep(waiter)

        stirred = looks()

        end.set()
    assert "thread waiter" not in stirred


def test_a_thread_that_computes_is_not_quiet_and_may_be_ignored() -> None:
    with computing("computer"):
        stirred = looks()
        ignored = look(ignore=("computer",))

    assert "thread computer" in stirred
    assert all(one.name != "thread computer" for one in ignored.seen.values())


def test_a_thread_that_began_or_ended_between_two_looks_was_active() -> None:
    end = threading.Event()
    before = look()
    with thread(end.wait, "passing"):
        during = look()
        end.set()
    after = look()

    assert "thread passing" in stirring(before, during)
    assert "thread passing" in stirring(during, after)


def looks_around_work() -> tuple[threads.Look, threads.Look]:
    """Two looks at the thread "worker", which sleeps, works, and sleeps again."""
    turns = [threading.Event() for _ in range(2)]
    with thread(lambda: [turn.wait() for turn in turns], "worker") as worker:
        wait_until_asleep(worker)
        before = look()
        turns[0].set()
        wait_until_asleep(worker)
        after = look()
        turns[1].set()
    return before, after


def test_a_thread_that_worked_between_two_looks_was_active() -> None:
    before, after = looks_around_work()

    assert not any(one.awake for one in after.seen.values() if one.name == "thread worker")
    assert "thread worker" in stirring(before, after)


@needs_proc
def test_a_thread_that_ran_without_being_charged_was_active(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a virtual machine, processor time that its host takes may hide the time of a thread."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not count how often a thread has run")
    replace_private(monkeypatch, "CPU time of a thread", lambda _: 7)
    before, after = looks_around_work()

    assert "thread worker" in stirring(before, after)


def test_an_idle_trio_worker_that_ends_was_not_active() -> None:
    idle = threads._Seen("thread Trio thread 1", 1, awake=False, serves=True)

    stirred = stirring(threads.Look({1: idle}, {}), threads.Look({}, {}))

    assert stirred == []


@pytest.mark.parametrize("clock", [None, 7], ids=["no processor clock", "no processor time"])
def test_without_proc_a_thread_is_quiet_if_its_frame_is_unchanged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: int | None
) -> None:
    replace_private(monkeypatch, "CPU time of a thread", lambda _: clock)
    replace_private(monkeypatch, "directory of threads", str(tmp_path / "missing"))
    end = threading.Event()

    with thread(end.wait, "waiter") as waiter, computing("computer"):
        try:
            wait_until_asleep(waiter)
            stirred = [looks() for _ in range(5)]
        finally:
            end.set()

    assert all("thread computer" in names for names in stirred)
    assert all("thread waiter" not in names for names in stirred)


@needs_proc
def test_a_working_and_a_sleeping_child_program_are_distinguished() -> None:
    program = (
        "import sys, time\nprint('at work', flush=True)\n"
        "x = time.time() + 600\nwhile time.time() < x: pass"
    )
    with (
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as computing,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as asleep,
    ):
        assert computing.stdout is not None
        computing.stdout.readline()
        mine = children()
        deadline = time.monotonic() + 50
        stirred = looks()
        while any(f"({asleep.pid})" in name for name in stirred):
            assert time.monotonic() < deadline
            stirred = looks()
        computing.kill()
        asleep.kill()

    assert {computing.pid, asleep.pid} <= mine.keys()
    assert any(f"({computing.pid})" in name for name in stirred)


@needs_proc
def test_an_ended_child_program_counts_as_idle() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        living = threads.look().seen[child.pid]
        child.kill()
        # Until it has ended, but without taking it away: a program stays in the list until it is
        # waited for.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        ended = threads.look().seen[child.pid]

    assert (living.serves, ended.serves) == (False, True)


@needs_proc
def test_children_are_found_by_their_parent_where_the_kernel_has_no_list_of_them() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = threads._children_by_parent()
        child.kill()

    assert child.pid in found


async def test_a_worker_thread_counts_as_working_until_its_job_is_done() -> None:
    begun, end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        end.wait(60)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, work)
            await wait_all_tasks_blocked()
            begun.wait(20)
            during = look()
            end.set()
        await trio.to_thread.run_sync(int)
        after = look()

    assert len(during.working) == 1
    assert after.working == {}
    assert any(one.serves for one in after.seen.values())
    assert not during.alone


def test_the_expected_names_of_idle_trio_workers_are_correct() -> None:
    async def work() -> None:
        await trio.to_thread.run_sync(int)

    trio.run(work)

    idle = [one for one in threads.other_threads() if threads.is_idle_worker(one)]

    assert idle
    assert all(one.name.startswith("Trio thread ") for one in idle)


@needs_proc
def test_a_thread_unknown_to_python_is_seen_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = threading.Event()
    with thread(end.wait, "stranger") as stranger:
        wait_until_asleep(stranger)
        known = threading.enumerate()
        monkeypatch.setattr(
            threading, "enumerate", lambda: [one for one in known if one is not stranger]
        )
        seen = look()
        monkeypatch.undo()
        end.set()

    assert any(
        f"thread {stranger.native_id}, not one of Python's" == one.name
        for one in seen.seen.values()
    )


def test_a_thread_that_has_ended_has_no_clock(tmp_path: Path) -> None:
    with thread(int) as ended:
        pass

    deadline = time.monotonic() + 60
    while threads._cpu(~(ended.native_id or 0) << 3 | 6) is not None:
        # The operating system takes a moment longer than Python.
        assert time.monotonic() < deadline
    assert threads._cpu(~os.getpid() << 3 | 2) is not None
    assert threads._state(str(tmp_path / "nothing")) == "X"
