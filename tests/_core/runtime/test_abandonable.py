"""The abandonable: transparent until it is abandoned, and a way out of a coroutine that will not
end.
"""

import gc
import threading
import warnings
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import Any

import outcome
import pytest
import trio
from trio.lowlevel import Abort, Task, current_task, wait_task_rescheduled
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py._core.runtime.abandonable import Abandonable, frames_of


class Relayed:
    """A task with a body that goes through an abandonable."""

    def __init__(self, body: Coroutine[Any, Any, None]) -> None:
        self.abandonable = Abandonable()
        self.body = body
        self.task: Task | None = None
        self.done = False
        self.error: BaseException | None = None

    async def run(self) -> None:
        self.task = current_task()
        try:
            await self.abandonable.run(self.body)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.done = True

    def abort(self) -> bool:
        assert self.task is not None
        return self.abandonable.abort(self.task)


class Foreign:
    """Awaits like something of another library."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield self


# -- transparent -----------------------------------------------------------------------------------


async def test_a_relayed_coroutine_runs_as_without_the_relay(autojump_clock: MockClock) -> None:
    steps: list[Any] = []
    send, receive = trio.open_memory_channel[int](0)

    async def body() -> None:
        await trio.sleep(1)
        steps.append(trio.current_time())
        steps.append(await receive.receive())
        with trio.move_on_after(1) as scope:
            await trio.sleep_forever()
        steps.append(scope.cancelled_caught)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
        steps.append(trio.current_time())

    relayed = Relayed(body())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relayed.run)
        await send.send(7)

    assert steps == [1, 7, True, 3]
    assert relayed.abandonable.finished


async def test_an_error_of_a_relayed_coroutine_is_raised(autojump_clock: MockClock) -> None:
    async def body() -> None:
        await trio.lowlevel.checkpoint()
        raise LookupError("on purpose")

    abandonable = Abandonable()

    with pytest.raises(LookupError, match="on purpose"):
        await abandonable.run(body())

    assert abandonable.finished


async def test_a_cancellation_reaches_a_relayed_coroutine(autojump_clock: MockClock) -> None:
    order: list[str] = []

    async def body() -> None:
        try:
            await trio.sleep_forever()
        finally:
            order.append("cleaned up")

    with trio.move_on_after(1) as scope:
        await Abandonable().run(body())

    assert scope.cancelled_caught
    assert order == ["cleaned up"]


async def test_errors_that_trio_throws_at_a_foreign_awaitable_reach_the_coroutine(
    autojump_clock: MockClock,
) -> None:
    caught: list[str] = []

    async def body() -> None:
        for _ in range(3):
            try:
                await Foreign()
            except TypeError:
                caught.append("refused")
        await trio.sleep(1)

    await Abandonable().run(body())

    assert caught == ["refused"] * 3
    assert trio.current_time() == 1


# -- given up --------------------------------------------------------------------------------------


async def stubborn(steps: list[str]) -> None:
    while True:
        try:
            await trio.sleep(1)
            steps.append("slept")
        except BaseException:
            steps.append("swallowed")


async def test_a_coroutine_that_is_runnable_when_abandoned_ends_at_its_next_step(
    autojump_clock: MockClock,
) -> None:
    steps: list[str] = []

    async def body() -> None:
        try:
            while True:
                await trio.lowlevel.checkpoint()
                steps.append("step")
        finally:
            steps.append("cleaned up")

    relayed = Relayed(body())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relayed.run)
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        relayed.abandonable.abandon()

    assert relayed.error is None
    assert steps[-1] == "cleaned up"


async def test_a_coroutine_that_sleeps_shielded_can_be_cut_off(autojump_clock: MockClock) -> None:
    steps: list[str] = []

    async def body() -> None:
        try:
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()
        finally:
            steps.append("cleaned up")

    relayed = Relayed(body())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relayed.run)
        await wait_all_tasks_blocked()
        relayed.abandonable.abandon()
        await wait_all_tasks_blocked()
        before = relayed.done

        cut = relayed.abort()
        await wait_all_tasks_blocked()
        again = relayed.abort()

    assert before is False
    assert cut is True
    assert again is True
    assert relayed.error is None
    assert steps == ["cleaned up"]


async def test_a_coroutine_that_refuses_to_be_closed_is_abandoned_silently(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: list[str] = []

    async def outer() -> None:
        await stubborn(steps)

    relayed: Relayed | None = Relayed(outer())
    assert relayed is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relayed.run)
        await wait_all_tasks_blocked()
        relayed.abandonable.abandon()
        relayed.abort()
        await wait_all_tasks_blocked()
        done, error = relayed.done, relayed.error

    relayed = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gc.collect()
    assert done
    assert error is None
    assert steps == ["swallowed"]
    assert capsys.readouterr().err == ""


async def test_an_abandoned_coroutine_that_waits_while_cleaning_up_is_not_woken() -> None:
    inner, outer = trio.Event(), trio.Event()

    async def body() -> None:
        try:
            await cleans_up()
        finally:
            await outer.wait()

    async def cleans_up() -> None:
        try:
            await trio.sleep_forever()
        finally:
            await inner.wait()

    relayed = Relayed(body())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relayed.run)
            await wait_all_tasks_blocked()
            relayed.abandonable.abandon()
            relayed.abort()
            await wait_all_tasks_blocked()
            done = relayed.done

            inner.set()
            outer.set()

    assert done
    assert relayed.error is None
    assert inner.statistics().tasks_waiting == outer.statistics().tasks_waiting == 0


async def test_an_abandoned_coroutine_that_cannot_be_aborted_can_still_be_woken() -> None:
    async def body() -> None:
        try:
            await trio.sleep_forever()
        finally:
            await wait_task_rescheduled(lambda _: Abort.FAILED)

    relayed = Relayed(body())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relayed.run)
            await wait_all_tasks_blocked()
            relayed.abandonable.abandon()
            relayed.abort()
            await wait_all_tasks_blocked()
            waits = not relayed.done

            assert relayed.task is not None
            trio.lowlevel.reschedule(relayed.task)

    assert waits
    assert relayed.done
    assert relayed.error is None


@pytest.mark.parametrize("when", ["inside", "at its end", "at its end, with nothing to wait for"])
async def test_a_nursery_that_is_opened_while_cleaning_up_ends_before_its_task(when: str) -> None:
    steps: list[str] = []

    async def body() -> None:
        try:
            await trio.sleep_forever()
        finally:
            async with trio.open_nursery() as outer, trio.open_nursery() as inner:
                if when != "at its end, with nothing to wait for":
                    outer.start_soon(stay)
                    inner.start_soon(stay)
                if when == "inside":
                    await trio.sleep_forever()

    async def stay() -> None:
        try:
            await trio.sleep_forever()
        finally:
            steps.append("ended")

    relayed = Relayed(body())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relayed.run)
            await wait_all_tasks_blocked()
            relayed.abandonable.abandon()

            relayed.abort()

    assert relayed.done
    assert relayed.error is None
    assert steps == ([] if "nothing" in when else ["ended"] * 2)


async def test_an_error_of_a_coroutine_as_it_is_abandoned_is_dropped(
    autojump_clock: MockClock,
) -> None:
    async def body() -> None:
        try:
            await trio.sleep_forever()
        except BaseException:
            raise LookupError("not now") from None

    relayed = Relayed(body())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relayed.run)
        await wait_all_tasks_blocked()
        relayed.abandonable.abandon()
        relayed.abort()

    assert relayed.done
    assert relayed.error is None


async def test_a_coroutine_at_the_end_of_a_nursery_is_not_woken_before_its_tasks_end(
    autojump_clock: MockClock,
) -> None:
    gate = trio.Event()

    async def body() -> None:
        async with trio.open_nursery() as inner:
            inner.start_soon(gate.wait)

    relayed = Relayed(body())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relayed.run)
        await wait_all_tasks_blocked()
        relayed.abandonable.abandon()

        cut = relayed.abort()
        await wait_all_tasks_blocked()
        still = not relayed.done
        gate.set()

    assert cut is False
    assert still
    assert relayed.done


async def test_a_coroutine_with_a_nursery_ends_when_the_tasks_in_it_have_ended(
    autojump_clock: MockClock,
) -> None:
    steps: list[str] = []

    async def body() -> None:
        try:
            async with trio.open_nursery() as inner:
                inner.start_soon(trio.sleep, 5)
            steps.append("out of the nursery")
            await trio.sleep_forever()
        finally:
            steps.append("cleaned up")

    relayed = Relayed(body())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relayed.run)
        await wait_all_tasks_blocked()
        relayed.abandonable.abandon()

    assert relayed.error is None
    assert trio.current_time() == 5
    assert steps[-1] == "cleaned up"


async def test_an_error_of_a_coroutine_after_it_was_abandoned_is_dropped(
    autojump_clock: MockClock,
) -> None:
    async def keep_the_nursery_open() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)

    async def body() -> None:
        async with trio.open_nursery() as inner:
            inner.start_soon(keep_the_nursery_open)
            raise LookupError("too late")

    relayed = Relayed(body())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relayed.run)
        await wait_all_tasks_blocked()
        relayed.abandonable.abandon()

    assert trio.current_time() == 5
    assert relayed.done
    assert relayed.error is None


async def test_a_coroutine_that_waits_for_a_thread_is_cut_off_and_not_woken_by_it() -> None:
    release = threading.Event()
    steps: list[str] = []

    async def body() -> None:
        try:
            await trio.to_thread.run_sync(release.wait)
        finally:
            steps.append("cleaned up")

    relayed = Relayed(body())
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relayed.run)
            await wait_all_tasks_blocked(0.01)
            relayed.abandonable.abandon()

            cut = relayed.abort()
            await wait_all_tasks_blocked(0.01)
            done = relayed.done
            release.set()
            # trio learns of it in its own time, and wakes no task.
            while trio.to_thread.current_default_thread_limiter().borrowed_tokens:  # noqa: ASYNC110
                await trio.sleep(0.001)

    assert cut is True
    assert done
    assert relayed.error is None
    assert steps == ["cleaned up"]


async def test_a_coroutine_woken_in_the_turn_of_its_abandoning_ends_at_its_next_step() -> None:
    woken = trio.Event()
    steps: list[str] = []

    async def body() -> None:
        await woken.wait()
        steps.append("went on")

    relayed = Relayed(body())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relayed.run)
            await wait_all_tasks_blocked()
            relayed.abandonable.abandon()
            woken.set()

            aborted = relayed.abort()

    assert aborted
    assert relayed.done
    assert steps == []


async def test_the_abort_function_of_an_abandoned_coroutine_gets_the_cause() -> None:
    told: list[BaseException] = []

    async def body() -> None:
        def abort(raise_cancel: Any) -> Abort:
            result = outcome.capture(raise_cancel)
            assert isinstance(result, outcome.Error)
            told.append(result.error)
            return Abort.SUCCEEDED

        await wait_task_rescheduled(abort)

    relayed = Relayed(body())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relayed.run)
            await wait_all_tasks_blocked()
            relayed.abandonable.abandon()

            aborted = relayed.abort()

    assert aborted
    assert [str(error) for error in told] == ["abandoned"]


# -- taken over in the middle of its life ----------------------------------------------------------


class Surprised:
    """A task that knows of no relay until a relay takes it over."""

    def __init__(self, body: Coroutine[Any, Any, None]) -> None:
        self.abandonable = Abandonable()
        self.body = body
        self.task: Task | None = None

    async def run(self) -> None:
        self.task = current_task()
        await self.body

    def take_over(self) -> Task:
        assert self.task is not None
        self.abandonable.take_over(self.task)
        return self.task


async def test_a_coroutine_that_is_taken_over_continues_as_before(
    autojump_clock: MockClock,
) -> None:
    steps: list[Any] = []

    async def body() -> None:
        await trio.sleep(1)
        steps.append(trio.current_time())
        with trio.move_on_after(1) as scope:
            await trio.sleep_forever()
        steps.append(scope.cancelled_caught)

    surprised = Surprised(body())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(surprised.run)
        await wait_all_tasks_blocked()

        task = surprised.take_over()
        names = [frame.f_code.co_name for frame in frames_of(task)]

    assert steps == [1, True]
    assert surprised.abandonable.finished
    assert names[2:4] == ["run", "body"]


async def test_a_cancellation_reaches_a_coroutine_that_was_taken_over(
    autojump_clock: MockClock,
) -> None:
    order: list[str] = []

    async def body() -> None:
        try:
            await trio.sleep_forever()
        finally:
            order.append("cleaned up")

    surprised = Surprised(body())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(surprised.run)
        await wait_all_tasks_blocked()
        surprised.take_over()

        nursery.cancel_scope.cancel()

    assert order == ["cleaned up"]


async def test_a_sleep_that_began_before_it_was_taken_over_can_be_cut_off(
    autojump_clock: MockClock,
) -> None:
    steps: list[str] = []
    release = trio.Event()

    async def body() -> None:
        try:
            with trio.CancelScope(shield=True):
                await release.wait()
            steps.append("went on")
        finally:
            steps.append("cleaned up")

    surprised = Surprised(body())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(surprised.run)
        await wait_all_tasks_blocked()
        task = surprised.take_over()
        surprised.abandonable.abandon()

        cut = surprised.abandonable.abort(task)
        release.set()

    assert cut is True
    assert steps == ["cleaned up"]


async def test_a_runnable_coroutine_that_was_taken_over_ends_at_its_next_step() -> None:
    woken = trio.Event()
    steps: list[str] = []

    async def body() -> None:
        await woken.wait()
        steps.append("went on")

    surprised = Surprised(body())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(surprised.run)
            await wait_all_tasks_blocked()
            woken.set()
            task = surprised.take_over()
            surprised.abandonable.abandon()

            cut = surprised.abandonable.abort(task)

    assert cut is True
    assert surprised.abandonable.finished
    assert steps == []


class AfterFirstStep(trio.abc.Instrument):
    """Takes a task over in the very moment in which it has made its first step."""

    def __init__(self, surprised: Surprised) -> None:
        self.surprised = surprised

    def after_task_step(self, task: Task) -> None:
        if task is self.surprised.task:
            trio.lowlevel.remove_instrument(self)
            self.surprised.take_over()


async def test_an_error_that_trio_is_about_to_throw_reaches_a_coroutine_taken_over() -> None:
    caught: list[str] = []

    async def body() -> None:
        try:
            await Foreign()
        except TypeError:
            caught.append("refused")

    surprised = Surprised(body())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            trio.lowlevel.add_instrument(AfterFirstStep(surprised))

            nursery.start_soon(surprised.run)

    assert caught == ["refused"]
    assert surprised.abandonable.finished


# -- cut off, with all that is below ---------------------------------------------------------------


async def endure() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()


async def swallow() -> None:
    while True:
        try:
            await trio.sleep(1)
        except BaseException:
            pass


async def in_body() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endure)
        await endure()


async def at_its_end() -> None:
    async with trio.open_nursery() as outer, trio.open_nursery() as inner:
        outer.start_soon(swallow)
        inner.start_soon(endure)
        inner.start_soon(in_body)


async def again_and_again() -> None:
    while True:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(endure)
        except BaseException:
            pass


async def in_cleaning_up() -> None:
    try:
        await endure()
    finally:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(endure)
            await endure()


async def in_a_wait_that_cannot_be_aborted() -> None:
    await wait_task_rescheduled(lambda _: Abort.FAILED)


async def below_in_a_wait_that_cannot_be_aborted() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_a_wait_that_cannot_be_aborted)
        await in_a_wait_that_cannot_be_aborted()


async def in_cleaning_up_in_a_wait_that_cannot_be_aborted() -> None:
    try:
        await endure()
    finally:
        await in_a_wait_that_cannot_be_aborted()


STUCK = [
    endure,
    swallow,
    in_body,
    at_its_end,
    again_and_again,
    in_cleaning_up,
    in_a_wait_that_cannot_be_aborted,
    below_in_a_wait_that_cannot_be_aborted,
    in_cleaning_up_in_a_wait_that_cannot_be_aborted,
]


@pytest.mark.parametrize("taken_over", [False, True], ids=["from the beginning", "taken over"])
@pytest.mark.parametrize("stuck", STUCK, ids=lambda function: function.__name__)
async def test_a_stuck_task_is_cut_off_with_all_tasks_below(
    autojump_clock: MockClock, stuck: Any, taken_over: bool
) -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    relays: list[Abandonable] = []
    tasks: list[Task] = []

    async def run() -> None:
        tasks.append(current_task())
        if taken_over:
            await stuck()
        else:
            relays.append(Abandonable())
            await relays[0].run(stuck())

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await wait_all_tasks_blocked()
            if taken_over:
                relays.append(Abandonable())
                relays[0].take_over(tasks[0])
            below = relays[0].family(tasks[0])

            cut = await relays[0].cut_off(tasks[0])

        # The nursery does not wait for it; nor does the run.
        assert cut
        assert trio.lowlevel.current_statistics().tasks_living == before
        for task in below:
            if relays[0].detached and task._next_send_fn is None:
                # Woken by the code for which it could not be ended.
                trio.lowlevel.reschedule(task)
        await wait_all_tasks_blocked()

    assert trio.lowlevel.current_statistics().tasks_living == before


@pytest.mark.parametrize("stuck", STUCK, ids=lambda function: function.__name__)
async def test_a_part_of_a_task_is_cut_off_and_the_task_continues(
    autojump_clock: MockClock, stuck: Any
) -> None:
    steps: list[Any] = []
    abandonable = Abandonable()
    impossible = "in_a_wait_that_cannot_be_aborted" in stuck.__name__
    tasks: list[Task] = []

    async def run() -> None:
        tasks.append(current_task())
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as own:
                own.start_soon(trio.sleep, 1)
                await abandonable.run_part(stuck(), copy_context())
                steps.append(len(current_task().child_nurseries))
            steps.append(trio.current_time())
            scope.cancel()
            await trio.sleep_forever()
        steps.append(scope.cancelled_caught)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await wait_all_tasks_blocked()

            cut = await abandonable.cut_off(tasks[0])

            if impossible:
                # The task must continue after it, so it has to be there until it is woken.
                trio.lowlevel.reschedule(tasks[0])

    assert cut is not impossible
    assert steps == [1, 1, True]
