/* The module: its functions and types, and the methods that replace Python functions. speed.h
   describes all files. */
#include "speed.h"

/* Changes with the interface to installation.py, which refuses a module that was built before. */
#define INTERFACE 19

/* The methods that replace Python functions in their classes. */
static struct {
    const char *name, *signature;
    PyObject** twin;
    PyMethodDef definition;
} methods[] = {
    {"Behaviour.call",
     "call($self, to, request, *, timeout=5.0, priority=None)\n--\n\n",
     &bound.behaviour_call,
     {"call", (PyCFunction)(void (*)(void))behaviour_call, METH_FASTCALL | METH_KEYWORDS, NULL}},
    {"Behaviour.send",
     "send($self, to, message, *, priority=None)\n--\n\n",
     &bound.behaviour_send,
     {"send", (PyCFunction)(void (*)(void))behaviour_send, METH_FASTCALL | METH_KEYWORDS, NULL}},
    {"BufferedReads._has_bytes",
     "_has_bytes($self)\n--\n\n",
     &buffered_twin,
     {"_has_bytes", buffered_has_bytes, METH_NOARGS, NULL}},
    {"Clock.arm_timer",
     "arm_timer($self, delay, owner, to, message, priority, period=0.0)\n--\n\n",
     &bound.clock_arm_timer,
     {"arm_timer", (PyCFunction)(void (*)(void))clock_arm_timer, METH_FASTCALL | METH_KEYWORDS, NULL}},
    {"Handoff.end_asleep",
     "end_asleep($self, task)\n--\n\n",
     &bound.handoff_end_asleep,
     {"end_asleep", handoff_end_asleep, METH_O, NULL}},
    {"Handoff.serve",
     "serve($self, root)\n--\n\n",
     &bound.handoff_serve,
     {"serve", handoff_serve, METH_O, NULL}},
    {"Outbox.deliver",
     "deliver($self, to, message, priority)\n--\n\n",
     &bound.outbox_deliver,
     {"deliver", (PyCFunction)(void (*)(void))outbox_deliver, METH_FASTCALL | METH_KEYWORDS, NULL}},
    {"Publisher.deliver",
     "deliver($self, event, envelope, context)\n--\n\n",
     &bound.publisher_deliver,
     {"deliver", (PyCFunction)(void (*)(void))publisher_deliver, METH_FASTCALL | METH_KEYWORDS, NULL}},
    {"Router.send",
     "send($self, sender, to, message, priority)\n--\n\n",
     &bound.router_send,
     {"send", (PyCFunction)(void (*)(void))router_send, METH_FASTCALL | METH_KEYWORDS, NULL}},
    {"SocketPoller._read_some",
     "_read_some($self, ready, first)\n--\n\n",
     &poller_twin,
     {"_read_some", (PyCFunction)(void (*)(void))poller_read_some, METH_FASTCALL, NULL}},
    {"StreamReader._read_once",
     "_read_once($self)\n--\n\n",
     &reader_twin,
     {"_read_once", reader_read_once, METH_NOARGS, NULL}},
    {"TaskCaller.settle",
     "settle($self, value, error, /)\n--\n\n",
     &bound.caller_settle,
     {"settle", (PyCFunction)(void (*)(void))caller_settle, METH_FASTCALL, NULL}},
    {"TaskCaller.settle_in",
     "settle_in($self, turns, value, error, /)\n--\n\n",
     &bound.caller_settle_in,
     {"settle_in", (PyCFunction)(void (*)(void))caller_settle_in, METH_FASTCALL, NULL}},
    {"Timer.cancel", "cancel($self)\n--\n\n", &bound.timer_cancel, {"cancel", timer_cancel, METH_NOARGS, NULL}},
    {"Writer.flush", "flush($self)\n--\n\n", &flush_twin, {"flush", writer_flush, METH_NOARGS, NULL}},
    {"Writer.serve",
     "serve($self, message, sender)\n--\n\n",
     &serve_twin,
     {"serve", (PyCFunction)(void (*)(void))writer_serve, METH_FASTCALL, NULL}},
};

/* method(class, name): the method that replaces the Python function of that name, with its
   documentation. */
