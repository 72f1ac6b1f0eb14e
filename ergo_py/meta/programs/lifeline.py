"""The lifeline of a program: a pipe that ends when the program which started it ends or is killed.

Linux itself ends the program then, even if its code never returns or holds the lock of the
interpreter. ``PR_SET_PDEATHSIG`` would do it at the end of the *thread* that started the program,
and that is a thread of a pool, which ends earlier.
"""

import ctypes
import fcntl
import os
import select
import signal
import sys
from typing import Final

__all__ = ["LIFELINE", "end_with_parent"]

LIFELINE: Final = "ERGO_LIFELINE"
"""The variable with the descriptor of the pipe."""
_F_SETSIG: Final = 10


def end_with_parent(by: signal.Signals) -> None:
    """Have the system end this program when the program that started it has ended: with SIGKILL at
    once, or, with another signal, by SIGALRM after as many seconds as the number of the signal.
    Only on Linux, and only if this program has a lifeline.
    """
    number = os.environ.pop(LIFELINE, None)
    if number is None or sys.platform != "linux":
        return
    fd = int(number)
    os.set_inheritable(fd, False)
    if by != signal.SIGKILL:
        # The handler is the C function alarm(), whose argument is the number of the signal: it
        # needs no lock of the interpreter, which the stuck code may hold.
        libc = ctypes.CDLL(None)
        libc.signal(ctypes.c_int(by), ctypes.cast(libc.alarm, ctypes.c_void_p))
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, _F_SETSIG, by)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    # The pipe may have ended before the signal was asked for.
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if poll.poll(0):
        os.kill(os.getpid(), by)
