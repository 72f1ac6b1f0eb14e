"""`Reason`: why a goal is not reached, or a peer is cheaper. The generated page shows it beside the
figure.

The reasons of the hot paths (tell, threads, UDP, TCP) were found with a profiler or by removing
parts of the code, the others by reading the code. They contain no figures, since figures change.
"""

from dataclasses import dataclass

__all__ = ["GOALS", "GROWTH", "LOSSES", "Reason", "why"]


@dataclass(frozen=True)
class Reason:
    """Holds for cases and lines that contain these words, and for these references (all, if there
    are none).
    """

    case: str
    text: str
    line: str = ""
    of: tuple[str, ...] = ()

    def fits(self, case: str, line: str, of: str) -> bool:
        return self.case in case and self.line in line and (not self.of or of in self.of)


def why(reasons: tuple[Reason, ...], case: str, line: str, of: str) -> str:
    """The first reason that fits, or nothing."""
    return next((reason.text for reason in reasons if reason.fits(case, line, of)), "")


_TURN = (
    "Each wake-up is a turn of trio's scheduler, which costs half as much again as a turn of "
    "asyncio's."
)
_BARE = (
    "The bare version has no address, no lanes, no bound, no sender, no counters, no dead letters, "
    "and no inspection."
)
_QUEUE = (
    "A queue passes objects between two coroutines and does nothing else; while it is filled, "
    "taking an object is no more than a method call."
)
_C = "It is written in C, and calls back without a message, a mailbox or a process in between."
_HAND_OVER = (
    "Each message wakes a thread of its own. With the C extension that thread reads without the "
    "interpreter's lock, and the loop takes the bytes of all threads in a single turn; in pure "
    "Python it needs the lock for each message. socketserver, which has such threads and nothing "
    "else, does not reach this either, and a loop written by hand around such threads and a queue "
    "takes longer than asyncio's streams, too. For many small requests use the reader task, which "
    "stays on the loop."
)
_COPIED = (
    "About half of it is the operating system copying the message in and out, which all pay; the "
    "rest is making a message of it, handling it, and the turns of the loop."
)
_FILE = (
    "The server by hand has a constant for each file. Here a request is routed, its path decoded "
    "and kept inside of the directory, its conditions and ranges are read, the head is made for "
    "it, and the connection has time limits and counters."
)
_PARTS = (
    "By hand there is no acknowledgement, no window and no session that survives its connection, "
    "and a message is encoded once; whole, it is a single write, for which all small messages wait."
)
_BOTH = (
    "Wall time: while the loop works, the thread waits for the interpreter's lock, and the loop "
    "while the thread works."
)
_SECOND_PASS = (
    "A descriptor of its own wakes the loop, and the loop wakes the process, which runs in the "
    "next pass of trio's scheduler: that pass is a quarter of the time. A bare task that waits for "
    "the descriptor and does the work itself, the line by hand, has no second pass, and still "
    "needs more than half of run_sync_soon's time; the kernel's part alone is a fifth."
)
_POLLED = (
    "It is written in C. A poller on trio, written by hand in Python, that reads, calls a function "
    "and writes, takes about half of the time of uvloop's streams; with a task for each "
    "connection it takes longer than uvloop's streams, and longer than an actor for each."
)
_NO_TASK = (
    "There an actor is an object without a task, and the sender runs it: it needs less memory, but "
    "cannot wait by itself."
)
_SUPERVISED = (
    "The version by hand keeps no crash report, counts no restarts, does not register the "
    "successor under the name and notifies no monitors; a supervisor does. The text of a traceback "
    "is only made when it is read."
)

_CHECKED = (
    "A command is a call of a process that can be cancelled, timed out and forwarded; its state is "
    "encoded, compared and checked, and its row has a version that the store compares, so that no "
    "other program can have written it. By hand, nothing is checked."
)

_TALKING = (
    "By hand there are no nodes, processes, sessions, acknowledgements and time limits: bytes go "
    "from a socket to a function and back. Erlang's distribution is written in C."
)
_INSIDE = "The hook of a network, which looks whether a receiver is on this node."
_SERVER_BY_HAND = (
    "The server by hand has a constant for each answer. Here a request is routed, becomes a call "
    "of a process, and the connection has time limits and counters."
)

