"""`Limits`: the limits on the clients of a control socket."""

__all__ = ["Limits"]


class Limits:
    """The limits on clients. Tests override them."""

    clients = 32
    line = 5.0
    """Seconds from the first byte of a line to its last."""
    writing = 5.0
    """Seconds within which a client must read some of its answer."""
    idle = 12 * 3600.0
    """Idle timeout in seconds, without a request."""
    accepts = 100
    """Number of connections after which the server accepts none for a second."""
    pace = 0.005
    """Minimum seconds between two requests of a client."""
    pace_of_all = 0.002
    """Minimum seconds between two requests of all clients together."""
    patience = 1.5
    """Seconds without a heartbeat after which the loop counts as blocked."""
    glance = 0.3
    """The same for requests that the server thread can answer without the loop."""
