"""The machine of a world: threads that follow from its seed."""
