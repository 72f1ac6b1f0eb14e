"""The examples for TCP and UDP, run as programs and talked to by foreign clients."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ergo_py import ChildSpec, InitError
from examples.tcp.chat import Door as ChatDoor
from examples.tutorial.step4_tcp import Door as TutorialDoor
from examples.tutorial.step5_sessions import Door as SessionsDoor
from examples.udp.statsd import Metrics
from tests.examples.programs import EXAMPLES, ROOT, promised, run_here, running
from tests.meta.wires import until
from tests.support import running_node


class Terminal:
    """The input and output of a user with ``nc`` in a terminal."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.file = self.sock.makefile("rw", encoding="utf-8", newline="\n")

    def type(self, text: str) -> None:
        self.file.write(text + "\n")
        self.file.flush()

    def see(self, text: str) -> str:
        """The next line with ``text`` in it."""
        for line in self.file:
            if text in line:
                return line.rstrip("\n")
        raise AssertionError(f"the connection ended without {text!r}")

    def close(self) -> None:
        self.file.close()
        self.sock.close()


# -- servers that fail -----------------------------------------------------------------------------


@pytest.mark.parametrize("door", [TutorialDoor, SessionsDoor, ChatDoor])
async def test_the_owner_of_a_failed_server_in_an_example_is_restarted(door: Any) -> None:
    async with running_node() as node:
        await node.supervise([ChildSpec("door", door, 0)])
        [server], old = node.metas(), node.whereis("door")

        node.kill(server)
        await until(lambda: node.whereis("door") not in (None, old))

        assert [node.meta_info(alias).behaviour for alias in node.metas()] == ["TCPServer"]


# -- TCP -------------------------------------------------------------------------------------------


