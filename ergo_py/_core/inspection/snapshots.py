"""Snapshots: the state of processes, meta-processes, events and the node at a moment."""

from time import perf_counter
from traceback import StackSummary

from trio.lowlevel import Task

from ..kernel import Kernel
from ..metas.meta import Meta
from ..processes.process import Process
from ..processes.threaded_process import DispatchedProcess
from ..runtime.abandonable import frames_of
from ..tables.events import Event
from ..tables.pending_calls import Caller
from ..tables.relations import Kind, Watched
from ..vocabulary.ids import Name
from ..vocabulary.info import BlockedReport, EventInfo, MetaInfo, NodeInfo, Phase, ProcessInfo
from ..vocabulary.states import MetaState, State
from .census import entity_of, is_suspended, list_living, message_type_of, read_row

__all__ = ["describe_living", "event_info", "meta_info", "node_info", "process_info"]


def describe_living(kernel: Kernel, stacks: bool) -> list[str]:
    """Describe each living process and meta-process in a line. With ``stacks``, add the stack of a
    callback or reader that waits in a task.
    """
    lines: list[str] = []
    for process in list_living(kernel).all():
        callback = process.current_callback()
        lines.append(f"{process!r} {process.state.value}" + (f" in {callback}" if callback else ""))
        for task in _waiting_tasks(process) if stacks else ():
            for entry in StackSummary.extract(
                (frame, frame.f_lineno) for frame in frames_of(task)
            ).format():
                lines += entry.splitlines()
    return lines


def _waiting_tasks(process: Process | Meta) -> list[Task]:
    at_work = process.current_callback() is not None
    tasks: list[object] = []
    if isinstance(process, Meta):
        parts = (process.birth, process.handler, process.ending) if at_work else ()
        tasks += [
            part.task.task
            for part in (process.reader, *parts)
            if part is not None and part.task is not None
        ]
    elif at_work:
        tasks.append(process.callback_task)
    return [task for task in tasks if isinstance(task, Task)]


def process_info(process: Process, expose_env: bool, children: int | None = None) -> ProcessInfo:
    """Take a snapshot of a process; of a supervisor with at most ``children`` of its children."""
    relations = process.kernel.relations
    me: list[Watched] = [process.id, *(process.aliases or ())]
    if process.name is not None:
        me.append(Name(process.name, process.router.node))
    history = process.history
    moments = tuple(
        (state, moment)
        for state, moment in zip(history[::2], history[1::2], strict=True)
        if isinstance(state, State) and isinstance(moment, float)
    )
    now = perf_counter()
    row, waiting = read_row(process, now), process.waiting
    thread_group = process.thread_group if isinstance(process, DispatchedProcess) else None
    return ProcessInfo(
        pid=process.id,
        name=process.name,
        behaviour=process.callbacks.behaviour,
        state=process.state,
        history=moments,
        lanes=_lanes(process),
        messages_in=row.messages + row.mailbox + len(process.postponed or ()),
        messages_out=row.sent,
        dropped=process.mailbox.dropped,
        unhandled=process.unhandled,
        callback=process.current_callback(),
        message_type=message_type_of(process),
        running_time=row.time,
        uptime=now - process.born,
        parent=process.kernel.pid if process.parent is None else process.parent.id,
        children=tuple(child.id for child in (process.owned or {}).values()),
        links=relations.of_watcher(process.id, Kind.LINK),
        linked_by=tuple(pid for target in me for pid in relations.of_target(target, Kind.LINK)),
        monitors=relations.of_watcher(process.id, Kind.MONITOR),
        monitored_by=tuple(
            pid for target in me for pid in relations.of_target(target, Kind.MONITOR)
        ),
        aliases=tuple(process.aliases or ()),
        waits_for=waiting.ref if isinstance(waiting, Caller) else None,
        asks=waiting.to if isinstance(waiting, Caller) else None,
        trap_exit=process.trap_exit,
        mailbox_size=process.mailbox.limit or None,
        env=dict(process.env) if expose_env else None,
        phase=_phase(process),
        entity=entity_of(process),
        supervision=None
        if process.slots is None or process.behaviour is None
        else process.behaviour_itself.supervision(children),
        suspended=is_suspended(process),
        dispatcher=str(process.options.dispatcher),
        threads=tuple(thread.native_id for thread in thread_group.threads)
        if thread_group is not None
        else (),
        stack=process.job.stack()
        if isinstance(process, DispatchedProcess) and process.job is not None
        else "",
    )


