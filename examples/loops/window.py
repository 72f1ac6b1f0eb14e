"""A window of tkinter, with a node as its guest: both take turns in the main thread."""

import collections
import sys
import tkinter
from collections.abc import Callable
from typing import Any

import outcome
import trio

from ergo_py import Actor, Node, open_node


class Window:
    """The host. trio calls into it from other threads only through `call_soon_threadsafe`."""

    def __init__(self) -> None:
        self.root = tkinter.Tk()
        self.root.title("ergo_py")
        self.label = tkinter.Label(self.root, text="0", width=20)
        self.label.pack()
        self.button = tkinter.Button(self.root, text="Count", command=self.pressed)
        self.button.pack()
        self.node: Node | None = None
        self._calls: collections.deque[Callable[[], object]] = collections.deque()
        self.root.createcommand("run_calls", self._run_calls)

    def call_soon_threadsafe(self, function: Callable[[], object]) -> None:
        self._calls.append(function)
        self.root.tk.call("after", "idle", "run_calls")

    def _run_calls(self) -> None:
        for _ in range(len(self._calls)):
            self._calls.popleft()()

    def pressed(self) -> None:
        if self.node is not None:
            self.node.send("counter", 1)

    def show(self, total: int) -> None:
        self.label["text"] = str(total)


class Counter(Actor):
    def __init__(self, window: Window) -> None:
        self.window = window
        self.total = 0

    def handle_message(self, message: int, sender: object) -> None:
        self.total += message
        self.window.show(self.total)  # the same thread, so no lock


def run(window: Window, presses: int) -> str:
    """Show the window until it is closed; with ``presses``, press its button so often first."""
    ended: list[outcome.Outcome[None]] = []

    async def main() -> None:
        async with open_node("window@localhost") as node:
            window.root.protocol("WM_DELETE_WINDOW", node.stop)
            await node.spawn(Counter, window, name="counter")
            window.node = node
            if not presses:
                await trio.sleep_forever()
            for _ in range(presses):
                window.button.invoke()
            while window.label["text"] != str(presses):  # noqa: ASYNC110 - tkinter has no event
                await trio.sleep(0.01)

    def done(result: outcome.Outcome[Any]) -> None:
        ended.append(result)
        window.root.quit()

    trio.lowlevel.start_guest_run(
        main, run_sync_soon_threadsafe=window.call_soon_threadsafe, done_callback=done
    )
    window.root.mainloop()
    ended[0].unwrap()
    return str(window.label["text"])


if __name__ == "__main__":
    print("counted:", run(Window(), int(sys.argv[1]) if len(sys.argv) > 1 else 0))
