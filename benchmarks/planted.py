"""Protocol faults that are planted, and found in worlds: `python -m benchmarks planted`.

Each fault is a small change of the source of a protocol. A world without it goes well for each
seed; a search finds a seed that fails with it, within the given number of seeds.
"""

import argparse
import importlib
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from types import CodeType, FunctionType
from typing import Any

import trio

from ergo_py import Actor, ChildSpec, Down, Name, Node, NodeName
from ergo_py.cluster import Singleton
from ergo_py.testing import History, Simulation, SimulationError, World, at_most_one

__all__ = ["FAULTS", "Planted", "find", "leases", "messages", "planted"]

SESSION = "ergo_py.network.protocol.session"
RECORDS = "ergo_py.network.protocol.records"
LEASE = "ergo_py.cluster.lease"
SINGLETON = "ergo_py.cluster.singleton"
STORE = "ergo_py.network.stores.memory_store"
PADDING = "x" * 2000


# -- the world of messages -------------------------------------------------------------------------


class Sink(Actor):
    """Notes all that it gets."""

    def __init__(self, got: list[tuple[int, int]]) -> None:
        self.got = got

    def handle_message(self, message: Any, sender: Any) -> None:
        session, number, _ = message
        self.got.append((session, number))


class Source(Actor):
    """Sends numbers to the sink, and begins again at zero when its node is lost."""

    def __init__(self, sent: list[int]) -> None:
        self.sent = sent

    def init(self) -> None:
        self.monitor(NodeName("b@world"))

    def handle_message(self, message: Any, sender: Any) -> None:
        if isinstance(message, Down):
            self.sent.append(0)
            self.monitor(NodeName("b@world"))
            return
        for _ in range(message):
            self.send(Name("sink", "b@world"), (len(self.sent), self.sent[-1], PADDING))
            self.sent[-1] += 1


async def messages(world: World) -> None:
    """A source on a node sends to a sink on another: each session delivers a prefix, in order and
    once, and after the faults nothing is missing.
    """
    got: list[tuple[int, int]] = []
    sent = [0]

    async def start(node: Node) -> None:
        if node.name == "b@world":
            await node.spawn(Sink, got, name="sink")
        else:
            await node.spawn(Source, sent, name="source")

    a, _ = await world.start(2, start)
    world.faults(seconds=20.0, cut=0.1, one_way=0.1, lose=0.1, double=0.1, delay=0.2, pause=0.05)
    for _ in range(20):
        a.node.send("source", world.random.choice((1, 3, 40)))
        await trio.sleep(world.random.uniform(0.0, 2.0))
    await world.heal()
    await trio.sleep(10)

    def in_order(history: History) -> Iterator[str]:
        for session in dict.fromkeys(session for session, _ in got):
            numbers = [number for each, number in got if each == session]
            if numbers != list(range(len(numbers))):
                yield f"session {session} delivers {numbers[:50]}"
        last = [number for session, number in got if session == len(sent)]
        if len(last) != sent[-1]:
            yield f"{len(last)} of {sent[-1]} messages have arrived, and no loss was told"

    world.check(in_order)


# -- the world of leases ---------------------------------------------------------------------------


class Only(Actor):
    """A singleton that takes a while to end."""

    async def terminate(self, reason: object) -> None:
        await trio.sleep(0.3)


async def leases(world: World) -> None:
    """A singleton on three nodes: at most one lives, and after the faults one does."""

    async def start(node: Node) -> None:
        only = ChildSpec("only", Only, shutdown=0.5, terminate_timeout=0.5)
        await node.supervise([Singleton(only, lease=4.0)], intensity=1000)

    await world.start(3, start)
    world.faults(seconds=40.0, cut_store=0.15, slow_store=0.2, crash=0.05, pause=0.05)
    await trio.sleep(50)
    await world.heal()
    world.check(at_most_one("only"))
    await trio.sleep(15)

    def lives(history: History) -> Iterator[str]:
        if not any(
            each.name == "only" and each.ended > history.now() for each in history.lifetimes
        ):
            yield "no singleton lives, long after the last fault"

    world.check(lives)


# -- the faults ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault: a part of a module, and the text in its place."""

    name: str
    world: Any
    module: str
    text: str
    instead: str


