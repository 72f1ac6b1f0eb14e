"""Entities: stored changes, replies that wait for the store, and the effects of failures."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import new_class
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py import (
    NO_REPLY,
    Actor,
    BadInputError,
    Caller,
    NotAllowedError,
    Reject,
    TargetDownError,
    ask,
    exposed,
    open_node,
)
from ergo_py.entities import Entities, Entity, EntityStoreError, MemoryStore, SQLite, keys_of
from ergo_py.entities.errors import StateTooLargeError, StateTypeError, StateUnreadableError
from ergo_py.entities.stores.store import Row, Write
from ergo_py.entity_handles import EntityKindUnknownError, entities_of, list_keys
from ergo_py.errors import BehaviourError
from ergo_py.info import Dispatcher
from ergo_py.pipelines import Batch
from ergo_py.web import HTTPRequest, Response, WebServer
from tests.dispatched import Doer, in_threads
from tests.web.rig import Peer, post

from .bank import Account, Credit, Life, Pay, open_bank, records, run_virtual


class Gate:
    """Keeps commits waiting until it is opened."""

    def __init__(self, store: MemoryStore) -> None:
        self.is_open = trio.Event()
        self.waiting = 0
        store.before_commit = self._wait

    async def _wait(self, _number: int, _writes: Sequence[Write]) -> None:
        self.waiting += 1
        await self.is_open.wait()


@dataclass
class Things:
    """A state with several parts."""

    count: int = 0
    names: list[str] = field(default_factory=list)


class Thing(Entity[Things]):
    """An entity that a test directs."""

    @exposed
    def add(self, name: str) -> int:
        """Add a name."""
        self.state.names.append(name)
        self.state.count += 1
        return self.state.count

    @exposed
    def read(self) -> list[str]:
        """All names."""
        return list(self.state.names)

    @exposed
    def refuse(self) -> None:
        """Change and refuse."""
        self.state.count = 99
        raise Reject(ValueError("no"))

    @exposed
    def crash(self) -> None:
        """Change and crash."""
        self.state.count = 99
        raise RuntimeError("a planted failure")

    @exposed
    def spoil(self, value: Any) -> None:
        """Put a wrong value into the state."""
        self.state.count = value

    @exposed
    def tell(self, to: Any, text: str) -> None:
        """Send a message to a process, and change."""
        self.state.names.append(text)
        self.send(to, text)

    @exposed
    def remove(self) -> None:
        """Delete this entity."""
        self.delete()

    @exposed
    async def call_other(self, to: Any) -> Any:
        """Call a process, and change."""
        self.state.names.append("before")
        answer = await self.call(to, "?")
        self.state.names.append(answer)
        return answer

    def handle_call(self, request: Any, caller: Caller) -> object:
        """Defer an answer, or use a verb that entities do not have."""
        match request:
            case "defer":
                self.caller = caller
                return NO_REPLY
            case "answer":
                self.state.names.append("answered")
                self.reply(self.caller, "late")
                return None
            case "start a task":
                self.start_task(trio.sleep_forever)
        raise Reject(LookupError(request))


class Listener(Actor):
    """Keeps its messages, and answers calls."""

    def init(self) -> None:
        """Keep nothing yet."""
        self.messages: list[object] = []

    def handle_message(self, message: Any, sender: Any) -> None:
        """Keep a message."""
        self.messages.append(message)

    def handle_call(self, request: Any, caller: Caller) -> object:
        """Answer."""
        return list(self.messages) if request == "messages" else "an answer"


def test_state_is_found_by_a_later_program() -> None:
    async def program() -> None:
        store = Life()
        for expected in (5, 10, 15):
            async with open_bank(store) as node:
                assert await node.entity(Account, "ada").call(ask(Account.deposit, 5)) == expected

    run_virtual(program)


def test_an_answer_waits_for_the_store() -> None:
    async def program() -> None:
        store = MemoryStore()
        gate = Gate(store)
        answers: list[int] = []
        async with open_bank(store) as node, trio.open_nursery() as nursery:

            async def deposit() -> None:
                answers.append(await node.entity(Account, "ada").call(ask(Account.deposit, 1)))

            for _ in range(3):
                nursery.start_soon(deposit)
            await trio.testing.wait_all_tasks_blocked()
            assert gate.waiting == 1
            assert answers == []
            gate.is_open.set()
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(answers) == [1, 2, 3]

    run_virtual(program)


@pytest.mark.parametrize("request_name", ["read", "refuse"])
def test_an_answer_that_depends_on_a_change_waits_with_it(request_name: str) -> None:
    async def program() -> None:
        store = MemoryStore()
        gate = Gate(store)
        done: list[str] = []
        async with open_bank(store, kinds=[Thing]) as node, trio.open_nursery() as nursery:
            thing = node.entity(Thing, "a")

            async def ask_for(name: str) -> None:
                request = {
                    "add": ask(Thing.add, "x"),
                    "read": ask(Thing.read),
                    "refuse": ask(Thing.refuse),
                }[name]
                try:
                    await thing.call(request)
                except ValueError:
                    pass
                done.append(name)

            nursery.start_soon(ask_for, "add")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask_for, request_name)
            await trio.testing.wait_all_tasks_blocked()
            assert done == []
            gate.is_open.set()
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(done) == sorted(["add", request_name])

    run_virtual(program)


def test_a_read_of_stored_state_writes_nothing() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, kinds=[Thing]) as node:
            assert await node.entity(Thing, "a").call(ask(Thing.read)) == []
            assert store.commits == 0
            assert store.rows == {}

    run_virtual(program)


def test_a_message_to_a_process_waits_for_the_store() -> None:
    async def program() -> None:
        store = MemoryStore()
        gate = Gate(store)
        async with open_bank(store, kinds=[Thing]) as node, trio.open_nursery() as nursery:
            listener = await node.spawn(Listener)
            nursery.start_soon(node.entity(Thing, "a").call, ask(Thing.tell, listener, "hello"))
            await trio.testing.wait_all_tasks_blocked()
            assert await node.call(listener, "messages") == []
            gate.is_open.set()
            await trio.testing.wait_all_tasks_blocked()
            assert await node.call(listener, "messages") == ["hello"]

    run_virtual(program)


def test_a_call_inside_a_callback_waits_for_earlier_changes() -> None:
    async def program() -> None:
        store = MemoryStore()
        gate = Gate(store)
        answers: list[object] = []
        async with open_bank(store, kinds=[Thing]) as node, trio.open_nursery() as nursery:
            listener = await node.spawn(Listener)
            thing = node.entity(Thing, "a")

            async def keep(request: Any) -> None:
                answers.append(await thing.call(request))

            nursery.start_soon(keep, ask(Thing.add, "x"))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(keep, ask(Thing.call_other, listener))
            await trio.testing.wait_all_tasks_blocked()
            assert answers == []
            gate.is_open.set()
            await trio.testing.wait_all_tasks_blocked()
            assert answers == [1, "an answer"]
            assert await thing.call(ask(Thing.read)) == ["x", "before", "an answer"]

    run_virtual(program)


def test_a_deferred_answer_waits_for_the_callback_that_gives_it() -> None:
    async def program() -> None:
        store = MemoryStore()
        answers: list[object] = []
        async with open_bank(store, kinds=[Thing]) as node, trio.open_nursery() as nursery:
            thing = node.entity(Thing, "a")

            async def keep() -> None:
                answers.append(await thing.call("defer"))

            nursery.start_soon(keep)
            await trio.testing.wait_all_tasks_blocked()
            gate = Gate(store)
            nursery.start_soon(thing.call, "answer")
            await trio.testing.wait_all_tasks_blocked()
            assert answers == []
            gate.is_open.set()
            await trio.testing.wait_all_tasks_blocked()
            assert answers == ["late"]

    run_virtual(program)


def test_a_refusal_changes_nothing() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store) as node:
            ada = node.entity(Account, "ada")
            await ada.call(ask(Account.deposit, 5))
            with pytest.raises(ValueError, match="not enough"):
                await ada.call(Pay("bob", 50))
            assert await ada.call(ask(Account.look)) == (5, ())
            await trio.sleep(100)
            assert list(records(store)) == ["ada"]

    run_virtual(program)


def test_a_crash_changes_nothing_and_the_next_message_wakes_the_entity() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), kinds=[Thing]) as node:
            thing = node.entity(Thing, "a")
            await thing.call(ask(Thing.add, "x"))
            with pytest.raises(TargetDownError):
                await thing.call(ask(Thing.crash))
            assert await thing.call(ask(Thing.add, "y")) == 2

    run_virtual(program)


def test_messages_behind_a_crash_are_handled() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), kinds=[Thing]) as node, trio.open_nursery() as nursery:
            thing = node.entity(Thing, "a")
            await thing.call(ask(Thing.add, "x"))

            async def crash() -> None:
                with pytest.raises(TargetDownError):
                    await thing.call(ask(Thing.crash))

            nursery.start_soon(crash)
            for number in range(5):
                nursery.start_soon(thing.call, ask(Thing.add, str(number)))
            await trio.sleep(1)
            assert len(await thing.call(ask(Thing.read))) == 6

    run_virtual(program)


@pytest.mark.parametrize("value", ["ten", None, 2**70, "\udc80", object(), [1]])
def test_a_wrong_value_in_a_state_is_refused_and_undone(value: object) -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), kinds=[Thing]) as node:
            thing = node.entity(Thing, "a")
            await thing.call(ask(Thing.add, "x"))
            with pytest.raises(StateTypeError, match=r"cannot be stored as a Things.*undone"):
                await thing.call(ask(Thing.spoil, value))
            assert await thing.call(ask(Thing.add, "y")) == 2

    run_virtual(program)


class Heard(Actor):
    """Hears the log."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def handle_log(self, record: Any) -> None:
        """Note the text."""
        self.events.append(record.event)


