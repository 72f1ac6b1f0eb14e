"""Snapshots, statistics, and the other types of results that programs read and never construct:
import them for annotations.
"""

from typing import TYPE_CHECKING

from ._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from ._core.inspection.trace import (
        CallbackStatistics,
        Statistics,
        Trace,
        TraceEntry,
    )
    from ._core.messaging.observer import (
        Delivered,
        Sent,
        Sight,
        Spawned,
        Stopped,
    )
    from ._core.processes.background_task import (
        BackgroundTask,
    )
    from ._core.speed.installation import (
        is_fast,
    )
    from ._core.tables.obituaries import (
        Obituary,
    )
    from ._core.tables.timers import (
        Timer,
    )
    from ._core.verbs.node_inspection import (
        Queued,
    )
    from ._core.vocabulary.dispatchers import (
        Dispatcher,
    )
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
        NoReply,
    )
    from ._core.vocabulary.states import (
        MetaState,
        State,
    )
    from .schedules.scheduler import (
        JobInfo,
    )
    from .supervision.supervisor import (
        ChildCount,
    )
    from .supervision.tree import (
        TreeNode,
    )

__all__ = [
    "ApplicationInfo",
    "BackgroundTask",
    "BlockedReport",
    "CallbackStatistics",
    "ChildCount",
    "ChildInfo",
    "Delivered",
    "Dispatcher",
    "Ended",
    "EventInfo",
    "ExitReport",
    "JobInfo",
    "MetaInfo",
    "MetaState",
    "NoReply",
    "NodeInfo",
    "Obituary",
    "Phase",
    "ProcessInfo",
    "Queued",
    "RestartRecord",
    "Restarted",
    "Sent",
    "Sight",
    "Spawned",
    "State",
    "Statistics",
    "Stopped",
    "SupervisorInfo",
    "Timer",
    "Trace",
    "TraceEntry",
    "TreeNode",
    "is_fast",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "ergo_py._core.inspection.trace": "CallbackStatistics Statistics Trace TraceEntry",
            "ergo_py._core.messaging.observer": "Delivered Sent Sight Spawned Stopped",
            "ergo_py._core.processes.background_task": "BackgroundTask",
            "ergo_py._core.speed.installation": "is_fast",
            "ergo_py._core.tables.obituaries": "Obituary",
            "ergo_py._core.tables.timers": "Timer",
            "ergo_py._core.verbs.node_inspection": "Queued",
            "ergo_py._core.vocabulary.dispatchers": "Dispatcher",
            "ergo_py._core.vocabulary.info": (
                "ApplicationInfo BlockedReport ChildInfo Ended EventInfo ExitReport MetaInfo "
                "NodeInfo Phase ProcessInfo Restarted RestartRecord SupervisorInfo"
            ),
            "ergo_py._core.vocabulary.messages": "NoReply",
            "ergo_py._core.vocabulary.states": "MetaState State",
            "ergo_py.schedules.scheduler": "JobInfo",
            "ergo_py.supervision.supervisor": "ChildCount",
            "ergo_py.supervision.tree": "TreeNode",
        },
    )
