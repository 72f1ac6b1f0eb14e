"""`run`: runs a program on a node, with graceful shutdown on the first signal and a forced exit on
the second.
"""

import inspect
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from time import monotonic, monotonic_ns
from types import CoroutineType, FrameType
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar, Unpack, cast, overload

import trio

from ._core.node_lifecycle import NodeKeywords
from ._core.processes.spawn import spawn_process
from ._core.runtime.bridge import get_ident, thread_names
from ._core.runtime.keyboard_interrupt import REPEAT
from ._core.verbs.behaviour import Behaviour, behaviour_of
from ._core.vocabulary.errors import BadInputError, NodeStoppedError, NotAllowedError
from ._core.vocabulary.options import DEFAULTS
from ._core.vocabulary.public_names import show_public_names
from ._core.vocabulary.reasons import Reason
from .meta.inherited_sockets import InheritedSockets, inherited_sockets
from .meta.programs.process_groups import kill_groups
from .node import Node, open_node
from .service_manager import ServiceManager, StartStatus

if TYPE_CHECKING:
    from .handover.succession import Succession

__all__ = ["refusing_run", "run"]

T = TypeVar("T")


@overload
def run(
    main: type[Behaviour],
    *,
    name: str = "node@localhost",
    handover: str | None = None,
    **options: Unpack[NodeKeywords],
) -> Reason | None: ...
@overload
def run(
    main: Callable[[Node], Awaitable[T]],
    *,
    name: str = "node@localhost",
    handover: str | None = None,
    **options: Unpack[NodeKeywords],
) -> T | None: ...
def run(
    main: Callable[[Node], Awaitable[T]] | type[Behaviour],
    *,
    name: str = "node@localhost",
    handover: str | None = None,
    **options: Unpack[NodeKeywords],
) -> T | Reason | None:
    """Open a node, run ``main`` on it, and stop the node when ``main`` returns or when Ctrl-C,
    SIGTERM or SIGHUP arrives.

    ``main`` is an async function that takes the node; ``run`` returns its result. Or ``main`` is a
    behaviour class, which is spawned as a process: the program ends with that process, and ``run``
    returns its reason. After a signal the result is None. The options are those of
    :func:`open_node`, with another default: ``on_escalation="stop"``. If a supervisor of the node
    gives up, the node stops and ``run`` raises, so that the program ends with a status that is not
    zero.

    Under systemd (``Type=notify``) the manager is told that the program is up, that it stops, and,
    with ``WatchdogSec``, that its loop runs. A behaviour is up when its ``init`` has returned. A
    function with a parameter ``task_status``, as for ``nursery.start`` of trio, is up when it calls
    ``task_status.started()``; any other function is up at once.

    With ``handover="shop"`` a program takes over from the running program of this name and user:
    sockets of servers with ``sock="…"``, and states of processes with ``hand_over``. The other
    program drains and ends when this program is up, and goes on if it does not start.

    The first signal starts a graceful shutdown, within the node's ``stop_timeout``. A second signal
    within half a second counts as the same: some programs signal both a process and its group. A
    later signal kills the programs that ports have started, reports the processes still alive, with
    stacks, and exits at once. SIGHUP stays ignored in a program that was started with ``nohup``,
    and lets a program under systemd read its settings again (``node.reload()``).

    Raises:
        BadInputError: ``main`` is neither, or an option is invalid.
        EscalationError: a supervisor of the node gave up. With ``on_escalation="keep"`` the program
            continues without it.
        NotAllowedError: the call stands at the top level of a file that ``ergo run`` or ``ergo
            shell`` imports, and would run twice; or the program was not up in time, and its
            predecessor goes on.
    """
    _check_importing()
    takes_status = not _is_behaviour(main) and _check_main(main)
    options.setdefault("on_escalation", "stop")
    sockets = inherited_sockets()  # before the program starts others, which must not inherit them
    succession = None if handover is None else _make_succession(handover, sockets)
    context = open_node(name, **options)

    async def whole() -> T | None:
        with closing(ServiceManager()) as manager, _Signals(manager) as signals:
            if succession is not None and not await signals.begin(succession):
                return None
            async with context as node:
                signals.watch_over(node, succession)
                trio.lowlevel.spawn_system_task(manager.watch_loop)
                async with _telling(manager, node, succession) as status:
                    return cast(T, await _serve(main, node, status, takes_status=takes_status))
        return None

    # Only at checkpoints of the main task: inside a callback, Ctrl-C would look like a crash.
    return trio.run(whole, restrict_keyboard_interrupt_to_checkpoints=True)


