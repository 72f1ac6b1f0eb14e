"""Inspection of a running node: snapshots, state, suspension, traces, the watchdog."""
