"""The demonstration: a chat over TCP and a collector of metrics over UDP on a node, supervised.

It first plays a short session by itself, and then serves until Ctrl-C. Without a terminal, or with
``DEMO_SECONDS`` set, it ends by itself.
"""

import io
import os
import sys
from time import perf_counter

import trio

from ergo_py import ChildSpec, Node, run
from ergo_py.meta import Endpoint
from examples.tcp.chat import Chat
from examples.udp.statsd import Collector, Snapshot

ON_TERMINAL = sys.stdin.isatty() and sys.stdout.isatty()


def seconds() -> float | None:
    """How long to serve, if ``DEMO_SECONDS`` is set."""
    text = os.environ.get("DEMO_SECONDS")
    try:
        if not text or float(text) >= 0:
            return float(text) if text else None
    except ValueError:
        pass
    sys.exit(f"DEMO_SECONDS is {text!r}; it takes a number from 0 up, such as DEMO_SECONDS=60")


SECONDS = seconds()
SERVES = ON_TERMINAL or SECONDS is not None
ERGO = os.path.relpath(os.path.join(os.path.dirname(sys.executable), "ergo"))


# -- telling the story -----------------------------------------------------------------------------

# The drawing of a tree uses characters that not every locale has.
if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors="replace")


def styled(code: str, text: str) -> str:
    return (
        f"\x1b[{code}m{text}\x1b[0m"
        if sys.stdout.isatty() and "NO_COLOR" not in os.environ
        else text
    )


def headline(text: str) -> None:
    print(f"\n{styled('1', text)}", flush=True)


def tell(text: str) -> None:
    print(text, flush=True)


def show(code: str, text: str) -> None:
    for line in text.splitlines():
        print(f"    {styled('36', code)} {line}" if code else f"    {line}", flush=True)


async def pause(seconds: float = 1.5) -> None:
    """Give the viewer time to read."""
    await trio.sleep(seconds if ON_TERMINAL else 0.0)


# -- guests ----------------------------------------------------------------------------------------


class Guest:
    """An ordinary client, such as ``nc``: it knows nothing of actors."""

    def __init__(self, name: str, address: Endpoint) -> None:
        self.name = name
        self.address = address
        self.seen = b""
        self.stream: trio.SocketStream | None = None

    async def come(self) -> None:
        self.stream = await trio.open_tcp_stream(*self.address)
        await self.hear("name?")
        await self.say(self.name)
        await self.hear("you are in")

    async def say(self, text: str) -> None:
        assert self.stream is not None
        show(f"{self.name:>4} >", text)
        await self.stream.send_all(text.encode() + b"\n")

    async def hear(self, text: str) -> None:
        """Wait for a line with ``text`` in it, and show all lines up to that."""
        with trio.fail_after(10):
            while text not in await self.line():
                pass

    async def line(self) -> str:
        assert self.stream is not None
        while b"\n" not in self.seen:
            data = await self.stream.receive_some()
            if not data:
                raise EOFError("the chat is closed")
            self.seen += data
        line, _, self.seen = self.seen.partition(b"\n")
        show(f"{self.name:>4} <", line.decode())
        return line.decode()

    async def leave(self) -> None:
        if self.stream is not None:
            await trio.aclose_forcefully(self.stream)

    async def stay(self) -> None:
        """Listen, and greet each new guest."""
        while True:
            words = (await self.line()).split()
            if words[0] == "*" and words[2:] == ["came", "in"] and words[1] not in ("ann", "bob"):
                await self.say(f"welcome, {words[1]}")


def endpoint(text: str) -> Endpoint:
    host, _, port = text.rpartition(":")
    return Endpoint(host, int(port))


# -- the session -----------------------------------------------------------------------------------


