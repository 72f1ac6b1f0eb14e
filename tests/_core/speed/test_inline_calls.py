"""Inline calls in the C extension. The tests of inline calls run on both builds; these show that
the extension makes the calls, and what it keeps alive.
"""

import gc
import traceback
import weakref
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import NO_REPLY, Actor, Caller, Reject, TargetDownError
from ergo_py.info import State, is_fast
from tests.support import running_node

pytestmark = pytest.mark.skipif(not is_fast, reason="the C extension is not installed")


class Thing:
    """A request or a reply that can be watched."""


def frames() -> list[str]:
    """The names of the functions that have called the caller of this function, the last first."""
    return [frame.name for frame in reversed(traceback.extract_stack()[:-2])]


class Callee(Actor):
    kept: Any = None

    def handle_call(self, request: Any, caller: Caller) -> Any:
        match request:
            case "frames":
                return frames()
            case "reject":
                raise Reject(LookupError("no such thing"))
            case "crash":
                raise ValueError("a fault")
            case "later":
                self.kept = caller
                return NO_REPLY
            case "now":
                self.reply(self.kept, "late")
                return None
            case "twice":
                self.reply(caller, "first")
                return "second"
            case "scope":
                trio.CancelScope().__enter__()
                return "kept"
            case Thing():
                return request
        return [request]


class Asker(Actor):
    async def handle_call(self, request: Any, caller: Caller) -> Any:
        to, wanted = request
        try:
            return await self.call(to, wanted)
        except LookupError as error:
            return error


async def test_the_extension_makes_the_call_in_a_frame_that_the_watchdog_finds() -> None:
    async with running_node() as node:
        callee, asker = await node.spawn(Callee), await node.spawn(Asker)
        await wait_all_tasks_blocked()

        from_outside = await node.call(callee, "frames")
        from_process = await node.call(asker, (callee, "frames"))

        assert from_outside[0] == from_process[0] == "call"


async def test_an_error_as_the_reply_ends_the_wait_of_the_calling_process() -> None:
    async with running_node() as node:
        callee, asker = await node.spawn(Callee), await node.spawn(Asker)
        await wait_all_tasks_blocked()

        for _ in range(3):
            assert isinstance(await node.call(asker, (callee, "reject")), LookupError)
        assert await node.call(asker, (callee, 1)) == [1]
        assert node.process_info(asker).state is State.SLEEP


async def test_a_deferred_call_waits_for_the_reply() -> None:
    async with running_node() as node:
        callee, asker = await node.spawn(Callee), await node.spawn(Asker)
        await wait_all_tasks_blocked()
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await node.call(asker, (callee, "later")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            assert node.process_info(asker).state is State.WAIT_RESPONSE
            await node.call(callee, "now")

        assert answers == ["late"]
        assert await node.call(asker, (callee, 2)) == [2]


async def test_a_value_returned_after_a_reply_is_a_late_reply() -> None:
    async with running_node() as node:
        callee = await node.spawn(Callee)
        await wait_all_tasks_blocked()

        assert await node.call(callee, "twice") == "first"
        assert node.info().late_replies == 1


async def test_open_scopes_end_the_callee_after_its_reply() -> None:
    async with running_node() as node:
        callee = await node.spawn(Callee)
        await wait_all_tasks_blocked()

        assert await node.call(callee, "scope") == "kept"
        with pytest.raises(TargetDownError):
            await node.call(callee, 1)


async def test_an_exception_ends_the_callee() -> None:
    async with running_node() as node:
        callee = await node.spawn(Callee)
        await wait_all_tasks_blocked()

        with pytest.raises(TargetDownError) as found:
            await node.call(callee, "crash")

        assert "ValueError" in str(found.value.reason)


async def test_an_ended_call_keeps_neither_its_request_nor_its_reply_alive() -> None:
    async with running_node() as node:
        callee, asker = await node.spawn(Callee), await node.spawn(Asker)
        await wait_all_tasks_blocked()
        thing = Thing()
        seen = weakref.ref(thing)
        for _ in range(100):
            assert await node.call(callee, thing) is thing
            assert await node.call(asker, (callee, thing)) is thing
        await wait_all_tasks_blocked()

        del thing
        gc.collect()

        assert seen() is None
