"""`NetworkSettings`: the checked settings that all kinds of networks share."""

from collections.abc import Iterable
from types import ModuleType

from .._core.kernel import Kernel
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.options import Rereadable, check_flag, check_number, read_now
from .access.limits import Limits
from .access.permits import Allow, Permits
from .access.spawns import SpawnList, Spawns
from .carrier import Carrier
from .context import NetworkContext
from .messages.message_types import MessageTypes
from .network import Network
from .node_names import check_node_name
from .protocol.compression import INFLATED
from .protocol.session import Timing

__all__ = ["NetworkSettings"]


class NetworkSettings:
    """The settings of a network. Raises `BadInputError` for an invalid value."""

    def __init__(
        self,
        types: Iterable[type | ModuleType],
        beat: float,
        patience: float,
        backlog: int,
        window: int,
        spawns: SpawnList | None = None,
        allow: Rereadable[Allow] | None = None,
        max_calls: int = 100_000,
        max_watches: int = 100_000,
        grace: float | None = None,
        compress: bool = False,
    ) -> None:
        """Check the settings. ``grace`` is the time that the carrier may take to connect again, if
        ``patience`` counts the break alone.
        """
        check_number("beat", beat, least=0.001)
        check_number("patience", patience, least=0.001)
        if patience < 2 * beat:
            raise BadInputError("patience", patience, f"at least two beats of {beat:g} s")
        check_number("backlog", backlog, least=1, whole=True)
        check_number("window", window, least=1024, whole=True)
        if isinstance(types, type | str) or not isinstance(types, Iterable):
            raise BadInputError(
                "types", types, "a list of classes and modules, as in types=[Order]"
            )
        self._types = tuple(types)
        # For its errors only: a class that cannot travel is refused where the network is written
        # down, and not when the node opens. Each node makes types of its own.
        MessageTypes(self._types)
        check_flag("compress", compress)
        # The last frame before a break may be a beat old.
        silence = patience if grace is None else patience + beat + grace
        self._timing = Timing(
            beat,
            silence,
            # Not measured. Neither is longer than a beat, also if the beat is short: a loss is
            # repaired, and data are acknowledged, between two heartbeats.
            min(0.2, beat),
            min(0.05, beat / 2),
            window,
            INFLATED if compress else 0,
        )
        self._backlog = backlog
        self._spawns = Spawns(spawns)
        self._allow = allow
        # For its errors, as the types above; each node reads the permits again.
        self._read_permits()
        self._limits = Limits(max_calls, max_watches)

    def _read_permits(self) -> Permits:
        return Permits(read_now(self._allow))

    def make(self, kernel: Kernel, carrier: Carrier) -> Network:
        """Make the network of a node.

        Raises:
            BadInputError: the name of the node is not fit for a network.
        """
        check_node_name(kernel.pid.node)
        context = NetworkContext(
            kernel,
            carrier,
            self._types,
            self._timing,
            self._backlog,
            self._read_permits,
            self._spawns,
            self._limits,
        )
        return Network(context)
