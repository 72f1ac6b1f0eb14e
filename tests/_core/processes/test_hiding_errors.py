"""Exceptions that refuse to tell their class, as a lazy proxy does outside of its context: in every
place they end the process that raised them, and nothing else.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    LOOP,
    Actor,
    Caller,
    ChildSpec,
    InitError,
    MetaProcess,
    Node,
    Reason,
    Reject,
    SpawnError,
    TargetDownError,
    Threads,
)
from ergo_py._core.metas.shared_state import Flag
from ergo_py._core.vocabulary.reasons import is_for_program
from ergo_py.info import Dispatcher
from ergo_py.supervision import Decision
from tests.support import running_node

hiding_now = Flag()
"""Set while they hide: pytest asks an exception for its class when it reports a failed test."""


def refuse(error: BaseException) -> type:
    if hiding_now:
        raise RuntimeError("no class")
    return type(error)


class HidingError(Exception):
    """Refuses to tell its class."""

    __class__: Any = property(refuse)


class HidingTypeError(TypeError):
    """Refuses to tell its class, and is of a class for which there are hints."""

    __class__: Any = property(refuse)

    @property
    def reason(self) -> Any:
        raise RuntimeError("no reason")


class HidingBaseError(BaseException):
    """Refuses to tell its class, and is no ``Exception``."""

    __class__: Any = property(refuse)


def hiding() -> BaseException:
    return HidingError("x")


def hiding_with_hint() -> BaseException:
    return HidingTypeError("x")


def hiding_base() -> BaseException:
    return HidingBaseError("x")


def in_a_group() -> BaseException:
    return ExceptionGroup("outer", [HidingError("x")])


def in_a_nested_group() -> BaseException:
    return ExceptionGroup("outer", [ValueError("v"), ExceptionGroup("inner", [HidingError("x")])])


def as_a_cause() -> BaseException:
    error = ValueError("v")
    error.__cause__ = HidingError("x")
    return error


Make = Callable[[], BaseException]
Place = Callable[[Node, Make], Awaitable[None]]

kinds = pytest.mark.parametrize(
    "make", [hiding, hiding_with_hint, hiding_base, in_a_group, in_a_nested_group, as_a_cause]
)


@asynccontextmanager
async def node_that_must_not_ask() -> AsyncIterator[Node]:
    hiding_now.set()
    try:
        async with running_node(limit=20.0) as node:
            yield node
    finally:
        hiding_now.clear()


class Alive(Actor):
    def handle_call(self, request: Any, caller: Caller) -> Any:
        return "alive"


class Raising:
    """Raises the error in the callback that it is given."""

    def __init__(self, where: str, make: Make) -> None:
        self.where = where
        self.make = make

    def check(self, callback: str) -> None:
        if callback == self.where:
            raise self.make()


class Plain(Raising, Actor):
    """An actor with plain callbacks."""

    def init(self) -> None:
        self.check("init")

    def handle_message(self, message: Any, sender: Any) -> None:
        self.check("handle_message")
        self.stop()

    def handle_call(self, request: Any, caller: Caller) -> Any:
        if self.where == "reject":
            raise Reject(self.make())
        self.check("handle_call")
        return "answer"

    def terminate(self, reason: Reason) -> None:
        self.check("terminate")


class Async(Actor):
    """The same with async callbacks."""

    def __init__(self, where: str, make: Make) -> None:
        self.where = where
        self.make = make

    async def check(self, callback: str) -> None:
        if callback == self.where:
            await trio.lowlevel.checkpoint()
            raise self.make()

    async def init(self) -> None:
        await self.check("init")

    async def handle_message(self, message: Any, sender: Any) -> None:
        await self.check("handle_message")
        self.stop()

    async def handle_call(self, request: Any, caller: Caller) -> Any:
        if self.where == "reject":
            raise Reject(self.make())
        await self.check("handle_call")
        return "answer"

    async def terminate(self, reason: Reason) -> None:
        await self.check("terminate")


@kinds
@pytest.mark.parametrize("actor", [Plain, Async])
@pytest.mark.parametrize("where", [LOOP, Threads("pod")], ids=str)
async def test_in_a_callback_of_an_actor(actor: Any, where: Dispatcher, make: Make) -> None:
    async with node_that_must_not_ask() as node:
        other = await node.spawn(Alive)
        with pytest.raises(InitError) as init:
            await node.spawn(actor, "init", make, dispatcher=where)
        assert type(init.value.error) is type(make())
        for callback in ("handle_message", "terminate"):
            pid = await node.spawn(actor, callback, make, dispatcher=where)
            node.send(pid, 1)
            await node.wait_ended(pid)
        pid = await node.spawn(actor, "handle_call", make, dispatcher=where)
        with pytest.raises(TargetDownError) as call:
            await node.call(pid, 1)
        assert type(call.value.__cause__) is type(make())
        pid = await node.spawn(actor, "reject", make, dispatcher=where)
        with pytest.raises(type(make())):
            await node.call(pid, 1)

        assert await node.call(other, 1) == "alive"
        assert not node.stopping


# -- tasks -----------------------------------------------------------------------------------------


class WithTask(Actor):
    """Raises the error in a background task, at once or when it is cancelled."""

    def __init__(self, make: Make, at_once: bool, in_nursery: bool) -> None:
        self.make = make
        self.at_once = at_once
        self.in_nursery = in_nursery

    def init(self) -> None:
        self.start_task(self.work)

    async def work(self) -> None:
        if not self.in_nursery:
            await self.fail()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(self.fail)

    async def fail(self) -> None:
        try:
            if not self.at_once:
                await trio.sleep_forever()
        finally:
            raise self.make()


@kinds
@pytest.mark.parametrize("in_nursery", [False, True])
async def test_in_a_background_task(in_nursery: bool, make: Make) -> None:
    async with node_that_must_not_ask() as node:
        other = await node.spawn(Alive)
        failing = await node.spawn(WithTask, make, True, in_nursery)
        await node.wait_ended(failing)
        cancelled = await node.spawn(WithTask, make, False, in_nursery)
        node.send_exit(cancelled)
        await node.wait_ended(cancelled)

        assert await node.call(other, 1) == "alive"
        assert not node.stopping


async def run_plainly(node: Node, make: Make) -> None:
    def fail() -> None:
        raise make()

    await node.run_task(fail)


async def run_async(node: Node, make: Make) -> None:
    async def fail() -> None:
        raise make()

    await node.run_task(fail)


async def run_stream(node: Node, make: Make) -> None:
    async def fail(_item: int) -> None:
        raise make()

    async for _ in node.map_stream(fail, [1]):
        """Not reached."""


@kinds
@pytest.mark.parametrize("run", [run_plainly, run_async, run_stream])
async def test_in_a_function_that_runs_as_a_task(run: Place, make: Make) -> None:
    async with node_that_must_not_ask() as node:
        other = await node.spawn(Alive)
        # A nursery of trio makes no group of an exception that is no `Exception`: it asks.
        with pytest.raises((type(make()), RuntimeError)):
            await run(node, make)

        assert await node.call(other, 1) == "alive"
        assert not node.stopping


@kinds
async def test_in_a_task_without_a_handle(make: Make) -> None:
    async with node_that_must_not_ask() as node:

        async def fail() -> None:
            raise make()

        other, task = await node.spawn(Alive), node.run_task(fail)
        await wait_all_tasks_blocked()
        assert task.done
        del task

        assert await node.call(other, 1) == "alive"
        assert not node.stopping


# -- meta-processes --------------------------------------------------------------------------------


class PlainMeta(MetaProcess):
    """Raises the error in the callback that it is given."""

    def __init__(self, where: str, make: Make) -> None:
        self.where = where
        self.make = make
        self.ending = False

    def check(self, callback: str) -> None:
        if callback == self.where:
            raise self.make()

    def init(self) -> None:
        self.check("init")

    def start(self) -> None:
        self.check("start")
        while not self.ending and not self.stopping:
            self.pause(0.01)
        self.check("end")

    def unblock(self) -> None:
        self.ending = True
        self.check("unblock")

    def handle_message(self, message: Any, sender: Any) -> None:
        self.check("handle_message")
        self.stop()

    def handle_inspect(self, *items: str) -> dict[str, str]:
        self.check("handle_inspect")
        return {}

    def terminate(self, reason: Reason) -> None:
        self.check("terminate")


class AsyncMeta(Raising, MetaProcess):
    """The same with async callbacks."""

    async def init(self) -> None:
        self.check("init")

    async def start(self) -> None:
        self.check("start")
        try:
            await trio.sleep_forever()
        finally:
            self.check("end")

    def unblock(self) -> None:
        self.check("unblock")

    async def handle_message(self, message: Any, sender: Any) -> None:
        self.check("handle_message")
        self.stop()

    def handle_inspect(self, *items: str) -> dict[str, str]:
        self.check("handle_inspect")
        return {}

    async def terminate(self, reason: Reason) -> None:
        self.check("terminate")


class Owner(Actor):
    """Owns the meta-processes that it is asked to start, and keeps the errors that they send."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def handle_message(self, message: Any, sender: Any) -> None:
        self.errors.append(message)

    async def handle_call(self, request: Any, caller: Caller) -> Any:
        return await self.spawn_meta(request) if isinstance(request, MetaProcess) else self.errors


