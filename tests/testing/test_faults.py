"""Faults on purpose: they strike when they should, and leave the rest of a behaviour as it is."""

import inspect
import threading
import time
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ergo_py import (
    Actor,
    BadInputError,
    Caller,
    CallTimeoutError,
    ChildSpec,
    Crashed,
    InitError,
    MailboxFullError,
    MetaProcess,
    Overflow,
    RestartPolicy,
    TargetDownError,
)
from ergo_py.errors import BehaviourError, ProcessUnknownError
from ergo_py.testing import Deaf, Probe, crashing, delaying, dropping, filled
from ergo_py.testing.faults import Fault
from tests.actors import Puppet, Recorder
from tests.support import running_node


class Plain(Actor):
    """Both callbacks plain."""

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    def handle_message(self, message: Any, sender: Any) -> None:
        self.heard.append(message)

    def handle_call(self, request: Any, caller: Caller) -> object:
        return list(self.heard)


class Waiting(Actor):
    """Both callbacks async."""

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    async def handle_message(self, message: Any, sender: Any) -> None:
        self.heard.append(message)

    async def handle_call(self, request: Any, caller: Caller) -> object:
        return list(self.heard)


INSTANCE: Any = Plain([])
NO_BEHAVIOUR: Any = int


@pytest.mark.parametrize("behaviour", [Plain, Waiting])
async def test_a_crashing_behaviour_fails_at_the_nth_message(
    autojump_clock: MockClock, behaviour: type[Plain | Waiting]
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(crashing(behaviour, on=3), heard)
        for number in range(3):
            node.send(pid, number)

        reason = await node.wait_ended(pid)

    assert heard == [0, 1]
    assert isinstance(reason, Crashed)
    assert isinstance(reason.error, Fault)


@pytest.mark.parametrize("factory", [crashing, dropping])
@pytest.mark.parametrize("behaviour", [Plain, Waiting, Recorder])
def test_callbacks_stay_plain_or_async_and_the_class_keeps_its_name(
    factory: Any, behaviour: type[Actor]
) -> None:
    made = factory(behaviour)

    assert issubclass(made, behaviour)
    assert (made.__name__, made.__module__) == (behaviour.__name__, behaviour.__module__)
    for name in ("handle_message", "handle_call"):
        assert inspect.iscoroutinefunction(getattr(made, name)) is inspect.iscoroutinefunction(
            getattr(behaviour, name)
        )


async def test_the_count_of_messages_continues_after_restarts(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        await node.supervise(
            [ChildSpec("child", crashing(Plain, on=2), heard, restart=RestartPolicy.PERMANENT)]
        )
        child = node.service("child")
        with pytest.raises(TargetDownError):
            await child.call("one")
            await child.call("two")
        await trio.testing.wait_all_tasks_blocked()

        answers = [await child.call(number) for number in range(3)]

    assert answers == [[], [], []]


async def test_a_crashing_behaviour_takes_a_predicate_and_an_error(
    autojump_clock: MockClock,
) -> None:
    error = KeyError("poison")
    async with running_node() as node:
        pid = await node.spawn(
            crashing(Plain, on=lambda message: message == "poison", error=error), []
        )
        node.send(pid, "food")
        node.send(pid, "poison")

        reason = await node.wait_ended(pid)

    assert isinstance(reason, Crashed)
    assert reason.error is error


async def test_a_crashing_behaviour_may_fail_in_init(autojump_clock: MockClock) -> None:
    class Sound(Actor):
        pass

    async with running_node() as node:
        flaky = crashing(Sound, on=[1, 2], callbacks=["init"], error=OSError)
        for _ in range(2):
            with pytest.raises(InitError):
                await node.spawn(flaky)

        pid = await node.spawn(flaky)

    assert pid.number > 0


async def test_dropped_messages_are_not_handled_and_dropped_calls_not_answered(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(dropping(Plain, on=[1, 3]), heard)
        node.send(pid, "lost")
        node.send(pid, "kept")
        with pytest.raises(CallTimeoutError):
            await node.call(pid, "lost", timeout=1)

        answer = await node.call(pid, "answered", timeout=1)

    assert answer == ["kept"]


@pytest.mark.parametrize("behaviour", [Plain, Waiting])
async def test_delayed_messages_are_handled_later_by_the_clock_of_the_loop(
    autojump_clock: MockClock, behaviour: type[Plain | Waiting]
) -> None:
    async with running_node(limit=1000) as node:
        pid = await node.spawn(delaying(behaviour, 10), [])
        node.send(pid, "slow")

        answer = await node.call(pid, "what?", timeout=60)
        moment = trio.current_time()

    assert answer == ["slow"]
    assert moment == 20


async def test_a_plain_callback_of_a_meta_process_is_delayed_in_its_thread() -> None:
    class Worker(MetaProcess):
        async def start(self) -> None:
            await trio.sleep_forever()

        def handle_call(self, request: Any, caller: Caller) -> object:
            return threading.current_thread() is threading.main_thread()

    async with running_node() as node:
        pid = await node.spawn(Puppet)
        alias = await node.call(
            pid, lambda me: me.spawn_meta(delaying(Worker, 0.05, callbacks=["handle_call"])())
        )

        began = time.perf_counter()
        on_loop = await node.call(alias, "where?")
        took = time.perf_counter() - began

    assert on_loop is False
    assert took >= 0.05


async def test_a_filled_mailbox_refuses_messages_until_it_is_emptied(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard, mailbox_size=3)

        async with filled(node, pid) as taken:
            with pytest.raises(MailboxFullError):
                node.send(pid, "refused")
        node.send(pid, "accepted")
        await node.call(pid, "heard?")

    assert taken == 3
    assert heard == ["accepted"]


async def test_a_sender_waits_at_a_filled_mailbox_until_it_is_emptied(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node, trio.open_nursery() as nursery:
        probe = await Probe.start(node, mailbox_size=2, overflow=Overflow.WAIT)

        async with filled(node, probe.pid):
            nursery.start_soon(node.send_wait, probe.pid, "patient")
            await trio.sleep(5)
            before = list(probe.messages)
        message = await probe.expect("patient")

    assert (before, message) == ([], "patient")


async def test_the_filling_of_a_mailbox_is_never_handled(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard, mailbox_size=3, overflow=Overflow.DROP_OLDEST)

        async with filled(node, pid):
            node.send(pid, "displaces")
            await node.inspect(pid)
            await trio.testing.wait_all_tasks_blocked()

        dead = node.dead_letters()

    assert heard == ["displaces"]
    assert dead == []


async def test_a_mailbox_without_a_bound_cannot_be_filled(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)

        with pytest.raises(BadInputError, match="mailbox_size"):
            async with filled(node, pid):
                pass
        with pytest.raises(ProcessUnknownError):
            async with filled(node, "nobody"):
                pass


async def test_a_deaf_reader_is_abandoned_and_ends_when_it_is_released() -> None:
    deaf = Deaf()
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        await node.call(pid, lambda me: me.spawn_meta(deaf, stop_timeout=0.05))
        node.send_exit(pid)
        await node.wait_ended(pid)
        abandoned = node.info().threads_abandoned

        deaf.release()
        with trio.fail_after(30):
            while node.info().reader_threads:  # noqa: ASYNC110 - a thread sets no event of trio's
                await trio.sleep(0.001)

    assert abandoned == 1


@pytest.mark.parametrize(
    "make, error",
    [
        (lambda: crashing(Plain, on=0), BadInputError),
        (lambda: crashing(Plain, callbacks=["handle_massage"]), BadInputError),
        (lambda: crashing(INSTANCE), BehaviourError),
        (lambda: dropping(NO_BEHAVIOUR), BehaviourError),
        (lambda: delaying(Plain, -1), BadInputError),
    ],
)
def test_invalid_arguments_are_refused(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()
