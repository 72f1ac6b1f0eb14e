"""`Application` and `Needs`: the parts of a program with their dependencies, and the checks that
they fit together.

Declarations and checks only. Nothing here starts a process, so that a mistake surfaces before any
start.
"""

from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, overload

from .._core.verbs.behaviour import Behaviour
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.options import check_name, check_number
from .._core.vocabulary.public_names import name_for_annotations, show_public_names
from .._core.vocabulary.reasons import Reason
from ..service import Service
from ..supervision.specs import ChildSpec, RestartPolicy, Strategy, SupervisorSpec
from ..supervision.supervisor import Supervisor, read_spec

if TYPE_CHECKING:
    from ..node import Node
else:
    name_for_annotations(__name__, {"ergo_py.node": "Node"})

__all__ = ["Application", "Needs", "start_order"]


class Needs:
    """A service injected into a member of an application: ``db = Needs("db")`` in its class makes
    ``self.db`` that service.

    The service is the child of that name of the nearest supervisor above the member, or else the
    child registered on the node. An application is refused before any start if neither its parts
    nor its dependencies provide the service.
    """

    def __init__(self, service: str) -> None:
        self.service: str = check_name(service)
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
        # Cache it in the instance, where attribute lookup finds it before this descriptor.
        member.__dict__[self._attribute] = found
        return found


class Application:
    """A named supervision tree that is started and stopped as a unit.

    Make an instance from its parts, or write a subclass with the callbacks it needs; each may be
    ``def`` or ``async def``.
    """

    def __init__(
        self,
        name: str,
        children: SupervisorSpec | Sequence[ChildSpec],
        *,
        depends_on: Sequence[str] = (),
        mode: RestartPolicy = RestartPolicy.TEMPORARY,
        env: Mapping[str, object] | None = None,
        provides: Sequence[str] = (),
        needs: Sequence[str] = (),
        shutdown: float = inf,
    ) -> None:
        """Describe an application.

        Args:
            name: its name, and that of its supervisor on the node.
            children: its parts, in start order; a list, or a whole ``SupervisorSpec``.
            depends_on: the applications that must run before this application starts.
            mode: the effect of its end, unless the end was requested. TEMPORARY: none. TRANSIENT: a
                failure stops the node. PERMANENT: any end stops the node.
            env: settings that override the node's, for all its processes.
            provides: services of children that are decided at run time and so are not in
                ``children``.
            needs: services that such children use.
            shutdown: seconds that stopping may take before the remaining processes are killed.

        Raises:
            BadInputError: a value is invalid.
        """
        self.name: str = check_name(name)
        label = f"Application({name!r}, "
        try:
            self.spec: SupervisorSpec = read_spec(children)
        except BadInputError as error:
            raise BadInputError(f"{label}children)", error.given, error.allowed) from None
        self.depends_on: tuple[str, ...] = _names(f"{label}depends_on=…)", depends_on)
        self.provides: tuple[str, ...] = _names(f"{label}provides=…)", provides)
        self.needs: tuple[str, ...] = _names(f"{label}needs=…)", needs)
        if not isinstance(mode, RestartPolicy):
            raise BadInputError(f"{label}mode=…)", mode, "PERMANENT, TRANSIENT or TEMPORARY")
        self.mode = mode
        if env is not None and not isinstance(env, Mapping):
            raise BadInputError(f"{label}env=…)", env, "a mapping from names to values")
        self.env: dict[str, object] = dict(env or {})
        check_number(f"{label}shutdown=…)", shutdown, least=0.0)
        self.shutdown = shutdown

    def __repr__(self) -> str:
        return f"<Application {self.name!r}>"

    def before_start(self, node: "Node") -> Awaitable[None] | None:
        """Called after the start of its dependencies and before any of its parts starts. If it
        raises, the application is not started.
        """
        return None

    def after_start(self, node: "Node") -> Awaitable[None] | None:
        """Called when all its parts are ready. If it raises, all its parts are stopped."""
        return None

    def before_stop(self, node: "Node", reason: Reason) -> Awaitable[None] | None:
        """Called before its parts are stopped, for any cause."""
        return None

    def after_stop(self, node: "Node", reason: Reason) -> Awaitable[None] | None:
        """Called after its parts have stopped; also after a failed start, if ``before_start`` had
        succeeded.
        """
        return None


