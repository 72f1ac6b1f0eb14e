"""The protocol of a control socket: a JSON object per line in each direction, versioned and
bounded.

The server speaks first: ``{"ergo": 1, "node": …, "may": […]}``. A client asks ``{"v": 1, "id": 7,
"do": "ps", "with": {…}}`` and gets ``{"id": 7, "ok": true, "result": …}`` or ``{"id": 7, "ok":
false, "error": {"code": …, "text": …}}``. Answers arrive in the order of the requests.
"""

import json
import re
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, Final

from .._core.vocabulary.ids import PID, Alias, EventName, Name, NodeName, Ref
from .._core.vocabulary.reasons import Reason

__all__ = [
    "MAX_ANSWER",
    "MAX_REQUEST",
    "VERSION",
    "ControlError",
    "Encoded",
    "Plain",
    "ParsedRequest",
    "answer",
    "as_json",
    "check_depth",
    "encode",
    "read_request",
    "refusal",
]

VERSION: Final = 1
MAX_REQUEST: Final = 64 * 1024
"""Maximum bytes of a request, including its line end."""
MAX_ANSWER: Final = 8 * 1024 * 1024
"""Maximum bytes of an answer, including its line end."""


class ControlError(Exception):
    """A refused request, with a code for programs and a text for people.

    Codes: ``bad_request`` (not understood, and the connection is closed), ``version``, ``unknown``,
    ``bad_argument``, ``not_permitted``, ``no_such_process``, ``no_such_node`` and ``silent`` (of
    another node that this node asks), ``timeout``, ``blocked`` (with a ``report``), ``stopping``,
    ``too_large``, ``busy``, ``cancelled``, ``failed``.
    """

    def __init__(self, code: str, text: str, /, **more: object) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.more = more


class Plain(dict[str, Any]):
    """A result of JSON values only, which need no conversion."""


class Encoded(bytes):
    """A result that is JSON text already."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A parsed request."""

    id: int | str | None
    do: str
    arguments: dict[str, Any]


def read_request(line: bytes) -> ParsedRequest:
    """Parse a line.

    Raises:
        ControlError: the line is no request; after ``bad_request`` and ``version`` the server reads
            nothing more.
    """
    try:
        # Decode here: the parser also accepts UTF-16, and the depth check must see the same text.
        text = line.decode("utf-8")
        check_depth(text)
        said = json.loads(text)
    except (ValueError, RecursionError):
        raise ControlError(
            "bad_request", 'a request is one line of JSON, such as {"v": 1, "id": 1, "do": "ps"}'
        ) from None
    if not isinstance(said, dict):
        raise ControlError(
            "bad_request", f"a request is a JSON object, and this is {type(said).__name__}"
        )
    number = said.get("id")
    if not isinstance(number, int | str | None) or (isinstance(number, str) and len(number) > 100):
        raise ControlError(
            "bad_request", "id is a number or a short string; it comes back with the answer"
        )
    if said.get("v") != VERSION:
        raise ControlError(
            "version", f'this node speaks version {VERSION}; say so with "v": {VERSION}', id=number
        )
    do, arguments = said.get("do"), said.get("with", {})
    if not isinstance(do, str) or not isinstance(arguments, dict):
        raise ControlError(
            "bad_request",
            "do is the name of a command, and with, if given, is an object",
            id=number,
        )
    return ParsedRequest(number, do, arguments)


_STRINGS: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
"""Strings. A string without an end matches, too: otherwise each quote in it would be tried as the
beginning of a string, and each time up to the end of the text.
"""
_BRACKETS: Final = re.compile(r"[\[\]{}]")
_DEEPEST: Final = 50


def check_depth(line: str) -> None:
    """Refuse deep nesting: the parser recurses with it, and the stack of this thread is small.

    Raises:
        ValueError: the text is nested too deeply.
    """
    if line.count("[") + line.count("{") <= _DEEPEST:
        return
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub("", line)):
        depth += 1 if bracket in "[{" else -1
        if depth > _DEEPEST:
            raise ValueError("too deep")


def encode(value: object) -> bytes:
    """Encode a value as a line."""
    return (
        json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_stand_in).encode(
            errors="replace"
        )
        + b"\n"
    )


def answer(id: int | str | None, result: object) -> bytes:
    """The line of a successful answer."""
    if isinstance(result, Encoded):
        line = b'{"id":%b,"ok":true,"result":%b}\n' % (encode(id).strip(), result)
    else:
        plain = result if isinstance(result, Plain) else as_json(result)
        line = encode({"id": id, "ok": True, "result": plain})
    if len(line) > MAX_ANSWER:
        too_large = ControlError(
            "too_large",
            f"the answer has {len(line)} bytes, the limit is {MAX_ANSWER}; ask for less",
        )
        return refusal(id, too_large)
    return line


def refusal(id: int | str | None, error: ControlError) -> bytes:
    """The line of a refused request."""
    details = {
        "code": error.code,
        "text": error.text,
        **{key: as_json(value) for key, value in error.more.items()},
    }
    return encode({"id": id, "ok": False, "error": details})


def as_json(value: object) -> Any:
    """Convert a snapshot to JSON values: identifiers become numbers, names stay names, unknown
    types become text.
    """
    match value:
        case None | bool() | int() | float() | str() if not isinstance(value, Enum):
            return value
        case PID(number=number) | Alias(number=number) | Ref(number=number):
            return number
        case Name(name=name) | EventName(name=name) | NodeName(node=name):
            return name
        case Enum():
            return value.value
        case dict():
            return {_key(key): as_json(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [as_json(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        if isinstance(value, Reason):
            return str(value)
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    return str(value)


def _key(key: object) -> str:
    return key.name.lower() if isinstance(key, Enum) else str(key)


def _stand_in(value: object) -> str:
    return str(value)
