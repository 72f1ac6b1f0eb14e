"""The mailbox of a meta-process: two lanes, and answers that are never displaced."""

from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from ergo_py import Overflow
from ergo_py._core.metas.inbox import TwoLanes
from ergo_py._core.tables.mailbox import Verdict
from ergo_py._core.vocabulary.envelopes import EVENT, INSPECT, MESSAGE, RESPONSE, Envelope, Lane
from tests._core.metas.metas import InTask, owning
from tests.actors import Recorder
from tests.meta.support import meta_of


def message(payload: object) -> Envelope:
    return (MESSAGE, None, None, payload)


def taken(box: TwoLanes) -> list[Any]:
    return [envelope[3] for envelope in box.drain()]


class Waits:
    """Notes whether it was let in."""

    def __init__(self) -> None:
        self.admitted: list[bool] = []

    def settle(self, admitted: bool, /) -> None:
        self.admitted.append(admitted)


def test_user_messages_go_to_two_lanes_and_signals_come_before_both() -> None:
    box = TwoLanes()
    for lane in (Lane.MAIN, Lane.SYSTEM, Lane.URGENT):
        box.admit(lane, message(lane.name))
    box.push(Lane.URGENT, message("let in late"))
    box.push(Lane.URGENT, (INSPECT, None, None, "inspect"))

    depths = box.depths()
    order = taken(box)

    assert depths == {"system": 4, "main": 1}
    assert order == ["inspect", "SYSTEM", "URGENT", "let in late", "MAIN"]


def test_the_two_upper_priorities_share_a_bound() -> None:
    box = TwoLanes(2, Overflow.WAIT)
    box.admit(Lane.SYSTEM, message(1))
    promised = box.promise(Lane.URGENT)
    rooms = [box.has_room(lane) for lane in (Lane.URGENT, Lane.SYSTEM, Lane.MAIN)]
    box.redeem(Lane.URGENT)
    box.push(Lane.URGENT, message(2))
    waiter, other = Waits(), Waits()
    box.wait_for_room(Lane.URGENT, message(3), waiter)
    box.wait_for_room(Lane.URGENT, message(4), other)
    box.stop_waiting(Lane.SYSTEM, other)
    box.pop()
    box.admit_waiters()

    assert promised
    assert rooms == [False, False, True]
    assert (waiter.admitted, other.admitted) == ([True], [])
    assert box.depth(Lane.URGENT) == box.depth(Lane.SYSTEM) == 2
    assert taken(box) == [2, 3]


def test_a_message_does_not_displace_a_fence() -> None:
    box = TwoLanes(2, Overflow.DROP_OLDEST)
    fence = (RESPONSE, None, None, "no message")
    box.push(Lane.MAIN, fence)
    box.admit(Lane.MAIN, message("old"))

    verdict, displaced = box.admit(Lane.MAIN, message("new"))

    assert fence[0] > EVENT
    assert (verdict, displaced) == (Verdict.DISPLACED, message("old"))
    assert taken(box) == ["no message", "new"]


def test_a_lane_that_a_thread_emptied_meanwhile_is_no_error() -> None:
    class Emptied(TwoLanes):
        """Loses its messages between look and taking, as if a worker thread had taken them."""

        def has_room(self, lane: Lane) -> bool:
            room = super().has_room(lane)
            self.main.clear()
            return room

    box = Emptied(1, Overflow.DROP_OLDEST)
    box.push(Lane.MAIN, message("taken"))

    assert box.admit(Lane.MAIN, message("new")) == (Verdict.DISPLACED, None)
    assert taken(box) == ["new"]


@pytest.mark.parametrize("ending", [False, True])
async def test_the_answer_to_a_request_comes_before_waiting_messages_unless_ending(
    ending: bool,
) -> None:
    async with owning() as owned:
        other = await owned.node.spawn(Recorder)
        meta = InTask()
        alias = await owned.spawn(meta)

        async def ask_and_fill(me: Any) -> None:
            me.request(other, "question")
            for number in range(3):
                me.send(me.id, number)
            if ending:
                me.stop()
            await wait_all_tasks_blocked()

        owned.node.send(alias, ask_and_fill)
        await owned.until(
            lambda: alias not in owned.node.metas() if ending else len(meta.heard) == 4
        )

        assert meta.notes[:6] == (
            ["start", "message", ("terminate", meta_of(meta).reason)]
            if ending
            else ["start", "message", "response", "message", "message", "message"]
        )


def test_the_oldest_of_the_upper_lane_makes_room_in_it() -> None:
    box = TwoLanes(2, Overflow.DROP_OLDEST)
    for number in range(2):
        box.admit(Lane.SYSTEM, message(number))

    verdict, displaced = box.admit(Lane.URGENT, message("new"))

    assert (verdict, displaced) == (Verdict.DISPLACED, message(0))
    assert taken(box) == [1, "new"]
