"""The life of a meta-process: however thread and loop meet, it ends once, in order, and leaves
nothing.
"""

import inspect
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    Actor,
    Alias,
    BadInputError,
    BehaviourError,
    Caller,
    CallTimeoutError,
    Crashed,
    Custom,
    Down,
    Exit,
    InitError,
    InitTimeoutError,
    Killed,
    MetaProcess,
    MetaState,
    NodeStoppedError,
    NoProcess,
    Normal,
    Overflow,
    Priority,
    ProcessUnknownError,
    Reason,
    Shutdown,
    SpawnError,
    TargetDownError,
    TooManyReadersError,
    Why,
)
from ergo_py._core.metas import (
    handler as handler_module,
)
from ergo_py._core.metas import (
    meta as meta_module,
)
from ergo_py._core.metas import (
    reader as reader_module,
)
from ergo_py._core.metas import (
    termination as termination_module,
)
from ergo_py._core.metas.meta import Meta
from ergo_py._core.runtime.detached_task import DetachedTask
from ergo_py._core.runtime.idle_handlers import IdleHandlers
from ergo_py._core.vocabulary.options import MetaOptions
from tests._core.metas.metas import (
    COLOURS,
    InTask,
    InThread,
    InThreadServedOnLoop,
    Owned,
    Watching,
    in_thread,
    owning,
)
from tests._core.metas.test_termination import keep_log
from tests.support import (
    Failed,
    Puppet,
    Recorder,
    kernel_of,
    meta_of,
    needs_proc,
    process_of,
    replace_private,
    running_node,
)

# -- every event at every point where threads and loop meet ----------------------------------------
#
# The points are entered by wrapping the functions that lie on both sides of each meeting. Whoever
# reaches one for the first time, thread or loop, makes the event happen right there, and only then
# goes on.

