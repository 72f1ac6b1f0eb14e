"""`Copies`: the hook of a strict node, for tests. It copies each value that a process sends to
another process of the same node through its encoding, as if the value went to another node.
"""

from typing import cast

from ..._core.messaging.hooks import Hook
from ..._core.messaging.router import Router
from ..._core.vocabulary.errors import CallFailedError, SendError
from ..._core.vocabulary.ids import PID, Alias, EventName, Target
from ..._core.vocabulary.reasons import Crashed
from ..network import Network

__all__ = ["Copies"]


class Copies(Hook):
    """Copies messages, requests, publications and answers. A meta-process is always on the node of
    its process, and a process on its own, so their messages stay as they are.
    """

    __slots__ = ()

    def sending(
        self, router: Router, sender: PID | Alias, to: Target | EventName, message: object, /
    ) -> object:
        """The message as another node would get it.

        Raises:
            MessageError: of kind ``"type"``; the message cannot travel.
        """
        # A message of a process to itself may hold anything: no other node ever gets it.
        return message if to == sender else _copied(router, sender, to, message)

    def answering(self, router: Router, to: Target, answer: object, /) -> object:
        """The answer as another node would get it.

        Raises:
            CallFailedError: the answer cannot travel.
        """
        try:
            return _copied(router, to, None, answer)
        except SendError as error:
            raise CallFailedError(to, None, Crashed(error)) from error


def _copied(router: Router, sender: Target, to: Target | EventName | None, value: object) -> object:
    network = cast("Network | None", router.remote)
    return value if type(sender) is Alias or network is None else network.copied(to, value)
