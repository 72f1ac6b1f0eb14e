"""`Actor`: the behaviour that most programs subclass."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ._core.kernel import Kernel
from ._core.processes.process import Process
from ._core.tables.callbacks import default
from ._core.tables.pending_calls import Caller
from ._core.verbs.batches import batch_items, serve_batches
from ._core.verbs.behaviour import M_contra
from ._core.vocabulary.errors import NotAllowedError, Reject, UnhandledCallError
from ._core.vocabulary.messages import LogRecord, Response
from ._core.vocabulary.public_names import name_for_annotations, show_public_names
from ._core.vocabulary.reasons import Reason
from ._core.vocabulary.text import type_of
from .idle import IdleVerbs, serve_idle
from .methods import serve_methods
from .service import Service
from .streams.verbs import StreamVerbs

if TYPE_CHECKING:
    from .entity_handles import EntityHandle
else:
    name_for_annotations(__name__, {"ergo_py.entity_handles": "EntityHandle"})

__all__ = ["Actor"]

A = TypeVar("A", bound="Actor")


class Actor(StreamVerbs[M_contra], IdleVerbs[M_contra]):
    """A process with a mailbox and callbacks. Subclass it and override the callbacks you need.

    The lifecycle, in order:

    1. ``init`` runs before ``spawn`` returns. An exception in it makes ``spawn`` raise.
    2. ``post_restart``, if a supervisor restarted the process, then ``post_start``.
    3. The message loop: ``handle_message`` for each ``send``, ``handle_call`` for each ``call``,
       ``handle_response`` for the answer to each ``request``, ``handle_event`` for each subscribed
       event, ``handle_inspect`` for each ``node.inspect``, ``handle_child_exit`` for each child
       that ends.
    4. ``pre_stop``, or ``pre_restart`` if the supervisor is about to restart the process.
    5. The processes and meta-processes that it spawned stop.
    6. ``terminate`` releases resources. Then links, monitors and the supervisor are notified.

    An actor that counts::

        from ergo_py import Actor, Node, Reject, run

        class Counter(Actor):
            def init(self):
                self.total = 0

            def handle_message(self, message, sender):
                self.total += message

            def handle_call(self, request, caller):
                if request == "total":
                    return self.total
                raise Reject(ValueError(f"unknown request: {request!r}"))

        async def main(node: Node):
            counter = await node.spawn(Counter)
            node.send(counter, 2)
            node.send(counter, 3)
            print(await node.call(counter, "total"))

        run(main)  # prints 5

    Each callback may be ``def`` or ``async def``. A plain ``def`` is a little cheaper, and lets a
    call be answered without a scheduler turn; an ``async def`` may wait. A process runs a single
    callback at a time and handles a single message at a time, so callbacks need no lock.

    An exception that leaves a callback ends the process; ``raise Reject(error)`` in ``handle_call``
    only refuses the call. ``self.stop(reason)`` ends the process after the callback.

    ``class Counter(Actor[Add | Reset])`` tells type checkers which messages ``send`` may carry to a
    ``PID[Counter]``; a plain ``Actor`` takes every message.
    """

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        serve_batches(cls)
        serve_methods(cls)
        serve_idle(cls)

    def service(self, name: str, node: str = "") -> Service:
        """Return the restart-proof address of a supervised child on this node, or on another node
        of the network. Messages sent through it carry this process as their sender.

        Raises:
            ChildError: no supervisor on the node has a registered child of that name. For
                another node, the first call raises it.
            NotAllowedError: this node has no network.
        """
        process = self._process
        if not node or node == process.id.node:
            return Service.find(process.kernel, name, process)
        network = process.router.remote
        if network is None:
            raise NotAllowedError(
                f"the node {process.id.node!r} has no network, so it reaches no service of "
                f"{node!r}; open it with `open_node(…, network=Local(types=[…]))`"
            )
        found: Service = network.service(name, node, process)
        return found

    def entity(self, kind: type[A], key: str) -> "EntityHandle[A]":
        """Return the address of an entity of this node. Messages sent through it carry this process
        as their sender. In an entity, ``self.send`` to it is stored with the callback's commit.

        Raises:
            EntityKindUnknownError: the node keeps no entities of this class.
            BadInputError: the key is not a text of 1 to 1,000 characters, or has over 1,800 bytes.
        """
        return self.node._find_entity(kind, key, self._process)

    def _task_owner(self) -> tuple[Kernel, Process | None]:
        return self._process.kernel, self._process

    @default
    def init(self) -> Awaitable[None] | None:
        """Called once, before ``spawn`` returns. If it raises, the node removes the process and
        ``spawn`` raises.
        """
        return None

    @default
    def post_start(self) -> Awaitable[None] | None:
        """Called once, after ``spawn`` has returned and before any message: for work that the
        spawner need not wait for.
        """
        return None

    @default
    def post_restart(self, reason: Reason) -> Awaitable[None] | None:
        """Called before ``post_start`` if a supervisor started this process to replace a process
        that ended with ``reason``.
        """
        return None

    @default
    def handle_message(self, message: M_contra, sender: Any) -> Awaitable[None] | None:
        """Called for each message. ``sender`` is the PID of the process that sent it, or the alias
        of a meta-process.
        """
        process = self._process
        process.count_unhandled()
        process.log.warning(
            "unhandled message", message_type=type(message).__qualname__, sender=str(sender)
        )
        return None

    @default
    def handle_batch(self, messages: Sequence[M_contra]) -> Awaitable[None] | None:
        """Called instead of ``handle_message`` by an actor with ``batch = Batch(100, 0.01)``, from
        ``ergo_py.pipelines``: with as many messages as there are, at most 100, and at the latest
        0.01 seconds after the actor has taken the first.

        A call, an event, a notice, a message with a priority and a stop do not wait: the actor
        handles the batch, and then them. A crash loses the messages of the batch in progress.
        """
        return None

    @default
    def handle_call(self, request: Any, caller: Caller) -> object:
        """Called for each call. Its return value is the answer; ``NO_REPLY`` defers the answer;
        ``raise Reject(error)`` refuses the call.
        """
        process = self._process
        process.count_unhandled()
        why = next(
            (
                f"has no handle_call, so it cannot answer {type_of(request)}; did you mean "
                f"that where it has {name}?"
                for name, meant in process.callbacks.suspects.items()
                if "handle_call" in meant
            ),
            None,
        )
        raise Reject(UnhandledCallError(self.pid, request, process.callbacks.behaviour, why))

    @default
    def handle_response(self, response: Response) -> Awaitable[None] | None:
        """Called exactly once for each ``request``, with the answer or the error."""
        process = self._process
        process.count_unhandled()
        process.log.warning("unhandled response", message_type=type(response.request).__qualname__)
        return None

    @default
    def handle_event(self, event: Any) -> Awaitable[None] | None:
        """Called for each event the process has subscribed to."""
        return None

    @default
    def handle_log(self, record: LogRecord) -> Awaitable[None] | None:
        """Called for each log record, if the process was made a logger with ``node.add_logger``."""
        return None

    @default
    def handle_inspect(self, *items: str) -> Mapping[str, str] | Awaitable[Mapping[str, str]]:
        """Called by ``node.inspect``. Return diagnostics for a human reader, as strings.

        With a further parameter ``asker: PID | None = None`` it gets the PID of the process that
        inspects, or of the node whose program or neighbour does.
        """
        return batch_items(self._process)

    @default
    def handle_reload(self) -> Awaitable[None] | None:
        """Called by ``node.reload``, between two messages: read the settings again. If it raises,
        the error is logged and reported, and the process goes on with the settings that it has.
        """
        return None

    @default
    def hand_over(self) -> object:
        """Called in a program with ``run(main, handover=…)`` when the next version takes over,
        between two messages: return the state of this process, of plain values and listed types.

        It must change nothing: the next version may fail, and then this process goes on. If it
        raises, the program goes on, and the next version ends.
        """
        return None

    @default
    def take_over(self, state: Any) -> Awaitable[None] | None:
        """Called in the next version, after ``init`` and before the program accepts connections,
        with the state of the process of the same name. It knows the layouts of older versions. If
        it raises, the next version ends, and the old program goes on.
        """
        return None

    @default
    def handle_child_exit(self, child: Any, reason: Reason) -> Awaitable[None] | None:
        """Called when a process or meta-process that this process spawned has ended; ``child`` is
        its PID or alias.
        """
        return None

    @default
    def pre_stop(self, reason: Reason) -> Awaitable[None] | None:
        """Called once when the process is about to end, before its children are stopped."""
        return None

    @default
    def pre_restart(self, reason: Reason) -> Awaitable[None] | None:
        """Called instead of ``pre_stop`` if the supervisor intends to restart the process."""
        return None

    @default
    def terminate(self, reason: Reason) -> Awaitable[None] | None:
        """Called last, for cleanup: after the children have stopped, before links, monitors and the
        supervisor are notified.
        """
        return None


show_public_names(__name__)
