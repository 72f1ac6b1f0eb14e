"""Each verb is defined once: the facades derive theirs. The number of definitions is counted from
the code.
"""

import inspect
from collections import Counter

from ergo_py import Actor, Group, MetaProcess, Node, Registry, Service
from ergo_py._core.tables.callbacks import CALLBACKS
from ergo_py.aio import AsyncioNode
from ergo_py.blocking.loop_thread import OwnedNode
from ergo_py.blocking.tasks import BlockingTask
from ergo_py.entity_handles import EntityHandle
from ergo_py.facades.facade import Facade
from ergo_py.facades.handles import (
    AsyncioEntity,
    AsyncioGroup,
    AsyncioPool,
    AsyncioRegistry,
    AsyncioService,
    AsyncioTimer,
    BlockingEntity,
    BlockingPool,
    BlockingService,
)
from ergo_py.facades.remote_node import AsyncioRemoteNode, BlockingRemoteNode
from ergo_py.facades.streams import AsyncioStream, BlockingStream
from ergo_py.network.remote_node import RemoteNode
from ergo_py.network.services.remote_service import RemoteService
from ergo_py.supervision.pool import PoolHandle
from ergo_py.tasks import Task
from ergo_py.testing.records.verbs import RecordingVerbs

DEFINED = (
    Actor,
    MetaProcess,
    Node,
    Service,
    EntityHandle,
    RemoteService,
    PoolHandle,
    Group,
    Registry,
    RemoteNode,
    Task,
    RecordingVerbs,
)
DERIVED = (
    OwnedNode,
    BlockingService,
    BlockingEntity,
    BlockingPool,
    BlockingRemoteNode,
    AsyncioNode,
    AsyncioService,
    AsyncioEntity,
    AsyncioPool,
    AsyncioGroup,
    AsyncioRegistry,
    AsyncioTimer,
    AsyncioRemoteNode,
)
OF_RESULTS = (BlockingStream, BlockingTask, AsyncioStream)
MOST = 197
NO_VERBS = {*CALLBACKS, "start", "unblock", "find", "handle_idle"}


def definitions(*classes: type) -> set[tuple[str, str]]:
    """Module and name of each function that defines a public method of the classes."""
    return {
        (getattr(function, "__module__", "in C"), function.__qualname__)
        for cls in classes
        for base in cls.__mro__
        if base.__module__.startswith("ergo_py")
        for name, value in vars(base).items()
        if not name.startswith("_") and name not in NO_VERBS and callable(value)
        for function in [inspect.unwrap(value) if issubclass(base, Facade) else value]
        if not isinstance(function, type)
    }


def test_all_facades_together_have_few_definitions() -> None:
    # The last two: `resend` of a dead letter, since the message stays inside the node, where
    # `redact` guards it; `upgrade_child`, since `restart_child` starts another process; and
    # `run_main`, since no other verb keeps the main thread.
    assert len(definitions(*DEFINED, *DERIVED, *OF_RESULTS)) <= MOST


def test_the_derived_facades_define_few_verbs_of_their_own() -> None:
    of_their_own = definitions(*DERIVED) - definitions(*DEFINED)

    # The table of the node has functions for `ask`, `run` and `trace`; `events` makes a stream of
    # each kind; a node with a thread is closed; `run_main` keeps the main thread.
    assert Counter(name.rpartition(".")[2] for _, name in of_their_own) == {
        "ask": 1,
        "cancel": 1,
        "close": 1,
        "events": 2,
        "run": 1,
        "run_async": 1,
        "run_main": 1,
        "trace": 1,
    }
