"""Worlds: whole networks of nodes in a single program, in virtual time, with seeded faults."""
