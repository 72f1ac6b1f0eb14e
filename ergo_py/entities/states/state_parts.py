"""The parts of a state, and which types they have: compiled once from the annotations of a class.

Two questions are answered by walks that do not recurse: whether each value has exactly the type of
its field, and which defaults msgspec has left out of a decoded dataclass. They take all values of a
place at once: those of the field ``price`` of all lines of all orders.
"""

import dataclasses
import inspect
import types
from collections.abc import Callable, Collection, Iterable
from datetime import date, datetime, time
from enum import Enum
from inspect import getattr_static
from itertools import chain
from operator import attrgetter
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    TypeGuard,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from ..._core.vocabulary.text import shown
from ...network.messages.codec import msgspec
from ..errors import StateTypeError

__all__ = ["TOO_DEEP", "StateParts", "hints_of", "is_class", "left_out"]

_Column: TypeAlias = "tuple[str, _Place, Collection[object]]"
"""Values inside of others: their name, "" for elements; the place where they are; the values."""
_Columns: TypeAlias = Iterable[_Column]
_Parts: TypeAlias = "dict[type, _Part]"
_Classes: TypeAlias = "dict[object, _Part]"
_ROUND: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""Types that msgspec decodes to an equal value whenever it encodes the exact type."""
_MISSING: Final = (type(dataclasses.MISSING), type(msgspec.NODEFAULT))
_DEPTH: Final = 500
"""How many parts may be in each other: half of what Python allows the stack of a load."""
TOO_DEEP: Final = (
    f"its parts are in each other more than {_DEPTH} levels deep, or one contains itself; allowed "
    f"are {_DEPTH} levels, which can always be loaded: write a list of the parts, or let them be "
    "entities of their own"
)
_EXACT: Final = 2**53
"""Each int up to here is equal to a float."""
_KNOWN: Final = 64
"""How many combinations of the types of its fields a class remembers."""


class StateParts:
    """All parts of a state of a class."""

    __slots__ = (
        "_found",
        "_place",
        "classes",
        "completes",
        "is_flat",
        "is_round",
        "known",
        "reloads",
    )

    def __init__(self, cls: type) -> None:
        found: _Classes = {}
        places: list[_Place] = []
        self._found: Final = found
        self._place: Final = _place_of(cls, found, places)
        _mark(places)
        parts = [part for place in places for part in place.parts.values()]
        root = self._place.parts.get(cls)
        self.classes: Callable[[object], object] = attrgetter("__class__")
        """The types of a state and its fields."""
        self.known: Collection[object] = ()
        """Types of a state and its fields that were right."""
        if isinstance(root, _Object):
            self.classes, self.known = root.classes, root.known
        self.is_flat: Final = isinstance(root, _Object) and not root.parts
        """Whether no field has values inside."""
        self.completes: Final = any(part.completes for part in parts)
        """Whether an object may have a default that is not stored: ``__init__`` has not set it."""
        self.reloads: Final = any(part.reloads for part in parts)
        """Whether ``__post_init__`` of a part can change loaded values."""
        self.is_round: Final = not self.reloads and all(place.is_round for place in places)
        """Whether all that is encoded from the right types can be decoded, and is equal."""

    def wrong(self, state: object) -> str:
        """The value that does not have exactly the type of its annotation, for the author of the
        program; "" if all are right.
        """
        return _wrong("", self._place, state)

    def wrong_default(self) -> str:
        """The fault of a default of a part, which a load puts where a field is missing."""
        for cls, part in self._found.items():
            if isinstance(part, _Object) and cls not in self._place.parts:
                defaults = _defaults(part.cls)
                for name, place, _ in part.fields:
                    key = name.removeprefix(".")
                    wrong = _wrong(key, place, defaults[key]) if key in defaults else ""
                    if wrong:
                        return f"{part.cls.__qualname__} has a wrong default: {wrong}"
        return ""

    def complete(self, state: object) -> None:
        """Put missing defaults into the state and its parts."""
        seen: set[int] = set()  # a state that contains itself is refused later
        todo: list[tuple[_Place, Collection[object]]] = [(self._place, (state,))]
        while todo:
            place, values = todo.pop()
            if not place.misses:
                continue
            new = [each for each in values if id(each) not in seen]
            seen.update(map(id, new))
            for cls, part in place.parts.items():
                those = [each for each in new if type(each) is cls]
                part.complete(those)
                inside = part.inside(those) if those else ""
                if not isinstance(inside, str):
                    todo += [(inner, found) for _, inner, found in inside]


def _wrong(path: str, place: "_Place", value: object) -> str:
    return _walk(path, place, value, is_apart=False) and _walk(path, place, value, is_apart=True)


def _walk(path: str, place: "_Place", value: object, *, is_apart: bool) -> str:
    """The fault of a value. A large state is looked at fast, since all values of a place are
    together; the path of a wrong value is known if each is apart.
    """
    level: list[_Column] = [(path, place, (value,))]
    for _ in range(_DEPTH + 1):  # the last may be a place without a part
        inner: list[_Column] = []
        for where, outer, values in level:
            wrong = outer.look(where, values, inner, is_apart=is_apart)
            if wrong:
                return wrong
        if not inner:
            return ""
        level = inner
    return TOO_DEEP


def _apart(path: str, values: Collection[object], inside: "_Columns") -> "_Columns":
    """Each value inside of a single value, with its path."""
    (value,) = values
    keys = list(value) if isinstance(value, dict) else None
    for name, place, found in inside:
        for number, each in enumerate(found):
            label = name or f"[{shown(keys[number]) if keys is not None else number}]"
            yield f"{path}{label}", place, (each,)


class _Place:
    """Where values of an annotation are: a field, or the elements of a list."""

    __slots__ = (
        "exact",
        "is_one",
        "is_round",
        "is_wide",
        "leaves",
        "misses",
        "parts",
        "text",
        "types",
    )

    def __init__(
        self,
        annotation: object,
        leaves: Iterable[type],
        parts: "_Parts",
        is_round: bool,
    ) -> None:
        self.text: Final = (
            annotation.__name__
            if isinstance(annotation, type) and not get_args(annotation)
            else inspect.formatannotation(annotation)
        )
        self.parts: Final = parts
        self.leaves: Final = frozenset(leaves)
        self.exact: Final = self.leaves | parts.keys()
        """Types of values that are loaded as they were."""
        # A measured value may be 21 as well as 21.5. It is loaded as 21.0, which is equal.
        has_ints = int in self.leaves or any(map(_is_number, self.leaves))
        self.is_wide: Final = float in self.leaves and not has_ints
        """Whether an int stands for an equal float."""
        self.types: Final = self.exact | {int} if self.is_wide else self.exact
        self.is_one: Final = len(self.types) == 1
        self.is_round: Final = is_round
        self.misses = False
        """Whether a value here, or a part of it, may miss a default; see ``_mark``."""

    def allows(self, values: Collection[object]) -> bool:
        """Whether all values have types of this place, without a look inside."""
        if not self.is_wide:
            return self.types.issuperset(map(type, values))
        kinds = {*map(type, values)}
        return self.types.issuperset(kinds) and (int not in kinds or _are_floats(values))

    def look(
        self, path: str, values: Collection[object], inner: "list[_Column]", *, is_apart: bool
    ) -> str:
        """The fault of values here; ``inner`` gets the values inside."""
        if not self.allows(values):
            return self.refusal(path.removeprefix("."), values)
        for cls, part in self.parts.items():
            those = values if self.is_one else [each for each in values if type(each) is cls]
            if not those:
                continue
            inside = part.inside(those)
            if isinstance(inside, str):
                return f"{path.removeprefix('.') or 'it'} {inside}"
            if is_apart:
                inner += _apart(path, those, inside)
                continue
            for column in inside:
                if column[1].parts:
                    inner.append(column)
                elif not column[1].allows(column[2]):
                    return "it is wrong"
        return ""

    def refusal(self, path: str, values: Collection[object]) -> str:
        """The fault of the first wrong value, and the code to write instead."""
        value = next(each for each in values if not self.allows((each,)))
        where = f"{path}: " if path else ""
        cls = type(value)
        got = f"{where}got {shown(value)}, which is a {cls.__qualname__}; here is a {self.text}, "
        if cls in self.types:
            return got + "and no float is equal to it: write int or Decimal in the annotation"
        kinds = sorted(self.exact, key=lambda each: each.__qualname__)  # a set has any order
        base = next((each for each in kinds if issubclass(cls, each)), None)
        others = (each for each in kinds if each is not type(None))
        made = base or next(others, type(None))
        if float in self.types and issubclass(cls, int):
            made = float
        write = "None" if made is type(None) else f"{made.__qualname__}(…)"
        if issubclass(made, date | time):
            write = f"{made.__qualname__}.fromisoformat({'value.isoformat()' if base else '…'})"
        if made is date and issubclass(cls, datetime):
            write = "value.date()"
        reason = "it would be another value after it is loaded"
        if is_class(base) and hints_of(cls, "").keys() != hints_of(base, "").keys():
            reason = "the further fields of a subclass are not loaded"
        elif base is not None:
            reason = f"it would be a {made.__qualname__} after it is loaded"
        return f"{got}and {reason}: write {write}"


class _Part:
    """Values of one class that have values inside, or that are not always loaded as they were."""

    reloads = False
    completes = False
    missing: "list[dataclasses.Field[Any]]"
    places: "list[_Place]"

    def __init__(self) -> None:
        self.missing, self.places = [], []

    def inside(self, values: Collection[Any]) -> "_Columns | str":
        """The values inside of some values; a text tells why a value is wrong."""
        return ()

    def complete(self, values: Collection[object]) -> None:
        """Put missing defaults into values."""


class _Elements(_Part):
    """A list, a set, or a tuple of any length."""

    def inside(self, values: Collection[Collection[object]]) -> "_Columns | str":
        return (("", self.places[0], _joined(values)),)


class _Items(_Part):
    """A tuple with a place for each element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text: Final = text

    def inside(self, values: Collection[tuple[object, ...]]) -> "_Columns | str":
        count = len(self.places)
        for each in values:
            if len(each) != count:
                return f"has {len(each)} elements, and {self.text} has {count}"
        names = (f"[{number}]" for number in range(count))
        return zip(names, self.places, zip(*values, strict=True), strict=True)


