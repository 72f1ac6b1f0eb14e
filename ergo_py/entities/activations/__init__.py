"""Entities that are awake: their callbacks, their output, and the messages that they owe."""