def test_the_echo_client_gets_its_lines_back_from_the_echo_server(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running(EXAMPLES / "tcp" / "echo_server.py", 0) as server:
        run_here(EXAMPLES / "tcp" / "echo_client.py", server.port(), "one", "two words", "three")

        assert capsys.readouterr().out == promised("tcp")
        assert server.line().endswith(" is here")
        assert server.line() == "closed by the peer: 20 bytes came, 20 went"
        assert server.interrupt() == 0


def test_the_sum_server_of_the_readme_crashes_comes_back_and_keeps_its_client(
    tmp_path: Path,
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    mark = "<!-- transcript: {} -->\n```text\n".format("the log of the sum server")
    log = readme.partition(mark)[2].partition("\n```")[0].splitlines()
    logged: list[str] = []
    source = (EXAMPLES / "tcp" / "sum_server.py").read_text(encoding="utf-8")
    program = tmp_path / "sum_server.py"
    program.write_text(source.replace("port=7777", "port=0"), encoding="utf-8")
    assert "types `3`, `five` and `4`, and gets `= 3` and `= 4`" in readme

    with running(program) as server:
        terminal = Terminal(server.port())
        terminal.type("3")
        assert terminal.see("= ") == "= 3"
        terminal.type("five")
        while not any("started again" in each for each in logged):
            logged.append(server.line())
        terminal.type("4")
        assert terminal.see("= ") == "= 4"
        terminal.close()
        assert server.interrupt() == 0

    # Without the time of each line; other processes of a busy machine may let the watchdog report.
    plain = [re.sub(r"^\d\d:\d\d:\d\d ", "", each) for each in logged]
    plain = [each.replace(str(tmp_path), "examples/tcp") for each in plain]
    assert [each for each in plain if each in log] == log


def test_the_echo_client_fails_without_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]

    with pytest.raises(InitError):
        run_here(EXAMPLES / "tcp" / "echo_client.py", port)


CHAT = EXAMPLES / "tcp" / "chat.py"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a chat, in which guests of earlier tests may still be."""
    with running(CHAT, 0) as program:
        yield program.port()


def join(port: int, name: str, others: str = "") -> Terminal:
    terminal = Terminal(port)
    terminal.see("what is your name?")
    terminal.type(name)
    terminal.see(f"you are in, {others}")
    return terminal


def test_guests_of_the_chat_see_each_other_come_talk_and_leave() -> None:
    with running(CHAT, 0) as program:
        port = program.port()
        ann, bob = join(port, "ann", "with nobody else"), join(port, "bob", "with ann")

        ann.see("* bob came in")
        bob.type("hello")
        heard = ann.see("hello")
        bob.see("bob: hello")
        bob.type("/quit")
        ann.see("* bob left")

        assert heard == "bob: hello"
        assert bob.file.read() == "* goodbye\n"
        ann.close()
        bob.close()
        assert program.interrupt() == 0


def test_guests_stay_connected_when_the_room_crashes(port: int) -> None:
    fay, gus = join(port, "fay"), join(port, "gus")

    gus.type("/crash")
    gone = [fay.see("the room is gone"), gus.see("the room is gone")]
    fay.see("you are in")
    gus.see("you are in")
    fay.type("still there?")
    heard = gus.see("still there?")
    gus.type("/tree")
    restarted = gus.see("room Room")

    assert all("gus asked for it" in line for line in gone)
    assert heard == "fay: still there?"
    assert "1 restart" in restarted
    fay.close()
    gus.close()


def test_the_chat_shows_a_guest_the_commands(port: int) -> None:
    hal = Terminal(port)
    hal.see("what is your name?")

    hal.type("")
    hal.type("hal")
    welcome = hal.see("you are in, with ")
    hal.type("/help")
    help_text = hal.see("/tree")

    assert "/help" in welcome
    assert all(command in help_text for command in ("/inspect", "/crash", "/quit"))
    hal.close()


def test_a_guest_can_look_inside(port: int) -> None:
    ida = join(port, "ida")

    ida.type("/inspect")
    peer = ida.see("peer:")
    ida.type("/inspect room")
    members = ida.see("members")
    ida.type("/inspect nobody")
    nobody = ida.see("nobody")

    assert peer.endswith(str(ida.sock.getsockname()[1]))
    assert "ida" in members
    assert nobody.endswith("there is nobody of that name")
    ida.close()


def test_a_taken_name_is_refused_and_a_free_name_is_accepted(port: int) -> None:
    jim = join(port, "jim")
    other = Terminal(port)
    other.see("what is your name?")

    other.type("jim")
    refused = other.see("already")
    other.type("kay")

    assert "what is your name?" in refused
    assert "jim" in other.see("you are in, with ")
    jim.close()
    other.close()


def test_an_endless_line_is_cut_off_and_the_chat_continues(port: int) -> None:
    lea = join(port, "lea")
    flooder = Terminal(port)

    flooder.sock.sendall(b"x" * 100_000)
    flooder.close()
    lea.type("undisturbed")

    assert lea.see("undisturbed") == "lea: undisturbed"
    lea.close()


# -- UDP -------------------------------------------------------------------------------------------


def test_the_echo_client_gets_its_words_back(capsys: pytest.CaptureFixture[str]) -> None:
    with running(EXAMPLES / "udp" / "echo_server.py", 0) as server:
        port = server.port()

        run_here(EXAMPLES / "udp" / "echo_client.py", port, "one", "two")

        assert capsys.readouterr().out == promised("udp").replace("7778", str(port))
        assert server.interrupt() == 0


def test_the_udp_client_reports_an_unreachable_server(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]

    run_here(EXAMPLES / "udp" / "echo_client.py", port, "anybody")

    told = capsys.readouterr().out
    assert told == "the peer cannot be reached, or no process listens there\n"


def test_the_collector_starts_and_stops() -> None:
    with running(EXAMPLES / "udp" / "statsd.py", 0) as program:
        port = program.port()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"visits:1|c\nrubbish\n", ("127.0.0.1", port))

        assert program.interrupt() == 0


def test_metrics_are_added_up() -> None:
    metrics = Metrics()

    for line in (
        "visits:1|c",
        "visits:2.5|c",
        "heat:20|g",
        "heat:21|g",
        "answer:1|ms",
        "answer:3|ms",
        "answer:2|ms",
    ):
        metrics.take(line)

    assert metrics.lines() == {"visits": "3.5", "heat": "21 now", "answer": "2 ms, median of 3"}


@pytest.mark.parametrize("line", ["", "visits", "visits:1", "visits:1|x", ":1|c", "visits:one|c"])
def test_an_invalid_metric_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"metric|float"):
        Metrics().take(line)