@pytest.mark.parametrize("length, warnings", [(16_000, 0), (16_500, 1)])
def test_the_first_large_state_of_a_class_is_told_once(length: int, warnings: int) -> None:
    @dataclass
    class Texts:
        text: str = ""

    class Text(Entity[Texts]):
        @exposed
        def set(self, text: str) -> None:
            """Set the text."""
            self.state.text = text

    events: list[str] = []

    async def program() -> None:
        async with open_node("texts@test", log_level="warning") as node:
            node.add_logger(await node.spawn(Heard, events), "warning")
            await node.spawn(Entities, MemoryStore(), [Text])
            for key in ("a", "b"):
                await node.entity(Text, key).call(ask(Text.set, "x" * length))
                await node.entity(Text, key).call(ask(Text.set, "y" * length))

    run_virtual(program)
    assert [each for each in events if "large state" in each] == events
    assert len(events) == warnings


def test_a_state_that_is_too_large_is_refused_and_undone() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), kinds=[Thing], max_state=100) as node:
            thing = node.entity(Thing, "a")
            await thing.call(ask(Thing.add, "x"))
            with pytest.raises(StateTooLargeError, match="max_state allows 100"):
                await thing.call(ask(Thing.add, "y" * 100))
            assert await thing.call(ask(Thing.read)) == ["x"]

    run_virtual(program)


