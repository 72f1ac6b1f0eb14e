"""`Entity`: an actor with a key whose state survives."""

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from types import CoroutineType
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
from .._core.verbs.common import NotSpawned, check_caller, check_error
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.errors import BadInputError, NotAllowedError, Reject
from .._core.vocabulary.ids import EventName, Ref, Target
from .._core.vocabulary.messages import NO_REPLY
from .._core.vocabulary.options import check_name, check_number
from .._core.vocabulary.public_names import show_public_names
from ..actor import Actor
from ..entity_handles import EntityHandle, Once, Post
from .activation import INTERNAL, Activation
from .errors import StateTypeError
from .state_types import StateType

__all__ = ["Entity", "EntityTimer"]

S = TypeVar("S")

_WRAPPED: Final = "__stores_changes__"


class EntityTimer:
    """A message that an entity will send to an entity, also after a restart."""

    __slots__ = ("_entity", "name")

    def __init__(self, entity: "Entity[Any]", name: str) -> None:
        self._entity = entity
        self.name = name

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
    """The name of the kind in the store: the name of the class, unless the class sets another."""
    __state_type__: ClassVar[StateType]
    state: S
    """The state. Change it in callbacks."""

    _activation: Activation = cast(
        Activation,
        NotSpawned(
            "an entity is started by its keeper: write `node.entity(Account, key)`, and call it"
        ),
    )

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "kind" not in vars(cls):
            cls.kind = cls.__name__
        for base in getattr(cls, "__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Entity):
                (state,) = get_args(base)
                if not isinstance(state, TypeVar):
                    cls.__state_type__ = StateType(state)
        for name, wrap in (("handle_message", _storing_messages), ("handle_call", _storing_calls)):
            own = getattr(cls, name)
            setattr(cls, name, wrap(own, inspect.iscoroutinefunction(own)))
        for name in ("handle_response", "handle_event"):
            own = vars(cls).get(name)
            if own is not None:
                setattr(cls, name, _storing(own, inspect.iscoroutinefunction(own)))

    def begin(self, activation: Activation) -> None:
        """Called by the keeper before ``__init__``."""
        self._activation = activation
        self.put_state(activation.become(self))

    def put_state(self, state: S) -> None:
        """Called by the framework: take another state, such as that of before."""
        self.state = state

    @property
    def key(self) -> str:
        """The key of this entity."""
        return self._activation.address.key

    def delete(self) -> None:
        """Delete this entity with the commit of this callback: its state, its timers and jobs, and
        the ids of its commands. Messages to other entities that it owes are still delivered. The
        next message finds a new entity.
        """
        self._in_callback("delete()").delete()

    # -- verbs that wait for the commit ------------------------------------------------------------

    def send(
        self, to: Target | EntityHandle, message: object, *, priority: Priority | None = None
    ) -> bool:
        """Send a message when this callback is stored. A message to an entity is stored with it:
        it takes effect there once, also after crashes. A message to another process may be lost in
        a crash.
        """
        if isinstance(to, EntityHandle):
            self._in_callback("send(entity, …)")
            self._activation.owe(to.address, message)
            return True
        self._activation.leave(super().send, to, message)
        return True

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
        """
        if not isinstance(to, EntityHandle):
            if name:
                raise BadInputError("send_after(name)", name, "for messages to entities only")
            return super().send_after(delay, to, message, priority=priority)
        check_number("delay", delay, least=0.0)
        if name:
            check_name(name)
        activation = self._activation
        self._in_callback("send_after(entity, …)")
        due = activation.keeping.now() + delay
        return EntityTimer(self, activation.owe_timer(to.address, message, name, due))

    def cancel_timer(self, name: str) -> None:
        """Cancel a stored timer by its name, with the commit of this callback."""
        self._in_callback("cancel_timer(name)").cancel(name)

    def reply(self, caller: Caller, value: object) -> bool:
        """Answer a deferred call when this callback is stored."""
        return self._activation.reply(check_caller(caller), value, None)

    def reply_error(self, caller: Caller, error: BaseException) -> bool:
        """Answer a deferred call with an exception when this callback is stored."""
        return self._activation.reply(check_caller(caller), None, check_error(error))

    def publish(self, event: str | EventName, message: object, *, token: Ref | None = None) -> int:
        """Publish an event when this callback is stored. Returns 0: the receivers are not known
        yet.
        """
        self._activation.leave(lambda: super(Entity, self).publish(event, message, token=token))
        return 0

    def call(
        self,
        to: Target | EntityHandle,
        request: Any,
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
        to: Target | EntityHandle,
        request: Any,
        timeout: float | None,
        priority: Priority | None,
    ) -> Any:
        await self._activation.wait_stored()
        if isinstance(to, EntityHandle):
            chosen = self._process.priority if priority is None else priority
            return await to.call(request, timeout=timeout, priority=chosen)
        return await super().call(to, request, timeout=timeout, priority=priority)

    def _in_callback(self, verb: str) -> Any:
        changes = self._activation.changes
        if changes is None:
            raise NotAllowedError(
                f"self.{verb} belongs to the commit of a callback: use it in handle_message, "
                "handle_call, an exposed method, handle_response or handle_event"
            )
        return changes

    def _refuse(self, verb: str) -> NoReturn:
        raise NotAllowedError(
            f"an entity has no {verb}: it may sleep at any time. Let an ordinary actor own what "
            "lives longer than a callback, and send it messages"
        )

    if not TYPE_CHECKING:  # with the signatures of an actor, of which an entity is a kind

        def start_task(self, *_args: Any, **_kwargs: Any) -> NoReturn:
            """Not for entities."""
            self._refuse("background tasks")

        async def spawn(self, *_args: Any, **_kwargs: Any) -> NoReturn:
            """Not for entities."""
            self._refuse("children")

        async def spawn_meta(self, *_args: Any, **_kwargs: Any) -> NoReturn:
            """Not for entities."""
            self._refuse("meta-processes")

        def send_every(self, *_args: Any, **_kwargs: Any) -> NoReturn:
            """Not for entities: write ``send_after`` again in the callback."""
            self._refuse("periodic timers")


# -- callbacks that are stored ---------------------------------------------------------------------


def _storing_messages(own: Any, is_async: bool) -> Any:
    @wraps(own)
    def handle_message(self: Entity[Any], message: Any, sender: Any) -> Any:
        activation = self._activation
        if activation.changes is not None:
            return own(self, message, sender)  # super().handle_message(…)
        if type(message) in INTERNAL:
            arrived = activation.arrive(message)
            if arrived is None:
                return None
            message, sender = arrived
        else:
            activation.begin()
        try:
            result = own(self, message, sender)
        except BaseException:
            activation.crash()
            raise
        if type(result) is CoroutineType:
            return _finish_later(activation, result)
        activation.finish()
        return result

    return _marked(_as_async(handle_message) if is_async else handle_message, own)


async def _finish_later(activation: Activation, running: Coroutine[Any, Any, Any]) -> None:
    try:
        await running
    except BaseException:
        activation.crash()
        raise
    activation.finish()


def _storing_calls(own: Any, is_async: bool) -> Any:
    @wraps(own)
    def handle_call(self: Entity[Any], request: Any, caller: Caller) -> Any:
        activation = self._activation
        if activation.changes is not None:
            return own(self, request, caller)  # super().handle_call(…)
        once = None
        if type(request) is Once:
            once, request = request.id, request.request
            if activation.answer_of(once, caller):
                return NO_REPLY
        activation.begin()
        try:
            if type(request) is Post:
                activation.post(request)
                result = None
            else:
                result = own(self, request, caller)
        except Reject as rejection:
            return activation.refuse_call(caller, rejection)
        except BadInputError as error:
            if type(request) is not Post:
                activation.crash()
                raise
            return activation.refuse_call(caller, Reject(error))
        except BaseException:
            activation.crash()
            raise
        if type(result) is CoroutineType:
            return _answer_later(activation, result, caller, once)
        return activation.end_call(caller, result, once)

    return _marked(_as_async(handle_call) if is_async else handle_call, own)


async def _answer_later(
    activation: Activation, running: Coroutine[Any, Any, Any], caller: Caller, once: str | None
) -> object:
    try:
        result = await running
    except Reject as rejection:
        return activation.refuse_call(caller, rejection)
    except BaseException:
        activation.crash()
        raise
    return activation.end_call(caller, result, once)


def _storing(own: Any, is_async: bool) -> Any:
    @wraps(own)
    def handle(self: Entity[Any], *args: Any) -> Any:
        activation = self._activation
        if activation.changes is not None:
            return own(self, *args)
        activation.begin()
        try:
            result = own(self, *args)
        except BaseException:
            activation.crash()
            raise
        if type(result) is CoroutineType:
            return _finish_later(activation, result)
        activation.finish()
        return result

    return _marked(_as_async(handle) if is_async else handle, own)


def _as_async(function: Callable[..., Any]) -> Any:
    @wraps(function)
    async def run(*args: Any) -> Any:
        result = function(*args)
        return await result if isinstance(result, CoroutineType) else result

    return run


def _marked(storing: Any, own: Any) -> Any:
    setattr(storing, _WRAPPED, own)
    # `wraps` has copied the mark of a default callback, and this is none.
    storing.__dict__.pop("__is_default__", None)
    storing.__dict__.pop("__wrapped__", None)
    return storing


def state_type_of(kind: object) -> StateType:
    """The type of the states of a kind.

    Raises:
        StateTypeError: it is no class of entities, or its state has no class.
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
