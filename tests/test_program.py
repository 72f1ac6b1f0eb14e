"""Running a whole program: its result, and the effects of Ctrl-C and SIGTERM, once and twice."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import (
    Actor,
    BadInputError,
    ChildSpec,
    Crashed,
    Custom,
    InitError,
    Node,
    NodeStoppedError,
    Normal,
    Reason,
    RestartLimit,
    Shutdown,
    Supervisor,
    SupervisorSpec,
    open_node,
    run,
)
from ergo_py.errors import EscalationError
from ergo_py.program import _Signals
from ergo_py.service_manager import ServiceManager
from tests.actors import Failed
from tests.meta.support import replace_process_groups, signal_comes
from tests.support import running_node

PATIENCE = 60.0
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def no_signal_is_ignored() -> Iterator[None]:
    """``nohup`` and a shell that starts a program in the background have it ignore signals, and its
    children with it.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in SIGNALS]


# -- arguments and results of run ------------------------------------------------------------------


def test_an_async_function_gets_a_node_and_its_result_is_returned() -> None:
    nodes: list[Node] = []

    async def main(node: Node) -> int:
        nodes.append(node)
        return len(node.processes()) + 42

    result = run(main, name="demo@here", watchdog=None, log_output="none")

    assert result == 42
    assert nodes[0].name == "demo@here"
    with pytest.raises(NodeStoppedError):
        nodes[0].info()


def test_processes_are_stopped_when_main_returns() -> None:
    ends: list[Reason] = []

    class Ends(Actor):
        async def terminate(self, reason: Reason) -> None:
            ends.append(reason)

    async def main(node: Node) -> None:
        await node.spawn(Ends)

    run(main, watchdog=None, log_output="none")

    assert ends == [Shutdown()]


def test_an_error_of_main_is_raised_unchanged() -> None:
    async def main(_node: Node) -> None:
        raise Failed("on purpose")

    with pytest.raises(Failed, match="on purpose"):
        run(main, watchdog=None, log_output="none")


class Ending(Actor):
    """Ends by itself, as soon as it has begun."""

    reason: object = Normal()

    async def init(self) -> None:
        self.send(self.pid, "end")

    async def handle_message(self, message: Any, sender: Any) -> None:
        self.stop(self.reason)


class EndingWithAReason(Ending):
    reason = "done"


class Crashing(Ending):
    async def handle_message(self, message: Any, sender: Any) -> None:
        raise Failed("on purpose")


@pytest.mark.parametrize(
    "behaviour,reason",
    [
        (Ending, Normal()),
        (EndingWithAReason, Custom("done")),
        (Crashing, Crashed(Failed("on purpose"))),
    ],
)
def test_run_waits_for_the_end_of_a_behaviour_and_returns_its_reason(
    behaviour: type[Actor], reason: Reason
) -> None:
    result = run(behaviour, watchdog=None, log_output="none")

    assert result == reason


@pytest.mark.parametrize("children", range(9))
def test_a_behaviour_that_ends_at_once_is_no_error(children: int) -> None:
    class Child(Actor):
        pass

    class Brief(Actor):
        async def init(self) -> None:
            # Each call may bring a turn of the scheduler, in which this process could end before a
            # task waits for it.
            for _ in range(children):
                await self.spawn(Child)
            self.stop("brief")

    result = run(Brief, watchdog=None, log_output="none")

    assert result == Custom("brief")


class Failing(Actor):
    """Fails as soon as it runs."""

    def post_start(self) -> None:
        raise Failed("on purpose")


class GivesUp(Supervisor):
    def children(self) -> SupervisorSpec:
        return SupervisorSpec([ChildSpec("failing", Failing)], intensity=1)


async def supervise_and_wait(node: Node) -> str:
    await node.supervise([ChildSpec("failing", Failing)], intensity=1)
    with trio.move_on_after(0.3):
        await trio.sleep_forever()
    return "went on"


@pytest.mark.parametrize("main", [supervise_and_wait, GivesUp])
def test_a_supervisor_that_gives_up_ends_the_program_with_an_error(main: Any) -> None:
    with pytest.raises(EscalationError) as caught:
        run(main, log_output="none", watchdog=None)

    assert isinstance(caught.value.reason, RestartLimit)
    assert isinstance(caught.value.__cause__, Failed)


def test_a_program_may_go_on_without_a_supervisor_that_gave_up() -> None:
    result = run(supervise_and_wait, on_escalation="keep", log_output="none", watchdog=None)

    assert result == "went on"


