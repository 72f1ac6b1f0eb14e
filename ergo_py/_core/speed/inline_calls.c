/* Calls to a sleeping process with plain callbacks, served inline in the task of the caller. */
#include "speed.h"

/* The exception that is set, as an object with its traceback; no exception is set afterwards. */
PyObject* take_exception(void) {
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

/* Set the exception again, as it was: PyErr_SetObject() would replace its context by the exception
   that is being handled. Steals the reference. */
void put_exception(PyObject* error) {
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(error);
#else
    PyErr_Restore(Py_NewRef(Py_TYPE(error)), error, PyException_GetTraceback(error));
#endif
}

/* The `except BaseException` of answer_now(): note_error() runs while the exception is handled. */
int call_failed(PyObject* process, PyObject* caller) {
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

/* note_late_reply(process, caller, reply), and Caller.defer(process) of a call that the process still
   has. */
int note_late_reply(PyObject* process, PyObject* caller, PyObject* reply) {
    if (reply == bound.NO_REPLY && Py_IS_TYPE(caller, bound.TaskCaller) && is_process(process) &&
        SLOT(caller, of_caller.settled) == Py_False && SLOT(caller, of_caller.callee) == process) {
        if (SLOT(process, of_process.deferred) == Py_None) {
            PyObject* made = PyDict_New();
            if (made == NULL) return -1;
            Py_SETREF(SLOT(process, of_process.deferred), made);
        }
        if (PyDict_CheckExact(SLOT(process, of_process.deferred))) {
            slot_set(caller, of_caller.deferred, Py_True);
            return PyDict_SetItem(SLOT(process, of_process.deferred), caller, Py_None);
        }
    }
    PyObject* noted =
        PyObject_CallFunctionObjArgs(bound.note_late_reply, process, caller, reply, NULL);
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
    if (reply == NULL) return call_failed(process, caller);
    int done = 0;
    if (reply == bound.NO_REPLY || SLOT(caller, of_caller.settled) != Py_False) {
        done = note_late_reply(process, caller, reply);
    } else {
        slot_set(caller, of_caller.settled, Py_True);
        slot_set(caller, of_caller.value, reply);
    }
    Py_DECREF(reply);
    return done;
}

/* answer_now(process, caller, request). The references belong to the caller. */
PyObject* answer(PyObject* process, PyObject* caller, PyObject* request) {
    if (SLOT(process, of_process.turn) == bound.NO_TURN && call_method(process, str_own_turn) < 0)
        return NULL;
    PyObject* left = NULL;
    double begun, ended;
    Entry entry = {CALL, SLOT(caller, of_caller.pid), caller, request};
    PyObject* clock = Py_XNewRef(clock_of(bound.answer_now));
    if (read_clock(clock, &begun) < 0) {
        Py_XDECREF(clock);
        return NULL;
    }
    PyObject* turn = Py_NewRef(SLOT(process, of_process.turn));
    PyObject* task = Py_NewRef(SLOT(caller, of_caller.task));
    PyObject* status = Py_NewRef(SLOT(task, of_task.status));
    Py_INCREF(entry.sender), Py_INCREF(entry.ref), Py_INCREF(entry.payload);
    if (begin_handling(turn, entry) == 0 && turn_begin(turn, begun) == 0) {
        slot_set(process, of_process.state, bound.RUNNING);
        int done = answer_call(process, caller, request);
        if (done == 0) {
            left = SLOT(task, of_task.status) == status
                       ? Py_NewRef(Py_None)
                       : PyObject_CallFunctionObjArgs(bound.open_scopes, process, task, status, NULL);
        }
        if (left != NULL &&
            (read_clock(clock, &ended) < 0 || turn_end(turn, begun, ended) < 0))
            Py_CLEAR(left);
        if (left != NULL) slot_set(process, of_process.state, bound.SLEEP);
    }
    Py_DECREF(status);
    Py_DECREF(task);
    Py_DECREF(turn);
    Py_DECREF(clock);
    return left;
}
