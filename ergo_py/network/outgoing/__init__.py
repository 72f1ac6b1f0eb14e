"""The operations to another node: those that wait for room, and those that wait for an answer."""
