/* SocketPoller._read_some, StreamReader._read_once, BufferedReads._has_bytes, Writer.serve and
   Writer.flush: the way of a message from a socket to its receiver, and of the answer to the socket. */
#include "speed.h"

#define LEAST (4 * 1024)         /* bytes to read at once, _LEAST of input.py */
#define ENDS_AT_ONCE 8           /* _ENDS_AT_ONCE of poller.py */
#define LARGEST_HELD (16 * 1024) /* _SMALL of writer.py */
#define MOST_PIECES 64           /* _PIECES of writer.py */

static PyTypeObject *Shutdown, *StreamInput, *SystemClock, *TCPData, *TCPSend, *TLSLayer,
    *WatchedSocket, *Writer;
static PyObject *INPUT_OPEN, *OUTPUT_CLOSED, *OUTPUT_OPEN, *POSSIBLE, *Socket,
    *current_time;
PyObject *buffered_twin, *flush_twin, *poller_twin, *reader_twin, *serve_twin;

static struct {
    Py_ssize_t _connection, _had_last_word, _held, _input, _read_limit, _shutdown, _socket, _target,
        _tls, _writer;
} of_reader;

static struct {
    Py_ssize_t _buffer, _connection, _input, _is_paused, _read_limit, _shutdown, _target, _writer;
} of_buffered;

static struct {
    Py_ssize_t _now, _parser, _tls, _weight, frame_since, has_more, last, messages, received, size, state;
} of_input;

static struct {
    Py_ssize_t _failed, _held, _limit, _now, _queue, _send, _slow, _tls, _turns, last, messages,
        pending, state, written;
} of_writer;

static struct {
    Py_ssize_t cause, mistake;
} of_shutdown;

static struct {
    Py_ssize_t phase, session;
} of_tls;

static struct {
    Py_ssize_t connection, data;
} of_data;

static Py_ssize_t data_of_send, failure_of_watch, offset_of_clock, readable_of_watch;

#define OF_READER(name) {"StreamReader", #name, &of_reader.name}
#define OF_BUFFERED(name) {"BufferedReads", #name, &of_buffered.name}
#define OF_INPUT(name) {"StreamInput", #name, &of_input.name}
#define OF_WRITER(name) {"Writer", #name, &of_writer.name}

static const SlotName slots[] = {
    OF_BUFFERED(_buffer), OF_BUFFERED(_connection), OF_BUFFERED(_input), OF_BUFFERED(_is_paused),
    OF_BUFFERED(_read_limit), OF_BUFFERED(_shutdown), OF_BUFFERED(_target), OF_BUFFERED(_writer),
    OF_READER(_connection), OF_READER(_had_last_word), OF_READER(_held), OF_READER(_input),
    OF_READER(_read_limit), OF_READER(_shutdown), OF_READER(_socket), OF_READER(_target),
    OF_READER(_tls), OF_READER(_writer), OF_INPUT(_now), OF_INPUT(_parser), OF_INPUT(_tls), OF_INPUT(_weight),
    OF_INPUT(frame_since), OF_INPUT(has_more), OF_INPUT(last), OF_INPUT(messages),
    OF_INPUT(received), OF_INPUT(size), OF_INPUT(state), OF_WRITER(_failed), OF_WRITER(_held),
    OF_WRITER(_limit), OF_WRITER(_now), OF_WRITER(_queue), OF_WRITER(_send), OF_WRITER(_slow),
    OF_WRITER(_tls), OF_WRITER(_turns), OF_WRITER(last), OF_WRITER(messages), OF_WRITER(pending),
    OF_WRITER(state), OF_WRITER(written), {"Shutdown", "cause", &of_shutdown.cause},
    {"Shutdown", "mistake", &of_shutdown.mistake}, {"TLSLayer", "phase", &of_tls.phase},
    {"TLSLayer", "session", &of_tls.session}, {"TCPData", "connection", &of_data.connection},
    {"TCPData", "data", &of_data.data}, {"TCPSend", "data", &data_of_send},
    {"SystemClock", "offset", &offset_of_clock}, {"WatchedSocket", "failure", &failure_of_watch},
    {"WatchedSocket", "readable", &readable_of_watch},
};