@kinds
@pytest.mark.parametrize("meta", [PlainMeta, AsyncMeta])
async def test_in_a_callback_of_a_meta_process(meta: Any, make: Make) -> None:
    async with node_that_must_not_ask() as node:
        owner = await node.spawn(Owner)
        with pytest.raises(TargetDownError) as init:
            await node.call(owner, meta("init", make))
        assert type(init.value.__cause__) is InitError
        owner = await node.spawn(Owner)
        alias = await node.call(owner, meta("start", make))
        await node.wait_ended(alias)
        for callback in ("handle_message", "handle_inspect", "end", "terminate", "unblock"):
            alias = await node.call(owner, meta(callback, make))
            with suppress(Exception):
                await node.inspect_meta(alias)
            node.send(alias, 1)
            await node.wait_ended(alias)

        assert await node.call(owner, 1) == []
        assert not node.stopping


class Spawning(PlainMeta):
    """Starts another meta-process from its thread."""

    def start(self) -> None:
        try:
            self.spawn(AsyncMeta("init", self.make))
        except InitError as error:
            self.send(self.parent, error)


@kinds
async def test_in_a_meta_process_that_a_thread_starts(make: Make) -> None:
    async with node_that_must_not_ask() as node:
        owner = await node.spawn(Owner)
        alias = await node.call(owner, Spawning("", make))
        await node.wait_ended(alias)

        (error,) = await node.call(owner, 1)
        assert type(error) is InitError
        assert type(error.error) is type(make())
        assert not node.stopping


