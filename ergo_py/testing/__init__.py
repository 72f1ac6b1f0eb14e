"""The test kit: probes, settling, virtual time, fault injection, race exploration, behaviours
without a node, recorded input, leak checks, rules for stores of entities, and worlds: whole
networks of nodes with seeded faults.
"""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use, show_under
from .alone import Alone
from .clock import VirtualClock
from .crashes import expect_crash
from .faults import Deaf, Fault, crashing, delaying, dropping, filled
from .fixtures import checked_node, checked_nodes
from .leaks import LeakError, no_leaks
from .probes import Probe
from .replay import ME, Recording, Replay, Tape, recording
from .settlement import UnsettledError, busy, settle
from .stores import STORE_RULES, opened_store
from .task_order import RaceError, explore, seeded
from .world.checkers import all_answered, at_most_one, kept
from .world.clock import StandstillError
from .world.history import History
from .world.linearizability import linearizable
from .world.outside import OutsideError
from .world.plan import Plan
from .world.simulation import SimulationError, simulated
from .world.world import CheckError, World

__all__ = [
    "Alone",
    "CheckError",
    "Deaf",
    "Fault",
    "History",
    "LeakError",
    "ME",
    "OutsideError",
    "Plan",
    "Probe",
    "RaceError",
    "Recording",
    "Replay",
    "STORE_RULES",
    "SimulationError",
    "StandstillError",
    "Tape",
    "UnsettledError",
    "VirtualClock",
    "World",
    "all_answered",
    "at_most_one",
    "busy",
    "checked_node",
    "checked_nodes",
    "crashing",
    "delaying",
    "dropping",
    "expect_crash",
    "explore",
    "filled",
    "kept",
    "linearizable",
    "no_leaks",
    "opened_store",
    "recording",
    "seeded",
    "settle",
    "simulated",
]

show_under(__name__, __all__, globals())

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(__name__, {})
