"""`call_from_thread` and other verbs from other threads, before and after the end of the node."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Caller,
    CallTimeoutError,
    ChildSpec,
    Custom,
    Killed,
    Node,
    NodeStoppedError,
    NotAllowedError,
    Overflow,
    Priority,
    Shutdown,
    TargetDownError,
)
from ergo_py._core.runtime.bridge import Bridge, Parker
from ergo_py.errors import ProcessUnknownError, TargetTypeError
from tests._core.runtime.from_threads import PATIENCE, in_thread, spawn_gated, until, waiters_at
from tests.actors import Recorder
from tests.support import kernel_of, process_of, running_node

# -- calling from threads --------------------------------------------------------------------------


class Answering(Actor):
    """Answers, refuses, crashes, or keeps the caller waiting, as it is asked."""

    def __init__(self) -> None:
        self.kept: list[Caller] = []

    async def handle_call(self, request: Any, caller: Caller) -> object:
        match request:
            case "crash":
                raise LookupError("on purpose")
            case "none":
                return None
            case threading.Event():
                self.kept.append(caller)
                request.set()
                return NO_REPLY
        return (request, caller.pid)


async def test_a_thread_gets_the_answer() -> None:
    async with running_node() as node:
        await node.spawn(Answering, name="answering")

        answers = await in_thread(
            lambda: [node.call_from_thread("answering", one) for one in (1, "none", 2)]
        )

    assert answers == [(1, node.pid), None, (2, node.pid)]


async def test_a_thread_gets_the_error_of_the_callee_that_crashed() -> None:
    async with running_node() as node:
        pid = await node.spawn(Answering)

        with pytest.raises(TargetDownError) as caught:
            await in_thread(lambda: node.call_from_thread(pid, "crash"))

    assert isinstance(caught.value.__cause__, LookupError)


async def test_a_call_from_a_thread_to_an_unknown_target_raises() -> None:
    async with running_node() as node:
        with pytest.raises(TargetDownError):
            await in_thread(lambda: node.call_from_thread("nobody", 1))
        with pytest.raises(TargetTypeError):
            await in_thread(lambda: node.call_from_thread(42, 1))  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]


async def test_a_thread_does_not_wait_longer_than_its_timeout_and_a_late_answer_is_dropped() -> (
    None
):
    async with running_node() as node:
        pid = await node.spawn(Answering)

        with pytest.raises(CallTimeoutError) as caught:
            await in_thread(lambda: node.call_from_thread(pid, threading.Event(), timeout=0.01))
        kept = process_of(node, pid).behaviour_itself.kept
        await until(lambda: kept and not process_of(node, pid).deferred)
        answered = node.reply(kept[0], "too late")
        info = node.info()

    assert caught.value.timeout == 0.01
    assert not answered
    assert info.late_replies == 1


async def test_a_thread_does_not_wait_longer_than_its_timeout_while_the_loop_is_blocked() -> None:
    gave_up = threading.Event()
    errors: list[BaseException] = []

    async with running_node() as node:
        pid = await node.spawn(Answering)

        def ask() -> None:
            try:
                node.call_from_thread(pid, 1, timeout=0.01)
            except CallTimeoutError as error:
                errors.append(error)
            gave_up.set()

        thread = threading.Thread(target=ask)
        thread.start()
        came_back = gave_up.wait(PATIENCE)
        thread.join(PATIENCE)
        await trio.testing.wait_all_tasks_blocked()

    assert came_back
    assert len(errors) == 1


@pytest.mark.parametrize("queued", [True, False], ids=["queued", "deferred"])
async def test_a_call_from_a_thread_raises_when_its_callee_dies(queued: bool) -> None:
    asked = threading.Event()
    errors: list[TargetDownError] = []

    async with running_node() as node:
        pid = (await spawn_gated(node))[0] if queued else await node.spawn(Answering)

        def ask() -> None:
            try:
                node.call_from_thread(pid, asked, timeout=None)
            except TargetDownError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, ask)
            if queued:
                await until(lambda: node.process_info(pid).lanes["main"] == 1)
            else:
                await in_thread(lambda: asked.wait(PATIENCE))
            node.kill(pid)

    assert [error.reason for error in errors] == [Killed()]


async def test_a_call_from_a_thread_raises_when_the_node_stops_meanwhile() -> None:
    asked = threading.Event()
    errors: list[BaseException] = []

    async with trio.open_nursery() as nursery, running_node() as node:
        pid = await node.spawn(Answering)

        def ask() -> None:
            try:
                node.call_from_thread(pid, asked, timeout=None)
            except TargetDownError as error:
                errors.append(error)

        nursery.start_soon(in_thread, ask)
        await in_thread(lambda: asked.wait(PATIENCE))

    assert [error.reason for error in errors if isinstance(error, TargetDownError)] == [Shutdown()]


async def test_calls_of_threads_that_race_with_the_end_of_the_node_all_end(
    switching_fast: None,
) -> None:
    ends: list[Exception] = []
    begun = threading.Semaphore(0)

    async with trio.open_nursery() as nursery, running_node() as node:
        pid = await node.spawn(Answering)

        def ask() -> None:
            while True:
                try:
                    node.call_from_thread(pid, 1, timeout=None)
                except (TargetDownError, NodeStoppedError) as error:
                    ends.append(error)
                    return
                begun.release()

        for _ in range(4):
            nursery.start_soon(in_thread, ask)
        for _ in range(20):
            await in_thread(lambda: begun.acquire(timeout=PATIENCE))

    assert len(ends) == 4


async def test_a_blocking_call_on_the_loop_is_refused() -> None:
    async with running_node() as node:
        pid = await node.spawn(Answering)

        with pytest.raises(NotAllowedError, match=r"await node\.call"):
            node.call_from_thread(pid, 1)


def test_an_interrupted_call_leaves_no_deferred_call_behind() -> None:
    ready = threading.Event()
    finish = threading.Event()
    nodes: list[tuple[Node, PID]] = []
    left: list[object] = []
    main = threading.main_thread().ident or 0

    class Interrupting(Actor):
        def handle_call(self, request: Any, caller: Caller) -> object:
            self.caller = caller
            signal.pthread_kill(main, signal.SIGINT)
            return NO_REPLY

    async def other_thread() -> None:
        async with running_node(inline_calls=False) as node:
            pid = await node.spawn(Interrupting)
            process = process_of(node, pid)
            nodes.append((node, pid))
            ready.set()
            await in_thread(lambda: finish.wait(PATIENCE))
            left.append(set(process.deferred or ()))
            left.append(node.reply(process.behaviour_itself.caller, "too late"))

    thread = threading.Thread(target=trio.run, args=(other_thread,))
    thread.start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert ready.wait(PATIENCE)
        node, pid = nodes[0]
        with pytest.raises(KeyboardInterrupt):
            node.call_from_thread(pid, "interrupt me", timeout=PATIENCE)
    finally:
        signal.signal(signal.SIGINT, before)
        finish.set()
        thread.join(PATIENCE)

    assert left == [set(), False]


def test_an_interrupted_send_that_waited_for_room_is_withdrawn() -> None:
    ready = threading.Event()
    finish = threading.Event()
    nodes: list[tuple[Node, PID]] = []
    heard: list[Any] = []
    main = threading.main_thread().ident or 0

    async def other_thread() -> None:
        async with running_node() as node:
            pid, gate = await spawn_gated(node, mailbox_size=1, overflow=Overflow.WAIT)
            node.send(pid, "fills it")
            nodes.append((node, pid))
            ready.set()
            await until(lambda: waiters_at(node, pid) == 1)
            signal.pthread_kill(main, signal.SIGINT)
            await in_thread(lambda: finish.wait(PATIENCE))
            gate.opened.set()
            await trio.testing.wait_all_tasks_blocked()
            heard.extend(gate.heard)

    thread = threading.Thread(target=trio.run, args=(other_thread,))
    thread.start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert ready.wait(PATIENCE)
        node, pid = nodes[0]
        with pytest.raises(KeyboardInterrupt):
            node.send(pid, "waits")
    finally:
        signal.signal(signal.SIGINT, before)
        finish.set()
        thread.join(PATIENCE)

    assert heard == ["fills it"]


@pytest.mark.parametrize("verb", ["send", "call_from_thread", "service.call_from_thread"])
async def test_an_interrupted_wait_raises_the_interrupt_also_when_the_node_has_stopped(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node() as node:
        pid, gate = await spawn_gated(node, mailbox_size=1, overflow=Overflow.WAIT)
        tree = await node.supervise([ChildSpec("answering", Answering)])
        service = tree.service("answering")
        node.send(pid, "fills it")
        verbs: dict[str, Callable[[], object]] = {
            "send": lambda: node.send(pid, "waits"),
            "call_from_thread": lambda: node.call_from_thread(pid, "waits"),
            "service.call_from_thread": lambda: service.call_from_thread(threading.Event()),
        }

        def refuse(self: Bridge, job: object, *args: object) -> None:
            raise NodeStoppedError(node.name)

        def interrupted(self: Parker[object], timeout: float | None) -> bool:
            patch.setattr(Bridge, "post", refuse)
            raise KeyboardInterrupt

        def in_the_thread() -> None:
            with pytest.raises(KeyboardInterrupt):
                verbs[verb]()

        with monkeypatch.context() as patch:
            patch.setattr(Parker, "wait", interrupted)
            await in_thread(in_the_thread)
        gate.opened.set()


# -- the other verbs from threads ------------------------------------------------------------------


async def test_a_thread_answers_a_deferred_call() -> None:
    async with running_node() as node:
        pid = await node.spawn(Answering)
        kept = process_of(node, pid).behaviour_itself.kept
        asked = [threading.Event(), threading.Event()]

        def answer() -> None:
            assert asked[0].wait(PATIENCE)
            assert node.reply(kept[0], "from a thread")
            assert asked[1].wait(PATIENCE)
            assert node.reply_error(kept[1], KeyError("refused in a thread"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, answer)
            first = await node.call(pid, asked[0])
            with pytest.raises(KeyError, match="refused in a thread"):
                await node.call(pid, asked[1])

    assert first == "from a thread"


async def test_a_reply_that_the_loop_delivers_before_its_thread_goes_on_has_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Answering)
        kept = process_of(node, pid).behaviour_itself.kept
        asked, delivered = threading.Event(), threading.Event()
        post = Bridge.post

        def post_and_wait(bridge: Bridge, job: Callable[..., object], *args: object) -> None:
            post(bridge, job, *args)
            assert delivered.wait(PATIENCE)

        def answer() -> bool:
            assert asked.wait(PATIENCE)
            monkeypatch.setattr(Bridge, "post", post_and_wait)
            return node.reply(kept[0], "from a thread")

        async def ask() -> None:
            assert await node.call(pid, asked) == "from a thread"
            monkeypatch.undo()
            delivered.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            assert await in_thread(answer)


async def test_a_thread_forwards_a_deferred_call_and_the_loop_delivers_it() -> None:
    where: list[int] = []

    class Answers(Actor):
        def handle_call(self, request: Any, caller: Caller) -> object:
            where.append(threading.get_ident())
            return f"{request} by another"

    async with running_node() as node:
        first, other = await node.spawn(Answering), await node.spawn(Answers)
        behaviour = process_of(node, first).behaviour_itself
        asked = threading.Event()

        def hand_on() -> None:
            assert asked.wait(PATIENCE)
            behaviour.forward(other, "answered", behaviour.kept[0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, hand_on)
            answer = await node.call(first, asked)

    assert answer == "answered by another"
    assert where == [threading.get_ident()]


async def test_a_thread_sees_the_node_and_its_processes() -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder, name="recorder")

        seen = await in_thread(
            lambda: (
                node.info().processes,
                node.process_info("recorder").pid,
                node.processes(),
                node.whereis("recorder"),
                node.dead_letters(),
            )
        )
        with pytest.raises(ProcessUnknownError):
            await in_thread(lambda: node.process_info("nobody"))

    assert seen == (1, pid, [pid], pid, [])


async def test_a_thread_registers_names_sends_exits_and_kills() -> None:
    async with running_node() as node:
        asked = await node.spawn(Recorder)
        killed = await node.spawn(Recorder)

        await in_thread(partial(node.register, "named", asked))
        named = node.whereis("named")
        reasons: list[object] = []

        async def watch(pid: PID) -> None:
            reasons.append((pid, await node.wait_ended(pid)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, asked)
            nursery.start_soon(watch, killed)
            await trio.testing.wait_all_tasks_blocked()
            exits = await in_thread(lambda: (node.send_exit("named", "enough"), node.kill(killed)))
        gone = await in_thread(lambda: (node.send_exit("named", "enough"), node.kill(killed)))

    assert named == asked
    assert exits == (True, True)
    assert sorted(reasons, key=str) == sorted(
        [(asked, Custom("enough")), (killed, Killed())], key=str
    )
    assert gone == (False, False)


async def test_a_thread_arms_a_timer() -> None:
    heard: list[Any] = []

    async with running_node() as node:
        pid = await node.spawn(Recorder, heard)
        await in_thread(lambda: node.send_after(0.0, pid, "now"))
        await until(lambda: heard == ["now"])


async def test_a_thread_cancels_a_timer() -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        timer = node.send_after(3600.0, pid, "later")

        said = [await in_thread(timer.cancel) for _ in range(2)]

        assert said == [True, False]
        assert len(kernel_of(node).clock.timers) == 0

    assert timer.cancel() is False


async def test_threads_see_the_timers_of_a_stopped_node_as_ended() -> None:
    async with running_node() as node:
        timer = node.send_after(3600.0, "nobody", "later")

    assert await in_thread(timer.cancel) is False


async def test_verbs_that_wait_on_the_loop_are_refused_in_a_thread() -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)

        async def misplaced() -> None:
            await node.call(pid, 1)

        with pytest.raises(NotAllowedError, match="call_from_thread"):
            await in_thread(partial(trio.run, misplaced))


async def test_a_thread_stops_the_node() -> None:
    async with running_node() as node:
        await in_thread(node.stop)
        await trio.sleep_forever()

    assert node.exit_report is not None


# -- after the end ---------------------------------------------------------------------------------


Verbs = dict[str, Callable[[Node, PID], object]]


VERBS: Verbs = {
    "send": lambda node, pid: node.send(pid, "hello"),
    "send high": lambda node, pid: node.send(pid, "hello", priority=Priority.HIGH),
    "send to a name": lambda node, _pid: node.send("somebody", "hello"),
    "info": lambda node, _pid: node.info(),
    "process_info": lambda node, pid: node.process_info(pid),
    "kill": lambda node, pid: node.kill(pid),
    "send_exit": lambda node, pid: node.send_exit(pid),
    "register": lambda node, pid: node.register("name", pid),
    "send_after": lambda node, pid: node.send_after(1, pid, "hello"),
    "stop": lambda node, _pid: node.stop(),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("thread", [True, False], ids=["in a thread", "on the loop"])
async def test_verbs_of_a_stopped_node_raise_node_stopped(verb: str, thread: bool) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)

    with pytest.raises(NodeStoppedError, match="open_node"):
        if thread:
            await in_thread(lambda: VERBS[verb](node, pid))
        else:
            VERBS[verb](node, pid)


@pytest.mark.parametrize("verb", [*VERBS, "call_from_thread"])
@pytest.mark.parametrize("thread", [True, False], ids=["in a thread", "in the loop's thread"])
def test_verbs_raise_node_stopped_after_the_end_of_the_loop(verb: str, thread: bool) -> None:
    async def whole() -> tuple[Node, PID]:
        async with running_node() as node:
            return node, await node.spawn(Recorder)

    node, pid = trio.run(whole)
    verbs: Verbs = {
        **VERBS,
        "call_from_thread": lambda node, pid: node.call_from_thread(pid, "hello"),
    }
    errors: list[BaseException] = []

    def attempt() -> None:
        try:
            verbs[verb](node, pid)
        except BaseException as error:
            errors.append(error)

    if thread:
        other = threading.Thread(target=attempt)
        other.start()
        other.join(PATIENCE)
    else:
        attempt()

    expected = NotAllowedError if verb == "call_from_thread" and not thread else NodeStoppedError
    assert [type(error) for error in errors] == [expected]


async def test_a_log_record_of_a_thread_after_the_end_of_the_node_is_no_error() -> None:
    class Logger(Actor):
        def handle_log(self, record: object) -> None: ...

    async with running_node() as node:
        node.add_logger(await node.spawn(Logger))
        # As if the thread had looked before the loggers were gone.
        log = kernel_of(node).log
    log.watched = True

    await in_thread(lambda: node.log.error("afterwards"))


FORK = """
import os, sys, threading
import trio
from ergo_py import Actor, NodeStoppedError, Priority, open_node

