"""``open_node`` and ``NodeContext``: start-up and graceful shutdown of a node, in a fixed order and
in bounded time.
"""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NoReturn,
    Protocol,
    TypedDict,
    TypeVar,
)

import trio
from trio.lowlevel import enable_ki_protection, in_trio_task

from .inspection.mailbox_backlog import Backlogs
from .inspection.state import remember_messages
from .inspection.watchdog import Watchdog
from .kernel import Kernel, TaskGuard
from .messaging.observer import Sight
from .messaging.remote import Network, RunningNetwork
from .messaging.traces import TracedProcess, TracedSends, Tracing, call_with_trace
from .open_nodes import open_nodes, opened_at
from .processes.ownership import kill_all, stop_all
from .processes.process import processes_of
from .runtime.abandonable import Abandonable
from .runtime.dispatcher_threads import LoopPin
from .runtime.keyboard_interrupt import Interrupts
from .runtime.thread_parent import capture_cancellation

# Every node uses the C extension, if it was built.
from .speed import installation
from .verbs.node import Node
from .vocabulary.choices import PERMISSIONS
from .vocabulary.errors import BadInputError, EscalationError, NodeStoppedError, NotAllowedError
from .vocabulary.hints import explain
from .vocabulary.info import ExitReport
from .vocabulary.options import KeepMessages, NodeOptions, Output, Rereadable, read_now
from .vocabulary.reasons import Shutdown, is_a

__all__ = [
    "Beside",
    "ControlSocket",
    "NodeContext",
    "NodeKeywords",
    "ReportKeywords",
    "open_node",
    "read_permissions",
]


class ControlSocket(Protocol):
    """The control socket of a node."""

    def permit(self, permissions: frozenset[str], /) -> None:
        """Give these permissions to all clients from now on."""

    def close(self) -> None:
        """Disconnect all clients, and remove the socket."""


class Beside(Protocol):
    """An object that works beside a node, such as ``Observe``: for ``open_node(beside=[…])``."""

    @property
    def control(self) -> frozenset[str]:
        """The permissions of the control socket that it needs."""
        ...

    def open(self, node: object, /) -> Callable[[], object]:
        """Begin, in a thread that may block; return the function that ends it, which may block,
        too. The control socket of the node is open by then.
        """
        ...


class ReportKeywords(TypedDict, total=False):
    """The options of :func:`open_node` for what a node tells: its log, its warnings, and looking
    inside.
    """

    log_level: Rereadable[str]
    log_output: Output
    redact: Callable[[str, object], object] | None
    control: Rereadable[str | Collection[str]]
    observer: Callable[[Sight], object] | None
    tracing: Tracing | None
    watchdog: float | None
    mailbox_warning: int | None
    debug_shared_state: bool


class NodeKeywords(ReportKeywords, total=False):
    """The options of :func:`open_node`, for the functions that hand them on: a type checker reports
    a misspelled option there, too.
    """

    env: Mapping[str, object] | None
    expose_env: bool
    network: Network | None
    beside: Sequence[Beside]
    stop_timeout: float
    on_escalation: Literal["keep", "stop"]
    max_processes: int | None
    max_reader_threads: int
    dead_letters: int | KeepMessages
    obituaries: int
    recent_messages: int
    burst: int
    inline_calls: bool
    direct_handoff: bool
    cpu: int | None


N = TypeVar("N", bound=Node)

_RUN_OVER: Final = (
    "the `trio.run(…)` that opened it is over, as at the end of each IPython cell with "
    "`%autoawait trio`; there, write `from ergo_py.blocking import open_node`"
)
_GRACE: Final = 0.5
"""Seconds that the node's own tasks have to end."""


