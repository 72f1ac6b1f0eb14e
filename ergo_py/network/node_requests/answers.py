"""`Answers`: the answers of this node to the requests of another node."""

from collections.abc import Awaitable, Callable, Coroutine
from math import inf
from typing import Any, Final

import trio

from ..._core.metas.meta import Meta
from ..._core.processes.process import Process
from ..._core.processes.spawn import spawn_process
from ..._core.tables.relations import Kind
from ..._core.verbs.behaviour import behaviour_of
from ..._core.verbs.node_snapshots import inspect_for
from ..._core.vocabulary.errors import NotAllowedError, ProcessUnknownError, SpawnError
from ..._core.vocabulary.ids import PID, Alias, Key, Name, NodeName
from ..._core.vocabulary.options import Options, read_options
from ..._core.vocabulary.reasons import Reason, Shutdown
from ..access.spawns import SpawnBudget
from ..errors import UnreadableError
from ..messages.listed_class import UnreadableValueError
from ..messages.snapshots import encode_snapshot
from ..outgoing.peer import Peer
from ..protocol.operations import NodeRequest
from ..refusals import Refusals
from .chunks import Chunks
from .control import ControlClients
from .request_queue import RequestQueue

__all__ = ["LOOKS", "Answers"]

# Not measured: each has a task, of some kilobytes.
_AT_ONCE: Final = 1000
"""Most requests of another node that wait for something here at a time."""

LOOKS: Final = {
    "applications": 0,
    "crashes": 1,
    "dead_letters": 1,
    "ended": 1,
    "events": 0,
    "info": 0,
    "inspect": inf,
    "inspect_meta": inf,
    "meta_info": 1,
    "metas": 0,
    "network": 0,
    "process_info": 1,
    "processes": 0,
    "tree": 0,
}
"""The verbs of a node that another node with the permit ``look`` may use, each with the most
positional arguments. The only keyword is the ``timeout`` of verbs that wait.
"""
_WAITS: Final = frozenset({"inspect", "inspect_meta"})
_IN_TURN: Final = frozenset({"look", "control"})
"""The requests that begin in turns of the loop of their own."""


class _OtherFormError(Exception):
    """A request, or its argument, has a form that this version does not know."""