class Echo(Actor):
    def handle_message(self, message, sender):
        pass

    def handle_call(self, request, caller):
        return request

bounded = []

def child(node, pid):
    verbs = {
        "send": lambda: node.send(pid, 1),
        "high": lambda: node.send(pid, 1, priority=Priority.HIGH),
        "bounded": lambda: node.send("bounded", 1),
        "bounded pid": lambda: node.send(bounded[0], 1),
        "name": lambda: node.send("nobody", 1),
        "info": node.info,
        "kill": lambda: node.kill(pid),
        "stop": node.stop,
        "thread": lambda: node.call_from_thread(pid, 1),
    }
    for name, verb in verbs.items():
        try:
            verb()
        except NodeStoppedError:
            os.write(1, f"{name} refused, ".encode())
        else:
            os.write(1, f"{name} accepted, ".encode())
    os._exit(0)

def fork(node, pid):
    process = os.fork()
    if not process:
        child(node, pid)
    return os.waitpid(process, 0)[1]

async def main():
    async with open_node(watchdog=None) as node:
        pid = await node.spawn(Echo)
        bounded.append(await node.spawn(Echo, name="bounded", mailbox_size=100))
        where = sys.argv[1]
        if where == "loop":
            status = fork(node, pid)
        elif where == "thread":
            status = await trio.to_thread.run_sync(fork, node, pid)
        else:
            # The loop has been asked to come and has not come yet: nobody would ask it again.
            results = []
            def ask_and_fork():
                node.send(pid, "before")
                results.append(fork(node, pid))
            thread = threading.Thread(target=ask_and_fork)
            thread.start()
            thread.join()
            status = results[0]
        answer = await trio.to_thread.run_sync(node.call_from_thread, pid, "undisturbed")
        print(status, await node.call(pid, answer))

trio.run(main)
"""


@pytest.mark.parametrize("where", ["loop", "thread", "armed"])
def test_a_forked_copy_has_no_node_and_the_original_is_undisturbed(where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", FORK, where],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    verbs = ["send", "high", "bounded", "bounded pid", "name", "info", "kill", "stop", "thread"]
    assert done.stderr == ""
    assert done.stdout == "".join(f"{verb} refused, " for verb in verbs) + "0 undisturbed\n"