def test_a_command_with_an_id_is_done_once() -> None:
    async def program() -> None:
        store = Life()
        async with open_bank(store) as node:
            ada = node.entity(Account, "ada")
            for _ in range(3):
                assert await ada.call(ask(Account.deposit, 5), once="a") == 5
            assert await ada.call(ask(Account.deposit, 5), once="b") == 10
            assert await ada.call(ask(Account.deposit, 5), once="a") == 5
        async with open_bank(store) as node:
            ada = node.entity(Account, "ada")
            assert await ada.call(ask(Account.deposit, 5), once="a") == 5
            assert await ada.call(ask(Account.look)) == (10, ())

    run_virtual(program)


def test_a_repetition_in_progress_waits_for_the_first_answer() -> None:
    async def program() -> None:
        answers: list[object] = []
        async with open_bank(MemoryStore(), kinds=[Thing]) as node, trio.open_nursery() as nursery:
            thing = node.entity(Thing, "a")

            async def keep() -> None:
                answers.append(await thing.call("defer", once="a"))

            nursery.start_soon(keep)
            nursery.start_soon(keep)
            await trio.testing.wait_all_tasks_blocked()
            await thing.call("answer")
            await trio.testing.wait_all_tasks_blocked()
            assert answers == ["late", "late"]
            assert await thing.call("defer", once="a") == "late"

    run_virtual(program)


