"""Registries and process groups: keys as addresses, members, monitors, and the end of processes."""

import threading
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    PID,
    Actor,
    BadInputError,
    Caller,
    Down,
    Exit,
    GroupJoined,
    GroupLeft,
    Key,
    Killed,
    NodeStoppedError,
    NoNode,
    NoProcess,
    Priority,
    Reason,
    TargetDownError,
    Unregistered,
)
from ergo_py._core.vocabulary.errors import RelationExistsError, RelationUnknownError
from ergo_py.errors import KeyTakenError, NameUnknownError, ProcessUnknownError
from ergo_py.groups import Entry
from tests.actors import Puppet, Recorder
from tests.support import running_node

# -- registries ------------------------------------------------------------------------------------


async def test_a_registry_lists_its_keys_processes_and_values() -> None:
    async with running_node() as node:
        users = node.registry("users")
        ada, bob = await node.spawn(Recorder), await node.spawn(Recorder)
        users.register(("user", 1), ada, value="Ada")
        users.register(("user", 2), bob)
        users.register("first", ada)
        users.register(("user", 2), bob, value="Bob")

        assert len(users) == 3
        assert ("user", 1) in users
        assert users.keys() == [("user", 1), ("user", 2), "first"]
        assert users.keys(ada) == [("user", 1), "first"]
        assert users.lookup(("user", 2)) == [Entry(("user", 2), bob, "Bob")]
        assert users.whereis("first") == ada
        assert users.whereis("last") is None
        assert [entry.value for entry in users.entries()] == ["Ada", "Bob", None]
        assert node.registries() == ["users"]
        assert repr(users) == "<Registry 'users' 3 unique keys>"


async def test_registries_are_independent_of_each_other_and_of_names() -> None:
    async with running_node() as node:
        ada, bob = await node.spawn(Recorder, name="same"), await node.spawn(Recorder)
        node.registry("one").register("same", ada)
        node.registry("two").register("same", bob)

        assert node.registry("one").whereis("same") == ada
        assert node.registry("two").whereis("same") == bob
        assert node.registry("two", unique=True).unique
        with pytest.raises(BadInputError, match="as the registry was made"):
            node.registry("two", unique=False)


async def test_a_taken_key_raises_and_changes_nothing() -> None:
    async with running_node() as node:
        users = node.registry("users")
        ada, bob = await node.spawn(Recorder), await node.spawn(Recorder)
        users.register(1, ada, "Ada")
        with pytest.raises(KeyTakenError, match="the key 1 of the registry 'users'") as caught:
            users.register(1, bob, "Bob")

        assert caught.value.holder == ada
        assert users.entries() == [Entry(1, ada, "Ada")]


async def test_a_key_is_an_address_for_every_verb() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        users = node.registry("users")
        ada = await node.spawn(Recorder, heard)
        me = await node.spawn(Puppet)
        users.register(("user", 1), ada)
        address = users.address(("user", 1))

        assert node.send(address, "sent")
        assert await node.send_wait(address, "waited")
        node.send(address, "high", priority=Priority.HIGH)
        assert await node.call(address, "all") == ["high", "sent", "waited"]
        await node.call(me, lambda me: me.send(Key("users", ("user", 1)), "from a process"))
        assert "from a process" in await node.call(me, lambda me: me.call(address, "all"))
        assert node.process_info(address).pid == ada
        node.send_after(0.0, address, "timed")
        await wait_all_tasks_blocked()
        while "timed" not in heard:
            await trio.lowlevel.checkpoint()
        assert await trio.to_thread.run_sync(node.send, address, "from a thread")
        assert await trio.to_thread.run_sync(node.call_from_thread, address, "all")
        await node.call(me, lambda me: me.monitor(address))
        node.kill(address)
        await node.wait_ended(ada)
        await wait_all_tasks_blocked()
        downs = await node.call(me, "all")

    assert "from a thread" in heard
    assert downs == [Down(Key("users", ("user", 1), "test@localhost"), Killed())]


async def test_a_message_to_a_free_key_is_a_dead_letter_and_a_call_fails() -> None:
    async with running_node() as node:
        address = node.registry("users").address("ada")
        assert not node.send(address, "hello")
        with pytest.raises(TargetDownError) as caught:
            await node.call(address, "hello")
        with pytest.raises(TargetDownError) as elsewhere:
            await node.call(Key("users", "ada", "other@host"), "hello")
        [letter] = node.dead_letters()

    assert letter.target == address
    assert isinstance(caught.value.reason, NoProcess)
    assert elsewhere.value.reason == NoNode("other@host")


async def test_a_key_reaches_the_process_that_has_it_when_the_message_is_sent() -> None:
    first: list[Any] = []
    second: list[Any] = []
    async with running_node() as node:
        users = node.registry("users")
        old, new = await node.spawn(Recorder, first), await node.spawn(Recorder, second)
        address = users.address("db")
        users.register("db", old)
        node.send(address, 1)
        users.unregister("db")
        users.register("db", new)
        node.send(address, 2)
        await wait_all_tasks_blocked()

    assert (first, second) == ([1], [2])


