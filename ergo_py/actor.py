"""Actor: the behaviour most people write."""

from collections.abc import Awaitable, Mapping
from typing import Any

from ._core.tables.callbacks import default
from ._core.tables.pending_calls import Caller
from ._core.verbs.behaviour import Behaviour
from ._core.vocabulary.errors import Reject, UnhandledCallError
from ._core.vocabulary.ids import Alias
from ._core.vocabulary.messages import LogRecord
from ._core.vocabulary.reasons import Reason
from .service import Service

__all__ = ["Actor"]


class Actor(Behaviour):
    """A process with callbacks. Override those you need; each may be ``def`` or ``async def``.

    One callback runs at a time, and one message is handled at a time. An exception that leaves a
    callback ends the process; ``raise Reject(error)`` in ``handle_call`` only refuses. A plain
    ``def`` is a little cheaper, and lets a call be answered without a turn of the scheduler; an
    ``async def`` may wait.
    """

    split_handle: bool = False
    """Set to True to have messages and calls that came by name or by alias go to
    ``handle_message_name`` and its like.
    """

    def service(self, name: str) -> Service:
        """The address of a supervised child on this node, which survives its restarts; what goes
        through it has this sender.

        Raises:
            ChildUnknownError: no supervisor on the node has a registered child of that name.
        """
        process = self._process
        return Service.find(process.kernel, name, process)

    @default
    def init(self) -> Awaitable[None] | None:
        """Called once, before ``spawn`` returns. If it raises, nothing of the process remains and
        ``spawn`` raises.
        """
        return None

    @default
    def post_start(self) -> Awaitable[None] | None:
        """Called once, after ``spawn`` has returned and before any message: for work that whoever
        spawned need not wait for.
        """
        return None

    @default
    def post_restart(self, reason: Reason) -> Awaitable[None] | None:
        """Called before ``post_start`` in a process that a supervisor started in place of one that
        ended with ``reason``.
        """
        return None

    @default
    def handle_message(self, message: Any, sender: Any) -> Awaitable[None] | None:
        """Called for each message. ``sender`` is the PID of the process that sent it, or the alias
        of a meta-process.
        """
        process = self._process
        process.unhandled += 1
        process.log.warning(
            "unhandled message", message_type=type(message).__qualname__, sender=str(sender)
        )
        return None

    @default
    def handle_call(self, request: Any, caller: Caller) -> object:
        """Called for each call. What it returns is the answer, ``NO_REPLY`` defers it, ``raise
        Reject(error)`` refuses it.
        """
        self._process.unhandled += 1
        raise Reject(UnhandledCallError(self.pid, request, type(self).__qualname__))

    @default
    def handle_message_name(self, name: str, message: Any, sender: Any) -> Awaitable[None] | None:
        """With ``split_handle``: called for messages that were sent to the process's name."""
        return self.handle_message(message, sender)

    @default
    def handle_message_alias(
        self, alias: Alias, message: Any, sender: Any
    ) -> Awaitable[None] | None:
        """With ``split_handle``: called for messages that were sent to one of its aliases."""
        return self.handle_message(message, sender)

    @default
    def handle_call_name(self, name: str, request: Any, caller: Caller) -> object:
        """With ``split_handle``: called for calls to the process's name."""
        return self.handle_call(request, caller)

    @default
    def handle_call_alias(self, alias: Alias, request: Any, caller: Caller) -> object:
        """With ``split_handle``: called for calls to one of its aliases."""
        return self.handle_call(request, caller)

    @default
    def handle_event(self, event: Any) -> Awaitable[None] | None:
        """Called for each event the process has subscribed to."""
        return None

    @default
    def handle_log(self, record: LogRecord) -> Awaitable[None] | None:
        """Called for each log record, if the process was made a logger with ``node.add_logger``."""
        return None

    @default
    def handle_inspect(self, *items: str) -> Mapping[str, str] | Awaitable[Mapping[str, str]]:
        """Called by ``node.inspect``; returns what a person should see, as strings."""
        return {}

    @default
    def handle_child_exit(self, child: Any, reason: Reason) -> Awaitable[None] | None:
        """Called when a process or meta-process that this one spawned has ended; ``child`` is its
        PID or alias.
        """
        return None

    @default
    def pre_stop(self, reason: Reason) -> Awaitable[None] | None:
        """Called once when the process is going to end, before its children are stopped."""
        return None

    @default
    def pre_restart(self, reason: Reason) -> Awaitable[None] | None:
        """Called instead of ``pre_stop`` if its supervisor means to start a successor."""
        return None

    @default
    def terminate(self, reason: Reason) -> Awaitable[None] | None:
        """Called once at the end, after its children have stopped and before anybody is told. For
        releasing things.
        """
        return None
