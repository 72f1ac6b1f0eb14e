"""The lifecycle of a process: spawn, message loop, failure, termination."""
