"""TCP, TLS, Unix and UDP sockets as meta-processes."""
