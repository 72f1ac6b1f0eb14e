import trio

from ergo_py import Actor, Backoff, ChildSpec, MetaProcess, open_node


class Port:
    """A serial port. It exists while its device is plugged in."""

    tries = 0

    def open(self) -> None:
        self.tries += 1
        if self.tries < 4:
            raise FileNotFoundError("no such device: /dev/ttyUSB0")


class PortBridge(MetaProcess):
    def __init__(self, port: Port) -> None:
        self.port = port

    def init(self) -> None:
        self.port.open()

    def start(self) -> None:
        while self.pause(3600):
            pass


class Press(Actor):
    def __init__(self, port: Port) -> None:
        self.port = port

    async def init(self) -> None:
        # needed: this process ends with the bridge, and its supervisor starts both again
        await self.spawn_meta(PortBridge(self.port), needed=True)

    def handle_call(self, request: object, caller: object) -> object:
        return f"open after {self.port.tries} tries"


async def main() -> None:
    async with open_node("demo@localhost", log_level="error") as node:
        patience = Backoff(0.01, 10.0, until_started=True)
        tree = await node.supervise([ChildSpec("press", Press, Port(), backoff=patience)])
        print("press:", tree.children()[0].phase.value)
        print("press:", await node.service("press").call("state", retry=True))


if __name__ == "__main__":
    trio.run(main)
