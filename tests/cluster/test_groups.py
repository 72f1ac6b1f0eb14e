"""Groups with members on several nodes, and spreads over them."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import count
from typing import Any

import pytest
import trio
from trio.lowlevel import checkpoint

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    BadInputError,
    Caller,
    GroupJoined,
    GroupLeft,
    Name,
    Node,
    NoNode,
    Reject,
    Routing,
    TargetDownError,
)
from ergo_py._core.tables.directory import Directory
from ergo_py.cluster import Cluster, Spread, group_keeper
from ergo_py.cluster.group_keeper import ClusterGroup
from ergo_py.network import Memory
from ergo_py.testing import seeded
from tests.actors import Puppet, Recorder
from tests.network.pairs import TYPES, Add, Echo, Total, two_nodes, until
from tests.support import Passes, replace_private, running_node


class Member(Actor):
    """Joins a group, and answers with the name of its node."""

    def __init__(self, group: Any, heard: list[Any]) -> None:
        self.group = group
        self.heard = heard

    async def init(self) -> None:
        (await Cluster(self.node).group(self.group)).join(self.pid)

    def handle_message(self, message: Any, sender: Any) -> None:
        self.heard.append((self.node.name, message, sender))

    def handle_call(self, request: Any, caller: Caller) -> object:
        match request:
            case Echo("crash"):
                raise RuntimeError
            case Echo("refuse"):
                raise Reject(LookupError("no"))
            case Echo("caller"):
                return caller.pid
            case Echo(value):
                return str(self.pid) if self.group == "users" else (self.node.name, value)
        return len(self.heard)


@asynccontextmanager
async def nodes(network: Memory, *names: str) -> AsyncIterator[list[Node]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                running_node(f"{name}@test", network=network, limit=100_000)
            )
            for name in names
        ]


async def test_members_of_all_nodes_are_known_to_all(network: Any) -> None:
    heard: list[Any] = []
    async with two_nodes(network) as (a, b):
        first = await a.spawn(Member, "room", heard)
        seen = await Cluster(b).group("room")
        assert seen.members() == [first]

        second = await b.spawn(Member, "room", heard)
        here = await Cluster(a).group("room")
        await until(lambda: set(here.members()) == {first, second})
        assert here.broadcast(Add(1)) == 2
        await until(lambda: len(heard) == 2)
        assert {(node, message) for node, message, _ in heard} == {
            ("a@test", Add(1)),
            ("b@test", Add(1)),
        }

        b.send_exit(second)
        await until(lambda: here.members() == [first])
        a.kill(first)
        await until(lambda: seen.members() == [])


async def test_a_monitor_hears_of_members_of_other_nodes_and_of_their_loss(
    autojump_clock: Any,
) -> None:
    network = Memory(types=TYPES)
    told: list[Any] = []
    async with nodes(network, "a", "b") as (a, b):
        group = await Cluster(a).group(("room", 5))
        watcher = await a.spawn(Recorder, told)
        assert group.monitor(watcher) == []
        pid = await b.spawn(Member, ("room", 5), [])
        await trio.sleep(1)
        name = ClusterGroup(("room", 5))
        assert told == [GroupJoined(name, pid)]

        network.cut("a@test", "b@test")
        await trio.sleep(10)
        assert told[1:] == [GroupLeft(name, pid, NoNode("b@test", ""))]
        assert group.members() == []
        network.heal()
        await trio.sleep(20)
        assert told[2:] == [GroupJoined(name, pid)]


async def test_a_restarted_keeper_leaves_no_stranger_behind(autojump_clock: Any) -> None:
    network = Memory(types=TYPES)
    async with nodes(network, "a", "b") as (a, b):
        pid = await b.spawn(Member, "room", [])
        group = await Cluster(a).group("room")
        assert group.members() == [pid]
        network.cut("a@test", "b@test")
        a.kill("ergo.cluster.groups")
        await trio.sleep(1)
        assert group.members() == []
        network.heal()
        await trio.sleep(30)
        assert group.members() == [pid]
        assert (await a.inspect("ergo.cluster.groups"))["node b@test"].startswith("1 members")


class LateKeeper(Puppet):
    """Stands for the keeper of a node, and keeps what others ask it, with the callers."""

    async def handle_call(self, request: Any, caller: Caller) -> object:
        if isinstance(request, tuple):
            self.heard.append((request, caller))
            return NO_REPLY
        return await super().handle_call(request, caller)


async def test_the_successor_of_a_keeper_is_greeted_after_its_end(
    autojump_clock: Any,
) -> None:
    """It may have got its number before, and all numbers of a keeper are forgotten with its end."""
    network = Memory(types=TYPES)
    async with nodes(network, "a", "b") as (a, b):
        member, before = await b.spawn(Recorder), await b.spawn(Puppet)
        asked: list[Any] = []
        successor = await b.spawn(LateKeeper, asked, name="ergo.cluster.groups")
        group = await Cluster(a).group("room")
        _, asker = asked[0]
        await b.call(before, lambda me: me.call(asker.pid, ("hello", 0)))
        b.kill(before)
        await trio.sleep(1)

        def answer(me: Any) -> None:
            for (_, number), caller in asked:
                me.reply(caller, (me.pid, 1))
                me.send(caller.pid, ("joined", number, "room", [member]))

        b.send(successor, answer)
        await until(lambda: group.members() == [member])


async def test_a_node_speaks_only_for_its_own_processes(autojump_clock: Any) -> None:
    network = Memory(types=TYPES)
    async with nodes(network, "a", "b") as (a, b):
        group = await Cluster(a).group("room")
        await Cluster(b).group("room")
        stranger = await a.spawn(Recorder)
        keeper = a.whereis("ergo.cluster.groups")
        assert keeper is not None
        for number in range(10):
            b.send(keeper, ("joined", number, "room", [stranger, "no process"]))
            b.send(keeper, ("joined", number, ["no name"], []))
            b.send(keeper, ("unknown", number))
        # A message of an earlier greeting carries a number that was not given out.
        b.send(keeper, ("joined", 1_000_000, "room", [await b.spawn(Recorder)]))
        with pytest.raises(ValueError, match="answers other keepers only"):
            await b.call(keeper, "members")
        await trio.sleep(1)
        assert group.members() == []
        assert a.whereis("ergo.cluster.groups") == keeper


async def test_greetings_leave_nothing_behind(autojump_clock: Any) -> None:
    """A node that uses no groups is greeted every ten seconds."""
    network = Memory(types=TYPES)
    async with nodes(network, "a", "b") as (a, b):
        await Cluster(a).group("room")
        await trio.sleep(1000)
        keeper = a.whereis("ergo.cluster.groups")
        assert keeper is not None
        assert (await a.inspect(keeper))["greetings"] == "0"
        # A hostile node greets as often as it likes.

        async def greet(me: Puppet) -> None:
            for number in range(100):
                await me.call(keeper, ("hello", number))
            with pytest.raises(ValueError, match="a keeper greets 100 times at most"):
                await me.call(keeper, ("hello", 1))

        await b.call(await b.spawn(Puppet), greet, timeout=None)
        assert (await a.inspect(keeper))["greetings"] == "100"


async def test_the_keeper_of_a_drained_node_answers_greetings(autojump_clock: Any) -> None:
    """The node that greets may have lost it, which it has not noticed."""
    async with nodes(Memory(types=TYPES), "a", "b") as (a, b):
        await Cluster(a).group("room")
        keeper = a.whereis("ergo.cluster.groups")
        assert await a.drain() == []
        answers = list[Any]()

        async def greet(me: Puppet) -> None:
            answers.append(await me.call(Name("ergo.cluster.groups", "a@test"), ("hello", 5)))

        await b.call(await b.spawn(Puppet), greet, timeout=None)
        assert answers[0][0] == keeper


async def test_a_keeper_that_greets_again_tells_all_of_its_members(autojump_clock: Any) -> None:
    """A keeper has lost this node and greets it again, and this node has not lost it: members that
    it does not tell again have left meanwhile, and the others have never left.
    """
    async with nodes(Memory(types=TYPES), "a", "b") as (a, b):
        group = await Cluster(a).group("room")
        keeper = a.whereis("ergo.cluster.groups")
        assert keeper is not None
        one, two, three, four = [await b.spawn(Recorder) for _ in range(4)]
        told = list[Any]()
        assert group.monitor(await a.spawn(Recorder, told)) == []
        teller = await b.spawn(Puppet)

        async def tell(*members: PID, whole: bool = True) -> list[PID]:
            async def act(me: Puppet) -> None:
                _, number = await me.call(keeper, ("hello", 5))
                me.send(keeper, ("joined", number, "room", list(members)))
                if whole:
                    me.send(keeper, ("synced", number))

            await b.call(teller, act)
            await trio.sleep(1)
            return sorted(group.members())

        assert await tell(one, two) == [one, two]
        assert await tell(one, three, whole=False) == [one, two, three]
        assert await tell(one, whole=False) == [one, two, three]
        assert await tell(one, three) == [one, three]
        assert await tell(one, four, whole=False) == [one, three, four]
        b.kill(teller)
        await trio.sleep(1)
        assert group.members() == []
        assert [(type(each), each.pid) for each in told] == [
            (GroupJoined, one),
            (GroupJoined, two),
            (GroupJoined, three),
            (GroupLeft, two),
            (GroupJoined, four),
            (GroupLeft, three),
            (GroupLeft, one),
            (GroupLeft, four),
        ]


async def test_a_keeper_that_begins_its_list_again_and_again_has_no_more_members(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_keeper, "_MEMBERS", 10)
    async with nodes(Memory(types=TYPES), "a", "b") as (a, b):
        group = await Cluster(a).group("room")
        keeper = a.whereis("ergo.cluster.groups")
        assert keeper is not None
        members = [await b.spawn(Recorder) for _ in range(30)]

        async def tell(me: Puppet) -> None:
            numbers = [(await me.call(keeper, ("hello", 5)))[1] for _ in range(2)]
            for place, member in enumerate(members):
                me.send(keeper, ("joined", numbers[place % 2], "room", [member]))

        await b.call(await b.spawn(Puppet), tell, timeout=None)
        await trio.sleep(1)
        assert group.members() == members[:10]


async def test_a_member_that_was_told_stays_while_an_earlier_keeper_is_forgotten(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor of a keeper tells its members twice, as after two greetings that cross."""
    monkeypatch.setattr(group_keeper, "_PART", 1)  # forgets a member in each pass of the loop
    async with nodes(Memory(types=TYPES), "a", "b") as (a, b):
        group = await Cluster(a).group("room")
        keeper = a.whereis("ergo.cluster.groups")
        assert keeper is not None
        members = [await b.spawn(Recorder) for _ in range(300)]
        told = list[Any]()
        group.monitor(await a.spawn(Recorder, told))

        async def tell(me: Puppet) -> None:
            first, second = [(await me.call(keeper, ("hello", 5)))[1] for _ in range(2)]
            for member in members:
                me.send(keeper, ("joined", first, "room", [member]))
            me.send(keeper, ("joined", second, "room", members[:1]))

        for _ in range(2):
            await b.call(await b.spawn(Puppet), tell, timeout=None)
            await trio.sleep(1)

        assert sorted(group.members()) == members
        assert GroupLeft in map(type, told)
        assert members[-1] not in [each.pid for each in told if type(each) is GroupLeft]


