"""``ergo top`` on a busy node, in a real terminal that changes its size."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import pytest
import trio

from ergo_py import Actor, Node
from ergo_py.blocking.loop_thread import open_node
from tests.actors import Recorder
from tests.shell.terminal import ROOT, Terminal, at_terminal


class Spinner(Actor):
    """Sends to itself forever, with a breath in between, and to a slow process with a mailbox that
    grows.
    """

    def init(self) -> None:
        self.send(self.pid, 1)

    def handle_message(self, message: int, sender: object) -> None:
        if message % 100:
            self.send(self.pid, message + 1)
        else:
            self.send_after(0.002, self.pid, message + 1)
            self.send("heap", message)


class Heap(Actor):
    async def handle_message(self, message: object, sender: object) -> None:
        await trio.sleep(60)


async def populate(node: Node) -> None:
    await node.spawn(Heap, name="heap", shutdown=0)
    await node.spawn(Spinner, name="spinner")
    for number in range(30):
        await node.spawn(Recorder, name=f"idle-{number}")


@pytest.fixture
def busy() -> Iterator[None]:
    with open_node("busy@here", control="look", log_output="none", watchdog=None) as node:
        node.run(populate)
        yield


WITHOUT_RICH = (
    "import sys; sys.modules['rich'] = None; from ergo_py.shell.cli import main; "
    "sys.exit(main(sys.argv[1:]))"
)


def frame(terminal: Terminal, mark: str, first: str) -> str:
    """The screen once this process comes first; a busy machine may let no process work for a while,
    and show others before.
    """
    terminal.wait_for(mark)
    shown = ""
    for _ in range(300):
        shown = terminal.wait_for(mark)
        if shown.splitlines()[2].split()[1] == first:
            return shown
    raise AssertionError(f"{first} did not come first:\n{shown}")


@pytest.mark.parametrize("has_rich", [True, False], ids=["rich", "plain"])
def test_the_busiest_processes_come_first_and_keys_choose_the_order(
    busy: None, has_rich: bool
) -> None:
    if has_rich:
        pytest.importorskip("rich", reason="needs the package rich")
    arguments = ["top", "busy", "--plain", "--interval", "0.1"]
    command = None if has_rich else ["-W", "error", "-c", WITHOUT_RICH, *arguments]
    with at_terminal(*arguments, command=command, lines=12, columns=100) as terminal:
        by_mailbox = frame(terminal, "now mailbox", "heap")
        terminal.type("r")
        by_rate = frame(terminal, "now rate", "spinner")
        terminal.type("t")
        by_time = frame(terminal, "now time", "heap")
        terminal.type("i")
        by_id = frame(terminal, "now id", "heap")
        terminal.type("q")
        status = terminal.status()
    with at_terminal("top", "busy", "--plain", "--interval", "5") as interrupted:
        interrupted.wait_for("now mailbox")
        interrupted.type("\x03")
        status_of_ctrl_c = interrupted.status()

    assert ["↓" in shown for shown in (by_mailbox, by_rate, by_time, by_id)] == [
        True,
        True,
        True,
        False,
    ]
    # Only rich has colours for states.
    assert ("\x1b[32mrunning" in terminal.raw) == has_rich
    assert "busy@here (program" in by_rate
    assert int(by_rate.splitlines()[2].split()[6]) > 0
    assert status == 0
    # The screen, the cursor and the keys are given back; after Ctrl-C, too.
    assert terminal.raw.rstrip().endswith("\x1b[?25h\x1b[?1049l")
    assert status_of_ctrl_c == 130
    assert "Traceback" not in interrupted.text
    assert interrupted.raw.rstrip().endswith("\x1b[?25h\x1b[?1049l")


class Tmux:
    """A terminal that can be looked at, as a person does: only the visible screen counts."""

    def __init__(self, directory: Path) -> None:
        self._command = ["tmux", "-u", "-S", str(directory / "tmux"), "-f", "/dev/null"]

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._command, *arguments],
            capture_output=True,
            encoding="utf-8",
            timeout=100,
            check=False,
        )
        return done.stdout

    def screen(self) -> list[str]:
        return self("capture-pane", "-p").splitlines()

    def wait_for(self, text: str, seconds: float = 100.0) -> list[str]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            screen = self.screen()
            if any(text in line for line in screen):
                return screen
            time.sleep(0.05)
        raise AssertionError(f"{text!r} did not appear:\n" + "\n".join(self.screen()))


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_the_table_fits_a_terminal_of_any_size(busy: None, runtime_directory: Path) -> None:
    # The screen shows the short command that was typed, however long the path of the checkout is.
    (runtime_directory / "watch").write_text(
        f"cd {quote(str(ROOT))}\n"
        f"export PYTHONPATH={quote(str(ROOT))} PYTHONIOENCODING=utf-8 "
        f"XDG_RUNTIME_DIR={quote(str(runtime_directory))}\n"
        f"exec {quote(sys.executable)} -m ergo_py top busy --plain --interval 600\n",
        encoding="utf-8",
    )
    tmux = Tmux(runtime_directory)
    tmux("new-session", "-d", "-x", "100", "-y", "24", "-c", str(runtime_directory), "exec sh")
    try:
        tmux("send-keys", "sh watch; echo status $?", "Enter")
        large = tmux.wait_for("q quit")
        # Nothing but the new size makes it draw again.
        tmux("resize-window", "-x", "60", "-y", "10")
        small = tmux.wait_for("sorted by: m mailbox, r messages/s, l load, w wors…")
        tmux("send-keys", "q")
        after = tmux.wait_for("status 0")
    finally:
        tmux("kill-server")

    assert len(large) == 24
    assert sum("Recorder" in line for line in large) == 19
    assert large[1].split()[:3] == ["ID", "NAME", "BEHAVIOUR"]
    assert "q quit" in large[23]
    assert len(small) == 10
    assert "q quit" in small[9]
    assert sum("Recorder" in line for line in small) == 5
    # The earlier content of the screen is there again.
    assert any("sh watch" in line for line in after)
