"""Requests of processes: asking without waiting. Each has exactly one response."""

from concurrent.futures import CancelledError as FutureCancelledError
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    BadInputError,
    Caller,
    CallTimeoutError,
    ChildSpec,
    Crashed,
    InitError,
    Killed,
    MailboxFullError,
    MetaProcess,
    NoProcess,
    Normal,
    NotAllowedError,
    Overflow,
    Pool,
    PoolSpec,
    Reason,
    Ref,
    Reject,
    Request,
    Response,
    StateMachine,
    TargetDownError,
    ask,
    exposed,
)
from ergo_py._core.messaging.requests import RequestCaller
from ergo_py._core.messaging.requests import ask as ask_from_a_thread
from ergo_py._core.vocabulary.envelopes import Priority
from ergo_py._core.vocabulary.errors import ServiceGoneError
from ergo_py.errors import InitTimeoutError, TargetTypeError
from ergo_py.info import Dispatcher
from ergo_py.state_machine import state
from ergo_py.supervision import Fate
from tests.actors import Failed, Puppet
from tests.dispatched import everywhere
from tests.support import kernel_of, process_of, running_node, waiters_of

NODES: dict[str, dict[str, Any]] = {
    "as usual": {},
    "without inline calls": {"inline_calls": False},
    "without direct hand-off": {"direct_handoff": False},
    "observed": {"observer": lambda _event: None},
}


@dataclass(frozen=True)
class Double(Request[int]):
    number: int


class Asker(Puppet):
    """Does what it is told, and keeps the responses."""

    def __init__(self, responses: list[Response]) -> None:
        super().__init__()
        self.responses = responses

    def handle_response(self, response: Response) -> None:
        self.responses.append(response)


class PlainAsker(Actor):
    """Asks in plain callbacks, which may run in a thread."""

    def __init__(self, responses: list[Any]) -> None:
        self.responses = responses

    def handle_call(self, request: Any, caller: Caller) -> Any:
        return request(self)

    def handle_response(self, response: Response) -> None:
        self.responses.append(response)


class Callee(Actor):
    """Answers in every way there is."""

    def __init__(self) -> None:
        self.deferred: list[Caller] = []

    def handle_message(self, message: Any, sender: Any) -> Any:
        if message == "answer":
            for caller in self.deferred:
                self.reply(caller, "late")
        elif message == "stop":
            self.stop()

    def handle_call(self, request: Any, caller: Caller) -> Any:
        match request:
            case Double(number):
                return 2 * number
            case "later":
                self.deferred.append(caller)
                return NO_REPLY
            case "refuse":
                raise Reject(Failed("refused"))
            case "crash":
                raise Failed("crashed")
            case _:
                return request


class AsyncCallee(Callee):
    async def handle_call(self, request: Any, caller: Caller) -> Any:
        await trio.lowlevel.checkpoint()
        return super().handle_call(request, caller)


def asks(to: Any, *requests: Any, **options: Any) -> Any:
    return lambda me: [me.request(to, request, **options) for request in requests]


# -- answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("callee", [Callee, AsyncCallee])
@pytest.mark.parametrize("options", NODES.values(), ids=NODES)
async def test_each_request_has_a_single_response_in_the_order_of_the_answers(
    options: dict[str, Any], callee: type[Callee]
) -> None:
    responses: list[Response] = []
    async with running_node(**options) as node:
        to = await node.spawn(callee)
        asker = await node.spawn(Asker, responses)
        refs = await node.call(asker, asks(to, Double(2), "later", None, "refuse", Double(4)))
        await wait_all_tasks_blocked()
        node.send(to, "answer")
        await wait_all_tasks_blocked()

        assert [response.ref for response in responses] == [refs[n] for n in (0, 2, 3, 4, 1)]
        assert [response.value for response in responses] == [4, None, None, 8, "late"]
        assert [type(response.error) for response in responses].count(Failed) == 1
        assert [response.request for response in responses] == [
            Double(2),
            None,
            "refuse",
            Double(4),
            "later",
        ]
        assert all(isinstance(ref, Ref) for ref in refs)
        with pytest.raises(Failed, match="refused"):
            responses[2].result()
        assert not process_of(node, asker).requests


