from dataclasses import FrozenInstanceError, fields, is_dataclass
from operator import methodcaller
from typing import Any

import pytest

from ergo_py._core.vocabulary import info
from ergo_py._core.vocabulary.ids import PID
from ergo_py._core.vocabulary.info import BlockedReport, Ended, ExitReport
from ergo_py._core.vocabulary.reasons import Killed, Shutdown


def ended(number: int, name: str | None = None) -> Ended:
    return Ended(PID("demo@localhost", 7, number), name, "Counter", Shutdown())


def test_a_snapshot_cannot_be_changed() -> None:
    report = BlockedReport(0.5, None, None, None, None, None, "stack")

    for field in fields(BlockedReport):
        with pytest.raises(FrozenInstanceError):
            setattr(report, field.name, None)


@pytest.mark.parametrize(
    "kind", [kind for kind in vars(info).values() if isinstance(kind, type) and is_dataclass(kind)]
)
def test_every_kind_of_snapshot_is_frozen_and_has_no_room_for_more(kind: Any) -> None:
    assert kind.__dataclass_params__.frozen
    assert "__dict__" not in dir(kind)


def test_an_ended_process_is_named_by_address_name_and_behaviour() -> None:
    assert str(ended(3)) == "<PID 3 demo@localhost> Counter"
    assert str(ended(3, "db")) == "<PID 3 demo@localhost> 'db' Counter"
    assert ended(3) != Ended(PID("demo@localhost", 7, 3), None, "Counter", Killed())


def test_the_report_of_an_orderly_end_counts_the_stopped_processes() -> None:
    report = ExitReport(0.0123, (ended(1), ended(2)), (), ())

    assert str(report) == "node down in 0.012 s: 2 stopped"


def test_the_report_of_a_forced_end_names_killed_and_abandoned_processes() -> None:
    report = ExitReport(1.5, (ended(1),), (ended(2, "slow"),), (ended(3), ended(4)))

    assert str(report) == (
        "node down in 1.500 s: 1 stopped, 1 killed (<PID 2 demo@localhost> 'slow' Counter), "
        "2 abandoned (<PID 3 demo@localhost> Counter, <PID 4 demo@localhost> Counter)"
    )


def test_the_report_of_an_escalation_names_the_supervisor_that_gave_up() -> None:
    report = ExitReport(1.5, (ended(1),), (), (), escalated=ended(2, "root"))

    assert str(report) == (
        "node down in 1.500 s: 1 stopped, because <PID 2 demo@localhost> 'root' Counter gave up: "
        "shutdown"
    )


def test_a_long_report_names_the_first_ten() -> None:
    exactly, more = (
        str(ExitReport(1.5, (), tuple(ended(number) for number in range(count)), ()))
        for count in (10, 11)
    )

    assert exactly.count("Counter") == more.count("Counter") == 10
    assert "…" not in exactly
    assert more.endswith("<PID 9 demo@localhost> Counter, …)")
    assert "11 killed" in more


@pytest.mark.parametrize("kind", [info.NodeInfo, info.ProcessInfo, info.MetaInfo])
def test_a_snapshot_is_a_table_in_a_notebook(kind: Any) -> None:
    facts = {field.name: f"<{field.name}>" for field in fields(kind)}

    shown = methodcaller("_repr_html_")(kind(**facts))

    assert shown.startswith("<table><tr><th>")
    assert shown.count("<td>&lt;") == len(facts)
