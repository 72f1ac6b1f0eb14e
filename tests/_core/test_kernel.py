"""Logger processes: they hear everything but themselves, after everything else, and are never
buried in it.
"""

import gc
import json
import threading
import weakref
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    LOOP,
    PID,
    Actor,
    BadInputError,
    Killed,
    LogRecord,
    Node,
    Normal,
    Priority,
    Threads,
    Why,
)
from ergo_py._core.runtime.cancel_scopes import close_coroutine
from ergo_py._core.tables.mailbox import LOG_LIMIT
from ergo_py._core.tables.relations import Kind, Relation
from ergo_py.errors import EscalationError, ProcessUnknownError
from ergo_py.info import Dispatcher
from tests.actors import Failed, Puppet
from tests.support import kernel_of, loggers_of, process_of, router_of, running_node


class Logger(Actor):
    """Keeps its records and its messages in a list that the test holds."""

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    async def handle_log(self, record: LogRecord) -> None:
        self.heard.append(record.event)

    async def handle_message(self, message: Any, sender: Any) -> None:
        if isinstance(message, trio.Event):
            await message.wait()
        else:
            self.heard.append(message)


async def spawn_logger(node: Node, heard: list[Any], level: str = "info", **options: Any) -> PID:
    pid = await node.spawn(Logger, heard, **options)
    node.add_logger(pid, level)
    return pid


async def test_a_logger_gets_records_with_all_their_fields() -> None:
    records: list[LogRecord] = []

    class Keeps(Actor):
        def handle_log(self, record: LogRecord) -> None:
            records.append(record)

    async with running_node("test@here") as node:
        node.add_logger(await node.spawn(Keeps))
        speaker = await node.spawn(Puppet, name="speaker")
        await node.call(speaker, lambda me: me.log.warning("by the process", size=3))
        node.log.error("by the node")
        await wait_all_tasks_blocked()

    assert [(one.level, one.event, one.node, one.source) for one in records] == [
        ("warning", "by the process", "test@here", speaker),
        ("error", "by the node", "test@here", node.pid),
    ]
    assert records[0].fields["size"] == 3
    assert records[0].fields["name"] == "speaker"


async def test_records_come_after_messages_of_every_priority() -> None:
    heard: list[Any] = []

    async with running_node() as node:
        pid = await spawn_logger(node, heard)
        gate = trio.Event()
        node.send(pid, gate)
        await wait_all_tasks_blocked()
        for number in (1, 2):
            node.log.error(f"record {number}")
            for priority in Priority:
                node.send(pid, f"{priority.name} {number}", priority=priority)
        depth = node.process_info(pid).lanes["log"]
        gate.set()
        await wait_all_tasks_blocked()

    assert depth == 2
    assert heard == [
        "MAX 1",
        "MAX 2",
        "HIGH 1",
        "HIGH 2",
        "NORMAL 1",
        "NORMAL 2",
        "record 1",
        "record 2",
    ]


async def test_messages_that_come_while_records_are_handled_overtake_the_rest() -> None:
    heard: list[Any] = []

    class Sends(Actor):
        def handle_log(self, record: LogRecord) -> None:
            heard.append(record.event)
            self.send(self.pid, f"after {record.event}")

        def handle_message(self, message: Any, sender: Any) -> None:
            heard.append(message)

    async with running_node() as node:
        node.add_logger(await node.spawn(Sends))
        node.log.error("one")
        node.log.error("two")
        await wait_all_tasks_blocked()

    assert heard == ["one", "after one", "two", "after two"]


@pytest.mark.parametrize(
    "node_level,level,expected",
    [
        ("debug", "debug", ["debug", "info", "warning", "error", "critical"]),
        ("debug", "error", ["error", "critical"]),
        ("warning", "debug", ["warning", "error", "critical"]),
        ("debug", "off", []),
        ("off", "debug", []),
    ],
)
async def test_a_logger_gets_the_records_of_its_level_and_of_the_nodes_level(
    node_level: str, level: str, expected: list[str]
) -> None:
    heard: list[Any] = []

    async with running_node(log_level=node_level) as node:
        await spawn_logger(node, heard, level)
        for method in ("debug", "info", "warning", "error", "critical"):
            getattr(node.log, method)(method)
        await wait_all_tasks_blocked()

    assert heard == expected


async def test_every_logger_gets_every_record() -> None:
    first: list[Any] = []
    second: list[Any] = []

    async with running_node() as node:
        await spawn_logger(node, first)
        await spawn_logger(node, second)
        node.log.error("for all")
        await wait_all_tasks_blocked()

    assert first == second == ["for all"]


