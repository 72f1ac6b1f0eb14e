"""Ordeals of the gateway besides the death of its parts: the machine around it fails, and
recovers.
"""

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import trio

from ergo_py import Actor, Caller, Crashed, ErgoError
from ergo_py.info import BlockedReport
from ergo_py.meta import Apply
from ergo_py.web import WebServer
from examples.gateway import gateway

from ..slow_peers import ATTACKS, Owner, attack_of, was_available
from .parts import MAIN, decoders, strike
from .rig import PATIENCE, Rig

__all__ = ["ORDEALS"]


# -- nothing left of something ---------------------------------------------------------------------


async def no_space(rig: Rig) -> None:
    """The disk is full (ENOSPC): another program has filled it, and makes room after a while."""
    if not os.path.ismount(rig.database.parent):  # noqa: ASYNC240
        rig.findings.notes["no space"] = "no small disk could be mounted here; see the other two"
        return
    filler = rig.database.with_name("filler")
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    await _noticed(rig, "ENOSPC")
    filler.unlink()
    await rig.progress()


async def file_too_large(rig: Rig) -> None:
    """Files may not grow any further (EFBIG), as with a quota."""
    with _limit(
        resource.RLIMIT_FSIZE, max(path.stat().st_size for path in rig.database.parent.iterdir())
    ):
        await _noticed(rig, "EFBIG")
    await rig.progress()


async def database_full(rig: Rig) -> None:
    """SQLite itself says that it is full, however often it is opened."""
    connect = gateway.connect

    def connect_full(path: Path) -> sqlite3.Connection:
        database = connect(path)
        pages = database.execute("pragma page_count").fetchone()[0]
        database.execute(f"pragma max_page_count = {pages}")
        return database

    gateway.connect = connect_full
    try:
        await strike(rig, "pipeline")
        await _noticed(rig, "SQLITE_FULL")
    finally:
        gateway.connect = connect
    await rig.progress()


async def no_descriptors(rig: Rig) -> None:
    """No descriptor is left (EMFILE) while all parts die, and have to come back."""
    # Parts that die give their descriptors back, so the limit is below all that the gateway ever
    # had.
    await strike(rig, "program")  # finding it needs a descriptor, and its successor needs several
    with _limit(resource.RLIMIT_NOFILE, 3):
        for name in ("client", "database", "tcp", "udp"):
            await strike(rig, name)
        await _noticed(rig, "EMFILE")
    await rig.progress()


async def _noticed(rig: Rig, what: str) -> None:
    """Wait until some part has failed for want of it, and failed again when it was to come back."""

    async def failures() -> int:
        crashes = 0
        try:
            for name in ("gateway", "back"):
                supervision = rig.node.process_info(name).supervision
                crashes += sum(
                    isinstance(restart.reason, Crashed)
                    and isinstance(restart.reason.error, OSError | sqlite3.Error)
                    for restart in (() if supervision is None else supervision.restarts)
                )
            return crashes + int((await rig.node.inspect("readings", timeout=60))["retried"])
        except ErgoError:  # the pipeline or a supervisor is away
            return crashes

    before = await failures()
    with trio.move_on_after(60):
        while await failures() < before + 2:  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.01)
        rig.findings.struck.append(what)
        return
    rig.violation(f"{what} was not noticed")


