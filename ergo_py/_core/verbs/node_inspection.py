"""``NodeInspection``: the node's verbs that inspect any process without changing its code, like
OTP's ``sys``.
"""

from collections.abc import Callable, Collection, Mapping
from itertools import chain, islice
from typing import Any

import trio

from ..inspection.callback_watch import REPORTED_VERBS, CallbackObserver
from ..inspection.state import (
    ask,
    get_state,
    observe,
    replace_state,
    show,
    stop_observing,
)
from ..inspection.suspension import resume, suspend
from ..inspection.trace import Statistics, Tally, Trace, count_meta
from ..metas.meta import Meta
from ..processes.process import Process
from ..tables.callbacks import CALLBACKS
from ..tables.obituaries import Obituary
from ..vocabulary.envelopes import END_NOTICE, EVENT, INSPECT, Lane, kind_name
from ..vocabulary.errors import BadInputError, NotAllowedError
from ..vocabulary.ids import Target
from ..vocabulary.late_methods import dataclass
from ..vocabulary.options import check_flag, check_number
from ..vocabulary.public_names import show_public_names
from .common import check_timeout
from .node_snapshots import NodeSnapshots

__all__ = ["NodeInspection", "Queued"]

State = dict[str, object]


@dataclass(frozen=True, slots=True)
class Queued:
    """A message that waits in a mailbox."""

    lane: str
    callback: str
    """The callback that will handle the message."""
    sender: object
    message_type: str
    message: str | None
    """The message as text; None unless ``contents`` was requested."""


