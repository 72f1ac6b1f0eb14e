"""`inspect_meta`, `meta_info` and the log of a meta-process."""

import inspect
import threading
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    PID,
    Alias,
    BadInputError,
    CallTimeoutError,
    Crashed,
    MetaProcess,
    NodeStoppedError,
    Overflow,
    Reason,
    Shutdown,
)
from ergo_py._core.metas.meta import Meta
from ergo_py._core.metas.spawn import spawn_meta
from ergo_py._core.vocabulary.options import MetaOptions
from ergo_py._core.vocabulary.states import MetaState
from ergo_py.errors import BehaviourError, ProcessUnknownError
from tests._core.metas.metas import (
    InTask,
    InThread,
    InThreadServedOnLoop,
    owning,
)
from tests._core.metas.opened import (
    InitialisedOnLoop,
    assert_nothing_is_left,
    spawn_and_fail,
)
from tests.actors import Failed, Recorder
from tests.meta.support import meta_of
from tests.support import kernel_of, process_of

# -- looking inside --------------------------------------------------------------------------------


async def test_meta_info_does_not_wait_for_a_busy_handler() -> None:
    held = threading.Event()
    async with owning() as owned:
        meta = InThread()
        alias = await owned.spawn(meta)
        owned.node.send(alias, lambda _me: held.wait(20))
        await owned.until(
            lambda: owned.node.meta_info(alias).state is MetaState.RUNNING and meta.serving == 1
        )
        owned.node.send(alias, "waits")

        info = await owned.ask_owner(lambda owner: owner.meta_info(alias))
        with pytest.raises(CallTimeoutError):
            await owned.node.inspect_meta(alias, timeout=0.01)
        held.set()
        inspected = await owned.ask_owner(lambda owner: owner.inspect_meta(alias, "this"))

        assert (info.alias, info.process, info.parent) == (alias, owned.owner, owned.owner)
        assert (info.behaviour, info.state, info.callback) == (
            "InThread",
            MetaState.RUNNING,
            "handle_message",
        )
        assert info.lanes["main"] == 1
        assert (info.reader, info.stopping, info.messages_in) == ("thread", False, 2)
        assert "self.jobs.get()" in info.stack
        assert info.uptime > 0
        assert inspected["this"] == "asked"
        assert owned.node.metas() == [alias]


class Guarded(InTask):
    """Its diagnostics depend on the asker."""

    def handle_inspect(self, *items: str, asker: PID | None = None) -> dict[str, str]:
        return {"asker": str(asker)}


@pytest.mark.parametrize("inline", [True, False])
async def test_an_inspection_of_a_meta_process_passes_its_asker(inline: bool) -> None:
    async with owning(inline_calls=inline) as owned:
        alias = await owned.spawn(Guarded())

        by_node = await owned.node.inspect_meta(alias)
        by_owner = await owned.ask_owner(lambda owner: owner.inspect_meta(alias))

        assert by_node == {"asker": str(owned.node.pid)}
        assert by_owner == {"asker": str(owned.owner)}


async def test_an_inspect_that_fails_does_not_end_the_meta_process() -> None:
    class Broken(InTask):
        def handle_inspect(self, *items: str) -> dict[str, str]:
            raise Failed

    async with owning() as owned:
        meta = Broken()
        alias = await owned.spawn(meta)
        with pytest.raises(Failed):
            await owned.node.inspect_meta(alias)

        assert await owned.node.call(alias, "still there?") == []


@pytest.mark.parametrize(
    "verb, of, error, says",
    [
        ("meta_info", "a process", BadInputError, "`process_info` and `inspect`"),
        ("inspect_meta", "a process", BadInputError, "`process_info` and `inspect`"),
        ("meta_info", "nobody", ProcessUnknownError, "no meta-process at"),
        ("inspect_meta", "nobody", ProcessUnknownError, "no meta-process at"),
        ("process_info", "a meta-process", BadInputError, "`meta_info` and `inspect_meta`"),
        ("inspect", "a meta-process", BadInputError, "`meta_info` and `inspect_meta`"),
    ],
)
async def test_inspecting_the_wrong_kind_raises_and_suggests_the_right_verb(
    verb: str, of: str, error: type[Exception], says: str
) -> None:
    async with owning() as owned:
        targets = {
            "a process": await owned.ask_owner(lambda owner: owner.create_alias()),
            "a meta-process": await owned.spawn(InTask()),
            "nobody": Alias("test@localhost", 1, 1),
        }

        with pytest.raises(error, match=says):
            result = getattr(owned.node, verb)(targets[of])
            assert inspect.isawaitable(result)
            await result


