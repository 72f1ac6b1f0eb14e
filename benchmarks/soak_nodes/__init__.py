"""The soak of four programs: nodes that talk over a NATS server while nodes and server are killed
and stopped.
"""
