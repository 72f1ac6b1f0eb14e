/* Batch: the inner loop of serve(). */
#include "speed.h"

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
PyObject* batch_begin(PyObject* Py_UNUSED(module), PyObject* args) {
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

PyTypeObject BatchType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ergo_py._core.speed._speed.Batch",
    .tp_doc = "The inner loop of serve(): the messages of a main lane, up to a burst or a slice.",
    .tp_basicsize = sizeof(Batch),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = (destructor)batch_dealloc,
    .tp_traverse = (traverseproc)batch_traverse,
    .tp_methods = batch_methods,
};
