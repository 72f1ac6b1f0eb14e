"""Waking a thread: the stop frees it from any blocking call, and nothing is closed under it."""

import io
import multiprocessing
import os
import queue
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import BadInputError, MetaProcess, Normal, NotAllowedError
from ergo_py._core.metas.resources import Doorbell, Resources, _end_program
from tests._core.metas.metas import owning
from tests.actors import Failed
from tests.meta.support import replace_logger

SOON = 28.0
"""Seconds within which a reader must be free. Stopping gives it a minute; a thread that is freed
needs a few milliseconds.
"""


class Blocks(MetaProcess):
    """Its reader runs a function that blocks, and notes when it is about to, and how that ended."""

    def __init__(self, function: Callable[["Blocks"], object]) -> None:
        self.function = function
        self.about = threading.Event()
        self.result: object = "still blocked"

    def start(self) -> None:
        try:
            self.result = self.function(self)
        except Exception as error:
            self.result = type(error)


async def stopped(function: Callable[[Blocks], object]) -> Blocks:
    """Let a reader block in ``function``, stop it, and see that this was quick."""
    async with owning() as owned:
        meta = Blocks(function)
        alias = await owned.spawn(meta, stop_timeout=60)
        await owned.until(meta.about.is_set)
        # There is no way to see from outside that a system call has begun; a stop that comes too
        # early must work as well.
        await trio.sleep(0.01)

        with trio.fail_after(SOON):
            await owned.end(alias)

        assert owned.node.info().threads_abandoned == 0
        assert owned.readers() == []
    return meta


def listener() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


# -- sockets ---------------------------------------------------------------------------------------


async def test_accept() -> None:
    sock = listener()

    def accept(me: Blocks) -> object:
        me.opened(sock)
        me.about.set()
        return sock.accept()

    meta = await stopped(accept)

    assert meta.result is OSError
    assert sock.fileno() == -1


async def test_recv() -> None:
    ours, theirs = socket.socketpair()

    def recv(me: Blocks) -> object:
        with me.opened(ours):
            me.about.set()
            return ours.recv(100)

    with theirs:
        meta = await stopped(recv)

    assert meta.result == b""


async def test_sendall_to_a_peer_that_does_not_read() -> None:
    ours, theirs = socket.socketpair()

    def sendall(me: Blocks) -> object:
        with me.opened(ours):
            me.about.set()
            ours.sendall(b"x" * 50_000_000)
            return "sent"

    with theirs:
        meta = await stopped(sendall)

    assert meta.result is BrokenPipeError


async def test_recvfrom_on_a_datagram_socket() -> None:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))

    def recvfrom(me: Blocks) -> object:
        me.opened(sock)
        me.about.set()
        return sock.recvfrom(100)[0]

    meta = await stopped(recvfrom)

    assert meta.result == b""


async def test_lines_of_a_socket() -> None:
    ours, theirs = socket.socketpair()

    def lines(me: Blocks) -> object:
        with ours, me.opened(ours.makefile()) as file:
            me.about.set()
            return list(file)

    with theirs:
        theirs.send(b"one\ntwo\nthr")
        meta = await stopped(lines)

    assert meta.result == ["one\n", "two\n", "thr"]


async def test_a_connection_of_multiprocessing() -> None:
    ours, theirs = multiprocessing.Pipe()

    def recv(me: Blocks) -> object:
        with me.opened(ours):
            me.about.set()
            return ours.recv()

    with theirs:
        meta = await stopped(recv)

    assert meta.result is EOFError


# -- pipes -----------------------------------------------------------------------------------------


async def test_lines_of_a_pipe_end_as_if_the_writer_had_left() -> None:
    read, write = os.pipe()

    def lines(me: Blocks) -> object:
        with me.opened(os.fdopen(read)) as file:
            me.about.set()
            return list(file)

    os.write(write, b"one\ntwo\nthr")
    meta = await stopped(lines)
    os.close(write)

    # No byte of another program is among them.
    assert meta.result == ["one\n", "two\n", "thr"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)


