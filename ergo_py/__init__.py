"""Actors that never block, over I/O that does."""

from typing import TYPE_CHECKING

from ._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from ._core.tables.pending_calls import (
        Caller,
    )
    from ._core.verbs.meta_process import (
        MetaProcess,
    )
    from ._core.vocabulary.dispatchers import (
        LOOP,
        Threads,
    )
    from ._core.vocabulary.envelopes import (
        Divert,
        Overflow,
        Priority,
    )
    from ._core.vocabulary.errors import (
        BadInputError,
        CallError,
        CallTimeoutError,
        ErgoError,
        InitError,
        MailboxFullError,
        NameTakenError,
        NodeStoppedError,
        NotAllowedError,
        Reject,
        SpawnError,
        TargetDownError,
    )
    from ._core.vocabulary.ids import (
        PID,
        Alias,
        EventName,
        Key,
        Name,
        NodeName,
        Ref,
    )
    from ._core.vocabulary.messages import (
        NO_REPLY,
        DeadLetter,
        Diverted,
        Down,
        Drain,
        EventStarted,
        EventStopped,
        Exit,
        GroupJoined,
        GroupLeft,
        LogRecord,
        NodeDown,
        NodeUp,
        Published,
        Request,
        Response,
        Why,
    )
    from ._core.vocabulary.options import (
        Behind,
    )
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
    from .actor import (
        Actor,
    )
    from .applications.application import (
        Application,
        Needs,
    )
    from .groups import (
        Group,
        Registry,
    )
    from .methods import (
        ask,
        exposed,
    )
    from .node import (
        Node,
        open_node,
    )
    from .program import (
        run,
    )
    from .schedules.cron import (
        Cron,
    )
    from .schedules.job import (
        Job,
    )
    from .schedules.scheduler import (
        Scheduler,
    )
    from .service import (
        Service,
    )
    from .state_machine.machine import (
        StateMachine,
    )
    from .supervision.pool import (
        Pool,
        PoolSpec,
        Routing,
    )
    from .supervision.specs import (
        Backoff,
        ChildSpec,
        RestartPolicy,
        Strategy,
        SupervisorSpec,
    )
    from .supervision.supervisor import (
        Supervisor,
    )
    from .tasks.handle import (
        first_of,
    )
    from .tasks.process import (
        TaskSupervisor,
    )

__all__ = [
    "LOOP",
    "NO_REPLY",
    "PID",
    "Actor",
    "Alias",
    "Application",
    "Backoff",
    "BadInputError",
    "Behind",
    "CallError",
    "CallTimeoutError",
    "Caller",
    "ChildSpec",
    "Crashed",
    "Cron",
    "Custom",
    "DeadLetter",
    "Divert",
    "Diverted",
    "Down",
    "Drain",
    "ErgoError",
    "EventName",
    "EventStarted",
    "EventStopped",
    "Exit",
    "Group",
    "GroupJoined",
    "GroupLeft",
    "InitError",
    "Job",
    "Key",
    "Killed",
    "LogRecord",
    "MailboxFullError",
    "MetaProcess",
    "Name",
    "NameTakenError",
    "Needs",
    "NoNode",
    "NoProcess",
    "Node",
    "NodeDown",
    "NodeName",
    "NodeStoppedError",
    "NodeUp",
    "Normal",
    "NotAllowedError",
    "Overflow",
    "Pool",
    "PoolSpec",
    "Priority",
    "Published",
    "Reason",
    "Ref",
    "Registry",
    "Reject",
    "Request",
    "Response",
    "RestartLimit",
    "RestartPolicy",
    "Routing",
    "Scheduler",
    "Service",
    "Shutdown",
    "SpawnError",
    "StateMachine",
    "Strategy",
    "Supervisor",
    "SupervisorSpec",
    "TargetDownError",
    "TaskSupervisor",
    "Threads",
    "Unregistered",
    "Why",
    "ask",
    "exposed",
    "first_of",
    "open_node",
    "run",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "_core.tables.pending_calls": "Caller",
            "_core.verbs.meta_process": "MetaProcess",
            "_core.vocabulary.dispatchers": "LOOP Threads",
            "_core.vocabulary.envelopes": "Divert Overflow Priority",
            "_core.vocabulary.errors": (
                "BadInputError CallError CallTimeoutError ErgoError InitError MailboxFullError "
                "NameTakenError NodeStoppedError NotAllowedError Reject SpawnError "
                "TargetDownError"
            ),
            "_core.vocabulary.ids": "PID Alias EventName Key Name NodeName Ref",
            "_core.vocabulary.messages": (
                "NO_REPLY DeadLetter Diverted Down Drain EventStarted EventStopped Exit "
                "GroupJoined GroupLeft LogRecord NodeDown NodeUp Published Request Response Why"
            ),
            "_core.vocabulary.options": "Behind",
            "_core.vocabulary.reasons": (
                "Crashed Custom Killed NoNode NoProcess Normal Reason RestartLimit Shutdown "
                "Unregistered"
            ),
            "actor": "Actor",
            "applications.application": "Application Needs",
            "groups": "Group Registry",
            "methods": "ask exposed",
            "node": "Node open_node",
            "program": "run",
            "schedules.cron": "Cron",
            "schedules.job": "Job",
            "schedules.scheduler": "Scheduler",
            "service": "Service",
            "state_machine.machine": "StateMachine",
            "supervision.pool": "Pool PoolSpec Routing",
            "supervision.specs": "Backoff ChildSpec RestartPolicy Strategy SupervisorSpec",
            "supervision.supervisor": "Supervisor",
            "tasks.handle": "first_of",
            "tasks.process": "TaskSupervisor",
        },
    )
