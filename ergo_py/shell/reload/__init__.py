"""``ergo run --reload``: a program that starts again when its files change."""
