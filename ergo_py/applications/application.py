"""What a program consists of: applications, what each needs and offers, and whether all of it fits
together.

Declarations and checks only. Nothing here starts anything, so that a mistake is found before
something has.
"""

from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, overload

from .._core.verbs.behaviour import Behaviour
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.options import check_name, check_number
from .._core.vocabulary.reasons import Reason
from ..service import Service
from ..supervision.pool import Pool, PoolSpec
from ..supervision.specs import (
    INFINITE,
    SIMPLE_ONE_FOR_ONE,
    TEMPORARY,
    ChildSpec,
    RestartPolicy,
    SupervisorSpec,
)
from ..supervision.supervisor import Supervisor, read_spec

if TYPE_CHECKING:
    from ..node import Node

__all__ = ["Application", "Needs", "start_order"]


class Needs:
    """A service that a member of an application is handed: ``db = Needs("db")`` in its class makes
    ``self.db`` that service.

    It is the child of that name of the nearest supervisor above the member that has one, or else
    the one that is registered on the node. An application none of whose parts and dependencies
    offers it is refused before anything starts.
    """

    def __init__(self, service: str) -> None:
        self.service = check_name(service)
        self._attribute = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = name

    @overload
    def __get__(self, member: None, owner: type) -> "Needs": ...
    @overload
    def __get__(self, member: Behaviour, owner: type) -> Service: ...
    def __get__(self, member: Behaviour | None, owner: type) -> "Needs | Service":
        if member is None:
            return self
        process = member._process
        above = process.parent
        while above is not None:
            slot = (above.slots or {}).get(self.service)
            if slot is not None:
                break
            above = above.parent
        else:
            slot = None
        found = (
            Service.find(process.kernel, self.service, process)
            if slot is None
            else Service(process.kernel, slot, process)
        )
        # From now on it is found before this descriptor is.
        member.__dict__[self._attribute] = found
        return found


class Application:
    """A named tree of supervised processes that is started and stopped as a unit.

    Make one from its parts, or write a class with the callbacks that it needs; each may be ``def``
    or ``async def``.
    """

    def __init__(
        self,
        name: str,
        children: SupervisorSpec | Sequence[ChildSpec],
        *,
        depends_on: Sequence[str] = (),
        mode: RestartPolicy = TEMPORARY,
        env: Mapping[str, object] | None = None,
        provides: Sequence[str] = (),
        needs: Sequence[str] = (),
        shutdown: float = INFINITE,
    ) -> None:
        """Describe an application.

        Args:
            name: its name, and that of its supervisor on the node.
            children: what it consists of, in the order of start; a list, or a whole
                ``SupervisorSpec``.
            depends_on: the applications that must run before this one is started.
            mode: what its end means if nobody asked for it. TEMPORARY: nothing. TRANSIENT: a
                failure stops the node. PERMANENT: any end does.
            env: settings over those of the node, for everything in it.
            provides: services of children that are decided at run time and so are not in
                ``children``.
            needs: services that such children use.
            shutdown: seconds that stopping may take before what is left is killed.

        Raises:
            BadInputError: a value cannot be right.
        """
        self.name = check_name(name)
        what = f"Application({name!r}, "
        try:
            self.spec = read_spec(children)
        except BadInputError as error:
            raise BadInputError(f"{what}children)", error.given, error.allowed) from None
        self.depends_on = _names(f"{what}depends_on=…)", depends_on)
        self.provides = _names(f"{what}provides=…)", provides)
        self.needs = _names(f"{what}needs=…)", needs)
        if not isinstance(mode, RestartPolicy):
            raise BadInputError(f"{what}mode=…)", mode, "PERMANENT, TRANSIENT or TEMPORARY")
        self.mode = mode
        if env is not None and not isinstance(env, Mapping):
            raise BadInputError(f"{what}env=…)", env, "a mapping from names to values")
        self.env = dict(env or {})
        check_number(f"{what}shutdown=…)", shutdown, least=0.0)
        self.shutdown = shutdown

    def __repr__(self) -> str:
        return f"<Application {self.name!r}>"

    def before_start(self, node: "Node") -> Awaitable[None] | None:
        """Called before anything of it is started, its dependencies excepted. If it raises, it is
        not started.
        """
        return None

    def after_start(self, node: "Node") -> Awaitable[None] | None:
        """Called when everything in it is ready. If it raises, everything in it is stopped."""
        return None

    def before_stop(self, node: "Node", reason: Reason) -> Awaitable[None] | None:
        """Called before its parts are stopped, whatever the cause."""
        return None

    def after_stop(self, node: "Node", reason: Reason) -> Awaitable[None] | None:
        """Called after its parts have stopped; and after a start that failed, if ``before_start``
        had succeeded.
        """
        return None


