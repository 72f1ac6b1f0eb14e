"""Applications: supervision trees with dependencies, started and stopped together."""
