"""Supervision: from a crash to the running successor, beside a bare spawn; and the cost of a
service for a send.
"""

from collections import deque
from typing import NoReturn

import trio
from trio.lowlevel import current_task, reschedule, wait_task_rescheduled
from trio.testing import wait_all_tasks_blocked

from ergo_py import PID, Actor, ChildSpec, open_node

from ..clocks import Latch, Stopwatch
from ..floor import FloorActor
from ..harness import Case, Figures, Goal, Line, on_loop
from .life import Idle, settle


class Mortal(Actor):
    """Fails as soon as it runs, as often as it is to be started again."""

    def __init__(self, left: list[int], latch: Latch) -> None:
        self.left = left
        self.latch = latch

    def init(self) -> None:
        self.send(self.pid, "fail")

    def handle_message(self, message: object, sender: PID) -> None:
        if not self.left[0]:
            self.latch.report()
            return
        self.left[0] -= 1
        raise ValueError(message)


async def _restart(children: int, size: int) -> Figures:
    rounds = max(1, size // children)
    latch = Latch(children)
    watch = Stopwatch()
    async with open_node(
        "bench@localhost", watchdog=None, log_output="none", log_level="off"
    ) as node:
        specs = [ChildSpec(str(number), Mortal, [rounds], latch) for number in range(children)]
        await node.supervise(specs, intensity=10**9)
        with watch:
            await latch.wait()
    return watch.each(rounds * children)


def _fail(message: object) -> NoReturn:
    raise ValueError(message)


async def _restart_by_hand(size: int) -> Figures:
    """A supervisor, its task, and a mailbox with a task that fails at its first message: the
    supervisor wakes up, keeps the error with its traceback, and starts the next task.
    """
    kept: deque[Exception] = deque(maxlen=100)

    async def run(actor: FloorActor, supervisor: trio.lowlevel.Task) -> None:
        try:
            await actor.run()
        except ValueError as error:
            kept.append(error)
            reschedule(supervisor)

    watch = Stopwatch()
    async with trio.open_nursery() as nursery:
        with watch:
            for _ in range(size):
                actor = FloorActor(_fail)
                actor.put("fail")
                nursery.start_soon(run, actor, current_task())
                await wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
    assert kept[-1].__traceback__ is not None
    return watch.each(size)


async def _spawn(size: int) -> Figures:
    watch = Stopwatch()
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        with watch:
            for _ in range(size):
                await node.spawn(Idle)
            await settle()
    return watch.each(size)


async def _spawn_one_at_a_time(size: int) -> Figures:
    """Each has come to rest before the next: the turns of the scheduler that a restart takes,
    too.
    """
    watch = Stopwatch()
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        with watch:
            for _ in range(size):
                await node.spawn(Idle)
                await trio.lowlevel.checkpoint()
    return watch.each(size)


class Sink(Actor):
    """Takes every message."""

    def handle_message(self, message: object, sender: PID) -> None:
        """It is the way here that is measured."""


async def _send(through_service: bool, size: int) -> Figures:
    watch = Stopwatch()
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        await node.supervise([ChildSpec("sink", Sink)])
        service = node.service("sink")
        pid = service.pid
        assert pid is not None
        await wait_all_tasks_blocked()
        if through_service:
            with watch:
                for _ in range(size):
                    service.send("message")
        else:
            with watch:
                for _ in range(size):
                    node.send(pid, "message")
    return watch.each(size)


async def _look_up(size: int) -> Figures:
    table = {PID("bench@localhost", 1, number): number for number in range(1000)}
    pid = PID("bench@localhost", 1, 500)
    with Stopwatch() as watch:
        for _ in range(size):
            table.get(pid)
    return watch.each(size)


CASES = [
    Case(
        name="restart",
        about=(
            "crash to running successor, no back-off; floor: two bare tasks, and the error kept; "
            "spawn: a bare spawn, many in a row or one at a time"
        ),
        unit="µs",
        size=2_000,
        least=2,
        variants={
            "ergo": on_loop(_restart, 1),
            "ergo 100": on_loop(_restart, 100),
            "floor": on_loop(_restart_by_hand),
            "spawn": on_loop(_spawn),
            "spawn one at a time": on_loop(_spawn_one_at_a_time),
        },
        lines=[
            Line(
                "one child, again and again",
                "ergo",
                goals=(Goal("reach", 3.0, "spawn one at a time"), Goal("reach", 45.0)),
            ),
            Line("one child, by hand", "floor"),
            Line("100 children at once", "ergo 100", goals=(Goal("reach", 3.0, "spawn"),)),
        ],
        reference="spawn",
    ),
    Case(
        name="service",
        about="a send through a service, the same send to the PID, and a look-up in a dictionary",
        unit="µs",
        size=100_000,
        least=10,
        variants={
            "ergo": on_loop(_send, True),
            "plain": on_loop(_send, False),
            "look-up": on_loop(_look_up),
        },
        lines=[
            Line("send through a service", "ergo", goals=(Goal("near", 1.1, "plain"),)),
            Line(
                "what the service adds",
                "ergo",
                minus="plain",
                goals=(Goal("reach", 1.0, "look-up"),),
            ),
        ],
        reference="plain",
    ),
]
