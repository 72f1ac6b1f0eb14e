"""One family of workloads a file. A module here with a list ``CASES`` takes part by itself."""
