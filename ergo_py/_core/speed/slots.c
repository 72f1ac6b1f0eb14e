/* The classes, functions and slots of Python that this module uses. bind() looks them up. */
#include "speed.h"

struct Bound bound;
struct OfProcess of_process;
struct OfTurn of_turn;
struct OfRouter of_router;
struct OfCalls of_calls;
struct OfCaller of_caller;
struct OfMailbox of_mailbox;
Py_ssize_t mark_of_task, mark_of_placeholder, context_of_task, status_of_task;
PyObject *str_admit_waiters, *str_handle_call, *str_handle_message, *str_look, *str_own_turn,
    *str_perf_counter, *str_process, *str_wake;
PyObject* zero; /* 0.0 */

#define IN(class, group, name) {#class, #name, &group.name}

static const struct {
    const char *class, *slot;
    Py_ssize_t* offset;
} slots[] = {
    IN(Process, of_process, id), IN(Process, of_process, main), IN(Process, of_process, sent),
    IN(Process, of_process, takes_direct), IN(Process, of_process, last_receiver),
    IN(Process, of_process, priority), IN(Process, of_process, router),
    IN(Process, of_process, task), IN(Process, of_process, accepting),
    IN(Process, of_process, behaviour), IN(Process, of_process, callback_task),
    IN(Process, of_process, state), IN(Process, of_process, turn),
    IN(Process, of_process, waiting), {"Process", "inline", &of_process.inline_calls},
    IN(Turn, of_turn, handled), IN(Turn, of_turn, handling), IN(Turn, of_turn, running_time),
    IN(Turn, of_turn, woken), IN(Router, of_router, loop_thread),
    IN(Router, of_router, last_receiver), IN(Router, of_router, processes),
    IN(Router, of_router, references), IN(Mailbox, of_mailbox, ahead),
    IN(Mailbox, of_mailbox, limit), IN(Mailbox, of_mailbox, waiters),
    {"Calls", "_free", &of_calls.free}, {"Calls", "_router", &of_calls.router},
    {"Calls", "_turn_of", &of_calls.turn_of}, IN(TaskCaller, of_caller, callee),
    {"TaskCaller", "_deferred", &of_caller.deferred}, IN(TaskCaller, of_caller, error),
    IN(TaskCaller, of_caller, number), IN(TaskCaller, of_caller, pid),
    IN(TaskCaller, of_caller, request), IN(TaskCaller, of_caller, settled),
    IN(TaskCaller, of_caller, task), IN(TaskCaller, of_caller, to),
    IN(TaskCaller, of_caller, value), {"Task", "custom_sleep_data", &mark_of_task},
    {"Task", "context", &context_of_task}, {"Task", "_cancel_status", &status_of_task},
    {"TaskPlaceholder", "custom_sleep_data", &mark_of_placeholder},
};

#define CLASS(name) {#name, (PyObject**)&bound.name, 1}
#define OBJECT(name) {#name, &bound.name, 0}

static const struct {
    const char* name;
    PyObject** object;
    int is_class;
} names[] = {
    CLASS(Calls), CLASS(Mailbox), CLASS(PID), CLASS(Process), CLASS(Router), CLASS(Task),
    CLASS(TaskCaller), CLASS(TaskPlaceholder), CLASS(Turn), OBJECT(NORMAL), OBJECT(NO_REPLY),
    OBJECT(NO_TURN), OBJECT(PARKED), OBJECT(RUNNING), OBJECT(SLEEP), OBJECT(answer_now),
    OBJECT(check_plain), OBJECT(current_task), OBJECT(note_error), OBJECT(note_late_reply),
    OBJECT(open_scopes), OBJECT(protected_answer),
    {"Behaviour.send", &bound.behaviour_send, 0}, {"Router.send", &bound.router_send, 0},
};

/* The offset of a slot in the instances of a class; -1 with an error if there is no such slot. */
static Py_ssize_t slot_offset(PyObject* class, const char* name) {
    PyObject* found = PyObject_GetAttrString(class, name);
    Py_ssize_t offset = -1;
    if (found != NULL && Py_IS_TYPE(found, &PyMemberDescr_Type)) {
        PyMemberDef* member = ((PyMemberDescrObject*)found)->d_member;
        if (member->type == T_OBJECT_EX) offset = member->offset;
    }
    if (offset < 0) PyErr_Format(PyExc_TypeError, "%R.%s is not a slot", class, name);
    Py_XDECREF(found);
    return offset;
}

/* bind({name: object}): look up the classes, functions and slots used here. All or none. */
PyObject* bind(PyObject* Py_UNUSED(module), PyObject* objects) {
    Py_ssize_t offsets[Py_ARRAY_LENGTH(slots)];
    PyObject* found[Py_ARRAY_LENGTH(names)];
    if (!PyDict_CheckExact(objects)) return PyErr_Format(PyExc_TypeError, "bind() takes a dict");
    for (size_t i = 0; i < Py_ARRAY_LENGTH(slots); i++) {
        PyObject* class = PyDict_GetItemString(objects, slots[i].class);
        if (class == NULL) return PyErr_Format(PyExc_TypeError, "bind() needs %s", slots[i].class);
        offsets[i] = slot_offset(class, slots[i].slot);
        if (offsets[i] < 0) return NULL;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(names); i++) {
        found[i] = PyDict_GetItemString(objects, names[i].name);
        if (found[i] == NULL || (names[i].is_class && !PyType_Check(found[i]))) {
            return PyErr_Format(PyExc_TypeError, "bind() needs %s", names[i].name);
        }
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(slots); i++) *slots[i].offset = offsets[i];
    for (size_t i = 0; i < Py_ARRAY_LENGTH(names); i++) {
        Py_XSETREF(*names[i].object, Py_NewRef(found[i]));
    }
    Py_RETURN_NONE;
}
