"""A thousand children that fail, end, are killed and operated on at random, under every strategy.

However long it goes on: no child runs twice, no child is lost, and when it is over the tree is in
the state that the specs demand.
"""

import random
from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py import (
    Actor,
    Backoff,
    ChildSpec,
    Node,
    Normal,
    Reason,
    RestartPolicy,
    SpawnError,
    Strategy,
    Supervisor,
    SupervisorSpec,
)
from ergo_py._core.vocabulary.info import Phase
from ergo_py.errors import ChildError
from ergo_py.info import ChildInfo
from ergo_py.supervision import Fate
from ergo_py.supervision.handle import SupervisorHandle
from tests.actors import Failed
from tests.support import THOROUGH, process_of, running_node

GROUPS, SIZE = 10, 100
FORCE = 3 if THOROUGH else 1
POLICIES = [
    RestartPolicy.PERMANENT,
    RestartPolicy.PERMANENT,
    RestartPolicy.TRANSIENT,
    RestartPolicy.TEMPORARY,
]

SETTLED = (Phase.RUNNING, Phase.COMPLETED, Phase.FAILED)

pytestmark = pytest.mark.no_cover


class Book:
    """The living children. Born twice, or dead without having been born, must not happen."""

    def __init__(self) -> None:
        self.alive: set[str] = set()
        self.births: Counter[str] = Counter()
        self.is_over = False
        """The storm is over, and every start succeeds. A hundred children of ALL_FOR_ONE would
        otherwise need any number of attempts until all of them start.
        """

    def born(self, label: str) -> None:
        if label in self.alive:
            raise AssertionError(f"{label} runs twice")
        self.alive.add(label)
        self.births[label] += 1

    def died(self, label: str) -> None:
        self.alive.remove(label)


class Mortal(Actor):
    def __init__(
        self, book: Book, label: str, luck: random.Random, bad_starts: float = 0.05
    ) -> None:
        self.book = book
        self.label = label
        self.luck = luck
        self.bad_starts = bad_starts

    async def init(self) -> None:
        is_first = not self.book.births[self.label]
        if not is_first and not self.book.is_over and self.luck.random() < self.bad_starts:
            raise Failed("bad start")
        self.book.born(self.label)

    async def handle_message(self, message: Any, sender: Any) -> None:
        if self.luck.random() < 0.3:
            await trio.sleep(self.luck.random() / 10)
        if message == "fail":
            raise Failed(self.label)
        self.stop(Normal())

    async def terminate(self, reason: Reason) -> None:
        try:
            if self.luck.random() < 0.2:
                await trio.sleep(self.luck.random() / 10)
        finally:
            self.book.died(self.label)


def child(book: Book, group: int, number: int, luck: random.Random) -> ChildSpec:
    label = f"{group}.{number}"
    return ChildSpec(
        label,
        Mortal,
        book,
        label,
        luck,
        restart=luck.choice(POLICIES),
        backoff=luck.choice([None, None, Backoff(0.01, 0.2, jitter=0.5)]),
        mailbox=luck.choice([Fate.KEEP, Fate.DEAD_LETTER]),
        shutdown=luck.choice([0.0, 0.05, 5.0]),
    )


async def strike(
    node: Node, group: SupervisorHandle, victim: ChildInfo, luck: random.Random
) -> None:
    """A blow against a child, by a process that may have ended meanwhile."""
    blow = luck.randrange(6)
    if victim.pid is None or blow == 5:
        try:
            await group.restart_child(victim.name, timeout=1.0)
        except (ChildError, SpawnError, TimeoutError):
            return
    elif blow == 4:
        node.send_exit(victim.pid, Failed("asked"))
    elif blow == 3:
        node.kill(victim.pid)
    else:
        node.send(victim.pid, "end" if blow == 2 else "fail")


