"""Worlds of networks: messages between two nodes, and processes that watch and call each other."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import trio

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Backoff,
    Caller,
    CallTimeoutError,
    ChildSpec,
    Down,
    ErgoError,
    EventName,
    MailboxFullError,
    Name,
    Node,
    NodeName,
    NodeStoppedError,
    NoNode,
    Normal,
    Overflow,
    Published,
    Shutdown,
)
from ergo_py.network.errors import TooManyCallsError
from ergo_py.testing import World
from ergo_py.testing.world.checkers import NamedCheck
from ergo_py.testing.world.history import History
from ergo_py.testing.world.node import WorldNode
from ergo_py.testing.world.plan import Plan

__all__ = ["messages", "watches"]

PADDING = "x" * 2000
LONG = "y" * 1_400_000
"""Longer than a message that travels whole."""
BEAT, PATIENCE = 1.0, 5.0
"""Those of a network, by default."""


# -- messages --------------------------------------------------------------------------------------


@dataclass
class Odd:
    """A message that its receiver cannot read, if it was changed after it was made."""

    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("the number is negative")


class Letters:
    """The notes of a world of messages."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.sent = [0]
        """How many messages the source has sent in each session, as far as it knows of them."""
        self.got: list[tuple[int, int]] = []
        """The numbers that have arrived, with their sessions."""
        self.lost_at: list[float] = []
        """When the loss of the node was told."""
        self.has_long = False
        """Whether a message has travelled in parts, each of which is an operation."""
        self.complaints: list[str] = []

    def note(self, message: Any) -> None:
        """Note a message that has arrived. D15: it is as it was when it was sent."""
        session, number, parts = message
        if not (type(message) is tuple and parts in ([number, PADDING], [number, LONG])):
            self.complaints.append(f"{session, number} arrives as {str(parts)[:50]}")
        self.got.append((session, number))

    def check_accounts(self, node: Node, other: str) -> None:
        """D13, D21: the operations add up at each moment, and few bytes are on the way."""
        peer = node.network().peers.get(other)
        if peer is None:
            return
        parts = (peer.confirmed, peer.on_the_way, peer.waiting, peer.unconfirmed, peer.unsent)
        if peer.sent != sum(parts):
            self.complaints.append(f"{node.name} has sent {peer.sent}, and tells of {sum(parts)}")
        if peer.taken < 0:
            self.complaints.append(f"{node.name} refuses more than it has received")
        if peer.on_the_way > 1 and peer.on_the_way_bytes > self.window:
            self.complaints.append(f"{peer.on_the_way_bytes} bytes are on the way to {other}")


class Sink(Actor):
    """Notes all that it gets."""

    def __init__(self, letters: Letters) -> None:
        self.letters = letters

    def handle_message(self, message: Any, sender: Any) -> None:
        """Note a number."""
        self.letters.note(message)
        self.letters.check_accounts(self.node, "a@world")


class Source(Actor):
    """Sends numbers to the sink, and begins again at zero when its node is lost."""

    def __init__(self, letters: Letters) -> None:
        self.letters = letters

    def init(self) -> None:
        """Watch the node of the sink."""
        self.monitor(NodeName("b@world"))

    def handle_message(self, message: Any, sender: Any) -> None:
        """Send so many numbers."""
        letters, sink = self.letters, Name("sink", "b@world")
        if isinstance(message, Down):
            letters.sent.append(0)
            letters.lost_at.append(trio.current_time())
            self.monitor(NodeName("b@world"))
            return
        count, is_long = message
        letters.has_long |= is_long
        for each in range(count):
            number = letters.sent[-1]
            parts: list[object] = [number, LONG if is_long and not each else PADDING]
            self.send(sink, (len(letters.sent), number, parts))
            parts.append("later")  # which does not travel
            letters.sent[-1] += 1
            if each % 7 == 3:
                odd = Odd(number)
                odd.number = -1
                self.send(sink, odd)
        letters.check_accounts(self.node, "b@world")


