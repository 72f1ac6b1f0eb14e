"""Actors that never block, over I/O that does."""

from typing import TYPE_CHECKING

from ._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from ._core.inspection.trace import CallbackStatistics, Statistics, Trace, TraceEntry
    from ._core.messaging.observer import Delivered, Sent, Sight, Spawned, Stopped
    from ._core.metas.shared_state import Counter, Flag
    from ._core.processes.background_task import BackgroundTask
    from ._core.speed.installation import is_fast
    from ._core.tables.child_slot import Decision, Fate, Redirect
    from ._core.tables.obituaries import Obituary
    from ._core.tables.pending_calls import Caller
    from ._core.tables.timers import Timer
    from ._core.verbs.meta_process import MetaProcess
    from ._core.verbs.node_inspection import Queued
    from ._core.vocabulary.dispatchers import (
        LOOP,
        PINNED,
        POOL,
        Dispatcher,
        Pinned,
        Pod,
        ThreadPool,
    )
    from ._core.vocabulary.envelopes import Divert, Overflow, Priority
    from ._core.vocabulary.errors import (
        ApplicationError,
        ApplicationNeededError,
        ApplicationStartError,
        ApplicationUnknownError,
        BadInputError,
        BehaviourError,
        CallbackError,
        CallError,
        CallFailedError,
        CallTimeoutError,
        ChildBusyError,
        ChildDisabledError,
        ChildEnabledError,
        ChildExistsError,
        ChildNotRunningError,
        ChildRunningError,
        ChildUnknownError,
        ControlSocketError,
        DeadlockError,
        ErgoError,
        EscalationError,
        EventTakenError,
        EventUnknownError,
        InitError,
        InitTimeoutError,
        MailboxFullError,
        NameTakenError,
        NameUnknownError,
        NodeStoppedError,
        NotAllowedError,
        ProcessUnknownError,
        Reject,
        RelationExistsError,
        RelationUnknownError,
        SendError,
        ServiceBusyError,
        ServiceError,
        ServiceGoneError,
        ServiceTimeoutError,
        SpawnError,
        SupervisionError,
        TargetDownError,
        TargetTypeError,
        TaskEndedError,
        TaskError,
        TaskTimeoutError,
        TooManyProcessesError,
        TooManyReadersError,
        TooManyTasksError,
        UnhandledCallError,
    )
    from ._core.vocabulary.ids import PID, Alias, EventName, Name, NodeName, Ref
    from ._core.vocabulary.info import (
        ApplicationInfo,
        BlockedReport,
        ChildInfo,
        Ended,
        EventInfo,
        ExitReport,
        MetaInfo,
        NodeInfo,
        Phase,
        ProcessInfo,
        Restarted,
        RestartRecord,
        SupervisorInfo,
    )
    from ._core.vocabulary.messages import (
        NO_REPLY,
        DeadLetter,
        Diverted,
        Down,
        EventStarted,
        EventStopped,
        Exit,
        LogRecord,
        NoReply,
        Published,
        Request,
        Response,
        Why,
    )
    from ._core.vocabulary.options import Behind
    from ._core.vocabulary.reasons import (
        Crashed,
        Custom,
        Killed,
        NoNode,
        NoProcess,
        Normal,
        Reason,
        RestartLimit,
        Shutdown,
        Unregistered,
    )
    from ._core.vocabulary.states import MetaState, State
    from .actor import Actor
    from .applications.application import Application, Needs
    from .node import Node, open_node
    from .program import run
    from .service import Service
    from .state_machine.machine import StateMachine
    from .state_machine.states import (
        EventTimeout,
        MachineState,
        NamedTimeout,
        StateMethod,
        StateTimeout,
        state,
    )
    from .supervision.handle import SupervisorHandle
    from .supervision.pool import (
        BY_KEY,
        LEAST_LOADED,
        ROUND_ROBIN,
        Pool,
        PoolHandle,
        PoolSpec,
        Routing,
    )
    from .supervision.specs import (
        ALL_FOR_ONE,
        ALWAYS,
        BRUTAL,
        DEAD_LETTER,
        DROP,
        ESCALATE,
        INFINITE,
        KEEP,
        NEVER,
        ON_FAILURE,
        ONE_FOR_ONE,
        PERMANENT,
        REST_FOR_ONE,
        RESTART,
        RESUME,
        SIMPLE_ONE_FOR_ONE,
        STOP,
        TEMPORARY,
        TRANSIENT,
        Backoff,
        Budget,
        ChildSpec,
        RestartPolicy,
        Strategy,
        SupervisorSpec,
    )
    from .supervision.supervisor import ChildCount, Supervisor
    from .supervision.tree import TreeNode
    from .tasks.handle import Task, TaskResult, first_of
    from .tasks.process import TaskSupervisor
    from .tasks.stream import FailedItem, MapStream

