"""`NextVersion`: the command of a running program, which starts its next version for ``ergo
upgrade``.

The running program starts it, not ``ergo``: the next version has the same environment, output and
service manager, and goes on when the terminal of ``ergo`` is closed.
"""

import os
import subprocess
import sys
from contextlib import suppress
from math import inf
from typing import Final

import trio

from .channel import PATIENCE, Channel, Line

__all__ = ["NextVersion"]

_STOPPED: Final = (
    "the running program was stopped before its next version had its turn, and has stopped it, too"
)
_LATE: Final = "the next version did not ask for the hand-over within {:g} s"

_LOOK: Final = 0.05
"""Seconds between two looks whether the next version has ended."""
_GRACE: Final = 5.0
"""Seconds that a version which has failed has to end by itself, and then after SIGTERM."""


class NextVersion:
    """The next version of this program: the same command, in the same directory."""

    def __init__(self) -> None:
        self._command = list(sys.orig_argv)
        self._directory = _directory()
        # The program has not taken the variables of its manager out of the environment yet, which
        # others must not inherit: the next version speaks for the service, too. The manager watches
        # the program that has taken over, whichever it is.
        self._environ = {key: text for key, text in os.environ.items() if key != "WATCHDOG_PID"}
        self._tell: trio.MemorySendChannel[Line] | None = None
        """Takes the outcome of the upgrade under way."""
        self._has_begun = False
        """The next version has asked for the hand-over, which tells how it ends."""
        self._process: subprocess.Popen[bytes] | None = None
        """The next version, until the end of the hand-over."""
        self._is_stopped = False

    def report(self, outcome: Line) -> None:
        """Report the end of a hand-over to the client that has asked for the upgrade, or what has
        moved so far; or that a hand-over has ``begun``, which has its own limits of time: a program
        that has taken over must not be ended since it was slow before.
        """
        if self._tell is not None:
            self._has_begun = self._has_begun or "begun" in outcome
            self._tell.send_nowait(outcome)

    def stop(self, *, has_turn: bool = False) -> None:
        """This program is stopped: stop the next version, too, unless it has its turn."""
        self._is_stopped = True
        if self._process is not None and not has_turn:
            self._process.terminate()
            self.report({"failed": _STOPPED})

    async def upgrade(self, client: Channel, patience: float = PATIENCE) -> None:
        """Start the next version, and tell a client the news on the way, and how the hand-over
        ends.

        Raises:
            OSError: the client has left. The next version goes on.
        """
        if self._tell is not None:
            await client.say({"failed": "another upgrade is under way"})
            return
        # Before the start, which takes a while: a second client must not start a second version.
        self._tell, outcomes = trio.open_memory_channel[Line](inf)
        self._has_begun = False
        try:
            process = await trio.to_thread.run_sync(self._start)
        except OSError as error:
            self._tell = None
            await client.say({"failed": f"the next version cannot be started: {error}"})
            return
        self._process = process
        try:
            if self._is_stopped:
                self.stop()
            await client.say({"started": process.pid})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._await_end, process)
                outcome: Line = {"failed": _LATE.format(patience)}
                with trio.move_on_after(patience):
                    outcome = await outcomes.receive()
                while not outcome.keys() & {"done", "failed"}:
                    if "begun" not in outcome:  # that only ends the limit of the wait
                        with suppress(OSError):  # the client has left
                            await client.say(outcome)
                    outcome = await outcomes.receive()
                nursery.cancel_scope.cancel()
            if self._is_stopped:
                outcome["ends"] = True
            elif "failed" in outcome:
                await _end(process)  # else it would take over later, when no client expects it
            await client.say(outcome)
        finally:
            self._tell = self._process = None
            if process.returncode is None:
                # Python would warn about a process that still runs: it outlives this program.
                process.returncode = 0

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self._command, cwd=self._directory, env=self._environ, stdin=subprocess.DEVNULL
        )

    async def _await_end(self, process: "subprocess.Popen[bytes]") -> None:
        await _wait(process)
        if not self._has_begun:
            self.report({"failed": f"the next version has ended with status {process.returncode}"})


async def _wait(process: "subprocess.Popen[bytes]") -> None:
    """Wait until a process has ended."""
    while process.poll() is None:  # noqa: ASYNC110 - not all systems tell by an event
        await trio.sleep(_LOOK)


async def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process that has failed, unless it ends by itself."""
    for end in (process.terminate, process.kill):
        with trio.move_on_after(_GRACE):
            await _wait(process)
        end()
    await _wait(process)


def _directory() -> str:
    """The directory of this program, as its user has named it: a deployment may have moved a link
    in the path to the next version.
    """
    here, named = os.getcwd(), os.environ.get("PWD", "")
    try:
        return named if named and os.path.samefile(named, here) else here
    except OSError:
        return here