class NodeInspection(NodeSnapshots):
    """The verbs of a node that inspect its processes: state, suspension, traces, statistics,
    mailboxes and crashes.
    """

    async def get_state(self, to: Target, *, timeout: float = 5.0) -> State:
        """Return the attributes of a behaviour, read between two of its messages. The values are
        not copied.

        Raises:
            ProcessUnknownError: there is no such process.
            CallTimeoutError: the process is busy for longer than ``timeout``; ``process_info``
                names the callback.
        """
        found: State = await self._ask("get_state", to, get_state, timeout)
        return found

    async def replace_state(
        self, to: Target, function: Callable[[State], Mapping[str, object]], *, timeout: float = 5.0
    ) -> State:
        """Replace the attributes of a behaviour by ``function(attributes)``, between two of its
        messages.

        If ``function`` raises, the exception is raised here, and the behaviour keeps its
        attributes.

        Raises:
            ProcessUnknownError: there is no such process.
            CallTimeoutError: the process is busy for longer than ``timeout``.
            BadInputError: ``function`` is not callable, or did not return a dict.
        """
        if not callable(function):
            raise BadInputError(
                "replace_state(to, function)",
                function,
                "a function such as `lambda state: {**state, 'total': 0}`",
            )
        new: State = await self._ask("replace_state", to, replace_state(function), timeout)
        return new

    async def suspend(self, to: Target, *, timeout: float = 5.0) -> bool:
        """Suspend a process: it takes no message until it is resumed. Inspecting and ending it
        still work. False if it was suspended already.

        Raises:
            ProcessUnknownError: there is no such process.
            CallTimeoutError: the process is busy for longer than ``timeout``.
        """
        return bool(await self._ask("suspend", to, suspend, timeout))

    async def resume(self, to: Target, *, timeout: float = 5.0) -> bool:
        """Resume a suspended process. False if it was not suspended.

        Raises:
            ProcessUnknownError: there is no such process.
        """
        return bool(await self._ask("resume", to, resume, timeout))

    def trace(
        self,
        to: Target,
        *,
        types: Collection[type | str] = (),
        callbacks: Collection[str] = (),
        contents: bool = False,
        limit: int = 1000,
        seconds: float = 60.0,
    ) -> Trace:
        """Trace the callbacks and messages of a process: ``async with node.trace(pid) as trace:
        async for entry in trace: …``.

        The entry of a callback comes when the callback has ended, and shows its message. The
        messages that it sent come before it.

        Args:
            to: the process.
            types: only messages of these types, given as classes or by name; empty for all.
            callbacks: only these callbacks and verbs, such as ``handle_call`` and ``send``; empty
                for all.
            contents: show messages as text, after the node's ``redact``; else only their types.
            limit: end the trace after so many entries.
            seconds: end the trace after so many seconds.

        Raises:
            BadInputError: a filter or a limit is not valid.
            ProcessUnknownError: on entering: there is no such process.
        """
        self._here("trace")
        check_number("limit", limit, least=1, whole=True)
        check_number("seconds", seconds, least=0.0)
        check_flag("contents", contents)
        if isinstance(types, str) or not all(isinstance(kind, str | type) for kind in types):
            raise BadInputError(
                "types", types, "a list of classes or of their names, such as [Add] or ['Add']"
            )
        known = [*CALLBACKS, *REPORTED_VERBS]
        if isinstance(callbacks, str) or not set(callbacks) <= set(known):
            raise BadInputError(
                "callbacks", callbacks, f"a list such as ['handle_call', 'send'] of any of {known}"
            )

        async def attach(process: Process, observer: CallbackObserver) -> None:
            await ask(self._kernel, self.pid, process, to, "trace", observe(observer), 5.0)

        return Trace(
            self._kernel,
            lambda: self._one(to, "trace"),
            attach,
            types=types,
            callbacks=callbacks,
            contents=contents,
            limit=limit,
            seconds=seconds,
        )

    async def statistics(self, to: Target, *, seconds: float = 1.0) -> Statistics:
        """Observe a process for a time, and return sums: how often each callback ran, how long,
        with which messages.

        A meta-process is only counted: how many messages it handled and sent.

        Raises:
            ProcessUnknownError: there is no such process.
            CallTimeoutError: the process is busy for longer than five seconds.
        """
        self._here("statistics")
        check_number("seconds", seconds, least=0.0)
        found = self._router.resolve(to)
        if isinstance(found, Meta):
            return await count_meta(found, seconds)
        process = self._one(to, "statistics")
        tally = Tally(process)
        try:
            await ask(self._kernel, self.pid, process, to, "statistics", observe(tally), 5.0)
            with trio.move_on_after(seconds):
                await tally.ended.wait()
        finally:
            stop_observing(process, tally)
        return tally.result()

    def peek(self, to: Target, *, limit: int = 100, contents: bool = False) -> list[Queued]:
        """Return the messages that wait for a process or meta-process, in the order of serving.
        This does not disturb the process.

        Shows only their types, unless ``contents`` is True; then the messages as text, after the
        node's ``redact``.

        Raises:
            ProcessUnknownError: there is no such process.
        """
        check_number("limit", limit, least=0, whole=True)
        check_flag("contents", contents)
        return self._run(self._peek, to, limit, contents)

    def _peek(self, to: Target, limit: int, contents: bool) -> list[Queued]:
        found = self._router.resolve(to)
        if not isinstance(found, Process | Meta):
            self._refuse_remote(to)
            raise self._router.unknown(to)
        box = found.mailbox
        lanes = (
            (Lane.URGENT, box.urgent),
            (Lane.SYSTEM, box.system),
            (Lane.MAIN, box.main),
            (Lane.LOG, box.log),
        )
        # Copy first: a worker thread may pop messages of a meta-process meanwhile.
        waiting = chain.from_iterable(
            (
                (lane.value, envelope[3] if envelope[0] == END_NOTICE else envelope)
                for envelope in queue.copy()
            )
            for lane, queue in lanes
        )
        return [
            Queued(
                lane,
                kind_name(kind),
                sender,
                type(payload).__qualname__,
                show(self._kernel, "message", payload)
                if contents and (kind <= EVENT or kind == INSPECT)
                else None,
            )
            for lane, (kind, sender, _, payload) in islice(waiting, limit)
        ]

    def crashes(self, count: int | None = None) -> list[Obituary]:
        """Return the last processes and meta-processes that failed, newest last: the reason, the
        callback, and the waiting messages.

        Excludes connections that their peers ended, and meta-processes that ended with their owner:
        see :meth:`ended`.
        """
        return self._kernel.lifetimes.obituaries.failed(_checked(count))

    def ended(self, count: int | None = None) -> list[Obituary]:
        """Return the last processes and meta-processes that ended, for any reason, newest last."""
        return self._kernel.lifetimes.obituaries.all(_checked(count))

    async def _ask(self, verb: str, to: Target, request: object, timeout: float) -> Any:
        self._here(verb)
        check_timeout(timeout)
        return await ask(self._kernel, self.pid, self._one(to, verb), to, verb, request, timeout)

    def _one(self, to: Target, verb: str) -> Process:
        found = self._router.resolve(to)
        if isinstance(found, Meta):
            raise NotAllowedError(
                f"{verb} needs a process, and {found} is a meta-process, whose reader never "
                "pauses between two messages; "
                "inspect_meta, meta_info, peek and statistics look into it"
            )
        if not isinstance(found, Process):
            self._refuse_remote(to)
            raise self._router.unknown(to)
        return found


def _checked(count: int | None) -> int | None:
    if count is not None:
        check_number("count", count, least=0, whole=True)
    return count


show_public_names(__name__)
