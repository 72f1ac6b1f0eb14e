"""The test kit: probes, settling, virtual time, fault injection, race exploration, behaviours
without a node, recorded input, leak checks, rules for stores of entities, and worlds: whole
networks of nodes with seeded faults.
"""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use, show_members, show_under
from .alone import Alone
from .clock import VirtualClock
from .crashes import expect_crash
from .faults import Deaf, crashing, delaying, dropping, filled
from .fixtures import checked_node, checked_nodes
from .leaks import no_leaks
from .probes import Probe
from .replay import Replay, Tape
from .settlement import busy, settle
from .stores import STORE_RULES, opened_store
from .task_order import explore, seeded
from .world.simulation import simulated
from .world.world import World

__all__ = [
    "Alone",
    "Deaf",
    "Probe",
    "Replay",
    "STORE_RULES",
    "Tape",
    "VirtualClock",
    "World",
    "busy",
    "checked_node",
    "checked_nodes",
    "crashing",
    "delaying",
    "dropping",
    "expect_crash",
    "explore",
    "filled",
    "no_leaks",
    "opened_store",
    "seeded",
    "settle",
    "simulated",
]

show_under(__name__, __all__, globals())
show_members(Replay)

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(__name__, {})
