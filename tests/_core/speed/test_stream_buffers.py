"""`StreamBuffer` and `BufferQueue`: threads that read streams without the GIL."""

import errno
import gc
import os
import select
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ergo_py._core.speed.installation import buffer_queue, stream_buffer
from ergo_py.testing.threads import look, stirring

pytestmark = pytest.mark.skipif(buffer_queue is None, reason="there are no such buffers here")
READ, MOST = 4096, 64 * 1024
LARGE = 100_000
PIECE = 1000


class Reading:
    """A thread in ``StreamBuffer.read``, the socket of its peer, and the calls of the callback."""

    def __init__(self, size: int = READ) -> None:
        self.size = size
        self.queue = buffer_queue()
        self.buffer = stream_buffer(self.queue, self.called)
        self.calls = 0
        self.sock, self.peer = socket.socketpair()
        self.result: Any = "none yet"
        self.thread = threading.Thread(target=self._read)

    def called(self) -> None:
        self.calls += 1

    def _read(self) -> None:
        try:
            self.result = self.buffer.read(self.sock.fileno(), self.size)
        except OSError as error:
            self.result = error

    def end_of_thread(self) -> Any:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.result

    def wait_for_bell(self) -> None:
        assert select.select([self.queue.fileno()], [], [], 20)[0]

    def has_rung(self) -> bool:
        return bool(select.select([self.queue.fileno()], [], [], 0)[0])

    def serve(self) -> int:
        """Call the callbacks of all buffers that are listed. Returns their number."""
        count = 0
        while (ready := self.queue.pop()) is not None:
            ready[0]()
            count += 1
        return count

    def take(self, size: int) -> bytes:
        """Take so many bytes, as the loop does."""
        taken = b""
        while len(taken) < size:
            self.wait_for_bell()
            self.serve()
            taken += self.buffer.take(self.size)
        return taken


@contextmanager
def started(size: int) -> Iterator[Reading]:
    made = Reading(size)
    made.thread.start()
    try:
        yield made
    finally:
        made.peer.close()
        made.buffer.end()
        made.thread.join(20)
        made.sock.close()


@pytest.fixture
def reading() -> Iterator[Reading]:
    with started(READ) as made:
        yield made


@pytest.fixture
def large() -> Iterator[Reading]:
    """Reads up to ``LARGE`` bytes at once."""
    with started(LARGE) as made:
        yield made


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(20_000):
        if condition():
            return
        pause.wait(0.001)
    pytest.fail("it never happened")


