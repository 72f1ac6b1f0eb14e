"""A thermostat: readings come from a sensor, commands go to a heater, and a sensor that falls
silent turns the heater off.
"""

from dataclasses import dataclass
from typing import Any

from ergo_py import Actor, Caller, MetaProcess, Reject, Request


@dataclass(frozen=True)
class Reading:
    celsius: float


@dataclass(frozen=True)
class Heat:
    on: bool


@dataclass(frozen=True)
class Silence:
    """The thermostat's message to itself: no reading has come for too long."""


@dataclass(frozen=True)
class Mean(Request[float]):
    """The mean of all readings so far."""


class Thermostat(Actor):
    """Its sensor and its heater are arguments, so that a test can pass others."""

    def __init__(
        self, sensor: MetaProcess | None, heater: Any, wanted: float = 20.0, patience: float = 60.0
    ) -> None:
        self.sensor = sensor
        self.heater = heater
        self.wanted = wanted
        self.patience = patience
        self.readings: list[float] = []

    async def init(self) -> None:
        if self.sensor is not None:
            await self.spawn_meta(self.sensor)
        self.silence = self.send_after(self.patience, self.pid, Silence())

    def handle_message(self, message: object, sender: Any) -> None:
        match message:
            case Reading(celsius):
                if not -50 < celsius < 80:
                    raise ValueError(f"{celsius} degrees in a living room")
                self.silence.cancel()
                self.silence = self.send_after(self.patience, self.pid, Silence())
                self.readings.append(celsius)
                self.send(self.heater, Heat(celsius < self.wanted))
            case Silence():
                self.send(self.heater, Heat(False))

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Mean():
                if not self.readings:
                    raise Reject(LookupError("no reading yet"))
                return sum(self.readings) / len(self.readings)
        raise Reject(LookupError(f"no answer to {request!r}"))


class Sensor(MetaProcess):
    """Every line of a pipe is a reading."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def start(self) -> None:
        with self.opened(open(self.descriptor, encoding="utf-8")) as lines:
            for line in lines:
                self.send(self.parent, Reading(float(line)))