POINTS: dict[str, tuple[Any, str, str]] = {
    "the reader's start is called": (reader_module, "_start", "before"),
    "the reader has returned and not told": (reader_module, "_start", "after"),
    "the reader's end arrives": (reader_module, "_thread_ended", "before"),
    "the reader's end has arrived": (reader_module, "_thread_ended", "after"),
    "a handler begins": (meta_module, "serve", "before"),
    "a handler goes": (meta_module, "serve", "after"),
    "a worker thread begins": (handler_module, "_serve_in_thread", "before"),
    "a worker thread is done": (handler_module, "_serve_in_thread", "after"),
    "the mailbox is empty": (IdleHandlers, "add", "before"),
    "the handler has been idle": (Meta, "retire", "before"),
    "the end is decided": (Meta, "finish", "before"),
    "the ending begins": (termination_module, "_end_reader", "before"),
    "the reader has ended": (termination_module, "_end_handler", "before"),
    "the handler has ended": (termination_module, "_end_children", "before"),
    "the children have ended": (termination_module, "_deliver_rest", "before"),
    "terminate is next": (termination_module, "_terminate", "before"),
    "terminate has run": (termination_module, "release", "before"),
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


def fail(text: str, _me: Any) -> None:
    raise Failed(text)


@dataclass
class Run:
    """One life, with events at some of its points."""

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
                handler.retire()
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
        return None if meta_of(self.meta).gone.is_set() else meta_of(self.meta)

    async def until_quiet(self) -> None:
        """Until the loop has nothing to do, with threads given the time they need."""
        while self.kernel_side() is not None and meta_of(self.meta).worker_scope is not None:  # noqa: ASYNC110
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
        assert len(last) == (1 if meta_of(self.meta).initialised else 0), (
            "terminate runs exactly once"
        )
        assert not self.meta.reading
        assert self.meta.serving == 0
        if last:
            assert began or not meta_of(self.meta).has_thread
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
            for other in (termination_module, meta_module, reader_module, handler_module):
                if other is not home and getattr(other, name, None) is original:
                    patch.setattr(other, name, wrapped)
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


# -- birth -----------------------------------------------------------------------------------------


class Initialised(InThread):
    """Runs a function as its ``init``, in a worker thread."""

    def __init__(self, function: Callable[[Any], Any], notes: list[Any] | None = None) -> None:
        super().__init__(notes)
        self.function = function

    def init(self) -> None:
        self.function(self)


class InitialisedOnLoop(InThread):
    """Runs a function as its ``init``, on the loop."""

    def __init__(self, function: Callable[[Any], Any], notes: list[Any] | None = None) -> None:
        super().__init__(notes)
        self.function = function

    async def init(self) -> None:
        result = self.function(self)
        if inspect.isawaitable(result):
            await result


INITS: list[type[Any]] = [Initialised, InitialisedOnLoop]


async def spawn_and_fail(
    owned: Owned, meta: MetaProcess, error: type[BaseException], **options: Any
) -> Any:
    """Have the owner spawn something that fails, and give back the error."""

    async def spawn(owner: Puppet) -> BaseException:
        with pytest.raises(error) as caught:
            await owner.spawn_meta(meta, **options)
        return caught.value

    return await owned.ask_owner(spawn)


async def nap(seconds: float) -> None:
    await trio.sleep(seconds)


def assert_nothing_is_left(owned: Owned) -> None:
    info = owned.node.info()
    assert owned.node.metas() == []
    assert (info.metas, info.aliases, info.reader_threads) == (0, 0, 0)
    assert owned.node.process_info(owned.owner).children == ()
    assert owned.readers() == []


@pytest.mark.parametrize("kind", INITS)
async def test_spawn_meta_returns_when_init_is_done_and_the_reader_begins_after_it(
    kind: type[Any],
) -> None:
    meta = kind(lambda me: me.notes.append("init"))
    async with owning() as owned:
        alias = await owned.spawn(meta)
        initialised = list(meta.notes)
        await owned.until(lambda: "start" in meta.notes)

        assert alias == meta.id
        assert initialised[0] == "init"
        assert meta.notes == ["init", "start"]


@pytest.mark.parametrize("kind", INITS)
async def test_an_init_that_raises_leaves_nothing_and_its_error_is_the_cause(
    kind: type[Any],
) -> None:
    meta = kind(partial(fail, "no"))
    async with owning() as owned:
        error = await spawn_and_fail(owned, meta, InitError)

        assert isinstance(error.__cause__, Failed)
        assert meta.notes == []
        assert_nothing_is_left(owned)


@pytest.mark.parametrize("kind", INITS)
async def test_an_init_that_takes_too_long_leaves_nothing(kind: type[Any]) -> None:
    held = threading.Event()
    meta = kind(lambda me: held.wait(20) if kind is Initialised else nap(20))
    async with owning() as owned:
        await spawn_and_fail(owned, meta, InitTimeoutError, init_timeout=0.02)
        held.set()

        assert meta.notes == []
        assert_nothing_is_left(owned)


async def test_an_init_that_swallows_its_timeout_has_failed_all_the_same() -> None:
    async def swallow() -> None:
        try:
            await trio.sleep(20)
        except trio.Cancelled:
            pass

    async with owning() as owned:
        await spawn_and_fail(
            owned, InitialisedOnLoop(lambda _: swallow()), InitTimeoutError, init_timeout=0.02
        )

        assert_nothing_is_left(owned)


@pytest.mark.parametrize("kind", INITS)
async def test_what_a_failing_init_had_spawned_and_opened_ends_with_it(kind: type[Any]) -> None:
    child = InThread()
    read, write = os.pipe()
    file = os.fdopen(read, "rb")

    def spawn_then_fail(me: Any) -> Any:
        me.opened(file)
        if kind is Initialised:
            me.spawn(child)
            raise Failed
        return spawn_on_loop(me)

    async def spawn_on_loop(me: Any) -> None:
        await me.spawn_meta(child)
        raise Failed

    async with owning() as owned:
        await spawn_and_fail(owned, kind(spawn_then_fail), InitError)

        assert child.notes[-1][0] == "terminate"
        assert file.closed
        assert_nothing_is_left(owned)
    os.close(write)


async def test_messages_for_one_that_is_still_in_its_init_are_served_after_it() -> None:
    meta = InitialisedOnLoop(lambda me: me.send(me.id, "early") and None)
    async with owning() as owned:
        await owned.spawn(meta)
        await owned.until(lambda: meta.heard == [("early", meta.id)])


async def test_nothing_is_served_before_init_is_done() -> None:
    async def send_and_wait(me: Any) -> None:
        me.send(me.id, "early")
        await wait_all_tasks_blocked()
        served.extend(me.heard)

    served: list[Any] = []
    async with owning() as owned:
        meta = InitialisedOnLoop(send_and_wait)
        await owned.spawn(meta)
        await owned.until(lambda: meta.heard == [("early", meta.id)])

        assert served == []


async def test_who_waits_for_room_during_an_init_that_fails_is_told() -> None:
    async def wait_and_fail(me: Any) -> None:
        me.send(me.id, "early")
        nursery.start_soon(send, me.id)
        await wait_all_tasks_blocked()
        waited.append(not sent)
        raise Failed

    async def send(alias: Alias) -> None:
        sent.append(await owned.node.send_wait(alias, "finds no room"))

    waited, sent = list[bool](), list[bool]()
    async with owning() as owned, trio.open_nursery() as nursery:
        await spawn_and_fail(
            owned,
            InitialisedOnLoop(wait_and_fail),
            InitError,
            mailbox_size=1,
            overflow=Overflow.WAIT,
        )
        await owned.until(lambda: bool(sent))

        assert (waited, sent) == ([True], [False])


async def test_an_init_that_is_left_in_its_thread_is_freed_from_what_it_has_opened() -> None:
    ours, theirs = socket.socketpair()
    freed = threading.Event()

    def block(me: Any) -> None:
        me.opened(ours)
        ours.recv(1)
        freed.set()

    with ours, theirs:
        async with owning() as owned:
            await spawn_and_fail(owned, Initialised(block), InitTimeoutError, init_timeout=0.05)

            await owned.until(freed.is_set)
            await owned.until(lambda: ours.fileno() == -1)


async def test_messages_and_calls_for_one_whose_init_fails_are_not_lost_in_silence() -> None:
    async def send_then_fail(me: Any) -> None:
        me.send(me.id, "early")
        raise Failed

    async with owning() as owned:
        await spawn_and_fail(owned, InitialisedOnLoop(send_then_fail), InitError)

        assert [letter.message_type for letter in owned.node.dead_letters()] == ["str"]
        assert owned.node.info().dead_letters[Why.UNHANDLED_AT_EXIT] == 1


@pytest.mark.parametrize("kind", INITS)
@pytest.mark.parametrize("end", ["stop", "kill", "exit"])
async def test_one_that_is_ended_during_its_init_is_never_born(kind: type[Any], end: str) -> None:
    inside, released = threading.Event(), threading.Event()

    def stay(me: Any) -> Any:
        inside.set()
        if kind is Initialised:
            released.wait(20)
            return None
        return nap(20)

    meta = kind(stay)
    async with owning() as owned, trio.open_nursery() as nursery:

        async def end_it() -> None:
            await owned.until(inside.is_set)
            if end == "stop":
                meta.stop("enough")
            elif end == "kill":
                owned.node.kill(meta.id)
            else:
                owned.node.send_exit(meta.id, "enough")

        nursery.start_soon(end_it)
        with trio.fail_after(10):
            error = await spawn_and_fail(owned, meta, SpawnError)
        released.set()

        assert "was stopped during its init" in str(error)
        assert meta.notes == []
        assert_nothing_is_left(owned)


async def test_an_owner_that_is_killed_during_an_init_leaves_nothing() -> None:
    inside = trio.Event()

    async def stay() -> None:
        inside.set()
        await trio.sleep_forever()

    meta = InitialisedOnLoop(lambda _: stay())
    async with owning() as owned, trio.open_nursery() as nursery:

        async def spawn() -> None:
            with pytest.raises(TargetDownError):
                await owned.spawn(meta)

        nursery.start_soon(spawn)
        await inside.wait()
        owned.node.kill(owned.owner)
        await owned.node.wait_ended(owned.owner)

        assert owned.node.metas() == []
        assert meta.notes == []


async def test_a_thread_that_the_system_has_not_got_is_an_error_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_more(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with owning() as owned:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_more)
            error = await spawn_and_fail(owned, InThread(), SpawnError)

        assert "no thread" in str(error)
        assert_nothing_is_left(owned)


async def test_who_spawns_many_lets_others_run_now_and_then() -> None:
    ran = trio.Event()

    async def run() -> None:
        ran.set()

    async def spawn_until_others_run(owner: Puppet) -> int:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            for number in range(1000):
                if ran.is_set():
                    return number
                await owner.spawn_meta(InTask())
        return 1000

    async with owning() as owned:
        spawned = await owned.ask_owner(spawn_until_others_run)

        assert spawned <= 100


# -- threads ---------------------------------------------------------------------------------------


async def test_the_limit_of_reader_threads_is_an_error_and_nothing_is_half_made() -> None:
    async with owning(max_reader_threads=2) as owned:
        first, second = InThread(), InThread()
        await owned.spawn(first)
        await owned.spawn(second)

        error = await spawn_and_fail(owned, InThread(), TooManyReadersError)
        await owned.spawn(InTask())
        await owned.end(first.id)
        await owned.spawn(InThread())

        assert "2" in str(error)
        assert owned.node.info().reader_threads == 2
        assert owned.node.info().max_reader_threads == 2


async def test_those_who_spawn_at_the_same_time_do_not_share_the_last_place() -> None:
    async with owning(max_reader_threads=1) as owned:
        outcomes: list[str] = []

        async def spawn_both(owner: Puppet) -> None:
            async def spawn_one() -> None:
                try:
                    await owner.spawn_meta(InitialisedOnLoop(lambda _: nap(0.01)))
                    outcomes.append("spawned")
                except TooManyReadersError:
                    outcomes.append("refused")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(spawn_one)
                nursery.start_soon(spawn_one)

        await owned.ask_owner(spawn_both)

        assert sorted(outcomes) == ["refused", "spawned"]


@dataclass(frozen=True)
class Frozen(MetaProcess):
    """Nothing can be assigned to it."""

    seconds: float

    def start(self) -> None:
        self.pause(self.seconds)


class Unassignable(Frozen):
    """Not even by force."""

    @property
    def _meta(self) -> Any:  # type: ignore[override] # pyright: ignore[reportIncompatibleVariableOverride]
        return None


async def test_a_class_may_be_frozen() -> None:
    async with owning() as owned:
        alias = await owned.spawn(Frozen(1000.0))

        reason = await owned.end(alias, "enough")

        assert reason == Custom("enough")


async def test_a_place_is_not_taken_by_what_cannot_be_spawned() -> None:
    async with owning(max_reader_threads=1) as owned:
        await spawn_and_fail(owned, Unassignable(1000.0), AttributeError)

        assert owned.node.info().reader_threads == 0
        await owned.spawn(Frozen(1000.0))


def name_in_system(thread: int | None) -> str:
    return Path(f"/proc/self/task/{thread}/comm").read_text(encoding="utf-8").strip()


@needs_proc
async def test_the_system_shows_the_kind_and_the_number_of_a_reader() -> None:
    class Short(InThread):
        kind = "tick"

    class AnExtremelyLongNameOfAClass(InThread):
        pass

    async with owning() as owned:
        metas = [Short(), AnExtremelyLongNameOfAClass()]
        for meta in metas:
            await owned.spawn(meta)
            await owned.until(lambda meta=meta: "start" in meta.notes)  # type: ignore[misc]
        infos = [owned.node.meta_info(meta.id) for meta in metas]

        shown = [name_in_system(info.thread_id) for info in infos]
        assert infos[0].thread == f"ergo-tick-{metas[0].id.number}" == shown[0]
        assert infos[1].thread == f"ergo-anextremelylongnameofaclass-{metas[1].id.number}"
        assert shown[1].startswith("ergo-anextrem")
        assert shown[1].endswith(f"-{metas[1].id.number}")


async def test_threads_of_meta_processes_do_not_use_the_places_of_everybody_else() -> None:
    limiter = trio.to_thread.current_default_thread_limiter()
    inside, released = threading.Barrier(51), threading.Event()

    def block(_me: Any) -> None:
        inside.wait(20)
        released.wait(20)

    async with owning() as owned:
        metas = [InThread() for _ in range(50)]
        for meta in metas:
            await owned.spawn(meta)
            owned.node.send(meta.id, block)
        await in_thread(lambda: inside.wait(20))

        # Fifty readers and fifty plain handlers block, and none of them sits in one of the forty
        # places.
        assert limiter.borrowed_tokens == 0
        await trio.to_thread.run_sync(time.sleep, 0)
        released.set()


@pytest.mark.no_cover
async def test_two_thousand_blocked_readers_hold_up_neither_files_nor_names_nor_programs() -> None:
    count = 2_000
    # Had each of them to be waited for it would take hours; a busy machine needs a minute to start
    # and to end them all.
    async with owning(limit=500) as owned:
        metas = [InThread() for _ in range(count)]

        async def spawn_all(owner: Puppet) -> None:
            for meta in metas:
                await owner.spawn_meta(meta)

        await owned.node.call(owned.owner, spawn_all, timeout=400)
        await owned.until(lambda: owned.node.info().reader_threads == count)

        with trio.fail_after(60):
            async with await trio.open_file(__file__) as file:
                assert await file.readline()
            assert await trio.socket.getaddrinfo("localhost", 80)
            done = await trio.run_process(["true"])
        owned.node.send_exit(owned.owner)
        await owned.node.wait_ended(owned.owner)

        assert done.returncode == 0
        assert all(meta.notes[-1][0] == "terminate" for meta in metas)
    assert owned.readers() == []


# -- reasons ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
async def test_start_that_returns_is_a_normal_end(colour: type[Any]) -> None:
    async with owning() as owned:
        meta = colour()
        await owned.spawn(meta)

        meta.give(None)

        assert await owned.ended(meta.id) == Normal()


@pytest.mark.parametrize("colour", COLOURS)
async def test_start_that_raises_is_a_crash_with_its_traceback(colour: type[Any]) -> None:
    async with owning() as owned:
        meta = colour()
        await owned.spawn(meta)

        meta.give(partial(fail, "in start"))
        reason = await owned.ended(meta.id)

        assert reason == Crashed(Failed("in start"))
        assert isinstance(reason, Crashed)
        assert "in fail" in reason.traceback
        assert owned.node.info().crashed == 1


@pytest.mark.parametrize("colour", COLOURS)
async def test_a_handler_that_raises_is_a_crash_and_its_caller_learns_at_once(
    colour: type[Any],
) -> None:
    async with owning() as owned:
        meta = colour()
        await owned.spawn(meta)

        with pytest.raises(TargetDownError) as caught:
            await owned.in_handler(meta, partial(fail, "in handler"))
        await owned.until(lambda: owned.node.metas() == [])

        assert caught.value.reason == Crashed(Failed("in handler"))
        assert meta.notes[-1] == ("terminate", Crashed(Failed("in handler")))


@pytest.mark.parametrize("colour", COLOURS)
async def test_the_end_of_the_owner_is_the_end_and_its_reason_the_reason(colour: type[Any]) -> None:
    async with owning() as owned:
        meta = colour()
        await owned.spawn(meta)

        owned.node.send_exit(owned.owner, "tired")
        await owned.node.wait_ended(owned.owner)

        assert meta.notes[-1] == ("terminate", Custom("tired"))
        assert owned.node.metas() == []


async def test_a_reader_that_fails_because_it_was_told_to_end_has_not_crashed() -> None:
    class FailsInThread(InThread):
        def start(self) -> None:
            super().start()
            raise Failed("late")

    class FailsInTask(InTask):
        async def start(self) -> None:
            try:
                await super().start()
            finally:
                raise Failed("late")

    async with owning() as owned:
        for meta in (FailsInThread(), FailsInTask()):
            await owned.spawn(meta)

            assert await owned.end(meta.id, "asked") == Custom("asked")
        assert owned.node.info().crashed == 0


async def test_a_plain_start_that_returns_a_coroutine_says_what_to_write() -> None:
    class Forgot(MetaProcess):
        def start(self) -> Any:
            return nap(0)

    class ForgotInHandler(InThread):
        def handle_message(self, message: Any, sender: Any) -> Any:
            return nap(0)

    async with owning() as owned:
        for meta in (Forgot(), ForgotInHandler()):
            watched: list[Any] = []
            alias = await owned.spawn(meta)
            await owned.node.spawn(Watching, watched, alias)
            owned.node.send(alias, "hello")
            await owned.until(lambda watched=watched: bool(watched))  # type: ignore[misc]
            reason = watched[0][1]

            # One that ended before it was watched is told as gone.
            if not isinstance(reason, NoProcess):
                assert isinstance(reason, Crashed)
                assert "write `async def" in str(reason)


@pytest.mark.parametrize("colour", [InTask, InThreadServedOnLoop])
async def test_what_is_meant_for_the_whole_program_is_passed_on_to_it(colour: type[Any]) -> None:
    def interrupt(_me: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with owning() as owned:
            meta = colour()
            await owned.spawn(meta)
            if colour is InTask:
                meta.give(interrupt)
            else:
                owned.node.send(meta.id, interrupt)
            await trio.sleep_forever()


# -- others ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
async def test_links_monitors_and_the_owner_are_told_after_terminate(colour: type[Any]) -> None:
    told: list[Any] = []

    class Owner(Actor):
        async def init(self) -> None:
            self.trap_exit = True
            self.alias = await self.spawn_meta(meta)
            self.link(self.alias)
            self.monitor(self.alias)

        def handle_message(self, message: Any, sender: Any) -> None:
            told.append((message, list(meta.notes)))

        def handle_child_exit(self, child: Any, reason: Reason) -> None:
            told.append(((child, reason), list(meta.notes)))

    meta = colour()
    async with owning() as owned:
        await owned.node.spawn(Owner)
        owned.node.send_exit(meta.id, "asked")
        await owned.until(lambda: len(told) == 3)

        reason = Custom("asked")
        assert {message for message, _ in told} == {
            Exit(meta.id, reason),
            Down(meta.id, reason),
            (meta.id, reason),
        }
        assert all(notes[-1] == ("terminate", reason) for _, notes in told)


async def test_watching_one_that_is_gone_is_told_at_once() -> None:
    async with owning() as owned:
        meta = InThread()
        await owned.spawn(meta)
        await owned.end(meta.id)
        notes: list[Any] = []
        await owned.node.spawn(Watching, notes, meta.id)
        await owned.until(lambda: bool(notes))

        assert notes == [("down", NoProcess())]


@pytest.mark.parametrize("colour", COLOURS)
async def test_calls_and_messages_to_an_alias_are_served_in_order(colour: type[Any]) -> None:
    async with owning() as owned:
        meta = colour()
        await owned.spawn(meta)

        for number in range(200):
            owned.node.send(meta.id, number)
        heard = await owned.node.call(meta.id, "what?", timeout=20)

        assert heard == [(number, owned.node.pid) for number in range(200)]


async def test_priorities_overtake_and_an_inspect_overtakes_everything() -> None:
    order: list[Any] = []
    hold = trio.Event()

    class Ordered(InThreadServedOnLoop):
        async def handle_message(self, message: Any, sender: Any) -> None:
            if message == "hold":
                await hold.wait()
            order.append(message)

        def handle_inspect(self, *items: str) -> dict[str, str]:
            order.append("inspect")
            return {}

    async with owning() as owned, trio.open_nursery() as nursery:
        meta = Ordered()
        alias = await owned.spawn(meta)
        owned.node.send(alias, "hold")
        await wait_all_tasks_blocked()
        owned.node.send(alias, "normal")
        owned.node.send(alias, "max", priority=Priority.MAX)
        owned.node.send(alias, "high", priority=Priority.HIGH)
        # From a thread, too, where a bounded receiver promises room by lane.
        await in_thread(lambda: owned.node.send(alias, "late max", priority=Priority.MAX))
        nursery.start_soon(owned.node.inspect_meta, alias)
        await wait_all_tasks_blocked()
        lanes = owned.node.meta_info(alias).lanes
        hold.set()
        await owned.until(lambda: len(order) == 6)

        assert lanes == {"system": 4, "main": 1}
        assert order == ["hold", "inspect", "max", "high", "late max", "normal"]


async def test_calls_and_messages_that_are_left_at_the_end_are_answered_and_accounted_for() -> None:
    async with owning() as owned, trio.open_nursery() as nursery:
        meta = InThreadServedOnLoop()
        alias = await owned.spawn(meta, stop_timeout=0.05)
        errors: list[BaseException] = []

        async def call(request: Any) -> None:
            with pytest.raises(TargetDownError) as caught:
                await owned.node.call(alias, request, timeout=None)
            errors.append(caught.value)

        async def stay(_me: Any, _caller: Caller) -> None:
            await trio.sleep_forever()

        nursery.start_soon(call, stay)
        await wait_all_tasks_blocked()
        nursery.start_soon(call, "queued")
        await wait_all_tasks_blocked()
        owned.node.send(alias, "left")
        await owned.end(alias, "asked")
        await owned.until(lambda: len(errors) == 2)

        assert {error.reason for error in errors if isinstance(error, TargetDownError)} == {
            Custom("asked")
        }
        assert owned.node.info().dead_letters[Why.UNHANDLED_AT_EXIT] == 1


@pytest.mark.parametrize("colour", COLOURS)
async def test_a_deferred_call_ends_with_the_one_that_promised_an_answer(colour: type[Any]) -> None:
    callers: list[Caller] = []

    def defer(_me: Any, caller: Caller) -> object:
        callers.append(caller)
        return NO_REPLY

    async with owning() as owned, trio.open_nursery() as nursery:
        meta = colour()
        alias = await owned.spawn(meta)
        results: list[Any] = []

        async def call() -> None:
            try:
                results.append(await owned.node.call(alias, defer, timeout=None))
            except TargetDownError as error:
                results.append(error.reason)

        nursery.start_soon(call)
        await owned.until(lambda: len(callers) == 1)
        await owned.in_handler(meta, lambda me: me.reply(callers[0], "late"))
        await owned.until(lambda: len(results) == 1)
        nursery.start_soon(call)
        await owned.until(lambda: len(callers) == 2)
        await owned.end(alias, "asked")
        await owned.until(lambda: len(results) == 2)

        assert results == ["late", Custom("asked")]


# -- looking inside --------------------------------------------------------------------------------


async def test_meta_info_needs_nothing_from_a_busy_handler() -> None:
    held = threading.Event()
    async with owning() as owned:
        meta = InThread()
        alias = await owned.spawn(meta)
        owned.node.send(alias, lambda _me: held.wait(20))
        await owned.until(
            lambda: owned.node.meta_info(alias).state is MetaState.RUNNING and meta.serving == 1
        )
        owned.node.send(alias, "waits")

        info = await owned.ask_owner(lambda owner: owner.meta_info(alias))
        with pytest.raises(CallTimeoutError):
            await owned.node.inspect_meta(alias, timeout=0.01)
        held.set()
        inspected = await owned.ask_owner(lambda owner: owner.inspect_meta(alias, "this"))

        assert (info.alias, info.process, info.parent) == (alias, owned.owner, owned.owner)
        assert (info.behaviour, info.state, info.callback) == (
            "InThread",
            MetaState.RUNNING,
            "handle_message",
        )
        assert info.lanes["main"] == 1
        assert (info.reader, info.stopping, info.messages_in) == ("thread", False, 2)
        assert "self.jobs.get()" in info.stack
        assert info.uptime > 0
        assert inspected["this"] == "asked"
        assert owned.node.metas() == [alias]


async def test_an_inspect_that_fails_hurts_nobody() -> None:
    class Broken(InTask):
        def handle_inspect(self, *items: str) -> dict[str, str]:
            raise Failed

    async with owning() as owned:
        meta = Broken()
        alias = await owned.spawn(meta)
        with pytest.raises(Failed):
            await owned.node.inspect_meta(alias)

        assert await owned.node.call(alias, "still there?") == []


@pytest.mark.parametrize(
    "verb, of, error, says",
    [
        ("meta_info", "a process", BadInputError, "`process_info` and `inspect`"),
        ("inspect_meta", "a process", BadInputError, "`process_info` and `inspect`"),
        ("meta_info", "nobody", ProcessUnknownError, "no meta-process at"),
        ("inspect_meta", "nobody", ProcessUnknownError, "no meta-process at"),
        ("process_info", "a meta-process", BadInputError, "`meta_info` and `inspect_meta`"),
        ("inspect", "a meta-process", BadInputError, "`meta_info` and `inspect_meta`"),
    ],
)
async def test_asking_about_the_wrong_kind_says_what_to_ask_instead(
    verb: str, of: str, error: type[Exception], says: str
) -> None:
    async with owning() as owned:
        targets = {
            "a process": await owned.ask_owner(lambda owner: owner.create_alias()),
            "a meta-process": await owned.spawn(InTask()),
            "nobody": Alias("test@localhost", 1, 1),
        }

        with pytest.raises(error, match=says):
            result = getattr(owned.node, verb)(targets[of])
            assert inspect.isawaitable(result)
            await result


@pytest.mark.parametrize("name", ["handle_inspect", "unblock"])
async def test_what_must_be_quick_cannot_be_async(name: str) -> None:
    async def wrong(self: Any, *items: str) -> None: ...

    meta = type("Wrong", (InThread,), {name: wrong})()
    async with owning() as owned:
        error = await spawn_and_fail(owned, meta, BehaviourError)

        assert f"a plain, quick `def {name}`" in str(error)
        assert_nothing_is_left(owned)


async def test_options_are_checked_before_anything_is_made() -> None:
    async with owning() as owned:
        for options in (
            {"backlog": 0},
            {"when_behind": "wait"},
            {"stop_timeout": -1},
            {"mailbox": 3},
            {"priority": 1},
        ):
            await spawn_and_fail(owned, InThread(), BadInputError, **options)

        assert_nothing_is_left(owned)


async def test_a_message_that_a_full_mailbox_drops_is_never_the_answer_to_a_request() -> None:
    hold = trio.Event()

    async with owning() as owned:
        other = await owned.node.spawn(Recorder)
        meta = InThreadServedOnLoop()
        alias = await owned.spawn(meta, mailbox_size=1, overflow=Overflow.DROP_OLDEST)

        async def ask_and_stay(me: Any) -> None:
            me.request(other, "question")
            await hold.wait()

        owned.node.send(alias, ask_and_stay)
        await wait_all_tasks_blocked()
        for number in range(5):
            owned.node.send(alias, number)
        hold.set()
        await owned.until(lambda: len(meta.heard) == 2)

        assert [response.value for response in meta.answers] == [[]]
        assert meta.heard[-1][0] == 4
        assert owned.node.meta_info(alias).dropped == 4


async def test_nothing_is_started_once_the_node_has_stopped() -> None:
    async with owning() as owned:
        process = process_of(owned.node, owned.owner)

    with pytest.raises(NodeStoppedError, match="starts nothing"):
        await Meta.spawn(process, InTask(), MetaOptions())


async def test_a_reader_whose_child_cannot_be_started_any_more_goes_on_and_is_told() -> None:
    class Closed:
        def start_soon(self, *_args: object, **_options: object) -> None:
            raise RuntimeError("Nursery is closed to new arrivals")

    async with owning() as owned:
        meta = InThread()
        await owned.spawn(meta)
        kernel: Any = kernel_of(owned.node)
        nursery, kernel.nursery = kernel.nursery, Closed()

        try:
            with pytest.raises(NodeStoppedError):
                await owned.in_reader(meta, lambda me: me.spawn(InTask()))
        finally:
            kernel.nursery = nursery


async def test_the_callback_in_progress_at_the_end_is_terminate() -> None:
    told: list[Any] = []
    go = trio.Event()

    class Last(InTask):
        async def terminate(self, reason: Reason) -> None:
            told.append(meta_of(self).current_callback())
            go.set()

    async with owning() as owned:
        meta = Last()
        alias = await owned.spawn(meta)
        inner = meta_of(meta)

        await owned.end(alias)

        assert told == ["terminate"]
        assert inner.current_callback() is None


async def test_a_crash_is_accounted_for_where_nobody_wants_to_read_of_it() -> None:
    def fail(me: Any) -> None:
        raise Failed("unread")

    async with owning(log_level="critical") as owned:
        meta = InTask()
        alias = await owned.spawn(meta)
        owned.node.send(alias, fail)

        reason = await owned.ended(alias)

    assert isinstance(reason, Crashed)


async def test_a_child_that_lingers_is_not_killed_with_its_parent() -> None:
    async with owning() as owned:
        parent = InThread()
        alias = await owned.spawn(parent)
        others = [
            await owned.in_reader(parent, lambda me: me.spawn(InTask(), linger=True)),
            await owned.in_reader(parent, lambda me: me.spawn(InTask())),
        ]

        owned.node.kill(alias)
        await owned.ended(others[1])
        await owned.ended(alias)

        assert owned.node.metas() == [others[0]]


async def test_one_that_is_nearly_through_with_its_end_is_not_abandoned() -> None:
    go = trio.Event()

    class Last(InTask):
        async def terminate(self, reason: Reason) -> None:
            await go.wait()

    async with owning() as owned, trio.open_nursery() as nursery:
        meta = Last()
        alias = await owned.spawn(meta)
        inner = meta_of(meta)
        owned.node.send_exit(alias)
        await wait_all_tasks_blocked()
        nursery.start_soon(inner.abandon)
        await wait_all_tasks_blocked()

        go.set()
        await owned.ended(alias)

    assert owned.node.exit_report is not None
    assert owned.node.exit_report.abandoned == ()


async def test_one_that_is_abandoned_twice_is_named_once_and_its_reader_counts_as_left() -> None:
    let_go = threading.Event()

    class Refuses(MetaProcess):
        def start(self) -> None:
            let_go.wait(30)

    async with owning() as owned:
        meta = Refuses()
        alias = await owned.spawn(meta, stop_timeout=30.0)
        inner = meta_of(meta)
        owned.node.kill(alias)
        inner.note_abandoned()

        await inner.abandon()

        abandoned_threads = set(inner.abandoned_threads)
        let_go.set()
        await owned.until(lambda: not inner.abandoned_threads)
        assert abandoned_threads == {"reader"}
    assert owned.node.exit_report is not None
    assert [ended.pid for ended in owned.node.exit_report.abandoned] == [alias]


async def test_one_that_is_ended_before_its_init_has_begun_has_nothing_to_cut_off() -> None:
    async with owning() as owned:
        process = process_of(owned.node, owned.owner)
        meta = Meta(kernel_of(owned.node), InTask(), MetaOptions(), process, process)

        meta.finish(Shutdown())

        assert meta.reason == Shutdown()
        assert not meta.accepting


async def test_a_change_of_state_that_the_table_does_not_know_is_a_mistake() -> None:
    async with owning() as owned:
        meta = InTask()
        alias = await owned.spawn(meta)
        owned.node.send_exit(alias, "enough")
        await owned.ended(alias)

        with pytest.raises(AssertionError, match="no transition from TERMINATED to SLEEP"):
            meta_of(meta).enter(MetaState.SLEEP)


# -- what is known of it ---------------------------------------------------------------------------


async def test_the_history_of_its_states_stays_short_and_ends_with_the_present_one() -> None:
    async with owning() as owned:
        meta = InTask()
        alias = await owned.spawn(meta)
        for number in range(20):
            owned.node.send(alias, number)
            await wait_all_tasks_blocked()

        states, moments = zip(*owned.node.meta_info(alias).history, strict=True)

        assert states == (MetaState.RUNNING, MetaState.SLEEP) * 4
        assert list(moments) == sorted(moments)


async def test_a_part_of_it_that_was_left_behind_is_remembered() -> None:
    held, inside = threading.Event(), threading.Event()

    class Swallows(InTask):
        async def start(self) -> None:
            self.notes.append("start")
            while True:
                try:
                    await trio.sleep_forever()
                except trio.Cancelled:
                    continue

    def stick(_me: Any) -> None:
        inside.set()
        held.wait(30)

    async with owning() as owned:
        well, cut_off, stuck = InTask(), Swallows(), InThread()
        for meta in (well, cut_off, stuck):
            await owned.spawn(meta, stop_timeout=0.05)
        owned.node.send(stuck.id, stick)
        await owned.until(inside.is_set)

        for meta in (well, cut_off, stuck):
            await owned.end(meta.id)

        assert [meta_of(meta).abandoned for meta in (well, cut_off, stuck)] == [False, True, True]
        assert (meta_of(cut_off).abandoned_threads, meta_of(stuck).abandoned_threads) == (
            set(),
            {"handler"},
        )
        held.set()
        await owned.until(lambda: not meta_of(stuck).abandoned_threads)


async def test_one_in_its_init_says_so() -> None:
    async def look(me: Any) -> None:
        seen.append(owned.node.meta_info(me.id))

    seen: list[Any] = []
    async with owning() as owned:
        alias = await owned.spawn(InitialisedOnLoop(look))

        assert [info.callback for info in seen] == ["init"]
        assert owned.node.meta_info(alias).callback is None


async def test_a_process_may_call_a_meta_process() -> None:
    async with owning() as owned:
        alias = await owned.spawn(InTask())
        owned.node.send(alias, "before")

        heard = await owned.ask_owner(lambda owner: owner.call(alias, "what?", timeout=20))

        assert heard == [("before", owned.node.pid)]


# -- undone ----------------------------------------------------------------------------------------


class EndsLate(InTask):
    """Does not end before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.ending = trio.Event()
        self.may_end = trio.Event()

    async def terminate(self, reason: Reason) -> None:
        self.ending.set()
        await self.may_end.wait()
        await super().terminate(reason)


async def test_one_whose_init_has_failed_refuses_messages_while_its_children_end() -> None:
    async def spawn_then_fail(me: Any) -> None:
        await me.spawn_meta(child)
        raise Failed("in init")

    errors: list[InitError] = []
    async with owning() as owned, trio.open_nursery() as nursery:
        meta, child = InitialisedOnLoop(spawn_then_fail), EndsLate()

        async def spawn() -> None:
            errors.append(await spawn_and_fail(owned, meta, InitError))

        nursery.start_soon(spawn)
        await child.ending.wait()
        sent, stopping = owned.node.send(meta.id, "late"), meta.stopping
        child.may_end.set()
        await owned.until(lambda: bool(errors))

        assert (sent, stopping) == (False, True)
        assert child.notes[-1] == ("terminate", Crashed(Failed("in init")))
        assert "in spawn_then_fail" in errors[0].__notes__[0]
        crash = owned.node.crashes()[0]
        assert (crash.pid, crash.reason, crash.callback) == (
            meta.id,
            Crashed(Failed("in init")),
            "init",
        )
        assert_nothing_is_left(owned)


async def test_an_owner_that_is_killed_during_an_init_waits_for_the_children_of_that(
    autojump_clock: MockClock,
) -> None:
    async def spawn_and_stay(me: Any) -> None:
        await me.spawn_meta(child)
        inside.set()
        await trio.sleep_forever()

    inside = trio.Event()
    async with owning() as owned, trio.open_nursery() as nursery:
        meta, child = InitialisedOnLoop(spawn_and_stay), EndsLate()

        async def spawn() -> None:
            with pytest.raises(TargetDownError):
                await owned.spawn(meta)

        nursery.start_soon(spawn)
        await inside.wait()
        owned.node.kill(owned.owner)
        await child.ending.wait()
        await wait_all_tasks_blocked()
        waits = meta.id in owned.node.metas()
        child.may_end.set()
        await owned.node.wait_ended(owned.owner)

        assert waits
        assert child.notes[-1] == ("terminate", Shutdown())
        assert meta_of(meta).reason == Shutdown()
        assert owned.node.metas() == []
    assert owned.node.exit_report is not None
    assert owned.node.exit_report.abandoned == ()


# -- kills -----------------------------------------------------------------------------------------


class LastWord(InTask):
    """Needs some time for its last word."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.speaks = trio.Event()

    async def terminate(self, reason: Reason) -> None:
        self.speaks.set()
        await trio.sleep(self.seconds)
        await super().terminate(reason)


@pytest.mark.parametrize(
    "before, meanwhile, seconds, is_said",
    [
        (1, 0, 1.0, True),
        (0, 1, 1.0, True),
        (2, 0, 1.0, False),
        (1, 1, 1.0, False),
        (0, 2, 1.0, False),
        (2, 0, 0.04, True),
        (1, 1, 0.04, True),
    ],
)
async def test_a_second_kill_and_no_other_cuts_the_last_word_short(
    before: int, meanwhile: int, seconds: float, is_said: bool, autojump_clock: MockClock
) -> None:
    async with owning() as owned:
        meta = LastWord(seconds)
        alias = await owned.spawn(meta, stop_timeout=5.0)
        for _ in range(before):
            owned.node.kill(alias)
        owned.node.send_exit(alias, "asked")

        await meta.speaks.wait()
        for _ in range(meanwhile):
            owned.node.kill(alias)
        reason = await owned.ended(alias)

        assert reason == (Killed() if before else Custom("asked"))
        assert (meta.notes[-1] == ("terminate", reason)) is is_said


async def test_a_kill_does_not_give_more_time_than_there_was(autojump_clock: MockClock) -> None:
    async with owning() as owned:
        meta = LastWord(0.03)
        alias = await owned.spawn(meta, stop_timeout=0.01)
        owned.node.kill(alias)

        await meta.speaks.wait()
        owned.node.kill(alias)
        await owned.ended(alias)

        assert meta.notes[-1] == "start"


# -- crashes ---------------------------------------------------------------------------------------


async def test_a_crash_is_logged_with_what_was_being_done() -> None:
    async with owning() as owned:
        meta = InThreadServedOnLoop()
        alias = await owned.spawn(meta)
        kept = keep_log(meta)

        owned.node.send(alias, partial(fail, "on purpose"))
        owned.node.send(alias, "waits")
        await owned.ended(alias)

        (line,) = kept.of("meta-process crashed")
        assert (line["callback"], line["message_type"]) == ("handle_message", "partial")
        assert (line["lanes"], line["error"]) == (
            {"system": 0, "main": 1},
            str(Crashed(Failed("on purpose"))),
        )
        assert "in fail" in line["exception"]
        (crash,) = owned.node.crashes()
        assert (crash.callback, crash.message_type) == ("handle_message", "partial")


async def test_a_reader_that_fails_fails_neither_the_call_in_progress_nor_in_its_name() -> None:
    async def stay(_me: Any, _caller: Caller) -> str:
        await hold.wait()
        return "served"

    hold = trio.Event()
    answers: list[str] = []
    async with owning() as owned, trio.open_nursery() as nursery:
        meta = InThreadServedOnLoop()
        alias = await owned.spawn(meta)
        kept = keep_log(meta)

        async def call() -> None:
            answers.append(await owned.node.call(alias, stay, timeout=None))

        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        meta.give(partial(fail, "on purpose"))
        await owned.until(lambda: meta_of(meta).reason is not None)
        hold.set()
        await owned.ended(alias)

        assert answers == ["served"]
        (line,) = kept.of("meta-process crashed")
        assert (line["callback"], line["message_type"]) == ("start", None)
        (crash,) = owned.node.crashes()
        assert (crash.callback, crash.message_type) == ("start", None)


# -- shut, and left behind -------------------------------------------------------------------------


async def test_who_waits_for_room_learns_at_once_that_there_will_be_none() -> None:
    hold = trio.Event()
    sent: list[bool] = []
    async with owning() as owned, trio.open_nursery() as nursery:
        meta = InTask()
        alias = await owned.spawn(meta, mailbox_size=1, overflow=Overflow.WAIT)
        owned.node.send(alias, lambda _me: hold.wait())
        await wait_all_tasks_blocked()
        owned.node.send(alias, "waits")

        async def send() -> None:
            sent.append(await owned.node.send_wait(alias, "finds no room"))

        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        before = list(sent)
        owned.node.send_exit(alias, "asked")
        await wait_all_tasks_blocked()
        told = list(sent)
        hold.set()
        await owned.ended(alias)

        assert (before, told) == ([], [False])


class InitEndsLate(InTask):
    """Needs some time after its ``init`` was cut off."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.inside = trio.Event()

    async def init(self) -> None:
        self.inside.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await self.end_init()

    async def end_init(self) -> None:
        await trio.sleep(self.seconds)


class InitHasTasks(InitEndsLate):
    """Waits for tasks of its own meanwhile: it cannot be cut off."""

    async def end_init(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, self.seconds)


def spawn_in_detached_task(owned: Owned, parent: Any, meta: Any, errors: list[str]) -> DetachedTask:
    """Spawn a meta-process as a reader's thread does, where nobody waits for it."""

    async def spawn() -> None:
        try:
            await Meta.spawn(meta_of(parent), meta, MetaOptions(stop_timeout=5.0), detached)
        except SpawnError as error:
            errors.append(str(error))

    detached = DetachedTask()
    detached.start(kernel_of(owned.node), spawn, "spawn")
    return detached


@pytest.mark.parametrize(
    "kind, seconds, is_left",
    [(InitEndsLate, 1.0, False), (InitEndsLate, 60.0, True), (InitHasTasks, 60.0, True)],
)
async def test_an_init_that_is_cut_off_has_its_time_to_end_and_no_more(
    kind: type[InitEndsLate], seconds: float, is_left: bool, autojump_clock: MockClock
) -> None:
    async with owning(limit=300.0) as owned:
        parent, meta, errors = InTask(), kind(seconds), list[str]()
        await owned.spawn(parent)
        detached = spawn_in_detached_task(owned, parent, meta, errors)
        await meta.inside.wait()
        kept, began = keep_log(meta), trio.current_time()

        await meta_of(meta).shut(Custom("asked"))

        assert meta_of(meta).reason == Custom("asked")
        assert trio.current_time() - began == pytest.approx(5.0 if is_left else 1.0)
        assert errors == (
            [] if is_left else [f"{kind.__name__} was stopped during its init: asked"]
        )
        assert kept.of("abandoned") == ([{"callback": "init"}] if is_left else [])
        assert owned.node.metas() == [parent.id]
        assert owned.node.meta_info(parent.id).children == ()
        await detached.gone.wait()
    assert owned.node.exit_report is not None
    assert [ended.pid for ended in owned.node.exit_report.abandoned] == (
        [meta.id] if is_left else []
    )


async def test_one_that_is_left_behind_takes_its_children_along_even_if_nobody_waits(
    autojump_clock: MockClock,
) -> None:
    class Spawns(InitEndsLate):
        async def init(self) -> None:
            await self.spawn_meta(child)
            await super().init()

    async with owning(limit=300.0) as owned:
        parent, meta, child = InTask(), Spawns(60.0), InTask()
        await owned.spawn(parent)
        detached = spawn_in_detached_task(owned, parent, meta, [])
        await meta.inside.wait()
        meta_of(meta).finish(Custom("asked"))
        await wait_all_tasks_blocked()

        with trio.CancelScope() as nobody_waits:
            nobody_waits.cancel()
            await meta_of(meta).abandon()

        assert meta_of(meta).gone.is_set()
        assert child.notes[-1] == ("terminate", Custom("asked"))
        assert owned.node.metas() == [parent.id]
        await detached.gone.wait()


class Closed:
    """Notes when it is closed."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


async def test_one_that_is_left_in_its_last_word_leaves_nothing_open(
    autojump_clock: MockClock,
) -> None:
    async with owning(limit=300.0) as owned:
        meta, opened = EndsLate(), Closed()
        alias = await owned.spawn(meta, stop_timeout=60.0)
        inner, kept = meta_of(meta), keep_log(meta)
        meta.opened(opened, unblock=lambda: None)
        owned.node.send_exit(alias, "asked")
        await meta.ending.wait()
        began = trio.current_time()

        await inner.abandon()

        assert trio.current_time() - began == pytest.approx(2.0)
        assert (opened.closed, inner.abandoned_threads, inner.gone.is_set()) == (True, set(), True)
        assert kept.of("abandoned") == [{"callback": "terminate"}]
        assert owned.node.metas() == []
    assert owned.node.exit_report is not None
    assert [ended.pid for ended in owned.node.exit_report.abandoned] == [alias]


async def test_a_message_that_comes_between_the_last_step_of_a_handler_and_its_end_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = handler_module.serve

    async def serve_and_send(inner: Any, task: Any) -> None:
        await original(inner, task)
        if len(meta.heard) == 1:
            # As a handler of signals may do it.
            owned.node.send(inner.id, "second")

    replace_private(monkeypatch, "serving of meta-processes", serve_and_send)
    async with owning() as owned:
        meta = InTask()
        alias = await owned.spawn(meta)
        owned.node.send(alias, "first")
        await wait_all_tasks_blocked()

        meta_of(meta).retire()
        await wait_all_tasks_blocked()

        assert [message for message, _ in meta.heard] == ["first", "second"]
        await owned.end(alias)


async def test_to_ask_it_for_what_only_a_process_does_is_a_mistake() -> None:
    nobody: Any = None
    async with owning() as owned:
        meta = InTask()
        await owned.spawn(meta)
        inner = meta_of(meta)

        with pytest.raises(AssertionError, match="never open"):
            inner.stir()
        with pytest.raises(AssertionError, match="on the spot"):
            inner.answer_now(nobody, "request")

        assert not inner.open
        assert not inner.inline


# -- what was opened -------------------------------------------------------------------------------


async def test_what_was_opened_is_open_until_terminate_has_run() -> None:
    class Looks(InThread):
        def terminate(self, reason: Reason) -> None:
            seen.append(opened.closed)

    seen: list[bool] = []
    async with owning() as owned:
        meta, opened = Looks(), Closed()
        alias = await owned.spawn(meta)
        meta.opened(opened, unblock=lambda: None)

        meta.give(None)
        await owned.ended(alias)

        assert (seen, opened.closed) == ([False], True)


class Stuck(MetaProcess):
    """Both of its threads stay until they are let go."""

    def __init__(self) -> None:
        self.in_reader, self.in_handler = threading.Event(), threading.Event()
        self.reader_may_go, self.handler_may_go = threading.Event(), threading.Event()

    def start(self) -> None:
        self.in_reader.set()
        self.reader_may_go.wait(30)

    def handle_message(self, message: Any, sender: Any) -> None:
        self.in_handler.set()
        self.handler_may_go.wait(30)


async def leave_both(owned: Owned, meta: Stuck, opened: Closed) -> None:
    """Have both threads left behind."""
    alias = await owned.spawn(meta, stop_timeout=0.05)
    meta.opened(opened, unblock=lambda: None)
    owned.node.send(alias, "stick")
    await owned.until(lambda: meta.in_reader.is_set() and meta.in_handler.is_set())
    await owned.end(alias)


@pytest.mark.parametrize("first", ["reader", "handler"])
async def test_the_last_thread_that_was_left_closes_what_was_opened(first: str) -> None:
    async with owning() as owned:
        meta, opened = Stuck(), Closed()
        await leave_both(owned, meta, opened)
        gates = {"reader": meta.reader_may_go, "handler": meta.handler_may_go}

        gates.pop(first).set()
        await owned.until(lambda: first not in meta_of(meta).abandoned_threads)
        # By now the loop has been told.
        await owned.node.call(owned.owner, "anything", timeout=20)
        between = opened.closed
        for gate in gates.values():
            gate.set()
        await owned.until(lambda: opened.closed)

        assert not between


async def test_a_worker_that_outlives_the_node_closes_what_was_opened() -> None:
    async with owning() as owned:
        meta, opened = Stuck(), Closed()
        await leave_both(owned, meta, opened)
        meta.reader_may_go.set()
        await owned.until(lambda: "reader" not in meta_of(meta).abandoned_threads)
    before = opened.closed

    meta.handler_may_go.set()
    with trio.fail_after(30):
        await owned.until(lambda: opened.closed)

    assert not before