@everywhere
async def test_a_callback_asks_wherever_it_runs(where: Dispatcher) -> None:
    responses: list[Response] = []
    async with running_node() as node:
        to = await node.spawn(Callee, dispatcher=where)
        asker = await node.spawn(PlainAsker, responses, dispatcher=where)
        refs = await node.call(asker, asks(to, Double(1), "refuse"))
        while len(responses) < 2:  # noqa: ASYNC110 - threads
            await trio.sleep(0.001)

        assert [(response.ref, response.value) for response in responses] == [
            (refs[0], 2),
            (refs[1], None),
        ]


async def test_a_request_from_init_is_answered_after_the_start() -> None:
    responses: list[Response] = []

    class Early(Asker):
        def init(self) -> None:
            self.request(to, Double(3))

    async with running_node() as node:
        to = await node.spawn(Callee)
        await node.spawn(Early, responses)
        await wait_all_tasks_blocked()

        assert [response.value for response in responses] == [6]


async def test_a_process_may_ask_itself_a_meta_process_a_pool_and_a_method() -> None:
    class Bridge(MetaProcess):
        async def start(self) -> None:
            await trio.sleep_forever()

        async def handle_call(self, request: Any, caller: Caller) -> str:
            return f"bridge: {request}"

    class Counter(Actor):
        @exposed
        def add(self, number: int, *, twice: bool = False) -> int:
            return 2 * number if twice else number

    class Oneself(Asker):
        async def handle_call(self, request: Any, caller: Caller) -> Any:
            return "myself" if request == "you" else await super().handle_call(request, caller)

    responses: list[Response] = []
    async with running_node() as node:
        asker = await node.spawn(Oneself, responses)
        alias = await node.call(asker, lambda me: me.spawn_meta(Bridge()))
        await node.spawn(Pool, PoolSpec(Callee, size=2), name="pool")
        counter = await node.spawn(Counter, name="counter")
        for to, request in (
            (asker, "you"),
            (alias, "you"),
            ("pool", Double(5)),
            ("counter", ask(Counter.add, 2, twice=True)),
            (counter, ask(Counter.add, 2)),
        ):
            await node.call(asker, asks(to, request))
            await wait_all_tasks_blocked()

        assert [response.value for response in responses] == ["myself", "bridge: you", 10, 4, 2]


async def test_a_forwarded_request_is_answered_by_the_other_process() -> None:
    class Forwards(Actor):
        def handle_call(self, request: Any, caller: Caller) -> Any:
            return self.forward(to, Double(50), caller)

    responses: list[Response] = []
    async with running_node() as node:
        to = await node.spawn(Callee)
        clerk = await node.spawn(Forwards)
        asker = await node.spawn(Asker, responses)
        await node.call(asker, asks(clerk, "anything"))
        await wait_all_tasks_blocked()

        assert [(one.request, one.value) for one in responses] == [("anything", 100)]