#define CLASS(name) {#name, (PyObject**)&name, 1}
#define OBJECT(name) {#name, &name, 0}

static const ObjectName names[] = {
    CLASS(Shutdown), {"Socket", &Socket, 1}, CLASS(StreamInput), CLASS(SystemClock), CLASS(TCPData), CLASS(TCPSend),
    CLASS(TLSLayer), CLASS(WatchedSocket), CLASS(Writer), OBJECT(INPUT_OPEN), OBJECT(OUTPUT_CLOSED),
    OBJECT(OUTPUT_OPEN), OBJECT(POSSIBLE), OBJECT(current_time),
    {"BufferedReads._has_bytes", &buffered_twin, 0}, {"SocketPoller._read_some", &poller_twin, 0}, {"StreamReader._read_once", &reader_twin, 0}, {"Writer.flush", &flush_twin, 0},
    {"Writer.serve", &serve_twin, 0},
};

static PyObject *str_end_after, *str_end_watch, *str_flush, *str_forward, *str_hand_over, *str_join,
    *str_keep, *str_keep_rest, *str_meta, *str_pause_if_behind, *str_resize, *str_serve_data, *str_take, *str_watches, *str_weigh,
    *str_write;

/* TCPSend(data), for bytes; type.__call__ for everything else. */
static PyObject* make_send(PyObject* class, PyObject* const* args, size_t flags, PyObject* names) {
    Py_ssize_t count = PyVectorcall_NARGS(flags), named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (count == 1 && named == 0 && PyBytes_CheckExact(args[0])) {
        PyObject* message = TCPSend->tp_alloc(TCPSend, 0);
        if (message != NULL) SLOT(message, data_of_send) = Py_NewRef(args[0]);
        return message;
    }
    PyObject *positional = PyTuple_New(count), *keywords = named == 0 ? NULL : PyDict_New(),
             *message = NULL;
    int failed = positional == NULL || (named > 0 && keywords == NULL);
    for (Py_ssize_t i = 0; !failed && i < count; i++)
        PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; !failed && i < named; i++)
        failed = PyDict_SetItem(keywords, PyTuple_GET_ITEM(names, i), args[count + i]) < 0;
    if (!failed) message = PyType_Type.tp_call(class, positional, keywords);
    Py_XDECREF(positional);
    Py_XDECREF(keywords);
    return message;
}

/* bind_streams({name: object}): look up the classes, functions and slots of stream connections. */
PyObject* bind_streams(PyObject* Py_UNUSED(module), PyObject* objects) {
    static const struct {
        PyObject** string;
        const char* text;
    } strings[] = {
        {&str_end_after, "end_after"},
        {&str_end_watch, "_end_watch"},
        {&str_flush, "flush"},
        {&str_forward, "forward"},
        {&str_hand_over, "_hand_over"},
        {&str_join, "join"},
        {&str_keep, "_keep"},
        {&str_keep_rest, "_keep_rest"},
        {&str_meta, "_meta"},
        {&str_pause_if_behind, "_pause_if_behind"},
        {&str_resize, "_resize"},
        {&str_serve_data, "_serve"},
        {&str_take, "take"},
        {&str_watches, "_watches"},
        {&str_weigh, "_weigh"},
        {&str_write, "write"},
    };
    for (size_t i = 0; i < Py_ARRAY_LENGTH(strings); i++) {
        if (*strings[i].string == NULL) *strings[i].string = PyUnicode_InternFromString(strings[i].text);
        if (*strings[i].string == NULL) return NULL;
    }
    PyObject* done =
        bind_table(objects, slots, Py_ARRAY_LENGTH(slots), names, Py_ARRAY_LENGTH(names));
    if (done == NULL) return NULL;
    if (bind_socket(Socket) < 0) {
        Py_DECREF(done);
        return NULL;
    }
    TCPSend->tp_vectorcall = make_send;
    return done;
}

