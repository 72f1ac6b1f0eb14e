"""The verbs of a meta-process, from which side and when; and the errors of refused verbs."""

import threading
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    Alias,
    BadInputError,
    Caller,
    CallTimeoutError,
    Crashed,
    Custom,
    ErgoError,
    InitError,
    Killed,
    MetaProcess,
    NodeStoppedError,
    NoProcess,
    Normal,
    NotAllowedError,
    Priority,
    Reason,
    Ref,
    Reject,
    TargetDownError,
)
from ergo_py._core.metas.spawn import spawn_meta_from_thread
from ergo_py._core.tables.pending_calls import Expiry
from ergo_py._core.vocabulary.errors import TooManyReadersError
from ergo_py._core.vocabulary.options import META_DEFAULTS
from ergo_py._core.vocabulary.states import (
    META_ALLOWED,
    META_TRANSITIONS,
    MetaOperation,
    MetaState,
    check_meta_transition,
)
from ergo_py.errors import BehaviourError, ProcessUnknownError, TargetTypeError
from tests._core.metas.metas import (
    COLOURS,
    InTask,
    InThread,
    InThreadServedOnLoop,
    Owned,
    in_thread,
    owning,
)
from tests.actors import Failed, LogKeeper, Puppet
from tests.meta.support import meta_of
from tests.support import kernel_of

# -- operations allowed in each state --------------------------------------------------------------
#
# The table of the documentation, written down again: a change of the table in the code must be
# meant.

ALLOWED_IN = {
    MetaOperation.SEND: "sleep running terminated",
    MetaOperation.IDENTIFY: "sleep running terminated",
    MetaOperation.LOG: "sleep running terminated",
    MetaOperation.SPAWN: "sleep running",
    MetaOperation.ARM_TIMER: "sleep running",
    MetaOperation.REQUEST: "sleep running",
    MetaOperation.STOP: "sleep running",
    MetaOperation.REPLY: "running",
    MetaOperation.CONFIGURE: "running",
}


def use_identity(me: Any) -> None:
    assert isinstance(me.id, Alias)
    assert me.parent is not None
    assert dict(me.env) == {}
    assert me.send_priority is Priority.NORMAL


def reply_to_nobody(me: Any) -> None:
    me.reply(NOBODY, "value")


class Nobody(Caller):
    __slots__ = ()

    def awaken(self) -> None: ...


NOBODY: Caller = Nobody(Alias("test@localhost", 1, 1), 1, "nobody", "nothing")

DO: dict[MetaOperation, Callable[[Any], Any]] = {
    MetaOperation.SEND: lambda me: me.send(me.parent, "message"),
    MetaOperation.IDENTIFY: use_identity,
    MetaOperation.LOG: lambda me: me.log.info("line"),
    MetaOperation.SPAWN: lambda me: me.spawn(InThread()),
    MetaOperation.ARM_TIMER: lambda me: me.send_after(60, me.parent, "later"),
    MetaOperation.REQUEST: lambda me: me.request(me.parent, "question"),
    MetaOperation.STOP: lambda me: me.stop("done"),
    MetaOperation.REPLY: reply_to_nobody,
    MetaOperation.CONFIGURE: lambda me: setattr(me, "send_priority", Priority.NORMAL),
}


def test_the_tables_are_complete_and_match_this_file() -> None:
    assert META_ALLOWED.keys() == ALLOWED_IN.keys() == DO.keys() == set(MetaOperation)
    for operation, states in META_ALLOWED.items():
        assert {state.value for state in states} == set(ALLOWED_IN[operation].split())


def test_the_states_change_as_the_picture_shows() -> None:
    changes = {(old.name, new.name) for old, news in META_TRANSITIONS.items() for new in news}

    assert changes == {
        ("SLEEP", "RUNNING"),
        ("RUNNING", "SLEEP"),
        ("SLEEP", "TERMINATED"),
        ("RUNNING", "TERMINATED"),
    }
    with pytest.raises(AssertionError, match="no transition from TERMINATED to RUNNING"):
        check_meta_transition(MetaState.TERMINATED, MetaState.RUNNING)


