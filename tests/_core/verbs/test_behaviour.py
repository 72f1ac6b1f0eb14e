"""The verbs of a process: timers; and the errors of all verbs after misuse."""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, get_args

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Alias,
    BadInputError,
    Caller,
    Divert,
    MetaProcess,
    Name,
    Normal,
    NotAllowedError,
    Overflow,
    Priority,
    Reject,
    TargetDownError,
    Why,
)
from ergo_py.errors import BehaviourError
from tests.actors import Failed, Puppet, Recorder
from tests.support import refused, running_node

HERE = "test@localhost"
T = TypeVar("T")


# -- timers ----------------------------------------------------------------------------------------


async def test_send_after_sends_once_after_its_delay_with_the_process_as_sender(
    autojump_clock: MockClock,
) -> None:
    arrived: list[Any] = []

    class Receiver(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            arrived.append((message, sender, trio.current_time()))

    async with running_node() as node:
        receiver, puppet = await node.spawn(Receiver), await node.spawn(Puppet)

        timer = await node.call(puppet, lambda me: me.send_after(2.5, receiver, "later"))
        before = timer.active
        await trio.sleep(10)

        assert before
        assert arrived == [("later", puppet, 2.5)]
        assert not timer.active
        assert timer.cancel() is False
        assert node.info().timers == 0


async def test_send_every_sends_until_it_is_cancelled(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        receiver, puppet = await node.spawn(Recorder, heard), await node.spawn(Puppet)

        timer = await node.call(puppet, lambda me: me.send_every(1, receiver, "tick"))
        await trio.sleep(3.5)
        cancelled = timer.cancel(), timer.cancel()
        await trio.sleep(3)

        assert heard == ["tick"] * 3
        assert cancelled == (True, False)
        assert node.info().timers == 0


async def test_a_timer_cancelled_before_it_is_due_sends_no_message(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        receiver, puppet = await node.spawn(Recorder, heard), await node.spawn(Puppet)
        timer = await node.call(puppet, lambda me: me.send_after(1, receiver, "never"))

        cancelled = timer.cancel()
        await trio.sleep(2)

        assert cancelled is True
        assert heard == []


async def test_a_timer_resolves_its_target_when_it_fires(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        puppet = await node.spawn(Puppet)
        await node.call(
            puppet,
            lambda me: (me.send_after(1, "later", "hello"), me.send_after(1, "nobody", "hello")),
        )

        await node.spawn(Recorder, heard, name="later")
        await trio.sleep(2)

        assert heard == ["hello"]
        assert node.info().dead_letters == {Why.NO_PROCESS: 1}


async def test_a_timer_has_its_priority_and_a_full_receiver_is_no_error(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        receiver, puppet = await node.spawn(Puppet, heard, mailbox_size=1), await node.spawn(Puppet)
        gate = trio.Event()
        node.send(receiver, lambda me: gate.wait())
        await wait_all_tasks_blocked()

        await node.call(
            puppet,
            lambda me: [
                me.send_after(delay, receiver, text, priority=priority)
                for delay, text, priority in (
                    (1, "normal", Priority.NORMAL),
                    (2, "too many", Priority.NORMAL),
                    (3, "urgent", Priority.MAX),
                )
            ],
        )
        await trio.sleep(4)
        gate.set()
        await wait_all_tasks_blocked()

        assert heard == ["urgent", "normal"]
        assert node.process_info(receiver).dropped == 1
        assert puppet in node.processes()


# -- misuse ----------------------------------------------------------------------------------------


VERBS: dict[str, Callable[[Any], Any]] = {
    "call": lambda me: me.call("other", 1),
    "spawn": lambda me: me.spawn(Puppet),
    "stop": lambda me: me.stop(),
    "register": lambda me: me.register("name"),
    "unregister": lambda me: me.unregister(),
    "create_alias": lambda me: me.create_alias(),
    "delete_alias": lambda me: me.delete_alias(Alias(HERE, 1, 1)),
    "link": lambda me: me.link("other"),
    "unlink": lambda me: me.unlink("other"),
    "monitor": lambda me: me.monitor("other"),
    "demonitor": lambda me: me.demonitor("other"),
    "send_after": lambda me: me.send_after(1, "other", 1),
    "send_every": lambda me: me.send_every(1, "other", 1),
    "trap_exit": lambda me: setattr(me, "trap_exit", True),
    "send_priority": lambda me: setattr(me, "send_priority", Priority.HIGH),
    "reply": lambda me: me.reply(None, 1),
}
EVERYWHERE: dict[str, Callable[[Any], Any]] = {
    "send": lambda me: me.send("other", 1),
    "send_wait": lambda me: me.send_wait("other", 1),
    "send_exit": lambda me: me.send_exit("other", Normal()),
    "kill": lambda me: me.kill("other"),
    "pid": lambda me: me.pid,
    "parent": lambda me: me.parent,
    "node": lambda me: me.node,
    "env": lambda me: me.env,
    "log": lambda me: me.log,
    "registered_name": lambda me: me.registered_name,
}


@pytest.mark.parametrize("verb", [*VERBS, *EVERYWHERE])
async def test_no_verb_works_in_the_constructor_and_each_error_names_the_right_place(
    autojump_clock: MockClock, verb: str
) -> None:
    class Early(Actor):
        def __init__(self) -> None:
            result = {**VERBS, **EVERYWHERE}[verb](self)
            if hasattr(result, "send"):
                # An async verb is refused when it is driven.
                result.send(None)

    async with running_node() as node:
        with pytest.raises(
            Exception, match="while __init__ runs; do this in `async def init"
        ) as caught:
            await node.spawn(Early)

        assert isinstance(caught.value.__cause__, NotAllowedError)
        assert node.info().processes == 0


@pytest.mark.parametrize("verb", VERBS)
async def test_a_sleeping_process_cannot_be_made_to_act_from_outside(
    autojump_clock: MockClock, verb: str
) -> None:
    behaviours: list[Puppet] = []

    def show(me: Puppet) -> None:
        behaviours.append(me)

    async with running_node() as node:
        await node.spawn(Puppet, name="other")
        pid = await node.spawn(Puppet)
        await node.call(pid, show)
        await wait_all_tasks_blocked()
        before = node.info()

        with pytest.raises(NotAllowedError, match="acts inside its own callbacks"):
            result = VERBS[verb](behaviours[0])
            await result

        after = node.info()
        assert (after.processes, after.names, after.aliases) == (
            before.processes,
            before.names,
            before.aliases,
        )
        assert (after.relations, after.timers) == (0, 0)


@pytest.mark.parametrize("verb", VERBS)
async def test_a_process_that_has_ended_cannot_act(autojump_clock: MockClock, verb: str) -> None:
    behaviours: list[Puppet] = []

    def show(me: Puppet) -> None:
        behaviours.append(me)

    async with running_node() as node:
        await node.spawn(Puppet, name="other")
        pid = await node.spawn(Puppet)
        await node.call(pid, show)
        node.kill(pid)
        await wait_all_tasks_blocked()

        with pytest.raises(NotAllowedError, match="has ended"):
            result = VERBS[verb](behaviours[0])
            await result

        info = node.info()
        assert (info.processes, info.names, info.aliases, info.relations, info.timers) == (
            1,
            1,
            0,
            0,
            0,
        )


async def test_verbs_that_are_allowed_everywhere_work_while_the_process_sleeps(
    autojump_clock: MockClock,
) -> None:
    behaviours: list[Puppet] = []
    heard: list[Any] = []

    def show(me: Puppet) -> None:
        behaviours.append(me)

    async with running_node() as node:
        await node.spawn(Puppet, heard, name="other")
        pid = await node.spawn(Puppet)
        await node.call(pid, show)
        await wait_all_tasks_blocked()

        for name in (
            "send",
            "send_wait",
            "pid",
            "parent",
            "node",
            "env",
            "log",
            "registered_name",
            "kill",
        ):
            result = EVERYWHERE[name](behaviours[0])
            if hasattr(result, "__await__"):
                await result
        await wait_all_tasks_blocked()

        assert heard in ([1, 1], [])
        assert node.whereis("other") is None


class NoInit(Actor):
    async def init(self, extra: int) -> None: ...  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]


class NoSender(Actor):
    def handle_message(self, message: Any) -> None: ...  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]


class NoCaller(Actor):
    async def handle_call(self, request: Any) -> None: ...  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]


class NoReason(Actor):
    def terminate(self) -> None: ...  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]


class NoItems(Actor):
    def handle_inspect(self) -> dict[str, str]:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        return {}


class NoMethod(Actor):
    handle_message = 7  # type: ignore[assignment] # pyright: ignore[reportAssignmentType]


@pytest.mark.parametrize(
    "behaviour, text",
    [
        (Puppet(), r"`spawn\(Puppet, …\)`"),
        (Failed("no behaviour"), r"`spawn\(Counter, 5\)`"),
        (Failed, r"`spawn\(Counter, 5\)`"),
        (int, "a subclass of Actor"),
        ("Puppet", "a subclass of Actor"),
        (None, "a subclass of Actor"),
        (lambda: Puppet([]), "a subclass of Actor"),
        (partial(int, 3), "a subclass of Actor"),
        (MetaProcess, r"`await self\.spawn_meta\(MetaProcess\(…\)\)`"),
        (MetaProcess(), r"`await self\.spawn_meta\(MetaProcess\(…\)\)`"),
        (NoInit, r"`def init\(self\)`"),
        (NoSender, r"`def handle_message\(self, message, sender\)`"),
        (NoCaller, r"`def handle_call\(self, request, caller\)`"),
        (NoReason, r"`def terminate\(self, reason\)`"),
        (NoItems, r"`def handle_inspect\(self, \*items\)`"),
        (NoMethod, r"a method: def handle_message"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:30],
)
async def test_a_class_that_is_no_behaviour_is_refused_with_a_hint(
    autojump_clock: MockClock, behaviour: Any, text: str
) -> None:
    async with running_node() as node:
        puppet = await node.spawn(Puppet)

        with pytest.raises(BehaviourError, match=text) as caught:
            await node.spawn(behaviour, name="half made")
        await node.call(
            puppet, refused(BehaviourError, lambda me: me.spawn(behaviour, name="half made"), text)
        )

        assert isinstance(caught.value, TypeError)
        assert node.processes() == [puppet]
        assert node.whereis("half made") is None


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": 7},
        {"mailbox_size": 0},
        {"mailbox_size": -1},
        {"mailbox_size": 2.5},
        {"mailbox_size": True},
        {"overflow": "raise"},
        {"overflow": None},
        {"priority": 1},
        {"priority": "high"},
        {"init_timeout": -1},
        {"init_timeout": None},
        {"terminate_timeout": -0.1},
        {"shutdown": -1},
        {"shutdown": float("nan")},
        {"env": "key=value"},
        {"log_level": "loud"},
        {"mailbox": 5},
        {"nmae": "misspelt"},
    ],
    ids=repr,
)
async def test_spawn_refuses_invalid_options(
    autojump_clock: MockClock, options: dict[str, Any]
) -> None:
    [(key, value)] = options.items()
    async with running_node() as node:
        puppet = await node.spawn(Puppet)

        with pytest.raises(BadInputError, match=key) as caught:
            await node.spawn(Puppet, **options)
        await node.call(puppet, refused(BadInputError, lambda me: me.spawn(Puppet, **options), key))

        assert isinstance(caught.value, ValueError)
        assert repr(value) in str(caught.value)
        assert "allowed is" in str(caught.value)
        assert node.processes() == [puppet]


