/* Calls to a sleeping process with plain callbacks, served inline in the task of the caller. */
#include "speed.h"

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
PyObject* answer(PyObject* Py_UNUSED(module), PyObject* const* args, Py_ssize_t count) {
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
PyObject* short_cut(PyObject* Py_UNUSED(module), PyObject* const* args, Py_ssize_t count) {
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
