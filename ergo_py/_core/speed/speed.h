/* The steps that every message takes, in C. The Python code is complete without this module and is
   its judge: each function here says which Python function it stands in for, does the common case
   only, and calls the Python function for everything else.

   Rules of these files:
   - Objects of Python classes keep their layout. Their slots are read and written at the offset of
     the member descriptor, which bind() looks up once, at import; bind() fails if a slot is gone.
   - The module needs the GIL: an append to a lane and the check of the receiver's mark are a single
     step, because no Python code runs between them. So no KeyboardInterrupt can separate them, and
     no thread can see the one without the other.
   - A reference is borrowed only while no Python code can run. */
#ifndef ERGO_SPEED_H
#define ERGO_SPEED_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>
#include <string.h>
#include <time.h>

/* Between the files of this module only. */
#pragma GCC visibility push(hidden)

/* Kinds of envelopes, as in envelopes.py. */
#define MESSAGE 0
#define EVENT 4
#define CALL 1

#define SLICE 0.001 /* of time_slices.py */

/* ---- lane.c: the MAIN lane of a mailbox --------------------------------------------------------- */

/* An envelope (kind, sender, ref, payload) without its tuple: 32 bytes, and no object that the
   garbage collector has to count. */
typedef struct {
    long kind;
    PyObject *sender, *ref, *payload;
} Entry;

typedef struct {
    PyObject_HEAD Entry* ring; /* NULL until the first append */
    Py_ssize_t size;           /* of the ring: 0 or a power of two */
    Py_ssize_t head, length;   /* the first entry, and how many there are */
    size_t changes;            /* an iterator that finds another number raises */
} Lane;

extern PyTypeObject LaneType;

/* An empty lane returns the memory of a larger ring. Not measured: with 0, each burst would make the
   ring again; without a limit, a process that was behind once would keep its millions of entries. */
#define LARGEST_IDLE_RING 1024

static inline Entry* lane_at(Lane* lane, Py_ssize_t index) {
    return &lane->ring[(lane->head + index) & (lane->size - 1)];
}

int lane_grow(Lane* lane);

static inline int lane_make_room(Lane* lane) {
    return lane->length < lane->size ? 0 : lane_grow(lane);
}

/* Append an envelope. Takes references of its own. */
static inline int lane_push(Lane* lane, long kind, PyObject* sender, PyObject* ref,
                            PyObject* payload) {
    if (lane_make_room(lane) < 0) return -1;
    Entry* entry = lane_at(lane, lane->length++);
    entry->kind = kind;
    entry->sender = Py_NewRef(sender), entry->ref = Py_NewRef(ref),
    entry->payload = Py_NewRef(payload);
    lane->changes++;
    return 0;
}

/* Take the first entry, with its references. The lane must not be empty. */
static inline Entry lane_take(Lane* lane) {
    Entry entry = lane->ring[lane->head];
    lane->head = (lane->head + 1) & (lane->size - 1);
    lane->changes++;
    if (--lane->length == 0 && lane->size > LARGEST_IDLE_RING) {
        PyMem_Free(lane->ring);
        lane->ring = NULL, lane->size = lane->head = 0;
    }
    return entry;
}

static inline void entry_release(Entry entry) {
    Py_DECREF(entry.sender);
    Py_DECREF(entry.ref);
    Py_DECREF(entry.payload);
}

PyObject* entry_steal(Entry entry);

extern PyTypeObject LaneIteratorType;

/* ---- slots.c: Python classes whose slots are used here ------------------------------------------- */

extern struct Bound {
    PyTypeObject *Alias, *Calls, *CancelStatus, *Clock, *Event, *Handoff, *Mailbox, *Meta, *Outbox, *Owned, *PID,
        *Process, *Publisher, *Registry, *Router, *RunQueue, *Task, *TaskCaller, *TaskPlaceholder, *Timer, *Timers, *Turn,
        *UnfinishedCall;
    PyObject *META_SLEEP, *NORMAL, *NOT_MADE, *NO_RECEIVER, *NO_REPLY, *NO_TURN, *PARKED, *RUNNING, *Reject, *SLEEP, *STOPPING,
        *TRAP, *WAIT_RESPONSE;
    PyObject *abort, *answer_now, *begin_wait, *behaviour_call, *behaviour_send, *calls_call,
        *check_plain, *clock_arm_timer, *current_task, *handoff_end_asleep, *handoff_serve, *note_error, *note_late_reply, *open_scopes, *outbox_deliver,
        *perf_counter, *publisher_deliver, *router_send, *serve, *serve_in_place, *sources, *timer_cancel,
        *caller_settle, *caller_settle_in, *wake, *wake_with;
} bound;