async def test_many_members_travel_in_parts(autojump_clock: Any) -> None:
    network = Memory(types=TYPES, backlog=20_000)
    async with nodes(network, "a", "b") as (a, b):
        group = await Cluster(b).group("room")
        for _ in range(1200):
            group.join(await b.spawn(Recorder))
        here = await Cluster(a).group("room")
        await trio.sleep(5)
        assert len(here.members()) == 1200


@contextmanager
def counted_leavers() -> Iterator[Counter[int]]:
    """How many members leave in each pass of the loop."""
    passes, left, leave = Passes(), Counter[int](), Directory.leave

    def counted(directory: Directory, *args: Any) -> bool:
        left[passes.number] += 1
        return leave(directory, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Directory, "leave", counted)
        trio.lowlevel.add_instrument(passes)
        yield left
        trio.lowlevel.remove_instrument(passes)


async def hostile_members(a: Node, b: Node, *parts: int, is_reversed: bool = False) -> list[PID]:
    """Let a process of b tell the keeper of a messages with so many members each."""
    keeper = a.whereis("ergo.cluster.groups")
    assert isinstance(keeper, PID)
    numbers = count(1_000)
    pids = [[PID(b.name, b.pid.creation, next(numbers)) for _ in range(part)] for part in parts]

    async def tell(me: Puppet) -> None:
        _, number = await me.call(keeper, ("hello", 1))
        for part in reversed(pids) if is_reversed else pids:
            me.send(keeper, ("joined", number, "room", part))

    await b.call(await b.spawn(Puppet), tell)
    await b.at(a.name).ping()
    return [pid for part in pids for pid in part]