def _lanes(process: Process) -> dict[str, int]:
    lanes = process.mailbox.depths()
    if process.postponed:
        lanes["postponed"] = len(process.postponed)
    return lanes


def _phase(process: Process) -> Phase | None:
    supervisor = process.parent
    slot = process.slot
    if slot is None or slot.is_of_entity or supervisor is None or supervisor.behaviour is None:
        return None
    phase: Phase | None = supervisor.behaviour_itself.phase_of(slot.name)
    return phase


def node_info(
    kernel: Kernel,
    uptime: float,
    blocked: int,
    last_blocked: BlockedReport | None,
    expose_env: bool,
    metas: int,
    calls: int,
) -> NodeInfo:
    """Take a snapshot of a node, with its numbers of meta-processes and of waiting calls. From any
    thread.
    """
    router = kernel.router
    return NodeInfo(
        name=router.node,
        creation=router.creation,
        uptime=uptime,
        processes=len(router.processes),
        names=len(router.registry.names),
        aliases=len(router.registry.aliases),
        metas=metas,
        reader_threads=kernel.thread_fairness.readers,
        threads_abandoned=kernel.lifetimes.threads_abandoned,
        dispatcher_threads=kernel.dispatcher_threads.threads,
        relations=len(kernel.relations),
        timers=len(kernel.clock.timers),
        calls_in_flight=calls,
        dead_letters=dict(router.dead_letters.counts),
        late_replies=kernel.calls.late_replies,
        late_messages=router.dead_letters.late,
        spawned=kernel.lifetimes.spawned,
        crashed=kernel.lifetimes.crashed,
        log_lines_lost=kernel.log.lost,
        times_blocked=blocked,
        last_blocked=last_blocked,
        max_processes=kernel.options.max_processes,
        max_reader_threads=kernel.options.max_reader_threads,
        env=dict(kernel.env) if expose_env else None,
    )


def event_info(event: Event) -> EventInfo:
    """Take a snapshot of an event."""
    return EventInfo(
        name=event.name.name,
        producer=event.producer,
        published=event.published,
        kept=len(event.recent),
        open=event.open,
        subscribers={pid: subscription.dropped for pid, subscription in event.subscribers.items()},
    )


def meta_info(meta: Meta) -> MetaInfo:
    """Take a snapshot of a meta-process. Reads the stack of the reader's thread, and needs no
    answer from the handler.
    """
    relations, thread = meta.kernel.relations, meta.reader.thread
    now, history = perf_counter(), meta.handler.history
    row = read_row(meta, now)
    return MetaInfo(
        alias=meta.id,
        behaviour=meta.callbacks.behaviour,
        state=meta.state,
        history=tuple(
            (state, moment)
            for state, moment in zip(history[::2], history[1::2], strict=True)
            if isinstance(state, MetaState) and isinstance(moment, float)
        ),
        process=meta.process.id,
        parent=meta.owner.id,
        children=tuple(child.id for child in meta.owned.values()),
        lanes=meta.mailbox.depths(),
        messages_in=row.messages + row.mailbox,
        messages_out=row.sent,
        dropped=meta.mailbox.dropped,
        backlog=len(meta.outbox),
        backlog_dropped=meta.outbox.dropped,
        reader_waits=meta.outbox.reader_waits,
        reader="thread" if meta.reader.has_thread else "task",
        thread=None if thread is None else thread.name,
        thread_id=None if thread is None else thread.native_id,
        stack="" if thread is None else thread.stack(),
        callback=meta.current_callback(),
        message_type=message_type_of(meta),
        requests=len(meta.requests or ()),
        monitored_by=relations.of_target(meta.id, Kind.MONITOR),
        linked_by=relations.of_target(meta.id, Kind.LINK),
        uptime=now - meta.born,
        stopping=meta.reason is not None,
    )
