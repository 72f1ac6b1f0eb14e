"""`Descriptors`: readiness of descriptors, as messages. For libraries that bring a descriptor of
their own and want to know when to use it.

No thread is used, and the owner is never flooded: if a descriptor stays ready, the next message
comes only after the owner has handled the last.
"""

import os
import select
import stat
from dataclasses import dataclass
from errno import EBADF
from typing import Any, Final, Protocol, TypeAlias

import trio
from trio.lowlevel import wait_readable, wait_writable

from .._core.tables.pending_calls import Caller
from .._core.verbs.meta_process import MetaProcess
from .._core.vocabulary.errors import BadInputError, Reject
from .._core.vocabulary.ids import Alias, Target
from .._core.vocabulary.messages import Request
from .._core.vocabulary.public_names import show_members, show_public_names
from .readers import when_served
from .receivers import check_receiver

__all__ = ["Descriptors", "FdLost", "FdReadable", "FdWritable", "UnwatchFd", "WatchFd"]

_MOST: Final = 0x7FFF_FFFF
"""The largest number a descriptor can have."""
_PAUSE: Final = 0.1
"""Seconds until a descriptor is checked again if its last message had no receiver."""


class HasFileno(Protocol):
    """An object with a descriptor."""

    def fileno(self) -> int: ...


@dataclass(frozen=True, slots=True)
class WatchFd(Request[None]):
    """Report when a descriptor can be read, or written, or both: each time, or only ``once``.

    With ``call``, the answer comes when the descriptor is watched. The caller keeps the descriptor,
    and must call :class:`Descriptors.Unwatch` before closing it.
    """

    fd: int | HasFileno
    readable: bool = True
    writable: bool = False
    once: bool = False


@dataclass(frozen=True, slots=True)
class UnwatchFd(Request[bool]):
    """Stop watching a descriptor. After the answer, it may be closed; the answer is False if it was
    not watched.
    """

    fd: int | HasFileno


@dataclass(frozen=True, slots=True)
class FdReadable:
    """Reading from the descriptor would not block: there is data, or its end, or an error."""

    watcher: Alias
    fd: int


@dataclass(frozen=True, slots=True)
class FdWritable:
    """Writing to the descriptor would not block."""

    watcher: Alias
    fd: int


@dataclass(frozen=True, slots=True)
class FdLost:
    """The descriptor cannot be watched any more: it was closed, its number belongs to another file
    now, or another task waits for it, too.
    """

    watcher: Alias
    fd: int
    reason: str


