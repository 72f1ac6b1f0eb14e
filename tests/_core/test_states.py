from itertools import product

import pytest

from ergo_py._core.errors import NotAllowedError
from ergo_py._core.states import ALLOWED, TRANSITIONS, Operation, State, check_allowed, check_transition

# Written out a second time on purpose: the table in the package is what the kernel does, this is what was promised.
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
    Operation.REPLY: "init running wait_response stopping",
    Operation.STOP: "init running wait_response",
    Operation.CONFIGURE: "init running wait_response",
}

HINTS = {
    State.SLEEP: "use the node's verb",
    State.STOPPING: "terminate() is for releasing",
    State.TERMINATED: "spawn a new one",
}


@pytest.mark.parametrize("old, new", list(product(State, State)))
def test_a_process_changes_its_state_along_the_table_only(old: State, new: State) -> None:
    if new.value in MAY_BECOME[old].split():
        check_transition(old, new)
    else:
        with pytest.raises(AssertionError, match=f"no transition from {old.name} to {new.name}"):
            check_transition(old, new)


@pytest.mark.parametrize("operation, state", list(product(Operation, State)))
def test_a_process_does_what_its_state_allows_only(operation: Operation, state: State) -> None:
    if state.value in MAY_BE_DONE[operation].split():
        check_allowed(operation, state, "<Counter>")
    else:
        with pytest.raises(NotAllowedError) as caught:
            check_allowed(operation, state, "<Counter>")

        assert f"<Counter> may not {operation.value} while it is {state.value}: " in str(caught.value)
        assert HINTS[state] in str(caught.value)


def test_the_tables_leave_no_state_and_no_operation_out() -> None:
    assert TRANSITIONS.keys() == set(State)
    assert ALLOWED.keys() == set(Operation)


def test_every_life_ends() -> None:
    ends = {State.TERMINATED}
    while more := {state for state in State if state not in ends and TRANSITIONS[state] & ends}:
        ends |= more

    assert ends == set(State)
