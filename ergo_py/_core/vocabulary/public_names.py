"""`show_under`: makes public classes and functions print under the module that users import them
from, not under the module that defines them.
"""

from collections.abc import Iterable, Mapping
from types import FunctionType

__all__ = ["show_under"]


def show_under(module: str, names: Iterable[str], namespace: Mapping[str, object]) -> None:
    """Set ``__module__`` of the classes and functions among ``names`` to ``module``. Skip values
    that other packages define.
    """
    package = module.partition(".")[0] + "."
    for name in names:
        value = namespace[name]
        if isinstance(value, type | FunctionType) and value.__module__.startswith(package):
            value.__module__ = module
