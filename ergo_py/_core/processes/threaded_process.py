"""Processes whose plain callbacks run in a thread.

To the kernel such a process is one whose callbacks all wait: each plain one is replaced by an async
one that hands it to a thread and sleeps until it is done. So there is no second way in which a
process is served, ended or supervised.
"""

from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from copy import copy
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import outcome
import trio
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

from ..kernel import Kernel
from ..messaging.publisher import THREAD_ABANDONED
from ..runtime.bridge import Bridge, Parker, get_ident
from ..runtime.dispatcher_threads import Job, ThreadGroup
from ..tables.callbacks import Callbacks
from ..tables.mailbox import Mailbox
from ..tables.pending_calls import Caller, ring_of
from ..vocabulary.dispatchers import LOOP, LOOP_VERBS, SENDING_VERBS
from ..vocabulary.envelopes import (
    EVENT,
    INSPECT,
    MAIN_LANE,
    MESSAGE,
    SYSTEM_LANE,
    URGENT_LANE,
    Envelope,
    Lane,
)
from ..vocabulary.errors import BadInputError, DeadlockError, NotAllowedError
from ..vocabulary.options import Options
from ..vocabulary.states import INIT, STOPPING, TERMINATED, State
from .contexts import adopt
from .message_loop import check_plain, check_waiting, handle_inspect
from .process import Process

__all__ = ["DispatchedProcess", "process_type"]

R = TypeVar("R")

_BURST: Final = 64
_GRACE: Final = 1.0
"""Seconds in which a callback whose waiting was cancelled is expected to come back from its thread.
"""


def process_type(options: Options) -> type[Process]:
    """The kind of process that does what these options ask for."""
    return (
        Process if options.dispatcher is LOOP or options.dispatcher == LOOP else DispatchedProcess
    )