async def attempt(
    owned: Owned, meta: Any, state: MetaState, action: Callable[[Any], Any]
) -> BaseException | None:
    """Have a meta-process do ``action`` in some state, in a thread; returns the error it raised."""
    raised: list[BaseException | None] = []

    def act(me: Any) -> None:
        assert meta_of(me).state is state
        try:
            action(me)
        except NotAllowedError as error:
            raised.append(error)
        else:
            raised.append(None)

    match state:
        case MetaState.SLEEP:
            meta.give(act)
        case MetaState.RUNNING:
            owned.node.send(meta.id, act)
        case MetaState.TERMINATED:
            meta.last_act = act
            owned.node.send_exit(meta.id)
    await owned.until(lambda: bool(raised))
    return raised[0]


class Acts(InThread):
    """Does something in ``terminate``."""

    last_act: Callable[[Any], None] | None = None

    def terminate(self, reason: object) -> None:
        if self.last_act is not None:
            self.last_act(self)


@pytest.mark.parametrize("state", MetaState)
@pytest.mark.parametrize("operation", MetaOperation)
async def test_a_meta_process_does_only_operations_allowed_in_its_state(
    operation: MetaOperation, state: MetaState
) -> None:
    async with owning() as owned:
        meta = Acts()
        await owned.spawn(meta)

        raised = await attempt(owned, meta, state, DO[operation])

        if state.value in ALLOWED_IN[operation].split():
            assert raised is None
        else:
            assert f"may not {operation.value} while its state is {state.value}: " in str(raised)
            hint = {
                MetaState.SLEEP: "self.send(self.id, message)",
                MetaState.TERMINATED: "before terminate",
            }[state]
            assert hint in str(raised)


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    "verb, instead", [("call", "self.request"), ("link", "its owner"), ("monitor", "owner monitor")]
)
async def test_neither_reader_nor_handler_can_call_link_or_monitor(
    colour: type[Any], verb: str, instead: str
) -> None:
    def do(me: Any) -> None:
        args = (me.parent, "request") if verb == "call" else (me.parent,)
        with pytest.raises(NotAllowedError, match=instead):
            getattr(me, verb)(*args)

    async with owning() as owned:
        meta = colour()
        await owned.spawn(meta)

        await owned.in_reader(meta, do)
        await owned.in_handler(meta, do)


def test_a_meta_process_cannot_act_before_it_is_spawned() -> None:
    uses: list[Callable[[Any], Any]] = [
        lambda me: me.id,
        lambda me: me.send("x", 1),
        lambda me: me.log,
        lambda me: me.stop(),
    ]
    for use in uses:
        with pytest.raises(NotAllowedError, match="was not spawned yet"):
            use(InThread())


# -- identity and sending --------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
async def test_messages_of_a_meta_process_have_its_alias_as_sender(colour: type[Any]) -> None:
    senders: list[Any] = []

    class Listens(Puppet):
        async def handle_message(self, message: Any, sender: Any) -> None:
            senders.append((message, sender))

    async with owning() as owned:
        listener = await owned.node.spawn(Listens)
        meta = colour()
        alias = await owned.spawn(meta)
        await owned.in_reader(meta, lambda me: me.send(listener, "reader"))
        await owned.in_handler(meta, lambda me: me.send(listener, "handler"))
        await owned.in_reader(meta, lambda me: me.send_after(0, listener, "timer"))
        await owned.until(lambda: len(senders) == 3)

        assert dict(senders) == dict.fromkeys(("reader", "handler", "timer"), alias)
        assert owned.node.meta_info(alias).messages_out == 2


