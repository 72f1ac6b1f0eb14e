"""The acts that other nodes are permitted here, and their limits."""
