"""A library that works in the main thread only, such as a window system, in ordinary actors."""

import threading

from ergo_py import Actor, ChildSpec, Node, Threads
from ergo_py.blocking import open_node


class Screen:
    """Stands for such a library: it refuses every other thread."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def draw(self, line: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("only the main thread may draw")
        self.lines.append(line)


class Window(Actor):
    def init(self) -> None:
        self.screen = Screen()

    def handle_message(self, message: str, sender: object) -> None:
        self.screen.draw(message)
        if message == "goodbye":
            self.node.stop()

    def terminate(self, reason: object) -> None:
        print(f"{reason}: {self.screen.lines}")


class Clock(Actor):
    """An actor on the loop, in another thread, which a busy main thread does not delay."""

    def init(self) -> None:
        for text in ("hello", "goodbye"):
            self.send("window", text)


async def start(node: Node) -> None:
    await node.supervise(
        [
            ChildSpec("window", Window, dispatcher=Threads.MAIN),
            ChildSpec("clock", Clock),
        ]
    )


def main() -> None:
    with open_node("desk@localhost") as node:
        node.run_main(start)


if __name__ == "__main__":
    main()
