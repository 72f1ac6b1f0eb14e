"""The verbs of an entity: nothing leaves it before its changes are stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py import (
    PID,
    Actor,
    Caller,
    ChildSpec,
    Node,
    NotAllowedError,
    Priority,
    Reject,
    TargetDownError,
    ask,
    exposed,
)
from ergo_py.entities import Entity, MemoryStore
from ergo_py.entities.stores.store import Write

from .bank import open_bank, records, run_virtual

LOCAL = [
    "bounds_its_end",
    "cancel_request",
    "connection",
    "drains",
    "env",
    "log",
    "meta_info",
    "node",
    "parent",
    "pid",
    "registered_name",
    "send_priority",
    "spec",
    "trap_exit",
    "wait_for",
]
"""Nothing leaves the entity."""
HELD = [
    "entity",
    "forward",
    "kill",
    "publish",
    "reply",
    "reply_error",
    "send",
    "send_after",
    "send_exit",
    "service",
    "stop",
]
"""They leave, or are stored, with the commit."""
WAITING = ["call", "call_stream", "inspect_meta", "send_wait"]
"""They wait for the commits of earlier callbacks."""
REFUSED = [
    "create_alias",
    "delete_alias",
    "demonitor",
    "link",
    "map_stream",
    "monitor",
    "register",
    "register_event",
    "request",
    "run_task",
    "send_every",
    "set_idle_timeout",
    "spawn",
    "spawn_meta",
    "start_task",
    "stream",
    "subscribe",
    "unlink",
    "unregister",
    "unregister_event",
    "unsubscribe",
]
CALLBACKS = [
    *("init", "post_start", "post_restart", "pre_stop", "pre_restart", "terminate"),
    *("hand_over", "take_over"),
]


def test_each_verb_of_an_actor_has_a_rule_for_entities() -> None:
    verbs = {
        name
        for name in dir(Actor)
        if name[0] != "_" and not name.startswith("handle_") and name not in CALLBACKS
    }

    page = Path(__file__).parents[2].joinpath("docs/entities.md").read_text(encoding="utf-8")
    table = page.partition("## Verbs\n")[2].partition("\n## ")[0]
    assert verbs == {*LOCAL, *HELD, *WAITING, *REFUSED}
    assert {verb for verb in verbs - {*LOCAL} if f"`{verb}`" not in table} == set()


@dataclass
class Count:
    """A state."""

    count: int = 0


class Doer(Entity[Count]):
    """An entity that changes its state and uses a verb."""

    @exposed
    def add(self) -> int:
        """Change the state."""
        self.state.count += 1
        return self.state.count

    @exposed
    def do(self, verb: str, args: Any, options: Any, refuses: bool) -> None:
        """Use a verb."""
        self.state.count += 1
        getattr(self, verb)(*args, **options)
        if refuses:
            raise Reject(ValueError("no"))

    @exposed
    async def wait(self, verb: str, args: Any) -> Any:
        """Use a verb that waits."""
        return await getattr(self, verb)(*args)

    @exposed
    def use_service(self, refuses: bool) -> None:
        """Send a message to a service."""
        self.state.count += 1
        self.service("listener").send("hello")
        if refuses:
            raise Reject(ValueError("no"))

    @exposed
    async def call_handle(self, verb: str) -> Any:
        """Call a service, or another entity."""
        if verb == "service":
            return await self.service("listener").call("messages")
        other = self.entity(Doer, "other")
        return await (other.post(1) if verb == "post" else other.call(ask(Doer.add)))

    @exposed
    def send_by_handle(self) -> None:
        """Send a message by the handle of another entity."""
        self.state.count += 1
        self.entity(Doer, "other").send(1)

    def handle_message(self, message: Any, sender: Any) -> None:
        """Add a number."""
        self.state.count += message


class Listener(Actor):
    """Keeps its messages and events."""

    def init(self) -> None:
        """Listen to an event."""
        self.messages: list[object] = []
        self.register_event("news", open=True)
        self.trap_exit = True

    def handle_message(self, message: Any, sender: Any) -> None:
        """Keep a message."""
        self.messages.append(type(message).__name__ if not isinstance(message, str) else message)

    def handle_call(self, request: Any, caller: Caller) -> object:
        """Tell the messages."""
        return list(self.messages)


class Reader(Actor):
    """Sends on the publications of an event."""

    def init(self) -> None:
        """Subscribe."""
        self.subscribe("news")

    def handle_event(self, event: Any) -> None:
        """Send it on."""
        self.send("listener", event.message)


class Gate:
    """Keeps commits waiting until it is opened."""

    def __init__(self, store: MemoryStore) -> None:
        self.is_open = trio.Event()
        store.before_commit = self._wait

    async def _wait(self, _number: int, _writes: Sequence[Write]) -> None:
        await self.is_open.wait()


async def start(node: Node) -> None:
    """Start the listeners."""
    await node.supervise([ChildSpec("listener", Listener), ChildSpec("reader", Reader)], name="l")


async def try_call(node: Node, request: Any) -> None:
    """Call an entity that may refuse."""
    try:
        await node.entity(Doer, "a").call(request)
    except ValueError:
        pass


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize(
    "verb, args, options, expected",
    [
        ("send", ["hello"], {}, "hello"),
        ("send", ["hello"], {"priority": Priority.HIGH}, "hello"),
        ("forward", ["hello"], {}, "hello"),
        ("send_exit", ["over"], {}, "Exit"),
        ("publish", ["hello"], {}, "hello"),
        ("service", [], {}, "hello"),
    ],
)
def test_a_verb_is_held_until_the_callback_is_stored(
    verb: str, args: list[Any], options: dict[str, Any], expected: str, refuses: bool
) -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, kinds=[Doer]) as node, trio.open_nursery() as nursery:
            await start(node)
            gate = Gate(store)
            given = ["news" if verb == "publish" else "listener", *args]
            if verb == "forward":
                given.append(node.pid)
            request = (
                ask(Doer.use_service, refuses)
                if verb == "service"
                else ask(Doer.do, verb, given, options, refuses)
            )
            nursery.start_soon(try_call, node, request)
            await trio.testing.wait_all_tasks_blocked()
            assert await node.call("listener", "messages") == []
            gate.is_open.set()
            await trio.testing.wait_all_tasks_blocked()
            left = [] if refuses else [expected]
            assert await node.call("listener", "messages") == left

    run_virtual(program)


def test_a_kill_is_held_until_the_callback_is_stored() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, kinds=[Doer]) as node, trio.open_nursery() as nursery:
            victim = await node.spawn(Actor)
            gate = Gate(store)
            nursery.start_soon(try_call, node, ask(Doer.do, "kill", [victim], {}, False))
            await trio.testing.wait_all_tasks_blocked()
            assert victim in node.processes()
            gate.is_open.set()
            await trio.testing.wait_all_tasks_blocked()
            assert victim not in node.processes()

    run_virtual(program)


def test_an_entity_that_stops_itself_answers_and_wakes_again() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), kinds=[Doer]) as node:
            doer = node.entity(Doer, "a")
            await doer.call(ask(Doer.do, "stop", [], {}, False))
            assert await doer.call(ask(Doer.add)) == 2

    run_virtual(program)


@pytest.mark.parametrize("verb", ["send_wait", "call", "service", "post", "entity"])
def test_a_verb_that_waits_leaves_when_earlier_callbacks_are_stored(verb: str) -> None:
    async def program() -> None:
        store = MemoryStore()
        done: list[object] = []
        async with open_bank(store, kinds=[Doer]) as node, trio.open_nursery() as nursery:
            await start(node)
            doer = node.entity(Doer, "a")
            gate = Gate(store)
            request = (
                ask(Doer.wait, verb, ["listener", "hello"])
                if verb in ("send_wait", "call")
                else ask(Doer.call_handle, verb)
            )

            async def call() -> None:
                done.append(await doer.call(request))

            nursery.start_soon(try_call, node, ask(Doer.add))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            assert await node.call("listener", "messages") == []
            assert node.entity(Doer, "other").pid is None
            gate.is_open.set()
            await trio.testing.wait_all_tasks_blocked()
            assert len(done) == 1

    run_virtual(program)


def test_a_message_by_a_handle_is_stored_with_the_callback() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), kinds=[Doer]) as node:
            await node.entity(Doer, "a").call(ask(Doer.send_by_handle))
            await trio.sleep(1)
            assert await node.entity(Doer, "other").call(ask(Doer.add)) == 2

    run_virtual(program)


@pytest.mark.parametrize("verb", [*REFUSED, "send_after"])
def test_a_verb_that_outlives_a_callback_is_refused(verb: str) -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), kinds=[Doer]) as node:
            args = [1.0, "listener", "hello"] if verb == "send_after" else []
            with pytest.raises(TargetDownError, match="an entity has no"):
                await node.entity(Doer, "a").call(ask(Doer.do, verb, args, {}, False))
            assert await node.entity(Doer, "a").call(ask(Doer.add)) == 1

    run_virtual(program)


@dataclass
class Counted:
    """A state with a derived part."""

    count: int = 0
    derived: int = 0


class Counting(Entity[Counted]):
    """An entity that is inspected."""

    def init(self) -> None:
        """Derive a part of the state."""
        self.state.derived = self.state.count * 2 + 1

    @exposed
    def look(self) -> tuple[int, int]:
        """The state."""
        return self.state.count, self.state.derived

    @exposed
    def add(self) -> int:
        """Count."""
        self.state.count += 1
        return self.state.count

    def handle_inspect(self, *items: str, asker: PID | None = None) -> dict[str, str]:
        """Change the state as told, or only read it."""
        if "count" in items:
            self.state.count += 1000
        if "spoil" in items:
            unchecked: Any = self.state
            unchecked.count = "many"
        return {"count": str(self.state.count), "asked": str(asker is not None)}


class CountingLater(Counting):
    """The same with an async callback."""

    async def handle_inspect(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *items: str, asker: PID | None = None
    ) -> dict[str, str]:
        """Wait, and do as told."""
        await trio.sleep(0.1)
        return {**super().handle_inspect(*items, asker=asker), "later": "yes"}


@pytest.mark.parametrize("kind", [Counting, CountingLater])
@pytest.mark.parametrize("item", ["count", "spoil"])
def test_an_inspection_changes_no_state(kind: type[Counting], item: str) -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), kinds=[kind]) as node:
            counting = node.entity(kind, "a")
            assert await counting.call(ask(Counting.add)) == 1
            pid = counting.pid
            assert pid is not None
            with pytest.raises(
                NotAllowedError, match=rf"handle_inspect of {kind.__name__}.*a.*put"
            ):
                await node.inspect(pid, item)
            told = await node.inspect(pid)
            assert (told["count"], told["asked"]) == ("1", "True")
            assert ("later" in told) == (kind is CountingLater)
            assert await counting.call(ask(Counting.look)) == (1, 1)
            assert await counting.call(ask(Counting.add)) == 2
            assert counting.pid == pid

    run_virtual(program)


def test_a_part_that_init_derives_is_stored_with_the_next_change() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, kinds=[Counting], idle=1.0) as node:
            counting = node.entity(Counting, "a")
            assert await counting.call(ask(Counting.look)) == (0, 1)
            assert store.rows == {}
            assert await counting.call(ask(Counting.add)) == 1
            commits = store.commits
            for _ in range(2):
                await trio.sleep(10)  # it sleeps, and wakes up
                assert await counting.call(ask(Counting.look)) == (1, 3)
            assert store.commits == commits
            state = records(store)["a"].state
            assert state == Counting.__state_type__.encode(Counted(1, 1))

    run_virtual(program)