async def test_the_environment_of_a_meta_process_overrides_that_of_its_owner() -> None:
    async with owning(env={"a": 1, "b": 1}) as owned:
        parent, child = InThread(), InThread()
        await owned.spawn(parent, env={"b": 2, "c": 2})
        await owned.in_reader(parent, lambda me: me.spawn(child, env={"c": 3}))

        assert dict(parent.env) == {"a": 1, "b": 2, "c": 2}
        assert dict(child.env) == {"a": 1, "b": 2, "c": 3}
        assert child.parent == parent.parent == owned.owner


async def test_priorities_are_given_once_or_with_each_message() -> None:
    order: list[str] = []
    hold = trio.Event()

    class Ordered(Puppet):
        async def handle_message(self, message: Any, sender: Any) -> None:
            if message == "hold":
                await hold.wait()
            else:
                order.append(message)

    async with owning() as owned:
        receiver = await owned.node.spawn(Ordered)
        meta = InThread()
        await owned.spawn(meta, priority=Priority.HIGH)
        default = meta.send_priority
        # A thread's messages come separately: so that all are compared, nothing is served before
        # the last is there.
        owned.node.send(receiver, "hold")
        await wait_all_tasks_blocked()

        def send_all(me: Any) -> None:
            me.send(receiver, "high by default")
            me.send_priority = Priority.MAX
            me.send(receiver, "max by default")
            me.send(receiver, "normal", priority=Priority.NORMAL)

        await owned.in_handler(meta, send_all)
        hold.set()
        await owned.until(lambda: len(order) == 3)

        assert default is Priority.HIGH
        assert order == ["max by default", "high by default", "normal"]


@pytest.mark.parametrize("colour", COLOURS)
async def test_bad_targets_and_priorities_are_errors_of_the_sender(colour: type[Any]) -> None:
    def send_badly(me: Any) -> None:
        with pytest.raises(TargetTypeError):
            me.send(3, "message")
        with pytest.raises(BadInputError):
            me.send(me.parent, "message", priority=7)
        with pytest.raises(TargetTypeError):
            me.request(3, "question")
        with pytest.raises(BadInputError):
            me.request(me.parent, "question", timeout=-1)
        with pytest.raises(BadInputError):
            me.send_after(-1, me.parent, "message")
        with pytest.raises(BadInputError):
            me.send_every(0, me.parent, "message")

    async with owning() as owned:
        meta = colour()
        await owned.spawn(meta)

        await owned.in_reader(meta, send_badly)
        await owned.in_handler(meta, send_badly)
        assert not meta_of(meta).requests


async def test_a_meta_process_logs_with_its_name_from_every_thread() -> None:
    records: list[Any] = []

    async with owning(log_level="info") as owned:
        owned.node.add_logger(await owned.node.spawn(LogKeeper, records))
        meta = InThread()
        alias = await owned.spawn(meta, log_level="warning")
        await owned.in_reader(meta, lambda me: me.log.warning("from the reader", detail=1))
        await owned.in_handler(meta, lambda me: me.log.warning("from the handler"))
        await owned.in_handler(meta, lambda me: me.log.info("too quiet"))
        await owned.until(lambda: len(records) == 2)

        assert [record.source for record in records] == [alias, alias]
        assert records[0].fields["behaviour"] == "InThread"
        assert records[0].fields["process"] == str(owned.owner)


# -- stopping oneself ------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("side", ["reader", "handler"])
@pytest.mark.parametrize(
    "given, reason", [((), Normal()), (("enough",), Custom("enough")), ((Killed(),), Killed())]
)
async def test_reader_and_handler_may_each_end_the_meta_process(
    colour: type[Any], side: str, given: Any, reason: Any
) -> None:
    async with owning() as owned:
        meta = colour()
        alias = await owned.spawn(meta)
        do = owned.in_reader if side == "reader" else owned.in_handler

        await do(meta, lambda me: me.stop(*given))
        await owned.until(lambda: alias not in owned.node.metas())

        assert meta.notes[-1] == ("terminate", reason)
        assert meta.stopping


