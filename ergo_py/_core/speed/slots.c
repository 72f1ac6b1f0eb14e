/* The classes, functions and slots of Python that this module uses. bind() looks them up. */
#include "speed.h"

struct Bound bound;
struct OfProcess of_process;
struct OfTurn of_turn;
struct OfRouter of_router;
struct OfOutbox of_outbox;
struct OfCalls of_calls;
struct OfUnfinished of_unfinished;
struct OfCaller of_caller;
struct OfMailbox of_mailbox;
struct OfTask of_task;
struct OfHandoff of_handoff;
struct OfMeta of_meta;
struct OfClock of_clock;
struct OfTimer of_timer;
struct OfTimers of_timers;
struct OfOwned of_owned;
Py_ssize_t aliases_of_registry, mark_of_placeholder, size_of_queue, is_cancelled_of_status,
    router_of_publisher, state_of_handler, subscribers_of_event;
PyObject *str_admit_waiters, *str_after_task_step, *str_append, *str_attempt_cancel,
    *str_before_task_step, *str_calls, *str_task_scheduled, *str_do_deferred,
    *str_earlier, *str_end, *str_end_wait, *str_failed_inline, *str_finish, *str_give, *str_handle_call,
    *str_handle_event, *str_is_asked_again_by, *str_is_seeded, *str_items, *str_handle_message, *str_leave, *str_look, *str_mailbox, *str_own_turn, *str_perf_counter, *str_slice_clock,
    *str_popleft, *str_process, *str_refusal_of_none, *str_run, *str_send, *str_send_method,
    *str_serves_in_passing, *str_settle, *str_task, *str_timeout, *str_timers, *str_undefer,
    *str_wait, *str_waiters, *str_wake, *str_wake_caller;
PyObject *zero, *usual_timeout;

#define IN(class, group, name) {#class, #name, &group.name}

