"""Tables of the handles that a node returns, and their facades for both kinds of code."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar, overload

from .._core.tables.timers import Timer
from .._core.verbs.behaviour import Behaviour
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.ids import B_co
from .._core.vocabulary.messages import Request, Sent, Untyped
from ..actor import Actor
from ..entity_handles import EntityHandle, html_of
from ..groups import Group, Registry
from ..service import Service
from ..supervision.handle import SupervisorHandle
from ..supervision.pool import PoolHandle
from .facade import Asyncio, Blocking, Facade
from .rows import Row, as_method, awaited, blocked, direct, handle, value, verb

__all__ = [
    "AsyncioEntity",
    "AsyncioGroup",
    "AsyncioPool",
    "AsyncioRegistry",
    "AsyncioService",
    "AsyncioSupervisor",
    "AsyncioTimer",
    "BlockingEntity",
    "BlockingPool",
    "BlockingService",
    "BlockingSupervisor",
    "asyncio_entity",
    "blocking_entity",
]

A = TypeVar("A", bound=Actor)
Callee = TypeVar("Callee")
M = TypeVar("M")
P = ParamSpec("P")
R = TypeVar("R")


class ServiceVerbs(Facade):
    """The verbs of a :class:`Service`."""

    _variable = "service"

    name: Final = value(Service, lambda service: service.name)
    pid: Final = value(Service, lambda service: service.pid)
    send: Final = direct(Service.send)
    send_wait: Final = verb(Service.send_wait)


class BlockingService(ServiceVerbs, Blocking):
    """A :class:`Service` without ``await``, for every thread except the node's own."""

    call: Final = blocked(Service.call)


class AsyncioService(ServiceVerbs, Asyncio):
    """A :class:`Service` whose verbs are awaited on asyncio's loop. Only ``send`` is not."""

    call: Final = awaited(Service.call)


class EntityVerbs(Facade):
    """The verbs of an `EntityHandle`."""

    _variable = "entity"

    name: Final = value(EntityHandle, lambda entity: entity.name)
    key: Final = value(EntityHandle, lambda entity: entity.key)
    address: Final = value(EntityHandle, lambda entity: entity.address)
    pid: Final = value(EntityHandle, lambda entity: entity.pid)
    send_wait: Final = verb(EntityHandle.send_wait)
    post: Final = verb(EntityHandle.post)

    def _repr_html_(self) -> str:
        return html_of(self._subject)


# The rows of verbs whose types depend on the class of the entity. Type checkers see the class in
# the methods below them.


class BlockingEntity(EntityVerbs, Blocking, Generic[B_co]):
    """An entity without ``await``, for every thread except the node's own."""

    if TYPE_CHECKING:

        def send(
            self: "BlockingEntity[Behaviour[M]]",
            message: Sent[M],
            *,
            priority: Priority = Priority.NORMAL,
        ) -> bool:
            """As that of `EntityHandle`."""
            ...

        @overload
        def call(
            self,
            request: Untyped | None,
            *,
            timeout: float | None = 5.0,
            priority: Priority = Priority.NORMAL,
            retry: bool = False,
            once: str | None = None,
            fresh: bool = False,
        ) -> Any: ...
        @overload
        def call(
            self: "BlockingEntity[Callee]",
            request: Request[R, Callee],
            *,
            timeout: float | None = 5.0,
            priority: Priority = Priority.NORMAL,
            retry: bool = False,
            once: str | None = None,
            fresh: bool = False,
        ) -> R: ...
        def call(self, request: object, **options: object) -> object:
            """As that of `EntityHandle`."""
            ...

    else:
        send = direct(EntityHandle.send)
        call = blocked(EntityHandle.call)


class AsyncioEntity(EntityVerbs, Asyncio, Generic[B_co]):
    """An entity whose verbs are awaited on asyncio's loop. Only ``send`` is not."""

    if TYPE_CHECKING:

        def send(
            self: "AsyncioEntity[Behaviour[M]]",
            message: Sent[M],
            *,
            priority: Priority = Priority.NORMAL,
        ) -> bool:
            """As that of `EntityHandle`."""
            ...

        @overload
        async def call(
            self,
            request: Untyped | None,
            *,
            timeout: float | None = 5.0,
            priority: Priority = Priority.NORMAL,
            retry: bool = False,
            once: str | None = None,
            fresh: bool = False,
        ) -> Any: ...
        @overload
        async def call(
            self: "AsyncioEntity[Callee]",
            request: Request[R, Callee],
            *,
            timeout: float | None = 5.0,
            priority: Priority = Priority.NORMAL,
            retry: bool = False,
            once: str | None = None,
            fresh: bool = False,
        ) -> R: ...
        async def call(self, request: object, **options: object) -> object:
            """As that of `EntityHandle`."""
            ...

    else:
        send = direct(EntityHandle.send)
        call = awaited(EntityHandle.call)


