"""The Redis example, driven by plain sockets, and by redis-cli, redis-benchmark and redis-py where
they are installed.
"""

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from ergo_py import ChildSpec, open_node
from ergo_py.meta import FramingError, TCPServer
from examples.guide.framing import Resp, RespDecoder
from examples.redis.__main__ import Session
from examples.redis.database import Database
from examples.redis.resp import Command, array, bulk
from examples.redis.store import Store
from tests.actors import Puppet
from tests.examples.programs import EXAMPLES, Program, promised, running
from tests.meta.wires import spawn_meta

TIMEOUT = 60


class Client:
    """A connection that speaks RESP by hand."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self.file = self.sock.makefile("rb")

    def send(self, *commands: str) -> None:
        self.sock.sendall(
            b"".join(array(bulk(word.encode()) for word in command.split()) for command in commands)
        )

    def reply(self) -> Any:
        line = self.file.readline()
        assert line.endswith(b"\r\n"), f"the connection ended within a reply: {line!r}"
        kind, rest = line[:1], line[1:-2]
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2].decode()
        if kind == b"*":
            return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]
        return line[:-2].decode()

    def ask(self, command: str) -> Any:
        self.send(command)
        return self.reply()

    def at_end(self) -> bool:
        return self.file.read() == b""

    def close(self) -> None:
        self.file.close()
        self.sock.close()


class Server:
    """The program, and the connections that a test has opened to it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.port = program.port()
        self.clients: list[Client] = []

    def client(self) -> Client:
        self.clients.append(Client(self.port))
        return self.clients[-1]


@pytest.fixture(scope="module", params=["task", "thread"])
def program(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running("-m", "examples.redis", 0, request.param) as program:
        yield Server(program)
        assert program.interrupt() == 0


@pytest.fixture
def server(program: Server) -> Iterator[Server]:
    assert program.client().ask("FLUSHALL") == "+OK"
    yield program
    for client in program.clients:
        client.close()
    program.clients.clear()


# -- the protocol ----------------------------------------------------------------------------------


def commands_of(*pieces: bytes) -> list[Command]:
    decoder = Resp().decoder()
    return [command for piece in pieces for command in decoder.feed(piece)]


STREAM = b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\nPING  hello\r\n\r\n*1\r\n$4\r\nPING\r\n*0\r\n"


def test_a_long_command_is_parsed_only_when_its_next_word_has_arrived() -> None:
    class Counting(RespDecoder):
        looks = 0

        def cut(self, stream: bytes | bytearray, frames: list[Command], most: int) -> int:
            self.looks += 1
            return super().cut(stream, frames, most)

    decoder = Counting()
    stream = array([bulk(b"SET"), bulk(b"a"), bulk(b"x" * 400_000)])
    frames = [
        frame
        for begin in range(0, len(stream), 1000)
        for frame in decoder.feed(stream[begin : begin + 1000])
    ]

    assert frames == [[b"SET", b"a", b"x" * 400_000]]
    assert decoder.looks == 2


def test_commands_are_the_same_however_the_stream_is_cut() -> None:
    for size in range(1, len(STREAM) + 1):
        pieces = (STREAM[begin : begin + size] for begin in range(0, len(STREAM), size))

        assert commands_of(*pieces) == [[b"GET", b"a\r\nb"], [b"PING", b"hello"], [b"PING"]]


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(b"*x\r\n", id="no number of words"),
        pytest.param(b"*9999999\r\n", id="too many words"),
        pytest.param(b"*-1\r\n", id="a negative number of words"),
        pytest.param(b"*1\r\n:1\r\n", id="a word that is no bulk string"),
        pytest.param(b"*1\r\n$99999999999999999999\r\n", id="a length of too many digits"),
        pytest.param(b"*1\r\n$524289\r\n", id="a word that is too long"),
        pytest.param(b"*1\r\n$1\r\nabc\r\n", id="a word that is longer than its length"),
        pytest.param(
            b"*3\r\n" + bulk(b"x" * 400_000) * 2 + b"$400000\r\n", id="a command that is too long"
        ),
        pytest.param(b"x" * 70_000, id="a line that does not end"),
    ],
)
def test_a_stream_that_is_no_resp_is_refused(stream: bytes) -> None:
    with pytest.raises(FramingError):
        commands_of(stream)


def test_a_protocol_error_is_answered_before_the_connection_ends(server: Server) -> None:
    client = server.client()
    client.sock.sendall(array([bulk(b"PING")]) + b"*1\r\n:1\r\n")

    assert client.reply() == "+PONG"
    assert client.reply().startswith("-ERR Protocol error")
    assert client.at_end()


# -- commands --------------------------------------------------------------------------------------


