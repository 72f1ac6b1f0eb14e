"""The type of each public name is known in full to basedpyright.

`make types` pipes the report of ``basedpyright --verifytypes`` into this program. A type is known
in full if each attribute and parameter that can be reached from it has an annotation: type checkers
then agree on it.
"""

import json
import sys
from collections.abc import Mapping

from tests.test_docs_api import MODULES

__all__ = ["complaints"]


def public() -> set[str]:
    """The public names of the package, each with its module."""
    return {f"{module.__name__}.{name}" for module in MODULES for name in module.__all__}


def complaints(is_known: Mapping[str, bool], names: set[str]) -> list[str]:
    """What is wrong with the public names, given whether the type of each symbol is known."""
    unknown = "its type is not known in full: an attribute or parameter has no annotation"
    unseen = "basedpyright does not see this name"
    return [
        f"{name}: {unknown if name in is_known else unseen}"
        for name in sorted(names)
        if not is_known.get(name)
    ]


def main() -> None:
    """Read the report, print what is wrong, and fail if anything is."""
    symbols = json.load(sys.stdin)["typeCompleteness"]["symbols"]
    is_known = {symbol["name"]: symbol["isTypeKnown"] for symbol in symbols}
    names = public()
    found = complaints(is_known, names)
    count = f"{len(names) - len(found)} of {len(names)} public names are known in full"
    sys.stdout.write("\n".join([*found, count]) + "\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
