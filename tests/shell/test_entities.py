"""`ergo entities` on a node that shares its entities."""

import argparse
from types import SimpleNamespace
from typing import cast

import pytest

from ergo_py.control.client import Link
from ergo_py.shell.entities.commands import entities


def test_the_shards_of_each_node_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = {
        "a@test": {"shards": [0, 2], "lost": False},
        "b@test": {"shards": [1], "lost": True},
    }
    shards = {"shards": 4, "nodes": nodes, "moving": [2], "unassigned": [3]}
    kinds = {"kind": "Account", "stored": 3, "is_more": False, "awake": 1, "owed": 0, "parked": 0}
    facts = {"store": "Postgres(db)", "commits": 1, "versions": 2, "last_error": None}
    link = SimpleNamespace(
        node="a@test", ask=lambda _name: [{**facts, "map": shards, "kinds": [kinds]}]
    )

    entities(cast("Link", link), argparse.Namespace(verb="", rest=[], json=False))

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[2:6] == [
        ["NODE", "SHARDS", "MOVING", "STATE"],
        ["a@test", "2", "1", "here"],
        ["b@test", "1", "-", "lost"],
        ["1", "of", "4", "shards", "have", "no", "node", "yet"],
    ]


def test_a_row_that_cannot_be_read_is_told_below_the_parked_messages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parked = {"kind": "Account", "key": "ada", "to": "Account/bob", "message_type": "Credit"}
    damaged = {"kind": "Account", "key": "bob", "problem": "a stored record cannot be read"}
    for answer, lines in (([parked, damaged], 4), ([damaged], 1)):
        link = SimpleNamespace(
            node="a@test", ask=lambda _name, *, answer=answer, **_options: answer
        )

        given = argparse.Namespace(verb="parked", rest=[], json=False, limit=10)
        entities(cast("Link", link), given)

        said = capsys.readouterr().out.splitlines()
        assert len(said) == lines
        assert said[-1] == "the row of Account bob cannot be read: a stored record cannot be read"
