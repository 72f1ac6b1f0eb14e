"""``ergo new``: a new project, from a template."""
