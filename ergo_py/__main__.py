"""``python -m ergo_py``: the same as ``ergo``."""

import sys

from .shell.cli import main

sys.exit(main())
