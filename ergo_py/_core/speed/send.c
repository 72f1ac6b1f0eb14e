/* Behaviour.send, Router.send, Outbox.deliver and Publisher.deliver. */
#include "speed.h"

/* Whether any thread may append to the main lane of a process without a check, and the lane is one
   of ours. A lane that a supervisor kept for a restarted child may be a deque. */
int takes_direct(PyObject* process) {
    PyObject* main = SLOT(process, of_process.main);
    return SLOT(process, of_process.takes_direct) == Py_True && main != NULL &&
           Py_IS_TYPE(main, &LaneType);
}

/* Append a message to the main lane of `receiver`, and wake it if it sleeps: the lines of
   Router.send that hot paths repeat. The receiver must be kept alive by the caller. */
static int deliver(PyObject* receiver, PyObject* sender, PyObject* ref, PyObject* message) {
    if (lane_push((Lane*)SLOT(receiver, of_process.main), MESSAGE, sender, ref, message) < 0)
        return -1;
    PyObject *task = SLOT(receiver, of_process.task), *mark = NULL;
    if (Py_IS_TYPE(task, bound.Task))
        mark = SLOT(task, of_task.mark);
    else if (Py_IS_TYPE(task, bound.TaskPlaceholder))
        mark = SLOT(task, mark_of_placeholder);
    if (mark == Py_None) return 0;
    int is_woken = mark == bound.PARKED ? wake_by_root(receiver, task) : 0;
    if (is_woken != 0) return is_woken < 0 ? -1 : 0;
    return call_method(receiver, str_wake);
}

int is_on_loop(PyObject* router) {
    PyObject* ident = SLOT(router, of_router.loop_thread);
    return ident != NULL && PyLong_AsUnsignedLong(ident) == PyThread_get_thread_ident();
}

/* The process at `to` that takes direct appends, from the cache in a slot of `owner` or from the
   router's table. NULL if there is none, or with an error. The reference is the caller's own. */
static PyObject* direct_receiver(PyObject* owner, Py_ssize_t cache, PyObject* router, PyObject* to,
                                 int may_cache) {
    PyObject* receiver = SLOT(owner, cache);
    if (is_process(receiver) && SLOT(receiver, of_process.id) == to) {
        return takes_direct(receiver) ? Py_NewRef(receiver) : NULL;
    }
    PyObject* processes = SLOT(router, of_router.processes);
    if (processes == NULL || !PyDict_CheckExact(processes)) return NULL;
    receiver = PyDict_GetItemWithError(processes, to);
    if (!is_process(receiver)) return NULL;
    Py_INCREF(receiver);
    /* The end of the process in the cache may run Python code. */
    if (may_cache) Py_XSETREF(SLOT(owner, cache), Py_NewRef(receiver));
    if (takes_direct(receiver)) return receiver;
    Py_DECREF(receiver);
    return NULL;
}

/* Meta.serves_in_passing(message, sender). 1 if it has served the message, 0 if not, -1 with an
   error. */
