"""`ChildSpec`, `SupervisorSpec` and their parts: dataclasses that validate themselves, so that a
mistake surfaces before any process starts.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import field, replace
from enum import Enum
from math import inf
from typing import Any, Final, TypedDict, TypeVarTuple, Unpack

from .._core.tables.child_slot import Decision, Fate, Redirect
from .._core.verbs.behaviour import Behaviour, behaviour_of, declared_class, made_by
from .._core.vocabulary.dispatchers import Dispatcher
from .._core.vocabulary.envelopes import Divert, Overflow, Priority
from .._core.vocabulary.errors import BadInputError, BehaviourError
from .._core.vocabulary.late_methods import dataclass
from .._core.vocabulary.options import Options, check_flag, check_name, check_number
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import Reason, is_failure

__all__ = [
    "AutoShutdown",
    "Backoff",
    "Budget",
    "ChildKeywords",
    "ChildSpec",
    "RestartPolicy",
    "Strategy",
    "SupervisorSpec",
    "WorkerKeywords",
]

Ts = TypeVarTuple("Ts")


class Strategy(Enum):
    """Which children restart when a child ends."""

    ONE_FOR_ONE = "one for one"
    """Only that child."""
    ALL_FOR_ONE = "all for one"
    """All children: the others are stopped, last first, and then all are started in order."""
    REST_FOR_ONE = "rest for one"
    """That child and the children after it."""
    SIMPLE_ONE_FOR_ONE = "simple one for one"
    """Only that child; ``start_child`` makes the children at run time, from a single template."""


class RestartPolicy(Enum):
    """Whether a child that ended by itself restarts."""

    PERMANENT = "permanent"
    """Always."""
    TRANSIENT = "transient"
    """After a failure: after every reason except ``Normal`` and ``Shutdown``."""
    TEMPORARY = "temporary"
    """Never, not even with its siblings."""

    ALWAYS = "permanent"  # noqa: PIE796 - another name of the same
    ON_FAILURE = "transient"  # noqa: PIE796
    NEVER = "temporary"  # noqa: PIE796

    def wants(self, reason: Reason) -> bool:
        """Return whether a child with this policy restarts after this reason."""
        return self is RestartPolicy.PERMANENT or (
            self is RestartPolicy.TRANSIENT and is_failure(reason)
        )


class AutoShutdown(Enum):
    """When a supervisor ends by itself, because children have ended for good."""

    NEVER = "never"
    """Never. No child may be ``significant``."""
    ANY_SIGNIFICANT = "any significant"
    """When a ``significant`` child has ended for good."""
    ALL_SIGNIFICANT = "all significant"
    """When the last of its ``significant`` children has ended for good."""
    LAST_CHILD = "last child"
    """When its last child has ended for good, or any ``significant`` child."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay before a restart: ``first`` seconds, then ``factor`` times the previous delay, up
    to ``ceiling``.
    """

    first: float
    ceiling: float
    factor: float = 2.0
    jitter: float = 0.0
    """Subtract a random share of the delay, at most this fraction (0 to 1), so that many children
    do not restart at once.
    """
    healthy: float | None = None
    """After a run of this many seconds the next delay is ``first`` again; None for ``ceiling``
    seconds.
    """
    until_started: bool = False
    """Try a start that fails again until it succeeds, the first start as well. The supervisor
    starts without the child, and does not count these tries as restarts. For a child that needs a
    device or a server which may be absent.
    """

    def __post_init__(self) -> None:
        check_number("Backoff(first)", self.first, least=0.0)
        check_number("Backoff(ceiling)", self.ceiling, least=self.first)
        check_number("Backoff(factor)", self.factor, least=1.0)
        check_number("Backoff(jitter)", self.jitter, least=0.0, most=1.0)
        if self.healthy is not None:
            check_number("Backoff(healthy)", self.healthy, least=0.0)
        check_flag("Backoff(until_started)", self.until_started)
        if self.until_started and not self.first:
            raise BadInputError(
                "Backoff(first)",
                self.first,
                "more than 0 with until_started=True: nothing else limits the tries",
            )

    def delay(self, tries: int, chance: float) -> float:
        """Seconds to wait after ``tries`` restarts in a row; ``chance`` is a random number from 0
        to 1.
        """
        try:
            delay = min(self.ceiling, self.first * self.factor**tries)
        except OverflowError:
            delay = self.ceiling if self.first else 0.0
        return delay * (1.0 - self.jitter * chance)

    def is_healthy(self, seconds: float) -> bool:
        """Return whether a child that ran for so many seconds starts again with the first delay."""
        return seconds >= (self.ceiling if self.healthy is None else self.healthy)


@dataclass(frozen=True, slots=True)
class Budget:
    """A child's own restart limit: more than ``restarts`` within ``period`` seconds disable the
    child, and its supervisor continues.
    """

    restarts: int
    period: float

    def __post_init__(self) -> None:
        check_number("Budget(restarts)", self.restarts, least=0, whole=True)
        check_number("Budget(period)", self.period, least=1e-6)


class WorkerKeywords(TypedDict, total=False):
    """The keywords that a pool passes to the ``spawn`` of its workers."""

    mailbox_size: int | None
    order: Callable[[Any], Any] | None
    priority: Priority
    init_timeout: float
    terminate_timeout: float
    env: Mapping[str, object] | None
    log_level: str | None
    dispatcher: Dispatcher


class ChildKeywords(WorkerKeywords, total=False):
    """The keywords that a :class:`ChildSpec` passes to ``spawn``."""

    overflow: Overflow | Divert


def _check_child_name(name: object) -> None:
    if isinstance(name, type):
        right = f"the name first: `ChildSpec({name.__name__.lower()!r}, {name.__name__})`"
        raise BadInputError("ChildSpec(name, behaviour)", name, right)
    check_name(name)


@dataclass(frozen=True, slots=True, init=False)
class ChildSpec:
    """A child: the behaviour to start, its name, and the reaction to its end.

    Args:
        name: the child's name in its supervisor; with ``register`` also the name of its process
            on the node.
        behaviour: its class, called with ``args`` for each start; or a function that chooses the
            behaviour at each start, as in ``def choose() -> Worker``.
        args: the arguments of the class, or of the function.
        restart: whether the child restarts, a `RestartPolicy`.
        shutdown: seconds the child has to stop before it is killed; 0 kills it at once,
            ``math.inf`` waits. 5 for actors, ``math.inf`` for supervisors and pipelines.
        backoff: the delay before a restart; None to restart at once.
        budget: its own limit on restarts, instead of the supervisor's.
        significant: its final end ends the supervisor.
        decide: maps an exception to RESUME, RESTART, STOP or ESCALATE; None to RESTART always.
        mailbox: the fate of messages still queued when the process ends: DEAD_LETTER, KEEP,
            DROP or ``Redirect(name)``.
        max_waiters: how many senders and callers may wait at once, through a service, for the
            restart.
        register: whether the process is registered under ``name``.
        options: further keywords of ``spawn``, such as ``mailbox_size``.

    Raises:
        BadInputError: a value is invalid.
        BehaviourError: ``behaviour`` is no class of behaviours, and no function that declares to
            return one.
    """

    name: str
    behaviour: Callable[..., Behaviour]
    args: tuple[Any, ...] = field(repr=False)
    restart: RestartPolicy
    shutdown: float
    backoff: Backoff | None
    budget: Budget | None
    significant: bool
    decide: Callable[[Exception], Decision] | None
    mailbox: Fate | Redirect
    max_waiters: int
    register: bool
    options: Options = field(repr=False)
    cls: type[Behaviour] = field(repr=False)
    is_chosen: bool = field(repr=False)

    def __init__(
        self,
        name: str,
        behaviour: Callable[[*Ts], Behaviour],
        *args: *Ts,
        restart: RestartPolicy = RestartPolicy.PERMANENT,
        shutdown: float | None = None,
        backoff: Backoff | None = None,
        budget: Budget | None = None,
        significant: bool = False,
        decide: Callable[[Exception], Decision] | None = None,
        mailbox: Fate | Redirect = Fate.DEAD_LETTER,
        max_waiters: int = 1000,
        register: bool = True,
        **options: Unpack[ChildKeywords],
    ) -> None:
        _check_child_name(name)
        try:
            declared = declared_class(behaviour)
            cls = declared or behaviour_of(behaviour)
        except BehaviourError as error:
            allowed = error.allowed
            if not isinstance(error.given, Behaviour):
                allowed += ", or a function that declares its class, as in `def choose() -> Worker`"
            raise BehaviourError(f"ChildSpec({name!r}, behaviour)", error.given, allowed) from None
        supervises = getattr(cls, "is_supervisor", False)
        if shutdown is None:
            shutdown = inf if supervises or cls.bounds_its_end else 5.0
        keywords: dict[str, Any] = {"init_timeout": inf} if supervises else {}
        if cls.bounds_its_end:
            keywords["terminate_timeout"] = inf
        keywords |= options
        unknown = keywords.keys() - _KEYWORDS
        if unknown:
            raise BadInputError(
                f"ChildSpec({name!r}, …, {min(unknown)}=…)",
                keywords[min(unknown)],
                f"one of {', '.join(sorted(_KEYWORDS | _OWN))}; arguments of the behaviour itself "
                f"are positional, or ChildSpec({name!r}, Behaviour.spec(key=value))",
            )
        values = {
            "name": name,
            "behaviour": behaviour,
            "args": args,
            "restart": restart,
            "shutdown": shutdown,
            "backoff": backoff,
            "budget": budget,
            "significant": significant,
            "decide": decide,
            "mailbox": mailbox,
            "max_waiters": max_waiters,
            "register": register,
            "options": Options(name=name if register else None, shutdown=shutdown, **keywords),
            "cls": cls,
            "is_chosen": declared is not None,
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)
        self._check()

    @classmethod
    def template(
        cls, name: str, behaviour: Callable[..., Behaviour], *args: Any, **keywords: Any
    ) -> "ChildSpec":
        """Describe the template that SIMPLE_ONE_FOR_ONE makes children from; ``start_child``
        appends its arguments to ``args``.

        Takes the keywords of :class:`ChildSpec`.
        """
        given: Any = behaviour
        return cls(name, given, *args, **keywords)

    def choose(
        self, args: tuple[object, ...]
    ) -> tuple[Callable[..., Behaviour], type[Behaviour], tuple[object, ...]]:
        """Have the function choose, for a start with ``args``. Returns the factory of the
        behaviour, its class and its arguments.
        """
        made = made_by(self.behaviour, args, self.cls)
        return lambda: made, type(made), ()

    def named(self, name: str) -> "ChildSpec":
        """The same child under another name."""
        other = copy(self)
        object.__setattr__(other, "name", check_name(name))
        object.__setattr__(
            other, "options", replace(self.options, name=name if self.register else None)
        )
        return other

    def upgraded(self, behaviour: Callable[..., Behaviour], args: tuple[Any, ...]) -> "ChildSpec":
        """The same child with another class."""
        other = copy(self)
        for key, value in (
            ("behaviour", behaviour),
            ("args", args),
            ("cls", behaviour_of(behaviour)),
            ("is_chosen", False),
        ):
            object.__setattr__(other, key, value)
        return other

    def _check(self) -> None:
        allowed: list[tuple[str, bool, str]] = [
            (
                "restart",
                isinstance(self.restart, RestartPolicy),
                "RestartPolicy.PERMANENT, TRANSIENT or TEMPORARY",
            ),
            (
                "backoff",
                isinstance(self.backoff, Backoff | None),
                "Backoff(first, ceiling, …), or None",
            ),
            ("budget", isinstance(self.budget, Budget | None), "Budget(restarts, period), or None"),
            ("significant", isinstance(self.significant, bool), "True or False"),
            ("register", isinstance(self.register, bool), "True or False"),
            (
                "decide",
                self.decide is None or callable(self.decide),
                "a function from an exception to a decision",
            ),
            (
                "mailbox",
                isinstance(self.mailbox, Fate | Redirect),
                "Fate.DEAD_LETTER, KEEP, DROP or Redirect(name)",
            ),
            (
                "significant",
                not (self.significant and self.restart is RestartPolicy.PERMANENT),
                "False for a PERMANENT child: it never ends for good, so its end cannot end the "
                "supervisor; make it TRANSIENT or TEMPORARY",
            ),
        ]
        for field_name, fits, hint in allowed:
            if not fits:
                raise BadInputError(
                    f"ChildSpec({self.name!r}, {field_name}=…)", getattr(self, field_name), hint
                )
        check_number(
            f"ChildSpec({self.name!r}, max_waiters=…)", self.max_waiters, least=0, whole=True
        )


@dataclass(frozen=True, slots=True)
class SupervisorSpec:
    """The children of a supervisor, and their common settings."""

    children: Sequence[ChildSpec] = ()
    """In start order; for SIMPLE_ONE_FOR_ONE the single template."""
    strategy: Strategy = Strategy.ONE_FOR_ONE
    intensity: int = 3
    """More than this many restarts within ``period`` seconds end the supervisor."""
    period: float = 5.0
    auto_shutdown: AutoShutdown | bool = AutoShutdown.LAST_CHILD
    """When the supervisor ends by itself. True is LAST_CHILD, False is ANY_SIGNIFICANT. With
    SIMPLE_ONE_FOR_ONE it never does.
    """
    max_children: int | None = None
    """How many children it may have, including those that restart; None for no limit. Beyond it
    ``start_child`` of a template and ``add_child`` raise a ``ChildError`` of kind ``too many``.
    """

    def __post_init__(self) -> None:
        if isinstance(self.children, str) or not isinstance(self.children, Sequence):
            hint = "a list of ChildSpec"
            if isinstance(self.children, ChildSpec):
                hint += ": write `[ChildSpec(…)]`"
            raise BadInputError("SupervisorSpec(children)", self.children, hint)
        object.__setattr__(self, "children", tuple(self.children))
        if not isinstance(self.strategy, Strategy):
            raise BadInputError(
                "SupervisorSpec(strategy)", self.strategy, ", ".join(map(str, Strategy))
            )
        check_number("SupervisorSpec(intensity)", self.intensity, least=0, whole=True)
        check_number("SupervisorSpec(period)", self.period, least=1e-6)
        if isinstance(self.auto_shutdown, bool):
            chosen = AutoShutdown.LAST_CHILD if self.auto_shutdown else AutoShutdown.ANY_SIGNIFICANT
            object.__setattr__(self, "auto_shutdown", chosen)
        elif not isinstance(self.auto_shutdown, AutoShutdown):
            raise BadInputError(
                "SupervisorSpec(auto_shutdown)",
                self.auto_shutdown,
                f"{', '.join(f'AutoShutdown.{each.name}' for each in AutoShutdown)}, True or False",
            )
        if self.max_children is not None:
            check_number("SupervisorSpec(max_children)", self.max_children, least=1, whole=True)
            if (
                self.strategy is not Strategy.SIMPLE_ONE_FOR_ONE
                and len(self.children) > self.max_children
            ):
                raise BadInputError(
                    "SupervisorSpec(max_children)",
                    self.max_children,
                    f"at least {len(self.children)}, the number of its first children",
                )
        seen: set[str] = set()
        for child in self.children:
            if not isinstance(child, ChildSpec):
                raise BadInputError(
                    "SupervisorSpec(children)",
                    child,
                    "a ChildSpec, such as ChildSpec('db', Database)",
                )
            if child.name in seen:
                raise BadInputError(
                    "SupervisorSpec(children)",
                    child.name,
                    "a different name for each child: two children have this name",
                )
            seen.add(child.name)
            self.check_significance(child)
        if self.strategy is Strategy.SIMPLE_ONE_FOR_ONE:
            self._check_template()

    def check_significance(self, child: ChildSpec) -> None:
        """Check that the end of a significant child has an effect.

        Raises:
            BadInputError: the child is significant, and the supervisor never ends by itself.
        """
        if child.significant and self.auto_shutdown is AutoShutdown.NEVER:
            raise BadInputError(
                f"ChildSpec({child.name!r}, significant=…)",
                True,
                "False under a supervisor with AutoShutdown.NEVER; or choose ANY_SIGNIFICANT or "
                "ALL_SIGNIFICANT there",
            )

    def _check_template(self) -> None:
        if len(self.children) != 1:
            raise BadInputError(
                "SupervisorSpec(children) with SIMPLE_ONE_FOR_ONE",
                [child.name for child in self.children],
                "exactly one ChildSpec: the template that start_child makes children from",
            )
        if self.children[0].significant:
            raise BadInputError(
                "SupervisorSpec(children) with SIMPLE_ONE_FOR_ONE",
                "significant=True",
                "a template that is not significant",
            )


_KEYWORDS: Final = ChildKeywords.__optional_keys__
_OWN: Final = frozenset(ChildSpec.__slots__) - {
    "name",
    "behaviour",
    "args",
    "options",
    "cls",
    "is_chosen",
}


show_public_names(__name__)