extern struct OfProcess {
    Py_ssize_t id, last_receiver, main, priority, router, sent, takes_direct, task;
    Py_ssize_t accepting, asked_by, behaviour, callback_task, deferred, history, inline_calls, kernel,
        mailbox, state, timers, turn, waiting;
} of_process;

extern struct OfTurn {
    Py_ssize_t abandonable, batch, handled, handling, published, running_time, woken;
} of_turn;

extern struct OfRouter {
    Py_ssize_t last_receiver, loop_thread, processes, references, registry, turns;
} of_router;

extern struct OfOutbox {
    Py_ssize_t backlog, direct, holds, overran, peer, queue, sender, waits_at_mailbox;
} of_outbox;

extern struct OfCalls {
    Py_ssize_t budget, free, later, router, serving, slice_end, turn_of;
} of_calls;

extern struct OfUnfinished {
    Py_ssize_t caller, is_due, left;
} of_unfinished;

extern struct OfCaller {
    Py_ssize_t begun, callee, deferred, endless, error, number, pid, request, settled, task, to, value;
} of_caller;

extern struct OfMailbox {
    Py_ssize_t ahead, limit, log, main, waiters;
} of_mailbox;

extern struct OfMeta {
    Py_ssize_t handler, id, mailbox, outbox, priority, router, serve_inline, served_inline;
} of_meta;

extern struct OfTask {
    Py_ssize_t abort_func, cancel_points, context, coro, mark, next_send, next_send_fn, runner,
        schedule_points, status;
} of_task;

extern struct OfHandoff {
    Py_ssize_t context, deferred, defers, hooks, queue, ready, root, runner, steps;
} of_handoff;

extern struct OfClock {
    Py_ssize_t next, now, timers;
} of_clock;

extern struct OfTimer {
    Py_ssize_t message, owner, period, priority, table, to;
} of_timer;

extern struct OfTimers {
    Py_ssize_t cancelled, due, firing, heap, own_thread, seq;
} of_timers;

extern struct OfOwned {
    Py_ssize_t due, over;
} of_owned;

extern Py_ssize_t aliases_of_registry, mark_of_placeholder, size_of_queue, is_cancelled_of_status,
    router_of_publisher, state_of_handler, subscribers_of_event;

extern PyObject *str_admit_waiters, *str_after_task_step, *str_append, *str_attempt_cancel,
    *str_before_task_step, *str_calls, *str_task_scheduled,
    *str_do_deferred, *str_earlier, *str_end, *str_end_wait, *str_failed_inline, *str_finish, *str_give, *str_handle_call,
    *str_handle_event, *str_is_asked_again_by, *str_is_seeded, *str_items, *str_handle_message, *str_leave, *str_look, *str_mailbox, *str_own_turn, *str_perf_counter, *str_slice_clock,
    *str_popleft, *str_process, *str_refusal_of_none, *str_run, *str_send, *str_send_method,
    *str_serves_in_passing, *str_settle, *str_task, *str_timeout, *str_timers, *str_undefer,
    *str_wait, *str_waiters, *str_wake, *str_wake_caller;
extern PyObject* zero;           /* 0.0 */
extern PyObject* usual_timeout;  /* 5.0 */

#define SLOT(object, offset) (*(PyObject**)((char*)(object) + (offset)))

static inline int is_process(PyObject* object) {
    return object != NULL && PyObject_TypeCheck(object, bound.Process);
}

/* The digit of a positive int below 2**30, as most counters are; NULL for any other object. */
static inline digit* only_digit(PyObject* number) {
    if (!PyLong_CheckExact(number)) return NULL;
#if defined(Py_GIL_DISABLED) || PY_VERSION_HEX >= 0x030F0000
    return NULL; /* where ints may look different, or change in two threads: each sum is a new int */
#elif PY_VERSION_HEX >= 0x030C0000
    _PyLongValue* value = &((PyLongObject*)number)->long_value;
    return value->lv_tag == 1 << 3 ? value->ob_digit : NULL;
#else
    return Py_SIZE(number) == 1 ? ((PyLongObject*)number)->ob_digit : NULL;
#endif
}

