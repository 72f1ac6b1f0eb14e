"""The recording verbs: none is forgotten, and each has the signature of the real verb."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from ergo_py import (
    Actor,
    Alias,
    BadInputError,
    Caller,
    EventName,
    NodeName,
    NotAllowedError,
    Priority,
)
from ergo_py._core.verbs.behaviour import Behaviour
from ergo_py._core.verbs.links_and_events import LinksAndEvents
from ergo_py._core.verbs.replies_and_timers import RepliesAndTimers
from ergo_py._core.vocabulary.errors import RelationExistsError, RelationUnknownError
from ergo_py.errors import BehaviourError, NameUnknownError
from ergo_py.idle import IdleVerbs
from ergo_py.meta import TCPServer
from ergo_py.streams.verbs import StreamCalls, StreamVerbs
from ergo_py.tasks.verbs import TaskVerbs
from ergo_py.testing import Alone
from ergo_py.testing.records.notes import Sent
from ergo_py.testing.records.verbs import RecordingVerbs

# A test sets the connection itself; without that it says, as in any process, that there is none.
# The spec of a class needs no process.
ATTRIBUTES = {"bounds_its_end", "connection", "drains", "spec", "handle_idle"}


def verbs() -> list[str]:
    return [
        name
        for cls in (
            Behaviour,
            LinksAndEvents,
            RepliesAndTimers,
            TaskVerbs,
            StreamCalls,
            StreamVerbs,
            IdleVerbs,
        )
        for name in vars(cls)
        if not name.startswith("_")
    ]


class Doer(Actor):
    async def handle_message(self, message: Any, sender: Any) -> None:
        result = message(self)
        if inspect.iscoroutine(result):
            await result

    def handle_call(self, request: Any, caller: Caller) -> object:
        return self.forward("other", request, caller)


@pytest.fixture
def alone() -> Alone[Doer]:
    return Alone(Doer)


USES: dict[str, Callable[[Any], Any]] = {
    "pid": lambda me: me.pid,
    "registered_name": lambda me: me.registered_name,
    "parent": lambda me: me.parent,
    "env": lambda me: me.env,
    "log": lambda me: setattr(me, "log", me.log.bind(order=5)),
    "send": lambda me: me.send("x", 1),
    "send_wait": lambda me: me.send_wait("x", 1),
    "send_after": lambda me: me.send_after(1.0, "x", 1),
    "send_every": lambda me: me.send_every(1.0, "x", 1),
    "forward": lambda me: me.forward("x", 1, me.pid),
    "call": lambda me: me.call("x", "known"),
    "request": lambda me: me.request("x", 1),
    "cancel_request": lambda me: me.cancel_request(me.request("x", 1)),
    "wait_for": lambda me: me.wait_for(me.call("x", "known")),
    "reply": lambda me: me.reply(caller(me), 1),
    "reply_error": lambda me: me.reply_error(caller(me), ValueError()),
    "spawn": lambda me: me.spawn(Doer),
    "spawn_meta": lambda me: me.spawn_meta(TCPServer("127.0.0.1", 0)),
    "start_task": lambda me: me.start_task(watch, "here"),
    "run_task": lambda me: me.run_task(watch, "here"),
    "stop": lambda me: me.stop(),
    "send_exit": lambda me: (me.send_exit("x", "enough"), me.send_exit(me.pid, "enough")),
    "kill": lambda me: (me.kill("x"), me.kill(me.pid)),
    "trap_exit": lambda me: setattr(me, "trap_exit", not me.trap_exit),
    "send_priority": lambda me: setattr(me, "send_priority", me.send_priority),
    "register": lambda me: me.register("a name"),
    "unregister": lambda me: (me.register("a name"), me.unregister()),
    "create_alias": lambda me: me.create_alias(),
    "delete_alias": lambda me: me.delete_alias(me.create_alias()),
    "link": lambda me: me.link("x"),
    "unlink": lambda me: (me.link("x"), me.unlink("x")),
    "monitor": lambda me: me.monitor(NodeName("b@site")),
    "demonitor": lambda me: (me.monitor("x"), me.demonitor("x")),
    "register_event": lambda me: me.register_event("news", buffer=2),
    "unregister_event": lambda me: (me.register_event("news"), me.unregister_event("news")),
    "publish": lambda me: me.publish("news", 1),
    "subscribe": lambda me: me.subscribe("news", link=True),
    "unsubscribe": lambda me: (me.subscribe("news"), me.unsubscribe("news")),
    "set_idle_timeout": lambda me: me.set_idle_timeout(5.0),
}
REFUSED: dict[str, Callable[[Any], Any]] = {
    "node": lambda me: me.node,
    "inspect_meta": lambda me: me.inspect_meta(Alias("n", 0, 1)),
    "meta_info": lambda me: me.meta_info(Alias("n", 0, 1)),
    "map_stream": lambda me: me.map_stream(watch, ["here"]).__anext__(),
    "stream": lambda me: me.stream([1]),
    "call_stream": lambda me: me.call_stream("x", 1),
}


def caller(me: Any) -> Any:
    class Silent(Caller):
        def awaken(self) -> None:
            """No task waits."""

    return Silent(me.parent, 1, me.pid, "request")


def test_every_verb_of_a_behaviour_is_used_here() -> None:
    assert {*USES, *REFUSED} == set(verbs()) - ATTRIBUTES
    assert not USES.keys() & REFUSED.keys()


@pytest.mark.parametrize("name", USES)
async def test_a_verb_needs_nothing_that_the_recording_process_lacks(
    name: str, alone: Alone[Doer]
) -> None:
    alone.answer("known", 1)

    await alone.message(USES[name])


@pytest.mark.parametrize("name", REFUSED)
async def test_a_verb_that_needs_a_node_says_so(name: str, alone: Alone[Doer]) -> None:
    with pytest.raises(NotAllowedError, match=r"a behaviour alone .*test .*with a node"):
        await alone.message(REFUSED[name])


def test_only_verbs_that_start_something_are_redefined() -> None:
    assert {name for name in vars(RecordingVerbs) if not name.startswith("_")} == {
        "call_stream",
        "set_idle_timeout",
        "spawn",
        "spawn_meta",
        "start_task",
    }


@pytest.mark.parametrize("name", [name for name in verbs() if callable(getattr(Actor, name))])
def test_a_recording_verb_has_the_signature_of_the_real_verb(name: str) -> None:
    real, noting = (
        inspect.signature(getattr(cls, name)).parameters for cls in (Actor, RecordingVerbs)
    )

    assert list(real) == list(noting)
    for name, given in real.items():
        # The first parameter of a method in C is always positional.
        assert name == "self" or given.kind == noting[name].kind
        assert given.default == noting[name].default


async def test_a_recorded_send_has_its_priority(alone: Alone[Doer]) -> None:
    def do(me: Doer) -> None:
        me.send("a", 1)
        me.send_priority = Priority.MAX
        assert me.send_priority is Priority.MAX
        me.send("a", 2)
        me.send("a", 3, priority=Priority.HIGH)
        me.forward("b", 4, me.pid)

    await alone.message(do)
    await alone.message(lambda me: me.send_wait("c", 5))
    asked = await alone.ask("on")

    assert alone.sent == [
        Sent("a", 1, Priority.NORMAL),
        Sent("a", 2, Priority.MAX),
        Sent("a", 3, Priority.HIGH),
        Sent("b", 4, Priority.MAX),
        Sent("c", 5, Priority.MAX),
        Sent("other", "on", Priority.MAX),
    ]
    assert not asked.answered


@pytest.mark.parametrize(
    "mistake, error",
    [
        (lambda me: (me.link("x"), me.link("x")), RelationExistsError),
        (lambda me: me.unlink("x"), RelationUnknownError),
        (lambda me: me.monitor(me.pid), NotAllowedError),
        (lambda me: me.demonitor("x"), RelationUnknownError),
        (lambda me: me.unregister(), NameUnknownError),
        (lambda me: me.delete_alias(Alias("n", 0, 1)), NameUnknownError),
        (lambda me: (me.register("a"), me.register("b")), NotAllowedError),
        (lambda me: me.unsubscribe("x"), RelationUnknownError),
        (lambda me: me.send_after(-1, "x", "y"), BadInputError),
        (lambda me: me.send_every(0, "x", "y"), BadInputError),
        (lambda me: me.spawn(Doer()), BehaviourError),
        (lambda me: me.spawn(Doer, color="red"), BadInputError),
        (lambda me: me.spawn_meta(Doer), BehaviourError),
        (lambda me: me.reply("nobody", 1), BadInputError),
        (lambda me: me.send("x", 1, priority=9), BadInputError),
    ],
)
async def test_a_mistake_raises_the_same_error_as_on_a_node(
    alone: Alone[Doer], mistake: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await alone.message(mistake)


async def test_aliases_and_names_of_events_are_kept(alone: Alone[Doer]) -> None:
    made: list[Alias] = []

    def do(me: Doer) -> None:
        made.extend([me.create_alias(), me.create_alias()])
        me.delete_alias(made[0])
        me.subscribe(EventName("news"))
        me.publish(EventName("ours"), 1)

    await alone.message(do)

    assert made[0] != made[1]
    assert alone.subscribed == ["news"]
    assert [one.event for one in alone.published] == ["ours"]


async def test_a_verb_that_a_class_has_overridden_itself_is_called_first() -> None:
    class Polite(Doer):
        def send(self, to: Any, message: object, *, priority: Priority | None = None) -> bool:
            return super().send(to, ("please", message), priority=priority)

    alone = Alone(Polite)

    await alone.message(lambda me: me.send("a", 1))

    assert alone.messages == [("please", 1)]


async def watch(path: str) -> None: ...


async def test_a_background_task_is_recorded_and_does_not_run(alone: Alone[Doer]) -> None:
    await alone.message(lambda self: self.start_task(watch, "here", name="watcher"))
    await alone.message(lambda self: self.send("a", "b"))

    (task,) = alone.tasks
    assert (task.function, task.args, task.name, task.done) == (watch, ("here",), "watcher", False)
    task.cancel()
    assert task.done


async def test_a_background_task_must_be_an_async_function(alone: Alone[Doer]) -> None:
    with pytest.raises(BadInputError, match="an async function and its arguments"):
        await alone.message(lambda self: self.start_task(print))