class _Table(_Part):
    """A dict of any keys."""

    def inside(self, values: Collection[dict[object, object]]) -> "_Columns | str":
        keys, inner = self.places
        return (("", keys, _joined(values)), ("", inner, _joined([*map(dict.values, values)])))


class _Keys(_Part):
    """A dict of a TypedDict."""

    def __init__(self, cls: type) -> None:
        super().__init__()
        self.name: Final = cls.__name__
        self.names: list[str] = []

    def inside(self, values: Collection[dict[str, object]]) -> "_Columns | str":
        for key in _joined(values):
            if type(key) is not str or key not in self.names:
                return f"has the key {shown(key)}, which {self.name} does not have: add it there"
        return [
            (f".{name}", place, [each[name] for each in values if name in each])
            for name, place in zip(self.names, self.places, strict=True)
        ]


class _Clock(_Part):
    """A time of a day, whose offset is stored in minutes."""

    def inside(self, values: Collection[time]) -> "_Columns | str":
        if all(msgspec.msgpack.decode(_encode(each), type=time) == each for each in values):
            return ()
        return "has an offset with seconds, which are not stored: write another `tzinfo`"


class _Object(_Part):
    """A dataclass, a struct or a named tuple."""

    def __init__(self, cls: type, names: Collection[str]) -> None:
        super().__init__()
        self.cls: Final = cls
        self.names: Final = names
        self.classes: Final[Callable[[object], Any]] = attrgetter(
            "__class__", *(f"{name}.__class__" for name in names)
        )
        self.known: Final[set[object]] = set() if names else {cls}
        """Types of the object and its fields that were right."""
        self.allowed: Final[set[object]] = set()
        """The same, also with ints in fields for floats, whose values are looked at, too."""
        self.fields: list[tuple[str, _Place, Callable[[object], object]]] = []
        self.parts: list[tuple[str, _Place, Callable[[object], object]]] = []
        """The fields with values inside."""
        self.loose: list[tuple[str, _Place, Callable[[object], object]]] = []
        """The same, and fields for floats."""
        self.missing = left_out(cls)
        self.completes = not _set_by_init(cls).issuperset(field.name for field in self.missing)
        self.reloads = hasattr(cls, "__post_init__")

    def ready(self, places: "Iterable[_Place]") -> None:
        """Take the places of the fields, which may be of this class again."""
        self.places.extend(places)
        for name, place in zip(self.names, self.places, strict=True):
            self.fields.append((f".{name}", place, attrgetter(name)))
        self.parts.extend(each for each in self.fields if each[1].parts)
        self.loose.extend(each for each in self.fields if each[1].parts or each[1].is_wide)

    def inside(self, values: Collection[object]) -> "_Columns | str":
        fields = self.parts
        try:
            if not self.known.issuperset(map(self.classes, values)):
                fields = self.loose
                if not self.allowed.issuperset(map(self.classes, values)):
                    fields = self.fields
                    self._learn({*map(self.classes, values)})
        except AttributeError as error:
            return f"misses a field: {error}"
        return [(name, place, [*map(get, values)]) for name, place, get in fields]

    def _learn(self, found: set[Any]) -> None:
        for classes in found:
            pairs = [*zip(self.places, classes[1:], strict=True)]
            if len(self.allowed) < _KNOWN and all(cls in place.types for place, cls in pairs):
                self.allowed.add(classes)
                if all(cls in place.exact for place, cls in pairs):
                    self.known.add(classes)

    def complete(self, values: Collection[object]) -> None:
        for field in self.missing:
            for each in values:
                if field.name not in vars(each):
                    vars(each)[field.name] = _default(each, field)


