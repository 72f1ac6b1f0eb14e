"""`StreamVerbs`: ``stream`` and ``call_stream`` of a process. `StreamCalls`: the latter, which a
node has, too.
"""

from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .._core.verbs.behaviour import Behaviour, M_contra
from .._core.verbs.common import check_timeout
from .._core.vocabulary.ids import Called, Target
from .._core.vocabulary.messages import Request, Untyped
from .._core.vocabulary.public_names import name_for_annotations
from ..tasks.verbs import TaskVerbs

if TYPE_CHECKING:
    from .parts import CalledStream, PartStream
else:
    name_for_annotations(__name__, {"ergo_py.streams.parts": "CalledStream PartStream"})

__all__ = ["StreamCalls", "StreamVerbs"]

Callee = TypeVar("Callee")
R = TypeVar("R")


class StreamCalls(TaskVerbs):
    """The verb that reads replies in parts, for processes and for the node."""

    if TYPE_CHECKING:
        call: Callable[..., Coroutine[Any, Any, Any]]

    @overload
    def call_stream(
        self,
        to: Target,
        request: Untyped | None,
        *,
        timeout: float | None = 5.0,
        credit: int | None = None,
    ) -> "CalledStream[Any]": ...
    @overload
    def call_stream(
        self,
        to: Called[Callee],
        request: "Request[PartStream[R], Callee]",
        *,
        timeout: float | None = 5.0,
        credit: int | None = None,
    ) -> "CalledStream[R]": ...
    def call_stream(
        self,
        to: Target,
        request: object,
        *,
        timeout: float | None = 5.0,
        credit: int | None = None,
    ) -> "CalledStream[Any]":
        """Call a process that answers in parts, and iterate over them.

        For example::

            async for row in self.call_stream("database", Rows("users")):
                ...

        Args:
            to: the callee.
            request: the request; with ``class Rows(Request[PartStream[Row]])`` a type checker knows
                the type of the parts.
            timeout: seconds for the answer, and for each part; None for no limit.
            credit: how many parts the callee may produce ahead; None as the callee says.

        Raises:
            BadInputError: an argument has a wrong value.
        """
        from .parts import CalledStream  # noqa: PLC0415 - loaded with the node

        check_timeout(timeout)
        _, reader = self._task_owner()
        call = partial(self.call, to, request, timeout=timeout)
        return CalledStream(call, to, request, timeout, credit, reader)


class StreamVerbs(Behaviour[M_contra], StreamCalls):
    """The verbs of a process that reads and produces replies in parts."""

    def stream(self, parts: Iterable[R] | AsyncIterable[R], *, credit: int = 16) -> "PartStream[R]":
        """Make a reply in parts: ``return self.stream(self.rows())`` in ``handle_call``.

        A child process takes the parts from the iterable, as the reader asks for them, at most
        ``credit`` parts ahead. So a slow reader slows the producer, and this process handles other
        messages meanwhile. An exception of the iterable is raised at the reader.

        Raises:
            BadInputError: ``parts`` is no iterable, or ``credit`` no positive number.
        """
        from ..tasks.function import name_of  # noqa: PLC0415 - loaded with the node
        from .parts import PartStream  # noqa: PLC0415 - loaded with the node

        return PartStream(
            self._start_stream, parts, credit, self.pid, f"stream({name_of(type(parts))})"
        )
