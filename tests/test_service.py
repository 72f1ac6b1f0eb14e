"""Services: addresses that survive restarts, for callers that wait, callers that give up, and
callers that come too late.
"""

import gc
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Thread
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    Actor,
    Backoff,
    Caller,
    CallTimeoutError,
    ChildSpec,
    Crashed,
    MailboxFullError,
    Node,
    Overflow,
    Priority,
    Reject,
    Request,
    RestartPolicy,
    Service,
    Shutdown,
    Strategy,
    Supervisor,
    SupervisorSpec,
    TargetDownError,
    Why,
)
from ergo_py._core.vocabulary.errors import (
    ChildUnknownError,
    ServiceBusyError,
    ServiceGoneError,
    ServiceTimeoutError,
)
from ergo_py.errors import DeadlockError
from ergo_py.supervision import Fate
from tests.actors import Failed, Puppet, SlowEnd
from tests.places import Place, anywhere
from tests.supervised import Child, Log, crash
from tests.support import replace_router, router_of, running_node, waiters_of

BACK_IN_A_SECOND = Backoff(1.0, 1.0)


class Echo(Actor):
    """Notes its messages in a list that the test holds, and answers with the request."""

    def __init__(self, heard: Log) -> None:
        self.heard = heard

    def handle_message(self, message: Any, sender: Any) -> None:
        if isinstance(message, Exception):
            raise message
        self.heard.append(message)

    async def handle_call(self, request: Any, caller: Any) -> Any:
        if isinstance(request, Exception):
            raise request
        if request == "hang":
            await trio.sleep_forever()
        self.heard.append(request)
        return request


async def down(node: Node, name: str = "echo") -> None:
    """Have the child fail, so that it is coming back."""
    node.send(name, Failed(name))
    await wait_all_tasks_blocked()
    assert node.whereis(name) is None


def dead_letter_abroad(place: Place, error: type[Exception]) -> AbstractContextManager[Any]:
    """A plain send is refused on the own node; on another node, the message becomes a dead letter
    there.
    """
    return nullcontext() if place.is_abroad else pytest.raises(error)


# -- while the child runs --------------------------------------------------------------------------


@anywhere
async def test_a_service_sends_to_and_calls_the_current_process(place: Place) -> None:
    heard: Log = []
    async with place.nodes() as (node, there):
        tree = await there.supervise([ChildSpec("echo", Echo, heard)])
        service = place.service(node, there, "echo")

        for number in range(3):
            assert service.pid == (None if place.is_abroad else there.whereis("echo"))
            assert service.send(number)
            assert await service.send_wait(-number)
            assert await service.call(f"call {number}") == f"call {number}"
            await tree.restart_child("echo")

        assert heard == [0, 0, "call 0", 1, -1, "call 1", 2, -2, "call 2"]


