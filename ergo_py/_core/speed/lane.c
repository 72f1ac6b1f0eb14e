/* MainLane: the MAIN lane of a mailbox, in place of collections.deque. */
#include "speed.h"

/* Not measured: most mailboxes hold a few messages at a time, and a ring of eight entries is smaller
   than the first block of a deque. */
#define SMALLEST_RING 8

/* Make room for another envelope in a full ring. */
int lane_grow(Lane* lane) {
    Py_ssize_t before = lane->size, size = before ? before * 2 : SMALLEST_RING;
    Entry* ring = lane->ring;
    PyMem_Resize(ring, Entry, size); /* moves the pages of a long ring, and copies no bytes */
    if (ring == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    /* The last entries stood before the first: now there is room for them behind the others. */
    memcpy(ring + before, ring, (size_t)lane->head * sizeof(Entry));
    lane->ring = ring, lane->size = size;
    return 0;
}

/* The envelope as the tuple that Python code expects. Steals the references of the entry. */
PyObject* entry_steal(Entry entry) {
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

PyTypeObject LaneIteratorType = {
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

PyTypeObject LaneType = {
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