def start_order(applications: Iterable[Application]) -> list[Application]:
    """The order in which applications are started: each after those it depends on, else as they are
    given.

    Raises:
        BadInputError: they do not fit together; nothing is changed.
    """
    table: dict[str, Application] = {}
    for one in applications:
        if one.name in table:
            raise BadInputError(
                "applications", one.name, "names that differ: two applications have this one"
            )
        table[one.name] = one
    for one in table.values():
        for name in one.depends_on:
            if name not in table:
                raise BadInputError(
                    f"what {one.name!r} depends on",
                    name,
                    "an application that is loaded: "
                    f"{', '.join(sorted(table.keys() - {one.name})) or 'there is no other'}",
                )
    order: list[Application] = []
    for one in table.values():
        _visit(one, table, order, ())
    _check_names(table)
    for one in table.values():
        _check_needs(one, table)
    return order


def _visit(
    one: Application,
    table: Mapping[str, Application],
    order: list[Application],
    path: tuple[str, ...],
) -> None:
    if one in order:
        return
    if one.name in path:
        ring = " -> ".join((*path[path.index(one.name) :], one.name))
        raise BadInputError(
            "applications that depend on one another", ring, "an order in which they can be started"
        )
    for name in one.depends_on:
        _visit(table[name], table, order, (*path, one.name))
    order.append(one)


def _check_names(table: Mapping[str, Application]) -> None:
    """No two processes of all the applications may be registered under the same name."""
    holders: dict[str, str] = {name: f"the application {name!r} itself" for name in table}
    for one in table.values():
        for child, _, is_registered in _members(one.spec, frozenset()):
            if not is_registered:
                continue
            here = f"a child of {one.name!r}"
            if child.name in holders:
                raise BadInputError(
                    f"{here}",
                    child.name,
                    f"a name that is free on the node: {holders[child.name]} has it; "
                    "ChildSpec(…, register=False) keeps the name of a child to its supervisor",
                )
            holders[child.name] = here


def _check_needs(one: Application, table: Mapping[str, Application]) -> None:
    offered = set[str]()
    for name in {one.name, *_all_dependencies(one, table)}:
        offered.update(table[name].provides)
        offered.update(
            child.name
            for child, _, is_registered in _members(table[name].spec, frozenset())
            if is_registered
        )
    wanted = [(one.name, name, frozenset[str]()) for name in one.needs]
    for child, scope, _ in _members(one.spec, frozenset()):
        wanted += [(f"{child.name} of {one.name}", name, scope) for name in _needs_of(child)]
    for who, name, scope in wanted:
        if name not in offered and name not in scope:
            raise BadInputError(
                f"a service that {who} needs",
                name,
                f"one that {one.name!r} or what it depends on offers: "
                f"{', '.join(sorted(offered | scope)) or 'none'}; "
                "name the application that has it in depends_on, or the service in provides",
            )


def _all_dependencies(one: Application, table: Mapping[str, Application]) -> set[str]:
    found: set[str] = set()
    waiting = list(one.depends_on)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(table[name].depends_on)
    return found


def _members(
    spec: SupervisorSpec, above: frozenset[str]
) -> Iterator[tuple[ChildSpec, frozenset[str], bool]]:
    """All children that are known beforehand, with the names that supervisors above each know, and
    whether it is registered.
    """
    is_template = spec.strategy is SIMPLE_ONE_FOR_ONE
    # What is made from a template has other names at run time, so that it offers nothing; but what
    # it needs is known.
    scope = above if is_template else above | {child.name for child in spec.children}
    for child in spec.children:
        yield child, scope, child.register and not is_template
        inner = _inner(child)
        if inner is not None:
            yield from _members(inner, scope)


def _inner(child: ChildSpec) -> SupervisorSpec | None:
    """The children of a child that is a supervisor, if they are written down and not found out at
    run time.
    """
    cls, given = child.cls, child.args[0] if child.args else None
    if issubclass(cls, Pool):
        if cls.workers is Pool.workers and isinstance(given, PoolSpec):
            return SupervisorSpec([given.worker], SIMPLE_ONE_FOR_ONE)
        return None
    is_plain = (
        issubclass(cls, Supervisor)
        and cls.children is Supervisor.children
        and cls.__init__ is Supervisor.__init__
    )
    return read_spec(given) if is_plain and given is not None else None


def _needs_of(child: ChildSpec) -> list[str]:
    return [
        one.service
        for base in child.cls.__mro__
        for one in vars(base).values()
        if isinstance(one, Needs)
    ]


def _names(what: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise BadInputError(what, given, f"a list of names, such as [{given!r}]")
    for name in given:
        if not isinstance(name, str) or not name:
            raise BadInputError(what, name, "names")
    return tuple(given)
