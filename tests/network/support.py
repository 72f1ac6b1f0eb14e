"""The private parts of networks that tests look at."""

from typing import Any

__all__ = [
    "ask_jetstream",
    "begin_search",
    "bytes_of_partial_frames",
    "found_nodes",
    "largest_number",
    "new_way",
    "open_files",
    "publish_to_jetstream",
    "readers_of",
    "replace_sink",
    "routes_of",
    "sink_of",
    "write_waiting",
]


def replace_sink(carrier: Any, sink: object) -> None:
    """Have a carrier of NATS hand its frames to another object than its network."""
    carrier._sink = sink


def sink_of(carrier: Any) -> Any:
    return carrier._sink


def begin_search(carrier: Any) -> None:
    """A carrier of NATS is a member of its network, and searches for nodes."""
    carrier._is_member, carrier._discovery.searches = True, 1


def found_nodes(carrier: Any) -> dict[str, Any]:
    """The nodes that a carrier of NATS has found in its search."""
    found: dict[str, Any] = carrier._discovery.found
    return found


def largest_number(seen: Any) -> int:
    """The largest number that a recollection of a store has seen."""
    largest: int = seen._largest
    return largest


async def ask_jetstream(store: Any, subject: str, request: dict[str, Any]) -> Any:
    """Ask the server of a store in its own words."""
    return await store._ask(subject, request)


async def publish_to_jetstream(store: Any, subject: str, headers: dict[str, str]) -> Any:
    """Write an empty entry with these headers past the methods of a store."""
    return await store._publish(subject, b"", headers)


def open_files(store: Any) -> None:
    """Have a store of files open them, without an entry."""
    store._prepare()


def routes_of(executor: Any) -> dict[bytes, Any]:
    """The routes that an executor remembers."""
    routes: dict[bytes, Any] = executor._known_routes
    return routes


def readers_of(carrier: Any) -> dict[str, Any]:
    """The connections that a carrier of files reads, by the names of their nodes."""
    readers: dict[str, Any] = carrier._readers
    return readers


def bytes_of_partial_frames(carrier: Any) -> int:
    """How many bytes of unfinished frames a carrier of files may still hold."""
    left: int = carrier._partial_frames._left
    return left


def new_way(connection: object) -> Any:
    """The writer of a connection to another node."""
    from ergo_py.network.carriers.frame_writer import FrameWriter  # an extra

    way: Any = FrameWriter()
    way._socket = connection
    return way


async def write_waiting(way: Any, connection: object) -> int:
    """Write all frames that wait, and return how many bytes are left."""
    while way._waiting:
        await way._write(connection)
    left: int = way._size
    return left
