"""``Node``: the verbs of a running node, for code outside any process."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple, Unpack, cast, overload

import trio
from trio.lowlevel import current_task

from ..inspection.watchdog import Watchdog
from ..kernel import Kernel
from ..messaging.calls import Calls
from ..metas.meta import Meta
from ..processes.process import Process
from ..processes.spawn import caller_in, spawn_process
from ..runtime.bridge import get_ident
from ..runtime.thread_parent import task_waiting_for_thread
from ..tables.timers import Owned, Timer
from ..vocabulary.envelopes import Priority
from ..vocabulary.errors import (
    BadInputError,
    NotAllowedError,
)
from ..vocabulary.ids import PID, Called, Target
from ..vocabulary.info import ExitReport
from ..vocabulary.messages import DeadLetter, Request, Sent, Untyped
from ..vocabulary.options import Options, SpawnKeywords, check_name, check_number, read_options
from ..vocabulary.public_names import name_for_annotations
from ..vocabulary.reasons import SHUTDOWN, Reason, Shutdown
from .behaviour import Behaviour, behaviour_of
from .common import (
    arm_timer,
    check_priority,
    check_timeout,
    exit_target,
    kill_target,
    release_name,
)
from .node_inspection import NodeInspection
from .replies_and_timers import RepliesAndTimers

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger
else:
    name_for_annotations(__name__, {"structlog.typing": "FilteringBoundLogger"})

__all__ = ["Node"]

B = TypeVar("B", bound=Behaviour)
Callee = TypeVar("Callee")
M = TypeVar("M")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _NotOfANode:
    """A name that a node does not have, with a hint. A method ``__getattr__`` of the class would
    slow down each attribute of a node that a verb reads, by 40 ns.
    """

    def __init__(self, hint: str) -> None:
        self._hint = hint

    def __get__(self, node: object, owner: type) -> NoReturn:
        raise AttributeError(self._hint)


class Node(NodeInspection, RepliesAndTimers):
    """A running node. Its verbs are for code outside any process. ``send``, ``reply`` and the
    inspection verbs work from any thread.
    """

    def __init__(self, kernel: Kernel, expose_env: bool) -> None:
        super().__init__(kernel, expose_env)
        self._watchdog: Watchdog | None = None
        self._timers = _NodeTimers(kernel)
        self._stop_asked = trio.Event()
        self.control_path: Path | None = None
        """The path of the control socket; None if the node has none."""
        self.exit_report: ExitReport | None = None
        """The outcome of the graceful shutdown; None while the node is running."""
        kernel.attach(self)

    def __repr__(self) -> str:
        return f"<Node {self.name} {len(self._router.processes)} processes>"

    @property
    def name(self) -> str:
        """The node's name, such as ``demo@localhost``."""
        return self._kernel.pid.node

    @property
    def env(self) -> Mapping[str, object]:
        """The environment that every process inherits."""
        return MappingProxyType(dict(self._kernel.env))

    @property
    def log(self) -> "FilteringBoundLogger":
        """A structlog logger bound to the node."""
        return self._kernel.logger

    def _calls_for_reply(self) -> Calls:
        return self._kernel.calls

    def _arm_timer_for(
        self, delay: float, period: float, to: Target, message: object, priority: Priority | None
    ) -> Timer:
        return self._run(arm_timer, self._timers, delay, period, to, message, priority)

    # -- processes ---------------------------------------------------------------------------------

    async def spawn(
        self, behaviour: Callable[[*Ts], B], *args: *Ts, **options: Unpack[SpawnKeywords]
    ) -> PID[B]:
        """Start a process that belongs to the node, and return its PID when its ``init`` has
        succeeded.

        For example::

            import trio

            from ergo_py import Actor, open_node

            class Greeter(Actor):
                def __init__(self, greeting):
                    self.greeting = greeting

                def handle_call(self, request, caller):
                    return f"{self.greeting}, {request}"

            async def main():
                async with open_node() as node:
                    greeter = await node.spawn(Greeter, "hello", name="greeter", mailbox_size=100)
                    print(await node.call(greeter, "world"))

            trio.run(main)  # prints "hello, world"

        The process ends when it stops, fails or is killed, and at the latest with the node. A
        supervisor (``node.supervise``) restarts a failed process; ``spawn`` does not.

        Args:
            behaviour: the class of the process, or ``Worker.spec(…)`` with all its arguments.
            args: the positional arguments of the class.
            name: register the process under this name.
            mailbox_size: how many messages may wait in each lane of its mailbox; None for no bound.
            overflow: the policy of a full lane: a member of ``Overflow``, or ``Divert(to=name)``.
            priority: the priority of the messages that the process sends.
            init_timeout: seconds that ``init`` may take.
            terminate_timeout: seconds that ``terminate``, or the cleanup of a background task, may
                take.
            shutdown: seconds that a graceful shutdown of the process may take before it is killed.
            env: settings of its environment, over the inherited ones.
            log_level: the lowest level that its logger writes; None for the node's.
            dispatcher: where its plain callbacks run: ``LOOP``, ``Threads()``, ``Threads(cpu=…)``
                or ``Threads(name, size)``.

        Raises:
            InitError: its ``init`` raised. The cause is the original exception; the process is
                cleaned up.
            InitTimeoutError: its ``init`` took longer than ``init_timeout``.
            NameTakenError: ``name`` belongs to another process.
            LimitError: of kind ``"processes"``; the node's limit is reached.
            BehaviourError: ``behaviour`` is not a class of behaviours.
            NodeStoppedError: the node is stopping or has stopped.
        """
        self._here("spawn")
        checked = _unlinked(read_options(options))
        process = await spawn_process(
            self._kernel, None, behaviour, behaviour_of(behaviour), args, checked
        )
        return process.id

    def send_exit(self, to: Target, reason: object = SHUTDOWN) -> bool:
        """Ask a process or meta-process to end. False if there is no receiver."""
        return self._run(exit_target, self._kernel, self.pid, to, reason)

    def kill(self, to: Target) -> bool:
        """Kill a process: end it at its next checkpoint, even inside a callback. False if there is
        no receiver.
        """
        return self._run(kill_target, self._kernel, to)

    if not TYPE_CHECKING:  # type checkers report this themselves
        spawn_meta = _NotOfANode(
            "a meta-process belongs to a process, not to the node: `await self.spawn_meta(…)` in a "
            "callback of an actor"
        )

    async def wait_ended(self, to: Target) -> Reason:
        """Wait until a process or meta-process has ended and everything is released. Returns its
        reason.

        For a process that ended before, give its PID or alias. The node remembers the last ones.
        If the process is on another node, and that node is lost, the reason is `NoNode`.

        Raises:
            ProcessUnknownError: there is no such process, and the node remembers none.
        """
        found = self._router.resolve(to)
        if (peer := self._remote(to)) is not None:
            return await peer.wait_ended(to)
        if not isinstance(found, Process | Meta):
            reason = self._kernel.lifetimes.obituaries.reason_of(to)
            await trio.lowlevel.checkpoint()
            if reason is None:
                raise self._router.unknown(to)
            return reason
        await found.wait_gone()
        return found.reason or Shutdown()

    # -- messages ----------------------------------------------------------------------------------

    def send(
        self,
        to: Target[Behaviour[M]],
        message: Sent[M],
        *,
        priority: Priority = Priority.NORMAL,
    ) -> bool:
        """Send a message, from any thread. False if there is no receiver: the message becomes a
        dead letter.

        Raises:
            MailboxFullError: the receiver is full and its overflow policy is to refuse.
            TargetTypeError: ``to`` is not an address.
            NodeStoppedError: the node has stopped.
        """
        return self._router.send(self._kernel.pid, to, message, priority)

    def resend(self, letter: DeadLetter, to: Target | None = None) -> bool:
        """Send the message of a dead letter again, from any thread, in the name of its sender: to
        its address, or to ``to``. False if there is no receiver: the message is a new dead letter.

        The node forgets the message of ``letter``, so that it is sent a single time.

        Raises:
            BadInputError: the node does not keep the message of this dead letter, or no longer.
            MailboxFullError: as from ``send``; the message is a new dead letter.
            TargetTypeError: the message had no address of a process; give it in ``to``.
            NodeStoppedError: the node has stopped.
        """
        return self._run(self._resend, letter, to)

    def _resend(self, letter: DeadLetter, to: Target | None) -> bool:
        missing = object()
        message = self._router.dead_letters.take(letter.number, missing)
        if message is missing:
            raise BadInputError(
                "letter",
                letter,
                "a dead letter whose message this node keeps: "
                "open_node(dead_letters=DeadLetter.Keep(bytes=…)) keeps the newest, until each is "
                "sent again",
            )
        target = cast(Target, letter.target) if to is None else to
        return self._router.send(letter.sender, target, message, Priority.NORMAL)

    async def send_wait(
        self,
        to: Target[Behaviour[M]],
        message: Sent[M],
        *,
        priority: Priority = Priority.NORMAL,
        timeout: float | None = None,
    ) -> bool:
        """Send a message. If the receiver is full and its overflow policy is ``Overflow.WAIT``,
        wait for room (backpressure).

        Raises:
            MailboxFullError: there was no room within ``timeout`` seconds, or the receiver refuses
                at once.
        """
        self._here("send_wait")
        check_timeout(timeout)
        return await self._router.send_wait(
            caller_in(current_task()), self.pid, to, message, check_priority(priority), timeout
        )

    @overload
    async def call(
        self,
        to: Target,
        request: Untyped | None,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> Any: ...
    @overload
    async def call(
        self,
        to: Called[Callee],
        request: Request[R, Callee],
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> R: ...
    async def call(
        self,
        to: Target,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> Any:
        """Call a process, and wait for its answer. From any trio task of the program.

        Raises:
            TargetDownError: the callee ended before it answered, or did not exist.
            CallTimeoutError: the callee did not answer in time.
            DeadlockError: a process calls through its node, and the callee waits for that process,
                directly or indirectly.
            MailboxFullError: the callee is full and refuses.
            NodeStoppedError: the node has stopped.
            Exception: the callee passed this exception to ``Reject`` or ``reply_error``.
        """
        if self._router.stopped or get_ident() != self._router.loop_thread:
            self._here("call")
        if type(timeout) is not float or not timeout >= 0.0:
            check_timeout(timeout)
        kernel = self._kernel
        return await kernel.calls.call(
            caller_in(current_task()), kernel.pid, to, request, timeout, priority
        )

    @overload
    def call_from_thread(
        self,
        to: Target,
        request: Untyped | None,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> Any: ...
    @overload
    def call_from_thread(
        self,
        to: Called[Callee],
        request: Request[R, Callee],
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> R: ...
    def call_from_thread(
        self,
        to: Target,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> Any:
        """Call a process, and block this thread until the answer arrives. Raises the errors of
        :meth:`call`. In a plain callback with a thread, the process of the callback waits, as in
        ``wait_for``.

        Raises:
            NotAllowedError: this is the thread of the event loop, which would wait for itself.
        """
        check_timeout(timeout)
        check_priority(priority)
        task = task_waiting_for_thread()
        process = None if task is None else caller_in(task)
        return self._kernel.calls.call_from_thread(
            process, self._kernel.pid, to, request, timeout, priority
        )

    # -- names -------------------------------------------------------------------------------------

    def register(self, name: str, to: Target) -> None:
        """Register a process under a name.

        Raises:
            NameTakenError: another process has the name; nothing is changed.
            NotAllowedError: the process has another name already.
            ProcessUnknownError: there is no such process.
        """
        check_name(name)
        self._run(self._register, name, to)

    def _register(self, name: str, to: Target) -> None:
        process = self._find(to)
        if process.name is not None and process.name != name:
            raise NotAllowedError(
                f"{process} has the name {process.name!r}; unregister it first, a process has one "
                "name at a time"
            )
        process.take_name(name)

    def unregister(self, name: str) -> None:
        """Remove a name from its process. Processes that watch the name are notified.

        Raises:
            ProcessUnknownError: no process has the name.
        """
        self._run(lambda: release_name(self._find(check_name(name))))

    def whereis(self, name: str) -> PID | None:
        """Return the PID of the process with this name; None if there is none."""
        holder = self._router.registry.names.get(check_name(name))
        return None if holder is None or not isinstance(holder.id, PID) else holder.id

    # -- shutdown ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the node to stop: it cancels the body of ``async with open_node(...)``. From any
        thread.
        """
        self._run(self._stop_asked.set)

    def stop_soon(self) -> None:
        """Do the same from a signal handler, where :meth:`stop` is not safe."""
        self._router.bridge.post(self._stop_asked.set)

    def nodes(self) -> list[str]:
        """The names of the nodes that are connected to this node. Empty without a network."""
        remote = self._router.remote
        return [] if remote is None else self._run(remote.nodes)

    async def discover(self, seconds: float = 0.5) -> list[str]:
        """The names of all other nodes of the network that can be reached now.

        Args:
            seconds: how long to wait for the answers, if the network has to ask them.
        """
        check_number("seconds", seconds, least=0)
        remote = self._router.remote
        return [] if remote is None else await remote.discover(seconds)

    @property
    def stopping(self) -> bool:
        """Whether the node is stopping or has stopped."""
        return self._kernel.stopping or self._stop_asked.is_set()

    def _note_control_socket(self, path: Path) -> None:
        """Its control socket is open."""
        self.control_path = path

    def _note_watchdog(self, watchdog: Watchdog) -> None:
        """A thread watches its loop."""
        self._watchdog = watchdog

    def _note_exit(self, report: ExitReport) -> None:
        """The graceful shutdown is over."""
        self.exit_report = report


class _NodeTimers:
    """Owner of the timers that the node armed, with the interface of a process."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.router = kernel.router
        self.id = kernel.pid
        self.priority = Priority.NORMAL
        self.timers = Owned()

    def allow(self, _operation: object) -> None:
        """A node may always arm a timer."""


def _unlinked(options: Options) -> Options:
    if options.link:
        raise BadInputError(
            "node.spawn(link=True)",
            True,
            "link=True where a process spawns: a node cannot be linked",
        )
    return options
