"""The verbs of a node that look into a process without any code in it, as OTP's ``sys`` does."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

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
from ..kernel import Kernel
from ..metas.meta import Meta
from ..processes.process import Process
from ..tables.callbacks import CALLBACKS
from ..tables.obituaries import Obituary
from ..vocabulary.envelopes import EVENT, INSPECT, Lane, kind_name
from ..vocabulary.errors import BadInputError, NotAllowedError, ProcessUnknownError
from ..vocabulary.ids import PID, Target
from ..vocabulary.options import check_flag, check_number
from .common import check_timeout

if TYPE_CHECKING:
    from ..messaging.router import Router

__all__ = ["NodeInspection", "Queued"]

T = TypeVar("T")
State = dict[str, object]


@dataclass(frozen=True, slots=True)
class Queued:
    """One message that waits in a mailbox."""

    lane: str
    callback: str
    """The callback it will be handled by."""
    sender: object
    message_type: str
    message: str | None
    """The message as text; only if contents were asked for."""


class NodeInspection:
    """What a node can find out about its processes, and do to them, whatever they are made for."""

    _kernel: Kernel
    _router: "Router"

    @property
    def pid(self) -> PID:
        """The node's own."""
        raise NotImplementedError

    def _run(self, function: Callable[..., T], *args: Any) -> T:
        raise NotImplementedError

    def _here(self, verb: str) -> None:
        raise NotImplementedError

    async def get_state(self, to: Target, *, timeout: float = 5.0) -> State:
        """The attributes of a behaviour, read between two of its messages. The values are its own,
        not copies.

        Raises:
            ProcessUnknownError: there is none.
            CallTimeoutError: it is busy for longer than ``timeout``; ``process_info`` says in what.
        """
        found: State = await self._ask("get_state", to, get_state, timeout)
        return found

    async def replace_state(
        self, to: Target, function: Callable[[State], Mapping[str, object]], *, timeout: float = 5.0
    ) -> State:
        """Give a behaviour the attributes that ``function`` makes of the present ones, between two
        of its messages.

        If ``function`` raises, that is raised here, and the behaviour is as before.

        Raises:
            ProcessUnknownError: there is none.
            CallTimeoutError: it is busy for longer than ``timeout``.
            BadInputError: ``function`` is none, or did not return a dict.
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
        """Have a process take no message until it is resumed. It can still be looked at and ended.
        False if it was suspended.

        Raises:
            ProcessUnknownError: there is none.
            CallTimeoutError: it is busy for longer than ``timeout``.
        """
        return bool(await self._ask("suspend", to, suspend, timeout))

    async def resume(self, to: Target, *, timeout: float = 5.0) -> bool:
        """Let a suspended process go on. False if it was not suspended.

        Raises:
            ProcessUnknownError: there is none.
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
        """The callbacks and messages of a process: ``async with node.trace(pid) as trace: async for
        entry in trace: …``.

        A callback is told of when it has ended, with the message it got; what it sent meanwhile
        stands before it.

        Args:
            to: the process.
            types: only messages of these types, given as classes or by name; all if there are none.
            callbacks: only these callbacks and verbs, such as ``handle_call`` and ``send``; all if
                there are none.
            contents: show messages as text, after the node's ``redact``; else only their types.
            limit: after how many entries it ends by itself.
            seconds: after how many seconds it ends by itself.

        Raises:
            BadInputError: a filter or a limit that cannot be right.
            ProcessUnknownError: on entering: there is no such process.
        """
        self._here("trace")
        check_number("limit", limit, least=1, whole=True)
        check_number("seconds", seconds, least=0.0)
        check_flag("contents", contents)
        if isinstance(types, str) or not all(isinstance(one, str | type) for one in types):
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
        """Watch a process for a while, and tell what it did: how often, how long, with which
        messages.

        A meta-process is counted only: how many messages it handled and sent.

        Raises:
            ProcessUnknownError: there is none.
            CallTimeoutError: it is busy for longer than five seconds.
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
        """The messages that wait for a process or meta-process, in the order in which it will take
        them; it notices nothing.

        Only their types, unless ``contents`` are asked for; these are shown after the node's
        ``redact``.

        Raises:
            ProcessUnknownError: there is none.
        """
        check_number("limit", limit, least=0, whole=True)
        check_flag("contents", contents)
        return self._run(self._peek, to, limit, contents)

    def _peek(self, to: Target, limit: int, contents: bool) -> list[Queued]:
        found = self._router.resolve(to)
        if not isinstance(found, Process | Meta):
            raise ProcessUnknownError(to)
        box = found.mailbox
        lanes = (
            (Lane.URGENT, box.urgent),
            (Lane.SYSTEM, box.system),
            (Lane.MAIN, box.main),
            (Lane.LOG, box.log),
        )
        # Copied first: a worker thread may be taking messages out of a meta-process's lane.
        waiting = chain.from_iterable(
            ((lane.value, one) for one in queue.copy()) for lane, queue in lanes
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
        """The last processes and meta-processes that failed, newest last: why, in what, and what
        they had left to do.

        Connections that their peers ended are not among them, nor meta-processes that ended with
        their owner: see :meth:`ended`.
        """
        return self._kernel.obituaries.failed(_checked(count))

    def ended(self, count: int | None = None) -> list[Obituary]:
        """The last processes and meta-processes that ended, for whatever reason, newest last."""
        return self._kernel.obituaries.all(_checked(count))

    async def _ask(self, verb: str, to: Target, request: Any, timeout: float) -> Any:
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
            raise ProcessUnknownError(to)
        return found


def _checked(count: int | None) -> int | None:
    if count is not None:
        check_number("count", count, least=0, whole=True)
    return count