static const SlotName slots[] = {
    IN(Process, of_process, id), IN(Process, of_process, main), IN(Process, of_process, sent),
    IN(Process, of_process, takes_direct), IN(Process, of_process, last_receiver),
    IN(Process, of_process, priority), IN(Process, of_process, router),
    IN(Process, of_process, task), IN(Process, of_process, accepting),
    IN(Process, of_process, asked_by),
    IN(Process, of_process, behaviour), IN(Process, of_process, callback_task),
    IN(Process, of_process, state), IN(Process, of_process, turn), IN(Process, of_process, deferred),
    IN(Process, of_process, history),
    IN(Process, of_process, kernel), IN(Process, of_process, mailbox),
    IN(Process, of_process, timers), IN(Process, of_process, waiting), {"Process", "inline", &of_process.inline_calls},
    IN(Turn, of_turn, abandonable), IN(Turn, of_turn, batch),
    IN(Turn, of_turn, handled), IN(Turn, of_turn, handling), IN(Turn, of_turn, published),
    IN(Turn, of_turn, running_time), IN(Turn, of_turn, woken), IN(Router, of_router, loop_thread),
    IN(Router, of_router, last_receiver), IN(Router, of_router, processes),
    IN(Router, of_router, references), IN(Router, of_router, registry), IN(Router, of_router, turns),
    {"Registry", "aliases", &aliases_of_registry}, IN(Outbox, of_outbox, backlog),
    IN(Outbox, of_outbox, direct), {"Outbox", "_holds", &of_outbox.holds},
    {"Outbox", "_overran", &of_outbox.overran}, {"Outbox", "_peer", &of_outbox.peer},
    {"Outbox", "_queue", &of_outbox.queue}, {"Outbox", "_sender", &of_outbox.sender},
    {"Outbox", "_waits_at_mailbox", &of_outbox.waits_at_mailbox}, IN(Mailbox, of_mailbox, ahead),
    IN(Mailbox, of_mailbox, limit), IN(Mailbox, of_mailbox, log), IN(Mailbox, of_mailbox, main), IN(Mailbox, of_mailbox, waiters),
    IN(Meta, of_meta, handler), IN(Meta, of_meta, id), IN(Meta, of_meta, mailbox),
    IN(Meta, of_meta, outbox), IN(Meta, of_meta, priority), IN(Meta, of_meta, router),
    IN(Meta, of_meta, serve_inline), IN(Meta, of_meta, served_inline),
    {"Handler", "state", &state_of_handler},
    {"Calls", "_budget", &of_calls.budget}, {"Calls", "_free", &of_calls.free},
    {"Calls", "_later", &of_calls.later}, {"Calls", "_router", &of_calls.router},
    {"Calls", "_slice_end", &of_calls.slice_end}, {"Calls", "_turn_of", &of_calls.turn_of},
    IN(Calls, of_calls, serving), IN(UnfinishedCall, of_unfinished, caller),
    IN(UnfinishedCall, of_unfinished, is_due), IN(UnfinishedCall, of_unfinished, left),
    {"TaskCaller", "_begun", &of_caller.begun}, IN(TaskCaller, of_caller, callee),
    {"TaskCaller", "_deferred", &of_caller.deferred},
    {"TaskCaller", "_endless", &of_caller.endless}, IN(TaskCaller, of_caller, error),
    IN(TaskCaller, of_caller, number), IN(TaskCaller, of_caller, pid),
    IN(TaskCaller, of_caller, request), IN(TaskCaller, of_caller, settled),
    IN(TaskCaller, of_caller, task), IN(TaskCaller, of_caller, to),
    IN(TaskCaller, of_caller, value), {"Task", "custom_sleep_data", &of_task.mark},
    IN(Task, of_task, context), IN(Task, of_task, coro), {"Task", "_cancel_status", &of_task.status},
    {"Task", "_abort_func", &of_task.abort_func}, {"Task", "_cancel_points", &of_task.cancel_points},
    {"Task", "_next_send", &of_task.next_send}, {"Task", "_runner", &of_task.runner},
    {"Task", "_next_send_fn", &of_task.next_send_fn}, {"Task", "_schedule_points", &of_task.schedule_points},
    {"CancelStatus", "effectively_cancelled", &is_cancelled_of_status},
    {"Handoff", "defers", &of_handoff.defers}, {"Handoff", "_deferred", &of_handoff.deferred},
    {"Handoff", "_context", &of_handoff.context}, {"Handoff", "_hooks", &of_handoff.hooks}, {"Handoff", "_queue", &of_handoff.queue},
    {"Handoff", "_ready", &of_handoff.ready},
    {"Handoff", "_root", &of_handoff.root}, {"Handoff", "_runner", &of_handoff.runner}, {"Handoff", "_steps", &of_handoff.steps},
    {"RunQueue", "size", &size_of_queue},
    {"TaskPlaceholder", "custom_sleep_data", &mark_of_placeholder},
    {"Publisher", "_router", &router_of_publisher}, {"Event", "subscribers", &subscribers_of_event},
    {"Clock", "_next", &of_clock.next}, IN(Clock, of_clock, now), IN(Clock, of_clock, timers),
    IN(Timer, of_timer, message), IN(Timer, of_timer, owner), IN(Timer, of_timer, period),
    IN(Timer, of_timer, priority), {"Timer", "_table", &of_timer.table}, IN(Timer, of_timer, to),
    {"Timers", "_cancelled", &of_timers.cancelled}, {"Timers", "_due", &of_timers.due},
    {"Timers", "_firing", &of_timers.firing}, {"Timers", "_heap", &of_timers.heap},
    IN(Timers, of_timers, own_thread), {"Timers", "_seq", &of_timers.seq},
    {"Owned", "_due", &of_owned.due},
    {"Owned", "_over", &of_owned.over},
};

#define CLASS(name) {#name, (PyObject**)&bound.name, 1}
#define OBJECT(name) {#name, &bound.name, 0}