def _joined(values: Collection[Collection[object]]) -> Collection[object]:
    """All elements, without a copy of those of a single list."""
    return next(iter(values)) if len(values) == 1 else [*chain.from_iterable(values)]


_encode = msgspec.msgpack.Encoder().encode


def _is_number(cls: type) -> bool:
    """Whether values of the class are stored as ints."""
    return issubclass(cls, Enum) and any(isinstance(each.value, int) for each in cls)


def _are_floats(values: Iterable[object]) -> bool:
    """Whether the ints among the values are equal to floats."""
    numbers = [each for each in values if type(each) is int]
    if min(numbers) >= -_EXACT and max(numbers) <= _EXACT:
        return True
    try:
        return all(each == float(each) for each in numbers)
    except OverflowError:
        return False


def _place_of(annotation: object, found: "_Classes", places: list[_Place]) -> _Place:
    """The place of an annotation; ``found`` are the classes, and ``places`` all places so far."""
    origin, args = get_origin(annotation), get_args(annotation)
    leaves: Iterable[type] = ()
    parts: _Parts = {}
    is_round = True
    cls = annotation if origin is None else origin

    def place_of(inner: object) -> _Place:
        return _place_of(inner, found, places)

    if origin is Annotated:
        inner = place_of(args[0])
        leaves, parts, is_round = inner.leaves, inner.parts, False
    elif origin in (Union, types.UnionType):
        union = [place_of(each) for each in args]
        leaves = frozenset().union(*(each.leaves for each in union))
        parts = {key: part for each in union for key, part in each.parts.items()}
    elif origin is Literal:
        leaves, is_round = {type(each) for each in args}, False
    elif is_class(cls):
        key = dict if is_typeddict(cls) else cls
        is_round = not is_typeddict(cls)
        if cls in found:
            parts[key] = found[cls]
        else:
            hints = hints_of(cls, "")
            part = found[cls] = parts[key] = _Keys(cls) if key is dict else _Object(cls, hints)
            inner_places = [place_of(each) for each in hints.values()]
            if isinstance(part, _Object):
                part.ready(inner_places)
            else:
                part.names, part.places = list(hints), inner_places
    elif origin is None:
        leaf = annotation if isinstance(annotation, type) else type(None)
        is_round = leaf in _ROUND
        if leaf is time:
            parts[time] = _Clock()
        else:
            leaves = {leaf}
    else:
        is_fixed = origin is tuple and Ellipsis not in args
        is_round = not is_fixed
        text = inspect.formatannotation(annotation)
        values = _Items(text) if is_fixed else _Table() if origin is dict else _Elements()
        values.places = [place_of(each) for each in args if each is not Ellipsis]
        parts[origin] = values
    place = _Place(annotation, leaves, parts, is_round)
    places.append(place)
    return place