@pytest.mark.parametrize("loggers", [1, 2])
async def test_loggers_that_log_do_not_get_their_own_records(loggers: int) -> None:
    heard: list[Any] = []

    class Talks(Actor):
        def handle_log(self, record: LogRecord) -> None:
            heard.append(record.event)
            self.log.error(f"heard {record.event}")

    async with running_node() as node:
        for _ in range(loggers):
            node.add_logger(await node.spawn(Talks))
        node.log.error("hello")
        await wait_all_tasks_blocked()

    assert heard == ["hello"] * loggers


async def test_a_logger_that_crashes_gets_neither_that_record_nor_later_records() -> None:
    heard: list[Any] = []

    class Crashes(Actor):
        def handle_log(self, record: LogRecord) -> None:
            heard.append(record.event)
            raise Failed

    async with running_node() as node:
        pid = await node.spawn(Crashes)
        node.add_logger(pid)
        node.log.error("one")
        await wait_all_tasks_blocked()
        node.log.error("two")
        await wait_all_tasks_blocked()

    assert heard == ["one"]
    assert not kernel_of(node).log.watched
    assert not loggers_of(node)


async def test_records_beyond_the_bound_of_the_lane_are_dropped_and_counted() -> None:
    heard: list[Any] = []

    async with running_node() as node:
        pid = await spawn_logger(node, heard)
        gate = trio.Event()
        node.send(pid, gate)
        await wait_all_tasks_blocked()
        for number in range(LOG_LIMIT + 500):
            node.log.error(str(number))
        info = node.process_info(pid)
        gate.set()
        await wait_all_tasks_blocked()
        node.log.error("there is room again")
        await wait_all_tasks_blocked()
        dead_letters = node.info().dead_letters

    assert info.lanes["log"] == LOG_LIMIT
    assert info.dropped == 500
    assert heard == [*map(str, range(LOG_LIMIT)), "there is room again"]
    assert not dead_letters


async def test_records_and_messages_have_separate_bounds() -> None:
    heard: list[Any] = []

    async with running_node() as node:
        pid = await spawn_logger(node, heard, mailbox_size=1)
        gate = trio.Event()
        node.send(pid, gate)
        await wait_all_tasks_blocked()
        for number in range(5):
            node.log.error(f"record {number}")
        node.send(pid, "message")
        gate.set()
        await wait_all_tasks_blocked()

    assert heard == ["message", *(f"record {number}" for number in range(5))]


