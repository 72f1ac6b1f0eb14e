"""The lines that type checkers must accept, and the lines that they must refuse, of `spawn`, `call`
and `send`.

Never run, only checked. A line that must be refused carries an ignore comment for each checker, and
each checker complains about a comment that silences nothing: so the day a mistake is no longer
noticed, `make types` fails here.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, assert_type

from ergo_py import PID, Actor, Caller, Node, Priority, Ref, Request, Response
from ergo_py._core.vocabulary.messages import NoReply


@dataclass(frozen=True)
class Total(Request[int]):
    since: int = 0


@dataclass(frozen=True)
class Names(Request[list[str]]):
    pass


class Counter(Actor):
    def __init__(self, start: int, label: str = "") -> None:
        self.total = start
        self.label = label


class Plain(Actor):
    async def handle_message(self, message: str, sender: PID) -> None:
        pass


async def right_for_a_node(node: Node, pid: PID) -> None:
    assert_type(await node.spawn(Counter, 5), PID[Counter])
    assert_type(await node.spawn(Counter, 5, "five"), PID[Counter])
    assert_type(await node.spawn(Plain), PID[Plain])
    assert_type(
        await node.spawn(partial(Counter, label="five"), 5, name="counter", mailbox_size=None),
        PID[Counter],
    )
    await node.spawn(
        Counter, 5, priority=Priority.HIGH, init_timeout=1, env={"key": object()}, log_level="debug"
    )

    assert_type(await node.call(pid, Total()), int)
    assert_type(await node.call(pid, Names(), timeout=None, priority=Priority.MAX), list[str])
    assert_type(await node.call("counter", "anything"), Any)
    assert_type(node.call_from_thread(pid, Total(), timeout=1), int)
    assert_type(node.send("counter", "anything"), bool)


async def wrong_for_a_node(node: Node, pid: PID) -> None:
    await node.spawn(Counter, "five")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await node.spawn(Counter)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await node.spawn(Counter, 5, 6)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await node.spawn(Counter, 5, "five", "six")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await node.spawn(Plain, 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await node.spawn(Counter(5))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await node.spawn(int, 5)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    await node.spawn(Counter, 5, label="five")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await node.spawn(Counter, 5, mailbox_size="many")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    (await node.call(pid, Total())).upper()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    node.call_from_thread(pid, Total()).upper()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    await node.call(pid, Total("five"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await node.call(5, Total())  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    node.send(5, "anything")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Right(Actor):
    async def init(self) -> None:
        pid = assert_type(await self.spawn(Counter, 5, link=True), PID[Counter])
        assert_type(await self.call(pid, Total()), int)
        assert_type(await self.call("counter", Names()), list[str])
        assert_type(await self.call("counter", "anything"), Any)

    def handle_message(self, message: object, sender: PID) -> None:
        assert_type(self.forward("counter", message, sender), bool)
        assert_type(self.request("counter", Total()), Ref)

    def handle_response(self, response: Response) -> None:
        match response.request:
            case Total() as total:
                assert_type(response.result_of(total), int)
            case Names() as names:
                assert_type(response.result_of(names), list[str])
            case _:
                assert_type(response.result(), Any)

    def handle_call(self, request: object, caller: Caller) -> object:
        return assert_type(self.forward("counter", request, caller), NoReply)


class Wrong(Actor):
    async def init(self) -> None:
        pid = await self.spawn(Counter, "five")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await self.spawn(Counter)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await self.spawn(Counter, 5, link="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        (await self.call(pid, Total())).upper()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        self.send(None, "anything")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
