"""`WebOptions`: the limits and times of a web server."""

from collections.abc import Sequence
from dataclasses import dataclass

from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.options import check_flag, check_number

__all__ = ["WebOptions"]


@dataclass(frozen=True, slots=True)
class WebOptions:
    """The limits and times of a web server, which all its connections share."""

    head_timeout: float = 10.0
    """Seconds from the first byte of a request to the end of its head."""
    body_timeout: float = 10.0
    """Seconds that a body may pause."""
    body_rate: float = 256.0
    """Bytes a second that a body must reach, over 30 seconds."""
    idle_timeout: float = 60.0
    """Seconds after which an idle connection ends, and after which a peer that takes nothing is
    given up.
    """
    write_limit: int = 1024 * 1024
    """Bytes that may wait for a peer before it counts as slow."""
    hosts: Sequence[str] | None = None
    """The hosts that are served; requests for others get status 421. None for all."""
    access_log: bool = False
    """Write a line for each response, without query strings and headers."""
    metrics: bool = False
    """Count responses and their durations, for the metrics of the node."""

    def __post_init__(self) -> None:
        for name in ("head_timeout", "body_timeout", "idle_timeout"):
            check_number(f"WebServer({name})", getattr(self, name), least=0.001)
        check_number("WebServer(body_rate)", self.body_rate, least=0.0)
        check_number("WebServer(write_limit)", self.write_limit, least=1, whole=True)
        check_flag("WebServer(access_log)", self.access_log)
        check_flag("WebServer(metrics)", self.metrics)
        if self.hosts is not None and (
            isinstance(self.hosts, str)
            or not self.hosts
            or not all(isinstance(host, str) and host for host in self.hosts)
        ):
            raise BadInputError(
                "WebServer(hosts)", self.hosts, "names without ports, such as ['example.org']"
            )
