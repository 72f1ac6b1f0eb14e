"""States of processes and meta-processes, the transitions between them, and what may be done in
which: one table for each.
"""

from enum import Enum
from typing import Final

from .errors import NotAllowedError

__all__ = [
    "ALLOWED",
    "CALLS_ALLOWED",
    "INIT",
    "META_ALLOWED",
    "META_TRANSITIONS",
    "RUNNING",
    "SLEEP",
    "STOPPING",
    "TERMINATED",
    "TRANSITIONS",
    "WAIT_RESPONSE",
    "MetaOperation",
    "MetaState",
    "Operation",
    "State",
    "check_allowed",
    "check_meta_allowed",
    "check_meta_transition",
    "check_transition",
]


class State(Enum):
    """Where a process is in its life."""

    # Members are compared by identity; Enum's own hash is a Python function, and slow.
    __hash__ = object.__hash__

    INIT = "init"
    SLEEP = "sleep"
    RUNNING = "running"
    WAIT_RESPONSE = "wait_response"
    STOPPING = "stopping"
    TERMINATED = "terminated"


# On CPython 3.11 reading a member of an enumeration costs as much as sending a message: the kernel
# reads these.
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


class Operation(Enum):
    """What a process may want to do, as far as it depends on its state. Sending and logging never
    do.
    """

    __hash__ = object.__hash__  # as for State

    CALL = "call"
    SPAWN = "spawn"
    RELATE = "link and monitor"
    REGISTER = "register names and aliases"
    ARM_TIMER = "arm timers"
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
    Operation.REPLY: _AT_WORK | {State.STOPPING},
    Operation.STOP: _AT_WORK,
    Operation.CONFIGURE: _AT_WORK,
}

CALLS_ALLOWED: Final = ALLOWED[Operation.CALL]
"""The row that is looked at most."""

_INSTEAD: Final[dict[State, str]] = {
    State.SLEEP: "a process acts inside its own callbacks; elsewhere send it a message, or use the node's verb of that name",
    State.STOPPING: "do it before the process stops; terminate() is for releasing, not for starting",
    State.TERMINATED: "this process has ended; spawn a new one",
}


def check_transition(old: State, new: State) -> None:
    """Refuse a change of state that the table does not know; it would be a mistake of the kernel."""
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


class MetaState(Enum):
    """Where a meta-process is in its life. Its reader works from the beginning to the end, in SLEEP
    and in RUNNING.
    """

    SLEEP = "sleep"
    """No messages: there is no handler at work."""
    RUNNING = "running"
    """The handler serves messages."""
    TERMINATED = "terminated"
    """Reader and handler are done; ``terminate`` runs, or has run."""


META_TRANSITIONS: Final[dict[MetaState, frozenset[MetaState]]] = {
    MetaState.SLEEP: frozenset({MetaState.RUNNING, MetaState.TERMINATED}),
    MetaState.RUNNING: frozenset({MetaState.SLEEP, MetaState.TERMINATED}),
    MetaState.TERMINATED: frozenset(),
}


class MetaOperation(Enum):
    """What a meta-process may want to do, and where that depends on its state."""

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
    MetaState.SLEEP: "only the handler does that; from the reader, `self.send(self.id, message)` and do it in handle_message",
    MetaState.RUNNING: "",
    MetaState.TERMINATED: "it has ended; do it before terminate, or in the process that owns it",
}


def check_meta_transition(old: MetaState, new: MetaState) -> None:
    """Refuse a change of state that the table does not know; it would be a mistake of the kernel."""
    if new not in META_TRANSITIONS[old]:
        raise AssertionError(f"no transition from {old.name} to {new.name}")


def check_meta_allowed(operation: MetaOperation, state: MetaState, who: object) -> None:
    """Raise :class:`NotAllowedError` if a meta-process must not do ``operation`` in ``state``."""
    if state not in META_ALLOWED[operation]:
        raise NotAllowedError(
            f"{who} may not {operation.value} while its state is {state.value}: "
            f"{_META_INSTEAD[state]}"
        )