@pytest.mark.parametrize("name", ["handle_inspect", "unblock"])
async def test_callbacks_that_must_be_quick_cannot_be_async(name: str) -> None:
    async def wrong(self: Any, *items: str) -> None: ...

    meta = type("Wrong", (InThread,), {name: wrong})()
    async with owning() as owned:
        error = await spawn_and_fail(owned, meta, BehaviourError)

        assert f"a plain, quick `def {name}`" in str(error)
        assert_nothing_is_left(owned)


async def test_options_are_checked_before_the_spawn() -> None:
    async with owning() as owned:
        for options in (
            {"backlog": 0},
            {"when_behind": "wait"},
            {"stop_timeout": -1},
            {"mailbox": 3},
            {"priority": 1},
        ):
            await spawn_and_fail(owned, InThread(), BadInputError, **options)

        assert_nothing_is_left(owned)


async def test_a_message_that_a_full_mailbox_drops_is_never_the_answer_to_a_request() -> None:
    hold = trio.Event()

    async with owning() as owned:
        other = await owned.node.spawn(Recorder)
        meta = InThreadServedOnLoop()
        alias = await owned.spawn(meta, mailbox_size=1, overflow=Overflow.DROP_OLDEST)

        async def ask_and_stay(me: Any) -> None:
            me.request(other, "question")
            await hold.wait()

        owned.node.send(alias, ask_and_stay)
        await wait_all_tasks_blocked()
        for number in range(5):
            owned.node.send(alias, number)
        hold.set()
        await owned.until(lambda: len(meta.heard) == 2)

        assert [response.value for response in meta.answers] == [[]]
        assert meta.heard[-1][0] == 4
        assert owned.node.meta_info(alias).dropped == 4


async def test_a_stopped_node_starts_no_meta_process() -> None:
    async with owning() as owned:
        process = process_of(owned.node, owned.owner)

    with pytest.raises(NodeStoppedError, match="starts nothing"):
        await spawn_meta(process, InTask(), MetaOptions())


async def test_a_reader_gets_node_stopped_when_its_child_cannot_be_started() -> None:
    class Closed:
        def start_soon(self, *_args: object, **_options: object) -> None:
            raise RuntimeError("Nursery is closed to new arrivals")

    async with owning() as owned:
        meta = InThread()
        await owned.spawn(meta)
        kernel: Any = kernel_of(owned.node)
        nursery, kernel.nursery = kernel.nursery, Closed()

        try:
            with pytest.raises(NodeStoppedError):
                await owned.in_reader(meta, lambda me: me.spawn(InTask()))
        finally:
            kernel.nursery = nursery


async def test_the_callback_in_progress_at_the_end_is_terminate() -> None:
    told: list[Any] = []
    go = trio.Event()

    class Last(InTask):
        async def terminate(self, reason: Reason) -> None:
            told.append(meta_of(self).current_callback())
            go.set()

    async with owning() as owned:
        meta = Last()
        alias = await owned.spawn(meta)
        inner = meta_of(meta)

        await owned.end(alias)

        assert told == ["terminate"]
        assert inner.current_callback() is None


async def test_a_crash_below_the_log_level_still_has_its_reason() -> None:
    def fail(me: Any) -> None:
        raise Failed("unread")

    async with owning(log_level="critical") as owned:
        meta = InTask()
        alias = await owned.spawn(meta)
        owned.node.send(alias, fail)

        reason = await owned.ended(alias)

    assert isinstance(reason, Crashed)


async def test_a_child_that_lingers_is_not_killed_with_its_parent() -> None:
    async with owning() as owned:
        parent = InThread()
        alias = await owned.spawn(parent)
        others = [
            await owned.in_reader(parent, lambda me: me.spawn(InTask(), linger=True)),
            await owned.in_reader(parent, lambda me: me.spawn(InTask())),
        ]

        owned.node.kill(alias)
        await owned.ended(others[1])
        await owned.ended(alias)

        assert owned.node.metas() == [others[0]]


