"""A connection over a stream socket, and the parts of which it is composed."""
