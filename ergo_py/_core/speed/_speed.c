/* The steps that every message takes, in C. The Python code is complete without this module and is
   its judge: each function here says which Python function it stands in for, does the common case
   only, and calls the Python function for everything else.

   Rules of this file:
   - Objects of Python classes keep their layout. Their slots are read and written at the offset of
     the member descriptor, which bind() looks up once, at import; bind() fails if a slot is gone.
   - The module needs the GIL: an append to a lane and the check of the receiver's mark are a single
     step, because no Python code runs between them. So no KeyboardInterrupt can separate them, and
     no thread can see the one without the other.
   - A reference is borrowed only while no Python code can run. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>
#include <string.h>
#include <time.h>

/* Changes with the interface to installation.py, which refuses a module that was built before. */
#define INTERFACE 2

/* Kinds of envelopes, as in envelopes.py. */
#define MESSAGE 0
#define CALL 1

/* ---- MainLane: the MAIN lane of a mailbox, in place of collections.deque --------------------- */

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

static PyTypeObject LaneType;

#define SMALLEST_RING 8
#define LARGEST_IDLE_RING 1024 /* an empty lane returns the memory of a larger ring */

static inline Entry* lane_at(Lane* lane, Py_ssize_t index) {
    return &lane->ring[(lane->head + index) & (lane->size - 1)];
}

