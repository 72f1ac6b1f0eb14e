"""`Singleton`: a supervised process that runs on a single node of the cluster at a time."""

from collections.abc import Callable
from math import inf
from typing import Any, Final, TypeAlias

import trio

from .._core.tables.pending_calls import Caller
from .._core.verbs.behaviour import Behaviour
from .._core.vocabulary.errors import BadInputError, NotAllowedError, Reject, UnhandledCallError
from .._core.vocabulary.ids import PID
from .._core.vocabulary.messages import NO_REPLY, Drain
from .._core.vocabulary.public_names import show_members, show_public_names
from .._core.vocabulary.reasons import Reason, Shutdown
from ..actor import Actor
from ..supervision.specs import ChildSpec, RestartPolicy, SupervisorSpec
from ..supervision.supervisor import Supervisor
from .errors import LeaseLostError
from .lease import Lease, LeaseKeeper, LeaseTerms
from .node_network import network_of

__all__ = ["Singleton"]

_LEASE: Final = "ergo_py.cluster.lease"
"""The key of the lease in the environment of a singleton."""
_LEAST: Final = 5.0
"""The shortest lease that is chosen by default."""
_LOOK: Final = 0.02
"""Seconds between two looks at the work of a node that drains."""


class Singleton(ChildSpec):
    """A child that runs on a single node of the cluster at a time.

    Give it to a supervisor on every node that may run it::

        await node.supervise([Singleton(ChildSpec("prices", Prices))])

    One of the nodes gets the lease of the name ``prices``, starts the child and renews the lease.
    If that node ends, is killed or cannot reach the store of names, another node takes the lease
    and starts the child. The child is ended before its lease can be taken.

    ``await Cluster(node).whereis("prices")`` finds it.
    """

    __slots__ = ()

    LeaseLostError: TypeAlias = LeaseLostError

    def __init__(
        self,
        spec: ChildSpec,
        *,
        lease: float | None = None,
        leaves_when: Callable[[], bool] | None = None,
    ) -> None:
        """Describe a singleton.

        Args:
            spec: the child. Its ``shutdown`` and ``terminate_timeout`` are the time that it has to
                end before its lease can be taken.
            lease: another node starts the child this many seconds after it has last seen the lease
                renewed, unless it knows that the program has ended. None for three times the time
                that the child has to end, 30 s by default.
            leaves_when: says whether a node that drains may give the singleton up, such as after
                other work of this node that needs the child. None for at once.

        Raises:
            BadInputError: a value is invalid, or the lease is too short.
        """
        if not isinstance(spec, ChildSpec) or isinstance(spec, Singleton):
            raise BadInputError("Singleton(spec)", spec, "a ChildSpec, as in ChildSpec('x', X)")
        if spec.restart is not RestartPolicy.PERMANENT:
            raise BadInputError(
                f"Singleton(ChildSpec({spec.name!r}, restart=…))",
                spec.restart,
                "PERMANENT: other nodes would start a child again that has ended for good here",
            )
        if not spec.register:
            raise BadInputError(
                f"Singleton(ChildSpec({spec.name!r}, register=…))",
                False,
                "True: other nodes reach the singleton by its name",
            )
        ending = spec.shutdown + spec.options.terminate_timeout
        if ending == inf:
            raise BadInputError(
                f"Singleton(ChildSpec({spec.name!r}, shutdown=…))",
                spec.shutdown,
                "a number of seconds, also for a supervisor: the child has to end before its lease "
                "can be taken",
            )
        terms = LeaseTerms(max(_LEAST, 3 * ending) if lease is None else lease, ending)
        super().__init__(
            f"{spec.name} (singleton)",
            SingletonKeeper.spec(spec, terms, leaves_when),
            register=False,
            shutdown=ending + 5.0,
        )

    @staticmethod
    def lease_of(process: Behaviour) -> Lease:
        """The lease of the singleton that a process is, or is below.

        For example, in a callback::

            Singleton.lease_of(self).check()

        Raises:
            NotAllowedError: the process belongs to no singleton.
        """
        lease = process.env.get(_LEASE)
        if not isinstance(lease, Lease):
            raise NotAllowedError(
                f"{process.pid} belongs to no singleton; start it with "
                "`node.supervise([Singleton(ChildSpec(…))])`"
            )
        return lease


class SingletonSupervisor(Supervisor):
    """Restarts the child while the node holds the lease.

    A program that was stopped may notice in the child first that the lease has expired. Then the
    child ends with an error, and must not start again under this lease.
    """

    async def _control(self, sender: PID, caller: Caller | None, payload: object) -> None:
        if caller is None and not Singleton.lease_of(self).is_held:
            self.stop(Shutdown("its lease has expired"))
        else:
            await super()._control(sender, caller, payload)


