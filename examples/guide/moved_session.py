"""A server whose connections move to the next version of its program: start the program twice."""

import trio

from ergo_py import PID, Actor, Alias, ChildSpec, Node, run
from ergo_py.meta import TCP, Delimiter, TCPServer


class Visitor(Actor):
    def __init__(self) -> None:
        self.lines = 0

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case TCP.Connected(connection):
                self.send(connection, TCP.Send(b"welcome\n"))
            case TCP.Data(connection, line):
                self.lines += 1
                self.send(connection, TCP.Send(b"%d %s\n" % (self.lines, line)))

    def hand_over(self) -> object:  # in the old program, after all lines that it has read
        return self.lines

    def take_over(self, state: int) -> None:  # in the new one, before the next line
        self.lines = state


class Door(Actor):
    async def init(self) -> None:
        server = TCPServer(
            "127.0.0.1",
            7777,
            sock="door",
            receiver=Visitor,
            reader="task",
            framing=Delimiter(b"\n", max_frame=4096),
        )
        await self.spawn_meta(server)


async def main(node: Node, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    await node.supervise([ChildSpec("door", Door)])
    task_status.started()  # from now on this program serves the connections of its predecessor
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="door@localhost", handover="door")
