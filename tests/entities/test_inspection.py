"""The facts about entities: kinds with their counts, records, parked messages and new attempts."""

from dataclasses import dataclass
from typing import Any

import pytest
import trio

from ergo_py import ChildSpec, Node, ask, exposed, open_node
from ergo_py._core.inspection.census import read_row
from ergo_py._core.processes.process import processes_of
from ergo_py._core.verbs.node_access import kernel_of
from ergo_py.control.rows import ps_row
from ergo_py.control.views.survey import Survey, Window
from ergo_py.entities import Entities, Entity, EntityInspector, EntityStoreError, MemoryStore
from ergo_py.entities.stores.store import Row
from ergo_py.entity_handles import Address, EntityFigures, EntityKindUnknownError
from ergo_py.telemetry.figures import read_figures
from ergo_py.telemetry.metrics import families_of
from tests.entities.support import keeping_of

from .bank import Account, Life, Pay, open_bank, records, run_virtual
from .test_keeper import CHAIN, Chain


@dataclass
class Login:
    name: str = "ann"
    password: str = "secret"


@dataclass
class Person:
    login: Login | None = None
    limits: tuple[int, ...] = ()
    photo: bytes = b""


class User(Entity[Person]):
    @exposed
    def change(self) -> None:
        self.state = Person(Login(), (1, 2), b"x")


async def kind_of(node: Node, name: str) -> dict[str, Any]:
    (store,) = await EntityInspector(node).kinds()
    kinds: dict[str, dict[str, Any]] = {kind["kind"]: kind for kind in store["kinds"]}
    return kinds[name]


def test_kinds_are_counted_awake_and_stored() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), idle=10.0) as node:
            assert await kind_of(node, "Account") == {
                "kind": "Account",
                "stored": 0,
                "is_more": False,
                "awake": 0,
                "owed": 0,
                "due": 0,
                "parked": 0,
            }
            for key in ("ada", "bob"):
                await node.entity(Account, key).call(ask(Account.deposit, 1))
            await node.entity(Account, "new").call(ask(Account.look))
            counts = await kind_of(node, "Account")
            assert (counts["stored"], counts["awake"]) == (2, 3)
            await trio.sleep(30)
            counts = await kind_of(node, "Account")
            assert (counts["stored"], counts["awake"]) == (2, 0)

    run_virtual(program)


def test_facts_tell_recent_commits_and_count_keys_again_only_when_the_count_is_old() -> None:
    async def program() -> None:
        store = MemoryStore()

        async def take_long(_number: int, _writes: object) -> None:
            await trio.sleep(0.5)

        store.before_commit = take_long
        async with open_bank(store) as node:
            inspection = keeping_of(node, Account).inspection

            async def facts() -> tuple[dict[str, Any], int]:
                found = await inspection.facts(age=30.0)
                return found["recent"], found["kinds"][0]["stored"]

            assert await facts() == ({"seconds": 0, "commits": 0, "versions": 0, "time": 0}, 0)
            await node.entity(Account, "ada").call(ask(Account.deposit, 1))
            await node.entity(Account, "ada").call(ask(Account.earn_later, 20.0))
            await trio.sleep(3)
            recent = {"seconds": 4.0, "commits": 2, "versions": 2, "time": 1.0}
            assert await facts() == (recent, 0)
            due = (await inspection.facts())["kinds"][0]["due"]
            assert due == 1
            await trio.sleep(10)
            assert (await facts())[0]["commits"] == 0
            assert (await inspection.facts())["kinds"][0]["stored"] == 1
            await trio.sleep(31)
            assert (await facts())[1] == 1

    run_virtual(program)


def test_a_failure_of_the_store_is_shown_with_its_text() -> None:
    async def program() -> None:
        store = MemoryStore()

        async def fail(number: int, _writes: object) -> None:
            if number == 1:
                raise EntityStoreError("the disk is full")

        store.before_commit = fail
        async with open_bank(store) as node:
            (before,) = await EntityInspector(node).kinds()
            assert (before["failures"], before["last_error"]) == (0, None)
            account = node.entity(Account, "ada")
            await account.call(ask(Account.deposit, 1), retry=True, once="1", timeout=60)
            (after,) = await EntityInspector(node).kinds()
            assert after["failures"] == 1
            assert after["last_error"]["text"] == "the disk is full"
            assert after["commits"] == 1

    run_virtual(program)


