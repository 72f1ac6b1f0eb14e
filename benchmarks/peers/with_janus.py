"""janus: a queue between a thread and asyncio."""

from ..workloads.readers import _janus, _janus_drip

__all__ = ["ADDS"]

ADDS = {
    "thread to process, flood": {"janus": _janus},
    "thread to process, idle": {"janus": _janus_drip},
}
