"""Devices that come and go: every gap is told, in order, and a stuck library costs a thread."""

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import trio
import trio.testing

from ergo_py import Alias, Backoff, BadInputError, Crashed, Node, Normal, Priority
from ergo_py._core.metas.outbox import Outbox
from ergo_py._core.vocabulary.ids import Target
from ergo_py.devices import Device
from ergo_py.errors import UnhandledCallError
from ergo_py.meta import Delimiter, FixedLength
from tests.devices.outlet import Answering, FullDuplex, HalfDuplex, Outlet, wait_for
from tests.meta.owner import eventually, owning
from tests.meta.wires import MovableClock

AT_ONCE = Backoff(0.0, 0.0)
LIMIT = 5100.0
"""Of tests that move the clock, by up to 5,005 seconds."""
KINDS = pytest.mark.parametrize("kind", [HalfDuplex, FullDuplex])


def data_of(messages: list[Any]) -> list[object]:
    return [message.data for message in messages if isinstance(message, Device.Data)]


@KINDS
async def test_a_device_is_read_and_written(kind: type[HalfDuplex]) -> None:
    outlet = Outlet()
    outlet.say(b"one\ntw", b"o\nthree\n")
    async with owning() as owned:
        device = await owned.spawn(kind(outlet, framing=Delimiter()))

        heard = [await owned.next() for _ in range(4)]
        assert heard == [
            Device.Opened(device),
            Device.Data(device, b"one"),
            Device.Data(device, b"two"),
            Device.Data(device, b"three"),
        ]
        owned.node.send(device, Device.Send(b"first"))
        await owned.node.call(device, Device.Send(b"second"))
        assert outlet.written == [b"first", b"second"]

        shown = await owned.node.inspect_meta(device)
        assert shown == {
            "state": "open",
            "why": "",
            "openings": "1",
            "losses": "0",
            "frames_in": "3",
            "bytes_in": "14",
            "frames_out": "2",
            "bytes_out": "11",
        }

    assert len(outlet.closed) == 1


