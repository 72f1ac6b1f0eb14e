"""The lifecycle of a meta-process: its reader, its handler, its termination."""