# -- supervision -----------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("decision", [None, Decision.RESUME, Decision.STOP])
async def test_in_a_child_of_a_supervisor(decision: Decision | None, make: Make) -> None:
    decide = None if decision is None else lambda _error: decision
    async with node_that_must_not_ask() as node:
        other = await node.spawn(Alive)
        for where in ("init", "handle_message", "handle_call", "terminate"):
            spec = ChildSpec("child", Plain.spec(where, make), decide=decide)
            if where == "init":
                with pytest.raises(SpawnError):
                    await node.supervise([spec])
                continue
            supervisor = (await node.supervise([spec])).pid
            child = node.whereis("child")
            assert child is not None
            node.send("child", 1)
            if decision is not Decision.RESUME:
                await node.wait_ended(child)
            node.send_exit(supervisor)
            await node.wait_ended(supervisor)

        assert await node.call(other, 1) == "alive"
        assert not node.stopping


# -- verbs -----------------------------------------------------------------------------------------


class Replying(Actor):
    def handle_call(self, request: Any, caller: Caller) -> Any:
        self.reply_error(caller, request())


@kinds
async def test_as_an_argument_of_a_verb(make: Make) -> None:
    async with node_that_must_not_ask() as node:
        pid, other = await node.spawn(Replying), await node.spawn(Alive)
        with pytest.raises(type(make())):
            await node.call(pid, make)
        node.send_exit(pid, make())
        await node.wait_ended(pid)

        assert await node.call(other, 1) == "alive"
        assert not node.stopping


@kinds
async def test_in_the_block_of_the_node(make: Make) -> None:
    error, ended = make(), []

    class Ending(Actor):
        def terminate(self, reason: Reason) -> None:
            ended.append(reason)

    with pytest.raises(type(error)) as raised:
        async with node_that_must_not_ask() as node:
            await node.spawn(Ending)
            raise error

    assert raised.value is error
    assert len(ended) == 1


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_in_a_group_with_an_exception_for_the_program(kind: type[BaseException]) -> None:
    group = BaseExceptionGroup("inner", [HidingError("x"), kind()])

    assert is_for_program(BaseExceptionGroup("outer", [HidingError("x"), group]))
    assert not is_for_program(in_a_nested_group())
    assert not is_for_program(hiding())