# -- requests --------------------------------------------------------------------------------------


class Oracle(Puppet):
    """Answers, refuses, or keeps silent."""

    async def handle_call(self, request: Any, caller: Caller) -> object:
        match request:
            case "answer":
                return 42
            case "refuse":
                raise Reject(Failed("no"))
            case "silence":
                return NO_REPLY
            case "crash":
                raise Failed("oracle")
        return await super().handle_call(request, caller)


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("side", ["reader", "handler"])
async def test_a_request_gets_a_single_response(colour: type[Any], side: str) -> None:
    async with owning() as owned:
        oracle = await owned.node.spawn(Oracle)
        meta = colour()
        await owned.spawn(meta)
        do = owned.in_reader if side == "reader" else owned.in_handler
        refs: dict[str, Ref] = {}
        for question in ("answer", "refuse"):
            refs[question] = await do(
                meta,
                lambda me, question=question: me.request(oracle, question),  # type: ignore[misc]
            )
        refs["silence"] = await do(meta, lambda me: me.request(oracle, "silence", timeout=0.01))
        refs["nobody"] = await do(meta, lambda me: me.request("nobody", "anything"))
        await owned.until(lambda: len(meta.answers) == 4)
        await trio.sleep(0.02)
        answers = {response.ref: response for response in meta.answers}

        assert len(meta.answers) == len(answers) == 4
        assert answers[refs["answer"]].value == 42
        assert isinstance(answers[refs["refuse"]].error, Failed)
        assert isinstance(answers[refs["silence"]].error, CallTimeoutError)
        down = answers[refs["nobody"]].error
        assert isinstance(down, TargetDownError)
        assert down.reason == NoProcess()
        assert meta_of(meta).requests == {}
        assert meta.serving == 0


async def test_a_callee_that_crashes_is_a_response_with_an_error() -> None:
    async with owning() as owned:
        oracle = await owned.node.spawn(Oracle)
        meta = InThread()
        await owned.spawn(meta)

        await owned.in_reader(meta, lambda me: me.request(oracle, "crash"))
        await owned.until(lambda: len(meta.answers) == 1)

        error = meta.answers[0].error
        assert isinstance(error, TargetDownError)
        assert error.reason == Crashed(Failed("oracle"))


@pytest.mark.parametrize("colour", COLOURS)
async def test_a_cancelled_request_has_no_response(colour: type[Any]) -> None:
    async with owning() as owned:
        oracle = await owned.node.spawn(Oracle)
        meta = colour()
        await owned.spawn(meta)

        ref = await owned.in_reader(meta, lambda me: me.request(oracle, "silence", timeout=60))
        taken = await owned.in_handler(meta, lambda me: me.cancel_request(ref))
        again = await owned.in_reader(meta, lambda me: me.cancel_request(ref))
        overdue: list[Expiry] = []
        kernel_of(owned.node).clock.deadlines.expire(
            inf, 100, lambda caller, _: overdue.append(caller)
        )
        await wait_all_tasks_blocked()

        assert (taken, again) == (True, False)
        assert overdue == []
        assert meta.answers == []


async def test_requests_go_to_siblings_and_to_the_meta_process_itself() -> None:
    async with owning() as owned:
        first, second = InThread(), InTask()
        await owned.spawn(first)
        await owned.spawn(second)

        await owned.in_reader(first, lambda me: me.request(second.id, "what?"))
        await owned.in_handler(first, lambda me: me.request(me.id, "and I?"))
        await owned.until(lambda: len(first.answers) == 2)

        assert [response.error for response in first.answers] == [None, None]


