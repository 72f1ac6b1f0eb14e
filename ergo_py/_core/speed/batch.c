/* Batch: the inner loop of serve(). */
#include "speed.h"

#define OFTEN 7 /* the clock is read on every eighth message */

/* What serve() keeps in local variables while it drains the main lane. */
typedef struct {
    PyObject_HEAD PyObject *process, *turn, *mailbox, *handle_message, *handle_call;
    PyObject* status;  /* of the cancel scopes outside of the callbacks */
    PyObject *seen, *unmatched; /* types of messages that are judged, and their judge; or NULL */
    PyTypeObject* last_type;    /* of the last message, only to be compared: it may be freed */
    PyObject* failure; /* an exception of serve_in_place(), for the process's own step; or NULL */
    Lane* lane;
    long long last; /* `handled` at the end of the burst */
    double end;     /* of the time slice; 0.0 before the first look at the clock */
    long long burst;
    int often, mask;
    char message_is_async, call_is_async, is_bounded;
    char event_is_plain; /* the batch calls handle_event() itself */
    char is_asleep; /* serve() sleeps, or is about to; a suspended process sleeps elsewhere */
    char is_over;   /* other tasks have to run, after serve_in_place() */
} Batch;

/* A counter of the turn. */
static long long batch_count(Batch* batch, Py_ssize_t offset) {
    PyObject* counter = SLOT(batch->turn, offset);
    if (counter == NULL) return 0;
    digit* only = only_digit(counter);
    return only == NULL ? PyLong_AsLongLong(counter) : *only;
}

static long long batch_handled(Batch* batch) { return batch_count(batch, of_turn.handled); }

/* start(end): a new burst, after a sleep (end is 0.0) or after other tasks have run. */
static void batch_start(Batch* batch, double end) {
    batch->last = batch_handled(batch) + batch->burst;
    batch->end = end;
}

/* batch(process, turn, mailbox, lane, handle_message, message_is_async, handle_call, call_is_async,
   event_is_plain, burst, seen, unmatched). None if it is no MainLane. */
