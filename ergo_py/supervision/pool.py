"""`Pool`: a supervisor whose address distributes messages and calls directly into the mailboxes of
its workers.
"""

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVarTuple, Unpack

import trio

from .._core.processes.process import Process
from .._core.tables.child_slot import ChildSlot, Decision, Fate, Redirect
from .._core.tables.pending_calls import Caller
from .._core.verbs.behaviour import Behaviour
from .._core.vocabulary.envelopes import Divert, Overflow
from .._core.vocabulary.errors import BadInputError, ChildError
from .._core.vocabulary.ids import PID
from .._core.vocabulary.late_methods import dataclass
from .._core.vocabulary.messages import Relay
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import Reason
from .._core.vocabulary.text import shown
from .actions import Action, AddChild, Operation, RemoveChild
from .child import Child
from .handle import SupervisorHandle
from .pool_growth import PoolGrowth, is_free
from .pool_mailbox import PoolMailbox, Routing
from .specs import (
    Backoff,
    Budget,
    ChildSpec,
    RestartPolicy,
    Strategy,
    SupervisorSpec,
    WorkerKeywords,
)
from .supervisor import Supervisor

if TYPE_CHECKING:  # type checkers bring it along; with it, a plain `Pool` is a `Pool[Any]`
    from typing_extensions import TypeVar

    W_co = TypeVar("W_co", bound=Behaviour, covariant=True, default=Any)
else:
    from typing import TypeVar

    W_co = TypeVar("W_co", bound=Behaviour, covariant=True)

__all__ = ["Pool", "PoolHandle", "PoolSpec", "Routing"]

Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True, init=False)
class PoolSpec(Generic[W_co]):
    """The workers of a pool, and the routing of work among them.

    Args:
        behaviour: the class of the workers, called with ``args`` for each start; or a function that
            chooses the behaviour of a worker at each start, as in ``def choose() -> Worker``.
        args: the arguments of the class, or of the function.
        size: the number of workers. A pair such as ``(2, 16)`` sets bounds: the pool starts with
            the first number, adds a worker when a message has waited longer than ``wait``, and
            removes one when it has had a free worker for ten times as long.
        routing: ROUND_ROBIN, LEAST_LOADED or BY_KEY.
        key: for BY_KEY, maps a message or request to its key.
        overflow: the overflow rule for a message when no worker has room. A call is always
            refused then.
        restart: as for a child of a supervisor, like the following arguments.
        shutdown: seconds a worker has to stop.
        backoff: the delay before a worker restarts.
        budget: a worker's own limit on restarts.
        decide: maps an exception to a decision.
        mailbox: the fate of messages still queued when a worker ends; in a pool, its successor
            gets them by default.
        intensity: more than this many restarts within ``period`` seconds end the pool.
        period: see ``intensity``.
        wait: seconds that a message may wait for a busy worker, in a pool with bounds.
        options: further keywords of ``spawn`` for the workers; ``mailbox_size`` bounds each
            worker.

    Raises:
        BadInputError: a value is invalid.
    """

    worker: ChildSpec
    """The template of each worker."""
    size: int | tuple[int, int]
    routing: Routing
    key: Callable[[Any], Hashable] | None = field(repr=False)
    overflow: Overflow | Divert
    intensity: int
    period: float
    wait: float

    def __init__(
        self,
        behaviour: Callable[[*Ts], W_co],
        *args: *Ts,
        size: int | tuple[int, int] = 4,
        routing: Routing = Routing.ROUND_ROBIN,
        key: Callable[[Any], Hashable] | None = None,
        overflow: Overflow | Divert = Overflow.RAISE,
        restart: RestartPolicy = RestartPolicy.PERMANENT,
        shutdown: float | None = None,
        backoff: Backoff | None = None,
        budget: Budget | None = None,
        decide: Callable[[Exception], Decision] | None = None,
        mailbox: Fate | Redirect = Fate.KEEP,
        intensity: int = 3,
        period: float = 5.0,
        wait: float = 0.1,
        **options: Unpack[WorkerKeywords],
    ) -> None:
        _check_size(size)
        check_number("PoolSpec(wait)", wait, least=0.001)
        if not isinstance(routing, Routing):
            raise BadInputError("PoolSpec(routing)", routing, "ROUND_ROBIN, LEAST_LOADED or BY_KEY")
        if (routing is Routing.BY_KEY) != (key is not None) or not (key is None or callable(key)):
            raise BadInputError(
                "PoolSpec(key)",
                key,
                "a function from a message to its key with BY_KEY, and only there",
            )
        if not isinstance(overflow, Overflow | Divert):
            raise BadInputError(
                "PoolSpec(overflow)", overflow, "a member of Overflow, or Divert(to=name)"
            )
        worker = ChildSpec(
            "worker",
            behaviour,
            *args,
            restart=restart,
            shutdown=shutdown,
            backoff=backoff,
            budget=budget,
            decide=decide,
            mailbox=mailbox,
            register=False,
            # With WAIT, senders wait in the mailbox of a worker, which keeps their order.
            overflow=Overflow.WAIT if overflow is Overflow.WAIT else Overflow.RAISE,
            **options,
        )
        SupervisorSpec([worker], intensity=intensity, period=period)
        values = (worker, size, routing, key, overflow, intensity, period, wait)
        for field_, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, field_.name, value)


