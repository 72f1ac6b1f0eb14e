"""Work in a Python of its own: memory that was used once is not given back, so measurements of
memory must come first.

``python -m benchmarks.apart MODULE NAME SIZE`` does the piece of work that ``MODULE`` has under
``NAME`` in its ``APART``.
"""

import json
import subprocess
import sys
from functools import partial
from importlib import import_module

from .harness import Figures, Variant

__all__ = ["apart"]


def apart(module: str, name: str) -> Variant:
    """The variant ``name`` of ``module``, each time in a new Python."""
    return partial(_run, module, name)


def _run(module: str, name: str, size: int) -> Figures:
    command = [sys.executable, "-m", __name__, module, name, str(size)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


if __name__ == "__main__":
    work: dict[str, Variant] = import_module(sys.argv[1]).APART
    json.dump(dict(work[sys.argv[2]](int(sys.argv[3]))), sys.stdout)