async def messages(world: World) -> None:
    """D3, D4, D5, D15, D16, D24, D28: a source on a node sends to a sink on another: each session
    delivers a prefix, in order and once, each message as it was, and after the faults nothing is
    missing. Long messages travel in parts, frames may be compressed, and some messages cannot be
    read.

    D6, D7, D18: a loss is told after a break that is long enough, and only then. D13, D21: at each
    moment the accounts add up, and at the end those of both nodes agree.
    """
    # In a small window operations wait for room, in a large one they fill several frames.
    window = world.random.choice((16, 64, 1024)) * 1024
    letters = Letters(window)

    async def start(node: Node) -> None:
        if node.name == "b@world":
            await node.spawn(Sink, letters, name="sink")
        else:
            await node.spawn(Source, letters, name="source")

    options = {"window": window, "compress": world.random.random() < 0.5}
    a, b = await world.start(2, start, types=[Odd], network=options)
    # With few kinds of faults, breaks are short, and apart from each other.
    rates: dict[str, Any] = {"cut": 0.06, "pause": 0.03, "double": 0.1}
    if world.random.random() < 0.7:
        rates = {"cut": 0.1, "one_way": 0.1, "lose": 0.1, "double": 0.1, "delay": 0.2}
        rates["pause"] = 0.05
    # Longer than the patience, or than two sessions: frames of earlier sessions arrive.
    limits = {"delay": (0.01, world.random.choice((8.0, 40.0)))}
    world.faults(seconds=20.0, limits=limits, **rates)
    for _ in range(20):
        burst = world.random.choice((1, 3, 40)), world.random.random() < 0.04
        a.node.send("source", burst)
        await trio.sleep(world.random.uniform(0.0, 2.0))
    healed_at = trio.current_time()
    await world.heal()
    await trio.sleep(10)

    def in_order(_history: History) -> Iterator[str]:
        yield from letters.complaints[:5]
        for session in dict.fromkeys(session for session, _ in letters.got):
            numbers = [number for each, number in letters.got if each == session]
            if numbers != list(range(len(numbers))):
                yield f"session {session} delivers {numbers[:50]}"
        last = [number for session, number in letters.got if session == len(letters.sent)]
        if len(last) != letters.sent[-1]:
            yield f"{len(last)} of {letters.sent[-1]} messages have arrived, and no loss was told"

    def accounts_agree(_history: History) -> Iterator[str]:
        here, there = a.node.network().peers["b@world"], b.node.network().peers["a@world"]
        # In each session a node tells a few times what it has refused.
        told = there.taken - len(letters.got)
        if not letters.has_long and not 0 <= told <= 2 * there.sessions:
            yield f"b@world has taken {there.taken} operations, and {len(letters.got)} messages"
        for one, other in ((here, there), (there, here)):
            if (one.confirmed, one.refused_there) != (other.received, other.refused):
                yield (
                    f"{one.confirmed} operations to {one.node} are confirmed, and it refused "
                    f"{one.refused_there}; it has received {other.received}, and refused "
                    f"{other.refused}"
                )

    def losses_are_told_in_time(_history: History) -> Iterator[str]:
        return _losses(world.plan, letters.lost_at, healed_at)

    world.check(in_order, accounts_agree, losses_are_told_in_time)


def _losses(plan: Plan, lost_at: list[float], healed_at: float) -> Iterator[str]:
    """D6, D7: compare the losses that a node was told with the breaks of a plan."""
    breaks: list[list[float]] = []
    """The times in which a frame may be missing or late, joined."""
    for fault in plan.faults:
        if fault.kind == "double":
            continue
        end = fault.at + fault.seconds + fault.amount * (fault.kind == "delay")
        if breaks and fault.at <= breaks[-1][1] + BEAT:
            breaks[-1][1] = max(breaks[-1][1], end)
        else:
            breaks.append([fault.at, end])
    shortest = PATIENCE - BEAT
    for moment in lost_at:
        if not any(
            began + shortest <= moment <= ended + PATIENCE and ended - began >= shortest
            for began, ended in breaks
        ):
            yield f"a loss is told at {moment:.2f} s, without a long break before: {breaks}"
    for fault in plan.faults:
        latest = fault.at + PATIENCE + BEAT
        is_silent = fault.kind == "cut" or (fault.kind == "pause" and fault.nodes == ("b@world",))
        if not is_silent or min(fault.at + fault.seconds, healed_at) <= latest:
            continue
        # A frame that is late may arrive in spite of a cut, a stopped program tells nothing, and
        # the end of another cut or pause ends this one, too.
        is_unsure = any(
            (each.kind in ("delay", "cut", "one_way", "pause") or each.nodes == ("a@world",))
            and each.at < latest
            and each.at + each.seconds + each.amount > fault.at
            for each in plan.faults
            if each is not fault
        )
        if not is_unsure and not any(fault.at < each <= latest for each in lost_at):
            yield f"no loss is told within {latest - fault.at} s after {fault}"


