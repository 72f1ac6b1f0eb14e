"""Tables of the handles that a node returns, and their facades for both kinds of code."""

from .._core.tables.timers import Timer
from ..entity_handles import EntityHandle, html_of
from ..groups import Group, Registry
from ..service import Service
from ..supervision.handle import SupervisorHandle
from ..supervision.pool import PoolHandle
from .facade import Asyncio, Blocking, Facade
from .rows import awaited, blocked, direct, handle, value, verb

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
]


class ServiceVerbs(Facade):
    """The verbs of a :class:`Service`."""

    _variable = "service"

    name = value(Service, lambda service: service.name)
    pid = value(Service, lambda service: service.pid)
    send = direct(Service.send)
    send_wait = verb(Service.send_wait)


class BlockingService(ServiceVerbs, Blocking):
    """A :class:`Service` without ``await``, for every thread except the node's own."""

    call = blocked(Service.call)


class AsyncioService(ServiceVerbs, Asyncio):
    """A :class:`Service` whose verbs are awaited on asyncio's loop. Only ``send`` is not."""

    call = awaited(Service.call)


class EntityVerbs(ServiceVerbs):
    """The verbs of an `EntityHandle`."""

    _variable = "entity"

    post = verb(EntityHandle.post)

    def _repr_html_(self) -> str:
        return html_of(self._subject)


class BlockingEntity(EntityVerbs, Blocking):
    """An entity without ``await``, for every thread except the node's own."""

    call = blocked(EntityHandle.call)


class AsyncioEntity(EntityVerbs, Asyncio):
    """An entity whose verbs are awaited on asyncio's loop. Only ``send`` is not."""

    call = awaited(EntityHandle.call)


class SupervisorVerbs(Facade):
    """The verbs of a :class:`SupervisorHandle`."""

    _variable = "supervisor"

    pid = value(SupervisorHandle, lambda supervisor: supervisor.pid)
    children = verb(SupervisorHandle.children)
    count = verb(SupervisorHandle.count)
    service = handle(SupervisorHandle.service, blocking=BlockingService, asyncio=AsyncioService)
    start_child = verb(SupervisorHandle.start_child)
    stop_child = verb(SupervisorHandle.stop_child)
    restart_child = verb(SupervisorHandle.restart_child)
    upgrade_child = verb(SupervisorHandle.upgrade_child)
    add_child = verb(SupervisorHandle.add_child)
    remove_child = verb(SupervisorHandle.remove_child)
    enable_child = verb(SupervisorHandle.enable_child)
    disable_child = verb(SupervisorHandle.disable_child)


class BlockingSupervisor(SupervisorVerbs, Blocking):
    """A :class:`SupervisorHandle` without ``await``, for every thread except the node's own."""


class AsyncioSupervisor(SupervisorVerbs, Asyncio):
    """A :class:`SupervisorHandle` whose verbs are awaited on asyncio's loop."""


class PoolVerbs(SupervisorVerbs):
    """The verbs of a :class:`PoolHandle`."""

    _variable = "pool"

    workers = verb(PoolHandle.workers)
    add_workers = verb(PoolHandle.add_workers)
    remove_workers = verb(PoolHandle.remove_workers)
    resize = verb(PoolHandle.resize)


class BlockingPool(PoolVerbs, Blocking):
    """A :class:`PoolHandle` without ``await``, for every thread except the node's own."""


class AsyncioPool(PoolVerbs, Asyncio):
    """A :class:`PoolHandle` whose verbs are awaited on asyncio's loop."""


# Groups, registries and timers work in every thread. On asyncio's loop they would wait for the
# node's loop without giving other tasks a turn.


class AsyncioGroup(Asyncio):
    """A :class:`Group` whose verbs are awaited on asyncio's loop."""

    _variable = "group"

    name = value(Group, lambda group: group.name)
    join = verb(Group.join)
    leave = verb(Group.leave)
    members = verb(Group.members)
    broadcast = verb(Group.broadcast)
    monitor = verb(Group.monitor)
    demonitor = verb(Group.demonitor)


class AsyncioRegistry(Asyncio):
    """A :class:`Registry` whose verbs are awaited on asyncio's loop. Only ``address`` is not."""

    _variable = "registry"

    name = value(Registry, lambda registry: registry.name)
    unique = value(Registry, lambda registry: registry.unique)
    register = verb(Registry.register)
    unregister = verb(Registry.unregister)
    whereis = verb(Registry.whereis)
    lookup = verb(Registry.lookup)
    entries = verb(Registry.entries)
    keys = verb(Registry.keys)
    address = direct(Registry.address)
    broadcast = verb(Registry.broadcast)


class AsyncioTimer(Asyncio):
    """A :class:`Timer` that is cancelled with ``await timer.cancel()``."""

    _variable = "timer"

    active = value(Timer, lambda timer: timer.active)
    cancel = verb(Timer.cancel)