async def test_keys_are_free_after_terminate_and_before_watchers_are_told() -> None:
    order: list[str] = []

    class Slow(Actor):
        async def terminate(self, reason: Reason) -> None:
            await trio.lowlevel.checkpoint()
            users = self.node.registry("users")
            order.append("kept" if users.whereis("slow") == self.pid else "lost")

    class Watcher(Actor):
        def __init__(self, target: PID) -> None:
            self.target = target

        def init(self) -> None:
            self.monitor(self.target)

        def handle_message(self, message: object, sender: object) -> None:
            users = self.node.registry("users")
            users.register("slow", self.pid)
            order.append("taken over")

    async with running_node() as node:
        slow = await node.spawn(Slow)
        node.registry("users").register("slow", slow)
        watcher = await node.spawn(Watcher, slow)
        node.send_exit(slow)
        await node.wait_ended(slow)
        await wait_all_tasks_blocked()
        assert node.registry("users").whereis("slow") == watcher

    assert order == ["kept", "taken over"]


@pytest.mark.parametrize("link", [False, True])
async def test_watchers_of_a_key_are_told_when_it_is_removed(link: bool) -> None:
    async with running_node() as node:
        users = node.registry("users")
        ada, me = await node.spawn(Recorder), await node.spawn(Puppet)
        users.register("ada", ada)
        address = users.address("ada")

        def watch(puppet: Any) -> None:
            puppet.trap_exit = True
            (puppet.link if link else puppet.monitor)(address)

        await node.call(me, watch)
        users.unregister("ada")
        await wait_all_tasks_blocked()
        heard = await node.call(me, "all")

    assert heard == [(Exit if link else Down)(address, Unregistered())]


async def test_a_monitor_of_a_free_key_is_told_at_once_and_can_be_removed() -> None:
    async with running_node() as node:
        me, ada = await node.spawn(Puppet), await node.spawn(Recorder)
        users = node.registry("users")
        address = users.address("ada")
        await node.call(me, lambda me: me.monitor(address))
        await wait_all_tasks_blocked()
        assert await node.call(me, "all") == [Down(address, NoProcess())]
        users.register("ada", ada)
        await node.call(me, lambda me: me.monitor(Key("users", "ada")))
        await node.call(me, lambda me: me.demonitor(address))
        node.kill(ada)
        await node.wait_ended(ada)
        await wait_all_tasks_blocked()
        assert len(await node.call(me, "all")) == 1


async def test_duplicate_keys_hold_several_processes() -> None:
    async with running_node() as node:
        topics = node.registry("topics", unique=False)
        heard: list[list[Any]] = [[], []]
        pids = [await node.spawn(Recorder, each) for each in heard]
        for pid in pids:
            topics.register("news", pid, value=pid.number)

        assert [entry.pid for entry in topics.lookup("news")] == pids
        assert topics.broadcast("news", "hello") == 2
        assert topics.broadcast("sport", "hello") == 0
        with pytest.raises(BadInputError, match="broadcast"):
            topics.address("news")
        assert not node.send(Key("topics", "news"), "hello")
        topics.unregister("news", pids[0])
        assert [entry.pid for entry in topics.lookup("news")] == pids[1:]
        topics.register("news", pids[0])
        topics.unregister("news")
        assert topics.keys() == []
        await wait_all_tasks_blocked()

    assert heard == [["hello"], ["hello"]]


@pytest.mark.parametrize("key", [[], {}, {1}])
async def test_a_key_that_cannot_be_hashed_is_refused(key: Any) -> None:
    async with running_node() as node:
        users = node.registry("users")
        ada = await node.spawn(Recorder)
        for attempt in (
            lambda: users.register(key, ada),
            lambda: users.unregister(key),
            lambda: users.whereis(key),
            lambda: users.lookup(key),
            lambda: users.address(key),
            lambda: node.group(key),
        ):
            with pytest.raises(BadInputError, match="can be hashed"):
                attempt()
        assert not node.send(Key("users", key), "hello")


async def test_unknown_processes_and_keys_are_refused() -> None:
    async with running_node() as node:
        users, group = node.registry("users"), node.group("red")
        ended = await node.spawn(Recorder)
        node.kill(ended)
        await node.wait_ended(ended)
        for attempt in (
            lambda: users.register(1, ended),
            lambda: users.keys("missing"),
            lambda: group.join(ended),
            lambda: group.leave(ended),
            lambda: group.monitor(ended),
            lambda: group.demonitor(ended),
        ):
            with pytest.raises(ProcessUnknownError):
                attempt()
        with pytest.raises(NameUnknownError):
            users.unregister(1)
        with pytest.raises(BadInputError):
            node.registry("")
    with pytest.raises(NodeStoppedError):
        users.keys()
    with pytest.raises(NodeStoppedError):
        group.members()


