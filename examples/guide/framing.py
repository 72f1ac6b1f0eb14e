from typing import Any

import trio

from ergo_py import Actor, open_node
from ergo_py.meta import TCP, Decoder, Framing, FramingError, TCPServer

# -- the framing: requests of Redis, such as *2\r\n$3\r\nGET\r\n$1\r\na\r\n, as lists of their words

MAX_LINE, MAX_WORDS, MAX_WORD, MAX_COMMAND = 64 * 1024, 1024, 512 * 1024, 1024 * 1024


class RespDecoder(Decoder):
    """Each frame is a command, the list of its words: an array of bulk strings, or a line as a
    person types it.
    """

    def cut(self, stream: bytes | bytearray, frames: list[Any], most: int) -> int:
        used = 0
        while len(frames) < most and (at := end_of_line(stream, used)):
            if stream[used] == ord("*"):
                command = []
                for _ in range(number(stream[used + 1 : at], MAX_WORDS)):
                    if not (begin := end_of_line(stream, at)):
                        return used
                    if stream[at] != ord("$"):
                        raise FramingError(f"expected '$', got {chr(stream[at])!r}")
                    at = begin + number(stream[at + 1 : begin], MAX_WORD) + 2
                    if at > used + MAX_COMMAND:
                        raise FramingError("too long a command")
                    if at > len(stream):
                        # cut() is not called again before so many bytes are there.
                        self.wanted = at - used
                        return used
                    if stream[at - 2 : at] != b"\r\n":
                        raise FramingError("a word is longer than its length")
                    command.append(bytes(stream[begin : at - 2]))
            else:
                command = bytes(stream[used:at]).split()
            used = at
            if command:
                frames.append(command)
        return used


def end_of_line(stream: bytes | bytearray, begin: int) -> int:
    """The position behind the line that begins here; 0 if the line is not complete."""
    end = stream.find(b"\n", begin, begin + MAX_LINE) + 1
    if not end and len(stream) - begin >= MAX_LINE:
        raise FramingError("too long a line")
    return end


def number(line: bytes | bytearray, most: int) -> int:
    digits = line.removesuffix(b"\r\n")
    if len(digits) > 9 or not digits.isdigit() or int(digits) > most:
        raise FramingError(f"{bytes(digits[:20])!r} is no number from 0 to {most}")
    return int(digits)


class Resp(Framing):
    def decoder(self) -> Decoder:
        return RespDecoder()

    def encode(self, frame: bytes) -> bytes:
        return b"$%d\r\n%b\r\n" % (len(frame), frame)


# -- the session: one for each connection ----------------------------------------------------------


class Session(Actor):
    def handle_message(self, message: object, sender: object) -> None:
        if isinstance(message, TCP.Frames):
            print("requests in one message:", len(message.frames))
            self.send(self.connection, TCP.Send([self.answer(*words) for words in message.frames]))

    def answer(self, command: bytes, *words: bytes) -> bytes:
        return b"+PONG\r\n" if command == b"PING" else Resp().encode(b" ".join(words))


class Door(Actor):
    def __init__(self, server: TCPServer) -> None:
        self.server = server

    async def init(self) -> None:
        await self.spawn_meta(self.server)


# -- a peer ----------------------------------------------------------------------------------------


async def main() -> None:
    async with open_node("demo@localhost") as node:
        server = TCPServer(receiver=Session, framing=Resp(), batch=True)
        await node.spawn(Door, server)
        async with await trio.open_tcp_stream(*server.local) as stream:
            await stream.send_all(
                b"*1\r\n$4\r\nPING\r\n*3\r\n$4\r\nECHO\r\n$3\r\ntwo\r\n$5\r\nwords\r\n"
            )
            answer = b""
            while not answer.endswith(b"two words\r\n"):
                answer += await stream.receive_some()
            print(answer)


if __name__ == "__main__":
    trio.run(main)