static int meta_serves(PyObject* meta, PyObject* sender, PyObject* message) {
    PyObject *serve = SLOT(meta, of_meta.serve_inline), *box = SLOT(meta, of_meta.mailbox),
             *handler = SLOT(meta, of_meta.handler);
    if (serve == Py_None || SLOT(handler, state_of_handler) != bound.META_SLEEP ||
        PyObject_Size(SLOT(box, of_mailbox.main)) != 0 ||
        SLOT(box, of_mailbox.ahead) != Py_False || !is_on_loop(SLOT(meta, of_meta.router)))
        return 0;
    Py_INCREF(serve);
    PyObject* stack[3] = {NULL, message, sender};
    PyObject* served =
        PyObject_Vectorcall(serve, stack + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_DECREF(serve);
    if (served == NULL) { /* the meta-process ends, and not the sender */
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
        PyObject *error = take_exception(), *outer = PyErr_GetHandledException();
        PyObject* envelope = Py_BuildValue("(iOOO)", MESSAGE, sender, Py_None, message);
        PyErr_SetHandledException(error);
        if (envelope != NULL)
            served = PyObject_CallMethodObjArgs(SLOT(meta, of_meta.handler), str_failed_inline,
                                                envelope, error, NULL);
        PyErr_SetHandledException(outer);
        Py_XDECREF(envelope);
        Py_DECREF(error);
        Py_XDECREF(outer);
        Py_XDECREF(served);
        return served == NULL ? -1 : 1;
    }
    int is_served = PyObject_IsTrue(served);
    Py_DECREF(served);
    if (is_served > 0 && add_one(meta, of_meta.served_inline) < 0) return -1;
    return is_served;
}

/* The lines of Router.send for an alias: the meta-process there may serve a message in the turn of
   its sender. 1 if it has, 0 if Python has to send the message, -1 with an error. */
static int serve_in_passing(PyObject* router, PyObject* sender, PyObject* to, PyObject* message) {
    PyObject* registry = SLOT(router, of_router.registry);
    if (registry == NULL || !Py_IS_TYPE(registry, bound.Registry)) return 0;
    PyObject* aliases = SLOT(registry, aliases_of_registry);
    if (aliases == NULL || !PyDict_CheckExact(aliases)) return 0;
    PyObject* receiver = PyDict_GetItemWithError(aliases, to);
    if (receiver == NULL) return PyErr_Occurred() ? -1 : 0;
    if (is_process(receiver)) return 0; /* a process serves messages in its own turn only */
    Py_INCREF(receiver);
    int is_served;
    if (Py_IS_TYPE(receiver, bound.Meta)) {
        is_served = meta_serves(receiver, sender, message);
    } else {
        PyObject* served = PyObject_CallMethodObjArgs(receiver, str_serves_in_passing, message,
                                                      sender, NULL);
        is_served = served == NULL ? -1 : PyObject_IsTrue(served);
        Py_XDECREF(served);
    }
    Py_DECREF(receiver);
    return is_served;
}

/* Behaviour.send(to, message), without a priority, to an alias. As send_from(). */
static int send_to_alias(PyObject* process, PyObject* router, PyObject* to, PyObject* message) {
    if (router == NULL || !Py_IS_TYPE(router, bound.Router)) return 0; /* that of an observed node */
    if (SLOT(process, of_process.priority) != bound.NORMAL) return 0;
    int is_served = serve_in_passing(router, SLOT(process, of_process.id), to, message);
    if (is_served > 0 && add_one(process, of_process.sent) < 0) return -1;
    return is_served;
}

/* Behaviour.send(to, message), without a priority, to the PID of a process that takes direct
   appends. 1 if it is done, 0 if Python has to do it, -1 with an error. */
static int send_from(PyObject* process, PyObject* to, PyObject* message) {
    PyObject* router = SLOT(process, of_process.router);
    if (Py_IS_TYPE(to, bound.Alias)) return send_to_alias(process, router, to, message);
    PyObject* last = SLOT(process, of_process.last_receiver);
    int is_cached = is_process(last) && SLOT(last, of_process.id) == to;
    if (!is_cached) {
        if (!Py_IS_TYPE(to, bound.PID) || SLOT(process, of_process.priority) != bound.NORMAL)
            return 0;
        if (router == NULL || !PyObject_TypeCheck(router, bound.Router)) return 0;
    }
    /* Only the loop's thread may write the cache. */
    PyObject* receiver = direct_receiver(process, of_process.last_receiver, router, to,
                                         !is_cached && is_on_loop(router));
    if (receiver == NULL) return PyErr_Occurred() ? -1 : 0;
    int failed = add_one(process, of_process.sent) < 0 ||
                 deliver(receiver, SLOT(process, of_process.id), Py_None, message) < 0;
    Py_DECREF(receiver);
    return failed ? -1 : 1;
}

/* Call the Python function with the arguments of its twin. */
PyObject* call_twin(PyObject* function, PyObject* self, PyObject* const* args,
                    Py_ssize_t count, PyObject* keywords) {
    PyObject* stack[8] = {self};
    Py_ssize_t all = count + (keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords));
    if (all >= (Py_ssize_t)Py_ARRAY_LENGTH(stack)) {
        return PyErr_Format(PyExc_TypeError, "too many arguments: %zd", all);
    }
    for (Py_ssize_t i = 0; i < all; i++) stack[i + 1] = args[i];
    return PyObject_Vectorcall(function, stack, (size_t)count + 1, keywords);
}

