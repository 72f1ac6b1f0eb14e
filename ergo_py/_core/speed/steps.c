/* Handoff.may_step and Handoff.step: the step of a callee, inside the turn of its caller.
   Handoff.wake and Handoff.serve: the steps of the processes that a root wakes. Handoff.end_asleep:
   the last step of a process. */
#include "speed.h"

#define IN_A_ROW 64 /* most steps of a root, of handoff.py */

/* Lifecycle.is_asked_again_by(task), without its note. */
int is_asked_again(PyObject* process, PyObject* task) {
    PyObject* last = PyObject_CallNoArgs(SLOT(process, of_process.asked_by)); /* a weak reference */
    int is_again = last == task;
    Py_XDECREF(last);
    if (last == NULL) PyErr_Clear();
    return is_again;
}

/* Whether an instrument of trio watches the steps of tasks. Others watch the waits for I/O, as that of
   a node with reader threads does. */
int has_instruments(PyObject* turns) {
    PyObject* hooks = SLOT(turns, of_handoff.hooks);
    if (!PyDict_CheckExact(hooks)) return 1;
    /* An error counts as one, too: there is none for strings. */
    return PyDict_GET_SIZE(hooks) > 1 && (PyDict_Contains(hooks, str_task_scheduled) != 0 ||
                                          PyDict_Contains(hooks, str_before_task_step) != 0 ||
                                          PyDict_Contains(hooks, str_after_task_step) != 0);
}

/* turns.run_queue.size > 1 */
int is_beside_others(PyObject* turns) {
    if (!Py_IS_TYPE(turns, bound.Handoff)) return 1; /* unknown */
    PyObject* queue = SLOT(turns, of_handoff.queue);
    return !Py_IS_TYPE(queue, bound.RunQueue) || PyLong_AsLong(SLOT(queue, size_of_queue)) > 1;
}

/* Handoff.may_step(process), for a process that sleeps and is called by the running task; and the
   `may_step` of Calls.call. 0 also where only Python can run the step: without direct hand-off, and
   while an instrument of trio watches steps. */