@anywhere
async def test_the_service_of_an_actor_sends_in_the_name_of_that_actor(place: Place) -> None:
    class Asked(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            self.send(sender, message)

        def handle_call(self, request: Any, caller: Any) -> Any:
            return caller.pid

    async with place.nodes() as (node, there):
        await there.supervise([ChildSpec("asked", Asked)])
        actor = await node.spawn(Puppet)

        async def ask(me: Puppet) -> Any:
            service = me.service("asked", there.name)
            service.send("come back")
            return await service.call("who")

        assert await node.call(actor, ask) == actor
        assert await node.call(actor, "what did you hear") == ["come back"]
        assert node.process_info(actor).messages_out == 2


async def test_a_supervisor_knows_the_services_of_its_unregistered_children() -> None:
    class Root(Supervisor):
        def children(self) -> list[ChildSpec]:
            return [ChildSpec("echo", Echo, [], register=False)]

        async def handle_call(self, request: Any, caller: Any) -> Any:
            return await self.service("echo").call(request)

    async with running_node() as node:
        await node.spawn(Root, name="root")

        assert await node.call("root", "this") == "this"
        assert await node.supervisor("root").service("echo").call("that") == "that"
        with pytest.raises(ChildUnknownError):
            node.service("echo")
        with pytest.raises(ChildUnknownError):
            node.supervisor("root").service("other")


@anywhere
async def test_the_type_of_a_request_is_the_type_of_its_answer(place: Place) -> None:
    class Count(Request[int]):
        pass

    class Counter(Actor):
        def handle_call(self, request: Any, caller: Any) -> Any:
            return 5

    async with place.nodes() as (node, there):
        await there.supervise([ChildSpec("counter", Counter)])

        answer = await place.service(node, there, "counter").call(Count())

        assert answer + 1 == 6


@anywhere
async def test_a_rejection_reaches_the_caller(place: Place) -> None:
    class Refusing(Actor):
        def handle_call(self, request: Any, caller: Any) -> Any:
            raise Reject(LookupError(request))

    async with place.nodes() as (node, there):
        await there.supervise([ChildSpec("refusing", Refusing)])

        with pytest.raises(LookupError):
            await place.service(node, there, "refusing").call("this")


# -- while the child is coming back ----------------------------------------------------------------


@anywhere
async def test_messages_and_calls_during_a_restart_reach_the_successor_in_order(
    place: Place,
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: Log = []
    answers: Log = []
    async with place.nodes() as (node, there):
        await there.supervise([ChildSpec("echo", Echo, heard, backoff=BACK_IN_A_SECOND)])
        service = place.service(node, there, "echo")
        await down(there)

        async def call(what: str) -> None:
            answers.append(await service.call(what))

        async def send(what: str) -> None:
            assert await service.send_wait(what)

        async with trio.open_nursery() as nursery:
            for number in range(3):
                service.send(f"sent {number}")
                nursery.start_soon(call, f"asked {number}")
                await wait_all_tasks_blocked()
                nursery.start_soon(send, f"waited {number}")
                await wait_all_tasks_blocked()

        assert heard == [
            f"{what} {number}" for number in range(3) for what in ("sent", "asked", "waited")
        ]
        assert sorted(answers) == ["asked 0", "asked 1", "asked 2"]


@anywhere
async def test_waiting_messages_come_after_kept_and_before_new_messages(
    place: Place,
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: Log = []
    async with place.nodes() as (node, there):
        await there.supervise(
            [ChildSpec("echo", Echo, heard, backoff=BACK_IN_A_SECOND, mailbox=Fate.KEEP)]
        )
        service = place.service(node, there, "echo")
        there.send("echo", Failed("x"))
        there.send("echo", "kept")
        await wait_all_tasks_blocked()
        service.send("waited")

        await trio.sleep(1)
        service.send("new")
        await wait_all_tasks_blocked()

        assert heard == ["kept", "waited", "new"]


@anywhere
async def test_a_service_waits_from_the_moment_its_child_begins_to_end(
    place: Place,
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: Log = []

    class IdleHandlers(Echo):
        async def terminate(self, reason: Any) -> None:
            await trio.sleep(2)

    async with place.nodes() as (node, there):
        await there.supervise([ChildSpec("echo", IdleHandlers, heard)])
        service = place.service(node, there, "echo")
        there.send("echo", Failed("x"))
        await wait_all_tasks_blocked()

        assert await service.call("while it terminates") == "while it terminates"

        assert heard == ["while it terminates"]
        assert there.dead_letters() == []


@anywhere
async def test_a_call_never_outlives_its_timeout(
    place: Place, autojump_clock: trio.testing.MockClock
) -> None:
    heard: Log = []
    async with place.nodes() as (node, there):
        await there.supervise([ChildSpec("echo", Echo, heard, backoff=Backoff(10.0, 10.0))])
        service = place.service(node, there, "echo")
        await down(there)
        began = trio.current_time()

        with pytest.raises(CallTimeoutError):
            await service.call("too late", timeout=2.0)
        with pytest.raises(ServiceTimeoutError):
            await service.send_wait("too late", timeout=1.0)
        assert trio.current_time() - began == pytest.approx(3.0)
        await trio.sleep(10)

        # A request that waits on another node may be carried out although its time is over.
        assert heard == (["too late"] * 2 if place.is_abroad else [])
        assert waiters_of(service) == {}


async def test_a_cancelled_waiter_leaves_no_reference_behind(
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: Log = []

    class Token:
        pass

    async with running_node() as node:
        await node.supervise([ChildSpec("echo", Echo, heard, backoff=BACK_IN_A_SECOND)])
        service = node.service("echo")
        await down(node)
        gone: list[weakref.ref[Any]] = []

        async def wait(use: Callable[[Any], Awaitable[Any]]) -> None:
            token = Token()
            gone.append(weakref.ref(token))
            await use(token)

        async with trio.open_nursery() as nursery:
            for use in (service.call, service.send_wait):
                nursery.start_soon(wait, use)
            await wait_all_tasks_blocked()
            assert len(waiters_of(service)) == 2
            nursery.cancel_scope.cancel()
        gc.collect()

        assert waiters_of(service) == {}
        await trio.sleep(2)
        gc.collect()
        assert heard == []
        assert [reference() for reference in gone] == [None, None]


@anywhere
async def test_a_limited_number_of_callers_may_wait_and_the_next_is_refused(
    place: Place,
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: Log = []
    async with place.nodes() as (node, there):
        await there.supervise(
            [ChildSpec("echo", Echo, heard, backoff=BACK_IN_A_SECOND, max_waiters=2)]
        )
        service = place.service(node, there, "echo")
        await down(there)
        service.send(1)
        service.send(2)

        with dead_letter_abroad(place, ServiceBusyError):
            service.send(3)
        with pytest.raises(ServiceBusyError):
            await service.send_wait(3)
        with pytest.raises(ServiceBusyError):
            await service.call(3)
        await trio.sleep(1.5)

        assert heard == [1, 2]
        assert len(there.dead_letters()) == place.is_abroad


@anywhere
async def test_waiting_messages_for_a_full_successor_follow_its_overflow_policy(
    place: Place,
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Slow(Actor):
        def __init__(self, heard: Log) -> None:
            self.heard = heard

        async def handle_message(self, message: Any, sender: Any) -> None:
            await trio.sleep(1)
            if isinstance(message, Exception):
                raise message
            self.heard.append(message)

    heard: Log = []
    async with place.nodes() as (node, there):
        spec = ChildSpec(
            "echo", Slow, heard, backoff=BACK_IN_A_SECOND, mailbox_size=1, overflow=Overflow.WAIT
        )
        await there.supervise([spec])
        service = place.service(node, there, "echo")
        there.send("echo", Failed("x"))
        await trio.sleep(1.5)
        service.send(1)

        async def send(what: int) -> None:
            await service.send_wait(what, timeout=20.0)

        async with trio.open_nursery() as nursery:
            for number in (2, 3):
                nursery.start_soon(send, number)
                await wait_all_tasks_blocked()
        await trio.sleep(5)

        assert heard == [1, 2, 3]


@pytest.mark.parametrize("comes_back", [True, False])
@anywhere
async def test_a_sender_that_waits_for_room_waits_for_the_successor(
    place: Place, autojump_clock: trio.testing.MockClock, comes_back: bool
) -> None:
    class Slow(Actor):
        def __init__(self, heard: Log) -> None:
            self.heard = heard

        async def handle_message(self, message: Any, sender: Any) -> None:
            await trio.sleep(1)
            if isinstance(message, Exception):
                raise message
            self.heard.append(message)

    heard: Log = []
    async with place.nodes() as (node, there):
        spec = ChildSpec(
            "echo",
            Slow,
            heard,
            restart=RestartPolicy.PERMANENT if comes_back else RestartPolicy.TEMPORARY,
            mailbox=Fate.KEEP,
            backoff=BACK_IN_A_SECOND,
            mailbox_size=1,
            overflow=Overflow.WAIT,
        )
        await there.supervise([spec])
        service = place.service(node, there, "echo")
        service.send(Failed("x"))
        await wait_all_tasks_blocked()
        service.send(1)
        told: Log = []

        async def send(what: int) -> None:
            try:
                told.append(await service.send_wait(what))
            except ServiceGoneError as error:
                told.append(type(error))

        async with trio.open_nursery() as nursery:
            for number in (2, 3):
                nursery.start_soon(send, number)
                await wait_all_tasks_blocked()
        await trio.sleep(5)

        assert told == [True if comes_back else ServiceGoneError] * 2
        assert heard == ([1, 2, 3] if comes_back else [])
        assert waiters_of(service) == {}


@anywhere
async def test_a_full_successor_that_refuses_raises_in_the_waiting_sender(
    place: Place,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with place.nodes() as (node, there):
        await there.supervise(
            [ChildSpec("echo", Echo, [], backoff=BACK_IN_A_SECOND, mailbox_size=1)]
        )
        service = place.service(node, there, "echo")
        await down(there)
        service.send(1)
        service.send(2)

        with pytest.raises(MailboxFullError):
            await service.send_wait(3)

        assert [letter.why for letter in there.dead_letters()].count(Why.FULL) == 2


@anywhere
async def test_callers_keep_waiting_for_a_child_that_dies_repeatedly(
    place: Place,
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: Log = []
    successes = [True, False, False, True]

    class Unlucky(Echo):
        def init(self) -> None:
            if not successes.pop(0):
                raise Failed

    async with place.nodes() as (node, there):
        await there.supervise(
            [ChildSpec("echo", Unlucky, heard, backoff=BACK_IN_A_SECOND)], intensity=9
        )
        service = place.service(node, there, "echo")
        await down(there)

        assert await service.call("patient", timeout=10.0) == "patient"

        assert trio.current_time() == pytest.approx(3.0, abs=0.1)


@anywhere
async def test_a_service_survives_the_restart_of_the_supervisor(
    place: Place,
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: Log = []
    async with place.nodes() as (node, there):
        inner = SupervisorSpec([ChildSpec("echo", Echo, heard)], intensity=0)
        await there.supervise([ChildSpec("inner", Supervisor, inner, backoff=BACK_IN_A_SECOND)])
        service = place.service(node, there, "echo")
        await down(there)
        assert there.whereis("inner") is None

        assert await service.call("patient") == "patient"

        assert there.whereis("echo") is not None


# -- requests that the child had when it ended -----------------------------------------------------


@anywhere
async def test_a_request_that_reached_the_child_is_not_repeated(place: Place) -> None:
    heard: Log = []
    async with place.nodes() as (node, there):
        await there.supervise([ChildSpec("echo", Echo, heard)])
        service = place.service(node, there, "echo")

        with pytest.raises(TargetDownError) as caught:
            await service.call(Failed("on this"))

        assert isinstance(caught.value.__cause__, Failed)
        assert await service.call("next") == "next"


@anywhere
async def test_a_request_that_may_be_asked_twice_goes_to_the_successor(
    place: Place,
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: Log = []
    failures = [True, True, False]

    class Moody(Echo):
        async def handle_call(self, request: Any, caller: Any) -> Any:
            if failures.pop(0):
                raise Failed
            return await super().handle_call(request, caller)

    async with place.nodes() as (node, there):
        await there.supervise([ChildSpec("echo", Moody, heard, backoff=BACK_IN_A_SECOND)])

        assert (
            await place.service(node, there, "echo").call("idempotent", retry=True, timeout=5.0)
            == "idempotent"
        )

        assert failures == []


@anywhere
async def test_a_retry_does_not_outlive_the_timeout(
    place: Place,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with place.nodes() as (node, there):
        await there.supervise(
            [ChildSpec("echo", Echo, [], backoff=BACK_IN_A_SECOND)], intensity=100
        )

        with pytest.raises(CallTimeoutError):
            await place.service(node, there, "echo").call(Failed("always"), retry=True, timeout=3.5)

        assert trio.current_time() == pytest.approx(3.5)


@anywhere
async def test_the_end_of_another_process_as_an_answer_causes_no_retry(place: Place) -> None:
    calls: Log = []

    class Forwarding(Actor):
        async def handle_call(self, request: Any, caller: Any) -> Any:
            calls.append(request)
            try:
                return await self.call("nobody", request)
            except TargetDownError as error:
                raise Reject(error) from None

    async with place.nodes() as (node, there):
        await there.supervise([ChildSpec("forwarding", Forwarding)])

        with pytest.raises(TargetDownError):
            await place.service(node, there, "forwarding").call("this", retry=True)

        assert calls == ["this"]


# -- when it never comes back ----------------------------------------------------------------------


@anywhere
async def test_waiting_and_later_callers_get_the_reason_at_once(
    place: Place,
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: Log = []
    told: list[ServiceGoneError] = []
    successes = [True, False]

    class Unlucky(Echo):
        def init(self) -> None:
            if not successes.pop(0):
                raise Failed("for good")

    async with place.nodes() as (node, there):
        await there.supervise(
            [ChildSpec("echo", Unlucky, heard, backoff=BACK_IN_A_SECOND)], intensity=1
        )
        service = place.service(node, there, "echo")
        await down(there)

        async def wait(use: Callable[[Any], Awaitable[Any]]) -> None:
            with pytest.raises(ServiceGoneError) as caught:
                await use("patient")
            told.append(caught.value)

        service.send("a letter")
        async with trio.open_nursery() as nursery:
            for use in (service.call, service.send_wait):
                nursery.start_soon(wait, use)
        assert trio.current_time() == pytest.approx(1.0)
        for use in (service.call, service.send_wait):
            await wait(use)
        with dead_letter_abroad(place, ServiceGoneError):
            service.send("late")
        await wait_all_tasks_blocked()

        assert trio.current_time() == pytest.approx(1.0)
        assert {str(error.__cause__) for error in told} == {"for good"}
        assert len(there.dead_letters()) == 1 + place.is_abroad


@anywhere
async def test_a_child_that_ended_for_good_is_gone_although_its_supervisor_is_not(
    place: Place,
) -> None:
    async with place.nodes() as (node, there):
        await there.supervise(
            [
                ChildSpec("echo", Echo, [], restart=RestartPolicy.TEMPORARY),
                ChildSpec("other", Child, []),
            ]
        )
        service = place.service(node, there, "echo")

        await crash(there, "echo")

        with pytest.raises(ServiceGoneError) as caught:
            await service.call("this")
        assert caught.value.reason == Crashed(Failed("echo"))
        assert ("of 'there@test'" if place.is_abroad else "gone") in repr(service)


@anywhere
async def test_a_service_comes_back_with_a_child_that_is_started_enabled_or_added_again(
    place: Place,
) -> None:
    async with place.nodes() as (node, there):
        tree = await there.supervise([ChildSpec("echo", Echo, []), ChildSpec("other", Child, [])])
        service = place.service(node, there, "echo")

        for end, begin in (("stop_child", "start_child"), ("disable_child", "enable_child")):
            await getattr(tree, end)("echo")
            with pytest.raises(ServiceGoneError):
                await service.call("gone")
            await getattr(tree, begin)("echo")
            assert await service.call("back") == "back"
        await tree.remove_child("echo")
        with pytest.raises(ServiceGoneError):
            await service.send_wait("gone")
        await tree.add_child(ChildSpec("echo", Echo, []))

        assert await service.call("back") == "back"


async def test_waiting_callers_get_the_reason_when_the_node_stops() -> None:
    told: Log = []

    async def wait(service: Service) -> None:
        with pytest.raises(ServiceGoneError) as caught:
            await service.call("patient", timeout=None)
        told.append(caught.value.reason)

    async with trio.open_nursery() as nursery, running_node() as node:
        await node.supervise([ChildSpec("echo", Echo, [], backoff=Backoff(99.0, 99.0))])
        await down(node)
        nursery.start_soon(wait, node.service("echo"))
        await wait_all_tasks_blocked()

    assert told == [Shutdown()]


async def test_waiting_for_a_later_sibling_in_init_is_a_deadlock() -> None:
    errors: Log = []

    class Impatient(Actor):
        async def init(self) -> None:
            for use in (self.service("echo").call, self.service("echo").send_wait):
                try:
                    await use("now")
                except DeadlockError as error:
                    errors.append(error)

    async with running_node() as node:
        specs = [ChildSpec("impatient", Impatient), ChildSpec("echo", Echo, [])]
        await node.supervise(specs, strategy=Strategy.ALL_FOR_ONE)

        assert len(errors) == 2
        assert "→ echo →" in str(errors[0])


class Asking(Actor):
    """Asks the echo when it is asked to, and is asked by the init of the echo's successor."""

    async def handle_call(self, request: Any, caller: Any) -> Any:
        return await self.service("echo").call("x", timeout=None) if request == "ask" else request


@pytest.mark.parametrize("asks_first", ["the process", "the child"])
async def test_a_deadlock_through_a_restarting_child_is_found_at_once(
    autojump_clock: trio.testing.MockClock, asks_first: str
) -> None:
    class Needy(Echo):
        async def init(self) -> None:
            starts.append(trio.current_time())
            if len(starts) == 2:
                await trio.sleep(1)
                await self.call(
                    "asking", "ask" if asks_first == "the child" else "hello", timeout=None
                )

    starts: list[float] = []
    async with running_node() as node:
        await node.spawn(Asking, name="asking")
        await node.supervise([ChildSpec("echo", Needy, [], init_timeout=1000)])
        node.send("echo", Failed("x"))
        await wait_all_tasks_blocked()

        if asks_first == "the process":
            assert await node.call("asking", "ask", timeout=10) == "x"
        else:
            await trio.sleep(2)
            assert await node.service("echo").call("y", timeout=10) == "y"

        # The init that closed the ring failed at once, or the process that did has crashed, and the
        # child was tried again.
        assert len(starts) == 3
        assert trio.current_time() < 5


# -- when the waiting child has to end first -------------------------------------------------------

BACK_IN_AN_HOUR = Backoff(3600.0, 3600.0)
Use = Callable[[Service], Awaitable[Any]]


async def asking(service: Service) -> Any:
    return await service.call("anybody?", timeout=None, retry=True)


async def sending(service: Service) -> Any:
    return await service.send_wait("anybody?", timeout=None)


class Asker(Actor):
    """Uses the service of a sibling, as it is told, and notes the result."""

    def __init__(self, told: Log) -> None:
        self.told = told

    async def handle_message(self, message: Use, sender: Any) -> None:
        try:
            self.told.append(await message(self.service("echo")))
        except ServiceGoneError as error:
            self.told.append(type(error))


class Manager(Actor):
    """Has an asker of its own, below the supervisor by two steps."""

    def __init__(self, told: Log) -> None:
        self.told = told

    async def init(self) -> None:
        await self.spawn(Asker, self.told, name="asker")


@pytest.mark.counted
@pytest.mark.parametrize("use", [asking, sending])
@pytest.mark.parametrize("asker", [Asker, Manager])
async def test_a_stop_does_not_wait_for_a_child_that_waits_for_a_sibling(
    use: Use, asker: type[Asker | Manager], autojump_clock: trio.testing.MockClock
) -> None:
    told: Log = []
    async with running_node() as node:
        name = "asker" if asker is Asker else "manager"
        await node.supervise(
            [ChildSpec("echo", Echo, [], backoff=BACK_IN_AN_HOUR), ChildSpec(name, asker, told)]
        )
        await down(node)
        node.send("asker", use)
        await wait_all_tasks_blocked()

    assert told == [ServiceGoneError]
    assert trio.current_time() == 0.0
    report = node.exit_report
    assert report is not None
    assert not report.killed


@pytest.mark.parametrize("use", [asking, sending])
async def test_a_group_restarts_although_a_member_waits_for_another(
    use: Use, autojump_clock: trio.testing.MockClock
) -> None:
    told: Log = []
    leaves = trio.Event()

    class IdleHandlers(Echo):
        async def terminate(self, reason: Any) -> None:
            await leaves.wait()

    async with running_node() as node:
        children = [
            ChildSpec("echo", IdleHandlers, [], backoff=BACK_IN_A_SECOND),
            ChildSpec("asker", Asker, told),
        ]
        tree = await node.supervise(children, strategy=Strategy.ALL_FOR_ONE)
        asker = node.whereis("asker")

        # It asks while the other child ends, which their supervisor does not know yet.
        node.kill("echo")
        await wait_all_tasks_blocked()
        node.send("asker", use)
        await wait_all_tasks_blocked()
        assert told == []
        leaves.set()
        await trio.sleep(1.5)

        assert told == [ServiceGoneError]
        assert node.whereis("asker") not in (None, asker)
        assert {child.restarts for child in tree.children()} == {1}


async def test_a_supervisor_restarts_although_a_child_waits_for_another(
    autojump_clock: trio.testing.MockClock,
) -> None:
    told: Log = []
    async with running_node() as node:
        children = [
            ChildSpec("echo", Echo, [], backoff=BACK_IN_AN_HOUR),
            ChildSpec("asker", Asker, told),
        ]
        await node.supervise([ChildSpec("inner", Supervisor, children)])
        service = node.service("echo")
        await down(node)
        node.send("asker", asking)
        await wait_all_tasks_blocked()

        node.kill("inner")
        answer = await service.call("from outside", timeout=None)

        # Another caller may wait: for that caller it comes back.
        assert told == [ServiceGoneError]
        assert answer == "from outside"
        assert trio.current_time() == 0.0


async def test_a_call_from_a_child_that_is_being_stopped_fails_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    told: Log = []
    go_on = trio.Event()

    async def later(service: Service) -> Any:
        await go_on.wait()
        return await asking(service)

    async with running_node() as node:
        await node.supervise(
            [ChildSpec("echo", Echo, [], backoff=BACK_IN_AN_HOUR), ChildSpec("asker", Asker, told)],
            name="root",
        )
        await down(node)
        node.send("asker", later)
        await wait_all_tasks_blocked()

        node.send_exit("root")
        await wait_all_tasks_blocked()
        go_on.set()
        await node.wait_ended("root")

    assert told == [ServiceGoneError]
    assert trio.current_time() == 0.0


async def test_a_child_that_is_stopped_alone_may_wait_for_a_restarting_sibling(
    autojump_clock: trio.testing.MockClock,
) -> None:
    told: Log = []
    async with running_node() as node:
        tree = await node.supervise(
            [ChildSpec("echo", Echo, [], backoff=BACK_IN_A_SECOND), ChildSpec("asker", Asker, told)]
        )
        await down(node)
        node.send("asker", asking)
        await wait_all_tasks_blocked()

        await tree.stop_child("asker")

        assert told == ["anybody?"]
        assert trio.current_time() == pytest.approx(1.0)


async def test_callers_outside_fail_when_a_supervisor_begins_to_end_for_good(
    autojump_clock: trio.testing.MockClock,
) -> None:
    told: Log = []

    async with running_node() as node:
        await node.supervise(
            [ChildSpec("echo", Echo, [], backoff=BACK_IN_AN_HOUR), ChildSpec("slow", SlowEnd, 2.0)],
            name="root",
        )
        await down(node)

        async def wait() -> None:
            with pytest.raises(ServiceGoneError):
                await asking(node.service("echo"))
            told.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            node.send_exit("root")

    assert told == [0.0]


# -- threads ---------------------------------------------------------------------------------------


@anywhere
async def test_threads_may_use_a_service_while_its_child_runs_or_restarts(place: Place) -> None:
    heard: Log = []
    async with place.nodes() as (node, there):
        await there.supervise([ChildSpec("echo", Echo, heard, backoff=Backoff(0.2, 0.2))])
        service = place.service(node, there, "echo")

        def use() -> Any:
            service.send(1)
            first = service.call_from_thread(2)
            service.send(Failed("x"))
            while there.whereis("echo") is not None:
                pass
            service.send(3)
            return first, service.call_from_thread(4)

        assert await trio.to_thread.run_sync(use) == (2, 4)

        assert heard == [1, 2, 3, 4]


@pytest.mark.parametrize("mailbox_size", [None, 100])
async def test_messages_of_a_thread_that_miss_the_ended_child_reach_its_successor(
    mailbox_size: int | None,
) -> None:
    class Failing(Echo):
        def handle_message(self, message: Any, sender: Any) -> None:
            if isinstance(message, Thread):
                message.start()
                message.join()
                raise Failed("before the loop has a turn and takes what the thread has sent")
            super().handle_message(message, sender)
            if message == 2:
                all_heard.set()

    heard: Log = []
    all_heard = trio.Event()
    async with running_node() as node:
        await node.supervise([ChildSpec("echo", Failing, heard, mailbox_size=mailbox_size)])
        service = node.service("echo")

        node.send("echo", Thread(target=lambda: [service.send(number) for number in range(3)]))
        with trio.move_on_after(5):
            await all_heard.wait()

        assert heard == [0, 1, 2]
        assert node.dead_letters() == []


@anywhere
async def test_threads_get_errors_of_a_service_that_is_gone_busy_or_slow(place: Place) -> None:
    async with place.nodes() as (node, there):
        specs = [
            ChildSpec("gone", Echo, []),
            ChildSpec("busy", Echo, [], backoff=Backoff(99.0, 99.0), max_waiters=0),
            ChildSpec("slow", Echo, [], backoff=Backoff(99.0, 99.0)),
        ]
        tree = await there.supervise(specs)
        await tree.stop_child("gone")
        await down(there, "busy")
        await down(there, "slow")
        gone, busy, slow = (place.service(node, there, name) for name in ("gone", "busy", "slow"))

        def use() -> None:
            with dead_letter_abroad(place, ServiceGoneError):
                gone.send(1)
            with pytest.raises(ServiceGoneError):
                gone.call_from_thread(1)
            busy.send("becomes a dead letter")
            with pytest.raises(ServiceBusyError):
                busy.call_from_thread(1)
            with pytest.raises(CallTimeoutError):
                slow.call_from_thread(1, timeout=0.01)

        await trio.to_thread.run_sync(use)
        await wait_all_tasks_blocked()

        assert waiters_of(slow) == {}
        found = [str(letter.target) for letter in there.dead_letters()]
        assert found == (["gone", "busy"] if place.is_abroad else ["busy"])


# -- cost ------------------------------------------------------------------------------------------


async def test_while_the_child_runs_a_send_is_a_send_to_its_pid() -> None:
    """Nothing is looked up but the PID: the router is handed the same four things as by any other
    send.
    """
    handed: Log = []

    class Watching:
        def __init__(self, router: Any) -> None:
            self.router = router
            self.loop_thread = router.loop_thread

        def send(self, *args: Any) -> bool:
            handed.append(args)
            return bool(self.router.send(*args))

    async with running_node() as node:
        await node.supervise([ChildSpec("echo", Echo, [])])
        service = node.service("echo")
        replace_router(service, Watching(router_of(node)))

        service.send("this", priority=Priority.HIGH)

        assert handed == [(node.pid, node.whereis("echo"), "this", Priority.HIGH)]


@pytest.mark.parametrize("inline", [True, False], ids=["answered on the spot", "in its own turn"])
@anywhere
async def test_the_successor_answers_a_call_right_after_a_crash(
    place: Place, autojump_clock: trio.testing.MockClock, inline: bool
) -> None:
    class Fragile(Actor):
        def handle_call(self, request: Any, caller: Caller) -> object:
            if request == "crash":
                raise ValueError("on purpose")
            return request

    async with place.nodes(inline_calls=inline) as (node, there):
        await there.supervise([ChildSpec("fragile", Fragile)])
        service = place.service(node, there, "fragile")
        await wait_all_tasks_blocked()
        with pytest.raises(TargetDownError):
            await service.call("crash")

        answer = await service.call("next")

        assert answer == "next"
