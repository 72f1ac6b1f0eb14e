/* Calls to a sleeping process: Behaviour.call, and the lines of Calls.call that need no turn of the
   scheduler. */
#include "speed.h"

/* process.kernel.calls, as a new reference; NULL with an error. */
static PyObject* calls_of(PyObject* behaviour, PyObject* process) {
    int is_running = behaviour == running.behaviour;
    if (is_running && running.calls != NULL) return Py_NewRef(running.calls);
    PyObject* calls = PyObject_GetAttr(SLOT(process, of_process.kernel), str_calls);
    if (is_running) running.calls = Py_XNewRef(calls);
    return calls;
}

/* Behaviour.call(to, request, *, timeout=5.0, priority=None), in a callback and with the usual
   timeout or none. `of_any_kind`: the calls of a traced node will do, since there is no trace. */
static PyObject* call_from(PyObject* self, PyObject* const* args, Py_ssize_t count,
                           PyObject* keywords, int of_any_kind) {
    int is_endless = keywords != NULL && PyTuple_GET_SIZE(keywords) == 1 && count == 2 &&
                     args[2] == Py_None && PyTuple_GET_ITEM(keywords, 0) == str_timeout;
    if (count != 2 || (keywords != NULL && !is_endless))
        return call_twin(bound.behaviour_call, self, args, count, keywords);
    PyObject *process = process_of(self), *begun = NULL;
    if (process == NULL) return NULL;
    if (!is_process(process) || SLOT(process, of_process.state) != bound.RUNNING) {
        begun = call_twin(bound.behaviour_call, self, args, count, keywords);
    } else {
        PyObject* calls = calls_of(self, process);
        PyObject* stack[7] = {calls,
                              process,
                              SLOT(process, of_process.id),
                              args[0],
                              args[1],
                              is_endless ? Py_None : usual_timeout,
                              SLOT(process, of_process.priority)};
        if (calls != NULL && !of_any_kind &&
            !Py_IS_TYPE(calls, bound.Calls)) /* those of an observed node */
            begun = call_twin(bound.behaviour_call, self, args, count, keywords);
        else if (calls != NULL && add_one(process, of_process.sent) == 0)
            begun = PyObject_Vectorcall(bound.calls_call, stack, 7, NULL);
        Py_XDECREF(calls);
    }
    Py_DECREF(process);
    return begun;
}

PyObject* behaviour_call(PyObject* self, PyObject* const* args, Py_ssize_t count,
                         PyObject* keywords) {
    return call_from(self, args, count, keywords, 0);
}

PyObject* call_untraced(PyObject* self, PyObject* const* args, Py_ssize_t count,
                        PyObject* keywords) {
    return call_from(self, args, count, keywords, 1);
}

/* The process at `to`, if it accepts messages, and sleeps in its mailbox and in no call; borrowed.
   NULL if there is none, or with an error. `last` is the receiver of the last message, most often
   the same. */
static PyObject* sleeping_callee(PyObject* router, PyObject* last, PyObject* to) {
    PyObject* callee = last;
    if (!is_process(last) || SLOT(last, of_process.id) != to) {
        PyObject* processes = SLOT(router, of_router.processes);
        if (processes == NULL || !PyDict_CheckExact(processes)) return NULL;
        callee = PyDict_GetItemWithError(processes, to);
    }
    if (!is_process(callee) || SLOT(callee, of_process.accepting) != Py_True) return NULL;
    PyObject* task = SLOT(callee, of_process.task);
    int is_asleep = Py_IS_TYPE(task, bound.Task) && SLOT(task, of_task.mark) == bound.PARKED;
    return is_asleep && SLOT(callee, of_process.waiting) == Py_None ? callee : NULL;
}

/* Keep the receiver of the last message, for the next message or call. */
static void remember(PyObject* router, PyObject* process, PyObject* callee) {
    if (process == Py_None)
        slot_set(router, of_router.last_receiver, callee);
    else if (SLOT(process, of_process.priority) == bound.NORMAL)
        slot_set(process, of_process.last_receiver, callee);
}

/* Whether a call to this sleeping process may be served inline. */
static int serves_inline(PyObject* callee) {
    PyObject* lane = SLOT(callee, of_process.main);
    return SLOT(callee, of_process.inline_calls) == Py_True && Py_IS_TYPE(lane, &LaneType) &&
           ((Lane*)lane)->length == 0;
}

