"""The node for synchronous code: the same verbs, errors as if called directly, and an end that
always comes.
"""

import asyncio
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
import trio

from ergo_py import (
    LOOP,
    NO_REPLY,
    Actor,
    Application,
    BadInputError,
    Caller,
    CallTimeoutError,
    ChildSpec,
    InitError,
    MetaProcess,
    Node,
    NodeStoppedError,
    NotAllowedError,
    Reject,
    Shutdown,
    TargetDownError,
    Threads,
)
from ergo_py._core.runtime.bridge import Parker
from ergo_py._core.vocabulary.errors import ChildUnknownError
from ergo_py.blocking import BlockingNode
from ergo_py.blocking import loop_thread as loop_thread_module
from ergo_py.blocking.loop_thread import OwnedNode, handle, open_node
from ergo_py.errors import ProcessUnknownError
from ergo_py.tasks.verbs import TaskVerbs
from tests.support import kernel_of, replace_private


class Clerk(Actor):
    """Answers, refuses, or keeps silent, as it is asked."""

    def __init__(self, start: int = 0) -> None:
        self.total = start
        self.asked = threading.Event()

    def handle_message(self, message: int, sender: Any) -> None:
        self.total += message

    def handle_call(self, request: Any, caller: Caller) -> object:
        if request == "refuse":
            raise Reject(LookupError("not here"))
        if isinstance(request, threading.Event):
            request.set()
            return NO_REPLY
        return self.total

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"total": str(self.total)}


class Broken(Actor):
    async def init(self) -> None:
        await trio.lowlevel.checkpoint()
        raise OSError("no such device")


class Waiter(MetaProcess):
    async def start(self) -> None:
        await trio.sleep_forever()

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"state": "waiting"}


class Owner(Actor):
    async def init(self) -> None:
        self.alias = await self.spawn_meta(Waiter())

    def handle_call(self, request: Any, caller: Caller) -> object:
        return self.alias


def quiet_node(**options: Any) -> OwnedNode:
    return open_node("plain@localhost", watchdog=None, log_output="none", **options)


def test_the_verbs_of_a_node_work_without_await() -> None:
    with quiet_node() as node:
        clerk = node.spawn(Clerk, 5, name="clerk")
        owner = node.spawn(Owner)
        alias = node.call(owner, "alias")

        node.send("clerk", 3)

        assert node.call("clerk", "total") == 8
        assert node.inspect(clerk) == {"total": "8"}
        assert node.inspect_meta(alias) == {"state": "waiting"}
        assert node.meta_info(alias).reader == "task"
        assert node.metas() == [alias]
        assert node.processes() == [clerk, owner]
        assert node.process_info("clerk").behaviour == "Clerk"
        assert node.whereis("clerk") == clerk
        assert node.info().processes == 2
        assert node.send_exit(clerk, "enough")
        assert node.kill(owner)


def test_errors_are_raised_in_the_calling_thread() -> None:
    with quiet_node() as node:
        node.spawn(Clerk, name="clerk")

        with pytest.raises(LookupError, match="not here"):
            node.call("clerk", "refuse")
        with pytest.raises(InitError, match="no such device") as caught:
            node.spawn(Broken)
        assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(CallTimeoutError):
            node.call("clerk", threading.Event(), timeout=0.01)
        with pytest.raises(BadInputError, match="unknown"):
            node.spawn(Clerk, unknown=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_a_bad_option_is_refused_where_the_node_is_opened_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())

    with pytest.raises(BadInputError, match="burst"):
        open_node("plain@localhost", burst=0)

    assert set(threading.enumerate()) <= before


def test_many_threads_may_use_the_same_node() -> None:
    with quiet_node() as node:
        clerk = node.spawn(Clerk)

        def work() -> None:
            for _ in range(50):
                node.send(clerk, 1)
                node.inspect(clerk)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

        assert node.call(clerk, "total") == 200


