"""The node that users have: the kernel's, and what supervision adds to it."""

from collections.abc import Callable, Sequence
from functools import wraps
from math import inf
from typing import Any, ParamSpec, Unpack

from ._core import node as kernel_node
from ._core import opening
from ._core.errors import BadInputError
from ._core.ids import Target
from ._core.options import SpawnKeywords
from .control.server import open_control
from .handles import SupervisorHandle
from .pool import PoolHandle
from .service import Service
from .specs import ChildSpec, Strategy, SupervisorSpec
from .supervisor import Supervisor
from .tree import TreeNode, take_tree

__all__ = ["Node", "open_node"]

P = ParamSpec("P")


class Node(kernel_node.Node):
    """A running node. Its verbs are for code that is no process; ``send``, ``reply`` and what asks work from any thread."""

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

        ``children`` is a list, to which the strategy and its limits may be given as keywords, or a whole ``SupervisorSpec``.

        Raises:
            BadInputError: the spec cannot be right; nothing was started.
            InitError: a child could not be started; the cause says which and why, and nothing remains.
        """
        given = {"strategy": strategy, "intensity": intensity, "period": period, "auto_shutdown": auto_shutdown}
        keywords: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if isinstance(children, SupervisorSpec):
            if keywords:
                raise BadInputError("node.supervise(spec, …)", keywords, "a SupervisorSpec that says this itself")
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
        """Everything that runs on this node, and every child that should: who belongs to whom, and how it is doing."""
        return self._run(take_tree, self._kernel)


def _opening(opener: Callable[P, opening.NodeContext[Any]]) -> Callable[P, opening.NodeContext[Node]]:
    @wraps(opener)
    def open_node(*args: P.args, **options: P.kwargs) -> opening.NodeContext[Node]:
        context = opener(*args, **options)
        context.node_type = Node
        context.open_control = open_control
        return context

    return open_node


open_node = _opening(opening.open_node)
