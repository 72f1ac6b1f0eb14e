"""``ergo demo``: a program with simulated devices, and its observer page."""
