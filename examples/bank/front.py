"""The bank over HTTP: an actor for each request, which calls entities and posts to them."""

import json
from contextlib import suppress
from pathlib import Path

import trio

from ergo_py import Actor, Caller, ChildSpec, Node, Reject, Supervisor, ask
from ergo_py.entities import Entities, Store, keys_of
from ergo_py.web import HTTPError, HTTPRequest, Response, Route, WebServer

from .bank import MESSAGES, Account, Begin, Letter, Transfer

__all__ = ["Bank", "Front", "Printer", "Teller", "balances"]


class Teller(Actor):
    """Answers a request, and ends with it."""

    async def handle_call(self, request: object, caller: Caller) -> Response:
        """Answer with JSON."""
        assert isinstance(request, HTTPRequest)
        try:
            return answer(200, await self.serve(request))
        except (LookupError, ValueError) as error:  # the refusal of an entity
            status = 404 if isinstance(error, LookupError) else 400
            return answer(status, {"error": str(error)})

    async def serve(self, request: HTTPRequest) -> object:
        match request.method, request.path:
            case "GET", ("accounts",):
                return await balances(self.node)
            case "PUT", ("accounts", owner):
                return {"balance": await self.entity(Account, owner).call(ask(Account.open))}
            case "GET", ("accounts", owner):
                return await self.entity(Account, owner).call(ask(Account.look))
            case "PUT", ("accounts", owner, "deposits", id):
                deposit = ask(Account.deposit, read_deposit(request))
                # Under its id a deposit is booked once, however often the request comes.
                return {"balance": await self.entity(Account, owner).call(deposit, once=id)}
            case "PUT", ("transfers", id):
                # A job: when this returns, it is stored, and will be done.
                await self.entity(Transfer, id).post(read_transfer(request), once="begin")
                return {"transfer": id}
            case "GET", ("transfers", id):
                return await self.entity(Transfer, id).call(ask(Transfer.look))
        raise Reject(HTTPError(404))


def answer(status: int, value: object) -> Response:
    """A line of JSON, for people with curl."""
    return Response(status, json.dumps(value) + "\n", [("content-type", "application/json")])


def read_deposit(request: HTTPRequest) -> int:
    match request.json():
        case {"amount": int(amount)} if amount > 0:
            return amount
    raise ValueError('write {"amount": 10}')


def read_transfer(request: HTTPRequest) -> Begin:
    match request.json():
        case {"source": str(source), "target": str(target), "amount": int(amount)} if amount > 0:
            return Begin(source, target, amount)
    raise ValueError('write {"source": "ada", "target": "bob", "amount": 3}')


async def balances(node: Node) -> dict[str, object]:
    """The balances of all open accounts."""
    found: dict[str, object] = {}
    async for owner in keys_of(node, Account):
        with suppress(LookupError):  # an account that was never opened
            account = await node.entity(Account, owner).call(ask(Account.look))
            found[owner] = account["balance"]
    return found


class Front(Actor):
    """Owns the web server."""

    def __init__(self, port: int) -> None:
        routes = [
            Route(f"/{name}", to=Teller, max_body=10_000) for name in ("accounts", "transfers")
        ]
        self.server = WebServer("127.0.0.1", port, routes=routes, max_connections=1_000)

    async def init(self) -> None:
        """Listen."""
        await self.spawn_meta(self.server)

    def handle_call(self, request: object, caller: Caller) -> int:
        """Where it listens."""
        return self.server.local.port


class Printer(Actor):
    """Prints letters into a directory. The same letter twice is the same file."""

    def __init__(self, directory: Path) -> None:
        self.directory = trio.Path(directory)

    async def init(self) -> None:
        """Make the directory."""
        await self.directory.mkdir(parents=True, exist_ok=True)

    async def handle_call(self, request: object, caller: Caller) -> None:
        """Print a letter."""
        match request:
            case (str(name), str(text)):
                await (self.directory / f"{name}.txt").write_text(text, encoding="utf-8")


class Bank(Supervisor):
    """The entities, the printer, and the web server, each restarted for itself."""

    def __init__(self, store: Store, letters: Path, port: int) -> None:
        entities = Entities.spec(store, [Account, Transfer, Letter], types=MESSAGES)
        super().__init__(
            [
                ChildSpec("entities", entities),
                ChildSpec("printer", Printer, letters),
                ChildSpec("front", Front, port),
            ]
        )