# -- watches ---------------------------------------------------------------------------------------

TARGETS = ("one", "two", "three")
LATEST = 15.0
"""Seconds after which the end of a process, or the loss of its node, must be told."""
KEPT = 3
"""The publications that the event keeps."""
ROOM = 1
"""The size of the narrow mailbox."""
ACTIONS = (
    *("watch", "watch", "call", "call again", "count", "end"),
    *("serve", "forward", "look", "tell", "tell", "subscribe", "wait"),
)


class Diary:
    """The notes of a world of watches."""

    def __init__(self, is_tight: bool) -> None:
        self.is_tight = is_tight
        """Whether few bytes may wait for a node, so that messages and publications are refused."""
        self.watched: Counter[PID] = Counter()
        self.downs: Counter[PID] = Counter()
        self.reasons: dict[PID, object] = {}
        """Why the targets ended, as it was told."""
        self.sent: Counter[PID] = Counter()
        """How many messages each target has sent."""
        self.parting: Counter[PID] = Counter()
        """How many it has sent before it ended: none, if there was no room for them."""
        self.got: dict[PID, list[int]] = {}
        self.gone: set[PID] = set()
        """The targets whose ends were told."""
        self.found: list[tuple[float, PID]] = []
        """The processes that names stood for, and when a client asked."""
        self.published = 0
        """The publications of the present start of the publisher."""
        self.heard: list[list[tuple[int, int]]] = []
        """The publications that each subscription has brought, each with its publisher."""
        self.starts = 0
        """How often the narrow process has started."""
        self.taken: list[tuple[int, ...]] = []
        """The messages that the mailbox of the narrow process has taken."""
        self.handled: list[tuple[int, ...]] = []
        """Those that it has handled."""
        self.refusals: list[str] = []
        """Calls that a service has refused."""
        self.farewells: list[object] = []
        """Why the other node went down, as its farewell says."""
        self.complaints: list[str] = []


class Target(Actor):
    """Counts for its watcher, answers calls, and ends when it is told to."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def handle_call(self, request: Any, caller: Caller) -> Any:
        """Send back the request, or the process; or let another target answer."""
        match request:
            case ("forward", str() as name, rest):
                return self.forward(Name(name), rest, caller)
            case "nothing":
                return NO_REPLY
        return self.pid if request == "pid" else request

    def handle_message(self, message: Any, sender: Any) -> None:
        """Send some numbers; with "end", end after them."""
        before = self.diary.sent[self.pid]
        for _ in range(3):
            try:
                self.send(Name("watcher", "a@world"), (self.pid, self.diary.sent[self.pid]))
            except MailboxFullError:
                break
            self.diary.sent[self.pid] += 1
        if message == "end":
            self.diary.parting[self.pid] = self.diary.sent[self.pid] - before
            self.stop()


class Narrow(Actor):
    """Has a small mailbox, and takes a while for each message."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def init(self) -> None:
        """Count the start."""
        self.diary.starts += 1

    async def handle_message(self, message: Any, sender: Any) -> None:
        """Note a message. D15: it arrives as it was when it was sent."""
        *id, text = message
        self.diary.handled.append(tuple(id))
        if text != "as it was":
            self.diary.complaints.append(f"{id} arrives {text}")
        await trio.sleep(0.7)


