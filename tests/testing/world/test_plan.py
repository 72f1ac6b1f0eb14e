"""Plans are lines of text, and seeds draw them."""

import pytest

from ergo_py import BadInputError
from ergo_py.testing.world.plan import KINDS, FaultRates, Plan, PlannedFault

NODES = ("a@world", "b@world", "c@world")


def draw(seed: int, **rates: float) -> tuple[PlannedFault, ...]:
    return FaultRates(rates, 30.0, {}, NODES).draw(seed)


def test_a_plan_is_read_as_it_was_written() -> None:
    for seed in range(20):
        plan = Plan(seed, draw(seed, **dict.fromkeys(KINDS, 0.1)), seed % 2 == 0)

        assert Plan.read(str(plan)) == plan


def test_a_plan_reads_like_this() -> None:
    plan = Plan.read("seed=7 order=plain; 1.5 cut a@world,b@world 4; 2 lose * 3 0.5")

    assert plan.seed == 7
    assert not plan.is_shuffled
    assert plan.faults == (
        PlannedFault(1.5, "cut", ("a@world", "b@world"), 4.0),
        PlannedFault(2.0, "lose", (), 3.0, 0.5),
    )


@pytest.mark.parametrize(
    "text, told",
    [
        ("", "'seed=NUMBER'"),
        ("seed=x", "'seed=x'; allowed is 'seed=NUMBER', or 'seed=NUMBER order=plain'"),
        ("seed=1 colour=red", "order=plain"),
        ("seed=1 order=backwards", "order=plain"),
        ("seed=1; 1", "not ''"),
        ("seed=1; 1 melt a@world 4", "not 'melt'"),
        ("seed=1; 1 crahs a@world 4", "not 'crahs'; did you mean 'crash'?"),
        ("seed=1; 1 cut a@world 4", "'AT cut A,B SECONDS', not the nodes 'a@world'"),
        ("seed=1; 1 cut a@world,a@world 4", "not the nodes"),
        ("seed=1; 1 cut a@world, 4", "not the nodes"),
        ("seed=1; 1 lose a@world 4 0.5", r"'AT lose \* SECONDS SHARE', not the nodes 'a@world'"),
        ("seed=1; 1 lose * 4", r"'AT lose \* SECONDS SHARE', not 4 words"),
        ("seed=1; 1 pause a@world 4 5 6", "'AT pause A SECONDS', not 6 words"),
        ("seed=1; soon cut a@world,b@world 4", "from 0 to 1e\\+09 for AT, not 'soon'"),
        ("seed=1; -1 pause a@world 4", "for AT, not '-1'"),
        ("seed=1; 1 pause a@world nan", "for SECONDS, not 'nan'"),
        ("seed=1; 1 pause a@world inf", "for SECONDS, not 'inf'"),
        ("seed=1; 1 lose * 4 50", "from 0 to 1 for SHARE, not '50'"),
        ("seed=1; 1 skew a@world 4 -1", "for FASTER, not '-1'"),
    ],
)
def test_a_text_that_is_no_plan_is_refused(text: str, told: str) -> None:
    with pytest.raises(BadInputError, match=f"plan: got (.|\\n)*{told}"):
        Plan.read(text)


def test_a_wrong_fault_shows_all_kinds_with_their_arguments() -> None:
    with pytest.raises(BadInputError) as raised:
        Plan.read("seed=1; 2 pause a@world 3; 1 melt a@world 4")

    assert "got '1 melt a@world 4'" in str(raised.value)
    for kind in KINDS:
        assert f"\n  AT {kind} " in str(raised.value)
    assert "\n  AT delay A,B SECONDS LATE\n" in str(raised.value)


def test_numbers_of_a_plan_are_printed_as_they_are() -> None:
    """Six digits of a number are too few for the faults of a long world."""
    fault = PlannedFault(123456.78, "delay", NODES[:2], 0.25, 0.0)

    assert str(fault) == "123456.78 delay a@world,b@world 0.25 0"
    assert PlannedFault.read(str(fault)) == fault
    assert Plan.read(str(Plan(-3))) == Plan(-3)


def test_faults_of_each_kind_are_drawn_about_as_often_as_asked() -> None:
    counted = [len(draw(seed, cut=0.5)) for seed in range(200)]

    assert 13 < sum(counted) / len(counted) < 17


def test_faults_of_a_kind_do_not_depend_on_the_other_kinds() -> None:
    cuts = [fault for fault in draw(3, cut=0.2, pause=0.5) if fault.kind == "cut"]

    assert tuple(cuts) == draw(3, cut=0.2)


def test_faults_are_in_the_order_of_their_times_and_end_by_themselves() -> None:
    faults = draw(1, **dict.fromkeys(KINDS, 0.3))

    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    assert all(fault.seconds > 0 for fault in faults)
    assert all(len(fault.nodes) == KINDS[fault.kind].nodes for fault in faults)


def test_a_kind_that_needs_two_nodes_is_not_drawn_for_a_single_node() -> None:
    assert FaultRates({"cut": 1.0}, 30.0, {}, NODES[:1]).draw(1) == ()


def test_limits_bound_the_amounts() -> None:
    faults = FaultRates({"delay": 1.0}, 30.0, {"delay": (3.0, 4.0)}, NODES).draw(1)

    assert faults
    assert all(3.0 <= fault.amount <= 4.0 for fault in faults)


def test_each_kind_has_a_sentence() -> None:
    faults = draw(1, **dict.fromkeys(KINDS, 0.3))

    assert {fault.kind for fault in faults} == set(KINDS)
    assert all("{" not in fault.story for fault in faults)
