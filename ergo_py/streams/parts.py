"""`PartStream`: a reply in parts, which a task of the callee produces as the reader asks for it."""

from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any, Generic, TypeVar

import outcome
import trio

from .._core.processes.process import Process
from .._core.vocabulary.errors import (
    BadInputError,
    CallTimeoutError,
    NotAllowedError,
    TargetDownError,
    TaskEndedError,
)
from .._core.vocabulary.ids import PID, Alias
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import is_a
from ..tasks.channel import Channel
from ..tasks.handle import Task
from ..tasks.process import Runner
from ..tasks.stream import ClosableIterator, TaskStream, each

__all__ = ["CalledStream", "PartStream"]

R = TypeVar("R")


class PartStream(TaskStream[R]):
    """A reply in parts: an async iterator that ``handle_call`` returns with ``self.stream(parts)``.

    Production begins with the first part that the reader asks for, and is never more than
    ``credit`` parts ahead of the reader. It ends with its callee, and when the reader drops the
    stream or its process ends. ``async with`` waits, in addition, until production has ended.
    """

    __slots__ = ("_production", "_source")

    def __init__(
        self,
        start: Callable[[Runner, str], Task[None]],
        parts: Iterable[R] | AsyncIterable[R],
        credit: int,
        source: PID | Alias,
        name: str,
    ) -> None:
        if not isinstance(parts, Iterable | AsyncIterable):
            raise BadInputError(
                "stream(parts)", parts, "an iterable or an async iterable, such as a generator"
            )
        check_number("credit", credit, least=1, whole=True)
        self._source = source
        self._production = production = _Production(parts, credit)
        self._channel = production.channel
        self._begin(start(production.run, name))

    def __repr__(self) -> str:
        return f"<PartStream of {self._source}: {self._channel}>"

    async def __anext__(self) -> R:
        return await self._next()  # type: ignore[no-any-return]

    def _raise_failure(self, task: Task[None]) -> None:
        if is_a(task.failure, TaskEndedError):
            raise TargetDownError(self._source, None, task.failure.reason)
        task.result()

    def _read_by(self, reader: Process | None, credit: int | None) -> None:
        self._production.read_by(reader, credit)


class _Production:
    """The task that puts the parts into the channel."""

    __slots__ = ("_parts", "_reader", "channel")

    def __init__(self, parts: Iterable[Any] | AsyncIterable[Any], credit: int) -> None:
        self._parts = parts
        self._reader: Process | None = None
        self.channel: Channel[Any] = Channel(credit)

    def read_by(self, reader: Process | None, credit: int | None) -> None:
        """Note the process that reads, with whose end production ends, and its credit."""
        self._reader = reader
        if credit is not None:
            self.channel.use_credit(credit)

    async def run(self, process: Process) -> None:
        """Put the parts into the channel, as far as the credit of the reader allows."""
        channel = self.channel
        await channel.wait_until(lambda: channel.was_asked)
        if self._reader is None:
            await self._fill(process)
            return
        result: outcome.Outcome[None] | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_with, self._reader, nursery.cancel_scope)
            try:
                await self._fill(process)
            except Exception as error:
                # Not through the nursery, which would wrap it in a group.
                result = outcome.Error(error)
            nursery.cancel_scope.cancel()
        if result is not None:
            result.unwrap()

    async def _fill(self, process: Process) -> None:
        channel = self.channel
        async with aclosing(each(self._parts)) as parts:
            async for part in parts:
                channel.put(part)
                await process.router.pause()
                await channel.wait_until(channel.has_room)
        channel.finish()

    async def _end_with(self, reader: Process, scope: trio.CancelScope) -> None:
        await reader.wait_gone()
        scope.cancel()


class CalledStream(ClosableIterator, Generic[R]):
    """The parts of the reply to a call: the async iterator of ``call_stream``.

    The call is made when the first part is asked for.
    """

    __slots__ = ("_call", "_credit", "_parts", "_reader", "_request", "_timeout", "_to")

    def __init__(
        self,
        call: Callable[[], Coroutine[Any, Any, Any]],
        to: object,
        request: object,
        timeout: float | None,
        credit: int | None,
        reader: Process | None,
    ) -> None:
        if credit is not None:
            check_number("credit", credit, least=1, whole=True)
        self._call = call
        self._to, self._request = to, request
        self._timeout, self._credit = timeout, credit
        self._reader = reader
        self._parts: PartStream[R] | None = None

    async def open(self) -> "PartStream[R]":
        """Make the call, unless it was made."""
        if self._parts is None:
            self._parts = await self._open()
        return self._parts

    async def __anext__(self) -> R:
        parts = await self.open()
        if self._timeout is None:
            return await anext(parts)
        with trio.move_on_after(self._timeout):
            return await anext(parts)
        parts._close()
        raise CallTimeoutError(self._to, self._request, self._timeout)

    async def _open(self) -> "PartStream[R]":
        answer = await self._call()
        if not isinstance(answer, PartStream):
            raise NotAllowedError(
                f"{self._to!r} answered {type(self._request).__qualname__} with "
                f"{type(answer).__qualname__} and not in parts: its handle_call has to `return "
                "self.stream(parts)`; for a single answer use `call`"
            )
        answer._read_by(self._reader, self._credit)
        return answer

    async def aclose(self) -> None:
        """End the stream, and wait until production has ended."""
        if self._parts is not None:
            await self._parts.aclose()


show_public_names(__name__)
