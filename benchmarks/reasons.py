"""Why something is not reached, or cheaper elsewhere: the page that is made from the figures says
it beside each of them.

Those of the hot paths (tell, threads, UDP, TCP) were found with a profiler or by leaving things out
one at a time, the others by reading the code. Figures stay out of it, they change.
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


_TURN = "Each wake-up is a turn of trio's scheduler, which costs half as much again as one of asyncio's."
_BARE = "The bare thing has no address, no lanes, no bound, no sender, no counters, no dead letters, and cannot be looked into."
_QUEUE = (
    "A queue hands objects from one coroutine to another and knows nothing else; while it is "
    "filled, getting one is no more than a "
    "method call."
)
_C = "It is written in C, and calls back without a message, a mailbox or a process in between."
_HAND_OVER = (
    "Each message wakes a thread of its own, which then needs the interpreter's lock. Where a "
    "processor is idle these threads run "
    "side by side, and a message costs twice of what it costs on a busy machine, or if the "
    "program is kept on one processor, where "
    "they take turns; socketserver, which has such threads and nothing else, does not reach this "
    "either, and a loop written by "
    "hand around such threads and a queue takes longer than asyncio's streams, too. For many "
    "small requests take the reader task, "
    "which stays on the loop."
)
_COPIED = (
    "About half of it is the operating system copying the message in and out, which all pay; the "
    "rest is making a message of it, "
    "serving it, and the turns of the loop."
)
_BOTH = "Wall time: while the loop works, the thread waits for the interpreter's lock, and the loop while the thread works."
_SECOND_PASS = (
    "The loop is woken by a descriptor of its own, and then the process, whose turn comes in the "
    "next pass of trio's scheduler: "
    "that pass is a quarter of the time. A bare task that waits for the descriptor and does the "
    "work itself has no second pass, "
    "and still needs more than half of what run_sync_soon does; the kernel's part alone is a fifth."
)
_NO_TASK = "There an actor is an object without a task, run by whoever sends: it weighs less, but cannot wait by itself."
_SUPERVISED = (
    "By hand nobody keeps what is known of a crash, counts restarts, gives the successor the name "
    "or tells those who watch; a "
    "supervisor does. The text of a traceback is only made when it is read."
)

LOSSES: tuple[Reason, ...] = (
    Reason(
        "tell",
        "Wall time, since pykka has threads: on a busy machine they get more of it than one loop "
        "does.",
        of=("pykka",),
    ),
    Reason(
        "spawn",
        "Wall time, since pykka has threads: on a busy machine they get more of it than one loop "
        "does.",
        of=("pykka",),
    ),
    Reason("tell", _BARE, of=("floor",)),
    Reason("tell", _QUEUE, of=("asyncio",)),
    Reason("call", _TURN, of=("asyncio", "anyio")),
    Reason("call", _BARE, of=("floor",)),
    Reason(
        "call",
        "Nothing is woken there: the answer is computed in the turn of whoever asks.",
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
        "A task of asyncio costs about half of one of trio's.",
        of=("asyncio", "pyctor"),
    ),
    Reason("spawn", _BARE, of=("floor", "trio")),
    Reason("spawn", _NO_TASK, of=("thespian",), line="stop"),
    Reason("restart", _SUPERVISED),
    Reason("crowd", _NO_TASK, of=("thespian", "xoscar")),
    Reason("crowd", _BARE, of=("floor", "trio", "asyncio")),
    Reason(
        "timers",
        "An entry in a heap that is emptied by whoever has it; it has no owner to end with.",
        of=("floor",),
    ),
    Reason(
        "timers",
        "Cancelling marks the entry, no more; it has no owner, and must not be used from other "
        "threads.",
        of=("asyncio",),
    ),
    Reason("process, flood", "It has no address, and nothing holds its sender up.", of=("floor",)),
    Reason(
        "process, flood",
        "The mailbox has room for 256 and the thread waits for more, a hand-over between threads; "
        "theirs take all there is.",
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
        "A thread for each connection, blocked in recv: nothing is handed to anybody.",
        of=("socketserver",),
    ),
    Reason(
        "TCP",
        "What is read becomes a message to a process, which sends the answer as another message.",
    ),
    Reason("UDP", _C, of=("uvloop",)),
    Reason("UDP", "What is read becomes a message to a process."),
)

GOALS: tuple[Reason, ...] = (
    Reason(
        "tell",
        "The floor has no envelope, no counters and no lanes. The envelope is a tuple that "
        "outlives its send, so that the garbage "
        "collector looks at it: a seventh of a message in a long burst. The rest is the look at "
        "whether the receiver is open and "
        "asleep, two counters and the envelope's four fields, each a few hundredths of a "
        "microsecond.",
        of=("floor", "step", "trio"),
    ),
    Reason("tell", _QUEUE, of=("asyncio",)),
    Reason(
        "tell",
        "pykka's cost is that of its threads, which differs with the machine and with what else "
        "runs on it.",
        of=("pykka",),
    ),
    Reason(
        "call",
        "pykka's cost is that of its threads, which differs with the machine and with what else "
        "runs on it.",
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
        "Two turns of the scheduler are three fifths of it. A fifth are the notes of when each "
        "side sleeps, waits and runs, which "
        "whoever looks inside wants to see; the rest is a call that can be deferred, handed on, "
        "timed out and found in a ring of "
        "those who wait for each other.",
        of=("trio", "floor"),
    ),
    Reason(
        "crowd",
        "Lanes, tables and options come when first used; what is left is trio's task and the "
        "process object.",
    ),
    Reason(
        "fairness",
        "The clock is looked at after every eighth message until they turn out to be slow: the "
        "first turn may be sixteen of them.",
    ),
    Reason(
        "spawn and stop",
        "trio's task is more than half of it; to make the process with its identity and its "
        "mailbox is a fifth; the rest are the "
        "checks, the two coroutines of a spawn and the places in the tables.",
    ),
    Reason(
        "ping-pong",
        "One wake-up for each message, which is trio's: a task with a deque, written by hand, "
        "takes as long.",
    ),
    Reason(
        "process, flood",
        "What a message costs without a bound is most of it. The rest is a round of waiting each "
        "time the mailbox is full: the "
        "thread blocks, the loop comes, and each is woken by the kernel.",
        line="bounded",
    ),
    Reason(
        "process, flood",
        "Of the processor time a third is the send, which finds the receiver, looks whether it is "
        "open and asleep and makes an "
        "envelope, and a fifth the serving; the garbage collector looks at the envelopes that "
        "pile up. The floor has none of that. " + _BOTH,
    ),
    Reason("idle", _SECOND_PASS),
    Reason(
        "busy beside",
        "Within the noise of a machine with two cores: the reader's thread does nothing at all.",
    ),
    Reason(
        "readers blocked",
        "The bare thread is more than half of it, since Python waits until it runs; beside it a "
        "reader has an owner, a name in the "
        "tables and a last word.",
    ),
    Reason(
        "restart",
        "A third is trio's: two turns of the scheduler, a task that ends and one that starts. Of "
        "the rest the spawn, the "
        "supervisor's decision and what is kept of the crash are about a quarter each; to take "
        "the old process out of the tables "
        "is a fifth.",
    ),
    Reason(
        "redis",
        "trio is not the limit: a server by hand, with a trio task for each connection and the "
        "same poller, takes about four "
        "fifths of the time of asyncio's streams. The rest is Python code of the framework for "
        "each read, whatever the number of "
        "commands in it: the message from the connection to the session and the one back, with "
        "mailbox, turn, counters and time "
        "limits, and the session's call to the store.",
    ),
    Reason(
        "short connections",
        "A connection is a meta-process with an alias, an outbox and an orderly end in bounded "
        "steps, and tells its receiver of "
        "both its ends; with a session of its own, a process begins and ends with it. serve_tcp "
        "starts one task.",
    ),
    Reason(
        "newcomers",
        "A newcomer takes a few passes of the busy loop: one to be accepted, one for its session "
        "to begin, one to be read, one for "
        "the answer. asyncio reads in the pass after the one that accepts.",
    ),
    Reason("service", "A look at who sits there now, and one more function call."),
    Reason("TCP", _C, of=("uvloop streams",)),
    Reason("64 KiB", _COPIED),
    Reason("TCP", _HAND_OVER, line="thread"),
    Reason(
        "TCP",
        "What is read becomes a message to a process, which sends the answer as another message.",
    ),
    Reason(
        "timers",
        "An entry in a heap by hand is about half of the goal. A timer also has an owner, which "
        "keeps a set of them and with which "
        "it ends, a target and a priority, and can be cancelled from any thread.",
    ),
    Reason(
        "UDP",
        "More than a quarter of what asyncio takes for a datagram is the system call to receive "
        "it, which all pay. Making the "
        "message and its envelope, serving it and the reader's turns come to a little more than "
        "that again. A loop written by hand "
        "that does none of this takes more than a third of asyncio's time, too.",
    ),
    Reason(
        "publish",
        "It is a send to each subscriber: without the noise of a busy machine both cost the same.",
        of=("send",),
    ),
    Reason("publish", "One wake-up for each subscriber, which is trio's."),
    Reason("observer", "An observer sees a record of each message, which has to be made."),
)

GROWTH: tuple[Reason, ...] = (
    Reason(
        "least loaded",
        "The load of a worker changes as it works, and nobody is told, so each message looks at "
        "all workers: for a handful "
        "that is nothing; hundreds should take turns.",
    ),
)
