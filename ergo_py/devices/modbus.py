"""`Modbus`: the registers and coils of a Modbus device, with pymodbus."""

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pymodbus.client.base import ModbusBaseSyncClient
from pymodbus.exceptions import ConnectionException, ModbusException, ModbusIOException
from pymodbus.pdu import ModbusPDU

from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.public_names import show_public_names
from ..meta.blocking_calls import BlockingCalls
from ..meta.invocations import Apply

__all__ = ["Modbus"]


class Modbus(BlockingCalls):
    """A Modbus device, which only answers: its methods make requests for ``call``, such as ``await
    self.call(plc, Modbus.read_holding_registers(0, 2))``.

    A call connects if there is no connection, so a device may be absent at first, and later: calls
    raise ``ConnectionError`` meanwhile, and if no answer comes in the time of the client. A device
    that refuses a request raises ``pymodbus.ModbusException``. Calls run one at a time, in order.

    Args:
        client: makes the client of pymodbus, in the thread that uses it:
            ``lambda: ModbusTcpClient("10.0.0.7", timeout=1)``.

    Raises:
        BadInputError: the argument is no function.
    """

    kind = "modbus"

    def __init__(self, client: Callable[[], ModbusBaseSyncClient]) -> None:
        if not callable(client):
            raise BadInputError("client", client, "a function that makes a client of pymodbus")
        super().__init__(factory=client, interrupt=_interrupt)

    @staticmethod
    def read_coils(address: int, count: int = 1, device_id: int = 1) -> Apply[list[bool]]:
        """Read so many coils, from an address on."""
        return Apply(_bits, "read_coils", address, count, device_id)

    @staticmethod
    def read_discrete_inputs(address: int, count: int = 1, device_id: int = 1) -> Apply[list[bool]]:
        """Read so many discrete inputs, from an address on."""
        return Apply(_bits, "read_discrete_inputs", address, count, device_id)

    @staticmethod
    def read_holding_registers(
        address: int, count: int = 1, device_id: int = 1
    ) -> Apply[list[int]]:
        """Read so many holding registers, from an address on."""
        return Apply(_registers, "read_holding_registers", address, count, device_id)

    @staticmethod
    def read_input_registers(address: int, count: int = 1, device_id: int = 1) -> Apply[list[int]]:
        """Read so many input registers, from an address on."""
        return Apply(_registers, "read_input_registers", address, count, device_id)

    @staticmethod
    def write_coils(address: int, values: Sequence[bool], device_id: int = 1) -> Apply[None]:
        """Write coils, from an address on."""
        return Apply(_write, "write_coils", address, [*values], device_id)

    @staticmethod
    def write_registers(address: int, values: Sequence[int], device_id: int = 1) -> Apply[None]:
        """Write holding registers, from an address on."""
        return Apply(_write, "write_registers", address, [*values], device_id)


def _bits(
    client: ModbusBaseSyncClient, verb: str, address: int, count: int, device_id: int
) -> list[bool]:
    answer = _answer(client, verb, address, count=count, device_id=device_id)
    return [*answer.bits[:count]]  # it has whole bytes


def _registers(
    client: ModbusBaseSyncClient, verb: str, address: int, count: int, device_id: int
) -> list[int]:
    return [*_answer(client, verb, address, count=count, device_id=device_id).registers]


def _write(
    client: ModbusBaseSyncClient, verb: str, address: int, values: list[Any], device_id: int
) -> None:
    _answer(client, verb, address, values, device_id=device_id)


def _answer(client: ModbusBaseSyncClient, verb: str, *args: object, **terms: object) -> ModbusPDU:
    try:
        answer: ModbusPDU = getattr(client, verb)(*args, **terms)
    except (ConnectionException, ModbusIOException, OSError) as error:
        # A late answer would be taken for that to the next request.
        close: Callable[[], object] = client.close
        close()
        raise ConnectionError(str(error)) from None
    if answer.isError():
        raise ModbusException(str(answer))
    return answer


def _interrupt(client: object) -> None:
    """End a wait for an answer, from another thread."""
    line = getattr(client, "socket", None)
    if isinstance(line, socket.socket):
        with suppress(OSError):  # it has lost the connection
            line.shutdown(socket.SHUT_RDWR)
    elif cancel := getattr(line, "cancel_read", None):
        cancel()


show_public_names(__name__)
