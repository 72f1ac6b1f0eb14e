"""`Node`: the kernel's node with supervision and applications added, and `open_node`."""

from collections.abc import Callable, Collection, Hashable, Sequence
from functools import wraps
from importlib import import_module
from inspect import signature
from math import inf
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, Unpack, cast, overload

from ._core import node_lifecycle
from ._core.kernel import Kernel
from ._core.processes.process import Process
from ._core.verbs import node as kernel_node
from ._core.vocabulary.errors import BadInputError, NotAllowedError
from ._core.vocabulary.hints import did_you_mean
from ._core.vocabulary.ids import EventName, Ref, Target
from ._core.vocabulary.info import ApplicationInfo
from ._core.vocabulary.options import SpawnKeywords
from ._core.vocabulary.public_names import name_for_annotations, show_public_names
from ._core.vocabulary.reasons import Unregistered
from .actor import Actor
from .service import Service
from .streams.verbs import StreamCalls
from .supervision.specs import AutoShutdown, ChildSpec, Strategy, SupervisorSpec

if TYPE_CHECKING:
    from .applications.application import Application
    from .entity_handles import EntityHandle, EntityTable
    from .groups import Group, Registry
    from .network.network import Network
    from .network.remote_node import RemoteNode
    from .network.traffic.info import NetworkInfo
    from .streams.events import EventStream
    from .supervision.handle import SupervisorHandle
    from .supervision.pool import PoolHandle
    from .supervision.tree import TreeNode
    from .tasks.handle import Task
    from .tasks.process import Runner
else:
    name_for_annotations(
        __name__,
        {
            "ergo_py.applications.application": "Application",
            "ergo_py.entity_handles": "EntityHandle EntityTable",
            "ergo_py.groups": "Group Registry",
            "ergo_py.network.network": "Network",
            "ergo_py.network.remote_node": "RemoteNode",
            "ergo_py.network.traffic.info": "NetworkInfo",
            "ergo_py.streams.events": "EventStream",
            "ergo_py.supervision.handle": "SupervisorHandle",
            "ergo_py.supervision.pool": "PoolHandle",
            "ergo_py.supervision.tree": "TreeNode",
            "ergo_py.tasks.handle": "Task",
            "ergo_py.tasks.process": "Runner",
        },
    )

__all__ = ["Node", "open_node"]

A = TypeVar("A", bound=Actor)
P = ParamSpec("P")

LOADED_WITH_A_NODE: Final = (
    "applications.manager",
    "drain",
    "groups",
    "reload",
    "streams.events",
    "streams.parts",  # which loads those of tasks
    "supervision.handle",
    "supervision.pool",
    "supervision.tree",
    "supervision.upgrade",
)
"""The modules of the verbs that the import of the package leaves out. They are loaded when a node
opens: later, an import holds the loop, needs a descriptor, and finds the files of the next version
if that was installed over the running one. `entity_handles` comes with `ergo_py.entities`, without
which no class has entities.
"""