async def test_a_meta_process_that_ends_in_time_is_not_abandoned() -> None:
    go = trio.Event()

    class Last(InTask):
        async def terminate(self, reason: Reason) -> None:
            await go.wait()

    async with owning() as owned, trio.open_nursery() as nursery:
        meta = Last()
        alias = await owned.spawn(meta)
        inner = meta_of(meta)
        owned.node.send_exit(alias)
        await wait_all_tasks_blocked()
        nursery.start_soon(inner.abandon)
        await wait_all_tasks_blocked()

        go.set()
        await owned.ended(alias)

    assert owned.node.exit_report is not None
    assert owned.node.exit_report.abandoned == ()


async def test_a_meta_process_abandoned_twice_is_listed_once_with_its_reader_thread() -> None:
    let_go = threading.Event()

    class Refuses(MetaProcess):
        def start(self) -> None:
            let_go.wait(30)

    async with owning() as owned:
        meta = Refuses()
        alias = await owned.spawn(meta, stop_timeout=30.0)
        inner = meta_of(meta)
        owned.node.kill(alias)
        inner.ending.note_abandoned()

        await inner.abandon()

        is_left = inner.reader.uses_resources()
        let_go.set()
        await owned.until(lambda: not inner.uses_resources())
        assert is_left
    assert owned.node.exit_report is not None
    assert [ended.pid for ended in owned.node.exit_report.abandoned] == [alias]


async def test_a_meta_process_that_ends_before_its_init_begins_has_no_init_to_cut_off() -> None:
    async with owning() as owned:
        process = process_of(owned.node, owned.owner)
        meta = Meta(kernel_of(owned.node), InTask(), MetaOptions(), process, process, None)

        meta.finish(Shutdown())

        assert meta.reason == Shutdown()
        assert not meta.accepting


async def test_a_change_of_state_outside_the_table_is_refused() -> None:
    async with owning() as owned:
        meta = InTask()
        alias = await owned.spawn(meta)
        owned.node.send_exit(alias, "enough")
        await owned.ended(alias)

        with pytest.raises(AssertionError, match="no transition from TERMINATED to SLEEP"):
            meta_of(meta).handler.enter(MetaState.SLEEP)


# -- states and their history ----------------------------------------------------------------------


async def test_the_history_of_states_is_bounded_and_ends_with_the_current_state() -> None:
    async with owning() as owned:
        meta = InTask()
        alias = await owned.spawn(meta)
        for number in range(20):
            owned.node.send(alias, number)
            await wait_all_tasks_blocked()

        states, moments = zip(*owned.node.meta_info(alias).history, strict=True)

        assert states == (MetaState.RUNNING, MetaState.SLEEP) * 4
        assert list(moments) == sorted(moments)


async def test_an_abandoned_part_of_a_meta_process_is_remembered() -> None:
    held, inside = threading.Event(), threading.Event()

    class Swallows(InTask):
        async def start(self) -> None:
            self.notes.append("start")
            while True:
                try:
                    await trio.sleep_forever()
                except trio.Cancelled:
                    continue

    def stick(_me: Any) -> None:
        inside.set()
        held.wait(30)

    async with owning() as owned:
        well, cut_off, stuck = InTask(), Swallows(), InThread()
        for meta in (well, cut_off, stuck):
            await owned.spawn(meta, stop_timeout=0.05)
        owned.node.send(stuck.id, stick)
        await owned.until(inside.is_set)

        for meta in (well, cut_off, stuck):
            await owned.end(meta.id)

        assert [meta_of(meta).abandoned for meta in (well, cut_off, stuck)] == [False, True, True]
        assert [meta_of(meta).uses_resources() for meta in (cut_off, stuck)] == [False, True]
        assert meta_of(stuck).handler.abandoned_threads == {"handler"}
        held.set()
        await owned.until(lambda: not meta_of(stuck).uses_resources())


async def test_meta_info_shows_a_meta_process_in_its_init() -> None:
    async def look(me: Any) -> None:
        seen.append(owned.node.meta_info(me.id))

    seen: list[Any] = []
    async with owning() as owned:
        alias = await owned.spawn(InitialisedOnLoop(look))

        assert [info.callback for info in seen] == ["init"]
        assert owned.node.meta_info(alias).callback is None


async def test_a_process_may_call_a_meta_process() -> None:
    async with owning() as owned:
        alias = await owned.spawn(InTask())
        owned.node.send(alias, "before")

        heard = await owned.ask_owner(lambda owner: owner.call(alias, "what?", timeout=20))

        assert heard == [("before", owned.node.pid)]
