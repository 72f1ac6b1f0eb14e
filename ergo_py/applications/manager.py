"""`Applications`: starts the applications of a node in order, all or nothing, watches them, and
stops them in reverse order.
"""

import inspect
from collections.abc import Awaitable, Mapping
from math import inf
from typing import TYPE_CHECKING

import trio

from .._core.messaging.publisher import APPLICATION_PHASE
from .._core.processes.process import Process
from .._core.processes.spawn import spawn_process
from .._core.vocabulary.errors import (
    ApplicationNeededError,
    ApplicationStartError,
    ApplicationUnknownError,
    BadInputError,
    NotAllowedError,
)
from .._core.vocabulary.info import ApplicationInfo, Phase
from .._core.vocabulary.options import Options
from .._core.vocabulary.reasons import Crashed, Reason, Shutdown, is_failure
from ..supervision.supervisor import Supervisor
from .application import Application, start_order

if TYPE_CHECKING:
    from ..node import Node

__all__ = ["ApplicationRoot", "Applications"]


class _Loaded:
    """An application on a node."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.phase = Phase.PENDING
        self.process: Process | None = None
        self.gone = trio.Event()
        self.since = 0.0
        self.reason: Reason | None = None
        self.is_asked = False
        """Its end was requested."""

    @property
    def runs(self) -> bool:
        return self.phase in (Phase.RUNNING, Phase.TERMINATING)

    def enters(self, phase: Phase) -> bool:
        """Change the phase; False if it has this phase already."""
        is_new = self.phase is not phase
        self.phase = phase
        return is_new

    def begins_start(self) -> None:
        """Its callbacks run, and then its supervisor starts: forget its last run."""
        self.reason, self.is_asked, self.gone = None, False, trio.Event()

    def started(self, process: Process) -> None:
        """Its supervisor is up."""
        self.process = process
        self.since = trio.current_time()

    def is_asked_to_stop(self) -> None:
        """Its end was requested, so it does not stop the node."""
        self.is_asked = True

    def went_down(self, reason: Reason) -> None:
        """Its supervisor has ended."""
        self.process, self.reason = None, reason

    def start_failed(self, reason: Reason) -> None:
        """It is down, because it could not be started."""
        self.reason = reason


class ApplicationRoot(Supervisor):
    """The supervisor at the top of an application."""

    def __init__(self, applications: "Applications", name: str) -> None:
        loaded = applications._loaded[name]
        super().__init__(loaded.application.spec)
        self._applications = applications
        self._loaded = loaded

    async def pre_stop(self, reason: Reason) -> None:
        """Called when the application ends, for any cause."""
        self._applications._enter(self._loaded, Phase.TERMINATING)
        await _done(self._loaded.application.before_stop(self._applications._node, reason))

    async def terminate(self, reason: Reason) -> None:
        """Called when its parts have stopped."""
        await _done(self._loaded.application.after_stop(self._applications._node, reason))

    def handle_inspect(self, *items: str) -> Mapping[str, str]:
        """Diagnostics for a human reader: the application, and its supervisor."""
        info = self._applications._info(self._loaded)
        return {
            "application": info.name,
            "phase": info.phase.value,
            "mode": info.mode,
            "depends on": ", ".join(info.depends_on),
            **self._describe(),
        }


class Applications:
    """The applications of a node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._loaded: dict[str, _Loaded] = {}
        self._lock = trio.Lock()

    def load(self, applications: tuple[Application, ...]) -> None:
        """Add applications, if they fit together with the loaded applications. Starts nothing."""
        for application in applications:
            if not isinstance(application, Application):
                raise BadInputError(
                    "applications",
                    application,
                    "an Application, such as Application('web', [ChildSpec(…)])",
                )
        known = [loaded.application for loaded in self._loaded.values()]
        new = [application for application in applications if application not in known]
        start_order([*known, *new])
        for application in new:
            self._loaded[application.name] = loaded = _Loaded(application)
            self._announce(loaded)

    def infos(self) -> list[ApplicationInfo]:
        """All loaded applications, in start order."""
        return [self._info(self._loaded[application.name]) for application in self._order()]

    def phases(self) -> dict[str, Phase]:
        """The phases of all loaded applications, by name. From any thread."""
        return {name: loaded.phase for name, loaded in list(self._loaded.items())}

    async def start(self, given: tuple[Application | str, ...]) -> list[str]:
        """Start applications and their dependencies, all or nothing. Returns the names of the
        applications started, in order.
        """
        new = tuple(item for item in given if not isinstance(item, str))
        names = [
            item if isinstance(item, str) else item.name
            for item in given
            if isinstance(item, str | Application)
        ]
        async with _Turn(self._lock):
            self.load(new)
            wanted: set[str] = set()
            waiting = [self._find(name).application for name in names] if given else self._order()
            while waiting:
                application = waiting.pop()
                if application.name not in wanted:
                    wanted.add(application.name)
                    waiting += [self._loaded[name].application for name in application.depends_on]
            started: list[_Loaded] = []
            for application in self._order():
                loaded = self._loaded[application.name]
                if application.name not in wanted or loaded.phase is Phase.RUNNING:
                    continue
                if loaded.phase is Phase.TERMINATING:
                    await loaded.gone.wait()
                try:
                    await self._start(loaded)
                except BaseException as error:
                    await self._undo(started)
                    if isinstance(error, Exception):
                        undone = [done.application.name for done in reversed(started)]
                        raise ApplicationStartError(application.name, error, undone) from error
                    raise
                started.append(loaded)
            return [loaded.application.name for loaded in started]

    async def stop(self, names: tuple[str, ...]) -> list[str]:
        """Stop applications, in reverse start order. Returns the names of the applications stopped,
        in order.
        """
        async with _Turn(self._lock):
            chosen = [self._find(name) for name in names] if names else list(self._loaded.values())
            for loaded in chosen:
                name = loaded.application.name
                needed_by = [
                    other.application.name
                    for other in self._loaded.values()
                    if other.runs and other not in chosen and name in other.application.depends_on
                ]
                if loaded.runs and needed_by:
                    raise ApplicationNeededError(name, needed_by)
            running = [loaded for loaded in chosen if loaded.process is not None]
            running.sort(
                key=lambda loaded: (
                    loaded.process.id if loaded.process is not None else self._node.pid
                )
            )
            for loaded in reversed(running):
                await self._stop(loaded)
            return [loaded.application.name for loaded in reversed(running)]

    # -- a single application ----------------------------------------------------------------------

    async def _start(self, loaded: _Loaded) -> None:
        node, application = self._node, loaded.application
        loaded.begins_start()
        is_prepared = False
        try:
            await _done(application.before_start(node))
            is_prepared = True
            options = Options(
                name=application.name,
                init_timeout=inf,
                shutdown=application.shutdown,
                env=application.env,
            )
            process = await spawn_process(
                node._kernel,
                None,
                ApplicationRoot,
                ApplicationRoot,
                (self, application.name),
                options,
            )
            loaded.started(process)
            node._kernel.start(self._watch, loaded, process, name=f"application {application.name}")
            await _done(application.after_start(node))
            if process.reason is not None:
                raise NotAllowedError(f"it ended while it was being started: {process.reason}")
        except BaseException as error:
            reason = (
                Crashed(error)
                if isinstance(error, Exception)
                else Shutdown("its start was cancelled")
            )
            with trio.CancelScope(shield=True):
                if loaded.process is not None:
                    await self._stop(loaded)
                elif is_prepared:
                    await self._after_failed_start(application, reason)
            loaded.start_failed(reason)
            self._enter(loaded, Phase.FAILED)
            raise
        self._enter(loaded, Phase.RUNNING)

    async def _after_failed_start(self, application: Application, reason: Reason) -> None:
        try:
            await _done(application.after_stop(self._node, reason))
        except Exception as error:
            # Only log it: the caller should get the error that made the start fail.
            self._node.log.error(
                "after_stop raised",
                application=application.name,
                exception=Crashed(error).traceback,
            )

    async def _undo(self, started: list[_Loaded]) -> None:
        with trio.CancelScope(shield=True):
            for loaded in reversed(started):
                await self._stop(loaded)
                self._enter(loaded, Phase.PENDING)

    async def _stop(self, loaded: _Loaded) -> None:
        process = loaded.process
        if process is not None:
            loaded.is_asked_to_stop()
            await process.shut(Shutdown())
            await loaded.gone.wait()

    async def _watch(self, loaded: _Loaded, process: Process) -> None:
        await process.wait_gone()
        kernel, reason = self._node._kernel, process.reason or Shutdown()
        loaded.went_down(reason)
        self._enter(loaded, Phase.FAILED if is_failure(reason) else Phase.COMPLETED)
        loaded.gone.set()
        if not loaded.is_asked and not kernel.stopping and loaded.application.mode.wants(reason):
            self._node.log.error(
                "an application ended, and the node stops because of its mode",
                application=loaded.application.name,
                mode=loaded.application.mode.value,
                reason=str(reason),
            )
            kernel.stop_because(process, reason)

    # -- lookup ------------------------------------------------------------------------------------

    def _order(self) -> list[Application]:
        return start_order(loaded.application for loaded in self._loaded.values())

    def _find(self, name: str) -> _Loaded:
        loaded = self._loaded.get(name)
        if loaded is None:
            raise ApplicationUnknownError(name, tuple(self._loaded))
        return loaded

    def _enter(self, loaded: _Loaded, phase: Phase) -> None:
        if loaded.enters(phase):
            self._announce(loaded)

    def _announce(self, loaded: _Loaded) -> None:
        publishing = self._node._kernel.publisher
        if publishing.heard:
            publishing.announce(APPLICATION_PHASE, self._info(loaded))

    def _info(self, loaded: _Loaded) -> ApplicationInfo:
        process, application = loaded.process, loaded.application
        return ApplicationInfo(
            name=application.name,
            phase=loaded.phase,
            mode=application.mode.value,
            depends_on=application.depends_on,
            pid=None if process is None else process.id,
            uptime=0.0 if process is None else self._node._kernel.clock.now() - loaded.since,
            reason=loaded.reason,
        )


class _Turn:
    """Serializes the operations. An operation from a callback of an application would wait for
    itself, so it is refused.
    """

    def __init__(self, lock: trio.Lock) -> None:
        self._lock = lock

    async def __aenter__(self) -> None:
        if self._lock.statistics().owner is trio.lowlevel.current_task():
            raise NotAllowedError(
                "a callback of an application cannot start or stop applications while this "
                "operation waits for it; name the applications that must run before in depends_on"
            )
        await self._lock.acquire()

    async def __aexit__(self, *_error: object) -> None:
        self._lock.release()


async def _done(result: Awaitable[None] | None) -> None:
    if inspect.isawaitable(result):
        await result
