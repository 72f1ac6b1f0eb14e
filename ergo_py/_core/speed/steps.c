/* Handoff.may_step and Handoff.step: the step of a callee, inside the turn of its caller. */
#include "speed.h"

/* Handoff.may_step(process), for a process that sleeps. 0 also where only Python can run the step:
   without direct hand-off, and while trio has instruments. */
int may_step(PyObject* turns, PyObject* process) {
    if (!Py_IS_TYPE(turns, bound.Handoff) || SLOT(turns, of_handoff.steps) != Py_False ||
        SLOT(turns, of_handoff.root) != Py_None)
        return 0;
    PyObject *queue = SLOT(turns, of_handoff.queue), *hooks = SLOT(turns, of_handoff.hooks);
    if (!Py_IS_TYPE(queue, bound.RunQueue) || PyLong_AsLong(SLOT(queue, size_of_queue)) > 1 ||
        !PyDict_CheckExact(hooks) || PyDict_GET_SIZE(hooks) > 1)
        return 0;
    PyObject* mailbox = SLOT(process, of_process.mailbox);
    if (!PyObject_TypeCheck(mailbox, bound.Mailbox) ||
        SLOT(mailbox, of_mailbox.waiters) != Py_None)
        return 0;
    PyObject* handled = PyErr_GetHandledException();
    int is_free = handled == NULL || handled == Py_None;
    Py_XDECREF(handled);
    return is_free;
}

/* Handoff._wait(task, trap). */
static int wait_in_trap(PyObject* turns, PyObject* task, PyObject* trap) {
    if (trap != bound.TRAP) { /* not a sleep of parking.py */
        PyObject* done = PyObject_CallMethodObjArgs(turns, str_wait, task, trap, NULL);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    if (add_one(task, of_task.schedule_points) < 0 || add_one(task, of_task.cancel_points) < 0)
        return -1;
    slot_set(task, of_task.abort_func, bound.abort);
    PyObject* status = SLOT(task, of_task.status);
    if (Py_IS_TYPE(status, bound.CancelStatus) && SLOT(status, is_cancelled_of_status) == Py_False)
        return 0;
    return call_method(task, str_attempt_cancel);
}

/* Handoff.finish(task, value, error): the task has ended. Steals the reference to the value, which
   is NULL with an error. */
static int finish(PyObject* turns, PyObject* task, PyObject* value) {
    PyObject* error = value == NULL ? take_exception() : Py_NewRef(Py_None);
    PyObject* done = PyObject_CallMethodObjArgs(turns, str_finish, task,
                                                value == NULL ? Py_None : value, error, NULL);
    Py_XDECREF(value);
    Py_DECREF(error);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Let another task be the current task of trio, also while an exception is set. */
static int set_current(PyObject* turns, PyObject* task) {
    return PyDict_SetItem(SLOT(turns, of_handoff.context), str_task, task);
}

/* Handoff.step(process): run the step of its sleeping task inside the step of the task `outer`. The
   references belong to the caller. */
int step(PyObject* turns, PyObject* task, PyObject* outer) {
    PyObject *context = Py_NewRef(SLOT(task, of_task.context)),
             *coroutine = Py_NewRef(SLOT(task, of_task.coro)), *yielded = NULL;
    slot_set(turns, of_handoff.steps, Py_True);
    /* Handoff._schedule(task) */
    slot_set(task, of_task.abort_func, Py_None);
    slot_set(task, of_task.mark, Py_None);
    int failed = set_current(turns, task);
    if (!failed) {
        PySendResult how = PYGEN_ERROR;
        if (PyContext_Enter(context) == 0) {
            how = PyIter_Send(coroutine, Py_None, &yielded);
            if (PyContext_Exit(context) < 0) {
                Py_CLEAR(yielded);
                how = PYGEN_ERROR;
            }
        }
        if (how == PYGEN_NEXT) {
            failed = wait_in_trap(turns, task, yielded);
            Py_DECREF(yielded);
        } else {
            failed = finish(turns, task, yielded);
        }
        if (set_current(turns, outer) < 0) failed = -1;
    }
    slot_set(turns, of_handoff.steps, Py_False);
    Py_DECREF(context);
    Py_DECREF(coroutine);
    return failed;
}
