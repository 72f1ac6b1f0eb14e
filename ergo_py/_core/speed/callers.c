/* TaskCaller.settle and TaskCaller.settle_in: the answer to a call, and the task that waits for it. */
#include "speed.h"

/* Caller.undefer() of a deferred call. -1 with an error. */
static int undefer(PyObject* caller) {
    PyObject* callee = SLOT(caller, of_caller.callee);
    PyObject* owed = is_process(callee) ? SLOT(callee, of_process.deferred) : NULL;
    if (owed == NULL || !PyDict_CheckExact(owed)) return call_method(caller, str_undefer);
    slot_set(caller, of_caller.deferred, Py_False);
    /* The identity of a call is its hash: no Python code runs. */
    int is_owed = PyDict_Contains(owed, caller);
    return is_owed > 0 ? PyDict_DelItem(owed, caller) : is_owed;
}

/* The lines of Caller.settle before the wake-up. 1 if the call was settled now, 0 if it was before,
   -1 with an error. */
static int take_answer(PyObject* caller, PyObject* value, PyObject* error) {
    if (SLOT(caller, of_caller.settled) != Py_False) return 0;
    slot_set(caller, of_caller.settled, Py_True);
    if (SLOT(caller, of_caller.deferred) != Py_False && undefer(caller) < 0) return -1;
    slot_set(caller, of_caller.value, value);
    slot_set(caller, of_caller.error, error);
    return 1;
}

/* The lines of Handoff.wake that put a task into trio's queue, for the task of a call: other tasks
   are scheduled, and no instrument wants to know. 1 if that is done, 0 if Python has to do it, -1
   with an error. */
static int schedule(PyObject* turns, PyObject* task, PyObject* caller) {
    PyObject* queue = SLOT(turns, of_handoff.queue);
    if (SLOT(task, of_task.runner) != SLOT(turns, of_handoff.runner) ||
        PyObject_Size(queue) <= 0 || has_instruments(turns))
        return 0;
    /* First of all, see parking.py. */
    slot_set(task, of_task.abort_func, Py_None);
    slot_set(task, of_task.mark, Py_None);
    PyObject *send = PyObject_GetAttr(SLOT(task, of_task.coro), str_send_method), *done = NULL;
    if (send != NULL) {
        Py_XSETREF(SLOT(task, of_task.next_send_fn), send);
        slot_set(task, of_task.next_send, caller);
        done = PyObject_CallMethodOneArg(queue, str_append, task);
        Py_XDECREF(done);
    }
    if (done != NULL) return 1;
    slot_set(task, of_task.next_send_fn, Py_None);
    slot_set(task, of_task.next_send, Py_None);
    slot_set(task, of_task.abort_func, bound.abort);
    slot_set(task, of_task.mark, caller);
    return -1;
}

/* The hand-off of the loop that runs this code, if a process of that loop has the call; borrowed. NULL
   if it is not known. */
static PyObject* turns_of(PyObject* caller) {
    PyObject* callee = SLOT(caller, of_caller.callee);
    PyObject* router = is_process(callee) ? SLOT(callee, of_process.router) : NULL;
    if (router == NULL || !PyObject_TypeCheck(router, bound.Router) || !is_on_loop(router))
        return NULL;
    PyObject* turns = SLOT(router, of_router.turns);
    return Py_IS_TYPE(turns, bound.Handoff) ? turns : NULL;
}

/* wake_with(task, caller). -1 with an error. */
static int wake_task(PyObject* caller) {
    PyObject *task = Py_NewRef(SLOT(caller, of_caller.task)), *turns = turns_of(caller);
    int done = !Py_IS_TYPE(task, bound.Task) || SLOT(task, of_task.mark) != caller;
    if (!done && turns != NULL) done = schedule(turns, task, caller);
    if (!done) {
        PyObject* woken = PyObject_CallFunctionObjArgs(bound.wake_with, task, caller, NULL);
        done = woken == NULL ? -1 : 1;
        Py_XDECREF(woken);
    }
    Py_DECREF(task);
    return done < 0 ? -1 : 0;
}

/* turns.wake_caller(caller). -1 with an error. */
static int wake_in(PyObject* turns, PyObject* caller) {
    PyObject* task = Py_NewRef(SLOT(caller, of_caller.task));
    int done = !Py_IS_TYPE(task, bound.Task) || SLOT(task, of_task.mark) != caller;
    if (!done && Py_IS_TYPE(turns, bound.Handoff)) {
        done = list_woken(turns, caller, task);
        if (!done) done = schedule(turns, task, caller);
    }
    if (!done) {
        PyObject* woken = PyObject_CallMethodOneArg(turns, str_wake_caller, caller);
        done = woken == NULL ? -1 : 1;
        Py_XDECREF(woken);
    }
    Py_DECREF(task);
    return done < 0 ? -1 : 0;
}

/* caller.settle(value, None), of any kind of caller. 1 if the call was settled now, 0 if it was before,
   -1 with an error. */
int settle(PyObject* caller, PyObject* value) {
    if (!Py_IS_TYPE(caller, bound.TaskCaller)) {
        PyObject* told = PyObject_CallMethodObjArgs(caller, str_settle, value, Py_None, NULL);
        int is_settled = told == NULL ? -1 : PyObject_IsTrue(told);
        Py_XDECREF(told);
        return is_settled;
    }
    int is_settled = take_answer(caller, value, Py_None);
    return is_settled == 1 && wake_task(caller) < 0 ? -1 : is_settled;
}

/* TaskCaller.settle(value, error) */
PyObject* caller_settle(PyObject* caller, PyObject* const* args, Py_ssize_t count) {
    if (count != 2) return PyErr_Format(PyExc_TypeError, "settle() takes a value and an error");
    int is_settled = take_answer(caller, args[0], args[1]);
    if (is_settled < 0 || (is_settled && wake_task(caller) < 0)) return NULL;
    return PyBool_FromLong(is_settled);
}

/* TaskCaller.settle_in(turns, value, error) */
PyObject* caller_settle_in(PyObject* caller, PyObject* const* args, Py_ssize_t count) {
    if (count != 3) return PyErr_Format(PyExc_TypeError, "settle_in() takes turns and an answer");
    int is_settled = take_answer(caller, args[1], args[2]);
    if (is_settled < 0 || (is_settled && wake_in(args[0], caller) < 0)) return NULL;
    return PyBool_FromLong(is_settled);
}
