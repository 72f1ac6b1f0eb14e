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
from ..supervision.specs import ChildSpec
from ..supervision.upgrade import Upgrade
from .channel import Channel, Line
from .forwarded_requests import (
    plain_request,
    plain_response,
    read_request,
    read_response,
    unavailable,
)

if TYPE_CHECKING:
    from ..network.messages.message_types import MessageTypes

__all__ = ["ForwardingProcess", "Link", "serve_forwarded"]


class Link:
    """The way from the moved processes of the old program to the new program."""

    def __init__(self, channel: Channel, types: "Mapping[str | int, MessageTypes]") -> None:
        self._channel = channel
        self._types = types
        """The codecs of the processes, by name, and of sessions, by number."""
        self.names: dict[PID, str | int] = {}
        """The names of the processes, and the numbers of sessions."""
        self.upgrade: Upgrade = Upgrade(
            "moved", ChildSpec("moved", ForwardingProcess, self), _nothing
        )
        """Puts a `ForwardingProcess` in the place of a process. One for all of them."""
        self.sent: int = 0
        """The messages and calls that were forwarded."""
        self._numbers = count()
        self._asked: dict[int, tuple[Caller, MessageTypes]] = {}
        """The calls that the new program has not answered yet."""

    async def send(self, process: PID, message: object) -> None:
        """Forward a message of a process.

        Raises:
            TypeError: a part of the message has no encoding.
            OSError: the new program has ended.
        """
        name = self.names[process]
        await self._channel.say({"message": name}, body=self._types[name].encode(message))
        self.sent += 1

    async def call(self, process: PID, request: object, caller: Caller) -> None:
        """Forward a call of a process, which the answer of the new program settles.

        Raises:
            TypeError: a part of the request has no encoding.
            OSError: the new program has ended.
        """
        name, number = self.names[process], next(self._numbers)
        types = self._types[name]
        line = {"call": name, "number": number}
        try:
            body = types.encode(request)
        except TypeError:
            if (plain := plain_request(request)) is None:
                raise
            line, body = {**line, "http": True}, types.encode(plain)
        self._asked[number] = caller, types
        try:
            await self._channel.say(line, body=body)
        except BaseException:
            self._asked.pop(number, None)
            raise
        self.sent += 1

    async def pass_answers(self, kernel: Kernel, hear: Callable[[Line], None]) -> None:
        """Pass the answers to the callers, until the new program has ended. ``hear`` takes the
        answers for connections.
        """
        while line := await self._channel.hear():
            if "begun" in line or "arrived" in line:
                hear(line)
            number = _number(line.get("answer"))
            if number not in self._asked:
                continue
            caller, types = self._asked.pop(number)
            try:
                value, has_failed = types.decode(line["body"]), bool(line.get("has_failed"))
                if line.get("http"):
                    kernel.calls.reply(caller, read_response(value), None)
                    continue
            except Exception as error:  # of a type that is not listed here
                value, has_failed = error, True
            if has_failed:
                kernel.calls.reply(caller, None, value)
            else:
                kernel.calls.reply(caller, value, None)
        asked, self._asked = self._asked, {}
        for caller, _ in asked.values():
            caller.settle(None, TargetDownError(caller.to, caller.request, NoProcess()))


def _nothing(_old: object, _new: object) -> None:
    """Keep no attribute: the state has moved."""


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1


class ForwardingProcess(Actor):
    """Stands for a process that has moved to the new program."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def handle_message(self, message: object, sender: object) -> None:
        """Forward a message. Its sender in the new program is the node."""
        try:
            await self._link.send(self.pid, message)
        except (OSError, TypeError) as error:
            self.log.error(
                "a message cannot be forwarded to the next program",
                message_type=type(message).__qualname__,
                error=text_of(error),
            )

    async def handle_call(self, request: object, caller: Caller) -> object:
        """Forward a call."""
        try:
            await self._link.call(self.pid, request, caller)
        except (OSError, TypeError) as error:
            if type(request).__name__ == "HTTPRequest":
                raise Reject(unavailable()) from error
            name = self._link.names[self.pid]
            raise Reject(
                SendError(
                    f"the process {name!r} has moved to the next program, and the call "
                    f"cannot be forwarded: {text_of(error)}",
                    str(name),
                    request,
                )
            ) from error
        return NO_REPLY


class _ForwardedCaller(Caller):
    """A call of the old program, in the new one. It does not wait in a task, so that calls and
    messages keep their order.
    """

    __slots__ = ("_answer", "asked", "is_http", "types")

    def __init__(
        self,
        kernel: Kernel,
        asked: int,
        to: str | PID,
        request: object,
        types: "MessageTypes",
        answer: "Callable[[_ForwardedCaller], None]",
        is_http: bool,
    ) -> None:
        super().__init__(kernel.pid, next(kernel.router.references), to, request)
        self.asked = asked
        """The number of the call in the old program."""
        self.types = types
        self.is_http = is_http
        """Whether it is a request of a web server."""
        self._answer = answer

    def awaken(self) -> None:
        """Pass the answer on."""
        self._answer(self)


async def serve_forwarded(
    kernel: Kernel,
    channel: Channel,
    find: "Callable[[str | int], tuple[str | PID, MessageTypes]]",
    take: Callable[[Line], None],
) -> None:
    """Serve the forwarded messages and calls, until the old program has ended. ``find`` returns the
    target of a name, or of the number of a session, and its codec. ``take`` takes the lines for
    connections.
    """
    put, answers = trio.open_memory_channel[_ForwardedCaller](inf)

    async def answer() -> None:
        async for caller in answers:
            has_failed, types = caller.error is not None, caller.types
            given, plain = caller.error if has_failed else caller.value, None
            if caller.is_http:
                plain = plain_response(kernel, caller.to, caller.request, given)
            if plain is not None:
                given, has_failed = plain, False
            try:
                body = types.encode(given)
            except TypeError as error:  # the answer has no encoding
                body, has_failed = types.encode(error), True
            line = {"answer": caller.asked, "has_failed": has_failed, "http": plain is not None}
            try:
                await channel.say(line, body=body)
            except OSError:  # the old program has ended, and its callers with it
                return

    def serve(line: Line) -> None:
        kind = "message" if "message" in line else "call"
        if kind not in line:
            take(line)
            return
        to, types = find(line[kind])
        message = types.decode(line["body"])
        if kind == "message":
            kernel.router.send(kernel.pid, to, message, Priority.NORMAL)
        else:
            if is_http := "http" in line:
                message = read_request(kernel, message)
            number = _number(line.get("number"))
            caller = _ForwardedCaller(kernel, number, to, message, types, put.send_nowait, is_http)
            kernel.calls.begin(caller, Priority.NORMAL)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        while line := await channel.hear():
            try:
                serve(line)
            except Exception as error:  # of a type that is not listed here, or the mailbox is full
                kernel.logger.error("a message of the old program is lost", error=text_of(error))
        nursery.cancel_scope.cancel()
