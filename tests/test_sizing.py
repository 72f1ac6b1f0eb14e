"""The simulation of large networks and the books of the soak of four programs, on a small scale."""

from pathlib import Path

import pytest

from benchmarks import sizing
from benchmarks.soak_nodes.journal import Books, Journal, Pair
from ergo_py.network.protocol.session import Timing


def test_a_simulated_network_has_the_figures_that_its_settings_promise() -> None:
    figures = sizing.simulate(50, 49, Timing())

    assert figures.frames == pytest.approx(49, rel=0.05)
    assert 80 < figures.size < 130
    assert 3.9 <= figures.told[0] <= figures.told[1] <= 5.1
    assert figures.flooded <= 36 << 20


def test_the_figures_are_printed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert sizing.main(["--nodes", "30", "--beat", "2", "--patience", "6"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert all(line.count("|") == 5 for line in lines)


def test_the_books_of_programs_are_added_up(tmp_path: Path) -> None:
    one, other = Journal(tmp_path, "a@soak", 1), Journal(tmp_path, "b@soak", 2)
    for number in (1, 2, 3, 4):
        one.write("sent", "b@soak", number)
    other.write("got", "a@soak+1", 1)
    other.write("got", "a@soak+1", 4)
    one.write("down", "b@soak")
    one.write("dead", "b@soak", "NO_NODE")
    one.write("dead", "b@soak", "UNCONFIRMED")
    one.write("answered", 1)
    one.write("failed", 1)

    books = Books(tmp_path)

    pair = books.pairs["a@soak+1", "b@soak"]
    assert pair == Pair(4, [1, 4], 1, 1, 1)
    assert pair.faults(False, False) == []
    assert (books.answered, books.failed) == (1, 1)


@pytest.mark.parametrize(
    "pair, fault",
    [
        (Pair(3, [1, 1, 2, 3]), "twice, or out of order"),
        (Pair(3, [1, 3, 2]), "twice, or out of order"),
        (Pair(2, [1, 2, 3]), "never sent"),
        (Pair(4, [1, 4], downs=0), "1 holes"),
        (Pair(4, [1, 4], downs=1), "2 are missing"),
        (Pair(2, [1, 2], unsent=1), "1 dead letters never left, and 0 are missing"),
    ],
)
def test_a_sum_that_does_not_come_out_is_a_fault(pair: Pair, fault: str) -> None:
    assert fault in "; ".join(pair.faults(False, False))