/* Whether a call to this sleeping process may be put into its mailbox, and the process may take its
   step inside the turn of the caller. */
static int serves_in_step(PyObject* callee, PyObject* router, PyObject* task) {
    return SLOT(callee, of_process.inline_calls) == Py_False && takes_direct(callee) &&
           may_step(SLOT(router, of_router.turns), callee, task);
}

#define FEW 15    /* of calls.py */
#define STRETCH 8 /* of calls.py */

/* The lines of Calls._look(task) for a task that has not called last: a new budget. */
static int begin_budget(PyObject* calls, PyObject* task) {
    double now;
    if (read_slice_clock(&now) < 0) return -1;
    PyObject* end = PyFloat_FromDouble(now + SLICE);
    if (end == NULL) return -1;
    /* Small numbers: no error. */
    Py_XSETREF(SLOT(calls, of_calls.budget), PyLong_FromLong(FEW));
    Py_XSETREF(SLOT(calls, of_calls.free), PyLong_FromLong(STRETCH - 1));
    Py_XSETREF(SLOT(calls, of_calls.later), PyLong_FromLong(FEW - STRETCH));
    Py_XSETREF(SLOT(calls, of_calls.slice_end), end);
    slot_set(calls, of_calls.turn_of, task);
    return 0;
}

/* Calls._pause_is_due(task), but 1 means that Calls.call has to make this call, and to count it. */
static int budget_is_over(PyObject* calls, PyObject* task) {
    if (SLOT(calls, of_calls.turn_of) != task) return begin_budget(calls, task);
    PyObject* free = SLOT(calls, of_calls.free);
    long left = PyLong_AsLong(free);
    if (left > 0) {
        SLOT(calls, of_calls.free) = PyLong_FromLong(left - 1); /* a small number: no error */
        Py_DECREF(free);
        return 0;
    }
    PyObject* is_due = PyObject_CallMethodOneArg(calls, str_look, task);
    int is_over = is_due == NULL ? -1 : is_due == Py_True;
    Py_XDECREF(is_due);
    return is_over;
}

/* Calls._resume_slice(task, end). -1 with an error. */
static int resume_slice(PyObject* calls, PyObject* task, double end) {
    PyObject* made = PyFloat_FromDouble(end);
    if (made == NULL) return -1;
    Py_XSETREF(SLOT(calls, of_calls.slice_end), made);
    Py_XSETREF(SLOT(calls, of_calls.free), PyLong_FromLong(0)); /* a small number: no error */
    slot_set(calls, of_calls.turn_of, task);
    return 0;
}

/* Calls._keeps_others_waiting(end). -1 with an error. */
static int keeps_others_waiting(PyObject* router, double end) {
    double now;
    if (!is_beside_others(SLOT(router, of_router.turns))) return 0;
    return read_slice_clock(&now) < 0 ? -1 : now >= end;
}

/* The object of a call that has ended, for the next call; without values in its slots. */
static PyObject* spare_caller;