def _make_succession(name: str, sockets: InheritedSockets) -> "Succession":
    from .handover.succession import Succession  # noqa: PLC0415 - not on platforms without sockets

    return Succession(name, sockets)


@asynccontextmanager
async def _telling(
    manager: ServiceManager, node: Node, succession: "Succession | None"
) -> AsyncIterator[StartStatus]:
    """Tell the service manager that the program is up, when the status says so and the predecessor
    has agreed, and that it stops.
    """
    lines = [f"STATUS={node.name} is up"]
    if succession is not None:
        lines.append(f"MAINPID={os.getpid()}")  # of the service, which was the predecessor
    say = partial(manager.tell_up, *lines)
    try:
        yield StartStatus(say if succession is None else succession.watch(node, say))
    finally:
        manager.begin_stop()
        try:
            if succession is not None:
                await succession.end()
        finally:
            if succession is None or succession.serves:
                # Else another version goes on, and with it the service.
                manager.tell("STOPPING=1", f"STATUS={node.name} stops")


def _is_behaviour(main: object) -> TypeGuard[type[Behaviour]]:
    return isinstance(main, type) and issubclass(main, Behaviour)


async def _serve(main: object, node: Node, status: StartStatus, *, takes_status: bool) -> object:
    """Run the behaviour, or the main function, and say when it is up."""
    if _is_behaviour(main):
        # Spawn without a PID lookup: the process may have ended before a lookup could find it.
        process = await spawn_process(node._kernel, None, main, behaviour_of(main), (), DEFAULTS)
        status.started()
        await process.wait_gone()
        return process.reason
    function = cast(Callable[..., Awaitable[object]], main)
    if takes_status:
        return await function(node, task_status=status)
    status.started()
    return await function(node)


def _check_main(main: object) -> bool:
    """Refuse a main function that cannot be called with the node. Returns whether it takes a
    ``task_status``.

    Raises:
        BadInputError: it cannot. The text says what to write.
    """
    if isinstance(main, CoroutineType):
        main.close()  # else Python would warn about it, too
        name = main.__name__
        raise BadInputError(
            f"run({name}())", main, f"the function itself, without a call: `run({name})`"
        )
    if not inspect.iscoroutinefunction(main):
        raise BadInputError(
            "run(main)",
            main,
            "an `async def main(node)`, or a behaviour class such as `run(MyApp)`",
        )
    signature = inspect.signature(main)
    given = {"task_status": None} if "task_status" in signature.parameters else {}
    try:
        signature.bind(None, **given)
    except TypeError:
        raise BadInputError(
            "run(main)",
            main,
            "an `async def main(node)`, with a parameter for the node that run opens",
        ) from None
    return bool(given)


_importing: Final[list[str]] = []


def _check_importing() -> None:
    if _importing:
        raise NotAllowedError(
            f"run(...) was called while {_importing[-1]} is imported, which would run it twice; "
            'write `if __name__ == "__main__":` above it, or start the file with python'
        )


@contextmanager
def refusing_run(imported: str) -> Iterator[None]:
    """Make :func:`run` raise while ``imported`` is imported: the importer is about to run it."""
    _importing.append(imported)
    try:
        yield
    finally:
        _importing.pop()