def _mark(places: list[_Place]) -> None:
    """Mark the places with parts that may miss a default, so that a load passes by all others."""
    changed = True
    while changed:
        changed = False
        for place in places:
            if not place.misses and any(
                part.missing or any(inner.misses for inner in part.places)
                for part in place.parts.values()
            ):
                place.misses = changed = True


def left_out(cls: object) -> list[dataclasses.Field[Any]]:
    """The fields of a dataclass that a decoded object may not have: the class has an attribute of
    the name. A slot is one too, but msgspec fills it, and a value in ``__dict__`` would hide it.

    msgspec leaves them out of a decoded dataclass, and later does not encode them: a version of the
    class with another default would load that one.
    """
    found = []
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        attribute = getattr_static(cls, field.name, dataclasses.MISSING)
        if attribute is not dataclasses.MISSING and not inspect.isdatadescriptor(attribute):
            found.append(field)
    return found


def _defaults(cls: type) -> dict[str, object]:
    """The defaults of the fields of a class; those of an object without arguments, if code of the
    class makes others of them, and none if there is no such object.
    """
    if issubclass(cls, tuple):
        return dict(getattr(cls, "_field_defaults", {}))
    is_struct = issubclass(cls, msgspec.Struct)
    kind = msgspec.structs if is_struct else dataclasses
    fields = cast("Iterable[msgspec.structs.FieldInfo]", kind.fields(cls))
    found: dict[str, object] = {}
    try:
        if hasattr(cls, "__post_init__") or not (is_struct or _written_init(cls)):
            made = cls()
            return {field.name: getattr(made, field.name) for field in fields}
        for field in fields:
            if callable(field.default_factory):
                found[field.name] = field.default_factory()
            elif not isinstance(field.default, _MISSING):
                found[field.name] = field.default
    except Exception:
        return {}
    return found


