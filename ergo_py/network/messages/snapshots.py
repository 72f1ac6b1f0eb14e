"""`snapshot_types` and `plain`: snapshots of a node, as they travel to another node."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any, Final

from ..._core.tables.obituaries import Obituary
from ..._core.vocabulary.ids import PID, Alias, EventName, Name, NodeName, Ref
from ..._core.vocabulary.info import (
    ApplicationInfo,
    BlockedReport,
    ChildInfo,
    MetaInfo,
    NodeInfo,
    Phase,
    ProcessInfo,
    RestartRecord,
    SupervisorInfo,
)
from ..._core.vocabulary.messages import DeadLetter, Why
from ..._core.vocabulary.reasons import Reason, Shutdown
from ..._core.vocabulary.states import MetaState, State
from ..._core.vocabulary.text import shown, text_of, utf8
from ...supervision.tree import TreeNode
from ..traffic.info import NetworkInfo, PeerInfo
from .listed_class import RefusedValueError
from .message_types import MessageTypes

__all__ = ["encode_snapshot", "snapshot_types"]

_CLASSES: Final = (
    ApplicationInfo,
    BlockedReport,
    ChildInfo,
    DeadLetter,
    MetaInfo,
    MetaState,
    NetworkInfo,
    NodeInfo,
    Obituary,
    PeerInfo,
    Phase,
    ProcessInfo,
    RestartRecord,
    State,
    SupervisorInfo,
    TreeNode,
    Why,
)
_PLAIN: Final = (
    int,
    float,
    bool,
    bytes,
    type(None),
    PID,
    Alias,
    EventName,
    Name,
    NodeName,
    Ref,
)


def snapshot_types(listed: Iterable[type | ModuleType]) -> MessageTypes:
    """The types of messages of a network, and the classes of snapshots. A node with many processes
    has more values than a message may have, so snapshots are decoded in a thread.
    """
    return MessageTypes(listed, _CLASSES, is_counted=False)


def encode_snapshot(types: MessageTypes, value: object) -> bytes:
    """The bytes of a snapshot. A value in it that cannot travel, as in the environment of a
    process, becomes text.
    """
    try:
        # The whole first: mostly all of it travels, and needs no walk over its values.
        return types.encode(value)
    except RefusedValueError:
        return types.encode(_plain(value, types))


def _plain(value: Any, types: MessageTypes) -> Any:
    cls = type(value)
    if cls is str:
        return utf8(value)
    if cls in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return {_plain(key, types): _plain(item, types) for key, item in value.items()}
    if cls in (tuple, list, set, frozenset):
        return cls([_plain(item, types) for item in value])
    if cls in _CLASSES and is_dataclass(cls):
        parts = {field.name: _plain(getattr(value, field.name), types) for field in fields(cls)}
        return cls(**parts)
    try:
        types.encode(value)
    except RefusedValueError:
        text = utf8(text_of(value) if isinstance(value, Reason) else shown(value))
        return Shutdown(text) if isinstance(value, Reason) else text
    return value
