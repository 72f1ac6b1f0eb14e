"""``ergo top``: a live view of a node. A plain view, and a view with the library ``textual``."""