def test_keys_expire_at_their_deadline_and_a_new_value_removes_the_deadline() -> None:
    now = 100.0
    database = Database(lambda: now)

    def ask(command: str) -> bytes:
        (reply,) = database.execute([command.encode().split()])
        return reply

    ask("SET a 1 EX 10")
    ask("SET b 1")
    ask("PEXPIRE b 10000")
    ask("SET c 1 EX 10")
    ask("SET c 2")
    assert ask("TTL a") == b":10\r\n"
    now = 109.9
    assert ask("EXISTS a b c") == b":3\r\n"
    now = 110.0
    assert ask("GET a") == b"$-1\r\n"
    database.remove_expired()
    assert database.values == {b"c": b"2"}
    assert ask("TTL c") == b":-1\r\n"
    assert ask("TTL b") == b":-2\r\n"


@pytest.mark.parametrize(
    "command, reply",
    [
        ("SET a x NX", "$-1"),
        ("SET z x XX", "$-1"),
        ("SET z x EX 0", "-ERR invalid expire"),
        ("SET z x EX", "-ERR syntax"),
        ("SET z x EX ten", "-ERR value is not an integer"),
        ("INCR word", "-ERR value is not an integer"),
        ("INCR list", "-WRONGTYPE"),
        ("INCR largest", "-ERR increment or decrement would overflow"),
        ("INCRBY a 9223372036854775808", "-ERR value is not an integer"),
        ("LPUSH a x", "-WRONGTYPE"),
        ("GET", "-ERR wrong number of arguments"),
        ("INCRBY a -3", ":-2"),
        ("LRANGE list -2 -1", "*2\r\n$1\r\ny\r\n$1\r\nz\r\n"),
        ("LRANGE list 5 9", "*0"),
    ],
)
def test_a_command_gets_the_answer_of_redis(command: str, reply: str) -> None:
    database = Database()
    database.execute(
        [
            b"SET a 1".split(),
            b"SET word x".split(),
            b"SET largest 9223372036854775807".split(),
            b"RPUSH list x y z".split(),
        ]
    )

    (answer,) = database.execute([command.encode().split()])

    assert answer.decode().startswith(reply)


def test_pipelined_commands_are_answered_in_order_by_any_process(server: Server) -> None:
    client = server.client()
    client.send(
        "SET n 1", "INCR n", "PING", "INCR n", "NOSUCH", "ECHO hi", "BLPOP empty 0.01", "GET n"
    )

    replies = [client.reply() for _ in range(8)]

    assert replies[4].startswith("-ERR unknown command")
    del replies[4]
    assert replies == ["+OK", 2, "+PONG", 3, "hi", None, "3"]


# -- lists that are waited for ---------------------------------------------------------------------


def test_clients_that_wait_for_a_list_are_served_in_order_of_arrival(
    server: Server,
) -> None:
    first, second, other = server.client(), server.client(), server.client()
    first.send("BLPOP empty jobs 0")
    wait_for_waiters(other, 1)
    second.send("BLPOP jobs 0")
    wait_for_waiters(other, 2)

    assert other.ask("RPUSH jobs a b c") == 3

    assert first.reply() == ["jobs", "a"]
    assert second.reply() == ["jobs", "b"]
    assert other.ask("LRANGE jobs 0 -1") == ["c"]


def test_no_element_is_lost_to_a_waiting_client_that_left(server: Server) -> None:
    gone, other = server.client(), server.client()
    gone.send("BLPOP jobs 0")
    wait_for_waiters(other, 1)
    gone.close()
    wait_for_waiters(other, 0)

    assert other.ask("RPUSH jobs a") == 1
    assert other.ask("LPOP jobs") == "a"


def test_a_client_that_waits_is_not_harmed_by_a_string_in_the_place_of_its_list(
    server: Server,
) -> None:
    waiting, other = server.client(), server.client()
    waiting.send("BLPOP a b 0")
    wait_for_waiters(other, 1)

    other.send("SET a text", "RPUSH a x", "RPUSH b y", "RPUSH b z")

    replies = [other.reply() for _ in range(4)]
    assert replies[1].startswith("-WRONGTYPE")
    assert (replies[0], replies[2:]) == ("+OK", [1, 1])
    assert waiting.reply() == ["b", "y"]
    assert other.ask("LRANGE b 0 -1") == ["z"]


def wait_for_waiters(client: Client, count: int) -> None:
    """Ask until as many clients as that wait for a list; the time limit of the test bounds it."""
    while f"blocked_clients:{count}" not in client.ask("INFO"):
        pass


# -- publish and subscribe -------------------------------------------------------------------------


