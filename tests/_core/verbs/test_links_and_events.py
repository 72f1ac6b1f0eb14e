"""Names, aliases, links and monitors: the verbs by which processes know each other."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    PID,
    Alias,
    Crashed,
    Custom,
    Down,
    Exit,
    Killed,
    Name,
    NameTakenError,
    Node,
    NodeName,
    NoNode,
    NoProcess,
    Normal,
    NotAllowedError,
    Reason,
    Shutdown,
    Unregistered,
    Why,
)
from ergo_py._core.vocabulary.errors import RelationExistsError, RelationUnknownError
from ergo_py.errors import NameUnknownError
from tests.actors import Failed, Puppet, SlowEnd, Witness
from tests.support import refused, running_node

HERE = "test@localhost"


def fail(me: Any) -> None:
    raise Failed("on purpose")


# -- I2, I3: names and aliases ---------------------------------------------------------------------


async def test_a_process_registers_unregisters_and_changes_its_name(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)

        seen = []
        for verb in (
            lambda me: me.register("first"),
            lambda me: me.register("first"),
            lambda me: me.unregister(),
            lambda me: me.register("second"),
        ):
            await node.call(pid, verb)
            seen.append(
                (node.whereis("first"), node.whereis("second"), node.process_info(pid).name)
            )
        own = await node.call(pid, lambda me: me.registered_name)

        assert seen == [
            (pid, None, "first"),
            (pid, None, "first"),
            (None, None, None),
            (None, pid, "second"),
        ]
        assert own == "second"


async def test_a_taken_name_raises_in_register_and_leaves_its_holder(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        holder = await node.spawn(Puppet, name="taken")
        pid = await node.spawn(Puppet)

        text = await node.call(pid, refused(NameTakenError, lambda me: me.register("taken")))

        assert str(holder) in text
        assert node.whereis("taken") == holder
        assert node.process_info(pid).name is None


async def test_a_process_has_a_single_name_at_a_time(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet, name="first")

        await node.call(
            pid, refused(NotAllowedError, lambda me: me.register("second"), r"unregister\(\) first")
        )

        assert node.whereis("second") is None
        assert node.whereis("first") == pid


async def test_a_process_without_a_name_cannot_unregister(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)

        await node.call(pid, refused(NameUnknownError, lambda me: me.unregister()))


async def test_a_process_has_any_number_of_aliases(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)

        aliases = [await node.call(pid, lambda me: me.create_alias()) for _ in range(5)]
        sent = [node.send(alias, number) for number, alias in enumerate(aliases)]
        await node.call(pid, lambda me: me.delete_alias(aliases[0]))

        assert sent == [True] * 5
        assert await node.call(pid, None) == [0, 1, 2, 3, 4]
        assert node.process_info(pid).aliases == tuple(aliases[1:])
        assert node.send(aliases[0], "gone") is False
        assert node.info().dead_letters == {Why.NO_PROCESS: 1}


class CountedAlias(Alias):
    """Counts its comparisons."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedAlias.compared += 1
        return tuple(self) == other

    __hash__ = Alias.__hash__


