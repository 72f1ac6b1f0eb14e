"""A behaviour without a node: its callbacks are called, and its verbs are recorded."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from ergo_py import (
    NO_REPLY,
    Actor,
    Alias,
    BadInputError,
    Caller,
    Crashed,
    NotAllowedError,
    Published,
    Reason,
    Reject,
    Request,
    Response,
    Shutdown,
    StateMachine,
    Supervisor,
)
from ergo_py.errors import BehaviourError, CallbackError, UnhandledCallError
from ergo_py.meta import TCPServer
from ergo_py.testing import Alone
from ergo_py.testing.records.notes import Called, Publication, Sent
from tests.actors import Failed


@dataclass(frozen=True)
class Add:
    amount: int


@dataclass(frozen=True)
class Total(Request[int]):
    pass


class Counter(Actor):
    def __init__(self, start: int = 0, *, step: int = 1) -> None:
        self.total = start
        self.step = step

    async def handle_message(self, message: object, sender: Any) -> None:
        match message:
            case Add(amount):
                self.total += amount * self.step
                self.send(sender, self.total)

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Total():
                return self.total
        raise Reject(LookupError("no answer"))

    def handle_inspect(self, *items: str) -> Mapping[str, str]:
        return {"total": str(self.total), **dict.fromkeys(items, "?")}


async def test_messages_and_calls_are_handled_and_sends_are_recorded() -> None:
    alone = Alone(Counter, 5)
    sender = Alias("n", 1, 9)

    await alone.message(Add(3), sender)
    total = await alone.call(Total())
    inspected = await alone.inspect("other")

    assert total == 8
    assert alone.sent == [Sent(sender, 8)]
    assert alone.messages == [8]
    assert alone.behaviour.total == 8
    assert inspected == {"total": "8", "other": "?"}
    assert alone.stopped is None
    assert repr(alone) == "<Alone Counter>"


async def test_arguments_may_be_given_as_to_spawn() -> None:
    alone = Alone(partial(Counter, step=10), 1)

    await alone.message(Add(2))

    assert await alone.call(Total()) == 21


async def test_a_rejected_call_raises_in_the_test_and_the_behaviour_continues() -> None:
    alone = Alone(Counter)

    with pytest.raises(LookupError):
        await alone.call("what?")

    assert await alone.call(Total()) == 0


class Desk(Actor):
    """Defers its requests until it is told to answer."""

    async def init(self) -> None:
        self.callers: list[Caller] = []
        self.clerk = await self.spawn(Counter, 1, name="clerk")
        self.server = await self.spawn_meta(TCPServer("127.0.0.1", 0), backlog=5)
        self.monitor(self.clerk)
        self.link("other")
        self.subscribe("news")
        self.token = self.register_event("ours")
        self.trap_exit = True
        self.register("desk")
        self.log.info("ready", clerks=1)

    def post_start(self) -> None:
        self.publish("ours", "open")
        self.tick = self.send_every(2, self.pid, "tick")
        self.late = self.send_after(5, "boss", "late")

    async def handle_call(self, request: Any, caller: Caller) -> object:
        if request == "ask the clerk":
            return await self.call(self.clerk, Total())
        self.callers.append(caller)
        return NO_REPLY

    def handle_message(self, message: Any, sender: Any) -> None:
        match message:
            case "answer":
                self.reply(self.callers.pop(0), "at last")
            case "refuse":
                self.reply_error(self.callers.pop(0), Failed("no"))
            case "tick":
                self.send("boss", "ticked")
            case "quiet":
                self.tick.cancel()
            case "crash":
                raise Failed("on purpose")
            case "leave":
                self.send_exit(self.clerk, Shutdown())
                self.kill("other")
                self.unlink("other")
                self.demonitor(self.clerk)
                self.unsubscribe("news")
                self.unregister_event("ours")
                self.unregister()
                self.stop("enough")

    def handle_event(self, event: Published) -> None:
        self.send("boss", (event.event.name, event.message))

    def handle_child_exit(self, child: Any, reason: Reason) -> None:
        self.send("boss", (child, reason))

    def terminate(self, reason: Reason) -> None:
        self.send("boss", reason)


async def test_spawns_monitors_and_links_are_recorded_and_not_performed() -> None:
    alone = Alone(Desk, env={"colour": "green"})

    await alone.init()
    await alone.init()

    process, meta = alone.spawned
    assert (process.behaviour, process.args, process.options) == (Counter, (1,), {"name": "clerk"})
    assert isinstance(meta.behaviour, TCPServer)
    assert meta.options == {"backlog": 5}
    assert alone.behaviour.server == meta.id
    assert (alone.monitors, alone.links, alone.subscribed, alone.events) == (
        [process.id],
        ["other"],
        ["news"],
        ["ours"],
    )
    assert alone.published == [Publication("ours", "open")]
    assert alone.logged == [{"level": "info", "event": "ready", "clerks": 1}]
    assert alone.behaviour.registered_name == "desk"
    assert alone.behaviour.env == {"colour": "green"}
    assert alone.behaviour.trap_exit is True


async def test_an_answer_may_come_later() -> None:
    alone = Alone(Desk)
    first, second = await alone.ask("one"), await alone.ask("two")
    with pytest.raises(AssertionError, match="deferred"):
        first.result()
    with pytest.raises(AssertionError, match="deferred"):
        await alone.call("three")

    await alone.message("answer")
    await alone.message("refuse")

    assert first.answered
    assert first.result() == "at last"
    with pytest.raises(Failed):
        second.result()


async def test_calls_of_the_behaviour_are_answered_by_the_test() -> None:
    alone = Alone(Desk)
    with pytest.raises(AssertionError, match=r"was asked Total\(\), and no answer is known"):
        await alone.call("ask the clerk")
    alone = Alone(Desk)
    alone.answer(Total, 7)
    refusing = Alone(Desk)
    refusing.answer(lambda request: True, Failed("closed"))

    answer = await alone.call("ask the clerk")
    with pytest.raises(Failed):
        await refusing.call("ask the clerk")

    assert answer == 7
    assert alone.calls == [Called(alone.behaviour.clerk, Total())]


async def test_a_request_is_recorded_and_answered_by_the_test() -> None:
    class Asks(Actor):
        def __init__(self) -> None:
            self.answers: list[Any] = []

        def handle_message(self, message: Any, sender: Any) -> None:
            self.ref = self.request("clerk", message)
            if message == "cancelled":
                assert self.cancel_request(self.ref)
                assert not self.cancel_request(self.ref)

        def handle_response(self, response: Response) -> None:
            self.answers.append((response.ref == self.ref, response.value, response.error))

    alone = Alone(Asks)
    for message in ("cancelled", "first", "second"):
        await alone.message(message)
    first, second = alone.requests
    await alone.respond(second, 7)
    await alone.respond(first, refusal := Failed("closed"))

    assert (first.to, first.request, second.request) == ("clerk", "first", "second")
    assert alone.behaviour.answers == [(True, 7, None), (False, None, refusal)]
    assert alone.requests == []
    with pytest.raises(BadInputError, match="still open"):
        await alone.respond(first, "again")


async def test_timers_fire_when_the_test_lets_time_pass() -> None:
    alone = Alone(Desk)
    await alone.init()
    armed = [(one.delay, one.period, one.to, one.message) for one in alone.timers]

    await alone.pass_time(5.5)
    after = alone.messages.copy()
    await alone.message("quiet")
    await alone.pass_time(100)

    assert armed == [(2, 2, alone.pid, "tick"), (5, 0.0, "boss", "late")]
    assert after == ["ticked", "ticked", "late"]
    assert alone.messages == after
    assert alone.timers == []


async def test_events_and_child_exits_reach_the_behaviour() -> None:
    alone = Alone(Desk)

    await alone.event("news", "rain")
    await alone.child_exit(alone.pid, Shutdown())

    assert alone.messages == [("news", "rain"), (alone.pid, Shutdown())]


async def test_a_stopped_behaviour_handles_only_terminate() -> None:
    alone = Alone(Desk)

    await alone.message("leave")
    with pytest.raises(NotAllowedError, match="it has stopped"):
        await alone.message("tick")
    await alone.terminate()

    assert str(alone.stopped) == "enough"
    assert alone.exits == [Sent(alone.behaviour.clerk, Shutdown())]
    assert alone.killed == ["other"]
    assert (alone.links, alone.monitors, alone.subscribed, alone.events) == ([], [], [], [])
    assert alone.messages == [alone.stopped]


async def test_a_crash_is_an_exception_in_the_test() -> None:
    alone = Alone(Desk)

    with pytest.raises(Failed, match="on purpose"):
        await alone.message("crash")

    assert isinstance(alone.stopped, Crashed)


async def test_missing_callbacks_behave_as_on_a_node() -> None:
    class Silent(Actor):
        pass

    alone = Alone(Silent)
    await alone.message("unknown")

    with pytest.raises(UnhandledCallError, match="Silent"):
        await alone.call("unknown")

    assert alone.logged[0]["event"] == "unhandled message"


async def test_verbs_that_need_a_node_raise() -> None:
    class Nosy(Actor):
        def handle_call(self, request: Any, caller: Caller) -> object:
            return self.node.info() if request == "node" else self.service("db")

    for request in ("node", "service"):
        with pytest.raises(NotAllowedError, match="alone has no"):
            await Alone(Nosy).call(request)


def test_verbs_in_the_constructor_and_supervisors_are_refused() -> None:
    class Hasty(Actor):
        def __init__(self) -> None:
            self.send("boss", "too early")

    with pytest.raises(NotAllowedError, match="__init__"):
        Alone(Hasty)
    for behaviour in (Supervisor, StateMachine):
        with pytest.raises(BadInputError, match="test those on a node"):
            Alone(behaviour)


# -- mistakes --------------------------------------------------------------------------------------


async def test_a_mistake_in_a_class_has_the_same_answer_as_on_a_node() -> None:
    class Clock(Actor):
        def __init__(self) -> None:
            self.stop = False  # type: ignore[method-assign, assignment]  # pyright: ignore[reportAttributeAccessIssue]

    class Deaf(Actor):
        def handle_cal(self, request: object, caller: Caller) -> int:
            return 5

    class Mute(Actor):
        def handle_call(self, request: object, caller: Caller) -> None:
            """Answers None to everything."""

        def handle_inspect(self, *items: str) -> Any:
            return "fine"

    with pytest.raises(BehaviourError, match=r"replaces `self\.stop`"):
        Alone(Clock)
    with pytest.raises(UnhandledCallError, match="did you mean that where it has handle_cal"):
        await Alone(Deaf).call(5)
    with pytest.raises(UnhandledCallError, match="answered None to Total"):
        await Alone(Mute).call(Total())
    with pytest.raises(CallbackError, match="it must return a dict of strings"):
        await Alone(Mute).inspect()


async def test_the_logger_can_be_rebound() -> None:
    class Chatty(Actor):
        def handle_message(self, message: object, sender: object) -> None:
            self.log = self.log.bind(order=5)
            self.log.info("bound")

    alone = Alone(Chatty)
    await alone.message("log")

    assert alone.logged == [{"level": "info", "event": "bound", "order": 5}]
