"""How a node comes up, and how it goes down: in order, in bounded time, whatever its processes do."""

import time
from collections.abc import Callable, Collection, Mapping
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, TypeVar

import trio

from .backlogs import Backlogs
from .bridge import Lock
from .ending import kill_all, stop_all
from .errors import BadInputError, EscalationError, NodeStoppedError, NotAllowedError
from .info import Ended, ExitReport
from .kernel import Kernel
from .log import Output, check_output
from .node import Node
from .observing import Sight
from .options import check_flag, check_level, check_name, check_number
from .reasons import Shutdown
from .watchdog import Watchdog

__all__ = ["NodeContext", "open_node", "read_permissions"]


class _Creations:
    """Numbers the starts of nodes in this program: no two are the same, whatever the clock says."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = Lock()

    def next(self) -> int:
        """The time, or one more than the last time if the clock stands still or was set back."""
        with self._lock:
            self._last = max(self._last + 1, time.time_ns())
            return self._last


_creations: Final = _Creations()

N = TypeVar("N", bound=Node)


class NodeContext(Generic[N]):
    """What ``open_node`` returns: enter it to have a running node, leave it to have none."""

    def __init__(self, name: str, node_type: type[N], **options: Any) -> None:
        self._name = name
        self._options = options
        self.node_type = node_type
        """The class of the node; what is built on the kernel may have added verbs to it."""
        self._node: N | None = None
        self._entered = False
        self._down = trio.Event()
        self._closing = trio.Event()
        self._ready = trio.Event()
        self._failure: BaseException | None = None
        self.open_control: Callable[[N, frozenset[str]], Callable[[], None]] | None = None
        """Opens the node's control socket with these permissions; returns what closes it. Set by what is built on the kernel."""
        self._close_control: Callable[[], None] | None = None
        self._watchdog: Watchdog | None = None
        self._body: trio.CancelScope | None = None

    if not TYPE_CHECKING:
        # Type checkers see by themselves that neither can be.

        def __enter__(self) -> NoReturn:
            raise NotAllowedError(
                "a node is up while entered: write `async with open_node(...) as node:`; or, in code that is not async,"
                " `from ergo_py.blocking import open_node`"
            )

        __exit__ = __await__ = __enter__

    async def __aenter__(self) -> N:
        if self._entered:
            raise NotAllowedError("this open_node(...) was entered before; call open_node again for another node")
        self._entered = True
        # A task of the system's: what the node holds is not cancelled with the code around it, but stopped in order; and a
        # process that cannot be ended at all can be left behind, where a nursery would wait for it for ever.
        trio.lowlevel.spawn_system_task(self._main, name=f"node {self._name}")
        with trio.CancelScope(shield=True):
            await self._ready.wait()
        node = self._node
        if node is None:
            raise self._failure or NodeStoppedError(self._name)
        threshold = self._options["watchdog"]
        if threshold:
            self._watchdog = node._watchdog = Watchdog(
                node._router.bridge, threshold, node._note_blocked, self._backlogs(node)
            )
        if self.open_control is not None and self._options["control"]:
            try:
                self._close_control = self.open_control(node, self._options["control"])
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._shut_down()
                raise
        self._body = trio.CancelScope()
        self._body.__enter__()
        node._kernel.on_fatal(self._body.cancel)
        trio.lowlevel.spawn_system_task(self._heed_stop, node, self._body, name=f"node {self._name}: stop")
        return node

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._node is not None
        assert self._body is not None
        kernel = self._node._kernel
        with trio.CancelScope(shield=True):
            await self._shut_down()
        self._node._stop_asked.set()
        swallowed = self._body.__exit__(kind, error, trace)
        if kernel.fatal is not None:
            raise kernel.fatal
        if self._failure is not None:
            raise self._failure
        if kernel.escalated is not None and kernel.escalated.reason is not None and (error is None or swallowed):
            raise EscalationError(kernel.escalated, kernel.escalated.reason)
        return bool(swallowed)

    def _backlogs(self, node: N) -> Callable[[], None] | None:
        limit = self._options["mailbox_warning"]
        return None if limit is None else Backlogs(node._router.processes, limit, node._note_long_mailbox).look

    async def _heed_stop(self, node: N, body: trio.CancelScope) -> None:
        await node._stop_asked.wait()
        body.cancel()

    async def _main(self) -> None:
        options = self._options
        try:
            async with trio.open_nursery() as nursery:
                kernel = Kernel(
                    self._name,
                    _creations.next(),
                    nursery,
                    burst=options["burst"],
                    max_processes=options["max_processes"],
                    dead_letter_capacity=options["dead_letters"],
                    env=options["env"],
                    inline_calls=options["inline_calls"],
                    observer=options["observer"],
                    max_reader_threads=options["max_reader_threads"],
                    debug_shared_state=options["debug_shared_state"],
                    on_escalation=options["on_escalation"],
                    log_level=options["log_level"],
                    log_output=options["log_output"],
                    obituaries=options["obituaries"],
                    recent_messages=options["recent_messages"],
                    redact=options["redact"],
                )
                self._node = self.node_type(kernel, options["expose_env"])
                nursery.start_soon(kernel.clock.run, name="clock")
                # Now and not in the task: once a node is open, it has all the descriptors that it needs for itself.
                kernel.router.bridge.hang_bell()
                nursery.start_soon(kernel.router.bridge.serve, name="threads")
                self._ready.set()
                await self._closing.wait()
                kernel.clock.stop()
                kernel.lingering.stop()
        except BaseException as failure:
            # An error that leaves a system task takes the whole run down; the one who opened the node should get it. It may be
            # the cancellation with which the run ends: nothing follows here that would have to be cancelled.
            self._failure = failure
        finally:
            self._ready.set()
            self._down.set()

    async def _shut_down(self) -> None:
        assert self._node is not None
        kernel = self._node._kernel
        began = perf_counter()
        kernel.stopping = True
        before = [Ended(p.id, p.name, p.callbacks.behaviour, None) for p in kernel.router.processes.values()]
        with trio.move_on_after(self._options["stop_timeout"]):
            await stop_all(kernel.roots, Shutdown())
        if kernel.roots:
            late = [Ended(p.id, p.name, p.callbacks.behaviour, None) for p in kernel.router.processes.values()]
            await kill_all(kernel.roots)
            known = {one.pid for one in (*kernel.killed, *kernel.abandoned)}
            kernel.killed.extend(one for one in late if one.pid not in known)
        kernel.router.stopped = True
        kernel.router.bridge.close()
        kernel.breather.stop()
        if self._close_control is not None:
            self._close_control()
        if self._watchdog is not None:
            self._watchdog.stop()
        self._closing.set()
        with trio.move_on_after(0.5):
            await self._down.wait()
        forced = {one.pid for one in (*kernel.killed, *kernel.abandoned)}
        self._node.exit_report = report = ExitReport(
            perf_counter() - began,
            tuple(one for one in before if one.pid not in forced),
            tuple(kernel.killed),
            tuple(kernel.abandoned),
            kernel.escalated,
        )
        (kernel.logger.warning if forced else kernel.logger.info)(str(report))