async def test_an_unknown_option_of_spawn_explains_how_to_pass_arguments(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        with pytest.raises(BadInputError, match=r"Behaviour\.spec"):
            await node.spawn(Puppet, heard=[])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_the_messages_that_a_class_declares_are_for_type_checkers_only() -> None:
    class Declaring(Actor[int | str]):
        pass

    class OfParts(Actor[T], Generic[T]):
        pass

    assert Declaring.__bases__ == (Actor,)
    assert OfParts.__bases__ == (Actor, Generic)
    assert get_args(OfParts[int]) == (int,)


async def test_a_class_with_its_type_parameter_is_spawned_as_the_class() -> None:
    class OfParts(Puppet, Generic[T]):
        pass

    async with running_node() as node:
        for behaviour in (OfParts[int], partial(OfParts[int])):
            assert await node.call(await node.spawn(behaviour), "all") == []


async def test_a_node_cannot_be_linked(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        with pytest.raises(BadInputError, match="a process spawns"):
            await node.spawn(Puppet, link=True)

        assert node.processes() == []


@pytest.mark.parametrize("value", [-1, -0.001, float("nan"), "1", None, True], ids=repr)
async def test_invalid_times_are_refused(autojump_clock: MockClock, value: Any) -> None:
    async with running_node() as node:
        puppet = await node.spawn(Puppet, name="puppet")
        plain: list[Callable[[Any], Any]] = [
            lambda it: it.send_after(value, "puppet", 1),
            lambda it: it.send_every(value, "puppet", 1),
        ]
        timed: list[Callable[[Any], Any]] = [
            lambda it: it.call("puppet", 1, timeout=value),
            lambda it: it.send_wait("puppet", 1, timeout=value),
        ]

        for verb in plain if value is None else (*plain, *timed):
            await refused(BadInputError, verb, "a number from|allowed is")(node)
            await node.call(puppet, refused(BadInputError, verb))
        if value is not None:
            await refused(BadInputError, lambda it: it.inspect("puppet", timeout=value))(node)
        await trio.sleep(5)

        assert node.info().timers == 0
        assert await node.call(puppet, None) == []


@pytest.mark.parametrize("period", [0, 0.0, 1e-9], ids=repr)
async def test_a_period_of_zero_or_less_is_refused(
    autojump_clock: MockClock, period: float
) -> None:
    async with running_node() as node:
        puppet = await node.spawn(Puppet)

        await node.call(
            puppet, refused(BadInputError, lambda me: me.send_every(period, me.pid, 1), "period")
        )
        with pytest.raises(BadInputError, match="period"):
            node.send_every(period, puppet, 1)


@pytest.mark.parametrize("name", ["", 7, None, b"name"], ids=repr)
async def test_invalid_names_are_refused(autojump_clock: MockClock, name: Any) -> None:
    async with running_node() as node:
        puppet = await node.spawn(Puppet)

        await node.call(
            puppet, refused(BadInputError, lambda me: me.register(name), "a str that is not empty")
        )
        verbs: list[Callable[[], Any]] = [
            lambda: node.register(name, puppet),
            lambda: node.unregister(name),
            lambda: node.whereis(name),
        ]
        for verb in verbs:
            with pytest.raises(BadInputError, match="a str that is not empty"):
                verb()

        assert node.info().names == 0


@pytest.mark.parametrize("to", ["", 7, None, PID(HERE, 1, 1)], ids=repr)
async def test_a_diversion_must_name_a_process(to: Any) -> None:
    with pytest.raises(BadInputError, match="registered name"):
        Divert(to)


async def test_a_rejection_must_be_an_exception(autojump_clock: MockClock) -> None:
    class Confused(Actor):
        async def handle_call(self, request: Any, caller: Caller) -> object:
            raise Reject("no such key")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

    async with running_node() as node:
        pid = await node.spawn(Confused)

        with pytest.raises(TargetDownError) as caught:
            await node.call(pid, 1)

        assert isinstance(caught.value.__cause__, BadInputError)
        assert "Reject(ValueError" in str(caught.value.__cause__)


async def test_replies_need_a_caller_and_errors_need_an_exception(
    autojump_clock: MockClock,
) -> None:
    callers: list[Caller] = []

    class Keeping(Puppet):
        async def handle_call(self, request: Any, caller: Caller) -> object:
            if isinstance(request, str):
                callers.append(caller)
                return NO_REPLY
            return await super().handle_call(request, caller)

    async with running_node() as node:
        pid = await node.spawn(Keeping)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await node.call(pid, "keep"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            wrong: Any
            for wrong in (None, pid, 7):
                await node.call(
                    pid,
                    refused(BadInputError, lambda me, wrong=wrong: me.reply(wrong, 1), "Caller"),
                )
                await node.call(
                    pid,
                    refused(
                        BadInputError,
                        lambda me, wrong=wrong: me.reply_error(wrong, Failed()),
                        "Caller",
                    ),
                )
                with pytest.raises(BadInputError, match="Caller"):
                    node.reply(wrong, 1)
                with pytest.raises(BadInputError, match="Caller"):
                    node.reply_error(wrong, Failed())
            await node.call(
                pid,
                refused(
                    BadInputError, lambda me: me.reply_error(callers[0], "why"), "an exception"
                ),
            )
            with pytest.raises(BadInputError, match="an exception"):
                node.reply_error(callers[0], "why")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            node.reply(callers[0], "still open")

        assert answers == ["still open"]


@pytest.mark.parametrize("origin", [None, "name", 7, Name("name")], ids=repr)
async def test_a_message_can_be_forwarded_only_with_a_valid_sender(
    autojump_clock: MockClock, origin: Any
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        receiver, puppet = await node.spawn(Recorder, heard), await node.spawn(Puppet)

        await node.call(
            puppet, refused(BadInputError, lambda me: me.forward(receiver, 1, origin), "sender")
        )
        await wait_all_tasks_blocked()

        assert heard == []


async def test_an_invalid_priority_is_refused_by_every_verb_of_a_process(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        receiver, puppet = await node.spawn(Recorder, heard), await node.spawn(Puppet)
        wrong: Any
        for wrong in (7, -1, "high"):
            for verb in (
                lambda me, wrong=wrong: me.send(receiver, 1, priority=wrong),
                lambda me, wrong=wrong: me.send_wait(receiver, 1, priority=wrong),
                lambda me, wrong=wrong: me.call(receiver, 1, priority=wrong),
                lambda me, wrong=wrong: me.forward(receiver, 1, puppet, priority=wrong),
                lambda me, wrong=wrong: me.send_after(1, receiver, 1, priority=wrong),
                lambda me, wrong=wrong: setattr(me, "send_priority", wrong),
            ):
                await node.call(puppet, refused(BadInputError, verb, "Priority"))

        await wait_all_tasks_blocked()
        assert heard == []
        assert node.info().timers == 0


async def test_process_info_shows_the_mailbox_size(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet, mailbox_size=3, overflow=Overflow.DROP_OLDEST)

        assert node.process_info(pid).mailbox_size == 3


async def test_a_process_knows_the_priority_it_sends_with() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        before = await node.call(pid, lambda me: me.send_priority)
        await node.call(pid, lambda me: setattr(me, "send_priority", Priority.HIGH))

        after = await node.call(pid, lambda me: me.send_priority)

    assert (before, after) == (Priority.NORMAL, Priority.HIGH)


async def test_a_process_may_register_several_events() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        for name in ("first", "second"):
            await node.call(pid, lambda me, name=name: me.register_event(name))

        registered = {"first", "second"} & node.events().keys()
        node.kill(pid)
        await wait_all_tasks_blocked()

        assert registered == {"first", "second"}
        assert not registered & node.events().keys()
