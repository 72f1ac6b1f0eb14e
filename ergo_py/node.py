"""The node that users have: the kernel's, and what supervision adds to it."""

from collections.abc import Callable, Sequence
from functools import wraps
from math import inf
from typing import Any, ParamSpec, Unpack

from ._core import node_lifecycle
from ._core.kernel import Kernel
from ._core.verbs import node as kernel_node
from ._core.vocabulary.errors import BadInputError
from ._core.vocabulary.ids import Target
from ._core.vocabulary.info import ApplicationInfo
from ._core.vocabulary.options import SpawnKeywords
from .applications.application import Application
from .applications.manager import Applications
from .control.server import open_control
from .service import Service
from .supervision.handle import SupervisorHandle
from .supervision.pool import PoolHandle
from .supervision.specs import ChildSpec, Strategy, SupervisorSpec
from .supervision.supervisor import Supervisor
from .supervision.tree import TreeNode, take_tree

__all__ = ["Node", "open_node"]

P = ParamSpec("P")


class Node(kernel_node.Node):
    """A running node. Its verbs are for code that is no process; ``send``, ``reply`` and what asks
    work from any thread.
    """

    def __init__(self, kernel: Kernel, expose_env: bool) -> None:
        super().__init__(kernel, expose_env)
        self._applications = Applications(self)

    async def supervise(
        self,
        children: SupervisorSpec | Sequence[ChildSpec],
        *,
        strategy: Strategy | None = None,
        intensity: int | None = None,
        period: float | None = None,
        auto_shutdown: bool | None = None,
        **options: Unpack[SpawnKeywords],
    ) -> SupervisorHandle:
        """Start a supervisor that belongs to the node, and return when all its children are ready.

        ``children`` is a list, to which the strategy and its limits may be given as keywords, or a
        whole ``SupervisorSpec``.

        Raises:
            BadInputError: the spec cannot be right; nothing was started.
            InitError: a child could not be started; the cause says which and why, and nothing
                remains.
        """
        given = {
            "strategy": strategy,
            "intensity": intensity,
            "period": period,
            "auto_shutdown": auto_shutdown,
        }
        keywords: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if isinstance(children, SupervisorSpec):
            if keywords:
                raise BadInputError(
                    "node.supervise(spec, …)", keywords, "a SupervisorSpec that says this itself"
                )
            spec = children
        else:
            spec = SupervisorSpec(children, **keywords)
        settings: SpawnKeywords = {"init_timeout": inf, "shutdown": inf, **options}
        return SupervisorHandle(self._kernel, await self.spawn(Supervisor, spec, **settings))

    def supervisor(self, target: Target) -> SupervisorHandle:
        """The operations of a supervisor; by name, also of whoever has the name later.

        Raises:
            ProcessUnknownError: there is no supervisor at this address.
        """
        handle = SupervisorHandle(self._kernel, target)
        self._run(lambda: handle.pid)
        return handle

    def pool(self, target: Target) -> PoolHandle:
        """The operations of a pool; by name, also of whoever has the name later.

        Raises:
            ProcessUnknownError: there is no supervisor at this address.
            BadInputError: it is no pool.
        """
        handle = PoolHandle(self._kernel, target)
        self._run(handle.workers)
        return handle

    def service(self, name: str) -> Service:
        """The address of a supervised child that survives its restarts.

        Raises:
            ChildUnknownError: no supervisor on this node has a registered child of that name.
        """
        return self._run(Service.find, self._kernel, name)

    def tree(self) -> TreeNode:
        """Everything that runs on this node, and every child that should: who belongs to whom, and
        how it is doing.
        """
        return self._run(lambda: take_tree(self._kernel, self._applications.infos()))

    # -- applications ------------------------------------------------------------------------------

    def load_applications(self, *applications: Application) -> None:
        """Make applications known, without starting them.

        Raises:
            BadInputError: they do not fit together, or with those that are loaded: an unknown
                dependency, a ring, a name that is used twice, a service that nobody provides.
                Nothing is changed.
        """
        self._run(self._applications.load, applications)

    async def start_applications(self, *applications: Application | str) -> list[str]:
        """Start applications, and before each what it depends on. Returns the names of those that
        were started, in order.

        Give the names of loaded ones, or applications, which are loaded then; nothing for all.
        Those that run are left alone.

        Raises:
            BadInputError: they do not fit together; nothing was loaded or started.
            ApplicationUnknownError: there is none of that name; nothing was started.
            ApplicationStartError: one could not be started; what this call had started was stopped
                again.
        """
        self._here("start_applications")
        return await self._applications.start(applications)

    async def stop_applications(self, *names: str) -> list[str]:
        """Stop applications, last started first; all, if none is named. Returns the names of those
        that were stopped, in order.

        Raises:
            ApplicationUnknownError: there is none of that name; nothing was stopped.
            ApplicationNeededError: another one that runs depends on it; nothing was stopped.
        """
        self._here("stop_applications")
        return await self._applications.stop(names)

    def applications(self) -> list[ApplicationInfo]:
        """The applications that are loaded, in the order in which they would be started."""
        return self._run(self._applications.infos)


def _opening(
    opener: Callable[P, node_lifecycle.NodeContext[Any]],
) -> Callable[P, node_lifecycle.NodeContext[Node]]:
    @wraps(opener)
    def open_node(*args: P.args, **options: P.kwargs) -> node_lifecycle.NodeContext[Node]:
        context = opener(*args, **options)
        context.node_type = Node
        context.open_control = open_control
        return context

    return open_node


open_node = _opening(node_lifecycle.open_node)
