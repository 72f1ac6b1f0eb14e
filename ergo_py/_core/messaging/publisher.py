"""`Publisher`: publish/subscribe from a producer to the mailbox of each subscriber, and the events
of the node itself.
"""

import time
from collections.abc import Callable
from typing import Final

from ..runtime.bridge import get_ident
from ..runtime.parking import PARKED, wake
from ..tables.events import Event, Events, Subscription
from ..vocabulary.envelopes import EVENT, NOTICE, TRACED, Envelope, Lane
from ..vocabulary.ids import PID, EventName, Ref
from ..vocabulary.messages import DeadLetter, EventStarted, EventStopped, Published
from .receiver import NO_RECEIVER, Receiver
from .router import Router
from .traces import Mark

__all__ = [
    "APPLICATION_PHASE",
    "BLOCKED",
    "DEAD_LETTER",
    "NODE_DOWN",
    "NODE_EVENTS",
    "NODE_UP",
    "PROCESS_ENDED",
    "PROCESS_STARTED",
    "Publisher",
    "RESTARTED",
    "THREAD_ABANDONED",
]

PROCESS_STARTED: Final = "ergo.process_started"
PROCESS_ENDED: Final = "ergo.process_ended"
DEAD_LETTER: Final = "ergo.dead_letter"
BLOCKED: Final = "ergo.blocked"
THREAD_ABANDONED: Final = "ergo.thread_abandoned"
RESTARTED: Final = "ergo.restarted"
APPLICATION_PHASE: Final = "ergo.application_phase"
NODE_UP: Final = "ergo.node_up"
NODE_DOWN: Final = "ergo.node_down"
NODE_EVENTS: Final = (
    PROCESS_STARTED,
    PROCESS_ENDED,
    DEAD_LETTER,
    BLOCKED,
    THREAD_ABANDONED,
    RESTARTED,
    APPLICATION_PHASE,
    NODE_UP,
    NODE_DOWN,
)
"""The events that the node itself publishes. Without subscribers the node does not even build their
messages.
"""


