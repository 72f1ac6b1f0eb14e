/* The clock, and what a process notes with its times: Turn.begin, Turn.end and the history. */
#include "speed.h"

double monotonic(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* The perf_counter that a Python function calls: tests give its module another clock. Borrowed; NULL
   with an error. */
PyObject* clock_of(PyObject* function) {
    PyObject* globals = PyFunction_GetGlobals(function);
    PyObject* clock = globals == NULL ? NULL : PyDict_GetItemWithError(globals, str_perf_counter);
    if (clock == NULL && !PyErr_Occurred())
        PyErr_Format(PyExc_NameError, "%R has no perf_counter", function);
    return clock;
}

/* The clock of time slices, which tests replace: `slice_clock` of sources.py. Borrowed; NULL with an
   error. */
static PyObject* slice_clock(void) {
    PyObject* clock = PyDict_GetItemWithError(bound.sources, str_slice_clock);
    if (clock == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_NameError, "sources.py has no slice_clock");
    return clock;
}

/* Call a clock, unless it is NULL. -1 with an error. */
int read_clock(PyObject* clock, double* time) {
#ifdef __linux__ /* where perf_counter() is this clock */
    if (clock == bound.perf_counter) {
        *time = monotonic();
        return 0;
    }
#endif
    Py_XINCREF(clock); /* the call may replace the clock of its module */
    PyObject* found = clock == NULL ? NULL : PyObject_CallNoArgs(clock);
    Py_XDECREF(clock);
    if (found == NULL) return -1;
    *time = PyFloat_AsDouble(found);
    Py_DECREF(found);
    return *time == -1.0 && PyErr_Occurred() ? -1 : 0;
}

/* sources.slice_clock(). -1 with an error. */
int read_slice_clock(double* time) {
    return read_clock(slice_clock(), time);
}

/* sources.is_seeded */
int is_seeded(void) {
    return PyDict_GetItemWithError(bound.sources, str_is_seeded) == Py_True; /* a string: no error */
}

#define HISTORY 16 /* of states.py */

/* process.state = state; process.history += (state, time); and the trimming of the history. */
int record(PyObject* process, PyObject* state, double time, int trims) {
    PyObject *history = SLOT(process, of_process.history), *moment = PyFloat_FromDouble(time);
    if (moment == NULL) return -1;
    slot_set(process, of_process.state, state);
    int failed = PyList_Append(history, state) < 0 || PyList_Append(history, moment) < 0;
    Py_DECREF(moment);
    if (failed) return -1;
    if (!trims || PyList_GET_SIZE(history) <= HISTORY) return 0;
    return PyList_SetSlice(history, 0, HISTORY / 2, NULL);
}

/* Turn.begin(time) */
int turn_begin(PyObject* turn, double time) {
    PyObject* woken = PyFloat_FromDouble(time);
    if (woken == NULL) return -1;
    Py_XSETREF(SLOT(turn, of_turn.woken), woken);
    return 0;
}

/* Turn.end(time) of a turn that has begun at the time `woken`. */
int turn_end(PyObject* turn, double woken, double time) {
    PyObject* before = SLOT(turn, of_turn.running_time);
    if (before != NULL && PyFloat_CheckExact(before) && Py_REFCNT(before) == 1) {
        /* Only the slot refers to the number: no other code can see it change. */
        ((PyFloatObject*)before)->ob_fval += time - woken;
    } else {
        double sum = PyFloat_AsDouble(before);
        if (sum == -1.0 && PyErr_Occurred()) return -1;
        PyObject* total = PyFloat_FromDouble(sum + (time - woken));
        if (total == NULL) return -1;
        SLOT(turn, of_turn.running_time) = total;
        Py_DECREF(before);
    }
    slot_set(turn, of_turn.woken, zero);
    slot_set(turn, of_turn.handling, Py_None);
    return 0;
}