def _written_init(cls: type) -> types.CodeType | None:
    """The ``__init__`` of a dataclass, if dataclasses have written it."""
    code: types.CodeType | None = getattr(getattr_static(cls, "__init__"), "__code__", None)
    is_written = code is not None and code.co_qualname.startswith("__create_fn__.")
    return code if is_written else None


def _set_by_init(cls: type) -> frozenset[str]:
    """The fields that each new object of a dataclass has."""
    code = _written_init(cls)
    count = 0 if code is None else code.co_argcount + code.co_kwonlyargcount
    return frozenset() if code is None else frozenset(code.co_varnames[:count])


def _default(value: object, field: dataclasses.Field[Any]) -> object:
    # The attribute may be the default of a base class, whose field was defined again.
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return getattr(value, field.name)


def is_class(cls: object) -> TypeGuard[type]:
    """Whether it is a class with annotated fields."""
    return isinstance(cls, type) and (
        dataclasses.is_dataclass(cls)
        or issubclass(cls, msgspec.Struct)
        or is_typeddict(cls)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    )


def hints_of(cls: object, where: str) -> dict[str, Any]:
    """The annotations of the fields of a class.

    Raises:
        StateError: of kind ``"type"``; an annotation has a name that is not known at run time.
    """
    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise StateTypeError(
            f"{where}: {error}; the annotations of a state are read when the program starts, so "
            "import these names at run time, and not under TYPE_CHECKING"
        ) from None
    names = (
        [field.name for field in dataclasses.fields(cls)]
        if dataclasses.is_dataclass(cls)
        else getattr(cls, "__struct_fields__", None) or getattr(cls, "_fields", None) or hints
    )
    return {name: hints.get(name, Any) for name in names}