__all__ = [
    "ALL_FOR_ONE",
    "ALWAYS",
    "BRUTAL",
    "BY_KEY",
    "DEAD_LETTER",
    "DROP",
    "ESCALATE",
    "INFINITE",
    "KEEP",
    "LEAST_LOADED",
    "LOOP",
    "NEVER",
    "NO_REPLY",
    "NoReply",
    "ONE_FOR_ONE",
    "ON_FAILURE",
    "PERMANENT",
    "PID",
    "PINNED",
    "POOL",
    "RESTART",
    "REST_FOR_ONE",
    "RESUME",
    "ROUND_ROBIN",
    "SIMPLE_ONE_FOR_ONE",
    "STOP",
    "TEMPORARY",
    "TRANSIENT",
    "Actor",
    "Alias",
    "Application",
    "ApplicationError",
    "ApplicationInfo",
    "ApplicationNeededError",
    "ApplicationStartError",
    "ApplicationUnknownError",
    "Backoff",
    "BackgroundTask",
    "BadInputError",
    "BehaviourError",
    "Behind",
    "BlockedReport",
    "Budget",
    "CallError",
    "CallFailedError",
    "CallTimeoutError",
    "CallbackError",
    "CallbackStatistics",
    "Caller",
    "ChildBusyError",
    "ChildCount",
    "ChildDisabledError",
    "ChildEnabledError",
    "ChildExistsError",
    "ChildInfo",
    "ChildNotRunningError",
    "ChildRunningError",
    "ChildSpec",
    "ChildUnknownError",
    "ControlSocketError",
    "Counter",
    "Crashed",
    "Custom",
    "DeadLetter",
    "DeadlockError",
    "Decision",
    "Delivered",
    "Dispatcher",
    "Divert",
    "Diverted",
    "Down",
    "Ended",
    "ErgoError",
    "EscalationError",
    "EventInfo",
    "EventName",
    "EventStarted",
    "EventStopped",
    "EventTakenError",
    "EventTimeout",
    "EventUnknownError",
    "Exit",
    "ExitReport",
    "FailedItem",
    "Fate",
    "Flag",
    "InitError",
    "InitTimeoutError",
    "Killed",
    "LogRecord",
    "MachineState",
    "MailboxFullError",
    "MapStream",
    "MetaInfo",
    "MetaProcess",
    "MetaState",
    "Name",
    "NameTakenError",
    "NameUnknownError",
    "NamedTimeout",
    "Needs",
    "NoNode",
    "NoProcess",
    "Node",
    "NodeInfo",
    "NodeName",
    "NodeStoppedError",
    "Normal",
    "NotAllowedError",
    "Obituary",
    "Overflow",
    "Phase",
    "Pinned",
    "Pod",
    "Pool",
    "PoolHandle",
    "PoolSpec",
    "Priority",
    "ProcessInfo",
    "ProcessUnknownError",
    "Published",
    "Queued",
    "Reason",
    "Redirect",
    "Ref",
    "Reject",
    "RelationExistsError",
    "RelationUnknownError",
    "Request",
    "Response",
    "RestartLimit",
    "RestartPolicy",
    "RestartRecord",
    "Restarted",
    "Routing",
    "SendError",
    "Sent",
    "Service",
    "ServiceBusyError",
    "ServiceError",
    "ServiceGoneError",
    "ServiceTimeoutError",
    "Shutdown",
    "Sight",
    "SpawnError",
    "Spawned",
    "State",
    "Statistics",
    "StateMachine",
    "StateMethod",
    "StateTimeout",
    "Stopped",
    "Strategy",
    "SupervisionError",
    "Supervisor",
    "SupervisorHandle",
    "SupervisorInfo",
    "SupervisorSpec",
    "TargetDownError",
    "TargetTypeError",
    "Task",
    "TaskEndedError",
    "TaskError",
    "TaskResult",
    "TaskSupervisor",
    "TaskTimeoutError",
    "ThreadPool",
    "Timer",
    "TooManyProcessesError",
    "TooManyReadersError",
    "TooManyTasksError",
    "Trace",
    "TraceEntry",
    "TreeNode",
    "UnhandledCallError",
    "Unregistered",
    "Why",
    "first_of",
    "is_fast",
    "open_node",
    "run",
    "state",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "_core.inspection.trace": "CallbackStatistics Statistics Trace TraceEntry",
            "_core.messaging.observer": "Delivered Sent Sight Spawned Stopped",
            "_core.metas.shared_state": "Counter Flag",
            "_core.processes.background_task": "BackgroundTask",
            "_core.speed.installation": "is_fast",
            "_core.tables.child_slot": "Decision Fate Redirect",
            "_core.tables.obituaries": "Obituary",
            "_core.tables.pending_calls": "Caller",
            "_core.tables.timers": "Timer",
            "_core.verbs.meta_process": "MetaProcess",
            "_core.verbs.node_inspection": "Queued",
            "_core.vocabulary.dispatchers": "LOOP PINNED POOL Dispatcher Pinned Pod ThreadPool",
            "_core.vocabulary.envelopes": "Divert Overflow Priority",
            "_core.vocabulary.errors": (
                "ApplicationError ApplicationNeededError ApplicationStartError "
                "ApplicationUnknownError BadInputError BehaviourError CallbackError CallError "
                "CallFailedError CallTimeoutError ChildBusyError ChildDisabledError "
                "ChildEnabledError ChildExistsError ChildNotRunningError ChildRunningError "
                "ChildUnknownError ControlSocketError DeadlockError ErgoError EscalationError "
                "EventTakenError EventUnknownError InitError InitTimeoutError "
                "MailboxFullError NameTakenError NameUnknownError NodeStoppedError "
                "NotAllowedError ProcessUnknownError Reject RelationExistsError "
                "RelationUnknownError SendError ServiceBusyError ServiceError "
                "ServiceGoneError ServiceTimeoutError SpawnError SupervisionError "
                "TargetDownError TargetTypeError TaskEndedError TaskError TaskTimeoutError "
                "TooManyProcessesError TooManyReadersError TooManyTasksError UnhandledCallError"
            ),
            "_core.vocabulary.ids": "PID Alias EventName Name NodeName Ref",
            "_core.vocabulary.info": (
                "ApplicationInfo BlockedReport ChildInfo Ended EventInfo ExitReport MetaInfo "
                "NodeInfo Phase ProcessInfo Restarted RestartRecord SupervisorInfo"
            ),
            "_core.vocabulary.messages": (
                "NO_REPLY DeadLetter Diverted Down EventStarted EventStopped Exit LogRecord "
                "NoReply Published Request Response Why"
            ),
            "_core.vocabulary.options": "Behind",
            "_core.vocabulary.reasons": (
                "Crashed Custom Killed NoNode NoProcess Normal Reason RestartLimit Shutdown "
                "Unregistered"
            ),
            "_core.vocabulary.states": "MetaState State",
            "actor": "Actor",
            "applications.application": "Application Needs",
            "node": "Node open_node",
            "program": "run",
            "service": "Service",
            "state_machine.machine": "StateMachine",
            "state_machine.states": (
                "EventTimeout MachineState NamedTimeout StateMethod StateTimeout state"
            ),
            "supervision.handle": "SupervisorHandle",
            "supervision.pool": "BY_KEY LEAST_LOADED ROUND_ROBIN Pool PoolHandle PoolSpec Routing",
            "supervision.specs": (
                "ALL_FOR_ONE ALWAYS BRUTAL DEAD_LETTER DROP ESCALATE INFINITE KEEP NEVER "
                "ON_FAILURE ONE_FOR_ONE PERMANENT REST_FOR_ONE RESTART RESUME "
                "SIMPLE_ONE_FOR_ONE STOP TEMPORARY TRANSIENT Backoff Budget ChildSpec "
                "RestartPolicy Strategy SupervisorSpec"
            ),
            "supervision.supervisor": "ChildCount Supervisor",
            "supervision.tree": "TreeNode",
            "tasks.handle": "Task TaskResult first_of",
            "tasks.process": "TaskSupervisor",
            "tasks.stream": "FailedItem MapStream",
        },
    )
