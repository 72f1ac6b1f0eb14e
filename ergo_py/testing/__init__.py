"""The test kit: probes, settling, virtual time, fault injection, race exploration, behaviours
without a node, recorded input, leak checks.
"""

from .._core.vocabulary.public_names import show_under
from .alone import Alone, Ask
from .clock import VirtualClock
from .crashes import ExpectedCrash, expect_crash
from .faults import Deaf, Fault, crashing, delaying, dropping, filled
from .fixtures import checked_node, checked_nodes
from .leaks import LeakError, no_leaks
from .probes import Probe, Received
from .recording_verbs import Armed, Called, Publication, Requested, Sent, Spawned, StartedTask
from .replay import ME, Recording, Replay, Tape, recording
from .settlement import UnsettledError, busy, settle
from .task_order import RaceError, explore, seeded

__all__ = [
    "Alone",
    "Armed",
    "Ask",
    "Called",
    "Deaf",
    "ExpectedCrash",
    "Fault",
    "LeakError",
    "ME",
    "Probe",
    "Publication",
    "RaceError",
    "Received",
    "Recording",
    "Replay",
    "Requested",
    "Sent",
    "Spawned",
    "StartedTask",
    "Tape",
    "UnsettledError",
    "VirtualClock",
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
    "recording",
    "seeded",
    "settle",
]

show_under(__name__, __all__, globals())