def _on_loop(bridge: Bridge, verb: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **keywords: bridge.run(partial(verb, *args, **keywords))


def _left_behind(process: object) -> NotAllowedError:
    return NotAllowedError(
        f"{process} has ended, and this callback was left behind in its thread; it cannot send "
        "any more"
    )


def _refuse(process: str, *_args: Any, **_keywords: Any) -> NoReturn:
    raise _left_behind(process)


class DispatchedProcess(Process):
    """A process with a thread for its plain callbacks."""

    blocks = True
    __slots__ = ("_behaviour", "_hop", "_laned", "_waiting", "thread_group", "hopping", "hurries")

    def __init__(
        self, kernel: Kernel, callbacks: Callbacks, options: Options, parent: Process | None
    ) -> None:
        kernel.dispatcher_threads.check(options.dispatcher)
        if callbacks.supervises:
            raise BadInputError(
                f"spawn({callbacks.behaviour}, dispatcher=…)",
                options.dispatcher,
                "LOOP: a supervisor never blocks; give the dispatcher to its children",
            )
        # What looks at a process from outside is answered on the loop, also while a callback
        # blocks.
        self.hopping = callbacks.defined - callbacks.asynchronous - {"handle_inspect"}
        self.thread_group: ThreadGroup | None = None
        self._waiting: Any = None
        callbacks = copy(callbacks)
        callbacks.asynchronous |= self.hopping
        callbacks.any_async = True
        super().__init__(kernel, callbacks, options, parent)
        self.hurries = False
        """Whether the callback in its thread has sent something that may overtake what waits for
        this very process.
        """
        self.mailbox = self._laned = _Laned(self)
        self.main = self.mailbox.main
        self._behaviour: Any = None
        self._hop: _Hop | None = None

    @property
    def waiting(self) -> Any:
        """What it waits for: an answer, a child, or the one who has the thread that it shares and
        answers calls in.
        """
        if (
            self._waiting is not None
            or self.thread_group is None
            or "handle_call" not in self.hopping
        ):
            return self._waiting
        holder = self.thread_group.holder()
        return None if holder is self else holder

    @waiting.setter
    def waiting(self, value: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._waiting = value

    @property
    def job(self) -> Job | None:
        """The callback that is in a thread, or waits for one."""
        return None if self._hop is None else self._hop.job

    def _initialise(
        self, factory: Any, args: tuple[Any, ...], context: Context
    ) -> Coroutine[Any, Any, None] | None:
        def make(*args: Any) -> _InThread:
            behaviour = factory(*args)
            behaviour._process = self
            for verb in LOOP_VERBS:
                # In this instance only, so that no other process pays for it.
                setattr(behaviour, verb, _on_loop(self.router.bridge, getattr(behaviour, verb)))
            for verb in ("send", "forward"):
                setattr(behaviour, verb, partial(self._send_on, getattr(behaviour, verb)))
            self._behaviour = behaviour
            return _InThread(self, behaviour)

        self.thread_group = thread_group = self.kernel.dispatcher_threads.join(
            self.options.dispatcher, self.id.number
        )
        if "init" in self.hopping and (ring := ring_of(self, thread_group.holder())):
            # Whoever waits for this init has the thread that it would run in.
            raise DeadlockError(
                self.id,
                None,
                ring,
                "give it another thread, or spawn it in an `async def` callback",
            )
        return super()._initialise(make, args, context)

    def _send_on(self, verb: Callable[..., Any], *args: Any, priority: Any = None) -> Any:
        if priority or self.priority:
            self.hurries = True
        return verb(*args, priority=priority)

    def enter(self, state: State) -> None:
        """Change state. At the end its thread is given back."""
        super().enter(state)
        if state is TERMINATED and self.thread_group is not None:
            self.kernel.dispatcher_threads.leave(self.thread_group)
            self.thread_group = None

    def wake(self) -> None:
        """Have it look at its mailbox; in the middle of a callback, for those who inspect it."""
        super().wake()
        hop = self._hop
        if hop is None or not self.mailbox.urgent:
            return
        if hop.is_waiting:
            # Its task waits for what the callback waits for, and cannot be asked.
            if any(one[0] == INSPECT for one in self.mailbox.urgent):
                context = (
                    self.task.context.copy() if isinstance(self.task, Task) else copy_context()
                )
                name = f"inspect {self.callbacks.behaviour}"
                context.run(lambda: self.kernel.start(self._answer_inspects, name=name))
        else:
            hop.awaken()

    def silence(self) -> None:
        """Let a callback that is left behind in its thread send nothing any more."""
        for verb in SENDING_VERBS:
            setattr(self._behaviour, verb, partial(_refuse, repr(self)))

    async def run_in_thread(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Have a plain callback called in a thread, and wait for what it returns."""
        assert self.thread_group is not None
        # A copy, since this task goes on meanwhile: a context is in one place at a time.
        before = copy_context()
        context = before.copy()
        handling, lane = self.handling, self._laned.lane_of(self.handled)
        is_message = name == "handle_message" and handling is not None and handling[0] == MESSAGE
        if is_message and self.open and self.id not in self.kernel.watches:
            # Nobody looks at a bound, so nobody but the thread takes anything out of the lane; and
            # nobody watches each callback.
            hop = self._hop = _Hop(
                self, name, partial(context.run, self._serve_in_thread, function, *args)
            )
        else:
            hop = self._hop = _Hop(self, name, partial(context.run, function, *args))
        self.hurries = False
        self.thread_group.put(hop.job)
        try:
            while hop.job.outcome is None:
                await self._answer_inspects()
                if hop.verb is not None:
                    await hop.run_verb()
                elif hop.job.outcome is None:
                    await hop.sleep()
        except BaseException:
            if (
                hop.leave()
                and handling is not None
                and handling[0] <= EVENT
                and not isinstance(handling[2], Caller)
            ):
                # As if it had not been taken: it goes where the rest of the mailbox goes. A call is
                # answered in any case.
                self.mailbox.put_back(lane, handling)
                self.handled -= 1
            raise
        finally:
            self._hop = None
        # It may have been awake for something else: what the callback sent still comes before
        # whatever happens next.
        self.router.bridge.catch_up()
        adopt(context, before)
        result = hop.job.outcome.unwrap()
        check_plain(self, name, result)
        return result

    def wait_for(self, waiting: Coroutine[Any, Any, R]) -> R:
        """Have something awaited in the task of this process, while the callback waits in its
        thread.
        """
        check_waiting(waiting)
        hop = self._hop
        try:
            if hop is None or hop.job.ident != get_ident():
                raise NotAllowedError(
                    f"wait_for(...) is for a plain callback of {self}, in its thread; an async "
                    "one writes `await`"
                )
            verb = _AsyncVerb(waiting)
            self.router.bridge.post(hop.take, verb)
        except BaseException:
            waiting.close()
            raise
        verb.parker.wait(None)
        assert verb.parker.value is not None
        return verb.parker.value.unwrap()  # type: ignore[no-any-return]

    def _serve_in_thread(
        self, handle_message: Callable[[Any, Any], Any], message: Any, sender: Any
    ) -> None:
        """Serve a burst of messages in one trip to the thread, since the trip costs more than most
        callbacks.
        """
        box, main, hop, thread_group = self.mailbox, self.main, self._hop, self.thread_group
        for left in range(_BURST, 0, -1):  # pragma: no branch - the last round returns
            check_plain(self, "handle_message", handle_message(message, sender))
            # A kill, an inspect or a more urgent message does not wait behind the rest, nor do
            # others who share the thread.
            if left == 1 or box.ahead or self.hurries or not self.open or hop is not self._hop:
                return
            if thread_group is None or thread_group.is_wanted():
                return
            try:
                following = main.popleft()
            except IndexError:  # nothing waits
                return
            if following[0] != MESSAGE:
                main.appendleft(following)
                return
            self.handling = following
            self.handled += 1
            _, sender, _, message = following

    async def _answer_inspects(self) -> None:
        box = self.mailbox
        while (
            envelope := next((one for one in box.urgent if one[0] == INSPECT), None)
        ) is not None:
            box.urgent.remove(envelope)
            box.ahead = bool(box.urgent or box.system)
            try:
                await handle_inspect(self, envelope[2], envelope[3])
            except BaseException:
                # Cancelled in the middle: whoever asked is told when the rest of the mailbox is
                # answered.
                box.urgent.appendleft(envelope)
                box.ahead = True
                raise
            self.handled += 1


class _Laned(Mailbox):
    """A mailbox that knows which lane the last envelope came from: a message may be put back until
    a thread has begun with it.
    """

    __slots__ = ("_handled", "_lane", "_process")

    def __init__(self, process: DispatchedProcess) -> None:
        super().__init__(process.options.mailbox_size or 0, process.options.overflow)
        self._process = process
        self._lane = MAIN_LANE
        self._handled = 0

    def pop_ahead(self) -> Envelope:
        """Take the next envelope of URGENT or SYSTEM, and note which of them it was."""
        self._lane = URGENT_LANE if self.urgent else SYSTEM_LANE
        # It is counted next. So its number tells it from those that come after it, and nothing
        # keeps it alive.
        self._handled = self._process.handled + 1
        return super().pop_ahead()

    def lane_of(self, handled: int) -> Lane:
        """The lane of the envelope that was the last one taken, the so-and-so-manieth that the
        process handles.
        """
        return self._lane if handled == self._handled else MAIN_LANE


class _InThread:
    """What the kernel has in place of a behaviour: its plain callbacks are async here, all else is
    as it is there.
    """

    def __init__(self, process: DispatchedProcess, behaviour: Any) -> None:
        self.behaviour_itself = behaviour
        for name in process.hopping:
            setattr(self, name, partial(process.run_in_thread, name, getattr(behaviour, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behaviour_itself, name)


class _AsyncVerb:
    """Something that a callback in a thread waits for, and that is awaited on the loop."""

    __slots__ = ("parker", "waiting")

    def __init__(self, waiting: Coroutine[Any, Any, Any]) -> None:
        self.waiting = waiting
        self.parker: Parker[outcome.Outcome[Any]] = Parker()

    def refuse(self, process: object) -> None:
        """Say that nobody awaits it any more."""
        self.waiting.close()
        self.parker.settle(outcome.Error(_left_behind(process)))


class _Hop:
    """A task that waits for a callback in a thread."""

    __slots__ = (
        *(
            "_is_asleep",
            "_is_left",
            "_is_withdrawn",
            "_name",
            "_process",
            "_said",
            "_task",
            "_was_cancelled",
        ),
        *("verb", "is_waiting", "job"),
    )

    def __init__(self, process: DispatchedProcess, name: str, function: Callable[[], Any]) -> None:
        self.job = Job(function, self.awaken, process)
        self._process = process
        self._name = name
        self._task: Task = current_task()
        self._is_asleep = False
        self._is_withdrawn = False
        self._is_left = False
        self._said = False
        self._was_cancelled = False
        self.verb: _AsyncVerb | None = None
        """What the callback waits for, as long as nobody has begun with it."""
        self.is_waiting = False
        """Whether the task is at it."""

    async def sleep(self) -> None:
        """Wait until it is done, or until there is something else to look at."""
        self._is_asleep = True
        if not self._was_cancelled:
            await wait_task_rescheduled(self._abort)
            return
        # The thread has been told just now, so there is no reason yet to leave it behind, or to say
        # that it blocks.
        self._was_cancelled = False
        with trio.move_on_after(_GRACE, shield=True):
            await wait_task_rescheduled(self._abort)

    def take(self, verb: _AsyncVerb) -> None:
        """Have something awaited for the callback."""
        if self._is_left:
            verb.refuse(self._process)
        else:
            self.verb = verb
            self.awaken()

    async def run_verb(self) -> None:
        """Await what the callback waits for, and hand it over: a cancellation, too, so that it ends
        as an async callback does.
        """
        verb, self.verb = self.verb, None
        assert verb is not None
        result: outcome.Outcome[Any]
        self.is_waiting = True
        try:
            result = outcome.Value(await verb.waiting)
        except GeneratorExit:
            verb.refuse(self._process)
            raise
        except BaseException as error:
            self._was_cancelled = isinstance(error, trio.Cancelled)
            result = outcome.Error(error)
        finally:
            self.is_waiting = False
        verb.parker.settle(result)

    def awaken(self) -> None:
        """Have the task look again. On the loop's thread only."""
        if self._is_asleep:
            self._is_asleep = False
            reschedule(self._task)

    def leave(self) -> bool:
        """Wait no longer: take the job back, or leave the thread behind that is at it. True if it
        had not begun.
        """
        process = self._process
        self._is_left = True
        if self.verb is not None:
            self.verb.refuse(process)
        if self.job.outcome is not None:
            return False
        if self._is_withdrawn or self.job.withdraw():
            return True
        process.silence()
        process.kernel.threads_abandoned += 1
        process.kernel.publisher.announce(THREAD_ABANDONED, process.id)
        process.log.error(
            "a callback did not end in time, and its thread was left behind",
            callback=self._name,
            dispatcher=str(process.options.dispatcher),
            exception=self.job.stack(),
        )
        return False

    def _abort(self, _raise_cancel: Callable[[], NoReturn]) -> Abort:
        process = self._process
        abandonable = process._abandonable
        # init and the last callbacks have time limits of their own. A process that is left behind
        # has none any more.
        is_limited = process.state in (INIT, STOPPING) or (
            abandonable is not None and abandonable.abandoned
        )
        if self.job.withdraw():
            self._is_withdrawn = True
        if is_limited or self._is_withdrawn:
            self._is_asleep = False
            return Abort.SUCCEEDED
        if not self._said:
            self._said = True
            process.log.warning(
                "killed while a callback blocks in a thread; it ends when the callback returns",
                callback=self._name,
                dispatcher=str(process.options.dispatcher),
                exception=self.job.stack(),
            )
        return Abort.FAILED
