"""Devices behind blocking libraries: serial lines, buses, brokers. One address for both directions,
opened again whenever the device is lost.

`Device` is the base class; the other bridges need the extra of their library.
"""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .bridge import Device
    from .can_bus import CAN
    from .modbus import Modbus
    from .mqtt_topics import MQTTTopics
    from .postgres_listen import PostgresListen
    from .serial_line import Serial
    from .zmq_socket import ZMQ

__all__ = [
    "CAN",
    "ZMQ",
    "Device",
    "MQTTTopics",
    "Modbus",
    "PostgresListen",
    "Serial",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "bridge": "Device",
            "can_bus": "CAN",
            "modbus": "Modbus",
            "mqtt_topics": "MQTTTopics",
            "postgres_listen": "PostgresListen",
            "serial_line": "Serial",
            "zmq_socket": "ZMQ",
        },
        {
            "CAN": "can",
            "MQTTTopics": "mqtt",
            "Modbus": "modbus",
            "PostgresListen": "postgres",
            "Serial": "serial",
            "ZMQ": "zmq",
        },
    )
