"""`Receivers`: the receivers of a server's connections: the owner, a process, several processes in
turn, or an actor for each connection.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

from .._core.processes.process import Process
from .._core.processes.spawn import spawn_at_once, spawn_process
from .._core.verbs.behaviour import Behaviour, behaviour_of
from .._core.vocabulary.errors import BadInputError, BehaviourError, InitError
from .._core.vocabulary.ids import PID, Alias, Key, Name, Target
from .._core.vocabulary.options import DEFAULTS

if TYPE_CHECKING:
    from .._core.metas.meta import Meta

__all__ = [
    "Plan",
    "ReceiverOption",
    "Receivers",
    "check_receiver",
    "make_actor",
    "make_actor_at_once",
    "starts_at_once",
]

ReceiverOption = Target | Sequence[Target] | Callable[[], Behaviour] | None
"""The values of a server's ``receiver=``; None is the process that owns the server."""

Plan = tuple[Callable[[], Behaviour], type[Behaviour]]
"""A function that makes an actor, and the class of that actor."""

_TARGETS = (PID, Alias, Name, Key, str)


def check_receiver(receiver: object) -> Target | None:
    """Refuse a receiver that is not an address."""
    if receiver is not None and not isinstance(receiver, _TARGETS):
        raise BadInputError("receiver", receiver, "a PID, an Alias, a name, or None for the owner")
    return receiver


class Receivers:
    """Chooses a receiver for each connection; it stays the same for the connection's life."""

    def __init__(self, receiver: ReceiverOption) -> None:
        """Check the option.

        Raises:
            BadInputError: the value is neither an address nor a way to make an actor.
        """
        targets: Sequence[Target | None] = (None,)
        self._factory: Callable[[], Behaviour] | None = None
        self.session_class: type | None = None
        """The class of all actors, unless a function chooses it."""
        if receiver is None:
            self._text = "owner"
        elif isinstance(receiver, _TARGETS):
            targets = [receiver]
            self._text = str(receiver)
        elif isinstance(receiver, Sequence):
            if not receiver:
                raise BadInputError("receiver", receiver, "at least one process")
            targets = [check_receiver(target) for target in receiver]
            self._text = ", ".join(map(str, receiver))
        elif callable(receiver):
            self._factory = receiver
            made = receiver.func if isinstance(receiver, partial) else receiver
            self._text = f"a {getattr(made, '__name__', repr(made))} for each"
            if isinstance(made, type):
                behaviour_of(made)
                self.session_class = made
        else:
            raise BadInputError(
                "receiver",
                receiver,
                "None for the owner, a PID or name, several of them, or a class or function that "
                "makes an actor for each connection",
            )
        self.makes_actors: bool = self._factory is not None
        """Whether each connection gets an actor of its own."""
        self.next: Callable[[], Target | None] = cycle(targets).__next__
        """The address for the next connection; None for the owner of that connection, or if it gets
        an actor.
        """

    def __str__(self) -> str:
        return self._text

    def plan_actor(self) -> Plan:
        """How to make the session of the next connection. Call it only if `makes_actors`. If the
        option is a function, it is called here.

        Raises:
            SpawnError: the function did not return an actor.
        """
        factory = self._factory
        assert factory is not None
        try:
            return factory, behaviour_of(factory)
        except BehaviourError:
            # A function: the actor that it makes tells the class.
            made = _make(factory)
            return (lambda: made), type(made)


async def make_actor(server: "Meta", plan: Plan) -> Process:
    """Spawn the session that is to own a connection: a child of the server's owner.

    Raises:
        SpawnError: the session could not be started.
    """
    owner = server.process
    factory, behaviour = plan
    return await spawn_process(owner.kernel, owner, factory, behaviour, (), DEFAULTS)


def starts_at_once(server: "Meta", plan: Plan) -> bool:
    """Whether the session starts without waiting."""
    callbacks = server.kernel.callbacks_of(plan[1])
    return "init" not in callbacks.asynchronous and not callbacks.supervises


def make_actor_at_once(
    server: "Meta", plan: Plan, leave: Callable[[Awaitable[None]], None]
) -> Process:
    """The same as :func:`make_actor` without waiting. If ``init`` fails, ``leave`` takes the
    cleanup.

    Raises:
        SpawnError: the session could not be started.
    """
    owner = server.process
    factory, behaviour = plan
    return spawn_at_once(owner.kernel, owner, behaviour, (), DEFAULTS, factory, leave)


def _make(factory: Callable[[], Behaviour]) -> Behaviour:
    made: object = None
    try:
        made = factory()
        if isinstance(made, Behaviour):
            return made
        raise BehaviourError("receiver()", made, "an instance of a subclass of Actor")
    except Exception as error:
        raise InitError(getattr(factory, "__name__", repr(factory)), error) from error
