"""The verbs of a process: names, aliases, links, monitors, timers; and what they say to those who misuse them."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Alias,
    BadInputError,
    BehaviourError,
    Caller,
    Crashed,
    Custom,
    Divert,
    Down,
    Exit,
    Killed,
    MetaProcess,
    Name,
    NameTakenError,
    NameUnknownError,
    Node,
    NodeName,
    NoNode,
    NoProcess,
    Normal,
    NotAllowedError,
    Overflow,
    Priority,
    Reason,
    Reject,
    RelationExistsError,
    RelationUnknownError,
    Shutdown,
    TargetDownError,
    Unregistered,
    Why,
)
from tests.support import Failed, Puppet, Recorder, Witness, running_node

HERE = "test@localhost"


def fail(me: Any) -> None:
    raise Failed("on purpose")


def refused(error: type[Exception], verb: Any, match: str | None = None) -> Callable[[Any], Any]:
    """Something for a puppet to do: try the verb, and see it refused."""

    async def attempt(me: Any) -> str:
        with pytest.raises(error, match=match) as caught:
            result = verb(me)
            if result is not None and hasattr(result, "__await__"):
                await result
        return str(caught.value)

    return attempt


# -- I2, I3: names and aliases -------------------------------------------------------------------------------------------


async def test_a_process_takes_gives_up_and_changes_its_name(autojump_clock: MockClock) -> None:
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
            seen.append((node.whereis("first"), node.whereis("second"), node.process_info(pid).name))
        own = await node.call(pid, lambda me: me.registered_name)

        assert seen == [(pid, None, "first"), (pid, None, "first"), (None, None, None), (None, pid, "second")]
        assert own == "second"


async def test_a_name_that_is_taken_raises_at_the_taker_and_changes_nothing(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        holder = await node.spawn(Puppet, name="taken")
        pid = await node.spawn(Puppet)

        text = await node.call(pid, refused(NameTakenError, lambda me: me.register("taken")))

        assert str(holder) in text
        assert node.whereis("taken") == holder
        assert node.process_info(pid).name is None


async def test_a_process_has_one_name_at_a_time(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet, name="first")

        await node.call(pid, refused(NotAllowedError, lambda me: me.register("second"), r"unregister\(\) first"))

        assert node.whereis("second") is None
        assert node.whereis("first") == pid


async def test_a_process_without_a_name_has_none_to_give_up(autojump_clock: MockClock) -> None:
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
    """Counts what it is compared with."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedAlias.compared += 1
        return tuple(self) == other

    __hash__ = Alias.__hash__


async def test_one_of_many_aliases_is_deleted_without_a_look_at_the_others(autojump_clock: MockClock) -> None:
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


# -- L1: links and monitors ----------------------------------------------------------------------------------------------


ENDS: dict[str, tuple[Callable[[Node, PID], object], Reason]] = {
    "killed": (lambda node, pid: node.kill(pid), Killed()),
    "asked to exit": (lambda node, pid: node.send_exit(pid, "enough"), Custom("enough")),
    "shut down": (lambda node, pid: node.send_exit(pid, Shutdown()), Shutdown()),
    "crashed": (lambda node, pid: node.send(pid, fail), Crashed(Failed("on purpose"))),
    "finished": (lambda node, pid: node.send(pid, lambda me: me.stop()), Normal()),
}
TARGETS = pytest.mark.parametrize("target", ["pid", "name", "alias"])


async def watched(node: Node, ends: list[Any]) -> tuple[PID, dict[str, Any], dict[str, Any]]:
    """A process, what one may write to watch it, and what a message about it says."""
    pid = await node.spawn(Witness, ends, name="watched")
    alias = await node.call(pid, lambda me: me.create_alias())
    return (
        pid,
        {"pid": pid, "name": "watched", "alias": alias},
        {"pid": pid, "name": Name("watched", HERE), "alias": alias},
    )