class NodeContext(Generic[N]):
    """The result of ``open_node``: an async context manager that runs the node."""

    def __init__(self, options: NodeOptions, node_type: type[N]) -> None:
        self._place = opened_at()
        self._options = options
        self._node_type: type[N] = node_type
        self._node: N | None = None
        self._entered = False
        self._down = trio.Event()
        self._closing = trio.Event()
        self._ready = trio.Event()
        self._over = trio.Event()
        self._patience = trio.CancelScope()
        """Cancelled by a second Ctrl-C: the graceful shutdown is over."""
        self._interrupts = Interrupts()
        self._failure: BaseException | None = None
        self._open_control: Callable[[N, frozenset[str]], ControlSocket] | None = None
        self._control: ControlSocket | None = None
        self._close_beside: list[Callable[[], object]] = []
        self._watchdog: Watchdog | None = None
        self._network: RunningNetwork | None = None
        self._body = trio.CancelScope()
        self._holds_cpu = False

    def extend(
        self,
        node_type: type[N],
        open_control: Callable[[N, frozenset[str]], ControlSocket],
    ) -> None:
        """For the layers above the kernel: add the verbs of a subclass, and the function that opens
        the control socket with these permissions.
        """
        self._node_type = node_type
        self._open_control = open_control

    if not TYPE_CHECKING:
        # Type checkers report both mistakes themselves.

        def __enter__(self) -> NoReturn:
            raise NotAllowedError(
                "a node is up while entered: write `async with open_node(...) as node:`; or, in "
                "code that is not async,"
                " `from ergo_py.blocking import open_node`"
            )

        __exit__ = __await__ = __enter__

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                # Python itself probes for special methods.
                raise AttributeError(name)
            raise AttributeError(
                f"open_node(...).{name}: open_node(...) is not a node yet; write `async with "
                f"open_node(...) as node:`, and `node.{name}` inside; or, in code that is not "
                "async, `from ergo_py.blocking import open_node`"
            )

    @enable_ki_protection
    async def __aenter__(self) -> N:
        if self._entered:
            raise NotAllowedError(
                "this open_node(...) was entered before; call open_node again for another node"
            )
        if not in_trio_task():
            raise NotAllowedError(_needs_trio())
        self._entered = True
        why = self._hold_cpu()
        if self._options.tracing is not None:
            try:
                self._options.tracing.start(self._options.name)
            except BaseException:
                self._release()
                raise
        self._interrupts.hold()
        # A system task: cancelling the surrounding code must not cancel the processes, since the
        # node stops them in order. And the node can abandon a process that does not end, while a
        # nursery would wait for it forever.
        trio.lowlevel.spawn_system_task(self._main, name=f"node {self._options.name}")
        interrupt = await self._wait_for(self._ready)
        node = self._node
        if node is None:
            self._release()
            raise interrupt or self._failure or NodeStoppedError(self._options.name)
        try:
            if interrupt is not None:
                raise interrupt
            if why:
                text = "the loop cannot be pinned to its CPU, and runs on any"
                node._kernel.logger.warning(text, cpu=self._options.cpu, why=why)
            threshold = self._options.watchdog
            if threshold:
                self._watchdog = Watchdog(
                    node._router.bridge, threshold, node._note_blocked, self._backlogs(node)
                )
                node._note_watchdog(self._watchdog)
            self._read_permissions(node)
            for beside in self._options.beside:
                self._close_beside.append(await trio.to_thread.run_sync(beside.open, node))
            # Behind the settings of the objects beside the node, which need permissions.
            node._kernel.add_setting("control", partial(self._read_permissions, node))
        except BaseException:
            await self._stop(asked=interrupt is not None)
            raise
        self._body.__enter__()
        node._kernel.on_fatal(self._body.cancel)
        trio.lowlevel.spawn_system_task(
            self._heed_stop, node, self._body, name=f"node {self._options.name}: stop"
        )
        return node

    @enable_ki_protection
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        assert self._node is not None
        kernel = self._node._kernel
        if error is not None:
            explain(error)
        interrupt = await self._stop(asked=is_a(error, KeyboardInterrupt))
        self._node._stop_asked.set()
        swallowed = self._body.__exit__(kind, error, trace)
        if kernel.fatal is not None:
            raise kernel.fatal
        if self._failure is not None:
            raise self._failure
        if interrupt is not None and not is_a(error, KeyboardInterrupt):
            raise interrupt
        if (
            kernel.escalated is not None
            and kernel.escalated.reason is not None
            and (error is None or swallowed)
        ):
            raise EscalationError(kernel.escalated, kernel.escalated.reason)
        return bool(swallowed)

    def _hold_cpu(self) -> str:
        """Pin the loop. Returns why that is impossible."""
        cpu = self._options.cpu
        if cpu is None:
            return ""
        why = LoopPin.hold(cpu)
        self._holds_cpu = not why
        return why

    def _release(self) -> None:
        """Give Ctrl-C back to trio, and all CPUs to the loop. May be called twice."""
        self._interrupts.release()
        if self._holds_cpu:
            self._holds_cpu = False
            LoopPin.release()

    def _backlogs(self, node: N) -> Callable[[], None] | None:
        limit = self._options.mailbox_warning
        return (
            None
            if limit is None
            else Backlogs(processes_of(node._router), limit, node._note_long_mailbox).look
        )

    def _read_permissions(self, node: N) -> None:
        """Open the control socket, or change its permissions. An open socket stays open, also
        without permissions: the client that has asked for this waits for its answer.
        """
        permissions = read_now(self._options.control)
        if self._control is not None:
            self._control.permit(permissions)
        elif permissions and self._open_control is not None:
            self._control = self._open_control(node, permissions)

    async def _heed_stop(self, node: N, body: trio.CancelScope) -> None:
        await node._stop_asked.wait()
        body.cancel()

    async def _wait_for(
        self, event: trio.Event, *, asked: bool = False
    ) -> KeyboardInterrupt | None:
        """Wait for an event, regardless of cancellation. The second Ctrl-C ends the graceful
        shutdown.
        """
        interrupt = None
        while not event.is_set():
            try:
                with trio.CancelScope(shield=True):
                    await event.wait()
            except KeyboardInterrupt as another:
                interrupt = another
                if asked:
                    self._patience.cancel()
                asked = True
        return interrupt

    async def _stop(self, *, asked: bool) -> KeyboardInterrupt | None:
        """Stop everything, in a task that receives no cancellation and no KeyboardInterrupt."""
        assert self._node is not None
        trio.lowlevel.spawn_system_task(
            self._shut_down, self._node, name=f"node {self._options.name}: going down"
        )
        return await self._wait_for(self._over, asked=asked)

    # -- the main task -----------------------------------------------------------------------------

    async def _main(self) -> None:
        options = self._options
        creation = open_nodes.add(options.name, self._place)
        try:
            async with trio.open_nursery() as nursery:
                on_spawned = (
                    partial(remember_messages, count=options.recent_messages)
                    if options.recent_messages
                    else None
                )
                if options.tracing is not None:
                    on_spawned = partial(_trace_calls, on_spawned)
                kernel = Kernel(options, creation, nursery, on_spawned)
                kernel.learn_traced_sends(_trace_sends)
                self._node = self._node_type(kernel, options.expose_env)
                kernel.start(kernel.clock.run, name="clock")
                # Before the task starts: an open node already owns all the descriptors that it
                # needs.
                bridge = kernel.router.bridge
                bridge.hang_bell()
                turns, guard = kernel.router.turns, TaskGuard(kernel)
                nursery.start_soon(bridge.serve, turns, guard, name="threads")
                kernel.learn_cancellation(await capture_cancellation())
                if options.network is not None:
                    await self._join_network(kernel, options.network)
                self._ready.set()
                try:
                    await self._closing.wait()
                except trio.Cancelled:
                    # A task of the node has failed and its nursery cancels the others, or the run
                    # is over.
                    kernel.begin_stop()
                    self._body.cancel()
                    raise
                finally:
                    kernel.clock.stop()
                    kernel.idle_handlers.stop()
        except BaseException as failure:
            # An exception that leaves a system task would crash the whole run. Pass it to the task
            # that opened the node instead. It may be the Cancelled with which the run ends;
            # swallowing it is safe, since nothing after this line waits.
            self._failure = self._failure or failure
        finally:
            if self._node is not None and not self._closing.is_set():
                self._node._router.close(_RUN_OVER)
                self._node._kernel.dispatcher_threads.dismiss_main()
            open_nodes.remove(options.name, creation)
            self._release()
            self._ready.set()
            self._down.set()

    async def _join_network(self, kernel: Kernel, network: Network) -> None:
        try:
            self._network = network.join_network(kernel)
            await self._network.open()
        except BaseException as error:
            self._node = None  # the node has never been open
            self._failure = error
            kernel.router.close()
            raise

    # -- shutdown ----------------------------------------------------------------------------------

    async def _shut_down(self, node: N) -> None:
        try:
            with trio.CancelScope(shield=True):
                await self._go_down(node)
        except BaseException as failure:
            # As in _main: the exception must not leave a system task.
            self._failure = self._failure or failure
        finally:
            node._kernel.dispatcher_threads.dismiss_main()
            self._over.set()

    async def _go_down(self, node: N) -> None:
        kernel = node._kernel
        began = perf_counter()
        kernel.begin_stop()
        try:
            await self._stop_processes(kernel)
        finally:
            await self._close(kernel)
        seconds, lifetimes = perf_counter() - began, kernel.lifetimes
        killed, abandoned = tuple(lifetimes.killed), tuple(lifetimes.abandoned)
        # By PID: the last that was started has mostly ended first.
        stopped = tuple(sorted(lifetimes.stopped))
        report = ExitReport(seconds, stopped, killed, abandoned, kernel.escalated)
        node._note_exit(report)
        (kernel.logger.warning if killed or abandoned else kernel.logger.info)(str(report))

    async def _stop_processes(self, kernel: Kernel) -> None:
        with trio.move_on_after(self._options.stop_timeout), self._patience:
            await stop_all(kernel.roots, Shutdown())
        if kernel.roots:
            await kill_all(kernel.roots)

    async def _close(self, kernel: Kernel) -> None:
        while self._close_beside:
            try:
                await trio.to_thread.run_sync(self._close_beside.pop())
            except BaseException as error:
                kernel.fail("closing an object beside the node failed", error)
        if self._network is not None:
            try:
                await self._network.close(_GRACE)
            except BaseException as error:
                kernel.fail("closing the network failed", error)
        kernel.router.close()
        kernel.thread_fairness.stop()
        for close in (
            None if self._control is None else self._control.close,
            None if self._watchdog is None else self._watchdog.stop,
        ):
            if close is not None:
                try:
                    close()
                except BaseException as error:
                    kernel.fail("closing the control socket or the watchdog failed", error)
        self._closing.set()
        with trio.move_on_after(_GRACE):
            await self._down.wait()
        # The remaining tasks: abandoned callbacks, and tasks that other code has started in this
        # nursery.
        for task in kernel.nursery.child_tasks:
            abandonable = Abandonable()
            abandonable.take_over(task)
            await abandonable.cut_off(task)
        with trio.move_on_after(_GRACE):
            await self._down.wait()