static PyObject* method(PyObject* Py_UNUSED(module), PyObject* args) {
    PyTypeObject* class;
    const char* name;
    if (!PyArg_ParseTuple(args, "O!s", &PyType_Type, &class, &name)) return NULL;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(methods); i++) {
        if (strcmp(name, methods[i].name) != 0 || *methods[i].twin == NULL) continue;
        PyObject* doc = PyObject_GetAttrString(*methods[i].twin, "__doc__");
        /* For good, since the method refers to the text. */
        PyObject* text =
            doc == NULL ? NULL : PyUnicode_FromFormat("%s%S", methods[i].signature, doc);
        Py_XDECREF(doc);
        methods[i].definition.ml_doc = text == NULL ? NULL : PyUnicode_AsUTF8(text);
        if (methods[i].definition.ml_doc == NULL) return NULL;
        return PyDescr_NewMethod(class, &methods[i].definition);
    }
    return PyErr_Format(PyExc_LookupError, "no method replaces %s", name);
}

static PyMethodDef functions[] = {
    {"batch", batch_begin, METH_VARARGS, NULL},
    {"bind", bind_names, METH_O, NULL},
    {"bind_streams", bind_streams, METH_O, NULL},
    {"method", method, METH_VARARGS, NULL},
    {"short_cut", (PyCFunction)(void (*)(void))short_cut, METH_FASTCALL, NULL},
    {"trace_verb", trace_verb, METH_VARARGS, NULL},
    {NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_speed",
                                    "The steps that every message takes, in C.", -1, functions};

PyMODINIT_FUNC PyInit__speed(void) {
    static const struct {
        PyObject** string;
        const char* text;
    } strings[] = {
        {&str_admit_waiters, "admit_waiters"},
        {&str_after_task_step, "after_task_step"},
        {&str_append, "append"},
        {&str_attempt_cancel, "_attempt_delivery_of_any_pending_cancel"},
        {&str_before_task_step, "before_task_step"},
        {&str_calls, "calls"},
        {&str_do_deferred, "_do_deferred"},
        {&str_earlier, "_earlier"},
        {&str_end, "end"},
        {&str_end_wait, "end_wait"},
        {&str_failed_inline, "failed_inline"},
        {&str_finish, "finish"},
        {&str_give, "give"},
        {&str_handle_call, "handle_call"},
        {&str_handle_message, "handle_message"},
        {&str_handle_event, "handle_event"},
        {&str_is_asked_again_by, "is_asked_again_by"},
        {&str_is_seeded, "is_seeded"},
        {&str_items, "items"},
        {&str_leave, "_leave"},
        {&str_look, "_look"},
        {&str_mailbox, "mailbox"},
        {&str_own_turn, "own_turn"},
        {&str_perf_counter, "perf_counter"},
        {&str_popleft, "popleft"},
        {&str_process, "_process"},
        {&str_refusal_of_none, "refusal_of_none"},
        {&str_run, "_run"},
        {&str_send_method, "send"},
        {&str_serves_in_passing, "serves_in_passing"},
        {&str_settle, "settle"},
        {&str_slice_clock, "slice_clock"},
        {&str_task, "task"},
        {&str_task_scheduled, "task_scheduled"},
        {&str_timeout, "timeout"},
        {&str_timers, "timers"},
        {&str_undefer, "undefer"},
        {&str_wake_caller, "wake_caller"},
        {&str_waiters, "waiters"},
        {&str_wait, "_wait"},
        {&str_send, "_send"},
        {&str_wake, "wake_from_any_thread"},
    };
    for (size_t i = 0; i < Py_ARRAY_LENGTH(strings); i++) {
        *strings[i].string = PyUnicode_InternFromString(strings[i].text);
        if (*strings[i].string == NULL) return NULL;
    }
    zero = PyFloat_FromDouble(0.0), usual_timeout = PyFloat_FromDouble(5.0);
    if (zero == NULL || usual_timeout == NULL) return NULL;
    if (PyType_Ready(&LaneIteratorType) < 0 || PyType_Ready(&RestType) < 0) return NULL;
    if (PyType_Ready(&BatchType) < 0) return NULL;
    PyObject* made = PyModule_Create(&module);
    if (made == NULL) return NULL;
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(made, Py_MOD_GIL_USED);
#endif
    if (PyModule_AddIntMacro(made, INTERFACE) < 0 || PyModule_AddType(made, &LaneType) < 0 ||
        PyModule_AddType(made, &TimerHeapType) < 0 ||
        add_datagram_reader(made) < 0 || add_stream_buffers(made) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