async def test_a_message_of_a_keeper_has_at_most_500_members(autojump_clock: Any) -> None:
    network = Memory(types=TYPES)
    async with nodes(network, "a", "b") as (a, b):
        group = await Cluster(a).group("room")
        pids = await hostile_members(a, b, 2_000)
        await trio.sleep(1)
        assert set(group.members()) == set(pids[:500])


@pytest.mark.parametrize("others", ["b", "bcdef"])
async def test_members_of_a_lost_node_leave_in_several_turns_of_the_loop(
    autojump_clock: Any, others: str
) -> None:
    network = Memory(types=TYPES)
    async with nodes(network, "a", *others) as (a, *lost):
        group = await Cluster(a).group("room")
        told: list[Any] = []
        group.monitor(await a.spawn(Recorder, told))
        pids = {each.name: await hostile_members(a, each, 500, 500, 500, 7) for each in lost}
        await trio.sleep(1)
        assert len(group.members()) == 1_507 * len(lost)

        with counted_leavers() as left:
            for each in lost:
                network.cut(a.name, each.name)
            await trio.sleep(10)

        assert group.members() == []
        leavers = [each.pid for each in told if isinstance(each, GroupLeft)]
        # Those of a node leave in the order in which they came, and then those of another.
        in_order = dict.fromkeys(pid.node for pid in leavers)
        assert leavers == [pid for node in in_order for pid in pids[node]]
        assert in_order.keys() == pids.keys()
        assert max(left.values()) == 500