def test_a_subscriber_gets_its_confirmation_first_and_then_every_message(server: Server) -> None:
    listener, other = server.client(), server.client()
    listener.send("SUBSCRIBE news sport")
    assert listener.reply() == ["subscribe", "news", 1]
    assert listener.reply() == ["subscribe", "sport", 2]

    assert [other.ask(f"PUBLISH news {number}") for number in range(3)] == [1, 1, 1]
    assert other.ask("PUBLISH nothing x") == 0

    assert [listener.reply() for _ in range(3)] == [
        ["message", "news", str(number)] for number in range(3)
    ]
    assert listener.ask("GET a").startswith("-ERR only")
    assert listener.ask("PING") == ["pong", ""]
    listener.send("UNSUBSCRIBE")
    assert [listener.reply() for _ in range(2)] == [
        ["unsubscribe", "news", 1],
        ["unsubscribe", "sport", 0],
    ]
    assert listener.ask("UNSUBSCRIBE") == ["unsubscribe", None, 0]
    assert listener.ask("GET a") is None
    assert other.ask("PUBLISH news x") == 0


@pytest.mark.parametrize("reader", ["task", "thread"])
async def test_a_subscriber_stays_subscribed_when_the_store_fails(reader: Any) -> None:
    with trio.fail_after(TIMEOUT):
        async with open_node("redis@localhost") as node:
            server = TCPServer(receiver=Session, framing=Resp(), batch=True, reader=reader)
            children = [
                ChildSpec("store", Store, Database()),
                ChildSpec("door", Puppet),
            ]
            await node.supervise(children)
            door = node.whereis("door")
            assert door is not None
            await spawn_meta(node, door, server)
            async with await trio.open_tcp_stream(*server.local) as stream:
                await stream.send_all(b"SUBSCRIBE news\r\n")
                assert (await stream.receive_some()).endswith(b":1\r\n")

                assert node.kill("store")
                await stream.send_all(b"PING\r\n")
                assert (await stream.receive_some()).endswith(b"pong\r\n$0\r\n\r\n")
                assert node.group(b"news").broadcast((b"news", b"hello")) == 1

                assert (await stream.receive_some()).endswith(b"hello\r\n")


def test_quit_is_answered_and_ends_the_connection(server: Server) -> None:
    client = server.client()

    assert client.ask("QUIT") == "+OK"
    assert client.at_end()


# -- real clients ----------------------------------------------------------------------------------


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def output_of(*command: object, typed: str = "") -> str:
    done = subprocess.run(
        [*map(str, command)],
        input=typed,
        capture_output=True,
        text=True,
        timeout=TIMEOUT * 5,
        check=True,
    )
    return done.stdout


def test_redis_cli_is_served(server: Server) -> None:
    cli = (tool("redis-cli"), "-p", server.port)

    session = (EXAMPLES / "redis" / "session.txt").read_text(encoding="utf-8")
    assert output_of(*cli, typed=session) == promised("redis")
    assert output_of(*cli, "SET", "greeting", "hello world") == "OK\n"
    assert output_of(*cli, "GET", "greeting") == "hello world\n"


@pytest.mark.parametrize("pipeline", [1, 16])
def test_redis_benchmark_is_served(server: Server, pipeline: int) -> None:
    tests = "ping_mbulk,set,get,incr,lpush,rpop,lrange_100"
    command = (
        tool("redis-benchmark"),
        "-p",
        server.port,
        "-n",
        1000,
        "-c",
        20,
        "-P",
        pipeline,
        "-t",
        tests,
        "--csv",
    )

    rows = output_of(*command).splitlines()

    assert [row.split('"')[1].partition(" ")[0] for row in rows[1:]] == [
        *("PING_MBULK", "SET", "GET", "INCR", "LPUSH", "RPOP", "LPUSH", "LRANGE_100")
    ]


def test_redis_py_is_served(server: Server) -> None:
    redis = pytest.importorskip("redis", reason="redis-py is not installed")
    with redis.Redis(
        port=server.port, protocol=2, decode_responses=True, socket_timeout=TIMEOUT
    ) as client:
        with client.pipeline(transaction=False) as pipeline:
            replies = (
                pipeline.set("n", 1, ex=100)
                .incr("n")
                .rpush("list", "a", "b")
                .lrange("list", 0, -1)
                .execute()
            )
        assert replies == [True, 2, 2, ["a", "b"]]
        assert 0 < client.ttl("n") <= 100

        popped: list[object] = []
        thread = threading.Thread(
            target=lambda: popped.append(client.blpop("later", timeout=TIMEOUT))
        )
        thread.start()
        client.rpush("later", "x")
        thread.join()
        assert popped == [("later", "x")]

        with client.pubsub(ignore_subscribe_messages=False) as listener:
            listener.subscribe("news")
            assert listener.get_message(timeout=TIMEOUT)["type"] == "subscribe"
            assert client.publish("news", "today") == 1
            assert listener.get_message(timeout=TIMEOUT)["data"] == "today"
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            client.get("list")
