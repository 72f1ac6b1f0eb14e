from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ergo_py._core.tables.relations import Kind, Relation, Relations, Watched
from ergo_py._core.vocabulary.errors import RelationExistsError, RelationUnknownError
from ergo_py._core.vocabulary.ids import PID, Alias, EventName, Name, NodeName
from tests.support import relation_tables

NODE = "demo@localhost"
WATCHERS = [PID(NODE, 7, number) for number in (1, 2, 3)]
TARGETS: list[Watched] = [
    PID(NODE, 7, 1),
    PID(NODE, 7, 4),
    Alias(NODE, 7, 5),
    Name("db", NODE),
    NodeName("other@host"),
]

NEWS = EventName("news", NODE)
watchers = st.sampled_from(WATCHERS)
targets = st.sampled_from(TARGETS)
kinds = st.sampled_from(list(Kind))

Key = tuple[PID, Watched, Kind]


def key(relation: Relation) -> Key:
    return relation.watcher, relation.target, relation.kind


class RelationsMachine(RuleBasedStateMachine):
    """All relations against a list of those that stand, and a list of those that have fired and are
    on their way.
    """

    def __init__(self) -> None:
        super().__init__()
        self.relations = Relations()
        self.standing: list[Key] = []
        self.due: dict[Relation, Key] = {}
        """By identity: a relation of the same form that is made later is another relation."""
        self.queued: list[Relation] = []
        """Signals in mailboxes: also those of a relation that was removed since."""

    def known(self) -> list[Key]:
        return [*self.standing, *self.due.values()]

    def drop(self, is_unwanted: Callable[[Key], bool]) -> None:
        self.standing = [one for one in self.standing if not is_unwanted(one)]
        self.due = {relation: one for relation, one in self.due.items() if not is_unwanted(one)}

    @rule(watcher=watchers, watched=targets, kind=kinds)
    def somebody_watches(self, watcher: PID, watched: Watched, kind: Kind) -> None:
        wanted = (watcher, watched, kind)
        if wanted in self.known():
            with pytest.raises(RelationExistsError) as caught:
                self.relations.add(*wanted)

            assert caught.value.target == watched
        else:
            relation = self.relations.add(*wanted)
            self.standing.append(wanted)

            assert key(relation) == wanted

    @rule(watcher=watchers, watched=targets, kind=kinds)
    def somebody_stops_watching(self, watcher: PID, watched: Watched, kind: Kind) -> None:
        unwanted = (watcher, watched, kind)
        if unwanted in self.known():
            self.drop(lambda one: one == unwanted)
            self.relations.remove(*unwanted)
        else:
            with pytest.raises(RelationUnknownError) as caught:
                self.relations.remove(*unwanted)

            assert caught.value.target == watched

    @rule(watched=targets)
    def a_target_ends(self, watched: Watched) -> None:
        expected = [one for one in self.standing if one[1] == watched]
        self.standing = [one for one in self.standing if one[1] != watched]

        fired = self.relations.fire(watched)

        assert [key(relation) for relation in fired] == expected
        self.queued += fired
        self.due.update({relation: key(relation) for relation in fired})

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def a_signal_comes_up(self, data: st.DataObject) -> None:
        relation = self.queued.pop(data.draw(st.integers(0, len(self.queued) - 1)))
        is_due = self.due.pop(relation, None) is not None

        assert self.relations.deliver(relation) is is_due
        assert self.relations.deliver(relation) is False

    @rule(watcher=watchers)
    def a_watcher_ends(self, watcher: PID) -> None:
        self.drop(lambda one: one[0] == watcher)

        list(self.relations.forget(watcher))

    @invariant()
    def a_queued_signal_counts_as_long_as_its_relation_was_not_removed(self) -> None:
        assert {relation for relation in self.queued if relation.alive} == self.due.keys()

    @invariant()
    def both_indexes_say_the_same(self) -> None:
        assert len(self.relations) == len(self.known())
        for kind in Kind:
            for watcher in WATCHERS:
                mine = {one[1] for one in self.known() if one[0] == watcher and one[2] is kind}
                assert set(self.relations.of_watcher(watcher, kind)) == mine
            for watched in TARGETS:
                theirs = [one[0] for one in self.standing if one[1] == watched and one[2] is kind]
                assert list(self.relations.of_target(watched, kind)) == theirs

    @invariant()
    def nothing_is_kept_for_those_without_relations(self) -> None:
        by_watcher, by_target = relation_tables(self.relations)
        assert by_watcher.keys() == {one[0] for one in self.known()}
        assert by_target.keys() == {one[1] for one in self.standing}

    def teardown(self) -> None:
        for watcher in WATCHERS:
            list(self.relations.forget(watcher))

        assert len(self.relations) == 0
        assert relation_tables(self.relations) == ({}, {})


TestRelations = RelationsMachine.TestCase


def test_a_signal_of_a_removed_relation_is_not_delivered_even_if_queued() -> None:
    relations = Relations()
    relations.add(WATCHERS[0], TARGETS[1], Kind.MONITOR)
    (queued,) = relations.fire(TARGETS[1])

    relations.remove(WATCHERS[0], TARGETS[1], Kind.MONITOR)

    assert relations.deliver(queued) is False


def test_a_relation_made_again_is_not_mistaken_for_the_removed_relation() -> None:
    relations = Relations()
    relations.add(WATCHERS[0], TARGETS[3], Kind.MONITOR)
    (queued,) = relations.fire(TARGETS[3])
    relations.remove(WATCHERS[0], TARGETS[3], Kind.MONITOR)

    relations.add(WATCHERS[0], TARGETS[3], Kind.MONITOR)

    assert relations.deliver(queued) is False
    assert len(relations) == 1
    assert relations.of_target(TARGETS[3], Kind.MONITOR) == (WATCHERS[0],)


def test_a_link_and_a_monitor_to_the_same_target_are_two_relations() -> None:
    relations = Relations()
    relations.add(WATCHERS[0], TARGETS[1], Kind.LINK)
    relations.add(WATCHERS[0], TARGETS[1], Kind.MONITOR)

    relations.remove(WATCHERS[0], TARGETS[1], Kind.LINK)

    assert relations.of_watcher(WATCHERS[0], Kind.LINK) == ()
    assert relations.of_watcher(WATCHERS[0], Kind.MONITOR) == (TARGETS[1],)


def test_the_table_does_not_grow_after_many_processes_have_ended() -> None:
    relations = Relations()
    supervisor = WATCHERS[0]

    for number in range(100, 1100):
        child = PID(NODE, 7, number)
        relations.add(supervisor, child, Kind.MONITOR)
        relations.add(child, supervisor, Kind.LINK)
        list(relations.forget(child))
        for signal in relations.fire(child):
            relations.deliver(signal)

    assert len(relations) == 0
    assert relation_tables(relations) == ({}, {})


def test_a_relation_that_follows_is_kept_unless_it_was_removed_meanwhile() -> None:
    relations = Relations()
    kept, removed = (relations.add(each, NEWS, Kind.MONITOR, follows=True) for each in WATCHERS[:2])
    assert relations.fire(NEWS) == (kept, removed)
    relations.remove(removed.watcher, NEWS, Kind.MONITOR)

    relations.keep(kept)
    relations.keep(removed)

    assert relations.of_target(NEWS, Kind.MONITOR) == (kept.watcher,)


def test_the_repr_of_a_relation_shows_watcher_and_target() -> None:
    relation = Relations().add(WATCHERS[0], Name("db", NODE), Kind.LINK)

    assert repr(relation) == f"<link {WATCHERS[0]} → Name('db', '{NODE}')>"