class Desk(Actor):
    """A web server that deposits into accounts."""

    async def init(self) -> None:
        """Listen."""
        self.server = WebServer()
        self.errors: list[str] = []
        await self.spawn_meta(self.server)

    def handle_call(self, request: Any, caller: Caller) -> object:
        """Take a request, and answer it later."""
        if not isinstance(request, HTTPRequest):
            return self
        self.start_task(self._deposit, json.loads(request.body), caller)
        return NO_REPLY

    async def _deposit(self, body: Any, caller: Caller) -> None:
        account = self.node.entity(Account, body["key"])
        try:
            await account.call(ask(Account.deposit, 1), once=body["once"])
        except BadInputError as error:
            self.errors.append(str(error))
            self.reply(caller, Response(400))
        else:
            self.reply(caller, Response(204))


@pytest.mark.parametrize("odd", ["\ud800", "a\0"])
async def test_an_odd_id_in_a_request_over_http_costs_that_request_only(odd: str) -> None:
    statuses: dict[str, int] = {}
    async with open_bank(MemoryStore()) as node:
        keeper = node.whereis("entities")
        desk = await node.call(await node.spawn(Desk), "desk")

        async def send(key: str, once: str) -> None:
            peer = Peer(await trio.open_tcp_stream(*desk.server.local))
            body = json.dumps({"key": key, "once": once}).encode()
            statuses[key] = (await peer.ask(post("/", body))).status
            await peer.aclose()

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(send, f"a{number}", odd if number == 50 else "id")
        assert node.whereis("entities") == keeper
    assert statuses.pop("a50") == 400
    assert (len(statuses), {*statuses.values()}) == (99, {204})
    assert "the id of the command" in desk.errors[0]


def test_ids_are_forgotten_after_their_time_and_above_their_number() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, remember=10.0, max_remembered=3) as node:
            ada = node.entity(Account, "ada")
            for number in range(5):
                await ada.call(ask(Account.deposit, 1), once=str(number))
            assert list(records(store)["ada"].done) == ["2", "3", "4"]
            await trio.sleep(11)
            await ada.call(ask(Account.deposit, 1), once="late")
            assert list(records(store)["ada"].done) == ["late"]

    run_virtual(program)


def test_an_answer_that_cannot_be_stored_is_refused_under_an_id() -> None:
    class Odd:
        pass

    class Answering(Entity[Things]):
        @exposed
        def odd(self) -> Odd:
            self.state.count += 1
            return Odd()

    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, kinds=[Answering]) as node:
            with pytest.raises(StateTypeError, match=r"answer.*cannot be"):
                await node.entity(Answering, "a").call(ask(Answering.odd), once="x")
            assert store.rows == {}

    run_virtual(program)


@dataclass
class Unlisted:
    """A class that no list of types has."""


class Odd(Entity[Things]):
    """An entity with messages and answers that cannot be stored."""

    @exposed
    def tell(self, message: Any) -> None:
        """Send a message to another entity."""
        self.send(self.entity(Odd, "other"), message)

    @exposed
    def answer(self, value: Any) -> Any:
        """Answer."""
        return value


