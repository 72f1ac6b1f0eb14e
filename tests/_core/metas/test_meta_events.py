"""Every event in the life of a meta-process at every point where its threads and the loop meet."""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import trio
import trio.lowlevel
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    Alias,
    Crashed,
    Custom,
    Killed,
    NodeStoppedError,
    Normal,
    Reason,
    Shutdown,
    TargetDownError,
)
from ergo_py._core.metas.handler import Handler
from ergo_py._core.metas.meta import Meta
from ergo_py._core.metas.reader import Reader
from ergo_py._core.metas.termination import Ending
from ergo_py._core.runtime.idle_handlers import IdleHandlers
from ergo_py.errors import ProcessUnknownError
from tests._core.metas.metas import (
    COLOURS,
    Watching,
)
from tests._core.metas.opened import fail
from tests.actors import Failed, Puppet
from tests.meta.support import meta_of
from tests.support import kernel_of, running_node

#
# The points are entered by wrapping the functions that lie on both sides of each meeting. The
# thread or loop that reaches a point for the first time makes the event happen there, and then
# continues.
POINTS: dict[str, tuple[Any, str, str]] = {
    "the reader's start is called": (Reader, "_run_start", "before"),
    "the reader has returned and not told": (Reader, "_run_start", "after"),
    "the reader's end arrives": (Reader, "_thread_ended", "before"),
    "the reader's end has arrived": (Reader, "_thread_ended", "after"),
    "a handler begins": (Handler, "serve", "before"),
    "a handler goes": (Handler, "serve", "after"),
    "a worker thread begins": (Handler, "_serve_in_thread", "before"),
    "a worker thread is done": (Handler, "_serve_in_thread", "after"),
    "the mailbox is empty": (IdleHandlers, "add", "before"),
    "the handler has been idle": (Handler, "retire", "before"),
    "the end is decided": (Ending, "begin", "before"),
    "the ending begins": (Reader, "end", "before"),
    "the reader has ended": (Handler, "end", "before"),
    "the handler has ended": (Ending, "_end_children", "before"),
    "the children have ended": (Ending, "_deliver_rest", "before"),
    "terminate is next": (Ending, "_terminate", "before"),
    "terminate has run": (Ending, "release", "before"),
}


EVENTS = (
    "start returns",
    "start raises",
    "handler raises",
    "exit asked",
    "owner dies",
    "owner is killed",
    "kill",
    "message arrives",
    "call arrives",
    "inspect",
    "request",
    "node stops",
)


CAUSES: dict[str, list[Reason]] = {
    "start returns": [Normal()],
    "start raises": [Crashed(Failed("start"))],
    "handler raises": [Crashed(Failed("handler"))],
    "exit asked": [Custom("asked")],
    "owner dies": [Custom("owner")],
    "owner is killed": [Killed()],
    "kill": [Killed()],
    "node stops": [Shutdown()],
}
"""The reasons that each event may be the cause of."""


