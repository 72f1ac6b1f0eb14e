"""`PostgresListen`: notifications of PostgreSQL, with psycopg."""

import os
import select
from collections import deque
from typing import Any, ClassVar, Unpack

import psycopg
from psycopg import sql

from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.public_names import show_public_names
from ..meta.checks import DATABASE_LIMITS, check_conninfo, check_name
from .bridge import Device, DeviceKeywords

__all__ = ["PostgresListen"]


class PostgresListen(Device):
    """Channels of PostgreSQL. `Device.Data` has the ``psycopg.Notify`` of each notification, with
    its ``channel`` and ``payload``; `Device.Send` takes a channel and a text. The server keeps no
    notifications for a session that is gone: those of a gap are lost, and `Device.Lost` tells the
    gap. The items of a `PostgresQueue` are not lost.

    Args:
        conninfo: the database, such as ``"host=db dbname=shop"``.
        channels: the names of the channels to listen to.
        options: those of `Device`.

    Raises:
        BadInputError: the address cannot be read, or a channel has no name of 1 to 63 bytes.
    """

    kind = "postgres"
    lost_by: ClassVar[tuple[type[Exception], ...]] = (psycopg.OperationalError, OSError)

    def __init__(self, conninfo: str, *channels: str, **options: Unpack[DeviceKeywords]) -> None:
        super().__init__(**options)
        self._conninfo = check_conninfo("PostgresListen(conninfo)", conninfo, DATABASE_LIMITS)
        for channel in channels:
            # The server would cut off a longer name.
            wish = "the names of channels, of 1 to 63 bytes"
            check_name("PostgresListen(channels)", channel, rb"[^\0]{1,63}", wish)
        self._channels = channels

    def open(self) -> None:
        """Connect, and listen."""
        self._heard: deque[psycopg.Notify] = deque()
        self._session: psycopg.Connection[Any] = psycopg.connect(self._conninfo, autocommit=True)
        try:
            for channel in self._channels:
                self._session.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        except BaseException:
            self._session.close()
            raise
        self._bell, self._ring = os.pipe()
        os.set_blocking(self._ring, False)

    def read(self) -> object:
        """The next notification; None after ``wake``, or if the server has sent something else."""
        # First those that psycopg has: they may have come with the answer to a write.
        if not self._heard:
            self._heard.extend(self._session.notifies(timeout=0))
        if self._heard:
            return self._heard.popleft()
        poll = select.poll()  # unlike select(), it takes descriptors from 1024 on
        poll.register(self._session.fileno(), select.POLLIN)
        poll.register(self._bell, select.POLLIN)
        if any(ready == self._bell for ready, _ in poll.poll()):
            os.read(self._bell, 1000)
        return None

    def write(self, data: object) -> None:
        """Notify all sessions that listen to the channel."""
        match data:
            case (str(channel), str(text)):
                self._session.execute("select pg_notify(%s, %s)", (channel, text))
            case _:
                raise BadInputError("Device.Send", data, 'a channel and a text: ("prices", "42")')

    def wake(self) -> None:
        """Make ``read`` return."""
        os.write(self._ring, b"!")

    def close(self) -> None:
        """Disconnect."""
        self._session.close()
        os.close(self._bell)
        os.close(self._ring)


show_public_names(__name__)
