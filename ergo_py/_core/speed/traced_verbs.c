/* Behaviour.call in a traced node: it looks for a trace first. */
#include "speed.h"

/* Whether the context variable of the current trace is None. -1 with an error. `self` is the tuple
   (variable, behaviour, function for messages of a trace). */
static int is_untraced(PyObject* self) {
    PyObject* state = NULL;
    if (PyContextVar_Get(PyTuple_GET_ITEM(self, 0), NULL, &state) < 0) return -1;
    int found = state == NULL || state == Py_None;
    Py_XDECREF(state);
    return found;
}

static PyObject* traced_call(PyObject* self, PyObject* const* args, Py_ssize_t count,
                             PyObject* keywords) {
    int plain = is_untraced(self);
    if (plain < 0) return NULL;
    if (plain) return call_untraced(PyTuple_GET_ITEM(self, 1), args, count, keywords);
    return PyObject_Vectorcall(PyTuple_GET_ITEM(self, 2), args, (size_t)count, keywords);
}

static PyMethodDef verbs[] = {
    {"call", (PyCFunction)(void (*)(void))traced_call, METH_FASTCALL | METH_KEYWORDS, NULL},
};

/* trace_verb(name, variable, behaviour, function): the verb for an instance of a behaviour. */
PyObject* trace_verb(PyObject* Py_UNUSED(module), PyObject* args) {
    const char* name;
    PyObject *variable, *behaviour, *function;
    if (!PyArg_ParseTuple(args, "sO!OO", &name, &PyContextVar_Type, &variable, &behaviour,
                          &function))
        return NULL;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(verbs); i++) {
        if (strcmp(name, verbs[i].ml_name) != 0) continue;
        PyObject* self = PyTuple_Pack(3, variable, behaviour, function);
        if (self == NULL) return NULL;
        PyObject* made = PyCFunction_New(&verbs[i], self);
        Py_DECREF(self);
        return made;
    }
    return PyErr_Format(PyExc_LookupError, "no verb %s looks for a trace", name);
}
