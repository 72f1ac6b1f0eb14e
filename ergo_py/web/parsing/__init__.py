"""Parsers of HTTP and WebSocket. They do no I/O."""