class _Signals:
    """Handles SIGINT, SIGTERM and SIGHUP until the node is down, then restores the previous
    handlers.
    """

    def __init__(self, manager: ServiceManager) -> None:
        self._manager = manager
        self._node: Node | None = None
        self._succession: Succession | None = None
        self._is_reloading = False
        self._reloads_again = False
        """SIGHUP came while a reload was under way, which has perhaps read an older setting."""
        self._asked: float | None = None
        """When the first signal arrived."""
        self._cancel: Callable[[], object] = bool
        """Ends the wait for a predecessor."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        for number in _taken():
            try:
                self._before[number] = signal.signal(number, self._came)
            except ValueError:  # not the main thread, which alone may set signal handlers
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that was not set from Python; Python cannot restore it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    async def begin(self, succession: "Succession") -> bool:
        """Find the predecessor. False if a signal arrives meanwhile, which ends the program."""
        token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as scope:
            self._cancel = lambda: token.run_sync_soon(scope.cancel)
            if self._asked is not None:
                scope.cancel()
            await succession.begin()
        self._cancel = bool
        if self._asked is not None:
            await succession.end()
        return self._asked is None

    def watch_over(self, node: Node, succession: "Succession | None" = None) -> None:
        """Stop this node on a signal; if a signal has already arrived, stop it now."""
        self._node, self._succession = node, succession
        if self._asked is not None:
            node.stop()

    def _came(self, number: int, frame: FrameType | None) -> None:
        # A signal handler may run anywhere, also inside the scheduler: do only thread-safe things.
        if number == signal.SIGHUP and self._manager.is_there:
            # Elsewhere SIGHUP says that the terminal is closed.
            if self._node is not None:
                with suppress(NodeStoppedError):
                    self._node._router.bridge.post(self._begin_reload, self._node)
            return
        now = monotonic()
        if self._asked is None:
            self._asked = now
            self._cancel()
            if self._node is not None:
                try:
                    self._node.stop_soon()
                except NodeStoppedError:  # the node is down; only the handlers are still set
                    pass
            return
        if now - self._asked < REPEAT:
            return
        try:
            kill_groups()
            if self._node is not None:
                sys.stderr.write(_what_is_alive(self._node, frame))
                sys.stderr.flush()
        finally:
            # Exit even if the report fails: the signal may have interrupted a write to that very
            # stream.
            os._exit(128 + number)

    def _begin_reload(self, node: Node) -> None:
        self._reloads_again = True
        if not self._is_reloading:
            self._is_reloading = True
            node._kernel.start(self._reload, node, name="reload")

    async def _reload(self, node: Node) -> None:
        failed: list[str] = []
        try:
            while self._reloads_again and not node._kernel.stopping:
                self._reloads_again = False
                if self._may_tell(node):
                    self._manager.tell("RELOADING=1", f"MONOTONIC_USEC={monotonic_ns() // 1000}")
                failed = await node.reload()
        finally:
            self._is_reloading = False
        if self._may_tell(node):
            state = f"{len(failed)} settings could not be read" if failed else "is up"
            self._manager.tell("READY=1", f"STATUS={node.name} {state}")

    def _may_tell(self, node: Node) -> bool:
        """Whether a reload says so: not before the program is up, for which the manager would take
        its end, nor while the program stops, nor when another version has taken over.
        """
        serves = self._succession is None or self._succession.serves
        return self._manager.is_up and serves and not node._kernel.stopping


def _taken() -> list[signal.Signals]:
    """The signals that stop a program: those whose default action ends it."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    # SIGHUP: the terminal was closed. Leave it alone if it is ignored (nohup) or if the program has
    # its own handler.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        numbers.append(signal.SIGHUP)
    return numbers


def _what_is_alive(node: Node, frame: FrameType | None) -> str:
    lines = [f"\nleaving at once; still alive on {node.name}:\n"]
    lines += [f"  {line}\n" for line in node.alive(stacks=True)]
    here, names = get_ident(), thread_names()
    for thread, stack in sys._current_frames().items():
        lines.append(f"stack of thread {names.get(thread, thread)}:\n")
        lines += traceback.format_stack(frame if thread == here else stack)
    return "".join(lines)


show_public_names(__name__)
