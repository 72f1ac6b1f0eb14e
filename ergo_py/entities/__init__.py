"""Entities: actors whose state survives the end of the process, of the program and of the machine.

An entity has a kind and a key. It exists always: its first message wakes it, and it sleeps when it
is idle. See docs/entities.md.
"""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use
from ..entity_handles import EntityHandle

if TYPE_CHECKING:
    from .entity import Entity
    from .errors import AnswerUnknownError, EntityStoreError, FencedError, StateError
    from .inspection import EntityInspector
    from .keeper import Entities, keys_of
    from .last_runs import LastRuns
    from .stores.memory import MemoryStore
    from .stores.postgres import Postgres
    from .stores.sqlite import SQLite
    from .stores.store import Store

__all__ = [
    "AnswerUnknownError",
    "Entities",
    "Entity",
    "EntityHandle",
    "EntityInspector",
    "FencedError",
    "LastRuns",
    "MemoryStore",
    "Postgres",
    "SQLite",
    "StateError",
    "Store",
    "EntityStoreError",
    "keys_of",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "entity": "Entity",
            "errors": "AnswerUnknownError EntityStoreError FencedError StateError",
            "inspection": "EntityInspector",
            "keeper": "Entities keys_of",
            "last_runs": "LastRuns",
            "stores.memory": "MemoryStore",
            "stores.postgres": "Postgres",
            "stores.sqlite": "SQLite",
            "stores.store": "Store",
        },
    )
