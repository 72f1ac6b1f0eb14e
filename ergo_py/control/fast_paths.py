"""`fast_paths_off`: the fast paths that this program does without, each with the reason."""

import os
import select

from .._core.runtime.handoff import SWITCH, unmet
from .._core.speed.installation import datagram_reader, is_fast, why_not_fast
from ..meta.sockets.streams.connection import why_not_in_c
from ..meta.thread_inbox import ThreadInbox

__all__ = ["fast_paths_off"]


def fast_paths_off() -> list[str]:
    """The names of the fast paths that are off, with their reasons. Everything works without them,
    at a lower speed.
    """
    found: list[tuple[str, str]] = []
    if not is_fast:
        found.append(("the C extension", why_not_fast))
    else:
        if why_not_in_c:
            found.append(("stream connections in C", why_not_in_c))
        if not ThreadInbox.is_possible:
            found.append(("reader threads without the GIL", "the system has no eventfd"))
        if datagram_reader is None:
            found.append(("many datagrams in a system call", "the system has no recvmmsg"))
    if not hasattr(select, "epoll"):
        found.append(("a poller for all sockets of a server", "the system has no epoll"))
    if os.environ.get(SWITCH) == "0":
        found.append(("direct hand-off of turns", f"{SWITCH}=0 is set"))
    elif differences := unmet():
        found.append(("direct hand-off of turns", "; ".join(differences)))
    return [f"{name}: {reason}" for name, reason in found]