/* object.slot += amount */
static inline int add_to(PyObject* object, Py_ssize_t offset, Py_ssize_t amount) {
    PyObject* old = SLOT(object, offset);
    /* Most often only the slot refers to the number: no other code can see it change. */
    digit* counted = old == NULL || Py_REFCNT(old) != 1 ? NULL : only_digit(old);
    if (counted != NULL && (size_t)amount <= PyLong_MASK - *counted) {
        *counted += (digit)amount;
        return 0;
    }
    long long number = old == NULL ? -1 : PyLong_AsLongLong(old);
    if (number == -1 && old == NULL) PyErr_SetString(PyExc_AttributeError, "an unset counter");
    if (number == -1 && PyErr_Occurred()) return -1;
    PyObject* more = PyLong_FromLongLong(number + amount);
    if (more == NULL) return -1;
    SLOT(object, offset) = more;
    Py_DECREF(old);
    return 0;
}

/* object.slot += 1 */
static inline int add_one(PyObject* object, Py_ssize_t offset) { return add_to(object, offset, 1); }

static inline int call_method(PyObject* object, PyObject* name) {
    PyObject* done = PyObject_CallMethodNoArgs(object, name);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static inline void slot_set(PyObject* object, Py_ssize_t offset, PyObject* value) {
    Py_XSETREF(SLOT(object, offset), Py_NewRef(value));
}

/* The slots and the objects that a table of names stands for. */
typedef struct {
    const char *class, *slot;
    Py_ssize_t* offset;
} SlotName;

typedef struct {
    const char* name;
    PyObject** object;
    int is_class;
} ObjectName;

PyObject* bind_table(PyObject* objects, const SlotName* slots, size_t slot_count,
                     const ObjectName* names, size_t name_count);
PyObject* bind_names(PyObject* module, PyObject* objects);
Py_ssize_t slot_offset(PyObject* class, const char* name);

/* ---- clock.c: the clock, and the history of a process --------------------------------------------- */

double monotonic(void);
PyObject* clock_of(PyObject* function);
int read_clock(PyObject* clock, double* time);
int read_slice_clock(double* time);
int is_seeded(void);
int record(PyObject* process, PyObject* state, double time, int trims);
int turn_begin(PyObject* turn, double time);
int turn_end(PyObject* turn, double woken, double time);

/* ---- the envelope in progress -------------------------------------------------------------------- */

/* Put another envelope into the tuple of the last one. Steals the references of the entry. */
static inline int tuple_refill(PyObject* envelope, Entry entry) {
    PyObject* kind = PyLong_FromLong(entry.kind);
    if (kind == NULL) {
        entry_release(entry);
        return -1;
    }
    PyObject* items[4] = {kind, entry.sender, entry.ref, entry.payload};
    for (Py_ssize_t i = 0; i < 4; i++) {
        PyObject* old = PyTuple_GET_ITEM(envelope, i);
        PyTuple_SET_ITEM(envelope, i, items[i]);
        items[i] = old;
    }
    /* The garbage collector stops to track tuples of strings and numbers. */
    if (!PyObject_GC_IsTracked(envelope)) PyObject_GC_Track(envelope);
    for (Py_ssize_t i = 0; i < 4; i++) Py_DECREF(items[i]);
    return 0;
}

/* Turn.handle(envelope). Steals the references of the entry. */
static inline int begin_handling(PyObject* turn, Entry entry) {
    PyObject* old = SLOT(turn, of_turn.handling);
    /* Most often only the slot refers to the last envelope: use its tuple again, as zip() does. A
       tuple of Python 3.14 keeps its hash, so it cannot be used again. */
    int is_free = PY_VERSION_HEX < 0x030E0000 && old != NULL && PyTuple_CheckExact(old) &&
                  Py_REFCNT(old) == 1 && PyTuple_GET_SIZE(old) == 4;
    if (is_free) {
        if (tuple_refill(old, entry) < 0) return -1;
    } else {
        PyObject* envelope = entry_steal(entry);
        if (envelope == NULL) return -1;
        SLOT(turn, of_turn.handling) = envelope;
        Py_XDECREF(old);
    }
    return add_one(turn, of_turn.handled);
}

/* ---- functions of the module --------------------------------------------------------------------- */

/* send.c */
PyObject* behaviour_send(PyObject* self, PyObject* const* args, Py_ssize_t count,
                         PyObject* keywords);
PyObject* router_send(PyObject* router, PyObject* const* args, Py_ssize_t count,
                      PyObject* keywords);
PyObject* outbox_deliver(PyObject* outbox, PyObject* const* args, Py_ssize_t count,
                         PyObject* keywords);
PyObject* publisher_deliver(PyObject* publisher, PyObject* const* args, Py_ssize_t count,
                            PyObject* keywords);
int is_on_loop(PyObject* router);
PyObject* call_twin(PyObject* function, PyObject* self, PyObject* const* args, Py_ssize_t count,
                    PyObject* keywords);
int takes_direct(PyObject* process);

/* timers.c */
extern PyTypeObject TimerHeapType;
PyObject* timer_cancel(PyObject* timer, PyObject* none);
PyObject* clock_arm_timer(PyObject* clock, PyObject* const* args, Py_ssize_t count,
                          PyObject* keywords);

/* calls.c */
PyObject* behaviour_call(PyObject* self, PyObject* const* args, Py_ssize_t count,
                         PyObject* keywords);
PyObject* call_untraced(PyObject* self, PyObject* const* args, Py_ssize_t count,
                        PyObject* keywords);

/* ---- traced_verbs.c: the verbs of a behaviour in a traced node ----------------------------------- */

PyObject* trace_verb(PyObject* module, PyObject* args);

PyObject* short_cut(PyObject* module, PyObject* const* args, Py_ssize_t count);

/* callers.c */
int settle(PyObject* caller, PyObject* value);
PyObject* caller_settle(PyObject* caller, PyObject* const* args, Py_ssize_t count);
PyObject* caller_settle_in(PyObject* caller, PyObject* const* args, Py_ssize_t count);

/* inline_calls.c */
PyObject* answer(PyObject* process, PyObject* caller, PyObject* request);
int call_failed(PyObject* process, PyObject* caller);
int note_late_reply(PyObject* process, PyObject* caller, PyObject* reply);
PyObject* take_exception(void);
void put_exception(PyObject* error);

/* steps.c */
PyObject* handoff_end_asleep(PyObject* turns, PyObject* task);
PyObject* handoff_serve(PyObject* turns, PyObject* root);
int is_beside_others(PyObject* turns);
int may_step(PyObject* turns, PyObject* process, PyObject* task);
int is_asked_again(PyObject* process, PyObject* task);
int has_instruments(PyObject* turns);
int list_woken(PyObject* turns, PyObject* woken, PyObject* task);
int wake_by_root(PyObject* process, PyObject* task);
int step(PyObject* turns, PyObject* task, PyObject* outer);
int set_current(PyObject* turns, PyObject* task);
int wait_in_trap(PyObject* turns, PyObject* task, PyObject* trap);

/* coroutine_rest.c */
extern PyTypeObject RestType;
PyObject* rest_new(PyObject* coroutine, PyObject* yielded);

/* batch.c */
extern PyTypeObject BatchType;

/* The behaviour with a callback that this thread runs now, and its process; and, as soon as it has
   called, the calls of its node. References of their own: greenlets may end callbacks in another
   order than they began. */
extern _Thread_local struct Running {
    PyObject *behaviour, *process, *calls;
} running;

struct Running begin_callbacks(PyObject* behaviour, PyObject* process);
void end_callbacks(struct Running outer);

/* behaviour._process, as a new reference; NULL with an error. */
static inline PyObject* process_of(PyObject* behaviour) {
    if (behaviour == running.behaviour) return Py_NewRef(running.process);
    return PyObject_GetAttr(behaviour, str_process);
}
PyObject* batch_begin(PyObject* module, PyObject* args);
int serve_in_place(PyObject* turns, PyObject* process, PyObject* task, PyObject* outer);

/* datagrams.c */
int add_datagram_reader(PyObject* module);

/* sockets.c */
int bind_socket(PyObject* class);
PyObject* socket_receive(PyObject* sock, PyObject* size);
Py_ssize_t socket_send(PyObject* send_method, PyObject* data);

/* streams.c */
extern PyObject *buffered_twin, *flush_twin, *poller_twin, *reader_twin, *serve_twin;
PyObject* bind_streams(PyObject* module, PyObject* objects);
PyObject* poller_read_some(PyObject* poller, PyObject* const* args, Py_ssize_t count);
PyObject* buffered_has_bytes(PyObject* buffered, PyObject* none);
PyObject* reader_read_once(PyObject* reader, PyObject* none);
PyObject* writer_serve(PyObject* writer, PyObject* const* args, Py_ssize_t count);
PyObject* writer_flush(PyObject* writer, PyObject* none);

/* stream_buffers.c */
int add_stream_buffers(PyObject* module);

#pragma GCC visibility pop
#endif
