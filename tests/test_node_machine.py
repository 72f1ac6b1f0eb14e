"""A whole node, driven by random programs, against a naive model of its promises.

A program is a list of steps, and a step a few actions without a pause between them. Every action of
a process or the test goes through a single place, :class:`World`, which does it for real, does it
in the model, and compares. The scheduler is free to run processes in any order: callbacks report
their arguments, so the model follows the order that really happened, and only asks whether it was a
right order. After each step, when all is at rest, everything that can be seen from outside is
compared.

So this holds the order of service and the served messages (M1 to M5), that callbacks do not overlap
(P4), which processes end, why and in which order (P3, P5 to P8), how calls end (C1 to C5), the
notifications of watchers (L1 to L5), names (I2, I3), limits (P9), undone spawns (P2), states (P1),
dead letters (M7, N3), and the remains when the node is gone (N1, N4).
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    LOOP,
    NO_REPLY,
    PID,
    Actor,
    Alias,
    Caller,
    CallTimeoutError,
    Crashed,
    Custom,
    Divert,
    Diverted,
    Down,
    Exit,
    InitError,
    Killed,
    MailboxFullError,
    Name,
    NameTakenError,
    Node,
    NoNode,
    NoProcess,
    Normal,
    NotAllowedError,
    Overflow,
    Priority,
    Reason,
    Reject,
    Shutdown,
    SpawnError,
    TargetDownError,
    Threads,
    Unregistered,
    Why,
    open_node,
)
from ergo_py._core.processes.process import processes_of
from ergo_py._core.processes.threaded_process import DispatchedProcess
from ergo_py._core.runtime.dispatcher_threads import Job
from ergo_py._core.vocabulary.errors import (
    RelationExistsError,
    RelationUnknownError,
    TooManyProcessesError,
)
from ergo_py.errors import DeadlockError, InitTimeoutError, NameUnknownError, ProcessUnknownError
from ergo_py.info import Dispatcher, State, Timer
from tests.support import (
    THOROUGH,
    kernel_of,
    relation_tables,
    replace_timer_action,
    router_of,
    timer_action,
)

NODE = "machine@localhost"
NAMES = ("a", "b", "c")
LIMIT = 8
"""How many processes the node allows."""

URGENT, SYSTEM, MAIN = "urgent", "system", "main"
LANES = (URGENT, SYSTEM, MAIN)
LANE_OF = {Priority.NORMAL: MAIN, Priority.HIGH: SYSTEM, Priority.MAX: URGENT}

# Virtual time moves on a grid. Calls run out and timers fire between its points, each kind at a
# moment of its own, so that events that are due at the same moment never depend on the order in
# which trio looks.
GRID, CALLS, TIMERS = 0.25, 0.0625, 0.125


class Failure(Exception):
    """The error that processes here raise on purpose."""


# -- programs --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Where:
    """A target: the number of a process or of an alias, a name, or something far away."""

    kind: str
    number: int


@dataclass(frozen=True)
class Spawn:
    name: str | None
    is_async: bool
    init: str
    link: bool
    bound: int
    overflow: Overflow | Divert


@dataclass(frozen=True)
class Send:
    to: Where
    priority: Priority


@dataclass(frozen=True)
class Ask:
    to: Where
    request: str
    hand_to: Where
    timeout: int
    priority: Priority


@dataclass(frozen=True)
class Forward:
    to: Where


@dataclass(frozen=True)
class Relate:
    verb: str
    to: Where


@dataclass(frozen=True)
class Register:
    name: str
    to: Where


@dataclass(frozen=True)
class Unregister:
    name: str


@dataclass(frozen=True)
class DropAlias:
    number: int


@dataclass(frozen=True)
class Plain:
    """Something without arguments: making an alias, trapping, raising, waiting at a gate …"""

    verb: str


@dataclass(frozen=True)
class Stop:
    reason: object


@dataclass(frozen=True)
class SendExit:
    to: Where
    reason: object


@dataclass(frozen=True)
class Kill:
    to: Where


@dataclass(frozen=True)
class Arm:
    to: Where
    delay: int
    is_periodic: bool


@dataclass(frozen=True)
class CancelTimer:
    number: int


@dataclass(frozen=True)
class Reply:
    number: int
    is_error: bool


@dataclass(frozen=True)
class Inspect:
    to: Where


@dataclass(frozen=True)
class OpenGate:
    number: int


@dataclass(frozen=True)
class GiveUp:
    """Cancel something that the test itself waits for."""

    number: int


@dataclass(frozen=True)
class PassTime:
    quarters: int


@dataclass(frozen=True)
class Occupy:
    """Keep a thread of a process busy until all else is at rest."""

    who: int


@dataclass(frozen=True)
class Tell:
    """Have a process do something: a message that its callback obeys."""

    who: int
    what: Any
    priority: Priority


def mostly(*weighted: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """A choice among some strategies, each as often as its weight says."""
    return st.sampled_from([one for weight, one in weighted for _ in range(weight)]).flatmap(
        lambda one: one
    )


numbers = st.integers(0, 11)
names = st.sampled_from(NAMES)
priorities = st.sampled_from([Priority.NORMAL, Priority.NORMAL, Priority.HIGH, Priority.MAX])
wheres = st.builds(
    Where, st.sampled_from([*["pid"] * 6, "name", "name", "alias", "anybody", "far"]), numbers
)
reasons = st.sampled_from(
    [
        *(
            Normal(),
            Normal(),
            Shutdown(),
            Shutdown("why"),
            Killed(),
            NoProcess(),
            Unregistered(),
            NoNode("x"),
        ),
        *("text", 42, None, ValueError("x")),
    ]
)
spawns = st.builds(
    Spawn,
    st.none() | names,
    st.sampled_from([True, True, False]),
    st.sampled_from(
        [
            *[""] * 6,
            "crash",
            "crash with a child",
            "wait",
            "wait",
            "ask parent",
            "stop",
            "trap",
            "link parent",
        ]
    ),
    st.booleans(),
    st.sampled_from([0, 0, 1, 2]),
    st.sampled_from(
        [Overflow.RAISE, Overflow.DROP_NEWEST, Overflow.DROP_OLDEST, Divert("a", "tag")]
    ),
)
asks = st.builds(
    Ask,
    wheres,
    st.sampled_from(
        [
            *["answer"] * 3,
            "none",
            "refuse",
            *["defer"] * 3,
            "crash",
            "stop",
            *["hand on"] * 3,
            *["wait"] * 3,
            "reply twice",
        ]
    ),
    wheres,
    st.sampled_from([0, 0, 1, 4, 8]),
    priorities,
)
relates = st.builds(
    Relate, st.sampled_from(["link", "monitor", "link", "monitor", "unlink", "demonitor"]), wheres
)
anybody = mostly(
    (3, spawns),
    (4, st.builds(Send, wheres, priorities)),
    (6, asks),
    (2, st.builds(Arm, wheres, st.integers(1, 8), st.booleans())),
    (1, st.builds(CancelTimer, numbers)),
    (2, st.builds(SendExit, wheres, reasons)),
    (1, st.builds(Kill, wheres)),
    (2, st.builds(Reply, numbers, st.booleans())),
)
in_a_process = mostly(
    (10, anybody),
    (6, relates),
    (5, st.just(Plain("gate"))),
    (3, st.builds(Plain, st.sampled_from(["trap", "no trap", "alias", "alias", "give name up"]))),
    (1, st.just(Plain("raise"))),
    (1, st.builds(Stop, reasons)),
    (1, st.builds(Forward, wheres)),
    (1, st.builds(Register, names, wheres)),
    (1, st.builds(DropAlias, numbers)),
)
actions = mostly(
    (24, st.builds(Tell, numbers, in_a_process, priorities)),
    (8, anybody),
    (1, st.builds(Register, names, wheres)),
    (1, st.builds(Unregister, names)),
    (1, st.builds(Inspect, wheres)),
    (8, st.builds(OpenGate, numbers)),
    (1, st.builds(GiveUp, numbers)),
    (2, st.builds(Occupy, numbers)),
    (2, st.builds(PassTime, st.sampled_from([1, 1, 2, 4, 24]))),
)
programs = st.lists(st.lists(actions, min_size=1, max_size=5), min_size=4, max_size=25)

PROLOGUE = [
    [Spawn("a", True, "", False, 0, Overflow.RAISE)],
    [Spawn(None, True, "", False, 0, Overflow.RAISE)],
    [Spawn(None, False, "", False, 0, Overflow.RAISE)],
    [Spawn("b", True, "trap", False, 2, Overflow.RAISE)],
]
"""The processes at the beginning of a program: otherwise most of its messages would be dead
letters.
"""


# -- the model -------------------------------------------------------------------------------------


@dataclass(eq=False)
class Relation:
    watcher: PID
    kind: str
    target: object
    alive: bool = True
    has_fired: bool = False


@dataclass(eq=False)
class Call:
    """A call, and how it must end."""

    caller: PID
    to: object
    request: object
    deadline: float
    callee: "Process | None" = None
    outcome: Any = None
    outcome_at: float = 0.0
    is_deferred: bool = False
    is_over: bool = False


@dataclass(eq=False)
class Item:
    """Something in a mailbox."""

    kind: str
    sender: Any
    payload: Any
    call: Call | None = None
    relation: Relation | None = None

    @property
    def is_from_a_user(self) -> bool:
        return self.kind in ("message", "call")


@dataclass(eq=False)
class Process:
    pid: PID
    parent: "Process | None"
    spawn: Spawn
    name: str | None
    lanes: dict[str, list[Item]] = field(default_factory=lambda: {lane: [] for lane in LANES})
    children: list["Process"] = field(default_factory=list)
    aliases: list[Alias] = field(default_factory=list)
    traps: bool = False
    state: State = State.INIT
    crash: Reason | None = None
    waits_for: "Call | Process | None" = None
    is_gone: bool = False
    is_stopping: bool = False
    ends: list[Reason] = field(default_factory=list)
    reason: Reason | None = None
    dropped: int = 0
    in_a_callback: bool = False
    served: Item | None = None
    served_from: str = MAIN


@dataclass(eq=False)
class Armed:
    """A timer."""

    owner: PID
    to: object
    message: object
    is_active: bool = True
    is_periodic: bool = False


def read_reason(given: object) -> Reason:
    if isinstance(
        given, Normal | Shutdown | Killed | Crashed | NoProcess | NoNode | Unregistered | Custom
    ):
        return given
    return Crashed(given) if isinstance(given, BaseException) else Custom(given)


class Model:
    """The model of a node: processes with three lists each, names, relations and calls. Everything
    is searched for, nothing indexed.
    """

    def __init__(self, node: PID) -> None:
        self.node = node
        self.alive: dict[PID, Process] = {}
        self.relations: list[Relation] = []
        self.calls: list[Call] = []
        self.timers: list[Armed] = []
        self.dead: Counter[Why] = Counter()
        self.late_replies = 0
        self.spawned = 0
        self.crashed = 0
        self.now = 0.0
        self.is_closing = False

    # addresses

    def holder(self, name: str) -> Process | None:
        return next((one for one in self.alive.values() if one.name == name), None)

    def resolve(self, to: object) -> Process | None:
        match to:
            case PID():
                return self.alive.get(to)
            case Alias():
                return next((one for one in self.alive.values() if to in one.aliases), None)
            case str():
                return self.holder(to)
            case Name(name, node):
                return self.holder(name) if node in ("", NODE) else None
        raise AssertionError(to)

    @staticmethod
    def missing(to: object) -> Reason:
        return (
            NoNode(to.node) if isinstance(to, Name) and to.node not in ("", NODE) else NoProcess()
        )

    # messages

    def send(self, sender: object, to: object, message: object, priority: Priority) -> object:
        receiver = self.resolve(to)
        if receiver is None:
            self.dead[Why.NO_PROCESS if self.missing(to) == NoProcess() else Why.NO_NODE] += 1
            return False
        return self.post(receiver, LANE_OF[priority], Item("message", sender, message))

    def has_room(self, receiver: Process, lane: str) -> bool:
        users = sum(item.is_from_a_user for item in receiver.lanes[lane])
        return not receiver.spawn.bound or users < receiver.spawn.bound

    def post(self, receiver: Process, lane: str, item: Item) -> object:
        if receiver.is_stopping:
            self.bury(item, Why.STOPPING, receiver)
            return False
        if item.call is not None:
            item.call.callee = receiver
        queue = receiver.lanes[lane]
        if self.has_room(receiver, lane):
            queue.append(item)
            return True
        receiver.dropped += 1
        match receiver.spawn.overflow:
            case Overflow.DROP_OLDEST:
                oldest = next(one for one in queue if one.is_from_a_user)
                queue.remove(oldest)
                queue.append(item)
                self.bury(oldest, Why.DISPLACED, receiver)
                return True
            case Divert(to, tag):
                return self.divert(receiver, lane, item, self.holder(to), tag)
        self.bury(item, Why.FULL, receiver)
        refused = receiver.spawn.overflow is Overflow.RAISE and item.kind == "message"
        return MailboxFullError if refused else False

    def divert(
        self, receiver: Process, lane: str, item: Item, other: Process | None, tag: str
    ) -> object:
        if (
            isinstance(item.payload, Diverted)
            or other is None
            or other.is_stopping
            or not self.has_room(other, lane)
        ):
            self.bury(item, Why.FULL, receiver)
            return False
        if item.call is not None and self.closes_a_ring(self.waiter(item.call), other):
            self.settle(item.call, DeadlockError)
            return False
        wrapped = Diverted(receiver.pid, tag, item.payload, item.sender)
        return self.post(other, lane, Item(item.kind, item.sender, wrapped, item.call))

    def bury(self, item: Item, why: Why, receiver: Process) -> None:
        if item.call is not None:
            full = why in (Why.FULL, Why.DISPLACED)
            self.settle(item.call, MailboxFullError if full else (TargetDownError, receiver.reason))
        elif item.is_from_a_user:
            self.dead[why] += 1

    def next_item(self, process: Process) -> tuple[str, Item] | None:
        """The next item to be served, after those that vanish unseen."""
        items = ((lane, item) for lane in LANES for item in process.lanes[lane])
        return next((found for found in items if not self.vanishes(process, found[1])), None)

    def vanishes(self, process: Process, item: Item) -> bool:
        """Whether an item is a signal of a removed relation, or the normal end of a linked process
        that is not trapped.
        """
        relation = item.relation
        return relation is not None and (not relation.alive or self.is_ignored(process, item))

    def pass_over(self, process: Process, lanes: tuple[str, ...]) -> None:
        """Serve the items that vanish, up to the next item that does not."""
        for lane in lanes:
            while process.lanes[lane]:
                item = process.lanes[lane][0]
                if item.relation is None or not self.vanishes(process, item):
                    return
                process.lanes[lane].pop(0)
                self.drop(item.relation)

    @staticmethod
    def is_ignored(process: Process, item: Item) -> bool:
        return item.kind == "exit" and item.payload == Normal() and not process.traps

    def is_the_end(self, process: Process, item: Item) -> bool:
        if item.kind in ("stop", "kill"):
            return True
        parent = self.node if process.parent is None else process.parent.pid
        return item.kind == "exit" and not (process.traps and item.sender != parent)

    def take(self, process: Process) -> Item | None:
        self.pass_over(process, LANES)
        found = self.next_item(process)
        if found is None:
            return None
        lane, item = found
        process.lanes[lane].pop(0)
        if item.relation is not None:
            self.drop(item.relation)
        return item

    @staticmethod
    def put_back(process: Process) -> None:
        """Return the message in progress to its lane: its process ends before a thread has begun
        with the callback. A call fails with its callee, and notices have no fate.
        """
        process.in_a_callback = False
        if process.served is not None and process.served.kind == "message":
            lane = process.lanes[process.served_from]
            # A process whose next item is its end stays so.
            lane.insert(sum(item.kind in ("stop", "kill") for item in lane), process.served)

    # calls

    def waiter(self, call: Call) -> Process | None:
        caller = self.alive.get(call.caller)
        return caller if caller is not None and caller.waits_for is call else None

    @staticmethod
    def closes_a_ring(start: Process | None, callee: Process | None) -> bool:
        """Would ``start``, if it waited for ``callee``, wait for itself?"""
        seen: list[Process] = []
        while start is not None and callee is not None and callee not in seen:
            if callee is start:
                return True
            seen.append(callee)
            match callee.waits_for:
                case Process() as child:
                    callee = child
                case Call(callee=next_one, is_deferred=False, outcome=None):
                    callee = next_one
                case _:
                    callee = None
        return False

    def settle(self, call: Call, outcome: Any) -> bool:
        if call.outcome is not None:
            return False
        call.outcome, call.outcome_at = outcome, self.now
        call.is_deferred = False
        return True

    def reply(self, call: Call, outcome: Any) -> bool:
        if self.settle(call, outcome):
            return True
        self.late_replies += 1
        return False

    # relations

    def watched(self, target: object) -> object:
        match target:
            case str():
                return Name(target, NODE)
            case Name(name, node):
                return Name(name, node or NODE)
        return target

    def find(self, watcher: PID, kind: str, target: object) -> Relation | None:
        watched = self.watched(target)
        return next(
            (
                one
                for one in self.relations
                if (one.watcher, one.kind, one.target) == (watcher, kind, watched)
            ),
            None,
        )

    def relate(self, process: Process, kind: str, target: object) -> type[Exception] | None:
        if self.resolve(target) is process:
            return NotAllowedError
        if self.find(process.pid, kind, target) is not None:
            return RelationExistsError
        relation = Relation(process.pid, kind, self.watched(target))
        self.relations.append(relation)
        if self.resolve(target) is None:
            self.fire(relation, self.missing(target))
        return None

    def unrelate(self, process: Process, kind: str, target: object) -> type[Exception] | None:
        relation = self.find(process.pid, kind, target)
        if relation is None:
            return RelationUnknownError
        self.drop(relation)
        return None

    def drop(self, relation: Relation) -> None:
        relation.alive = False
        self.relations = [one for one in self.relations if one is not relation]

    def fire(self, relation: Relation, reason: Reason) -> None:
        relation.has_fired = True
        watcher = self.alive.get(relation.watcher)
        if watcher is not None:
            kind, lane = ("exit", URGENT) if relation.kind == "link" else ("down", SYSTEM)
            item = Item(kind, relation.target, reason, relation=relation)
            self.report_end(watcher, lane, item)

    @staticmethod
    def report_end(receiver: Process, lane: str, item: Item) -> None:
        """Report an end: a normal end behind the messages, a failure in ``lane``. A process that
        is stopping serves no messages, and an exit that is not trapped is no message.
        """
        is_normal = isinstance(item.payload, Normal | Shutdown)
        is_message = not receiver.is_stopping and (item.kind != "exit" or receiver.traps)
        receiver.lanes[MAIN if is_normal and is_message else lane].append(item)

    def fire_all(self, target: object, reason: Reason) -> None:
        for relation in [
            one for one in self.relations if one.target == target and not one.has_fired
        ]:
            self.fire(relation, reason)

    # the end

    def is_doomed(self, process: Process | None) -> bool:
        """Is the end of a process, or of a process it belongs to, the next thing that happens to
        it?
        """
        if process is None:
            return self.is_closing
        if process.is_stopping:
            return True
        found = self.next_item(process)
        return (
            process.crash is not None
            or (found is not None and self.is_the_end(process, found[1]))
            or self.is_doomed(process.parent)
        )

    def possible_ends(self, process: Process) -> list[Reason]:
        if process.is_stopping:
            return process.ends
        if process.crash is not None:
            return [process.crash]
        possible: list[Reason] = []
        found = self.next_item(process)
        if found is not None and self.is_the_end(process, found[1]):
            possible.append(Killed() if found[1].kind == "kill" else found[1].payload)
        if self.is_doomed(process.parent):
            possible += [Shutdown(), Killed()]
        return possible

    def begin_to_stop(self, process: Process) -> None:
        process.ends = self.possible_ends(process)
        process.is_stopping = True
        if process.crash is not None:
            return
        found = self.next_item(process)
        if found is not None and self.is_the_end(process, found[1]):
            self.take(process)
        else:
            # Its parent has asked it to end, with an urgent signal.
            self.pass_over(process, (URGENT,))

    def release(self, process: Process, reason: Reason, has_lived: bool) -> None:
        del self.alive[process.pid]
        process.is_gone, process.state, process.reason = True, State.TERMINATED, reason
        for call in self.calls:
            if call.callee is process:
                self.settle(call, (TargetDownError, reason))
        for lane in LANES:
            for item in process.lanes[lane]:
                if item.kind == "message":
                    self.dead[Why.UNHANDLED_AT_EXIT] += 1
        for timer in self.timers:
            if timer.owner == process.pid:
                timer.is_active = False
        for relation in [one for one in self.relations if one.watcher == process.pid]:
            self.drop(relation)
        if process.parent is not None:
            process.parent.children.remove(process)
        for address in (
            process.pid,
            None if process.name is None else Name(process.name, NODE),
            *process.aliases,
        ):
            if address is not None:
                self.fire_all(address, reason)
        if has_lived and process.parent is not None:
            self.report_end(process.parent, SYSTEM, Item("child exit", process.pid, reason))


# -- the real thing beside the model ---------------------------------------------------------------


@dataclass(eq=False)
class Data:
    """An ordinary message."""


@dataclass(eq=False)
class Told:
    """A message to be obeyed."""

    what: Any


@dataclass(eq=False)
class Request:
    what: str
    hand_to: Any
    call: Call


@dataclass(eq=False)
class Ticket:
    """The luggage of a process on its way into its ``init``, by which the spawner finds it
    again.
    """

    spawn: Spawn
    parent: Process | None
    process: Process | None = None
    is_initialised: bool = False


FAILING_S_CHILD = Spawn(None, True, "", False, 0, Overflow.RAISE)


class World:
    """A node and its model. Callbacks only note mistakes: an exception there would be another
    crash.
    """

    def __init__(
        self, node: Node, clock: MockClock, nursery: trio.Nursery, dispatcher: Dispatcher
    ) -> None:
        self.node = node
        self.dispatcher = dispatcher
        self.picked: dict[PID, Process] = {}
        """Processes with a message that their callback has not begun with: it is on its way to a
        thread and back.
        """
        self.in_threads = 0
        self.occupied: list[threading.Event] = []
        self.clock = clock
        self.nursery = nursery
        self.model = Model(node.pid)
        self.problems: list[str] = []
        self.pids: list[PID] = []
        self.aliases: list[Alias] = []
        self.timers: list[tuple[Timer, Armed]] = []
        self.callers: list[tuple[Caller, Call]] = []
        self.gates: list[trio.Event] = []
        self.scopes: list[trio.CancelScope] = []
        self.given_up: set[Call] = set()
        self._watch_timers()

    def _watch_timers(self) -> None:
        # The exact moment at which a timer fires is not promised; its consequences are.
        clock = kernel_of(self.node).clock
        fire = timer_action(clock)

        def watched(timer: Timer) -> None:
            self.fired(timer)
            fire(timer)

        replace_timer_action(clock, watched)

    def check(self, is_right: object, text: str) -> None:
        if not is_right and not self.model.is_closing:
            self.problems.append(text)

    def sync(self) -> None:
        """Find the processes that have begun to stop. Only the kernel knows when; whether it may,
        the model says.
        """
        bridge = router_of(self.node).bridge
        if not bridge.on_loop():
            # All that this thread has sent so far arrives before this is done.
            bridge.run(self.sync)
            return
        self.model.now = trio.current_time()
        for process in self.model.alive.values():
            real = processes_of(router_of(self.node)).get(process.pid)
            if real is not None and real.state is State.STOPPING and not process.is_stopping:
                self.check(
                    self.model.is_doomed(process), f"{process.pid} is stopping for no reason"
                )
                self.model.begin_to_stop(process)

    def expect(
        self, predicted: object, verb: Callable[..., Any], *args: Any, **options: Any
    ) -> Any:
        """Do something for real; it must give the value, or raise the kind of error, that the model
        says.
        """
        try:
            actual = verb(*args, **options)
            router_of(self.node).bridge.run(bool)
        except Exception as error:
            self.check(type(error) is predicted, f"{verb}{args}: {error!r} instead of {predicted}")
            return None
        self.check(
            actual is predicted or actual == predicted,
            f"{verb}{args}: {actual} instead of {predicted}",
        )
        return actual

    def target(self, where: Where) -> Any:
        match where.kind:
            case "pid" if self.model.alive:
                return self.living(where.number)
            case "anybody" if self.pids:
                return self.pids[where.number % len(self.pids)]
            case "alias" if self.aliases:
                return self.aliases[where.number % len(self.aliases)]
            case "far":
                return Name("a", "far@host")
        name = NAMES[where.number % len(NAMES)]
        return (name, Name(name), Name(name, NODE))[where.number // len(NAMES) % 3]

    def living(self, number: int) -> PID:
        return list(self.model.alive)[number % len(self.model.alive)]

    # actions of processes and of the test

    async def take_step(self, step: list[Any]) -> None:
        for action in step:
            if isinstance(action, PassTime):
                await self.rest()
                await self.pass_time(action.quarters)
            else:
                self.start(action)
        await self.rest()
        self.compare()

    async def obey(self, who: "Puppet", what: Any, sender: Any) -> None:
        match what:
            case Spawn():
                await self.spawn(who, what)
            case Ask():
                await self.ask(who, what)
            case Plain("gate"):
                await self.gate()
            case _:
                self.do(who, what, sender)

    def start(self, what: Any) -> None:
        """An action of the test itself; it does not wait for actions that take time."""
        match what:
            case Spawn():
                self.nursery.start_soon(
                    self._in_the_background, partial(self.spawn, self.node, what)
                )
            case Ask():
                self.nursery.start_soon(self._in_the_background, partial(self.ask, self.node, what))
            case Inspect(to):
                self.nursery.start_soon(
                    self._in_the_background, partial(self.inspect, self.target(to))
                )
            case Tell(who, op, priority):
                self.tell(self.living(who) if self.model.alive else "a", op, priority)
            case OpenGate(number):
                if self.gates:
                    self.gates.pop(number % len(self.gates)).set()
            case GiveUp(number):
                if self.scopes:
                    self.scopes.pop(number % len(self.scopes)).cancel()
            case Occupy(who):
                if self.model.alive:
                    self.occupy(self.living(who))
            case _:
                self.do(self.node, what, None)

    def occupy(self, pid: PID) -> None:
        real = processes_of(router_of(self.node)).get(pid)
        if isinstance(real, DispatchedProcess) and real.thread_group is not None:
            self.occupied.append(threading.Event())
            real.thread_group.put(Job(self.occupied[-1].wait, lambda: None))

    def free_threads(self) -> None:
        while self.occupied:
            self.occupied.pop().set()

    async def _in_the_background(self, task: Callable[[], Any]) -> None:
        with trio.CancelScope() as scope:
            self.scopes.append(scope)
            try:
                await task()
            except Exception as error:
                self.problems.append(f"{task}: {error!r}")
        if scope in self.scopes:
            self.scopes.remove(scope)

    def tell(self, pid: Any, what: Any, priority: Priority) -> None:
        self.sync()
        message = Told(what)
        self.expect(
            self.model.send(self.node.pid, pid, message, priority),
            self.node.send,
            pid,
            message,
            priority=priority,
        )

    def do(self, who: "Puppet | Node", what: Any, sender: Any) -> None:
        """Everything that does not wait."""
        self.sync()
        model, mine = self.model, self.model.alive.get(who.pid)
        match what:
            case Send(where, priority):
                to, message = self.target(where), Data()
                self.expect(
                    model.send(who.pid, to, message, priority),
                    who.send,
                    to,
                    message,
                    priority=priority,
                )
            case SendExit(where, reason):
                to = self.target(where)
                receiver = model.resolve(to)
                if receiver is not None:
                    receiver.lanes[URGENT].append(Item("exit", who.pid, read_reason(reason)))
                self.expect(receiver is not None, who.send_exit, to, reason)
            case Kill(where):
                to = self.target(where)
                receiver = model.resolve(to)
                if receiver is not None and not receiver.is_stopping:
                    receiver.lanes[URGENT].insert(0, Item("kill", who.pid, None))
                self.expect(receiver is not None, who.kill, to)
            case Arm():
                self.arm(who, what)
            case CancelTimer(number) if self.timers:
                timer, armed = self.timers[number % len(self.timers)]
                was_active, armed.is_active = armed.is_active, False
                self.expect(was_active, timer.cancel)
            case Reply(number, is_error) if self.callers:
                caller, call = self.callers[number % len(self.callers)]
                if is_error:
                    error = Failure("reply")
                    self.expect(model.reply(call, ("error", error)), who.reply_error, caller, error)
                else:
                    value = object()
                    self.expect(model.reply(call, ("reply", value)), who.reply, caller, value)
            case Register(name, where) if isinstance(who, Node):
                to = self.target(where)
                self.expect(self.register(model.resolve(to), name), who.register, name, to)
            case Unregister(name):
                holder = model.holder(name)
                self.expect(None if holder else ProcessUnknownError, self.node.unregister, name)
                self.give_up_name(holder)
            case _ if isinstance(who, Puppet) and mine is not None:
                self.do_inside(who, mine, what, sender)

    def do_inside(self, who: "Puppet", mine: Process, what: Any, sender: Any) -> None:
        """Actions that only a process can do, for itself."""
        model = self.model
        match what:
            case Forward(where):
                to, message = self.target(where), Data()
                self.expect(
                    model.send(sender, to, message, Priority.NORMAL),
                    who.forward,
                    to,
                    message,
                    sender,
                )
            case Relate("link" | "monitor" as verb, where):
                to = self.target(where)
                self.expect(model.relate(mine, verb, to), getattr(who, verb), to)
            case Relate("unlink" | "demonitor" as verb, where):
                to = self.target(where)
                kind = "link" if verb == "unlink" else "monitor"
                self.expect(model.unrelate(mine, kind, to), getattr(who, verb), to)
            case Register(name, _):
                self.expect(self.register(mine, name), who.register, name)
            case Plain("give name up"):
                self.expect(None if mine.name else NameUnknownError, who.unregister)
                self.give_up_name(mine)
            case Plain("alias"):
                mine.aliases.append(who.create_alias())
                self.aliases.append(mine.aliases[-1])
            case DropAlias(number) if self.aliases:
                alias = self.aliases[number % len(self.aliases)]
                is_mine = alias in mine.aliases
                self.expect(None if is_mine else NameUnknownError, who.delete_alias, alias)
                if is_mine:
                    mine.aliases.remove(alias)
                    model.fire_all(alias, Unregistered())
            case Plain("trap" | "no trap" as verb):
                mine.traps = who.trap_exit = verb == "trap"
            case Plain("raise"):
                raise self.crash(mine)
            case Stop(reason):
                mine.lanes[URGENT].insert(0, Item("stop", who.pid, read_reason(reason)))
                who.stop(reason)

    def register(self, process: Process | None, name: str) -> type[Exception] | None:
        if process is None:
            return ProcessUnknownError
        if process.name not in (None, name):
            return NotAllowedError
        if self.model.holder(name) not in (None, process):
            return NameTakenError
        process.name = name
        return None

    def give_up_name(self, process: Process | None) -> None:
        if process is not None and process.name is not None:
            name, process.name = process.name, None
            self.model.fire_all(Name(name, NODE), Unregistered())

    def arm(self, who: "Puppet | Node", what: Arm) -> None:
        to, message = self.target(what.to), Data()
        delay = what.delay * GRID + TIMERS
        armed = Armed(who.pid, to, message, is_periodic=what.is_periodic)
        self.model.timers.append(armed)
        timer = (who.send_every if what.is_periodic else who.send_after)(delay, to, message)
        self.timers.append((timer, armed))

    def fired(self, timer: Timer) -> None:
        self.sync()
        armed = next(armed for one, armed in self.timers if one is timer)
        self.check(armed.is_active, f"{timer} of {armed.owner} fired although it was taken back")
        armed.is_active = armed.is_periodic
        self.model.send(armed.owner, armed.to, armed.message, Priority.NORMAL)

    async def gate(self) -> None:
        event = trio.Event()
        self.gates.append(event)
        try:
            await event.wait()
        finally:
            if event in self.gates:
                self.gates.remove(event)

    def crash(self, process: Process, call: Call | None = None) -> Failure:
        error = Failure("on purpose")
        process.crash = Crashed(error)
        self.model.crashed += 1
        if call is not None:
            self.model.settle(call, (TargetDownError, process.crash))
        return error

    # births

    async def spawn(self, who: "Puppet | Node", what: Spawn) -> None:
        self.sync()
        model, parent = self.model, self.model.alive.get(who.pid)
        ticket = Ticket(what, parent)
        predicted: type[Exception] | None = None
        if len(model.alive) >= LIMIT:
            predicted = TooManyProcessesError
        elif what.name is not None and model.holder(what.name) is not None:
            predicted = NameTakenError
        options: dict[str, Any] = {
            "name": what.name,
            "mailbox_size": what.bound or None,
            "overflow": what.overflow,
        }
        if parent is not None:
            options["link"] = what.link
        try:
            behaviour = AsyncPuppet if what.is_async else PlainPuppet
            pid = await who.spawn(behaviour, self, ticket, dispatcher=self.dispatcher, **options)
        except (TooManyProcessesError, NameTakenError) as error:
            self.check(type(error) is predicted, f"spawn: {error!r} instead of {predicted}")
            self.check(ticket.process is None, "half a process was made")
        except InitTimeoutError as error:
            self.undone(ticket, Crashed(error))
        except InitError as error:
            self.check(error.__cause__ is error.error, "the cause of an InitError is missing")
            self.undone(ticket, Crashed(error.error))
        except SpawnError:
            self.undone(ticket, Killed())
        except trio.Cancelled:
            if ticket.process is not None and not ticket.is_initialised:
                self.undone(ticket, Killed())
            raise
        else:
            self.check(predicted is None, f"spawn was to raise {predicted}")
            self.check(
                ticket.is_initialised and ticket.process is not None,
                "spawn returned before init did",
            )
            self.check(
                ticket.process is None or ticket.process.pid == pid, "spawn returned another PID"
            )
        finally:
            if parent is not None and isinstance(parent.waits_for, Process):
                parent.waits_for = None

    def born(self, who: "Puppet", ticket: Ticket) -> None:
        process = ticket.process = Process(who.pid, ticket.parent, ticket.spawn, ticket.spawn.name)
        self.check(
            not self.pids or who.pid.number > self.pids[-1].number, "a number was used again"
        )
        self.pids.append(who.pid)
        self.model.alive[who.pid] = process
        if ticket.parent is not None:
            ticket.parent.children.append(process)
            ticket.parent.waits_for = process

    def initialised(self, ticket: Ticket) -> None:
        process, parent = ticket.process, ticket.parent
        assert process is not None
        if any(item.kind == "kill" for item in process.lanes[URGENT]):
            return
        ticket.is_initialised = True
        process.state = State.SLEEP
        self.model.spawned += 1
        if ticket.spawn.link and parent is not None:
            for watcher, watched in ((parent, process), (process, parent)):
                if self.model.find(watcher.pid, "link", watched.pid) is None:
                    self.model.relate(watcher, "link", watched.pid)

    def undone(self, ticket: Ticket, reason: Reason) -> None:
        process = ticket.process
        if process is None or process.is_gone:
            self.check(False, "an init failed that never ran")
            return
        self.check(not process.children, "the children of a failed init live on")
        self.check(
            self.node.whereis(process.name or "?") != process.pid,
            "the name of a failed init is not free",
        )
        self.model.release(process, reason, has_lived=False)

    # calls

    async def ask(self, who: "Puppet | Node", what: Ask) -> None:
        self.sync()
        model, mine, to = self.model, self.model.alive.get(who.pid), self.target(what.to)
        timeout = self.timeout(what.timeout)
        call = Call(who.pid, to, what.request, model.now + (timeout or 1e9))
        call_request = Request(what.request, self.target(what.hand_to), call)
        model.calls.append(call)
        callee = model.resolve(to)
        if callee is None:
            model.settle(call, (TargetDownError, model.missing(to)))
        elif callee.is_stopping:
            model.settle(call, (TargetDownError, None))
        elif mine is not None and model.closes_a_ring(mine, callee):
            model.settle(call, DeadlockError)
        else:
            if mine is not None:
                mine.waits_for = call
            model.post(callee, LANE_OF[what.priority], Item("call", who.pid, call_request, call))
        await self.wait_for(
            call, mine, partial(who.call, to, call_request, timeout=timeout, priority=what.priority)
        )

    async def inspect(self, to: Any) -> None:
        self.sync()
        receiver = self.model.resolve(to)
        timeout = self.timeout(8)
        assert timeout is not None
        call = Call(self.node.pid, to, "inspect", self.model.now + timeout)
        self.model.calls.append(call)
        if receiver is None:
            self.model.settle(call, ProcessUnknownError)
        else:
            call.callee = receiver
            receiver.lanes[URGENT].append(Item("inspect", self.node.pid, ("item",), call))
        await self.wait_for(call, None, partial(self.node.inspect, to, "item", timeout=timeout))

    def timeout(self, quarters: int) -> float | None:
        """A time limit that ends between two points of the grid."""
        if not quarters:
            return None
        now = trio.current_time()
        return (now // GRID + quarters) * GRID + CALLS - now

    async def wait_for(self, call: Call, mine: Process | None, ask: Callable[[], Any]) -> None:
        actual: Any = None
        try:
            actual = ("reply", await ask())
        except TargetDownError as error:
            actual = (TargetDownError, error.reason)
            if isinstance(error.reason, Crashed):
                self.check(
                    error.__cause__ is error.reason.error, "the callee's error is not the cause"
                )
        except (DeadlockError, MailboxFullError, CallTimeoutError, ProcessUnknownError) as error:
            actual = type(error)
        except Failure as error:
            actual = ("error", error)
        except trio.Cancelled:
            actual = "cancelled"
            self.model.settle(call, "cancelled")
            raise
        finally:
            self.sync()
            if mine is not None:
                mine.waits_for = None
            self.check(not call.is_over, "a call ended twice")
            call.is_over = True
            self.check(self.is_right_end(call, actual), f"{call} ended with {actual}")

    def is_right_end(self, call: Call, actual: Any) -> bool:
        if actual == "cancelled":
            return True
        if call.outcome is not actual and CallTimeoutError in (call.outcome, actual):
            # Its time may have been up at the very moment when its callee ended, too.
            return call.outcome_at == self.model.now >= call.deadline
        match call.outcome, actual:
            case ((kind, None), (actual_kind, _)) if kind is TargetDownError:
                return actual_kind is TargetDownError
        return bool(call.outcome == actual)

    def hand_on(self, who: "Puppet", caller: Caller, request: Request) -> None:
        self.sync()
        model, call, to = self.model, request.call, request.hand_to
        call.is_deferred = False
        receiver = model.resolve(to)
        handed = Request("answer", to, call)
        if receiver is None:
            model.settle(call, (TargetDownError, model.missing(to)))
        elif receiver.is_stopping:
            model.settle(call, (TargetDownError, None))
        elif model.closes_a_ring(model.waiter(call), receiver):
            model.settle(call, DeadlockError)
        else:
            model.post(receiver, MAIN, Item("call", call.caller, handed, call))
        who.forward(to, handed, caller)

    # reports of callbacks

    @contextmanager
    def watching_threads(self) -> Iterator[None]:
        """Have each callback that runs in a thread go there twice: once as it does, to wait for its
        turn, and once for its work.

        While it works the loop does nothing but the thread's requests. So verbs are used in the
        thread, there is a single world and a single model, and nothing happens between the action
        of a callback and its effect in the kernel.
        """
        original = DispatchedProcess.run_in_thread

        async def there_and_back(
            process: DispatchedProcess, name: str, function: Any, *args: Any
        ) -> Any:
            who = function.__self__
            match name, args:
                case "handle_message", (message, sender):
                    self.picked[who.pid] = self.taken(who, "message", message, sender)
                case "handle_call", (request, caller):
                    self.picked[who.pid] = self.taken(who, "call", request, caller.pid)
                case "handle_child_exit", (child, reason):
                    self.picked[who.pid] = self.taken(who, "child exit", reason, child)
            self.in_threads += 1
            has_begun = threading.Event()
            try:
                await original(process, "there and back", has_begun.set)
            except BaseException:
                self.check(not has_begun.is_set(), f"{who.pid} left {name} in its thread")
                if who.pid in self.picked:
                    self.model.put_back(self.picked.pop(who.pid))
                elif name == "terminate":
                    self.ended(who, *args)
                raise
            finally:
                self.in_threads -= 1
            return self.work_in_thread(process, partial(function, *args))

        setattr(DispatchedProcess, "run_in_thread", there_and_back)  # noqa: B010 - no type checker allows it otherwise
        try:
            yield
        finally:
            setattr(DispatchedProcess, "run_in_thread", original)  # noqa: B010

    def work_in_thread(self, process: DispatchedProcess, function: Callable[[], Any]) -> Any:
        """Run a callback in a thread of its process, and hold the loop meanwhile."""
        is_done: list[bool] = []
        job = Job(function, lambda: is_done.append(True))
        assert process.thread_group is not None
        process.thread_group.put(job)
        self.free_threads()
        while not is_done:
            process.router.bridge.catch_up()
            time.sleep(0.00002)
        assert job.outcome is not None
        return job.outcome.unwrap()

    def looked_at(self, who: "Puppet") -> Item | None:
        """A process with a thread is inspected at any time, also in the middle of a callback."""
        self.sync()
        process = self.model.alive[who.pid]
        item = next((one for one in process.lanes[URGENT] if one.kind == "inspect"), None)
        self.check(item is not None, f"{who.pid} was inspected, and nobody had asked")
        if item is not None:
            process.lanes[URGENT].remove(item)
        return item

    def taken(self, who: "Puppet", kind: str, payload: Any, sender: Any) -> Process:
        if who.pid in self.picked:
            return self.picked.pop(who.pid)
        self.sync()
        process = self.model.alive[who.pid]
        self.check(not process.in_a_callback, f"callbacks of {who.pid} overlap")
        self.check(not process.is_stopping, f"{who.pid} serves although it is stopping")
        process.in_a_callback = True
        found = self.model.next_item(process)
        self.check(
            found is not None and not self.model.is_the_end(process, found[1]),
            f"{who.pid} served {payload} instead of {found}",
        )
        if found is not None:
            process.served_from = found[0]
        item = process.served = self.model.take(process)
        expected: tuple[Any, ...] | None = None
        if item is not None:
            match item.kind:
                case "exit":
                    expected = ("message", Exit(item.sender, item.payload), item.sender)
                case "down":
                    expected = ("message", Down(item.sender, item.payload), item.sender)
                case _:
                    expected = (item.kind, item.payload, item.sender)
        self.check(
            (kind, payload, sender) == expected,
            f"{who.pid} served {(kind, payload, sender)} and not {expected}",
        )
        return process

    def ended(self, who: "Puppet", reason: Reason) -> None:
        self.sync()
        process = self.model.alive.get(who.pid)
        if process is None:
            self.problems.append(f"{who.pid} terminated twice, or never lived")
            return
        possible = self.model.possible_ends(process)
        self.check(reason in possible, f"{who.pid} ended with {reason!r}; possible was {possible}")
        self.check(not process.in_a_callback, f"{who.pid} terminates inside another callback")
        self.check(not process.children, f"{who.pid} terminates before its children")
        self.check(
            process.name is None or self.node.whereis(process.name) == who.pid,
            "a name was free too early",
        )
        if (
            process.parent is not None
            and possible == [Shutdown(), Killed()]
            and reason == Shutdown()
        ):
            self.check(
                process.parent.children[-1] is process, "children were stopped in a wrong order"
            )
        self.model.release(process, reason, has_lived=True)

    # time, and looking at everything

    async def pass_time(self, quarters: int) -> None:
        for _ in range(quarters):
            for moment in (CALLS, TIMERS - CALLS, GRID - TIMERS):
                self.clock.jump(moment)
                self.sync()
                for call in self.model.calls:
                    if call.deadline <= self.model.now:
                        self.model.settle(call, CallTimeoutError)
                await self.rest()

    async def rest(self) -> None:
        await wait_all_tasks_blocked()
        self.free_threads()
        while self.in_threads:
            # A thread is at work, which trio does not see: give it a moment of real time.
            time.sleep(0.0001)  # noqa: ASYNC251
            await wait_all_tasks_blocked()
        self.sync()
        assert self.problems == []

    def compare(self) -> None:
        """Everything is at rest: look at all there is to see."""
        model, node = self.model, self.node
        assert node.processes() == list(model.alive)
        assert {name: node.whereis(name) for name in NAMES} == {
            name: holder.pid if (holder := model.holder(name)) else None for name in NAMES
        }
        info = node.info()
        assert info.dead_letters == +model.dead
        assert info.late_replies == model.late_replies
        assert (info.spawned, info.crashed) == (model.spawned, model.crashed)
        assert info.processes == len(model.alive)
        assert info.names == sum(one.name is not None for one in model.alive.values())
        assert info.aliases == sum(len(one.aliases) for one in model.alive.values())
        assert info.timers == sum(timer.is_active for timer in model.timers)
        for process in model.alive.values():
            self.compare_process(process)
        assert info.relations == len(model.relations)
        for call in model.calls:
            assert call.is_over or call.outcome is None, f"{call} is settled, and nobody was told"
            assert call.is_over or (call.callee is not None and not call.callee.is_gone), (
                f"{call} waits for nobody"
            )

    def compare_process(self, process: Process) -> None:
        model = self.model
        info = self.node.process_info(process.pid)
        assert info.state is self.state_of(process)
        if info.state is State.SLEEP:
            model.pass_over(process, LANES)
            assert model.next_item(process) is None, f"{process.pid} sleeps and has something to do"
        assert info.lanes[MAIN] == len(process.lanes[MAIN])
        if not process.is_stopping and not model.is_doomed(process.parent):
            # A request of its parent to end is the only event that the model does not see coming
            # and going.
            assert info.lanes == {**{lane: len(process.lanes[lane]) for lane in LANES}, "log": 0}
        assert info.dropped == process.dropped
        assert info.unhandled == 0
        assert info.name == process.name
        assert info.trap_exit == process.traps
        assert info.aliases == tuple(process.aliases)
        assert info.parent == (self.node.pid if process.parent is None else process.parent.pid)
        assert info.children == tuple(child.pid for child in process.children)
        addresses = [
            process.pid,
            *process.aliases,
            *([Name(process.name, NODE)] if process.name else []),
        ]
        mine = [one for one in model.relations if one.watcher == process.pid]
        of_me = [one for one in model.relations if one.target in addresses and not one.has_fired]
        for kind, to, by in (
            ("link", info.links, info.linked_by),
            ("monitor", info.monitors, info.monitored_by),
        ):
            assert Counter(to) == Counter(one.target for one in mine if one.kind == kind)
            assert Counter(by) == Counter(one.watcher for one in of_me if one.kind == kind)

    @staticmethod
    def state_of(process: Process) -> State:
        if process.is_stopping:
            return State.STOPPING
        if isinstance(process.waits_for, Call):
            return State.WAIT_RESPONSE
        if process.state is State.INIT:
            return State.INIT
        return State.RUNNING if process.in_a_callback else State.SLEEP


class Puppet(Actor):
    """Obeys, and reports everything. Its answer is part of the request."""

    def __init__(self, world: World, ticket: Ticket) -> None:
        self.world = world
        self.ticket = ticket

    async def init(self) -> None:
        world, ticket = self.world, self.ticket
        world.born(self, ticket)
        process = ticket.process
        assert process is not None
        match ticket.spawn.init:
            case "crash":
                world.model.crashed -= 1
                raise world.crash(process)
            case "crash with a child":
                await world.spawn(self, FAILING_S_CHILD)
                world.model.crashed -= 1
                raise world.crash(process)
            case "wait":
                await world.gate()
            case "ask parent":
                parent = (
                    Where("anybody", world.pids.index(self.parent))
                    if self.parent in world.pids
                    else Where("far", 0)
                )
                await world.ask(self, Ask(parent, "answer", parent, 0, Priority.NORMAL))
            case "stop":
                world.do(self, Stop("at once"), None)
            case "trap":
                world.do(self, Plain("trap"), None)
            case "link parent":
                if self.parent in world.pids:
                    world.do(
                        self, Relate("link", Where("anybody", world.pids.index(self.parent))), None
                    )
        world.initialised(ticket)

    def handle_child_exit(self, child: PID, reason: Reason) -> None:
        process = self.world.taken(self, "child exit", reason, child)
        process.in_a_callback = False

    def handle_inspect(self, *items: str) -> dict[str, str]:
        if self.world.dispatcher == LOOP:
            process = self.world.taken(self, "inspect", items, self.node.pid)
            process.in_a_callback = False
            served = process.served
        else:
            served = self.world.looked_at(self)
        if served is not None and served.call is not None:
            self.world.model.reply(served.call, ("reply", {"items": "item"}))
        return {"items": items[0]}

    def terminate(self, reason: Reason) -> None:
        self.world.ended(self, reason)

    def answer(self, process: Process, request: Request, caller: Caller) -> object:
        """Answer a call, as far as that does not take time."""
        world, model, call = self.world, self.world.model, request.call
        value: object = object()
        match request.what:
            case "none":
                value = None
            case "refuse":
                error = Failure("refused")
                model.reply(call, ("error", error))
                raise Reject(error)
            case "crash":
                raise world.crash(process, call)
            case "stop":
                world.do(self, Stop("after the answer"), None)
            case "defer" | "hand on":
                if request.what == "hand on":
                    world.hand_on(self, caller, request)
                if call.outcome is None and call.callee is process:
                    call.is_deferred = True
                return NO_REPLY
            case "reply twice":
                world.expect(model.reply(call, ("reply", value)), self.reply, caller, value)
        model.reply(call, ("reply", value))
        return value

    def take_call(self, request: Any, caller: Caller) -> tuple[Process, Request]:
        process = self.world.taken(self, "call", request, caller.pid)
        inner: Request = request.message if isinstance(request, Diverted) else request
        self.world.callers.append((caller, inner.call))
        return process, inner


class PlainPuppet(Puppet):
    """Has plain callbacks only, so that calls to it are answered on the spot when it sleeps."""

    def handle_message(self, message: Any, sender: Any) -> None:
        process = self.world.taken(self, "message", message, sender)
        try:
            if isinstance(message, Told):
                self.world.do(self, message.what, sender)
        finally:
            process.in_a_callback = False

    def handle_call(self, request: Any, caller: Caller) -> object:
        process, inner = self.take_call(request, caller)
        try:
            return self.answer(process, inner, caller)
        finally:
            process.in_a_callback = False


class AsyncPuppet(Puppet):
    async def handle_message(self, message: Any, sender: Any) -> None:
        process = self.world.taken(self, "message", message, sender)
        try:
            if isinstance(message, Told):
                await self.world.obey(self, message.what, sender)
        finally:
            process.in_a_callback = False

    async def handle_call(self, request: Any, caller: Caller) -> object:
        process, inner = self.take_call(request, caller)
        try:
            if inner.what == "wait":
                await self.world.gate()
            return self.answer(process, inner, caller)
        finally:
            process.in_a_callback = False


# -- the test --------------------------------------------------------------------------------------


async def live(
    program: list[list[Any]], clock: MockClock, dispatcher: Dispatcher, swaps: bool
) -> None:
    at_the_end = 0
    async with trio.open_nursery() as nursery:
        context = open_node(NODE, max_processes=LIMIT, watchdog=None, log_output="none")
        node = await context.__aenter__()
        world = World(node, clock, nursery, dispatcher)
        with world.watching_threads():
            try:
                for step in (*PROLOGUE, *program):
                    await world.take_step([other_colour(one) for one in step] if swaps else step)
            finally:
                world.free_threads()
                # The gates are not opened any more: a process that waits there is stopped when its
                # time is up.
                at_the_end = len(node.processes())
                world.model.is_closing = True
                # Time must not jump while a thread is at work.
                clock.autojump_threshold = 0 if dispatcher == LOOP else 0.02
                await context.__aexit__(None, None, None)
        await wait_all_tasks_blocked()
        still_waiting = list(world.scopes)
        nursery.cancel_scope.cancel()
    assert still_waiting == []
    assert all(call.is_over for call in world.model.calls)
    assert world.problems == []
    assert_nothing_is_left(node, at_the_end)


def other_colour(action: Any) -> Any:
    """The same with plain callbacks for async callbacks, and the other way round: plain callbacks
    are rarer, and those go to threads.
    """
    match action:
        case Spawn():
            return replace(action, is_async=not action.is_async)
        case Tell(what=Spawn() as what):
            return replace(action, what=other_colour(what))
    return action


def assert_nothing_is_left(node: Node, at_the_end: int) -> None:
    kernel, router = kernel_of(node), router_of(node)
    assert router.processes == {}
    assert router.registry.names == {}
    assert router.registry.aliases == {}
    assert kernel.roots == {}
    assert len(kernel.relations) == 0
    assert relation_tables(kernel.relations)[1] == {}
    report = node.exit_report
    assert report is not None
    assert report.abandoned == ()
    assert len(report.stopped) + len(report.killed) == at_the_end


def leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves(part)
    else:
        yield error


def child(init: str = "", is_async: bool = True) -> Spawn:
    return Spawn(None, is_async, init, False, 0, Overflow.RAISE)


def tell(who: int, what: Any, priority: Priority = Priority.NORMAL) -> Tell:
    return Tell(who, what, priority)


# Programs that chance makes rarely. Numbers are those of the living: the prologue has started 0 to
# 3.
ANSWERED_AND_ASKED = [
    # A process asks another and is answered; before it has taken the answer, the other asks it in
    # turn.
    [tell(0, Ask(Where("pid", 1), "wait", Where("far", 0), 0, Priority.NORMAL))],
    [tell(1, Ask(Where("pid", 0), "answer", Where("far", 0), 0, Priority.NORMAL))],
    [OpenGate(0)],
]
SPAWNER_CANCELLED = [
    # A process watches another in its init, and its spawner then gives up.
    [Spawn("c", True, "wait", False, 0, Overflow.RAISE)],
    [tell(0, Relate("monitor", Where("name", 2)))],
    [GiveUp(0)],
]
DEMONITORED_IN_TIME = [
    # The down is queued already when it is no longer wanted.
    [tell(0, Relate("monitor", Where("anybody", 1)))],
    [tell(0, Plain("gate"))],
    [Kill(Where("anybody", 1))],
    [tell(0, Relate("demonitor", Where("anybody", 1)), Priority.MAX)],
    [OpenGate(0)],
]
LAST_STARTED_FIRST = [
    [tell(0, child())],
    [tell(0, child(is_async=False))],
    [tell(0, child())],
    [tell(0, Stop("enough"))],
]
NOT_TRAPPED = [
    # An exit from the parent is not trapped.
    [tell(0, child("trap"))],
    [tell(0, SendExit(Where("pid", 4), "enough"))],
]
PAST_THE_STOPPING_POINT = [
    # It waits for a child that is busy, and takes nothing more; when its patience is over, the
    # child is killed.
    [tell(0, child())],
    [tell(4, Plain("gate"))],
    [SendExit(Where("pid", 0), Normal())],
    [
        Send(Where("pid", 0), Priority.MAX),
        Send(Where("pid", 0), Priority.NORMAL),
        Ask(Where("pid", 0), "answer", Where("far", 0), 0, Priority.NORMAL),
    ],
    [PassTime(24)],
]


ONE, OTHER = Where("pid", 1), Where("pid", 3)
FIRST = Where("pid", 0)


def end_beside_a_busy_watcher(*first: Any, end: Any) -> list[list[Any]]:
    """A process is busy while its child ends, to which it has a link and a monitor. The child has
    sent it messages, and another message comes later.
    """
    watch = [tell(0, Relate(verb, Where("pid", 4))) for verb in ("link", "monitor")]
    sends = [tell(4, Send(FIRST, priority)) for priority in (Priority.NORMAL, Priority.MAX)]
    return [
        [*first, tell(0, child())],
        watch,
        [tell(0, Plain("gate"))],
        [*sends, tell(4, end)],
        [Send(FIRST, Priority.NORMAL)],
        [OpenGate(0)],
    ]


TRAP = tell(0, Plain("trap"))
NORMAL_END = end_beside_a_busy_watcher(end=Stop(Normal()))
NORMAL_END_TRAPPED = end_beside_a_busy_watcher(TRAP, end=Stop(Normal()))
SHUTDOWN_TRAPPED = end_beside_a_busy_watcher(TRAP, end=Stop(Shutdown("why")))
CRASH_TRAPPED = end_beside_a_busy_watcher(TRAP, end=Plain("raise"))
NORMAL_END_OF_ONE_CHILD = [
    # A busy process has two children, and ignores the exit of one of them when it is free again.
    [tell(0, child()), tell(0, child())],
    [tell(0, Relate("link", Where("pid", 4)))],
    [tell(0, Plain("gate"))],
    [tell(4, Stop(Normal()))],
    [OpenGate(0)],
]
NORMAL_END_BOUNDED = [
    # 3 traps and takes two messages at most: the notice of an end takes no place.
    [tell(3, Relate("link", ONE))],
    [tell(3, Plain("gate"))],
    [tell(1, Stop(Normal()))],
    [Send(Where("pid", 2), Priority.NORMAL)] * 3,
    [OpenGate(0)],
]


def kill_before_its_thread(*first: Any) -> list[list[Any]]:
    """2 has plain callbacks, and its threads are busy: it has taken ``first`` when 0, after a call
    of its own, kills it.
    """
    ask = Ask(ONE, "answer", ONE, 0, Priority.NORMAL)
    kill = Kill(Where("pid", 2))
    return [
        [tell(2, Plain("trap")), tell(2, Relate("link", OTHER))],
        [Occupy(2), Occupy(2), *first, tell(0, ask), tell(0, kill)],
    ]


KILLED_WITH_MESSAGES = kill_before_its_thread(
    *[Send(Where("pid", 2), priority) for priority in Priority], Send(Where("pid", 2), Priority.MAX)
)
KILLED_WITH_A_CALL = kill_before_its_thread(
    Ask(Where("pid", 2), "answer", ONE, 0, Priority.NORMAL), Send(Where("pid", 2), Priority.NORMAL)
)
KILLED_WITH_A_NOTICE = kill_before_its_thread(Kill(OTHER), Send(Where("pid", 2), Priority.NORMAL))
KILLED_BEFORE_IT_TERMINATES = kill_before_its_thread(SendExit(Where("pid", 2), "why"))
EVERY_VERB = [
    # With the colours swapped, 0, 1 and 3 have plain callbacks.
    [tell(0, Send(ONE, Priority.NORMAL)), tell(0, Send(ONE, Priority.MAX)), tell(0, Forward(ONE))],
    [
        tell(0, Plain("trap")),
        tell(0, Relate("link", ONE)),
        tell(0, Relate("monitor", ONE)),
        tell(0, Plain("alias")),
    ],
    [
        tell(1, Register("c", ONE)),
        tell(3, Relate("monitor", Where("name", 2))),
        tell(1, Plain("give name up")),
    ],
    [
        tell(3, Relate("link", Where("alias", 0))),
        tell(3, Relate("unlink", Where("alias", 0))),
        tell(0, DropAlias(0)),
    ],
    [Ask(Where("pid", 0), "hand on", OTHER, 0, Priority.NORMAL)],
    [Ask(Where("pid", 0), "defer", OTHER, 0, Priority.NORMAL)],
    [Ask(Where("pid", 0), "defer", OTHER, 0, Priority.NORMAL)],
    [
        tell(3, Reply(0, True)),
        tell(3, Reply(1, True)),
        tell(1, Reply(2, False)),
        tell(1, Reply(2, False)),
    ],
    [tell(0, Arm(ONE, 1, False)), tell(0, Arm(ONE, 1, True)), tell(0, CancelTimer(1)), PassTime(4)],
    [tell(3, SendExit(Where("pid", 0), "please")), tell(3, Kill(ONE))],
    [tell(2, Stop("enough")), tell(0, Plain("raise"))],
]


@settings(max_examples=(5 if THOROUGH else 1) * settings().max_examples)
@given(programs)
@example(ANSWERED_AND_ASKED)
@example(SPAWNER_CANCELLED)
@example(DEMONITORED_IN_TIME)
@example(LAST_STARTED_FIRST)
@example(NOT_TRAPPED)
@example(PAST_THE_STOPPING_POINT)
@example(NORMAL_END)
@example(NORMAL_END_TRAPPED)
@example(SHUTDOWN_TRAPPED)
@example(CRASH_TRAPPED)
@example(NORMAL_END_OF_ONE_CHILD)
@example(NORMAL_END_BOUNDED)
@pytest.mark.no_cover
def test_a_node_keeps_its_promises_under_any_operations(program: list[list[Any]]) -> None:
    run(program, LOOP, swaps=False)


@given(
    programs,
    st.sampled_from([Threads(), Threads("workers", 2), Threads("pod")]),
    st.sampled_from([True, True, False]),
)
@example(ANSWERED_AND_ASKED, Threads(), False)
@example(DEMONITORED_IN_TIME, Threads("pod"), False)
@example(LAST_STARTED_FIRST, Threads("workers", 2), False)
@example(LAST_STARTED_FIRST, Threads(), True)
@example(NOT_TRAPPED, Threads("pod"), True)
@example(NORMAL_END_TRAPPED, Threads("pod"), False)
@example(KILLED_WITH_MESSAGES, Threads(), False)
@example(KILLED_WITH_MESSAGES, Threads("workers", 2), False)
@example(KILLED_WITH_A_CALL, Threads("pod"), False)
@example(KILLED_WITH_A_NOTICE, Threads(), False)
@example(KILLED_BEFORE_IT_TERMINATES, Threads("pod"), False)
@example(EVERY_VERB, Threads(), True)
@example(EVERY_VERB, Threads("workers", 2), True)
@example(EVERY_VERB, Threads("pod"), True)
def test_a_node_keeps_its_promises_with_any_dispatcher(
    program: list[list[Any]], dispatcher: Dispatcher, swaps: bool
) -> None:
    run(program, dispatcher, swaps)


def run(program: list[list[Any]], dispatcher: Dispatcher, swaps: bool) -> None:
    clock = MockClock()
    try:
        trio.run(live, program, clock, dispatcher, swaps, clock=clock)
    except BaseExceptionGroup as group:
        # The group is the nursery's; the error is inside.
        raise next(leaves(group)) from None