PERMISSIONS: Final = ("look", "act", "attach")


def read_permissions(given: str | Collection[str]) -> frozenset[str]:
    """Read what is allowed through a control socket.

    Raises:
        BadInputError: something else is named.
    """
    named = [word.strip() for word in given.split(",") if word.strip()] if isinstance(given, str) else given
    if not isinstance(named, Collection) or not all(word in PERMISSIONS for word in named):
        raise BadInputError("control", given, "'look', 'act', 'attach', or several of them, such as 'look,attach'")
    return frozenset(named)


def open_node(
    name: str = "node@localhost",
    *,
    max_processes: int | None = None,
    burst: int = 256,
    dead_letters: int = 1000,
    stop_timeout: float = 30.0,
    log_level: str = "warning",
    log_output: Output = "auto",
    env: Mapping[str, object] | None = None,
    expose_env: bool = False,
    watchdog: float | None = 0.5,
    mailbox_warning: int | None = 10_000,
    inline_calls: bool = True,
    observer: Callable[[Sight], object] | None = None,
    max_reader_threads: int = 10_000,
    debug_shared_state: bool = False,
    on_escalation: Literal["keep", "stop"] = "keep",
    obituaries: int = 100,
    recent_messages: int = 0,
    redact: Callable[[str, object], object] | None = None,
    control: str | Collection[str] = (),
) -> NodeContext[Node]:
    """Make a node that is up while entered with ``async with``, and stops everything on leaving.

    Args:
        name: the node's name, ``name@host`` by custom.
        max_processes: how many processes may live at once; None for no limit.
        burst: after how many messages a process that always has some lets others run.
        dead_letters: how many dead letters are kept for looking at; all are counted.
        stop_timeout: how long an orderly stop may take before what is left is killed.
        log_level: debug, info, warning, error, critical or off.
        log_output: auto, console, json, stdlib, structlog or none. auto takes the host program's structlog or logging if it has
            set one up, else lines on standard error.
        env: the environment that every process inherits.
        expose_env: let snapshots show environments, which may hold secrets.
        watchdog: seconds after which a blocked event loop is reported; None for no watchdog.
        mailbox_warning: how many messages may wait for a process before a warning is logged, once until it has fallen below half of
            that; None for no warning. The watchdog looks at the mailboxes, so there is no warning without one.
        inline_calls: let a call to a sleeping process with a plain ``handle_call`` be answered on the spot.
        observer: a quick function that is told, on the loop, of each ``Spawned``, ``Stopped``, ``Sent`` and ``Delivered``.
        max_reader_threads: how many meta-processes may have a thread of their own at once.
        debug_shared_state: report attributes of meta-processes that both their reader and their handler write. Slow.
        on_escalation: what to do when a supervisor that belongs to the node gives up: ``keep`` running without it, which is logged,
            or ``stop`` the node in order; the ``async with`` then raises ``EscalationError``.
        obituaries: how many ended processes are remembered: of those that failed, of those that peers ended, and of the others.
        recent_messages: of how many of its last messages the types are remembered when a process fails; each message pays for it.
        redact: called as ``redact(what, value)`` before a message (``what`` is ``"message"``) or an attribute (its name) is shown
            as text to whoever looks inside; what it returns is shown instead.
        control: what programs of the same user may do through the node's control socket: ``look``, ``act`` (send, end, suspend),
            ``attach`` (run any code); several as a list, or with commas. There is no socket unless something is named.

    Raises:
        BadInputError: an option has a value that cannot be right.
    """
    check_name(name)
    if max_processes is not None:
        check_number("max_processes", max_processes, least=1, whole=True, hint=", or None for no limit")
    check_number("max_reader_threads", max_reader_threads, least=0, whole=True)
    check_number("burst", burst, least=1, whole=True)
    check_number("dead_letters", dead_letters, least=0, whole=True)
    check_number("stop_timeout", stop_timeout, least=0.0)
    check_number("obituaries", obituaries, least=0, whole=True)
    check_number("recent_messages", recent_messages, least=0, whole=True)
    if redact is not None and not callable(redact):
        raise BadInputError(
            "redact", redact, "a function of the kind of thing and the thing: `def redact(what, value)`"
        )
    check_level(log_level)
    check_output(log_output)
    if on_escalation not in ("keep", "stop"):
        raise BadInputError("on_escalation", on_escalation, "'keep' or 'stop'")
    if observer is not None and not callable(observer):
        raise BadInputError("observer", observer, "a function that takes a Spawned, Stopped, Sent or Delivered")
    if env is not None and not isinstance(env, Mapping):
        raise BadInputError("env", env, "a mapping from names to values")
    if watchdog is not None:
        check_number("watchdog", watchdog, least=0.001, hint=", or None for no watchdog")
    if mailbox_warning is not None:
        check_number("mailbox_warning", mailbox_warning, least=1, whole=True, hint=", or None for no warning")
    check_flag("expose_env", expose_env)
    check_flag("inline_calls", inline_calls)
    check_flag("debug_shared_state", debug_shared_state)
    return NodeContext(
        name,
        Node,
        max_processes=max_processes,
        burst=burst,
        dead_letters=dead_letters,
        stop_timeout=stop_timeout,
        log_level=log_level,
        log_output=log_output,
        env=dict(env or {}),
        expose_env=expose_env,
        watchdog=watchdog,
        mailbox_warning=mailbox_warning,
        inline_calls=inline_calls,
        observer=observer,
        max_reader_threads=max_reader_threads,
        debug_shared_state=debug_shared_state,
        on_escalation=on_escalation,
        obituaries=obituaries,
        recent_messages=recent_messages,
        redact=redact,
        control=read_permissions(control),
    )