async def test_the_end_of_a_meta_process_cancels_its_requests() -> None:
    callers: list[Caller] = []

    class Keeps(Puppet):
        async def handle_call(self, request: Any, caller: Caller) -> object:
            callers.append(caller)
            return NO_REPLY

    async with owning() as owned:
        keeper = await owned.node.spawn(Keeps)
        meta = InThread()
        alias = await owned.spawn(meta)
        await owned.in_reader(meta, lambda me: me.request(keeper, "later", timeout=None))
        await owned.until(lambda: len(callers) == 1)
        pending = owned.node.meta_info(alias).requests
        await owned.end(alias)

        assert pending == 1
        assert owned.node.reply(callers[0], "too late") is False
        assert meta.answers == []


async def test_a_response_needs_no_callback() -> None:
    class Asks(MetaProcess):
        def start(self) -> None:
            self.request("nobody", "anything")
            self.pause(60)

    async with owning() as owned:
        meta = Asks()
        await owned.spawn(meta)
        await owned.until(lambda: meta_of(meta).handled == 1)

        assert owned.node.metas() == [meta.id]


# -- timers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("side", ["reader", "handler"])
async def test_timers_work_from_both_sides_and_end_with_the_meta_process(
    colour: type[Any], side: str
) -> None:
    async with owning() as owned:
        meta = colour()
        alias = await owned.spawn(meta)
        do = owned.in_reader if side == "reader" else owned.in_handler

        await do(meta, lambda me: me.send_after(0.001, me.parent, "once"))
        timer = await do(meta, lambda me: me.send_every(0.001, me.id, "tick"))
        await do(meta, lambda me: me.send_after(60, me.parent, "never"))
        await owned.until(lambda: sum(message == "tick" for message, _ in meta.heard) >= 3)
        before = owned.node.info().timers
        await owned.end(alias)

        assert owned.heard == ["once"]
        assert before == 2
        assert owned.node.info().timers == 0
        assert not timer.active


# -- spawning --------------------------------------------------------------------------------------


def test_spawn_meta_refuses_a_class_or_an_object_of_another_class() -> None:
    async def main() -> None:
        async with owning() as owned:

            async def spawn(owner: Any) -> None:
                for wrong, text in (
                    (InThread, r"an instance: `spawn_meta\(InThread\(…\)\)`"),
                    ("text", "an instance of a subclass of MetaProcess"),
                    (Puppet(), "an instance of a subclass of MetaProcess"),
                    (MetaProcess(), "def start"),
                ):
                    with pytest.raises(BehaviourError, match=text):
                        await owner.spawn_meta(wrong)

            await owned.ask_owner(spawn)
            assert owned.node.metas() == []

    trio.run(main)


async def test_an_instance_is_spawned_once() -> None:
    async with owning() as owned:
        meta = InThread()
        alias = await owned.spawn(meta)

        async def spawn_again(owner: Any) -> None:
            with pytest.raises(BehaviourError, match="a new instance"):
                await owner.spawn_meta(meta)

        await owned.ask_owner(spawn_again)
        await owned.end(alias)
        await owned.ask_owner(spawn_again)


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("side", ["reader", "handler"])
async def test_reader_and_handler_spawn_children_of_the_meta_process(
    colour: type[Any], side: str
) -> None:
    async with owning() as owned:
        parent, child = colour(), InTask()
        alias = await owned.spawn(parent)
        do = owned.in_reader if side == "reader" else owned.in_handler
        in_task = colour in (
            (COLOURS[2], COLOURS[3]) if side == "reader" else (COLOURS[1], COLOURS[3])
        )

        born = await do(parent, lambda me: me.spawn_meta(child) if in_task else me.spawn(child))
        info = owned.node.meta_info(born)
        await owned.end(alias, "asked")

        assert born == child.id
        assert (info.parent, info.process) == (alias, owned.owner)
        assert child.notes[-1] == ("terminate", Custom("asked"))
        assert owned.node.metas() == []


