"""Signals, sent to the test's own program."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from ergo_py import BadInputError, InitError, NotAllowedError, Shutdown
from ergo_py.meta.signals import SignalReceived, Signals
from tests.meta.owner import owning

USR1, USR2 = signal.SIGUSR1, signal.SIGUSR2


@pytest.fixture(autouse=True)
def harmless_signals() -> Iterator[None]:
    """So that a mistake does not end the tests."""
    before = {number: signal.signal(number, _ignore) for number in (USR1, USR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _ignore(number: int, frame: object) -> None:
    pass


def me(number: int) -> None:
    os.kill(os.getpid(), number)


async def test_a_signal_becomes_a_message() -> None:
    async with owning() as owned:
        source = await owned.spawn(Signals(USR1, USR2))

        me(USR1)
        first = await owned.until(SignalReceived)
        me(USR2)
        second = await owned.until(SignalReceived)

        assert first == SignalReceived(source, USR1, 1)
        assert second == SignalReceived(source, USR2, 1)
        assert await owned.node.inspect_meta(source) == {"signals": "SIGUSR1 SIGUSR2", "told": "2"}


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="this system has no real-time signals")
async def test_a_real_time_signal_without_a_name_is_reported_by_its_number() -> None:
    number = signal.SIGRTMIN + 1
    async with owning() as owned:
        source = await owned.spawn(Signals(number))

        me(number)

        assert await owned.until(SignalReceived) == SignalReceived(source, number, 1)
        assert (await owned.node.inspect_meta(source))["signals"] == f"signal {number}"


async def test_signals_are_counted_while_the_receiver_is_behind() -> None:
    async with owning() as owned:
        go_on = await owned.hold()
        await owned.spawn_elsewhere(Signals(USR1, receiver=owned.owner), backlog=1)
        me(USR1)
        await owned.filled(1)

        for _ in range(5):
            me(USR1)
            await trio.testing.wait_all_tasks_blocked(0.001)
        go_on()

        assert (await owned.until(SignalReceived)).count == 1
        assert (await owned.until(SignalReceived)).count == 5


async def test_the_end_of_signals_restores_the_previous_handler() -> None:
    async with owning() as owned:
        source = await owned.spawn(Signals(USR1))
        assert signal.getsignal(USR1) is not _ignore

        owned.node.send_exit(source)

        assert await owned.down() == Shutdown()
        assert signal.getsignal(USR1) is _ignore


async def test_the_end_of_signals_keeps_a_handler_installed_since() -> None:
    def mine(number: int, frame: object) -> None:
        pass

    async with owning() as owned:
        source = await owned.spawn(Signals(USR1))
        signal.signal(USR1, mine)

        owned.node.send_exit(source)
        await owned.down()

        assert signal.getsignal(USR1) is mine


async def test_a_signal_has_a_single_owner_and_the_second_changes_no_handler() -> None:
    async with owning() as owned:
        first = await owned.spawn(Signals(USR1))

        with pytest.raises(InitError, match=f"SIGUSR1 belongs to {first}"):
            await owned.spawn(Signals(USR2, USR1))

        assert signal.getsignal(USR2) is _ignore
        me(USR1)
        assert (await owned.until(SignalReceived)).source == first


async def test_outside_of_the_main_thread_the_spawn_fails_with_a_hint() -> None:
    async def inside() -> BaseException | None:
        async with owning() as owned:
            try:
                await owned.spawn(Signals(USR1))
            except InitError as error:
                return error.__cause__
        return None

    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(trio.run(inside)))
    thread.start()
    with trio.fail_after(30):
        await trio.to_thread.run_sync(thread.join)

    assert isinstance(results[0], NotAllowedError)
    assert "main thread" in str(results[0])


@pytest.mark.parametrize(
    "wanted", [(), (signal.SIGKILL,), (signal.SIGSEGV,), (12345,), ("SIGHUP",), (True,)]
)
def test_signals_that_cannot_be_caught_are_refused(wanted: Any) -> None:
    with pytest.raises(BadInputError):
        Signals(*wanted)


def test_an_invalid_receiver_is_refused() -> None:
    with pytest.raises(BadInputError):
        Signals(USR1, receiver=7)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