static int lane_make_room(Lane* lane) {
    if (lane->length < lane->size) return 0;
    Py_ssize_t size = lane->size ? lane->size * 2 : SMALLEST_RING;
    Entry* ring = PyMem_New(Entry, size);
    if (ring == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < lane->length; i++) ring[i] = *lane_at(lane, i);
    PyMem_Free(lane->ring);
    lane->ring = ring, lane->size = size, lane->head = 0;
    return 0;
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

static void entry_release(Entry entry) {
    Py_DECREF(entry.sender);
    Py_DECREF(entry.ref);
    Py_DECREF(entry.payload);
}

/* The envelope as the tuple that Python code expects. Steals the references of the entry. */
static PyObject* entry_steal(Entry entry) {
    PyObject* kind = PyLong_FromLong(entry.kind);
    PyObject* envelope = kind == NULL ? NULL : PyTuple_New(4);
    if (envelope == NULL) {
        Py_XDECREF(kind);
        entry_release(entry);
        return NULL;
    }
    PyTuple_SET_ITEM(envelope, 0, kind);
    PyTuple_SET_ITEM(envelope, 1, entry.sender);
    PyTuple_SET_ITEM(envelope, 2, entry.ref);
    PyTuple_SET_ITEM(envelope, 3, entry.payload);
    return envelope;
}

static PyObject* entry_copy(const Entry* entry) {
    Py_INCREF(entry->sender), Py_INCREF(entry->ref), Py_INCREF(entry->payload);
    return entry_steal(*entry);
}

/* Read an envelope that Python code has made. The entry borrows its references. */
static int entry_read(PyObject* envelope, Entry* entry) {
    if (!PyTuple_CheckExact(envelope) || PyTuple_GET_SIZE(envelope) != 4) {
        PyErr_Format(PyExc_TypeError, "an envelope is a tuple (kind, sender, ref, payload), not %R",
                     envelope);
        return -1;
    }
    entry->kind = PyLong_AsLong(PyTuple_GET_ITEM(envelope, 0));
    if (entry->kind == -1 && PyErr_Occurred()) return -1;
    entry->sender = PyTuple_GET_ITEM(envelope, 1);
    entry->ref = PyTuple_GET_ITEM(envelope, 2);
    entry->payload = PyTuple_GET_ITEM(envelope, 3);
    return 0;
}

static PyObject* lane_append(Lane* lane, PyObject* envelope) {
    Entry entry;
    if (entry_read(envelope, &entry) < 0) return NULL;
    if (lane_push(lane, entry.kind, entry.sender, entry.ref, entry.payload) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject* lane_appendleft(Lane* lane, PyObject* envelope) {
    Entry entry;
    if (entry_read(envelope, &entry) < 0 || lane_make_room(lane) < 0) return NULL;
    Py_INCREF(entry.sender), Py_INCREF(entry.ref), Py_INCREF(entry.payload);
    lane->head = (lane->head - 1) & (lane->size - 1);
    lane->length++;
    lane->changes++;
    lane->ring[lane->head] = entry;
    Py_RETURN_NONE;
}

static PyObject* lane_popleft(Lane* lane, PyObject* Py_UNUSED(none)) {
    if (lane->length == 0) {
        PyErr_SetString(PyExc_IndexError, "pop from an empty lane");
        return NULL;
    }
    return entry_steal(lane_take(lane));
}

/* Add each envelope of an iterable, which may be a generator that changes this lane meanwhile. */
static PyObject* lane_add_all(Lane* lane, PyObject* iterable, PyObject* (*add)(Lane*, PyObject*)) {
    PyObject* envelopes = PySequence_List(iterable);
    if (envelopes == NULL) return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(envelopes); i++) {
        PyObject* none = add(lane, PyList_GET_ITEM(envelopes, i));
        if (none == NULL) {
            Py_DECREF(envelopes);
            return NULL;
        }
        Py_DECREF(none);
    }
    Py_DECREF(envelopes);
    Py_RETURN_NONE;
}

static PyObject* lane_extend(Lane* lane, PyObject* iterable) {
    return lane_add_all(lane, iterable, lane_append);
}

static PyObject* lane_extendleft(Lane* lane, PyObject* iterable) {
    return lane_add_all(lane, iterable, lane_appendleft);
}

/* Releasing an entry may run Python code, which may use the lane: so empty the lane first. */
static int lane_clear(Lane* lane) {
    Entry* ring = lane->ring;
    Py_ssize_t size = lane->size, head = lane->head, length = lane->length;
    lane->ring = NULL, lane->size = lane->head = lane->length = 0;
    lane->changes++;
    for (Py_ssize_t i = 0; i < length; i++) entry_release(ring[(head + i) & (size - 1)]);
    PyMem_Free(ring);
    return 0;
}

static PyObject* lane_clear_method(Lane* lane, PyObject* Py_UNUSED(none)) {
    lane_clear(lane);
    Py_RETURN_NONE;
}

static PyObject* lane_copy(Lane* lane, PyObject* Py_UNUSED(none)) {
    Lane* copy = (Lane*)PyType_GenericNew(&LaneType, NULL, NULL);
    for (Py_ssize_t i = 0; copy != NULL && i < lane->length; i++) {
        Entry* entry = lane_at(lane, i);
        if (lane_push(copy, entry->kind, entry->sender, entry->ref, entry->payload) < 0)
            Py_CLEAR(copy);
    }
    return (PyObject*)copy;
}

static Py_ssize_t lane_length(Lane* lane) { return lane->length; }

static int lane_check_index(Lane* lane, Py_ssize_t index) {
    if (0 <= index && index < lane->length) return 0;
    PyErr_SetString(PyExc_IndexError, "lane index out of range");
    return -1;
}

static PyObject* lane_item(Lane* lane, Py_ssize_t index) {
    return lane_check_index(lane, index) < 0 ? NULL : entry_copy(lane_at(lane, index));
}

/* lane[index] = envelope, and del lane[index]. */
static int lane_set_item(Lane* lane, Py_ssize_t index, PyObject* envelope) {
    Entry entry = {0};
    if (lane_check_index(lane, index) < 0) return -1;
    if (envelope != NULL && entry_read(envelope, &entry) < 0) return -1;
    Entry old = *lane_at(lane, index);
    if (envelope != NULL) {
        Py_INCREF(entry.sender), Py_INCREF(entry.ref), Py_INCREF(entry.payload);
        *lane_at(lane, index) = entry;
    } else {
        for (; index + 1 < lane->length; index++) *lane_at(lane, index) = *lane_at(lane, index + 1);
        lane->length--;
        lane->changes++;
    }
    entry_release(old);
    return 0;
}

/* The index of the first envelope that equals `wanted`, from `start` on; -1 if there is none, -2
   with an error. A comparison may run Python code: it must not change the lane. */
static Py_ssize_t lane_find(Lane* lane, PyObject* wanted, Py_ssize_t start) {
    size_t changes = lane->changes;
    for (Py_ssize_t i = start; i < lane->length; i++) {
        PyObject* envelope = entry_copy(lane_at(lane, i));
        int equal = envelope == NULL ? -1 : PyObject_RichCompareBool(envelope, wanted, Py_EQ);
        Py_XDECREF(envelope);
        if (equal < 0) return -2;
        if (lane->changes != changes) {
            PyErr_SetString(PyExc_RuntimeError, "lane changed during a search");
            return -2;
        }
        if (equal) return i;
    }
    return -1;
}

static PyObject* lane_count(Lane* lane, PyObject* wanted) {
    Py_ssize_t count = 0, index = -1;
    while ((index = lane_find(lane, wanted, index + 1)) >= 0) count++;
    return index == -2 ? NULL : PyLong_FromSsize_t(count);
}

static PyObject* lane_remove(Lane* lane, PyObject* wanted) {
    Py_ssize_t index = lane_find(lane, wanted, 0);
    if (index == -1) PyErr_SetString(PyExc_ValueError, "lane.remove(x): x is not in the lane");
    if (index < 0 || lane_set_item(lane, index, NULL) < 0) return NULL;
    Py_RETURN_NONE;
}

static int lane_traverse(Lane* lane, visitproc visit, void* arg) {
    for (Py_ssize_t i = 0; i < lane->length; i++) {
        Entry* entry = lane_at(lane, i);
        Py_VISIT(entry->sender);
        Py_VISIT(entry->ref);
        Py_VISIT(entry->payload);
    }
    return 0;
}

static void lane_dealloc(Lane* lane) {
    PyObject_GC_UnTrack(lane);
    lane_clear(lane);
    Py_TYPE(lane)->tp_free(lane);
}

static PyObject* lane_sizeof(Lane* lane, PyObject* Py_UNUSED(none)) {
    return PyLong_FromSsize_t((Py_ssize_t)sizeof(Lane) + lane->size * (Py_ssize_t)sizeof(Entry));
}

/* Iterators of a lane, in either direction. Like those of a deque, they raise after a change. */
typedef struct {
    PyObject_HEAD Lane* lane; /* NULL at the end */
    Py_ssize_t index, step;
    size_t changes;
} LaneIterator;

static PyTypeObject LaneIteratorType;

static PyObject* iterator_new(Lane* lane, Py_ssize_t first, Py_ssize_t step) {
    LaneIterator* iterator = PyObject_GC_New(LaneIterator, &LaneIteratorType);
    if (iterator == NULL) return NULL;
    iterator->lane = (Lane*)Py_NewRef((PyObject*)lane);
    iterator->index = first, iterator->step = step, iterator->changes = lane->changes;
    PyObject_GC_Track(iterator);
    return (PyObject*)iterator;
}

static PyObject* lane_iter(Lane* lane) { return iterator_new(lane, 0, 1); }

static PyObject* lane_reversed(Lane* lane, PyObject* Py_UNUSED(none)) {
    return iterator_new(lane, lane->length - 1, -1);
}

static PyObject* iterator_next(LaneIterator* iterator) {
    Lane* lane = iterator->lane;
    if (lane == NULL) return NULL;
    if (lane->changes != iterator->changes) {
        Py_CLEAR(iterator->lane);
        PyErr_SetString(PyExc_RuntimeError, "lane changed during iteration");
        return NULL;
    }
    if (iterator->index < 0 || iterator->index >= lane->length) {
        Py_CLEAR(iterator->lane);
        return NULL;
    }
    PyObject* envelope = entry_copy(lane_at(lane, iterator->index));
    iterator->index += iterator->step;
    return envelope;
}

static int iterator_traverse(LaneIterator* iterator, visitproc visit, void* arg) {
    Py_VISIT(iterator->lane);
    return 0;
}

static void iterator_dealloc(LaneIterator* iterator) {
    PyObject_GC_UnTrack(iterator);
    Py_CLEAR(iterator->lane);
    PyObject_GC_Del(iterator);
}

static PyTypeObject LaneIteratorType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ergo_py._core.speed._speed.MainLaneIterator",
    .tp_basicsize = sizeof(LaneIterator),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = (destructor)iterator_dealloc,
    .tp_traverse = (traverseproc)iterator_traverse,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)iterator_next,
};

static PyMethodDef lane_methods[] = {
    {"append", (PyCFunction)lane_append, METH_O, NULL},
    {"appendleft", (PyCFunction)lane_appendleft, METH_O, NULL},
    {"clear", (PyCFunction)lane_clear_method, METH_NOARGS, NULL},
    {"copy", (PyCFunction)lane_copy, METH_NOARGS, NULL},
    {"count", (PyCFunction)lane_count, METH_O, NULL},
    {"extend", (PyCFunction)lane_extend, METH_O, NULL},
    {"extendleft", (PyCFunction)lane_extendleft, METH_O, NULL},
    {"popleft", (PyCFunction)lane_popleft, METH_NOARGS, NULL},
    {"remove", (PyCFunction)lane_remove, METH_O, NULL},
    {"__reversed__", (PyCFunction)lane_reversed, METH_NOARGS, NULL},
    {"__sizeof__", (PyCFunction)lane_sizeof, METH_NOARGS, NULL},
    {NULL},
};

static PySequenceMethods lane_as_sequence = {
    .sq_length = (lenfunc)lane_length,
    .sq_item = (ssizeargfunc)lane_item,
    .sq_ass_item = (ssizeobjargproc)lane_set_item,
};

