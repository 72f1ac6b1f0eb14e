"""The optional C extension, and its installation in place of Python functions."""
