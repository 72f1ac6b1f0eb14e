"""The lines that type checkers must accept, and the lines that they must refuse, of registries,
groups, schedules and the verbs of `ergo_py.blocking`. Never run, only checked: see
spawn_and_call.py.
"""

from concurrent.futures import Future, as_completed
from datetime import UTC, datetime
from typing import Any, assert_type

from ergo_py import (
    PID,
    Actor,
    ChildSpec,
    Cron,
    Group,
    GroupJoined,
    GroupLeft,
    Job,
    Key,
    Node,
    Published,
    Reason,
    Registry,
    Scheduler,
    ask,
    exposed,
)
from ergo_py.blocking import BlockingNode
from ergo_py.blocking.tasks import BlockingTask
from ergo_py.facades.streams import BlockingStream
from ergo_py.groups import Entry
from ergo_py.schedules.job import JobInfo
from ergo_py.tasks import FailedItem


class Counter(Actor):
    @exposed
    def add(self, amount: int) -> int:
        return amount

    def handle_message(self, message: GroupJoined | GroupLeft, sender: PID) -> None:
        match message:
            case GroupJoined(pid=pid):
                assert_type(pid, PID)
            case GroupLeft(reason=reason):
                assert_type(reason, Reason)


async def fetch(url: str) -> bytes:
    return url.encode()


async def right_for_a_node(node: Node, pid: PID) -> None:
    users = node.registry("users", unique=True)
    assert_type(users, Registry)
    users.register(("user", 1), pid, value="Ada")
    assert_type(users.address(("user", 1)), Key)
    assert_type(users.whereis("ada"), PID | None)
    assert_type(users.lookup("ada"), list[Entry])
    assert_type(await node.call(users.address("ada"), ask(Counter.add, 3)), int)
    assert_type(node.send(Key("users", "ada"), "hello"), bool)
    group = node.group(("room", 7))
    assert_type(group, Group)
    assert_type(group.members(), list[PID])
    assert_type(group.monitor(pid), list[PID])
    assert_type(group.broadcast("supper", sender=pid), int)
    jobs = [
        Job("a", Cron("0 9 * * *", timezone="UTC"), fetch, ("url",), overlap=Job.Overlap.QUEUE),
        Job("b", Cron("@daily"), to="db", message="tidy", missed=Job.MissedRuns.ALL, jitter=5),
    ]
    await node.spawn(Scheduler.spec(jobs, start=datetime.now(UTC), seed=1), name="schedule")
    ChildSpec("schedule", Scheduler, jobs)
    assert_type(await node.call("schedule", ask(Scheduler.jobs)), list[JobInfo])
    assert_type(await node.call("schedule", ask(Scheduler.remove, "a")), bool)
    assert_type(Cron("@daily").next_after(datetime.now(UTC)), datetime)


def right_without_async(node: BlockingNode, pid: PID) -> None:
    assert_type(node.call(pid, ask(Counter.add, 3)), int)
    assert_type(node.ask(pid, ask(Counter.add, 3)), Future[int])
    tasks = [node.run_task(fetch, "url", timeout=5)]
    assert_type(tasks, list[BlockingTask[bytes]])
    for task in as_completed(tasks):
        assert_type(task.result(1), bytes)
    assert_type(node.run_task(len, "abc").result(), int)
    assert_type(node.map_stream(fetch, ["url"], at_once=2), BlockingStream[bytes])
    for page in node.map_stream(fetch, ["url"], on_failure=FailedItem):
        assert_type(page, bytes | FailedItem[str])
    for event in node.events("prices"):
        assert_type(event, Published)
    assert_type(node.publish("prices", 7), int)
    assert_type(node.registry("users").keys(), list[Any])
    assert_type(node.group("workers").members(), list[PID])


async def wrong_for_a_node(node: Node, pid: PID) -> None:
    node.registry(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.registry("users", unique="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.registry("users").register(["a list"], pid)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.registry("users").register("ada", 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.group({"a": "dict"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.group("workers").join(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.group("workers").broadcast()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Cron(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Job("a", "0 9 * * *", fetch)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Job("a", Cron("@daily"), fetch, overlap="skip")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Scheduler.spec([fetch])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    ask(Scheduler.remove, 5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


def wrong_without_async(node: BlockingNode, pid: PID) -> None:
    node.run_task(fetch, 5)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    node.run_task(fetch, "url", timeout="soon")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    node.run_task(fetch, "url").result().as_integer_ratio()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    node.map_stream(fetch, [1, 2])  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    node.publish("prices")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    node.group({"a": "dict"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
