"""Processes that move from a program to its successor. Both are nodes of this test program, and
meet at the socket of the first.
"""

import dataclasses
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Caller,
    ChildSpec,
    Drain,
    MetaProcess,
    Node,
    NotAllowedError,
    Reject,
    TargetDownError,
    Threads,
)
from ergo_py.handover.channel import REQUEST, Channel
from ergo_py.handover.forwarder import Link
from ergo_py.handover.moved_processes import Leaving
from ergo_py.handover.succession import Succession
from ergo_py.meta.inherited_sockets import InheritedSockets
from ergo_py.network import Local, RemoteError
from examples.guide.moved_state import Visits
from tests.actors import LogKeeper
from tests.handover.test_succession import named, place
from tests.network.pairs import Total
from tests.support import running_node

__all__ = ["named", "place"]


@dataclasses.dataclass(frozen=True)
class Sum:
    """A state of a type that the module of the process defines."""

    total: int


class Counter(Actor):
    """Adds, and moves. A version with another layout gives its own functions."""

    def __init__(
        self,
        give: Callable[[int], object] = int,
        take: Callable[[Any], int] = int,
    ) -> None:
        self.give, self.take = give, take
        self.total = 0
        self.seen: list[object] = []

    def handle_message(self, message: Any, sender: Any) -> None:
        self.seen.append(message)
        self.total += message

    async def handle_call(self, request: Any, caller: Caller) -> object:
        if isinstance(request, str):
            return list(self.seen) if request == "seen" else self.total
        if isinstance(request, Exception):
            raise Reject(request)
        if request is None:
            return object()
        if isinstance(request, Sum):
            return Sum(self.total + request.total)
        self.total += request
        return self.total

    def hand_over(self) -> object:
        return self.give(self.total)

    def take_over(self, state: Any) -> None:
        self.total = self.take(state)


class Gate(Actor):
    """Keeps the old program busy until the test lets it end."""

    drains = True

    def __init__(self, drained: trio.Event, begun: trio.Event | None = None) -> None:
        self.drained, self.begun = drained, begun

    async def handle_call(self, request: Any, caller: Caller) -> object:
        assert isinstance(request, Drain)
        if self.begun is not None:
            self.begun.set()
        await self.drained.wait()
        return 0


SOCKETS: ContextVar[InheritedSockets] = ContextVar("sockets")
"""The named sockets of the program of this task."""


class Program:
    """A node with its place in the succession."""

    def __init__(self, node: Node, sockets: InheritedSockets) -> None:
        self.node, self.sockets = node, sockets
        self.succession = Succession("shop", sockets)
        self.serves = trio.Event()
        """It has taken over."""
        self.has_ended = trio.Event()
        self.failure = ""
        self.log: list[Any] = []

    def is_up(self) -> None:
        self.succession.watch(self.node, self.serves.set)()


async def run_program(
    name: str,
    children: list[ChildSpec],
    options: dict[str, Any] | None = None,
    *,
    task_status: trio.TaskStatus[Program],
) -> None:
    sockets = InheritedSockets({})
    SOCKETS.set(sockets)
    try:
        async with running_node(f"{name}@localhost", **(options or {})) as node:
            program = Program(node, sockets)
            node.add_logger(await node.spawn(LogKeeper, program.log), "warning")
            await program.succession.begin()
            await node.supervise(children)
            task_status.started(program)
            try:
                await trio.sleep_forever()
            finally:
                try:
                    await program.succession.end()
                except NotAllowedError as error:
                    program.failure = str(error)
                program.has_ended.set()
    finally:
        for descriptor in sockets.to_hand_over().values():
            os.close(descriptor)


def counter(*functions: Any, **options: Any) -> list[ChildSpec]:
    return [ChildSpec("counter", Counter, *functions, **options)]


