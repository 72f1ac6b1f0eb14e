"""Tables of the handles that a node returns, and their facades for both kinds of code."""

from typing import Final

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


class EntityVerbs(ServiceVerbs):
    """The verbs of an `EntityHandle`."""

    _variable = "entity"

    key: Final = value(EntityHandle, lambda entity: entity.key)
    address: Final = value(EntityHandle, lambda entity: entity.address)
    post: Final = verb(EntityHandle.post)

    def _repr_html_(self) -> str:
        return html_of(self._subject)


class BlockingEntity(EntityVerbs, Blocking):
    """An entity without ``await``, for every thread except the node's own."""

    call: Final = blocked(EntityHandle.call)


class AsyncioEntity(EntityVerbs, Asyncio):
    """An entity whose verbs are awaited on asyncio's loop. Only ``send`` is not."""

    call: Final = awaited(EntityHandle.call)


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
