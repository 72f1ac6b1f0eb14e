"""No two singletons run at once, in seeded partitions; `make partitions` runs many more seeds."""

import pytest

from ergo_py.cluster import lease
from tests.cluster.partitions import Violation, simulate_keepers, simulate_nodes
from tests.support import THOROUGH


def test_no_two_holders_in_seeded_partitions_with_bad_clocks_and_stopped_programs() -> None:
    starts = [simulate_keepers(seed) for seed in range(1000 if THOROUGH else 15)]

    assert sum(began for began, _ in starts) > 3 * len(starts)
    assert sum(acts for _, acts in starts) > 100 * len(starts)


def test_no_two_singletons_on_nodes_in_seeded_partitions() -> None:
    starts = [simulate_nodes(seed) for seed in range(1000 if THOROUGH else 8)]

    assert sum(starts) > 3 * len(starts)


def test_the_simulation_notices_a_lease_without_a_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "MARGIN", -0.3)

    with pytest.raises(Violation):
        for seed in range(30):
            simulate_keepers(seed)