@asynccontextmanager
async def old_program(children: list[ChildSpec], **options: Any) -> AsyncIterator[Any]:
    """A program that serves, and the function that starts the next."""
    async with trio.open_nursery() as nursery:
        old = await nursery.start(run_program, "old", children, options)
        old.is_up()
        await old.serves.wait()

        async def start(children: list[ChildSpec], **options: Any) -> Program:
            made: Program = await nursery.start(run_program, "new", children, options)
            made.is_up()
            return made

        yield old, start
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("options", [{}, {"dispatcher": Threads()}], ids=["loop", "thread"])
async def test_a_process_moves_with_its_state_and_its_messages(
    place: Path, options: dict[str, Any]
) -> None:
    drained, begun = trio.Event(), trio.Event()
    gate = [ChildSpec("gate", Gate, drained, begun)]
    async with old_program([*counter(**options), *gate]) as (old, start):
        for number in (1, 2, 3):
            old.node.send("counter", number)

        new = await start(counter())
        await begun.wait()

        # The processes of the old program still reach the process, in the order of their sends.
        await new.node.suspend("counter")
        old.node.send("counter", 10)
        old.node.send("counter", 20)
        answers = []

        async def ask() -> None:
            answers.append(await old.node.call("counter", 4))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            await new.node.resume("counter")
        assert answers == [40]
        assert await new.node.call("counter", "seen") == [10, 20]
        assert await old.node.call("counter", Sum(1)) == Sum(41)
        with pytest.raises(ValueError, match="refused"):
            await old.node.call("counter", ValueError("refused"))
        with pytest.raises(RemoteError, match="object cannot travel"):
            await old.node.call("counter", None)  # the answer has no encoding
        with pytest.raises(Exception, match="has moved to the next program, and the call"):
            await old.node.call("counter", object())
        old.node.send("counter", object())
        for _ in range(1000):
            old.node.send("counter", 1)
        drained.set()
        await old.has_ended.wait()
        with trio.fail_after(60):  # the last messages are on their way
            while await new.node.call("counter", "total") < 1040:
                await trio.lowlevel.checkpoint()
        assert [record.event for record in old.log] == [
            "a message cannot be forwarded to the next program"
        ]


@pytest.mark.parametrize("stalls_at", [4, 2], ids=["slow", "stalled"])
async def test_the_last_messages_are_forwarded_as_long_as_some_arrive(
    place: Path, stalls_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_pass, allowed, forwarded = trio.Semaphore(0), 0, 0
    drained, begun = trio.Event(), trio.Event()
    send = Link.send

    async def one_in_a_pause(self: Link, process: PID, message: object) -> None:
        nonlocal forwarded
        await may_pass.acquire()
        await send(self, process, message)
        forwarded += 1

    async def pause(self: Leaving) -> None:
        nonlocal allowed
        if allowed < stalls_at - 1:
            allowed += 1
            may_pass.release()
            while forwarded < allowed:
                await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Link, "send", one_in_a_pause)
    monkeypatch.setattr(Leaving, "_pause", pause)
    children = [*counter(shutdown=0.0), ChildSpec("gate", Gate, drained, begun)]
    async with old_program(children) as (old, start):
        new = await start(counter())
        await begun.wait()
        for number in (1, 10, 100):
            old.node.send("counter", number)
        drained.set()
        await old.has_ended.wait()
        await trio.testing.wait_all_tasks_blocked()
        total = await new.node.call("counter", "total")
        log = [record.event for record in old.log]

    lost = "messages to moved processes are lost: the next program stalls"
    assert (total, log) == ((111, []) if stalls_at == 4 else (1, [lost]))


async def test_a_call_to_a_moved_process_fails_when_the_next_program_has_ended(
    place: Path,
) -> None:
    drained, begun = trio.Event(), trio.Event()
    gate = [ChildSpec("gate", Gate, drained, begun)]
    async with old_program([*counter(), *gate]) as (old, start):
        new = await start(counter())
        await begun.wait()
        await new.node.suspend("counter")

        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(TargetDownError):
                    await old.node.call("counter", 4)
                with pytest.raises(Exception, match="has moved to the next program"):
                    await old.node.call("counter", 4)

            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            new.node.stop()
        drained.set()


async def test_a_state_may_be_large_and_of_listed_types(place: Path) -> None:
    large = "x" * 1_000_000
    many = {number: number for number in range(10_000)}
    async with old_program(counter(lambda total: (total, large, many))) as (old, start):
        old.node.send("counter", 5)
        new = await start(counter(int, lambda state: state[0] + len(state[1]) + len(state[2])))
        await old.has_ended.wait()
        assert await new.node.call("counter", "total") == 1_010_005
    network = Local(types=[Total])
    async with old_program(counter(lambda total: (Sum(total), Total())), network=network) as (
        old,
        start,
    ):
        old.node.send("counter", 5)
        new = await start(counter(int, lambda state: state[0].total), network=network)
        await old.has_ended.wait()
        assert await new.node.call("counter", "total") == 5


def fail(_: object) -> int:
    raise ValueError("not this layout")


class Owing(Counter):
    """Answers the first call after the second."""

    caller: Caller | None = None

    async def handle_call(self, request: Any, caller: Caller) -> object:
        if request == "later":
            self.caller = caller
            return NO_REPLY
        if self.caller is not None:
            self.reply(self.caller, self.total)
        return await super().handle_call(request, caller)


