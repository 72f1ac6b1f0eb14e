"""Context variables: each process has its own, for every caller and every dispatcher."""

from collections.abc import Generator
from contextvars import ContextVar, copy_context
from types import coroutine
from typing import Any

import pytest
import trio
import trio.lowlevel

from ergo_py import Actor, Caller, ChildSpec, InitError, Reason, Supervisor, SupervisorSpec
from ergo_py._core.processes.threaded_process import adopt
from ergo_py._core.runtime.abandonable import Abandonable, frames_of
from ergo_py.errors import InitTimeoutError
from ergo_py.info import Dispatcher
from tests.actors import Failed
from tests.dispatched import EVERYWHERE, Gate, in_threads
from tests.support import replace_private, running_node

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
OTHER: ContextVar[str] = ContextVar("other", default="nothing")


class Plain(Actor):
    """Answers with the tenant that its callbacks see; a request sets another tenant."""

    def __init__(self, seen: list[Any] | None = None, at_first: str | None = None) -> None:
        self.seen: list[Any] = [] if seen is None else seen
        self.at_first = at_first
        self.seen.append(("__init__", TENANT.get()))

    def init(self) -> Any:
        self._note("init")
        if self.at_first is not None:
            TENANT.set(self.at_first)

    def _note(self, callback: str) -> None:
        self.seen.append((callback, TENANT.get()))

    def handle_message(self, message: Any, sender: Any) -> Any:
        self._note("handle_message")
        TENANT.set(message)

    def handle_call(self, request: Any, caller: Caller) -> Any:
        before = TENANT.get()
        if request is not None:
            TENANT.set(request)
        return before

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"tenant": TENANT.get()}

    def terminate(self, reason: Reason) -> Any:
        self._note("terminate")


class Async(Plain):
    """The same with callbacks that may wait."""

    async def init(self) -> None:
        await trio.lowlevel.checkpoint()
        super().init()
        await trio.lowlevel.checkpoint()

    async def handle_message(self, message: Any, sender: Any) -> None:
        await trio.lowlevel.checkpoint()
        super().handle_message(message, sender)
        await trio.lowlevel.checkpoint()

    async def handle_call(self, request: Any, caller: Caller) -> Any:
        await trio.lowlevel.checkpoint()
        return super().handle_call(request, caller)

    async def terminate(self, reason: Reason) -> None:
        super().terminate(reason)


class Mixed(Plain):
    """Its calls wait and its messages do not."""

    async def handle_call(self, request: Any, caller: Caller) -> Any:
        return super().handle_call(request, caller)


class Greeting(Plain):
    """Begins with something to do."""

    def post_start(self) -> None:
        self._note("post_start")


KINDS = [Plain, Async, Mixed, Greeting]
everyone = pytest.mark.parametrize(
    "kind, where, inline",
    [(kind, where, inline) for kind in KINDS for where in EVERYWHERE for inline in (True, False)],
    ids=str,
)


@everyone
async def test_a_callee_neither_sees_nor_changes_context_variables_of_its_caller(
    kind: type[Plain], where: Dispatcher, inline: bool
) -> None:
    TENANT.set("spawner")
    async with running_node(inline_calls=inline) as node:
        pid = await node.spawn(kind, dispatcher=where)

        async def call(request: str | None) -> str:
            TENANT.set("caller")
            answer: str = await node.call(pid, request)
            assert TENANT.get() == "caller"
            return answer

        # The first call finds it before its first step, the others asleep.
        assert [await call(request) for request in (None, "one", "two", None)] == [
            "spawner",
            "spawner",
            "one",
            "two",
        ]


@everyone
async def test_a_process_keeps_its_context_variables_from_start_to_end(
    kind: type[Plain], where: Dispatcher, inline: bool
) -> None:
    seen: list[Any] = []
    TENANT.set("spawner")
    async with running_node(inline_calls=inline) as node:
        pid = await node.spawn(kind, seen, "own", dispatcher=where)
        assert TENANT.get() == "spawner"
        TENANT.set("spawner later")

        for message in ("first", "second"):
            node.send(pid, message)
        assert await node.call(pid, "third") == "second"
        told = await node.inspect(pid)
        assert TENANT.get() == "spawner later"
        other = await node.spawn(Plain, seen)
        assert await node.call(other, None) == "spawner later"

    greeting = [("post_start", "own")] if kind is Greeting else []
    assert seen[:-4] == [
        ("__init__", "spawner"),
        ("init", "spawner"),
        *greeting,
        ("handle_message", "own"),
        ("handle_message", "first"),
    ]
    assert seen[-4:] == [
        ("__init__", "spawner later"),
        ("init", "spawner later"),
        ("terminate", "spawner later"),
        ("terminate", "third"),
    ]
    assert told == {"tenant": "third"}


