"""`ControlClients`: commands of ``ergo … --via``, which another node passes on to this node."""

from typing import Any, Final

import trio

from ...control.commands import COMMANDS, explain
from ...control.protocol import ControlError, as_json, encode
from ...control.request import Arguments, Beat, Client
from ...control.view_commands import VIEWS
from ..context import NetworkContext

__all__ = ["ControlClients"]

_CLIENTS: Final = 16
"""How many clients of another node are remembered. A client compares its rows with those before."""
_FROM_AFAR: Final = (
    "ps",
    "info",
    "tree",
    "inspect",
    "state",
    "peek",
    "statistics",
    "dead-letters",
    "crashes",
    "network",
    "groups",
    "pipelines",
    "names",
    "entities",
    "entity",
    "keys",
    "parked",
    *(view.__name__ for view in VIEWS),
)
"""The commands that another node may pass on: those that look, and answer in a single message."""


class ControlClients:
    """The clients of another node's control socket that ask about this node."""

    def __init__(self, network: NetworkContext) -> None:
        self._network = network
        self._clients: dict[int, Client] = {}

    async def answer(self, number: int, do: str, arguments: dict[str, Any]) -> bytes:
        """The answer to a command, as JSON: its result, or an error."""
        try:
            if do not in _FROM_AFAR:
                raise ControlError(
                    "not_permitted",
                    f"`{do}` needs a control socket of {self._network.kernel.pid.node} itself; "
                    f"from another node there are {', '.join(_FROM_AFAR)}",
                )
            command, client = COMMANDS[do], self._client(number)
            given = Arguments(do, arguments)
            if command.on_loop is not None:
                result = await command.on_loop(client, given)
            else:
                assert command.in_thread is not None
                # The request is cancelled when the other node is lost. A view that is read in a
                # thread cannot be stopped, and the end of a node must not wait for it.
                result = await trio.to_thread.run_sync(
                    command.in_thread, client, given, Beat(), abandon_on_cancel=True
                )
            return encode({"result": as_json(result)})
        except Exception as error:
            refused = explain(error)
            return encode({"error": {"code": refused.code, "text": refused.text}})

    def close(self) -> None:
        """Forget all clients: the other node is lost."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _client(self, number: int) -> Client:
        client = self._clients.get(number)
        if client is None:
            client = self._clients[number] = Client(self._network.kernel.node, lambda _text: None)
            if len(self._clients) > _CLIENTS:
                self._clients.pop(next(iter(self._clients))).close()
        return client
