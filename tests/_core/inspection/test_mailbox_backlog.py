"""A mailbox that grows too long is told of once."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import PID, Actor, Priority
from ergo_py._core.inspection.mailbox_backlog import Backlogs
from ergo_py._core.tables.mailbox import Mailbox
from ergo_py._core.vocabulary.envelopes import MESSAGE, Lane
from tests.support import looks_at_mailboxes, replace_private, running_node

LIMIT = 10


class World:
    """Processes that have nothing but a mailbox, and the reports about them."""

    def __init__(self, size: int = 1) -> None:
        self.processes: dict[PID, Any] = {}
        for number in range(size):
            pid = PID("demo@localhost", 7, number)
            self.processes[pid] = SimpleNamespace(id=pid, mailbox=Mailbox())
        self.said: list[tuple[int, int]] = []
        self.backlogs = Backlogs(self.processes, LIMIT, self.warn)

    def warn(self, process: Any, depth: int) -> None:
        self.said.append((process.id.number, depth))

    def fill(self, number: int, count: int, lane: Lane = Lane.MAIN) -> None:
        box = self.box(number)
        for _ in range(count):
            box.push(lane, (MESSAGE, None, None, None))

    def box(self, number: int) -> Mailbox:
        box: Mailbox = self.processes[PID("demo@localhost", 7, number)].mailbox
        return box


@pytest.mark.parametrize("lane", [Lane.MAIN, Lane.SYSTEM, Lane.URGENT])
def test_a_mailbox_above_the_limit_is_reported(lane: Lane) -> None:
    world = World(3)
    world.fill(0, LIMIT, lane)
    world.fill(2, LIMIT + 1, lane)

    world.backlogs.look()

    assert world.said == [(2, LIMIT + 1)]


def test_a_mailbox_is_reported_once_until_it_falls_well_below_the_limit() -> None:
    world = World()
    main = world.box(0).main

    def look_with(depth: int) -> None:
        main.clear()
        world.fill(0, depth)
        world.backlogs.look()

    for depth in (LIMIT + 1, LIMIT + 5, LIMIT, LIMIT + 2, LIMIT // 2, LIMIT + 3):
        look_with(depth)
    told_before = list(world.said)
    for depth in (LIMIT // 2 - 1, LIMIT + 4):
        look_with(depth)

    assert told_before == [(0, LIMIT + 1)]
    assert world.said == [(0, LIMIT + 1), (0, LIMIT + 4)]


def test_the_backlog_check_forgets_a_process_that_has_ended() -> None:
    world = World()
    world.fill(0, LIMIT + 1)
    world.backlogs.look()

    world.processes.clear()
    world.backlogs.look()

    assert world.backlogs._warned == {}


def test_the_backlog_check_skips_a_process_that_ended_after_it_was_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_private(monkeypatch, "mailboxes looked at in a turn", 1)
    world = World(2)
    world.fill(1, LIMIT + 1)
    world.backlogs.look()

    world.processes.clear()
    world.backlogs.look()

    assert world.said == []


def test_each_backlog_check_looks_at_a_bounded_number_and_reaches_every_mailbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_private(monkeypatch, "mailboxes looked at in a turn", 4)
    world = World(10)
    for number in range(10):
        world.fill(number, LIMIT + 1)
    told: list[int] = []

    for _ in range(4):
        world.backlogs.look()
        told.append(len(world.said))

    assert told == [4, 8, 10, 10]


class Stuck(Actor):
    async def handle_message(self, message: Any, sender: Any) -> None:
        await trio.sleep_forever()


async def test_a_node_warns_of_a_long_mailbox_and_suggests_mailbox_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with running_node(watchdog=0.02, mailbox_warning=100, log_output="console") as node:
        pid = await node.spawn(Stuck, name="slow")
        for number in range(150):
            node.send(pid, number, priority=Priority.HIGH if number % 2 else Priority.NORMAL)
        await wait_all_tasks_blocked()
        said = ""
        while "a mailbox is long" not in said:
            await trio.sleep(0.01)
            said += capsys.readouterr().err
        node.kill(pid)

    assert all(word in said for word in (str(pid), "slow", "Stuck", "mailbox_size="))
    # The node may look before all messages were sent.
    assert any(f"={length} " in said for length in range(101, 151)), said


async def test_the_warning_about_long_mailboxes_can_be_switched_off() -> None:
    async with running_node(watchdog=0.5, mailbox_warning=None) as node:
        assert not looks_at_mailboxes(node)
