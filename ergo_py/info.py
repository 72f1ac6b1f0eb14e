"""Snapshots, statistics, and the other types of results that programs read and never construct:
import them for annotations.
"""

from typing import TYPE_CHECKING

from ._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from ._core.messaging.observer import (
        Delivered,
        Sent,
        Sight,
        Spawned,
        Stopped,
    )
    from ._core.speed.installation import (
        is_fast,
    )
    from ._core.tables.timers import (
        Timer,
    )
    from ._core.vocabulary.dispatchers import (
        Dispatcher,
    )
    from ._core.vocabulary.info import BlockedReport, ChildInfo, MetaInfo, NodeInfo, ProcessInfo
    from ._core.vocabulary.messages import (
        NoReply,
    )
    from ._core.vocabulary.states import State

__all__ = [
    "BlockedReport",
    "ChildInfo",
    "Delivered",
    "Dispatcher",
    "MetaInfo",
    "NoReply",
    "NodeInfo",
    "ProcessInfo",
    "Sent",
    "Sight",
    "Spawned",
    "State",
    "Stopped",
    "Timer",
    "is_fast",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "ergo_py._core.messaging.observer": "Delivered Sent Sight Spawned Stopped",
            "ergo_py._core.speed.installation": "is_fast",
            "ergo_py._core.tables.timers": "Timer",
            "ergo_py._core.vocabulary.dispatchers": "Dispatcher",
            "ergo_py._core.vocabulary.info": (
                "BlockedReport ChildInfo MetaInfo NodeInfo ProcessInfo"
            ),
            "ergo_py._core.vocabulary.messages": "NoReply",
            "ergo_py._core.vocabulary.states": "State",
        },
    )