def test_closing_twice_is_harmless_and_verbs_raise_afterwards() -> None:
    node = quiet_node()
    clerk = node.spawn(Clerk)

    report = node.close()

    assert report is not None
    assert [ended.pid for ended in report.stopped] == [clerk]
    assert node.close() == report
    for verb in (
        lambda: node.send(clerk, 1),
        lambda: node.call(clerk, 1),
        lambda: node.spawn(Clerk),
        node.info,
    ):
        with pytest.raises(NodeStoppedError):
            verb()


class Exiting(Actor):
    def handle_message(self, message: int, sender: Any) -> None:
        raise SystemExit(message)


def test_an_exit_in_a_callback_reaches_the_program_where_it_closes_the_node() -> None:
    node = quiet_node()
    pid = node.spawn(Exiting)

    node.send(pid, 3)

    with pytest.raises(SystemExit) as caught:
        node.close()
    assert caught.value.code == 3
    assert node.close() == node.exit_report
    with pytest.raises(SystemExit, match="4"), quiet_node() as node:
        node.send(node.spawn(Exiting), 4)


FORGETS_EXIT = """
from ergo_py import Actor
from ergo_py.blocking import open_node

class Exiting(Actor):
    def handle_message(self, message, sender):
        raise SystemExit(message)

node = open_node("forgotten@localhost", log_output="none", watchdog=None)
node.send(node.spawn(Exiting), 3)
"""


def test_an_exit_in_a_callback_of_a_forgotten_node_is_quiet() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGETS_EXIT],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_supervisors_services_and_applications_work_without_await() -> None:
    with quiet_node() as node:
        root = node.supervise([ChildSpec("clerk", Clerk, 5)], intensity=10)
        service = node.service("clerk")
        first = service.pid
        assert service.call("total") == 5
        assert node.supervisor(root.pid).restart_child("clerk") != first
        service.send(2)
        assert service.send_wait(3)
        after = root.service("clerk").call("total", retry=True)
        root.add_child(ChildSpec("second", Clerk, register=False))
        names = [child.name for child in root.children()]
        stopped, removed = root.stop_child("second"), root.remove_child("second")
        root.disable_child("clerk")
        disabled = root.count()
        enabled = root.enable_child("clerk")
        assert enabled == service.pid
        started = node.start_applications(Application("shop", [ChildSpec("till", Clerk, 1)]))
        phases = [one.phase.name for one in node.applications()]
        till = node.service("till").call("total")
        ended = node.stop_applications("shop")
        with pytest.raises(ChildUnknownError):
            node.service("nobody")

    assert after == 10
    assert names == ["clerk", "second"]
    assert stopped == removed
    assert disabled.running == 0
    assert (started, phases, till, ended) == (["shop"], ["RUNNING"], 1, ["shop"])


