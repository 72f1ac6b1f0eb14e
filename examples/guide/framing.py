from dataclasses import dataclass
from typing import Any

import trio

from ergo_py import Actor, open_node
from ergo_py.meta import Decoder, Framing, FramingError, TCPFrames, TCPSend, TCPServer

# -- the framing: requests of Redis, such as *2\r\n$3\r\nGET\r\n$1\r\na\r\n, as lists of their words ----------------------


class RespDecoder(Decoder):
    def __init__(self, max_words: int, max_word: int) -> None:
        super().__init__()
        self.max_words = max_words
        self.max_word = max_word

    def cut(self, stream: bytes | bytearray, frames: list[Any], most: int) -> int:
        begin = 0
        while len(frames) < most and (found := self.request(stream, begin)) is not None:
            words, begin = found
            frames.append(words)
        return begin

    def request(self, stream: bytes | bytearray, begin: int) -> tuple[list[bytes], int] | None:
        """The words of the request that begins here, and where it ends; None if it is not complete."""
        if (header := self.number(stream, begin, b"*", self.max_words)) is None:
            return None
        count, at = header
        words = []
        for _ in range(count):
            if (header := self.number(stream, at, b"$", self.max_word)) is None:
                return None
            length, at = header
            if at + length + 2 > len(stream):
                self.wanted = at + length + 2 - begin  # the rest need not be looked at before it is there
                return None
            words.append(bytes(stream[at : at + length]))
            at += length + 2
        return words, at

    def number(self, stream: bytes | bytearray, at: int, kind: bytes, most: int) -> tuple[int, int] | None:
        """A number after its kind, and where its line ends. What cannot be right is refused as early as that is known."""
        line, end = bytes(stream[at : at + 12]), stream.find(b"\r\n", at, at + 12)
        if line[:1] not in (kind, b""):
            raise FramingError(f"{kind.decode()} and a number were expected, not {line!r}")
        if end < 0:
            if len(line) == 12:
                raise FramingError("a number of more than nine digits")
            return None
        digits = bytes(stream[at + 1 : end])
        if not digits.isdigit() or int(digits) > most:
            raise FramingError(f"{digits!r} is no number from 0 to {most}")
        return int(digits), end + 2


@dataclass(frozen=True)
class Resp(Framing):
    max_words: int = 1000
    max_word: int = 64 * 1024

    def decoder(self) -> Decoder:
        return RespDecoder(self.max_words, self.max_word)

    def encode(self, frame: bytes) -> bytes:
        return b"$%d\r\n%b\r\n" % (len(frame), frame)


# -- the session: one for each connection --------------------------------------------------------------------------------


class Session(Actor):
    def handle_message(self, message: object, sender: object) -> None:
        if isinstance(message, TCPFrames):
            print("requests in one message:", len(message.frames))
            self.send(self.connection, TCPSend([self.answer(*words) for words in message.frames]))

    def answer(self, command: bytes, *words: bytes) -> bytes:
        return b"+PONG\r\n" if command == b"PING" else Resp().encode(b" ".join(words))


class Door(Actor):
    def __init__(self, server: TCPServer) -> None:
        self.server = server

    async def init(self) -> None:
        await self.spawn_meta(self.server)


# -- a peer --------------------------------------------------------------------------------------------------------------


async def main() -> None:
    async with open_node("demo@localhost") as node:
        server = TCPServer(receiver=Session, framing=Resp(), batch=True)
        await node.spawn(Door, server)
        async with await trio.open_tcp_stream(*server.local) as stream:
            await stream.send_all(b"*1\r\n$4\r\nPING\r\n*3\r\n$4\r\nECHO\r\n$3\r\ntwo\r\n$5\r\nwords\r\n")
            answer = b""
            while not answer.endswith(b"two words\r\n"):
                answer += await stream.receive_some()
            print(answer)


if __name__ == "__main__":
    trio.run(main)