def test_metrics_count_entities_from_the_start_of_the_node() -> None:
    async def program() -> None:
        store = MemoryStore()

        async def fail(number: int, _writes: object) -> None:
            if number == 2:
                raise EntityStoreError("the disk is full")

        store.before_commit = fail
        async with open_bank(store, attempts=1, kinds=[Account, Chain]) as node:
            assert read_figures(node).entities == EntityFigures()
            ada = node.entity(Account, "ada")
            for id in ("1", "2"):
                await ada.call(ask(Account.deposit, 1), retry=True, once=id, timeout=60)
            await node.entity(Account, "bob").post("crash")
            await trio.sleep(30)
            figures = read_figures(node).entities
            assert (figures.awake, figures.failures, figures.parked) == (2, 1, 1)
            assert figures.versions >= figures.commits >= 3
            counted = {
                family.metric.name: family.samples for family in families_of(read_figures(node))
            }
            assert counted["ergo_entities_parked"][0].value == 1
            assert counted["ergo_entities_store_failures"][0].value == 1
            assert counted["ergo_entities_awake"][0].value == 2

    run_virtual(program)


def test_metrics_count_wakings_sleeps_and_the_time_of_commits() -> None:
    async def program() -> None:
        store = MemoryStore()

        async def take_long(_number: int, _writes: object) -> None:
            await trio.sleep(2)

        store.before_commit = take_long
        async with open_bank(store, idle=10.0) as node:
            for _ in range(2):
                await node.entity(Account, "ada").call(ask(Account.deposit, 1))
                await trio.sleep(30)
            figures = read_figures(node).entities
            assert (figures.awake, figures.wakings, figures.sleeps) == (0, 2, 2)
            assert (figures.commits, figures.seconds) == (2, 4.0)

    run_virtual(program)


def test_metrics_count_held_replies_and_owed_messages() -> None:
    async def program() -> None:
        store = MemoryStore()

        async def take_long(_number: int, _writes: object) -> None:
            await trio.sleep(2)

        async with open_bank(store) as node, trio.open_nursery() as nursery:
            ada = node.entity(Account, "ada")
            await ada.call(ask(Account.deposit, 10))
            await ada.call(ask(Account.earn_later, 100.0))
            store.before_commit = take_long
            nursery.start_soon(ada.call, Pay("bob", 1))
            await trio.sleep(1)
            figures = read_figures(node).entities
            # The reply, and the first attempt to deliver. The timer is not owed yet.
            assert (figures.held, figures.owed) == (2, 1)
            counted = {each.metric.name: each.samples for each in families_of(read_figures(node))}
            assert counted["ergo_entities_held"][0].value == 2
            assert counted["ergo_entities_owed"][0].value == 1
            await trio.sleep(20)
            figures = read_figures(node).entities
            assert (figures.held, figures.owed) == (0, 0)

    run_virtual(program)


def test_a_record_has_state_timers_and_ids_and_wakes_no_entity() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), idle=10.0) as node:
            ada = node.entity(Account, "ada")
            await ada.call(ask(Account.deposit, 5), once="monday")
            await ada.call(ask(Account.earn_later, 3600.0))
            await trio.sleep(20)
            inspector = EntityInspector(node)
            assert await inspector.record(Account, "ada") == {
                "kind": "Account",
                "key": "ada",
                "is_awake": False,
                "version": 2,
                "state": {"amount": 5, "entries": []},
                "owed": [],
                "timers": [
                    {
                        "to": "Account/ada",
                        "message_type": "Interest",
                        "timer": "interest",
                        "due": "1970-01-01T01:00:00+00:00",
                    }
                ],
                "parked": [],
                "done": {"monday": "1970-01-01T00:00:00+00:00"},
            }
            record = await inspector.record("Account", "ada", contents=True)
            assert record is not None
            assert record["timers"][0]["message"] == "Interest()"
            assert await inspector.record(Account, "eve") is None
            with pytest.raises(EntityKindUnknownError, match="did you mean 'Account'") as unknown:
                await inspector.record("Acount", "ada")
            assert unknown.value.kind == "Acount"
            assert (await kind_of(node, "Account"))["awake"] == 0

    run_virtual(program)


async def test_a_state_is_shown_after_redact_of_each_part() -> None:
    def redact(what: str, value: object) -> object:
        if what == "limits":
            raise ValueError(what)
        return "…" if what == "password" else value

    store = MemoryStore()
    async with open_node("users@test", log_level="critical", redact=redact) as node:
        await node.supervise([ChildSpec("entities", Entities.spec(store, [User]))])
        await node.entity(User, "ann").call(ask(User.change))
        record = await EntityInspector(node).record(User, "ann")
        assert record is not None
        assert record["state"] == {
            "login": {"name": "ann", "password": "…"},
            "limits": "<redact raised ValueError>",
            "photo": "b'x'",
        }