class Publisher:
    """The events of a node. Publications travel through its router."""

    __slots__ = ("_log_dead_letter", "_node", "_router", "_token", "events", "heard")

    def __init__(self, router: Router, node: PID, token: Ref) -> None:
        self._router = router
        self._node = node
        self._token = token
        self._log_dead_letter: Callable[[DeadLetter], None] | None = None
        self.events: Events = Events()
        self.heard: set[str] = set()
        """The node's own events that have subscribers. Every spawn and every dead letter checks
        this set.
        """
        for name in NODE_EVENTS:
            self.events.register(
                Event(self.name(name), node, token, 0, notifies=False, is_open=False)
            )

    def name(self, given: "str | EventName") -> EventName:
        """The full name of an event of this node."""
        if isinstance(given, str):
            return EventName(given, self._router.node)
        return EventName(given.name, given.node or self._router.node)

    def subscribe(self, name: EventName, subscriber: PID) -> bool:
        """Add a subscriber; False if there is no such event."""
        event = self.events.find(name)
        if event is None:
            return False
        first = self.events.subscribe(event, subscriber)
        if name.name in NODE_EVENTS:
            self._hear(name.name, True)
        if first and event.notifies:
            self._tell_producer(event, EventStarted(name))
        return True

    def unsubscribe(self, name: EventName, subscriber: PID) -> None:
        """Remove a single relation of a subscriber to an event."""
        event = self.events.find(name)
        if event is None or not self.events.unsubscribe(event, subscriber):
            return
        if name.name in NODE_EVENTS:
            self._hear(name.name, False)
        if event.notifies:
            self._tell_producer(event, EventStopped(name))

    def publish(self, publisher: PID, name: EventName, message: object, token: Ref | None) -> int:
        """Deliver ``message`` to every subscriber. Returns how many subscribers took it.

        Raises:
            EventError: of kind ``"unknown"``; there is no such event.
            NotAllowedError: the event is not open, and the publisher neither registered it nor has
                its token.
        """
        if get_ident() != self._router.loop_thread:
            return self._router.bridge.run(self.publish, publisher, name, message, token)
        event = self.events.get(name)
        event.check_publisher(publisher, token)
        router, context = self._router, None
        if router.hooks:
            message = router.note(publisher, event.name, message)
            context = router.context_of(publisher, False)
        # The wall clock, not that of the node: a subscriber may be on another node, where the clock
        # of this program means nothing.
        publication = Published(event.name, message, time.time())
        event.note(publication)
        envelope: Envelope = (
            (EVENT, event.producer, None, publication)
            if context is None
            else (TRACED, event.producer, Mark(EVENT, event.name, context), publication)
        )
        return len(event.subscribers) - self.deliver(event, envelope, context)

    def deliver(self, event: Event, envelope: Envelope, context: object | None) -> int:
        """Deliver a publication to every subscriber. Returns how many have not taken it."""
        dropped = 0
        find = self._router.processes.get
        # No function call per subscriber: there may be thousands of subscribers, and all of them
        # get the publication in this turn of the scheduler.
        for pid, subscription in event.subscribers.items():
            process = find(pid, NO_RECEIVER)
            if process.takes_direct:
                # inlined copy of Router.send
                process.main.append(envelope)
                if (task := process.task).custom_sleep_data is PARKED:
                    wake(task)
            elif not self.give(pid, process, event, envelope, context, subscription):
                dropped += 1
        return dropped

    def give(
        self,
        pid: PID,
        process: Receiver,
        event: Event,
        envelope: Envelope,
        context: object | None,
        subscription: Subscription,
    ) -> bool:
        """Deliver a publication to a subscriber whose mailbox takes no direct appends. False if the
        subscriber has not taken it.
        """
        taken = (
            self._give_elsewhere(pid, event, envelope[3], context)
            if process is NO_RECEIVER
            else self._give_here(process, envelope, event, subscription)
        )
        if not taken:
            subscription.count_dropped()
        return taken

    def _give_elsewhere(
        self, subscriber: PID, event: Event, publication: Published, context: object | None
    ) -> bool:
        """Give a publication to another node that has subscribed, with the context of its trace."""
        router = self._router
        return (
            router.remote is not None
            and subscriber.node != router.node
            and router.remote.publish(subscriber, publication, event.producer, context)
        )

    def _give_here(
        self,
        process: Receiver,
        envelope: Envelope,
        event: Event,
        subscription: Subscription,
    ) -> bool:
        if event.name.name == DEAD_LETTER and not (
            process.accepting and process.mailbox.has_room(Lane.MAIN)
        ):
            # Do not create a dead letter about a dead letter: that would never end.
            process.mailbox.count_dropped()
            return False
        # The count before and after tells of a displaced envelope: the verdict of admit() stays in
        # the router.
        before = process.mailbox.dropped
        taken = self._router.post(process, process.id, Lane.MAIN, envelope)
        if taken and process.mailbox.dropped != before:
            # The mailbox took the publication and displaced an older envelope for it.
            subscription.count_dropped()
        return taken

    def announce(self, name: str, message: object) -> None:
        """Publish an event of the node itself, if it has subscribers. Callable from any thread, and
        never waits.
        """
        # Read in any thread without a lock: a spawn must pay no more than this for an event without
        # subscribers.
        if name not in self.heard:
            return
        if get_ident() != self._router.loop_thread:
            self._router.bridge.post(self.announce, name, message)
        else:
            self.publish(self._node, self.name(name), message, self._token)

    def _hear(self, name: str, heard: bool) -> None:
        (self.heard.add if heard else self.heard.discard)(name)
        if name == DEAD_LETTER:
            # Set the hook only while the event has subscribers: without them a dead letter costs no
            # more than counting it.
            self._router.dead_letters.announce_to(
                self._announce_dead_letter if heard else self._log_dead_letter
            )

    def log_dead_letters(self, log: Callable[[DeadLetter], None] | None) -> None:
        """Also log each dead letter, for a node with the log level debug; None: no longer."""
        self._log_dead_letter = log
        self._hear(DEAD_LETTER, DEAD_LETTER in self.heard)

    def _announce_dead_letter(self, letter: DeadLetter) -> None:
        if self._log_dead_letter is not None:
            self._log_dead_letter(letter)
        self.announce(DEAD_LETTER, letter)

    def _tell_producer(self, event: Event, notice: EventStarted | EventStopped) -> None:
        producer = self._router.processes.get(event.producer)
        if producer is not None:
            self._router.signal(producer, Lane.SYSTEM, (NOTICE, self._node, None, notice))
