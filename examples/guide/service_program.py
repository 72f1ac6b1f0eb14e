"""A program that tells systemd when it is up: its servers listen by then."""

import trio

from ergo_py import PID, Actor, ChildSpec, Node, run
from ergo_py.meta import TCP, TCPServer


class Shop(Actor):
    async def init(self) -> None:
        await self.spawn_meta(TCPServer("127.0.0.1", 0, reader="task"))

    def handle_message(self, message: object, sender: PID) -> None:
        match message:
            case TCP.Data(connection, data):
                self.send(connection, TCP.Send(data))


async def main(node: Node, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    await node.supervise([ChildSpec("shop", Shop)])
    task_status.started()  # the server listens
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="shop@localhost")
