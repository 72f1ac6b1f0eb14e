"""A plugin of pytest: let the tests use another build of the C extension, at the path in the
environment variable ``ERGO_SPEED``. `python -m benchmarks sanitize` uses it for a build with
sanitizers.
"""

import importlib.util
import os
import sys

NAME = "ergo_py._core.speed._speed"


def load(path: str) -> None:
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[NAME] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


load(os.environ["ERGO_SPEED"])