def test_a_state_that_does_not_fit_is_shown_with_the_problem() -> None:
    async def program() -> None:
        store = Life()
        async with open_bank(store) as node:
            await node.entity(Account, "ada").call(ask(Account.deposit, 1))
        address = Address("Account", "ada")
        row, due = store.rows[address]
        other = row.record.replace(b"amount", b"figure")
        store.rows[address] = Row(row.version, other), due
        async with open_bank(Life(store.rows)) as node:
            record = await EntityInspector(node).record(Account, "ada")
            assert record is not None
            assert record["state"] == {"figure": 1, "entries": []}
            assert "unknown field 'figure'" in record["problem"]

    run_virtual(program)


def test_parked_messages_are_found_in_sleeping_entities_of_an_earlier_program() -> None:
    async def program() -> None:
        store = Life()
        async with open_bank(store, **CHAIN, idle=10.0) as node:
            await node.entity(Chain, "b").call(ask(Chain.refuse, [2]))
            await node.entity(Chain, "a").call(ask(Chain.send_all, "b", [1, 2]))
            await trio.sleep(100)
            counts = await kind_of(node, "Chain")
            assert (counts["parked"], counts["awake"]) == (1, 0)
        async with open_bank(Life(store.rows), **CHAIN) as node:
            assert (await kind_of(node, "Chain"))["parked"] == 0
            assert await EntityInspector(node).parked() == [
                {"kind": "Chain", "key": "a", "to": "Chain/b", "message_type": "int", "attempts": 3}
            ]
            assert (await kind_of(node, "Chain"))["parked"] == 1
            assert await EntityInspector(node).parked(limit=0) == []

    run_virtual(program)


def test_a_row_that_cannot_be_read_is_named_among_the_parked_messages() -> None:
    async def program() -> None:
        store = Life()
        async with open_bank(store, **CHAIN, idle=10.0) as node:
            await node.entity(Chain, "b").call(ask(Chain.refuse, [2]))
            for key in ("a", "c"):
                await node.entity(Chain, key).call(ask(Chain.send_all, "b", [2]))
            await trio.sleep(100)
            store.rows[Address("Chain", "b")] = Row(9, b"\xc1"), None
            found = await EntityInspector(node).parked()
            assert [each.pop("key") for each in found] == ["a", "b", "c"]
            assert found[0] == found[2]
            assert found[1].keys() == {"kind", "problem"}
            assert "cannot be read" in found[1]["problem"]
            assert len(await EntityInspector(node).parked(limit=1)) == 1

    run_virtual(program)


def test_a_retried_message_arrives_although_later_messages_came_first() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, **CHAIN) as node:
            b = node.entity(Chain, "b")
            await b.call(ask(Chain.refuse, [2]))
            await node.entity(Chain, "a").call(ask(Chain.send_all, "b", [1, 2, 3]))
            await trio.sleep(60)
            assert (await kind_of(node, "Chain"))["parked"] == 1
            await b.call(ask(Chain.refuse, []))
            assert await EntityInspector(node).retry(Chain, "a") == 1
            await trio.sleep(1)
            assert await b.call(ask(Chain.look)) == [1, 3, 2]
            assert "a" not in records(store)  # it owes nothing, and has no state
            assert (await kind_of(node, "Chain"))["parked"] == 0
            assert await EntityInspector(node).retry("Chain", "a") == 0

    run_virtual(program)


def test_a_retried_job_is_parked_again_after_as_many_attempts() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, **CHAIN) as node:
            await node.entity(Chain, "a").call(ask(Chain.refuse, [2]))
            await node.entity(Chain, "a").post(2)
            for _ in range(2):
                await trio.sleep(100)
                (parked,) = await EntityInspector(node).parked()
                assert parked["attempts"] == 3
                assert await EntityInspector(node).retry(Chain, "a") == 1
                (owed,) = records(store)["a"].owed.values()
                assert not owed.is_parked

    run_virtual(program)


def test_the_process_of_an_entity_is_shown_with_its_kind_and_key() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore()) as node:
            ada = node.entity(Account, "ada")
            await ada.call(ask(Account.deposit, 1))
            assert ada.pid is not None
            info = node.process_info(ada.pid)
            assert (info.entity, info.name, info.phase) == ("Account/ada", None, None)
            assert f"Account/ada {ada.pid}" in str(node.tree())
            # Entities have no names: a tree of many is cut as other unnamed children are.
            await node.entity(Account, "bob").call(ask(Account.deposit, 1))
            assert "… and 1 more Account" in node.tree().text(alike=1)
            _, (found,) = Survey(kernel_of(node)).look([Window("name", False, "Account/a", 0, 10)])
            process = processes_of(kernel_of(node).router)[ada.pid]
            assert found.found == 1
            assert ps_row(process, read_row(process, 0.0))["name"] == "Account/ada"

    run_virtual(program)
