"""Handlers outlive their burst by a moment, and go when nothing comes."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py._core.runtime.idle_handlers import IdleHandlers
from ergo_py._core.vocabulary.states import MetaState
from tests._core.metas.metas import InTask, owning
from tests.meta.support import meta_of


class Idle:
    """Stands for a meta-process with a sleeping handler."""

    def __init__(self, lingering: IdleHandlers) -> None:
        self.idle_handlers = lingering
        self.retired = 0.0

    def retire(self) -> None:
        self.retired = trio.current_time()
        self.idle_handlers.discard(self)


async def test_an_idle_handler_retires_after_half_a_second_to_a_second(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        lingering = IdleHandlers(nursery)
        begun = trio.current_time()
        first, second = Idle(lingering), Idle(lingering)
        lingering.add(first)
        await trio.sleep(0.3)
        lingering.add(second)
        await trio.sleep(10)

        assert 0.5 <= first.retired - begun <= 1.0
        assert 0.5 <= second.retired - begun - 0.3 <= 1.0
        assert len(lingering) == 0
        assert not nursery.child_tasks


async def test_a_handler_that_is_woken_does_not_retire(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        lingering = IdleHandlers(nursery)
        busy = Idle(lingering)
        for _ in range(10):
            lingering.add(busy)
            await trio.sleep(0.2)
            lingering.discard(busy)
        await trio.sleep(10)

        assert busy.retired == 0.0


async def test_the_rounds_can_be_ended_and_begin_again(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        lingering = IdleHandlers(nursery)
        lingering.stop()
        idle = Idle(lingering)
        lingering.add(idle)
        lingering.stop()
        await wait_all_tasks_blocked()
        ended = not nursery.child_tasks
        lingering.add(idle)
        await trio.sleep(2)

        assert ended
        assert idle.retired > 0


async def test_a_handler_exists_only_while_there_are_messages_and_shortly_after(
    autojump_clock: MockClock,
) -> None:
    async with owning() as owned:
        meta = InTask()
        alias = await owned.spawn(meta)

        def state() -> tuple[MetaState, bool]:
            return owned.node.meta_info(alias).state, meta_of(meta).handler.task is not None

        states = [state()]
        for pause in (0.01, 5):
            owned.node.send(alias, lambda _me: states.append(state()))
            await trio.sleep(pause)
            states.append(state())

        assert states == [
            (MetaState.SLEEP, False),
            (MetaState.RUNNING, True),
            (MetaState.SLEEP, True),
            (MetaState.RUNNING, True),
            (MetaState.SLEEP, False),
        ]
        assert [message for message, _ in meta.heard if not callable(message)] == []


async def test_a_message_that_arrives_as_the_handler_retires_is_served(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with owning() as owned:
        meta = InTask()
        alias = await owned.spawn(meta)
        owned.node.send(alias, "first")
        await wait_all_tasks_blocked()
        handler: Any = meta_of(meta).handler

        # Between the decision to let it go and its next step.
        handler.retire()
        owned.node.send(alias, "second")
        await wait_all_tasks_blocked()
        # Woken with nothing to do, it has retired; the next message starts another handler.
        handler.retire()
        await wait_all_tasks_blocked()
        gone = handler.task is None
        owned.node.send(alias, "third")
        await wait_all_tasks_blocked()

        assert [message for message, _ in meta.heard] == ["first", "second", "third"]
        assert gone
