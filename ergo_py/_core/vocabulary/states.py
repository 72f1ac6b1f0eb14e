"""`State` and `MetaState`: the lifecycle of processes and meta-processes, with tables of
transitions and of the operations allowed in each state.
"""

from enum import Enum
from typing import TYPE_CHECKING, Final

from .errors import NotAllowedError
from .public_names import show_public_names

__all__ = [
    "ALLOWED",
    "CALLS_ALLOWED",
    "HISTORY",
    "INIT",
    "META_ALLOWED",
    "META_TRANSITIONS",
    "RUNNING",
    "SLEEP",
    "STOPPING",
    "TERMINATED",
    "TRANSITIONS",
    "WAIT_RESPONSE",
    "IdentityEnum",
    "MetaOperation",
    "MetaState",
    "Operation",
    "State",
    "check_allowed",
    "check_meta_allowed",
    "check_meta_transition",
    "check_transition",
]


HISTORY: Final = 16
"""Length of the list of recent states and their times, in turn."""


class IdentityEnum(Enum):
    """An enumeration whose members are keys of tables on hot paths."""

    if not TYPE_CHECKING:
        # Members compare by identity. Enum's own __hash__ is a slow Python function.
        __hash__ = object.__hash__


class State(IdentityEnum):
    """The lifecycle of a process."""

    INIT = "init"
    """``init`` runs."""
    SLEEP = "sleep"
    """The process waits for a message."""
    RUNNING = "running"
    """A callback runs."""
    WAIT_RESPONSE = "wait_response"
    """A callback waits for the answer to a call."""
    STOPPING = "stopping"
    """The process ends: it takes no more messages, and ``terminate`` runs."""
    TERMINATED = "terminated"
    """The process has ended."""


# The kernel reads these constants: on CPython 3.11, reading an enum member through its class costs
# as much as sending a message.
INIT: Final = State.INIT
SLEEP: Final = State.SLEEP
RUNNING: Final = State.RUNNING
WAIT_RESPONSE: Final = State.WAIT_RESPONSE
STOPPING: Final = State.STOPPING
TERMINATED: Final = State.TERMINATED


TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.INIT: frozenset({State.SLEEP, State.WAIT_RESPONSE, State.STOPPING, State.TERMINATED}),
    State.SLEEP: frozenset({State.RUNNING, State.STOPPING}),
    State.RUNNING: frozenset({State.SLEEP, State.WAIT_RESPONSE, State.STOPPING}),
    State.WAIT_RESPONSE: frozenset({State.RUNNING, State.INIT, State.STOPPING}),
    State.STOPPING: frozenset({State.TERMINATED}),
    State.TERMINATED: frozenset(),
}


class Operation(IdentityEnum):
    """Operations of a process that are allowed only in some states. Sending and logging are always
    allowed.
    """

    CALL = "call"
    SPAWN = "spawn"
    RELATE = "link and monitor"
    REGISTER = "register names and aliases"
    ARM_TIMER = "arm timers"
    REQUEST = "make requests"
    REPLY = "reply"
    STOP = "stop"
    CONFIGURE = "change settings"


_AT_WORK: Final = frozenset({State.INIT, State.RUNNING, State.WAIT_RESPONSE})

ALLOWED: Final[dict[Operation, frozenset[State]]] = {
    Operation.CALL: _AT_WORK | {State.STOPPING},
    Operation.SPAWN: _AT_WORK,
    Operation.RELATE: _AT_WORK,
    Operation.REGISTER: _AT_WORK,
    Operation.ARM_TIMER: _AT_WORK,
    Operation.REQUEST: _AT_WORK,
    Operation.REPLY: _AT_WORK | {State.STOPPING},
    Operation.STOP: _AT_WORK,
    Operation.CONFIGURE: _AT_WORK,
}

CALLS_ALLOWED: Final = ALLOWED[Operation.CALL]
"""The most used row, to save a lookup."""