def _needs_trio() -> str:
    asyncio = sys.modules.get("asyncio")
    try:
        runs_on = "asyncio" if asyncio and asyncio.get_running_loop() else ""
    except RuntimeError:
        runs_on = ""
    if not runs_on:
        return "open_node(...) needs trio: start the program with `trio.run(main)`"
    return (
        "open_node(...) needs trio, and this code runs on asyncio: write `trio.run(main)` instead "
        "of `asyncio.run(main())`. In an asyncio program, in IPython and in Jupyter, use a node in "
        "a thread: `from ergo_py.aio import open_node`; in code without `await`, `from "
        "ergo_py.blocking import open_node`"
    )


def _trace_calls(before: Callable[[Any], None] | None, process: TracedProcess) -> None:
    """Let the calls of a new process of a traced node take the fast way, if there is any."""
    if installation.trace_verb is not None:
        call_with_trace(process, installation.trace_verb)
    if before is not None:
        before(process)


def _trace_sends(process: TracedProcess) -> TracedSends:
    return TracedSends(process)


def read_permissions(given: str | Collection[str]) -> frozenset[str]:
    """Read the permissions of a control socket.

    Raises:
        BadInputError: a permission is unknown.
    """
    named = (
        [word.strip() for word in given.split(",") if word.strip()]
        if isinstance(given, str)
        else given
    )
    if not isinstance(named, Collection) or not all(word in PERMISSIONS for word in named):
        raise BadInputError(
            "control", given, "'look', 'act', 'attach', or several of them, such as 'look,attach'"
        )
    return frozenset(named)


