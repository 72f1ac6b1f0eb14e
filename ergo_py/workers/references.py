"""References to functions, classes and modules, by which another program finds the same ones."""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from .._core.vocabulary.errors import BadInputError

__all__ = ["reference_of", "referent_of"]


def reference_of(value: Callable[..., Any] | type | ModuleType, what: str) -> str:
    """The reference to a module, or to a function or class at the top of a module.

    Raises:
        BadInputError: another program could not find it.
    """
    if isinstance(value, ModuleType):
        module, name = value.__name__, ""
    else:
        module = getattr(value, "__module__", "")
        name = getattr(value, "__qualname__", "")
    if module == "__main__":
        raise BadInputError(
            what,
            value,
            "a function, class or module that other programs can import; it is defined in the main "
            "program: move it into a module of its own",
        )
    reference = f"{module}:{name}" if name else module
    try:
        found = referent_of(reference)
    except Exception:
        found = None
    if found is not value:
        raise BadInputError(
            what, value, "a function or class at the top of a module, or a module: not a lambda"
        )
    return reference


def referent_of(reference: str) -> Any:
    """The module, function or class with this reference."""
    module, _, name = reference.partition(":")
    found: object = import_module(module)
    for part in name.split(".") if name else ():
        found = getattr(found, part)
    return found
