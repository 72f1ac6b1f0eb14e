"""The test kit: probes, settling, virtual time, fault injection, race exploration, behaviours
without a node, recorded input, leak checks, and worlds: whole networks of nodes with seeded faults.
"""

from .._core.vocabulary.public_names import show_under
from .alone import Alone, Ask
from .clock import VirtualClock
from .crashes import ExpectedCrash, expect_crash
from .faults import Deaf, Fault, crashing, delaying, dropping, filled
from .fixtures import checked_node, checked_nodes
from .leaks import LeakError, no_leaks
from .probes import Probe, Received
from .records.notes import Armed, Called, Publication, Requested, Sent, Spawned, StartedTask
from .replay import ME, Recording, Replay, Tape, recording
from .settlement import UnsettledError, busy, settle
from .task_order import RaceError, explore, seeded
from .world.checkers import Checker, all_answered, at_most_one, kept
from .world.clock import StandstillError
from .world.disk import WorldDisk, WorldFile
from .world.history import Event, History, Lifetime, Operation
from .world.linearizability import Model, linearizable
from .world.node import WorldNode
from .world.outside import OutsideError
from .world.plan import Plan, PlannedFault
from .world.simulation import Simulation, SimulationError, simulated
from .world.world import CheckError, World

__all__ = [
    "Alone",
    "Armed",
    "Ask",
    "Called",
    "CheckError",
    "Checker",
    "Deaf",
    "Event",
    "ExpectedCrash",
    "Fault",
    "History",
    "LeakError",
    "Lifetime",
    "ME",
    "Model",
    "Operation",
    "OutsideError",
    "Plan",
    "PlannedFault",
    "Probe",
    "Publication",
    "RaceError",
    "Received",
    "Recording",
    "Replay",
    "Requested",
    "Sent",
    "Simulation",
    "SimulationError",
    "Spawned",
    "StandstillError",
    "StartedTask",
    "Tape",
    "UnsettledError",
    "VirtualClock",
    "World",
    "WorldDisk",
    "WorldFile",
    "WorldNode",
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
    "recording",
    "seeded",
    "settle",
    "simulated",
]

show_under(__name__, __all__, globals())
