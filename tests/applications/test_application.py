"""Application: the declaration is checked whole, before anything starts."""

from typing import Any

import pytest

from ergo_py import (
    Actor,
    Application,
    BadInputError,
    ChildSpec,
    Needs,
    Pool,
    PoolSpec,
    RestartPolicy,
    Strategy,
    Supervisor,
    SupervisorSpec,
)
from ergo_py.applications.application import start_order
from tests.actors import Recorder


class Client(Actor):
    db = Needs("db")


def app(name: str, *depends_on: str, children: Any = None, **options: Any) -> Application:
    given = [ChildSpec(f"{name}-child", Recorder)] if children is None else children
    return Application(name, given, depends_on=depends_on, **options)


def names(applications: list[Application]) -> list[str]:
    return [one.name for one in applications]


def test_applications_start_after_their_dependencies_otherwise_in_the_given_order() -> None:
    order = start_order([app("web", "cache", "db"), app("log"), app("cache", "db"), app("db")])

    assert names(order) == ["db", "cache", "web", "log"]


def test_the_error_about_an_unknown_dependency_lists_the_known_applications() -> None:
    with pytest.raises(BadInputError, match=r"dependency of 'web': got 'bd'; .*: cache, db"):
        start_order([app("web", "bd"), app("db"), app("cache")])


@pytest.mark.parametrize("ring", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_a_ring_of_dependencies_is_refused_and_named(ring: list[str]) -> None:
    given = [
        app(name, following) for name, following in zip(ring, [*ring[1:], ring[0]], strict=True)
    ]

    with pytest.raises(BadInputError, match=" -> ".join([*ring, ring[0]])):
        start_order([app("z"), *given])


def test_two_applications_with_the_same_name_are_refused() -> None:
    with pytest.raises(BadInputError, match="two applications have this name"):
        start_order([app("web"), app("web")])


@pytest.mark.parametrize(
    "other",
    [
        app("web", children=[ChildSpec("db", Recorder)]),
        app("web", children=[ChildSpec("inner", Supervisor, [ChildSpec("db", Recorder)])]),
        app("db"),
    ],
)
def test_processes_of_two_applications_may_not_have_the_same_registered_name(
    other: Application,
) -> None:
    with pytest.raises(BadInputError, match="register=False"):
        start_order([app("store", children=[ChildSpec("db", Recorder)]), other])


def test_the_name_of_an_unregistered_child_may_be_used_again() -> None:
    private = app("web", children=[ChildSpec("db", Recorder, register=False)])

    assert names(start_order([app("store", children=[ChildSpec("db", Recorder)]), private])) == [
        "store",
        "web",
    ]


def test_a_needed_service_without_a_provider_is_refused() -> None:
    with pytest.raises(
        BadInputError, match=r"a service that client of web needs: got 'db'.*: cache, client"
    ):
        start_order(
            [
                app("web", "store", children=[ChildSpec("client", Client)]),
                app("store", children=[ChildSpec("cache", Recorder)]),
            ]
        )


def test_a_service_of_an_application_without_a_dependency_on_it_is_refused() -> None:
    with pytest.raises(BadInputError, match="depends_on"):
        start_order(
            [
                app("web", children=[ChildSpec("client", Client)]),
                app("store", children=[ChildSpec("db", Recorder)]),
            ]
        )


def test_a_service_listed_in_needs_is_checked_like_a_needs_attribute() -> None:
    with pytest.raises(BadInputError, match="a service that web needs"):
        start_order([app("web", needs=["db"])])

    assert names(start_order([app("web", needs=["db"], provides=["db"])])) == ["web"]


client = ChildSpec("client", Client)
db = ChildSpec("db", Recorder)
private_db = ChildSpec("db", Recorder, register=False)
template = SupervisorSpec([ChildSpec.template("client", Client)], Strategy.SIMPLE_ONE_FOR_ONE)


@pytest.mark.parametrize(
    "fits",
    [
        [app("web", children=[client, db])],
        [app("web", children=[client, private_db])],
        [app("web", "store", children=[client]), app("store", children=[db])],
        [
            app("web", "middle", children=[client]),
            app("middle", "store"),
            app("store", children=[db]),
        ],
        [app("web", children=[private_db, ChildSpec("inner", Supervisor, [client])])],
        [app("web", children=[client, ChildSpec("inner", Supervisor, [db])])],
        [app("web", "store", children=[client]), app("store", provides=["db"])],
        [app("web", children=[db, ChildSpec("inner", Supervisor, template)])],
    ],
)
def test_a_service_may_come_from_a_sibling_an_ancestor_or_a_dependency(
    fits: list[Application],
) -> None:
    assert len(start_order(fits)) == len(fits)


@pytest.mark.parametrize(
    "lacks",
    [
        [app("web", "store", children=[client]), app("store", children=[private_db])],
        [app("web", children=[client, ChildSpec("inner", Supervisor, [private_db])])],
        [app("web", children=[ChildSpec("inner", Supervisor, template)])],
        [app("web", children=[ChildSpec("pool", Pool, PoolSpec(Client))])],
        [
            app(
                "web",
                children=[
                    client,
                    ChildSpec(
                        "inner", Supervisor, SupervisorSpec([db], Strategy.SIMPLE_ONE_FOR_ONE)
                    ),
                ],
            )
        ],
    ],
)
def test_a_service_out_of_reach_is_not_provided(lacks: list[Application]) -> None:
    with pytest.raises(BadInputError, match="'db'"):
        start_order(lacks)


def test_children_that_a_supervisor_computes_at_run_time_are_not_checked() -> None:
    class Clever(Supervisor):
        def __init__(self, number: int) -> None:
            self.number = number

        def children(self) -> list[ChildSpec]:
            return []

    assert names(start_order([app("web", children=[ChildSpec("clever", Clever, 5)])])) == ["web"]


@pytest.mark.parametrize(
    "wrong, hint",
    [
        (lambda: Application("", []), "a str that is not empty"),
        (lambda: app("web", children="db"), r"Application\('web', children\)"),
        (lambda: app("web", mode="permanent"), "PERMANENT, TRANSIENT or TEMPORARY"),
        (lambda: Application("web", [], depends_on="db"), r"such as \['db'\]"),
        (lambda: app("web", needs=[""]), "names"),
        (lambda: app("web", env=[]), "a mapping"),
        (lambda: app("web", shutdown=-1), "shutdown"),
        (lambda: Needs(""), "a str that is not empty"),
    ],
)
def test_the_error_about_an_invalid_value_names_the_allowed_values(wrong: Any, hint: str) -> None:
    with pytest.raises(BadInputError, match=hint):
        wrong()


def test_an_application_is_temporary_by_default() -> None:
    assert app("web").mode is RestartPolicy.TEMPORARY
    assert app("web", mode=RestartPolicy.PERMANENT).mode is RestartPolicy.PERMANENT
    assert isinstance(Client.db, Needs)
