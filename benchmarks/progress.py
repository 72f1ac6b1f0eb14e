"""A line on a terminal that names the measurement under way."""

import sys

__all__ = ["progress"]


def progress(what: str) -> None:
    """Replace the line, if there is a terminal to see it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{what}")
        sys.stderr.flush()
