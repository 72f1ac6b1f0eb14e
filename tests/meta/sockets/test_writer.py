"""Writing to a stream socket bit by bit."""

import socket
from collections.abc import Awaitable, Callable

import trio

from ergo_py.meta.sockets.options import StreamOptions
from ergo_py.meta.sockets.streams.tls_layer import TLSLayer
from ergo_py.meta.sockets.streams.writer import Writer


async def test_an_empty_write_does_not_keep_the_writer_busy() -> None:
    works: list[Callable[[], Awaitable[None]]] = []
    writer = Writer(
        TLSLayer(start_tls=False),
        StreamOptions(),
        start=works.append,
        changed=lambda: None,
        failed=lambda _: None,
        slow=lambda: None,
        answer=lambda _caller, _size: None,
    )
    ours, theirs = socket.socketpair()
    writer.use(ours, trio.current_time)
    while writer.write(bytes(65536)):
        pass
    whole = writer.written + writer.pending

    done_at_once = writer.write(b"")
    with trio.socket.from_stdlib_socket(theirs) as peer, trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(works[0])
            got = 0
            while got < whole:
                got += len(await peer.recv(65536))

    assert not done_at_once
    assert writer.pending == 0
    writer.close()
    ours.close()
