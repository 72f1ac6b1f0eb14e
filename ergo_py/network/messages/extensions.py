"""The codes of the MessagePack extensions that messages use, and the readers of those that need no
list of classes.
"""

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from ..._core.vocabulary.ids import PID, Alias, EventName, Key, Name, NodeName, Ref
from ..._core.vocabulary.reasons import Crashed
from ..._core.vocabulary.text import brief
from ..errors import RemoteError
from .listed_class import UnreadableValueError

__all__ = ["KINDS", "NESTED", "READERS", "Code"]


class Code:
    """The codes of the extensions."""

    # The codes are the protocol, and stand in the stored records of entities, too: a code is never
    # given to another type.
    TUPLE = 1
    SET = 2
    FROZENSET = 3
    PAIRS = 6
    PID = 10
    ALIAS = 11
    REF = 12
    NAME = 13
    NODE_NAME = 14
    EVENT_NAME = 15
    KEY = 16
    DATETIME = 20
    DATE = 21
    TIME = 22
    TIMEDELTA = 23
    UUID = 24
    DECIMAL = 25
    BYTEARRAY = 26
    OBJECT = 30
    ENUM = 31
    EXCEPTION = 32
    CRASHED = 33
    REMOTE_ERROR = 34


NESTED: Final = frozenset(
    {
        Code.TUPLE,
        Code.PID,
        Code.ALIAS,
        Code.REF,
        Code.NAME,
        Code.NODE_NAME,
        Code.EVENT_NAME,
        Code.KEY,
        Code.TIMEDELTA,
        Code.REMOTE_ERROR,
    }
)
"""Extensions whose content is encoded as well."""


def _checked(cls: type[Any], *field_types: type) -> Callable[[list[Any]], Any]:
    """A reader for a named tuple. Its fields must have these types."""

    def read(values: list[Any]) -> Any:
        # An address goes from a message into tables of this node: fields of other types would raise
        # there, far from the message that brought them.
        if len(values) != len(field_types) or not all(map(isinstance, values, field_types)):
            raise UnreadableValueError(
                f"{brief(values, 100)} are not the fields of a {cls.__name__}"
            )
        return cls(*values)

    return read


READERS: Final[dict[int, Callable[[Any], Any]]] = {
    Code.TUPLE: tuple,
    Code.PID: _checked(PID, str, int, int),
    Code.ALIAS: _checked(Alias, str, int, int),
    Code.REF: _checked(Ref, str, int, int),
    Code.NAME: _checked(Name, str, str),
    Code.NODE_NAME: _checked(NodeName, str),
    Code.EVENT_NAME: _checked(EventName, str, str),
    Code.KEY: _checked(Key, str, object, str),
    Code.DATETIME: lambda data: datetime.fromisoformat(data.decode()),
    Code.DATE: lambda data: date.fromisoformat(data.decode()),
    Code.TIME: lambda data: time.fromisoformat(data.decode()),
    Code.TIMEDELTA: lambda parts: timedelta(*parts),
    Code.UUID: lambda data: UUID(bytes=data),
    Code.DECIMAL: lambda data: Decimal(data.decode()),
    Code.BYTEARRAY: bytearray,
    Code.REMOTE_ERROR: lambda parts: RemoteError(*map(str, parts)),
}


KINDS: Final[dict[int, type]] = {
    Code.TUPLE: tuple,
    Code.SET: set,
    Code.FROZENSET: frozenset,
    Code.PAIRS: dict,
    Code.PID: PID,
    Code.ALIAS: Alias,
    Code.REF: Ref,
    Code.NAME: Name,
    Code.NODE_NAME: NodeName,
    Code.EVENT_NAME: EventName,
    Code.KEY: Key,
    Code.DATETIME: datetime,
    Code.DATE: date,
    Code.TIME: time,
    Code.TIMEDELTA: timedelta,
    Code.UUID: UUID,
    Code.DECIMAL: Decimal,
    Code.BYTEARRAY: bytearray,
    Code.CRASHED: Crashed,
    Code.REMOTE_ERROR: RemoteError,
}
"""The types of the extensions that need no name."""