async def play(node: Node, ann: Guest, bob: Guest, metrics: Endpoint) -> None:
    headline("1  Two guests come in and talk")
    tell("Each connection is a meta-process that blocks on its socket, so that no actor has to.")
    await pause()
    await ann.come()
    await bob.come()
    await ann.hear("bob came in")
    await ann.say("hello bob")
    await bob.hear("hello bob")
    await ann.hear("hello bob")
    await pause()

    headline("2  Metrics arrive as datagrams")
    tell("A collector owns a UDP socket. Rubbish is counted, and ends nothing.")
    await pause()
    with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as sock:
        await sock.connect(metrics)
        for line in (
            "visits:1|c",
            "visits:1|c",
            "heat:21.5|g",
            "answer:3.2|ms",
            "no metric at all",
        ):
            show("udp >", line)
            await sock.send(line.encode())
    await arrival(node, "rubbish", "1")
    show("", str(await node.call("metrics", Snapshot())))
    await pause()

    headline("3  The supervision tree: node.tree()")
    tell("Each process and each socket has an owner, and ends with it.")
    await pause()
    show("", str(node.tree()))
    await pause()

    headline("4  Looking into a live connection: await node.inspect_meta(alias)")
    alias = next(
        alias for alias in node.metas() if node.meta_info(alias).behaviour == "TCPConnection"
    )
    tell(f"Ann's connection is {alias}; its reader is the thread {node.meta_info(alias).thread}.")
    await pause()
    facts = await node.inspect_meta(alias)
    show("", "\n".join(f"{key:>12}  {value}" for key, value in facts.items() if value))
    await pause()

    headline("5  Bob makes the room crash")
    tell("The log shows the reason; the supervisor restarts the room; both connections stay open.")
    await pause()
    before, began = node.whereis("room"), perf_counter()
    await bob.say("/crash")
    await ann.hear("you are in")
    await bob.hear("you are in")
    took = perf_counter() - began
    tell(
        f"The room was {before} and is {node.whereis('room')} now. All are back in it after "
        f"{took * 1000:.1f} ms."
    )
    await ann.say("are you still there?")
    await bob.hear("still there?")
    await ann.hear("still there?")
    await pause()
    show("", str(node.tree().find("chat")))
    await pause()


async def arrival(node: Node, what: str, value: str) -> None:
    """Wait until a datagram was counted, by polling: UDP sends no confirmation."""
    with trio.fail_after(10):
        while (await node.inspect("metrics"))[what] != value:  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.01)


# -- and then --------------------------------------------------------------------------------------


async def main(node: Node) -> None:
    opened.append(node)
    tell(
        f"{styled('1', 'ergo_py')}: actors that never block, over I/O that does. This is the node "
        f"{node.name}."
    )
    await node.supervise(
        [ChildSpec("chat", Chat, 7777, True), ChildSpec("metrics", Collector, 8125, True)],
        name="root",
    )
    chat, metrics = (
        endpoint(await node.call("door", "where?")),
        endpoint(await node.call("metrics", "where?")),
    )
    ann, bob = Guest("ann", chat), Guest("bob", chat)
    try:
        await play(node, ann, bob, metrics)
        await bob.leave()
        await ann.hear("bob left")
        if SERVES:
            invite(chat, metrics)
            await serve(ann)
    finally:
        for guest in (ann, bob):
            await guest.leave()


async def serve(ann: Guest) -> None:
    with trio.move_on_after(float("inf") if SECONDS is None else SECONDS):
        try:
            await ann.stay()
        except (EOFError, trio.BrokenResourceError):
            headline("The chat crashed more often than its supervisors allow, and was given up.")


def invite(chat: Endpoint, metrics: Endpoint) -> None:
    headline("Now it is your turn")
    tell("In another terminal:")
    for command, purpose in (
        (f"nc {chat.host} {chat.port}", "talk to ann; there, type"),
        ("    /tree", "to see the supervision tree"),
        ("    /inspect", "to look into your own connection"),
        ("    /inspect metrics", "to look into a process by name"),
        ("    /crash", "to make the room fail"),
        ("    /quit", "to leave"),
        (f"echo 'visits:1|c' | nc -u -w0 {metrics.host} {metrics.port}", "send a metric"),
        (f"{ERGO} top demo", "to see the busiest processes; also ps, tree, crashes"),
        (f"{ERGO} observe demo", "to see all of it in the browser"),
        (f"{ERGO} attach demo", "for a prompt inside; there, type"),
        ("    await node.inspect_meta(node.metas()[-1])", "to look into the latest connection"),
    ):
        show("", f"{styled('1', f'{command:<50}')}{purpose}")
    tell(
        "Ctrl-C stops everything in order."
        if SECONDS is None
        else f"It ends by itself after {SECONDS:g} seconds."
    )


opened: list[Node] = []

if __name__ == "__main__":
    run(main, name="demo@localhost", control="look,attach" if SERVES else "")
    headline(str(opened[0].exit_report))
