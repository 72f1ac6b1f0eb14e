"""`Cluster`: names and groups of all nodes of a network."""

from collections.abc import Hashable
from math import inf
from typing import Any, TypeAlias

import trio

from .._core.kernel import Kernel
from .._core.processes.process import Process
from .._core.tables.pending_calls import Caller
from .._core.vocabulary.errors import (
    CallTimeoutError,
    InitError,
    NameTakenError,
    NameUnknownError,
    NotAllowedError,
    ProcessUnknownError,
    Reject,
    UnhandledCallError,
)
from .._core.vocabulary.ids import PID, Name, Target
from .._core.vocabulary.messages import Down, Drain
from .._core.vocabulary.options import check_name, check_number
from .._core.vocabulary.public_names import show_members, show_public_names
from .._core.vocabulary.reasons import Reason, Shutdown
from ..actor import Actor
from ..groups import Group
from ..network.errors import StoreError
from ..network.stores.store import TIMEOUT, Store
from ..node import Node
from .errors import ClusterNameTakenError
from .group_keeper import open_group
from .lease import Holder, LeaseKeeper, LeaseTerms
from .node_network import network_of

__all__ = ["Cluster"]


class Cluster:
    """The names and groups of all nodes of a network: ``cluster = Cluster(node)``.

    A handle without state: make it wherever you need it, in an actor as ``Cluster(self.node)``. Its
    methods belong on the loop of the node.
    """

    TakenError: TypeAlias = ClusterNameTakenError

    def __init__(self, node: Node) -> None:
        """Use the cluster of a node.

        Raises:
            NotAllowedError: the node has no network.
        """
        self._node = node
        self._kernel = node._kernel
        self._network = network_of(self._kernel)

    def __repr__(self) -> str:
        return f"<Cluster of {self._node.name}>"

    # -- names -------------------------------------------------------------------------------------

    async def register(
        self,
        name: str,
        to: Target,
        *,
        lease: float = 30.0,
        ending: float = 10.0,
        wait: float = 0.0,
    ) -> None:
        """Give a process of this node a name that no other process of the cluster has. The node
        renews its lease until the process ends or :meth:`unregister` is called. If the lease cannot
        be renewed, the process is asked to end, and killed before another node can take the name.

        Args:
            name: the name in the cluster.
            to: the process.
            lease: the name is free this many seconds after another node has last seen it renewed.
            ending: seconds that the process has to end when the lease is lost: half of them before
                it is killed, and half for its ``terminate``.
            wait: seconds to wait for the name if another process has it.

        Raises:
            Cluster.TakenError: another process has the name, or had it and its lease lasts.
            ProcessUnknownError: there is no such process on this node.
            StoreError: the store of names cannot be reached.
            NotAllowedError: this node is draining.
            BadInputError: a value is invalid.
        """
        check_number("wait", wait, least=0.0)
        _check_drain(self._kernel, name)
        terms = LeaseTerms(lease, ending)
        found = self._kernel.router.resolve(to)
        if not isinstance(found, Process):
            raise ProcessUnknownError(to)
        given: float = wait + 30.0
        try:
            await self._node.spawn(
                NameKeeper.spec(check_name(name), found.id, terms, wait),
                name=_process_name(name),
                init_timeout=given,
            )
        except NameTakenError:
            raise ClusterNameTakenError(
                name, await self.whereis(name), self._node.name, lease
            ) from None
        except InitError as error:
            raise error.__cause__ or error from None

    async def unregister(self, name: str) -> None:
        """Take a name from its process, which goes on without it.

        Raises:
            NameUnknownError: no process of this node has the name.
        """
        keeper = self._node.whereis(_process_name(check_name(name)))
        if keeper is None:
            raise NameUnknownError(name)
        self._node.send_exit(keeper, Shutdown("the name is given up"))
        await self._node.wait_ended(keeper)

    async def whereis(self, name: str) -> PID | Name | None:
        """The address of the process with a name; None if there is none. The address of a singleton
        is its name on its node, which the restarts there keep.

        The address may be outdated: a call to it then raises ``TargetDownError``. Ask again.

        Raises:
            StoreError: the store of names cannot be reached.
        """
        holder = await self._holder(check_name(name))
        return None if holder is None else holder.address

    async def wait_for(self, name: str, *, timeout: float | None = None) -> PID | Name:
        """Wait until a process has a name, and return its address. Waits also while the store of
        names cannot be reached, and logs that.

        Raises:
            CallTimeoutError: no process had it within ``timeout`` seconds.
            StoreError: the store of names could not be reached when the time was over.
        """
        if timeout is not None:
            check_number("timeout", timeout, least=0.0)
        fault: StoreError | None = None
        with trio.move_on_after(inf if timeout is None else timeout):
            while True:
                try:
                    found = await self.whereis(name)
                    if found is not None:
                        return found
                    fault = None
                except StoreError as error:
                    if fault is None:
                        self._kernel.logger.warning(
                            "the store of names is not usable", name=name, reason=str(error)
                        )
                    fault = error
                await trio.sleep(0.1)
        if fault is not None:
            raise fault
        raise CallTimeoutError(Name(name), "wait_for", timeout or 0.0)

    async def _holder(self, name: str) -> Holder | None:
        store = self._store()
        entry = await store.get(name)
        if entry is None or not entry.value:
            return None
        holder = Holder.decode(entry.value, 0.0)
        return None if store.is_gone(holder.node, holder.creation) else holder

    def _store(self) -> Store:
        return self._network.carrier.store()

    # -- groups ------------------------------------------------------------------------------------

    async def group(self, name: Hashable) -> Group:
        """The group of that name in the cluster, with the members of all nodes. Processes of this
        node join and leave; all nodes that use groups of the cluster tell each other. The name is a
        value that can travel in a message: a str, a number, a tuple of such values.

        Raises:
            BadInputError: the name cannot be hashed, or cannot travel.
        """
        return await open_group(self._node, self._network, name)


