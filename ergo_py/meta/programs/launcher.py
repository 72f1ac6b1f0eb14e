"""A script that runs in the child process, between the fork and the program, if the program has
limits or a terminal.

``subprocess`` can call a function there (``preexec_fn``), but not safely in a program with threads.
So a small interpreter starts, does the steps that only the child itself can do, and becomes the
program. It is a script: it imports nothing of the package.
"""

import json
import os
import resource
import signal
import sys
from typing import Any

__all__ = ["become"]


def become(path: str, argv: list[str], orders: dict[str, Any]) -> None:
    """Carry out the orders and become the program. It never returns; it raises the error of a
    failed step.
    """
    # The interpreter has set these to ignored for itself, and ignored signals would stay ignored in
    # the program.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    # By name: the interpreter may add variables to its environment that are not for the program.
    environment = {name: os.environ[name] for name in orders["env"]}
    if orders["terminal"]:
        # Opening it makes it the controlling terminal of a session that has none.
        os.close(os.open(os.ttyname(0), os.O_RDWR))
    if orders["groups"] is not None:
        os.setgroups(orders["groups"])
    if orders["gid"] is not None:
        os.setgid(orders["gid"])
    # Before setuid(), while this process may still raise limits, and as late as possible: they hold
    # for this interpreter, too.
    for number, soft, hard in orders["limits"]:
        resource.setrlimit(number, (soft, hard))
    if orders["uid"] is not None:
        os.setuid(orders["uid"])
    os.execve(path, argv, environment)


def main() -> None:
    """Read the orders from the command line, and write an error to the descriptor that is named
    first.
    """
    report = int(sys.argv[1])
    os.set_inheritable(report, False)
    try:
        become(sys.argv[2], sys.argv[4:], json.loads(sys.argv[3]))
    except (OSError, ValueError) as error:
        number, text = (
            (error.errno, error.strerror) if isinstance(error, OSError) else (None, str(error))
        )
        os.write(report, json.dumps([number, text]).encode())
    finally:
        os._exit(127)


if __name__ == "__main__":
    main()
