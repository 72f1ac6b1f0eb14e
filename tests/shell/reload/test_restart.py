"""``ergo run --reload``: a program starts again after a change of a file."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ergo_py._core.runtime.bridge import Parker
from ergo_py.shell.exit_codes import Leave, Status
from ergo_py.shell.reload.restart import Restart
from ergo_py.shell.reload.source_files import SourceFiles
from tests.meta.test_inherited_sockets import by_hand
from tests.support import loopback_of_this_program

PROGRAM = """
import trio
from ergo_py.meta.inherited_sockets import inherited_sockets

async def main(node):
    with inherited_sockets().open("echo") as sock:
        print("{text}", sock.getsockname()[1], flush=True)
    try:
        await trio.sleep_forever()
    finally:
        print("ends", flush=True)
"""

BLOCKED = """
import sys, time, signal
import trio
from ergo_py import Actor

class Sleeper(Actor):
    def handle_message(self, message, sender):
        print("{text}", len(signal.pthread_sigmask(signal.SIG_BLOCK, ())), flush=True)
        print("this text is buffered")
        if "{text}" == "one":
            time.sleep(1000)

async def main(node):
    node.send(await node.spawn(Sleeper, name="sleeper"), "sleep")
    await trio.sleep_forever()
"""


class Looks(SourceFiles):
    """The test lists the looks at a file: None, or the new text of the file."""

    def __init__(self, path: Path, *texts: str | None) -> None:
        super().__init__({})
        self._path = path
        self._texts = iter(texts)

    def changed(self) -> list[str]:
        text = next(self._texts, None)
        if text is None:
            return []
        self._path.write_text(text, encoding="utf-8")
        return [str(self._path)]


def restart(path: Path, *texts: str | None) -> Restart:
    return Restart(Looks(path, *texts), period=0.001)


def serve(loaded: Callable[[], None]) -> Status:
    """Run until SIGTERM, like `ergo_py.run`."""
    stop: Parker[None] = Parker()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.settle(None))
    loaded()
    stop.wait(None)
    signal.signal(signal.SIGTERM, before)
    return Status.DONE


def test_a_change_stops_the_program_which_starts_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.py"

    assert restart(path, None, None, "a = 1", "a = 2").run(serve) is None

    assert capsys.readouterr().err.count("program.py has changed\n") == 1


def test_a_program_goes_on_while_its_file_is_no_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.py"

    deep = "a = " + "(" * 5000
    assert restart(path, None, "def", "\0", deep, "a = 1").run(serve) is None

    told = capsys.readouterr().err
    assert told.index("SyntaxError: ") < told.index("program.py has changed")
    assert told.count("ergo: program.py is no Python now, so nothing is started again\n") == 3
    assert path.read_text(encoding="utf-8") == "a = 1"


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_broken_file_keeps_a_program_running_while_others_change(
    is_removed: bool, tmp_path: Path
) -> None:
    broken, other = tmp_path / "broken.py", tmp_path / "other.py"
    looks = iter([("def", ""), ("", "a = 1"), ("def", "a = 2"), ("a = 1", "")])

    class Both(SourceFiles):
        def changed(self) -> list[str]:
            texts = next(looks, None)
            if texts is None:
                other.write_text("a = 3", encoding="utf-8")
                return [str(other)]
            changed = [(p, t) for p, t in zip((broken, other), texts, strict=True) if t]
            for path, text in changed:
                path.write_text(text, encoding="utf-8")
            if is_removed and texts == ("a = 1", ""):
                broken.unlink()
            return [str(path) for path, _ in changed]

    assert Restart(Both({}), period=0.001).run(serve) is None

    assert other.read_text(encoding="utf-8") == ("a = 3" if is_removed else "a = 2")


def test_a_compiler_that_runs_out_of_memory_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise MemoryError

    monkeypatch.setattr("builtins.compile", fail)

    assert restart(tmp_path / "program.py", None, "a = 1", "a = 2").run(serve) is None


def test_a_folder_that_comes_starts_a_program_again_that_has_missed_it(tmp_path: Path) -> None:
    class Come(SourceFiles):
        def changed(self) -> list[str]:
            return [str(tmp_path)]

    def fail(_loaded: Callable[[], None]) -> Status:
        raise Leave(Status.FAILED, "it could not be imported")

    assert Restart(Come({}), period=0.001).run(fail) is None


def test_a_file_that_vanishes_again_is_no_change(tmp_path: Path) -> None:
    class Vanishing(Looks):
        def changed(self) -> list[str]:
            found = super().changed()
            if found and self._path.read_text(encoding="utf-8") == "":
                self._path.unlink()
            return found

    path = tmp_path / "program.py"

    assert Restart(Vanishing(path, None, "", "a = 1"), period=0.001).run(serve) is None

    assert path.exists()


def test_a_program_that_ends_by_itself_does_not_start_again(tmp_path: Path) -> None:
    def end(loaded: Callable[[], None]) -> Status:
        loaded()
        return Status.DONE

    assert restart(tmp_path / "program.py").run(end) is Status.DONE


def test_a_program_that_fails_waits_for_the_next_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_loaded: Callable[[], None]) -> Status:
        raise Leave(Status.FAILED, "it could not be imported")

    looks = [None] * 50  # a program without the wait would have ended by then

    assert restart(tmp_path / "program.py", *looks, "a = 1").run(fail) is None

    told = capsys.readouterr().err
    assert "ergo: it could not be imported\n" in told
    assert "ergo: waiting for a change of its files\n" in told


def test_a_change_before_the_program_handles_signals_starts_it_again(tmp_path: Path) -> None:
    def start_slowly(loaded: Callable[[], None]) -> Status:
        loaded()
        Parker[None]().wait(None)
        raise AssertionError("the signal was not handled")

    assert restart(tmp_path / "program.py", None, "a = 1").run(start_slowly) is None


def test_sigterm_ends_a_program_that_is_not_loaded_yet(tmp_path: Path) -> None:
    def load(_loaded: Callable[[], None]) -> Status:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the signal was not handled")

    with pytest.raises(SystemExit) as ended:
        restart(tmp_path / "program.py").run(load)
    assert ended.value.code == 128 + signal.SIGTERM


def test_the_next_start_knows_the_files_of_which_this_start_has_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed = list[dict[str, str]]()
    monkeypatch.setattr(os, "execve", lambda _path, _argv, environ: executed.append(environ))
    monkeypatch.delenv("ERGO_WRITTEN", raising=False)
    told = {str(tmp_path / "a:b.py"), str(tmp_path / "ä.py")}
    files = SourceFiles({})
    files.written.update(told)

    Restart(files).execute()

    (environ,) = executed
    monkeypatch.setenv("ERGO_WRITTEN", environ["ERGO_WRITTEN"])
    following = SourceFiles({})
    Restart(following)
    assert following.written == told
    assert "ERGO_WRITTEN" not in os.environ


def test_a_process_executes_its_command_again_with_its_sockets(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(text="one"), encoding="utf-8")
    command = [sys.executable, "-m", "ergo_py", "run", "--reload", str(program)]

    with by_hand((loopback_of_this_program(), 7780), command) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "one 7780\n"
        program.write_text(PROGRAM.format(text="two"), encoding="utf-8")
        assert process.stdout.readline() == "ends\n"
        assert process.stdout.readline() == "two 7780\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "ends\n"
        assert process.wait() == Status.DONE


def test_a_program_with_a_blocked_loop_starts_again(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(BLOCKED.format(text="one"), encoding="utf-8")
    command = [sys.executable, "-m", "ergo_py", "run", "--reload", "--log-level", "off"]

    with subprocess.Popen(
        [*command, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        limit = threading.Timer(90, process.kill)
        limit.start()
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "one 0\n"
            program.write_text(BLOCKED.format(text="two"), encoding="utf-8")
            assert process.stdout.readline() == "this text is buffered\n"
            assert process.stdout.readline() == "two 0\n"
            process.send_signal(signal.SIGINT)
            assert process.wait() == Status.DONE
            told = process.stderr.read()
        finally:
            limit.cancel()
            process.kill()

    assert "program.py has changed" in told
    assert "handle_message of sleeper <PID" in told
    assert f'blocks the loop at File "{program}", line 11, in handle_message, so' in told
