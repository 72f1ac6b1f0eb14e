"""Protocol faults that are planted, and found in worlds: `python -m benchmarks planted`.

Each fault is a small change of the source of a protocol. A world without it goes well for each
seed; a search finds a seed that fails with it, within the given number of seeds.
"""

import argparse
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from types import CodeType, FunctionType
from typing import Any

from ergo_py.testing.world.simulation import Simulation, SimulationError

from .planted_faults import FAULTS, Planted

__all__ = ["find", "planted"]


@contextmanager
def planted(fault: Planted) -> Iterator[None]:
    """Change the functions of a module inside the block."""
    module: Any = importlib.import_module(fault.module)
    source = inspect.getsource(module)
    if source.count(fault.text) != 1:
        raise LookupError(f"{fault.module} has the text of {fault.name!r} not once")
    new = dict(_codes(compile(source.replace(fault.text, fault.instead), module.__file__, "exec")))
    before: list[tuple[FunctionType, CodeType]] = []
    try:
        for function in _functions(module):
            before.append((function, function.__code__))
            function.__code__ = new[function.__qualname__]
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for each in code.co_consts:
        if isinstance(each, CodeType) and "<locals>" not in each.co_qualname:
            yield each.co_qualname, each
            yield from _codes(each)


def _functions(module: Any) -> Iterator[FunctionType]:
    # A public class says that it belongs to its package, so only functions are asked for theirs.
    for owner in [module, *vars(module).values()]:
        for found in list(getattr(owner, "__dict__", {}).values()):
            function = found.fget if isinstance(found, property) else found
            if (
                isinstance(function, FunctionType)
                and function.__module__ == module.__name__
                and function.__code__.co_filename == module.__file__
            ):
                yield function


def find(fault: Planted, seeds: Sequence[int], processes: int = 1) -> SimulationError | None:
    """The failure of the first seed that finds a fault, shrunk."""
    with planted(fault):
        try:
            Simulation(fault.world, len(seeds)).run(seeds, processes=processes)
        except SimulationError as error:
            return error
    return None


def main() -> int:
    """Search for all faults, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks planted", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="the most seeds for each fault")
    parser.add_argument("--only", default="", help="only faults with this text in their names")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    chosen = [fault for fault in FAULTS if options.only in fault.name]
    found: list[SimulationError] = []
    for fault in chosen:
        began = perf_counter()
        error = find(fault, range(options.seeds), options.processes)
        if error is not None:
            found.append(error)
        told = (
            f"not found in {options.seeds} seeds"
            if error is None
            else f"seed {error.seed}, shrunk to {len(error.plan.faults)} in {error.runs} runs"
        )
        print(f"{fault.name}: {told}, {perf_counter() - began:.1f} s", flush=True)
    print(f"{len(found)} of {len(chosen)} found")
    if found:
        print(
            f"median: {median(error.seed for error in found):g} seeds before, "
            f"{median(len(error.plan.faults) for error in found):g} faults after shrinking, "
            f"in {median(error.runs for error in found):g} runs"
        )
    return 1 if len(found) < len(chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