static PyTypeObject LaneType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ergo_py._core.speed._speed.MainLane",
    .tp_doc = "The MAIN lane of a mailbox: a deque of envelopes that stores no tuples.",
    .tp_basicsize = sizeof(Lane),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)lane_dealloc,
    .tp_traverse = (traverseproc)lane_traverse,
    .tp_clear = (inquiry)lane_clear,
    .tp_as_sequence = &lane_as_sequence,
    .tp_iter = (getiterfunc)lane_iter,
    .tp_methods = lane_methods,
};

/* ---- Python classes whose slots are used here ------------------------------------------------ */

static struct {
    PyTypeObject *Calls, *Mailbox, *PID, *Process, *Router, *Task, *TaskCaller, *TaskPlaceholder,
        *Turn;
    PyObject *NORMAL, *NO_REPLY, *NO_TURN, *PARKED, *RUNNING, *SLEEP;
    PyObject *answer_now, *behaviour_send, *check_plain, *current_task, *note_error,
        *note_late_reply, *open_scopes, *protected_answer, *router_send;
} bound;

static struct {
    Py_ssize_t id, last_receiver, main, priority, router, sent, takes_direct, task;
    Py_ssize_t accepting, behaviour, callback_task, inline_calls, state, turn, waiting;
} of_process;

static struct {
    Py_ssize_t handled, handling, running_time, woken;
} of_turn;

static struct {
    Py_ssize_t last_receiver, loop_thread, processes, references;
} of_router;

static struct {
    Py_ssize_t free, router, turn_of;
} of_calls;

static struct {
    Py_ssize_t callee, deferred, error, number, pid, request, settled, task, to, value;
} of_caller;

static struct {
    Py_ssize_t ahead, limit, waiters;
} of_mailbox;

static Py_ssize_t mark_of_task, mark_of_placeholder, context_of_task, status_of_task;

#define SLOT(object, offset) (*(PyObject**)((char*)(object) + (offset)))

#define IN(class, group, name) {#class, #name, &group.name}

static const struct {
    const char *class, *slot;
    Py_ssize_t* offset;
} slots[] = {
    IN(Process, of_process, id), IN(Process, of_process, main), IN(Process, of_process, sent),
    IN(Process, of_process, takes_direct), IN(Process, of_process, last_receiver),
    IN(Process, of_process, priority), IN(Process, of_process, router),
    IN(Process, of_process, task), IN(Process, of_process, accepting),
    IN(Process, of_process, behaviour), IN(Process, of_process, callback_task),
    IN(Process, of_process, state), IN(Process, of_process, turn),
    IN(Process, of_process, waiting), {"Process", "inline", &of_process.inline_calls},
    IN(Turn, of_turn, handled), IN(Turn, of_turn, handling), IN(Turn, of_turn, running_time),
    IN(Turn, of_turn, woken), IN(Router, of_router, loop_thread),
    IN(Router, of_router, last_receiver), IN(Router, of_router, processes),
    IN(Router, of_router, references), IN(Mailbox, of_mailbox, ahead),
    IN(Mailbox, of_mailbox, limit), IN(Mailbox, of_mailbox, waiters),
    {"Calls", "_free", &of_calls.free}, {"Calls", "_router", &of_calls.router},
    {"Calls", "_turn_of", &of_calls.turn_of}, IN(TaskCaller, of_caller, callee),
    {"TaskCaller", "_deferred", &of_caller.deferred}, IN(TaskCaller, of_caller, error),
    IN(TaskCaller, of_caller, number), IN(TaskCaller, of_caller, pid),
    IN(TaskCaller, of_caller, request), IN(TaskCaller, of_caller, settled),
    IN(TaskCaller, of_caller, task), IN(TaskCaller, of_caller, to),
    IN(TaskCaller, of_caller, value), {"Task", "custom_sleep_data", &mark_of_task},
    {"Task", "context", &context_of_task}, {"Task", "_cancel_status", &status_of_task},
    {"TaskPlaceholder", "custom_sleep_data", &mark_of_placeholder},
};

#define CLASS(name) {#name, (PyObject**)&bound.name, 1}
#define OBJECT(name) {#name, &bound.name, 0}

static const struct {
    const char* name;
    PyObject** object;
    int is_class;
} names[] = {
    CLASS(Calls), CLASS(Mailbox), CLASS(PID), CLASS(Process), CLASS(Router), CLASS(Task),
    CLASS(TaskCaller), CLASS(TaskPlaceholder), CLASS(Turn), OBJECT(NORMAL), OBJECT(NO_REPLY),
    OBJECT(NO_TURN), OBJECT(PARKED), OBJECT(RUNNING), OBJECT(SLEEP), OBJECT(answer_now),
    OBJECT(check_plain), OBJECT(current_task), OBJECT(note_error), OBJECT(note_late_reply),
    OBJECT(open_scopes), OBJECT(protected_answer),
    {"Behaviour.send", &bound.behaviour_send, 0}, {"Router.send", &bound.router_send, 0},
};

static PyObject *str_admit_waiters, *str_handle_call, *str_handle_message, *str_look, *str_own_turn,
    *str_perf_counter, *str_process, *str_wake;
static PyObject* zero; /* 0.0 */

/* The offset of a slot in the instances of a class; -1 with an error if there is no such slot. */
static Py_ssize_t slot_offset(PyObject* class, const char* name) {
    PyObject* found = PyObject_GetAttrString(class, name);
    Py_ssize_t offset = -1;
    if (found != NULL && Py_IS_TYPE(found, &PyMemberDescr_Type)) {
        PyMemberDef* member = ((PyMemberDescrObject*)found)->d_member;
        if (member->type == T_OBJECT_EX) offset = member->offset;
    }
    if (offset < 0) PyErr_Format(PyExc_TypeError, "%R.%s is not a slot", class, name);
    Py_XDECREF(found);
    return offset;
}

/* bind({name: object}): look up the classes, functions and slots used here. All or none. */
static PyObject* bind(PyObject* Py_UNUSED(module), PyObject* objects) {
    Py_ssize_t offsets[Py_ARRAY_LENGTH(slots)];
    PyObject* found[Py_ARRAY_LENGTH(names)];
    if (!PyDict_CheckExact(objects)) return PyErr_Format(PyExc_TypeError, "bind() takes a dict");
    for (size_t i = 0; i < Py_ARRAY_LENGTH(slots); i++) {
        PyObject* class = PyDict_GetItemString(objects, slots[i].class);
        if (class == NULL) return PyErr_Format(PyExc_TypeError, "bind() needs %s", slots[i].class);
        offsets[i] = slot_offset(class, slots[i].slot);
        if (offsets[i] < 0) return NULL;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(names); i++) {
        found[i] = PyDict_GetItemString(objects, names[i].name);
        if (found[i] == NULL || (names[i].is_class && !PyType_Check(found[i]))) {
            return PyErr_Format(PyExc_TypeError, "bind() needs %s", names[i].name);
        }
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(slots); i++) *slots[i].offset = offsets[i];
    for (size_t i = 0; i < Py_ARRAY_LENGTH(names); i++) {
        Py_XSETREF(*names[i].object, Py_NewRef(found[i]));
    }
    Py_RETURN_NONE;
}