FAULTS = (
    Planted(
        "lost operations are not sent again",
        *(messages, SESSION),
        "        if ack.resend:\n            self._send_again(now)\n",
        "        if ack.resend:\n            pass\n",
    ),
    Planted(
        "a doubled frame is delivered twice",
        *(messages, SESSION),
        "            news = news[receiving.received - seq :]\n",
        "            pass\n",
    ),
    Planted(
        "a gap is accepted",
        *(messages, SESSION),
        "                self._miss(now)\n                return\n            news",
        "                receiving.received = seq\n            news",
    ),
    Planted(
        "missing operations are asked for only once",
        *(messages, SESSION),
        "            if now >= self._deadlines.resend_at:\n                self._ask_again(now)\n",
        "            if now >= self._deadlines.resend_at:\n"
        "                self._deadlines.ask_again(1e9)\n",
    ),
    Planted(
        "an acknowledgement forgets all operations",
        *(messages, RECORDS),
        "for _ in range(news))",
        "for _ in range(len(waiting)))",
    ),
    Planted(
        "operations are sent again with the number of the first",
        *(messages, SESSION),
        "            self._send_data(start, ops)\n",
        "            self._send_data(sending.acknowledged, ops)\n",
    ),
    Planted(
        "heartbeats do not tell the last operation",
        *(messages, SESSION),
        "        receiving.note_known(ack.last)\n",
        "        pass\n",
    ),
    Planted(
        "an operation too many counts as received",
        *(messages, RECORDS),
        "        count = size - length_hint(left)\n",
        "        count = size - length_hint(left) + 1\n",
    ),
    Planted(
        "a lease has no margin",
        *(leases, LEASE),
        "        return self.seconds * (1 - MARGIN)\n",
        "        return self.seconds * (1.3 + 0 * MARGIN)\n",
    ),
    Planted(
        "a lease is taken too early",
        *(leases, LEASE),
        "        if now >= self._seen_at + lease:\n",
        "        if now >= self._seen_at + lease / 3:\n",
    ),
    Planted(
        "a lease is given up before its work has ended",
        *(leases, SINGLETON),
        "            await self._end(why)\n            await self._keeper.release()\n",
        "            await self._keeper.release()\n            await self._end(why)\n",
    ),
    Planted(
        "a living node counts as gone",
        *(leases, STORE),
        "        return not self._faults.has(node, creation)\n",
        "        return True\n",
    ),
    Planted(
        "the store takes a write with an old revision",
        *(leases, STORE),
        "            raise ConflictError(key)\n",
        "            pass\n",
    ),
)


@contextmanager
def planted(fault: Planted) -> Iterator[None]:
    """Change the functions of a module inside the block."""
    module: Any = importlib.import_module(fault.module)
    source = inspect.getsource(module)
    if source.count(fault.text) != 1:
        raise LookupError(f"{fault.module} has the text of {fault.name!r} not once")
    new = dict(_codes(compile(source.replace(fault.text, fault.instead), module.__file__, "exec")))
    before: list[tuple[FunctionType, CodeType]] = []
    try:
        for function in _functions(module):
            before.append((function, function.__code__))
            function.__code__ = new[function.__qualname__]
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for each in code.co_consts:
        if isinstance(each, CodeType) and "<locals>" not in each.co_qualname:
            yield each.co_qualname, each
            yield from _codes(each)


def _functions(module: Any) -> Iterator[FunctionType]:
    for owner in [module, *vars(module).values()]:
        if getattr(owner, "__module__", module.__name__) != module.__name__:
            continue
        for found in list(getattr(owner, "__dict__", {}).values()):
            function = found.fget if isinstance(found, property) else found
            if (
                isinstance(function, FunctionType)
                and function.__module__ == module.__name__
                and function.__code__.co_filename == module.__file__
            ):
                yield function


def find(fault: Planted, seeds: Sequence[int]) -> SimulationError | None:
    """The failure of the first seed that finds a fault, shrunk."""
    with planted(fault):
        try:
            Simulation(fault.world, len(seeds)).run(seeds)
        except SimulationError as error:
            return error
    return None


def main() -> int:
    """Search for all faults, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks planted", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="the most seeds for each fault")
    parser.add_argument("--only", default="", help="only faults with this text in their names")
    options = parser.parse_args()
    missed = 0
    chosen = [fault for fault in FAULTS if options.only in fault.name]
    for fault in chosen:
        began = perf_counter()
        error = find(fault, range(options.seeds))
        missed += error is None
        told = (
            f"not found in {options.seeds} seeds"
            if error is None
            else f"seed {error.seed}, shrunk to {len(error.plan.faults)} in {error.runs} runs"
        )
        print(f"{fault.name}: {told}, {perf_counter() - began:.1f} s", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