# -- groups ----------------------------------------------------------------------------------------


async def test_members_join_leave_and_are_told_together() -> None:
    heard: list[list[Any]] = [[], [], []]
    async with running_node() as node:
        room = node.group(("room", 5))
        pids = [await node.spawn(Recorder, each) for each in heard]
        assert [room.join(pid) for pid in pids] == [True] * 3
        assert not room.join(pids[0])
        assert room.leave(pids[1])
        assert not room.leave(pids[1])

        assert room.members() == [pids[0], pids[2]]
        assert pids[0] in room
        assert len(room) == 2
        assert room.broadcast("hello") == 2
        assert node.groups() == [("room", 5)]
        assert repr(room) == "<Group ('room', 5) 2 members>"
        await wait_all_tasks_blocked()

    assert heard == [["hello"], [], ["hello"]]


@pytest.mark.parametrize("end", ["exit", "kill", "crash"])
async def test_a_group_is_empty_when_its_members_have_ended(end: str) -> None:
    def crash(me: Any) -> None:
        raise ValueError

    async with running_node() as node:
        room = node.group("red")
        pids = [await node.spawn(Puppet) for _ in range(3)]
        for pid in pids:
            room.join(pid)
            node.group(pid.number).join(pid)
        for pid in pids:
            if end == "crash":
                node.send(pid, crash)
            elif end == "kill":
                node.kill(pid)
            else:
                node.send_exit(pid)
            await node.wait_ended(pid)

        assert room.members() == []
        assert node.groups() == []
        assert room.broadcast("hello") == 0


async def test_a_monitor_of_a_group_misses_no_change_and_gets_none_twice() -> None:
    async with running_node() as node:
        room = node.group("red")
        me = await node.spawn(Puppet)
        first, second = await node.spawn(Recorder), await node.spawn(Recorder)
        room.join(first)
        assert room.monitor(me) == [first]
        with pytest.raises(RelationExistsError):
            room.monitor(me)
        room.join(second)
        room.join(second)
        room.leave(first)
        node.kill(second)
        await node.wait_ended(second)
        await wait_all_tasks_blocked()
        heard = await node.call(me, "all")
        room.demonitor(me)
        with pytest.raises(RelationUnknownError):
            room.demonitor(me)
        room.join(first)
        await wait_all_tasks_blocked()
        assert await node.call(me, "all") == heard

    assert heard == [
        GroupJoined("red", second),
        GroupLeft("red", first, Unregistered()),
        GroupLeft("red", second, Killed()),
    ]


async def test_a_member_with_a_full_mailbox_does_not_keep_the_message_from_others() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        room = node.group("red")
        release = trio.Event()
        full = await node.spawn(Puppet, mailbox_size=1)
        node.send(full, lambda me: release.wait())
        await wait_all_tasks_blocked()
        node.send(full, "fills it")
        room.join(full)
        room.join(await node.spawn(Recorder, heard))

        assert room.broadcast("hello") == 1
        await wait_all_tasks_blocked()
        assert heard == ["hello"]
        release.set()


async def test_a_broadcast_names_its_sender() -> None:
    senders: list[Any] = []

    class Member(Actor):
        def handle_message(self, message: object, sender: PID) -> None:
            senders.append(sender)

        def handle_call(self, request: object, caller: Caller) -> int:
            return self.node.group("red").broadcast("hello", sender=self.pid)

    async with running_node() as node:
        pid = await node.spawn(Member)
        node.group("red").join(pid)
        assert await node.call(pid, "go") == 1
        await wait_all_tasks_blocked()
        node.group("red").broadcast("hello", priority=Priority.HIGH)
        await wait_all_tasks_blocked()

    assert senders == [pid, node.pid]


async def test_handles_work_from_any_thread() -> None:
    async with running_node() as node:
        pids = [await node.spawn(Recorder) for _ in range(20)]
        room, users = node.group("red"), node.registry("users")
        barrier = threading.Barrier(4)

        def work(mine: list[PID]) -> None:
            barrier.wait(30)
            for pid in mine:
                room.join(pid)
                users.register(pid.number, pid)

        async with trio.open_nursery() as nursery:
            for start in range(4):
                nursery.start_soon(trio.to_thread.run_sync, work, pids[start::4])

        assert sorted(room.members()) == pids
        assert sorted(users.keys()) == [pid.number for pid in pids]


async def test_ended_members_watchers_and_keys_leave_no_entry_in_the_tables() -> None:
    async with running_node() as node:
        room, users = node.group("red"), node.registry("users")
        for round_ in range(3):
            pids = [await node.spawn(Recorder) for _ in range(10)]
            for number, pid in enumerate(pids):
                room.join(pid)
                room.monitor(pid)
                users.register((round_, number), pid)
            for pid in pids:
                node.kill(pid)
            for pid in pids:
                await node.wait_ended(pid)
            assert (len(room), len(users), node.groups()) == (0, 0, [])