async def test_spawn_on_the_loop_raises_and_suggests_await_spawn_meta() -> None:
    async with owning() as owned:
        meta = InTask()
        await owned.spawn(meta)

        def spawn(me: Any) -> None:
            with pytest.raises(NotAllowedError, match=r"await self\.spawn_meta"):
                me.spawn(InThread())

        await owned.in_reader(meta, spawn)
        await owned.in_handler(meta, spawn)


async def test_a_reader_that_spawns_gets_refusals_and_failures() -> None:
    class Fails(InThread):
        async def init(self) -> None:
            raise Failed

    # A place is taken while init runs, and given back when it fails.
    async with owning(max_reader_threads=2) as owned:
        first, second = InThread(), InThread()
        await owned.spawn(first)
        await owned.in_reader(first, lambda me: check_init_error(me, Fails()))
        await owned.spawn(second)

        def refused(me: Any) -> None:
            with pytest.raises(TooManyReadersError):
                me.spawn(InThread())
            with pytest.raises(BehaviourError):
                me.spawn(Puppet())
            with pytest.raises(BadInputError):
                me.spawn(InThread(), backlog="much")

        await owned.in_reader(first, refused)
        assert sorted(owned.node.metas()) == sorted([first.id, second.id])


def check_init_error(me: Any, child: MetaProcess) -> None:
    with pytest.raises(InitError) as caught:
        me.spawn(child)
    assert isinstance(caught.value.__cause__, Failed)


async def test_a_reader_that_spawns_while_its_meta_process_stops_is_freed_without_a_child() -> None:
    class Slow(InThread):
        async def init(self) -> None:
            inside.set()
            await trio.sleep_forever()

    inside, raised = threading.Event(), list[BaseException]()

    def spawn(me: Any) -> None:
        try:
            me.spawn(Slow(), init_timeout=60)
        except Exception as error:
            raised.append(error)

    async with owning() as owned:
        parent = InThread()
        alias = await owned.spawn(parent, stop_timeout=60)
        parent.give(spawn)
        await owned.until(inside.is_set)

        with trio.fail_after(30):
            await owned.end(alias, "asked")

        assert "was stopped during its init" in str(raised[0])
        assert owned.node.metas() == []


async def test_an_ending_meta_process_spawns_no_child() -> None:
    children: list[Any] = []
    raised: list[BaseException] = []

    class SpawnsLate(InThread):
        def start(self) -> None:
            super().start()
            try:
                children.append(InThread())
                self.spawn(children[0])
            except NotAllowedError as error:
                raised.append(error)

    async with owning() as owned:
        meta = SpawnsLate()
        await owned.end(await owned.spawn(meta), "asked")

        assert "is ending (asked) and starts nothing any more" in str(raised[0])
        assert owned.node.metas() == []
        assert children[0].notes == []


async def test_a_reader_that_spawns_when_the_loop_already_ends_it_is_refused_there() -> None:
    async with owning() as owned:
        meta = InThread()
        alias = await owned.spawn(meta)
        kernel_side = meta_of(meta)
        await owned.end(alias)

        # As if the thread had looked whether it may spawn just before the end began.
        with pytest.raises(NotAllowedError):
            await in_thread(lambda: spawn_meta_from_thread(kernel_side, InThread(), META_DEFAULTS))
    with pytest.raises(NodeStoppedError):
        await in_thread(lambda: spawn_meta_from_thread(kernel_side, InThread(), META_DEFAULTS))


async def test_a_reader_that_spawns_does_not_delay_a_stopping_node() -> None:
    class Slow(InThread):
        async def init(self) -> None:
            inside.set()
            await trio.sleep_forever()

    inside = threading.Event()
    with trio.fail_after(30):
        async with owning() as owned:
            meta = InThreadServedOnLoop()
            await owned.spawn(meta)
            meta.give(lambda me: me.spawn(Slow()))
            await owned.until(inside.is_set)

    assert owned.readers() == []


