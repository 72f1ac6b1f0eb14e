"""The examples for TCP and UDP, run as programs and talked to by foreign clients."""

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ergo_py import ChildSpec
from examples.tcp.chat import Door as ChatDoor
from examples.tutorial.step4_tcp import Door as TutorialDoor
from examples.tutorial.step5_sessions import Door as SessionsDoor
from examples.udp.statsd import Metrics
from tests.examples.programs import EXAMPLES, ROOT, promised, running
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


def client(example: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / example), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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


def test_the_echo_client_gets_its_lines_back_from_the_echo_server() -> None:
    with running(EXAMPLES / "tcp" / "echo_server.py", 0) as server:
        port = server.port()

        said = client("tcp/echo_client.py", port, "one", "two words", "three")

        assert said == promised("tcp")
        assert server.line().endswith(" is here")
        assert server.line() == "closed by the peer: 20 bytes came, 20 went"
        assert server.interrupt() == 0


def shown_in_the_readme(transcript: str) -> list[str]:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (text,) = re.findall(
        rf"<!-- transcript: {transcript} -->\n```text\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE
    )
    return str(text).splitlines()


def test_the_sum_server_of_the_readme_crashes_comes_back_and_keeps_its_client() -> None:
    _, *said = shown_in_the_readme("a client of the sum server")
    log = shown_in_the_readme("the log of the sum server")
    logged: list[str] = []

    with running(EXAMPLES / "tcp" / "sum_server.py", 0) as server:
        terminal = Terminal(server.port())
        for line in said:
            if line.startswith("= "):
                assert terminal.see("= ") == line
                continue
            terminal.type(line)
            while not line.isdigit() and not any("started again" in each for each in logged):
                logged.append(server.line())
        terminal.close()
        assert server.interrupt() == 0

    # Without the time of each line; other processes of a busy machine may let the watchdog report.
    plain = [re.sub(r"^\d\d:\d\d:\d\d ", "", each).replace(f"{ROOT}/", "") for each in logged]
    assert [each for each in plain if each in log] == log


def test_the_echo_client_fails_without_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]

    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "tcp" / "echo_client.py"), str(port)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "InitError" in done.stderr


@pytest.fixture
def chat() -> Path:
    return EXAMPLES / "tcp" / "chat.py"


def join(port: int, name: str) -> Terminal:
    terminal = Terminal(port)
    terminal.see("what is your name?")
    terminal.type(name)
    terminal.see("you are in")
    return terminal


def test_guests_of_the_chat_see_each_other_come_talk_and_leave(chat: Path) -> None:
    with running(chat, 0) as program:
        port = program.port()
        ann, bob = join(port, "ann"), join(port, "bob")

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


def test_guests_stay_connected_when_the_room_crashes(chat: Path) -> None:
    with running(chat, 0) as program:
        port = program.port()
        ann, bob = join(port, "ann"), join(port, "bob")

        bob.type("/crash")
        gone = [ann.see("the room is gone"), bob.see("the room is gone")]
        ann.see("you are in")
        bob.see("you are in")
        ann.type("still there?")
        heard = bob.see("still there?")
        bob.type("/tree")
        restarted = bob.see("room Room")

        assert all("bob asked for it" in line for line in gone)
        assert heard == "ann: still there?"
        assert "1 restart" in restarted
        ann.close()
        bob.close()


def test_the_chat_shows_a_guest_the_commands(chat: Path) -> None:
    with running(chat, 0) as program:
        ann = Terminal(program.port())
        ann.see("what is your name?")

        ann.type("")
        ann.type("ann")
        welcome = ann.file.readline()
        ann.type("/help")
        help_text = ann.file.readline()

        assert welcome.startswith("* you are in, with nobody else")
        assert "/help" in welcome
        assert all(command in help_text for command in ("/tree", "/inspect", "/crash", "/quit"))
        ann.close()


def test_a_guest_can_look_inside(chat: Path) -> None:
    with running(chat, 0) as program:
        port = program.port()
        ann = join(port, "ann")

        ann.type("/inspect")
        peer = ann.see("peer:")
        ann.type("/inspect room")
        members = ann.see("members")
        ann.type("/inspect nobody")
        nobody = ann.see("nobody")

        assert peer.endswith(str(ann.sock.getsockname()[1]))
        assert members.endswith("ann")
        assert nobody.endswith("there is nobody of that name")
        ann.close()


def test_a_taken_name_is_refused_and_a_free_name_is_accepted(chat: Path) -> None:
    with running(chat, 0) as program:
        port = program.port()
        ann = join(port, "ann")
        other = Terminal(port)
        other.see("what is your name?")

        other.type("ann")
        refused = other.see("already")
        other.type("eve")
        other.see("you are in, with ann")

        assert "what is your name?" in refused
        ann.close()
        other.close()


def test_an_endless_line_is_cut_off_and_the_chat_continues(chat: Path) -> None:
    with running(chat, 0) as program:
        port = program.port()
        ann = join(port, "ann")
        flooder = Terminal(port)

        flooder.sock.sendall(b"x" * 100_000)
        flooder.close()
        ann.type("undisturbed")

        assert ann.see("undisturbed") == "ann: undisturbed"
        ann.close()


# -- UDP -------------------------------------------------------------------------------------------


def test_the_echo_client_gets_its_words_back() -> None:
    with running(EXAMPLES / "udp" / "echo_server.py", 0) as server:
        port = server.port()

        said = client("udp/echo_client.py", port, "one", "two")

        assert said == promised("udp").replace("7778", str(port))
        assert server.interrupt() == 0


def test_the_udp_client_reports_an_unreachable_server() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]

    assert (
        client("udp/echo_client.py", port, "anybody")
        == "the peer cannot be reached, or no process listens there\n"
    )


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
