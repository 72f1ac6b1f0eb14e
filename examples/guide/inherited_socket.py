"""An echo server that systemd may listen for: it takes the socket ``echo``, or opens its own."""

import trio

from ergo_py import PID, Actor, Alias, ChildSpec, Node, run
from ergo_py.meta import TCP, TCPServer


class Echo(Actor):
    async def init(self) -> None:
        server = TCPServer("127.0.0.1", 7777, sock="echo")
        await self.spawn_meta(server)
        print(f"listening at {server.local}", flush=True)

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        if isinstance(message, TCP.Data):
            self.send(message.connection, TCP.Send(message.data))


async def main(node: Node, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    await node.supervise([ChildSpec("echo", Echo)])
    task_status.started()
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="echo@localhost")