/* Behaviour.send(to, message, *, priority=None) */
PyObject* behaviour_send(PyObject* self, PyObject* const* args, Py_ssize_t count,
                                PyObject* keywords) {
    if (count == 2 && keywords == NULL) {
        PyObject* process = process_of(self);
        if (process == NULL) return NULL;
        int done = is_process(process) ? send_from(process, args[0], args[1]) : 0;
        Py_DECREF(process);
        if (done < 0) return NULL;
        if (done) Py_RETURN_TRUE;
    }
    return call_twin(bound.behaviour_send, self, args, count, keywords);
}

/* Router.send(sender, to, message, priority) */
PyObject* router_send(PyObject* router, PyObject* const* args, Py_ssize_t count,
                             PyObject* keywords) {
    if (count == 4 && keywords == NULL && args[3] == bound.NORMAL &&
        Py_IS_TYPE(args[1], bound.PID)) {
        PyObject* receiver = direct_receiver(router, of_router.last_receiver, router, args[1], 1);
        if (receiver == NULL && PyErr_Occurred()) return NULL;
        if (receiver != NULL) {
            int failed = deliver(receiver, args[0], Py_None, args[2]);
            Py_DECREF(receiver);
            if (failed) return NULL;
            Py_RETURN_TRUE;
        }
        PyObject* processes = SLOT(router, of_router.processes);
        if (processes != NULL && PyDict_CheckExact(processes)) {
            int is_here = PyDict_Contains(processes, args[1]);
            if (is_here < 0) return NULL;
            if (!is_here) { /* mostly a process of another node */
                PyObject* stack[5] = {router, args[0], args[1], args[2], args[3]};
                return PyObject_VectorcallMethod(str_send, stack, 5, NULL);
            }
        }
    }
    if (count == 4 && keywords == NULL && args[3] == bound.NORMAL &&
        Py_IS_TYPE(args[1], bound.Alias)) {
        int is_served = serve_in_passing(router, args[0], args[1], args[2]);
        if (is_served < 0) return NULL;
        if (is_served) Py_RETURN_TRUE;
    }
    return call_twin(bound.router_send, router, args, count, keywords);
}

/* Whether Outbox.deliver may append to the mailbox of the receiver of the last message. */
static int keeps_up(PyObject* outbox, PyObject* receiver) {
    PyObject *queue = SLOT(outbox, of_outbox.queue), *backlog = SLOT(outbox, of_outbox.backlog);
    int is_huge;
    return takes_direct(receiver) && SLOT(outbox, of_outbox.holds) == Py_False &&
           SLOT(outbox, of_outbox.overran) == Py_False && queue != NULL && PyObject_Size(queue) == 0 &&
           backlog != NULL && PyLong_CheckExact(backlog) &&
           (((Lane*)SLOT(receiver, of_process.main))->length <
                PyLong_AsLongAndOverflow(backlog, &is_huge) ||
            is_huge > 0);
}

