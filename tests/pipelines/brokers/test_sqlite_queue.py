"""`SQLiteQueue`: the rules of sources, and a program that is killed."""

import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ergo_py import BadInputError
from ergo_py.pipelines import Item, SQLiteQueue
from ergo_py.testing.bridges import SourceRig
from ergo_py.testing.bridges.sources import SourceRule
from tests.pipelines.brokers.rigs import KEYS_IN_ROWS, SQLiteRig, put


@pytest.mark.parametrize("rule", SourceRig.RULES, ids=[rule.__name__ for rule in SourceRig.RULES])
def test_a_queue_in_a_file_keeps_the_rule(rule: SourceRule, tmp_path: Path) -> None:
    rule(SQLiteRig(tmp_path / "jobs.db"))


def test_queues_of_a_file_do_not_share_items(tmp_path: Path) -> None:
    put(SQLiteQueue(tmp_path / "jobs.db", "a"), [b"1"])
    source = SQLiteQueue(tmp_path / "jobs.db", "b")
    source.open()

    assert source.take(5) == []
    source.close()


def test_a_program_puts_items_without_a_pipeline(tmp_path: Path) -> None:
    queue = SQLiteQueue(tmp_path / "jobs.db")
    queue.put(b"1", Item(b"2", "ada"))
    with pytest.raises(sqlite3.Error):
        queue.put(b"3", object())
    with pytest.raises(ConnectionError, match="not open"):
        _ = queue.link  # it has disconnected, also after an error

    queue.open()
    assert [(item.body, item.key) for item in queue.take(5)] == [(b"1", None), (b"2", "ada")]
    queue.close()


def test_threads_put_items_with_the_same_object(tmp_path: Path) -> None:
    queue = SQLiteQueue(tmp_path / "jobs.db")
    queue.put(b"first")  # makes the file

    def put_some(number: int) -> None:
        for _ in range(10):
            queue.put(str(number))

    with ThreadPoolExecutor(4) as threads:
        [*threads.map(put_some, range(4))]

    queue.open()
    found = Counter(str(item.body) for item in queue.take(100))
    assert found == {"b'first'": 1, "0": 10, "1": 10, "2": 10, "3": 10}
    queue.close()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_was_removed_takes_and_gives_no_items(
    is_replaced: bool, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.db"
    put(SQLiteQueue(path), [b"1"])
    sink, source = SQLiteQueue(path), SQLiteQueue(path)
    sink.open()
    source.open()
    taken = source.take(5)
    path.rename(tmp_path / "old.db")
    if is_replaced:
        put(SQLiteQueue(path), [b"2"])

    uses: list[Callable[[], object]] = [
        lambda: sink.handle_batch([Item(b"3")]),
        lambda: source.ack(taken),
        lambda: source.wait(1.0),
    ]
    for use in uses:
        with pytest.raises(ConnectionError, match=r"jobs\.db was removed or replaced"):
            use()
    sink.close()
    source.close()
    sink.open()
    sink.handle_batch([Item(b"4")])  # into the file that is there
    sink.close()
    source = SQLiteQueue(path)
    source.open()
    assert [item.body for item in source.take(5)] == [b"2"] * is_replaced + [b"4"]
    source.close()


def test_a_queue_has_a_single_source_at_a_time(tmp_path: Path) -> None:
    put(SQLiteQueue(tmp_path / "jobs.db"), [b"1"])
    first, second = SQLiteQueue(tmp_path / "jobs.db"), SQLiteQueue(tmp_path / "jobs.db")
    first.open()
    assert [item.body for item in first.take(5)] == [b"1"]

    second.open()
    with pytest.raises(ConnectionError, match="another pipeline takes the items"):
        second.take(5)
    second.close()
    first.close()
    second.open()

    assert [(item.body, item.redelivered) for item in second.take(5)] == [(b"1", True)]
    second.close()


def test_keys_and_errors_are_kept_and_a_batch_that_fails_leaves_nothing(tmp_path: Path) -> None:
    queue = SQLiteQueue(tmp_path / "jobs.db")
    queue.open()

    queue.handle_batch([Item(b"1", "ada", error=ValueError("no"))])
    with pytest.raises(sqlite3.Error):
        queue.handle_batch([Item(b"2"), Item(object())])

    assert [(item.body, item.key) for item in queue.take(5)] == [(b"1", "ada")]
    queue.close()
    connection = sqlite3.connect(tmp_path / "jobs.db")
    assert connection.execute("select error from items").fetchall() == [("ValueError('no')",)]
    connection.close()


def test_a_key_of_any_kind_is_a_text_in_a_file(tmp_path: Path) -> None:
    queue = SQLiteQueue(tmp_path / "jobs.db")
    queue.put(*(Item(b"", key) for key in KEYS_IN_ROWS))

    queue.open()
    assert [item.key for item in queue.take(50)] == [*KEYS_IN_ROWS.values()]
    queue.close()


@pytest.mark.parametrize("path, queue", [("", "a"), (":memory:", "a"), ("jobs.db", "")])
def test_wrong_arguments_are_refused(path: str, queue: str) -> None:
    with pytest.raises(BadInputError):
        SQLiteQueue(path, queue)


PROGRAM = """
import sys
from ergo_py import Backoff, ChildSpec, run
from ergo_py.pipelines import Pipeline, Sink, SQLiteQueue
import trio

class Write(Sink):
    def handle_batch(self, items):
        for item in items:
            print(item.body.decode(), flush=True)
        sys.stdin.readline()

class Jobs(Pipeline):
    async def pre_stop(self, reason):
        print("stopping", flush=True)
        await super().pre_stop(reason)

async def main(node):
    plan = Jobs.spec(
        SQLiteQueue(sys.argv[1], "jobs"), Write(batch=5), most_unacknowledged=20,
        reopen=Backoff(0.01, 0.1),
    )
    await node.supervise([ChildSpec("jobs", plan)])
    await trio.sleep_forever()

run(main, log_level="critical")
"""


def test_a_program_that_is_killed_loses_no_item_and_repeats_at_most_the_bound(
    tmp_path: Path,
) -> None:
    rig = SQLiteRig(tmp_path / "jobs.db")
    rig.put([b"%d" % number for number in range(300)])
    handled: Counter[int] = Counter()

    for lines in (100, None):
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "jobs.db")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        ) as program:
            assert program.stdout is not None
            read = 0
            while read != lines and len(handled) < 300:
                handled[int(program.stdout.readline())] += 1
                read += 1
            # The last items are acknowledged after their lines.
            while lines is None and program.poll() is None and rig.left():
                time.sleep(0.01)
            program.kill()
            # Lines that it has printed before its end.
            for line in program.stdout.read().split(b"\n")[:-1]:
                handled[int(line)] += 1

    assert {*handled} == {*range(300)}
    assert handled.total() - 300 <= 20
    assert rig.left() == 0


def test_a_program_that_is_asked_to_stop_acknowledges_all_items_that_it_has_taken(
    tmp_path: Path,
) -> None:
    rig = SQLiteRig(tmp_path / "jobs.db")
    rig.put([b"%d" % number for number in range(300)])

    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "jobs.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        # The sink waits for a line in its first batch, so all items that were taken are open.
        lines = [program.stdout.readline() for _ in range(5)]
        program.send_signal(signal.SIGTERM)
        stopping = program.stdout.readline()
        assert rig.left() == 300
        program.stdin.close()
        lines += program.stdout.readlines()
        status = program.wait()

    assert stopping == b"stopping\n"
    assert [int(line) for line in lines] == [*range(len(lines))]
    assert len(lines) <= 20
    assert rig.left() == 300 - len(lines)
    assert status == 0
