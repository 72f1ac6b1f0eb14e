"""The control socket: how another program of the same user looks into a running node."""
