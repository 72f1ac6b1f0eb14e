"""The control socket: lets another program of the same user inspect a running node."""
