"""A family of workloads for each file. A module here with a list ``CASES`` takes part by itself."""
