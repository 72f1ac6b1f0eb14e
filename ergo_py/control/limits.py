"""What the clients of a control socket may do, in numbers."""

__all__ = ["Limits"]


class Limits:
    """What clients may do. The tests have others."""

    clients = 32
    line = 5.0
    """Seconds that a line may take from its first byte to its last."""
    writing = 5.0
    """Seconds that a client may take to read something of its answer."""
    idle = 12 * 3600.0
    """Seconds without a request."""
    accepts = 100
    """Connections after which nobody is accepted for a second."""
    pace = 0.005
    """Seconds from one request of a client to its next."""
    pace_of_all = 0.002
    """The same for all clients together."""
    patience = 1.5
    """Seconds without a sign of life after which the loop is said to be blocked."""
    glance = 0.3
    """The same for requests that can be answered without the loop."""