def _read_control(
    control: Rereadable[str | Collection[str]], beside: Sequence[Beside]
) -> frozenset[str]:
    """The permissions of the control socket at this moment."""
    return read_permissions(read_now(control)) or _needed(beside)


def _needed(beside: Sequence[Beside]) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for each in beside if isinstance(beside, list | tuple) else ():
        found |= getattr(each, "control", frozenset())
    return found


def open_node(
    name: str = "node@localhost",
    *,
    max_processes: int | None = None,
    burst: int = 256,
    dead_letters: int | KeepMessages = 1000,
    stop_timeout: float = 30.0,
    log_level: Rereadable[str] = "warning",
    log_output: Output = "auto",
    env: Mapping[str, object] | None = None,
    expose_env: bool = False,
    watchdog: float | None = 0.5,
    mailbox_warning: int | None = 10_000,
    inline_calls: bool = True,
    direct_handoff: bool = True,
    observer: Callable[[Sight], object] | None = None,
    max_reader_threads: int = 10_000,
    debug_shared_state: bool = False,
    on_escalation: Literal["keep", "stop"] = "keep",
    obituaries: int = 100,
    recent_messages: int = 0,
    redact: Callable[[str, object], object] | None = None,
    control: Rereadable[str | Collection[str]] = (),
    network: Network | None = None,
    beside: Sequence[Beside] = (),
    tracing: Tracing | None = None,
    cpu: int | None = None,
) -> NodeContext[Node]:
    """Open a node: it runs inside ``async with``, and stops all its processes at the end.

    For example::

        import trio

        from ergo_py import Actor, open_node

        class Greeter(Actor):
            def handle_call(self, request, caller):
                return f"hello, {request}"

        async def main():
            async with open_node("demo@localhost", stop_timeout=10.0) as node:
                greeter = await node.spawn(Greeter)
                print(await node.call(greeter, "world"))
            print(f"{len(node.exit_report.stopped)} process stopped")

        trio.run(main)  # prints "hello, world" and "1 process stopped"

    The lifecycle, in order:

    1. Entering starts the node: its tables, its clock and its watchdog. No process runs yet.
    2. The body runs. ``node.stop()`` cancels it, and so does an escalation with
       ``on_escalation="stop"``.
    3. Leaving begins the graceful shutdown: the node stops its processes, last started first. Each
       process stops its children and runs ``terminate``.
    4. After ``stop_timeout`` seconds, or a second Ctrl-C, the node kills the remaining processes.
       It abandons a process that does not end even then.
    5. ``node.exit_report`` lists the processes that stopped, were killed, or were abandoned.

    Args:
        name: the node's name, by convention ``name@host``.
        max_processes: how many processes may live at once; None for no limit.
        burst: after how many messages a busy process yields to the others. A publication counts for
            each of its receivers as well.
        dead_letters: how many dead letters the node keeps for inspection. It counts all of them.
            ``DeadLetter.Keep(bytes=…)`` keeps their messages, too, for ``node.resend``.
        stop_timeout: seconds that the graceful shutdown may take before the node kills the
            remaining processes.
        log_level: debug, info, warning, error, critical or off; or a function that returns one of
            them, which ``node.reload()`` calls again.
        log_output: auto, console, json, stdlib, structlog or none. auto uses the host program's
            structlog or logging if configured, else lines on standard error.
        env: the environment that every process inherits.
        expose_env: show environments, which may hold secrets, in snapshots.
        watchdog: seconds after which the watchdog reports a blocked event loop; None for no
            watchdog.
        mailbox_warning: log a warning when more messages than this wait for a process, and again
            only after the number has fallen below half; None for no warning. The watchdog checks
            the mailboxes, so there is no warning without it.
        inline_calls: answer a call to a sleeping process with a plain ``handle_call``, and the
            inspection of a sleeping meta-process, inline, without a scheduler turn.
        direct_handoff: let a woken process run in the scheduler turn of the process, socket or
            thread that woke it, if that is possible.
        observer: a quick function that the node calls on the loop with each ``Spawned``,
            ``Stopped``, ``Sent`` and ``Delivered``.
        max_reader_threads: how many meta-processes may have a thread of their own at once.
        debug_shared_state: report messages that change after they were sent, and attributes of
            meta-processes that both their reader and their handler write. Slow.
        on_escalation: how to react when a supervisor that belongs to the node gives up: ``keep``
            running without it, and log that; or ``stop`` the node gracefully, and raise
            ``EscalationError`` from the ``async with``.
        obituaries: how many ended processes the node remembers: of the failed ones, of connections
            that their peers ended, and of the others.
        recent_messages: remember the types of so many last messages, for the obituary of a failed
            process. Each message pays for it.
        redact: called as ``redact(what, value)`` before the inspection verbs show a message
            (``what`` is ``"message"``) or an attribute (``what`` is its name) as text; the result
            is shown instead.
        control: the permissions of other programs of the same user on the node's control socket:
            ``look``, ``act`` (send, end, suspend), ``attach`` (run any code); several as a list, or
            separated by commas; or a function that returns them, which ``node.reload()`` calls
            again. Empty for no socket.
        network: the network that the node joins, such as ``ergo_py.network.Local(types=[…])``; None
            for a node alone.
        beside: objects that work beside the node, such as ``ergo_py.observe.Observe(port=9911)``,
            which serves the observer page. Without ``control``, the node gives them the permissions
            that they need.
        tracing: spans of messages, calls, events and HTTP requests, such as
            ``ergo_py.telemetry.OpenTelemetry(sample=0.01)``; None for no traces, which costs
            nothing.
        cpu: the CPU that the thread of the event loop is pinned to while the node is up; None for
            any. Threads that start meanwhile may use all CPUs, and so may the programs that the
            node and trio start; a program that a callback starts in the thread of the loop itself,
            with ``subprocess``, may not. Where the platform has no CPU affinity, the node logs a
            warning and uses any. Entering the node raises ``BadInputError`` if this program may not
            use that CPU.

    Raises:
        BadInputError: an option has a value that is not allowed.
    """
    _read_control(control, beside)  # check it before the node opens
    options = NodeOptions(
        name=name,
        max_processes=max_processes,
        burst=burst,
        dead_letters=dead_letters,
        stop_timeout=stop_timeout,
        log_level=log_level,
        log_output=log_output,
        env=env,
        expose_env=expose_env,
        watchdog=watchdog,
        mailbox_warning=mailbox_warning,
        inline_calls=inline_calls,
        direct_handoff=direct_handoff,
        observer=observer,
        max_reader_threads=max_reader_threads,
        debug_shared_state=debug_shared_state,
        on_escalation=on_escalation,
        obituaries=obituaries,
        recent_messages=recent_messages,
        redact=redact,
        control=partial(_read_control, control, beside),
        network=network,
        beside=beside,
        tracing=tracing,
        cpu=cpu,
    )
    return NodeContext(options, Node)
