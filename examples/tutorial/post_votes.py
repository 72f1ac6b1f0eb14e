"""Posts votes: python post_votes.py tea tea coffee"""

import sys

from ergo_py.pipelines import Item, SQLiteQueue

queue = SQLiteQueue("letters.db", "letters")
queue.put(*[Item(choice, key="drinks") for choice in sys.argv[1:]])
print("posted:", len(sys.argv) - 1)