class Node(kernel_node.Node, StreamCalls):
    """A running node. Its methods are for code outside processes; ``send``, ``reply`` and the
    read-only queries work from any thread.
    """

    def __init__(self, kernel: Kernel, expose_env: bool) -> None:
        super().__init__(kernel, expose_env)
        for name in LOADED_WITH_A_NODE:
            import_module(f".{name}", __package__)
        if kernel.options.network is not None:
            import_module(".network.remote_node", __package__)
        from .applications.manager import Applications  # noqa: PLC0415 - loaded with the node

        self._applications = Applications(self)
        self._entities: dict[type, EntityTable] = {}

    async def supervise(
        self,
        children: SupervisorSpec | Sequence[ChildSpec],
        *,
        strategy: Strategy | None = None,
        intensity: int | None = None,
        period: float | None = None,
        auto_shutdown: AutoShutdown | bool | None = None,
        max_children: int | None = None,
        **options: Unpack[SpawnKeywords],
    ) -> "SupervisorHandle":
        """Start a supervisor that belongs to the node, and return when all its children are ready.

        ``children`` is a list, with the strategy and its limits as keywords, or a whole
        ``SupervisorSpec``.

        Raises:
            BadInputError: the spec is invalid; nothing was started.
            InitError: a child could not be started; the cause names the child and its error, and
                nothing remains.
        """
        from .supervision.handle import SupervisorHandle  # noqa: PLC0415 - loaded with the node
        from .supervision.supervisor import Supervisor  # noqa: PLC0415 - loaded with the node

        given = {
            "strategy": strategy,
            "intensity": intensity,
            "period": period,
            "auto_shutdown": auto_shutdown,
            "max_children": max_children,
        }
        keywords: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if isinstance(children, SupervisorSpec):
            if keywords:
                raise BadInputError(
                    "node.supervise(spec, …)",
                    keywords,
                    "a SupervisorSpec with these values in it, or a list of ChildSpec",
                )
            spec = children
        else:
            spec = SupervisorSpec(children, **keywords)
        settings: SpawnKeywords = {"init_timeout": inf, "shutdown": inf, **options}
        return SupervisorHandle(self._kernel, await self.spawn(Supervisor, spec, **settings))

    def supervisor(self, target: Target) -> "SupervisorHandle":
        """Return a handle to a supervisor. A handle by name follows the name to its later owners.

        Raises:
            ProcessUnknownError: there is no supervisor at this address.
        """
        from .supervision.handle import SupervisorHandle  # noqa: PLC0415 - loaded with the node

        handle = SupervisorHandle(self._kernel, target)
        self._run(lambda: handle.pid)
        return handle

    def pool(self, target: Target) -> "PoolHandle":
        """Return a handle to a pool. A handle by name follows the name to its later owners.

        Raises:
            ProcessUnknownError: there is no supervisor at this address.
            BadInputError: the process is no pool.
        """
        from .supervision.pool import PoolHandle  # noqa: PLC0415 - loaded with the node

        handle = PoolHandle(self._kernel, target)
        self._run(handle.workers)
        return handle

    def service(self, name: str) -> Service:
        """Return the restart-proof address of a supervised child.

        Raises:
            ChildError: no supervisor on this node has a registered child of that name.
        """
        return self._run(Service.find, self._kernel, name)

    def entity(self, kind: type[A], key: str) -> "EntityHandle[A]":
        """Return the address of an entity of this node, which exists always: its first message
        wakes it. From any thread.

        Raises:
            EntityKindUnknownError: the node keeps no entities of this class.
            BadInputError: the key is not a text of 1 to 1,000 characters, or has over 1,800 bytes.
        """
        return self._find_entity(kind, key)

    def _find_entity(
        self, kind: type[A], key: str, process: Process | None = None
    ) -> "EntityHandle[A]":
        """The same, with the process that sends."""
        from .entity_handles import find_entity  # noqa: PLC0415 - loaded with entities

        return self._run(find_entity, self._kernel, self._entities, kind, key, process)

    def _open_entities(self, kinds: Collection[type[Actor]]) -> "EntityTable":
        """The table of these classes of entities, for their keeper: the one that the keeper's
        predecessor had, so that handles stay valid.

        Raises:
            NotAllowedError: another keeper has one of these classes.
        """
        from .entity_handles import EntityTable  # noqa: PLC0415 - loaded with entities

        for kind in kinds:
            if kind in self._entities:
                self._entities[kind].check_free(kind.__name__)
        table = next((self._entities[kind] for kind in kinds if kind in self._entities), None)
        if table is None:
            table = EntityTable()
        self._entities.update(dict.fromkeys(kinds, table))
        return table

    def registry(self, name: str, *, unique: bool | None = None) -> "Registry":
        """Return the registry of that name, made on first use. From any thread.

        Args:
            name: its name on the node.
            unique: True, the default of a new registry: a key has a single process; False: several
                processes may have the same key.

        Raises:
            BadInputError: it exists, and is of the other kind.
        """
        from .groups import open_registry  # noqa: PLC0415 - loaded with the node

        return self._run(open_registry, self._kernel, name, unique)

    def registries(self) -> list[str]:
        """Return the names of all registries, the oldest first."""
        return self._run(lambda: list(self._router.directory.registries))

    def group(self, name: Hashable) -> "Group":
        """Return the process group of that name, which is any hashable value. From any thread.

        Raises:
            BadInputError: the name cannot be hashed.
        """
        from .groups import Group  # noqa: PLC0415 - loaded with the node

        return Group(self._kernel, name)

    def groups(self) -> list[Any]:
        """Return the names of all groups that have members."""
        return self._run(lambda: list(self._router.directory.groups))

    # -- events and replies in parts ---------------------------------------------------------------

    def open_topic(self, name: str, *, buffer: int = 0) -> None:
        """Make an event that belongs to the node, and that all may publish and subscribe to. Has no
        effect if there is such an event already. From any thread.

        Args:
            name: the event's name on this node.
            buffer: how many of the last publications a new subscriber gets.

        Raises:
            EventError: of kind ``"taken"``; the event of that name belongs to a process, and is not
                open.
        """
        from .streams.events import open_topic  # noqa: PLC0415 - loaded with the node

        self._run(open_topic, self._kernel, name, buffer)

    def close_topic(self, name: str) -> None:
        """Remove a topic of the node. Its subscribers are notified. From any thread.

        Raises:
            EventError: of kind ``"unknown"``; there is no such event.
            NotAllowedError: it belongs to a process.
        """
        self._run(self._close_topic, name)

    def _close_topic(self, name: str) -> None:
        publisher = self._kernel.publisher
        event = publisher.events.get(publisher.name(name))
        if event.producer != self.pid or not event.open:
            raise NotAllowedError(
                f"{name!r} is an event of {event.producer}, and no topic of the node"
            )
        self._kernel.links.end_event(event.name, Unregistered())

    def publish(self, event: str | EventName, message: object, *, token: Ref | None = None) -> int:
        """Publish a message to every subscriber of an event, from any thread. Returns how many
        subscribers have accepted it.

        Raises:
            EventError: of kind ``"unknown"``; there is no such event; ``open_topic`` makes one.
            NotAllowedError: the event belongs to a process, is not open, and ``token`` is not its
                token.
        """
        publisher = self._kernel.publisher
        return self._run(publisher.publish, self.pid, publisher.name(event), message, token)

    @overload
    def events(self) -> dict[str, int]: ...
    @overload
    def events(
        self, event: str | EventName, *, max_waiting: int = 1000, follow: bool = False
    ) -> "EventStream": ...
    def events(
        self,
        event: str | EventName | None = None,
        *,
        max_waiting: int = 1000,
        follow: bool = False,
    ) -> "dict[str, int] | EventStream":
        """Subscribe to an event, and return its publications as an async iterator; without an
        argument, return all events of this node, each with the number of its subscribers.

        Args:
            event: its name.
            max_waiting: how many publications may wait for the reader; then the oldest is dropped,
                and counted.
            follow: go on with the next event of that name when the event has ended, on this node or
                on another. The event may be missing, and come later.

        Raises:
            EventError: of kind ``"unknown"``; there is no such event; never with ``follow``.
        """
        if event is None:
            return super().events()
        from .streams.events import open_events  # noqa: PLC0415 - loaded with the node

        return self._run(open_events, self._kernel, event, max_waiting, follow)

    def tree(self) -> "TreeNode":
        """Return the supervision tree: every process and meta-process of this node, and every
        supervised child that is down, with parent and state.
        """
        from .supervision.tree import take_tree  # noqa: PLC0415 - loaded with the node

        return self._run(lambda: take_tree(self._kernel, self._applications.infos()))

    def at(self, name: str) -> "RemoteNode":
        """Return a handle for another node of the network: whether it is there, its processes by
        name, snapshots of it, and the start of processes there. From any thread.

        Raises:
            BadInputError: this is not the name of another node.
            NotAllowedError: this node has no network.
        """
        from .network.remote_node import RemoteNode  # noqa: PLC0415 - loaded with the network

        return RemoteNode(self._kernel, self._network(), name)

    def network(self) -> "NetworkInfo":
        """Return a snapshot of the traffic with each other node: operations and bytes in both
        directions, refused and lost operations, the round trip. From any thread.

        Raises:
            NotAllowedError: this node has no network.
        """
        return self._run(self._network().info)

    async def drain(self, timeout: float = 30.0) -> list[str]:
        """Take the node out of service, as before a deployment, and leave it running: ``/readyz``
        says that it is not ready, singletons and names of the cluster are given up, its processes
        leave the groups of the cluster, web servers finish their exchanges, new calls of other
        nodes raise ``TargetDownError`` there, and those under way are answered. Returns the
        work that was not finished in time, as text. Only a restart brings the node back.

        Args:
            timeout: seconds that the work under way has to end.

        Raises:
            BadInputError: the time is invalid.
        """
        from .drain import drain  # noqa: PLC0415 - loaded with the node

        self._here("drain")
        return await drain(self._kernel, self.call, timeout)

    async def reload(self, timeout: float = 30.0) -> list[str]:
        """Read the options that are functions again (``log_level``, ``control``, ``allow`` of the
        network, ``permit`` of ``Observe``), call ``handle_reload`` of all processes that define it,
        and let servers read their certificates again: new connections get the new ones. Returns the
        settings that could not be read, as text; the old ones stay in use. A process that waits for
        the reload in a callback is not called, and is among those returned: let it write
        ``self.run_task(self.node.reload)``.

        Args:
            timeout: seconds within which each process has to answer.

        Raises:
            BadInputError: the time is invalid.
        """
        from .reload import reload  # noqa: PLC0415 - loaded with the node

        self._here("reload")
        return await reload(self._kernel, timeout)

    @property
    def draining(self) -> bool:
        """Whether :meth:`drain` was called. From any thread."""
        return self._kernel.draining

    def _network(self) -> "Network":
        network = self._router.remote
        if network is None:
            raise NotAllowedError(
                f"the node {self.name!r} has no network; open it with "
                "`open_node(…, network=Local(types=[…]))`"
            )
        return cast("Network", network)

    def _run_task(
        self,
        run: "Runner",
        name: str,
        timeout: float | None,
        under: Target | None,
        reply_to: Target | None,
    ) -> "Task[Any]":
        return self._run(super()._run_task, run, name, timeout, under, reply_to)

    def _task_owner(self) -> tuple[Kernel, Process | None]:
        return self._kernel, None

    # -- applications ------------------------------------------------------------------------------

    def load_applications(self, *applications: "Application") -> None:
        """Make applications known, without starting them.

        Raises:
            BadInputError: they do not fit together or with the loaded applications: an unknown
                dependency, a dependency cycle, a duplicate name, or a required service without a
                provider. Nothing is changed.
        """
        self._run(self._applications.load, applications)

    async def start_applications(self, *applications: "Application | str") -> list[str]:
        """Start applications, each after its dependencies. Return the names of the applications
        started, in order.

        Give names of loaded applications, or ``Application`` objects, which are loaded first;
        without arguments, start all. Applications that already run are left alone.

        Raises:
            BadInputError: the applications do not fit together; nothing was loaded or started.
            ApplicationError: of kind ``"unknown"``; no loaded application has that name; nothing
                was started.
            ApplicationError: of kind ``"start"``; an application could not be started; the
                applications that this call had started were stopped again.
        """
        self._here("start_applications")
        return await self._applications.start(applications)

    async def stop_applications(self, *names: str) -> list[str]:
        """Stop applications, last started first; without arguments, stop all. Return the names of
        the applications stopped, in order.

        Raises:
            ApplicationError: of kind ``"unknown"``; no loaded application has that name; nothing
                was stopped.
            ApplicationError: of kind ``"needed"``; another running application depends on it;
                nothing was stopped.
        """
        self._here("stop_applications")
        return await self._applications.stop(names)

    def applications(self) -> list[ApplicationInfo]:
        """Return the loaded applications, in start order."""
        return self._run(self._applications.infos)


def _open_control(node: Node, permissions: frozenset[str]) -> node_lifecycle.ControlSocket:
    from .control.server import open_control  # noqa: PLC0415 - most nodes have no control socket

    return open_control(node, permissions)


def _opening(
    opener: Callable[P, node_lifecycle.NodeContext[Any]],
) -> Callable[P, node_lifecycle.NodeContext[Node]]:
    known = signature(opener).parameters

    @wraps(opener)
    def open_node(*args: P.args, **options: P.kwargs) -> node_lifecycle.NodeContext[Node]:
        for name in options.keys() - known.keys():
            raise TypeError(
                f"open_node(...) has no option {name!r}{did_you_mean(name, known, '{}')}"
            )
        context = opener(*args, **options)
        context.extend(Node, _open_control)
        return context

    return open_node


open_node: Final = _opening(node_lifecycle.open_node)


show_public_names(__name__)