async def test_an_answer_overtakes_messages_and_is_not_refused_by_a_full_mailbox() -> None:
    heard: list[Any] = []
    gate = trio.Event()

    class Busy(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            if message == "ask":
                self.request(to, Double(1))
                await gate.wait()
            heard.append(message)

        def handle_response(self, response: Response) -> None:
            heard.append(response.value)

    async with running_node() as node:
        to = await node.spawn(Callee)
        asker = await node.spawn(Busy, mailbox_size=1)
        node.send(asker, "ask")
        await wait_all_tasks_blocked()
        node.send(asker, "waiting")
        gate.set()
        await wait_all_tasks_blocked()

        assert heard == ["ask", 2, "waiting"]


async def test_a_state_machine_gets_the_response_in_its_state_and_may_postpone_it() -> None:
    seen: list[Any] = []

    class Machine(StateMachine):
        @state
        def busy(self, message: Any, sender: Any) -> None:
            if isinstance(message, Response):
                seen.append("postponed")
                self.postpone()
            elif message == "ask":
                self.request(to, Double(4))
            else:
                self.become("free")

        @state
        def free(self, message: Any, sender: Any) -> None:
            seen.append(message.result())

    async with running_node() as node:
        to = await node.spawn(Callee)
        machine = await node.spawn(Machine)
        node.send(machine, "ask")
        await wait_all_tasks_blocked()
        node.send(machine, "be free")
        await wait_all_tasks_blocked()

        assert seen == ["postponed", 8]


async def test_a_response_without_a_callback_is_logged_and_counted() -> None:
    async with running_node() as node:
        to = await node.spawn(Callee)
        asker = await node.spawn(Puppet)
        await node.call(asker, asks(to, Double(1)))
        await wait_all_tasks_blocked()

        assert node.process_info(asker).unhandled == 1


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["crash", "kill", "stop"])
async def test_the_end_of_a_callee_answers_its_requests_with_the_reason(end: str) -> None:
    responses: list[Response] = []
    async with running_node() as node:
        to = await node.spawn(Callee)
        asker = await node.spawn(Asker, responses)
        await node.call(asker, asks(to, "later", timeout=None))
        await wait_all_tasks_blocked()
        if end == "crash":
            await node.call(asker, asks(to, "crash"))
        elif end == "kill":
            node.kill(to)
        else:
            node.send(to, "stop")
        await wait_all_tasks_blocked()

        reason = {"crash": Crashed(Failed("crashed")), "kill": Killed(), "stop": Normal()}[end]
        errors = [response.error for response in responses]
        assert len(errors) == (2 if end == "crash" else 1)
        for error in errors:
            assert isinstance(error, TargetDownError)
            assert error.reason == reason
        assert not process_of(node, asker).requests


async def test_a_request_to_a_missing_process_has_its_error_as_response() -> None:
    responses: list[Response] = []
    async with running_node() as node:
        asker = await node.spawn(Asker, responses)
        await node.call(asker, asks("nobody", 1))
        await wait_all_tasks_blocked()

        (response,) = responses
        assert isinstance(response.error, TargetDownError)
        assert response.error.reason == NoProcess()


async def test_a_timeout_is_the_only_response_and_a_late_answer_is_dropped(
    autojump_clock: MockClock,
) -> None:
    responses: list[Response] = []
    async with running_node() as node:
        to = await node.spawn(Callee)
        asker = await node.spawn(Asker, responses)
        await node.call(asker, asks(to, "later", timeout=1.0))
        await trio.sleep(2)
        node.send(to, "answer")
        await trio.sleep(20)

        (response,) = responses
        assert isinstance(response.error, CallTimeoutError)
        assert node.info().late_replies == 1


