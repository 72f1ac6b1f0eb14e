"""How a meta-process sends: each side by its own way, and neither when it was left behind."""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import Behind, NotAllowedError
from ergo_py._core.metas.termination import Phase
from ergo_py.errors import TargetTypeError
from tests._core.metas.metas import COLOURS, InTask, InThread, in_thread, owning
from tests.actors import Recorder
from tests.meta.support import meta_of
from tests.support import process_of


@pytest.mark.parametrize("colour", COLOURS)
async def test_sends_of_reader_and_handler_are_counted_separately(colour: type[Any]) -> None:
    async with owning() as owned:
        meta = colour()
        alias = await owned.spawn(meta)

        sent = [
            await owned.in_reader(meta, lambda me: me.send(me.parent, "reader")),
            await owned.in_handler(meta, lambda me: me.send(me.parent, "handler")),
        ]
        await owned.until(lambda: sorted(owned.heard) == ["handler", "reader"])

        outbox = meta_of(meta).outbox
        assert sent == [True, True]
        assert (meta_of(meta).sent, outbox.sent + outbox.direct) == (1, 1)
        assert owned.node.meta_info(alias).messages_out == 2


async def test_a_thread_of_the_user_may_send_as_the_meta_process() -> None:
    async with owning() as owned:
        meta = InThread()
        await owned.spawn(meta)

        sent = await in_thread(lambda: meta.send(owned.owner, "from elsewhere"))
        await owned.until(lambda: owned.heard == ["from elsewhere"])

        assert sent is True


async def test_a_meta_process_may_send_after_its_end_unless_a_part_was_abandoned() -> None:
    async with owning() as owned:
        meta = InThread()
        await owned.end(await owned.spawn(meta))

        sent = meta.send(owned.owner, "as the table says")
        waited = await meta.send_wait(owned.owner, "and this")
        meta_of(meta).ending.phase = Phase.SILENCED
        with pytest.raises(NotAllowedError, match="was abandoned"):
            meta.send(owned.owner, "no")
        with pytest.raises(NotAllowedError, match="was abandoned"):
            await meta.send_wait(owned.owner, "no")
        await wait_all_tasks_blocked()

        assert (sent, waited) == (True, True)
        assert owned.heard == ["as the table says", "and this"]


@pytest.mark.parametrize("policy", [Behind.DROP_NEWEST, Behind.DROP_OLDEST, Behind.STOP])
async def test_send_wait_of_a_reader_follows_the_policy(policy: Behind) -> None:
    async with owning() as owned:
        receiver = await owned.node.spawn(Recorder)
        meta = InTask()
        alias = await owned.spawn(meta, when_behind=policy, backlog=2)
        process_of(owned.node, receiver).mailbox.limit = -1  # as if it were full forever

        async def send_all(me: Any) -> None:
            for number in range(10):
                await me.send_wait(receiver, number)

        meta.give(send_all)
        if policy is Behind.STOP:
            await owned.until(lambda: owned.node.metas() == [])
        else:
            await wait_all_tasks_blocked()
            assert owned.node.meta_info(alias).backlog_dropped == 7
        process_of(owned.node, receiver).mailbox.limit = 0


async def test_wait_for_room_returns_whether_it_waited_and_refuses_an_invalid_address() -> None:
    async with owning() as owned, trio.open_nursery() as nursery:
        receiver = await owned.node.spawn(Recorder)
        meta = InTask()
        await owned.spawn(meta, backlog=1)
        waited = [
            await meta_of(meta).wait_for_room(receiver),
            await meta_of(meta).wait_for_room("nobody"),
        ]
        box = process_of(owned.node, receiver).mailbox
        box.limit = -1  # as if it were full forever

        async def wait() -> None:
            waited.append(await meta_of(meta).wait_for_room(receiver))

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        before = list(waited)
        box.limit = 0
        box.admit_waiters()
        await wait_all_tasks_blocked()

        assert before == [False, False]
        assert waited == [False, False, True]
        with pytest.raises(TargetTypeError):
            await meta.send_wait(3, "message")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


async def test_a_cancelled_wait_for_room_leaves_no_waiter() -> None:
    async with owning() as owned, trio.open_nursery() as nursery:
        receiver = await owned.node.spawn(Recorder)
        meta = InTask()
        await owned.spawn(meta, backlog=1)
        box = process_of(owned.node, receiver).mailbox
        box.limit = -1  # as if it were full forever
        nursery.start_soon(meta_of(meta).wait_for_room, receiver)
        await wait_all_tasks_blocked()
        before = bool(box.waiters)

        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await wait_all_tasks_blocked()

        assert before
        assert not box.waiters
