"""The prompt in a real terminal: for a node of its own, and for a node in another program that
notices nothing.
"""

import re
import socket
import stat
import subprocess
from pathlib import Path

from ergo_py.blocking.loop_thread import open_node
from tests.actors import Recorder
from tests.shell.terminal import ERGO, ROOT, at_terminal, background

FIND = "alias = next(a for a in node.metas() if node.meta_info(a).behaviour == 'TCPConnection')"


def until(process: "subprocess.Popen[str]", text: str) -> str:
    """The next line with ``text`` in it."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"the program ended without {text!r}")


def test_a_user_inspects_a_connection_of_the_demo_without_disturbing_it() -> None:
    with background(
        "run", "--control", "look,attach", "examples.demo:main", DEMO_SECONDS="60"
    ) as demo:
        until(demo, "Now it is your turn")
        port = int(re.findall(r"\d+", until(demo, "nc 127.0.0.1"))[-1])
        with (
            at_terminal("attach", "--plain", "demo") as terminal,
            socket.create_connection(("127.0.0.1", port), 20) as guest,
        ):
            words = guest.makefile("rw", newline="\n")
            assert "name?" in words.readline()
            banner = terminal.wait_for(">>> ")
            found = terminal.ask(FIND)
            facts = terminal.ask("await node.inspect_meta(alias)")
            before = terminal.ask("node.info().spawned")
            # Tab completes names that are known there only.
            terminal.ask("found_by_tab = 1")
            terminal.type("found_by\t")
            terminal.wait_for("found_by_tab")
            terminal.interrupt()
            # Ctrl-C interrupts the input, there as well.
            terminal.type("print('waiting'); await trio.sleep_forever()\n")
            terminal.wait_for("waiting\n")
            terminal.type("\x03")
            terminal.wait_for("KeyboardInterrupt\n>>> ")
            assert terminal.ask("6 * 7") == "42\n"
            # Something is left unfinished when the terminal is closed.
            terminal.ask("left_behind = 5")
            terminal.type("print('waiting'); await trio.sleep_forever()\n")
            terminal.wait_for("waiting\n")
            terminal.process.kill()
            terminal.process.wait()

            # The guest is still being served, by the same session.
            words.write("carl\n")
            words.flush()
            assert "you are in" in words.readline()

        with at_terminal("attach", "--plain", "demo") as terminal:
            terminal.wait_for(">>> ")
            forgotten = terminal.ask("left_behind")
            after = terminal.ask("node.info().crashed")
            terminal.type("\x04")
            status = terminal.status()
        assert demo.poll() is None

    assert f"attached to demo@localhost, program {demo.pid}" in banner
    assert found == ""
    assert facts.startswith("{'local': '127.0.0.1:")
    assert "'reader': 'thread'" in facts
    assert int(before) > 5
    assert "NameError" in forgotten
    # The crashed process is the room, as the demonstration wants it.
    assert after == "1\n"
    assert status == 0
    assert demo.returncode == 0


def test_a_shell_runs_a_program_on_its_own_node(runtime_directory: Path) -> None:
    with at_terminal("shell", "--plain", "examples/tcp/echo_server.py", "0") as terminal:
        begin = terminal.wait_for(">>> ")
        port = int(re.findall(r"listening at 127\.0\.0\.1:(\d+)", begin)[0])
        with socket.create_connection(("127.0.0.1", port), 20) as peer:
            peer.sendall(b"hello")
            assert peer.recv(5) == b"hello"
            terminal.ask(FIND)
            facts = terminal.ask("await node.inspect_meta(alias)")
        # The program writes to the same terminal.
        terminal.wait_for("5 bytes came, 5 went\n")
        shown = terminal.ask("ps()")

        # Tab completes, Ctrl-C takes an input back, and interrupts an input that waits.
        terminal.type("node.inspect_m\t")
        terminal.wait_for("node.inspect_meta(")
        terminal.interrupt()
        terminal.type("print('waiting'); await trio.sleep_forever()\n")
        terminal.wait_for("waiting\n")
        terminal.type("\x03")
        terminal.wait_for("KeyboardInterrupt\n>>> ")

        # A block ends with an empty line; a mistake is explained; the names of the program are
        # there.
        terminal.type("for number in range(2):\n    print('number', number)\n\n")
        terminal.wait_for("number 0\nnumber 1\n>>> ")
        mistake = terminal.ask("1 +* 2")
        name = terminal.ask("Echo.__name__")
        # Arrow up brings the last input back.
        terminal.type("\x1b[A\n")
        terminal.wait_for("'Echo'\n>>> ")
        terminal.type("exit\n")
        terminal.wait_for("node down in")
        status = terminal.status()

    assert "echo_server@localhost is up" in begin
    assert "'bytes in': '5'" in facts
    assert "echo  Echo" in shown
    assert "SyntaxError: invalid syntax" in mistake
    assert name == "'Echo'\n"
    assert status == 0
    history = runtime_directory / ".local" / "state" / "ergo" / "history"
    assert "await node.inspect_meta(alias)" in history.read_text(encoding="utf-8")
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_inputs_may_come_from_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("async def main(node):\n    raise ValueError('early')\n")

    done = subprocess.run(
        [*ERGO, "shell", f"{tmp_path}/program.py"],
        input=(
            "x = 20\nx + 1\n"
            "for _ in range(2):\n    print(await node.call('nobody', 1))\n\nnode.name\n"
        ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "ValueError: early\nmain has failed; the node keeps running\n21\n" in done.stdout
    assert "TargetDownError" in done.stdout
    assert "'program@localhost'\nnode down in" in done.stdout
    assert ">>>" not in done.stdout


def test_kill_asks_for_confirmation() -> None:
    statuses = []
    with open_node("victim@here", control="look,act", log_output="none", watchdog=None) as node:
        node.spawn(Recorder, name="poor")
        for answer, says in (("n", "nothing was done"), ("y", "killed")):
            with at_terminal("kill", "victim", "poor") as terminal:
                terminal.wait_for("kill poor Recorder")
                terminal.wait_for("[y/N] ")
                terminal.type(f"{answer}\n")
                terminal.wait_for(says)
                statuses.append(terminal.status())

    assert statuses == [7, 0]