@dataclass
class Run:
    """The life of a meta-process, with events at some of its points."""

    colour: type[Any]
    plan: dict[str, list[str]]
    notes: list[Any] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    async def live(self) -> None:
        self.meta = self.colour(self.notes)
        async with trio.open_nursery() as self.nursery, running_node() as self.node:
            self.token = trio.lowlevel.current_trio_token()
            self.owner = await self.node.spawn(Puppet)
            try:
                await self.node.call(
                    self.owner, lambda owner: owner.spawn_meta(self.meta, stop_timeout=2.0)
                )
            except TargetDownError:
                # The owner was killed while it spawned.
                await self.until_over()
                return
            await self.watch()
            for _ in range(2):
                self.node.send(self.meta.id, "work")
                await self.until_quiet()
            # A handler that lingers has to be let go before its time, or this would take seconds.
            handler = self.kernel_side()
            if handler is not None:
                handler.handler.retire()
                await self.until_quiet()
            self.meta.give(None)
            await self.until_over()
            assert self.node.metas() == []
            assert self.node.info().relations == 0
            await self.until(
                lambda: (
                    len(kernel_of(self.node).nursery.child_tasks) <= 3 + len(self.node.processes())
                )
            )
        self.check()

    async def watch(self) -> None:
        self.watched = self.kernel_side() is not None
        await self.node.spawn(Watching, self.notes, self.meta.id)

    def kernel_side(self) -> Meta | None:
        return None if meta_of(self.meta).ending.over else meta_of(self.meta)

    async def until_quiet(self) -> None:
        """Until the loop has nothing to do, with threads given the time they need."""
        handler = meta_of(self.meta).handler
        while self.kernel_side() is not None and handler.worker_scope is not None:  # noqa: ASYNC110
            await trio.sleep(0.001)
        await wait_all_tasks_blocked()

    async def until_over(self) -> None:
        await self.until(lambda: self.kernel_side() is None)
        await wait_all_tasks_blocked()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - a thread sets no event of trio's
            await trio.sleep(0.001)

    def reach(self, point: str) -> None:
        with self.lock:
            events = self.plan.pop(point, [])
        for event in events:
            self.done.append(event)
            try:
                self.happen(event)
            except (NodeStoppedError, ProcessUnknownError):
                # It came too late to matter.
                continue

    def happen(self, event: str) -> None:
        node, alias = self.node, self.meta.id
        match event:
            case "start returns":
                self.token.run_sync_soon(self.meta.give, None)
            case "start raises":
                self.token.run_sync_soon(self.meta.give, partial(fail, "start"))
            case "handler raises":
                node.send(alias, partial(fail, "handler"))
            case "exit asked":
                node.send_exit(alias, "asked")
            case "owner dies":
                node.send_exit(self.owner, "owner")
            case "owner is killed":
                node.kill(self.owner)
            case "kill":
                node.kill(alias)
            case "message arrives":
                node.send(alias, "more")
            case "call arrives":
                self.token.run_sync_soon(self.nursery.start_soon, self.call, alias)
            case "inspect":
                self.token.run_sync_soon(self.nursery.start_soon, self.inspect, alias)
            case "request":
                node.send(alias, lambda me: me.request(self.owner, "question") and None)
            case "node stops":
                node.stop()

    async def call(self, alias: Alias) -> None:
        try:
            await self.node.call(alias, "anything", timeout=None)
            self.answered.append("reply")
        except (TargetDownError, NodeStoppedError):
            self.answered.append("down")

    async def inspect(self, alias: Alias) -> None:
        try:
            await self.node.inspect_meta(alias, timeout=20)
            self.answered.append("told")
        except (TargetDownError, ProcessUnknownError, NodeStoppedError):
            self.answered.append("gone")

    def check(self) -> None:
        last = [
            note[1] for note in self.notes if isinstance(note, tuple) and note[0] == "terminate"
        ]
        down = [note[1] for note in self.notes if isinstance(note, tuple) and note[0] == "down"]
        began = "start" in self.notes
        assert len(last) == 1, "terminate runs exactly once"
        assert not self.meta.reading
        assert self.meta.serving == 0
        if last:
            assert began or not meta_of(self.meta).reader.has_thread
            assert last[0] == meta_of(self.meta).reason
            causes = [reason for event in self.done for reason in CAUSES.get(event, [])] + [
                Normal(),
                Shutdown(),
            ]
            assert last[0] in causes
            assert not down or self.notes.index(("down", down[0])) > self.notes.index(
                ("terminate", last[0])
            )
            after = self.notes[self.notes.index(("terminate", last[0])) + 1 :]
            assert [note for note in after if isinstance(note, str)] == [], (
                "nothing is served after terminate"
            )
        if down and last:
            assert down == last
        assert len(self.answered) == sum(
            event in ("inspect", "call arrives") for event in self.done
        )
        # The node waits until a reader thread has said its last word, and not for the few steps
        # that are left to it then.
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("ergo-")]
        for thread in threads:
            thread.join(30)
        assert not [thread.name for thread in threads if thread.is_alive()]


@contextmanager
def entered(run: Run) -> Iterator[None]:
    """Have ``run.reach(point)`` called at every point."""
    with pytest.MonkeyPatch.context() as patch:
        for home, name, _ in POINTS.values():
            original = getattr(home, name)
            wrapped = _wrapped(run, original, home, name)
            patch.setattr(home, name, wrapped)
        yield


def _wrapped(run: Run, original: Any, home: Any, name: str) -> Any:
    points = {
        when: point
        for point, (where, what, when) in POINTS.items()
        if where is home and what == name
    }

    def enter(when: str) -> None:
        if when in points:
            run.reach(points[when])

    if inspect.iscoroutinefunction(original):

        async def wait(*args: Any) -> Any:
            enter("before")
            try:
                return await original(*args)
            finally:
                enter("after")

        return wait

    def call(*args: Any) -> Any:
        enter("before")
        try:
            return original(*args)
        finally:
            enter("after")

    return call


def live(colour: type[Any], plan: dict[str, list[str]]) -> Run:
    run = Run(colour, plan)
    with entered(run):
        trio.run(run.live)
    return run


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.no_cover
def test_every_event_may_come_at_every_point_and_the_end_is_in_order(
    colour: type[Any], point: str
) -> None:
    for event in EVENTS:
        live(colour, {point: [event]})


@pytest.mark.parametrize("colour", COLOURS)
def test_without_any_event_a_life_ends_normally(colour: type[Any]) -> None:
    run = live(colour, {})

    assert sorted(run.notes[:3]) == ["message", "message", "start"]
    assert run.notes[3:] == [("terminate", Normal()), ("down", Normal())]


plans = st.dictionaries(
    st.sampled_from(sorted(POINTS)),
    st.lists(st.sampled_from(EVENTS), min_size=1, max_size=2),
    max_size=4,
)


@given(st.sampled_from(COLOURS), plans)
def test_several_events_may_come_at_several_points(
    colour: type[Any], plan: dict[str, list[str]]
) -> None:
    live(colour, plan)