PyObject* batch_begin(PyObject* Py_UNUSED(module), PyObject* args) {
    PyObject *process, *turn, *mailbox, *lane, *handle_message, *handle_call, *seen, *unmatched;
    int message_is_async, call_is_async, event_is_plain;
    long long burst;
    if (!PyArg_ParseTuple(args, "O!O!O!O!OpOppLOO", bound.Process, &process, bound.Turn, &turn,
                          bound.Mailbox, &mailbox, &LaneType, &lane, &handle_message, &message_is_async,
                          &handle_call, &call_is_async, &event_is_plain, &burst, &seen,
                          &unmatched)) {
        return NULL;
    }
    PyObject* limit = SLOT(mailbox, of_mailbox.limit);
    Batch* batch = PyObject_GC_New(Batch, &BatchType);
    if (batch == NULL) return NULL;
    batch->process = Py_NewRef(process), batch->turn = Py_NewRef(turn);
    batch->mailbox = Py_NewRef(mailbox);
    batch->handle_message = Py_NewRef(handle_message), batch->handle_call = Py_NewRef(handle_call);
    batch->seen = PySet_Check(seen) ? Py_NewRef(seen) : NULL;
    batch->unmatched = Py_NewRef(unmatched), batch->last_type = NULL;
    batch->lane = (Lane*)Py_NewRef(lane), batch->burst = burst;
    PyObject* task = SLOT(process, of_process.task);
    batch->status = Py_IS_TYPE(task, bound.Task) ? Py_XNewRef(SLOT(task, of_task.status)) : NULL;
    batch->failure = NULL, batch->is_asleep = batch->is_over = 0;
    batch->message_is_async = (char)message_is_async, batch->call_is_async = (char)call_is_async;
    batch->event_is_plain = (char)event_is_plain;
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

/* Fairness, as in serve(): read the clock on every eighth message and on the last of the burst, or
   after each message if messages are slow or are published to others. 1 if other tasks have to run,
   -1 with an error. */
static int batch_is_over(Batch* batch) {
    long long handled = batch_handled(batch);
    if ((batch->last - handled) & batch->mask) return 0;
    double time;
    if (read_slice_clock(&time) < 0 || admit_waiters(batch) < 0) return -1;
    if (batch->end == 0.0) batch->end = time + SLICE;
    long long published = batch_count(batch, of_turn.published);
    if (time < batch->end && handled + published < batch->last) return 0;
    batch->mask = time >= batch->end || published > 0 ? 0 : batch->often;
    if (published > 0) {
        PyObject* none = PyLong_FromLong(0);
        if (none == NULL) return -1;
        Py_XSETREF(SLOT(batch->turn, of_turn.published), none);
    }
    return 1;
}

_Thread_local struct Running running;

/* Callbacks of this behaviour run from now on, if its process is `process`. The caller keeps both
   alive until end_callbacks(). */
struct Running begin_callbacks(PyObject* behaviour, PyObject* process) {
    struct Running outer = running;
    PyObject* found = NULL;
    /* No look into the attributes of a class that has its own way to find them. */
    if (behaviour != NULL && Py_TYPE(behaviour)->tp_getattro == PyObject_GenericGetAttr) {
        found = PyObject_GetAttr(behaviour, str_process);
        if (found == NULL) PyErr_Clear();
        Py_XDECREF(found);
    }
    running = (struct Running){found == process ? Py_XNewRef(behaviour) : NULL, Py_XNewRef(process),
                               NULL};
    return outer;
}

void end_callbacks(struct Running outer) {
    struct Running ended = running;
    running = outer;
    Py_XDECREF(ended.behaviour);
    Py_XDECREF(ended.process);
    Py_XDECREF(ended.calls);
}

/* Call a callback, and let it run until it waits. 1 with its result; 0 if it waits, to be awaited as
   *result; -1 with an error. */
static int batch_callback(PyObject* callback, int is_async, PyObject* first, PyObject* second,
                          PyObject** result) {
    PyObject *stack[4] = {NULL, NULL, first, second}, *returned = NULL;
    Py_INCREF(callback); /* the process may end meanwhile, and drop its batch */
    if (PyMethod_Check(callback)) {
        stack[1] = PyMethod_GET_SELF(callback);
        *result = PyObject_Vectorcall(PyMethod_GET_FUNCTION(callback), stack + 1,
                                      3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    } else {
        *result =
            PyObject_Vectorcall(callback, stack + 2, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    }
    Py_DECREF(callback);
    if (*result == NULL) return -1;
    if (!is_async) return 1;
    if (!PyCoro_CheckExact(*result)) { /* another awaitable, of a decorated callback */
        PyAsyncMethods* methods = Py_TYPE(*result)->tp_as_async;
        if (PyGen_CheckExact(*result) || (methods != NULL && methods->am_await != NULL)) return 0;
        PyErr_Format(PyExc_TypeError, "object %.100s can't be used in 'await' expression",
                     Py_TYPE(*result)->tp_name);
        Py_CLEAR(*result);
        return -1;
    }
    switch (PyIter_Send(*result, Py_None, &returned)) {
        case PYGEN_NEXT:
            *result = rest_new(*result, returned);
            return *result == NULL ? -1 : 0;
        case PYGEN_RETURN:
            Py_SETREF(*result, returned);
            return 1;
        default:
            Py_CLEAR(*result);
            return -1;
    }
}

/* check_plain(process, name, result). Steals the reference to the result. */
static int check_result(Batch* batch, PyObject* name, PyObject* result) {
    PyObject* checked =
        PyObject_CallFunctionObjArgs(bound.check_plain, batch->process, name, result, NULL);
    Py_DECREF(result);
    Py_XDECREF(checked);
    return checked == NULL ? -1 : 1;
}

/* unmatched.look(message), for a type of message that is new to the class. */
static int judge_type(Batch* batch, PyObject* message) {
    PyObject* number = PyLong_FromVoidPtr(Py_TYPE(message)); /* id() of the type */
    int known = number == NULL ? -1 : PySet_Contains(batch->seen, number);
    Py_XDECREF(number);
    if (known < 0) return -1;
    if (!known) {
        PyObject* judged = PyObject_CallMethod(batch->unmatched, "look", "(O)", message);
        if (judged == NULL) return -1;
        Py_DECREF(judged);
    }
    batch->last_type = Py_TYPE(message);
    return 0;
}

/* Serve a message. 1 if that is done; 0 if its callback waits, to be awaited as *rest; -1 with an
   error. */
static int batch_message(Batch* batch, PyObject* sender, PyObject* message, PyObject** rest) {
    PyObject* result;
    if (batch->seen != NULL && Py_TYPE(message) != batch->last_type &&
        judge_type(batch, message) < 0)
        return -1;
    int done =
        batch_callback(batch->handle_message, batch->message_is_async, message, sender, &result);
    if (done == 0) *rest = result;
    if (done <= 0) return done;
    if (result != Py_None && !batch->message_is_async)
        return check_result(batch, str_handle_message, result);
    Py_DECREF(result);
    return 1;
}

/* Serve a call, as Calls.serve() does. 1 if that is done; 0 if its callback waits, to be awaited as
   the first of the pair *rest; -1 with an error. */
static int batch_call(Batch* batch, PyObject* caller, PyObject* request, PyObject** rest) {
    PyObject* reply;
    int done = batch_callback(batch->handle_call, batch->call_is_async, request, caller, &reply);
    if (done < 0) {
        if (!PyErr_ExceptionMatches(bound.Reject)) return -1;
        return call_failed(batch->process, caller) < 0 ? -1 : 1;
    }
    if (done == 0) {
        *rest = PyTuple_Pack(2, reply, caller);
        Py_DECREF(reply);
        return *rest == NULL ? -1 : 0;
    }
    if (!batch->call_is_async && PyCoro_CheckExact(reply))
        return check_result(batch, str_handle_call, reply);
    int is_settled = reply == bound.NO_REPLY ? 0 : settle(caller, reply);
    if (is_settled == 0) /* deferred, or settled before */
        is_settled = note_late_reply(batch->process, caller, reply);
    Py_DECREF(reply);
    return is_settled < 0 ? -1 : 1;
}

/* Call the plain handle_event() that the behaviour has now. 1, or -1 with an error. */
static int batch_event(Batch* batch, PyObject* publication) {
    PyObject* behaviour = Py_NewRef(SLOT(batch->process, of_process.behaviour));
    PyObject* result = PyObject_CallMethodOneArg(behaviour, str_handle_event, publication);
    Py_DECREF(behaviour);
    if (result == NULL) return -1;
    if (result != Py_None) return check_result(batch, str_handle_event, result);
    Py_DECREF(result);
    return 1;
}

/* run(): serve messages, calls and plain events of the main lane while nothing is ahead of them.
   Returns None when there are no more; True when other tasks have to run; an envelope that serve()
   has to handle, since it is none of these; the rest of an async handle_message, which serve() has
   to await; or the rest of an async handle_call and its caller. In place, it returns False and
   leaves such an envelope in the lane. */
static PyObject* batch_serve(Batch* batch, int is_in_place) {
    Lane* lane = batch->lane;
    while (lane->length > 0 && SLOT(batch->mailbox, of_mailbox.ahead) == Py_False) {
        long kind = lane_at(lane, 0)->kind;
        int is_event = kind == EVENT && batch->event_is_plain;
        int is_other = kind != MESSAGE && kind != CALL && !is_event;
        if (is_other && is_in_place) Py_RETURN_FALSE;
        Entry entry = lane_take(lane);
        if (is_other) return entry_steal(entry);
        /* handle_message(payload, sender) or handle_call(payload, caller) */
        PyObject *second = Py_NewRef(kind == CALL ? entry.ref : entry.sender),
                 *payload = Py_NewRef(entry.payload), *rest = NULL;
        int done = begin_handling(batch->turn, entry);
        if (done == 0 && batch->is_bounded) done = admit_waiters(batch);
        if (done == 0)
            done = kind == CALL ? batch_call(batch, second, payload, &rest)
                   : is_event   ? batch_event(batch, payload)
                                : batch_message(batch, second, payload, &rest);
        Py_DECREF(second);
        Py_DECREF(payload);
        if (done < 0) return NULL;
        if (done == 0) return rest;
        int is_over = batch_is_over(batch);
        if (is_over < 0) return NULL;
        if (is_over) Py_RETURN_TRUE;
    }
    Py_RETURN_NONE;
}

static PyObject* serve_as_running(Batch* batch, int is_in_place) {
    PyObject* behaviour = NULL;
    if (PyMethod_Check(batch->handle_message))
        behaviour = Py_NewRef(PyMethod_GET_SELF(batch->handle_message));
    struct Running outer = begin_callbacks(behaviour, batch->process);
    PyObject* left = batch_serve(batch, is_in_place);
    end_callbacks(outer);
    Py_XDECREF(behaviour);
    return left;
}

static PyObject* batch_run(Batch* batch, PyObject* Py_UNUSED(none)) {
    return serve_as_running(batch, 0);
}

/* is_over(): whether other tasks have to run. For a message that serve() has handled. */
static PyObject* batch_is_over_method(Batch* batch, PyObject* Py_UNUSED(none)) {
    int is_over = batch_is_over(batch);
    return is_over < 0 ? NULL : PyBool_FromLong(is_over);
}

/* Whether the process has a turn: after a sleep, one that serve_in_place() has begun. */
static int has_turn(Batch* batch) {
    PyObject* woken = SLOT(batch->turn, of_turn.woken);
    return woken != zero && PyFloat_AsDouble(woken) != 0.0;
}

/* start(): the process has woken up. The burst of a turn that serve_in_place() has begun goes on. */
static PyObject* batch_start_method(Batch* batch, PyObject* Py_UNUSED(none)) {
    if (!has_turn(batch)) batch_start(batch, 0.0);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject* batch_restart_method(Batch* batch, PyObject* Py_UNUSED(none)) {
    double time;
    if (read_slice_clock(&time) < 0) return NULL;
    batch_start(batch, time + SLICE);
    Py_RETURN_NONE;
}

/* begin_turn(): the process has woken up. A turn that serve_in_place() has begun goes on, or fails
   with its exception. True if other tasks have to run first. */
static PyObject* batch_begin_turn(Batch* batch, PyObject* Py_UNUSED(none)) {
    double time;
    batch->is_asleep = 0;
    if (batch->failure != NULL) {
        PyObject* failure = batch->failure;
        batch->failure = NULL;
        put_exception(failure);
        return NULL;
    }
    if (has_turn(batch)) {
        int is_over = batch->is_over;
        batch->is_over = 0;
        return PyErr_Occurred() ? NULL : PyBool_FromLong(is_over);
    }
    if (read_clock(clock_of(bound.serve), &time) < 0 || turn_begin(batch->turn, time) < 0 ||
        record(batch->process, bound.RUNNING, time, 1) < 0)
        return NULL;
    Py_RETURN_FALSE;
}

/* end_turn(): the process falls asleep. */
static PyObject* batch_end_turn(Batch* batch, PyObject* Py_UNUSED(none)) {
    double time, woken = PyFloat_AsDouble(SLOT(batch->turn, of_turn.woken));
    if ((woken == -1.0 && PyErr_Occurred()) || read_clock(clock_of(bound.serve), &time) < 0 ||
        turn_end(batch->turn, woken, time) < 0 ||
        record(batch->process, bound.SLEEP, time, 0) < 0)
        return NULL;
    batch->is_asleep = 1;
    Py_RETURN_NONE;
}

/* ---- in the turn of a root ----------------------------------------------------------------------- */

/* serve_in_place(): a turn of a process with plain callbacks, up to its end. Returns what run()
   returns. */
static PyObject* batch_serve_in_place(Batch* batch, PyObject* none) {
    batch_start(batch, 0.0);
    PyObject* begun = batch_begin_turn(batch, none);
    if (begun == NULL) return NULL;
    Py_DECREF(begun);
    return serve_as_running(batch, 1);
}

/* Whether nothing is left to do for a process, as in serve() before it falls asleep. */
static int may_sleep(Batch* batch, PyObject* task) {
    PyObject* box = batch->mailbox;
    return batch->lane->length == 0 && SLOT(box, of_mailbox.ahead) == Py_False &&
           SLOT(box, of_mailbox.waiters) == Py_None &&
           PyObject_Size(SLOT(box, of_mailbox.log)) == 0 &&
           SLOT(task, of_task.status) == batch->status;
}

/* End the turn, and leave the task asleep. As serve_in_place(). */
static int fall_asleep(Batch* batch, PyObject* turns, PyObject* task) {
    PyObject* ended = batch_end_turn(batch, NULL);
    if (ended == NULL) {
        Py_XSETREF(batch->failure, take_exception());
        return 0;
    }
    Py_DECREF(ended);
    if (!may_sleep(batch, task)) return 0; /* a finalizer has sent something */
    /* No other code runs between the check and the mark: no wake-up is lost. */
    slot_set(task, of_task.mark, bound.PARKED);
    return wait_in_trap(turns, task, bound.TRAP) < 0 ? -1 : 1;
}

/* The batch of a process whose task sleeps in serve() and which C can serve instead; or NULL. */
static Batch* batch_of_sleeper(PyObject* process, PyObject* task) {
    PyObject* turn = SLOT(process, of_process.turn);
    if (!Py_IS_TYPE(turn, bound.Turn) || SLOT(turn, of_turn.abandonable) != Py_None) return NULL;
    Batch* batch = (Batch*)SLOT(turn, of_turn.batch);
    if (batch == NULL || !Py_IS_TYPE(batch, &BatchType) || batch->message_is_async ||
        batch->call_is_async || !batch->is_asleep || batch->lane->length == 0 ||
        batch->status == NULL || SLOT(process, of_process.state) != bound.SLEEP ||
        SLOT(task, of_task.status) != batch->status)
        return NULL;
    return batch;
}

/* Serve a woken process with plain callbacks inside the step of the task `outer`, as the step of its
   own task would, and leave that task asleep. 1 if that is done, 0 if its task has to take a step
   now, -1 with an error. The references belong to the caller. */
int serve_in_place(PyObject* turns, PyObject* process, PyObject* task, PyObject* outer) {
    Batch* batch = batch_of_sleeper(process, task);
    if (batch == NULL) return 0;
    PyObject *context = Py_NewRef(SLOT(task, of_task.context)), *left = NULL;
    int done = -1;
    Py_INCREF(batch);
    if (set_current(turns, task) == 0) {
        if (PyContext_Enter(context) == 0) {
            PyObject* stack[3] = {NULL, process, (PyObject*)batch};
            left = PyObject_Vectorcall(bound.serve_in_place, stack + 1,
                                       2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
            if (left == NULL) Py_XSETREF(batch->failure, take_exception());
            if (PyContext_Exit(context) < 0) Py_CLEAR(left);
            else if (left == NULL) done = 0;
        }
        if (set_current(turns, outer) < 0) {
            Py_CLEAR(left);
            done = -1;
        }
    }
    if (left != NULL) {
        batch->is_over = left == Py_True;
        done = left == Py_None && may_sleep(batch, task) ? fall_asleep(batch, turns, task) : 0;
    }
    Py_XDECREF(left);
    Py_DECREF(context);
    Py_DECREF(batch);
    return done;
}

static int batch_traverse(Batch* batch, visitproc visit, void* arg) {
    Py_VISIT(batch->process);
    Py_VISIT(batch->turn);
    Py_VISIT(batch->mailbox);
    Py_VISIT(batch->seen);
    Py_VISIT(batch->unmatched);
    Py_VISIT(batch->handle_message);
    Py_VISIT(batch->handle_call);
    Py_VISIT(batch->lane);
    Py_VISIT(batch->status);
    Py_VISIT(batch->failure);
    return 0;
}

static void batch_dealloc(Batch* batch) {
    PyObject_GC_UnTrack(batch);
    Py_CLEAR(batch->process);
    Py_CLEAR(batch->turn);
    Py_CLEAR(batch->mailbox);
    Py_CLEAR(batch->seen);
    Py_CLEAR(batch->unmatched);
    Py_CLEAR(batch->handle_message);
    Py_CLEAR(batch->handle_call);
    Py_CLEAR(batch->lane);
    Py_CLEAR(batch->status);
    Py_CLEAR(batch->failure);
    PyObject_GC_Del(batch);
}

static PyMethodDef batch_methods[] = {
    {"run", (PyCFunction)batch_run, METH_NOARGS, NULL},
    {"serve_in_place", (PyCFunction)batch_serve_in_place, METH_NOARGS, NULL},
    {"is_over", (PyCFunction)batch_is_over_method, METH_NOARGS, NULL},
    {"start", (PyCFunction)batch_start_method, METH_NOARGS, NULL},
    {"restart", (PyCFunction)batch_restart_method, METH_NOARGS, NULL},
    {"begin_turn", (PyCFunction)batch_begin_turn, METH_NOARGS, NULL},
    {"end_turn", (PyCFunction)batch_end_turn, METH_NOARGS, NULL},
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
