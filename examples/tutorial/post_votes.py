"""Posts votes: python post_votes.py tea tea coffee"""

import sys

from ergo_py.pipelines import Item, SQLiteQueue

queue = SQLiteQueue("letters.db", "letters")
queue.open()
queue.handle_batch([Item(choice, key="drinks") for choice in sys.argv[1:]])
queue.close()
print("posted:", len(sys.argv) - 1)
