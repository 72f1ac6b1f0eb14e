"""pykka, where the workloads do not have it yet: a thread for each actor."""

from threading import Event, Timer
from typing import Any

import pykka

from ..clocks import Stopwatch
from ..harness import Figures, Variant
from ..workloads.publish import ROUNDS
from ..workloads.tell import PykkaSink
from ..workloads.timers import delays

__all__ = ["ADDS"]


class Mortal(pykka.ThreadingActor):
    """Fails as soon as it runs; pykka has no supervisor, so its end starts the next actor."""

    def __init__(self, left: int, done: Event) -> None:
        super().__init__()
        self.left = left
        self.done = done

    def on_start(self) -> None:
        if self.left:
            self.actor_ref.tell("fail")
        else:
            self.done.set()

    def on_receive(self, message: Any) -> Any:
        raise ValueError(message)

    def on_failure(
        self, exception_type: object, exception_value: object, traceback: object
    ) -> None:
        Mortal.start(self.left - 1, self.done)


def _restart(size: int) -> Figures:
    size = max(1, size // 10)
    done = Event()
    try:
        with Stopwatch() as watch:
            Mortal.start(size, done)
            done.wait()
    finally:
        pykka.ActorRegistry.stop_all()
    return watch.each(size)


def _publish(size: int) -> Figures:
    """Broadcast to a fiftieth of them: each is a thread."""
    size = max(1, size // 50)
    sinks = [PykkaSink.start(ROUNDS) for _ in range(size)]
    futures = [sink.ask("done?") for sink in sinks]
    try:
        with Stopwatch() as watch:
            for _ in range(ROUNDS):
                pykka.ActorRegistry.broadcast("publish", target_class=PykkaSink)
            for future in futures:
                future.get()
    finally:
        pykka.ActorRegistry.stop_all()
    return watch.each(size * ROUNDS)


def _timers(size: int) -> Figures:
    """pykka has no timers; its users take threading.Timer, which is a thread each."""
    size = max(1, size // 500)
    timers = [Timer(delay, print) for delay in delays(size)]
    with Stopwatch() as arming:
        for timer in timers:
            timer.start()
    with Stopwatch() as cancelling:
        for timer in timers:
            timer.cancel()
        for timer in timers:
            timer.join()
    return arming.each(size, "arm ") | cancelling.each(size, "cancel ")


ADDS: dict[str, dict[str, Variant]] = {
    "restart": {"pykka": _restart},
    "publish to 10,000 subscribers": {"pykka": _publish},
    "timers": {"pykka": _timers},
}