LOSSES: tuple[Reason, ...] = (
    Reason("two programs", _TALKING),
    Reason(
        "a function on all cores",
        "A request is a call of a worker node, which is checked, timed out and restarted.",
    ),
    Reason("web requests", _SERVER_BY_HAND, of=("by hand",)),
    Reason("web requests", "Compiled code.", of=("Go net/http",)),
    Reason("web requests", "A call of a process, and a turn of trio's scheduler."),
    Reason("web sockets", "Each message goes to an actor and back, under backpressure."),
    Reason(
        "short connections",
        "A thread is started for each connection, and an owner ends with it.",
        line="reader thread",
    ),
    Reason(
        "short connections",
        "A connection is a meta-process, which is found, counted and ended by its address.",
    ),
    Reason("web files", _FILE),
    Reason("small calls beside", _PARTS),
    Reason(
        "tell",
        "Wall time, since pykka has threads: on a busy machine they get more of it than a single "
        "loop does.",
        of=("pykka",),
    ),
    Reason(
        "spawn",
        "Wall time, since pykka has threads: on a busy machine they get more of it than a single "
        "loop does.",
        of=("pykka",),
    ),
    Reason("tell", _BARE, of=("floor",)),
    Reason("tell", _QUEUE, of=("asyncio",)),
    Reason("call", _TURN, of=("asyncio", "anyio")),
    Reason("call", _BARE, of=("floor",)),
    Reason(
        "call",
        "Nothing is woken there: the answer is computed in the turn of the caller.",
        of=("thespian",),
    ),
    Reason(
        "publish",
        "It has two hundred subscribers, not ten thousand: each is a thread.",
        of=("pykka",),
    ),
    Reason("publish", _TURN, of=("asyncio", "anyio", "pyctor")),
    Reason("publish", _BARE, of=("floor",)),
    Reason(
        "spawn",
        "A task of asyncio costs about half as much as a task of trio's.",
        of=("asyncio", "pyctor"),
    ),
    Reason("spawn", _BARE, of=("floor", "trio")),
    Reason("spawn", _NO_TASK, of=("thespian",), line="stop"),
    Reason("restart", _SUPERVISED),
    Reason("crowd", _NO_TASK, of=("thespian", "xoscar")),
    Reason("crowd", _BARE, of=("floor", "trio", "asyncio")),
    Reason(
        "timers",
        "An entry in a heap that its user empties by hand; it has no owner to end with.",
        of=("floor",),
    ),
    Reason(
        "timers",
        "Cancelling only marks the entry; it has no owner, and other threads must not use it.",
        of=("asyncio",),
    ),
    Reason("process, flood", "It has no address and no backpressure.", of=("floor",)),
    Reason(
        "process, flood",
        "The mailbox has room for 256 and the thread waits for more, a hand-over between threads; "
        "theirs are unbounded.",
        line="bounded",
    ),
    Reason("process, flood", _BOTH),
    Reason(
        "idle",
        "Its actor is a thread, which a lock wakes directly; here the loop comes back from the "
        "kernel first.",
        of=("pykka",),
    ),
    Reason(
        "idle",
        "Its loop comes back from the kernel with less to do, and calls the function at once.",
        of=("asyncio",),
    ),
    Reason("idle", _SECOND_PASS),
    Reason("TCP", _C, of=("uvloop streams", "uvloop protocol")),
    Reason("TCP", _HAND_OVER, line="thread"),
    Reason("64 KiB", _COPIED, of=("asyncio protocol", "socketserver", "floor")),
    Reason(
        "TCP",
        "It writes back in the callback that reads: no stream, no message, no process.",
        of=("asyncio protocol",),
    ),
    Reason(
        "TCP",
        "A thread for each connection, blocked in recv, which answers itself.",
        of=("socketserver",),
    ),
    Reason(
        "TCP",
        "The input becomes a message to a process, which sends the answer as another message.",
    ),
    Reason("entities", _CHECKED, of=("asyncio",)),
    Reason("UDP", _C, of=("uvloop",)),
    Reason("UDP", "Each datagram becomes a message to a process."),
    Reason("", "Compiled code, and wall time on all processors.", of=("Erlang", "Go")),
)

