"""``make chaos``: the telemetry gateway of the examples under load, with its parts killed and its
surroundings failing.

Everything that is chosen is chosen by a seed; how the events fall in time is up to the machine, and
differs from run to run.
"""
