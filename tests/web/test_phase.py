"""The phases of an HTTP connection: the table of their steps."""

import pytest

from ergo_py.web.http.phase import NEXT, Phase, Step


def reachable(start: Phase) -> set[Phase]:
    """The phases that steps lead to from ``start``."""
    found, left = {start}, [start]
    while left:
        news = set(NEXT[left.pop()].values()) - found
        found |= news
        left.extend(news)
    return found


@pytest.mark.parametrize("phase", Phase)
def test_each_phase_is_reached_from_the_first_and_can_be_closed(phase: Phase) -> None:
    assert phase in reachable(Phase.HEAD)
    assert NEXT[phase][Step.CLOSE] is Phase.CLOSED


def test_a_closed_connection_stays_closed() -> None:
    assert reachable(Phase.CLOSED) == {Phase.CLOSED}


def test_each_open_phase_leads_back_to_the_next_head() -> None:
    stuck = [phase for phase in Phase if Phase.HEAD not in reachable(phase)]

    assert stuck == [Phase.CLOSED]


def test_a_body_is_not_answered_before_the_call() -> None:
    """So a step that the table does not list shows at once."""
    assert Step.ANSWERED not in NEXT[Phase.BODY]