/* Outbox.deliver(to, message, priority), to the receiver of the last message. */
PyObject* outbox_deliver(PyObject* outbox, PyObject* const* args, Py_ssize_t count,
                         PyObject* keywords) {
    PyObject* receiver = SLOT(outbox, of_outbox.peer);
    if (count == 3 && keywords == NULL && args[2] == bound.NORMAL && is_process(receiver) &&
        SLOT(receiver, of_process.id) == args[0] && keeps_up(outbox, receiver)) {
        Py_INCREF(receiver);
        int failed = add_one(outbox, of_outbox.direct) < 0 ||
                     deliver(receiver, SLOT(outbox, of_outbox.sender), args[0], args[1]) < 0;
        Py_DECREF(receiver);
        if (failed) return NULL;
        Py_RETURN_TRUE;
    }
    return call_twin(bound.outbox_deliver, outbox, args, count, keywords);
}

/* The lines of Publisher.deliver for a single subscriber. 1 if it has taken the publication, 0 if not,
   -1 with an error. */
static int give(PyObject* publisher, PyObject* processes, PyObject* pair, PyObject* const* args) {
    PyObject *pid = PyTuple_GET_ITEM(pair, 0), *envelope = args[1];
    PyObject* process = PyDict_GetItemWithError(processes, pid);
    if (process == NULL && PyErr_Occurred()) return -1;
    if (!is_process(process) || !takes_direct(process)) {
        process = Py_NewRef(process == NULL ? bound.NO_RECEIVER : process);
        PyObject* taken =
            PyObject_CallMethodObjArgs(publisher, str_give, pid, process, args[0], envelope, args[2],
                                       PyTuple_GET_ITEM(pair, 1), NULL);
        int is_taken = taken == NULL ? -1 : PyObject_IsTrue(taken);
        Py_XDECREF(taken);
        Py_DECREF(process);
        return is_taken;
    }
    if (lane_push((Lane*)SLOT(process, of_process.main), PyLong_AsLong(PyTuple_GET_ITEM(envelope, 0)),
                  PyTuple_GET_ITEM(envelope, 1), PyTuple_GET_ITEM(envelope, 2),
                  PyTuple_GET_ITEM(envelope, 3)) < 0)
        return -1;
    PyObject* task = SLOT(process, of_process.task);
    if (!Py_IS_TYPE(task, bound.Task) || SLOT(task, of_task.mark) != bound.PARKED) return 1;
    Py_INCREF(task);
    PyObject* woken = PyObject_CallOneArg(bound.wake, task);
    Py_DECREF(task);
    Py_XDECREF(woken);
    return woken == NULL ? -1 : 1;
}

/* Publisher.deliver(event, envelope, context) */
PyObject* publisher_deliver(PyObject* publisher, PyObject* const* args, Py_ssize_t count,
                            PyObject* keywords) {
    PyObject* router = SLOT(publisher, router_of_publisher);
    if (count != 3 || keywords != NULL || !Py_IS_TYPE(args[0], bound.Event) ||
        !PyTuple_CheckExact(args[1]) || PyTuple_GET_SIZE(args[1]) != 4 ||
        !PyObject_TypeCheck(router, bound.Router) ||
        !PyDict_CheckExact(SLOT(router, of_router.processes)))
        return call_twin(bound.publisher_deliver, publisher, args, count, keywords);
    PyObject* processes = Py_NewRef(SLOT(router, of_router.processes));
    /* An iterator notices that Python code has changed the table meanwhile. */
    PyObject* items = PyObject_CallMethodNoArgs(SLOT(args[0], subscribers_of_event), str_items);
    PyObject *iterator = items == NULL ? NULL : PyObject_GetIter(items), *pair;
    Py_ssize_t dropped = 0;
    while (iterator != NULL && (pair = PyIter_Next(iterator)) != NULL) {
        int is_taken = give(publisher, processes, pair, args);
        Py_DECREF(pair);
        if (is_taken < 0) break;
        dropped += !is_taken;
    }
    Py_XDECREF(iterator), Py_XDECREF(items);
    Py_DECREF(processes);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(dropped);
}