class SingletonKeeper(Actor):
    """Competes for the lease of a singleton, and runs the child while this node holds it."""

    drains = True

    def __init__(
        self, spec: ChildSpec, terms: LeaseTerms, leaves_when: Callable[[], bool] | None = None
    ) -> None:
        self._spec = spec
        self._terms = terms
        self._leaves_when = leaves_when

    def init(self) -> None:
        """Start."""
        kernel = self._process.kernel
        self._keeper = LeaseKeeper(
            network_of(kernel).carrier.store(),
            self._spec.name,
            self._terms,
            self.pid,
            kernel.clock.now,
            self.log.warning,
        )
        self._lease: Lease | None = None
        self._supervisor: PID | None = None
        self._is_ending = False
        self._ended = trio.Event()
        self._competition = trio.CancelScope()
        self._is_over = trio.Event()
        """This node does not compete any longer."""
        self.start_task(self._compete_until_drained, name=f"lease of {self._spec.name}")

    async def _compete_until_drained(self) -> None:
        with self._competition:
            if not self._process.kernel.draining:
                await self._compete()
        self._is_over.set()

    async def _compete(self) -> None:
        while True:
            self._lease = await self._keeper.acquire()
            self.log.info("this node runs the singleton", singleton=self._spec.name)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._start, self._lease)
                why = await self._keeper.hold()
                nursery.cancel_scope.cancel()
            self.log.warning("this node ends the singleton", singleton=self._spec.name, reason=why)
            await self._end(why)
            await self._keeper.release()

    async def _start(self, lease: Lease) -> None:
        self._ended = trio.Event()
        self._supervisor = await self.spawn(
            SingletonSupervisor, SupervisorSpec([self._spec]), env={_LEASE: lease}
        )
        self._keeper.describe(self._spec.name)

    async def _end(self, why: str) -> None:
        """End the child. If the program was stopped meanwhile, little time may be left: then the
        child is killed, so that only its ``terminate`` still runs.
        """
        if self._supervisor is not None:
            self._is_ending = True
            self.send_exit(self._supervisor, Shutdown(why))
            kill_at = self._keeper.expires_at - self._spec.options.terminate_timeout
            with trio.move_on_after(max(0.0, kill_at - self._process.kernel.clock.now())):
                await self._ended.wait()
            if not self._ended.is_set():
                self.kill(self._spec.name)
                await self._ended.wait()
            self._supervisor, self._is_ending = None, False
        self._lease = None

    def handle_call(self, request: object, caller: Caller) -> object:
        """Give the singleton up for good, and answer when its child has ended. The child ends in a
        task of its own: this process has to be told of it.
        """
        if not isinstance(request, Drain):
            raise Reject(UnhandledCallError(self.pid, request, type(self).__qualname__))
        self.start_task(self._drain, caller, request.timeout, name=f"drain of {self._spec.name}")
        return NO_REPLY

    async def _drain(self, caller: Caller, timeout: float) -> None:
        with trio.move_on_after(timeout):
            while self._leaves_when is not None and not self._leaves_when():  # noqa: ASYNC110
                await trio.sleep(_LOOK)
        self._competition.cancel()
        await self._is_over.wait()
        await self._end("the node is draining")
        await self._keeper.release()
        if self._keeper.fault is None:
            self.reply(caller, 0)
        else:
            self.reply_error(caller, self._keeper.fault)

    def handle_child_exit(self, child: object, reason: Reason) -> None:
        """Note the end of the child."""
        if child != self._supervisor:
            return
        self._ended.set()
        if not self._is_ending and self._lease is not None and self._lease.is_held:
            # The child has failed too often here. This process ends and gives the lease up, so that
            # another node may try.
            self.stop(reason)

    def lease_facts(self) -> dict[str, Any]:
        """The row of the lease in ``ergo names``."""
        return {"kind": "singleton", **self._keeper.facts()}

    async def terminate(self, reason: Reason) -> None:
        """Give the lease up."""
        await self._keeper.release()

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """Diagnostics for a human reader."""
        lease = self._lease
        if lease is None:
            return {"singleton": self._spec.name, "state": "another node runs it, or none"}
        return {
            "singleton": self._spec.name,
            "state": "runs here",
            "token": str(lease.token),
            "lease": f"{lease.seconds_left:.1f} s left",
        }


show_public_names(__name__)
show_members(Singleton)
