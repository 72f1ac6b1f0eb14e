"""Commands with ids whose answers are deferred: each takes effect once, and its id is stored."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py import NO_REPLY, Caller, CallTimeoutError, Node, Reject, Request, TargetDownError
from ergo_py.entities import AnswerUnknownError, Entity, EntityStoreError, MemoryStore
from ergo_py.entities.errors import StateTypeError
from ergo_py.entities.record import Record
from ergo_py.entity_handles import EntityHandle

from .bank import Life, open_bank, records, run_virtual


@dataclass
class Sales:
    """What was sold."""

    items: list[str] = field(default_factory=list)


class Shop(Entity[Sales]):
    """Sells at once, and answers later."""

    def init(self) -> None:
        """Owe no answers."""
        self.callers: list[Caller] = []

    def handle_call(self, request: Any, caller: Caller) -> object:
        """Carry out a command of a test: a verb and its argument."""
        verb, _, text = request.partition(" ")
        match verb:
            case "sell":
                self.state.items.append(text)
                self.callers.append(caller)
                return NO_REPLY
            case "wait":
                self.callers.append(caller)
                return NO_REPLY
            case "spoil":
                unchecked: Any = self.state
                unchecked.items.append(1)
                return NO_REPLY
            case "answer":
                for each in self.callers:
                    self.reply(each, text)
            case "answer-oddly":
                self.reply(self.callers[0], object())
            case "answer-and-refuse":
                self.reply(self.callers[0], text)
                raise Reject(ValueError(text))
            case "answer-twice":
                self.reply(self.callers[0], "first")
                self.reply(self.callers[0], "second")
                self.reply_error(self.callers[0], ValueError("third"))
            case "refuse":
                self.state.items.pop()
                for each in self.callers:
                    self.reply_error(each, ValueError(text))
            case "refuse-only":
                self.reply_error(self.callers[0], ValueError(text))
            case "sell-and-answer":
                self.state.items.append(text)
                self.reply(caller, f"sold {text}")
                return NO_REPLY
            case "sell-and-reply-error":
                self.state.items.append(text)
                self.reply_error(caller, ValueError(text))
                return NO_REPLY
            case "refuse-at-once":
                raise Reject(ValueError(text))
            case "crash":
                raise RuntimeError("a planted failure")
            case "sell-answer-and-return":
                self.state.items.append(text)
                self.reply(caller, f"sold {text}")
                return "another answer"
            case "delete-and-answer":
                self.delete()
                return text
        return list(self.state.items)


class SlowShop(Shop):
    """Takes a while for each command."""

    async def handle_call(self, request: Any, caller: Caller) -> object:
        """Carry out a command after a second."""
        await trio.sleep(1.0)
        return super().handle_call(request, caller)


def open_shop(store: MemoryStore, **options: Any) -> Any:
    """A node with shops."""
    return open_bank(store, **{"kinds": [Shop], "idle": 5.0, **options})


async def _give_up(node: Node) -> None:
    await trio.sleep(30)  # the entity sleeps: no caller waits for its answer


async def _crash(node: Node) -> None:
    with pytest.raises(TargetDownError):
        await node.entity(Shop, "a").call("crash")


@pytest.mark.parametrize("request_", ["sell tea", "wait"])
@pytest.mark.parametrize("end", [_give_up, _crash])
def test_a_deferred_command_is_not_repeated_after_a_sleep_or_a_crash(
    end: Callable[[Node], Awaitable[None]], request_: str
) -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_shop(store) as node:
            shop = node.entity(Shop, "a")
            with pytest.raises(CallTimeoutError):
                await shop.call(request_, once="x", timeout=1)
            await end(node)
            for _ in range(2):
                with pytest.raises(AnswerUnknownError, match=r"Shop 'a' .* once='x'") as caught:
                    await shop.call(request_, once="x", timeout=1)
                assert (caught.value.kind, caught.value.key, caught.value.id) == ("Shop", "a", "x")
            assert await shop.call("look") == ["tea"] * (request_ != "wait")

    run_virtual(program)


def test_a_deferred_command_is_not_repeated_by_a_later_program() -> None:
    async def program() -> None:
        life = Life()
        async with open_shop(life) as node:
            with pytest.raises(CallTimeoutError):
                await node.entity(Shop, "a").call("sell tea", once="x", timeout=1)
            life.stop()
        async with open_shop(Life(life.rows)) as node:
            shop = node.entity(Shop, "a")
            with pytest.raises(AnswerUnknownError):
                await shop.call("sell tea", once="x", timeout=1)
            assert await shop.call("look") == ["tea"]

    run_virtual(program)


def test_a_deferred_answer_is_kept_for_callers_that_had_given_up() -> None:
    async def program() -> None:
        store = MemoryStore()
        answers: list[object] = []
        async with open_shop(store) as node, trio.open_nursery() as nursery:
            shop = node.entity(Shop, "a")
            with pytest.raises(CallTimeoutError):
                await shop.call("sell tea", once="x", timeout=1)

            async def repeat() -> None:
                answers.append(await shop.call("sell tea", once="x", timeout=60))

            nursery.start_soon(repeat)
            await trio.sleep(20)  # no sleep: the repetition waits
            await shop.call("answer thanks")
            await trio.testing.wait_all_tasks_blocked()
            assert answers == ["thanks"]
            await trio.sleep(30)
            assert await shop.call("sell tea", once="x") == "thanks"
            assert await shop.call("look") == ["tea"]

    run_virtual(program)


def test_an_answer_in_the_callback_of_its_command_is_kept() -> None:
    async def program() -> None:
        async with open_shop(MemoryStore()) as node:
            shop = node.entity(Shop, "a")
            for _ in range(2):
                assert await shop.call("sell-and-answer tea", once="x", timeout=1) == "sold tea"
            assert await shop.call("look") == ["tea"]

    run_virtual(program)


def test_the_answer_of_a_callback_that_has_answered_before_is_not_kept() -> None:
    async def program() -> None:
        async with open_shop(MemoryStore()) as node:
            shop = node.entity(Shop, "a")
            for _ in range(2):
                answer = await shop.call("sell-answer-and-return tea", once="x")
                assert answer == "sold tea"
            assert await shop.call("look") == ["tea"]

    run_virtual(program)


async def note_sale(shop: EntityHandle[Any], answers: list[object]) -> None:
    """Give a command with an id, and note its answer."""
    answers.append(await shop.call("sell tea", once="x"))


def test_the_first_of_several_answers_is_kept() -> None:
    async def program() -> None:
        async with open_shop(MemoryStore()) as node, trio.open_nursery() as nursery:
            shop, answers = node.entity(Shop, "a"), list[object]()
            sell = partial(note_sale, shop, answers)
            nursery.start_soon(sell)
            await trio.testing.wait_all_tasks_blocked()
            await shop.call("answer-twice")
            await sell()
            await trio.testing.wait_all_tasks_blocked()
            assert answers == ["first", "first"]

    run_virtual(program)


def test_a_caller_that_gives_up_while_its_callback_waits_leaves_the_command_taken() -> None:
    async def program() -> None:
        async with open_shop(MemoryStore(), kinds=[SlowShop]) as node:
            shop = node.entity(SlowShop, "a")
            with pytest.raises(CallTimeoutError):
                await shop.call("sell tea", once="x", timeout=0.5)
            with pytest.raises(CallTimeoutError):  # it is under way
                await shop.call("sell tea", once="x", timeout=1.5)
            assert await shop.call("look") == ["tea"]

    run_virtual(program)


@pytest.mark.parametrize("verb", ["refuse", "refuse-only"])
def test_a_command_that_is_refused_later_is_free_again(verb: str) -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_shop(store) as node, trio.open_nursery() as nursery:
            shop = node.entity(Shop, "a")

            async def sell(text: str = "sell tea") -> None:
                with pytest.raises(ValueError, match="sold out"):
                    await shop.call(text, once="x")

            for _ in range(2):
                nursery.start_soon(sell)
                await trio.testing.wait_all_tasks_blocked()
                assert list(records(store)["a"].done) == ["x"]
                await shop.call(f"{verb} sold out")
                await trio.testing.wait_all_tasks_blocked()
                assert not records(store)["a"].done
                with pytest.raises(TargetDownError):
                    await shop.call("crash")
            await sell("refuse-at-once sold out")
            await sell("sell-and-reply-error sold out")
            assert not records(store)["a"].done

    run_virtual(program)


def test_a_callback_that_is_refused_leaves_the_answer_open() -> None:
    async def program() -> None:
        async with open_shop(MemoryStore()) as node, trio.open_nursery() as nursery:
            shop, answers = node.entity(Shop, "a"), list[object]()
            sell = partial(note_sale, shop, answers)
            nursery.start_soon(sell)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(ValueError, match="no"):
                await shop.call("answer-and-refuse no")
            nursery.start_soon(sell)
            await trio.testing.wait_all_tasks_blocked()
            assert answers == []
            await shop.call("answer thanks")
            await trio.testing.wait_all_tasks_blocked()
            assert answers == ["thanks", "thanks"]

    run_virtual(program)


def test_an_answer_that_cannot_be_stored_leaves_the_command_taken() -> None:
    async def program() -> None:
        async with open_shop(MemoryStore()) as node, trio.open_nursery() as nursery:
            shop = node.entity(Shop, "a")

            async def sell() -> None:
                with pytest.raises(TargetDownError):
                    await shop.call("sell tea", once="x")

            nursery.start_soon(sell)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(TargetDownError, match="crashed: StateError"):
                await shop.call("answer-oddly")
            with pytest.raises(AnswerUnknownError):
                await shop.call("sell tea", once="x")

    run_virtual(program)


def test_a_deferred_command_that_cannot_be_stored_is_free_again() -> None:
    async def program() -> None:
        async with open_shop(MemoryStore()) as node:
            shop = node.entity(Shop, "a")
            for _ in range(2):
                with pytest.raises(StateTypeError):
                    await shop.call("spoil", once="x", timeout=1)
            assert await shop.call("sell-and-answer tea", once="x") == "sold tea"

    run_virtual(program)


def test_a_failed_commit_leaves_no_deferred_command() -> None:
    async def program() -> None:
        life = Life()
        async with open_shop(life) as node:
            shop = node.entity(Shop, "a")
            life.stop()
            with pytest.raises(EntityStoreError):
                await shop.call("look")
            life.is_stopped = False
            await shop.call("look")
            life.stop()
            with pytest.raises(TargetDownError):
                await shop.call("sell tea", once="x", timeout=1)
            life.is_stopped = False
            with pytest.raises(CallTimeoutError):
                await shop.call("sell tea", once="x", timeout=1)
            assert await shop.call("look") == ["tea"]

    run_virtual(program)


def test_the_ids_of_a_record_are_in_the_order_of_their_moments() -> None:
    record = Record()
    record.remember("a", 1.0, None)
    record.remember("b", 2.0, b"")
    record.remember("a", 3.0, b"\xa1x")
    encoded = record.encode()
    assert encoded is not None
    assert list(Record.decode(encoded).done.items()) == [("b", (2.0, b"")), ("a", (3.0, b"\xa1x"))]
    record.forget_done(2.5, 10)
    assert list(record.done) == ["a"]


@dataclass(frozen=True)
class Receipt:
    """An answer."""

    text: str


class Till(Entity[Sales]):
    """Gives receipts."""

    def handle_call(self, request: Any, caller: Caller) -> object:
        """Sell."""
        self.state.items.append(request)
        return Receipt(request)


def test_an_answer_that_a_later_program_cannot_read_is_an_error_for_its_caller_alone() -> None:
    async def program() -> None:
        life = Life()
        async with open_bank(life, kinds=[Till], types=[Receipt]) as node:
            assert await node.entity(Till, "a").call("tea", once="x") == Receipt("tea")
        async with open_bank(Life(life.rows), kinds=[Till], types=[]) as node:
            till = node.entity(Till, "a")
            await till.call("milk")
            pid = till.pid
            with pytest.raises(AnswerUnknownError, match=r"'Receipt' is not .*types"):
                await till.call("tea", once="x")
            assert till.pid == pid
        async with open_bank(Life(life.rows), kinds=[Till], types=[Receipt]) as node:
            assert await node.entity(Till, "a").call("tea", once="x") == Receipt("tea")
            assert records(life)["a"].state == Till.__state_type__.encode(Sales(["tea", "milk"]))

    run_virtual(program)


class Order(Request[int]):
    """A request."""


@pytest.mark.parametrize("options", [{"once": "x"}, {"fresh": True}, {"once": "x", "fresh": True}])
def test_the_timeout_of_a_command_with_an_id_names_its_request(options: Any) -> None:
    async def program() -> None:
        async with open_shop(MemoryStore(), kinds=[SlowShop]) as node:
            with pytest.raises(CallTimeoutError, match=r"did not answer Order within 0\.5 s"):
                await node.entity(SlowShop, "a").call(Order(), timeout=0.5, **options)

    run_virtual(program)


class Wall:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.ahead = 1e6

    def __call__(self) -> float:
        """The time."""
        return trio.current_time() + self.ahead


DAY = 86_400.0


@pytest.mark.parametrize("jump", [2 * DAY, -2 * DAY])
def test_ids_outlive_a_wall_clock_that_is_set(jump: float) -> None:
    async def program() -> None:
        wall, store = Wall(), MemoryStore()
        async with open_shop(store, now=wall, remember=DAY) as node:
            shop = node.entity(Shop, "a")
            await shop.call("sell-and-answer tea", once="x")
            for step in range(3):
                wall.ahead += jump
                await trio.sleep(DAY / 8)
                await shop.call("look", once=f"other {step}")
                await shop.call("sell-and-answer tea", once="x")
            assert await shop.call("look") == ["tea"]

    run_virtual(program)


def test_ids_outlive_a_wall_clock_that_is_set_before_the_keeper_restarts() -> None:
    async def program() -> None:
        wall, store = Wall(), MemoryStore()
        async with open_shop(store, now=wall, remember=DAY) as node:
            shop = node.entity(Shop, "a")
            await shop.call("sell-and-answer tea", once="x")
            wall.ahead += 2 * DAY
            keeper = node.whereis("entities")
            assert keeper is not None
            node.kill(keeper)
            await shop.call("look", once="y", retry=True)
            await shop.call("sell-and-answer tea", once="x")
            assert await shop.call("look") == ["tea"]

    run_virtual(program)


def test_ids_grow_old_again_after_the_wall_clock_was_set_forward() -> None:
    async def program() -> None:
        wall, store = Wall(), MemoryStore()
        async with open_shop(store, now=wall, remember=10.0) as node:
            shop = node.entity(Shop, "a")
            wall.ahead += 1000.0
            await shop.call("look", once="x")
            await trio.sleep(11)
            await shop.call("look", once="y")
            await trio.sleep(11)
            await shop.call("look", once="z")
            assert list(records(store)["a"].done) == ["z"]

    run_virtual(program)


async def _delete(shop: Any) -> None:
    assert await shop.call("sell-and-answer tea", once="tea") == "sold tea"
    assert await shop.call("delete-and-answer gone", once="x") == "gone"
    assert await shop.call("delete-and-answer gone", once="x") == "gone"


async def _look(shop: Any) -> None:
    assert await shop.call("look", once="x") == []


@pytest.mark.parametrize("use", [_delete, _look])
@pytest.mark.parametrize("idle", [5.0, 1000.0])
def test_the_row_of_a_deleted_entity_goes_when_its_last_id_is_forgotten(
    use: Callable[[Any], Awaitable[None]], idle: float
) -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_shop(store, remember=100.0, idle=idle) as node:
            await use(node.entity(Shop, "a"))
            await trio.sleep(99)
            assert list(records(store)["a"].done) == ["x"]
            await trio.sleep(3)
            assert store.rows == {}

    run_virtual(program)


def test_a_look_for_an_earlier_id_is_followed_by_a_look_for_the_last() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_shop(store, remember=10.0) as node:
            shop = node.entity(Shop, "a")
            await _delete(shop)
            await trio.sleep(5)
            await shop.call("look", once="y")
            await trio.sleep(9)
            assert list(records(store)["a"].done) == ["x", "y"]
            await trio.sleep(3)
            assert store.rows == {}

    run_virtual(program)


def test_the_row_of_a_deleted_entity_goes_in_a_later_program_without_a_call() -> None:
    async def program() -> None:
        life = Life()
        async with open_shop(life, remember=100.0) as node:
            await _delete(node.entity(Shop, "a"))
        await trio.sleep(50)
        async with open_shop(Life(life.rows), remember=100.0):
            await trio.sleep(45)
            assert list(records(life)["a"].done) == ["x"]
            await trio.sleep(10)
            assert life.rows == {}

    run_virtual(program)


def test_rows_of_deleted_entities_are_not_read_again_when_ids_are_kept_for_longer() -> None:
    async def program() -> None:
        life = Life()
        async with open_shop(life, remember=100.0) as node:
            await _delete(node.entity(Shop, "a"))
        await trio.sleep(200)
        later = Life(life.rows)
        looks = list[object]()

        async def look(addresses: object) -> None:
            looks.append(addresses)

        later.before_load = look
        async with open_shop(later, remember=1000.0):
            await trio.sleep(700)
            assert len(looks) == 1
            assert list(records(later)["a"].done) == ["x"]
            await trio.sleep(130)
            assert later.rows == {}

    run_virtual(program)


def test_the_row_of_a_deleted_entity_outlives_a_wall_clock_that_is_set() -> None:
    async def program() -> None:
        wall, store = Wall(), MemoryStore()
        async with open_shop(store, now=wall, remember=100.0) as node:
            await _delete(node.entity(Shop, "a"))
            await trio.sleep(50)
            wall.ahead += DAY
            commits = store.commits
            await trio.sleep(45)
            assert list(records(store)["a"].done) == ["x"]
            assert store.commits <= commits + 1
            await trio.sleep(120)
            assert store.rows == {}

    run_virtual(program)


def test_ids_of_an_entity_that_lives_again_end_with_its_next_command() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_shop(store, remember=100.0) as node:
            shop = node.entity(Shop, "a")
            await _delete(shop)
            await shop.call("sell-and-answer milk")
            await trio.sleep(200)
            assert list(records(store)["a"].done) == ["x"]
            assert await shop.call("look", once="y") == ["milk"]
            assert list(records(store)["a"].done) == ["y"]

    run_virtual(program)