/* object.slot = now() */
static int note_time(PyObject* object, Py_ssize_t offset, PyObject* now) {
    PyObject *clock = PyMethod_Check(now) ? PyMethod_GET_SELF(now) : NULL, *time = NULL;
#ifdef __linux__ /* where perf_counter() is this clock */
    if (clock != NULL && PyMethod_GET_FUNCTION(now) == current_time &&
        Py_IS_TYPE(clock, SystemClock) && PyFloat_CheckExact(SLOT(clock, offset_of_clock)))
        time = PyFloat_FromDouble(PyFloat_AS_DOUBLE(SLOT(clock, offset_of_clock)) + monotonic());
    else
#endif
        time = PyObject_CallNoArgs(now);
    if (time == NULL) return -1;
    Py_XSETREF(SLOT(object, offset), time);
    return 0;
}

/* object.name(size) */
static int call_with_size(PyObject* object, PyObject* name, Py_ssize_t size) {
    PyObject* number = PyLong_FromSsize_t(size);
    PyObject* done = number == NULL ? NULL : PyObject_CallMethodOneArg(object, name, number);
    Py_XDECREF(number);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Pass the exception that is set to a function, as in an `except` block: object.name(error), or
   object(error) without a name. */
static int call_with_error(PyObject* object, PyObject* name) {
    PyObject *error = take_exception(), *outer = PyErr_GetHandledException();
    PyErr_SetHandledException(error);
    PyObject* done = name == NULL ? PyObject_CallOneArg(object, error)
                                  : PyObject_CallMethodOneArg(object, name, error);
    PyErr_SetHandledException(outer);
    Py_DECREF(error);
    Py_XDECREF(outer);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Whether the answer of a method is true; -1 with an error. Steals the reference. */
static int is_true(PyObject* answer) {
    int is_done = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return is_done;
}

/* ---- reading ------------------------------------------------------------------------------------- */

/* StreamInput.take(data) of a raw stream in clear that has not ended: the message. */
static PyObject* take_raw(PyObject* input, PyObject* alias, PyObject* data) {
    Py_ssize_t size = PyBytes_GET_SIZE(data), room = PyLong_AsSsize_t(SLOT(input, of_input.size)),
               weight = PyLong_AsSsize_t(SLOT(input, of_input._weight));
    if (add_to(input, of_input.received, size) < 0) return NULL;
    if ((size == room || (size * 4 <= room && room != LEAST)) &&
        call_with_size(input, str_resize, size) < 0)
        return NULL;
    if (note_time(input, of_input.last, SLOT(input, of_input._now)) < 0) return NULL;
    slot_set(input, of_input.frame_since, Py_None);
    if (add_one(input, of_input.messages) < 0) return NULL;
    if (size >> 12 != weight && call_with_size(input, str_weigh, size) < 0) return NULL;
    PyObject* message = TCPData->tp_alloc(TCPData, 0);
    if (message == NULL) return NULL;
    SLOT(message, of_data.connection) = Py_NewRef(alias);
    SLOT(message, of_data.data) = Py_NewRef(data);
    return message;
}

/* Outbox.deliver or Outbox.forward. 1 if the message is sent, 0 if it has to wait, -1 with an
   error. */
static int pass_on(PyObject* meta, PyObject* to, PyObject* message) {
    PyObject *args[3] = {Py_NewRef(to), message, Py_NewRef(SLOT(meta, of_meta.priority))},
             *outbox = Py_NewRef(SLOT(meta, of_meta.outbox));
    int is_sent = is_true(outbox_deliver(outbox, args, 3, NULL));
    if (is_sent == 0)
        is_sent = is_true(
            PyObject_CallMethodObjArgs(outbox, str_forward, to, message, args[2], NULL));
    Py_DECREF(args[0]);
    Py_DECREF(args[2]);
    Py_DECREF(outbox);
    return is_sent;
}

/* Pass on the messages of a read. As pass_on(); messages that have to wait are held. */
static int pass_on_all(PyObject* reader, PyObject* meta, PyObject* messages) {
    PyObject *sequence = PySequence_Fast(messages, "messages of a read"),
             *to = Py_NewRef(SLOT(reader, of_reader._target)); /* a filter may replace it */
    int is_sent = sequence == NULL ? -1 : 1;
    for (Py_ssize_t i = 0; is_sent > 0 && i < PySequence_Fast_GET_SIZE(sequence); i++) {
        is_sent = pass_on(meta, to, PySequence_Fast_GET_ITEM(sequence, i));
        if (is_sent == 0) {
            PyObject* held = PySequence_GetSlice(sequence, i, PySequence_Fast_GET_SIZE(sequence));
            if (held == NULL) is_sent = -1;
            else Py_XSETREF(SLOT(reader, of_reader._held), held);
        }
    }
    Py_XDECREF(sequence);
    Py_DECREF(to);
    return is_sent;
}

/* The end of _read_once(): whether to keep watching the socket. -1 with an error. */
static int keeps_watching(PyObject* reader) {
    PyObject *input = SLOT(reader, of_reader._input), *shutdown = SLOT(reader, of_reader._shutdown);
    if (SLOT(shutdown, of_shutdown.cause) != Py_None ||
        SLOT(input, of_input.state) != INPUT_OPEN || SLOT(input, of_input.has_more) != Py_False)
        return 0;
    if (SLOT(shutdown, of_shutdown.mistake) != Py_None)
        return SLOT(reader, of_reader._had_last_word) == Py_True;
    return PyObject_RichCompareBool(SLOT(SLOT(reader, of_reader._writer), of_writer.pending),
                                    SLOT(reader, of_reader._read_limit), Py_LE);
}

/* Whether all parts of a connection are as StreamConnection has made them. */
static int is_usual(PyObject* reader, PyObject* meta) {
    PyObject *input = SLOT(reader, of_reader._input), *tls = SLOT(reader, of_reader._tls);
    return Py_IS_TYPE(meta, bound.Meta) && Py_IS_TYPE(input, StreamInput) &&
           Py_IS_TYPE(tls, TLSLayer) && Py_IS_TYPE(SLOT(reader, of_reader._shutdown), Shutdown) &&
           Py_IS_TYPE(SLOT(reader, of_reader._writer), Writer) &&
           Py_IS_TYPE(SLOT(meta, of_meta.outbox), bound.Outbox) &&
           SLOT(reader, of_reader._socket) != NULL && SLOT(input, of_input._parser) != NULL &&
           SLOT(tls, of_tls.phase) != POSSIBLE;
}

/* Read once and pass on. As keeps_watching(). */
static int read_once(PyObject* reader, PyObject* meta) {
    PyObject *input = SLOT(reader, of_reader._input), *shutdown = SLOT(reader, of_reader._shutdown),
             *nothing = PyTuple_New(0);
    if (nothing == NULL) return -1;
    Py_XSETREF(SLOT(reader, of_reader._held), nothing);
    PyObject* sock = Py_NewRef(SLOT(reader, of_reader._socket));
    PyObject* data = socket_receive(sock, SLOT(input, of_input.size));
    Py_DECREF(sock);
    if (data == NULL) {
        if (PyErr_ExceptionMatches(PyExc_BlockingIOError)) {
            PyErr_Clear();
            return 1;
        }
        if (!PyErr_ExceptionMatches(PyExc_OSError)) return -1;
        return call_with_error(shutdown, str_end_after);
    }
    int is_sent;
    if (PyBytes_CheckExact(data) && PyBytes_GET_SIZE(data) == 0) {
        is_sent = call_method(input, str_end);
    } else if (PyBytes_CheckExact(data) && SLOT(input, of_input._parser) == Py_None &&
               SLOT(SLOT(reader, of_reader._tls), of_tls.session) == Py_None &&
               SLOT(shutdown, of_shutdown.mistake) == Py_None) {
        PyObject* message = take_raw(input, SLOT(meta, of_meta.id), data);
        is_sent = message == NULL ? -1 : pass_on(meta, SLOT(reader, of_reader._target), message);
        if (is_sent == 0) {
            PyObject* held = PyTuple_Pack(1, message);
            if (held == NULL) is_sent = -1;
            else Py_XSETREF(SLOT(reader, of_reader._held), held);
        }
        Py_XDECREF(message);
    } else {
        PyObject* messages = PyObject_CallMethodOneArg(input, str_take, data);
        is_sent = messages == NULL ? -1 : pass_on_all(reader, meta, messages);
        Py_XDECREF(messages);
    }
    Py_DECREF(data);
    return is_sent <= 0 ? is_sent : keeps_watching(reader);
}

/* StreamReader._read_once() */
PyObject* reader_read_once(PyObject* reader, PyObject* Py_UNUSED(none)) {
    PyObject* meta = PyObject_GetAttr(SLOT(reader, of_reader._connection), str_meta);
    if (meta == NULL) return NULL;
    if (!is_usual(reader, meta)) {
        Py_DECREF(meta);
        return PyObject_CallOneArg(reader_twin, reader);
    }
    int keeps = read_once(reader, meta);
    Py_DECREF(meta);
    return keeps < 0 ? NULL : PyBool_FromLong(keeps);
}

/* Whether BufferedReads._pause_if_behind() would do nothing: the receiver and the peer keep up. -1
   with an error. */
static int keeps_up(PyObject* buffered, PyObject* meta) {
    PyObject* outbox = SLOT(meta, of_meta.outbox);
    Py_ssize_t queued = PyObject_Size(SLOT(outbox, of_outbox.queue));
    if (queued != 0) return queued < 0 ? -1 : 0;
    if (SLOT(outbox, of_outbox.waits_at_mailbox) != Py_None) return 0;
    return PyObject_RichCompareBool(SLOT(SLOT(buffered, of_buffered._writer), of_writer.pending),
                                    SLOT(buffered, of_buffered._read_limit), Py_LE);
}

/* BufferedReads._hand_over(data), for bytes of a raw stream in clear. */
static int hand_over(PyObject* buffered, PyObject* meta, PyObject* data) {
    PyObject* message =
        take_raw(SLOT(buffered, of_buffered._input), SLOT(meta, of_meta.id), data);
    if (message == NULL) return -1;
    int is_sent = pass_on(meta, SLOT(buffered, of_buffered._target), message);
    if (is_sent == 0)
        is_sent = is_true(PyObject_CallMethodOneArg(buffered, str_keep, message));
    Py_DECREF(message);
    if (is_sent <= 0) return is_sent;
    int is_level = keeps_up(buffered, meta);
    if (is_level != 0) return is_level < 0 ? -1 : 0;
    return call_method(buffered, str_pause_if_behind);
}

/* Whether BufferedReads._hand_over(data) is what hand_over() does. */
static int is_raw(PyObject* buffered, PyObject* meta, PyObject* data) {
    PyObject *input = SLOT(buffered, of_buffered._input),
             *shutdown = SLOT(buffered, of_buffered._shutdown);
    if (!Py_IS_TYPE(meta, bound.Meta) || !Py_IS_TYPE(input, StreamInput) ||
        !Py_IS_TYPE(shutdown, Shutdown) ||
        !Py_IS_TYPE(SLOT(buffered, of_buffered._writer), Writer) ||
        !Py_IS_TYPE(SLOT(meta, of_meta.outbox), bound.Outbox))
        return 0;
    PyObject* tls = SLOT(input, of_input._tls);
    return PyBytes_CheckExact(data) && PyBytes_GET_SIZE(data) > 0 && Py_IS_TYPE(tls, TLSLayer) &&
           SLOT(tls, of_tls.session) == Py_None && SLOT(input, of_input._parser) == Py_None &&
           SLOT(shutdown, of_shutdown.cause) == Py_None &&
           SLOT(shutdown, of_shutdown.mistake) == Py_None;
}

/* BufferedReads._has_bytes() */
PyObject* buffered_has_bytes(PyObject* buffered, PyObject* Py_UNUSED(none)) {
    PyObject* input = SLOT(buffered, of_buffered._input);
    if (!Py_IS_TYPE(input, StreamInput)) return PyObject_CallOneArg(buffered_twin, buffered);
    if (SLOT(buffered, of_buffered._is_paused) == Py_True ||
        SLOT(buffered, of_buffered._buffer) == Py_None)
        Py_RETURN_NONE;
    PyObject* meta = PyObject_GetAttr(SLOT(buffered, of_buffered._connection), str_meta);
    if (meta == NULL) return NULL;
    PyObject *buffer = Py_NewRef(SLOT(buffered, of_buffered._buffer)),
             *size = Py_NewRef(SLOT(input, of_input.size));
    PyObject* data = PyObject_CallMethodOneArg(buffer, str_take, size);
    Py_DECREF(buffer);
    Py_DECREF(size);
    int failed = data == NULL;
    if (!failed && is_raw(buffered, meta, data)) {
        failed = hand_over(buffered, meta, data) < 0;
    } else if (!failed) {
        PyObject* done = PyObject_CallMethodOneArg(buffered, str_hand_over, data);
        failed = done == NULL;
        Py_XDECREF(done);
    }
    Py_DECREF(meta);
    Py_XDECREF(data);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* SocketPoller._read_some(ready, first) */
PyObject* poller_read_some(PyObject* poller, PyObject* const* args, Py_ssize_t count) {
    Py_ssize_t first = count == 2 ? PyLong_AsSsize_t(args[1]) : -1;
    if (first < 0 || !PyList_CheckExact(args[0])) {
        PyErr_Clear();
        return call_twin(poller_twin, poller, args, count, NULL);
    }
    PyObject *ready = args[0], *fd = NULL;
    PyObject* watches = PyObject_GetAttr(poller, str_watches); /* a dict */
    double now, end;
    int left = ENDS_AT_ONCE;
    Py_ssize_t index = first;
    if (watches == NULL || read_slice_clock(&end) < 0) goto failed;
    for (end += SLICE; index < PyList_GET_SIZE(ready);) {
        PyObject* event = PyList_GET_ITEM(ready, index++);
        int has_fd = PyTuple_CheckExact(event) && PyTuple_GET_SIZE(event) > 0;
        Py_XSETREF(fd, Py_NewRef(has_fd ? PyTuple_GET_ITEM(event, 0) : Py_None));
        PyObject* watch = PyDict_GetItemWithError(watches, fd);
        if (watch == NULL) {
            if (PyErr_Occurred()) goto failed;
            continue;
        }
        Py_INCREF(watch);
        PyObject* readable = Py_NewRef(SLOT(watch, readable_of_watch));
        int keeps = is_true(PyObject_CallNoArgs(readable));
        Py_DECREF(readable);
        if (keeps < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
            /* Only the reader of this socket fails. */
            Py_XSETREF(SLOT(watch, failure_of_watch), take_exception());
            keeps = 0;
        }
        if (keeps == 0) {
            keeps = is_true(PyObject_CallMethodObjArgs(poller, str_end_watch, fd, watch, NULL));
            left--;
        }
        Py_DECREF(watch);
        if (keeps < 0 || read_slice_clock(&now) < 0) goto failed;
        if (left == 0 || now >= end) break;
    }
    Py_DECREF(watches);
    Py_XDECREF(fd);
    return PyLong_FromSsize_t(index);
failed:
    Py_XDECREF(watches);
    Py_XDECREF(fd);
    return NULL;
}

/* ---- writing ------------------------------------------------------------------------------------- */

/* Writer.write(data). 1 if no bytes wait, 0 if some do, -1 with an error. */
static int write_now(PyObject* writer, PyObject* data) {
    if (!PyBytes_CheckExact(data) || SLOT(writer, of_writer.state) == OUTPUT_CLOSED ||
        PyObject_Size(SLOT(writer, of_writer._queue)) != 0)
        return is_true(PyObject_CallMethodOneArg(writer, str_write, data));
    PyObject* send_method = Py_NewRef(SLOT(writer, of_writer._send));
    Py_ssize_t count = socket_send(send_method, data);
    Py_DECREF(send_method);
    if (count < 0) {
        if (!PyErr_ExceptionMatches(PyExc_BlockingIOError)) return -1;
        PyErr_Clear();
        count = 0;
    }
    if (add_to(writer, of_writer.written, count) < 0) return -1;
    if (count == PyBytes_GET_SIZE(data))
        return note_time(writer, of_writer.last, SLOT(writer, of_writer._now)) < 0 ? -1 : 1;
    PyObject* number = PyLong_FromSsize_t(count);
    if (number == NULL) return -1;
    int is_done = is_true(PyObject_CallMethodObjArgs(writer, str_keep_rest, data, number, NULL));
    Py_DECREF(number);
    return is_done;
}

/* Writer._serve(data) */
static int serve_data(PyObject* writer, PyObject* data) {
    PyObject* tls = SLOT(writer, of_writer._tls);
    if (!Py_IS_TYPE(tls, TLSLayer) || SLOT(tls, of_tls.session) != Py_None) {
        PyObject* done = PyObject_CallMethodOneArg(writer, str_serve_data, data);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    if (add_one(writer, of_writer.messages) < 0) return -1;
    int is_done = write_now(writer, data);
    if (is_done > 0) return 0;
    if (is_done < 0) {
        if (!PyErr_ExceptionMatches(PyExc_OSError)) return -1;
        if (call_with_error(SLOT(writer, of_writer._failed), NULL) < 0) return -1;
    }
    int is_slow = PyObject_RichCompareBool(SLOT(writer, of_writer.pending),
                                           SLOT(writer, of_writer._limit), Py_GT);
    if (is_slow <= 0) return is_slow;
    PyObject* done = PyObject_CallNoArgs(SLOT(writer, of_writer._slow));
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Writer.flush() */
static int flush(PyObject* writer) {
    PyObject* held = SLOT(writer, of_writer._held);
    Py_ssize_t count = PyList_GET_SIZE(held);
    if (count == 0) return 0;
    PyObject* data;
    if (count == 1) {
        data = Py_NewRef(PyList_GET_ITEM(held, 0));
    } else {
        PyObject* empty = PyBytes_FromStringAndSize(NULL, 0);
        data = empty == NULL ? NULL : PyObject_CallMethodOneArg(empty, str_join, held);
        Py_XDECREF(empty);
        if (data == NULL || add_to(writer, of_writer.messages, count - 1) < 0) {
            Py_XDECREF(data);
            return -1;
        }
    }
    int failed = PyList_SetSlice(held, 0, count, NULL) < 0 || serve_data(writer, data) < 0;
    Py_DECREF(data);
    return failed ? -1 : 0;
}

PyObject* writer_flush(PyObject* writer, PyObject* Py_UNUSED(none)) {
    PyObject* held = SLOT(writer, of_writer._held);
    if (held == NULL || !PyList_CheckExact(held) || SLOT(writer, of_writer._turns) == NULL)
        return PyObject_CallOneArg(flush_twin, writer);
    if (flush(writer) < 0) return NULL;
    Py_RETURN_NONE;
}

/* Writer._hold(data). 1 if the data is held, 0 if it must not wait, -1 with an error. */
static int hold(PyObject* writer, PyObject* turns, PyObject* data) {
    PyObject* held = SLOT(writer, of_writer._held);
    if (PyBytes_GET_SIZE(data) > LARGEST_HELD || PyList_GET_SIZE(held) >= MOST_PIECES) return 0;
    if (PyList_GET_SIZE(held) == 0) { /* turns.defer(self.flush) */
        PyObject* work = PyObject_GetAttr(writer, str_flush);
        PyObject* done = work == NULL ? NULL
                                      : PyObject_CallMethodOneArg(SLOT(turns, of_handoff.deferred),
                                                                  str_append, work);
        Py_XDECREF(work);
        Py_XDECREF(done);
        if (done == NULL) return -1;
    }
    return PyList_Append(held, data) < 0 ? -1 : 1;
}

/* Writer.serve(message, sender) */
PyObject* writer_serve(PyObject* writer, PyObject* const* args, Py_ssize_t count) {
    PyObject* turns = SLOT(writer, of_writer._turns);
    if (count != 2 || turns == NULL || !Py_IS_TYPE(turns, bound.Handoff) ||
        !PyList_CheckExact(SLOT(writer, of_writer._held)))
        return call_twin(serve_twin, writer, args, count, NULL);
    if (!Py_IS_TYPE(args[0], TCPSend) || SLOT(writer, of_writer.state) != OUTPUT_OPEN ||
        PyLong_AsSsize_t(SLOT(writer, of_writer.pending)) != 0)
        Py_RETURN_FALSE;
    PyObject* data = SLOT(args[0], data_of_send);
    if (data == NULL || !PyBytes_CheckExact(data))
        return call_twin(serve_twin, writer, args, count, NULL);
    Py_INCREF(data);
    int done = SLOT(turns, of_handoff.defers) == Py_True ? hold(writer, turns, data) : 0;
    if (done == 0 && flush(writer) == 0 && serve_data(writer, data) == 0) done = 1;
    Py_DECREF(data);
    if (done <= 0) return NULL;
    Py_RETURN_TRUE;
}
