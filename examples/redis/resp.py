"""RESP, the protocol of Redis: how commands are cut out of a stream, and how replies are written."""

from collections.abc import Iterable

from ergo_py.meta import Decoder, Framing, FramingError

__all__ = ["NIL", "OK", "RESP", "Command", "CommandDecoder", "array", "bulk", "error", "integer"]

Command = list[bytes]

OK, NIL = b"+OK\r\n", b"$-1\r\n"
MAX_LINE, MAX_WORDS, MAX_BULK, MAX_COMMAND = 64 * 1024, 1024, 512 * 1024, 1024 * 1024


def integer(number: int) -> bytes:
    return b":%d\r\n" % number


def bulk(value: bytes | None) -> bytes:
    return NIL if value is None else b"$%d\r\n%b\r\n" % (len(value), value)


def array(replies: Iterable[bytes]) -> bytes:
    parts = list(replies)
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


def error(text: str) -> bytes:
    return b"-%b\r\n" % " ".join(text.split()).encode(errors="replace")


class RESP(Framing):
    """Commands as clients send them: arrays of bulk strings, or words on a line as a person types them."""

    def decoder(self) -> Decoder:
        return CommandDecoder()

    def encode(self, frame: bytes) -> bytes:
        return frame


class CommandDecoder(Decoder):
    """Each frame is a command: the list of its words."""

    def cut(self, stream: bytes | bytearray, frames: list[Command], most: int) -> int:
        used, count = 0, len(stream)
        while used < count and len(frames) < most:
            end = stream.find(b"\n", used, used + MAX_LINE)
            if end < 0:
                if count - used >= MAX_LINE:
                    raise FramingError("too long a line")
                break
            if stream[used] == 0x2A:  # *
                end, command = _cut_array(stream, used, end)
                if end > used + MAX_COMMAND:
                    raise FramingError("too long a command")
                if end > count:
                    self.wanted = end - used  # the bytes until then need not be looked at before they are there
                    break
            else:
                end, command = end + 1, bytes(stream[used:end]).split()
            used = end
            if command:
                frames.append(command)
        return used


def _cut_array(stream: bytes | bytearray, begin: int, end: int) -> tuple[int, Command]:
    """The words of an array, and the position behind it; behind all there is, if the array is incomplete."""
    command: Command = []
    at = end + 1
    for _ in range(_length(stream[begin + 1 : end], MAX_WORDS, "multibulk")):
        end = stream.find(b"\n", at, at + MAX_LINE)
        if end < 0:
            return len(stream) + 1, command
        if stream[at] != 0x24:  # $
            raise FramingError(f"expected '$', got {chr(stream[at])!r}")
        begin, at = end + 1, end + 3 + _length(stream[at + 1 : end], MAX_BULK, "bulk")
        if at > len(stream):
            return at, command
        if stream[at - 2 : at] != b"\r\n":
            raise FramingError("a bulk string is longer than its length")
        command.append(bytes(stream[begin : at - 2]))
    return at, command


def _length(line: bytes | bytearray, most: int, kind: str) -> int:
    digits = line.removesuffix(b"\r")
    if len(digits) > 10 or not digits.isdigit() or int(digits) > most:
        raise FramingError(f"invalid {kind} length")
    return int(digits)
