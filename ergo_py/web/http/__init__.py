"""HTTP of a connection: requests become calls of actors, and their answers responses."""
