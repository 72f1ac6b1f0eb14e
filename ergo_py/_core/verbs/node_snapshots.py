"""``NodeSnapshots``: the node's verbs that take snapshots of its processes, events and dead
letters.
"""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import TypeVar, cast

from trio.lowlevel import current_task

from ..inspection.census import count_living
from ..inspection.snapshots import describe_living, event_info, meta_info, node_info, process_info
from ..inspection.state import show
from ..inspection.watchdog import of_program
from ..kernel import Kernel
from ..messaging.publisher import BLOCKED
from ..messaging.remote import RemoteReceiver
from ..metas.meta import Meta
from ..processes.process import Process
from ..processes.spawn import caller_in
from ..runtime.bridge import get_ident
from ..vocabulary.errors import BadInputError, DeadlockError, NotAllowedError
from ..vocabulary.ids import PID, Alias, EventName, Target
from ..vocabulary.info import BlockedReport, EventInfo, MetaInfo, NodeInfo, ProcessInfo
from ..vocabulary.messages import DeadLetter
from ..vocabulary.options import check_flag, check_level
from .common import check_timeout

__all__ = ["NodeSnapshots", "inspect_for"]

T = TypeVar("T")


class NodeSnapshots:
    """The verbs of a node that show its present state. A base class of the node, as
    :class:`NodeInspection` is.
    """

    def __init__(self, kernel: Kernel, expose_env: bool) -> None:
        self._kernel = kernel
        self._router = kernel.router
        self._expose_env = expose_env
        self._born = perf_counter()
        self._blocked = 0
        self._last_blocked: BlockedReport | None = None

    @property
    def pid(self) -> PID:
        """The PID of the node itself: the sender of its messages, and the parent of the processes
        that it spawned.
        """
        return self._kernel.pid

    def info(self) -> NodeInfo:
        """Take a snapshot of the node."""
        return self._run(
            lambda: node_info(
                self._kernel,
                perf_counter() - self._born,
                self._blocked,
                self._last_blocked,
                self._expose_env,
                *count_living(self._kernel),
            )
        )

    def processes(self) -> list[PID]:
        """Return the PIDs of all living processes, oldest first."""
        return list(self._router.processes)

    def process_info(self, to: Target) -> ProcessInfo:
        """Take a snapshot of a process.

        Raises:
            ProcessUnknownError: there is no such process.
        """
        return self._run(lambda: process_info(self._find(to), self._expose_env))

    async def inspect(self, to: Target, *items: str, timeout: float = 5.0) -> dict[str, str]:
        """Call ``handle_inspect`` of a process, before its waiting messages, and return the result.
        The process may be on another node that permits this node to look.

        Raises:
            ProcessUnknownError: there is no such process.
            CallTimeoutError: the process is busy for longer than ``timeout``; ``process_info``
                names the callback.
            DeadlockError: a process inspects itself.
        """
        return await inspect_for(self, "inspect", self._asker(), to, *items, timeout=timeout)

    def metas(self) -> list[Alias]:
        """Return the aliases of all living meta-processes, oldest first."""
        return sorted(
            alias
            for alias, holder in self._router.registry.aliases.items()
            if isinstance(holder, Meta)
        )

    def meta_info(self, alias: Alias) -> MetaInfo:
        """Take a snapshot of a meta-process. Works while its handler is busy.

        Raises:
            ProcessUnknownError: there is no such meta-process.
        """
        return self._run(lambda: meta_info(self._find_meta(alias)))

    async def inspect_meta(self, alias: Alias, *items: str, timeout: float = 5.0) -> dict[str, str]:
        """Call ``handle_inspect`` of a meta-process, before its waiting messages, and return the
        result. The meta-process may be on another node that permits this node to look.

        Raises:
            ProcessUnknownError: there is no such meta-process.
            CallTimeoutError: its handler is busy for longer than ``timeout``; ``meta_info`` names
                the callback.
        """
        return await inspect_for(
            self, "inspect_meta", self._asker(), alias, *items, timeout=timeout
        )

    def events(self) -> dict[str, int]:
        """Return all events of this node, including its own, each with the number of its
        subscribers.
        """
        return {
            event.name.name: len(event.subscribers) for event in self._kernel.publisher.events.all()
        }

    def event_info(self, event: str | EventName) -> EventInfo:
        """Take a snapshot of an event, with the losses of each subscriber.

        Raises:
            EventError: of kind ``"unknown"``; there is no such event.
        """
        publishing = self._kernel.publisher
        return self._run(lambda: event_info(publishing.events.get(publishing.name(event))))

    def dead_letters(self, count: int | None = None, *, contents: bool = False) -> list[DeadLetter]:
        """Return the most recent dead letters, newest last.

        Shows only the types of their messages, unless ``contents`` is True; then the messages that
        the node keeps as text, after the node's ``redact``. A node keeps messages with
        ``open_node(dead_letters=DeadLetter.Keep(bytes=…))``.
        """
        check_flag("contents", contents)
        letters = self._router.dead_letters
        return self._run(self._with_contents, count) if contents else letters.last(count)

    def _with_contents(self, count: int | None) -> list[DeadLetter]:
        letters, missing = self._router.dead_letters, object()
        found = [
            (letter, letters.message_of(letter.number, missing)) for letter in letters.last(count)
        ]
        return [
            letter
            if message is missing
            else replace(letter, contents=show(self._kernel, "message", message))
            for letter, message in found
        ]

    def add_logger(self, to: Target, level: str = "info") -> None:
        """Send log records of at least ``level`` to a process, which gets them in ``handle_log``.

        Raises:
            ProcessUnknownError: there is no such process.
        """
        check_level(level)
        self._run(lambda: self._kernel.add_logger(self._find(to), level))

    def remove_logger(self, to: Target) -> bool:
        """Stop sending log records to a process. False if it was no logger."""
        return self._run(lambda: self._kernel.remove_logger(self._find(to).id))

    def alive(self, *, stacks: bool = False) -> list[str]:
        """Describe each living process and meta-process in a line, with its state and callback.
        Needs no running loop.

        With ``stacks``, further lines show the stack of each callback or reader that waits.
        """
        return describe_living(self._kernel, stacks)

    def _asker(self) -> PID:
        """The process that runs a verb of the node in its callback; else the node itself."""
        process = caller_in(current_task())
        return self.pid if process is None else process.id

    def _remote(self, to: Target) -> RemoteReceiver | None:
        """The other node, if the address is of another node."""
        found = self._router.resolve(to)
        is_remote = found is not None and found.is_remote
        return cast(RemoteReceiver, found) if is_remote else None

    def _refuse_remote(self, to: Target) -> None:
        if (peer := self._remote(to)) is not None:
            raise NotAllowedError(
                f"{to!r} is on another node; write `await node.at({peer.node!r}).…(…)`, "
                "which has process_info, meta_info, inspect, tree, crashes and others"
            )

    def _find(self, to: Target) -> Process:
        self._refuse_remote(to)
        found = self._router.resolve(to)
        if isinstance(found, Meta):
            raise BadInputError(
                "target", to, "a process; about a meta-process ask `meta_info` and `inspect_meta`"
            )
        if not isinstance(found, Process):
            raise self._router.unknown(to)
        return found

    def _find_meta(self, alias: Alias) -> Meta:
        self._refuse_remote(alias)
        found = self._router.resolve(alias)
        if isinstance(found, Process):
            raise BadInputError(
                "alias",
                alias,
                "that of a meta-process; about a process ask `process_info` and `inspect`",
            )
        if not isinstance(found, Meta):
            raise self._router.unknown(alias, "meta-process")
        return found

    def _run(self, function: Callable[..., T], *args: object) -> T:
        router = self._router
        if router.stopped:
            router.bridge.check_open()
        # Inlined Bridge.run(), on the loop itself.
        if get_ident() == router.loop_thread:
            return function(*args)
        return router.bridge.run(function, *args)

    def _here(self, verb: str) -> None:
        if self._router.stopped:
            self._router.bridge.check_open()
        if get_ident() != self._router.loop_thread:
            raise NotAllowedError(
                f"node.{verb} belongs on the node's own loop, and this is another thread; use "
                "send or call_from_thread"
            )

    def _note_long_mailbox(self, process: Process, depth: int) -> None:
        """Called in the watchdog's thread."""
        self._kernel.logger.warning(
            "a mailbox is long: messages come faster than they are handled",
            process=str(process.id),
            name=process.name,
            behaviour=process.callbacks.behaviour,
            waiting=depth,
            advice="bound it with mailbox_size=, and have senders wait: overflow=Overflow.WAIT "
            "with send_wait or call",
        )

    def _note_blocked(self, report: BlockedReport) -> None:
        """Called in the watchdog's thread."""
        self._blocked += 1
        self._last_blocked = report
        facts = {
            "process": None if report.process is None else str(report.process),
            "name": report.name,
            "behaviour": report.behaviour,
            "callback": report.callback,
            "message_type": report.message_type,
            "advice": report.advice,
        }
        self._kernel.logger.warning(
            "the event loop gets no time to run" if report.starved else "the event loop is blocked",
            seconds=round(report.seconds, 3),
            **{fact: value for fact, value in facts.items() if value is not None},
            exception=of_program(report.stack),
        )
        self._kernel.publisher.announce(BLOCKED, report)


async def inspect_for(
    node: NodeSnapshots,
    verb: str,
    asker: PID,
    to: Target,
    *items: str,
    timeout: float = 5.0,
) -> dict[str, str]:
    """Call ``handle_inspect`` of a process or meta-process in the name of an asker, who may be on
    another node.
    """
    node._here(verb)
    check_timeout(timeout)
    if (peer := node._remote(to)) is not None:
        return await peer.inspect(verb, to, items, timeout)
    if verb == "inspect_meta":
        return await node._find_meta(cast(Alias, to)).handler.inspect(asker, to, items, timeout)
    process = node._find(to)
    if process.works_in(current_task()):
        raise DeadlockError(to, items, [process.id, process.id])
    answer: dict[str, str] = await node._kernel.calls.inspect(asker, process, to, items, timeout)
    return answer