async def test_the_frames_of_a_read_reach_their_receiver_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One wake-up for each read: a line of 921,600 baud has 4,000 frames a second."""
    working, sizes = Outbox.put_many, list[int]()

    def put_many(box: Outbox, to: Target, messages: Sequence[object], priority: Priority) -> None:
        sizes.append(len(messages))
        working(box, to, messages, priority)

    monkeypatch.setattr(Outbox, "put_many", put_many)
    outlet = Outlet()
    outlet.say(b"one\ntwo\nth", b"re", b"e\n")
    async with owning() as owned:
        await owned.spawn(HalfDuplex(outlet, framing=Delimiter()))
        await owned.until(Device.Opened)

        assert [(await owned.next()).data for _ in range(3)] == [b"one", b"two", b"three"]
    assert sizes == [2, 1]


async def test_a_device_without_a_framing_delivers_each_read_as_it_is() -> None:
    outlet = Outlet()
    outlet.say(["a", "frame"], b"", 7)
    async with owning() as owned:
        await owned.spawn(HalfDuplex(outlet))

        await owned.until(Device.Opened)
        assert [(await owned.next()).data for _ in range(3)] == [["a", "frame"], b"", 7]


async def test_a_device_that_only_answers_needs_no_read_and_a_call_returns_the_answer() -> None:
    outlet = Outlet()
    async with owning() as owned:
        device = await owned.spawn(Answering(outlet, reopen=AT_ONCE))
        assert await owned.node.call(device, Device.Send("this")) == "this is done"
        with pytest.raises(Device.ClosedError, match="unplugged during a write"):
            await owned.node.call(device, Device.Send("unplugged"))

        await owned.until(Device.Lost)
        await owned.until(Device.Opened)
        assert await owned.node.call(device, Device.Send("that")) == "that is done"
        assert outlet.written == []  # no write was interrupted

    assert len(outlet.closed) == 2
    assert outlet.written == ["woken"]


async def test_a_device_that_does_not_answer_in_time_is_lost(clock: MovableClock) -> None:
    outlet = Outlet()
    begun, over = outlet.stick("write")
    async with owning(limit=LIMIT) as owned, trio.open_nursery() as nursery:
        bridge = Answering(outlet, reopen=AT_ONCE, stuck_after=1000.0)
        device = await owned.spawn(bridge, stop_timeout=0.0)
        nursery.start_soon(refused, owned.node, device)
        await wait_for(begun)
        clock.move(1001)
        await owned.until(Device.Lost)
        await owned.until(Device.Opened)
        assert await owned.node.call(device, Device.Send("next")) == "next is done"
        over.set()


async def refused(node: Node, device: Alias) -> None:
    with pytest.raises(Device.ClosedError, match="did not return for 1000 s"):
        await node.call(device, Device.Send("stuck"), timeout=None)


async def test_a_device_that_is_absent_at_first_is_a_device_that_is_lost() -> None:
    outlet = Outlet(is_plugged=False)
    async with owning() as owned:
        device = await owned.spawn(HalfDuplex(outlet, reopen=AT_ONCE))
        lost = await owned.next()
        await eventually(lambda: outlet.tries >= 5)
        with pytest.raises(Device.ClosedError, match="no such device") as caught:
            await owned.node.call(device, Device.Send(b"x"))
        shown = await owned.node.inspect_meta(device)
        outlet.plug()

        # However many tries there were, a single message tells the gap.
        assert await owned.next() == Device.Opened(device)
        assert lost == Device.Lost(device, "FileNotFoundError: no such device")
        assert caught.value.device == device
        assert (shown["state"], shown["openings"], shown["losses"]) == ("lost", "0", "1")
        assert shown["why"] == lost.why


@KINDS
async def test_a_call_waits_for_the_first_opening(kind: type[HalfDuplex]) -> None:
    outlet = Outlet()
    begun, over = outlet.stick("open")
    async with owning() as owned, trio.open_nursery() as nursery:
        device = await owned.spawn(kind(outlet))
        nursery.start_soon(owned.node.call, device, Device.Send(b"first"))
        await wait_for(begun)
        await trio.testing.wait_all_tasks_blocked()
        over.set()
        await owned.until(Device.Opened)

    assert outlet.written == [b"first"]


async def test_a_call_during_a_first_opening_that_fails_tells_why() -> None:
    outlet = Outlet(is_plugged=False)
    async with owning() as owned:
        device = await owned.spawn(HalfDuplex(outlet))
        with pytest.raises(Device.ClosedError, match="FileNotFoundError: no such device"):
            await owned.node.call(device, Device.Send(b"first"))


@KINDS
async def test_every_gap_is_told_in_order_with_the_bytes_of_a_broken_frame(
    kind: type[HalfDuplex],
) -> None:
    outlet = Outlet()
    async with owning() as owned:
        device = await owned.spawn(kind(outlet, framing=FixedLength(4), reopen=AT_ONCE))
        for number in range(20):
            await owned.until(Device.Opened)
            outlet.say(b"%04d" % number, b"cut"[: number % 4])
            outlet.unplug()
            await owned.until(Device.Lost)
            outlet.plug()
        await owned.until(Device.Opened)
        shown = await owned.node.inspect_meta(device)

    expected: list[object] = []
    for number in range(20):
        expected += [
            Device.Opened(device),
            Device.Data(device, b"%04d" % number),
            Device.Lost(device, "OSError: unplugged", number % 4),
        ]
    assert owned.heard == [*expected, Device.Opened(device)]
    assert len(outlet.closed) == 21
    assert (shown["openings"], shown["losses"], shown["frames_in"]) == ("21", "20", "20")


async def test_bytes_that_break_the_framing_lose_the_device_after_the_frames_before() -> None:
    outlet = Outlet()
    outlet.say(b"good\n" + b"x" * 20)
    async with owning() as owned:
        device = await owned.spawn(
            HalfDuplex(outlet, framing=Delimiter(max_frame=10), reopen=AT_ONCE)
        )

        assert [await owned.next() for _ in range(2)] == [
            Device.Opened(device),
            Device.Data(device, b"good"),
        ]
        assert "FramingError" in (await owned.next()).why
        assert await owned.next() == Device.Opened(device)


@KINDS
async def test_a_failed_write_loses_the_device(kind: type[HalfDuplex]) -> None:
    outlet = Outlet()
    async with owning() as owned:
        device = await owned.spawn(kind(outlet, reopen=AT_ONCE, stuck_after=1000.0))
        await owned.until(Device.Opened)

        with pytest.raises(Device.ClosedError, match="unplugged during a write") as caught:
            await owned.node.call(device, Device.Send("unplugged"))

        assert isinstance(caught.value.__cause__, OSError)
        assert await owned.next() == Device.Lost(device, "OSError: unplugged during a write")
        assert await owned.next() == Device.Opened(device)
        await owned.node.call(device, Device.Send(b"again"))


@KINDS
async def test_data_that_the_library_refuses_is_the_fault_of_the_caller(
    kind: type[HalfDuplex],
) -> None:
    outlet = Outlet()
    async with owning() as owned:
        device = await owned.spawn(kind(outlet))
        await owned.until(Device.Opened)

        owned.node.send(device, Device.Send("text"))
        with pytest.raises(BadInputError):
            await owned.node.call(device, Device.Send("text"))
        with pytest.raises(UnhandledCallError):
            await owned.node.call(device, "text")

        await owned.node.call(device, Device.Send(b"bytes"))
        assert outlet.written == [b"bytes"]
        assert owned.of(Device.Lost) == []


async def test_a_message_to_a_lost_device_becomes_a_dead_letter() -> None:
    outlet = Outlet(is_plugged=False)
    async with owning() as owned:
        device = await owned.spawn(HalfDuplex(outlet, reopen=AT_ONCE))
        await owned.until(Device.Lost)

        owned.node.send(device, Device.Send(b"x"))
        with pytest.raises(Device.ClosedError):
            await owned.node.call(device, Device.Send(b"after it"))

        assert [letter.target for letter in owned.node.dead_letters()] == [device]


@KINDS
async def test_a_stuck_write_is_abandoned_and_the_next_opening_has_a_new_thread(
    kind: type[HalfDuplex], clock: MovableClock
) -> None:
    outlet = Outlet()
    begun, over = outlet.stick("write")
    failed: list[BaseException] = []

    async def write(node: Node, device: Alias) -> None:
        with pytest.raises(Device.ClosedError) as caught:
            await node.call(device, Device.Send(b"stuck"), timeout=None)
        failed.append(caught.value)

    async with owning(limit=LIMIT) as owned, trio.open_nursery() as nursery:
        device = await owned.spawn(
            kind(outlet, reopen=AT_ONCE, stuck_after=1000.0), stop_timeout=0.0
        )
        await owned.until(Device.Opened)
        nursery.start_soon(write, owned.node, device)
        await wait_for(begun)
        stuck = outlet.connect()
        outlet.plug()

        clock.move(1001)
        lost = await owned.next()
        assert await owned.next() == Device.Opened(device)
        await owned.node.call(device, Device.Send(b"next"))
        # The reader waits with `close` for the writing thread: both are abandoned.
        assert owned.node.info().threads_abandoned == (2 if kind is FullDuplex else 1)

        # The abandoned thread closes its own device, not the device of the next opening.
        over.set()
        await eventually(lambda: len(outlet.closed) == 1)
        outlet.say(b"still open")
        assert await owned.next() == Device.Data(device, b"still open")

    assert lost == Device.Lost(device, "the library did not return for 1000 s")
    assert len(failed) == 1
    assert outlet.closed[0] is stuck


@pytest.mark.parametrize("function", ["open", "close"])
async def test_a_library_that_is_stuck_elsewhere_is_abandoned_too(
    function: str, clock: MovableClock
) -> None:
    outlet = Outlet()
    begun, over = outlet.stick(function)
    async with owning(limit=LIMIT) as owned:
        device = await owned.spawn(
            HalfDuplex(outlet, reopen=AT_ONCE, stuck_after=1000.0), stop_timeout=0.0
        )
        if function == "close":
            await owned.until(Device.Opened)
            outlet.unplug()
            outlet.plug()
            # The loss does not wait for `close`.
            assert await owned.next() == Device.Lost(device, "OSError: unplugged")
        await wait_for(begun)

        clock.move(1001)
        if function == "open":
            assert "did not return" in (await owned.next()).why
        assert await owned.next() == Device.Opened(device)
        assert owned.node.info().threads_abandoned == 1
        over.set()

    assert len(owned.of(Device.Lost)) == 1


async def test_a_slow_receiver_is_no_stuck_library(clock: MovableClock) -> None:
    outlet = Outlet()
    async with owning(limit=LIMIT) as owned, trio.open_nursery() as nursery:
        device = await owned.spawn_elsewhere(
            HalfDuplex(outlet, stuck_after=1000.0, receiver=owned.owner), backlog=1
        )
        await owned.until(Device.Opened)
        let_go = await owned.hold()
        outlet.say(*range(10))
        (opening,) = owned.node.meta_info(device).children
        await eventually(lambda: owned.node.meta_info(opening).reader_waits)
        nursery.start_soon(lambda: owned.node.call(device, Device.Send(b"x"), timeout=None))
        await eventually(lambda: owned.node.meta_info(device).callback is not None)

        for _ in range(5):
            clock.move(1001)
            await trio.lowlevel.checkpoint()
        let_go()

        heard = [await owned.next() for _ in range(10)]
        assert data_of(heard) == list(range(10))
        assert (await owned.node.inspect_meta(device))["openings"] == "1"


@KINDS
async def test_the_time_before_a_write_does_not_count(
    kind: type[HalfDuplex], clock: MovableClock
) -> None:
    outlet = Outlet()
    async with owning(limit=LIMIT) as owned:
        device = await owned.spawn(kind(outlet, stuck_after=1000.0))
        await owned.until(Device.Opened)
        clock.move(1001)

        await owned.node.call(device, Device.Send(b"x"))
        assert (await owned.node.inspect_meta(device))["openings"] == "1"


@KINDS
async def test_a_stop_ends_a_read_a_write_and_a_pause(kind: type[HalfDuplex]) -> None:
    outlet, absent = Outlet(), Outlet(is_plugged=False)
    async with owning() as owned:
        await owned.spawn(kind(outlet))
        await owned.spawn(kind(absent, reopen=Backoff(1000.0, 1000.0)))
        await owned.until(Device.Opened)
        while not owned.of(Device.Lost):
            await owned.next()

    assert len(outlet.closed) == 1
    # An orderly stop is no loss.
    assert len(owned.of(Device.Lost)) == 1


async def test_an_orderly_stop_drains_the_writes_that_wait() -> None:
    outlet = Outlet()
    begun, over = outlet.stick("write")
    async with owning() as owned:
        device = await owned.spawn(HalfDuplex(outlet), drain=60.0)
        await owned.until(Device.Opened)
        for number in range(5):
            owned.node.send(device, Device.Send(b"%d" % number))
        await wait_for(begun)
        owned.node.send_exit(device, Normal())
        over.set()
        await owned.down()

    assert outlet.written == [b"0", b"1", b"2", b"3", b"4"]


async def test_another_exception_of_the_library_is_a_crash() -> None:
    outlet = Outlet()
    outlet.say(LookupError("a mistake in the bridge"))
    async with owning() as owned:
        await owned.spawn(HalfDuplex(outlet))

        reason = await owned.down()
        assert isinstance(reason, Crashed)
        assert isinstance(reason.error, LookupError)
        assert len(outlet.closed) == 1


class Mistaken(HalfDuplex):
    def open(self) -> None:
        self.outlet.pass_gate("open")
        raise LookupError("a mistake in open")


async def test_a_call_during_a_first_opening_that_crashes_tells_why() -> None:
    outlet = Outlet()
    begun, over = outlet.stick("open")

    async def ask(device: Alias) -> None:
        with pytest.raises(Device.ClosedError, match="LookupError: a mistake in open"):
            await owned.node.call(device, Device.Send(b"first"))

    async with owning() as owned, trio.open_nursery() as nursery:
        nursery.start_soon(ask, await owned.spawn(Mistaken(outlet)))
        await wait_for(begun)
        await trio.testing.wait_all_tasks_blocked()
        over.set()


async def test_at_the_limit_of_reader_threads_the_device_is_lost() -> None:
    outlet = Outlet()
    async with owning(max_reader_threads=1) as owned:
        await owned.spawn(HalfDuplex(outlet))
        await owned.until(Device.Opened)
        await owned.spawn(HalfDuplex(Outlet()))

        assert "LimitError" in (await owned.until(Device.Lost)).why


class Steps(Backoff):
    """Notes the tries in a row, and never waits."""

    asked: ClassVar[list[int]] = []
    is_well: ClassVar[bool] = False

    def delay(self, tries: int, chance: float) -> float:
        self.asked.append(tries)
        return 0.0

    def is_healthy(self, seconds: float) -> bool:
        return self.is_well


async def test_the_delays_between_tries_follow_the_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(Steps, "asked", asked)
    outlet = Outlet(is_plugged=False)
    async with owning() as owned:
        await owned.spawn(HalfDuplex(outlet, reopen=Steps(0.0, 0.0)))
        await eventually(lambda: len(asked) >= 3)
        outlet.plug()
        await owned.until(Device.Opened)
        failed = len(asked)

        # A short opening changes nothing; after a healthy opening the first delay comes again.
        for is_well in (False, True):
            monkeypatch.setattr(Steps, "is_well", is_well)
            outlet.unplug()
            outlet.plug()
            await owned.until(Device.Opened)

    assert asked == [*range(failed + 1), 0]


async def test_a_read_that_does_not_block_costs_pauses() -> None:
    class Idle(Device):
        reads = 0

        def open(self) -> None:
            pass

        def read(self) -> object:
            type(self).reads += 1
            return None

    async with owning() as owned:
        device = await owned.spawn(Idle())
        await owned.until(Device.Opened)
        await eventually(lambda: Idle.reads > 1)

        with pytest.raises(BadInputError, match="only reads"):
            await owned.node.call(device, Device.Send(b"x"))


@pytest.mark.parametrize(
    "options",
    [{"framing": b"\n"}, {"reopen": 1.0}, {"stuck_after": 0.0}, {"receiver": 5}],
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        HalfDuplex(Outlet(), **options)
