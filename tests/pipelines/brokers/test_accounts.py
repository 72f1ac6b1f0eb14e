"""The account of redeliveries, without a broker: no double is explained by another's redelivery."""

from tests.pipelines.brokers.accounts import Account, account_of


def test_a_double_needs_a_redelivery_of_its_own() -> None:
    handled = {b"once": [0], b"told": [0, 1], b"silent": [0, 0], b"late": [2], b"same": [1, 1, 1]}

    assert account_of(handled, counts=True) == Account(4, 4, 2)


def test_a_broker_without_counts_marks_each_double() -> None:
    handled = {b"once": [0], b"marked": [0, 1, 1], b"marked too early": [1, 0]}

    assert account_of(handled, counts=False) == Account(3, 2, 1)