@contextmanager
def _limit(what: int, value: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


# -- time ------------------------------------------------------------------------------------------


async def clock_jumps(rig: Rig) -> None:
    """The wall clock jumps back and forth by days while parts die and come back."""
    true, offset = time.time, 0.0
    time.time = lambda: true() + offset
    try:
        for name in (*MAIN, "program"):
            offset = rig.random.uniform(-1, 1) * 30 * 86400
            await strike(rig, name)
            await rig.progress()
    finally:
        time.time = true
    rig.findings.struck.append("clock")


# -- stuck parts -----------------------------------------------------------------------------------


async def stuck_thread(rig: Rig) -> None:
    """The thread of the database does not come back from a call, and cannot be made to."""
    release = threading.Event()
    for alias in rig.metas("BlockingCalls", "readings"):
        rig.node.send(alias, Apply(lambda _: release.wait(60)))
    try:
        await trio.sleep(0.05)
        await rig.progress()
        rig.findings.struck.append("thread")
        if not rig.node.info().threads_abandoned:
            rig.violation("the stuck thread was not left behind")
    finally:
        release.set()


async def locked_database(rig: Rig) -> None:
    """Another program keeps the database locked for longer than the gateway has patience."""
    with closing(sqlite3.connect(rig.database, isolation_level=None, timeout=30)) as other:
        other.execute("begin immediate")
        await trio.sleep(2.5 * PATIENCE)
        other.execute("rollback")
    rig.findings.struck.append("lock")
    await rig.progress()


async def stopped_program(rig: Rig) -> None:
    """The decoder's program is stopped: it is there, and does nothing."""
    for number in decoders():
        os.kill(number, signal.SIGSTOP)
    rig.findings.struck.append("SIGSTOP")
    await rig.progress()


# -- the processor ---------------------------------------------------------------------------------


async def busy_machine(rig: Rig) -> None:
    """Other programs want more processor time than there is, and a thread of this program spins,
    while parts die.
    """
    command = [sys.executable, "-c", "while True: pass"]
    hogs = [subprocess.Popen(command) for _ in range(2 * (os.cpu_count() or 1))]  # noqa: ASYNC220
    done = threading.Event()

    def spin() -> None:
        while not done.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        for name in ("pipeline", "program", "listener"):
            await strike(rig, name)
            await rig.progress()
        rig.findings.struck.append("processor")
    finally:
        done.set()
        thread.join()
        for hog in hogs:
            hog.kill()
            hog.wait()


class _Hog(Actor):
    """Computes for a second at least, and until the watchdog has named the blocking process."""

    def handle_call(self, request: object, caller: Caller) -> BlockedReport | None:
        began = time.perf_counter()
        while (took := time.perf_counter() - began) < 30:
            report = self.node.info().last_blocked
            if took > 1 and report is not None and report.name == "hog":
                return report
        return None


async def busy_loop(rig: Rig) -> None:
    """A process computes in a callback, and no other process gets the loop: the watchdog must name
    it.
    """
    await rig.node.spawn(_Hog, name="hog")
    blocked = await rig.node.call("hog", "go", timeout=None)
    rig.findings.struck.append("loop")
    if blocked is None or blocked.callback != "handle_call":
        rig.violation(f"the watchdog did not name the hog: {blocked}")
    await rig.progress()


# -- peers of a web server -------------------------------------------------------------------------


async def slow_http(rig: Rig) -> None:
    """slowhttptest attacks a web server of the same node with slow heads, slow bodies and slow
    readers, while parts of the gateway die: the server must be found available.
    """
    program = shutil.which("slowhttptest")
    if program is None:
        rig.findings.notes["slow HTTP"] = "slowhttptest is not installed here"
        return
    server = WebServer(head_timeout=3.0, body_timeout=3.0)
    await rig.node.spawn(Owner, server, name="web")

    async def attack(name: str) -> None:
        command = attack_of(program, name, server.local.port, 200, 8)
        done = await trio.run_process(
            command, capture_stdout=True, capture_stderr=True, check=False, cwd=rig.database.parent
        )
        rig.findings.struck.append(name)
        if not was_available(done.stdout.decode(errors="replace")):
            rig.violation(f"slowhttptest, {name}: the web server was not available")

    async with trio.open_nursery() as nursery:
        for name in ATTACKS:
            nursery.start_soon(attack, name)
        for name in ("pipeline", "program", "listener"):
            await strike(rig, name)
            await rig.progress()
    rig.node.send_exit("web")
    with trio.move_on_after(30):
        while server.connections:  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.01)
    if server.connections:
        rig.violation(f"{server.connections} connections of the web server are left")


async def stop_in_the_middle(rig: Rig) -> None:
    """The node is stopped while its parts are dying and have not come back: in order, in time, with
    all acknowledged readings.
    """
    for name in rig.random.sample(
        ["program", "database", "udp socket", "listener", "session"], k=3
    ):
        await strike(rig, name)
    await trio.sleep(rig.random.choice((0.0, 0.003, 0.03)))
    rig.leaves = True


ORDEALS = {
    "no space on the disk": no_space,
    "no room for larger files": file_too_large,
    "no room in the database": database_full,
    "no descriptors": no_descriptors,
    "a clock that jumps": clock_jumps,
    "a stuck thread": stuck_thread,
    "a locked database": locked_database,
    "a stopped program": stopped_program,
    "a busy machine": busy_machine,
    "a busy loop": busy_loop,
    "slow HTTP peers": slow_http,
    "a stop in the middle": stop_in_the_middle,
}
"""By name, for the report."""