def test_a_wait_in_progress_ends_with_the_node() -> None:
    node = quiet_node()
    clerk = node.spawn(Clerk)
    asked = threading.Event()
    ended: dict[str, object] = {}

    def wait() -> None:
        try:
            ended["wait"] = node.wait_ended(clerk)
        except Exception as error:
            ended["wait"] = type(error)

    def ask() -> None:
        try:
            node.call(clerk, asked, timeout=None)
        except Exception as error:
            ended["ask"] = type(error)

    threads = [threading.Thread(target=wait), threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    assert asked.wait(10)
    node.close()
    for thread in threads:
        thread.join(10)

    # A thread may still be in the middle of handing its work over when the node is gone already.
    assert ended["wait"] in (Shutdown(), NodeStoppedError)
    assert ended["ask"] in (TargetDownError, NodeStoppedError)


@pytest.mark.parametrize("in_a_group", [False, True])
def test_a_function_that_runs_as_its_node_closes_ends_with_a_teaching_error(
    in_a_group: bool,
) -> None:
    begun = threading.Event()
    errors: list[BaseException] = []

    async def wait(_: Node) -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            if in_a_group:
                raise BaseExceptionGroup("as of a nursery", [cancelled]) from None
            raise

    def run() -> None:
        try:
            node.run(wait)
        except BaseException as error:
            errors.append(error)

    with quiet_node() as node:
        thread = threading.Thread(target=run)
        thread.start()
        assert begun.wait(20)
    thread.join(20)

    assert [type(error) for error in errors] == [NodeStoppedError]


@pytest.mark.parametrize("dispatcher", [LOOP, Threads()], ids=str)
def test_a_callback_that_closes_its_node_is_refused(dispatcher: Any) -> None:
    class Closing(Actor):
        def handle_call(self, request: Any, caller: Caller) -> Any:
            try:
                node.close()
            except NotAllowedError as error:
                return str(error)

    with quiet_node() as node:
        answer = node.call(node.spawn(Closing, dispatcher=dispatcher), "close", timeout=30)
        assert node.info().processes == 1

    assert answer.endswith("write `node.stop_soon()` instead")
    assert answer.startswith("close() would ")


@pytest.mark.counted
def test_a_task_that_closes_its_node_is_refused() -> None:
    answers: list[str] = []

    def close() -> None:
        try:
            node.close()
        except NotAllowedError as error:
            answers.append(str(error))

    with quiet_node() as node:
        node.run_task(close).result(30)

    assert answers == [
        "close() would wait for the callback that calls it; write `node.stop_soon()` instead"
    ]


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """A shell that runs the tests in the background has Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("wakes", [True, False], ids=["in the middle", "just before"])
@pytest.mark.parametrize("verb", ["call", "run", "close"])
def test_ctrl_c_ends_the_wait_and_not_the_node(verb: str, wakes: bool, ctrl_c: None) -> None:
    with quiet_node() as node:
        clerk = node.spawn(Clerk)
        asked, enough = threading.Event(), threading.Event()
        main = threading.get_ident()

        async def wait(_: Node) -> None:
            asked.set()
            await trio.sleep_forever()

        async def block(_: Node) -> None:
            asked.set()
            enough.wait(30)

        def press() -> None:
            assert asked.wait(30)
            # A signal that came just before the main thread blocked has been noted and does not
            # wake it; nor does a signal that interrupted another thread.
            signal.pthread_kill(main if wakes else threading.get_ident(), signal.SIGINT)

        presser = threading.Thread(target=press)
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            match verb:
                case "call":
                    node.call(clerk, asked, timeout=30)
                case "run":
                    node.run(wait)
                case _:
                    node.run(partial(_start, function=block))
                    node.close(30)
        enough.set()
        presser.join(30)

        if verb != "close":
            assert node.call(clerk, "total") == 0
            assert node.info().calls_in_flight == 0
        else:
            assert node.close() is not None


def test_ctrl_c_while_a_node_comes_up_leaves_no_node(
    ctrl_c: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, left = threading.get_ident(), threading.Event()
    loops: list[threading.Thread] = []

    def open_slowly(name: str, **options: Any) -> Any:
        loops.append(threading.current_thread())
        signal.pthread_kill(main, signal.SIGINT)
        assert left.wait(30)
        return _async_node()

    replace_private(monkeypatch, "node of the loop thread", open_slowly)
    with pytest.raises(KeyboardInterrupt):
        quiet_node()
    left.set()
    loops[0].join(30)

    assert not loops[0].is_alive()


async def _start(node: Node, function: Callable[[Node], Awaitable[None]]) -> None:
    kernel_of(node).nursery.start_soon(function, node)


async def test_a_trio_program_hands_out_blocking_verbs_for_its_threads() -> None:
    with trio.fail_after(30):
        async with _async_node() as node:
            clerk = await node.spawn(Clerk, 2)
            blocking = handle(node)

            total = await trio.to_thread.run_sync(lambda: blocking.call(clerk, "total"))
            seen = await trio.to_thread.run_sync(lambda: blocking.inspect(clerk))

            assert (total, seen) == (2, {"total": "2"})
            with pytest.raises(NotAllowedError, match="await"):
                blocking.inspect(clerk)


def _async_node() -> Any:
    from ergo_py import open_node as open_async_node

    return open_async_node("async@localhost", watchdog=None, log_output="none")


def test_run_gives_access_to_the_async_node() -> None:
    with quiet_node() as node:
        clerk = node.spawn(Clerk, 7)

        assert node.run(lambda inner: inner.call(clerk, "total")) == 7
        assert node.run(lambda inner: inner.processes()) == [clerk]
        with pytest.warns(DeprecationWarning, match=r"is node\.run\(function\) now"):
            assert node.run_async(lambda inner: inner.call(clerk, "total")) == 7


LAST = """
from ergo_py import Actor, blocking
from ergo_py.blocking import open_node

class Last(Actor):
    def terminate(self, reason):
        print("terminated:", reason, flush=True)

node = open_node("forgotten@localhost", log_output="none", watchdog=None)
last = node.spawn(Last)
"""
WAITS_IN_A_THREAD = """
import threading
threading.Thread(target=lambda: print("ended:", node.wait_ended(last), flush=True)).start()
"""
WAITS_IN_A_POOL = """
import concurrent.futures
pool = concurrent.futures.ThreadPoolExecutor()
pool.submit(lambda: print("ended:", node.wait_ended(last), flush=True))
"""
BLOCKS = """
import threading, time
blocking._AT_EXIT = 0.2
inside = threading.Event()

class Blocks(Actor):
    def handle_message(self, message, sender):
        inside.set()
        time.sleep(1000)

node.send(node.spawn(Blocks), 1)
assert inside.wait(30)
"""


@pytest.mark.parametrize(
    "more, out",
    [
        ("", ["terminated: shutdown"]),
        (WAITS_IN_A_THREAD, ["ended: shutdown", "terminated: shutdown"]),
        (WAITS_IN_A_POOL, ["ended: shutdown", "terminated: shutdown"]),
        (BLOCKS, []),
    ],
    ids=["asleep", "waited for by a thread", "waited for by a pool", "blocked"],
)
def test_an_interpreter_with_a_forgotten_node_exits_and_terminates_its_processes(
    more: str, out: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAST + more],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert (done.returncode, sorted(done.stdout.splitlines()), done.stderr) == (0, out, "")


FORKS = """
import os
import threading
from ergo_py import blocking
from ergo_py.blocking import open_node

blocking._AT_EXIT = 3600.0

def copy(leave):
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    leave()

with open_node("forking@localhost", log_output="none", watchdog=None) as node:
    def forget():
        raise SystemExit(7)
    def close():
        assert node.close() is None
        raise SystemExit(8)
    statuses = [copy(forget), copy(close)]
    assert node.processes() == []
    begun, enough = threading.Event(), threading.Event()
    def block(_):
        begun.set()
        enough.wait(90)
    blocking_loop = threading.Thread(target=node.run, args=(block,))
    blocking_loop.start()
    begun.wait(90)
    assert node.close(timeout=0.01) is None  # the copies have no thread that ends the node
    statuses += [copy(forget), copy(close)]
    enough.set()
    blocking_loop.join(90)
print(statuses, flush=True)
"""


def test_a_forked_copy_neither_waits_for_the_node_nor_ends_it() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "[7, 8, 7, 8]\n", "")


def test_a_closed_node_is_not_in_the_list_of_open_nodes() -> None:
    with quiet_node() as node:
        assert node in loop_thread_module._open

    assert node not in loop_thread_module._open


def test_a_notebook_with_a_running_loop_may_use_a_node() -> None:
    async def cell() -> tuple[int, dict[str, str]]:
        with quiet_node() as node:
            clerk = node.spawn(Clerk, 4)
            return node.call(clerk, "total"), node.inspect(clerk)

    assert asyncio.run(cell()) == (4, {"total": "4"})


def test_a_web_application_may_use_a_node_in_each_of_its_threads() -> None:
    with quiet_node() as node:
        node.spawn(Clerk, name="clerk")

        def application(
            environ: dict[str, Any], start_response: Callable[..., object]
        ) -> list[bytes]:
            node.send("clerk", 1)
            try:
                body = str(node.call("clerk", environ["PATH_INFO"].strip("/"))).encode()
            except LookupError as error:
                start_response("404 Not Found", [])
                return [str(error).encode()]
            start_response("200 OK", [])
            return [body]

        def request(path: str) -> tuple[str, bytes]:
            environ: dict[str, Any] = {"PATH_INFO": path}
            setup_testing_defaults(environ)
            said: list[str] = []
            body = b"".join(application(environ, lambda status, headers: said.append(status)))
            return said[0], body

        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(request, ["/total"] * 20))

        assert max(int(body) for _, body in answers) == 20
        assert {status for status, _ in answers} == {"200 OK"}
        assert request("/refuse") == ("404 Not Found", b"not here")


def test_a_traceback_shows_where_it_was_raised_as_if_called_directly() -> None:
    with quiet_node() as node, pytest.raises(InitError) as caught:
        node.spawn(Broken)

    text = "".join(traceback.format_exception(caught.value))
    assert 'raise OSError("no such device")' in text
    assert "in test_a_traceback_shows_where" in text
    assert "The above exception was the direct cause" in text


def test_the_inspection_verbs_need_no_await() -> None:
    async def end(node: Node) -> None:
        node.kill(clerk)
        await node.wait_ended(clerk)

    with open_node(watchdog=None, log_output="none") as node:
        clerk = node.spawn(Clerk, 5)
        node.suspend(clerk)
        node.send(clerk, 1)

        waiting = node.peek(clerk, contents=True)
        state = node.replace_state(clerk, lambda state: {**state, "total": 10})
        node.resume(clerk)
        node.send_every(0.01, clerk, 2)
        entries = node.trace(clerk, limit=3, seconds=20, types=["int"])
        told = node.statistics(clerk, seconds=0.05)
        node.run(end)

        assert [one.message for one in waiting] == ["1"]
        assert state["total"] == 10
        assert [entry.message_type for entry in entries] == ["int"] * 3
        assert told.pid == clerk
        assert node.crashes() == node.ended()
        with pytest.raises(ProcessUnknownError):
            node.get_state(clerk)


def test_verbs_of_a_node_that_need_no_await_have_a_blocking_counterpart() -> None:
    verbs = {name for name in vars(Node) | vars(TaskVerbs) if not name.startswith("_")}

    assert verbs - set(dir(BlockingNode)) == set()


class Interrupted(Parker[Any]):
    """Is interrupted when the result is there."""

    def wait(self, timeout: float | None) -> bool:
        super().wait(timeout)
        raise KeyboardInterrupt


@pytest.mark.parametrize("verb", ["spawn", "supervise"])
def test_an_interrupted_spawn_leaves_no_process(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    class Nobodys(Actor):
        def terminate(self, reason: Any) -> None:
            ended.set()

    with quiet_node() as node:
        monkeypatch.setattr("ergo_py.facades.facade.Parker", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            if verb == "spawn":
                node.spawn(Nobodys)
            else:
                node.supervise([ChildSpec("nobodys", Nobodys)])
        monkeypatch.undo()

        assert ended.wait(20)


def test_an_interrupted_step_keeps_its_part_for_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with quiet_node() as node:
        node.open_topic("news", buffer=3)
        for number in range(3):
            node.publish("news", number)
        results, events = node.map_stream(abs, range(3)), node.events("news")
        monkeypatch.setattr("ergo_py.facades.facade.Parker", Interrupted)
        for stream in (results, results, events, events):
            with pytest.raises(KeyboardInterrupt):
                next(stream)
        monkeypatch.undo()

        assert [next(events).message for _ in range(3)] == [0, 1, 2]
        assert list(results) == [0, 1, 2]


def test_an_interrupted_supervise_finds_that_its_supervisor_has_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open_node("plain@localhost", watchdog=None, log_level="error") as node:

        class Late(Parker[Any]):
            """Is interrupted when the supervisor has ended."""

            def wait(self, timeout: float | None) -> bool:
                super().wait(timeout)
                monkeypatch.undo()
                assert self.value is not None
                pid = self.value.unwrap().pid
                node.kill(pid)
                node.wait_ended(pid)
                raise KeyboardInterrupt

        monkeypatch.setattr("ergo_py.facades.facade.Parker", Late)
        with pytest.raises(KeyboardInterrupt):
            node.supervise([])

    assert "supervisor of the node gave up" in caplog.text
    assert "work handed over by a thread failed" not in caplog.text