def unread(reading: Reading) -> bool:
    """Whether bytes wait in the socket of the reader."""
    try:
        return bool(reading.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False


def is_asleep(thread: threading.Thread) -> bool:
    before = look()
    threading.Event().wait(0.001)
    return not any(thread.name in name for name in stirring(before, look()))


def until_read(reading: Reading) -> None:
    """Wait until the thread has put all bytes of the socket into its buffer, and waits."""
    until(lambda: not unread(reading) and is_asleep(reading.thread))


def fill(reading: Reading) -> bytes:
    """Send until the buffer is full and bytes stay in the socket. Returns the bytes."""
    reading.peer.setblocking(False)
    sent = b""
    while True:
        piece = os.urandom(PIECE)
        is_read = len(sent) < MOST  # each piece alone: several at once can be a read of full size
        try:
            sent += piece[: reading.peer.send(piece)]
        except BlockingIOError:
            return sent
        if is_read:
            until_read(reading)


def test_the_loop_is_called_once_for_all_reads_until_it_takes_the_bytes(reading: Reading) -> None:
    for piece in (b"a", b"b"):
        reading.peer.sendall(piece)
        until_read(reading)
    reading.wait_for_bell()
    assert (reading.serve(), reading.calls) == (1, 1)

    reading.peer.sendall(b"c")
    until_read(reading)
    assert reading.serve() == 0  # the loop knows of the bytes, and has not taken them
    assert not reading.has_rung()

    assert (reading.buffer.take(READ), reading.buffer.take(READ)) == (b"abc", b"")
    reading.peer.sendall(b"d")
    assert reading.take(1) == b"d"


def test_pop_tells_whether_another_buffer_follows() -> None:
    first, second = Reading(), Reading()
    second.queue = first.queue
    second.buffer = stream_buffer(first.queue, second.called)
    for each in (first, second):
        each.peer.sendall(b"x")
        each.peer.close()
        each.thread.start()
        assert each.end_of_thread() is False
        each.sock.close()

    popped = [first.queue.pop(), first.queue.pop(), first.queue.pop()]

    assert popped == [(first.called, True), (second.called, False), None]


def test_a_full_buffer_stops_the_reading_until_the_loop_takes_the_bytes(reading: Reading) -> None:
    sent = fill(reading)
    taken = reading.buffer.take(READ)
    assert MOST - PIECE <= len(taken) < MOST + READ

    # There is room again: the thread goes on with a read of full size.
    assert reading.end_of_thread() is True
    taken += reading.buffer.take(READ)
    while unread(reading):
        taken += reading.sock.recv(MOST)
    assert taken == sent


@pytest.mark.parametrize("size", [READ, 3 * READ + 5])
def test_a_large_read_ends_the_reading(reading: Reading, size: int) -> None:
    sent = os.urandom(size)
    reading.peer.sendall(sent)

    assert reading.end_of_thread() is True
    rest = reading.sock.recv(size, socket.MSG_DONTWAIT) if size > READ else b""
    assert reading.buffer.take(READ) + rest == sent


def test_bytes_that_were_taken_before_pop_are_listed_once(reading: Reading) -> None:
    for piece in (b"a", b"b"):
        reading.peer.sendall(piece)
        reading.wait_for_bell()
        until_read(reading)
        assert reading.buffer.take(READ) == piece

    assert (reading.queue.pop(), reading.queue.pop()) == ((reading.called, False), None)
    reading.peer.sendall(b"c")
    assert reading.take(1) == b"c"


# -- large reads -----------------------------------------------------------------------------------


def test_large_reads_go_on_with_the_space_that_take_gives(large: Reading) -> None:
    for number in range(5):
        sent = os.urandom(20_000 + number)
        large.peer.sendall(sent)
        assert large.take(len(sent)) == sent
    assert large.thread.is_alive()


def test_a_large_read_is_taken_as_a_whole() -> None:
    sent = os.urandom(50_000)
    reading = Reading(LARGE)
    reading.peer.sendall(sent)
    reading.peer.close()
    reading.thread.start()
    reading.wait_for_bell()
    assert (reading.buffer.take(LARGE), reading.buffer.take(LARGE)) == (sent, b"")
    assert reading.end_of_thread() is False
    reading.sock.close()


def test_a_thread_reads_nothing_behind_a_large_read_until_the_loop_takes_it(
    large: Reading,
) -> None:
    large.peer.sendall(b"first")
    large.wait_for_bell()
    large.peer.sendall(b"second")
    pause = threading.Event()
    pause.wait(0.05)
    assert unread(large)

    assert large.buffer.take(LARGE) == b"first"
    until_read(large)
    large.serve()
    assert large.buffer.take(LARGE) == b"second"


def test_without_space_for_a_large_read_the_next_reads_are_small(large: Reading) -> None:
    large.peer.sendall(b"large")
    large.wait_for_bell()
    until_read(large)
    assert large.buffer.take(READ) == b"large"

    for piece in (b"a", b"b"):
        large.peer.sendall(piece)
        until_read(large)
    assert large.buffer.take(READ) == b"ab"
    large.peer.sendall(bytes(READ))
    assert large.end_of_thread() is True


def test_small_reads_are_taken_before_a_large_read(reading: Reading) -> None:
    reading.peer.sendall(b"a")
    until_read(reading)
    assert reading.buffer.take(LARGE) == b"a"
    # The thread was reading a small piece when it got the space.
    reading.peer.sendall(b"b")
    until_read(reading)
    reading.peer.sendall(bytes(READ + 1))
    pause = threading.Event()
    pause.wait(0.05)
    assert unread(reading)

    assert reading.buffer.take(LARGE) == b"b"
    until_read(reading)
    assert reading.buffer.take(LARGE) == bytes(READ + 1)
    assert reading.thread.is_alive()


def test_the_end_of_the_stream_comes_after_a_large_read(large: Reading) -> None:
    large.peer.sendall(b"last")
    large.peer.shutdown(socket.SHUT_WR)
    large.wait_for_bell()
    assert large.buffer.take(LARGE) == b"last"
    assert large.end_of_thread() is False


@pytest.mark.parametrize("waits", [False, True])
def test_end_frees_a_thread_behind_a_large_read(large: Reading, waits: bool) -> None:
    large.peer.sendall(b"kept")
    large.wait_for_bell()
    until(lambda: is_asleep(large.thread))  # it waits for bytes, or for the loop
    if waits:
        large.peer.sendall(b"discarded")
    large.buffer.end()
    if not waits:
        large.peer.sendall(b"discarded")

    assert large.end_of_thread() is False
    assert waits or not unread(large)
    assert large.buffer.take(LARGE) == b"kept"
    assert large.buffer.take(LARGE) == b""


def test_a_large_stream_arrives_whole_and_in_order(large: Reading) -> None:
    sent = os.urandom(3_000_000)
    sending = threading.Thread(target=large.peer.sendall, args=(sent,))
    sending.start()
    assert large.take(len(sent)) == sent
    sending.join(20)


def test_a_thread_does_not_wait_for_the_gil_while_tracemalloc_traces() -> None:
    # In another process: it would hang with the GIL held.
    program = """
import socket, sys, threading, tracemalloc
from ergo_py._core.speed.installation import buffer_queue, stream_buffer

def read():
    while buffer.read(sock.fileno(), 4096):
        pass

def send():
    for _ in range(1000):
        peer.sendall(bytes(3000))
    peer.close()

tracemalloc.start()
buffer = stream_buffer(buffer_queue(), print)
sock, peer = socket.socketpair()
threads = [threading.Thread(target=each, daemon=True) for each in (read, send)]
for thread in threads:
    thread.start()
taken = 0
while taken < 1000 * 3000:
    taken += len(buffer.take(4096))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# -- ends ------------------------------------------------------------------------------------------


def test_the_end_of_the_stream_ends_the_reading_after_the_last_bytes(reading: Reading) -> None:
    reading.peer.sendall(b"last")
    reading.peer.shutdown(socket.SHUT_WR)

    assert reading.end_of_thread() is False
    assert reading.buffer.take(READ) == b"last"


def test_an_error_of_the_socket_is_raised() -> None:
    reading = Reading()
    reading.sock.close()
    descriptor = os.open(os.devnull, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match=os.strerror(errno.ENOTSOCK)):
            reading.buffer.read(descriptor, READ)
    finally:
        os.close(descriptor)
    reading.peer.close()


def test_after_end_the_next_read_is_discarded(reading: Reading) -> None:
    reading.peer.sendall(b"kept")
    until_read(reading)
    reading.buffer.end()
    reading.peer.sendall(b"discarded")

    assert reading.end_of_thread() is False
    assert reading.buffer.take(READ) == b"kept"


def test_end_frees_a_thread_that_waits_for_room(reading: Reading) -> None:
    fill(reading)
    reading.buffer.end()
    assert reading.end_of_thread() is False


def test_a_buffer_that_is_gone_is_not_listed() -> None:
    reading = Reading()
    reading.peer.sendall(b"x")
    reading.peer.close()
    reading.thread.start()
    reading.end_of_thread()
    reading.sock.close()
    queue, gone = reading.queue, weakref.ref(reading)

    # The buffer, its callback and this object form a cycle.
    del reading
    gc.collect()

    assert gone() is None
    assert queue.pop() is None
    assert not select.select([queue.fileno()], [], [], 0)[0]


def test_wrong_arguments_are_refused() -> None:
    queue = buffer_queue()
    wrongs: list[Callable[[], object]] = [
        lambda: buffer_queue(1),
        lambda: stream_buffer(1, print),
        lambda: stream_buffer(queue),
        lambda: stream_buffer(queue, callback=print),
        lambda: stream_buffer(queue, print).read("1", READ),
        lambda: stream_buffer(queue, print).read(1),
        lambda: stream_buffer(queue, print).take("1"),
    ]
    for wrong in wrongs:
        with pytest.raises(TypeError):
            wrong()


FORKS = """
import os, select, socket, threading
from ergo_py._core.speed.installation import buffer_queue, stream_buffer

queue = buffer_queue()
buffer = stream_buffer(queue, print)
ours, theirs = socket.socketpair()
thread = threading.Thread(target=lambda: buffer.read(ours.fileno(), 4096))
thread.start()
theirs.send(b"bytes of the parent")
select.select([queue.fileno()], [], [])
child = os.fork()
if child == 0:
    # No thread of the parent runs here, and a thread may have held a lock at the fork.
    print(queue.pop(), buffer.take(4096), buffer.end(), flush=True)
    del buffer, queue
    os._exit(0)
print(os.waitpid(child, 0)[1], queue.pop() == (print, False), buffer.take(4096), flush=True)
theirs.close()
thread.join()
"""


def test_the_child_of_a_fork_leaves_the_locks_of_its_parent_alone() -> None:
    command = [sys.executable, "-c", FORKS]

    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    assert told.splitlines() == ["None b'' None", "0 True b'bytes of the parent'"]
