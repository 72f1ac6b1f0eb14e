"""`ForwardingProcess`: a process of the old program whose state has moved. It forwards messages and
calls to the new program, which serves them with `serve_forwarded`, in their order.
"""

from collections.abc import Callable, Mapping
from itertools import count
from math import inf
from typing import TYPE_CHECKING

import trio

from .._core.kernel import Kernel
from .._core.tables.pending_calls import Caller
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.errors import Reject, SendError, TargetDownError
from .._core.vocabulary.ids import PID
from .._core.vocabulary.messages import NO_REPLY
from .._core.vocabulary.reasons import NoProcess
from .._core.vocabulary.text import text_of
from ..actor import Actor
from .channel import Channel, Line

if TYPE_CHECKING:
    from ..network.messages.message_types import MessageTypes

__all__ = ["ForwardingProcess", "Link", "serve_forwarded"]


class Link:
    """The way from the moved processes of the old program to the new program."""

    def __init__(self, channel: Channel, types: "Mapping[str | int, MessageTypes]") -> None:
        self._channel = channel
        self._types = types
        """The codecs of the processes, by name, and of sessions, by number."""
        self._numbers = count()
        self._asked: dict[int, tuple[Caller, MessageTypes]] = {}
        """The calls that the new program has not answered yet."""

    async def send(self, name: str | int, message: object) -> None:
        """Forward a message.

        Raises:
            TypeError: a part of the message has no encoding.
            OSError: the new program has ended.
        """
        await self._channel.say({"message": name}, body=self._types[name].encode(message))

    async def call(self, name: str | int, request: object, caller: Caller) -> None:
        """Forward a call, which the answer of the new program settles.

        Raises:
            TypeError: a part of the request has no encoding.
            OSError: the new program has ended.
        """
        types, number = self._types[name], next(self._numbers)
        body = types.encode(request)
        self._asked[number] = caller, types
        try:
            await self._channel.say({"call": name, "number": number}, body=body)
        except BaseException:
            self._asked.pop(number, None)
            raise

    async def pass_answers(self, kernel: Kernel) -> None:
        """Pass the answers to the callers, until the new program has ended."""
        while line := await self._channel.hear():
            number = _number(line.get("answer"))
            if number not in self._asked:
                continue
            caller, types = self._asked.pop(number)
            try:
                value, has_failed = types.decode(line["body"]), bool(line.get("has_failed"))
            except Exception as error:  # of a type that is not listed here
                value, has_failed = error, True
            if has_failed:
                kernel.calls.reply(caller, None, value)
            else:
                kernel.calls.reply(caller, value, None)
        asked, self._asked = self._asked, {}
        for caller, _ in asked.values():
            caller.settle(None, TargetDownError(caller.to, caller.request, NoProcess()))


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1


class ForwardingProcess(Actor):
    """Stands for a process that has moved to the new program."""

    def __init__(self, name: str | int, link: Link) -> None:
        self._name = name
        self._link = link

    async def handle_message(self, message: object, sender: object) -> None:
        """Forward a message. Its sender in the new program is the node."""
        try:
            await self._link.send(self._name, message)
        except (OSError, TypeError) as error:
            self.log.error(
                "a message cannot be forwarded to the next program",
                message_type=type(message).__qualname__,
                error=text_of(error),
            )

    async def handle_call(self, request: object, caller: Caller) -> object:
        """Forward a call."""
        try:
            await self._link.call(self._name, request, caller)
        except (OSError, TypeError) as error:
            raise Reject(
                SendError(
                    f"the process {self._name!r} has moved to the next program, and the call "
                    f"cannot be forwarded: {text_of(error)}",
                    str(self._name),
                    request,
                )
            ) from error
        return NO_REPLY


class _ForwardedCaller(Caller):
    """A call of the old program, in the new one. It does not wait in a task, so that calls and
    messages keep their order.
    """

    __slots__ = ("_answer", "asked", "types")

    def __init__(
        self,
        kernel: Kernel,
        asked: int,
        to: str | PID,
        request: object,
        types: "MessageTypes",
        answer: "Callable[[_ForwardedCaller], None]",
    ) -> None:
        super().__init__(kernel.pid, next(kernel.router.references), to, request)
        self.asked = asked
        """The number of the call in the old program."""
        self.types = types
        self._answer = answer

    def awaken(self) -> None:
        """Pass the answer on."""
        self._answer(self)


async def serve_forwarded(
    kernel: Kernel,
    channel: Channel,
    types: "Mapping[str | int, MessageTypes]",
    sessions: Mapping[int, PID],
    write_late: Callable[[Line], None],
) -> None:
    """Serve the forwarded messages and calls, until the old program has ended. ``types`` are the
    codecs of the processes, by name, and of the ``sessions``, by number. ``write_late`` takes the
    lines for connections.
    """
    put, answers = trio.open_memory_channel[_ForwardedCaller](inf)

    async def answer() -> None:
        async for caller in answers:
            has_failed = caller.error is not None
            try:
                body = caller.types.encode(caller.error if has_failed else caller.value)
            except TypeError as error:  # the answer has no encoding
                body, has_failed = caller.types.encode(error), True
            line = {"answer": caller.asked, "has_failed": has_failed}
            try:
                await channel.say(line, body=body)
            except OSError:  # the old program has ended, and its callers with it
                return

    def serve(line: Line) -> None:
        if "late" in line:
            write_late(line)
        kind = "message" if "message" in line else "call"
        if kind not in line:
            return
        name: str | int = line[kind]
        to = sessions[name] if isinstance(name, int) else str(name)
        if kind == "message":
            message = types[name].decode(line["body"])
            kernel.router.send(kernel.pid, to, message, Priority.NORMAL)
        else:
            number, request = _number(line.get("number")), types[name].decode(line["body"])
            caller = _ForwardedCaller(kernel, number, to, request, types[name], put.send_nowait)
            kernel.calls.begin(caller, Priority.NORMAL)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        while line := await channel.hear():
            try:
                serve(line)
            except Exception as error:  # of a type that is not listed here, or the mailbox is full
                kernel.logger.error("a message of the old program is lost", error=text_of(error))
        nursery.cancel_scope.cancel()
