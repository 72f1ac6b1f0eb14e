"""`Modbus` against the server of pymodbus, on the loopback interface."""

import asyncio
import runpy
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, TypeVar

import pytest
import trio

pytest.importorskip("pymodbus", reason="needs pymodbus")

from pymodbus import ModbusException
from pymodbus.client import ModbusTcpClient
from pymodbus.server import ModbusTcpServer
from pymodbus.simulator import DataType, SimData, SimDevice

from ergo_py import Actor, BadInputError, Node, Normal
from ergo_py.devices import Modbus
from ergo_py.meta import Apply
from ergo_py.testing import checked_node
from tests.examples.programs import EXAMPLES
from tests.meta.owner import eventually
from tests.support import process_of

T = TypeVar("T")


def device() -> SimDevice:
    """Coils, inputs and registers of each kind, from 0 on."""
    bits = [SimData(0, count=16, values=False, datatype=DataType.BITS)]
    inputs = [SimData(0, values=[True] * 3 + [False] * 13, datatype=DataType.BITS)]
    holding = [SimData(0, count=10, values=7, datatype=DataType.REGISTERS)]
    measured = [SimData(0, count=10, values=215, datatype=DataType.REGISTERS)]
    return SimDevice(1, (bits, inputs, holding, measured))


@contextmanager
def served(port: int = 0) -> Iterator[int]:
    """A server in a thread of its own; yields its port."""
    ready, ports = Event(), list[int]()

    async def serve() -> None:
        server: Any = ModbusTcpServer(device(), address=("127.0.0.1", port))
        await server.serve_forever(background=True)
        ports.append(server.transport.sockets[0].getsockname()[1])
        loops.append(asyncio.get_running_loop())
        ends.append(end := asyncio.Event())
        ready.set()
        await end.wait()
        await server.shutdown()

    loops: list[asyncio.AbstractEventLoop] = []
    ends: list[asyncio.Event] = []
    thread = Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield ports[0]
    finally:
        loops[0].call_soon_threadsafe(ends[0].set)
        thread.join()


class Owner(Actor):
    def __init__(self, port: int) -> None:
        self.port = port

    async def init(self) -> None:
        self.plc = await self.spawn_meta(Modbus(self.client))

    def client(self) -> ModbusTcpClient:
        return ModbusTcpClient("127.0.0.1", port=self.port, timeout=20, retries=0)

    def handle_call(self, request: object, caller: object) -> object:
        return self.plc


async def ask(node: Node, plc: Any, request: Apply[T]) -> T:
    """Call for longer than the client waits on a slow machine."""
    return await node.call(plc, request, timeout=60)


async def test_registers_and_coils_are_read_and_written() -> None:
    with served() as port:
        async with checked_node() as node:
            plc = await node.call(await node.spawn(Owner, port), "plc")
            await ask(node, plc, Modbus.write_registers(2, [8, 9]))
            await ask(node, plc, Modbus.write_coils(1, [True, False, True]))

            assert await ask(node, plc, Modbus.read_holding_registers(1, 4)) == [7, 8, 9, 7]
            assert await ask(node, plc, Modbus.read_input_registers(9)) == [215]
            assert await ask(node, plc, Modbus.read_coils(0, 4)) == [False, True, False, True]
            assert await ask(node, plc, Modbus.read_discrete_inputs(2, 2)) == [True, False]


async def test_a_request_that_the_device_refuses_raises() -> None:
    with served() as port:
        async with checked_node() as node:
            plc = await node.call(await node.spawn(Owner, port), "plc")

            with pytest.raises(ModbusException, match="exception_code=2"):
                await ask(node, plc, Modbus.read_holding_registers(500))
            assert await ask(node, plc, Modbus.read_holding_registers(0)) == [7]


def point_to(client: ModbusTcpClient, port: int) -> None:
    client.comm_params.port = port


async def test_a_device_that_is_absent_is_tried_again_by_the_next_call() -> None:
    with socket.socket() as nothing, served() as port:
        nothing.bind(("127.0.0.1", 0))  # without listen(): connections are refused
        async with checked_node() as node:
            plc = await node.call(await node.spawn(Owner, nothing.getsockname()[1]), "plc")
            for _ in range(2):
                with pytest.raises(ConnectionError, match="onnect"):
                    await ask(node, plc, Modbus.read_coils(0))
            await ask(node, plc, Apply(point_to, port))

            assert await ask(node, plc, Modbus.read_coils(0)) == [False]


async def test_a_device_that_resets_the_connection_is_tried_again_by_the_next_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, served() as port:
        async with checked_node() as node, trio.open_nursery() as nursery:
            plc = await node.call(await node.spawn(Owner, listener.getsockname()[1]), "plc")

            def reset() -> None:
                line, _ = listener.accept()
                line.recv(100)
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                line.close()

            nursery.start_soon(trio.to_thread.run_sync, reset)
            with pytest.raises(ConnectionError):
                await ask(node, plc, Modbus.read_coils(0))
            await ask(node, plc, Apply(point_to, port))

            assert await ask(node, plc, Modbus.read_coils(0)) == [False]


def test_an_argument_that_makes_no_client_is_named() -> None:
    for wrong in (None, "10.0.0.7"):
        unchecked: Any = wrong
        with pytest.raises(BadInputError, match="client"):
            Modbus(unchecked)


async def test_a_stop_interrupts_the_wait_for_a_silent_device() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with checked_node() as node, trio.open_nursery() as nursery:
            owner = await node.spawn(Owner, listener.getsockname()[1])
            plc = await node.call(owner, "plc")

            async def read() -> None:
                with pytest.raises(ConnectionError):
                    await node.call(plc, Modbus.read_coils(0), timeout=None)

            nursery.start_soon(read)
            silent, _ = await trio.to_thread.run_sync(listener.accept)
            with silent:
                assert await trio.to_thread.run_sync(silent.recv, 100)
                node.send_exit(owner, Normal())
                await node.wait_ended(owner)

            assert node.info().threads_abandoned == 0


async def test_the_boiler_of_the_cookbook_reads_and_heats() -> None:
    boiler = runpy.run_path(str(EXAMPLES / "cookbook" / "modbus_boiler.py"))["Boiler"]
    with served() as port:
        async with checked_node() as node:
            made: Any = process_of(node, await node.spawn(boiler, "127.0.0.1", port)).behaviour
            await eventually(lambda: bool(made.degrees == 21.5))
            plc = await node.call(await node.spawn(Owner, port), "plc")
            while await ask(node, plc, Modbus.read_coils(0)) != [True]:
                pass
