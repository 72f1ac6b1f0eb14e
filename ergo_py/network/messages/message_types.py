"""`MessageTypes`: the types of messages that may travel between nodes, and their encoding.

Only listed classes travel, under a name on the wire. The receiver looks the name up in its own
list: it never imports code because of a message. The value that arrives equals the value that was
sent, in its content and its type.
"""

import types
from collections.abc import Callable, Collection, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.ids import PID, Alias, EventName, Key, Name, NodeName, Ref
from ..._core.vocabulary.messages import Down, Exit
from ..._core.vocabulary.reasons import (
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
from ..._core.vocabulary.text import brief, shown, text_of, utf8
from ..errors import RemoteError
from .closed_types import MARK
from .codec import Ext, msgspec
from .encoded_values import SHORT, problem_of
from .exceptions import BUILTIN, UNRAISABLE, arguments_of, attributes_of, remade
from .extensions import KINDS, NESTED, READERS, Code
from .hashed_elements import FEW, Work
from .listed_class import (
    ListedClass,
    RefusedValueError,
    UnreadableValueError,
    can_be_listed,
    listed_class,
    wire_name_of,
)
from .type_names import type_of

__all__ = ["MessageTypes", "reason_of"]

_LEAVES: Final[frozenset[type]] = frozenset({str, int, float, bool, bytes, type(None)})
_KEYS: Final = frozenset({str, int})

_OWN: Final = (
    Normal,
    Shutdown,
    Killed,
    NoProcess,
    NoNode,
    Unregistered,
    Custom,
    RestartLimit,
    Exit,
    Down,
)
"""Classes of the framework that every node knows, under names of their own."""


class MessageTypes:
    """The listed types of a node. Encodes values for other nodes, and decodes theirs.

    Raises:
        BadInputError: a type cannot travel, or two types have the same name on the wire.
    """

    def __init__(
        self,
        listed: Iterable[type | types.ModuleType] = (),
        own: Iterable[type] = (),
        is_limited: bool = True,
        is_counted: bool = True,
        place: str = "of the network, on both nodes",
    ) -> None:
        """List the types. Without limits, sets and dicts have any size: their elements come from
        this program itself. Values that are not counted are decoded in a thread of their own. The
        errors about unlisted classes tell the ``place`` of the list.
        """
        self._place = place
        self.listed: Final = tuple(listed)
        """The types and modules, as the program has listed them."""
        self._work = Work(is_limited, lambda value: len(_encode(self._plain(value))))
        self._is_counted = is_counted
        self._by_name: dict[str, ListedClass] = {}
        self._enums: dict[str, type[Enum]] = {}
        self._exceptions: dict[str, type[Exception]] = dict(BUILTIN)
        self._exception_names: dict[type, str] = {cls: name for name, cls in BUILTIN.items()}
        self._tags: dict[type, Callable[[Any], Any]] = {
            list: self._list,
            dict: self._dict,
            tuple: lambda value: self._tagged(Code.TUPLE, list(value)),
            set: lambda value: self._hashed(Code.SET, list(value)),
            frozenset: lambda value: self._hashed(Code.FROZENSET, list(value)),
            PID: lambda pid: Ext(Code.PID, _encode(tuple(pid))),
            Alias: lambda alias: Ext(Code.ALIAS, _encode(tuple(alias))),
            Ref: lambda ref: Ext(Code.REF, _encode(tuple(ref)[:3])),
            Name: lambda name: Ext(Code.NAME, _encode(tuple(name))),
            NodeName: lambda name: Ext(Code.NODE_NAME, _encode(tuple(name))),
            EventName: lambda name: Ext(Code.EVENT_NAME, _encode(tuple(name)[:2])),
            Key: lambda key: self._tagged(Code.KEY, list(key)[:3]),
            datetime: lambda value: Ext(Code.DATETIME, value.isoformat().encode()),
            date: lambda value: Ext(Code.DATE, value.isoformat().encode()),
            time: lambda value: Ext(Code.TIME, value.isoformat().encode()),
            timedelta: lambda value: Ext(
                Code.TIMEDELTA, _encode((value.days, value.seconds, value.microseconds))
            ),
            UUID: lambda value: Ext(Code.UUID, value.bytes),
            Decimal: lambda value: Ext(Code.DECIMAL, str(value).encode()),
            bytearray: lambda value: Ext(Code.BYTEARRAY, bytes(value)),
            Crashed: self._crashed,
            RemoteError: lambda error: _told(error.type_name, error.text),
        }
        self.encoders: dict[type, Callable[[Any], bytes]] = dict.fromkeys(_LEAVES, _encode)
        """Functions that encode values of some classes: those of `encode`, without the texts of its
        errors.
        """
        # Looked up by a part of the bytes that arrive, which may be a view.
        self._closed_names: dict[bytes | memoryview, ListedClass] = {}
        self._closed_decoders: dict[bytes | memoryview, Callable[[bytes | memoryview], Any]] = {}
        self._decode_part = _decoder(Any, self._read)
        """Decodes a value, and the content of an extension."""
        self._decode_named = _decoder(dict[str, Any], self._read)
        """Decodes the fields of a closed class."""
        for cls in (*_OWN, *own):
            self._add(cls, f"ergo.{cls.__name__}")
        self._add_listed()

    # -- the list ----------------------------------------------------------------------------------

    def _add_listed(self) -> None:
        for entry in self.listed:
            if isinstance(entry, types.ModuleType):
                self._add_module(entry)
            else:
                self._add(entry, wire_name_of(entry))

    def _add_module(self, module: types.ModuleType) -> None:
        for value in list(vars(module).values()):
            # A class that the module only imports is not listed by it: an import must not widen the
            # list of the types that travel.
            if (
                isinstance(value, type)
                and value.__module__ == module.__name__
                and can_be_listed(value)
            ):
                self._add(value, wire_name_of(value))

    def _add(self, cls: type, wire_name: str) -> None:
        if not isinstance(cls, type) or not can_be_listed(cls):
            raise BadInputError(
                "types",
                cls,
                "a module, or a class: a dataclass, a msgspec.Struct, a NamedTuple, an Enum or an "
                "exception",
            )
        if issubclass(cls, UNRAISABLE):
            raise BadInputError(
                "types",
                cls,
                "an exception that a coroutine can raise: Python turns StopIteration into a "
                "RuntimeError",
            )
        self._refuse_double(cls, wire_name)
        if issubclass(cls, Enum):
            self._enums[wire_name] = cls
            self._tags[cls] = lambda member: Ext(Code.ENUM, _encode((wire_name, member.name)))
        elif issubclass(cls, Exception):
            self._exceptions[wire_name] = cls
            self._exception_names[cls] = wire_name
        else:
            entry = listed_class(cls, wire_name)
            self._by_name[wire_name] = entry
            self._tags[cls] = lambda value: self._object(entry, value)
            self._closed_names[wire_name.encode()] = entry
            if entry.closed is not None:
                self.encoders[cls] = entry.closed.encoder(self._encode_parts)
                self._closed_decoders[wire_name.encode()] = entry.closed.decode

    def _refuse_double(self, cls: type, wire_name: str) -> None:
        entry = self._by_name.get(wire_name)
        other: type | None = (
            entry.cls
            if entry is not None
            else self._enums.get(wire_name) or self._exceptions.get(wire_name)
        )
        if other is not None and other is not cls:
            raise BadInputError(
                "types",
                cls,
                f"one class for each name on the wire: {other.__module__}.{other.__qualname__} has "
                f'the name {wire_name!r}, too; give one of them `__wire__ = "another name"`',
            )

    # -- encoding ----------------------------------------------------------------------------------

    def encode(self, value: object) -> bytes:
        """The bytes of a value.

        Raises:
            RefusedValueError: a part of the value cannot travel.
        """
        try:
            return self.encoders.get(type(value), self._encode_parts)(value)
        except RefusedValueError:
            raise
        except RecursionError:
            raise RefusedValueError("it is nested too deeply, or contains itself") from None
        except Exception as error:
            # A text with surrogates, a large int; or a class of the user whose field raises.
            raise RefusedValueError(utf8(text_of(error))) from None

    def _encode_parts(self, value: object) -> bytes:
        self._work.begin()
        data = _encode(self._plain(value))
        if len(data) > SHORT and self._work.is_limited:
            # The check of the receiver, at the sender: there the error reaches the code that made
            # the message, and the receiver has no dead letter.
            problem = problem_of(data, self._is_counted)
            if problem:
                raise RefusedValueError(problem)
        return data

    def encode_reason(self, reason: Reason) -> bytes:
        """The bytes of a reason. A value in it that cannot travel becomes text, and a long text is
        cut. Never raises: the end of a process is told while the process ends.
        """
        try:
            data = self.encode(reason)
        except RefusedValueError:
            data = b""
        if 0 < len(data) <= _REASON:
            return data
        if isinstance(reason, Crashed):
            error = RemoteError(type(reason.error).__qualname__, _cut(text_of(reason.error)))
            return self.encode(Crashed.told(error, _cut(reason.traceback)))
        return self.encode(Shutdown(_cut(text_of(reason))))

    def _plain(self, value: object) -> object:
        """The value as MessagePack knows it: other types become extensions."""
        # The exact type, not isinstance(): a subclass of str or of a listed class would arrive as
        # another type than it was sent.
        cls = type(value)
        if cls in _LEAVES:
            return value
        tag = self._tags.get(cls)
        if tag is not None:
            return tag(value)
        if isinstance(value, Exception):
            return self._exception(value)
        raise RefusedValueError(
            f"{cls.__module__}.{cls.__qualname__} is not among the types that travel; list it in "
            f"`types=[{cls.__qualname__}]` {self._place}"
            if can_be_listed(cls)
            else f"a value of the type {cls.__module__}.{cls.__qualname__} cannot travel; send "
            "plain values, dataclasses or msgspec.Structs"
        )

    def _tagged(self, code: int, values: list[Any]) -> Ext:
        return Ext(code, _encode(self._list(values)))

    def _hashed(self, code: int, values: list[Any]) -> Ext:
        if problem := self._work.problem_of("a set", values):
            raise RefusedValueError(problem)
        return self._tagged(code, values)

    def _list(self, values: Iterable[Any]) -> list[Any]:
        return [value if type(value) in _LEAVES else self._plain(value) for value in values]

    def _dict(self, values: dict[Any, Any]) -> object:
        if len(values) <= FEW and _KEYS.issuperset(map(type, values)):
            return {
                key: value if type(value) in _LEAVES else self._plain(value)
                for key, value in values.items()
            }
        return self._pairs(values, self._list(values.values()))

    def _named(self, parts: dict[str, object]) -> object:
        """A dict of encoded values, by names."""
        return parts if len(parts) <= FEW else self._pairs(parts, parts.values())

    def _pairs(self, keys: Collection[object], values: Iterable[object]) -> Ext:
        """A dict as a single list: all its keys, and then all its encoded values."""
        if problem := self._work.problem_of("a dict", keys):
            raise RefusedValueError(problem)
        return Ext(Code.PAIRS, _encode([*self._list(keys), *values]))

    def _object(self, entry: ListedClass, value: object) -> Ext:
        fields = {}
        for name in entry.fields:
            part = getattr(value, name)
            fields[name] = part if type(part) in _LEAVES else self._plain(part)
        return Ext(Code.OBJECT, _encode((entry.wire_name, self._named(fields))))

    def _exception(self, error: Exception) -> Ext:
        name = self._exception_names.get(type(error))
        if name is not None:
            try:
                args = self._list(list(arguments_of(error)))
                attributes = {
                    name: self._attribute(value) for name, value in attributes_of(error).items()
                }
                parts = (name, args, self._named(attributes)) if attributes else (name, args)
                return Ext(Code.EXCEPTION, _encode(parts))
            except Exception:  # as in encode()
                pass
        return _told(type(error).__qualname__, text_of(error))

    def _attribute(self, value: object) -> object:
        """An attribute of an exception. A value that cannot travel becomes text."""
        try:
            plain = self._plain(value)
            _encode(plain)
        except Exception:  # as in encode()
            return utf8(shown(value))
        return plain

    def _crashed(self, reason: Crashed) -> Ext:
        error = reason.error
        plain = (
            self._plain(error)
            if isinstance(error, Exception)
            else _told(type(error).__qualname__, text_of(error))
        )
        return Ext(Code.CRASHED, _encode((plain, utf8(reason.traceback))))

    # -- decoding ----------------------------------------------------------------------------------

    def decode(self, data: bytes | memoryview) -> Any:
        """The value with these bytes.

        Raises:
            UnreadableValueError: the bytes are not a value, or a type is not listed here.
        """
        try:
            if data[0] != MARK:
                return self._decode(data)
            end = 2 + data[1]
            decode = self._closed_decoders.get(data[2:end])
            if decode is not None:
                try:
                    # To copy a short message is cheaper than to make a view of it.
                    return decode(data[end:] if len(data) < _SHORT else memoryview(data)[end:])
                except Exception:
                    # The class may have other fields in the other node: read them by name below,
                    # which raises the error for bytes that are no such value at all.
                    pass
            return self._decode_fields(self._closed_names.get(data[2:end]), data, end)
        except UnreadableValueError:
            raise
        except RecursionError:
            raise UnreadableValueError("the value is nested too deeply") from None
        except Exception as error:
            raise UnreadableValueError(text_of(error)) from None

    def type_of(self, data: bytes | memoryview) -> type | None:
        """The type of the value with these bytes, which stay encoded; None if it is unknown."""
        return type_of(data, self._type_of_code)

    def _type_of_code(self, code: int, name: Callable[[], str]) -> type | None:
        if code in (Code.OBJECT, MARK):
            entry = self._by_name.get(name())
            return None if entry is None else entry.cls
        if code == Code.ENUM:
            return self._enums.get(name())
        if code == Code.EXCEPTION:
            return self._exceptions.get(name(), RemoteError)
        return KINDS.get(code)

    def decode_reason(self, data: bytes) -> Reason:
        """The reason with these bytes. Bytes of any other value are a reason that says so: the
        processes here must not depend on the honesty of another node.
        """
        try:
            found = self.decode(data)
        except UnreadableValueError as error:
            return Shutdown(str(error))
        return reason_of(found)

    def _decode_fields(
        self, entry: ListedClass | None, data: bytes | memoryview, start: int
    ) -> object:
        """The instance of a closed class that has other fields here."""
        if entry is None:
            raise _unlisted(bytes(data[2:start]).decode("utf-8", "replace"))
        fields = memoryview(data)[start:]
        # The only map with more than a few keys in a message: they are decoded as texts.
        self._begin(fields, 3 if bytes(fields[:1]) == b"\xde" else 0)
        return entry.make(self._decode_named(fields))

    def _decode(self, data: bytes | memoryview) -> Any:
        if len(data) > SHORT:
            self._begin(data)
            return self._decode_part(data)
        try:
            return self._decode_part(data)
        except UnreadableValueError:
            # A short message does not begin a count: earlier ones may have filled it.
            if not self._work.is_full():
                raise
            self._work.begin()
            return self._decode_part(data)

    def _begin(self, data: bytes | memoryview, begin: int = 0) -> None:
        """Refuse to decode values that would block the node."""
        self._work.begin()
        if self._work.is_limited and (problem := problem_of(data, self._is_counted, begin)):
            raise UnreadableValueError(problem)

    def _distinct(self, what: str, elements: list[Any]) -> list[Any]:
        """The elements, unless a set or dict of them would be slow."""
        if problem := self._work.problem_of(what, elements):
            raise UnreadableValueError(problem)
        return elements

    def _read(self, code: int, data: memoryview) -> object:
        """The value of an extension."""
        decode = self._decode_part
        if code == Code.OBJECT:
            name, fields = decode(data)
            entry = self._by_name.get(name)
            if entry is None:
                raise _unlisted(name)
            return entry.make(fields)
        if code == Code.PAIRS:
            parts = decode(data)
            count = len(parts) // 2
            keys = self._distinct("a dict", parts[:count])
            # strict: a list with an odd number of parts is no dict, and raises here.
            return dict(zip(keys, parts[count:], strict=True))
        read = READERS.get(code)
        if read is not None:
            return read(decode(data) if code in NESTED else bytes(data))
        if code in (Code.SET, Code.FROZENSET):
            elements = self._distinct("a set", decode(data))
            return set(elements) if code == Code.SET else frozenset(elements)
        if code == Code.ENUM:
            name, member = decode(data)
            # By its name, never by its value: Enum calls `_missing_` of the class for a value that
            # it does not know, and another node must not choose the values with which code here
            # runs.
            if name not in self._enums or member not in self._enums[name].__members__:
                raise UnreadableValueError(
                    f"{_short(name)}.{_short(member)} is not an Enum member of this node"
                )
            return self._enums[name][member]
        if code == Code.EXCEPTION:
            name, args, *more = decode(data)
            if name not in self._exceptions:
                return RemoteError(name, ", ".join(map(text_of, args)))
            return remade(self._exceptions[name], args, more[0] if more else {})
        if code == Code.CRASHED:
            error, text = decode(data)
            return Crashed.told(error, text)
        raise UnreadableValueError(f"a value of the unknown kind {code}")


def _unlisted(name: str) -> UnreadableValueError:
    return UnreadableValueError(f"the type {brief(name, 200)} is not in this node's `types=[…]`")


_encode: Final = msgspec.msgpack.Encoder().encode
# Measured: a copy of 64 bytes is decoded in 0.19 µs and a view of them in 0.37 µs, of 1 KiB in 0.34
# and 0.46 µs; at 8 KiB both take as long.
_SHORT: Final = 1024
_REASON: Final = 1 << 20
"""Most bytes of a reason."""


def _decoder(kind: Any, read: Callable[[int, memoryview], object]) -> Callable[[Any], Any]:
    decode: Callable[[Any], Any] = msgspec.msgpack.Decoder(kind, ext_hook=read).decode
    return decode


def _told(type_name: str, text: str) -> Ext:
    """An exception as text. Texts of errors are for readers: a surrogate in them is escaped."""
    return Ext(Code.REMOTE_ERROR, _encode((utf8(type_name), utf8(text))))


def _short(name: object) -> str:
    return name[:100] if isinstance(name, str) else brief(name, 100)


def _cut(text: str) -> str:
    """The first characters of a long text, which any node can read."""
    is_long = len(text) > _SHORT
    return utf8(f"{text[:_SHORT]}… ({len(text)} characters)" if is_long else text)


def reason_of(value: object) -> Reason:
    """The value, if it is a reason; else a reason that says so."""
    if isinstance(value, Reason):
        return value
    return Shutdown(f"a reason of the type {type(value).__name__}, which is not a reason")