def _process_name(name: str) -> str:
    return f"ergo.cluster.name:{name}"


def _check_drain(kernel: Kernel, name: str) -> None:
    if kernel.draining:
        raise NotAllowedError(
            f"the node {kernel.pid.node!r} is draining, and takes no names: register {name!r} on "
            "another node"
        )


class NameKeeper(Actor):
    """Keeps the lease of a name for a process of this node."""

    drains = True

    def __init__(self, name: str, pid: PID, terms: LeaseTerms, wait: float) -> None:
        self._name = name
        self._target = pid
        self._terms = terms
        self._wait = wait

    async def init(self) -> None:
        """Start."""
        kernel = self._process.kernel
        self._keeper = LeaseKeeper(
            network_of(kernel).carrier.store(),
            self._name,
            self._terms,
            self.pid,
            kernel.clock.now,
            self.log.warning,
        )
        self._keeper.describe(self._target)
        self._down = trio.Event()
        self.monitor(self._target)
        try:
            await self._acquire()
        except BaseException:
            # The lease may have been written, and its confirmation was late.
            with trio.move_on_after(TIMEOUT, shield=True):
                await self._keeper.release()
            raise
        self._holding = trio.CancelScope()
        self._is_over = trio.Event()
        """The lease is not renewed any longer."""
        self.start_task(self._hold_until_drained, name=f"lease of {self._name}")

    async def _acquire(self) -> None:
        with trio.move_on_after(self._wait):
            await self._keeper.acquire(self._check_drain)
            return
        if await self._keeper.try_once():
            return
        if self._keeper.fault is not None:
            raise self._keeper.fault
        holder = await self._keeper.holder()
        if holder is None:
            raise StoreError(
                f"the store of names is new, so the name {self._name!r} may have been lost with an "
                f"earlier store; it is free after {self._terms.seconds:g} s: register it with "
                f"wait={2 * self._terms.seconds:g}"
            )
        if self._keeper.is_ours(holder):
            raise StoreError(
                f"the store of names has confirmed the name {self._name!r} too late for a lease of "
                f"{self._terms.seconds:g} s; try again, or register it with a longer lease="
            )
        raise ClusterNameTakenError(self._name, holder.address, holder.node, holder.lease)

    def _check_drain(self) -> None:
        # A name that its process needs also while the node drains is taken then, too: the process
        # may have ended with its lease, and its successor waits for the end of that.
        if self.drains:
            _check_drain(self._process.kernel, self._name)

    async def _hold_until_drained(self) -> None:
        with self._holding:
            await self._hold()
        self._is_over.set()

    async def _hold(self) -> None:
        why = await self._keeper.hold()
        self.log.warning(
            "a process loses its name in the cluster, and ends",
            name=self._name,
            process=str(self._target),
            reason=why,
        )
        self.send_exit(self._target, Shutdown(f"the name {self._name!r} is lost: {why}"))
        # If the program was stopped meanwhile, little time may be left, or none.
        kill_at = self._keeper.expires_at - self._terms.ending / 2
        with trio.move_on_after(max(0.0, kill_at - self._process.kernel.clock.now())):
            await self._down.wait()
        if not self._down.is_set():
            self.kill(self._target)

    async def handle_call(self, request: object, caller: Caller) -> object:
        """Take the name from its process, which goes on without it."""
        if not isinstance(request, Drain):
            raise Reject(UnhandledCallError(self.pid, request, type(self).__qualname__))
        # Without the wait, the task that renews the lease takes it for lost, and ends the process.
        self._holding.cancel()
        await self._is_over.wait()
        await self._keeper.release()
        self.stop(Shutdown("the node is draining"))
        if self._keeper.fault is not None:
            raise Reject(self._keeper.fault)
        return 0

    def handle_message(self, message: object, sender: object) -> None:
        """Take a message."""
        # Anybody may send a `Down` that tells of another process.
        if isinstance(message, Down) and message.target == self._target:
            self._down.set()
            self.stop(Shutdown("the process with the name has ended"))

    def lease_facts(self) -> dict[str, Any]:
        """The row of the lease in ``ergo names``."""
        return {"kind": "name", **self._keeper.facts()}

    async def terminate(self, reason: Reason) -> None:
        """Give the lease up."""
        await self._keeper.release()


show_public_names(__name__)
show_members(Cluster)