def nested() -> object:
    """A list that is nested too deeply."""
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "made, text",
    [
        (
            Unlisted,
            "Unlisted is not among the types that travel; list it in `types=[Unlisted]` of "
            "`Entities`",
        ),
        (lambda: "\ud800", "surrogates not allowed"),
        (nested, "it is nested too deeply, or contains itself"),
        (lambda: 2**70, "can't serialize ints < -2**63 or > 2**64 - 1"),
        (
            lambda: print,
            "a value of the type builtins.builtin_function_or_method cannot travel; "
            "send plain values, dataclasses or msgspec.Structs",
        ),
    ],
)
def test_an_error_names_the_types_of_entities_for_unlisted_classes_only(
    made: Callable[[], object], text: str
) -> None:
    value = made()

    async def program() -> None:
        async with open_bank(MemoryStore(), kinds=[Odd]) as node:
            odd = node.entity(Odd, "a")
            with pytest.raises(StateTypeError) as answer:
                await odd.call(ask(Odd.answer, value), once="x")
            with pytest.raises(BadInputError) as post:
                await odd.post(value)
            with pytest.raises(TargetDownError) as message:
                await odd.call(ask(Odd.tell, value))
            assert str(answer.value).endswith(f"{text}; the command was undone")
            assert str(post.value).endswith(text)
            assert text in str(message.value)
            assert "network" not in f"{answer.value} {post.value} {message.value}"

    run_virtual(program)


def test_a_failed_store_fails_commands_and_service_returns_with_it() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store) as node:
            ada = node.entity(Account, "ada")
            await ada.call(ask(Account.deposit, 5))

            async def full(_number: int, _writes: Sequence[Write]) -> None:
                raise EntityStoreError("the disk is full")

            store.before_commit = full
            for _ in range(3):
                with pytest.raises(TargetDownError, match="the disk is full"):
                    await ada.call(ask(Account.deposit, 5))
            store.before_commit = None
            assert await ada.call(ask(Account.deposit, 5)) == 10

    run_virtual(program)


def test_a_store_that_cannot_be_read_fails_commands_and_service_returns_with_it() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store) as node:
            ada = node.entity(Account, "ada")

            async def lost(_addresses: object) -> None:
                raise EntityStoreError("the file is gone")

            store.before_load = lost
            for _ in range(3):
                with pytest.raises(EntityStoreError, match="the file is gone"):
                    await ada.call(ask(Account.deposit, 5))
            store.before_load = None
            assert await ada.call(ask(Account.deposit, 5)) == 5

    run_virtual(program)


class Text(str):
    """A text with a class of its own."""


KINDS_OF_NO_STORE: list[Any] = ["", "a/b", "a\0b", "\udc80", "x" * 201, 7, None, b"a", ["a"]]


@pytest.mark.parametrize("kind", KINDS_OF_NO_STORE)
def test_a_kind_that_cannot_be_stored_is_refused_when_its_class_is_defined(kind: Any) -> None:
    with pytest.raises(BadInputError, match=r"Odd\.kind, the name of its entities in the store"):
        new_class("Odd", (Entity[Things],), exec_body=lambda body: body.update(kind=kind))


@pytest.mark.parametrize("kind", KINDS_OF_NO_STORE)
def test_a_kind_that_was_set_later_is_refused_when_it_is_registered(kind: Any) -> None:
    late: Any = new_class("Late", (Entity[Things],))
    late.kind = kind

    with pytest.raises(BadInputError, match=r"Late\.kind, the name of its entities in the store"):
        Entities(MemoryStore(), [Thing, late])


def test_a_kind_with_a_class_of_its_own_that_was_set_later_is_refused() -> None:
    late: Any = new_class("Late", (Entity[Things],))
    late.kind = Text("late")

    with pytest.raises(
        BadInputError, match=r"Late\.kind: got 'late'; allowed is a str, and no sub"
    ):
        Entities(MemoryStore(), [Thing, late])


def test_two_classes_of_the_same_kind_are_refused() -> None:
    late: Any = new_class("Late", (Entity[Things],))
    late.kind = "Thing"

    with pytest.raises(BadInputError, match="classes whose `kind` differ; Thing is 'Thing', too"):
        Entities(MemoryStore(), [Thing, late])


def test_a_kind_with_a_class_of_its_own_is_kept_as_a_plain_text() -> None:
    odd: Any = new_class(
        "Odd", (Entity[Things],), exec_body=lambda body: body.update(kind=Text("odd"))
    )

    assert (type(odd.kind), odd.kind) == (str, "odd")


def test_an_entity_has_no_batches() -> None:
    def handle_batch(_self: object, _messages: Sequence[object]) -> None:
        """Never called."""

    parts = {"batch": Batch(10), "handle_batch": handle_batch}
    with pytest.raises(BehaviourError, match="stores its state after each message"):
        new_class("Rows", (Entity[int],), exec_body=lambda body: body.update(parts))