@pytest.mark.parametrize("where", EVERYWHERE, ids=str)
async def test_a_background_task_begins_with_a_copy_of_the_context_of_its_process(
    where: Dispatcher,
) -> None:
    class Starts(Plain):
        def handle_call(self, request: Any, caller: Caller) -> Any:
            before = TENANT.get()
            TENANT.set(request)
            if request == "with task":
                self.start_task(self.work)
            return before

        async def work(self) -> None:
            self.seen.append(("task", TENANT.get()))
            TENANT.set("task")
            done.set()

    done = trio.Event()
    seen: list[Any] = []
    TENANT.set("spawner")
    async with running_node() as node:
        pid = await node.spawn(Starts, seen, dispatcher=where)
        await node.call(pid, "with task")
        await done.wait()

        assert ("task", "with task") in seen
        assert await node.call(pid, "later") == "with task"


@pytest.mark.parametrize("where", EVERYWHERE, ids=str)
async def test_a_message_of_a_timer_is_handled_in_the_context_of_its_receiver(
    where: Dispatcher,
) -> None:
    seen: list[Any] = []
    TENANT.set("spawner")
    async with running_node() as node:
        pid = await node.spawn(Plain, seen, dispatcher=where)
        TENANT.set("owner of the timer")
        node.send_after(0, pid, "from a timer")
        while await node.call(pid, None) != "from a timer":  # noqa: ASYNC110 - a thread
            await trio.sleep(0.001)

        assert seen[-1] == ("handle_message", "spawner")


async def test_processes_of_the_same_pod_have_separate_contexts() -> None:
    pod = next(where for where in EVERYWHERE if str(where).startswith("thread "))
    async with running_node() as node:
        one, other = [await node.spawn(Plain, dispatcher=pod) for _ in range(2)]

        await node.call(one, "one")
        await node.call(other, "other")

        assert [await node.call(pid, None) for pid in (one, other)] == ["one", "other"]


async def test_a_child_has_a_copy_of_its_supervisors_context() -> None:
    TENANT.set("above")
    async with running_node() as node:
        await node.spawn(Supervisor, SupervisorSpec([ChildSpec("child", Plain)]))
        TENANT.set("changed")
        first = node.whereis("child")
        assert first is not None
        await node.call(first, "child's own")
        node.kill(first)
        await node.wait_ended(first)

        assert await node.service("child").call(None) == "above"


@pytest.mark.parametrize("kind", [Plain, Async])
async def test_an_init_that_fails_leaves_the_spawners_context_unchanged(kind: type[Plain]) -> None:
    class Fails(kind):  # type: ignore[valid-type, misc]
        def _note(self, callback: str) -> None:
            TENANT.set("broken")
            raise Failed(callback)

    TENANT.set("spawner")
    async with running_node() as node:
        with pytest.raises(InitError) as caught:
            await node.spawn(Fails)
        assert isinstance(caught.value.__cause__, Failed)
        assert TENANT.get() == "spawner"


async def test_a_call_that_crashes_its_callee_inline_leaves_the_callers_context_unchanged() -> None:
    class Crashes(Plain):
        def handle_call(self, request: Any, caller: Caller) -> str:
            TENANT.set("broken")
            raise Failed

    TENANT.set("caller")
    async with running_node() as node:
        pid = await node.spawn(Crashes)
        node.send(pid, "awake once")
        await node.inspect(pid)
        with pytest.raises(Exception, match="crashed: Failed"):
            await node.call(pid, "now")

        assert TENANT.get() == "caller"


@in_threads
async def test_a_coroutine_awaited_for_a_callback_in_a_thread_may_set_context_variables(
    where: Dispatcher,
) -> None:
    class Waits(Plain):
        def handle_call(self, request: Any, caller: Caller) -> Any:
            OTHER.set("set in the thread")
            return self.wait_for(self._sign_in(request)), OTHER.get()

        async def _sign_in(self, tenant: str) -> str:
            TENANT.set(tenant)
            return OTHER.get()

        def handle_message(self, message: Any, sender: Any) -> None:
            self.seen.append((TENANT.get(), OTHER.get()))

    seen: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Waits, seen, dispatcher=where)
        assert await node.call(pid, "signed in") == ("nothing", "set in the thread")
        node.send(pid, "look")
        await node.call(pid, "after that")

    # Variables that the thread has set come to the process when its callback is done.
    assert seen[2] == ("signed in", "set in the thread")


