"""`RemoteVerbs`: the verbs of ``node.at("b@site")`` that look into another node and act there."""

import json
from dataclasses import dataclass
from typing import Any, TypeVar

from trio.lowlevel import current_task

from ..._core.processes.spawn import caller_in
from ..._core.tables.obituaries import Obituary
from ..._core.tables.relations import Kind
from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.ids import PID, Alias, Key, Name, Target
from ..._core.vocabulary.info import ApplicationInfo, MetaInfo, NodeInfo, ProcessInfo
from ..._core.vocabulary.messages import DeadLetter
from ..._core.vocabulary.options import check_flag, check_name
from ...control.protocol import ControlError
from ...supervision.tree import TreeNode
from ..outgoing.look import Look, checked, fetch, look, not_an_answer
from ..outgoing.peer import Peer
from ..traffic.info import NetworkInfo

__all__ = ["RemoteVerbs", "Spawn"]

T = TypeVar("T")


@dataclass(frozen=True)
class Spawn:
    """The request of :meth:`RemoteNode.spawn`, as errors show it."""

    name: str


class RemoteVerbs:
    """The part of a `RemoteNode` that looks into the other node and starts processes there."""

    name: str
    """The name of the node."""

    def _peer(self, verb: str, timeout: float | None) -> Peer:
        raise NotImplementedError

    async def spawn(
        self,
        listed: str,
        /,
        *args: object,
        name: str | None = None,
        link: bool = False,
        timeout: float | None = 5.0,
    ) -> PID:
        """Start a process on the other node, and return its PID when its ``init`` has succeeded.
        It belongs to the other node. After a timeout, if the other node is lost meanwhile, or if
        the caller is cancelled or interrupted, the process may run nevertheless: give it a name,
        and ``whereis`` finds it.

        For example, if the other node has the network ``Local(spawns={"worker": Worker},
        allow={"shop@*": "default,spawn"})``::

            pid = await node.at("stock@here").spawn("worker", 5, name="first worker")

        Args:
            listed: the name under which the other node lists the behaviour.
            args: the positional arguments of the behaviour.
            name: register the process there under this name.
            link: link the calling process and the new process to each other.
            timeout: seconds to wait.

        Raises:
            NotPermittedError: the other node does not permit this node to spawn.
            SpawnError: it lists no behaviour of this name, or ``init`` failed, as of a spawn there.
            TargetDownError: there is no connection to the node, with the reason `NoNode`.
            CallTimeoutError: the process was not started in time.
        """
        if not isinstance(listed, str) or not listed:
            raise BadInputError(
                "spawn(name)", listed, f"a name that {self.name} lists, as in spawn('worker', 5)"
            )
        check_flag("link", link)
        peer = self._peer("spawn", timeout)
        parent = caller_in(current_task()) if link else None
        if link and parent is None:
            raise BadInputError(
                "spawn(link=True)", True, "link=True in a callback of a process: a node has no link"
            )
        asked = [
            listed,
            list(args),
            None if name is None else check_name(name),
            None if parent is None else parent.id,
        ]
        found = await peer.ask("spawn", Spawn(listed), asked, timeout)
        pid = checked(found, PID, self.name, Spawn(listed))
        if parent is not None and not peer.network.kernel.relations.has(parent.id, pid, Kind.LINK):
            peer.network.kernel.links.relate(parent, pid, Kind.LINK)
        return pid

    async def info(self, *, timeout: float | None = 5.0) -> NodeInfo:
        """A snapshot of the other node, as ``node.info()`` there.

        All verbs that look raise the same errors.

        Raises:
            NotPermittedError: the other node does not permit this node to look.
            TargetDownError: there is no connection to the node, with the reason `NoNode`.
            CallTimeoutError: it did not answer in time.
        """
        return await self._look(NodeInfo, timeout, "info")

    async def processes(self, *, timeout: float | None = 5.0) -> list[PID]:
        """The PIDs of all processes there, oldest first."""
        return await self._look(list, timeout, "processes")

    async def process_info(self, to: Target, *, timeout: float | None = 5.0) -> ProcessInfo:
        """A snapshot of a process there. A plain string is a name there.

        Raises:
            ProcessUnknownError: there is no such process.
        """
        return await self._look(ProcessInfo, timeout, "process_info", self._address(to))

    async def inspect(self, to: Target, *items: str, timeout: float | None = 5.0) -> dict[str, str]:
        """Call ``handle_inspect`` of a process there, and return the result.

        Raises:
            ProcessUnknownError: there is no such process.
        """
        keywords = {} if timeout is None else {"timeout": timeout}
        return await self._look(
            dict, timeout, "inspect", self._address(to), *items, keywords=keywords
        )

    async def metas(self, *, timeout: float | None = 5.0) -> list[Alias]:
        """The aliases of all meta-processes there, oldest first."""
        return await self._look(list, timeout, "metas")

    async def meta_info(self, alias: Alias, *, timeout: float | None = 5.0) -> MetaInfo:
        """A snapshot of a meta-process there.

        Raises:
            ProcessUnknownError: there is no such meta-process.
        """
        return await self._look(MetaInfo, timeout, "meta_info", self._address(alias))

    async def inspect_meta(
        self, alias: Alias, *items: str, timeout: float | None = 5.0
    ) -> dict[str, str]:
        """Call ``handle_inspect`` of a meta-process there, and return the result.

        Raises:
            ProcessUnknownError: there is no such meta-process.
        """
        keywords = {} if timeout is None else {"timeout": timeout}
        return await self._look(
            dict, timeout, "inspect_meta", self._address(alias), *items, keywords=keywords
        )

    async def tree(self, *, timeout: float | None = 5.0) -> TreeNode:
        """The supervision tree there."""
        return await self._look(TreeNode, timeout, "tree")

    async def crashes(
        self, count: int | None = None, *, timeout: float | None = 5.0
    ) -> list[Obituary]:
        """The last processes and meta-processes there that failed, newest last."""
        return await self._look(list, timeout, "crashes", count)

    async def ended(
        self, count: int | None = None, *, timeout: float | None = 5.0
    ) -> list[Obituary]:
        """The last processes and meta-processes there that ended, newest last."""
        return await self._look(list, timeout, "ended", count)

    async def dead_letters(
        self, count: int | None = None, *, timeout: float | None = 5.0
    ) -> list[DeadLetter]:
        """The last dead letters there, newest last."""
        return await self._look(list, timeout, "dead_letters", count)

    async def events(self, *, timeout: float | None = 5.0) -> dict[str, int]:
        """All events there, each with the number of its subscribers."""
        return await self._look(dict, timeout, "events")

    async def applications(self, *, timeout: float | None = 5.0) -> list[ApplicationInfo]:
        """The applications there, in start order."""
        return await self._look(list, timeout, "applications")

    async def network(self, *, timeout: float | None = 5.0) -> NetworkInfo:
        """The traffic there with each other node, as ``node.network()`` there."""
        return await self._look(NetworkInfo, timeout, "network")

    async def ask_control(self, client: int, do: str, arguments: dict[str, Any]) -> Any:
        """Pass a command of a control socket on. For ``ergo … --via``.

        Raises:
            ControlError: the other node refuses it.
        """
        # Not measured: it ends the wait for a node that is up and never answers. The person at the
        # terminal may leave before.
        timeout = 60.0
        peer, request = self._peer("ask_control", timeout), Look(do)
        data = await fetch(peer, "control", request, [client, do, arguments], timeout)
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        match answer:
            case {"result": result}:
                return result
            case {"error": {"code": str(code), "text": str(text)}}:
                raise ControlError(code, text)
        raise not_an_answer(self.name, request)

    async def _look(
        self,
        cls: type[T],
        timeout: float | None,
        verb: str,
        *arguments: object,
        keywords: dict[str, Any] | None = None,
    ) -> T:
        peer = self._peer(verb, timeout)
        request = Look(verb, arguments)
        found = await look(peer, request, keywords or {}, timeout)
        return checked(found, cls, self.name, request)

    def _address(self, to: Target) -> Target:
        if isinstance(to, str):
            return Name(check_name(to), self.name)
        if not isinstance(to, PID | Alias | Name | Key) or to.node != self.name:
            raise BadInputError(
                "target", to, f"an address on the node {self.name}, or the name of a process there"
            )
        return to
