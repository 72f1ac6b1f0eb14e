"""``MetaProcess``: the base class for blocking I/O, which connects files, sockets and devices to
actors.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack, cast

from ..messaging.calls import Calls
from ..metas.meta import Meta
from ..metas.shared_state import watched_class
from ..metas.spawn import spawn_meta, spawn_meta_from_thread
from ..processes.process import Process
from ..runtime.bridge import get_ident
from ..tables.callbacks import default
from ..tables.pending_calls import Caller
from ..tables.timers import Timer
from ..vocabulary.envelopes import Priority
from ..vocabulary.errors import BehaviourError, Reject, UnhandledCallError
from ..vocabulary.ids import PID, Alias, Ref, Target
from ..vocabulary.messages import Response, Sent
from ..vocabulary.options import MetaKeywords, check_number, read_meta_options
from ..vocabulary.public_names import name_for_annotations, show_public_names
from ..vocabulary.reasons import Normal, Reason, as_reason
from ..vocabulary.states import MetaOperation
from .common import NotSpawned, arm_timer, check_timeout, refused_verb
from .replies_and_timers import RepliesAndTimers

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from .behaviour import Behaviour
else:
    name_for_annotations(
        __name__,
        {
            "structlog.typing": "FilteringBoundLogger",
            "ergo_py._core.verbs.behaviour": "Behaviour",
        },
    )

__all__ = ["MetaProcess", "spawn_checked_meta"]

M = TypeVar("M")
T = TypeVar("T")


class MetaProcess(RepliesAndTimers):
    """A process with two halves: a reader that may block, and a handler that serves messages.

    The reader is ``start``. A plain ``def start`` runs in an OS thread of its own and may block; an
    ``async def start`` runs as a trio task. The handler runs while there are messages. Its
    callbacks never overlap one another, but the reader runs beside them.

    The lifecycle, in order:

    1. ``init`` runs before ``spawn_meta`` returns. An exception in it makes ``spawn_meta`` raise.
    2. The reader runs ``start``, and the handler calls the ``handle_…`` callbacks.
    3. The termination begins: ``start`` returns or raises, ``self.stop()`` is called, or the owner
       ends. ``unblock`` wakes the reader out of a blocking call.
    4. The reader and the callback in progress end, then the meta-processes that it spawned.
    5. ``terminate`` releases resources. Then links, monitors and the owner are notified.

    =================== ==================================================== ====================
    callback            called                                               a plain ``def`` runs
    =================== ==================================================== ====================
    ``init``            once, before the reader starts                       in a worker thread
    ``start``           once: the reader; every meta-process must define it  in its own thread
    ``handle_message``  for each message                                     in a worker thread
    ``handle_call``     for each call; returns the answer                    in a worker thread
    ``handle_response`` once for each ``request``                            in a worker thread
    ``handle_inspect``  for each ``inspect_meta``; must not be ``async``     on the event loop
    ``unblock``         to wake the reader; must not be ``async``            on the event loop
    ``terminate``       once, at the end                                     in a worker thread
    =================== ==================================================== ====================

    An ``async def`` callback runs on the event loop and must not block it.

    A meta-process that reads lines from a pipe, and the actor that owns it::

        import os

        from ergo_py import Actor, MetaProcess, Node, run

        class Lines(MetaProcess):
            def __init__(self, descriptor):
                self.descriptor = descriptor

            def start(self):
                with self.opened(open(self.descriptor)) as lines:
                    for line in lines:  # blocks this thread only
                        self.send(self.parent, line.strip())
                self.send(self.parent, None)

        class Printer(Actor):
            def __init__(self, descriptor):
                self.descriptor = descriptor

            async def init(self):
                await self.spawn_meta(Lines(self.descriptor))

            def handle_message(self, message, sender):
                if message is None:
                    self.stop()  # the pipe has ended
                else:
                    print(message)

        async def main(node: Node):
            reading, writing = os.pipe()
            printer = await node.spawn(Printer, reading)
            with open(writing, "w") as pipe:
                print("first line", file=pipe)
                print("second line", file=pipe)
            await node.wait_ended(printer)

        run(main)  # prints both lines

    Each instance is spawned once, with ``await self.spawn_meta(...)`` in a process. There is no
    ``super().__init__()`` to call.
    """

    _meta: Meta = cast(
        Meta,
        NotSpawned(
            "this meta-process was not spawned yet; do this in init() or start(), which `await "
            "self.spawn_meta(...)` calls"
        ),
    )

    _serve_in_passing: Any = None
    """A plain function that serves simple messages in the sender's turn; see
    :meth:`Meta.serves_in_passing`.
    """

    _begin_in_passing: Any = None
    """A plain function that does all of ``init`` on the loop if no part of it has to wait. Returns
    False if it did nothing.
    """

    _stop_in_passing: Any = None
    """A plain function that ends the reading without a task; see :meth:`Reader.begin`."""

    _end_in_passing: Any = None
    """The same for ``terminate``; takes the reason."""

    _traffic: Any = None
    """A plain function, for any thread, that returns the class of the server or connection, and the
    bytes received and sent.
    """

    _reads_in_task: bool | None = None
    """For a class that lets each object choose its reader: True runs ``start`` in a task, False in
    a thread. None decides by ``async def start`` or ``def start``.
    """

    _needed = False
    """Whether a failure ends the owner as well, unless ``spawn_meta(..., needed=...)`` decides."""

    def _reload(self) -> str:
        """Read files again on behalf of the node. Returns what could not be read, as text."""
        return ""

    def _stop_accepting(self) -> Sequence[Process]:
        """The first step of a server when its owner ends: stop accepting connections; see
        :func:`stop_all`.
        """
        return ()

    kind: str = ""
    """Part of the name of the reader's thread, ``ergo-<kind>-<n>``. Default: the name of
    the class.
    """

    # -- callbacks ---------------------------------------------------------------------------------

    @default
    def init(self) -> Awaitable[None] | None:
        """Called once before the reader starts: open resources here. If it raises, ``spawn_meta``
        raises, and the meta-process is cleaned up.
        """
        return None

    def start(self) -> Awaitable[None] | None:
        """The reader. Every meta-process must define it; the meta-process ends when it returns."""
        raise NotImplementedError

    @default
    def handle_message(self, message: Any, sender: Any) -> Awaitable[None] | None:
        """Called for each message to this meta-process."""
        self._meta.log.warning(
            "unhandled message", message_type=type(message).__qualname__, sender=str(sender)
        )
        return None

    @default
    def handle_call(self, request: Any, caller: Caller) -> object:
        """Called for each call. Its return value is the answer; ``NO_REPLY`` defers the answer;
        ``raise Reject(error)`` refuses the call.
        """
        raise Reject(UnhandledCallError(self.id, request, type(self).__qualname__))

    @default
    def handle_response(self, response: Response) -> Awaitable[None] | None:
        """Called exactly once for each ``request``, with the answer or the error."""
        return None

    @default
    def handle_inspect(self, *items: str) -> Mapping[str, str]:
        """Called by ``inspect_meta``. Must be a plain, quick function: it runs on the event loop,
        between messages. With a further parameter ``asker: PID | None = None`` it gets the PID of
        the process or node that inspects.
        """
        return {}

    @default
    def terminate(self, reason: Reason) -> Awaitable[None] | None:
        """Called once at the end, after the reader and the handler have ended and before any
        notification.
        """
        return None

    def unblock(self) -> None:
        """Wake the reader out of a blocking call. Must be quick, and safe to call from any thread,
        any number of times.

        The kernel itself wakes the resources that were passed to ``opened``. Override this for
        anything but a socket, a pipe, a selector or a program.
        """

    def _calls_for_reply(self) -> Calls:
        self._meta.allow(MetaOperation.REPLY)
        return self._meta.kernel.calls

    def _arm_timer_for(
        self, delay: float, period: float, to: Target, message: object, priority: Priority | None
    ) -> Timer:
        return self._run(arm_timer, self._meta, delay, period, to, message, priority)

    # -- identity ----------------------------------------------------------------------------------

    @property
    def id(self) -> Alias:
        """The identity of this meta-process."""
        return self._meta.id

    @property
    def parent(self) -> PID:
        """The process that owns this meta-process."""
        return self._meta.process.id

    @property
    def env(self) -> Mapping[str, object]:
        """The environment: the settings of this meta-process, over those of its owner."""
        return MappingProxyType(dict(self._meta.env))

    @property
    def log(self) -> "FilteringBoundLogger":
        """A structlog logger bound to this meta-process. From any thread.

        ``self.log = self.log.bind(order=5)`` adds values to all later lines of the meta-process.
        """
        return self._meta.log

    @log.setter
    def log(self, logger: "FilteringBoundLogger") -> None:
        self._meta.use_logger(logger)

    @property
    def _now(self) -> Callable[[], float]:
        """Returns the time on the node's clock, from any thread. All bridges use it, and so follow
        virtual time.
        """
        return self._meta.kernel.clock.now

    # -- verbs of both halves ----------------------------------------------------------------------

    def send(
        self, to: "Target[Behaviour[M]]", message: Sent[M], *, priority: Priority | None = None
    ) -> bool:
        """Send a message, from the reader or from the handler. The receiver sees this alias as the
        sender.

        If a receiver is ``backlog`` messages behind, a reader in a thread waits here
        (backpressure), or drops, according to ``when_behind``.

        Returns False if there is no receiver.

        Raises:
            MailboxFullError: the handler sends, and the receiver is full and refuses.
            TargetTypeError: ``to`` is not an address.
            NotAllowedError: this reader did not end when asked to, and was abandoned.
        """
        meta = self._meta
        # Fast path: the reader's own thread, and a receiver that keeps up.
        if (
            priority is None
            and get_ident() == meta.outbox.reader
            and meta.outbox.deliver(to, message, meta.priority)
        ):
            return True
        return meta.send(to, message, priority)

    async def send_wait(
        self, to: "Target[Behaviour[M]]", message: Sent[M], *, priority: Priority | None = None
    ) -> bool:
        """Send a message from ``async`` code. Waits while the receiver is full or ``backlog``
        messages behind.

        Raises:
            TargetTypeError: ``to`` is not an address.
        """
        return await self._meta.send_wait(to, message, priority)

    def request(
        self,
        to: Target,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority | None = None,
    ) -> Ref:
        """Send a request without waiting for the answer. Exactly one ``handle_response`` follows,
        unless the request is cancelled or this meta-process ends.
        """
        check_timeout(timeout)
        return self._run(self._meta.request, to, request, timeout, priority)

    def cancel_request(self, ref: Ref) -> bool:
        """Cancel a request. True if it was open: then no ``handle_response`` follows."""
        return self._run(self._meta.cancel_request, ref)

    def spawn(self, behaviour: "MetaProcess", **options: Unpack[MetaKeywords]) -> Alias:
        """Start a meta-process that belongs to this meta-process, from a thread. Blocks until the
        child is started or has failed.

        Raises:
            InitError: its ``init`` raised; the child is cleaned up.
            LimitError: of kind ``"readers"``; the node's limit of reader threads is reached.
            NotAllowedError: called from ``async`` code, which writes ``await
                self.spawn_meta(...)``; or this meta-process is ending.
        """
        meta = self._meta
        meta.router.bridge.refuse_on_loop("self.spawn(...)", "`await self.spawn_meta(...)`")
        meta.allow_spawn()
        check_meta_behaviour(behaviour)
        return spawn_meta_from_thread(meta, behaviour, read_meta_options(options))

    async def spawn_meta(self, behaviour: "MetaProcess", **options: Unpack[MetaKeywords]) -> Alias:
        """Do the same as :meth:`spawn`, from ``async`` code."""
        self._meta.allow_spawn()
        return await spawn_checked_meta(self._meta, behaviour, options)

    def stop(self, reason: object = Normal()) -> None:
        """End this meta-process. The kernel unblocks the reader, and lets the callback in progress
        finish.
        """
        self._meta.allow(MetaOperation.STOP)
        self._meta.router.bridge.do(self._meta.finish, as_reason(reason))

    @property
    def send_priority(self) -> Priority:
        """The priority of messages that this meta-process sends without an explicit priority."""
        return self._meta.priority

    @send_priority.setter
    def send_priority(self, value: Priority) -> None:
        self._meta.prefer(value)

    # -- for the reader ----------------------------------------------------------------------------

    def opened(self, resource: T, *, unblock: Callable[[], object] | None = None) -> T:
        """Register a resource that the reader may block in. Stopping wakes the reader out of it,
        and closes it at the end.

        Supported are sockets, pipes and fifos, selectors, and programs (``Popen``); pass
        ``unblock`` for any other resource. Returns the resource: ``with self.opened(open(path)) as
        f``.
        """
        self._meta.resources.add(resource, unblock)
        return resource

    @property
    def stopping(self) -> bool:
        """Whether the meta-process is ending. A reader that never blocks must check this."""
        return self._meta.resources.stopping or self._meta.ending.reason is not None

    def wait_readable(self, fd: object, timeout: float | None = None) -> bool:
        """Block until a descriptor is readable. False if the time is over or the meta-process is
        ending.
        """
        check_timeout(timeout)
        self._meta.router.bridge.refuse_on_loop(
            "self.wait_readable(...)", "`await trio.lowlevel.wait_readable(fd)`"
        )
        return self._meta.resources.wait_readable(fd, timeout)

    def pause(self, seconds: float) -> bool:
        """Block this thread for a time, like ``time.sleep``. Returns False at once when the
        meta-process is ending.
        """
        check_number("seconds", seconds, least=0.0)
        self._meta.router.bridge.refuse_on_loop("self.pause(...)", "`await trio.sleep(seconds)`")
        return self._meta.resources.pause(seconds)

    # -- unavailable verbs -------------------------------------------------------------------------

    call: Callable[..., NoReturn] = refused_verb(
        "a meta-process cannot wait for an answer; use self.request(to, request) and "
        "handle_response"
    )
    link: Callable[..., NoReturn] = refused_verb(
        "a meta-process cannot link; it ends with its owner, and the owner can link to its alias"
    )
    monitor: Callable[..., NoReturn] = refused_verb(
        "a meta-process cannot monitor; let its owner monitor, and send a message here on Down"
    )

    def _watch_writes(self) -> None:
        """Warn about each attribute that both the reader and the handler write. For
        ``debug_shared_state``.
        """

        def report(attribute: str) -> None:
            self._meta.log.warning(
                "an attribute is written by the reader and by the handler; use Counter or Flag, or "
                "let one side own it",
                attribute=attribute,
            )

        self.__class__ = watched_class(type(self), self._meta.running_half, report)

    def _run(self, function: Callable[..., T], *args: object) -> T:
        bridge = self._meta.router.bridge
        return function(*args) if get_ident() == bridge.loop_thread else bridge.run(function, *args)


def check_meta_behaviour(behaviour: object) -> None:
    """Check that ``behaviour`` can be spawned as a meta-process.

    Raises:
        BehaviourError: it cannot. The error shows the line to write instead.
    """
    if isinstance(behaviour, type) and issubclass(behaviour, MetaProcess):
        raise BehaviourError(
            "spawn_meta(behaviour)",
            behaviour,
            f"an instance: `spawn_meta({behaviour.__name__}(…))`, made for a single spawn",
        )
    if not isinstance(behaviour, MetaProcess):
        raise BehaviourError(
            "spawn_meta(behaviour)", behaviour, "an instance of a subclass of MetaProcess"
        )
    cls = type(behaviour)
    if cls.start is MetaProcess.start:
        raise BehaviourError(
            f"{cls.__qualname__}",
            behaviour,
            "a class with a `def start(self)` or `async def start(self)`",
        )
    if isinstance(behaviour._meta, Meta):
        raise BehaviourError(
            "spawn_meta(behaviour)",
            behaviour,
            f"a new instance: {behaviour._meta.id} uses or has used this instance",
        )


async def spawn_checked_meta(owner: Process | Meta, behaviour: MetaProcess, options: Any) -> Alias:
    """Check the behaviour and the options, and start a meta-process for ``owner``."""
    check_meta_behaviour(behaviour)
    return (await spawn_meta(owner, behaviour, read_meta_options(options))).id


show_public_names(__name__)
