"""A program under systemd: the tests are its manager, with a socket of their own."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from ergo_py import Actor, Node, NotAllowedError, run
from ergo_py.service_manager import ServiceManager, StartStatus
from examples.guide import service_program
from tests.support import short_directory


class Manager:
    """The manager of a service: it receives what the program tells."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.setblocking(False)

    def heard(self) -> list[str]:
        """The datagrams since the last time."""
        found = []
        while True:
            try:
                found.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return found


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    """A manager, at a path and under an abstract name."""
    with short_directory() as place:
        made = Manager(f"@{place}" if request.param == "abstract" else str(place / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", made.address)
        with closing(made.socket):
            yield made


UP, STOPS = "READY=1\nSTATUS=a@test is up", "STOPPING=1\nSTATUS=a@test stops"


def test_a_main_function_is_up_at_once(manager: Manager) -> None:
    async def main(node: Node) -> list[str]:
        return manager.heard()

    assert run(main, name="a@test") == [UP]
    assert manager.heard() == [STOPS]


def test_a_main_function_with_a_task_status_is_up_when_it_says_so(manager: Manager) -> None:
    async def main(
        node: Node, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> tuple[list[str], list[str]]:
        before = manager.heard()
        task_status.started()
        return before, manager.heard()

    assert run(main, name="a@test") == ([], [UP])
    assert manager.heard() == [STOPS]


def test_the_program_of_the_page_is_up_when_its_server_listens(manager: Manager) -> None:
    async def main(
        node: Node, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(service_program.main, node)
            assert len(node.metas()) == 1  # the server
            task_status.started()
            nursery.cancel_scope.cancel()

    run(main, name="a@test")

    assert manager.heard() == [UP, STOPS]


def test_a_behaviour_is_up_when_its_init_has_returned(manager: Manager) -> None:
    heard: list[list[str]] = []

    class App(Actor):
        async def init(self) -> None:
            await trio.lowlevel.checkpoint()
            heard.append(manager.heard())
            self.send(self.pid, "end")

        def handle_message(self, message: object, sender: object) -> None:
            self.stop()

    run(App, name="a@test")

    assert heard == [[]]
    assert manager.heard() == [UP, STOPS]


def test_a_program_that_fails_to_start_is_never_up(manager: Manager) -> None:
    async def main(
        node: Node, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        raise LookupError("no settings")

    with pytest.raises(LookupError, match="no settings"):
        run(main, name="a@test")

    assert manager.heard() == [STOPS]


def test_a_node_that_stops_says_so_before_its_processes_end(manager: Manager) -> None:
    heard: list[str] = []

    class Last(Actor):
        async def terminate(self, reason: object) -> None:
            heard.extend(manager.heard())

    async def main(node: Node) -> None:
        await node.spawn(Last)
        node.stop()
        await trio.sleep_forever()

    run(main, name="a@test")

    assert heard == [UP, STOPS]


def test_a_start_that_is_said_twice_is_refused() -> None:
    status = StartStatus(lambda: None)
    status.started()
    with pytest.raises(NotAllowedError, match="call it once"):
        status.started()


async def test_the_loop_reports_twice_within_the_time_of_the_watchdog(
    manager: Manager, autojump_clock: MockClock
) -> None:
    environ = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "30000000"}
    with closing(ServiceManager(environ)) as found:
        with trio.move_on_after(59):
            await found.watch_loop()

    assert manager.heard() == ["WATCHDOG=1"] * 4  # at 0, 15, 30 and 45


def test_a_program_reports_to_its_watchdog_and_a_blocked_loop_does_not(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")

    async def main(node: Node) -> tuple[list[str], list[str]]:
        reports: list[str] = []
        while reports.count("WATCHDOG=1") < 3:
            reports += manager.heard()
            await trio.sleep(0.01)
        manager.heard()
        threading.Event().wait(0.1)  # the loop blocks
        return reports, manager.heard()

    heard = run(main, name="a@test")

    assert heard is not None
    assert heard[1] == []


@pytest.mark.parametrize(
    "environ, seconds",
    [
        ({}, None),
        ({"WATCHDOG_USEC": "1500000"}, 1.5),
        ({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": ""}, None),
    ],
)
def test_the_time_of_the_watchdog(environ: dict[str, str], seconds: float | None) -> None:
    assert ServiceManager(environ).watchdog == seconds


async def test_without_a_watchdog_nothing_is_reported(manager: Manager) -> None:
    with closing(ServiceManager({"NOTIFY_SOCKET": manager.address})) as found:
        await found.watch_loop()
    assert manager.heard() == []


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative/path"])
def test_without_a_socket_of_a_manager_nothing_is_told(address: str) -> None:
    with closing(ServiceManager({"NOTIFY_SOCKET": address})) as found:
        assert not found.tell("READY=1")


def test_a_manager_that_has_ended_stops_no_program(tmp_path: Path) -> None:
    with closing(ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")})) as found:
        assert not found.tell("READY=1")


def test_a_manager_without_room_is_not_waited_for(manager: Manager) -> None:
    with closing(ServiceManager({"NOTIFY_SOCKET": manager.address})) as found:
        for _ in range(100_000):
            if not found.tell("STATUS=" + "x" * 1000):
                break
        else:
            pytest.fail("the socket takes any number of datagrams")


def test_an_odd_text_is_told_all_the_same(manager: Manager) -> None:
    with closing(ServiceManager({"NOTIFY_SOCKET": manager.address})) as found:
        assert found.tell("STATUS=\ud800")
    assert manager.heard() == ["STATUS=?"]


def test_sighup_of_a_manager_reloads(manager: Manager) -> None:
    class Setting(Actor):
        def handle_reload(self) -> None:
            if len(heard) >= 2:  # the second reload
                raise ValueError("no number")

    async def reload(end: str) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        while not heard or not heard[-1].endswith(end):
            await trio.lowlevel.checkpoint()
            heard.extend(manager.heard())

    async def main(node: Node) -> None:
        await node.spawn(Setting)
        manager.heard()
        await reload("is up")
        await reload("could not be read")

    heard: list[str] = []
    run(main, name="a@test", log_output="none")

    assert [text.split("\n")[0] for text in heard] == ["RELOADING=1", "READY=1"] * 2
    assert heard[3] == "READY=1\nSTATUS=a@test 1 settings could not be read"


@pytest.mark.parametrize("manager", ["path"], indirect=True)
def test_a_program_that_a_program_starts_does_not_speak_for_it(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    child = "import os; print([n for n in os.environ if n.startswith(('NOTIFY_', 'WATCHDOG_'))])"

    async def main(node: Node) -> bytes:
        return (await trio.run_process([sys.executable, "-c", child], capture_stdout=True)).stdout

    for _ in range(2):  # a second run in the same process has the same manager
        found = run(main, name="a@test")
        assert found is not None
        assert found.strip() == b"[]"
        assert [text for text in manager.heard() if text != "WATCHDOG=1"] == [UP, STOPS]


async def some_turns() -> None:
    """Let the loop handle a signal that has come."""
    for _ in range(50):
        await trio.lowlevel.checkpoint()


class Reloading(Actor):
    """Its reload waits."""

    begun: trio.Event
    go_on: trio.Event
    count: int

    @classmethod
    def begin(cls) -> None:
        cls.begun, cls.go_on, cls.count = trio.Event(), trio.Event(), 0

    async def handle_reload(self) -> None:
        type(self).count += 1
        self.begun.set()
        await self.go_on.wait()


def kinds(texts: list[str]) -> list[str]:
    return [text.partition("=")[0] for text in texts]


def test_a_reload_before_the_program_is_up_does_not_say_that_it_is(manager: Manager) -> None:
    async def main(
        node: Node, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        Reloading.begin()
        await node.spawn(Reloading)
        os.kill(os.getpid(), signal.SIGHUP)
        await Reloading.begun.wait()
        Reloading.go_on.set()
        await some_turns()
        assert manager.heard() == []
        task_status.started()

    run(main, name="a@test")

    assert manager.heard() == [UP, STOPS]


def test_a_reload_that_ends_while_the_program_stops_says_nothing(
    manager: Manager,
) -> None:
    async def main(node: Node) -> None:
        Reloading.begin()
        await node.spawn(Reloading)
        os.kill(os.getpid(), signal.SIGHUP)
        await Reloading.begun.wait()
        node.stop()
        try:
            await trio.sleep_forever()
        finally:
            Reloading.go_on.set()

    run(main, name="a@test")

    assert kinds(manager.heard()) == ["READY", "RELOADING", "STOPPING"]


def test_sighup_to_a_program_that_stops_reloads_nothing(manager: Manager) -> None:
    class Last(Reloading):
        async def terminate(self, reason: object) -> None:
            os.kill(os.getpid(), signal.SIGHUP)
            await some_turns()

    async def main(node: Node) -> None:
        Last.begin()
        await node.spawn(Last)

    run(main, name="a@test")

    assert manager.heard() == [UP, STOPS]
    assert Last.count == 0


def test_of_reloads_upon_each_other_the_last_says_that_the_program_is_up(
    manager: Manager,
) -> None:
    async def main(node: Node) -> None:
        Reloading.begin()
        await node.spawn(Reloading)
        os.kill(os.getpid(), signal.SIGHUP)
        await Reloading.begun.wait()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
            await some_turns()
        Reloading.go_on.set()
        await some_turns()
        assert kinds(manager.heard()) == ["READY", "RELOADING", "RELOADING", "READY"]
        assert Reloading.count == 2  # both that came meanwhile are one

    run(main, name="a@test")