def test_a_row_written_by_another_program_is_not_overwritten() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store) as node:
            ada = node.entity(Account, "ada")
            await ada.call(ask(Account.deposit, 5))
            (address,) = store.rows
            row, due = store.rows[address]
            store.rows[address] = Row(row.version + 7, row.record), due
            with pytest.raises(TargetDownError, match="version"):
                await ada.call(ask(Account.deposit, 5))
            assert await ada.call(ask(Account.deposit, 5)) == 10

    run_virtual(program)


def test_a_deleted_entity_begins_with_a_new_state() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, kinds=[Thing]) as node:
            thing = node.entity(Thing, "a")
            await thing.call(ask(Thing.add, "x"), once="1")
            await thing.call(ask(Thing.remove))
            assert store.rows == {}
            assert await thing.call(ask(Thing.add, "y"), once="1") == 1
            assert await thing.call(ask(Thing.read)) == ["y"]

    run_virtual(program)


def test_entities_refuse_verbs_that_outlive_a_callback() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), kinds=[Thing]) as node:
            with pytest.raises(TargetDownError, match="no background tasks"):
                await node.entity(Thing, "a").call("start a task")

    run_virtual(program)


def test_an_unknown_kind_is_refused_with_the_line_to_write() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore()) as node:
            with pytest.raises(EntityKindUnknownError, match=r"ChildSpec\(.*\[Thing\]"):
                node.entity(Thing, "a")
            wrong: list[Any] = ["", "x" * 1001, "\U0001f600" * 451, "a\0b", "\udc80", 7]
            for key in wrong:
                with pytest.raises(BadInputError, match=r"1 to 1,000 characters|1,800 bytes"):
                    node.entity(Account, key)

    run_virtual(program)


def test_an_entity_is_not_made_by_hand() -> None:
    with pytest.raises(NotAllowedError, match=r"node.entity"):
        _ = Account().key


def test_an_unreadable_state_is_refused_and_stays() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, kinds=[Thing]) as node:
            await node.entity(Thing, "a").call(ask(Thing.add, "x"))
        (address,) = store.rows
        record = records(store)["a"]
        record.state = b"\x81\xa7unknown\x01"  # {"unknown": 1}
        encoded = record.encode()
        assert encoded is not None
        store.rows[address] = Row(1, encoded), None
        async with open_bank(store, kinds=[Thing]) as node:
            with pytest.raises(StateUnreadableError, match=r"unknown field.*nothing was changed"):
                await node.entity(Thing, "a").call(ask(Thing.add, "y"))
        assert store.rows[address][0].record == encoded

    run_virtual(program)


@dataclass
class Words:
    """A state that an entity fills when it wakes up."""

    index: dict[str, int] = field(default_factory=dict)
    marks: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Remind:
    """A timer."""


