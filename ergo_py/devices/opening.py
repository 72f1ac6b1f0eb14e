"""`Opening`: a device from ``open`` to ``close``, in a thread of its own.

Each opening is a meta-process, so that a library that never returns costs a single thread: the
kernel abandons and reports this thread as any reader's, and the next opening has another.
"""

from collections.abc import Callable
from math import inf
from queue import SimpleQueue
from typing import ClassVar, Final, Protocol, cast

import trio

from .._core import sources
from .._core.runtime.bridge import Lock
from .._core.verbs.meta_process import MetaProcess
from .._core.vocabulary.errors import SpawnError
from .._core.vocabulary.ids import Alias, Target
from .._core.vocabulary.reasons import Reason
from ..meta.invocations import as_exception
from ..meta.parsing.decoder import Decoder, FramingError
from ..meta.readers import post_to_loop
from .messages import DeviceMessages

__all__ = ["Opening", "why_lost"]

_AT_ONCE: Final = 0.001
"""A read that took less than this, in seconds, has not blocked."""


class Driver(Protocol):
    """The functions of a library; `Device` explains each."""

    kind: str
    lost_by: ClassVar[tuple[type[Exception], ...]]
    full_duplex: ClassVar[bool]

    @property
    def only_answers(self) -> bool: ...
    def open(self) -> None: ...
    def read(self) -> object: ...
    def write(self, data: object) -> object: ...
    def wake(self) -> None: ...
    def close(self) -> None: ...