class Descriptors(MetaProcess):
    """Watches descriptors: sockets, pipes, terminals, and everything else that ``epoll`` or
    ``kqueue`` takes.

    Send or call it :class:`Descriptors.Watch` and :class:`Descriptors.Unwatch`.

    Args:
        receiver: the address that gets the messages; None for the owner.
    """

    Lost: TypeAlias = FdLost
    Readable: TypeAlias = FdReadable
    Unwatch: TypeAlias = UnwatchFd
    Watch: TypeAlias = WatchFd
    Writable: TypeAlias = FdWritable

    kind = "fd"

    def __init__(self, *, receiver: Target | None = None) -> None:
        self._receiver = check_receiver(receiver)
        self._nursery: trio.Nursery | None = None
        self._open = trio.Event()
        self._watches: dict[int, _WatchedDescriptor] = {}
        self._told = 0

    async def start(self) -> None:
        """Keep a nursery open for the tasks that wait for descriptors."""
        async with trio.open_nursery() as self._nursery:
            self._open.set()
            await trio.sleep_forever()

    # -- the handler -------------------------------------------------------------------------------

    async def handle_message(self, message: object, sender: object) -> None:
        """Watch or unwatch; an error comes as a ``Descriptors.Lost``."""
        match message:
            case WatchFd(fd):
                try:
                    await self._add(message)
                except (BadInputError, OSError) as error:
                    await self.send_wait(self._to, FdLost(self.id, _number_or(-1, fd), str(error)))
            case UnwatchFd(fd):
                await self._remove(fd)
            case _:
                super().handle_message(message, sender)

    async def handle_call(self, request: object, caller: Caller) -> object:
        """Watch or unwatch; an error is the answer."""
        match request:
            case WatchFd():
                try:
                    await self._add(request)
                except (BadInputError, OSError) as error:
                    raise Reject(error) from None
                return None
            case UnwatchFd(fd):
                return await self._remove(fd)
        return super().handle_call(request, caller)

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The watched descriptors, and the number of messages."""
        return {
            "watched": " ".join(map(str, sorted(self._watches))),
            "told": str(self._told),
        }

    async def _add(self, order: WatchFd) -> None:
        fd = _number(order.fd)
        if not (order.readable or order.writable):
            raise BadInputError("WatchFd", order, "readable=True, writable=True or both")
        if fd in self._watches:
            raise BadInputError(
                "Descriptors.Watch(fd)",
                fd,
                "a descriptor that is not watched yet; Descriptors.Unwatch it first",
            )
        identity = _identity(fd)
        _check_pollable(fd)
        # The handler may run before the reader.
        await self._open.wait()
        assert self._nursery is not None
        watch = self._watches[fd] = _WatchedDescriptor(identity, order.once)
        for wanted, ready, kind in (
            (order.readable, wait_readable, FdReadable),
            (order.writable, wait_writable, FdWritable),
        ):
            if wanted:
                self._nursery.start_soon(self._wait, fd, watch, watch.begin(), ready, kind)

    async def _remove(self, fd: int | HasFileno) -> bool:
        # An object without a descriptor, such as a closed socket, is not watched: that is no reason
        # to end.
        watch = self._watches.pop(_number_or(-1, fd), None)
        if watch is None:
            return False
        watch.cancel()
        await watch.gone.wait()
        return True

    # -- the reader --------------------------------------------------------------------------------

    @property
    def _to(self) -> Target:
        return self.parent if self._receiver is None else self._receiver

    async def _wait(
        self, fd: int, watch: "_WatchedDescriptor", scope: trio.CancelScope, ready: Any, kind: Any
    ) -> None:
        """Wait for a descriptor in a direction."""
        lost = ""
        with scope:
            try:
                while True:
                    if _identity(fd) != watch.identity:
                        raise OSError(
                            EBADF, "it was closed, and its number belongs to another file now"
                        )
                    await ready(fd)
                    await self._tell(kind(self.id, fd))
                    if watch.once:
                        break
            except (OSError, trio.ClosedResourceError, trio.BusyResourceError) as error:
                lost = str(error) or type(error).__name__
        watch.end(scope)
        if lost:
            watch.cancel()
        if (lost or watch.gone.is_set()) and self._watches.get(fd) is watch:
            del self._watches[fd]
            if lost:
                await self._tell(FdLost(self.id, fd, lost))

    async def _tell(self, message: object) -> None:
        """Send, and wait until the receiver has handled the message."""
        to = self._to
        await self._meta.wait_for_room(to)
        self._told += 1
        if not self.send(to, message):
            await trio.sleep(_PAUSE)
            return
        served = trio.Event()
        when_served(self._meta, self._meta.router.resolve(to), served.set)
        await served.wait()


class _WatchedDescriptor:
    """A watched descriptor, in one direction or two."""

    def __init__(self, identity: tuple[int, int, int], once: bool) -> None:
        self.identity = identity
        self.once = once
        self.gone = trio.Event()
        self._scopes: set[trio.CancelScope] = set()

    def begin(self) -> trio.CancelScope:
        """Add a direction."""
        scope = trio.CancelScope()
        self._scopes.add(scope)
        return scope

    def end(self, scope: trio.CancelScope) -> None:
        """Remove a direction."""
        self._scopes.discard(scope)
        if not self._scopes:
            self.gone.set()

    def cancel(self) -> None:
        """End all directions."""
        for scope in self._scopes:
            scope.cancel()


def _number(fd: int | HasFileno) -> int:
    number = _number_or(-1, fd)
    if not 0 <= number <= _MOST:
        raise BadInputError("fd", fd, "an open descriptor, or an object with fileno()")
    return number


def _number_or(default: int, fd: object) -> int:
    if isinstance(fd, int):
        return fd
    try:
        number = getattr(fd, "fileno", lambda: default)()
    except (OSError, ValueError):  # closed files, and buffers without a descriptor, raise like this
        return default
    return number if isinstance(number, int) else default


def _identity(fd: int) -> tuple[int, int, int]:
    """The identity of the file behind a descriptor, whose number the system reuses."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode)


def _check_pollable(fd: int) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        raise BadInputError(
            "Descriptors.Watch(fd)",
            fd,
            "a descriptor other than a file's: a file on a disk is always ready and yet may block; "
            "read it with FileReader",
        )
    if hasattr(select, "epoll"):
        with select.epoll() as probe:
            try:
                probe.register(fd, 0)
            except PermissionError:
                raise BadInputError(
                    "Descriptors.Watch(fd)",
                    fd,
                    "a descriptor that can be waited for, as those of sockets, pipes and terminals",
                ) from None


show_public_names(__name__)
show_members(Descriptors)