static const ObjectName names[] = {
    CLASS(Alias), CLASS(Calls), CLASS(CancelStatus), CLASS(Clock), CLASS(Event), CLASS(Handoff), CLASS(Mailbox),
    CLASS(Meta), CLASS(Outbox), CLASS(Owned), CLASS(PID),
    CLASS(Process), CLASS(Publisher), CLASS(Registry), CLASS(Router), CLASS(RunQueue), CLASS(Task), CLASS(TaskCaller), CLASS(TaskPlaceholder),
    CLASS(Timer), CLASS(Timers), CLASS(Turn), CLASS(UnfinishedCall), OBJECT(META_SLEEP), OBJECT(NORMAL), OBJECT(NOT_MADE), OBJECT(NO_RECEIVER), OBJECT(NO_REPLY), OBJECT(NO_TURN), OBJECT(PARKED),
    OBJECT(RUNNING), OBJECT(Reject), OBJECT(SLEEP), OBJECT(STOPPING), OBJECT(TRAP),
    OBJECT(WAIT_RESPONSE), OBJECT(abort), OBJECT(answer_now),
    OBJECT(begin_wait), OBJECT(check_plain), OBJECT(current_task), OBJECT(note_error),
    OBJECT(note_late_reply), OBJECT(open_scopes), OBJECT(perf_counter),
    OBJECT(serve), OBJECT(serve_in_place), OBJECT(sources), OBJECT(wake), OBJECT(wake_with),
    {"Behaviour.call", &bound.behaviour_call, 0}, {"Behaviour.send", &bound.behaviour_send, 0},
    {"Calls.call", &bound.calls_call, 0}, {"Clock.arm_timer", &bound.clock_arm_timer, 0},
    {"Timer.cancel", &bound.timer_cancel, 0}, {"Outbox.deliver", &bound.outbox_deliver, 0},
    {"Handoff.end_asleep", &bound.handoff_end_asleep, 0}, {"Handoff.serve", &bound.handoff_serve, 0}, {"Publisher.deliver", &bound.publisher_deliver, 0},
    {"Router.send", &bound.router_send, 0},
    {"TaskCaller.settle", &bound.caller_settle, 0}, {"TaskCaller.settle_in", &bound.caller_settle_in, 0},
};

/* The offset of a slot in the instances of a class; -1 with an error if there is no such slot. */
Py_ssize_t slot_offset(PyObject* class, const char* name) {
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

/* Look up slots, classes and functions in a dict {name: object}. All or none. */
PyObject* bind_table(PyObject* objects, const SlotName* slots, size_t slot_count,
                     const ObjectName* names, size_t name_count) {
    if (!PyDict_CheckExact(objects)) return PyErr_Format(PyExc_TypeError, "bind() takes a dict");
    for (int sets = 0; sets < 2; sets++) { /* first look whether all are there */
        for (size_t i = 0; i < slot_count; i++) {
            PyObject* class = PyDict_GetItemString(objects, slots[i].class);
            if (class == NULL)
                return PyErr_Format(PyExc_TypeError, "bind() needs %s", slots[i].class);
            Py_ssize_t offset = slot_offset(class, slots[i].slot);
            if (offset < 0) return NULL;
            if (sets) *slots[i].offset = offset;
        }
        for (size_t i = 0; i < name_count; i++) {
            PyObject* found = PyDict_GetItemString(objects, names[i].name);
            if (found == NULL || (names[i].is_class && !PyType_Check(found)))
                return PyErr_Format(PyExc_TypeError, "bind() needs %s", names[i].name);
            /* All interpreters of a program share these objects: only the first uses the module. */
            if (names[i].is_class && *names[i].object != NULL && *names[i].object != found)
                return PyErr_Format(PyExc_TypeError, "bind() has another %s already, of another interpreter",
                                    names[i].name);
            if (sets) Py_XSETREF(*names[i].object, Py_NewRef(found));
        }
    }
    Py_RETURN_NONE;
}

/* bind({name: object}): look up the classes, functions and slots of the kernel. */
PyObject* bind_names(PyObject* Py_UNUSED(module), PyObject* objects) {
    return bind_table(objects, slots, Py_ARRAY_LENGTH(slots), names, Py_ARRAY_LENGTH(names));
}
