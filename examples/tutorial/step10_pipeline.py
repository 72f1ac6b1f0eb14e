import sys

import trio

from ergo_py import ChildSpec, Node, run
from ergo_py.entities import Entities, SQLite
from ergo_py.pipelines import Item, Pipeline, SQLiteQueue, Stage, ToActor
from step9_entity import Door, Metrics, Poll, Vote


class OpenLetter(Stage):
    """Turns a letter into a vote. An exception would fail this letter only."""

    def handle(self, item: Item) -> Vote:
        return Vote(item.body.strip().lower())


async def main(node: Node) -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 7777
    letters = Pipeline.spec(SQLiteQueue("letters.db", "letters"), OpenLetter(), ToActor(Poll))
    children = [
        ChildSpec("entities", Entities.spec(SQLite("votes.db"), [Poll])),
        ChildSpec("metrics", Metrics),
        ChildSpec("letters", letters),
        ChildSpec("door", Door, port),
    ]
    await node.supervise(children, name="root")
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="poll@localhost")
