from itertools import product

import pytest

from ergo_py._core.vocabulary.errors import NotAllowedError
from ergo_py._core.vocabulary.states import (
    ALLOWED,
    META_ALLOWED,
    META_TRANSITIONS,
    TRANSITIONS,
    MetaOperation,
    MetaState,
    Operation,
    State,
    check_allowed,
    check_meta_allowed,
    check_meta_transition,
    check_transition,
)

# Written out a second time on purpose: the table in the package is the behaviour of the kernel,
# this is the promise.
MAY_BECOME = {
    State.INIT: "sleep wait_response stopping terminated",
    State.SLEEP: "running stopping",
    State.RUNNING: "sleep wait_response stopping",
    State.WAIT_RESPONSE: "init running stopping",
    State.STOPPING: "terminated",
    State.TERMINATED: "",
}

MAY_BE_DONE = {
    Operation.CALL: "init running wait_response stopping",
    Operation.SPAWN: "init running wait_response",
    Operation.RELATE: "init running wait_response",
    Operation.REGISTER: "init running wait_response",
    Operation.ARM_TIMER: "init running wait_response",
    Operation.REQUEST: "init running wait_response",
    Operation.REPLY: "init running wait_response stopping",
    Operation.STOP: "init running wait_response",
    Operation.CONFIGURE: "init running wait_response",
}

HINTS = {
    State.SLEEP: "use the node's verb",
    State.STOPPING: "terminate() is for cleanup",
    State.TERMINATED: "spawn a new one",
}


@pytest.mark.parametrize("old, new", list(product(State, State)))
def test_a_process_changes_its_state_only_along_the_table(old: State, new: State) -> None:
    if new.value in MAY_BECOME[old].split():
        check_transition(old, new)
    else:
        with pytest.raises(AssertionError, match=f"no transition from {old.name} to {new.name}"):
            check_transition(old, new)


@pytest.mark.parametrize("operation, state", list(product(Operation, State)))
def test_a_process_does_only_operations_allowed_in_its_state(
    operation: Operation, state: State
) -> None:
    if state.value in MAY_BE_DONE[operation].split():
        check_allowed(operation, state, "<Counter>")
    else:
        with pytest.raises(NotAllowedError) as caught:
            check_allowed(operation, state, "<Counter>")

        assert f"<Counter> may not {operation.value} while it is {state.value}: " in str(
            caught.value
        )
        assert HINTS[state] in str(caught.value)


META_MAY_BECOME = {
    MetaState.SLEEP: "running terminated",
    MetaState.RUNNING: "sleep terminated",
    MetaState.TERMINATED: "",
}

META_MAY_BE_DONE = {
    MetaOperation.SEND: "sleep running terminated",
    MetaOperation.IDENTIFY: "sleep running terminated",
    MetaOperation.LOG: "sleep running terminated",
    MetaOperation.SPAWN: "sleep running",
    MetaOperation.ARM_TIMER: "sleep running",
    MetaOperation.REQUEST: "sleep running",
    MetaOperation.STOP: "sleep running",
    MetaOperation.REPLY: "running",
    MetaOperation.CONFIGURE: "running",
}

META_HINTS = {
    MetaState.SLEEP: "only the handler may do that",
    MetaState.TERMINATED: "in the process that owns it",
}


@pytest.mark.parametrize("old, new", list(product(MetaState, MetaState)))
def test_a_meta_process_changes_its_state_only_along_the_table(
    old: MetaState, new: MetaState
) -> None:
    if new.value in META_MAY_BECOME[old].split():
        check_meta_transition(old, new)
    else:
        with pytest.raises(AssertionError, match=f"no transition from {old.name} to {new.name}"):
            check_meta_transition(old, new)


@pytest.mark.parametrize("operation, state", list(product(MetaOperation, MetaState)))
def test_a_meta_process_does_only_operations_allowed_in_its_state(
    operation: MetaOperation, state: MetaState
) -> None:
    if state.value in META_MAY_BE_DONE[operation].split():
        check_meta_allowed(operation, state, "<Lines>")
    else:
        with pytest.raises(NotAllowedError) as caught:
            check_meta_allowed(operation, state, "<Lines>")

        assert f"<Lines> may not {operation.value} while its state is {state.value}: " in str(
            caught.value
        )
        assert META_HINTS[state] in str(caught.value)


def test_the_tables_contain_every_state_and_every_operation() -> None:
    assert TRANSITIONS.keys() == set(State)
    assert ALLOWED.keys() == set(Operation)
    assert META_TRANSITIONS.keys() == set(MetaState)
    assert META_ALLOWED.keys() == set(MetaOperation)


def test_every_state_leads_to_the_end() -> None:
    ends = {State.TERMINATED}
    while more := {state for state in State if state not in ends and TRANSITIONS[state] & ends}:
        ends |= more

    assert ends == set(State)
