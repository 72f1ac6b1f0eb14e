"""`GroupKeeper`: tells the members of groups on this node to the other nodes, and learns theirs.

Each node that uses groups of the cluster has a keeper. Two keepers greet each other when their
nodes connect; then each sends its members, and each change. The members of another node leave when
its keeper or its node is lost. A message of an earlier greeting has no effect: each carries a
number that its receiver has given out.
"""

from collections import deque
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Any, Final

import trio
from trio.lowlevel import checkpoint

from .._core.messaging.publisher import NODE_UP
from .._core.tables.pending_calls import Caller
from .._core.vocabulary.errors import (
    BadInputError,
    InitError,
    MailboxFullError,
    NameTakenError,
    Reject,
    TargetDownError,
)
from .._core.vocabulary.ids import PID, Name, Ref
from .._core.vocabulary.messages import (
    NO_REPLY,
    Down,
    Drain,
    GroupJoined,
    GroupLeft,
    NodeUp,
    Response,
)
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import NoNode, Reason, Unregistered
from ..actor import Actor
from ..groups import Group
from ..network.messages.listed_class import RefusedValueError
from ..network.network import Network
from ..node import Node
from ..supervision.specs import ChildSpec
from .node_network import network_of

__all__ = ["ClusterGroup", "GroupKeeper", "open_group"]

_NAME: Final = "ergo.cluster.groups"
_HELLO: Final = "hello"
_JOINED: Final = "joined"
_LEFT: Final = "left"
_SYNCED: Final = "synced"
_LOOK: Final = 10.0
"""Seconds between two searches for nodes that are not connected."""
_FIRST: Final = 3.0
"""The longest time that the first use of a group waits for the members of other nodes."""
_GREETINGS: Final = 100
"""The most numbers of a node, which gets one with each greeting until it is lost."""
_MEMBERS: Final = 1_000_000
"""The most members of another node, in all groups. Further ones are not known here."""
_PART: Final = 500
"""The most members in a message, and the most of all lost nodes that leave in a turn of the loop:
each takes some 10 µs.
"""
_AGAIN: Final = 0.1
"""Seconds after which a message that found no room is sent again."""


@dataclass(frozen=True, slots=True)
class ClusterGroup:
    """The name of a group of the cluster, in ``GroupJoined`` and ``GroupLeft``."""

    name: object

    def __str__(self) -> str:
        return f"{self.name} of the cluster"


@dataclass(frozen=True, slots=True)
class _Open:
    """Watch the members of a group on this node."""

    group: ClusterGroup


@dataclass(frozen=True, slots=True)
class _SendAgain:
    node: str


_Lost = tuple[Iterable[tuple[ClusterGroup, PID]], Reason]
"""The members of a keeper that is lost, and why they leave."""


class _Peer:
    """The keeper of another node."""

    def __init__(self, pid: PID, number: int) -> None:
        self.pid = pid
        self.number = number
        """The number that messages to it carry."""
        self.heard = 0
        """The number of the last message from it."""
        self.members: dict[tuple[ClusterGroup, PID], None] = {}
        self.former: dict[tuple[ClusterGroup, PID], None] = {}
        """Members that it has told before it lost this node and met it again, and not since. Those
        that it does not tell again have left meanwhile.
        """
        self.waiting: deque[tuple[object, ...]] = deque()

    def hear(self, number: int) -> None:
        """Take the number of a message: a new one begins a list of all members."""
        if number != self.heard:
            self.heard = number
            if self.former:  # it lost this node before it had told all
                self.former |= self.members
            else:
                self.former = self.members
            self.members = {}

    def forget_former(self) -> Iterable[tuple[ClusterGroup, PID]]:
        """The members that its list has not told again: it has told all."""
        former, self.former = self.former, {}
        return former

    def all_members(self) -> Iterable[tuple[ClusterGroup, PID]]:
        """All members that it has told."""
        return chain(self.former, self.members)


