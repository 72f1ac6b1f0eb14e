"""The public names whose types basedpyright knows in full: all but a list, which only shrinks.

`make types` pipes the report of ``basedpyright --verifytypes`` into this program. A type is known
in full if each attribute and parameter that can be reached from it has an annotation: type checkers
then agree on it.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.test_docs_api import MODULES

__all__ = ["complaints", "listed"]

LIST: Final = Path(__file__).parent.parent / ".ci" / "partly-known-types"
MOST: Final = 89
"""How many names the list may have; the last is Modbus, whose base class is listed. Lower it when
the list shrinks.
"""


def listed() -> set[str]:
    """The names that may have a type which is not known in full yet."""
    return set(LIST.read_text(encoding="utf-8").split())


def public() -> set[str]:
    """The public names of the package, each with its module."""
    return {f"{module.__name__}.{name}" for module in MODULES for name in module.__all__}


def complaints(is_known: Mapping[str, bool], names: set[str], excepted: set[str]) -> list[str]:
    """What is wrong with the public names, given whether the type of each symbol is known."""
    return [
        f"{name}: {fault}"
        for name in sorted(names | excepted)
        if (fault := _fault(is_known.get(name), name in names, name in excepted))
    ]


def _fault(is_known: bool | None, is_public: bool, is_excepted: bool) -> str:
    if not is_public:
        return f"no public name; remove it from {LIST.name}"
    if is_known is None:
        return "basedpyright does not see this name"
    if is_known and is_excepted:
        return f"its type is known in full; remove it from {LIST.name}"
    if not is_known and not is_excepted:
        return "its type is not known in full: an attribute or parameter has no annotation"
    return ""


def main() -> None:
    """Read the report, print what is wrong, and fail if anything is."""
    report = json.load(sys.stdin)
    symbols = report["typeCompleteness"]["symbols"]
    is_known = {symbol["name"]: symbol["isTypeKnown"] for symbol in symbols}
    excepted = listed()
    found = complaints(is_known, public(), excepted)
    if len(excepted) > MOST:
        found.append(f"{LIST.name} has {len(excepted)} names, and {MOST} are allowed")
    names = len(public())
    found.append(f"{names - len(excepted)} of {names} public names are known in full")
    sys.stdout.write("\n".join(found) + "\n")
    sys.exit(len(found) > 1)


if __name__ == "__main__":
    main()