def blocking_entity(
    function: Callable[Concatenate[Any, P], EntityHandle[A]],
) -> Callable[Concatenate[Any, P], BlockingEntity[A]]:
    """A row of blocking facades, for a method that returns an entity of a class."""
    return as_method(Row(function, blocking=BlockingEntity))


def asyncio_entity(
    function: Callable[Concatenate[Any, P], EntityHandle[A]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, AsyncioEntity[A]]]:
    """A row of asyncio facades, for a method that returns an entity of a class."""
    return as_method(Row(function, asyncio=AsyncioEntity))


class SupervisorVerbs(Facade):
    """The verbs of a :class:`SupervisorHandle`."""

    _variable = "supervisor"

    pid: Final = value(SupervisorHandle, lambda supervisor: supervisor.pid)
    children: Final = verb(SupervisorHandle.children)
    count: Final = verb(SupervisorHandle.count)
    service: Final = handle(
        SupervisorHandle.service, blocking=BlockingService, asyncio=AsyncioService
    )
    start_child: Final = verb(SupervisorHandle.start_child)
    stop_child: Final = verb(SupervisorHandle.stop_child)
    restart_child: Final = verb(SupervisorHandle.restart_child)
    upgrade_child: Final = verb(SupervisorHandle.upgrade_child)
    add_child: Final = verb(SupervisorHandle.add_child)
    remove_child: Final = verb(SupervisorHandle.remove_child)
    enable_child: Final = verb(SupervisorHandle.enable_child)
    disable_child: Final = verb(SupervisorHandle.disable_child)


class BlockingSupervisor(SupervisorVerbs, Blocking):
    """A :class:`SupervisorHandle` without ``await``, for every thread except the node's own."""


class AsyncioSupervisor(SupervisorVerbs, Asyncio):
    """A :class:`SupervisorHandle` whose verbs are awaited on asyncio's loop."""


class PoolVerbs(SupervisorVerbs):
    """The verbs of a :class:`PoolHandle`."""

    _variable = "pool"

    workers: Final = verb(PoolHandle.workers)
    add_workers: Final = verb(PoolHandle.add_workers)
    remove_workers: Final = verb(PoolHandle.remove_workers)
    resize: Final = verb(PoolHandle.resize)


class BlockingPool(PoolVerbs, Blocking):
    """A :class:`PoolHandle` without ``await``, for every thread except the node's own."""


class AsyncioPool(PoolVerbs, Asyncio):
    """A :class:`PoolHandle` whose verbs are awaited on asyncio's loop."""


# Groups, registries and timers work in every thread. On asyncio's loop they would wait for the
# node's loop without giving other tasks a turn.


class AsyncioGroup(Asyncio):
    """A :class:`Group` whose verbs are awaited on asyncio's loop."""

    _variable = "group"

    name: Final = value(Group, lambda group: group.name)
    join: Final = verb(Group.join)
    leave: Final = verb(Group.leave)
    members: Final = verb(Group.members)
    broadcast: Final = verb(Group.broadcast)
    monitor: Final = verb(Group.monitor)
    demonitor: Final = verb(Group.demonitor)


class AsyncioRegistry(Asyncio):
    """A :class:`Registry` whose verbs are awaited on asyncio's loop. Only ``address`` is not."""

    _variable = "registry"

    name: Final = value(Registry, lambda registry: registry.name)
    unique: Final = value(Registry, lambda registry: registry.unique)
    register: Final = verb(Registry.register)
    unregister: Final = verb(Registry.unregister)
    whereis: Final = verb(Registry.whereis)
    lookup: Final = verb(Registry.lookup)
    entries: Final = verb(Registry.entries)
    keys: Final = verb(Registry.keys)
    address: Final = direct(Registry.address)
    broadcast: Final = verb(Registry.broadcast)


class AsyncioTimer(Asyncio):
    """A :class:`Timer` that is cancelled with ``await timer.cancel()``."""

    _variable = "timer"

    active: Final = value(Timer, lambda timer: timer.active)
    cancel: Final = verb(Timer.cancel)