async def open_group(node: Node, network: Network, name: Hashable) -> Group:
    """The group of that name, after the keeper of this node runs and knows it."""
    group = node.group(ClusterGroup(name))
    try:
        network.types.encode(name)
    except RefusedValueError as error:
        raise BadInputError(
            "group(name)", name, f"a name that can travel: a str, a number, a tuple ({error})"
        ) from None
    while node.whereis(_NAME) is None:
        try:
            await node.supervise([ChildSpec(_NAME, GroupKeeper)], intensity=100, period=10.0)
        except (InitError, NameTakenError):
            await trio.sleep(0.01)  # another task starts it at this moment
    await node.call(_NAME, _Open(ClusterGroup(name)), timeout=None)
    return group


class GroupKeeper(Actor):
    """Keeps the groups of a node in agreement with those of other nodes."""

    drains = True
    serves_drained = True  # a keeper that has lost this one learns nothing of it, and greets again

    def init(self) -> None:
        """Start."""
        self._peers: dict[str, _Peer] = {}
        self._groups: dict[ClusterGroup, None] = {}
        self._given: dict[str, set[int]] = {}
        """The numbers that each node may use in its messages."""
        self._greeted: set[str] = set()
        """Nodes whose members are awaited."""
        self._greetings: dict[Ref, tuple[str, int]] = {}
        """The nodes that were greeted and have not answered, and the numbers they were given."""
        self._is_ready = False
        self._has_met_all = trio.Event()
        self._openers: list[Caller] = []
        self._types = network_of(self._process.kernel).types
        self._lost, lost = trio.open_memory_channel[_Lost](inf)
        self.start_task(self._remove_lost, lost, name="members of lost nodes leave")
        self._forget_strangers()
        self.subscribe(NODE_UP)
        self.start_task(self._look_around, name="search for nodes")

    def _forget_strangers(self) -> None:
        """Remove the members of other nodes that an earlier keeper has left."""
        groups = self._process.kernel.router.directory.groups
        left = [(group, [*groups[group]]) for group in groups if isinstance(group, ClusterGroup)]
        for group, _ in left:
            self._watch(group)
        here = self.pid.node
        strangers = ((group, pid) for group, pids in left for pid in pids if pid.node != here)
        self._lost.send_nowait((strangers, Unregistered()))

    # -- greetings ---------------------------------------------------------------------------------

    async def _look_around(self) -> None:
        while True:
            for node in await self.node.discover():
                if node not in self._peers:
                    self._greet(node)
            if not self._is_ready:
                with trio.move_on_after(_FIRST if self._greeted else 0.0):
                    await self._has_met_all.wait()
                self._be_ready()
            chance = self._process.kernel.chance("groups")
            await trio.sleep(_LOOK * (0.75 + chance.fraction() / 2))

    def _note_met(self, node: str) -> None:
        self._greeted.discard(node)
        if not self._greeted:
            self._has_met_all.set()

    def _be_ready(self) -> None:
        self._is_ready = True
        openers, self._openers = self._openers, []
        for caller in openers:
            self.reply(caller, None)

    def _greet(self, node: str) -> None:
        self._greeted.add(node)
        number = self._give_number(node)
        ref = self.request(Name(_NAME, node), (_HELLO, number))
        self._greetings[ref] = node, number

    def _give_number(self, node: str) -> int:
        # A node that cannot read the number cannot speak in the name of this one.
        number = self._process.kernel.chance("groups").bits(62)
        self._given.setdefault(node, set()).add(number)
        return number

    def _take_number_back(self, node: str, number: int) -> None:
        """Forget a number that no keeper has got."""
        given = self._given.get(node, set())
        given.discard(number)
        if not given:
            self._given.pop(node, None)

    def handle_call(self, request: object, caller: Caller) -> object:
        """Take a call."""
        match request:
            case _Open(group):
                self._watch(group)
                if self._is_ready:
                    return None
                self._openers.append(caller)
                return NO_REPLY
            case Drain():
                return self._leave_all()
            case "hello", int(number) if isinstance(caller.pid, PID):
                if len(self._given.get(caller.pid.node, ())) >= _GREETINGS:
                    raise Reject(ValueError(f"a keeper greets {_GREETINGS} times at most"))
                # The other keeper takes no member before it has the answer.
                self.reply(caller, (self.pid, self._give_number(caller.pid.node)))
                self._meet(caller.pid, number)
                return NO_REPLY
        raise Reject(ValueError("a keeper of groups answers other keepers only"))

    def handle_response(self, response: Response) -> None:
        """Take an answer."""
        node, given = self._greetings.pop(response.ref)
        match response.value if response.error is None else None:
            case PID() as pid, int(number) if pid.node == node:
                self._meet(pid, number)
            case _:  # the node is gone, or uses no groups
                if isinstance(response.error, TargetDownError):
                    self._take_number_back(node, given)
                self._note_met(node)

    def _meet(self, pid: PID, number: int) -> None:
        """Send a keeper the members of this node, with the number that it has given."""
        peer = self._peers.get(pid.node)
        if peer is None or peer.pid != pid:
            if peer is not None:
                del self._peers[pid.node]
                self.demonitor(peer.pid)
                self._lost.send_nowait((peer.all_members(), Unregistered()))
            self._peers[pid.node] = peer = _Peer(pid, number)
            self.monitor(pid)
        # The other keeper may have taken an earlier number back: it has lost this node meanwhile.
        peer.number = number
        for group in self._groups:
            self._offer(group, self._members(group), [peer])
        self._tell(peer, _SYNCED)

    # -- changes -----------------------------------------------------------------------------------

    def _watch(self, group: ClusterGroup) -> None:
        if group not in self._groups:
            self._groups[group] = None
            members = self.node.group(group).monitor(self.pid)
            self._offer(group, members, self._peers.values())

    def _leave_all(self) -> int:
        """Take the processes of this node from all groups: the node drains."""
        for group in self._groups:
            for pid in self._of_this_node(self._members(group)):
                self._remove(group, pid, Unregistered())  # this keeper is told, and tells others
        return 0

    def _of_this_node(self, members: Iterable[PID]) -> list[PID]:
        return [pid for pid in members if pid.node == self.pid.node]

    def _offered(self, members: Iterable[PID]) -> list[PID]:
        """The members that this node tells others of: none while it drains."""
        return [] if self._process.kernel.draining else self._of_this_node(members)

    def _offer(self, group: ClusterGroup, members: Iterable[PID], peers: Collection[_Peer]) -> None:
        """Tell other keepers of members."""
        local = self._offered(members)
        for start in range(0, len(local), _PART):
            for peer in peers:
                self._tell(peer, _JOINED, group.name, local[start : start + _PART])

    def _members(self, group: ClusterGroup) -> Iterable[PID]:
        return self._process.kernel.router.directory.groups.get(group, ())

    def handle_message(self, message: Any, sender: object) -> None:
        """Take a message."""
        match message:
            case GroupJoined(ClusterGroup(name), pid):
                self._offer(ClusterGroup(name), [pid], self._peers.values())
            case GroupLeft(ClusterGroup(name), pid, reason):
                if pid.node == self.pid.node:
                    self._tell_all(_LEFT, name, pid, self._types.encode_reason(reason))
            case Down(PID() as pid, reason=reason):
                peer = self._peers.get(pid.node)
                if peer is not None and peer.pid == pid:
                    del self._peers[pid.node]
                    self._given.pop(pid.node, None)
                    self._lost.send_nowait((peer.all_members(), reason))
                    if not isinstance(reason, NoNode):
                        # Its successor may have got a number already that is forgotten here, and
                        # then greets no more.
                        self._greet(pid.node)
            case _SendAgain(node):
                peer = self._peers.get(node)
                if peer is not None:
                    self._send_waiting(peer)
            case (str(verb), int(number), *rest) if isinstance(sender, PID):
                if number in self._given.get(sender.node, ()):
                    self._learn(sender.node, number, verb, rest)

    def handle_event(self, event: Any) -> None:
        """Take a publication."""
        if isinstance(event.message, NodeUp) and event.message.node not in self._peers:
            self._greet(event.message.node)

    def _learn(self, node: str, number: int, verb: str, rest: list[Any]) -> None:
        peer = self._peers.get(node)
        if peer is not None:
            peer.hear(number)
        match verb, rest:
            case "synced", []:
                self._note_met(node)
                if peer is not None:
                    self._lost.send_nowait((peer.forget_former(), Unregistered()))
            case "joined", [name, [*pids]] if peer is not None and _is_hashable(name):
                for pid in pids[:_PART]:  # no keeper tells more at once
                    # A node speaks for its own processes only.
                    if isinstance(pid, PID) and pid.node == node:
                        self._add(peer, ClusterGroup(name), pid)
            case "left", [name, PID() as pid, bytes(reason)] if peer is not None and _is_hashable(
                name
            ):
                if peer.members.pop((ClusterGroup(name), pid), 0) is None:
                    self._remove(ClusterGroup(name), pid, self._types.decode_reason(reason))

    def _add(self, peer: _Peer, group: ClusterGroup, pid: PID) -> None:
        is_known = peer.former.pop((group, pid), 0) is None
        if (group, pid) not in peer.members and (
            is_known or len(peer.members) + len(peer.former) < _MEMBERS
        ):
            peer.members[group, pid] = None
            kernel = self._process.kernel
            if kernel.router.directory.join(group, pid):
                kernel.links.tell_group(group, GroupJoined(group, pid))

    def _remove(self, group: ClusterGroup, pid: PID, reason: Reason) -> None:
        kernel = self._process.kernel
        if kernel.router.directory.leave(group, pid):
            kernel.links.tell_group(group, GroupLeft(group, pid, reason))

    async def _remove_lost(self, lost: trio.MemoryReceiveChannel[_Lost]) -> None:
        while True:
            await self._remove_all(*await lost.receive())

    async def _remove_all(self, members: Iterable[tuple[ClusterGroup, PID]], why: Reason) -> None:
        """Remove the members of a keeper that is lost, some in each turn of the loop."""
        for number, (group, pid) in enumerate(members, 1):
            peer = self._peers.get(pid.node)
            # The node may have met this one again, and told the same members.
            if peer is None or not ((group, pid) in peer.members or (group, pid) in peer.former):
                self._remove(group, pid, why)
            if not number % _PART:
                await checkpoint()

    # -- messages to other keepers -----------------------------------------------------------------

    def _tell_all(self, verb: str, *rest: object) -> None:
        for peer in self._peers.values():
            self._tell(peer, verb, *rest)

    def _tell(self, peer: _Peer, verb: str, *rest: object) -> None:
        peer.waiting.append((verb, peer.number, *rest))
        self._send_waiting(peer)

    def _send_waiting(self, peer: _Peer) -> None:
        while peer.waiting:
            try:
                self.send(peer.pid, peer.waiting[0])
            except MailboxFullError:  # too many bytes wait for that node
                self.send_after(_AGAIN, self.pid, _SendAgain(peer.pid.node))
                return
            peer.waiting.popleft()

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """Diagnostics for a human reader."""
        return {
            "groups": ", ".join(sorted(str(group.name) for group in self._groups)),
            "greetings": str(sum(map(len, self._given.values()))),
            **{
                f"node {node}": f"{len(peer.members)} members, {len(peer.waiting)} messages wait"
                for node, peer in sorted(self._peers.items())
            },
        }


def _is_hashable(name: object) -> bool:
    try:
        hash(name)
    except TypeError:
        return False
    return True


show_public_names(__name__)
