"""MetaProcess: what users subclass to bring blocking I/O into the actor world."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar, Unpack, cast

from ..metas.meta import Meta
from ..metas.sender import send
from ..processes.process import Process
from ..runtime.bridge import get_ident
from ..tables.callbacks import default
from ..tables.pending_calls import Caller
from ..tables.timers import Timer
from ..vocabulary.envelopes import Priority
from ..vocabulary.errors import BehaviourError, NotAllowedError, Reject, UnhandledCallError
from ..vocabulary.ids import PID, Alias, Ref, Target
from ..vocabulary.messages import Response
from ..vocabulary.options import MetaKeywords, check_number, read_meta_options
from ..vocabulary.reasons import Normal, Reason, as_reason
from ..vocabulary.states import MetaOperation
from .common import NotSpawned, arm_timer, check_caller, check_error, check_priority, check_timeout

__all__ = ["MetaProcess", "spawn_meta"]

T = TypeVar("T")


class MetaProcess:
    """One object with two halves: a reader that may block, and a handler that serves messages.

    ``start`` is the reader. A plain ``def start`` runs in an OS thread of its own and may block for
    as long as it likes; an ``async def start`` runs as a trio task. When it returns, the
    meta-process ends.

    The handler comes when there are messages. A plain ``def`` callback runs on a worker thread and
    may block; an ``async def`` runs on the event loop and must not. Callbacks never overlap one
    another; the reader runs beside them.

    Instances are given to ``await self.spawn_meta(...)`` in a process. There is no
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
    """A plain function that serves simple messages in their sender's turn; see
    :meth:`Meta.serves_in_passing`.
    """

    _begin_in_passing: Any = None
    """A plain function that does all of ``init`` on the loop if nothing in it has to wait; it says
    False if it did nothing.
    """

    _end_in_passing: Any = None
    """The same for ``terminate``, and given the reason."""

    _needed = False
    """Whether its owner ends with it if it fails, unless ``spawn_meta(..., needed=...)`` says so.
    """

    def _stop_accepting(self) -> Sequence[Process]:
        """What its owner has a server do first when the owner ends; see :func:`stop_all`."""
        return ()

    kind: str = ""
    """Part of the name of the reader's thread, ``ergo-<kind>-<n>``; by default the name of the
    class.
    """

    # -- callbacks ---------------------------------------------------------------------------------

    @default
    def init(self) -> Awaitable[None] | None:
        """Called once before the reader starts: open things here. If it raises, ``spawn_meta``
        raises and nothing remains.
        """
        return None

    def start(self) -> Awaitable[None] | None:
        """Be the reader, from beginning to end. Every meta-process must define this one."""
        raise NotImplementedError

    @default
    def handle_message(self, message: Any, sender: Any) -> Awaitable[None] | None:
        """Called for each message to this meta-process."""
        self._meta.unhandled += 1
        self._meta.log.warning(
            "unhandled message", message_type=type(message).__qualname__, sender=str(sender)
        )
        return None

    @default
    def handle_call(self, request: Any, caller: Caller) -> object:
        """Called for each call. What it returns is the answer, ``NO_REPLY`` defers it, ``raise
        Reject(error)`` refuses it.
        """
        self._meta.unhandled += 1
        raise Reject(UnhandledCallError(self.id, request, type(self).__qualname__))

    @default
    def handle_response(self, response: Response) -> Awaitable[None] | None:
        """Called exactly once for each ``request``, with the answer or with why there is none."""
        return None

    @default
    def handle_inspect(self, *items: str) -> Mapping[str, str]:
        """Called by ``inspect_meta``: a plain, quick function that runs on the event loop, between
        messages.
        """
        return {}

    @default
    def terminate(self, reason: Reason) -> Awaitable[None] | None:
        """Called once at the end, when reader and handler are done and before anybody is told."""
        return None

    def unblock(self) -> None:
        """Wake the reader out of whatever it is blocked in. Must be quick, callable from any
        thread, any number of times.

        What was given to ``opened`` is woken in any case; override this for what is not a socket, a
        pipe, a selector or a program.
        """

    # -- identity ----------------------------------------------------------------------------------

    @property
    def id(self) -> Alias:
        """The identity of this meta-process."""
        return self._meta.id

    @property
    def parent(self) -> PID:
        """The process that owns it."""
        return self._meta.process.id

    @property
    def env(self) -> Mapping[str, object]:
        """Its environment: its own settings over those of its owner."""
        return MappingProxyType(dict(self._meta.env))

    @property
    def log(self) -> Any:
        """A structlog logger bound to this meta-process. From any thread."""
        return self._meta.log

    @cached_property
    def _now(self) -> Callable[[], float]:
        """Tells the time on the node's clock, from any thread. All bridges measure with it, and so
        follow virtual time.
        """
        return self._meta.kernel.clock.now

    # -- verbs of both sides -----------------------------------------------------------------------

    def send(self, to: Target, message: object, *, priority: Priority | None = None) -> bool:
        """Send a message, from the reader or from the handler. The sender that the receiver sees is
        this alias.

        A reader in a thread waits here, or drops, as ``when_behind`` says, when its receivers are
        ``backlog`` messages behind.

        Returns False if nobody is there to receive it.

        Raises:
            MailboxFullError: sent by the handler, and the receiver is full and refuses.
            TargetTypeError: ``to`` is no address.
            NotAllowedError: this reader would not end when it was told to, and was left behind.
        """
        meta = self._meta
        # The reader's own thread, whose receiver nearly always keeps up.
        if (
            priority is None
            and get_ident() == meta.outbox.reader
            and meta.outbox.deliver(to, message, meta.priority)
        ):
            return True
        return send(meta, to, message, priority)

    async def send_wait(
        self, to: Target, message: object, *, priority: Priority | None = None
    ) -> bool:
        """Send a message from ``async`` code, and wait while the receiver is ``backlog`` messages
        behind, or full.

        Raises:
            TargetTypeError: ``to`` is no address.
        """
        return await self._meta.send_wait(to, message, priority)

    def send_after(
        self, delay: float, to: Target, message: object, *, priority: Priority | None = None
    ) -> Timer:
        """Send a message ``delay`` seconds from now. It is taken back if this meta-process ends
        first.

        Raises:
            BadInputError: the delay is negative or no number.
        """
        check_number("delay", delay, least=0.0)
        return self._run(arm_timer, self._meta, delay, 0.0, to, message, priority)

    def send_every(
        self, period: float, to: Target, message: object, *, priority: Priority | None = None
    ) -> Timer:
        """Send a message every ``period`` seconds until cancelled, or until this meta-process ends.

        Raises:
            BadInputError: the period is not positive.
        """
        check_number("period", period, least=1e-6)
        return self._run(arm_timer, self._meta, period, period, to, message, priority)

    def request(
        self,
        to: Target,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority | None = None,
    ) -> Ref:
        """Ask without waiting: exactly one ``handle_response`` follows, unless it is cancelled or
        this meta-process ends.
        """
        check_timeout(timeout)
        return self._run(self._meta.request, to, request, timeout, priority)

    def cancel_request(self, ref: Ref) -> bool:
        """Take a request back. True if it was open: then no ``handle_response`` follows."""
        return self._run(self._meta.cancel_request, ref)

    def reply(self, caller: Caller, value: object) -> bool:
        """Answer a call for which ``handle_call`` returned ``NO_REPLY``. False if nobody waits any
        more.

        Raises:
            NotAllowedError: the handler is not running.
        """
        self._meta.allow(MetaOperation.REPLY)
        return self._meta.kernel.calls.reply(check_caller(caller), value, None)

    def reply_error(self, caller: Caller, error: BaseException) -> bool:
        """Answer such a call with an exception. False if nobody waits any more.

        Raises:
            NotAllowedError: the handler is not running.
        """
        self._meta.allow(MetaOperation.REPLY)
        return self._meta.kernel.calls.reply(check_caller(caller), None, check_error(error))

    def spawn(self, behaviour: "MetaProcess", **options: Unpack[MetaKeywords]) -> Alias:
        """Start a meta-process that belongs to this one, from a thread; it blocks until the child
        is there or refused.

        Raises:
            InitError: its ``init`` raised, and nothing of it remains.
            TooManyReadersError: as many reader threads run as the node allows.
            NotAllowedError: this is ``async`` code, which writes ``await self.spawn_meta(...)``; or
                it is too late.
        """
        meta = self._meta
        meta.router.bridge.refuse_on_loop("self.spawn(...)", "`await self.spawn_meta(...)`")
        meta.allow_spawn()
        check_meta_behaviour(behaviour)
        return meta.spawn_from_thread(behaviour, read_meta_options(options))

    async def spawn_meta(self, behaviour: "MetaProcess", **options: Unpack[MetaKeywords]) -> Alias:
        """The same as :meth:`spawn`, for ``async`` code."""
        self._meta.allow_spawn()
        return await spawn_meta(self._meta, behaviour, options)

    def stop(self, reason: object = Normal()) -> None:
        """End this meta-process. The reader is unblocked, and the callback in progress is allowed
        to finish.
        """
        self._meta.allow(MetaOperation.STOP)
        self._meta.router.bridge.do(self._meta.finish, as_reason(reason))

    @property
    def send_priority(self) -> Priority:
        """The priority of what it sends without saying another."""
        return self._meta.priority

    @send_priority.setter
    def send_priority(self, value: Priority) -> None:
        self._meta.allow(MetaOperation.CONFIGURE)
        self._meta.priority = check_priority(value)

    # -- for the reader ----------------------------------------------------------------------------

    def opened(self, resource: T, *, unblock: Callable[[], object] | None = None) -> T:
        """Register what the reader may block in, so that stopping can wake it, and so that it is
        closed in the end.

        Known are sockets, pipes and fifos, selectors, and programs (``Popen``); for anything else
        give ``unblock``. It returns what it was given: ``with self.opened(open(path)) as f``.
        """
        self._meta.resources.add(resource, unblock)
        return resource

    @property
    def stopping(self) -> bool:
        """Whether the meta-process is to end. A loop that never blocks looks at this."""
        return self._meta.resources.stopping or self._meta.reason is not None

    def wait_readable(self, fd: Any, timeout: float | None = None) -> bool:
        """Block until a descriptor can be read. False if the time is over, or when the meta-process
        is to end.
        """
        check_timeout(timeout)
        self._meta.router.bridge.refuse_on_loop(
            "self.wait_readable(...)", "`await trio.lowlevel.wait_readable(fd)`"
        )
        return self._meta.resources.wait_readable(fd, timeout)

    def pause(self, seconds: float) -> bool:
        """Block this thread for some time, as ``time.sleep`` does. False, at once, when the
        meta-process is to end.
        """
        check_number("seconds", seconds, least=0.0)
        self._meta.router.bridge.refuse_on_loop("self.pause(...)", "`await trio.sleep(seconds)`")
        return self._meta.resources.pause(seconds)

    # -- what a meta-process cannot do -------------------------------------------------------------

    def call(self, to: Target, request: object, **_: object) -> NoReturn:
        """Not for meta-processes: neither half can wait for an answer. Use :meth:`request`."""
        raise NotAllowedError(
            "a meta-process cannot wait for an answer; use self.request(to, request) and "
            "handle_response"
        )

    def link(self, target: object) -> NoReturn:
        """Not for meta-processes: its owner can link, and it ends with its owner."""
        raise NotAllowedError(
            "a meta-process cannot link; it ends with its owner, and the owner can link to its "
            "alias"
        )

    def monitor(self, target: object) -> NoReturn:
        """Not for meta-processes: its owner can monitor and send it a message."""
        raise NotAllowedError(
            "a meta-process cannot monitor; let its owner monitor, and send a message here on Down"
        )

    def _run(self, function: Callable[..., T], *args: Any) -> T:
        bridge = self._meta.router.bridge
        return function(*args) if get_ident() == bridge.loop_thread else bridge.run(function, *args)


def check_meta_behaviour(behaviour: object) -> None:
    """Refuse what cannot be spawned as a meta-process.

    Raises:
        BehaviourError: with the line to write instead.
    """
    if isinstance(behaviour, type) and issubclass(behaviour, MetaProcess):
        raise BehaviourError(
            "spawn_meta(behaviour)",
            behaviour,
            f"an instance: `spawn_meta({behaviour.__name__}(…))`, made for this one spawn",
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
            f"a new instance: this one is, or was, {behaviour._meta.id}",
        )


async def spawn_meta(owner: Process | Meta, behaviour: MetaProcess, options: Any) -> Alias:
    """Start a meta-process for ``owner``."""
    check_meta_behaviour(behaviour)
    return (await Meta.spawn(owner, behaviour, read_meta_options(options))).id