class Opening(MetaProcess):
    """Opens a device, sends all data of the device, writes for the bridge, and closes the device
    when it is lost or the bridge stops.
    """

    def __init__(
        self,
        make_driver: Callable[["Opening"], Driver],
        device: Alias,
        to: Target,
        decoder: Decoder | None,
        *,
        tells_failure: bool,
    ) -> None:
        self._make_driver = make_driver
        self._device = device
        self._to = to
        self._decoder = decoder
        self._tells_failure = tells_failure
        self._waker = _Waker()
        self._writes: SimpleQueue[_Write | None] = SimpleQueue()
        self._writer: _Writer | None = None
        self._figures = _Figures()
        self._stay = _Stay()
        self.is_open: bool = False
        """Whether calls can write. Written by the threads."""
        self.why: str = ""
        """Why the device is lost."""
        self._failure: Exception | None = None
        """The error of a write that has lost the device."""
        # The loop alone uses the following.
        self.has_ended: bool = False
        self._has_begun = False
        self._write: _Write | None = None
        self._news = trio.Event()

    async def init(self) -> None:
        """Make the driver of this opening."""
        self._driver = self._make_driver(self)
        self.kind: str = self._driver.kind
        self._has_begun = True
        self._watch(self._now())

    # -- in the thread -----------------------------------------------------------------------------

    def start(self) -> None:
        """Open, read until the device is lost or the stop, and close."""
        driver = self._driver
        lost_by: tuple[type[Exception], ...] = (*driver.lost_by, FramingError, SpawnError)
        try:
            self._stay.enter(self._now())
            driver.open()
        except driver.lost_by as error:
            self._lose(error)
            return
        self._stay.leave()
        try:
            self._waker.begin(driver)
            self._figures.openings = 1
            self.is_open = True
            post_to_loop(self._meta, self._watch, None)
            self.send(self._to, DeviceMessages.Opened(self._device))
            if driver.full_duplex and not driver.only_answers:
                writer = _Writer(self._writes, self._run_write)
                self.spawn(writer, stop_timeout=self._meta.options.stop_timeout)
                self._writer = writer
            if driver.only_answers:
                self._answer_all()
            else:
                self._read_all(driver)
        except lost_by as error:
            self._lose(error)
        finally:
            self._close(driver)

    def _read_all(self, driver: Driver) -> None:
        while not self.stopping:
            began = self._now()
            self._stay.enter(began)
            data = driver.read()
            self._stay.leave()
            if data is not None:
                self._take(data)
            if not driver.full_duplex and not self._writes.empty():
                self._run_write(self._writes.get())
            elif data is None and self._now() - began < _AT_ONCE:
                # Without a pause, a library that does not block would use all the processor time.
                self.pause(_AT_ONCE)
            if self._failure is not None:
                raise self._failure

    def _answer_all(self) -> None:
        while (write := _take_next(self._writes)) is not None:
            self._run_write(write)
            if self._failure is not None:
                raise self._failure

    def _take(self, data: object) -> None:
        device, to, figures = self._device, self._to, self._figures
        if isinstance(data, bytes | bytearray):
            figures.bytes_in += len(data)
        if self._decoder is None:
            figures.frames_in += 1
            self.send(to, DeviceMessages.Data(device, data))
            return
        failure: FramingError | None = None
        try:
            frames = self._decoder.feed(cast(bytes, data))
        except FramingError as error:
            frames, failure = error.frames, error
        if frames:
            figures.frames_in += len(frames)
            # The frames of a read wake their receiver once.
            meta = self._meta
            messages = [DeviceMessages.Data(device, frame) for frame in frames]
            meta.outbox.put_many(to, messages, meta.priority)
        if failure is not None:
            raise failure

    def _run_write(self, write: "_Write | None") -> None:
        """Write, and tell the loop the result."""
        assert write is not None
        driver = self._driver
        if not driver.full_duplex:
            self._stay.enter(self._now())
        try:
            write.answer = driver.write(write.data)
        except driver.lost_by as error:
            # First close the device to further calls: the caller of this one may try again at once.
            self.is_open, self.why, self._failure = False, why_lost(error), error
            write.error = _closed_by(error, self._device, self.why)
        except BaseException as error:
            write.error = as_exception(error)
        else:
            self._figures.count_write(write.data)
        if not driver.full_duplex:
            self._stay.leave()
        elif self._failure is not None:
            self._waker.wake()
        post_to_loop(self._meta, self._written, write)

    def _lose(self, error: Exception) -> None:
        """Tell the receiver of the loss, unless that is not news, or the end of a stop."""
        self._stay.leave()
        self.is_open, self.why = False, why_lost(error)
        if not self.stopping and (self._figures.openings or self._tells_failure):
            self._figures.losses = 1
            dropped = 0 if self._decoder is None else self._decoder.unfinished
            self.send(self._to, DeviceMessages.Lost(self._device, self.why, dropped))

    def _close(self, driver: Driver) -> None:
        self.is_open = False
        began = self._now()
        self._stay.enter(began)
        post_to_loop(self._meta, self._watch, began)
        if self._writer is not None:
            # The library must not close the device under a write.
            self._writes.put(None)
            self._waker.wake()
            self._writer.wait_until_left()
        self._waker.end()
        try:
            driver.close()
        except driver.lost_by:  # mostly the error by which the device was lost
            pass
        self._stay.leave()
        post_to_loop(self._meta, self._watch, None)

    # -- on the loop -------------------------------------------------------------------------------

    async def write(self, data: object) -> object:
        """Write, and wait until the library has taken the data. One call at a time. Returns what
        the library has answered.

        Raises:
            Device.ClosedError: the device was lost meanwhile.
            Exception: the library has refused the data.
        """
        self._write = write = _Write(data)
        self._watch(self._now())
        self._writes.put(write)
        if not self._driver.full_duplex and not self._driver.only_answers:
            self._waker.wake()
        await write.done.wait()
        if write.error is not None:
            raise write.error
        return write.answer

    def _written(self, write: "_Write") -> None:
        # After a failed write, the reader has to leave the library.
        self._watch(None if self._failure is None else self._now())
        self._write = None
        write.done.set()

    def figures(self) -> dict[str, int]:
        """The counts of this opening. A loss is counted when the receiver is told."""
        return self._figures.all()

    def patience_left(self, limit: float) -> float:
        """Seconds until the library counts as stuck; infinite while it may block."""
        # The second thread of a full-duplex device never leaves the library during a write.
        by_reader = self._write is None or not self._driver.full_duplex
        return self._stay.left(limit, self._now(), by_reader=by_reader)

    async def wait_for_news(self) -> None:
        """Wait until `has_ended` or `patience_left` may have changed."""
        self._news = trio.Event()
        await self._news.wait()

    def end(self, reason: Reason) -> None:
        """Begin the termination. Before ``init`` there is nothing to end."""
        if self._has_begun:
            self._meta.finish(reason)

    def unblock(self) -> None:
        """Wake the library, or the thread that waits for a write."""
        self._waker.wake()
        if self._has_begun and self._driver.only_answers:
            self._writes.put(None)

    async def terminate(self, reason: Reason) -> None:
        """Answer the call in progress: the thread has ended, or was abandoned."""
        if self._write is not None:
            self._write.error = DeviceMessages.ClosedError(self._device, self.why or str(reason))
            self._write.done.set()
        self.has_ended = True
        self._news.set()

    def _watch(self, since: float | None) -> None:
        """Let the library be stuck if it does not return in time; None lets it block."""
        self._stay.since = since
        self._news.set()