async def test_a_logger_gets_the_records_of_each_thread_in_order() -> None:
    heard: list[Any] = []

    async with running_node() as node:
        await spawn_logger(node, heard)
        speaker = await node.spawn(Puppet)
        log = process_of(node, speaker).log

        def speak(thread: str) -> None:
            for number in range(100):
                (log if number % 2 else node.log).error(f"{thread} {number}")

        threads = [threading.Thread(target=speak, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        with trio.fail_after(60):
            while len(heard) < 200:
                await trio.lowlevel.checkpoint()
        for thread in threads:
            thread.join(60)

    for name in "ab":
        assert [one for one in heard if one.startswith(name)] == [
            f"{name} {number}" for number in range(100)
        ]


async def test_a_removed_logger_gets_no_more_records() -> None:
    heard: list[Any] = []

    async with running_node() as node:
        pid = await spawn_logger(node, heard)
        node.log.error("before")
        await wait_all_tasks_blocked()
        removed = [node.remove_logger(pid), node.remove_logger(pid)]
        node.log.error("after")
        await wait_all_tasks_blocked()
        watched = kernel_of(node).log.watched

    assert removed == [True, False]
    assert heard == ["before"]
    assert not watched


async def test_other_loggers_continue_when_a_logger_has_ended() -> None:
    heard: list[Any] = []

    async with running_node() as node:
        ended = await spawn_logger(node, [])
        await spawn_logger(node, heard)
        node.kill(ended)
        await wait_all_tasks_blocked()
        node.log.error("still there")
        await wait_all_tasks_blocked()

    assert heard == ["still there"]


async def test_only_a_living_process_can_be_a_logger_and_only_with_a_level() -> None:
    async with running_node() as node:
        pid = await node.spawn(Logger, [])

        with pytest.raises(ProcessUnknownError):
            node.add_logger("nobody")
        with pytest.raises(BadInputError, match="log_level"):
            node.add_logger(pid, "loud")
        with pytest.raises(ProcessUnknownError):
            node.remove_logger("nobody")
        watched = kernel_of(node).log.watched

    assert not watched


async def test_work_of_a_thread_that_fails_on_the_loop_is_logged() -> None:
    heard: list[Any] = []

    async with running_node() as node:
        await spawn_logger(node, heard)
        router_of(node).bridge.post(divmod, 1, 0)
        await wait_all_tasks_blocked()

    assert heard == ["work handed over by a thread failed"]


# -- the whole node --------------------------------------------------------------------------------


async def test_a_watcher_that_has_ended_gets_no_signal() -> None:
    async with running_node() as node:
        gone, target = await node.spawn(Puppet), await node.spawn(Puppet)
        node.kill(gone)
        await node.wait_ended(gone)

        kernel_of(node).links.tell(Relation(gone, target, Kind.MONITOR), Normal())

        assert node.processes() == [target]


async def test_excess_messages_of_a_thread_are_no_failure_of_the_bridge() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        await spawn_logger(node, heard)
        full = await node.spawn(Puppet, mailbox_size=1)
        router_of(node).bridge.post(node.send, full, "first")
        router_of(node).bridge.post(node.send, full, "one too many")
        router_of(node).bridge.post(int, "no number")
        await wait_all_tasks_blocked()

        assert node.info().dead_letters[Why.FULL] == 1
        assert heard == ["work handed over by a thread failed"]


async def test_the_error_names_the_first_supervisor_that_gives_up() -> None:
    with pytest.raises(EscalationError) as caught:
        async with running_node() as node:
            processes = [
                process_of(node, await node.spawn(Puppet, name=name))
                for name in ("first", "second")
            ]
            for process in processes:
                kernel_of(node).stop_because(process, Killed())
            await trio.sleep_forever()

    assert "first" in str(caught.value)


async def test_the_first_of_two_errors_meant_for_the_whole_program_is_passed_on() -> None:
    with pytest.raises(SystemExit, match="first"):
        async with running_node() as node:
            kernel_of(node).panic(SystemExit("first"))
            kernel_of(node).panic(SystemExit("second"))
            await trio.sleep_forever()


@pytest.mark.parametrize("dispatcher", [LOOP, Threads()], ids=str)
async def test_a_class_that_was_made_at_run_time_is_not_kept_forever(
    dispatcher: Dispatcher,
) -> None:
    async def live_and_die(node: Node) -> weakref.ref[type]:
        class Made(Puppet):
            pass

        pid = await node.spawn(Made, dispatcher=dispatcher)
        await node.call(pid, "anything")
        node.send_exit(pid, "enough")
        await node.wait_ended(pid)
        return weakref.ref(Made)

    async with running_node() as node:
        made = [await live_and_die(node) for _ in range(5)]
        await wait_all_tasks_blocked()
        gc.collect()

        assert [one() for one in made] == [None] * 5


def test_a_task_of_the_node_that_is_closed_after_the_run_is_no_failure() -> None:
    async def main() -> Any:
        async with running_node() as node:
            running = kernel_of(node)._run(trio.sleep_forever, (), None)
            running.send(None)
            return running

    trio.run(main).close()


async def test_an_error_of_a_task_that_is_abandoned_is_no_failure_of_the_node() -> None:
    async def fail_at_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise Failed

    async with running_node() as node:
        running = kernel_of(node)._run(fail_at_the_end, (), None)
        running.send(None)
        close_coroutine(running)

        assert kernel_of(node).fatal is None


async def test_a_failure_of_a_task_goes_to_the_function_that_takes_it() -> None:
    failures: list[Exception] = []

    async def fail(number: int) -> None:
        raise Failed(number)

    async with running_node() as node:
        kernel_of(node).start(fail, 1, name="fails", failed=failures.append)
        await wait_all_tasks_blocked()

        assert [failure.args for failure in failures] == [(1,)]
        assert kernel_of(node).fatal is None


async def test_lifetimes_of_processes_are_passed_on() -> None:
    async with running_node() as node:
        seen: list[tuple[object, bool]] = []
        kernel_of(node).lifetimes.watch_lifetimes(
            lambda process, lives: seen.append((process.id, lives))
        )

        pid = await node.spawn(Puppet)
        node.send_exit(pid, "done")
        await wait_all_tasks_blocked()

        assert seen == [(pid, True), (pid, False)]


class LastWords(Actor):
    """Sends to a name that no process has when it ends."""

    def terminate(self, reason: object) -> None:
        self.send("conter", 1)


async def test_a_message_to_a_misspelled_name_is_told_of_unless_the_node_stops(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with running_node(log_output="json") as node:
        await node.spawn(Puppet, name="counter")
        ended = await node.spawn(Puppet, name="count")
        await node.spawn(LastWords, name="last")
        node.kill(ended)
        await node.wait_ended(ended)

        node.send("lst", 1)
        node.send("count", 1)

    lines = capsys.readouterr().err.splitlines()
    told = [json.loads(line)["event"] for line in lines]
    assert told == ["no process is named 'lst', so `send` returned False; did you mean 'last'?"]