static inline int is_process(PyObject* object) {
    return object != NULL && PyObject_TypeCheck(object, bound.Process);
}

/* object.slot += 1 */
static int add_one(PyObject* object, Py_ssize_t offset) {
    PyObject* old = SLOT(object, offset);
    long long number = old == NULL ? -1 : PyLong_AsLongLong(old);
    if (number == -1 && old == NULL) PyErr_SetString(PyExc_AttributeError, "an unset counter");
    if (number == -1 && PyErr_Occurred()) return -1;
    PyObject* more = PyLong_FromLongLong(number + 1);
    if (more == NULL) return -1;
    SLOT(object, offset) = more;
    Py_DECREF(old);
    return 0;
}

static int call_method(PyObject* object, PyObject* name) {
    PyObject* done = PyObject_CallMethodNoArgs(object, name);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* ---- send ------------------------------------------------------------------------------------ */

/* Whether any thread may append to the main lane of a process without a check, and the lane is one
   of ours. A lane that a supervisor kept for a restarted child may be a deque. */
static inline int takes_direct(PyObject* process) {
    PyObject* main = SLOT(process, of_process.main);
    return SLOT(process, of_process.takes_direct) == Py_True && main != NULL &&
           Py_IS_TYPE(main, &LaneType);
}

/* Append a message to the main lane of `receiver`, and wake it if it sleeps: the lines of
   Router.send that hot paths repeat. The receiver must be kept alive by the caller. */
static int deliver(PyObject* receiver, PyObject* sender, PyObject* message) {
    if (lane_push((Lane*)SLOT(receiver, of_process.main), 0, sender, Py_None, message) < 0)
        return -1;
    PyObject *task = SLOT(receiver, of_process.task), *mark = NULL;
    if (Py_IS_TYPE(task, bound.Task))
        mark = SLOT(task, mark_of_task);
    else if (Py_IS_TYPE(task, bound.TaskPlaceholder))
        mark = SLOT(task, mark_of_placeholder);
    return mark == Py_None ? 0 : call_method(receiver, str_wake);
}

static int is_on_loop(PyObject* router) {
    PyObject* ident = SLOT(router, of_router.loop_thread);
    return ident != NULL && PyLong_AsUnsignedLong(ident) == PyThread_get_thread_ident();
}

/* The process at `to` that takes direct appends, from the cache in a slot of `owner` or from the
   router's table. NULL if there is none, or with an error. The reference is the caller's own. */
static PyObject* direct_receiver(PyObject* owner, Py_ssize_t cache, PyObject* router, PyObject* to,
                                 int may_cache) {
    PyObject* receiver = SLOT(owner, cache);
    if (is_process(receiver) && SLOT(receiver, of_process.id) == to) {
        return takes_direct(receiver) ? Py_NewRef(receiver) : NULL;
    }
    PyObject* processes = SLOT(router, of_router.processes);
    if (processes == NULL || !PyDict_CheckExact(processes)) return NULL;
    receiver = PyDict_GetItemWithError(processes, to);
    if (!is_process(receiver)) return NULL;
    Py_INCREF(receiver);
    /* The end of the process in the cache may run Python code. */
    if (may_cache) Py_XSETREF(SLOT(owner, cache), Py_NewRef(receiver));
    if (takes_direct(receiver)) return receiver;
    Py_DECREF(receiver);
    return NULL;
}

/* Behaviour.send(to, message), without a priority, to the PID of a process that takes direct
   appends. 1 if it is done, 0 if Python has to do it, -1 with an error. */
static int send_from(PyObject* process, PyObject* to, PyObject* message) {
    PyObject* router = SLOT(process, of_process.router);
    PyObject* last = SLOT(process, of_process.last_receiver);
    int is_cached = is_process(last) && SLOT(last, of_process.id) == to;
    if (!is_cached) {
        if (!Py_IS_TYPE(to, bound.PID) || SLOT(process, of_process.priority) != bound.NORMAL)
            return 0;
        if (router == NULL || !PyObject_TypeCheck(router, bound.Router)) return 0;
    }
    /* Only the loop's thread may write the cache. */
    PyObject* receiver = direct_receiver(process, of_process.last_receiver, router, to,
                                         !is_cached && is_on_loop(router));
    if (receiver == NULL) return PyErr_Occurred() ? -1 : 0;
    int failed = add_one(process, of_process.sent) < 0 ||
                 deliver(receiver, SLOT(process, of_process.id), message) < 0;
    Py_DECREF(receiver);
    return failed ? -1 : 1;
}

/* Call the Python function with the arguments of its twin. */
static PyObject* call_twin(PyObject* function, PyObject* self, PyObject* const* args,
                           Py_ssize_t count, PyObject* keywords) {
    PyObject* stack[8] = {self};
    Py_ssize_t all = count + (keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords));
    if (all >= (Py_ssize_t)Py_ARRAY_LENGTH(stack)) {
        return PyErr_Format(PyExc_TypeError, "too many arguments: %zd", all);
    }
    for (Py_ssize_t i = 0; i < all; i++) stack[i + 1] = args[i];
    return PyObject_Vectorcall(function, stack, (size_t)count + 1, keywords);
}

/* Behaviour.send(to, message, *, priority=None) */
static PyObject* behaviour_send(PyObject* self, PyObject* const* args, Py_ssize_t count,
                                PyObject* keywords) {
    if (count == 2 && keywords == NULL) {
        PyObject* process = PyObject_GetAttr(self, str_process);
        if (process == NULL) return NULL;
        int done = is_process(process) ? send_from(process, args[0], args[1]) : 0;
        Py_DECREF(process);
        if (done < 0) return NULL;
        if (done) Py_RETURN_TRUE;
    }
    return call_twin(bound.behaviour_send, self, args, count, keywords);
}

/* Router.send(sender, to, message, priority) */
static PyObject* router_send(PyObject* router, PyObject* const* args, Py_ssize_t count,
                             PyObject* keywords) {
    if (count == 4 && keywords == NULL && args[3] == bound.NORMAL &&
        Py_IS_TYPE(args[1], bound.PID)) {
        PyObject* receiver = direct_receiver(router, of_router.last_receiver, router, args[1], 1);
        if (receiver == NULL && PyErr_Occurred()) return NULL;
        if (receiver != NULL) {
            int failed = deliver(receiver, args[0], args[2]);
            Py_DECREF(receiver);
            if (failed) return NULL;
            Py_RETURN_TRUE;
        }
    }
    return call_twin(bound.router_send, router, args, count, keywords);
}