class _Write:
    """Data to write, and the result."""

    __slots__ = ("answer", "data", "done", "error")

    def __init__(self, data: object) -> None:
        self.data = data
        self.answer: object = None
        self.done = trio.Event()
        self.error: BaseException | None = None


class _Figures:
    """The counts of an opening. Each belongs to a single thread."""

    __slots__ = ("bytes_in", "bytes_out", "frames_in", "frames_out", "losses", "openings")

    def __init__(self) -> None:
        self.openings = self.losses = 0
        self.frames_in = self.bytes_in = 0
        self.frames_out = self.bytes_out = 0

    def count_write(self, data: object) -> None:
        self.frames_out += 1
        if isinstance(data, bytes | bytearray | memoryview):
            self.bytes_out += len(data)

    def all(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


class _Stay:
    """How long the reader's thread has been in the library, while it must not block there."""

    __slots__ = ("_entered", "since")

    def __init__(self) -> None:
        self._entered: float | None = None
        self.since: float | None = None
        """When the library should have begun to return; None while it may block. The loop writes
        it.
        """

    def enter(self, now: float) -> None:
        """Called by the thread."""
        self._entered = now

    def leave(self) -> None:
        """Called by the thread."""
        self._entered = None

    def left(self, limit: float, now: float, *, by_reader: bool) -> float:
        since, entered = self.since, self._entered
        if since is None:
            return inf
        if not by_reader:
            return since + limit - now
        # A thread outside of the library waits for the receiver of its messages (backpressure).
        return limit if entered is None else max(since, entered) + limit - now


class _Waker:
    """Wakes a library, from any thread, while its device is open.

    ``wake`` must not meet ``close``: the descriptor that it writes to could belong to another file
    by then.
    """

    __slots__ = ("_driver", "_lock")

    def __init__(self) -> None:
        self._lock = Lock()
        self._driver: Driver | None = None

    def begin(self, driver: Driver) -> None:
        with self._lock:
            self._driver = driver

    def end(self) -> None:
        with self._lock:
            self._driver = None

    def wake(self) -> None:
        with self._lock:
            driver = self._driver
            if driver is not None:
                try:
                    driver.wake()
                except driver.lost_by:  # then `read` raises as well
                    return


class _Writer(MetaProcess):
    """The second thread of a device that reads and writes at the same time."""

    kind = "write"

    def __init__(self, writes: "SimpleQueue[_Write | None]", run: Callable[[_Write], None]) -> None:
        self._writes = writes
        self._run_write = run
        self._left: SimpleQueue[None] = SimpleQueue()

    def start(self) -> None:
        try:
            while (write := _take_next(self._writes)) is not None:
                self._run_write(write)
        finally:
            self._left.put(None)

    def unblock(self) -> None:
        self._writes.put(None)

    def wait_until_left(self) -> None:
        """Block until the thread uses the library no more."""
        _take_next(self._left)


def _take_next(queue: "SimpleQueue[_Write | None] | SimpleQueue[None]") -> "_Write | None":
    sources.threads.give_way(lambda: not queue.empty(), None)
    return queue.get()


def _closed_by(cause: Exception, device: Alias, why: str) -> DeviceMessages.ClosedError:
    try:
        raise DeviceMessages.ClosedError(device, why) from cause
    except DeviceMessages.ClosedError as error:
        return error


def why_lost(error: Exception) -> str:
    """The text of an error for people, with its type."""
    return f"{type(error).__name__}: {error}"
