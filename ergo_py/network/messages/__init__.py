"""Messages on the wire: the types that travel, and their encoding."""