def _check_size(size: object) -> None:
    match size:
        case (int(least), int(most)) if isinstance(size, tuple):
            check_number("PoolSpec(size)", least, least=1, whole=True)
            check_number("PoolSpec(size)", most, least=least, whole=True)
        case _:
            hint = ", or a pair of bounds such as (2, 16)"
            check_number("PoolSpec(size)", size, least=1, whole=True, hint=hint)


class Pool(Supervisor, Relay[W_co]):
    """A supervisor whose own address stands for its workers.

    Messages of normal priority and calls go directly to a worker. A message of a higher priority
    goes to the pool itself: use it to talk to a subclass. Messages for a worker that restarts wait
    for its successor.
    """

    _spec: PoolSpec[W_co] | None = None
    _numbers: int = 0

    def __init__(self, spec: PoolSpec[W_co] | None = None) -> None:
        self._spec = spec

    def workers(self) -> PoolSpec[W_co]:
        """Return the spec of workers and routing. Called once, before any worker starts."""
        if self._spec is None:
            raise BadInputError(
                f"{type(self).__qualname__}.workers",
                None,
                "`def workers(self) -> PoolSpec`, or Pool(spec)",
            )
        return self._spec

    def children(self) -> SupervisorSpec:
        """The workers, as children of a supervisor. In a pool, override ``workers`` instead."""
        spec = self._spec = self.workers()
        if not isinstance(spec, PoolSpec):
            raise BadInputError(
                f"{type(self).__qualname__}.workers",
                spec,
                "a PoolSpec, such as PoolSpec(Worker, size=4)",
            )
        first = spec.size if isinstance(spec.size, int) else spec.size[0]
        return SupervisorSpec(
            [self._next_worker() for _ in range(first)],
            Strategy.ONE_FOR_ONE,
            intensity=spec.intensity,
            period=spec.period,
            auto_shutdown=False,
        )

    # -- operations --------------------------------------------------------------------------------

    async def add_workers(self, count: int = 1) -> list[PID]:
        """Start further workers.

        Raises:
            SpawnError: a worker could not be started; the workers before it were.
        """
        check_number("add_workers(count)", count, least=1, whole=True)
        return [await self._operate(AddChild(self._next_worker())) for _ in range(count)]

    async def remove_workers(self, count: int = 1) -> list[PID]:
        """Remove the oldest workers gracefully: they get no new work, and end after finishing their
        queued work.

        Raises:
            BadInputError: no worker would be left.
            ChildError: another operation on a worker is under way, and that worker stays; the
                others go.
        """
        names = self._oldest(count)
        self._pool_mailbox.leaving.update(names)
        self._rearrange()
        return [await self._operate(RemoveChild(name, drain=True)) for name in names]

    def _oldest(self, count: int) -> list[str]:
        names = [name for name in self._plan.children if name not in self._pool_mailbox.leaving]
        check_number(
            "remove_workers(count)", count, least=1, most=max(1, len(names) - 1), whole=True
        )
        if len(names) < 2:
            raise BadInputError(
                "remove_workers(count)", count, "nothing: a pool keeps its last worker"
            )
        return names[:count]

    def _next_worker(self) -> ChildSpec:
        assert self._spec is not None
        self._numbers += 1
        return self._spec.worker.named(f"worker-{self._numbers}")

    # -- routing -----------------------------------------------------------------------------------

    _pool_mailbox: PoolMailbox

    def _take_slots(self, spec: SupervisorSpec) -> None:
        process = self._process
        super()._take_slots(spec)
        assert self._spec is not None
        options, size = self._spec.worker.options, self._spec.size
        growth = None if isinstance(size, int) else PoolGrowth(*size, self._spec.wait)
        self._pool_mailbox = PoolMailbox(
            process,
            self._running,
            self._spec.routing,
            self._spec.key,
            options.mailbox_size or 0,
            self._spec.overflow,
            growth,
        )
        # It routes every envelope. No call is answered inline.
        process.use_mailbox(self._pool_mailbox)

    async def _control(self, sender: PID, caller: Caller | None, payload: object) -> None:
        if isinstance(payload, PoolGrowth):
            await self._look(payload)
        else:
            await super()._control(sender, caller, payload)

    async def _look(self, growth: PoolGrowth) -> None:
        """Add a worker if messages wait, remove one if workers have been free for long."""
        workers = self._pool_mailbox.ring
        change = growth.look(workers)
        if change > 0:
            await self._perform(self._ask(AddChild(self._next_worker()), _Unasked(self)))
        elif change < 0:
            # The youngest: an old worker owns most keys of BY_KEY, and may have warm caches.
            slots = [worker.slot for worker in workers if is_free(worker)]
            for name in [slot.name for slot in slots if slot is not None][-1:]:
                # An operation of the program on this worker may be under way: it stays then.
                with suppress(ChildError):
                    await self._perform(self._ask(RemoveChild(name, drain=True), _Unasked(self)))
        if growth.continues(self._pool_mailbox.ring):
            self._pool_mailbox.look_later(growth)

    def _has_started(self, child: Child, started: Process, after: Reason | None) -> list[Action]:
        actions = super()._has_started(child, started, after)
        self._rearrange()
        return actions

    def _not_started(self, child: Child, slot: ChildSlot | None, error: Exception) -> list[Action]:
        actions = super()._not_started(child, slot, error)
        self._rearrange()
        return actions

    def _stop(self, child: Child, returns: bool, drain: bool) -> None:
        if drain:
            self._pool_mailbox.leaving.add(child.name)
        self._rearrange()
        super()._stop(child, returns, drain)

    def _ask(self, operation: Operation, asker: object) -> list[Action]:
        try:
            return super()._ask(operation, asker)
        except ChildError:
            if isinstance(operation, RemoveChild) and operation.drain:
                # The worker stays, so it gets work again.
                self._pool_mailbox.leaving.discard(operation.child)
                self._rearrange()
            raise

    def _lose(self, child: Child, reason: Reason) -> None:
        super()._lose(child, reason)
        self._rearrange()

    def _forget(self, name: str, reason: Reason) -> None:
        super()._forget(name, reason)
        self._pool_mailbox.leaving.discard(name)
        self._rearrange()

    def _has_order(self) -> bool:
        return False

    def _rearrange(self) -> None:
        self._pool_mailbox.arrange()

    def _describe(self) -> dict[str, str]:
        assert self._spec is not None
        queues = {
            f"queue {name}": str(len(worker.mailbox)) for name, worker in self._running.items()
        }
        return {"routing": self._spec.routing.value, **queues, **super()._describe()}


