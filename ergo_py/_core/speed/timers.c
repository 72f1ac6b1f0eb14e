/* TimerHeap, Timer.cancel and Clock.arm_timer. */
#include "speed.h"

/* An entry (deadline, number, timer) of a heap without its tuple, its float and its int. */
typedef struct {
    double deadline;
    long long number;
    PyObject* timer;
} TimerEntry;

typedef struct {
    PyObject_HEAD TimerEntry* entries; /* a binary heap, as that of heapq */
    Py_ssize_t length, size;
} TimerHeap;

/* Not measured: a heap shrinks when a quarter of it is used and grows when all of it is, so that a
   timer that comes and goes at a border does not move it each time. */
#define SMALLEST_HEAP 8

static int is_before(const TimerEntry* a, const TimerEntry* b) {
    return a->deadline < b->deadline || (a->deadline == b->deadline && a->number < b->number);
}

static int is_finished(PyObject* timer) { return SLOT(timer, of_timer.table) == Py_None; }

static int heap_resize(TimerHeap* heap, Py_ssize_t size) {
    TimerEntry* entries = heap->entries;
    PyMem_Resize(entries, TimerEntry, size);
    if (entries == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    heap->entries = entries, heap->size = size;
    return 0;
}

/* Return the memory of a heap that has become much shorter. */
static void heap_shrink(TimerHeap* heap) {
    Py_ssize_t size = heap->size;
    while (size > SMALLEST_HEAP && heap->length <= size / 4) size /= 2;
    if (size < heap->size && heap_resize(heap, size) < 0) PyErr_Clear(); /* it stays as long */
}

/* Move an entry from `index` towards the root, to its place. */
static void heap_rise(TimerHeap* heap, Py_ssize_t index) {
    TimerEntry entry = heap->entries[index];
    while (index > 0) {
        Py_ssize_t parent = (index - 1) / 2;
        if (!is_before(&entry, &heap->entries[parent])) break;
        heap->entries[index] = heap->entries[parent];
        index = parent;
    }
    heap->entries[index] = entry;
}

/* Move an entry from `index` towards the leaves, to its place. */
static void heap_sink(TimerHeap* heap, Py_ssize_t index) {
    TimerEntry entry = heap->entries[index];
    for (;;) {
        Py_ssize_t child = 2 * index + 1;
        if (child >= heap->length) break;
        if (child + 1 < heap->length && is_before(&heap->entries[child + 1], &heap->entries[child]))
            child++;
        if (!is_before(&heap->entries[child], &entry)) break;
        heap->entries[index] = heap->entries[child];
        index = child;
    }
    heap->entries[index] = entry;
}

/* Add an entry. Steals its reference. */
static int heap_add(TimerHeap* heap, TimerEntry entry) {
    if (heap->length == heap->size &&
        heap_resize(heap, heap->size == 0 ? SMALLEST_HEAP : heap->size * 2) < 0) {
        Py_DECREF(entry.timer);
        return -1;
    }
    heap->entries[heap->length++] = entry;
    heap_rise(heap, heap->length - 1);
    return 0;
}

static PyObject* heap_push(TimerHeap* heap, PyObject* const* args, Py_ssize_t count) {
    if (count != 3 || !PyObject_TypeCheck(args[2], bound.Timer))
        return PyErr_Format(PyExc_TypeError, "push() takes a deadline, a number and a timer");
    TimerEntry entry = {PyFloat_AsDouble(args[0]), PyLong_AsLongLong(args[1]), args[2]};
    if (PyErr_Occurred()) return NULL;
    Py_INCREF(entry.timer);
    if (heap_add(heap, entry) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject* heap_item(TimerHeap* heap, Py_ssize_t index) {
    if (index < 0 || index >= heap->length) {
        PyErr_SetString(PyExc_IndexError, "a heap has no such entry");
        return NULL;
    }
    TimerEntry* entry = &heap->entries[index];
    int collects = PyGC_Disable(); /* a finalizer may cancel timers, and change the heap */
    PyObject* item = Py_BuildValue("(dLO)", entry->deadline, entry->number, entry->timer);
    if (collects) PyGC_Enable();
    return item;
}

static PyObject* heap_take(TimerHeap* heap, PyObject* Py_UNUSED(none)) {
    PyObject* first = heap_item(heap, 0);
    if (first == NULL) return NULL;
    PyObject* timer = heap->entries[0].timer;
    heap->entries[0] = heap->entries[--heap->length];
    if (heap->length > 0) heap_sink(heap, 0);
    heap_shrink(heap);
    Py_DECREF(timer);
    return first;
}

static PyObject* heap_drop_finished(TimerHeap* heap, PyObject* Py_UNUSED(none)) {
    for (Py_ssize_t i = 0; i < heap->length;) {
        PyObject* timer = heap->entries[i].timer;
        if (is_finished(timer)) {
            heap->entries[i] = heap->entries[--heap->length];
            Py_DECREF(timer);
        } else {
            i++;
        }
    }
    for (Py_ssize_t i = heap->length / 2 - 1; i >= 0; i--) heap_sink(heap, i);
    heap_shrink(heap);
    Py_RETURN_NONE;
}

static PyObject* heap_move_part(TimerHeap* heap, PyObject* const* args, Py_ssize_t count) {
    if (count != 2 || !Py_IS_TYPE(args[1], &TimerHeapType))
        return PyErr_Format(PyExc_TypeError, "move_part() takes a length and a heap");
    Py_ssize_t finished = 0, length = PyLong_AsSsize_t(args[0]);
    if (length == -1 && PyErr_Occurred()) return NULL;
    while (length-- > 0 && heap->length > 0) {
        TimerEntry last = heap->entries[--heap->length];
        if (is_finished(last.timer)) {
            finished++;
            Py_DECREF(last.timer);
        } else if (heap_add((TimerHeap*)args[1], last) < 0) {
            return NULL;
        }
    }
    heap_shrink(heap);
    return PyLong_FromSsize_t(finished);
}

static Py_ssize_t heap_length(TimerHeap* heap) { return heap->length; }

static int heap_traverse(TimerHeap* heap, visitproc visit, void* arg) {
    for (Py_ssize_t i = 0; i < heap->length; i++) Py_VISIT(heap->entries[i].timer);
    return 0;
}

static int heap_clear(TimerHeap* heap) {
    TimerEntry* entries = heap->entries;
    Py_ssize_t length = heap->length;
    heap->entries = NULL, heap->length = heap->size = 0;
    for (Py_ssize_t i = 0; i < length; i++) Py_DECREF(entries[i].timer);
    PyMem_Free(entries);
    return 0;
}

static void heap_dealloc(TimerHeap* heap) {
    PyObject_GC_UnTrack(heap);
    heap_clear(heap);
    Py_TYPE(heap)->tp_free(heap);
}

static PyObject* heap_sizeof(TimerHeap* heap, PyObject* Py_UNUSED(none)) {
    return PyLong_FromSsize_t((Py_ssize_t)sizeof(TimerHeap) +
                              heap->size * (Py_ssize_t)sizeof(TimerEntry));
}

static PyMethodDef heap_methods[] = {
    {"drop_finished", (PyCFunction)heap_drop_finished, METH_NOARGS, NULL},
    {"move_part", (PyCFunction)(void (*)(void))heap_move_part, METH_FASTCALL, NULL},
    {"push", (PyCFunction)(void (*)(void))heap_push, METH_FASTCALL, NULL},
    {"take", (PyCFunction)heap_take, METH_NOARGS, NULL},
    {"__sizeof__", (PyCFunction)heap_sizeof, METH_NOARGS, NULL},
    {NULL},
};

static PySequenceMethods heap_as_sequence = {
    .sq_length = (lenfunc)heap_length,
    .sq_item = (ssizeargfunc)heap_item,
};

PyTypeObject TimerHeapType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ergo_py._core.speed._speed.TimerHeap",
    .tp_doc = "A heap of timers that stores no tuples.",
    .tp_basicsize = sizeof(TimerHeap),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)heap_dealloc,
    .tp_traverse = (traverseproc)heap_traverse,
    .tp_clear = (inquiry)heap_clear,
    .tp_as_sequence = &heap_as_sequence,
    .tp_methods = heap_methods,
};

/* object.timers: the list of the timers that end with their owner. A reference of the caller's own;
   NULL with an error, or if it is no such list yet. */
static PyObject* timers_of(PyObject* owner) {
    PyObject* owned = is_process(owner) ? Py_XNewRef(SLOT(owner, of_process.timers))
                                        : PyObject_GetAttr(owner, str_timers);
    if (owned != NULL && Py_IS_TYPE(owned, bound.Owned)) return owned;
    Py_XDECREF(owned);
    return NULL;
}

/* Whether the count in a slot stays below the limit in another slot if it grows by one. */
static int is_early(PyObject* table, Py_ssize_t count, Py_ssize_t limit) {
    return PyLong_AsLong(SLOT(table, count)) + 1 < PyLong_AsLong(SLOT(table, limit));
}

/* Timer.cancel(), in the thread of the table, and with too few finished timers to clean up. */
PyObject* timer_cancel(PyObject* timer, PyObject* Py_UNUSED(none)) {
    PyObject *table = SLOT(timer, of_timer.table), *owned;
    if (table == Py_None) Py_RETURN_FALSE;
    if (table == NULL || !Py_IS_TYPE(table, bound.Timers) ||
        PyLong_AsUnsignedLong(SLOT(table, of_timers.own_thread)) != PyThread_get_thread_ident() ||
        (owned = timers_of(SLOT(timer, of_timer.owner))) == NULL) {
        PyErr_Clear();
        return call_twin(bound.timer_cancel, timer, NULL, 0, NULL);
    }
    if (!is_early(owned, of_owned.over, of_owned.due) ||
        !is_early(table, of_timers.cancelled, of_timers.due)) {
        Py_DECREF(owned);
        return call_twin(bound.timer_cancel, timer, NULL, 0, NULL);
    }
    Py_INCREF(table);
    int is_firing = SLOT(table, of_timers.firing) == timer;
    /* All counts and slots change before any object ends: its end may run Python code. */
    int failed = add_one(owned, of_owned.over) < 0 ||
                 (!is_firing && add_one(table, of_timers.cancelled) < 0);
    PyObject *owner = SLOT(timer, of_timer.owner), *to = SLOT(timer, of_timer.to),
             *message = SLOT(timer, of_timer.message);
    SLOT(timer, of_timer.table) = Py_NewRef(Py_None);
    SLOT(timer, of_timer.owner) = Py_NewRef(Py_None);
    SLOT(timer, of_timer.to) = Py_NewRef(Py_None);
    SLOT(timer, of_timer.message) = Py_NewRef(Py_None);
    Py_DECREF(table), Py_DECREF(table); /* the reference of the slot, and that of this function */
    Py_XDECREF(owner), Py_XDECREF(to), Py_XDECREF(message);
    Py_DECREF(owned);
    if (failed) return NULL;
    Py_RETURN_TRUE;
}

/* Timer(table, deadline, owner, to, message, priority, period), whose owner has the list `owned`. */
static PyObject* timer_new(PyObject* table, PyObject* owned, double deadline, PyObject* const* args,
                           PyObject* period) {
    PyObject* counted = PyIter_Next(SLOT(table, of_timers.seq));
    long long number = counted == NULL ? -1 : PyLong_AsLongLong(counted);
    Py_XDECREF(counted);
    PyObject* timer = number < 0 ? NULL : bound.Timer->tp_alloc(bound.Timer, 0);
    if (timer == NULL) return NULL;
    SLOT(timer, of_timer.table) = Py_NewRef(table);
    SLOT(timer, of_timer.owner) = Py_NewRef(args[1]);
    SLOT(timer, of_timer.to) = Py_NewRef(args[2]);
    SLOT(timer, of_timer.message) = Py_NewRef(args[3]);
    SLOT(timer, of_timer.priority) = Py_NewRef(args[4]);
    SLOT(timer, of_timer.period) = Py_NewRef(period);
    TimerEntry entry = {deadline, number, Py_NewRef(timer)};
    /* The heap of now: the allocation may have run a finalizer, and that may have replaced it. */
    if (heap_add((TimerHeap*)SLOT(table, of_timers.heap), entry) < 0 ||
        PyList_Append(owned, timer) < 0)
        Py_CLEAR(timer);
    return timer;
}

/* Clock.arm_timer(delay, owner, to, message, priority, period=0.0), for an owner that has had a
   timer before. */
PyObject* clock_arm_timer(PyObject* clock, PyObject* const* args, Py_ssize_t count,
                          PyObject* keywords) {
    PyObject *table = SLOT(clock, of_clock.timers), *owned = NULL;
    if (keywords != NULL || count < 5 || count > 6 ||
        !(PyFloat_CheckExact(args[0]) || PyLong_CheckExact(args[0])) ||
        table == NULL || !Py_IS_TYPE(table, bound.Timers) ||
        !Py_IS_TYPE(SLOT(table, of_timers.heap), &TimerHeapType) ||
        (owned = timers_of(args[1])) == NULL) {
        PyErr_Clear();
        return call_twin(bound.clock_arm_timer, clock, args, count, keywords);
    }
    PyObject* timer = NULL;
    double deadline, delay = PyFloat_AsDouble(args[0]), next;
    Py_INCREF(table);
    if (!(delay == -1.0 && PyErr_Occurred()) &&
        read_clock(SLOT(clock, of_clock.now), &deadline) == 0) {
        deadline += delay;
        timer = timer_new(table, owned, deadline, args, count == 6 ? args[5] : zero);
    }
    next = PyFloat_AsDouble(SLOT(clock, of_clock.next));
    if (timer != NULL && deadline < next) {
        PyObject *moment = PyFloat_FromDouble(deadline), *done = NULL;
        if (moment != NULL) done = PyObject_CallMethodOneArg(clock, str_earlier, moment);
        if (done == NULL) Py_CLEAR(timer);
        Py_XDECREF(moment);
        Py_XDECREF(done);
    }
    Py_DECREF(owned), Py_DECREF(table);
    return timer;
}
