"""Places that answer without an actor: files, and applications of other frameworks."""
