"""`RecordingVerbs`: the verbs of a behaviour without a node that would start something. All other
verbs are the real ones, with a `RecordingProcess`.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVarTuple, Unpack, cast

from ..._core.tables.callbacks import CALLBACKS, Callbacks
from ..._core.tables.class_mistakes import misspelled
from ..._core.verbs.behaviour import Behaviour, behaviour_of, check_task
from ..._core.verbs.meta_process import MetaProcess, check_meta_behaviour
from ..._core.vocabulary.errors import NotAllowedError
from ..._core.vocabulary.ids import PID, Alias, Target
from ..._core.vocabulary.options import (
    MetaKeywords,
    SpawnKeywords,
    check_number,
    read_meta_options,
    read_options,
)
from ...idle import IdleVerbs
from ...streams.verbs import StreamVerbs
from ...tasks.handle import Completion, Task
from ...tasks.process import Runner
from .notes import NODE, Notes, Spawned, StartedTask
from .process import RecordingProcess

__all__ = ["RecordingVerbs"]

Ts = TypeVarTuple("Ts")


class RecordingVerbs(StreamVerbs, IdleVerbs):
    """A base placed just before ``Behaviour`` in the method resolution order, so that overrides in
    the class still win.
    """

    # The placeholder for the process while __init__ runs; its use raises an error.
    _notes: Notes = cast(Notes, Behaviour._process)

    def _record_in(self, notes: Notes) -> None:
        """Record from now on: ``__init__`` has run."""
        self._notes = notes
        callbacks = Callbacks(type(self))
        callbacks.suspect(misspelled(type(self), CALLBACKS, callbacks.defined))
        self._process = cast(Any, RecordingProcess(notes, callbacks))

    async def spawn(
        self, behaviour: Callable[[*Ts], Behaviour], *args: *Ts, **options: Unpack[SpawnKeywords]
    ) -> PID:
        behaviour_of(behaviour)
        read_options(options)
        pid = PID(NODE, 0, self._notes.identity.number())
        self._notes.spawned.append(Spawned(behaviour, args, dict(options), pid))
        return pid

    async def spawn_meta(self, behaviour: MetaProcess, **options: Unpack[MetaKeywords]) -> Alias:
        check_meta_behaviour(behaviour)
        read_meta_options(options)
        alias = Alias(NODE, 0, self._notes.identity.number())
        self._notes.spawned.append(Spawned(behaviour, (), dict(options), alias))
        return alias

    def start_task(
        self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts, name: str | None = None
    ) -> Any:
        check_task(function)
        task = StartedTask(function, args, name)
        self._notes.tasks.append(task)
        return task

    def _run_task(
        self,
        run: Runner,
        name: str,
        timeout: float | None,
        under: Target | None,
        reply_to: Target | None,
    ) -> Task[Any]:
        work, args = cast(Any, run).args
        completion: Completion[Any] = Completion(name)
        started = StartedTask(work.function, args, name, False, completion)
        completion.belong_to(
            PID(NODE, 0, self._notes.identity.number()), started.cancel, _gone, lambda _error: None
        )
        self._notes.tasks.append(started)
        return Task(completion)

    def _start_stream(self, run: Runner, name: str) -> NoReturn:
        raise NotAllowedError(
            f"a behaviour alone does not run {name}; test stream and map_stream with a node"
        )

    def set_idle_timeout(self, seconds: float | None) -> None:
        if seconds is not None:
            check_number("idle timeout", seconds, least=1e-6, hint=", or None")
        self._notes.set_idle_timeout(seconds)

    def call_stream(
        self,
        to: Target,
        request: object,
        *,
        timeout: float | None = 5.0,
        credit: int | None = None,
    ) -> NoReturn:
        raise NotAllowedError("a behaviour alone gets no parts; test call_stream with a node")


async def _gone() -> None:
    """A task of a behaviour alone has no process that could end."""
