/* Rest: the rest of an async callback that has begun to wait. */
#include "speed.h"

/* Batch.run() has sent the first None into a callback's coroutine, and got what it yields to trio.
   Awaiting this object yields that first, and then is the coroutine, also for code that walks the
   stack of a task: all other attributes are those of the coroutine. */
typedef struct {
    PyObject_HEAD PyObject* coroutine;
    PyObject* yielded; /* NULL once it has been passed on */
    PyObject *behaviour, *process; /* as in `running`, while it runs; NULL if it is not known */
} Rest;

/* Steals both references. */
PyObject* rest_new(PyObject* coroutine, PyObject* yielded) {
    Rest* rest = PyObject_GC_New(Rest, &RestType);
    if (rest == NULL) {
        Py_DECREF(coroutine);
        Py_DECREF(yielded);
        return NULL;
    }
    rest->coroutine = coroutine, rest->yielded = yielded;
    rest->behaviour = Py_XNewRef(running.behaviour);
    rest->process = rest->behaviour == NULL ? NULL : Py_NewRef(running.process);
    PyObject_GC_Track(rest);
    return (PyObject*)rest;
}

static PySendResult rest_am_send(Rest* rest, PyObject* value, PyObject** result) {
    if (rest->yielded != NULL) {
        *result = rest->yielded;
        rest->yielded = NULL;
        return PYGEN_NEXT;
    }
    struct Running outer = begin_callbacks(rest->behaviour, rest->process);
    PySendResult how = PyIter_Send(rest->coroutine, value, result);
    end_callbacks(outer);
    return how;
}

static PyObject* rest_send(Rest* rest, PyObject* value) {
    PyObject* result = NULL;
    PySendResult how = rest_am_send(rest, value, &result);
    if (how == PYGEN_NEXT) return result;
    if (how == PYGEN_RETURN) {
        /* Made here: PyErr_SetObject() would take a tuple for all arguments of the exception. */
        PyObject* end = PyObject_CallOneArg(PyExc_StopIteration, result);
        if (end != NULL) PyErr_SetObject(PyExc_StopIteration, end);
        Py_XDECREF(end);
        Py_DECREF(result);
    }
    return NULL;
}

static PyObject* rest_next(Rest* rest) { return rest_send(rest, Py_None); }

static PyObject* rest_throw(Rest* rest, PyObject* args) {
    Py_CLEAR(rest->yielded);
    PyObject* throw = PyObject_GetAttrString(rest->coroutine, "throw");
    PyObject* result = throw == NULL ? NULL : PyObject_Call(throw, args, NULL);
    Py_XDECREF(throw);
    return result;
}

static PyObject* rest_close(Rest* rest, PyObject* Py_UNUSED(none)) {
    Py_CLEAR(rest->yielded);
    return PyObject_CallMethod(rest->coroutine, "close", NULL);
}

static PyObject* rest_getattro(Rest* rest, PyObject* name) {
    PyObject* found = PyObject_GenericGetAttr((PyObject*)rest, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    PyErr_Clear();
    return PyObject_GetAttr(rest->coroutine, name);
}

static int rest_traverse(Rest* rest, visitproc visit, void* arg) {
    Py_VISIT(rest->coroutine);
    Py_VISIT(rest->yielded);
    Py_VISIT(rest->behaviour);
    Py_VISIT(rest->process);
    return 0;
}

static void rest_dealloc(Rest* rest) {
    PyObject_GC_UnTrack(rest);
    Py_CLEAR(rest->yielded);
    Py_CLEAR(rest->coroutine);
    Py_CLEAR(rest->behaviour);
    Py_CLEAR(rest->process);
    PyObject_GC_Del(rest);
}

static PyMethodDef rest_methods[] = {
    {"send", (PyCFunction)rest_send, METH_O, NULL},
    {"throw", (PyCFunction)rest_throw, METH_VARARGS, NULL},
    {"close", (PyCFunction)rest_close, METH_NOARGS, NULL},
    {NULL},
};

static PyAsyncMethods rest_as_async = {
    .am_await = PyObject_SelfIter,
    .am_send = (sendfunc)rest_am_send,
};

PyTypeObject RestType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ergo_py._core.speed._speed.Rest",
    .tp_doc = "The rest of a coroutine that has begun to wait.",
    .tp_basicsize = sizeof(Rest),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = (destructor)rest_dealloc,
    .tp_traverse = (traverseproc)rest_traverse,
    .tp_getattro = (getattrofunc)rest_getattro,
    .tp_as_async = &rest_as_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)rest_next,
    .tp_methods = rest_methods,
};
