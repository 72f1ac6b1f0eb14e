"""Two programs that talk to each other, and functions on all cores: ours beside others."""