class Publisher(Actor):
    """Publishes numbers."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def init(self) -> None:
        """Begin."""
        self.diary.published = 0
        self.register_event("ticks", buffer=KEPT)
        self.send_every(1.0, self.pid, "tick")

    def handle_message(self, message: Any, sender: Any) -> None:
        """Publish the next number."""
        self.publish("ticks", (self.pid.creation, self.diary.published))
        self.diary.published += 1


class Subscriber(Actor):
    """Notes the publications of another node, and subscribes again when that node is lost."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def init(self) -> None:
        """Subscribe."""
        self.heard: list[tuple[int, int]] = []
        self.diary.heard.append(self.heard)
        self.subscribe(EventName("ticks", "b@world"))

    def handle_event(self, event: Published) -> None:
        """Note a publication."""
        self.heard.append(event.message)

    def handle_message(self, message: Any, sender: Any) -> None:
        """Subscribe again, a while after the loss of the node."""
        if isinstance(message, Down):
            self.send_after(0.3, self.pid, "again")
        else:
            self.init()


class Watcher(Actor):
    """Watches targets of another node, and notes their messages and ends."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def init(self) -> None:
        """Listen to the farewells of nodes. A crash of this node has ended all watches."""
        self.diary.watched.clear()
        self.diary.downs.clear()
        self.subscribe("ergo.node_down")

    def handle_event(self, event: Published) -> None:
        """Note a farewell."""
        self.diary.farewells.append(event.message.reason)

    def handle_call(self, request: Any, caller: Caller) -> Any:
        """Watch a process once."""
        if not self.diary.watched[request]:
            self.diary.watched[request] += 1
            self.monitor(request)

    def handle_message(self, message: Any, sender: Any) -> None:
        """Note a number, or an end."""
        diary = self.diary
        match message:
            case Down(PID() as target, reason):
                diary.downs[target] += 1
                diary.reasons[target] = reason
                if isinstance(reason, NoNode):
                    return  # it may live, and be heard again
                if not isinstance(reason, Normal):
                    return  # the notice of another end does not wait behind messages
                diary.gone.add(target)
                got = diary.got.get(target, [-1])[-1] + 1
                # Its last messages were sent in the session that has told its end. Earlier ones may
                # have been lost with an earlier session.
                if diary.parting[target] and got != diary.sent[target]:
                    diary.complaints.append(
                        f"{target} is down after {got} of its {diary.sent[target]} messages"
                    )
            case (PID() as target, int() as number):
                if target in diary.gone:
                    diary.complaints.append(f"{target} sends {number} after its end")
                diary.got.setdefault(target, []).append(number)


async def watches(world: World) -> None:
    """D3, D5, D8, D9, D10: each watched end is told once, behind the last messages of the process;
    calls get their own answers. D1: clients use all verbs of a target, D2: also with the PIDs of
    earlier starts, D11: and with names whose processes restart.

    D12: a subscription has no gap and nothing twice. D13, D14, D15: a message is confirmed when a
    small mailbox has taken it, and is as it was when it waited for the node. D20: a node that goes
    down tells the ends of its processes, and then its farewell. D23: nothing is permitted that is
    not listed. D24: calls that failed make room for others. D27: a service waits for its child.
    """
    diary = Diary(is_tight=world.random.random() < 0.3)

    async def start(node: Node) -> None:
        if node.name == "b@world":
            slowly = Backoff(0.2, 1.0)
            children = [ChildSpec(name, Target, diary, backoff=slowly) for name in TARGETS]
            await node.spawn(
                Narrow, diary, name="narrow", mailbox_size=ROOM, overflow=Overflow.WAIT
            )
            await node.spawn(Publisher, diary, name="publisher")
            await node.supervise(children, intensity=1000)
        else:
            await node.spawn(Watcher, diary, name="watcher")
            await node.spawn(Subscriber, diary, name="subscriber")

    limits = {"max_calls": world.random.choice((3, 100_000))}
    limits["window"] = world.random.choice((1024, 1 << 20))
    if diary.is_tight:
        limits["backlog"] = 200
    a, b = await world.start(2, start, network=limits)
    rates: dict[str, Any] = {"cut": 0.15, "one_way": 0.1, "lose": 0.1, "double": 0.1, "delay": 0.2}
    rates |= {"pause": 0.05, "kill": 0.2}
    if world.random.random() < 0.5:
        rates["crash"] = 0.08
    world.faults(seconds=20.0, victims=TARGETS, **rates)
    async with trio.open_nursery() as nursery:
        for number in range(2):
            nursery.start_soon(_use, world, a, diary, number)
    await world.heal()
    await trio.sleep(LATEST)
    for name in TARGETS:
        b.node.send(name, "end")
    await trio.sleep(3)
    await _say_farewell(a, b, diary)
    world.check(*(NamedCheck(check.__name__, partial(check, diary)) for check in CHECKS))
    world.check(World.all_answered())


async def _say_farewell(a: WorldNode, b: WorldNode, diary: Diary) -> None:
    """Let calls use all room there is, let a new process subscribe, and close a node."""
    first = diary.published - KEPT
    await a.node.spawn(Subscriber, diary)
    await trio.sleep(1)
    for heard in diary.heard[-2:]:
        found = [number for _, number in heard]
        # A publication may be made in the moment of the subscription, and of this look.
        if not found or found[0] > first + 1 or found[-1] < diary.published - 2:
            diary.complaints.append(f"a subscription gets {found[-10:]}: {first} was kept")
    last = await a.call(Name("one", "b@world"), "pid")
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(a.call, Name("two", "b@world"), "pid")
    await a.call("watcher", last)
    for _ in range(30):
        b.node.send("one", "count")
    diary.farewells.clear()
    await b.close()
    await trio.sleep(1)
    if not isinstance(diary.reasons.get(last), Shutdown):
        diary.complaints.append(f"{last} ends with its node: {diary.reasons.get(last)}")
    if [type(reason) for reason in diary.farewells] != [Shutdown]:
        diary.complaints.append(f"the node goes down: {diary.farewells}")


def told_once(diary: Diary, history: History) -> Iterator[str]:
    """D8, D10: each end is told once."""
    yield from diary.complaints
    for life in history.lifetimes:
        if life.ended < history.now() and diary.watched.get(life.pid):
            times = diary.downs[life.pid]
            if times != 1:
                yield f"the end of {life.pid} was told {times} times"
    for target, numbers in diary.got.items():
        if numbers != sorted(set(numbers)):
            yield f"{target} has sent {diary.sent[target]} numbers, which arrived as {numbers}"


def names_are_looked_up(diary: Diary, history: History) -> Iterator[str]:
    """D11: a name stands for a process that lives when the message arrives."""
    ends = {life.pid: life.ended for life in history.lifetimes}
    for asked_at, pid in diary.found:
        if ends[pid] < asked_at:
            yield f"a name stands for {pid} at {asked_at:.2f} s, which ended at {ends[pid]:.2f} s"


def subscriptions_have_no_gap(diary: Diary, _history: History) -> Iterator[str]:
    """D12: publications come once and in order, those that the event keeps first."""
    for heard in diary.heard:
        first = heard[0][1] if heard else 0
        wanted = [(heard[0][0], number) for number in range(first, first + len(heard))]
        if (sorted(set(heard)) if diary.is_tight else wanted) != heard:
            yield f"a subscription gets {heard}"


def confirmed_messages_are_taken(diary: Diary, _history: History) -> Iterator[str]:
    """D14: a message that was confirmed is in the mailbox, and is handled, in order."""
    lost = set(diary.taken).difference(diary.handled)
    if lost and diary.starts == 1:
        yield f"{sorted(lost)} were confirmed, and are not handled"
    for number in range(2):
        steps = [id for id in diary.handled if id[0] == number]
        if steps != sorted(set(steps)):
            yield f"the messages of client {number} are handled as {steps}"


def services_wait(diary: Diary, _history: History) -> Iterator[str]:
    """D27: a service refuses no call while its child restarts. A node that starts has no child."""
    if diary.starts == 1:
        yield from diary.refusals


CHECKS = (
    told_once,
    names_are_looked_up,
    subscriptions_have_no_gap,
    confirmed_messages_are_taken,
    services_wait,
)


async def _use(world: World, client: WorldNode, diary: Diary, number: int) -> None:
    """Use the targets as a client."""
    random = Random(repr((world.plan.seed, "client", number)))
    for step in range(14):
        await trio.sleep(random.choice((0.0, 0.1, 1.0, 3.0)))
        name, other = random.sample(TARGETS, 2)
        use = _Use(client, diary, Name(name, "b@world"), (number, step), random)
        try:
            await use.act(random.choice(ACTIONS), other)
        except TooManyCallsError as error:
            # This node has two clients, and each has a single call; the other node keeps calls
            # that have timed out here.
            if "limit of 'a@world'" in str(error):
                diary.complaints.append(str(error))
        except ErgoError:
            pass


@dataclass(frozen=True)
class _Use:
    """A single use of a target."""

    client: WorldNode
    diary: Diary
    target: Name
    id: tuple[int, int]
    random: Random

    async def act(self, action: str, other: str) -> None:
        """Do it."""
        client, diary, target = self.client, self.diary, self.target
        match action:
            case "watch":
                asked_at = trio.current_time()
                pid = await client.call(target, "pid", timeout=2.0)
                diary.found.append((asked_at, pid))
                await client.call("watcher", pid)
            case "call":
                self._compare(await client.call(target, self.id, timeout=2.0))
            case "forward":
                request = ("forward", other, self.id)
                self._compare(await client.call(target, request, timeout=2.0))
            case "call again":
                if diary.found:
                    _, pid = self.random.choice(diary.found)
                    answer = await client.call(pid, "pid", timeout=2.0)
                    if answer != pid:
                        diary.complaints.append(f"{answer} answers a call of {pid}")
            case "wait":
                await client.run(lambda node: node.call(target, "nothing", timeout=0.2))
            case "subscribe":
                await client.run(lambda node: node.spawn(Subscriber, diary))
            case "look":
                await client.run(self._look)
            case "serve":
                await client.run(self._serve)
            case "tell":
                await client.run(self._tell)
            case _:
                client.node.send(target, action)

    def _compare(self, answer: object) -> None:
        if answer != self.id:
            self.diary.complaints.append(f"the answer to {self.id} is {answer}")

    async def _look(self, node: Node) -> None:
        found = await node.at(self.target.node).applications()
        self.diary.complaints.append(f"a look that is not permitted has the answer {found}")

    async def _serve(self, node: Node) -> None:
        service = node.at(self.target.node).service(self.target.name)
        if self.random.random() < 0.5:
            service.send("end")
        try:
            self._compare(await service.call(self.id, timeout=3.0, retry=True))
        except (CallTimeoutError, NodeStoppedError, TooManyCallsError):
            pass  # of the network, not of the service
        except ErgoError as error:
            self.diary.refusals.append(f"{service} refuses {self.id}: {error!r}")

    async def _tell(self, node: Node) -> None:
        diary = self.diary
        for part in range(3):
            id = (*self.id, part)
            if not await self._tell_once(node, [*id, "as it was"]):
                return
            diary.taken.append(id)
            waiting = sorted(set(diary.taken).difference(diary.handled))
            if len(waiting) > ROOM and diary.starts == 1:
                diary.complaints.append(f"{waiting} are confirmed: too many for the mailbox")

    async def _tell_once(self, node: Node, message: list[Any]) -> bool:
        async def change() -> None:
            message[-1] = "changed"  # after the message was sent, which may wait

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            try:
                while self.diary.is_tight:  # until too many bytes wait for the node
                    node.send(Name("nobody", "b@world"), PADDING)
            except MailboxFullError:
                pass
            try:
                return await node.send_wait(Name("narrow", "b@world"), message, timeout=3.0)
            except ErgoError:
                return False
        raise AssertionError