def test_a_program_exits_with_a_failure_if_its_supervisor_gives_up(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import trio
from ergo_py import Actor, ChildSpec, run

class Failing(Actor):
    def post_start(self):
        raise ValueError("on purpose")

async def main(node):
    await node.supervise([ChildSpec("failing", Failing)], intensity=1)
    await trio.sleep_forever()

if __name__ == "__main__":
    run(main)
""",
        encoding="utf-8",
    )
    for command in ([str(program)], ["-m", "ergo_py", "run", str(program)]):
        ended = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ended.returncode == 1
        assert "gave up, and the node stopped" in ended.stderr


def test_a_behaviour_that_cannot_start_raises() -> None:
    class Unable(Actor):
        def init(self) -> None:
            raise Failed("on purpose")

    with pytest.raises(InitError):
        run(Unable, watchdog=None, log_output="none")


@pytest.mark.parametrize(
    "main",
    [None, 42, "main", print, lambda node: None, object, Node, Ending(), dict],
    ids=["None", "number", "str", "builtin", "plain function", "class", "Node", "instance", "type"],
)
def test_the_error_about_an_invalid_main_shows_a_valid_main(main: Any) -> None:
    with pytest.raises(BadInputError, match="async def main"):
        run(main)


def test_a_main_without_a_parameter_for_the_node_is_refused() -> None:
    async def main() -> None:
        """Takes no node."""

    async def of_two(node: Node, other: object) -> None:
        """Takes too much."""

    mains: list[Any] = [main, of_two]
    for given in mains:
        with pytest.raises(BadInputError, match="with a parameter for the node that run opens"):
            run(given)


def test_a_main_with_further_parameters_that_have_defaults_is_run() -> None:
    async def main(node: Node, *further: object, times: int = 2) -> int:
        return times

    assert run(main, watchdog=None, log_output="none") == 2


@pytest.mark.filterwarnings("error")
def test_a_main_that_was_called_already_is_refused() -> None:
    async def main(node: Any) -> None:
        """Never runs."""

    called: Any = main(None)

    with pytest.raises(BadInputError) as caught:
        run(called)

    assert str(caught.value).endswith("allowed is the function itself, without a call: `run(main)`")


def test_bad_options_are_refused_before_main_runs() -> None:
    ran: list[Node] = []

    async def main(node: Node) -> None:
        ran.append(node)

    with pytest.raises(BadInputError):
        run(main, burst=0)
    with pytest.raises(TypeError, match=r"has no option 'no_such_thing'$"):
        run(main, no_such_thing=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match=r"has no option 'log_lvel'; did you mean log_level\?$"):
        run(main, log_lvel="debug")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]

    assert ran == []


# -- signals, once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_stops_all_processes_in_order_and_run_returns_none(
    number: signal.Signals,
) -> None:
    ends: list[str] = []

    class Child(Actor):
        async def terminate(self, reason: Reason) -> None:
            await trio.lowlevel.checkpoint()
            ends.append(f"child {reason}")

    class Parent(Actor):
        async def init(self) -> None:
            await self.spawn(Child)

        async def terminate(self, reason: Reason) -> None:
            ends.append(f"parent {reason}")

    async def main(node: Node) -> str:
        await node.spawn(Parent)
        signal.raise_signal(number)
        await trio.sleep_forever()
        return "never"

    result = run(main, watchdog=None, log_output="none")

    assert result is None
    assert ends == ["child shutdown", "parent shutdown"]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_behaviour_is_stopped_by_a_signal_too(number: signal.Signals) -> None:
    ends: list[Reason] = []

    class Signalled(Actor):
        def init(self) -> None:
            signal.raise_signal(number)

        def terminate(self, reason: Reason) -> None:
            ends.append(reason)

    result = run(Signalled, watchdog=None, log_output="none")

    assert result is None
    assert ends == [Shutdown()]


def test_a_signal_that_comes_before_the_node_is_up_counts() -> None:
    ran: list[str] = []

    async def main() -> None:
        signals = _Signals(ServiceManager({}))
        signal_comes(signals, signal.SIGINT)
        with trio.fail_after(PATIENCE):
            async with open_node(watchdog=None, log_output="none") as node:
                signals.watch_over(node)
                await trio.sleep_forever()
        ran.append("stopped")

    trio.run(main)

    assert ran == ["stopped"]


async def test_a_signal_that_comes_after_the_node_is_down_is_no_error() -> None:
    signals = _Signals(ServiceManager({}))
    async with running_node() as node:
        signals.watch_over(node)

    signal_comes(signals, signal.SIGTERM)


@pytest.mark.parametrize("fails", [False, True])
def test_run_restores_the_signal_handlers(fails: bool) -> None:
    before = handlers()
    during: list[object] = []

    async def main(_node: Node) -> None:
        during.extend(handlers())
        if fails:
            raise Failed

    try:
        run(main, watchdog=None, log_output="none")
    except Failed:
        pass

    assert handlers() == before
    assert all(one is not other for one, other in zip(during, before, strict=True))


async def test_a_node_in_a_trio_program_restores_the_signal_handlers() -> None:
    before = handlers()

    async with running_node():
        during = handlers()

    # Ctrl-C is asked for the main task only, meanwhile; the rest is not touched.
    assert during[1:] == before[1:]
    assert handlers() == before


def test_run_in_another_thread_does_not_change_signal_handlers() -> None:
    before = handlers()
    results: list[object] = []

    async def main(_node: Node) -> list[object]:
        return handlers()

    thread = threading.Thread(
        target=lambda: results.append(run(main, watchdog=None, log_output="none"))
    )
    thread.start()
    thread.join(PATIENCE)

    assert results == [before]


# -- signals, twice --------------------------------------------------------------------------------


class Left(BaseException):
    """Instead of leaving the program that runs the tests."""


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    def leave(status: int) -> None:
        raise Left(status)

    clock = Clock()
    monkeypatch.setattr(sys.modules["ergo_py.program"], "monotonic", clock)
    monkeypatch.setattr(os, "_exit", leave)
    return clock


@pytest.mark.parametrize("second", SIGNALS)
@pytest.mark.parametrize("first", SIGNALS)
def test_two_signals_in_quick_succession_count_as_a_single_request(
    first: signal.Signals, second: signal.Signals, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = _Signals(ServiceManager({}))

    signal_comes(signals, first)
    clock.now += 0.49
    signal_comes(signals, second)
    clock.now += 0.02
    with pytest.raises(Left) as left:
        signal_comes(signals, second)

    assert left.value.args == (128 + second,)


def test_the_programs_of_ports_are_killed_before_the_program_exits(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []

    def kill(group: int, number: int) -> None:
        killed.append((group, number))
        raise ProcessLookupError

    monkeypatch.setattr(os, "killpg", kill)
    replace_process_groups(monkeypatch, dict.fromkeys([4711, 4712]))
    signals = _Signals(ServiceManager({}))
    signal_comes(signals, signal.SIGTERM)
    clock.now += 5.0

    with pytest.raises(Left):
        signal_comes(signals, signal.SIGTERM)

    assert sorted(killed) == [(4711, signal.SIGKILL), (4712, signal.SIGKILL)]


@pytest.mark.parametrize(
    "handler", [signal.SIG_IGN, lambda number, frame: None], ids=["ignored", "handled"]
)
def test_a_sighup_that_the_program_ignores_or_handles_is_left_alone(handler: Any) -> None:
    during: list[object] = []

    async def main(_node: Node) -> None:
        during.append(signal.getsignal(signal.SIGHUP))

    before = signal.signal(signal.SIGHUP, handler)
    try:
        run(main, watchdog=None, log_output="none")
    finally:
        signal.signal(signal.SIGHUP, before)

    assert during == [handler]


# -- signals, in a program of their own ------------------------------------------------------------

PROGRAM = """
import sys, threading
import trio, trio.testing
import ergo_py.program
from ergo_py import Actor, run
from ergo_py.meta import Port

ergo_py.program.REPEAT = 0.0  # no signal counts as the same as the first

def say(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()

class Polite(Actor):
    async def init(self):
        say("ready")
    async def terminate(self, reason):
        say(f"terminate {reason}")

class Stubborn(Actor):
    async def init(self):
        say("ready")
    async def terminate(self, reason):
        trio.lowlevel.spawn_system_task(self.say_so_when_it_sleeps)
        await trio.sleep(3600)
    async def say_so_when_it_sleeps(self):
        await trio.testing.wait_all_tasks_blocked()
        say("terminating")

# Its port runs a program that holds a pipe open for as long as it lives, and ignores both the end
# of its input and SIGTERM.
HOLDS = "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); " \\
    "os.open(sys.argv[1], os.O_WRONLY); print(flush=True); time.sleep(3600)"

class Owner(Actor):
    async def init(self):
        await self.spawn_meta(Port([sys.executable, "-S", "-c", HOLDS, sys.argv[2]]))
    def handle_message(self, message, sender):
        if isinstance(message, Port.Line):
            say("ready")

class Blocking(Actor):
    def init(self):
        self.send(self.pid, "block")
    def handle_message(self, message, sender):
        say("ready")
        threading.Event().wait()

behaviours = {"polite": Polite, "stubborn": Stubborn, "owner": Owner, "blocking": Blocking}
behaviour = behaviours[sys.argv[1]]

class App(Actor):
    async def init(self):
        await self.spawn(behaviour, name="the one", terminate_timeout=3600, shutdown=3600)

print("result", run(App, watchdog=None, log_output="none", stop_timeout=3600))
"""


class Program:
    """A program in a process of its own, which never outlives the test."""

    def __init__(self, behaviour: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM, behaviour, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait_until_it_says(self, line: str) -> None:
        assert self._process.stdout is not None
        watch = threading.Timer(PATIENCE, self._process.kill)
        watch.start()
        said = self._process.stdout.readline()
        watch.cancel()
        watch.join()
        assert said == f"{line}\n"

    def insist(self, number: signal.Signals) -> None:
        """Send it until the program has gone: signals that come before the first is handled count
        as the same. Each pause is longer, since a signal interrupts the report of the signal before
        it, and on a busy machine the report takes a while.
        """
        pause = 0.02
        while self._process.poll() is None:
            self.signal(number)
            try:
                self._process.wait(pause)
            except subprocess.TimeoutExpired:
                pause *= 2

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def close_errors(self) -> None:
        """Close the pipe to which the program writes its errors."""
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._process.stderr = None

    def wait(self) -> int:
        return self._process.wait(PATIENCE)

    def end(self) -> tuple[int, str, str]:
        out, err = self._process.communicate(timeout=PATIENCE)
        return self._process.returncode, out, err


def test_a_single_signal_ends_a_program_in_order() -> None:
    with Program("polite") as program:
        program.wait_until_it_says("ready")
        program.signal(signal.SIGTERM)
        status, out, err = program.end()

    assert (status, out, err) == (0, "terminate shutdown\nresult None\n", "")


def test_a_second_signal_prints_the_living_processes_and_exits() -> None:
    with Program("stubborn") as program:
        program.wait_until_it_says("ready")
        program.signal(signal.SIGINT)
        program.wait_until_it_says("terminating")
        program.insist(signal.SIGINT)
        status, _, err = program.end()

    assert status == 128 + signal.SIGINT
    assert "still alive on node@localhost" in err
    assert "<Stubborn 'the one' <PID" in err
    assert "stopping in terminate" in err
    assert "<App " in err
    # Where it waits, although no thread is there; and the stacks of the threads, by name.
    assert re.search(r'File "<string>", line \d+, in terminate\n.*, in sleep\n', err, re.DOTALL)
    assert "stack of thread MainThread:" in err


def test_a_second_signal_exits_also_while_a_callback_blocks_the_loop() -> None:
    with Program("blocking") as program:
        program.wait_until_it_says("ready")
        program.insist(signal.SIGINT)
        status, _, err = program.end()

    assert status == 128 + signal.SIGINT
    assert "<Blocking 'the one' <PID" in err
    assert "running in handle_message" in err
    assert "in handle_message\n" in err


def test_a_second_signal_exits_even_if_the_report_cannot_be_written() -> None:
    with Program("stubborn") as program:
        program.wait_until_it_says("ready")
        program.signal(signal.SIGTERM)
        program.wait_until_it_says("terminating")
        program.close_errors()
        program.insist(signal.SIGTERM)
        status = program.wait()

    assert status == 128 + signal.SIGTERM


def test_the_programs_of_ports_do_not_outlive_a_forced_exit(tmp_path: Path) -> None:
    path = tmp_path / "held"
    os.mkfifo(path)
    ended = threading.Event()

    def read() -> None:
        path.read_bytes()  # returns when the program of the port has gone
        ended.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with Program("owner", str(path)) as program:
        program.wait_until_it_says("ready")
        program.insist(signal.SIGHUP)
        status, _, _ = program.end()

    assert status == 128 + signal.SIGHUP
    assert ended.wait(PATIENCE)
    reader.join()
