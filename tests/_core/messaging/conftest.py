"""The fixtures of the tests of messages and calls."""

from tests._core.messaging.servers import way

__all__ = ["way"]
