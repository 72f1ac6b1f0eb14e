"""Programs that hand their sockets and states over to the next version."""