class Answers:
    """Answers the requests of a single other node."""

    def __init__(self, peer: Peer, refusals: Refusals) -> None:
        self._peer = peer
        self._refusals = refusals
        self._kernel = peer.network.kernel
        self._permits: frozenset[str] = frozenset()
        self._budget = SpawnBudget(self._kernel.clock.now)
        self._chunks = Chunks()
        self._clients = ControlClients(peer.network)
        self._waiting: dict[trio.CancelScope, None] = {}
        """The requests that have begun and wait for something here."""
        self._queue = RequestQueue(peer.node)
        """The requests that have not begun, but for their turn."""
        self._has_next = False
        """Whether a task waits for the turn of the oldest request of the queue."""
        self._known: dict[str, tuple[str | None, Callable[[Any], Any]]] = {
            "ping": (None, self._ping),
            "whereis": ("call", self._whereis),
            "wait_ended": ("watch", self._wait_ended),
            "spawn": ("spawn", self._spawn),
            "look": ("look", self._look),
            "control": ("look", self._control),
            "more": ("look", self._more),
        }
        """Each request with the permit that it needs, and the function that answers it: with a
        value, or with a coroutine. It raises `_OtherFormError` for an argument of another form.
        """

    def permit(self, permits: frozenset[str]) -> None:
        """Answer the requests that these permits allow from now on."""
        self._permits = permits

    def answer(self, op: NodeRequest) -> None:
        """Answer a request, perhaps later."""
        # A request that is refused needs no turn.
        if op.about in _IN_TURN and self._known[op.about][0] in self._permits:
            self._answer_in_turn(op)
        elif (wait := self._begin(op)) is not None:
            self._soon(self._finish, op.number, *wait)

    def forget(self) -> None:
        """Give up the requests that wait: the other node is lost."""
        self._queue.clear()
        for scope in list(self._waiting):
            scope.cancel()
        self._clients.close()

    def _soon(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        self._kernel.start(function, *args, name=f"network: for {self._peer.node}")

    def _answer_in_turn(self, op: NodeRequest) -> None:
        try:
            self._queue.put(op)
        except NotAllowedError as error:
            self._peer.send_answer(op.number, None, error)
        else:
            if not self._has_next:
                self._has_next = True
                self._soon(self._answer_next)

    async def _answer_next(self) -> None:
        """Answer the oldest request of the queue. Each other node has a single task that waits for
        a turn, so that a flood of requests delays those of other nodes by a turn each.
        """
        await self._kernel.request_turns.take()
        # The queue may be empty: the node was lost while this task waited for its turn.
        op = self._queue.take() if self._queue else None
        self._has_next = bool(self._queue)
        if self._has_next:
            # Before this request is carried out: it may wait for a process, and the next must not
            # wait for it.
            self._soon(self._answer_next)
        if op is not None and (wait := self._begin(op)) is not None:
            await self._finish(op.number, *wait)

    def _begin(self, op: NodeRequest) -> tuple[Awaitable[object], trio.CancelScope] | None:
        """Begin a request, and answer a request that does not wait, or is not permitted any more.
        Returns the rest of a request that waits for something, and the scope of the wait.
        """
        # The permits count when a request begins, not when it came: thousands of looks that waited
        # for their turn were answered after the permit had gone.
        permit, function = self._known.get(op.about, (None, self._unknown))
        if permit is not None and permit not in self._permits:
            self._peer.send_answer(op.number, None, self._refusals.refuse_act(permit))
            return None
        try:
            found = function(self._peer.network.types.decode(op.body))
        except (_OtherFormError, UnreadableValueError):
            self._peer.send_answer(op.number, None, self._not_known(op.about))
        except Exception as error:
            self._peer.send_answer(op.number, None, error)
        else:
            if not isinstance(found, Coroutine):
                self._peer.send_answer(op.number, found, None)
            elif len(self._waiting) < _AT_ONCE:
                scope = trio.CancelScope()
                self._waiting[scope] = None
                return found, scope
            else:
                # A coroutine that is dropped without a step warns that it was never awaited.
                found.close()
                text = f"{_AT_ONCE} requests of {self._peer.node!r} wait here already; ask later"
                self._peer.send_answer(op.number, None, NotAllowedError(text))
        return None

    async def _finish(self, number: int, found: Awaitable[object], scope: trio.CancelScope) -> None:
        value, error = None, None
        try:
            with scope:
                value = await found
        except Exception as failure:
            error = failure
        finally:
            self._waiting.pop(scope, None)
        # A number of a request belongs to the session in which it came.
        if not scope.cancel_called:
            self._peer.send_answer(number, value, error)

    def _not_known(self, about: str) -> UnreadableError:
        here = self._kernel.pid.node
        text = (
            f"the node {here!r} does not know the request {about!r}; "
            "perhaps it runs another version of ergo_py"
        )
        return UnreadableError(text, NodeName(here), None)

    def _unknown(self, _argument: object) -> None:
        raise _OtherFormError

    # -- the requests ------------------------------------------------------------------------------

    def _ping(self, argument: object) -> None:
        if argument is not None:
            raise _OtherFormError

    def _whereis(self, name: object) -> PID | None:
        if not isinstance(name, str):
            raise _OtherFormError
        holder = self._kernel.router.registry.names.get(name)
        # A meta-process may have the name; it has an alias and no PID.
        return None if holder is None or not isinstance(holder.id, PID) else holder.id

    def _wait_ended(self, to: Any) -> object:
        found = self._kernel.router.resolve(to)
        if isinstance(found, Process | Meta):
            return self._await_end(found)
        reason = self._kernel.lifetimes.obituaries.reason_of(to)
        if reason is None:
            # Without the names to compare with: a short request must not make a long answer, and
            # who may watch may not list.
            raise ProcessUnknownError(to)
        return self._told(reason)

    async def _await_end(self, found: Process | Meta) -> object:
        await found.wait_gone()
        return self._told(found.reason or Shutdown())

    def _told(self, reason: Reason) -> Reason:
        # A reason with a value that cannot travel arrives as text, as that of a watch does.
        types = self._peer.network.types
        return types.decode_reason(types.encode_reason(reason))

    def _spawn(self, asked: object) -> Awaitable[PID]:
        match asked:
            case [str(listed), [*args], (str() | None) as name, (PID() | None) as parent] if (
                # A node links the new process to its own processes only. With any parent, it could
                # have this node watch a third node for it.
                parent is None or parent.node == self._peer.node
            ):
                here = self._kernel.pid.node
                if self._kernel.draining:
                    raise SpawnError(f"the node {here!r} is draining; start it on another node")
                behaviour = self._peer.network.spawns.find(here, listed)
                # Behind the lookup: a name that is not listed starts nothing, and costs no place of
                # the budget.
                self._budget.take(here)
                options = read_options({} if name is None else {"name": name})
                return self._start(behaviour, tuple(args), options, parent)
        raise _OtherFormError

    async def _start(
        self, behaviour: object, args: tuple[Any, ...], options: Options, parent: PID | None
    ) -> PID:
        process = await spawn_process(
            self._kernel,
            None,
            behaviour,
            behaviour_of(behaviour),
            args,
            options,
            may_pause=False,
        )
        if parent is not None:
            self._kernel.links.relate(process, parent, Kind.LINK)
        return process.id

    def _look(self, asked: object) -> object:
        match asked:
            case [str(verb), [*args], dict(keywords)] if len(args) <= LOOKS.get(verb, -1) and (
                not keywords or (verb in _WAITS and [*keywords] == ["timeout"])
            ):
                self._refuse_elsewhere(args)
                if verb in _WAITS:
                    return self._inspect(verb, args, keywords)
                return self._snapshot(getattr(self._kernel.node, verb)(*args))
        raise _OtherFormError

    async def _inspect(self, verb: str, args: list[Any], keywords: dict[str, Any]) -> object:
        # Not a PID that the request names: only of the node itself it is known.
        asker = PID(self._peer.node, self._peer.creation, 0)
        found = await inspect_for(self._kernel.node, verb, asker, *args, **keywords)
        return self._snapshot(found)

    def _refuse_elsewhere(self, args: list[object]) -> None:
        """Refuse to look into a third node: only that node knows whom it permits to look."""
        here = self._kernel.pid.node
        for arg in args:
            if isinstance(arg, PID | Alias | Name | Key) and arg.node not in ("", here):
                raise NotAllowedError(
                    f"{here!r} looks into its own processes only; ask {arg.node!r} about {arg!r}"
                )

    def _snapshot(self, value: object) -> object:
        return self._chunks.first(encode_snapshot(self._peer.network.snapshots, value))

    def _more(self, asked: object) -> bytes:
        match asked:
            case [int(token), int(offset)]:
                return self._chunks.next(token, offset)
        raise _OtherFormError

    def _control(self, asked: object) -> Awaitable[object]:
        match asked:
            case [int(client), str(do), dict(arguments)]:
                return self._run_command(client, do, arguments)
        raise _OtherFormError

    async def _run_command(self, client: int, do: str, arguments: dict[str, Any]) -> object:
        return self._chunks.first(await self._clients.answer(client, do, arguments))
