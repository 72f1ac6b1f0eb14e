import trio

from ergo_py import Actor, Caller, open_node
from ergo_py.telemetry import Health, HealthPage, MetricsPage
from ergo_py.web import Route, WebServer


class Store(Actor):
    """Keeps the orders, and knows whether it is healthy."""

    def __init__(self) -> None:
        self.is_connected = True

    def handle_message(self, message: object, sender: object) -> None:
        self.is_connected = message != "unplug"

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Health.Check():
                return True if self.is_connected else "no connection to the database"
        return None


class Operation(Actor):
    """Serves the metrics and the probes."""

    async def init(self) -> None:
        probes = HealthPage(Health(self.node, checks={"database": "store"}))
        self.server = WebServer(
            routes=[
                Route("/metrics", to=MetricsPage(self.node)),
                Route("/healthz", to=probes),
                Route("/readyz", to=probes),
                Route("/startupz", to=probes),
            ]
        )
        await self.spawn_meta(self.server)

    def handle_call(self, request: object, caller: Caller) -> object:
        return self.server.local.port


async def fetch(port: int, path: str) -> str:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(
            f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()
        )
        return b"".join([data async for data in stream]).decode()


async def main() -> None:
    async with open_node("shop@localhost") as node:
        store = await node.spawn(Store, name="store")
        port = await node.call(await node.spawn(Operation), "port")
        for _ in range(3):
            node.send(store, "order")
        await node.call(store, "done")
        for line in (await fetch(port, "/metrics")).splitlines():
            if line.startswith("ergo_messages_handled_total") and "Store" in line:
                print(line)
        node.send(store, "unplug")
        for path in ("/healthz", "/readyz"):
            print(path, (await fetch(port, path)).splitlines()[-1])


if __name__ == "__main__":
    trio.run(main)