@pytest.mark.parametrize("ends_again", [False, True])
async def test_members_that_a_keeper_leaves_behind_leave_in_several_turns_of_the_loop(
    autojump_clock: Any, ends_again: bool
) -> None:
    async with nodes(Memory(types=TYPES), "a", "b") as (a, b):
        group = await Cluster(a).group("room")
        here = await a.spawn(Member, "room", [])
        pids = await hostile_members(a, b, 500, 500, 500, 7)
        await trio.sleep(1)
        assert group.members() == [here, *pids]

        with counted_leavers() as left:
            a.kill("ergo.cluster.groups")
            while not left:
                await checkpoint()
            assert left.total() < len(pids)
            if ends_again:
                a.kill("ergo.cluster.groups")
            await trio.sleep(1)

        assert group.members() == [here]
        assert left.total() == len(pids)
        assert max(left.values()) == 500


async def test_a_member_that_a_restarted_keeper_is_told_of_stays(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_private(monkeypatch, "members of a group in a message", 2)
    async with nodes(Memory(types=TYPES), "a", "b") as (a, b):
        group, told = await Cluster(a).group("room"), list[Any]()
        pids = {await b.spawn(Member, "room", []) for _ in range(100)}
        await trio.sleep(1)
        group.monitor(await a.spawn(Recorder, told))

        a.kill("ergo.cluster.groups")
        await trio.sleep(1)

        assert set(group.members()) == pids
        assert len([each for each in told if isinstance(each, GroupLeft)]) < len(pids)


async def test_a_member_that_leaves_while_its_old_session_is_removed_leaves_once(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_private(monkeypatch, "members of a group in a message", 2)
    async with nodes(Memory(types=TYPES), "a", "b") as (a, b):
        group, told = await Cluster(a).group("room"), list[Any]()
        pids = await hostile_members(a, b, *[2] * 50)
        await trio.sleep(1)
        group.monitor(await a.spawn(Recorder, told))
        keeper = a.whereis("ergo.cluster.groups")
        assert isinstance(keeper, PID)

        async def tell(me: Puppet) -> None:
            _, number = await me.call(keeper, ("hello", 1))
            me.send(keeper, ("joined", number, "room", pids[-2:]))
            me.send(keeper, ("left", number, "room", pids[-1], b""))

        await b.call(await b.spawn(Puppet), tell)
        await trio.sleep(1)

        assert group.members() == [pids[-2]]
        assert {type(each) for each in told} == {GroupLeft}
        leavers = [each.pid for each in told]
        assert sorted(leavers) == sorted(set(pids) - {pids[-2]})
        assert leavers[-1] != pids[-1]


async def test_a_member_that_returns_while_its_old_session_is_removed_stays(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that greets in place of another is another keeper of the same node."""
    replace_private(monkeypatch, "members of a group in a message", 2)
    parts = [2] * 50
    async with nodes(Memory(types=TYPES), "a", "b") as (a, b):
        group = await Cluster(a).group("room")
        first = await hostile_members(a, b, *parts)
        await trio.sleep(1)
        assert group.members() == first
        # The last member returns first.
        second = await hostile_members(a, b, *parts, is_reversed=True)
        await trio.sleep(1)
        assert set(group.members()) == set(second) == set(first)


async def test_the_name_of_a_group_has_to_travel(autojump_clock: Any) -> None:
    async with running_node("a@test", network=Memory()) as node:
        with pytest.raises(BadInputError, match="a name that can travel"):
            await Cluster(node).group(frozenset({print}))
        wrong: Any = []
        with pytest.raises(BadInputError, match="hashed"):
            await Cluster(node).group(wrong)


async def test_a_spread_forwards_to_members_in_turn_and_they_answer_the_caller(
    network: Any,
) -> None:
    heard: list[Any] = []
    async with two_nodes(network) as (a, b):
        await a.spawn(Spread, "workers", name="workers")
        with pytest.raises(Spread.NoMembersError, match="has no members; a process joins it with"):
            await a.call("workers", Total())
        for node in (a, b):
            await node.spawn(Member, "workers", heard)
        await until(lambda: len(a.group(ClusterGroup("workers"))) == 2)

        answers: list[Any] = [await a.call("workers", Echo(number)) for number in range(4)]
        assert Counter(node for node, _ in answers) == {"a@test": 2, "b@test": 2}
        with pytest.raises(LookupError):
            await a.call("workers", Echo("refuse"))
        assert await a.call("workers", Echo("caller")) == a.pid  # and not the spread
        for number in range(4):
            a.send("workers", Add(number))
        await until(lambda: len(heard) == 4)
        assert Counter(node for node, _, _ in heard) == {"a@test": 2, "b@test": 2}
        assert {sender for _, _, sender in heard} == {a.pid}
        assert (await a.inspect("workers"))["members"] == "2"


async def test_all_nodes_choose_the_same_member_for_a_key_and_few_keys_move(
    autojump_clock: Any,
) -> None:
    network = Memory(types=TYPES)
    # The numbers of the nodes, which decide the shares, follow from the seed.
    with seeded(1):
        async with nodes(network, "a", "b", "c") as (a, b, c):
            for node in (a, b, c):
                await node.spawn(Member, "users", [])
                spread = Spread.spec("users", Routing.BY_KEY, key=lambda message: message.value)
                await node.spawn(spread, name="users")
            await trio.sleep(1)
            owners = {}
            for user in range(60):
                found = {str(await node.call("users", Echo(user))) for node in (a, b, c)}
                assert len(found) == 1
                owners[user] = found.pop()
            assert min(Counter(owners.values()).values()) > 5

            fourth = await a.spawn(Member, "users", [])
            await trio.sleep(1)
            moved = [
                user for user in range(60) if str(await b.call("users", Echo(user))) != owners[user]
            ]
            assert len(moved) < 30
            a.kill(fourth)
            await trio.sleep(1)
            for user in range(60):
                assert str(await c.call("users", Echo(user))) == owners[user]


async def test_a_call_is_lost_with_its_member_unless_retries_are_asked_for(
    autojump_clock: Any,
) -> None:
    network = Memory(types=TYPES)
    async with nodes(network, "a", "b") as (a, b):
        await b.spawn(Member, "workers", [])
        await a.spawn(Spread, "workers", name="once")
        await a.spawn(Spread.spec("workers", retries=2, timeout=None), name="again")
        await trio.sleep(1)
        with pytest.raises(TargetDownError):
            await a.call("once", Echo("crash"))
        await trio.sleep(1)
        await a.spawn(Member, "workers", [])
        await b.spawn(Member, "workers", [])
        await trio.sleep(1)
        with pytest.raises(TargetDownError):
            await a.call("again", Echo("crash"))  # both members crash
        with pytest.raises(Spread.NoMembersError):
            await a.call("again", Echo(1))

        await b.spawn(Member, "workers", [])
        await b.spawn(Member, "workers", [])
        await a.spawn(Member, "workers", [])
        await trio.sleep(1)
        network.freeze("b@test")
        with trio.fail_after(30):
            for number in range(3):
                assert await a.call("again", Echo(number), timeout=60) == ("a@test", number)


async def test_a_spread_survives_messages_that_no_member_takes(autojump_clock: Any) -> None:
    network = Memory(types=TYPES)
    async with nodes(network, "a") as (a,):
        spread = await a.spawn(Spread, "workers")
        a.send(spread, Add(1))
        pid = await a.spawn(Recorder, mailbox_size=1)
        (await Cluster(a).group("workers")).join(pid)
        await trio.sleep(1)
        await a.suspend(pid)
        for number in range(10):
            a.send(spread, Add(number))
        await trio.sleep(1)
        assert int((await a.inspect(spread))["lost messages"]) >= 1


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: Spread("g", Routing.LEAST_LOADED), "no node knows the load of another"),
        (lambda: Spread("g", Routing.BY_KEY), "a function from a message to its key"),
        (lambda: Spread("g", key=len), "a function from a message to its key"),
        (lambda: Spread("g", retries=-1), "retries"),
    ],
)
def test_mistakes_are_explained(make: Any, text: str) -> None:
    with pytest.raises(BadInputError, match=text):
        make()