async def test_an_alias_is_deleted_without_a_look_at_the_other_aliases(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        aliases = [await node.call(pid, lambda me: me.create_alias()) for _ in range(200)]
        CountedAlias.compared = 0

        for alias in reversed(aliases):
            await node.call(pid, lambda me, alias=alias: me.delete_alias(CountedAlias(*alias)))

        assert CountedAlias.compared < 200 * 10
        assert node.process_info(pid).aliases == ()


async def test_only_its_owner_can_delete_an_alias_and_only_once(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        owner, other = await node.spawn(Puppet), await node.spawn(Puppet)
        alias = await node.call(owner, lambda me: me.create_alias())

        await node.call(other, refused(NameUnknownError, lambda me: me.delete_alias(alias)))
        await node.call(owner, lambda me: me.delete_alias(alias))
        await node.call(owner, refused(NameUnknownError, lambda me: me.delete_alias(alias)))

        assert node.info().aliases == 0


# -- L1: links and monitors ------------------------------------------------------------------------


ENDS: dict[str, tuple[Callable[[Node, PID], object], Reason]] = {
    "killed": (lambda node, pid: node.kill(pid), Killed()),
    "asked to exit": (lambda node, pid: node.send_exit(pid, "enough"), Custom("enough")),
    "shut down": (lambda node, pid: node.send_exit(pid, Shutdown()), Shutdown()),
    "crashed": (lambda node, pid: node.send(pid, fail), Crashed(Failed("on purpose"))),
    "finished": (lambda node, pid: node.send(pid, lambda me: me.stop()), Normal()),
}
TARGETS = pytest.mark.parametrize("target", ["pid", "name", "alias"])


async def watched(node: Node, ends: list[Any]) -> tuple[PID, dict[str, Any], dict[str, Any]]:
    """A process, its addresses as given to ``monitor``, and as they are in messages about it."""
    pid = await node.spawn(Witness, ends, name="watched")
    alias = await node.call(pid, lambda me: me.create_alias())
    return (
        pid,
        {"pid": pid, "name": "watched", "alias": alias},
        {"pid": pid, "name": Name("watched", HERE), "alias": alias},
    )


@TARGETS
@pytest.mark.parametrize("how", ENDS)
async def test_a_monitor_gets_a_single_down_with_the_reason(
    autojump_clock: MockClock, target: str, how: str
) -> None:
    end, reason = ENDS[how]
    heard: list[Any] = []
    ends: list[Any] = []
    async with running_node() as node:
        pid, writes, reads = await watched(node, ends)
        watcher = await node.spawn(Puppet, heard)
        await node.call(watcher, lambda me: me.monitor(writes[target]))

        end(node, pid)
        await wait_all_tasks_blocked()

        assert heard == [Down(reads[target], reason)]
        assert ends == [reason]
        assert node.processes() == [watcher]
        assert node.process_info(watcher).monitors == ()


@TARGETS
@pytest.mark.parametrize("how", ENDS)
async def test_a_link_brings_a_single_exit_that_can_be_trapped(
    autojump_clock: MockClock, target: str, how: str
) -> None:
    end, reason = ENDS[how]
    heard: list[Any] = []
    async with running_node() as node:
        pid, writes, reads = await watched(node, [])
        linker = await node.spawn(Puppet, heard)
        await node.call(linker, lambda me: setattr(me, "trap_exit", True))
        await node.call(linker, lambda me: me.link(writes[target]))

        end(node, pid)
        await wait_all_tasks_blocked()

        assert heard == [Exit(reads[target], reason)]
        assert node.processes() == [linker]
        assert node.process_info(linker).links == ()


@TARGETS
@pytest.mark.parametrize("how", ENDS)
async def test_a_link_that_is_not_trapped_ends_the_linker_unless_the_target_ended_normally(
    autojump_clock: MockClock, target: str, how: str
) -> None:
    end, reason = ENDS[how]
    ends: list[Any] = []
    async with running_node() as node:
        pid, writes, _ = await watched(node, [])
        linker = await node.spawn(Witness, ends)
        await node.call(linker, lambda me: me.link(writes[target]))

        end(node, pid)
        await wait_all_tasks_blocked()

        assert ends == ([] if reason == Normal() else [reason])
        assert node.info().relations == 0


@pytest.mark.parametrize("what", ["name", "alias"])
async def test_losing_a_name_or_alias_notifies_its_watchers_while_its_holder_lives(
    autojump_clock: MockClock, what: str
) -> None:
    heard: list[Any] = []
    ends: list[Any] = []
    async with running_node() as node:
        pid, writes, reads = await watched(node, ends)
        monitor, trapper, linker = [await node.spawn(Puppet, heard) for _ in range(3)]
        await node.call(monitor, lambda me: me.monitor(writes[what]))
        await node.call(trapper, lambda me: setattr(me, "trap_exit", True))
        for one in (trapper, linker):
            await node.call(one, lambda me: me.link(writes[what]))

        if what == "name":
            await node.call(pid, lambda me: me.unregister())
        else:
            await node.call(pid, lambda me: me.delete_alias(writes["alias"]))
        await wait_all_tasks_blocked()

        assert sorted(heard, key=str) == [
            Down(reads[what], Unregistered()),
            Exit(reads[what], Unregistered()),
        ]
        assert ends == []
        assert node.processes() == [pid, monitor, trapper]
        assert node.info().relations == 0


async def test_a_link_is_unidirectional(autojump_clock: MockClock) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        linker, linked = await node.spawn(Puppet), await node.spawn(Witness, ends)
        await node.call(linker, lambda me: me.link(linked))

        node.kill(linker)
        await wait_all_tasks_blocked()

        assert ends == []
        assert node.processes() == [linked]
        assert node.process_info(linked).linked_by == ()


async def test_links_carry_an_end_along_a_chain(autojump_clock: MockClock) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        pids = [await node.spawn(Witness, ends, number) for number in range(5)]
        for left, right in pairwise(pids):
            await node.call(left, lambda me, right=right: me.link(right))

        node.send(pids[-1], fail)
        await wait_all_tasks_blocked()

        assert ends == [4, 3, 2, 1, 0]


async def test_processes_linked_to_each_other_end_together_once(autojump_clock: MockClock) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        left, right = await node.spawn(Witness, ends), await node.spawn(Witness, ends)
        await node.call(left, lambda me: me.link(right))
        await node.call(right, lambda me: me.link(left))

        node.kill(left)
        await wait_all_tasks_blocked()

        assert ends == [Killed(), Killed()]
        assert node.info().relations == 0


async def test_watching_under_several_addresses_brings_a_notice_for_each(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid, writes, reads = await watched(node, [])
        watcher = await node.spawn(Puppet, heard)
        for target in writes.values():
            await node.call(watcher, lambda me, target=target: me.monitor(target))

        node.kill(pid)
        await wait_all_tasks_blocked()

        assert heard == [
            Down(target, Killed()) for target in (reads["pid"], reads["name"], reads["alias"])
        ]


async def test_a_link_and_a_monitor_to_the_same_target_are_two_relations(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid, watcher = await node.spawn(Puppet), await node.spawn(Puppet, heard)
        await node.call(watcher, lambda me: setattr(me, "trap_exit", True))
        await node.call(watcher, lambda me: (me.link(pid), me.monitor(pid)))
        await node.call(watcher, lambda me: me.unlink(pid))

        node.kill(pid)
        await wait_all_tasks_blocked()

        assert heard == [Down(pid, Killed())]


async def test_a_node_can_be_monitored_and_a_monitor_of_an_unknown_node_gets_down(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        watcher = await node.spawn(Puppet, heard)
        await node.call(watcher, lambda me: me.monitor(NodeName(HERE)))

        await node.call(watcher, lambda me: me.monitor(NodeName("elsewhere@host")))
        await wait_all_tasks_blocked()

        assert heard == [Down(NodeName("elsewhere@host"), NoNode("elsewhere@host"))]
        assert node.process_info(watcher).monitors == (NodeName(HERE),)


# -- L2: already gone ------------------------------------------------------------------------------


GONE = pytest.mark.parametrize(
    "target, reads, reason",
    [
        (PID(HERE, 1, 1), PID(HERE, 1, 1), NoProcess()),
        ("nobody", Name("nobody", HERE), NoProcess()),
        (Name("nobody"), Name("nobody", HERE), NoProcess()),
        (Alias(HERE, 1, 1), Alias(HERE, 1, 1), NoProcess()),
        (Name("db", "elsewhere@host"), Name("db", "elsewhere@host"), NoNode("elsewhere@host")),
        (PID("elsewhere@host", 1, 1), PID("elsewhere@host", 1, 1), NoNode("elsewhere@host")),
    ],
    ids=repr,
)


@GONE
async def test_monitoring_an_unknown_target_brings_a_down_at_once(
    autojump_clock: MockClock, target: Any, reads: Any, reason: Reason
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        watcher = await node.spawn(Puppet, heard)

        await node.call(watcher, lambda me: me.monitor(target))
        await wait_all_tasks_blocked()

        assert heard == [Down(reads, reason)]
        assert node.info().relations == 0


@GONE
async def test_linking_to_an_unknown_target_brings_an_exit_at_once(
    autojump_clock: MockClock, target: Any, reads: Any, reason: Reason
) -> None:
    heard: list[Any] = []
    ends: list[Any] = []
    async with running_node() as node:
        trapper, linker = await node.spawn(Puppet, heard), await node.spawn(Witness, ends)
        await node.call(trapper, lambda me: setattr(me, "trap_exit", True))

        for pid in (trapper, linker):
            await node.call(pid, lambda me: me.link(target))
        await wait_all_tasks_blocked()

        assert heard == [Exit(reads, reason)]
        assert ends == [reason]
        assert node.info().relations == 0


async def test_watching_a_process_that_is_stopping_brings_its_end_when_it_has_ended(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []

    async with running_node() as node:
        pid, watcher = await node.spawn(SlowEnd, 1.0), await node.spawn(Puppet, heard)
        node.kill(pid)
        await wait_all_tasks_blocked()

        await node.call(watcher, lambda me: me.monitor(pid))
        before = list(heard)
        await trio.sleep(2)

        assert before == []
        assert heard == [Down(pid, Killed())]


# -- L3: removal -----------------------------------------------------------------------------------


@TARGETS
async def test_no_notice_arrives_after_unlink_and_demonitor_not_even_a_queued_notice(
    autojump_clock: MockClock, target: str
) -> None:
    heard: list[Any] = []
    ends: list[Any] = []
    async with running_node() as node:
        pid, writes, _ = await watched(node, [])
        watcher = await node.spawn(Witness, ends)
        await node.call(watcher, lambda me: setattr(me, "heard", heard))
        await node.call(watcher, lambda me: (me.link(writes[target]), me.monitor(writes[target])))

        async def die_and_remove(me: Puppet) -> dict[str, int]:
            me.kill(pid)
            while me.node.whereis("watched") is not None:
                await trio.lowlevel.checkpoint()
            queued = dict(me.node.process_info(me.pid).lanes)
            me.unlink(writes[target])
            me.demonitor(writes[target])
            return queued

        queued = await node.call(watcher, die_and_remove)
        await wait_all_tasks_blocked()

        assert (queued["urgent"], queued["system"]) == (1, 1)
        assert heard == []
        assert ends == []
        assert node.info().relations == 0


async def test_a_target_can_be_watched_again_after_removal_and_after_its_notice(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        watcher = await node.spawn(Puppet, heard)

        await node.call(watcher, lambda me: me.monitor("name"))
        await wait_all_tasks_blocked()
        pid = await node.spawn(Puppet, name="name")
        await node.call(
            watcher, lambda me: (me.monitor("name"), me.demonitor("name"), me.monitor("name"))
        )
        node.kill(pid)
        await wait_all_tasks_blocked()

        assert heard == [Down(Name("name", HERE), NoProcess()), Down(Name("name", HERE), Killed())]


async def test_relations_made_twice_or_removed_while_absent_are_refused(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        _, writes, _ = await watched(node, [])
        watcher = await node.spawn(Puppet)
        for target in writes.values():
            await node.call(
                watcher,
                refused(RelationUnknownError, lambda me, target=target: me.unlink(target), "link"),
            )
            await node.call(
                watcher,
                refused(
                    RelationUnknownError, lambda me, target=target: me.demonitor(target), "monitor"
                ),
            )
            await node.call(
                watcher, lambda me, target=target: (me.link(target), me.monitor(target))
            )
            await node.call(
                watcher, refused(RelationExistsError, lambda me, target=target: me.link(target))
            )
            await node.call(
                watcher, refused(RelationExistsError, lambda me, target=target: me.monitor(target))
            )

        assert node.info().relations == 6
        assert (
            len(node.process_info(watcher).links) == len(node.process_info(watcher).monitors) == 3
        )


async def test_a_process_cannot_watch_itself(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet, name="myself")
        alias = await node.call(pid, lambda me: me.create_alias())

        for target in (pid, "myself", alias):
            await node.call(
                pid, refused(NotAllowedError, lambda me, target=target: me.link(target), "itself")
            )
            await node.call(
                pid,
                refused(NotAllowedError, lambda me, target=target: me.monitor(target), "itself"),
            )

        assert node.info().relations == 0