async def test_read_ahead_data_of_a_file_is_not_lost_when_it_is_registered() -> None:
    read, write = os.pipe()
    os.write(write, b"head\r\none\r\ntwo\r\n")

    def lines(me: Blocks) -> object:
        file = os.fdopen(read, newline="")
        head = file.readline()
        with me.opened(file):
            me.about.set()
            return [head, *file]

    meta = await stopped(lines)
    os.close(write)

    assert meta.result == ["head\r\n", "one\r\n", "two\r\n"]


async def test_bytes_of_a_fifo(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    done = threading.Event()

    def write_and_stay() -> None:
        with open(path, "wb", buffering=0) as file:
            file.write(b"something")
            done.wait(20)

    def read(me: Blocks) -> object:
        with me.opened(open(path, "rb")) as file:
            first = file.read(4)
            me.about.set()
            return first + file.read()

    writer = threading.Thread(target=write_and_stay)
    writer.start()
    meta = await stopped(read)
    done.set()
    writer.join()

    assert meta.result == b"something"


async def test_a_terminal() -> None:
    master, slave = os.openpty()

    def lines(me: Blocks) -> object:
        with me.opened(os.fdopen(slave)) as file:
            first = file.readline()
            me.about.set()
            return [first, *file]

    os.write(master, b"typed\n")
    meta = await stopped(lines)
    os.close(master)

    assert meta.result == ["typed\n"]


async def test_writing_to_a_pipe_without_a_reader() -> None:
    read, write = os.pipe()

    def pour(me: Blocks) -> object:
        with me.opened(os.fdopen(write, "wb")) as file:
            me.about.set()
            return file.write(b"x" * 1_000_000)

    meta = await stopped(pour)
    os.close(read)

    assert meta.result is BrokenPipeError


async def test_a_file_on_a_disk_needs_no_unblocking(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one\ntwo\n")

    def lines(me: Blocks) -> object:
        with me.opened(path.open()) as file:
            return list(file)

    async with owning() as owned:
        meta = Blocks(lines)
        alias = await owned.spawn(meta)
        reason = await owned.ended(alias) if alias in owned.node.metas() else Normal()

    assert reason == Normal()
    assert meta.result == ["one\n", "two\n"]


# -- programs and the rest -------------------------------------------------------------------------


async def test_the_output_of_a_program() -> None:
    def lines(me: Blocks) -> object:
        program = me.opened(
            subprocess.Popen(
                [sys.executable, "-c", "print('up', flush=True); input()"], stdin=-1, stdout=-1
            )
        )
        assert program.stdout is not None
        first = program.stdout.readline()
        me.about.set()
        return [first, program.stdout.read(), program.wait()]

    meta = await stopped(lines)

    assert meta.result == [b"up\n", b"", -9]


async def test_the_output_of_a_program_with_a_child_that_holds_the_pipe() -> None:
    def lines(me: Blocks) -> object:
        program = me.opened(
            subprocess.Popen(["sh", "-c", "sleep 300 & echo $!; wait"], stdout=-1, text=True)
        )
        assert program.stdout is not None
        grandchild.append(int(program.stdout.readline()))
        me.about.set()
        return program.stdout.read()

    grandchild: list[int] = []
    meta = await stopped(lines)
    os.kill(grandchild[0], 9)

    assert meta.result == ""


async def test_a_program_with_its_own_session_ends_with_its_children() -> None:
    def lines(me: Blocks) -> object:
        program = me.opened(
            subprocess.Popen(
                ["sh", "-c", "sleep 300 & echo $!; wait"], stdout=-1, start_new_session=True
            )
        )
        assert program.stdout is not None
        grandchild.append(int(program.stdout.readline()))
        me.about.set()
        return program.stdout.read()

    grandchild: list[int] = []
    await stopped(lines)

    with trio.fail_after(SOON):
        while Path(f"/proc/{grandchild[0]}/cmdline").exists() and not zombie(grandchild[0]):  # noqa: ASYNC110, ASYNC240
            await trio.sleep(0.01)


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2] == "Z"
    except OSError:
        return True


async def test_a_program_that_is_waited_for() -> None:
    def wait(me: Blocks) -> object:
        program = me.opened(subprocess.Popen(["sleep", "30"]))
        me.about.set()
        return program.wait()

    meta = await stopped(wait)

    assert meta.result == -9


async def test_a_selector() -> None:
    ours, theirs = socket.socketpair()

    def select(me: Blocks) -> object:
        selector = me.opened(selectors.DefaultSelector())
        selector.register(ours, selectors.EVENT_READ, "ours")
        me.about.set()
        return [key.data for key, _ in selector.select()]

    with ours, theirs:
        meta = await stopped(select)

    assert meta.result == [None]


async def test_wait_readable() -> None:
    read, write = os.pipe()

    def wait(me: Blocks) -> object:
        quick = me.wait_readable(read, 0.001)
        os.write(write, b"x")
        ready = me.wait_readable(read)
        os.read(read, 1)
        me.about.set()
        return [quick, ready, me.wait_readable(read), me.stopping, me.wait_readable(read)]

    meta = await stopped(wait)
    os.close(read)
    os.close(write)

    assert meta.result == [False, True, False, True, False]


async def test_a_pause() -> None:
    def pause(me: Blocks) -> object:
        whole = me.pause(0.001)
        me.about.set()
        return [whole, me.pause(60), me.pause(60)]

    meta = await stopped(pause)

    assert meta.result == [True, False, False]


async def test_a_resource_with_its_own_unblock_function() -> None:
    items: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def get(me: Blocks) -> object:
        me.opened(items, unblock=lambda: items.put(None))
        me.about.set()
        return items.get()

    meta = await stopped(get)

    assert meta.result is None


async def test_an_unblock_of_the_class_that_comes_too_early_is_tried_again() -> None:
    class TooEarly(Blocks):
        calls = 0

        def unblock(self) -> None:
            self.calls += 1
            if self.calls >= 3:
                free.set()

    free = threading.Event()
    async with owning() as owned:
        meta = TooEarly(lambda me: me.about.set() or free.wait(20))  # type: ignore[func-returns-value]
        alias = await owned.spawn(meta)
        with trio.fail_after(SOON):
            await owned.end(alias)

        assert meta.calls >= 3


async def test_a_resource_opened_after_the_stop_is_unblocked_at_once() -> None:
    class Late(Blocks):
        def unblock(self) -> None:
            told.set()

    told = threading.Event()
    ours, theirs = socket.socketpair()

    def recv(me: Blocks) -> object:
        me.about.set()
        told.wait(20)
        with me.opened(ours):
            return ours.recv(100)

    with theirs:
        async with owning() as owned:
            meta = Late(recv)
            alias = await owned.spawn(meta)
            await owned.until(meta.about.is_set)
            with trio.fail_after(SOON):
                await owned.end(alias)

    assert meta.result == b""


class Grave(BaseException):
    """An error that is no `Exception`."""


@pytest.mark.parametrize("kind", [Failed, Grave])
async def test_errors_of_unblocking_and_closing_are_reported_and_block_no_end(kind: Any) -> None:
    class Broken:
        def close(self) -> None:
            raise kind("close")

    def wrong() -> None:
        raise kind("unblock")

    class AlsoBroken(Blocks):
        def unblock(self) -> None:
            raise kind("own unblock")

    def pause(me: Blocks) -> object:
        me.opened(Broken())
        me.opened(io.BytesIO(), unblock=wrong)
        me.about.set()
        return me.pause(60)

    lines: list[str] = []
    async with owning(log_output="none", log_level="error") as owned:
        meta = AlsoBroken(pause)
        alias = await owned.spawn(meta)
        await owned.until(meta.about.is_set)
        replace_logger(meta, Lines(lines))
        await owned.end(alias)

    assert {"unblock raised", "unblocking raised", "closing raised"} <= set(lines)


async def test_an_interrupt_while_a_thread_is_unblocked_is_passed_on_to_the_program() -> None:
    class Interrupted(Blocks):
        def unblock(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with owning() as owned:
            meta = Interrupted(lambda me: me.pause(60))
            await owned.end(await owned.spawn(meta))


class Lines:
    """A logger that keeps its lines."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def error(self, text: str, **fields: object) -> None:
        self._lines.append(text)


# -- misuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("unbuffered", ["a number", "a file"])
def test_a_resource_that_cannot_be_unblocked_is_refused(unbuffered: str) -> None:
    read, write = os.pipe()
    resources = Resources(lambda _what, error: pytest.fail(str(error)))
    with open(read, "rb", buffering=0) as file, open(write, "wb", buffering=0):
        with pytest.raises(BadInputError, match=r"os\.fdopen|wait_readable"):
            resources.add(read if unbuffered == "a number" else file, None)

        resources.add(file, lambda: None)
    resources.close()


def test_a_resource_that_never_blocks_is_accepted() -> None:
    resources = Resources(lambda _what, error: pytest.fail(str(error)))
    memory = io.StringIO("text")

    resources.add(memory, None)
    resources.unblock()
    resources.close()

    assert memory.closed


def test_a_doorbell_stays_rung_until_it_is_hushed_and_may_be_rung_repeatedly() -> None:
    bell = Doorbell()
    for _ in range(70_000):
        bell.ring()

    with selectors.DefaultSelector() as selector:
        selector.register(bell, selectors.EVENT_READ)
        assert selector.select(0)
        assert selector.select(0)
        for _ in range(2):
            bell.hush()
            assert not selector.select(0)
        bell.ring()
        assert selector.select(0)
    bell.close()


def test_a_doorbell_that_is_first_asked_for_while_the_meta_process_stops_rings() -> None:
    resources = Resources(lambda _what, error: pytest.fail(str(error)))
    resources.unblock()

    with selectors.DefaultSelector() as selector:
        selector.register(resources.bell(), selectors.EVENT_READ)
        assert selector.select(0)
    resources.close()


async def test_blocking_verbs_are_refused_on_the_loop() -> None:
    async with owning() as owned:
        meta = Blocks(lambda me: me.pause(60))
        await owned.spawn(meta)

        with pytest.raises(NotAllowedError, match=r"trio\.lowlevel\.wait_readable"):
            meta.wait_readable(0)
        with pytest.raises(NotAllowedError, match=r"trio\.sleep"):
            meta.pause(1)


def test_a_resource_opened_after_close_is_closed_at_once() -> None:
    resources = Resources(complain)
    resources.close()
    file = io.BytesIO()

    resources.add(file, None)

    assert file.closed


def test_a_resource_that_cannot_be_closed_does_not_keep_others_open() -> None:
    class Broken:
        def close(self) -> None:
            raise OSError("broken")

    resources = Resources(complain)
    file = io.BytesIO()
    resources.add(file, None)
    resources.add(Broken(), lambda: None)

    resources.close()

    assert file.closed


def test_a_program_that_does_not_end_delays_closing_by_a_bounded_time() -> None:
    class Stream:
        def close(self) -> None:
            raise BrokenPipeError("it did not take the rest")

    class Program:
        """As the system shows a program that ends between two looks, and a program that nothing
        ends.
        """

        pid = 2**22 + 1
        stdin, stdout, stderr = Stream(), None, None
        waited = 0.0

        def poll(self) -> None:
            return None

        def wait(self, timeout: float) -> int:
            self.waited = timeout
            raise subprocess.TimeoutExpired("program", timeout)

    program: Any = Program()

    _end_program(program)

    assert 0 < program.waited < 60


def test_a_socket_that_was_closed_before_the_stop_is_not_touched() -> None:
    resources = Resources(complain)
    sock = Shut()
    resources.add(sock, None)
    sock.close()

    resources.unblock()

    assert sock.shut == 0


class Shut(socket.socket):
    """Counts how often it was shut down."""

    shut = 0

    def shutdown(self, how: int) -> None:
        self.shut += 1


def complain(what: str, error: BaseException) -> None:
    raise AssertionError(what) from error