/* TaskCaller(sender, next(router.references), to, request, task, callee) */
static PyObject* caller_new(PyObject* router, PyObject* sender, PyObject* to, PyObject* request,
                            PyObject* task, PyObject* callee) {
    PyObject* caller = spare_caller;
    spare_caller = NULL;
    if (caller == NULL) caller = bound.TaskCaller->tp_alloc(bound.TaskCaller, 0);
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

/* Release a call that has ended. Most often no other reference to it is left: use it again. */
static void caller_release(PyObject* caller) {
    if (Py_REFCNT(caller) > 1 || spare_caller != NULL || !Py_IS_TYPE(caller, bound.TaskCaller)) {
        Py_DECREF(caller);
        return;
    }
    /* The end of a value may run Python code, which may make calls. */
    Py_CLEAR(SLOT(caller, of_caller.number));
    Py_CLEAR(SLOT(caller, of_caller.pid));
    Py_CLEAR(SLOT(caller, of_caller.to));
    Py_CLEAR(SLOT(caller, of_caller.request));
    Py_CLEAR(SLOT(caller, of_caller.task));
    Py_CLEAR(SLOT(caller, of_caller.callee));
    Py_CLEAR(SLOT(caller, of_caller.settled));
    Py_CLEAR(SLOT(caller, of_caller.deferred));
    Py_CLEAR(SLOT(caller, of_caller.value));
    Py_CLEAR(SLOT(caller, of_caller.error));
    Py_CLEAR(SLOT(caller, of_caller.endless));
    Py_CLEAR(SLOT(caller, of_caller.begun));
    Py_XSETREF(spare_caller, caller);
}

/* Process.begin_wait(caller) */
static int begin_wait(PyObject* process, PyObject* caller) {
    double time;
    slot_set(process, of_process.waiting, caller);
    if (SLOT(process, of_process.state) == bound.STOPPING) return 0;
    if (read_clock(clock_of(bound.begin_wait), &time) < 0) return -1;
    return record(process, bound.WAIT_RESPONSE, time, 0);
}

/* Process.end_wait() */
static int end_wait(PyObject* process) {
    double time;
    if (!Py_IS_TYPE(SLOT(process, of_process.task), bound.Task))
        return call_method(process, str_end_wait);
    slot_set(process, of_process.waiting, Py_None);
    if (SLOT(process, of_process.state) != bound.WAIT_RESPONSE) return 0;
    if (read_clock(clock_of(bound.begin_wait), &time) < 0) return -1;
    return record(process, bound.RUNNING, time, 1);
}

/* callee.task.context.run(callee.answer_now, caller, request). The frame of Calls.call is protected
   from KeyboardInterrupt, and the watchdog finds it and the process that `serving` names. */
static PyObject* call_inline(PyObject* calls, PyObject* process, PyObject* callee, PyObject* caller,
                             PyObject* request) {
    PyObject* context = Py_NewRef(SLOT(SLOT(callee, of_process.task), of_task.context));
    PyObject* left = NULL;
    slot_set(calls, of_calls.serving, callee);
    if (process != Py_None) slot_set(process, of_process.waiting, caller);
    if (PyContext_Enter(context) == 0) {
        left = answer(callee, caller, request);
        if (PyContext_Exit(context) < 0) Py_CLEAR(left);
    }
    slot_set(calls, of_calls.serving, Py_None);
    Py_DECREF(context);
    return left;
}

/* The lines of Calls.call and Calls._step that put the request into the mailbox of the callee, and
   let the callee take its step. Returns None, as no cancel scope is left open. */
static PyObject* call_step(PyObject* router, PyObject* process, PyObject* callee, PyObject* caller,
                           PyObject* request) {
    PyObject *task = Py_NewRef(SLOT(callee, of_process.task)),
             *turns = Py_NewRef(SLOT(router, of_router.turns));
    PyObject* asker = SLOT(caller, of_caller.task);
    int failed = process != Py_None && begin_wait(process, caller) < 0;
    if (!failed && !is_asked_again(callee, asker)) {
        PyObject* noted = PyObject_CallMethodOneArg(callee, str_is_asked_again_by, asker);
        failed = noted == NULL;
        Py_XDECREF(noted);
    }
    failed = failed || lane_push((Lane*)SLOT(callee, of_process.main), CALL,
                                 SLOT(caller, of_caller.pid), caller, request) < 0;
    /* Another look: since the first, the garbage collector or a clock of a test may have run a
       finalizer that has woken the callee. Then trio runs its step. */
    if (!failed && SLOT(task, of_task.mark) == bound.PARKED)
        failed = step(turns, task, SLOT(caller, of_caller.task)) < 0;
    if (process != Py_None) {
        PyObject* error = failed ? take_exception() : NULL;
        if (end_wait(process) < 0) failed = 1;
        if (error != NULL) PyErr_SetObject((PyObject*)Py_TYPE(error), error);
        Py_XDECREF(error);
    }
    Py_DECREF(task);
    Py_DECREF(turns);
    return failed ? NULL : Py_NewRef(Py_None);
}

/* The reply of a settled call: `caller.result()` of a call without an error. */
static PyObject* reply_of(PyObject* caller) {
    PyObject* value = SLOT(caller, of_caller.value);
    if (value != Py_None) return Py_NewRef(value);
    PyObject* refusal = PyObject_CallMethodNoArgs(caller, str_refusal_of_none);
    if (refusal == NULL || refusal == Py_None) return refusal;
    Py_DECREF(refusal);
    return NULL;
}

/* UnfinishedCall(caller, left, is_due) */
static PyObject* unfinished(PyObject* caller, PyObject* left, int is_due) {
    PyObject* made = bound.UnfinishedCall->tp_alloc(bound.UnfinishedCall, 0);
    if (made == NULL) return NULL;
    SLOT(made, of_unfinished.caller) = Py_NewRef(caller);
    SLOT(made, of_unfinished.left) = Py_NewRef(left);
    SLOT(made, of_unfinished.is_due) = Py_NewRef(is_due ? Py_True : Py_False);
    return made;
}

/* current_task() */
static PyObject* running_task(PyObject* router) {
    PyObject *turns = SLOT(router, of_router.turns), *task = NULL;
    if (Py_IS_TYPE(turns, bound.Handoff) && is_on_loop(router))
        task = PyDict_GetItemWithError(SLOT(turns, of_handoff.context), str_task);
    if (task != NULL) return Py_NewRef(task);
    return PyErr_Occurred() ? NULL : PyObject_CallNoArgs(bound.current_task);
}

/* short_cut(calls, process, sender, to, request, priority): a call of Calls.call to a sleeping
   process. Returns the reply; NOT_MADE if Calls.call has to make the call; or an UnfinishedCall,
   for Calls._end_short_cut. */
PyObject* short_cut(PyObject* Py_UNUSED(module), PyObject* const* args, Py_ssize_t count) {
    if (count != 6 || !PyObject_TypeCheck(args[0], bound.Calls))
        return PyErr_Format(PyExc_TypeError, "short_cut() takes the arguments of Calls.call");
    PyObject *calls = args[0], *process = args[1], *sender = args[2], *to = args[3];
    PyObject* router = SLOT(calls, of_calls.router);
    if (!Py_IS_TYPE(to, bound.PID) || args[5] != bound.NORMAL ||
        (process != Py_None && !Py_IS_TYPE(process, bound.Process)) ||
        !PyObject_TypeCheck(router, bound.Router))
        return Py_NewRef(bound.NOT_MADE);
    PyObject* task = running_task(router);
    if (task == NULL) return NULL;
    PyObject *callee = NULL, *caller = NULL, *left = NULL, *result = NULL;
    int is_own = process == Py_None || SLOT(process, of_process.callback_task) == task;
    PyObject* last = process == Py_None ? SLOT(router, of_router.last_receiver)
                                        : SLOT(process, of_process.last_receiver);
    callee = is_own ? Py_XNewRef(sleeping_callee(router, last, to)) : NULL;
    if (callee != NULL && callee != last)
        remember(router, process, callee);
    int is_inline = callee != NULL && callee != process && serves_inline(callee);
    int is_step =
        callee != NULL && callee != process && !is_inline && serves_in_step(callee, router, task);
    int missed = is_inline || is_step ? budget_is_over(calls, task) : 1;
    double end = PyFloat_AsDouble(SLOT(calls, of_calls.slice_end)); /* a call of the callee moves it */
    if (missed == 0) caller = caller_new(router, sender, to, args[4], task, callee);
    if (caller != NULL) {
        left = is_inline ? call_inline(calls, process, callee, caller, args[4])
                         : call_step(router, process, callee, caller, args[4]);
    }
    if (left != NULL && SLOT(calls, of_calls.turn_of) != task && resume_slice(calls, task, end) < 0)
        Py_CLEAR(left);
    if (left != NULL) {
        /* Unlike an inline call, a call with a step is a checkpoint. */
        PyObject* status = SLOT(task, of_task.status);
        int is_due = is_step && SLOT(status, is_cancelled_of_status) != Py_False;
        if (!is_due) is_due = keeps_others_waiting(router, end);
        int is_done = left == Py_None && !is_due &&
                      SLOT(caller, of_caller.settled) == Py_True &&
                      SLOT(caller, of_caller.error) == Py_None;
        if (is_done && process != Py_None) slot_set(process, of_process.waiting, Py_None);
        if (is_done) result = reply_of(caller);
        if (result == NULL && !PyErr_Occurred())
            result = unfinished(caller, left, is_due);
    } else if (missed == 1 && !PyErr_Occurred()) {
        result = Py_NewRef(bound.NOT_MADE);
    }
    Py_XDECREF(left);
    if (caller != NULL) caller_release(caller);
    Py_XDECREF(callee);
    Py_DECREF(task);
    return result;
}
