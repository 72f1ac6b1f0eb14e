"""The parts of a state, and which types they have: compiled once from the annotations of a class.

Two questions are answered by the same walk, which does not recurse: whether each value has exactly
the type of its field, and which defaults msgspec has left out of a decoded dataclass.
"""

import dataclasses
import inspect
import types
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, time
from operator import attrgetter, countOf
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    TypeAlias,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from .._core.vocabulary.text import shown
from ..network.messages.codec import msgspec
from .errors import StateTypeError

__all__ = ["StateParts", "hints_of", "is_class", "left_out"]

_T = TypeVar("_T")
_Within: TypeAlias = "Iterable[tuple[_Place, Collection[object], str]]"
"""The values inside of a value, the place where they are, and its name; "" for many values."""
_Inside: TypeAlias = "_Within | str"
"""The same; a text tells why the value is wrong."""
_Parts: TypeAlias = "dict[type, _Part[Any]]"
_Classes: TypeAlias = "dict[object, _Part[Any]]"
_ROUND: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""What msgspec decodes to an equal value whenever it encodes the exact type."""
_KNOWN: Final = 64
"""How many combinations of the types of its fields a class remembers."""


class StateParts:
    """All parts of a state of a class."""

    __slots__ = (
        "_place",
        "classes",
        "completes",
        "is_flat",
        "is_plain",
        "is_round",
        "known",
        "reloads",
    )

    def __init__(self, cls: type) -> None:
        found: _Classes = {}
        places: list[_Place] = []
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
        """Whether an object may have a default that is not stored: of a field without init."""
        self.reloads: Final = any(part.reloads for part in parts)
        """Whether ``__post_init__`` of a part can change what is loaded."""
        self.is_round: Final = (
            not self.reloads
            and all(place.is_round for place in places)
            and not any(place.contains_itself() for place in places)
        )
        """Whether all that is encoded from the right types can be decoded, and is equal."""
        self.is_plain: Final = self.is_flat and self.is_round

    def fit(self, state: object) -> bool:
        """Whether the state and all its parts have exactly the types of the annotations."""
        todo: list[tuple[_Place, Collection[object], str]] = [(self._place, (state,), "")]
        while todo:
            place, values, _ = todo.pop()
            if not place.allows(values):
                return False
            if place.parts:
                for each in values:
                    part = place.parts.get(type(each))
                    if part is not None:
                        inside = part.inside(each)
                        if isinstance(inside, str):
                            return False
                        todo.extend(inside)
        return True

    def wrong(self, state: object) -> str:
        """What does not fit, for the author of the program; "" if all fits."""
        todo: list[tuple[str, _Place, object]] = [("", self._place, state)]
        while todo:
            path, place, value = todo.pop()
            if type(value) not in place.types:
                return place.refusal(path, value)
            part = place.parts.get(type(value))
            if part is None:
                continue
            inside = part.inside(value)
            if isinstance(inside, str):
                return f"{path or 'it'} {inside}"
            keys = list(value) if isinstance(value, dict) else None
            for inner, values, name in inside:
                for number, each in enumerate(values):
                    label = name or f"[{shown(keys[number]) if keys is not None else number}]"
                    todo.append((f"{path}{label}".removeprefix("."), inner, each))
        return ""

    def complete(self, state: object) -> None:
        """Put missing defaults into the state and its parts."""
        todo: list[tuple[_Place, Collection[object]]] = [(self._place, (state,))]
        while todo:
            place, values = todo.pop()
            if not place.misses:
                continue
            for each in values:
                part = place.parts.get(type(each))
                if part is not None:
                    part.complete(each)
                    todo.extend((inner, inside) for inner, inside, _ in part.within(each))


class _Place:
    """Where values of an annotation are: a field, or the elements of a list."""

    __slots__ = ("is_round", "misses", "only", "parts", "text", "types")

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
        self.types: Final = frozenset({*leaves, *parts})
        self.only: Final = next(iter(self.types)) if len(self.types) == 1 else None
        self.is_round: Final = is_round
        self.misses = False
        """Whether a value here, or a part of it, may miss a default; see ``_mark``."""

    def allows(self, values: Collection[object]) -> bool:
        """Whether all values have one of the types, without a look inside."""
        if self.only is not None:  # an encoded state may have a million numbers
            return countOf(map(type, values), self.only) == len(values)
        return self.types.issuperset(map(type, values))

    def has_right_leaves(self, values: Collection[object]) -> bool:
        """Whether all values have one of the types, and nothing inside."""
        return not self.parts and self.allows(values)

    def contains_itself(self) -> bool:
        """Whether its values can be of any depth."""
        seen: set[_Place] = set()
        todo = [place for part in self.parts.values() for place in part.places]
        while todo:
            place = todo.pop()
            if place is self or any(part in self.parts.values() for part in place.parts.values()):
                return True
            if place not in seen:
                seen.add(place)
                todo += [each for part in place.parts.values() for each in part.places]
        return False

    def refusal(self, path: str, value: object) -> str:
        """What is wrong with a value, and what to write."""
        where = f"{path}: " if path else ""
        cls = type(value)
        got = f"{where}got {shown(value)}, which is a {cls.__qualname__}; here is a {self.text}, "
        bases = [each for each in self.types if is_class(each) and issubclass(cls, each)]
        if bases:
            return (
                got + f"and the further fields of a subclass are not loaded: write {self.text}(…)"
            )
        made = next((each for each in self.types if each is not type(None)), type(None))
        if made is int and float in self.types:
            made = float
        write = "None" if made is type(None) else f"{made.__qualname__}(…)"
        if made is datetime:
            write = "datetime.fromisoformat(…)"
        return got + f"and it would be another value after it is loaded: write {write}"


class _Part(Generic[_T]):
    """Values of one class that have values inside, or that are not always loaded as they were."""

    reloads = False
    completes = False
    missing: "list[dataclasses.Field[Any]]"
    places: "list[_Place]"

    def __init__(self) -> None:
        self.missing, self.places = [], []

    def inside(self, value: _T) -> _Inside:
        """The values inside; a text tells that ``value`` is wrong."""
        return self.within(value)

    def within(self, value: _T) -> _Within:
        """The values inside of a value that is right."""
        return ()

    def complete(self, value: _T) -> None:
        """Put missing defaults into a value."""


class _Elements(_Part[Collection[object]]):
    """A list, a set, or a tuple of any length."""

    def inside(self, value: Collection[object]) -> _Inside:
        return () if self.places[0].has_right_leaves(value) else self.within(value)

    def within(self, value: Collection[object]) -> _Within:
        return ((self.places[0], value, ""),)


class _Items(_Part[tuple[object, ...]]):
    """A tuple with a place for each element."""

    def within(self, value: tuple[object, ...]) -> _Within:
        pairs = enumerate(zip(self.places, value, strict=True))
        return [(place, (each,), f"[{number}]") for number, (place, each) in pairs]


class _Table(_Part[dict[object, object]]):
    """A dict of any keys."""

    def inside(self, value: dict[object, object]) -> _Inside:
        keys, values = self.places
        if keys.has_right_leaves(value):
            found = value.values()
            return () if values.has_right_leaves(found) else ((values, found, ""),)
        return self.within(value)

    def within(self, value: dict[object, object]) -> _Within:
        keys, values = self.places
        return ((keys, value.keys(), ""), (values, value.values(), ""))


class _Keys(_Part[dict[str, object]]):
    """A dict of a TypedDict."""

    def __init__(self, cls: type) -> None:
        super().__init__()
        self.name: Final = cls.__name__
        self.names: list[str] = []

    def inside(self, value: dict[str, object]) -> _Inside:
        for key in value:
            if type(key) is not str or key not in self.names:
                return f"has the key {shown(key)}, which {self.name} does not have: add it there"
        return self.within(value)

    def within(self, value: dict[str, object]) -> _Within:
        pairs = zip(self.names, self.places, strict=True)
        return [(place, (value[name],), f".{name}") for name, place in pairs if name in value]


class _Clock(_Part[time]):
    """A time of a day, whose offset is stored in minutes."""

    def inside(self, value: time) -> _Inside:
        if msgspec.msgpack.decode(_encode(value), type=time) == value:
            return ()
        return "has an offset with seconds, which are not stored: write another `tzinfo`"


class _Object(_Part[object]):
    """A dataclass, a struct or a named tuple."""

    def __init__(self, cls: type, names: Iterable[str]) -> None:
        super().__init__()
        self.names: Final = tuple(names)
        self.classes: Final[Callable[[object], object]] = attrgetter(
            "__class__", *(f"{name}.__class__" for name in self.names)
        )
        self.known: set[object] = set()
        """Types of the object and its fields that were right."""
        self.parts: list[tuple[Callable[[object], object], _Place, str]] = []
        """The fields with values inside."""
        self.missing = left_out(cls)
        self.completes = any(not field.init for field in self.missing)
        self.reloads = hasattr(cls, "__post_init__")

    def ready(self, places: "Iterable[_Place]") -> None:
        """Take the places of the fields, which may be of this class again."""
        self.places.extend(places)
        for name, place in zip(self.names, self.places, strict=True):
            if place.parts:
                self.parts.append((attrgetter(name), place, f".{name}"))

    def inside(self, value: object) -> _Inside:
        try:
            classes = self.classes(value)
        except AttributeError as error:
            return f"misses a field: {error}"
        if classes not in self.known:
            fields = zip(self.names, self.places, strict=True)
            if any(type(getattr(value, name)) not in place.types for name, place in fields):
                return self._all(value)
            if len(self.known) < _KNOWN:
                self.known.add(classes)
        return self.within(value)

    def _all(self, value: object) -> _Within:
        pairs = zip(self.names, self.places, strict=True)
        return [(place, (getattr(value, name),), f".{name}") for name, place in pairs]

    def within(self, value: object) -> _Within:
        return [(place, (get(value),), name) for get, place, name in self.parts]

    def complete(self, value: object) -> None:
        if self.missing:
            attributes = vars(value)
            for field in self.missing:
                if field.name not in attributes:
                    attributes[field.name] = _default(value, field)


_encode = msgspec.msgpack.Encoder().encode


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
        leaves, parts, is_round = inner.types - inner.parts.keys(), inner.parts, False
    elif origin in (Union, types.UnionType):
        union = [place_of(each) for each in args]
        leaves = frozenset().union(*(each.types - each.parts.keys() for each in union))
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
            # A measured value may be 21 as well as 21.5. It is loaded as 21.0, which is equal.
            leaves = {float, int} if leaf is float else {leaf}
    else:
        is_fixed = origin is tuple and Ellipsis not in args
        is_round = not is_fixed
        values = _Items() if is_fixed else _Table() if origin is dict else _Elements()
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
        attribute = inspect.getattr_static(cls, field.name, dataclasses.MISSING)
        if attribute is not dataclasses.MISSING and not inspect.isdatadescriptor(attribute):
            found.append(field)
    return found


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
        StateTypeError: an annotation has a name that is not known at run time.
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
