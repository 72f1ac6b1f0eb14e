import trio

from ergo_py import PID, Actor, Alias, ChildSpec, Node, run
from ergo_py.meta import TCP, Delimiter, TCPServer


class Door(Actor):
    async def init(self) -> None:
        server = TCPServer(port=7777, framing=Delimiter(b"\n"))
        await self.spawn_meta(server)  # it waits at the socket, so that no actor has to
        print(f"listening at {server.local}", flush=True)

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        if isinstance(message, TCP.Data):
            self.send("sum", message)


class Sum(Actor):
    total = 0

    def handle_message(self, message: TCP.Data, sender: PID | Alias) -> None:
        self.total += int(message.data)  # a line that is no number crashes this process
        self.send(message.connection, TCP.Send(b"= %d\n" % self.total))


async def main(node: Node) -> None:
    await node.supervise([ChildSpec("sum", Sum), ChildSpec("door", Door)], name="root")
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="sums@localhost")
