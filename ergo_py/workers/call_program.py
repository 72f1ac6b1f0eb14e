"""A program of `ProcessCalls`: reads requests from its input, and writes the results.

It imports no event loop: a request is a call of a function in the main thread. A second thread
reads the input, so that the program ends with the first program, whatever its function does.
"""

import json
import os
import signal
import struct
import sys
from queue import SimpleQueue
from threading import Thread  # noqa: TID251 - this program has no loop
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from ..meta.programs.lifeline import end_with_parent

if TYPE_CHECKING:
    from ..network.messages.message_types import MessageTypes

_HEADER: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">Q").size
"""Bytes of the number before a request, which stands before its answer, too."""


def main() -> None:
    """Answer requests until the input ends."""
    # The thread that reads the input cannot end a function that holds the lock of the interpreter.
    end_with_parent(signal.SIGKILL)
    settings = json.loads(sys.argv[1])
    # Modules are found where the first program finds them.
    sys.path[:] = settings["path"]
    # Answers have an output of their own; lines that a function prints go to the error output.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_read, args=(requests,), daemon=True).start()

    from ..network.messages.message_types import MessageTypes  # noqa: PLC0415 - after sys.path
    from .references import referent_of  # noqa: PLC0415

    listed = [referent_of(reference) for reference in settings["types"]]
    types = MessageTypes(listed, is_limited=False)
    functions: dict[str, Any] = {}
    program = os.getpid()
    _write(answers, b"")
    while True:
        request = requests.get()
        number, answer = request[:_NUMBER], _answer(types, functions, request[_NUMBER:])
        if os.getpid() != program:
            # The function has forked, and this is the child: a second answer would be taken for
            # the answer to the next request.
            sys.stdout.flush()
            os._exit(0)
        _write(answers, number + answer)


def _answer(types: "MessageTypes", functions: dict[str, Any], request: bytes) -> bytes:
    """The encoded result of a request, or the encoded error."""
    from .._core.vocabulary.reasons import Crashed  # noqa: PLC0415 - after sys.path
    from ..network.messages.listed_class import RefusedValueError  # noqa: PLC0415
    from .references import referent_of  # noqa: PLC0415

    name = ""
    try:
        name, args, kwargs = types.decode(request)
        function = functions.get(name)
        if function is None:
            function = functions[name] = referent_of(name)
        result = function(*args, **kwargs)
    except Exception as error:
        result = error
    except SystemExit as error:  # a function must not end its program
        result = RuntimeError(f"it raised SystemExit: {error}")
    else:
        try:
            return bytes(types.encode((result,)))
        except RefusedValueError as error:
            result = TypeError(f"the result of {name} cannot travel: {error}")
    return bytes(types.encode(Crashed(result)))


def _read(requests: "SimpleQueue[bytes]") -> None:
    """Read requests. At the end of the input the first program is gone, or wants no more."""
    with open(0, "rb", closefd=False) as stream:
        while len(header := stream.read(_HEADER.size)) == _HEADER.size:
            (length,) = _HEADER.unpack(header)
            requests.put(stream.read(length))
    os._exit(0)


def _write(stream: BinaryIO, data: bytes) -> None:
    stream.write(_HEADER.pack(len(data)) + data)
    stream.flush()


if __name__ == "__main__":
    main()
