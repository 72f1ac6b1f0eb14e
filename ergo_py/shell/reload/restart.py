"""`Restart`: starts a program again when one of its files changes. For ``ergo run --reload``.

The program stops gracefully, and then its process executes the same command again: a terminal, a
debugger and a service manager see the same process, with the sockets that it was given. If a
callback blocks the loop, the thread that watches the files executes the command.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Final, NoReturn

from ..._core.inspection.watchdog import look_at_loop, of_program, run_times, was_starved
from ..._core.runtime.bridge import Parker, ReaderThread, bridge_in, get_ident
from ..._core.vocabulary.errors import NodeStoppedError
from ..._core.vocabulary.info import BlockedReport
from ...meta.inherited_sockets import inherited_sockets
from ...meta.programs.process_groups import kill_groups
from ..exit_codes import Leave, Status
from ..output import complain
from .source_files import SourceFiles

__all__ = ["Restart"]

_WRITTEN: Final = "ERGO_WRITTEN"
"""The variable with the files that a start has told of, for the next start."""
_PERIOD: Final = 0.1
"""Seconds between two looks at the files: a developer does not notice the delay."""
_GRACE: Final = 3.0
"""Seconds after which a loop that does not answer counts as blocked. A graceful shutdown, which may
take longer, goes on while the loop answers.
"""
_FLUSH: Final = 1.0
"""Seconds to write the buffered output, for which the blocked callback may hold the lock."""


class _ChangedError(BaseException):
    """A file has changed before the program has begun. Not for handlers of the program."""


class Restart:
    """Watches the files of a program while it runs, and after it has failed.

    Args:
        files: the files of the program.
        period: seconds between two looks at them.
        grace: seconds that the loop may take to answer before a callback counts as blocking it.
    """

    def __init__(self, files: SourceFiles, period: float = _PERIOD, grace: float = _GRACE) -> None:
        self._files = files
        self._grace = grace
        files.know(json.loads(os.environ.pop(_WRITTEN, "") or "[]"))
        self._period = period
        self._environ = dict(os.environ)
        """The environment of the first start, which the program may change."""
        self._directory = os.getcwd()
        """The directory of the first start, likewise."""
        self._broken: list[str] = []
        """The files that have changed and are no Python."""
        self._main = get_ident()
        """The thread of the program."""
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        """The signals that this thread blocks: a program inherits those of the thread that executes
        it.
        """
        self._is_running = False
        """The program is loaded, and has not ended."""
        self._has_changed = False
        """A file has changed: the program starts again."""
        self._change: Parker[None] = Parker()
        """Ends the wait of a program that has failed."""
        self._over: Parker[None] = Parker()
        """The program is over: no file is watched any more."""
        self._unwatched: Parker[None] = Parker()
        """The watching thread is at its end."""
        self._thread: ReaderThread | None = None

    def run(self, program: Callable[[Callable[[], None]], Status]) -> Status | None:
        """Run a program, which calls the function that it gets when it is loaded. Returns its
        status; None if it is to start again.
        """
        before = signal.signal(signal.SIGTERM, self._terminate)
        try:
            status = self._run(program)
            if status is not Status.DONE and not self._has_changed:
                self._begin()
                complain("ergo: waiting for a change of its files")
                self._change.wait(None)
            return None if self._has_changed else status
        finally:
            self._over.settle(None)
            if self._thread is not None:
                # A signal that it is about to send must not reach the next program.
                self._unwatched.wait(None)
            signal.signal(signal.SIGTERM, before)

    def execute(self) -> NoReturn:
        """Execute the command of this process again."""
        _flush()
        self._execute()

    def _execute(self) -> NoReturn:
        os.chdir(self._directory)
        inherited_sockets().pass_on()
        self._environ[_WRITTEN] = json.dumps(sorted(self._files.written))
        os.execve(sys.executable, sys.orig_argv, self._environ)

    def _run(self, program: Callable[[Callable[[], None]], Status]) -> Status:
        try:
            return program(self._loaded)
        except _ChangedError:
            return Status.DONE
        except Leave as leave:
            self._files.add_failed(leave.__context__)
            complain(f"ergo: {leave.text}")
            return leave.status
        finally:
            self._is_running = False

    def _loaded(self) -> None:
        self._is_running = True
        self._begin()

    def _begin(self) -> None:
        """Watch the files, once the program is loaded or has failed."""
        if self._thread is None:
            self._files.note_loaded()
            self._thread = ReaderThread("ergo-reload-0", self._watch)
            self._thread.start()

    def _watch(self) -> None:
        try:
            while not (self._has_changed or self._over.wait(self._period)):
                path = self._startable()
                if path is not None:
                    complain(f"ergo: {os.path.relpath(path, self._directory)} has changed")
                    self._has_changed = True
                    self._change.settle(None)
                    if self._is_running:
                        # As a service manager does: `run` begins the graceful shutdown.
                        signal.pthread_kill(self._main, signal.SIGTERM)
                        self._see_to_stop()
        finally:
            self._unwatched.settle(None)

    def _see_to_stop(self) -> None:
        """Wait until the program has stopped. If a callback blocks its loop, execute the command
        again from this thread: the shutdown would begin only when that callback has returned.
        """
        while not self._over.wait(self._period):
            bridge = bridge_in(self._main)
            if bridge is None:  # the node is not open, or down
                continue
            answer: Parker[None] = Parker()
            before = run_times(self._main)
            try:
                bridge.post(answer.settle, None)
            except NodeStoppedError:
                continue
            if answer.wait(self._grace) or was_starved(before, run_times(self._main)):
                continue
            report = look_at_loop(bridge, self._grace)
            if report is not None and self._is_running:
                complain(_why_at_once(report))
                self._execute_at_once()

    def _execute_at_once(self) -> NoReturn:
        """Execute the command while the thread of the program is inside a callback, as if the
        program had been killed.
        """
        kill_groups()
        flushed: Parker[None] = Parker()

        def flush() -> None:
            _flush()
            flushed.settle(None)

        ReaderThread("ergo-reload-1", flush).start()
        flushed.wait(_FLUSH)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        self._execute()

    def _startable(self) -> str | None:
        """A file that has changed; None if there is none, or if a changed file is no Python: the
        program would not start again.
        """
        changed = self._files.changed()
        if not changed:
            return None
        verdicts = {path: _has_syntax(path) for path in dict.fromkeys([*self._broken, *changed])}
        self._broken = [path for path, verdict in verdicts.items() if verdict is False]
        return None if self._broken else next(filter(verdicts.get, changed), None)

    def _terminate(self, number: int, _frame: FrameType | None) -> None:
        """Handle SIGTERM while `run` does not: before the program has begun, or after its end."""
        if not self._has_changed:
            raise SystemExit(128 + number)
        if self._is_running:
            raise _ChangedError


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _why_at_once(report: BlockedReport) -> str:
    who = "the program"
    if report.process is not None:
        who = f"{report.name or report.behaviour} {report.process}"
        if report.callback is not None:
            who = f"{report.callback} of {who}"
    lines = [text.strip() for text in of_program(report.stack).splitlines()]
    places = [text for text in lines if text.startswith("File ")] or ["an unknown line"]
    return (
        f"ergo: {who} blocks the loop at {places[-1]}, so the program cannot stop; it starts again "
        "now as after a kill: without terminate and finally, and a file that it writes may be cut "
        "off"
    )


def _has_syntax(path: str) -> bool | None:
    """Whether a file is Python; None if it is not there. If it is not, the program of before goes
    on.
    """
    if os.path.isdir(path):
        return True  # a package has come, or a module of it
    try:
        with open(path, "rb") as file:
            compile(file.read(), path, "exec", dont_inherit=True)
    except OSError:  # an editor is replacing it
        return None
    except Exception as error:  # a deep or long text raises others, such as MemoryError
        complain("".join(traceback.format_exception_only(error)).rstrip())
        complain(f"ergo: {os.path.basename(path)} is no Python now, so nothing is started again")
        return False
    return True