CASES = {
    "raises": (counter(fail), counter(), "'counter' cannot be handed over: not this layout"),
    "codec": (
        counter(lambda _: object()),
        counter(),
        "'counter' cannot be handed over: a value of the type",
    ),
    "unlisted": (counter(lambda _: Total()), counter(), "Total is not among the types"),
    "take": (counter(), counter(int, fail), "cannot take its state over: ValueError: not this"),
    "owes": ([ChildSpec("counter", Owing)], counter(), "it owes answers for more than 10 s"),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_state_that_cannot_move_leaves_the_old_program_as_it_was(
    case: str, place: Path, autojump_clock: Any
) -> None:
    children, next_children, text = CASES[case]
    async with old_program(children) as (old, start), trio.open_nursery() as nursery:
        old.node.send("counter", 5)
        if case == "owes":
            nursery.start_soon(partial(old.node.call, "counter", "later", timeout=None))

        new = await start(next_children)
        await new.has_ended.wait()

        assert "the running program 'shop' goes on" in new.failure
        assert text in new.failure
        old.node.send("counter", 6)
        assert await old.node.call("counter", "total") == 11


class Asking(Actor):
    """Asks the counter in each callback, so that its hand-over waits for that of the counter."""

    total = 0

    async def handle_message(self, message: Any, sender: Any) -> None:
        await message.wait()
        self.total = await self.call("counter", "total")

    def handle_call(self, request: object, caller: Caller) -> object:
        return self.total

    def hand_over(self) -> object:
        return self.total

    def take_over(self, state: Any) -> None:
        self.total = state


async def test_processes_that_call_each_other_move_together(
    place: Path, autojump_clock: Any
) -> None:
    children = [*counter(), ChildSpec("asking", Asking)]
    async with old_program(children) as (old, start):
        go_on = trio.Event()
        old.node.send("counter", 5)
        old.node.send("asking", go_on)

        new = await start(children)
        await trio.sleep(0.001)  # virtual: the counter is suspended, and the other waits
        go_on.set()
        await old.has_ended.wait()

        assert await new.node.call("counter", "total") == 5
        assert await new.node.call("asking", "total") == 5


class Quiet(MetaProcess):
    """Stays until it is ended."""

    async def start(self) -> None:
        await trio.sleep_forever()


class Ticking(Counter):
    """Has a timer and a meta-process, in the old program only."""

    async def init(self) -> None:
        self.send_after(1.0, self.pid, 1)
        self.quiet = await self.spawn_meta(Quiet())

    def handle_child_exit(self, child: Any, reason: Any) -> None:
        raise AssertionError


async def test_timers_and_connections_of_a_moved_process_end(
    place: Path, autojump_clock: Any
) -> None:
    drained, begun = trio.Event(), trio.Event()
    children = [ChildSpec("counter", Ticking), ChildSpec("gate", Gate, drained, begun)]
    async with old_program(children) as (old, start):
        new = await start(counter())
        await begun.wait()
        assert old.node.info().metas == 0
        await trio.sleep(2)  # virtual
        assert await new.node.call("counter", "seen") == []
        drained.set()


async def test_the_example_counts_on_in_its_next_version(place: Path) -> None:
    children = [ChildSpec("visits", Visits)]
    async with old_program(children) as (old, start):
        assert await old.node.call("visits", "Ann") == 1
        new = await start(children)
        await old.has_ended.wait()
        assert await new.node.call("visits", "Bob") == 2


async def test_two_successors_at_once_take_over_in_turn(place: Path) -> None:
    async with old_program(counter()) as (old, start):
        old.node.send("counter", 5)
        programs: list[Program] = []

        async def succeed() -> None:
            programs.append(await start(counter()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(succeed)
            nursery.start_soon(succeed)
        first, second = programs
        await old.has_ended.wait()
        await first.has_ended.wait()

        assert (first.failure, second.failure) == ("", "")
        assert await second.node.call("counter", "total") == 5


async def test_a_process_that_has_moved_twice_is_reached_by_the_first_program(place: Path) -> None:
    drained, begun = trio.Event(), trio.Event()
    gate = [ChildSpec("gate", Gate, drained, begun)]
    async with old_program([*counter(), *gate]) as (old, start):
        second = await start(counter())
        await begun.wait()
        third = await start(counter())
        await third.serves.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)

        assert await old.node.call("counter", 5) == 5
        assert await third.node.call("counter", "total") == 5
        drained.set()
        await old.has_ended.wait()
        await second.has_ended.wait()


async def test_a_program_may_take_the_states_of_thousands_of_processes(place: Path) -> None:
    """Their names are one line, which comes in several parts."""
    async with old_program(counter()) as (old, _):
        old.node.send("counter", 5)
        sock = trio.socket.socket(trio.socket.AF_UNIX)
        await sock.connect(str(place / "shop.handover"))
        with closing(Channel(sock)) as channel:
            takes = ["counter", *(f"counter {number:030}" for number in range(6_000))]
            heard = []
            for line in (REQUEST, {"up": True, "takes": takes}):
                await channel.say(line)
                heard.append(await channel.hear())
        assert heard == [{"sockets": []}, {"state": "counter", "body": b"\x05"}]


class Working(Actor):
    """Works on when its program stops, and then needs the counter."""

    def __init__(self, stops: trio.Event, has_worked: trio.Event, answers: list[object]) -> None:
        self.stops, self.has_worked, self.answers = stops, has_worked, answers

    async def handle_message(self, message: Any, sender: Any) -> None:
        await self.stops.wait()
        try:
            self.send("counter", 10)
            self.answers.append(await self.call("counter", 4))
        finally:
            self.has_worked.set()


async def test_a_handler_of_the_old_program_reaches_a_moved_process_while_the_node_stops(
    place: Path,
) -> None:
    has_worked, answers = trio.Event(), list[object]()
    stops = trio.Event()
    working = [ChildSpec("working", Working, stops, has_worked, answers)]
    async with old_program([*counter(), *working]) as (old, start):
        old.node.send("working", "begin")
        new = await start(counter())
        await old.has_ended.wait()  # its main function: the node stops its processes next
        await trio.testing.wait_all_tasks_blocked()
        stops.set()
        await has_worked.wait()

        assert answers == [14]
        assert await new.node.call("counter", "total") == 14
        assert old.log == []


async def test_a_program_ends_and_forwards_messages_if_its_drain_fails(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with old_program(counter()) as (old, start):

        async def drain(timeout: float) -> list[str]:
            for _ in range(100):
                old.node.send("counter", 1)
            raise ImportError("a file of the next version")

        monkeypatch.setattr(old.node, "drain", drain)
        new = await start(counter())
        await old.has_ended.wait()

        assert await new.node.call("counter", "total") == 100
        assert [(record.event, record.fields["error"]) for record in old.log] == [
            ("the drain has failed", "a file of the next version")
        ]


class Fresh(Actor):
    """Has no state."""


class Slow(Actor):
    """Takes as long for its state as the first try may take."""

    total = 0

    def handle_call(self, request: int, caller: Caller) -> int:
        self.total += request
        return self.total

    async def hand_over(self) -> object:
        await trio.sleep(0.05)
        return self.total

    def take_over(self, state: Any) -> None:
        self.total = state


async def test_processes_that_are_ready_when_a_try_ends_move_with_the_next(
    place: Path, autojump_clock: Any
) -> None:
    """Whether the try or the process is the first decides the scheduler, for each process."""
    names = [f"slow{number}" for number in range(20)]
    children = [ChildSpec(name, Slow) for name in names]
    async with old_program(children) as (old, start):
        for name in names:
            await old.node.call(name, 5)
        new = await start(children)
        await old.has_ended.wait()
        assert [await new.node.call(name, 1) for name in names] == [6] * 20


async def test_a_process_that_a_person_has_suspended_stays_so(
    place: Path, autojump_clock: Any
) -> None:
    async with old_program(counter()) as (old, start):
        await old.node.suspend("counter")
        new = await start(counter())
        await new.has_ended.wait()
        assert "it is suspended for more than 10 s" in new.failure
        assert await old.node.resume("counter")


async def test_a_state_that_the_next_version_does_not_take_is_named_in_its_log(
    place: Path,
) -> None:
    async with old_program([*counter(), ChildSpec("removed", Counter)]) as (old, start):
        new = await start([ChildSpec("counter", Fresh)])
        await old.has_ended.wait()
        assert [(record.event, record.fields["process"]) for record in new.log] == [
            ("a process starts fresh: its class has no take_over", "counter"),
            ("a state is lost: the next version has no process of this name", "removed"),
        ]


async def test_a_successor_ends_if_its_predecessor_gave_it_up_in_the_middle(place: Path) -> None:
    """A state is not complete, and a program still waits for successors: the predecessor lives."""
    waiting = trio.socket.socket(trio.socket.AF_UNIX)
    await waiting.bind(str(place / "shop.handover"))
    waiting.listen(2)

    async def precede() -> None:
        sock, _ = await waiting.accept()
        with closing(Channel(sock)) as channel:
            await channel.hear()
            await channel.say({"sockets": []})
            await channel.hear()
            await sock.send(b'{"state": "counter", "size": 9}\n...')

    async with trio.open_nursery() as nursery:
        nursery.start_soon(precede)
        new = await nursery.start(run_program, "new", counter())
        new.is_up()
        await new.has_ended.wait()
    waiting.close()
    assert "this one did not take over in time" in new.failure
    assert not new.serves.is_set()