@TARGETS
@pytest.mark.parametrize("how", ENDS)
async def test_a_monitor_gets_one_down_with_the_reason(autojump_clock: MockClock, target: str, how: str) -> None:
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
async def test_a_link_brings_one_exit_that_can_be_trapped(autojump_clock: MockClock, target: str, how: str) -> None:
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
async def test_a_link_that_is_not_trapped_ends_the_linker_unless_the_other_finished(
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
async def test_a_name_or_alias_given_up_is_told_while_its_holder_lives_on(autojump_clock: MockClock, what: str) -> None:
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

        assert sorted(heard, key=str) == [Down(reads[what], Unregistered()), Exit(reads[what], Unregistered())]
        assert ends == []
        assert node.processes() == [pid, monitor, trapper]
        assert node.info().relations == 0


async def test_a_link_is_one_way(autojump_clock: MockClock) -> None:
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


async def test_watching_under_several_addresses_brings_one_notice_for_each(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid, writes, reads = await watched(node, [])
        watcher = await node.spawn(Puppet, heard)
        for target in writes.values():
            await node.call(watcher, lambda me, target=target: me.monitor(target))

        node.kill(pid)
        await wait_all_tasks_blocked()

        assert heard == [Down(target, Killed()) for target in (reads["pid"], reads["name"], reads["alias"])]


async def test_a_link_and_a_monitor_to_the_same_target_are_two_things(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid, watcher = await node.spawn(Puppet), await node.spawn(Puppet, heard)
        await node.call(watcher, lambda me: setattr(me, "trap_exit", True))
        await node.call(watcher, lambda me: (me.link(pid), me.monitor(pid)))
        await node.call(watcher, lambda me: me.unlink(pid))

        node.kill(pid)
        await wait_all_tasks_blocked()

        assert heard == [Down(pid, Killed())]


async def test_a_node_can_be_watched_and_another_one_is_not_there(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        watcher = await node.spawn(Puppet, heard)
        await node.call(watcher, lambda me: me.monitor(NodeName(HERE)))

        await node.call(watcher, lambda me: me.monitor(NodeName("elsewhere@host")))
        await wait_all_tasks_blocked()

        assert heard == [Down(NodeName("elsewhere@host"), NoNode("elsewhere@host"))]
        assert node.process_info(watcher).monitors == (NodeName(HERE),)


# -- L2: already gone ----------------------------------------------------------------------------------------------------


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
async def test_monitoring_what_is_gone_brings_a_down_at_once(
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
async def test_linking_to_what_is_gone_brings_an_exit_at_once(
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


async def test_watching_a_process_that_is_stopping_brings_its_end_when_it_has_ended(autojump_clock: MockClock) -> None:
    heard: list[Any] = []

    class Slow(Actor):
        async def terminate(self, reason: Reason) -> None:
            await trio.sleep(1)

    async with running_node() as node:
        pid, watcher = await node.spawn(Slow), await node.spawn(Puppet, heard)
        node.kill(pid)
        await wait_all_tasks_blocked()

        await node.call(watcher, lambda me: me.monitor(pid))
        before = list(heard)
        await trio.sleep(2)

        assert before == []
        assert heard == [Down(pid, Killed())]


# -- L3: removal ---------------------------------------------------------------------------------------------------------


@TARGETS
async def test_after_removal_nothing_comes_not_even_what_was_queued(autojump_clock: MockClock, target: str) -> None:
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


async def test_a_target_can_be_watched_anew_after_removal_and_after_its_notice(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        watcher = await node.spawn(Puppet, heard)

        await node.call(watcher, lambda me: me.monitor("name"))
        await wait_all_tasks_blocked()
        pid = await node.spawn(Puppet, name="name")
        await node.call(watcher, lambda me: (me.monitor("name"), me.demonitor("name"), me.monitor("name")))
        node.kill(pid)
        await wait_all_tasks_blocked()

        assert heard == [Down(Name("name", HERE), NoProcess()), Down(Name("name", HERE), Killed())]


async def test_relations_made_twice_or_removed_without_being_there_are_refused(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        _, writes, _ = await watched(node, [])
        watcher = await node.spawn(Puppet)
        for target in writes.values():
            await node.call(watcher, refused(RelationUnknownError, lambda me, target=target: me.unlink(target), "link"))
            await node.call(
                watcher, refused(RelationUnknownError, lambda me, target=target: me.demonitor(target), "monitor")
            )
            await node.call(watcher, lambda me, target=target: (me.link(target), me.monitor(target)))
            await node.call(watcher, refused(RelationExistsError, lambda me, target=target: me.link(target)))
            await node.call(watcher, refused(RelationExistsError, lambda me, target=target: me.monitor(target)))

        assert node.info().relations == 6
        assert len(node.process_info(watcher).links) == len(node.process_info(watcher).monitors) == 3


async def test_a_process_cannot_watch_itself(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet, name="myself")
        alias = await node.call(pid, lambda me: me.create_alias())

        for target in (pid, "myself", alias):
            await node.call(pid, refused(NotAllowedError, lambda me, target=target: me.link(target), "itself"))
            await node.call(pid, refused(NotAllowedError, lambda me, target=target: me.monitor(target), "itself"))

        assert node.info().relations == 0


# -- timers --------------------------------------------------------------------------------------------------------------


async def test_send_after_sends_once_after_its_delay_with_the_process_as_sender(autojump_clock: MockClock) -> None:
    arrived: list[Any] = []

    class Receiver(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            arrived.append((message, sender, trio.current_time()))

    async with running_node() as node:
        receiver, puppet = await node.spawn(Receiver), await node.spawn(Puppet)

        timer = await node.call(puppet, lambda me: me.send_after(2.5, receiver, "later"))
        before = timer.active
        await trio.sleep(10)

        assert before
        assert arrived == [("later", puppet, 2.5)]
        assert not timer.active
        assert timer.cancel() is False
        assert node.info().timers == 0


async def test_send_every_sends_until_it_is_cancelled(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        receiver, puppet = await node.spawn(Recorder, heard), await node.spawn(Puppet)

        timer = await node.call(puppet, lambda me: me.send_every(1, receiver, "tick"))
        await trio.sleep(3.5)
        cancelled = timer.cancel(), timer.cancel()
        await trio.sleep(3)

        assert heard == ["tick"] * 3
        assert cancelled == (True, False)
        assert node.info().timers == 0


async def test_a_timer_cancelled_before_it_is_due_sends_nothing(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        receiver, puppet = await node.spawn(Recorder, heard), await node.spawn(Puppet)
        timer = await node.call(puppet, lambda me: me.send_after(1, receiver, "never"))

        cancelled = timer.cancel()
        await trio.sleep(2)

        assert cancelled is True
        assert heard == []


async def test_a_timer_finds_its_target_when_it_fires(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        puppet = await node.spawn(Puppet)
        await node.call(puppet, lambda me: (me.send_after(1, "later", "hello"), me.send_after(1, "nobody", "hello")))

        await node.spawn(Recorder, heard, name="later")
        await trio.sleep(2)

        assert heard == ["hello"]
        assert node.info().dead_letters == {Why.NO_PROCESS: 1}


async def test_a_timer_carries_its_priority_and_a_full_receiver_is_no_error(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        receiver, puppet = await node.spawn(Puppet, heard, mailbox_size=1), await node.spawn(Puppet)
        gate = trio.Event()
        node.send(receiver, lambda me: gate.wait())
        await wait_all_tasks_blocked()

        await node.call(
            puppet,
            lambda me: [
                me.send_after(delay, receiver, text, priority=priority)
                for delay, text, priority in (
                    (1, "normal", Priority.NORMAL),
                    (2, "too many", Priority.NORMAL),
                    (3, "urgent", Priority.MAX),
                )
            ],
        )
        await trio.sleep(4)
        gate.set()
        await wait_all_tasks_blocked()

        assert heard == ["urgent", "normal"]
        assert node.process_info(receiver).dropped == 1
        assert puppet in node.processes()


# -- misuse --------------------------------------------------------------------------------------------------------------


VERBS: dict[str, Callable[[Any], Any]] = {
    "call": lambda me: me.call("other", 1),
    "spawn": lambda me: me.spawn(Puppet),
    "stop": lambda me: me.stop(),
    "register": lambda me: me.register("name"),
    "unregister": lambda me: me.unregister(),
    "create_alias": lambda me: me.create_alias(),
    "delete_alias": lambda me: me.delete_alias(Alias(HERE, 1, 1)),
    "link": lambda me: me.link("other"),
    "unlink": lambda me: me.unlink("other"),
    "monitor": lambda me: me.monitor("other"),
    "demonitor": lambda me: me.demonitor("other"),
    "send_after": lambda me: me.send_after(1, "other", 1),
    "send_every": lambda me: me.send_every(1, "other", 1),
    "trap_exit": lambda me: setattr(me, "trap_exit", True),
    "send_priority": lambda me: setattr(me, "send_priority", Priority.HIGH),
    "reply": lambda me: me.reply(None, 1),
}
EVERYWHERE: dict[str, Callable[[Any], Any]] = {
    "send": lambda me: me.send("other", 1),
    "send_wait": lambda me: me.send_wait("other", 1),
    "send_exit": lambda me: me.send_exit("other", Normal()),
    "kill": lambda me: me.kill("other"),
    "pid": lambda me: me.pid,
    "parent": lambda me: me.parent,
    "node": lambda me: me.node,
    "env": lambda me: me.env,
    "log": lambda me: me.log,
    "registered_name": lambda me: me.registered_name,
}


@pytest.mark.parametrize("verb", [*VERBS, *EVERYWHERE])
async def test_no_verb_works_in_the_constructor_and_each_says_where_it_does(
    autojump_clock: MockClock, verb: str
) -> None:
    class Early(Actor):
        def __init__(self) -> None:
            result = {**VERBS, **EVERYWHERE}[verb](self)
            if hasattr(result, "send"):
                # An async verb is refused when it is driven.
                result.send(None)

    async with running_node() as node:
        with pytest.raises(Exception, match="while __init__ runs; do this in `async def init") as caught:
            await node.spawn(Early)

        assert isinstance(caught.value.__cause__, NotAllowedError)
        assert node.info().processes == 0


@pytest.mark.parametrize("verb", VERBS)
async def test_a_sleeping_process_cannot_be_made_to_act_from_outside(autojump_clock: MockClock, verb: str) -> None:
    behaviours: list[Puppet] = []

    def show(me: Puppet) -> None:
        behaviours.append(me)

    async with running_node() as node:
        await node.spawn(Puppet, name="other")
        pid = await node.spawn(Puppet)
        await node.call(pid, show)
        await wait_all_tasks_blocked()
        before = node.info()

        with pytest.raises(NotAllowedError, match="acts inside its own callbacks"):
            result = VERBS[verb](behaviours[0])
            await result

        after = node.info()
        assert (after.processes, after.names, after.aliases) == (before.processes, before.names, before.aliases)
        assert (after.relations, after.timers) == (0, 0)


@pytest.mark.parametrize("verb", VERBS)
async def test_a_process_that_has_ended_cannot_act(autojump_clock: MockClock, verb: str) -> None:
    behaviours: list[Puppet] = []

    def show(me: Puppet) -> None:
        behaviours.append(me)

    async with running_node() as node:
        await node.spawn(Puppet, name="other")
        pid = await node.spawn(Puppet)
        await node.call(pid, show)
        node.kill(pid)
        await wait_all_tasks_blocked()

        with pytest.raises(NotAllowedError, match="has ended"):
            result = VERBS[verb](behaviours[0])
            await result

        info = node.info()
        assert (info.processes, info.names, info.aliases, info.relations, info.timers) == (1, 1, 0, 0, 0)


async def test_what_a_process_may_do_anywhere_it_may_do_while_it_sleeps(autojump_clock: MockClock) -> None:
    behaviours: list[Puppet] = []
    heard: list[Any] = []

    def show(me: Puppet) -> None:
        behaviours.append(me)

    async with running_node() as node:
        await node.spawn(Puppet, heard, name="other")
        pid = await node.spawn(Puppet)
        await node.call(pid, show)
        await wait_all_tasks_blocked()

        for name in ("send", "send_wait", "pid", "parent", "node", "env", "log", "registered_name", "kill"):
            result = EVERYWHERE[name](behaviours[0])
            if hasattr(result, "__await__"):
                await result
        await wait_all_tasks_blocked()

        assert heard in ([1, 1], [])
        assert node.whereis("other") is None


class NoInit(Actor):
    async def init(self, extra: int) -> None: ...  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]


class NoSender(Actor):
    def handle_message(self, message: Any) -> None: ...  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]


class NoCaller(Actor):
    async def handle_call(self, request: Any) -> None: ...  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]


class NoReason(Actor):
    def terminate(self) -> None: ...  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]


class NoItems(Actor):
    def handle_inspect(self) -> dict[str, str]:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        return {}


class NoMethod(Actor):
    handle_message = 7  # type: ignore[assignment] # pyright: ignore[reportAssignmentType]


@pytest.mark.parametrize(
    "behaviour, text",
    [
        (Puppet(), r"`spawn\(Puppet, …\)`"),
        (Failed("no behaviour"), r"`spawn\(Counter, 5\)`"),
        (Failed, r"`spawn\(Counter, 5\)`"),
        (int, "a subclass of Actor"),
        ("Puppet", "a subclass of Actor"),
        (None, "a subclass of Actor"),
        (lambda: Puppet([]), "a subclass of Actor"),
        (partial(int, 3), "a subclass of Actor"),
        (MetaProcess, r"`await self\.spawn_meta\(MetaProcess\(…\)\)`"),
        (MetaProcess(), r"`await self\.spawn_meta\(MetaProcess\(…\)\)`"),
        (NoInit, r"`def init\(self\)`"),
        (NoSender, r"`def handle_message\(self, message, sender\)`"),
        (NoCaller, r"`def handle_call\(self, request, caller\)`"),
        (NoReason, r"`def terminate\(self, reason\)`"),
        (NoItems, r"`def handle_inspect\(self, \*items\)`"),
        (NoMethod, r"a method: def handle_message"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:30],
)
async def test_what_is_no_behaviour_is_refused_with_what_to_write(
    autojump_clock: MockClock, behaviour: Any, text: str
) -> None:
    async with running_node() as node:
        puppet = await node.spawn(Puppet)

        with pytest.raises(BehaviourError, match=text) as caught:
            await node.spawn(behaviour, name="half made")
        await node.call(puppet, refused(BehaviourError, lambda me: me.spawn(behaviour, name="half made"), text))

        assert isinstance(caught.value, TypeError)
        assert node.processes() == [puppet]
        assert node.whereis("half made") is None


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": 7},
        {"mailbox_size": 0},
        {"mailbox_size": -1},
        {"mailbox_size": 2.5},
        {"mailbox_size": True},
        {"overflow": "raise"},
        {"overflow": None},
        {"priority": 1},
        {"priority": "high"},
        {"init_timeout": -1},
        {"init_timeout": None},
        {"terminate_timeout": -0.1},
        {"shutdown": -1},
        {"shutdown": float("nan")},
        {"env": "key=value"},
        {"log_level": "loud"},
        {"mailbox": 5},
        {"nmae": "misspelt"},
    ],
    ids=repr,
)
async def test_spawn_refuses_options_that_cannot_be_right(autojump_clock: MockClock, options: dict[str, Any]) -> None:
    [(key, value)] = options.items()
    async with running_node() as node:
        puppet = await node.spawn(Puppet)

        with pytest.raises(BadInputError, match=key) as caught:
            await node.spawn(Puppet, **options)
        await node.call(puppet, refused(BadInputError, lambda me: me.spawn(Puppet, **options), key))

        assert isinstance(caught.value, ValueError)
        assert repr(value) in str(caught.value)
        assert "allowed is" in str(caught.value)
        assert node.processes() == [puppet]


async def test_an_unknown_option_of_spawn_says_how_to_give_the_behaviour_its_arguments(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        with pytest.raises(BadInputError, match=r"functools\.partial"):
            await node.spawn(Puppet, heard=[])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def test_a_node_cannot_be_linked(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        with pytest.raises(BadInputError, match="a process spawns"):
            await node.spawn(Puppet, link=True)

        assert node.processes() == []


@pytest.mark.parametrize("value", [-1, -0.001, float("nan"), "1", None, True], ids=repr)
async def test_times_that_cannot_be_right_are_refused(autojump_clock: MockClock, value: Any) -> None:
    async with running_node() as node:
        puppet = await node.spawn(Puppet, name="puppet")
        plain: list[Callable[[Any], Any]] = [
            lambda it: it.send_after(value, "puppet", 1),
            lambda it: it.send_every(value, "puppet", 1),
        ]
        timed: list[Callable[[Any], Any]] = [
            lambda it: it.call("puppet", 1, timeout=value),
            lambda it: it.send_wait("puppet", 1, timeout=value),
        ]

        for verb in plain if value is None else (*plain, *timed):
            await refused(BadInputError, verb, "a number from|allowed is")(node)
            await node.call(puppet, refused(BadInputError, verb))
        if value is not None:
            await refused(BadInputError, lambda it: it.inspect("puppet", timeout=value))(node)
        await trio.sleep(5)

        assert node.info().timers == 0
        assert await node.call(puppet, None) == []


@pytest.mark.parametrize("period", [0, 0.0, 1e-9], ids=repr)
async def test_a_period_of_nothing_is_refused(autojump_clock: MockClock, period: float) -> None:
    async with running_node() as node:
        puppet = await node.spawn(Puppet)

        await node.call(puppet, refused(BadInputError, lambda me: me.send_every(period, me.pid, 1), "period"))
        with pytest.raises(BadInputError, match="period"):
            node.send_every(period, puppet, 1)


@pytest.mark.parametrize("name", ["", 7, None, b"name"], ids=repr)
async def test_names_that_cannot_be_right_are_refused(autojump_clock: MockClock, name: Any) -> None:
    async with running_node() as node:
        puppet = await node.spawn(Puppet)

        await node.call(puppet, refused(BadInputError, lambda me: me.register(name), "a str that is not empty"))
        verbs: list[Callable[[], Any]] = [
            lambda: node.register(name, puppet),
            lambda: node.unregister(name),
            lambda: node.whereis(name),
        ]
        for verb in verbs:
            with pytest.raises(BadInputError, match="a str that is not empty"):
                verb()

        assert node.info().names == 0


@pytest.mark.parametrize("to", ["", 7, None, PID(HERE, 1, 1)], ids=repr)
async def test_a_diversion_must_name_a_process(to: Any) -> None:
    with pytest.raises(BadInputError, match="registered name"):
        Divert(to)


async def test_a_rejection_must_be_an_exception(autojump_clock: MockClock) -> None:
    class Confused(Actor):
        async def handle_call(self, request: Any, caller: Caller) -> object:
            raise Reject("no such key")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

    async with running_node() as node:
        pid = await node.spawn(Confused)

        with pytest.raises(TargetDownError) as caught:
            await node.call(pid, 1)

        assert isinstance(caught.value.__cause__, BadInputError)
        assert "Reject(ValueError" in str(caught.value.__cause__)


async def test_replies_need_a_caller_and_errors_need_an_exception(autojump_clock: MockClock) -> None:
    callers: list[Caller] = []

    class Keeping(Puppet):
        async def handle_call(self, request: Any, caller: Caller) -> object:
            if isinstance(request, str):
                callers.append(caller)
                return NO_REPLY
            return await super().handle_call(request, caller)

    async with running_node() as node:
        pid = await node.spawn(Keeping)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await node.call(pid, "keep"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            wrong: Any
            for wrong in (None, pid, 7):
                await node.call(pid, refused(BadInputError, lambda me, wrong=wrong: me.reply(wrong, 1), "Caller"))
                await node.call(
                    pid, refused(BadInputError, lambda me, wrong=wrong: me.reply_error(wrong, Failed()), "Caller")
                )
                with pytest.raises(BadInputError, match="Caller"):
                    node.reply(wrong, 1)
                with pytest.raises(BadInputError, match="Caller"):
                    node.reply_error(wrong, Failed())
            await node.call(pid, refused(BadInputError, lambda me: me.reply_error(callers[0], "why"), "an exception"))
            with pytest.raises(BadInputError, match="an exception"):
                node.reply_error(callers[0], "why")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            node.reply(callers[0], "still open")

        assert answers == ["still open"]


@pytest.mark.parametrize("origin", [None, "name", 7, Name("name")], ids=repr)
async def test_a_message_can_be_forwarded_only_for_one_who_sent_it(autojump_clock: MockClock, origin: Any) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        receiver, puppet = await node.spawn(Recorder, heard), await node.spawn(Puppet)

        await node.call(puppet, refused(BadInputError, lambda me: me.forward(receiver, 1, origin), "sender"))
        await wait_all_tasks_blocked()

        assert heard == []


async def test_a_priority_that_is_none_is_refused_by_every_verb_of_a_process(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        receiver, puppet = await node.spawn(Recorder, heard), await node.spawn(Puppet)
        wrong: Any
        for wrong in (7, -1, "high"):
            for verb in (
                lambda me, wrong=wrong: me.send(receiver, 1, priority=wrong),
                lambda me, wrong=wrong: me.send_wait(receiver, 1, priority=wrong),
                lambda me, wrong=wrong: me.call(receiver, 1, priority=wrong),
                lambda me, wrong=wrong: me.forward(receiver, 1, puppet, priority=wrong),
                lambda me, wrong=wrong: me.send_after(1, receiver, 1, priority=wrong),
                lambda me, wrong=wrong: setattr(me, "send_priority", wrong),
            ):
                await node.call(puppet, refused(BadInputError, verb, "Priority"))

        await wait_all_tasks_blocked()
        assert heard == []
        assert node.info().timers == 0


async def test_a_bounded_process_says_so_to_whoever_asks_for_the_rule(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet, mailbox_size=3, overflow=Overflow.DROP_OLDEST)

        assert node.process_info(pid).mailbox_size == 3


async def test_a_process_knows_the_priority_it_sends_with() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        before = await node.call(pid, lambda me: me.send_priority)
        await node.call(pid, lambda me: setattr(me, "send_priority", Priority.HIGH))

        after = await node.call(pid, lambda me: me.send_priority)

    assert (before, after) == (Priority.NORMAL, Priority.HIGH)


async def test_a_process_may_register_several_events() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        for name in ("first", "second"):
            await node.call(pid, lambda me, name=name: me.register_event(name))

        registered = {"first", "second"} & node.events().keys()
        node.kill(pid)
        await wait_all_tasks_blocked()

        assert registered == {"first", "second"}
        assert not registered & node.events().keys()