async def storm(
    node: Node, book: Book, groups: list[SupervisorHandle], luck: random.Random, blows: int
) -> None:
    async def strikes(count: int) -> None:
        for _ in range(count // 10):
            group = luck.choice(groups)
            for victim in luck.choices(group.children(), k=10):
                await strike(node, group, victim, luck)
                if luck.random() < 0.2:
                    await trio.sleep(luck.random() / 20)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(strikes, blows // 5)
    book.is_over = True
    await trio.sleep(60)
    # Each restart of a whole group takes its time, and trio's order of tasks decides how many there
    # are: no number of seconds is always enough.
    while not all(one.phase in SETTLED for group in groups for one in group.children()):  # noqa: ASYNC110 - supervisors report no peace
        await trio.sleep(60)


def check_peace(node: Node, book: Book, groups: list[SupervisorHandle]) -> None:
    """The storm is over: every child is where the specs say, and there are no others."""
    running = set()
    for group in groups:
        for one in group.children():
            assert one.phase in SETTLED
            if one.phase is Phase.RUNNING:
                running.add(one.name)
            # Only a temporary child stays down after a failure; a permanent child never stays down.
            assert one.phase is Phase.RUNNING or one.restart != "permanent"
            assert one.phase is not Phase.FAILED or one.restart == "temporary"
    assert book.alive == running
    assert len(node.processes()) == len(running) + len(groups) + 1
    assert all(
        node.process_info(pid).phase is Phase.RUNNING
        for pid in node.processes()
        if pid != node.whereis("root")
    )


@pytest.mark.parametrize(
    "strategy, blows",
    [(Strategy.ONE_FOR_ONE, 1000), (Strategy.ALL_FOR_ONE, 50), (Strategy.REST_FOR_ONE, 100)],
)
async def test_a_thousand_children_survive_a_storm_of_crashes(
    autojump_clock: trio.testing.MockClock, strategy: Strategy, blows: int
) -> None:
    luck, book = random.Random(strategy.value), Book()
    blows *= FORCE
    async with running_node(limit=10_000.0) as node:
        specs = [
            SupervisorSpec(
                [child(book, group, number, luck) for number in range(SIZE)],
                strategy,
                10**9,
                1.0,
                auto_shutdown=False,
            )
            for group in range(GROUPS)
        ]
        children = [
            ChildSpec(f"group {number}", Supervisor, spec) for number, spec in enumerate(specs)
        ]
        await node.supervise(children, name="root")
        groups = [node.supervisor(f"group {number}") for number in range(GROUPS)]
        assert len(book.alive) == GROUPS * SIZE

        await storm(node, book, groups, luck, blows)

        check_peace(node, book, groups)
        assert book.births.total() > GROUPS * SIZE + blows / 2
    assert book.alive == set()
    assert node.exit_report is not None
    assert node.exit_report.abandoned == ()


async def test_a_storm_of_crashes_that_supervisors_do_not_survive(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """With tight limits whole groups give up and are started again from above: still no child runs
    twice or is lost.
    """
    luck, book = random.Random(7), Book()

    async with running_node(limit=10_000.0) as node:
        specs = [
            SupervisorSpec(
                [
                    ChildSpec(f"{group}.{number}", Mortal, book, f"{group}.{number}", luck, 0.0)
                    for number in range(SIZE)
                ],
                luck.choice([Strategy.ONE_FOR_ONE, Strategy.ALL_FOR_ONE, Strategy.REST_FOR_ONE]),
                intensity=2,
                period=1.0,
            )
            for group in range(GROUPS)
        ]
        children = [
            ChildSpec(f"group {number}", Supervisor, spec, backoff=Backoff(0.1, 1.0, jitter=0.5))
            for number, spec in enumerate(specs)
        ]
        tree = await node.supervise(children, intensity=10**9, name="root")
        names = [f"{group}.{number}" for group in range(GROUPS) for number in range(SIZE)]

        for _ in range(150 * FORCE):
            node.send(luck.choice(names), "fail")
            if luck.random() < 0.5:
                await trio.sleep(luck.random() / 10)
        await trio.sleep(60)

        assert sum(one.restarts for one in tree.children()) >= GROUPS * FORCE // 2
        assert book.alive == set(names)
        assert len(node.processes()) == len(names) + GROUPS + 1
        assert {node.service(name).pid for name in names} == {node.whereis(name) for name in names}
    assert book.alive == set()


async def test_a_thousand_children_from_a_template_survive_a_storm_of_crashes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    luck, book = random.Random(3), Book()
    async with running_node(limit=10_000.0) as node:
        template = ChildSpec.template(
            "child", Mortal, book, restart=RestartPolicy.TRANSIENT, backoff=Backoff(0.01, 0.1)
        )
        tree = await node.supervise(
            [template], strategy=Strategy.SIMPLE_ONE_FOR_ONE, intensity=10**9, name="root"
        )
        for number in range(1000):
            await tree.start_child("child", str(number), luck)

        await storm(node, book, [tree], luck, 1000 * FORCE)

        left = tree.children()
        assert {one.phase for one in left} == {Phase.RUNNING}
        assert len(book.alive) == len(left) == len(node.processes()) - 1
        process = process_of(node, tree.pid)
        assert process.slots is not None
        assert len(process.slots) == len(left)
    assert book.alive == set()