class Index(Entity[Words]):
    """Counts words; ``wrong`` lets it fill its state with a value that cannot be stored."""

    wrong = False
    starts = 0

    def init(self) -> None:
        """Fill the state."""
        Index.starts += 1
        if Index.wrong:
            self.state.index = Counter(self.state.index)

    @exposed
    def remind(self) -> None:
        """Set a timer."""
        self.send_after(1.0, self.entity(Index, self.key), Remind())

    @exposed
    def mark(self) -> None:
        """Mark three numbers, in the order that a larger set has left them."""
        marks = set(range(100))
        marks -= marks - {9, 16, 24}
        self.state.marks = marks

    @exposed
    def refuse(self) -> None:
        """Refuse."""
        raise Reject(ValueError("no"))

    @exposed
    def count(self) -> int:
        """Count marks."""
        return len(self.state.marks)

    def handle_message(self, message: Any, sender: Any) -> None:
        """Be reminded."""

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The number of marks."""
        return {"marks": str(len(self.state.marks))}


async def _init_later(self: Index) -> None:
    await trio.sleep(0.01)
    Index.init(self)


AsyncIndex = type("AsyncIndex", (Index,), {"kind": "Index", "init": _init_later})
"""The same, with an ``init`` that waits."""


@pytest.mark.parametrize("kind", [Index, AsyncIndex])
def test_a_first_state_that_cannot_be_stored_is_an_error_for_its_callers_only(
    kind: type[Index], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program() -> None:
        store, types = MemoryStore(), [Remind]
        async with open_bank(store, kinds=[Index], types=types) as node:
            await node.entity(Index, "a").call(ask(Index.remind))
        monkeypatch.setattr(Index, "wrong", True)
        async with open_bank(store, kinds=[kind, Account], types=types) as node:
            await trio.sleep(60)  # its timer is due
            assert 2 < Index.starts < 30
            before, keeper = Index.starts, node.whereis("entities")
            for key in ("a", "b"):
                with pytest.raises(StateTypeError, match="index: got Counter"):
                    await node.entity(kind, key).call(ask(Index.count))
            assert Index.starts <= before + 4
            assert await node.entity(Account, "ada").call(ask(Account.deposit, 1)) == 1
            assert node.whereis("entities") == keeper
            monkeypatch.setattr(Index, "wrong", False)
            assert await node.entity(kind, "a").call(ask(Index.count)) == 0
            await trio.sleep(60)
            assert "a" not in records(store)  # it owes nothing

    run_virtual(program)


def test_a_refusal_leaves_a_state_with_a_set_as_it_was() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, kinds=[Index], types=[Remind]) as node:
            entity = node.entity(Index, "a")
            await entity.call(ask(Index.mark))
            with pytest.raises(ValueError, match="no"):
                await entity.call(ask(Index.refuse))
            commits, pid = store.commits, entities_of(node)[Index].slots["Index/a"].pid
            assert pid is not None
            assert (await node.inspect(pid))["marks"] == "3"
            assert await entity.call(ask(Index.count)) == 3
            assert store.commits == commits

    run_virtual(program)


def test_keys_are_listed_in_order_by_their_prefix() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore()) as node:
            for key in ("b", "a", "ab", "abc", "ac"):
                await node.entity(Account, key).call(ask(Account.deposit, 1))
            every = ["a", "ab", "abc", "ac", "b"]
            assert [key async for key in keys_of(node, Account)] == every
            assert [key async for key in keys_of(node, Account, "ab")] == ["ab", "abc"]
            assert [key async for key in keys_of(node, Account, "x")] == []

    run_virtual(program)


@pytest.mark.parametrize("prefix", ["\ud800", "a\0", "x" * 1001, 7, None, b"a"])
async def test_a_prefix_that_no_key_has_is_refused(prefix: Any, tmp_path: Path) -> None:
    async with open_bank(SQLite(tmp_path / "state.db")) as node:
        keeper = node.whereis("entities")
        await node.entity(Account, "ada").call(ask(Account.deposit, 1))
        for given in ({"prefix": prefix}, {"prefix": "", "after": prefix}):
            with pytest.raises(BadInputError, match="0 to 1,000 characters, without zeros"):
                async for _ in list_keys(entities_of(node), Account, **given):
                    pass
        assert [key async for key in keys_of(node, Account, Text("ad"))] == ["ada"]
        assert node.whereis("entities") == keeper


def test_a_post_returns_when_it_is_stored_and_is_handled_once() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store) as node:
            ada = node.entity(Account, "ada")
            for _ in range(2):
                await ada.post(Credit(3), once="a")
            await ada.post(Credit(4))
            await trio.sleep(1)
            assert await ada.call(ask(Account.look)) == (7, ("3 from ada", "4 from ada"))
            with pytest.raises(BadInputError, match="can be stored"):
                await ada.post(object())

    run_virtual(program)


@in_threads
async def test_a_callback_in_a_thread_wakes_the_entity_that_it_calls(where: Dispatcher) -> None:
    async with open_bank(MemoryStore()) as node:
        doer = await node.spawn(Doer, dispatcher=where)

        def deposit(me: Doer) -> list[int]:
            handles = (me.entity(Account, "ada"), me.node.entity(Account, "bob"))
            return [each.call_from_thread(ask(Account.deposit, 5)) for each in handles]

        assert await node.call(doer, deposit) == [5, 5]
