"""I/O bridges: meta-processes that turn sockets, programs and files into messages, one kind a file."""
