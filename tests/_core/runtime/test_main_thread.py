"""`Threads.MAIN`: the main thread runs callbacks in `run_main`, with the node in another thread."""

import signal
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

import pytest
import trio

from ergo_py import (
    Actor,
    ChildSpec,
    InitError,
    Node,
    NodeStoppedError,
    NotAllowedError,
    Reason,
    Shutdown,
    Supervisor,
    SupervisorSpec,
    Threads,
)
from ergo_py._core.runtime.bridge import take_next
from ergo_py.blocking import main_thread, open_node
from ergo_py.blocking.loop_thread import OwnedNode
from tests._core.runtime.from_threads import PATIENCE
from tests.actors import Failed
from tests.dispatched import Doer
from tests.support import running_node

MAIN = Threads.MAIN
HERE = threading.main_thread().ident


@pytest.fixture
def node() -> Iterator[OwnedNode]:
    with open_node("main@localhost", watchdog=None) as opened:
        yield opened


def stop(me: Any) -> None:
    me.node.stop()


async def test_a_node_in_the_main_thread_refuses_the_dispatcher_main() -> None:
    async with running_node() as node:
        with pytest.raises(NotAllowedError, match="write dispatcher=LOOP"):
            await node.spawn(Doer, dispatcher=MAIN)


def test_all_plain_callbacks_of_the_dispatcher_main_run_in_the_main_thread(
    node: OwnedNode,
) -> None:
    log: list[Any] = []

    async def start(inside: Node) -> None:
        one = await inside.spawn(Doer, log, dispatcher=MAIN)
        other = await inside.spawn(Doer, log, dispatcher=MAIN)
        ident = await inside.call(one, lambda me: me.call(other, lambda _it: threading.get_ident()))
        log.append(("call", ident))
        log.append(("dispatcher", inside.process_info(one).dispatcher))
        log.append(("threads", inside.process_info(one).threads))
        inside.send(one, stop)

    node.run_main(start)

    native = threading.main_thread().native_id
    assert log == [
        ("init", HERE),
        ("init", HERE),
        ("call", HERE),
        ("dispatcher", "main thread"),
        ("threads", (native,)),
        (Shutdown(), HERE),
        (Shutdown(), HERE),
    ]
    assert node.exit_report is not None


def test_without_run_main_a_spawn_with_the_dispatcher_main_is_refused(node: OwnedNode) -> None:
    with pytest.raises(NotAllowedError, match=r"in node\.run_main\(start\)"):
        node.spawn(Doer, dispatcher=MAIN)


def test_run_main_is_refused_in_another_thread_and_inside_itself(node: OwnedNode) -> None:
    refused: list[str] = []

    def run_main() -> None:
        try:
            node.run_main()
        except NotAllowedError as error:
            refused.append(str(error))

    def run_again(me: Doer) -> None:
        run_main()
        stop(me)

    async def start(inside: Node) -> None:
        inside.send(await inside.spawn(Doer, dispatcher=MAIN), run_again)

    other = threading.Thread(target=run_main)
    other.start()
    other.join(PATIENCE)
    node.run_main(start)

    assert [text.partition(",")[0].partition(":")[0] for text in refused] == [
        "run_main() is for the main thread of the program",
        "the main thread is in run_main() already",
    ]


async def test_run_main_on_the_loop_is_refused() -> None:
    async with running_node() as node:
        with pytest.raises(NotAllowedError, match="write dispatcher=LOOP instead"):
            main_thread.run_main(node)


def test_run_main_of_a_stopped_node_raises(node: OwnedNode) -> None:
    node.close()

    with pytest.raises(NodeStoppedError):
        node.run_main()


def test_run_main_returns_when_another_thread_stops_the_node(node: OwnedNode) -> None:
    async def start(inside: Node) -> None:
        threading.Thread(target=inside.stop_soon).start()

    node.run_main(start)

    assert node.exit_report is not None