_INSTEAD: Final[dict[State, str]] = {
    State.SLEEP: (
        "a process acts inside its own callbacks; elsewhere send it a message, "
        "or use the node's verb of that name"
    ),
    State.STOPPING: (
        "do it before the process stops; terminate() is for cleanup, not for new work"
    ),
    State.TERMINATED: "this process has ended; spawn a new one",
}


def check_transition(old: State, new: State) -> None:
    """Raise AssertionError for a transition that is not in the table: a bug of the kernel."""
    if new not in TRANSITIONS[old]:
        raise AssertionError(f"no transition from {old.name} to {new.name}")


def check_allowed(operation: Operation, state: State, who: object) -> None:
    """Raise :class:`NotAllowedError` if ``operation`` must not be done in ``state``."""
    if state not in ALLOWED[operation]:
        hint = _INSTEAD.get(state, "")
        raise NotAllowedError(
            f"{who} may not {operation.value} while it is {state.value}"
            + (f": {hint}" if hint else "")
        )


class MetaState(IdentityEnum):
    """The lifecycle of a meta-process. Its reader works in SLEEP and in RUNNING."""

    SLEEP = "sleep"
    """The handler has no messages to serve."""
    RUNNING = "running"
    """The handler serves messages."""
    TERMINATED = "terminated"
    """Reader and handler have ended; ``terminate`` runs, or has run."""


META_TRANSITIONS: Final[dict[MetaState, frozenset[MetaState]]] = {
    MetaState.SLEEP: frozenset({MetaState.RUNNING, MetaState.TERMINATED}),
    MetaState.RUNNING: frozenset({MetaState.SLEEP, MetaState.TERMINATED}),
    MetaState.TERMINATED: frozenset(),
}


class MetaOperation(Enum):
    """Operations of a meta-process; most are allowed only in some states."""

    SEND = "send"
    IDENTIFY = "ask for id, parent and env"
    LOG = "log"
    SPAWN = "spawn"
    ARM_TIMER = "arm timers"
    REQUEST = "make requests"
    REPLY = "reply"
    CONFIGURE = "change settings"
    STOP = "stop"


_ALWAYS: Final = frozenset(MetaState)
_ALIVE: Final = frozenset({MetaState.SLEEP, MetaState.RUNNING})

META_ALLOWED: Final[dict[MetaOperation, frozenset[MetaState]]] = {
    MetaOperation.SEND: _ALWAYS,
    MetaOperation.IDENTIFY: _ALWAYS,
    MetaOperation.LOG: _ALWAYS,
    MetaOperation.SPAWN: _ALIVE,
    MetaOperation.ARM_TIMER: _ALIVE,
    MetaOperation.REQUEST: _ALIVE,
    MetaOperation.STOP: _ALIVE,
    MetaOperation.REPLY: frozenset({MetaState.RUNNING}),
    MetaOperation.CONFIGURE: frozenset({MetaState.RUNNING}),
}

_META_INSTEAD: Final[dict[MetaState, str]] = {
    MetaState.SLEEP: (
        "only the handler may do that; in the reader, write `self.send(self.id, message)` and do "
        "it in handle_message"
    ),
    MetaState.RUNNING: "",
    MetaState.TERMINATED: "it has ended; do it before terminate, or in the process that owns it",
}


def check_meta_transition(old: MetaState, new: MetaState) -> None:
    """Raise AssertionError for a transition that is not in the table: a bug of the kernel."""
    if new not in META_TRANSITIONS[old]:
        raise AssertionError(f"no transition from {old.name} to {new.name}")


def check_meta_allowed(operation: MetaOperation, state: MetaState, who: object) -> None:
    """Raise :class:`NotAllowedError` if a meta-process must not do ``operation`` in ``state``."""
    if state not in META_ALLOWED[operation]:
        raise NotAllowedError(
            f"{who} may not {operation.value} while its state is {state.value}: "
            f"{_META_INSTEAD[state]}"
        )


show_public_names(__name__, {"ergo_py.info": "State"})
