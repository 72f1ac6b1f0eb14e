"""`Memory`: a network of nodes in a single program, for tests: it can cut, lose, double, delay and
freeze.
"""

from collections import deque
from collections.abc import Iterable
from random import Random
from types import ModuleType
from typing import Final

import trio
from trio.lowlevel import Task, current_task

from ..._core import sources
from ..._core.kernel import Kernel
from ..._core.runtime.parking import park, wake
from ..._core.runtime.time_slices import SLICE
from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.options import Rereadable, check_number
from ..._core.vocabulary.public_names import show_public_names
from ..access.permits import Allow
from ..access.spawns import SpawnList
from ..carrier import Sink
from ..errors import NodeNameTakenError
from ..network import Network
from ..settings import NetworkSettings
from ..stores.memory_store import MemoryStore, StoreTable
from .copies import Copies
from .disturbances import Disturbance

__all__ = ["Memory"]

_FRAME: Final = 16 << 20


class Memory:
    """A network in memory. Give the same object to ``open_node(network=…)`` of several nodes.

    For example::

        network = Memory(types=[messages])
        async with open_node("a@test", network=network) as a:
            async with open_node("b@test", network=network) as b:
                ...
                network.cut("a@test", "b@test")

    Frames arrive in order, without delay, unless :meth:`cut`, :meth:`lose`, :meth:`disturb` or
    :meth:`freeze` say otherwise. All nodes must run in the same ``trio.run``.

    Args:
        types: the classes of messages that travel, or modules that define them.
        beat: seconds between the heartbeats of an idle session.
        patience: a node that is silent for this many seconds is down.
        backlog: bytes that may wait for a node before ``send`` refuses.
        window: bytes that may be on the way to a node.
        spawns: the behaviours that other nodes may start here, by name, as in
            ``spawns={"worker": Worker}``. A node needs the permit ``spawn`` as well.
        allow: the acts that other nodes are permitted, by patterns of their names; the name
            itself counts first, then the longest pattern that fits. The permits are ``send``,
            ``call``, ``watch``, ``exit``, ``forward``, which all nodes have by ``default``, and
            ``look``, ``kill``, ``spawn``, as in ``allow={"ops@*": "default,look"}``; or
            a function that returns this, which ``node.reload()`` calls again.
        max_calls: calls between two nodes, in each direction, that may wait for an answer.
        max_watches: processes, names and events of a node that another node may watch.
        compress: compress frames from 1 KiB on to other nodes that ask for this, too, if they
            become smaller. It costs time of the loop, and saves bytes of a slow line.
        strict: encode also the messages, requests, answers and publications between processes
            of a node, so that a test finds values that could not travel. Messages of a process
            to itself and those of its meta-processes stay as they are.

    Raises:
        BadInputError: a value is invalid.
    """

    def __init__(
        self,
        *,
        types: Iterable[type | ModuleType] = (),
        beat: float = 1.0,
        patience: float = 5.0,
        backlog: int = 16 << 20,
        window: int = 1 << 20,
        spawns: SpawnList | None = None,
        allow: Rereadable[Allow] | None = None,
        max_calls: int = 100_000,
        max_watches: int = 100_000,
        compress: bool = False,
        strict: bool = False,
    ) -> None:
        self.hooks: tuple[Copies] | tuple[()] = (Copies(),) if strict else ()
        """The hook that encodes messages between processes of a node, too."""
        self._settings = NetworkSettings(
            *(types, beat, patience, backlog, window, spawns, allow, max_calls, max_watches),
            compress=compress,
        )
        self._carriers: dict[str, _MemoryCarrier] = {}
        self._names: set[str] = set()
        """All nodes that have ever joined."""
        self._cuts: dict[tuple[str, str], None] = {}
        """Pairs of a sending and a receiving node."""
        self._disturbances: list[Disturbance] = []
        self._frozen: set[str] = set()
        self._held: list[tuple[str, str, bytes]] = []
        self._thawed = trio.Event()
        self._storeless: set[str] = set()
        """Nodes that cannot reach the store."""
        self._slow_stores: dict[str, tuple[float, Random]] = {}
        """Nodes whose requests to the store are late: their longest delay, and their draws."""
        self._table = StoreTable()
        self._loss = 0.0
        self._random = Random()

    def join_network(self, kernel: Kernel) -> Network:
        """Make the network of a node that opens."""
        return self._settings.make(
            kernel, _MemoryCarrier(self, kernel.pid.node, kernel.pid.creation)
        )

    # -- faults ------------------------------------------------------------------------------------

    def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Lose all frames between two nodes, until :meth:`heal`; with ``one_way``, only those from
        the first node to the second.

        Raises:
            BadInputError: no node of this name has joined; also of the other methods.
        """
        self._check_name(one)
        self._check_name(other)
        self._cuts[one, other] = None
        if not one_way:
            self._cuts[other, one] = None

    def heal(self, one: str | None = None, other: str | None = None) -> None:
        """Carry frames between two nodes again; without arguments, between all nodes."""
        for name in (one, other):
            if name is not None:
                self._check_name(name)
        if one is None or other is None:
            self._storeless.clear()
            self._slow_stores.clear()
            self._disturbances.clear()
            healed = list(self._cuts)
        else:
            healed = [(one, other), (other, one)]
        for pair in healed:
            self._cuts.pop(pair, None)
        for first, second in healed:
            self._connect(first, second)

    def disturb(
        self,
        sender: str | None = None,
        to: str | None = None,
        *,
        lose: float = 0.0,
        double: float = 0.0,
        delay: tuple[float, float] = (0.0, 0.0),
        seed: int = 0,
    ) -> Disturbance:
        """Lose, double and delay frames, chosen by the seed, until the ``end()`` of the result or
        ``heal()``. Several disturbances add up.

        Args:
            sender: the node whose frames are disturbed; None for each node.
            to: the node to which they go; None for each node.
            lose: the share of the frames that are lost.
            double: the share of the frames that arrive twice.
            delay: the shortest and the longest delay, in seconds. A frame may overtake another.
            seed: chooses the frames and their delays.

        Raises:
            BadInputError: a value is invalid.
        """
        for name in (sender, to):
            if name is not None:
                self._check_name(name)
        disturbance = Disturbance(sender, to, lose, double, delay, seed, self._end_disturbance)
        self._disturbances.append(disturbance)
        return disturbance

    def _end_disturbance(self, disturbance: Disturbance) -> None:
        if disturbance in self._disturbances:
            self._disturbances.remove(disturbance)

    def _connect(self, node: str, other: str) -> None:
        if node in self._carriers:
            self._carriers[node].note_connected(other)

    def cut_store(self, node: str) -> None:
        """Cut a node off the store of names, until ``heal_store(node)`` or ``heal()``."""
        self._check_name(node)
        self._storeless.add(node)

    def heal_store(self, node: str) -> None:
        """Let a node reach the store of names again."""
        self._check_name(node)
        self._storeless.discard(node)

    def slow_store(self, node: str, seconds: float, *, seed: int = 0) -> None:
        """Delay each request of a node to the store, and each answer, by up to so many seconds,
        chosen by the seed; 0.0 delays none. A request that is late is carried out, even if the
        node has given up.
        """
        self._check_name(node)
        check_number("seconds", seconds, least=0.0)
        if seconds:
            self._slow_stores[node] = seconds, Random(seed)
        else:
            self._slow_stores.pop(node, None)

    def lose_store(self) -> None:
        """Forget all names, as a server does that has lost its disk."""
        self._table.lose_all()

    def back_up_store(self) -> StoreTable:
        """A copy of the store of names, for :meth:`restore_store`."""
        return self._table.copy()

    def restore_store(self, backup: StoreTable) -> None:
        """Replace the store of names by an earlier copy, as an operator does who restores a backup,
        or a power failure that loses confirmed writes.
        """
        self._table.restore(backup)

    def lose(self, share: float, *, seed: int = 0) -> None:
        """Lose this share of all frames, chosen by the seed; 0.0 loses none."""
        if not 0.0 <= share < 1.0:
            raise BadInputError("share", share, "a number from 0.0 up and below 1.0")
        self._loss = share
        self._random = Random(seed)

    def freeze(self, node: str) -> None:
        """Hold all frames from and to a node, until :meth:`thaw`: for the others it is silent, as a
        program that is stopped.
        """
        self._check_name(node)
        self._frozen.add(node)

    def thaw(self, node: str) -> None:
        """Carry the frames that were held, in their order."""
        self._check_name(node)
        self._frozen.discard(node)
        self._thawed.set()
        self._thawed = trio.Event()
        # Emptied first: frames of another node that is still frozen are held again, in their order.
        held, self._held = self._held, []
        for sender, to, frame in held:
            self.carry(sender, to, frame)

    # -- the store ---------------------------------------------------------------------------------

    def store_of(self, node: str) -> MemoryStore:
        """The store, as a node sees it."""
        return MemoryStore(self._table, self, node)

    def loses(self, node: str) -> bool:
        """Whether the next request of a node to the store, or the answer, is lost."""
        # Drawn also for a node that is cut off from the store, so that a cut does not change the
        # fate of the requests after it.
        is_unlucky = bool(self._loss) and self._random.random() < self._loss
        return node in self._storeless or is_unlucky

    def store_delay(self, node: str) -> float:
        """The delay of the next request of a node to the store, or of the answer to it."""
        if node not in self._slow_stores:
            return 0.0
        seconds, random = self._slow_stores[node]
        return random.uniform(0.0, seconds)

    async def wait_thawed(self, node: str) -> None:
        """Wait until a node is not frozen."""
        while node in self._frozen:
            await self._thawed.wait()

    def has(self, node: str, creation: int) -> bool:
        """Whether this start of a node is in the network."""
        carrier = self._carriers.get(node)
        return carrier is not None and carrier.creation == creation

    def _check_name(self, node: str) -> None:
        if node not in self._names:
            raise BadInputError(
                "node", node, f"the name of a node of this network: {sorted(self._names)}"
            )

    # -- carriers ----------------------------------------------------------------------------------

    def carry(self, sender: str, to: str, frame: bytes) -> None:
        """Carry a frame from a node to another."""
        # Before the other faults: a frame that is held meets the faults of the moment in which it
        # goes on.
        if sender in self._frozen or to in self._frozen:
            self._held.append((sender, to, frame))
            return
        if (sender, to) in self._cuts:
            return
        if self._loss and self._random.random() < self._loss:
            return
        if self._disturbances:
            self._carry_disturbed(sender, to, frame)
        else:
            self._hand_over(sender, to, frame)

    def _carry_disturbed(self, sender: str, to: str, frame: bytes) -> None:
        active = [each for each in self._disturbances if each.concerns(sender, to)]
        # All of them draw, also if the first loses the frame: the sequence of each must not depend
        # on the others.
        fates = [each.draw() for each in active]
        if any(fate.is_lost for fate in fates):
            return
        for _ in range(1 + sum(fate.is_doubled for fate in fates)):
            delay = sum(each.draw_delay() for each in active)
            if delay:
                # Not a task of the sender: the frame is under way, and may arrive after its sender
                # has ended.
                trio.lowlevel.spawn_system_task(
                    self._carry_late, delay, sender, to, frame, name="late frame"
                )
            else:
                self._hand_over(sender, to, frame)

    async def _carry_late(self, delay: float, sender: str, to: str, frame: bytes) -> None:
        await trio.sleep(delay)
        self._hand_over(sender, to, frame)

    def _hand_over(self, sender: str, to: str, frame: bytes) -> None:
        carrier = self._carriers.get(to)
        if carrier is not None:
            carrier.take(sender, frame)
        elif sender in self._carriers:
            self._carriers[sender].note_missing(to)

    def add(self, name: str, carrier: "_MemoryCarrier") -> None:
        """Add a node.

        Raises:
            NodeNameTakenError: a running node has this name.
        """
        if name in self._carriers:
            raise NodeNameTakenError(
                f"a running node of this network has the name {name!r}; give each node its own name"
            )
        self._carriers[name] = carrier
        self._names.add(name)

    def remove(self, name: str) -> None:
        """Remove a node that goes down."""
        self._carriers.pop(name, None)

    def others(self, name: str) -> list[str]:
        """The names of all other nodes."""
        return [other for other in self._carriers if other != name]


class _MemoryCarrier:
    """The end of a node in a `Memory`."""

    max_operation = _FRAME

    def __init__(self, hub: Memory, name: str, creation: int) -> None:
        self._hub = hub
        self._name = name
        self.creation = creation
        self._frames: deque[tuple[str, bytes | None]] = deque()
        self._task: Task | None = None
        self._sink: Sink | None = None
        self._store = hub.store_of(name)

    async def run(self, sink: Sink, *, task_status: trio.TaskStatus[None]) -> None:
        """Deliver frames until cancelled."""
        self._hub.add(self._name, self)
        self._sink = sink
        self._task = task = current_task()
        try:
            task_status.started()
            end = sources.slice_clock() + SLICE
            while True:
                while self._frames:
                    node, frame = self._frames.popleft()
                    if frame is None:
                        sink.unreachable(node, "no such node in this program")
                    else:
                        sink.frame(node, frame)
                    if sources.slice_clock() >= end:
                        await trio.lowlevel.checkpoint()
                        end = sources.slice_clock() + SLICE
                await park(task)
                end = sources.slice_clock() + SLICE
        finally:
            self._hub.remove(self._name)

    def take(self, sender: str, frame: bytes) -> None:
        """Take a frame of another node."""
        self._put(sender, frame)

    def note_connected(self, node: str) -> None:
        """Note that frames to a node reach it again."""
        if self._sink is not None:
            self._sink.connected(node)

    def note_missing(self, node: str) -> None:
        """Note that a frame was sent to a node that does not exist."""
        self._put(node, None)

    def _put(self, node: str, frame: bytes | None) -> None:
        # Never handed over in the step of the sender: the receiving session would run inside of the
        # sending session, and answer it before that has finished its step.
        self._frames.append((node, frame))
        if self._task is not None:
            wake(self._task)

    def send(self, to: str, frame: bytes) -> None:
        """Carry a frame to a node."""
        self._hub.carry(self._name, to, frame)

    async def discover(self, _seconds: float, /) -> list[str]:
        """The names of the other nodes."""
        return self._hub.others(self._name)

    def store(self) -> MemoryStore:
        """The store of all nodes."""
        return self._store

    async def flush(self) -> None:
        """Nothing to do: frames leave at once."""
        await trio.lowlevel.checkpoint()


show_public_names(__name__)