int may_step(PyObject* turns, PyObject* process, PyObject* task) {
    if (!Py_IS_TYPE(turns, bound.Handoff) || SLOT(turns, of_handoff.steps) != Py_False ||
        SLOT(turns, of_handoff.root) != Py_None)
        return 0;
    if (!Py_IS_TYPE(SLOT(turns, of_handoff.queue), bound.RunQueue) || has_instruments(turns)) return 0;
    if (is_beside_others(turns) && (is_seeded() || !is_asked_again(process, task))) return 0;
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
int wait_in_trap(PyObject* turns, PyObject* task, PyObject* trap) {
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
int set_current(PyObject* turns, PyObject* task) {
    return PyDict_SetItem(SLOT(turns, of_handoff.context), str_task, task);
}

/* Handoff._run(task), without instruments: run a scheduled task inside the step of the task `outer`
   until it waits or ends. The references belong to the caller. */
static int run_step(PyObject* turns, PyObject* task, PyObject* outer) {
    PyObject *context = Py_NewRef(SLOT(task, of_task.context)),
             *coroutine = Py_NewRef(SLOT(task, of_task.coro)), *yielded = NULL;
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
    Py_DECREF(context);
    Py_DECREF(coroutine);
    return failed;
}

/* Handoff._schedule(task), without the function that runs the step. */
static void schedule(PyObject* task) {
    slot_set(task, of_task.abort_func, Py_None);
    slot_set(task, of_task.mark, Py_None);
}

/* Handoff.step(process): run the step of its sleeping task inside the step of the task `outer`. The
   references belong to the caller. */
int step(PyObject* turns, PyObject* task, PyObject* outer) {
    slot_set(turns, of_handoff.steps, Py_True);
    schedule(task);
    int failed = run_step(turns, task, outer);
    slot_set(turns, of_handoff.steps, Py_False);
    return failed;
}

/* The lines of Handoff.wake and Handoff.wake_caller that list an object with a sleeping task for the
   root. 1 if that is done, 0 if Python has to wake the task, -1 with an error. */
int list_woken(PyObject* turns, PyObject* woken, PyObject* task) {
    if (SLOT(turns, of_handoff.root) == Py_None ||
        PyObject_Size(SLOT(turns, of_handoff.ready)) >= IN_A_ROW || has_instruments(turns))
        return 0;
    PyObject* done = PyObject_CallMethodOneArg(SLOT(turns, of_handoff.ready), str_append, woken);
    if (done == NULL) return -1;
    Py_DECREF(done);
    /* For trio any object means "scheduled". set_send() puts the function there if it is needed. */
    slot_set(task, of_task.next_send_fn, bound.TRAP);
    schedule(task);
    return 1;
}

/* Handoff.end_asleep(task) */
PyObject* handoff_end_asleep(PyObject* turns, PyObject* task) {
    PyObject* outer = has_instruments(turns) || !Py_IS_TYPE(task, bound.Task)
                          ? NULL
                          : PyDict_GetItemWithError(SLOT(turns, of_handoff.context), str_task);
    if (outer == NULL)
        return PyErr_Occurred() ? NULL : call_twin(bound.handoff_end_asleep, turns, &task, 1, NULL);
    if (SLOT(task, of_task.mark) != bound.PARKED) Py_RETURN_NONE;
    Py_INCREF(outer), Py_INCREF(task);
    schedule(task);
    int failed = run_step(turns, task, outer);
    Py_DECREF(outer), Py_DECREF(task);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* Addressee.wake_from_any_thread() of a sleeping process that a root wakes. 1 if that is done, 0 if
   Python has to do it, -1 with an error. */
int wake_by_root(PyObject* process, PyObject* task) {
    PyObject* router = SLOT(process, of_process.router);
    if (!PyObject_TypeCheck(router, bound.Router) || !is_on_loop(router)) return 0;
    PyObject* turns = SLOT(router, of_router.turns);
    return Py_IS_TYPE(turns, bound.Handoff) ? list_woken(turns, process, task) : 0;
}

/* Whether C can run the step of a woken object: of a process to which no sender waits for room. */
static int is_plain_step(PyObject* turns, PyObject* woken) {
    if (!is_process(woken) || has_instruments(turns)) return 0;
    PyObject* box = SLOT(woken, of_process.mailbox);
    return PyObject_TypeCheck(box, bound.Mailbox) && SLOT(box, of_mailbox.waiters) == Py_None &&
           Py_IS_TYPE(SLOT(woken, of_process.task), bound.Task);
}

/* Put the function that runs a step into a task that wake_by_root() has marked. */
static int set_send(PyObject* task) {
    if (!Py_IS_TYPE(task, bound.Task) || SLOT(task, of_task.next_send_fn) != bound.TRAP) return 0;
    PyObject* send = PyObject_GetAttr(SLOT(task, of_task.coro), str_send_method);
    if (send == NULL) return -1;
    Py_XSETREF(SLOT(task, of_task.next_send_fn), send);
    return 0;
}

/* Run the step of a process or of a caller that the root has woken. 1 if that is done, 0 if its step
   is left to trio, -1 with an error. */
static int run_woken(PyObject* turns, PyObject* woken, PyObject* root) {
    if (is_plain_step(turns, woken)) {
        PyObject* task = Py_NewRef(SLOT(woken, of_process.task));
        slot_set(task, of_task.next_send_fn, Py_None);
        int done = serve_in_place(turns, woken, task, root);
        if (done == 0) done = run_step(turns, task, root) < 0 ? -1 : 1;
        Py_DECREF(task);
        return done;
    }
    PyObject *task = PyObject_GetAttr(woken, str_task),
             *box = PyObject_GetAttr(woken, str_mailbox),
             *waiters = box == NULL ? NULL : PyObject_GetAttr(box, str_waiters), *done = NULL;
    int waits = waiters == NULL ? -1 : PyObject_IsTrue(waiters);
    if (task != NULL && waits >= 0 && set_send(task) == 0)
        done = PyObject_CallMethodOneArg(turns, waits ? str_leave : str_run, task);
    Py_XDECREF(task);
    Py_XDECREF(box);
    Py_XDECREF(waiters);
    Py_XDECREF(done);
    return done == NULL ? -1 : !waits;
}

/* Handoff._do_deferred() */
static int do_deferred(PyObject* turns) {
    PyObject *deferred = SLOT(turns, of_handoff.deferred), *done = Py_None;
    while (done != NULL && PyObject_Size(deferred) > 0) {
        PyObject* work = PyObject_CallMethodNoArgs(deferred, str_popleft);
        done = work == NULL ? NULL : PyObject_CallNoArgs(work);
        Py_XDECREF(work);
        Py_XDECREF(done);
    }
    if (done != NULL) return 0;
    PyObject* error = take_exception();
    if (PyObject_Size(deferred) == 0 || call_method(turns, str_do_deferred) == 0)
        PyErr_SetObject((PyObject*)Py_TYPE(error), error);
    Py_DECREF(error);
    return -1;
}

/* The end of Handoff.serve(root). */
static int end_root(PyObject* turns, PyObject* root) {
    if (PyObject_Size(SLOT(turns, of_handoff.ready)) > 0 ||
        SLOT(turns, of_handoff.root) != root) {
        PyObject* done = PyObject_CallMethodOneArg(turns, str_end, root);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    slot_set(turns, of_handoff.root, Py_None);
    slot_set(turns, of_handoff.defers, Py_False);
    return do_deferred(turns);
}

/* Handoff.serve(root) */
PyObject* handoff_serve(PyObject* turns, PyObject* root) {
    PyObject* ready = SLOT(turns, of_handoff.ready);
    if (PyObject_Size(ready) == 0) return end_root(turns, root) < 0 ? NULL : Py_NewRef(Py_False);
    double now, end = 0.0;
    int left = IN_A_ROW, failed = read_slice_clock(&now) < 0;
    if (!failed) end = now + SLICE;
    while (!failed && left > 0 && PyObject_Size(ready) > 0) {
        PyObject* woken = PyObject_CallMethodNoArgs(ready, str_popleft);
        int is_run = woken == NULL ? -1 : run_woken(turns, woken, root);
        Py_XDECREF(woken);
        failed = is_run < 0 || (is_run && read_slice_clock(&now) < 0);
        if (is_run) left = now < end ? left - 1 : 0;
    }
    PyObject* error = failed ? take_exception() : NULL;
    if (end_root(turns, root) < 0) failed = 1;
    else if (error != NULL) PyErr_SetObject((PyObject*)Py_TYPE(error), error);
    Py_XDECREF(error);
    return failed ? NULL : Py_NewRef(Py_True);
}
