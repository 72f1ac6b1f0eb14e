"""The kernel: processes, messages, and what holds them together. Nothing here knows actors, sockets
or wires.
"""