async def test_wait_ended_takes_an_alias_and_raises_for_an_unknown_alias() -> None:
    async with owning() as owned:
        meta = InThread()
        alias = await owned.spawn(meta)
        assert await owned.end(alias, "asked") == Custom("asked")

        assert await owned.node.wait_ended(alias) == Custom("asked")
        with pytest.raises(ProcessUnknownError):
            await owned.node.wait_ended(Alias(alias.node, alias.creation, alias.number + 1000))


async def test_alive_lists_processes_with_their_meta_processes() -> None:
    held = threading.Event()
    async with owning() as owned:
        meta = InThread()
        alias = await owned.spawn(meta)
        owned.node.send(alias, lambda _me: held.wait(20))
        await owned.until(lambda: meta.serving == 1)
        alive = owned.node.alive()
        held.set()
        await wait_all_tasks_blocked()

        assert any(str(alias) in line and "running in handle_message" in line for line in alive)


async def test_a_behaviour_may_call_the_callbacks_of_its_base_class() -> None:
    heard: list[Any] = []

    class Polite(MetaProcess):
        async def init(self) -> None:
            heard.append(super().init())

        async def start(self) -> None:
            await trio.sleep_forever()

        def handle_inspect(self, *items: str) -> Mapping[str, str]:
            return {**super().handle_inspect(*items), "polite": "yes"}

        async def terminate(self, reason: Reason) -> None:
            heard.append(super().terminate(reason))

    async with owning() as owned:
        alias = await owned.spawn(Polite())

        told = await owned.node.inspect_meta(alias)
        await owned.end(alias)

    assert told == {"polite": "yes"}
    assert heard == [None, None]


@pytest.mark.parametrize("colour", COLOURS)
async def test_a_call_is_answered_with_an_error(colour: type[Any]) -> None:
    async with owning() as owned:
        meta = colour()
        alias = await owned.spawn(meta)

        def refuse(me: Any, caller: Any) -> object:
            me.reply_error(caller, Failed("on purpose"))
            return NO_REPLY

        with pytest.raises(Failed, match="on purpose"):
            await owned.node.call(alias, refuse, timeout=20)


# -- checks of the verbs ---------------------------------------------------------------------------


async def test_a_meta_process_is_stopping_once_it_has_a_reason_or_its_reader_is_unblocked() -> None:
    async with owning() as owned:
        meta = InTask()
        await owned.spawn(meta)
        before = meta.stopping

        meta_of(meta).ending.reason = Normal()
        with_a_reason, meta_of(meta).ending.reason = meta.stopping, None
        meta_of(meta).resources.stopping = True
        unblocked, meta_of(meta).resources.stopping = meta.stopping, False

        assert (before, with_a_reason, unblocked) == (False, True, True)


async def test_negative_times_to_wait_are_refused() -> None:
    async with owning() as owned:
        meta = InThread()
        await owned.spawn(meta)

        with pytest.raises(BadInputError, match="seconds"):
            await in_thread(lambda: meta.pause(-1.0))
        with pytest.raises(BadInputError, match="timeout"):
            await in_thread(lambda: meta.wait_readable(0, -1.0))


async def test_a_sleeping_handler_cannot_reply() -> None:
    nobody: Any = None
    async with owning() as owned:
        meta = InTask()
        await owned.spawn(meta)

        with pytest.raises(NotAllowedError, match="sleep"):
            meta.reply_error(nobody, Failed())


async def test_a_message_that_is_not_handled_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    class Plain(MetaProcess):
        async def start(self) -> None:
            await trio.sleep_forever()

    async with owning(log_output="json", log_level="debug") as owned:
        alias = await owned.spawn(Plain())

        owned.node.send(alias, 1.5)
        # Its own turn comes after that of the message.
        with pytest.raises(ErgoError):
            await owned.node.call(alias, "nor is this", timeout=20)

    logged = capsys.readouterr().err
    assert "unhandled message" in logged
    assert "float" in logged