def start_order(applications: Iterable[Application]) -> list[Application]:
    """The start order of applications: each after its dependencies, otherwise as given.

    Raises:
        BadInputError: the applications do not fit together; nothing is changed.
    """
    table: dict[str, Application] = {}
    for application in applications:
        if application.name in table:
            raise BadInputError(
                "applications",
                application.name,
                "a different name for each: two applications have this name",
            )
        table[application.name] = application
    for application in table.values():
        for name in application.depends_on:
            if name not in table:
                others = sorted(table.keys() - {application.name})
                raise BadInputError(
                    f"a dependency of {application.name!r}",
                    name,
                    f"an application that is loaded: {', '.join(others) or 'there is no other'}",
                )
    order: list[Application] = []
    for application in table.values():
        _visit(application, table, order, ())
    _check_names(table)
    for application in table.values():
        _check_needs(application, table)
    return order


def _visit(
    application: Application,
    table: Mapping[str, Application],
    order: list[Application],
    path: tuple[str, ...],
) -> None:
    if application in order:
        return
    if application.name in path:
        ring = " -> ".join((*path[path.index(application.name) :], application.name))
        raise BadInputError(
            "applications that depend on one another", ring, "an order in which they can be started"
        )
    for name in application.depends_on:
        _visit(table[name], table, order, (*path, application.name))
    order.append(application)


def _check_names(table: Mapping[str, Application]) -> None:
    """Check that no two processes of all applications are registered under the same name."""
    holders: dict[str, str] = {name: f"the application {name!r} itself" for name in table}
    for application in table.values():
        for child, _, is_registered in _members(application.spec, frozenset()):
            if not is_registered:
                continue
            here = f"a child of {application.name!r}"
            if child.name in holders:
                raise BadInputError(
                    f"{here}",
                    child.name,
                    f"a name that is free on the node: {holders[child.name]} has it; "
                    "ChildSpec(…, register=False) keeps the name of a child to its supervisor",
                )
            holders[child.name] = here


def _check_needs(application: Application, table: Mapping[str, Application]) -> None:
    offered = set[str]()
    for name in {application.name, *_all_dependencies(application, table)}:
        offered.update(table[name].provides)
        offered.update(
            child.name
            for child, _, is_registered in _members(table[name].spec, frozenset())
            if is_registered
        )
    wanted = [(application.name, name, frozenset[str]()) for name in application.needs]
    for child, scope, _ in _members(application.spec, frozenset()):
        member = f"{child.name} of {application.name}"
        wanted += [(member, name, scope) for name in _needs_of(child)]
    for member, name, scope in wanted:
        if name not in offered and name not in scope:
            raise BadInputError(
                f"a service that {member} needs",
                name,
                f"a service of {application.name!r} or of its dependencies: "
                f"{', '.join(sorted(offered | scope)) or 'none'}; "
                "name the application that has it in depends_on, or the service in provides",
            )


def _all_dependencies(application: Application, table: Mapping[str, Application]) -> set[str]:
    found: set[str] = set()
    waiting = list(application.depends_on)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(table[name].depends_on)
    return found


def _members(
    spec: SupervisorSpec, above: frozenset[str]
) -> Iterator[tuple[ChildSpec, frozenset[str], bool]]:
    """All children known before the start, each with the names that supervisors above it know, and
    whether it is registered.
    """
    is_template = spec.strategy is Strategy.SIMPLE_ONE_FOR_ONE
    # Children made from a template have other names at run time, so a template provides nothing;
    # but its needs are known.
    scope = above if is_template else above | {child.name for child in spec.children}
    for child in spec.children:
        yield child, scope, child.register and not is_template
        inner = _inner(child)
        if inner is not None:
            yield from _members(inner, scope)


def _inner(child: ChildSpec) -> SupervisorSpec | None:
    """The children of a supervisor, if its spec contains them and does not compute them at run
    time.
    """
    from ..supervision.pool import (  # noqa: PLC0415 - loaded with the node
        Pool,
        PoolSpec,
    )

    cls, given = child.cls, child.args[0] if child.args else None
    if issubclass(cls, Pool):
        if cls.workers is Pool.workers and isinstance(given, PoolSpec):
            return SupervisorSpec([given.worker], Strategy.SIMPLE_ONE_FOR_ONE)
        return None
    is_plain = (
        issubclass(cls, Supervisor)
        and cls.children is Supervisor.children
        and cls.__init__ is Supervisor.__init__
    )
    return read_spec(given) if is_plain and given is not None else None


def _needs_of(child: ChildSpec) -> list[str]:
    return [
        value.service
        for base in child.cls.__mro__
        for value in vars(base).values()
        if isinstance(value, Needs)
    ]


def _names(label: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise BadInputError(label, given, f"a list of names, such as [{given!r}]")
    for name in given:
        if not isinstance(name, str) or not name:
            raise BadInputError(label, name, "names")
    return tuple(given)


show_public_names(__name__)