/* ---- the envelope in progress --------------------------------------------------------------- */

/* Put another envelope into the tuple of the last one. Steals the references of the entry. */
static int tuple_refill(PyObject* envelope, Entry entry) {
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
static int begin_handling(PyObject* turn, Entry entry) {
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

/* ---- inline calls ---------------------------------------------------------------------------- */

static inline void slot_set(PyObject* object, Py_ssize_t offset, PyObject* value) {
    Py_XSETREF(SLOT(object, offset), Py_NewRef(value));
}

/* The exception that is set, as an object with its traceback; no exception is set afterwards. */
static PyObject* take_exception(void) {
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) PyException_SetTraceback(error, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return error;
#endif
}

/* The `except BaseException` of answer_now(): note_error() runs while the exception is handled. */
static int answer_failed(PyObject* process, PyObject* caller) {
    PyObject *error = take_exception(), *outer = PyErr_GetHandledException();
    PyErr_SetHandledException(error);
    PyObject* noted =
        PyObject_CallFunctionObjArgs(bound.note_error, process, caller, error, NULL);
    PyErr_SetHandledException(outer);
    Py_XDECREF(outer);
    Py_DECREF(error);
    Py_XDECREF(noted);
    return noted == NULL ? -1 : 0;
}

/* The lines of answer_now() that run handle_call and keep its reply. -1 with an error. */
static int answer_call(PyObject* process, PyObject* caller, PyObject* request) {
    PyObject *stack[4] = {NULL, Py_NewRef(SLOT(process, of_process.behaviour)), request, caller};
    PyObject* reply = PyObject_VectorcallMethod(str_handle_call, stack + 1,
                                                3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_DECREF(stack[1]);
    if (reply != NULL && PyCoro_CheckExact(reply)) {
        PyObject* checked = PyObject_CallFunctionObjArgs(bound.check_plain, process,
                                                         str_handle_call, reply, NULL);
        if (checked == NULL) Py_CLEAR(reply);
        Py_XDECREF(checked);
    }
    if (reply == NULL) return answer_failed(process, caller);
    int done = 0;
    if (reply == bound.NO_REPLY || SLOT(caller, of_caller.settled) != Py_False) {
        PyObject* noted =
            PyObject_CallFunctionObjArgs(bound.note_late_reply, process, caller, reply, NULL);
        done = noted == NULL ? -1 : 0;
        Py_XDECREF(noted);
    } else {
        slot_set(caller, of_caller.settled, Py_True);
        slot_set(caller, of_caller.value, reply);
    }
    Py_DECREF(reply);
    return done;
}

/* perf_counter(), as answer_now() calls it: tests give its module another clock. */
static PyObject* clock_time(void) {
    PyObject* globals = PyFunction_GetGlobals(bound.answer_now);
    PyObject* clock = globals == NULL ? NULL : PyDict_GetItemWithError(globals, str_perf_counter);
    if (clock != NULL) return PyObject_CallNoArgs(clock);
    return PyErr_Format(PyExc_NameError, "answer_now has no perf_counter");
}

/* Turn.end(now), where `begun` is the time of Turn.begin(). */
static int end_turn(PyObject* turn, PyObject* begun) {
    PyObject* time = clock_time();
    PyObject* spent = time == NULL ? NULL : PyNumber_Subtract(time, begun);
    PyObject* total = spent == NULL ? NULL : PyNumber_Add(SLOT(turn, of_turn.running_time), spent);
    Py_XDECREF(time);
    Py_XDECREF(spent);
    if (total == NULL) return -1;
    slot_set(turn, of_turn.running_time, total);
    Py_DECREF(total);
    slot_set(turn, of_turn.woken, zero);
    slot_set(turn, of_turn.handling, Py_None);
    return 0;
}

/* answer(process, caller, request): answer_now() */
static PyObject* answer(PyObject* Py_UNUSED(module), PyObject* const* args, Py_ssize_t count) {
    if (count != 3 || !is_process(args[0]) || !Py_IS_TYPE(args[1], bound.TaskCaller))
        return PyErr_Format(PyExc_TypeError, "answer() takes a process, a TaskCaller, a request");
    PyObject *process = args[0], *caller = args[1], *request = args[2];
    if (SLOT(process, of_process.turn) == bound.NO_TURN && call_method(process, str_own_turn) < 0)
        return NULL;
    PyObject *begun = clock_time(), *left = NULL;
    Entry entry = {CALL, SLOT(caller, of_caller.pid), caller, request};
    if (begun == NULL) return NULL;
    PyObject* turn = Py_NewRef(SLOT(process, of_process.turn));
    PyObject* task = Py_NewRef(SLOT(caller, of_caller.task));
    PyObject* status = Py_NewRef(SLOT(task, status_of_task));
    Py_INCREF(entry.sender), Py_INCREF(entry.ref), Py_INCREF(entry.payload);
    slot_set(turn, of_turn.woken, begun);
    if (begin_handling(turn, entry) == 0) {
        slot_set(process, of_process.state, bound.RUNNING);
        int done = answer_call(process, caller, request);
        if (done == 0) {
            left = SLOT(task, status_of_task) == status
                       ? Py_NewRef(Py_None)
                       : PyObject_CallFunctionObjArgs(bound.open_scopes, process, task, status, NULL);
        }
        if (left != NULL && end_turn(turn, begun) < 0) Py_CLEAR(left);
        if (left != NULL) slot_set(process, of_process.state, bound.SLEEP);
    }
    Py_DECREF(status);
    Py_DECREF(task);
    Py_DECREF(turn);
    Py_DECREF(begun);
    return left;
}

/* The process at `to` that a call finds asleep and may serve inline; borrowed. NULL if there is
   none, or with an error. */
static PyObject* sleeping_callee(PyObject* router, PyObject* to) {
    PyObject* processes = SLOT(router, of_router.processes);
    if (processes == NULL || !PyDict_CheckExact(processes)) return NULL;
    PyObject* callee = PyDict_GetItemWithError(processes, to);
    if (!is_process(callee) || SLOT(callee, of_process.accepting) != Py_True ||
        SLOT(callee, of_process.inline_calls) != Py_True)
        return NULL;
    PyObject *task = SLOT(callee, of_process.task), *lane = SLOT(callee, of_process.main);
    int is_asleep = Py_IS_TYPE(task, bound.Task) && SLOT(task, mark_of_task) == bound.PARKED;
    int is_idle = Py_IS_TYPE(lane, &LaneType) && ((Lane*)lane)->length == 0;
    return is_asleep && is_idle && SLOT(callee, of_process.waiting) == Py_None ? callee : NULL;
}

/* Calls._pause_is_due(task), but 1 means that Calls.call has to make this call, and to count it. */
static int budget_is_over(PyObject* calls, PyObject* task) {
    PyObject* free = SLOT(calls, of_calls.free);
    long left = SLOT(calls, of_calls.turn_of) == task ? PyLong_AsLong(free) : 0;
    if (left > 0) {
        PyObject* less = PyLong_FromLong(left - 1);
        if (less == NULL) return -1;
        SLOT(calls, of_calls.free) = less;
        Py_DECREF(free);
        return 0;
    }
    PyObject* is_due = PyObject_CallMethodOneArg(calls, str_look, task);
    int is_over = is_due == NULL ? -1 : is_due == Py_True;
    Py_XDECREF(is_due);
    return is_over;
}

/* TaskCaller(sender, next(router.references), to, request, task, callee) */
static PyObject* caller_new(PyObject* router, PyObject* sender, PyObject* to, PyObject* request,
                            PyObject* task, PyObject* callee) {
    PyObject* caller = bound.TaskCaller->tp_alloc(bound.TaskCaller, 0);
    if (caller == NULL) return NULL;
    PyObject* number = PyIter_Next(SLOT(router, of_router.references));
    if (number == NULL) {
        Py_DECREF(caller);
        return NULL;
    }
    SLOT(caller, of_caller.number) = number;
    SLOT(caller, of_caller.pid) = Py_NewRef(sender);
    SLOT(caller, of_caller.to) = Py_NewRef(to);
    SLOT(caller, of_caller.request) = Py_NewRef(request);
    SLOT(caller, of_caller.task) = Py_NewRef(task);
    SLOT(caller, of_caller.callee) = Py_NewRef(callee);
    SLOT(caller, of_caller.settled) = Py_NewRef(Py_False);
    SLOT(caller, of_caller.deferred) = Py_NewRef(Py_False);
    SLOT(caller, of_caller.value) = Py_NewRef(Py_None);
    SLOT(caller, of_caller.error) = Py_NewRef(Py_None);
    return caller;
}

/* callee.task.context.run(callee.answer_now, caller, request), in a frame of Python that is
   protected from KeyboardInterrupt and that the watchdog finds. */
static PyObject* answer_in_context(PyObject* callee, PyObject* caller, PyObject* request) {
    PyObject* context = Py_NewRef(SLOT(SLOT(callee, of_process.task), context_of_task));
    PyObject *stack[3] = {callee, caller, request}, *left = NULL;
    if (PyContext_Enter(context) == 0) {
        left = PyObject_Vectorcall(bound.protected_answer, stack, 3, NULL);
        if (PyContext_Exit(context) < 0) Py_CLEAR(left);
    }
    Py_DECREF(context);
    return left;
}

/* short_cut(calls, process, sender, to, request, priority): the inline call of Calls.call. Returns
   None if Calls.call has to make the call; the settled call, which has a value; or the call and its
   open cancel scopes, for Calls._end_short_cut. */
static PyObject* short_cut(PyObject* Py_UNUSED(module), PyObject* const* args, Py_ssize_t count) {
    if (count != 6 || !PyObject_TypeCheck(args[0], bound.Calls))
        return PyErr_Format(PyExc_TypeError, "short_cut() takes the arguments of Calls.call");
    PyObject *calls = args[0], *process = args[1], *sender = args[2], *to = args[3];
    PyObject* router = SLOT(calls, of_calls.router);
    if (!Py_IS_TYPE(to, bound.PID) || args[5] != bound.NORMAL ||
        (process != Py_None && !is_process(process)) ||
        !PyObject_TypeCheck(router, bound.Router))
        Py_RETURN_NONE;
    PyObject* task = PyObject_CallNoArgs(bound.current_task);
    if (task == NULL) return NULL;
    PyObject *callee = NULL, *caller = NULL, *left = NULL, *result = NULL;
    int is_own = process == Py_None || SLOT(process, of_process.callback_task) == task;
    callee = is_own ? Py_XNewRef(sleeping_callee(router, to)) : NULL;
    int missed = callee == NULL || callee == process ? 1 : budget_is_over(calls, task);
    if (missed == 0) caller = caller_new(router, sender, to, args[4], task, callee);
    if (caller != NULL) {
        if (process != Py_None) slot_set(process, of_process.waiting, caller);
        left = answer_in_context(callee, caller, args[4]);
    }
    if (left != NULL) {
        int is_plain = left == Py_None && SLOT(caller, of_caller.settled) == Py_True &&
                       SLOT(caller, of_caller.error) == Py_None;
        if (is_plain && process != Py_None) slot_set(process, of_process.waiting, Py_None);
        result = is_plain ? Py_NewRef(caller) : PyTuple_Pack(2, caller, left);
    } else if (missed == 1 && !PyErr_Occurred()) {
        result = Py_NewRef(Py_None);
    }
    Py_XDECREF(left);
    Py_XDECREF(caller);
    Py_XDECREF(callee);
    Py_DECREF(task);
    return result;
}

/* ---- the rest of an async callback that has begun to wait ------------------------------------ */

/* Batch.run() has sent the first None into a callback's coroutine, and got what it yields to trio.
   Awaiting this object yields that first, and then is the coroutine, also for code that walks the
   stack of a task: all other attributes are those of the coroutine. */
typedef struct {
    PyObject_HEAD PyObject* coroutine;
    PyObject* yielded; /* NULL once it has been passed on */
} Rest;

static PyTypeObject RestType;

/* Steals both references. */
static PyObject* rest_new(PyObject* coroutine, PyObject* yielded) {
    Rest* rest = PyObject_GC_New(Rest, &RestType);
    if (rest == NULL) {
        Py_DECREF(coroutine);
        Py_DECREF(yielded);
        return NULL;
    }
    rest->coroutine = coroutine, rest->yielded = yielded;
    PyObject_GC_Track(rest);
    return (PyObject*)rest;
}

static PySendResult rest_am_send(Rest* rest, PyObject* value, PyObject** result) {
    if (rest->yielded != NULL) {
        *result = rest->yielded;
        rest->yielded = NULL;
        return PYGEN_NEXT;
    }
    return PyIter_Send(rest->coroutine, value, result);
}

static PyObject* rest_send(Rest* rest, PyObject* value) {
    PyObject* result = NULL;
    PySendResult how = rest_am_send(rest, value, &result);
    if (how == PYGEN_NEXT) return result;
    if (how == PYGEN_RETURN) {
        PyErr_SetObject(PyExc_StopIteration, result);
        Py_DECREF(result);
    }
    return NULL;
}

static PyObject* rest_next(Rest* rest) { return rest_send(rest, Py_None); }

static PyObject* rest_throw(Rest* rest, PyObject* args) {
    Py_CLEAR(rest->yielded);
    PyObject* throw = PyObject_GetAttrString(rest->coroutine, "throw");
    PyObject* result = throw == NULL ? NULL : PyObject_Call(throw, args, NULL);
    Py_XDECREF(throw);
    return result;
}

static PyObject* rest_close(Rest* rest, PyObject* Py_UNUSED(none)) {
    Py_CLEAR(rest->yielded);
    return PyObject_CallMethod(rest->coroutine, "close", NULL);
}

static PyObject* rest_getattro(Rest* rest, PyObject* name) {
    PyObject* found = PyObject_GenericGetAttr((PyObject*)rest, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    PyErr_Clear();
    return PyObject_GetAttr(rest->coroutine, name);
}

static int rest_traverse(Rest* rest, visitproc visit, void* arg) {
    Py_VISIT(rest->coroutine);
    Py_VISIT(rest->yielded);
    return 0;
}

static void rest_dealloc(Rest* rest) {
    PyObject_GC_UnTrack(rest);
    Py_CLEAR(rest->yielded);
    Py_CLEAR(rest->coroutine);
    PyObject_GC_Del(rest);
}

static PyMethodDef rest_methods[] = {
    {"send", (PyCFunction)rest_send, METH_O, NULL},
    {"throw", (PyCFunction)rest_throw, METH_VARARGS, NULL},
    {"close", (PyCFunction)rest_close, METH_NOARGS, NULL},
    {NULL},
};

static PyAsyncMethods rest_as_async = {
    .am_await = PyObject_SelfIter,
    .am_send = (sendfunc)rest_am_send,
};

static PyTypeObject RestType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ergo_py._core.speed._speed.Rest",
    .tp_doc = "The rest of a coroutine that has begun to wait.",
    .tp_basicsize = sizeof(Rest),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = (destructor)rest_dealloc,
    .tp_traverse = (traverseproc)rest_traverse,
    .tp_getattro = (getattrofunc)rest_getattro,
    .tp_as_async = &rest_as_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)rest_next,
    .tp_methods = rest_methods,
};

/* ---- Batch: the inner loop of serve() -------------------------------------------------------- */

#define SLICE 0.001 /* of time_slices.py */
#define OFTEN 7 /* the clock is read on every eighth message */

/* What serve() keeps in local variables while it drains the main lane. */
typedef struct {
    PyObject_HEAD PyObject *process, *turn, *mailbox, *handler;
    Lane* lane;
    long long last; /* `handled` at the end of the burst */
    double end;     /* of the time slice; 0.0 before the first look at the clock */
    int burst, often, mask;
    char is_async, is_bounded;
} Batch;

static PyTypeObject BatchType;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static long long batch_handled(Batch* batch) {
    PyObject* handled = SLOT(batch->turn, of_turn.handled);
    return handled == NULL ? 0 : PyLong_AsLongLong(handled);
}

/* start(end): a new burst, after a sleep (end is 0.0) or after other tasks have run. */
static void batch_start(Batch* batch, double end) {
    batch->last = batch_handled(batch) + batch->burst;
    batch->end = end;
}

/* batch(process, turn, mailbox, lane, handler, is_async, burst). None if it is no MainLane. */
static PyObject* batch_begin(PyObject* Py_UNUSED(module), PyObject* args) {
    PyObject *process, *turn, *mailbox, *lane, *handler;
    int is_async, burst;
    if (!PyArg_ParseTuple(args, "OO!O!OOpi", &process, bound.Turn, &turn, bound.Mailbox, &mailbox,
                          &lane, &handler, &is_async, &burst)) {
        return NULL;
    }
    if (!Py_IS_TYPE(lane, &LaneType)) Py_RETURN_NONE;
    PyObject* limit = SLOT(mailbox, of_mailbox.limit);
    Batch* batch = PyObject_GC_New(Batch, &BatchType);
    if (batch == NULL) return NULL;
    batch->process = Py_NewRef(process), batch->turn = Py_NewRef(turn);
    batch->mailbox = Py_NewRef(mailbox);
    batch->handler = Py_NewRef(handler), batch->lane = (Lane*)Py_NewRef(lane);
    batch->burst = burst, batch->is_async = (char)is_async;
    batch->is_bounded = PyObject_IsTrue(limit) == 1;
    batch->mask = batch->often = burst > OFTEN ? OFTEN : 0;
    batch_start(batch, 0.0);
    PyObject_GC_Track(batch);
    return (PyObject*)batch;
}

static int admit_waiters(Batch* batch) {
    if (SLOT(batch->mailbox, of_mailbox.waiters) == Py_None) return 0;
    return call_method(batch->mailbox, str_admit_waiters);
}

/* Fairness, as in serve(): read the clock on every eighth message, or after each message if messages
   are slow. 1 if other tasks have to run, -1 with an error. */
static int batch_is_over(Batch* batch) {
    long long handled = batch_handled(batch);
    if (handled & batch->mask) return 0;
    double time = now();
    if (admit_waiters(batch) < 0) return -1;
    if (batch->end == 0.0) {
        batch->end = time + SLICE;
        return 0;
    }
    if (time < batch->end && handled < batch->last) return 0;
    batch->mask = time >= batch->end ? 0 : batch->often;
    return 1;
}

/* Call handle_message. 1 if it is done; 0 if it waits, to be awaited as *rest; -1 with an error. */
static int batch_handle(Batch* batch, PyObject* sender, PyObject* message, PyObject** rest) {
    PyObject *stack[3] = {NULL, message, sender}, *handler = Py_NewRef(batch->handler),
             *yielded = NULL;
    PyObject* result =
        PyObject_Vectorcall(handler, stack + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_DECREF(handler);
    if (result == NULL) return -1;
    if (!batch->is_async) {
        int is_plain = 1;
        if (result != Py_None) {
            PyObject* checked = PyObject_CallFunctionObjArgs(bound.check_plain, batch->process,
                                                             str_handle_message, result, NULL);
            is_plain = checked != NULL;
            Py_XDECREF(checked);
        }
        Py_DECREF(result);
        return is_plain ? 1 : -1;
    }
    if (!PyCoro_CheckExact(result)) { /* another awaitable, of a decorated callback */
        *rest = result;
        return 0;
    }
    switch (PyIter_Send(result, Py_None, &yielded)) {
        case PYGEN_NEXT:
            *rest = rest_new(result, yielded);
            return *rest == NULL ? -1 : 0;
        case PYGEN_RETURN:
            Py_DECREF(yielded);
            Py_DECREF(result);
            return 1;
        default:
            Py_DECREF(result);
            return -1;
    }
}

/* run(): serve messages of the main lane while nothing is ahead of them. Returns None when there are
   no more; True when other tasks have to run; an envelope that serve() has to handle, since it is no
   message; or the rest of an async callback, which serve() has to await. */
static PyObject* batch_run(Batch* batch, PyObject* Py_UNUSED(none)) {
    Lane* lane = batch->lane;
    while (lane->length > 0 && SLOT(batch->mailbox, of_mailbox.ahead) == Py_False) {
        Entry entry = lane_take(lane);
        if (entry.kind != MESSAGE) return entry_steal(entry);
        PyObject *sender = Py_NewRef(entry.sender), *message = Py_NewRef(entry.payload),
                 *rest = NULL;
        int done = begin_handling(batch->turn, entry);
        if (done == 0 && batch->is_bounded) done = admit_waiters(batch);
        if (done == 0) done = batch_handle(batch, sender, message, &rest);
        Py_DECREF(sender);
        Py_DECREF(message);
        if (done < 0) return NULL;
        if (done == 0) return rest;
        int is_over = batch_is_over(batch);
        if (is_over < 0) return NULL;
        if (is_over) Py_RETURN_TRUE;
    }
    Py_RETURN_NONE;
}

/* is_over(): whether other tasks have to run. For a message that serve() has handled. */
static PyObject* batch_is_over_method(Batch* batch, PyObject* Py_UNUSED(none)) {
    int is_over = batch_is_over(batch);
    return is_over < 0 ? NULL : PyBool_FromLong(is_over);
}

static PyObject* batch_start_method(Batch* batch, PyObject* Py_UNUSED(none)) {
    batch_start(batch, 0.0);
    Py_RETURN_NONE;
}

static PyObject* batch_restart_method(Batch* batch, PyObject* Py_UNUSED(none)) {
    batch_start(batch, now() + SLICE);
    Py_RETURN_NONE;
}

/* use(handler): another handle_message, since the behaviour was wrapped or unwrapped. */
static PyObject* batch_use(Batch* batch, PyObject* handler) {
    Py_SETREF(batch->handler, Py_NewRef(handler));
    Py_RETURN_NONE;
}

static int batch_traverse(Batch* batch, visitproc visit, void* arg) {
    Py_VISIT(batch->process);
    Py_VISIT(batch->turn);
    Py_VISIT(batch->mailbox);
    Py_VISIT(batch->handler);
    Py_VISIT(batch->lane);
    return 0;
}

static void batch_dealloc(Batch* batch) {
    PyObject_GC_UnTrack(batch);
    Py_CLEAR(batch->process);
    Py_CLEAR(batch->turn);
    Py_CLEAR(batch->mailbox);
    Py_CLEAR(batch->handler);
    Py_CLEAR(batch->lane);
    PyObject_GC_Del(batch);
}

static PyMethodDef batch_methods[] = {
    {"run", (PyCFunction)batch_run, METH_NOARGS, NULL},
    {"is_over", (PyCFunction)batch_is_over_method, METH_NOARGS, NULL},
    {"start", (PyCFunction)batch_start_method, METH_NOARGS, NULL},
    {"restart", (PyCFunction)batch_restart_method, METH_NOARGS, NULL},
    {"use", (PyCFunction)batch_use, METH_O, NULL},
    {NULL},
};

static PyTypeObject BatchType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ergo_py._core.speed._speed.Batch",
    .tp_doc = "The inner loop of serve(): the messages of a main lane, up to a burst or a slice.",
    .tp_basicsize = sizeof(Batch),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = (destructor)batch_dealloc,
    .tp_traverse = (traverseproc)batch_traverse,
    .tp_methods = batch_methods,
};

/* ---- the module ------------------------------------------------------------------------------ */

/* The methods that replace Python functions in their classes. */
static struct {
    const char *name, *signature;
    PyObject** twin;
    PyMethodDef definition;
} methods[] = {
    {"Behaviour.send",
     "send($self, to, message, *, priority=None)\n--\n\n",
     &bound.behaviour_send,
     {"send", (PyCFunction)(void (*)(void))behaviour_send, METH_FASTCALL | METH_KEYWORDS, NULL}},
    {"Router.send",
     "send($self, sender, to, message, priority)\n--\n\n",
     &bound.router_send,
     {"send", (PyCFunction)(void (*)(void))router_send, METH_FASTCALL | METH_KEYWORDS, NULL}},
};

/* method(class, name): the method that replaces the Python function of that name, with its
   documentation. */
static PyObject* method(PyObject* Py_UNUSED(module), PyObject* args) {
    PyTypeObject* class;
    const char* name;
    if (!PyArg_ParseTuple(args, "O!s", &PyType_Type, &class, &name)) return NULL;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(methods); i++) {
        if (strcmp(name, methods[i].name) != 0 || *methods[i].twin == NULL) continue;
        PyObject* doc = PyObject_GetAttrString(*methods[i].twin, "__doc__");
        /* For good, since the method refers to the text. */
        PyObject* text =
            doc == NULL ? NULL : PyUnicode_FromFormat("%s%S", methods[i].signature, doc);
        Py_XDECREF(doc);
        methods[i].definition.ml_doc = text == NULL ? NULL : PyUnicode_AsUTF8(text);
        if (methods[i].definition.ml_doc == NULL) return NULL;
        return PyDescr_NewMethod(class, &methods[i].definition);
    }
    return PyErr_Format(PyExc_LookupError, "no method replaces %s", name);
}

static PyMethodDef functions[] = {
    {"answer", (PyCFunction)(void (*)(void))answer, METH_FASTCALL, NULL},
    {"batch", batch_begin, METH_VARARGS, NULL},
    {"bind", bind, METH_O, NULL},
    {"method", method, METH_VARARGS, NULL},
    {"short_cut", (PyCFunction)(void (*)(void))short_cut, METH_FASTCALL, NULL},
    {NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_speed",
                                    "The steps that every message takes, in C.", -1, functions};

PyMODINIT_FUNC PyInit__speed(void) {
    static const struct {
        PyObject** string;
        const char* text;
    } strings[] = {
        {&str_admit_waiters, "admit_waiters"},
        {&str_handle_call, "handle_call"},
        {&str_handle_message, "handle_message"},
        {&str_look, "_look"},
        {&str_own_turn, "own_turn"},
        {&str_perf_counter, "perf_counter"},
        {&str_process, "_process"},
        {&str_wake, "wake_from_any_thread"},
    };
    for (size_t i = 0; i < Py_ARRAY_LENGTH(strings); i++) {
        *strings[i].string = PyUnicode_InternFromString(strings[i].text);
        if (*strings[i].string == NULL) return NULL;
    }
    zero = PyFloat_FromDouble(0.0);
    if (zero == NULL || PyType_Ready(&LaneIteratorType) < 0 || PyType_Ready(&RestType) < 0) return NULL;
    if (PyType_Ready(&BatchType) < 0) return NULL;
    PyObject* made = PyModule_Create(&module);
    if (made == NULL) return NULL;
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(made, Py_MOD_GIL_USED);
#endif
    if (PyModule_AddIntMacro(made, INTERFACE) < 0 || PyModule_AddType(made, &LaneType) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
