"""Supervised one-shot work: `run_task`, `map_stream` and `TaskSupervisor`."""