GOALS: tuple[Reason, ...] = (
    Reason(
        "entities, waking",
        "An entity that wakes up is a process that starts, which is a third of it; the rest is to "
        "read and decode the row, and the call that waits for it.",
    ),
    Reason(
        "entities, memory",
        "An entity is a process with a task of trio, and beside it the record, the held answers "
        "and the outbox.",
    ),
    Reason(
        "entities, start",
        "The keeper reads an index of what is due, and the rows of these; the number of keys makes "
        "the index of the keys deeper, and the file larger than the cache.",
    ),
    Reason(
        "entities, none",
        "A node loads the module of the handles, and no other module of entities; the rest is "
        "noise.",
    ),
    Reason(
        "entities",
        _CHECKED,
    ),
    Reason(
        "world",
        "A world runs the code of nodes as it is: three quarters of the time are the calls, frames "
        "and sessions of the nodes, and trio's passes; the rest keeps the order and the history.",
    ),
    Reason(
        "call",
        "A call is a coroutine and an object with a number. The time and the envelope of the "
        "callee are noted, and it runs in its own context; each of these steps is a few hundredths "
        "of a microsecond. A callee with an async callback also takes a step of its task.",
        of=("asyncio",),
    ),
    Reason(
        "group of",
        "A broadcast looks up each member, and appends an envelope to its mailbox; the members "
        "wake up in turns of the scheduler.",
    ),
    Reason(
        "reply in parts",
        "Each part is a message with an address and a number, and the reader grants credit for the "
        "next parts.",
    ),
    Reason(
        "map_stream",
        "Each item runs in a task with a slot, a time limit and a place in the order of results.",
    ),
    Reason(
        "run_task",
        "A task is a process with a mailbox, a parent, a reason and an entry among the children; "
        "a nursery starts a function.",
    ),
    Reason(
        "tell",
        "The floor has no envelope, no counters and no lanes. The envelope is a tuple that "
        "outlives its send, so that the garbage collector scans it: a seventh of a message in a "
        "long burst. The rest is the check whether the receiver is open and asleep, two counters "
        "and the envelope's four fields, each a few hundredths of a microsecond.",
        of=("floor", "step", "trio"),
    ),
    Reason(
        "tell",
        "Each message makes a coroutine, runs it and frees it: the same handlers with a deque by "
        "hand, without a process or a sender, take about as long as the goal allows. A new process "
        "with an async handler also enters a cancel scope of trio before its first message.",
        line="async handler",
        of=("asyncio", "by hand", "async by hand"),
    ),
    Reason("tell", _BARE, of=("by hand",)),
    Reason("tell", _QUEUE, of=("asyncio",)),
    Reason(
        "tell",
        "pykka's cost is that of its threads, which differs with the machine and with its load.",
        of=("pykka",),
    ),
    Reason(
        "call",
        "pykka's cost is that of its threads, which differs with the machine and with its load.",
        of=("pykka",),
    ),
    Reason(
        "call",
        "The unit is a third of a microsecond; the difference of two calls is smaller than their "
        "noise.",
        of=("step",),
    ),
    Reason(
        "call",
        "Two turns of the scheduler are three fifths of it. A fifth is the bookkeeping of the "
        "states (sleep, wait, run) for inspection; the rest is a call that can be deferred, "
        "forwarded, timed out and checked for deadlocks.",
        of=("trio", "floor"),
    ),
    Reason(
        "crowd",
        "Lanes, tables and options are made when first used; the rest is trio's task and the "
        "process object.",
    ),
    Reason(
        "fairness",
        "The clock is read after every eighth message until they turn out to be slow: the first "
        "turn may be sixteen of them.",
    ),
    Reason(
        "spawn and stop",
        "trio's task is more than half of it; to make the process with its identity and its "
        "mailbox is a fifth; the rest are the checks, the two coroutines of a spawn and the places "
        "in the tables.",
    ),
    Reason(
        "ping-pong",
        "A wake-up for each message, which is trio's: a task with a deque, written by hand, takes "
        "as long.",
    ),
    Reason(
        "process, flood",
        "Most of it is the cost of a message without a bound. The rest is a round of waiting each "
        "time the mailbox is full: the thread blocks, the loop runs, and the operating system "
        "wakes each of them.",
        line="bounded",
    ),
    Reason(
        "process, flood",
        "Of the processor time a third is the send, which finds the receiver, checks whether it is "
        "open and asleep and makes an envelope, and a fifth the message loop; the garbage "
        "collector scans the envelopes that pile up. The floor, a deque and a flag by hand, has "
        "none of that, and is the limit. " + _BOTH,
    ),
    Reason("idle", _SECOND_PASS),
    Reason(
        "busy beside",
        "Within the noise of a machine with two cores: the reader's thread does nothing at all.",
    ),
    Reason(
        "readers blocked",
        "The bare thread is more than half of it, since Python waits until it runs; beside it a "
        "reader has an owner, a name in the tables and a last message.",
    ),
    Reason(
        "asyncio coroutine",
        "A call has a mailbox, a handler, a time limit and counters; two turns of trio's scheduler "
        "and two wake-ups of threads are most of the time of both.",
    ),
    Reason(
        "restart",
        "A third is trio's: two turns of the scheduler, a task that ends and a task that starts. "
        "Of the rest the spawn, the supervisor's decision and the crash report are about a quarter "
        "each; to take the old process out of the tables is a fifth. By hand there is a mailbox "
        "with its task, a task that waits for its end, and the error with its traceback: no name, "
        "no limit of restarts, no report, no links and no monitors.",
    ),
    Reason("two programs", _TALKING),
    Reason("a node with a network", _INSIDE),
    Reason("web files", _FILE),
    Reason("small calls beside", _PARTS),
    Reason(
        "web",
        "Each request of a mounted application is a task of its own, which trio starts and ends in "
        "two turns of its scheduler, with a cancel scope; asyncio's tasks cost a third of that.",
        line="mounted",
    ),
    Reason(
        "web",
        "uvicorn parses in C, and its loop is in C. Here the parser, the connection and the call "
        "of the actor with its time limit are Python; by hand, sockets, poller and parser alone "
        "are about half of it.",
    ),
    Reason(
        "redis",
        "trio is not the limit: a server by hand, with a trio task for each connection and the "
        "same poller, takes about four fifths of the time of asyncio's streams. The rest is Python "
        "code of the framework for each read, for any number of commands in it: the message from "
        "the connection to the session and the message back, with mailbox, turn, counters and "
        "timeouts, and the session's call to the store.",
    ),
    Reason(
        "short connections",
        "A thread begins and ends with each connection, as it does by hand. Here it is the reader "
        "of a meta-process, with an owner, a last message and a bounded end, and each step between "
        "thread and loop waits for the interpreter's lock; asyncio starts no thread at all. For "
        "short connections use the reader task.",
        line="thread",
    ),
    Reason(
        "newcomers",
        "A thread begins with each connection while the loop serves the others: the thread waits "
        "for the interpreter's lock, and so does the loop.",
        line="thread",
    ),
    Reason(
        "short connections",
        "A connection is a meta-process with an alias, an outbox and a graceful shutdown in "
        "bounded steps, and notifies its receiver of its beginning and its end; with a session of "
        "its own, a process begins and ends with it. serve_tcp starts a single task.",
    ),
    Reason(
        "newcomers",
        "A server makes connections for 4 ms, or twelve of them, and then serves all the peers "
        "that it has before it makes more, so that these wait for a few milliseconds at most. "
        "asyncio accepts all in a single pass, and makes a protocol and a task for each, where we "
        "make a meta-process and a process.",
    ),
    Reason("service", "A look-up of the present child, and a further function call."),
    Reason("TCP", _POLLED, of=("uvloop streams",)),
    Reason("64 KiB", _COPIED),
    Reason("TCP", _HAND_OVER, line="thread"),
    Reason(
        "TCP",
        "The input becomes a message to a process, which sends the answer as another message.",
    ),
    Reason(
        "timers",
        "An entry in a heap by hand is about half of the goal. A timer also has an owner, which "
        "keeps a set of them and with which it ends, a target and a priority, and can be cancelled "
        "from any thread.",
    ),
    Reason(
        "UDP",
        "More than a quarter of asyncio's time for a datagram is the system call to receive it, "
        "which all pay. Making the message and its envelope, handling it and the reader's turns "
        "come to a little more than that again. A loop written by hand that does none of this "
        "takes more than a third of asyncio's time, too.",
    ),
    Reason(
        "publish",
        "It is a send to each subscriber: without the noise of a busy machine both cost the same.",
        of=("send",),
    ),
    Reason("publish", "A wake-up for each subscriber, which is trio's."),
    Reason("metrics", "A scrape reads the counters of each process once."),
    Reason(
        "tracing",
        "A traced node looks for the current span at each send, and a span is an object of "
        "OpenTelemetry with its attributes.",
    ),
    Reason("observer", "An observer gets a record of each message, which has to be made."),
    Reason(
        "start-up",
        "A node needs some 150 modules; Python takes half a millisecond to find, read and run each "
        "of them.",
        of=("its libraries",),
    ),
    Reason(
        "start-up",
        "An actor brings the kernel. By hand, as many modules with as many classes and functions, "
        "each function a single line, take half of the time beyond trio; the rest reads longer "
        "bytecode, and writes the annotations and the defaults of the functions.",
    ),
)

GROWTH: tuple[Reason, ...] = (
    Reason(
        "least loaded",
        "The load of a worker changes as it works, without a notification, so each message checks "
        "all workers: for a handful that is cheap; for hundreds use round robin.",
    ),
)
