"""`Status`: the exit statuses of the command line, which scripts can rely on."""

from enum import IntEnum

__all__ = ["Leave", "Status"]


class Status(IntEnum):
    """The exit statuses of ``ergo``. ``docs/looking-inside.md`` has the same table."""

    DONE = 0
    FAILED = 1
    """The program failed, or a node could not perform the request."""
    USAGE = 2
    """The command line, the program's name or an argument is invalid."""
    NO_NODE = 3
    """No such node, or several of that name."""
    NO_PROCESS = 4
    """No such process or entity on that node."""
    NO_ANSWER = 5
    """The node does not answer, or its loop is blocked."""
    NOT_PERMITTED = 6
    """The node does not permit it."""
    NOT_CONFIRMED = 7
    """The user did not confirm, so nothing was done."""
    TOO_SLOW = 8
    """The process was busy for longer than the time limit."""
    INTERRUPTED = 130
    """Ctrl-C."""

    @classmethod
    def of(cls, code: str) -> "Status":
        """The status for an error answer of a node."""
        return _OF_CODE.get(code, cls.FAILED)


_OF_CODE = {
    "bad_argument": Status.USAGE,
    "no_such_process": Status.NO_PROCESS,
    "no_such_entity": Status.NO_PROCESS,
    "no_such_node": Status.NO_NODE,
    "silent": Status.NO_ANSWER,
    "blocked": Status.NO_ANSWER,
    "stopping": Status.NO_ANSWER,
    "busy": Status.NO_ANSWER,
    "not_permitted": Status.NOT_PERMITTED,
    "timeout": Status.TOO_SLOW,
}


class Leave(Exception):
    """Ends the command with a status and a message."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