class _Unasked:
    """Stands for the asker of an operation that the pool performs by itself."""

    def __init__(self, pool: Pool) -> None:
        self._log = pool.log

    def settle(self, pid: object, error: BaseException | None) -> bool:
        if error is not None:
            self._log.warning("the pool could not grow", error=shown(error))
        return True


class PoolHandle(SupervisorHandle):
    """The operations of a pool, for code outside its callbacks."""

    def __repr__(self) -> str:
        return f"<PoolHandle {self._target}>"

    def workers(self) -> list[PID]:
        """The workers that run and get work."""
        return self._kernel.router.bridge.run(
            lambda: [worker.id for worker in self._pool()._pool_mailbox.ring]
        )

    async def add_workers(self, count: int = 1, *, timeout: float | None = None) -> list[PID]:
        """As :meth:`Pool.add_workers`."""
        check_number("add_workers(count)", count, least=1, whole=True)
        return [
            await self._operate(AddChild(self._pool()._next_worker()), timeout)
            for _ in range(count)
        ]

    async def remove_workers(self, count: int = 1, *, timeout: float | None = None) -> list[PID]:
        """As :meth:`Pool.remove_workers`. Returns when the workers have ended; they get no new work
        from the moment of the call.

        Raises:
            CallTimeoutError: the workers have not ended within ``timeout`` seconds; they still
                will.
        """
        pool = self._pool()
        names = pool._oldest(count)
        pool._pool_mailbox.leaving.update(names)
        pool._rearrange()
        ended: dict[str, PID] = {}
        errors: list[Exception] = []

        async def remove(name: str) -> None:
            try:
                ended[name] = await self._operate(RemoveChild(name, drain=True), timeout)
            except Exception as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(remove, name)
        if errors:
            raise errors[0]
        return [ended[name] for name in names]

    async def resize(self, size: int, *, timeout: float | None = None) -> int:
        """Set the number of workers. Return the difference: positive for workers added, negative
        for workers removed.
        """
        check_number("resize(size)", size, least=1, whole=True)
        pool = self._pool()
        change = size - len(pool._plan.children.keys() - pool._pool_mailbox.leaving)
        if change > 0:
            await self.add_workers(change, timeout=timeout)
        elif change < 0:
            await self.remove_workers(-change, timeout=timeout)
        return change

    def _pool(self) -> Pool:
        pool = self._supervisor()
        if not isinstance(pool, Pool):
            raise BadInputError("pool", self._target, "the PID or name of a Pool")
        return pool


show_public_names(__name__)
