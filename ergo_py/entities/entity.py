"""`Entity`: an actor with a key whose state survives."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    NoReturn,
    TypeVar,
    cast,
    get_args,
    get_origin,
)

from .._core.tables.pending_calls import Caller
from .._core.verbs.common import (
    NotSpawned,
    check_caller,
    check_error,
    check_priority,
    refused_verb,
)
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.errors import BadInputError, NotAllowedError
from .._core.vocabulary.ids import PID, Alias, EventName, Ref, Target
from .._core.vocabulary.messages import NO_REPLY
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import Normal, as_reason
from ..actor import Actor
from ..entity_handles import EntityHandle, Once, check_kind, check_stored
from ..service import Service
from .activations.activation import Activation
from .activations.held_handles import HeldEntity, HeldService, no_request
from .errors import StateTypeError
from .states.state_type import StateType
from .stored_callbacks import store_callbacks

__all__ = ["Entity", "EntityTimer"]

S = TypeVar("S")


_LAST: Final = 253_402_300_799.0
"""The last moment of the year 9999: a date has no later year."""
_OWNER = "let an ordinary actor own what lives longer than a callback, and send it messages"


def _refused(name: str, instead: str = _OWNER) -> Callable[..., NoReturn]:
    """A verb that entities do not have."""
    return refused_verb(f"an entity has no {name}: it may sleep at any time; {instead}")


class EntityTimer:
    """A message that an entity will send to an entity, also after a restart."""

    __slots__ = ("_entity", "name")

    def __init__(self, entity: "Entity[Any]", name: str) -> None:
        self._entity = entity
        self.name: str = name

    def cancel(self) -> None:
        """Cancel the timer, with the commit of the callback in progress."""
        self._entity.cancel_timer(self.name)

    def __repr__(self) -> str:
        return f"<EntityTimer {self.name!r}>"


class Entity(Actor, Generic[S]):
    """An actor with a kind and a key. It exists always: its first message wakes it, and it sleeps
    when it is idle.

    ``self.state`` at the end of each callback is what is stored. Replies and messages leave when
    it is on disk. A `Reject` or a crash changes nothing.

    For example::

        from dataclasses import dataclass

        from ergo_py import exposed
        from ergo_py.entities import Entity

        @dataclass
        class Balance:
            amount: int = 0

        class Account(Entity[Balance]):
            @exposed
            def deposit(self, amount: int) -> int:
                self.state.amount += amount
                return self.state.amount

    The class of the state is a dataclass, or a ``msgspec.Struct``, with a default for every field.
    """

    kind: ClassVar[str]
    """The name of the kind in the store: the name of the class, unless the class sets another. A
    text of 1 to 200 characters without slashes, zeros and surrogates.
    """
    __state_type__: ClassVar[StateType]
    state: S
    """The state. Change it in callbacks."""

    _activation: Activation = cast(
        Activation,
        NotSpawned(
            "an entity is started by its keeper: write `node.entity(Account, key)`, and call it"
        ),
    )

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        cls.kind = check_kind(cls, vars(cls).get("kind", cls.__name__))
        for base in getattr(cls, "__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Entity):
                (state,) = get_args(base)
                if not isinstance(state, TypeVar):
                    cls.__state_type__ = StateType(state)
        store_callbacks(cls)

    def begin(self, activation: Activation) -> None:
        """Called by the keeper before ``__init__``."""
        self._activation = activation
        self.put_state(cast(S, activation.become(self)))

    def put_state(self, state: S) -> None:
        """Called by the framework: take another state, such as that of before."""
        self.state = state

    @property
    def key(self) -> str:
        """The key of this entity."""
        return self._activation.address.key

    def delete(self) -> None:
        """Delete this entity with the commit of this callback: its state, its jobs, the ids of its
        commands, and its timers, also those to other entities, and also jobs and timers that this
        callback makes later. Messages to other entities that it owes are still delivered. The next
        message finds a new entity. A command that deletes keeps its own id: the row goes when that
        is forgotten.
        """
        self._activation.in_callback("delete()").delete()

    # -- verbs that wait for the commit ------------------------------------------------------------

    def send(
        self, to: Target | Service, message: object, *, priority: Priority | None = None
    ) -> bool:
        """Send a message when this callback is stored. A message to an entity is stored with it:
        it takes effect there once, also after crashes. A message to another process may be lost in
        a crash.
        """
        if isinstance(to, EntityHandle):
            if priority is not None:
                raise BadInputError(
                    "send(entity, priority)", priority, "none: messages to an entity keep order"
                )
            changes = self._activation.in_callback("send(entity, …)")
            self._activation.outbox.owe(changes, to.address, message)
            return True
        chosen = self._chosen(priority)
        if isinstance(to, HeldService):
            return to.send(message, priority=chosen)
        send = to.send if isinstance(to, Service) else partial(super().send, to)
        self._activation.leave(partial(send, message, priority=chosen))
        return True

    def _chosen(self, priority: Priority | None) -> Priority:
        return self._process.priority if priority is None else check_priority(priority)

    async def send_wait(
        self,
        to: Target,
        message: object,
        *,
        priority: Priority | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Send a message when all earlier callbacks are stored, and wait for room. It is not part
        of a commit: if this callback fails, it may be repeated.
        """
        await self._activation.output.wait_stored()
        return await super().send_wait(to, message, priority=priority, timeout=timeout)

    def forward(
        self,
        to: Target,
        message: object,
        origin: PID | Alias | Caller,
        *,
        priority: Priority | None = None,
    ) -> Any:
        """Forward a message, or a call, when this callback is stored."""
        if not isinstance(origin, PID | Alias | Caller):
            raise BadInputError(
                "origin", origin, "the sender of a message of a process, or the Caller of a call"
            )
        if isinstance(origin, Caller) and isinstance(origin.request, Once):
            raise NotAllowedError(
                "the answer to a command with an id is stored by the entity that has the id; write "
                "`return await self.call(to, request)` instead of forward"
            )
        chosen = self._chosen(priority)
        given: Any = origin  # either of both overloads
        self._activation.leave(partial(super().forward, to, message, given, priority=chosen))
        return NO_REPLY if isinstance(origin, Caller) else True

    def send_exit(self, to: Target, reason: object) -> bool:
        """Ask a process to end when this callback is stored."""
        self._activation.leave(partial(super().send_exit, to, as_reason(reason)))
        return True

    def kill(self, to: Target) -> bool:
        """Kill a process when this callback is stored."""
        self._activation.leave(partial(super().kill, to))
        return True

    def stop(self, reason: object = Normal()) -> None:
        """End the process of this entity when this callback is stored. The next message wakes the
        entity again.
        """
        self._activation.leave(partial(self._activation.stop, as_reason(reason)))

    async def inspect_meta(self, alias: Alias, *items: str, timeout: float = 5.0) -> dict[str, str]:
        """Inspect a meta-process when all earlier callbacks are stored."""
        await self._activation.output.wait_stored()
        return await super().inspect_meta(alias, *items, timeout=timeout)

    def service(self, name: str, node: str = "") -> Service:
        """Return the address of a supervised child. Its messages leave when this callback is
        stored, and its calls wait for earlier callbacks.
        """
        return HeldService(super().service(name, node), self._activation)

    def entity(self, kind: type[Actor], key: str) -> EntityHandle:
        """Return the address of an entity. Its messages are stored with this callback, and its
        calls wait for earlier callbacks.
        """
        return HeldEntity(super().entity(kind, key), self._activation)

    def send_after(
        self,
        delay: float,
        to: Target | EntityHandle,
        message: object,
        *,
        priority: Priority | None = None,
        name: str = "",
    ) -> Any:
        """Send a message ``delay`` seconds from now. To an entity, itself included, the timer is
        stored with this callback and survives restarts; a timer of the same ``name`` is replaced.

        Raises:
            BadInputError: the delay is negative, not a number, or ends after the year 9999; or the
                name is not a text that can be stored.
            NotAllowedError: the target is no entity.
        """
        if not isinstance(to, EntityHandle):
            raise NotAllowedError(
                "an entity has no timers to other processes: it may sleep before. Write `self."
                "send_after(delay, self.entity(Kind, self.key), message)`, which survives, and "
                "send in its callback"
            )
        check_number("delay", delay, least=0.0)
        if name != "":
            name = check_stored("name", name)
        activation = self._activation
        changes = activation.in_callback("send_after(entity, …)")
        # A subclass of float has no encoding.
        due = activation.keeping.now() + float(delay)
        if due > _LAST:
            raise BadInputError(
                "delay", delay, "a number of seconds that end before the year 10000"
            )
        chosen = activation.outbox.owe_timer(changes, to.address, message, name, due)
        return EntityTimer(self, chosen)

    def cancel_timer(self, name: str) -> None:
        """Cancel a stored timer by its name, with the commit of this callback."""
        self._activation.in_callback("cancel_timer(name)").cancel(check_stored("name", name))

    def reply(self, caller: Caller, value: object) -> bool:
        """Answer a deferred call when this callback is stored."""
        return self._activation.commands.reply(check_caller(caller), value, None)

    def reply_error(self, caller: Caller, error: BaseException) -> bool:
        """Answer a deferred call with an exception when this callback is stored. A command with an
        id is refused by this, and its id is free again.
        """
        return self._activation.commands.reply(check_caller(caller), None, check_error(error))

    def publish(self, event: str | EventName, message: object, *, token: Ref | None = None) -> int:
        """Publish an event when this callback is stored. Returns 0: the receivers are not known
        yet.
        """
        self._activation.leave(partial(super().publish, event, message, token=token))
        return 0

    def call(
        self,
        to: Target | Service,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Call a process when all earlier callbacks are stored. The call is not part of a commit:
        if this callback fails, it may be repeated.
        """
        return self._call(to, request, timeout, priority)

    async def _call(
        self,
        to: Target | Service,
        request: object,
        timeout: float | None,
        priority: Priority | None,
    ) -> Any:
        await self._activation.output.wait_stored()
        if isinstance(to, Service):
            chosen = self._chosen(priority)
            return await to.call(request, timeout=timeout, priority=chosen)
        return await super().call(to, request, timeout=timeout, priority=priority)

    if not TYPE_CHECKING:  # with the signatures of an actor, of which an entity is a kind
        create_alias = _refused("aliases", "its address is `self.entity(Kind, self.key)`")
        delete_alias = _refused("aliases", "its address is `self.entity(Kind, self.key)`")
        demonitor = _refused("monitors")
        link = _refused("links")
        map_stream = _refused("children", "`await` the functions in an async callback")
        monitor = _refused("monitors")
        register = _refused("registered name", "its address is `self.entity(Kind, self.key)`")
        register_event = _refused("events of its own")
        run_task = _refused("children", "`await` the function in an async callback")
        set_idle_timeout = _refused(
            "idle timeout", "`Entities(idle=…)` lets it sleep; for work write `send_after`"
        )
        send_every = _refused(
            "periodic timers", "write `send_after(delay, entity, …)` again in its callback"
        )
        spawn = _refused("children")
        spawn_meta = _refused("meta-processes")
        start_task = _refused("background tasks")
        stream = _refused("replies in parts", "answer with a page, and let the caller ask again")
        subscribe = _refused("subscriptions")
        unlink = _refused("links")
        unregister = _refused("registered name", "its address is `self.entity(Kind, self.key)`")
        unregister_event = _refused("events of its own")
        unsubscribe = _refused("subscriptions")

        def request(self, *_args: object, **_kwargs: object) -> NoReturn:
            """Not for entities."""
            no_request()


def state_type_of(kind: object) -> StateType:
    """The type of the states of a kind.

    Raises:
        StateError: of kind ``"type"``; it is no class of entities, or its state has no class.
    """
    if not isinstance(kind, type) or not issubclass(kind, Entity):
        raise BadInputError("Entities(kinds)", kind, "classes of entities: [Account]")
    found: StateType | None = getattr(kind, "__state_type__", None)
    if found is None:
        raise StateTypeError(
            f"{kind.__name__} does not name the class of its state: write `class {kind.__name__}("
            "Entity[Balance])` with a dataclass Balance"
        )
    return found


show_public_names(__name__)