@in_threads
async def test_an_inspection_while_a_callback_waits_shows_the_processs_context(
    where: Dispatcher,
) -> None:
    waits, go_on = trio.Event(), trio.Event()

    class Waits(Plain):
        def handle_message(self, message: Any, sender: Any) -> None:
            self.wait_for(self._wait())

        async def _wait(self) -> None:
            waits.set()
            await go_on.wait()

    TENANT.set("spawner")
    async with running_node() as node:
        pid = await node.spawn(Waits, dispatcher=where)
        TENANT.set("inspector")
        node.send(pid, "wait")
        await waits.wait()

        assert await node.inspect(pid) == {"tenant": "spawner"}
        go_on.set()


@in_threads
async def test_a_kill_during_a_blocking_init_leaves_the_spawners_context_unchanged(
    where: Dispatcher,
) -> None:
    gate = Gate()

    class Blocks(Plain):
        def init(self) -> None:
            TENANT.set("blocked")
            gate()

    TENANT.set("spawner")
    async with running_node() as node:
        async with trio.open_nursery() as nursery:

            async def spawn() -> None:
                TENANT.set("spawning")
                await node.spawn(Blocks, dispatcher=where)
                assert TENANT.get() == "spawning"

            nursery.start_soon(spawn)
            await gate.wait_reached()
            gate.opened.set()

        assert TENANT.get() == "spawner"


# -- the tools -------------------------------------------------------------------------------------


@coroutine
def ask(question: str) -> Generator[str, Any, Any]:
    return (yield question)


async def converse(log: list[Any]) -> None:
    for number in range(2):
        try:
            log.append((TENANT.get(), await ask(f"question {number}")))
        except Failed as error:
            log.append((TENANT.get(), repr(error)))
        TENANT.set(f"answered {number}")


async def test_each_step_of_a_coroutine_runs_in_the_given_context() -> None:
    TENANT.set("outside")
    context = copy_context()
    log: list[Any] = []
    running: Any = Abandonable().run_part(converse(log), context)

    assert running.send(None) == "question 0"
    TENANT.set("changed outside")
    assert running.throw(Failed("no answer")) == "question 1"
    with pytest.raises(StopIteration):
        running.send("answer")

    assert log == [("outside", "Failed('no answer')"), ("answered 0", "answer")]
    assert TENANT.get() == "changed outside"
    assert context[TENANT] == "answered 1"


async def test_a_coroutine_that_raises_passes_its_error_to_the_awaiting_task() -> None:
    async def fail() -> None:
        TENANT.set("failed")
        raise Failed

    TENANT.set("outside")
    running: Any = Abandonable().run_part(fail(), copy_context())
    with pytest.raises(Failed):
        running.send(None)

    assert TENANT.get() == "outside"


def test_only_changed_variables_are_adopted() -> None:
    def adopt_a_change() -> tuple[str, str]:
        TENANT.set("before")
        OTHER.set("before")
        before = copy_context()
        changed = before.copy()
        changed.run(TENANT.set, "changed there")
        OTHER.set("changed here")

        adopt(changed, before)

        return TENANT.get(), OTHER.get()

    # Not in the context of the test run, which later tests inherit.
    assert copy_context().run(adopt_a_change) == ("changed there", "changed here")


async def test_an_init_that_is_cut_off_cleans_up_in_its_own_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    class Stuck(Actor):
        async def init(self) -> None:
            TENANT.set("its own")
            try:
                while True:
                    try:
                        await trio.sleep_forever()
                    except trio.Cancelled:
                        pass
            finally:
                seen.append(TENANT.get())

    # It takes every cancellation for nothing, so that time that jumps when all tasks sleep would
    # stand still.
    replace_private(monkeypatch, "grace of processes", 0.01)
    TENANT.set("the spawner's")
    async with running_node() as node:
        with pytest.raises(InitTimeoutError):
            await node.spawn(Stuck, init_timeout=0.01)

    assert seen == ["its own"]


async def test_the_stack_of_a_waiting_init_can_be_seen() -> None:
    class Waits(Actor):
        async def init(self) -> None:
            begun.set()
            await trio.sleep_forever()

    begun = trio.Event()
    async with running_node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(node.spawn, Waits)
        await begun.wait()
        [task] = nursery.child_tasks

        names = [frame.f_code.co_name for frame in frames_of(task)]

        assert {"spawn", "_pass", "init", "sleep_forever"} <= set(names)
        nursery.cancel_scope.cancel()
