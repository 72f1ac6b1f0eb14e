"""Programs that hand their sockets over to the next version."""
