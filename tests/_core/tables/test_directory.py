"""The directory, compared with naive sets: keys, groups and monitors, also of ended processes."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ergo_py import PID, BadInputError
from ergo_py._core.tables.directory import Directory
from ergo_py._core.vocabulary.ids import Key
from ergo_py.errors import KeyTakenError

PIDS = st.integers(1, 4).map(lambda number: PID("n", 1, number))
KEYS = st.sampled_from(["a", 1, ("a", 1), frozenset({2})])
REGISTRIES = st.sampled_from(["unique", "duplicate"])
GROUPS = st.sampled_from(["red", ("blue", 1)])


class DirectoryMachine(RuleBasedStateMachine):
    """Each step is done to the directory, and to plain sets of tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Directory()
        self.tables = {
            name: self.directory.open(name, name == "unique") for name in ("unique", "duplicate")
        }
        self.entries: dict[tuple[str, Any, PID], int] = {}
        self.members: set[tuple[Any, PID]] = set()
        self.watchers: set[tuple[Any, PID]] = set()

    @rule(name=REGISTRIES, key=KEYS, pid=PIDS, value=st.integers())
    def register(self, name: str, key: Any, pid: PID, value: int) -> None:
        taken = name == "unique" and any(
            entry[:2] == (name, key) and entry[2] != pid for entry in self.entries
        )
        if taken:
            with pytest.raises(KeyTakenError):
                self.directory.register(self.tables[name], Key(name, key), pid, value)
        else:
            self.directory.register(self.tables[name], Key(name, key), pid, value)
            self.entries[name, key, pid] = value

    @rule(name=REGISTRIES, key=KEYS, pid=PIDS)
    def unregister(self, name: str, key: Any, pid: PID) -> None:
        had = self.entries.pop((name, key, pid), None) is not None
        assert self.directory.unregister(self.tables[name], Key(name, key), pid) is had

    @rule(group=GROUPS, pid=PIDS)
    def join(self, group: Any, pid: PID) -> None:
        assert self.directory.join(group, pid) is ((group, pid) not in self.members)
        self.members.add((group, pid))

    @rule(group=GROUPS, pid=PIDS)
    def leave(self, group: Any, pid: PID) -> None:
        assert self.directory.leave(group, pid) is ((group, pid) in self.members)
        self.members.discard((group, pid))

    @rule(group=GROUPS, pid=PIDS)
    def watch(self, group: Any, pid: PID) -> None:
        assert self.directory.watch(group, pid) is ((group, pid) not in self.watchers)
        self.watchers.add((group, pid))

    @rule(group=GROUPS, pid=PIDS)
    def unwatch(self, group: Any, pid: PID) -> None:
        assert self.directory.unwatch(group, pid) is ((group, pid) in self.watchers)
        self.watchers.discard((group, pid))

    @rule(pid=PIDS)
    def end(self, pid: PID) -> None:
        keys, groups = self.directory.forget(pid)
        assert {(key.registry, key.key) for key in keys} == {
            entry[:2] for entry in self.entries if entry[2] == pid
        }
        assert set(groups) == {group for group, member in self.members if member == pid}
        self.entries = {entry: value for entry, value in self.entries.items() if entry[2] != pid}
        self.members = {pair for pair in self.members if pair[1] != pid}
        self.watchers = {pair for pair in self.watchers if pair[1] != pid}

    @invariant()
    def both_agree(self) -> None:
        directory = self.directory
        found = {
            (name, key, pid): value
            for name, table in self.tables.items()
            for key, pid, value in directory.entries(table)
        }
        assert found == self.entries
        assert {
            (group, pid) for group, pids in directory.groups.items() for pid in pids
        } == self.members
        assert {
            (group, pid) for group, pids in directory.watchers.items() for pid in pids
        } == self.watchers
        assert all(directory.groups.values())
        for name, key, pid in self.entries:
            holder = directory.find(Key(name, key))
            assert holder == (pid if name == "unique" else None)


TestDirectory = DirectoryMachine.TestCase


def test_a_registry_keeps_its_kind() -> None:
    directory = Directory()
    table = directory.open("users", None)

    assert table.unique
    assert directory.open("users", True) is table
    with pytest.raises(BadInputError, match="unique=True"):
        directory.open("users", False)


def test_a_key_that_cannot_be_hashed_is_found_nowhere() -> None:
    directory = Directory()
    directory.open("users", True)

    assert directory.find(Key("users", [])) is None
    assert directory.find(Key("others", 1)) is None
