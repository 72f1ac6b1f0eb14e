"""States of entities: which classes are closed, and whether a state is loaded as it was."""
