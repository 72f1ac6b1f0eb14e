"""Public names: a package loads each of them on first use, and classes and functions print under
the package that users import them from, not under the module that defines them.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from operator import or_
from types import FunctionType, MappingProxyType
from typing import Final

__all__ = [
    "load_on_first_use",
    "name_for_annotations",
    "platform_text",
    "show_as",
    "show_members",
    "show_public_names",
    "show_under",
]

_POSIX_MODULES: Final = frozenset({"fcntl", "grp", "pwd", "resource", "termios", "tty"})
"""Modules of the standard library that Python has on Linux and macOS only."""

_HOMES: Final[dict[str, dict[str, str]]] = {}
"""Of each module that defines public names: the packages that users import them from, each with
the names.
"""


def load_on_first_use(
    package: str,
    modules: Mapping[str, str],
    extras: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The functions ``__getattr__`` and ``__dir__`` for a package whose ``modules`` define its
    public names: a table from the module, relative to the package or with its full name, to the
    names. ``extras`` has the extra of each name that needs a library: a library that cannot be
    imported is told with its extra.

    A name that has moved to another place works, with a DeprecationWarning; a name that has left
    raises an ImportError. Both say what to write instead.
    """
    namespace = vars(sys.modules[package])
    module_of: dict[str, str] = {}
    for module, names in modules.items():
        if module.startswith("ergo_py."):
            home = module
        else:
            home = f"{package}.{module}"
            _HOMES.setdefault(home, {})[package] = names
        module_of.update(dict.fromkeys(names.split(), home))

    def load(name: str) -> object:
        home = module_of.get(name)
        if home is None:
            if not name.startswith("_"):
                # Loaded for names of earlier versions only.
                moved = import_module("ergo_py.moved_names").find_moved(package, name)
                if moved is not None:
                    return moved.value()
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package]
            )
        try:
            module = import_module(home)
        except ImportError as error:
            text = platform_text(f"{package}.{name}", error, extras.get(name))
            if text is None:
                raise
            raise ImportError(text, name=error.name) from error
        # Keep the value in the package, so that Python finds it there from now on.
        value = namespace[name] = getattr(module, name)
        return value

    def names_of_package() -> list[str]:
        return sorted({*namespace, *module_of})

    return load, names_of_package


def name_for_annotations(module: str, homes: Mapping[str, str]) -> None:
    """Let annotations of a module name classes that it must not import, since their modules are
    loaded later, stand above it or need an extra: a table from their module to their names.
    `typing.get_type_hints` imports a class when it meets its name.
    """
    namespace = vars(sys.modules[module])
    for home, names in homes.items():
        for name in names.split():
            namespace[name] = _LateClass(f"__import__({home!r}, fromlist=[{name!r}]).{name}")


class _LateClass(str):
    """A class in annotations, not imported yet. `typing` evaluates a string that is the value of a
    name, as it evaluates an annotation: this string imports the class.
    """

    __slots__ = ()

    def __getitem__(self, parameters: object) -> object:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        if isinstance(parameters, int | slice):  # `typing` looks at the first letter
            return super().__getitem__(parameters)
        return eval(self)[parameters]

    def __or__(self, other: object) -> object:
        return or_(eval(self), other)

    def __ror__(self, other: object) -> object:
        return or_(other, eval(self))


def platform_text(subject: str, error: ImportError, extra: str | None = None) -> str | None:
    """The text of the error, with advice, if ``subject`` cannot be imported because of the
    platform, or if it has an ``extra``; None if there is no advice.
    """
    if error.name not in _POSIX_MODULES:
        if extra is None:
            return None
        return f"{subject} needs its library: pip install 'ergo_py[{extra}]' ({error})"
    return (
        f"{subject} works on Linux and macOS only: it needs the module {error.name!r} of Python's "
        f"standard library, which is missing on this platform ({sys.platform}). Actors, "
        "supervisors, messages and framings work without it; on Windows, run this program in WSL "
        "or in a container"
    )


def show_public_names(module: str, elsewhere: Mapping[str, str] = MappingProxyType({})) -> None:
    """Call it at the end of each module in a table of `load_on_first_use`: its public classes and
    functions print under their package, however the module was imported.

    ``elsewhere`` has the names of packages that may be imported later than the module.
    """
    for package, names in (*elsewhere.items(), *_HOMES.get(module, {}).items()):
        show_under(package, names.split(), vars(sys.modules[module]))


def show_under(module: str, names: Iterable[str], namespace: Mapping[str, object]) -> None:
    """Set ``__module__`` of the classes and functions among ``names`` to ``module``. Skip values
    that other packages define.
    """
    package = module.partition(".")[0] + "."
    for name in names:
        value = namespace[name]
        if isinstance(value, type | FunctionType) and value.__module__.startswith(package):
            value.__module__ = module


def show_as(member: type, shown: type) -> None:
    """Let a class print as another, under whose name programs know it."""
    member.__name__ = shown.__name__
    member.__qualname__ = shown.__qualname__
    member.__module__ = shown.__module__


def show_members(owner: type, defined_by: type | None = None) -> None:
    """Let the classes that are members of ``owner`` print under it: ``TCP.Data(…)``. They are those
    of a base of it with ``defined_by``.
    """
    for name, member in vars(defined_by or owner).items():
        if isinstance(member, type) and not name.startswith("_"):
            member.__name__ = name
            member.__qualname__ = f"{owner.__qualname__}.{name}"
            member.__module__ = owner.__module__