async def test_a_full_mailbox_refuses_a_request_in_its_response() -> None:
    responses: list[Response] = []
    gate = trio.Event()

    class Closed(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            await gate.wait()

    async with running_node() as node:
        to = await node.spawn(Closed, mailbox_size=1)
        asker = await node.spawn(Asker, responses)
        node.send(to, "wait")
        await wait_all_tasks_blocked()
        node.send(to, "fills")
        await node.call(asker, asks(to, 1))
        await wait_all_tasks_blocked()
        gate.set()

        (response,) = responses
        assert isinstance(response.error, MailboxFullError)


@pytest.mark.parametrize("over", ["room", "timeout", "cancelled", "asker ends"])
async def test_a_request_waits_for_room_and_leaves_the_queue_when_it_is_over(
    over: str, autojump_clock: MockClock
) -> None:
    responses: list[Response] = []
    gate = trio.Event()

    class Slow(Callee):
        async def handle_message(self, message: Any, sender: Any) -> None:
            await gate.wait()

    async with running_node() as node:
        to = await node.spawn(Slow, mailbox_size=1, overflow=Overflow.WAIT)
        asker = await node.spawn(Asker, responses)
        node.send(to, "wait")
        await trio.sleep(0.1)
        node.send(to, "fills")
        (ref,) = await node.call(asker, asks(to, Double(3), timeout=1.0))
        waited = bool(process_of(node, to).mailbox.waiters)
        if over == "timeout":
            await trio.sleep(2)
        elif over == "cancelled":
            assert await node.call(asker, lambda me: me.cancel_request(ref))
        elif over == "asker ends":
            await node.call(asker, lambda me: me.stop())
            await trio.sleep(0.1)
        left = bool(process_of(node, to).mailbox.waiters)
        gate.set()
        await trio.sleep(10)

        assert waited
        assert left == (over == "room")
        match over:
            case "room":
                assert [one.value for one in responses] == [6]
            case "timeout":
                assert [type(one.error) for one in responses] == [CallTimeoutError]
            case _:
                assert responses == []


# -- cancellation and the end of the asker ---------------------------------------------------------


async def test_a_cancelled_request_has_no_response() -> None:
    responses: list[Response] = []
    async with running_node() as node:
        to = await node.spawn(Callee)
        asker = await node.spawn(Asker, responses)
        (ref,) = await node.call(asker, asks(to, "later"))
        await wait_all_tasks_blocked()

        cancelled = [await node.call(asker, lambda me: me.cancel_request(ref)) for _ in range(2)]
        node.send(to, "answer")
        await wait_all_tasks_blocked()

        assert cancelled == [True, False]
        assert responses == []
        assert node.info().late_replies == 1


@pytest.mark.parametrize("end", ["stop", "crash", "kill"])
async def test_no_response_follows_the_end_of_the_asker_and_no_successor_gets_it(end: str) -> None:
    responses: list[Response] = []
    gate = trio.Event()
    starts: list[PID] = []

    class Ending(Asker):
        def init(self) -> None:
            starts.append(self.pid)

        async def handle_message(self, message: Any, sender: Any) -> None:
            await gate.wait()
            if message == "crash":
                raise Failed("on purpose")
            self.stop()

    async with running_node() as node:
        to = await node.spawn(Callee)
        await node.supervise([ChildSpec("asker", Ending, responses, mailbox=Fate.KEEP)])
        await node.call("asker", asks(to, "later", timeout=None))
        await wait_all_tasks_blocked()
        node.send("asker", end)
        await wait_all_tasks_blocked()
        # The first answer is in the mailbox when the asker ends, the second is still open.
        node.send(to, "answer")
        await wait_all_tasks_blocked()
        if end == "kill":
            node.kill("asker")
        gate.set()
        await wait_all_tasks_blocked()

        assert len(starts) == 2
        assert responses == []
        assert not process_of(node, "asker").requests
        assert not process_of(node, to).deferred


@pytest.mark.parametrize("count", [3, 1000])
async def test_open_requests_of_an_asker_that_ends_are_forgotten_by_the_callee(count: int) -> None:
    async with running_node() as node:
        to = await node.spawn(Callee)
        asker = await node.spawn(Asker, [])
        await node.call(asker, asks(to, *["later"] * count, timeout=None))
        await wait_all_tasks_blocked()
        held = len(process_of(node, to).deferred or ())
        await node.call(asker, lambda me: me.stop())
        await node.wait_ended(asker)

        assert held == count
        assert not process_of(node, to).deferred


async def test_an_init_that_fails_leaves_no_request() -> None:
    class Fails(Asker):
        def init(self) -> None:
            self.request(to, "later", timeout=None)
            raise Failed("on purpose")

    async with running_node() as node:
        to = await node.spawn(Callee)
        with pytest.raises(Exception, match="on purpose"):
            await node.spawn(Fails, [])
        await wait_all_tasks_blocked()

        assert not process_of(node, to).deferred
        assert kernel_of(node).router.processes.keys() == {to}


async def test_terminate_may_not_ask() -> None:
    errors: list[BaseException] = []

    class Late(Asker):
        def terminate(self, reason: Reason) -> None:
            with pytest.raises(NotAllowedError, match="make requests") as caught:
                self.request(self.pid, 1)
            errors.append(caught.value)

    async with running_node() as node:
        await node.call(await node.spawn(Late, []), lambda me: me.stop())

    assert len(errors) == 1


@pytest.mark.parametrize(
    "error, to, options",
    [
        (TargetTypeError, 5, {}),
        (BadInputError, "somebody", {"timeout": -1}),
        (BadInputError, "somebody", {"priority": "high"}),
    ],
)
async def test_a_wrong_argument_of_request_opens_no_request(
    error: type[Exception], to: Any, options: dict[str, Any]
) -> None:
    async with running_node() as node:
        asker = await node.spawn(Asker, [])

        async def attempt(me: Any) -> None:
            with pytest.raises(error):
                me.request(to, 1, **options)

        await node.call(asker, attempt)

        assert not process_of(node, asker).requests


def test_result_of_refuses_another_request() -> None:
    response = Response(Ref("node", 1, 1), 4, None, Double(2))

    assert response.result_of(response.request) == 4
    with pytest.raises(BadInputError, match=r"response\.request"):
        response.result_of(Double(2))


# -- supervised callees and services ---------------------------------------------------------------


class Fragile(Callee):
    """Fails on the message "fail", when its gate is open."""

    def __init__(self, gate: trio.Event) -> None:
        super().__init__()
        self.gate = gate

    async def handle_message(self, message: Any, sender: Any) -> None:
        await self.gate.wait()
        raise Failed(str(message))


async def test_a_request_in_a_kept_mailbox_is_answered_by_the_successor() -> None:
    responses: list[Response] = []
    gate = trio.Event()
    async with running_node() as node:
        await node.supervise([ChildSpec("callee", Fragile, gate, mailbox=Fate.KEEP)])
        asker = await node.spawn(Asker, responses)
        first = node.whereis("callee")
        node.send("callee", "fail")
        await wait_all_tasks_blocked()
        await node.call(asker, asks("callee", Double(7)))
        gate.set()
        await wait_all_tasks_blocked()

        assert [response.value for response in responses] == [14]
        assert node.whereis("callee") != first


async def test_a_request_through_a_service_waits_for_a_restart() -> None:
    responses: list[Response] = []
    gate = trio.Event()
    gate.set()
    slow = trio.Event()
    starts: list[int] = []

    class Slow(Fragile):
        async def init(self) -> None:
            starts.append(1)
            if len(starts) > 1:
                await slow.wait()

    async with running_node() as node:
        await node.supervise([ChildSpec("callee", Slow, gate)])
        asker = await node.spawn(Asker, responses)
        await node.call(asker, lambda me: me.service("callee").request(Double(1)))
        await wait_all_tasks_blocked()
        node.send("callee", "fail")
        await wait_all_tasks_blocked()

        service = await node.call(asker, lambda me: me.service("callee"))
        (waiting, cancelled) = await node.call(
            asker,
            lambda me: [me.service("callee").request(Double(number)) for number in (2, 3)],
        )
        queued = len(waiters_of(service))
        assert await node.call(asker, lambda me: me.cancel_request(cancelled))
        left = len(waiters_of(service))
        slow.set()
        await wait_all_tasks_blocked()

        assert (queued, left) == (2, 1)
        assert [response.value for response in responses] == [2, 4]
        assert responses[1].ref == waiting


async def test_a_request_through_a_service_that_is_gone_has_that_error(
    autojump_clock: MockClock,
) -> None:
    responses: list[Response] = []
    async with running_node() as node:
        tree = await node.supervise([ChildSpec("callee", Callee)])
        asker = await node.spawn(Asker, responses)
        service = await node.call(asker, lambda me: me.service("callee"))
        await tree.stop_child("callee")
        await tree.remove_child("callee")
        await node.call(asker, lambda _me: service.request(1))
        await trio.sleep(1)

        (response,) = responses
        assert isinstance(response.error, ServiceGoneError)


async def test_a_request_through_a_service_expires_while_its_child_restarts(
    autojump_clock: MockClock,
) -> None:
    responses: list[Response] = []
    gate = trio.Event()
    gate.set()
    starts: list[int] = []

    class Slow(Fragile):
        async def init(self) -> None:
            starts.append(1)
            if len(starts) > 1:
                await trio.sleep(3)

    async with running_node() as node:
        await node.supervise([ChildSpec("callee", Slow, gate)])
        asker = await node.spawn(Asker, responses)
        node.send("callee", "fail")
        await trio.sleep(0.1)
        await node.call(asker, lambda me: me.service("callee").request(Double(1), timeout=1.0))
        await trio.sleep(20)

        assert [type(response.error) for response in responses] == [CallTimeoutError]


async def test_a_service_of_the_node_makes_no_requests() -> None:
    async with running_node() as node:
        await node.supervise([ChildSpec("callee", Callee)])
        with pytest.raises(NotAllowedError, match=r"await service.call\(...\)"):
            node.service("callee").request(1)


async def test_a_trace_shows_requests_and_responses() -> None:
    async with running_node() as node:
        to = await node.spawn(Callee)
        asker = await node.spawn(Asker, [])
        entries: list[Any] = []
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                async with node.trace(asker, seconds=10) as trace:
                    nursery.start_soon(partial(node.call, asker, asks(to, Double(1))))
                    async for entry in trace:
                        entries.append(entry)
                        if entry.callback == "handle_response":
                            return

            nursery.start_soon(read)

        assert any(entry.callback == "handle_response" for entry in entries)


class _Waiting:
    """An asker with a single request, for a test of the request alone."""

    id = PID("test@localhost", 1, 1)

    def add_request(self, caller: Any) -> None:
        pass

    def drop_request(self, number: int) -> None:
        pass

    def takes_responses(self) -> bool:
        return False


def test_a_request_that_is_over_leaves_a_queue_at_once() -> None:
    asking: Any = _Waiting()
    request = RequestCaller(asking, 1, "to", "question")
    request.settle(None, None)
    left: list[int] = []

    request.wait_in(lambda: left.append(1))

    assert left == [1]


async def test_a_process_that_ends_abandons_its_open_requests() -> None:
    async with running_node() as node:
        silent = await node.spawn(Puppet)
        asker = await node.spawn(Puppet)
        gate = trio.Event()

        async def ask_and_end(me: Any) -> None:
            me.request(silent, lambda _: gate.wait(), timeout=None)
            me.stop()

        node.send(asker, ask_and_end)
        await node.wait_ended(asker)
        gate.set()

        assert await node.call(silent, None) == []
        assert node.info().late_replies == 1


@pytest.mark.parametrize("is_nested", [False, True])
async def test_a_request_made_in_an_init_that_fails_is_abandoned(is_nested: bool) -> None:
    class Failing(Actor):
        async def init(self) -> None:
            self.request(silent, lambda _: gate.wait(), timeout=None)
            if is_nested:
                await self.spawn(type("Inner", (Inner,), {}))
            raise LookupError

    class Inner(Actor):
        async def init(self) -> None:
            self.request(silent, lambda _: gate.wait(), timeout=None)
            await trio.sleep_forever()

    async with running_node() as node:
        silent = await node.spawn(Puppet)
        gate = trio.Event()
        with pytest.raises((InitError, InitTimeoutError)):
            await node.spawn(Failing, init_timeout=0.05)
        gate.set()

        assert await node.call(silent, None) == []


async def test_a_process_that_ends_in_a_single_step_abandons_its_requests() -> None:
    class Plain(Actor):
        def handle_call(self, request: Any, caller: Caller) -> None:
            self.request(silent, lambda _: gate.wait(), timeout=None)

    gate = trio.Event()
    async with running_node() as node:
        silent = await node.spawn(Puppet)
        parent = await node.spawn(Puppet)
        plain = await node.call(parent, lambda me: me.spawn(Plain))
        await node.call(plain, None)
        node.send_exit(parent, Normal())
        await node.wait_ended(plain)
        gate.set()

        assert await node.call(silent, None) == []


class Answering(Actor):
    """Answers with an exception that `reject` would refuse."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def handle_call(self, request: object, caller: Caller) -> object:
        caller.settle(None, self.error)
        return NO_REPLY


@pytest.mark.parametrize("error", [StopIteration(3), FutureCancelledError(), Failed("usual")])
async def test_a_future_raises_a_runtime_error_for_errors_that_it_refuses(
    error: Exception,
) -> None:
    async with running_node() as node:
        kernel = kernel_of(node)
        pid = await node.spawn(partial(Answering, error))
        future = ask_from_a_thread(
            kernel.calls, kernel.router, kernel.pid, pid, "anything", 5.0, Priority.NORMAL
        )
        await wait_all_tasks_blocked()
        raised = future.exception()

    if isinstance(error, Failed):
        assert raised is error
    else:
        assert isinstance(raised, RuntimeError)
        assert raised.__cause__ is error
