"""An echo server that its next version replaces without a gap: start the program twice."""

import trio

from ergo_py import PID, Actor, Alias, ChildSpec, Node, run
from ergo_py.meta import TCP, TCPServer


class Echo(Actor):
    async def init(self) -> None:
        await self.spawn_meta(TCPServer("127.0.0.1", 7777, sock="echo"))

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        if isinstance(message, TCP.Data):
            self.send(message.connection, TCP.Send(message.data))


async def main(node: Node, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    await node.supervise([ChildSpec("echo", Echo)])
    task_status.started()  # from now on this program serves, and its predecessor drains
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="echo@localhost", handover="echo")
