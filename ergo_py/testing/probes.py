"""`Probe`: a process that a test controls, to check the messages of other processes and to answer
their calls.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import UnionType
from typing import Any, NoReturn, TypeVar, Unpack, overload

import trio

from .._core.tables.pending_calls import Caller
from .._core.verbs.behaviour import Behaviour
from .._core.verbs.node import Node
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.errors import NotAllowedError
from .._core.vocabulary.ids import PID, Alias, Called, EventName, NodeName, Target
from .._core.vocabulary.messages import NO_REPLY, Request, Sent, Untyped
from .._core.vocabulary.options import SpawnKeywords, check_number
from .._core.vocabulary.reasons import Reason
from ..actor import Actor
from .patterns import assign, describe, matches

__all__ = ["Probe", "Received"]

T = TypeVar("T")
Callee = TypeVar("Callee")
M = TypeVar("M")
R = TypeVar("R")

Answer = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Received:
    """A message, call or event that a probe received."""

    message: Any
    """The message, the request of a call, or the ``Published`` of an event."""
    sender: Any
    caller: Caller | None = None
    """If it was a call: its caller, who waits for the answer."""


class Probe:
    """A process that keeps the messages it receives, as a test sees it.

    Messages, calls and events are kept in a single order. ``expect`` and its variants read each of
    them once; ``messages`` and ``senders`` always contain all. A probe traps exits, so that the end
    of a linked process is a message like any other.
    """

    def __init__(self, node: Node, pid: PID, process: "_ProbeProcess") -> None:
        self._node = node
        self._process = process
        self._read = 0
        self.pid = pid
        """The address to give to processes that should send to the probe."""
        self.received: list[Received] = process.received
        """Everything received, in order."""

    @classmethod
    async def start(
        cls, node: Node, *, answer: Answer | None = None, **options: Unpack[SpawnKeywords]
    ) -> "Probe":
        """Start a probe on a node.

        Args:
            node: the node.
            answer: called with the request of each call; its return value is the answer, and
                ``raise Reject(error)`` refuses. Without it, calls wait until the test calls
                :meth:`reply` or :meth:`reject`.
            options: those of ``spawn``, such as ``name``.
        """
        made: list[_ProbeProcess] = []
        pid = await node.spawn(_ProbeProcess, answer, made.append, **options)
        return cls(node, pid, made[0])

    def __repr__(self) -> str:
        return f"<Probe {self.pid} {len(self.received)} received, {len(self.unread)} unread>"

    @property
    def messages(self) -> list[Any]:
        """The messages and requests received, read or not."""
        return [received.message for received in self.received]

    @property
    def senders(self) -> list[Any]:
        """The sender of each of them."""
        return [received.sender for received in self.received]

    @property
    def unread(self) -> list[Any]:
        """The messages that no ``expect`` has read yet."""
        return [received.message for received in self.received[self._read :]]

    @property
    def sender(self) -> Any:
        """The sender of the message read last.

        Raises:
            NotAllowedError: no message was read yet.
        """
        if not self._read:
            raise NotAllowedError(
                "no message was read yet, so there is no sender; `await probe.expect(...)` first"
            )
        return self.received[self._read - 1].sender

    # -- reading -----------------------------------------------------------------------------------

    @overload
    async def expect(self, what: type[T], timeout: float = 1.0) -> T: ...
    @overload
    async def expect(self, what: UnionType, timeout: float = 1.0) -> Any: ...
    @overload
    async def expect(self, what: Callable[[Any], bool], timeout: float = 1.0) -> Any: ...
    @overload
    async def expect(self, what: T, timeout: float = 1.0) -> T: ...
    async def expect(self, what: object, timeout: float = 1.0) -> Any:
        """Read the next message, which must be of a type, accepted by a function, or equal to a
        value; wait for it if necessary.

        Raises:
            AssertionError: the next message does not match, or no message arrived in time.
        """
        __tracebackhide__ = True
        message = await self._next(describe(what), timeout)
        if not matches(what, message):
            self._fail(f"expected {describe(what)}, but the next message was {message!r}")
        return message

    @overload
    async def fish(self, what: type[T], timeout: float = 1.0) -> T: ...
    @overload
    async def fish(self, what: UnionType, timeout: float = 1.0) -> Any: ...
    @overload
    async def fish(self, what: Callable[[Any], bool], timeout: float = 1.0) -> Any: ...
    @overload
    async def fish(self, what: T, timeout: float = 1.0) -> T: ...
    async def fish(self, what: object, timeout: float = 1.0) -> Any:
        """Read messages until a message matches. The messages before it are skipped.

        Raises:
            AssertionError: no match arrived in time.
        """
        __tracebackhide__ = True
        check_number("timeout", timeout, least=0.0)
        deadline = trio.current_time() + timeout
        while True:
            message = await self._next(describe(what), deadline - trio.current_time(), timeout)
            if matches(what, message):
                return message

    async def expect_none(self, seconds: float = 0.1, what: object = object) -> None:
        """Wait, and check that no message arrives, or no message that matches. Unread messages
        count, too.

        Raises:
            AssertionError: a message arrived.
        """
        __tracebackhide__ = True
        check_number("seconds", seconds, least=0.0)
        looked = self._read
        with trio.move_on_after(seconds) as scope:
            while True:
                for message in self.messages[looked:]:
                    if matches(what, message):
                        self._fail(f"expected nothing, but {message!r} came")
                looked = len(self.received)
                await self._process.more.wait()
        assert scope.cancelled_caught

    async def expect_in_order(self, *whats: object, timeout: float = 1.0) -> list[Any]:
        """Read as many messages as patterns are given; each must match the pattern at its position.
        The timeout is for all together.

        Raises:
            AssertionError: a message does not match, or too few arrived in time.
        """
        __tracebackhide__ = True
        check_number("timeout", timeout, least=0.0)
        deadline = trio.current_time() + timeout
        found: list[Any] = []
        for number, what in enumerate(whats, 1):
            sought = f"{describe(what)}, number {number} of {len(whats)}"
            message = await self._next(sought, deadline - trio.current_time(), timeout)
            if not matches(what, message):
                self._fail(f"expected {sought}, but {message!r} came")
            found.append(message)
        return found

    async def expect_all(self, *whats: object, timeout: float = 1.0) -> list[Any]:
        """Read as many messages as patterns are given, in any order. Returned in the order of the
        patterns.

        Raises:
            AssertionError: messages and patterns do not match, or too few arrived in time.
        """
        __tracebackhide__ = True
        check_number("timeout", timeout, least=0.0)
        deadline = trio.current_time() + timeout
        sought = "in any order " + ", ".join(map(describe, whats))
        messages = [
            await self._next(sought, deadline - trio.current_time(), timeout) for _ in whats
        ]
        places = assign(list(whats), messages)
        if places is None:
            self._fail(f"expected {sought}, but {', '.join(map(repr, messages))} came")
        return [messages[index] for index in places]

    def clear(self) -> None:
        """Mark everything received as read."""
        self._read = len(self.received)

    async def _next(self, sought: str, timeout: float, shown: float | None = None) -> Any:
        __tracebackhide__ = True
        shown = timeout if shown is None else shown
        check_number("timeout", shown, least=0.0)
        with trio.move_on_after(max(0.0, timeout)):
            while self._read >= len(self.received):
                await self._process.more.wait()
        if self._read >= len(self.received):
            self._fail(f"expected {sought}, but nothing came within {shown:g} s")
        self._read += 1
        return self.received[self._read - 1].message

    def _fail(self, text: str) -> NoReturn:
        __tracebackhide__ = True
        lines = [text]
        if not self._node.processes() or self.pid not in self._node.processes():
            lines.append("the probe itself has ended")
        for number, received in enumerate(self.received):
            mark = "read" if number < self._read else "unread"
            kind = "" if received.caller is None else " (a call)"
            lines.append(f"  {mark:>6}  {received.message!r} from {received.sender}{kind}")
        raise AssertionError(
            "\n".join(lines if self.received else [*lines, "  it has received nothing at all"])
        )

    # -- answering ---------------------------------------------------------------------------------

    @property
    def waiting(self) -> list[Caller]:
        """The calls that wait for an answer of the test, oldest first."""
        self._process.open_calls = deque(
            call for call in self._process.open_calls if not call.settled
        )
        return list(self._process.open_calls)

    def reply(self, value: object, caller: Caller | None = None) -> bool:
        """Answer the call that has waited longest, or a certain call. False if its caller no longer
        waits.

        Raises:
            AssertionError: no call is open.
        """
        __tracebackhide__ = True
        return self._node.reply(self._open_call(caller), value)

    def reject(self, error: BaseException, caller: Caller | None = None) -> bool:
        """Refuse a call: its caller gets the error. False if its caller no longer waits.

        Raises:
            AssertionError: no call is open.
        """
        __tracebackhide__ = True
        return self._node.reply_error(self._open_call(caller), error)

    def _open_call(self, caller: Caller | None) -> Caller:
        __tracebackhide__ = True
        calls = self._process.open_calls
        if caller is not None:
            if caller in calls:
                calls.remove(caller)
            return caller
        if not calls:
            self._fail("there is no call to answer")
        return calls.popleft()

    # -- acting ------------------------------------------------------------------------------------

    def send(
        self, to: Target[Behaviour[M]], message: Sent[M], *, priority: Priority | None = None
    ) -> bool:
        """Send a message as the probe, so that answers arrive at the probe."""
        return self._process.send(to, message, priority=priority)

    @overload
    async def call(
        self, to: Target, request: Untyped | None, *, timeout: float | None = 5.0
    ) -> Any: ...
    @overload
    async def call(
        self, to: Called[Callee], request: Request[R, Callee], *, timeout: float | None = 5.0
    ) -> R: ...
    async def call(self, to: Target, request: object, *, timeout: float | None = 5.0) -> Any:
        """Call as the probe. It keeps receiving meanwhile."""
        kernel = self._node._kernel
        # None as the process: the test's task waits, not the probe's.
        return await kernel.calls.call(None, self.pid, to, request, timeout, Priority.NORMAL)

    async def do(self, action: Callable[[Actor], T | Coroutine[Any, Any, T]]) -> T:
        """Run a function inside a callback of the probe: ``await probe.do(lambda me:
        me.create_alias())``.
        """
        result: T = await self._node.call(self.pid, _Do(action))
        return result

    async def link(self, target: Target | EventName | NodeName) -> None:
        """Get an ``Exit`` message when ``target`` ends."""
        await self.do(lambda me: me.link(target))

    async def monitor(self, target: Target | EventName | NodeName) -> None:
        """Get a ``Down`` message when ``target`` ends."""
        await self.do(lambda me: me.monitor(target))

    async def subscribe(self, event: str | EventName) -> None:
        """Get a ``Published`` for each publication of an event."""
        await self.do(lambda me: me.subscribe(event))

    async def stop(self) -> Reason:
        """End the probe. Calls that it has not answered end with ``TargetDownError``."""
        self._node.send_exit(self.pid)
        return await self._node.wait_ended(self.pid)


@dataclass(frozen=True, slots=True)
class _Do:
    """A function to run in the probe's callback."""

    action: Callable[[Actor], Any]


class _ProbeProcess(Actor):
    __qualname__ = "Probe"  # shown in trees and logs

    def __init__(self, answer: Answer | None, announce: "Callable[[_ProbeProcess], None]") -> None:
        announce(self)
        self.received: list[Received] = []
        self.open_calls: deque[Caller] = deque()
        self.more: trio.Event = trio.Event()
        self._answer = answer

    def init(self) -> None:
        self.trap_exit = True

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        self._note(Received(message, sender))

    def handle_event(self, event: Any) -> None:
        self._note(Received(event, event.event))

    # Async only for `_Do`; nothing else waits here, so messages keep their order.
    async def handle_call(self, request: object, caller: Caller) -> object:
        if isinstance(request, _Do):
            result = request.action(self)
            return await result if isinstance(result, Coroutine) else result
        self._note(Received(request, caller.pid, caller))
        if self._answer is not None:
            return self._answer(request)
        self.open_calls.append(caller)
        return NO_REPLY

    def _note(self, received: Received) -> None:
        self.received.append(received)
        self.more.set()
        self.more = trio.Event()