def test_a_crash_in_the_main_thread_is_a_matter_of_the_supervisor(node: OwnedNode) -> None:
    log: list[Any] = []

    def fail(_me: Doer) -> None:
        raise Failed("in the main thread")

    async def start(inside: Node) -> None:
        spec = SupervisorSpec([ChildSpec("window", Doer, log, register=True, dispatcher=MAIN)])
        await inside.spawn(Supervisor, spec)
        inside.send("window", fail)
        await inside.service("window").call(lambda _me: None, retry=True)
        inside.send("window", stop)

    node.run_main(start)

    assert [entry for entry in log if entry[0] == "init"] == [("init", HERE)] * 2


def test_a_start_that_fails_stops_the_node_and_run_main_raises_it(node: OwnedNode) -> None:
    log: list[Any] = []

    async def start(inside: Node) -> None:
        await inside.spawn(Doer, log, dispatcher=MAIN)
        raise Failed("at the start")

    with pytest.raises(Failed):
        node.run_main(start)

    assert log == [("init", HERE), (Shutdown(), HERE)]


def interrupted(times: int, begun: list[Any]) -> Callable[[Node], Any]:
    """A start with a callback in the main thread that gets Ctrl-C."""

    def press(_me: Doer) -> None:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        begun.append("went on")

    async def start(inside: Node) -> None:
        inside.send(await inside.spawn(Doer, begun, dispatcher=MAIN), press)

    return start


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_lets_the_callback_finish_and_stops_the_node(node: OwnedNode, times: int) -> None:
    log: list[Any] = []

    # The second comes at once, as from a wrapper that signals a program and its group.
    node.run_main(interrupted(times, log))

    assert log == [("init", HERE), "went on", (Shutdown(), HERE)]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_ctrl_c_interrupts_the_callback(
    node: OwnedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[Any] = []
    monkeypatch.setattr(main_thread, "REPEAT", 0.0)
    monkeypatch.setattr(threading, "excepthook", lambda args: log.append(args.exc_type))

    with pytest.raises(KeyboardInterrupt):
        node.run_main(interrupted(2, log))
    node.close()

    assert "went on" not in log


def test_another_ctrl_c_in_an_idle_main_thread_ends_run_main_and_the_node(
    node: OwnedNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[Any] = []
    has_left = threading.Event()
    monkeypatch.setattr(main_thread, "REPEAT", 0.0)

    class Pressing(Actor):
        async def terminate(self, reason: Reason) -> None:
            signal.raise_signal(signal.SIGINT)
            assert await trio.to_thread.run_sync(has_left.wait, PATIENCE)

    async def start(inside: Node) -> None:
        # The supervisor stops the last child first.
        window = ChildSpec("window", Doer, log, dispatcher=MAIN)
        await inside.supervise([window, ChildSpec("pressing", Pressing)])
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        node.run_main(start)
    has_left.set()
    node.close()

    assert log == [("init", HERE)]
    assert "terminate raised" in caplog.text
    assert "an exception has ended run_main()" in caplog.text


def test_a_handler_of_the_program_keeps_ctrl_c(node: OwnedNode) -> None:
    log: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *_args: node.run(lambda inside: inside.stop()))
    try:
        node.run_main(interrupted(1, log))
    finally:
        signal.signal(signal.SIGINT, before)

    assert log == [("init", HERE), "went on", (Shutdown(), HERE)]


def test_a_handler_that_a_callback_sets_stays(node: OwnedNode) -> None:
    def own(_number: int, _frame: Any) -> None:
        pass

    class Setting(Actor):
        def init(self) -> None:
            signal.signal(signal.SIGINT, own)
            self.node.stop()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        node.run_main(lambda inside: inside.spawn(Setting, dispatcher=MAIN))
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_init_that_fails_in_the_main_thread_is_told(node: OwnedNode) -> None:
    class Broken(Doer):
        def init(self) -> None:
            raise Failed("no display")

    async def start(inside: Node) -> None:
        await inside.spawn(Broken, dispatcher=MAIN)

    with pytest.raises(InitError):
        node.run_main(start)


def test_the_main_thread_takes_entries_in_slices() -> None:
    class EmptyAtFirst(SimpleQueue[str]):
        waits = 0

        def get(self, block: bool = True, timeout: float | None = None) -> str:
            self.waits += 1
            if timeout is None or self.waits == 1:
                raise Empty
            return super().get(block, timeout)

    queue = EmptyAtFirst()
    queue.put("entry")

    assert take_next(queue) == "entry"
