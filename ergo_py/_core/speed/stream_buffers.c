/* StreamBuffer and BufferQueue: bytes that reader threads have read without the interpreter's lock.
   Stand in for recv() of StreamReader.read_in_thread(), and for the wake-up of the loop.

   A thread appends the bytes of a read to its buffer, lists the buffer in the queue of the loop,
   and rings the queue's eventfd if the loop was not woken yet. The loop takes all bytes of a buffer
   at once, so the threads never wait for the interpreter's lock, and the loop never for them.

   A thread whose messages are large reads into a bytes object that the loop has made for it, and the
   loop takes that object: nothing copies the bytes. Such an object belongs to the thread (space) or
   to the loop (spare, large), and the lock of the buffer guards each change of hands. The thread
   writes to its memory, and never counts references.

   The lock of a buffer and the lock of a queue are never held together, and no thread asks for the
   interpreter's lock while it holds either.

   In the child of a fork no reader thread runs, and the locks and lists may be in any state: there
   no function touches them. */
#include "speed.h"

#ifdef __linux__
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ 4096        /* bytes of a small read */
/* Bytes of small reads after which a thread waits for the loop. Not measured: sixteen reads, after
   which a receiver that is behind stops its peer. */
#define MOST (64 * 1024)

static unsigned forks; /* how many forks have made this program; objects of other numbers are dead */

static void note_fork(void) { forks++; }

struct StreamBuffer;

typedef struct {
    PyObject_HEAD int descriptor; /* an eventfd */
    unsigned forks;
    pthread_mutex_t lock;
    int is_rung; /* the loop was woken for the buffers in the list */
    struct StreamBuffer *first, *last;
} BufferQueue;

typedef struct StreamBuffer {
    PyObject_HEAD BufferQueue* queue;
    PyObject* callback; /* callback() is called on the loop after bytes have come */
    struct StreamBuffer *before, *after; /* in the list of the queue; guarded by its lock */
    int is_listed;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t has_room;
    int is_pending; /* the loop will call the callback, or has yet to take bytes */
    int is_ending;  /* the thread discards its next read, and ends */
    char* bytes;    /* of small reads; none while `large` waits for the loop */
    size_t length, room;
    PyObject* large;     /* a large read: an object whose first bytes are read */
    Py_ssize_t in_large; /* so many */
    PyObject *space, *spare; /* for the next large read: the thread's, and the thread's next */
} StreamBuffer;

/* ---- the queue ---------------------------------------------------------------------------------- */

static PyObject* queue_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
    if (PyTuple_GET_SIZE(args) > 0 || (keywords != NULL && PyDict_GET_SIZE(keywords) > 0))
        return PyErr_Format(PyExc_TypeError, "BufferQueue() takes no arguments");
    int descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (descriptor < 0) return PyErr_SetFromErrno(PyExc_OSError);
    BufferQueue* queue = (BufferQueue*)type->tp_alloc(type, 0);
    if (queue == NULL) {
        close(descriptor);
        return NULL;
    }
    queue->descriptor = descriptor, queue->forks = forks;
    pthread_mutex_init(&queue->lock, NULL);
    return (PyObject*)queue;
}

static void queue_dealloc(BufferQueue* queue) {
    /* No buffer is left: each refers to its queue. */
    close(queue->descriptor);
    if (queue->forks == forks) pthread_mutex_destroy(&queue->lock);
    Py_TYPE(queue)->tp_free(queue);
}

/* Without the interpreter's lock. */
static void queue_add(BufferQueue* queue, StreamBuffer* buffer) {
    pthread_mutex_lock(&queue->lock);
    if (buffer->is_listed) { /* the loop has taken its earlier bytes without pop() */
        pthread_mutex_unlock(&queue->lock);
        return;
    }
    buffer->before = queue->last, buffer->after = NULL;
    if (queue->last == NULL)
        queue->first = buffer;
    else
        queue->last->after = buffer;
    queue->last = buffer;
    buffer->is_listed = 1;
    int rings = !queue->is_rung;
    queue->is_rung = 1;
    pthread_mutex_unlock(&queue->lock);
    if (rings) eventfd_write(queue->descriptor, 1);
}

/* With the lock of the queue. */
static void queue_remove(BufferQueue* queue, StreamBuffer* buffer) {
    if (buffer->before == NULL)
        queue->first = buffer->after;
    else
        buffer->before->after = buffer->after;
    if (buffer->after == NULL)
        queue->last = buffer->before;
    else
        buffer->after->before = buffer->before;
    buffer->is_listed = 0;
}

static PyObject* queue_fileno(BufferQueue* queue, PyObject* Py_UNUSED(none)) {
    return PyLong_FromLong(queue->descriptor);
}

/* pop(): the callback of the first buffer in the list, and whether further buffers follow; None if
   the list is empty. Then the next buffer wakes the loop. */
static PyObject* queue_pop(BufferQueue* queue, PyObject* Py_UNUSED(none)) {
    if (queue->forks != forks) Py_RETURN_NONE;
    pthread_mutex_lock(&queue->lock);
    StreamBuffer* buffer = queue->first;
    PyObject* callback = NULL;
    int is_last = 1;
    if (buffer == NULL) {
        eventfd_t count;
        queue->is_rung = 0;
        /* Also if it was not rung: a thread that has listed a buffer rings a moment later. */
        if (eventfd_read(queue->descriptor, &count) < 0) errno = 0;
    } else {
        queue_remove(queue, buffer);
        is_last = queue->first == NULL;
        callback = Py_NewRef(buffer->callback);
    }
    pthread_mutex_unlock(&queue->lock);
    if (callback == NULL) Py_RETURN_NONE;
    return Py_BuildValue("NO", callback, is_last ? Py_False : Py_True);
}

static PyMethodDef queue_methods[] = {
    {"fileno", (PyCFunction)queue_fileno, METH_NOARGS, NULL},
    {"pop", (PyCFunction)queue_pop, METH_NOARGS, NULL},
    {NULL},
};

static PyTypeObject BufferQueueType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ergo_py._core.speed._speed.BufferQueue",
    .tp_doc = "Lists the buffers with bytes for a loop.",
    .tp_basicsize = sizeof(BufferQueue),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = queue_new,
    .tp_dealloc = (destructor)queue_dealloc,
    .tp_methods = queue_methods,
};

/* ---- a buffer ----------------------------------------------------------------------------------- */

/* StreamBuffer(queue, callback) */
static PyObject* buffer_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
    PyObject *queue, *callback;
    if (keywords != NULL && PyDict_GET_SIZE(keywords) > 0)
        return PyErr_Format(PyExc_TypeError, "StreamBuffer() takes no keyword arguments");
    if (!PyArg_ParseTuple(args, "O!O", &BufferQueueType, &queue, &callback)) return NULL;
    StreamBuffer* buffer = (StreamBuffer*)type->tp_alloc(type, 0);
    if (buffer == NULL) return NULL;
    pthread_mutex_init(&buffer->lock, NULL);
    pthread_cond_init(&buffer->has_room, NULL);
    buffer->queue = (BufferQueue*)Py_NewRef(queue), buffer->callback = Py_NewRef(callback);
    return (PyObject*)buffer;
}

/* With the lock of the buffer, which it releases: let the loop take what was read. */
static void buffer_publish(StreamBuffer* buffer) {
    int is_new = !buffer->is_pending;
    buffer->is_pending = 1;
    pthread_mutex_unlock(&buffer->lock);
    if (is_new) queue_add(buffer->queue, buffer);
}

/* Append the bytes of a small read. Returns 0, or the number of an error. */
static int buffer_append(StreamBuffer* buffer, const char* bytes, size_t count) {
    pthread_mutex_lock(&buffer->lock);
    if (buffer->is_ending) {
        pthread_mutex_unlock(&buffer->lock);
        return 0;
    }
    if (buffer->length + count > buffer->room) {
        size_t room = buffer->room == 0 ? 256 : buffer->room;
        while (room < buffer->length + count) room *= 2;
        /* Not PyMem_RawRealloc(): tracemalloc lets that wait for the interpreter's lock. */
        char* larger = realloc(buffer->bytes, room);
        if (larger == NULL) {
            pthread_mutex_unlock(&buffer->lock);
            return ENOMEM;
        }
        buffer->bytes = larger, buffer->room = room;
    }
    memcpy(buffer->bytes + buffer->length, bytes, count);
    buffer->length += count;
    buffer_publish(buffer);
    return 0;
}

/* Hand over the object with the bytes of a large read. */
static void buffer_hand_over(StreamBuffer* buffer, Py_ssize_t count) {
    pthread_mutex_lock(&buffer->lock);
    if (buffer->is_ending) {
        pthread_mutex_unlock(&buffer->lock);
        return;
    }
    buffer->large = buffer->space, buffer->in_large = count;
    buffer->space = NULL;
    buffer_publish(buffer);
}

/* recv(), again after a signal: Python runs signal handlers in the main thread. */
static ssize_t receive(int descriptor, char* into, size_t most) {
    ssize_t count;
    do
        count = recv(descriptor, into, most, 0);
    while (count < 0 && errno == EINTR);
    return count;
}

/* Discard what a read would return. */
static void discard(int descriptor) {
    char bytes[READ];
    if (recv(descriptor, bytes, sizeof bytes, MSG_DONTWAIT) < 0) errno = 0;
}

/* With the lock of the buffer: whether a further read would come before earlier bytes, or there are
   enough. Bytes of small reads and of a large read never wait for the loop together. */
static int is_full(StreamBuffer* buffer) {
    if (buffer->large != NULL || buffer->length >= MOST) return 1;
    return buffer->length > 0 && (buffer->space != NULL || buffer->spare != NULL);
}

/* Wait until there is room for a read, in the object `space` if that is not NULL. Returns whether
   the thread is to go on. */
static int buffer_wait_for_room(StreamBuffer* buffer, int descriptor) {
    pthread_mutex_lock(&buffer->lock);
    if (is_full(buffer) && buffer->length < MOST && !buffer->is_ending) {
        /* Most often, the loop has taken the bytes before others come: so sleep only once. */
        pthread_mutex_unlock(&buffer->lock);
        struct pollfd waits = {.fd = descriptor, .events = POLLIN};
        while (poll(&waits, 1, -1) < 0 && errno == EINTR) continue;
        pthread_mutex_lock(&buffer->lock);
        if (buffer->is_ending) discard(descriptor);
    }
    while (is_full(buffer) && !buffer->is_ending)
        pthread_cond_wait(&buffer->has_room, &buffer->lock);
    if (buffer->space == NULL) buffer->space = buffer->spare, buffer->spare = NULL;
    int goes_on = !buffer->is_ending;
    pthread_mutex_unlock(&buffer->lock);
    return goes_on;
}

/* read(descriptor, size): read from a socket until the end of the stream (False), or until a small
   read is as large as the space for it (True). The first read is large if more than READ bytes are
   to be read at once, the others if the loop says so to take(). Raises OSError. In a thread other
   than the loop's. */
static PyObject* buffer_read(StreamBuffer* buffer, PyObject* args) {
    int descriptor, failure = 0;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "in", &descriptor, &size)) return NULL;
    if (buffer->queue->forks != forks)
        return PyErr_Format(PyExc_RuntimeError, "this buffer belongs to the parent of a fork");
    if (size > READ && buffer->space == NULL) {
        PyObject* space = PyBytes_FromStringAndSize(NULL, size);
        if (space == NULL) return NULL;
        pthread_mutex_lock(&buffer->lock);
        buffer->space = space;
        pthread_mutex_unlock(&buffer->lock);
    }
    char bytes[READ];
    ssize_t count = 0;
    int is_small_and_full = 0;
    Py_BEGIN_ALLOW_THREADS
    do {
        count = 0;
        if (!buffer_wait_for_room(buffer, descriptor)) break;
        PyObject* space = buffer->space; /* only this thread changes it */
        if (space == NULL) {
            count = receive(descriptor, bytes, READ);
            if (count > 0) failure = buffer_append(buffer, bytes, (size_t)count);
            is_small_and_full = count == READ;
        } else {
            count = receive(descriptor, PyBytes_AS_STRING(space), (size_t)PyBytes_GET_SIZE(space));
            if (count > 0) buffer_hand_over(buffer, count);
        }
        if (count < 0) failure = errno;
    } while (count > 0 && !is_small_and_full && failure == 0);
    Py_END_ALLOW_THREADS
    if (failure != 0) {
        errno = failure;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyBool_FromLong(count > 0);
}

/* With the lock of the buffer: the bytes of small reads, as a new object. */
static PyObject* take_small(StreamBuffer* buffer) {
    PyObject* taken = PyBytes_FromStringAndSize(buffer->bytes, (Py_ssize_t)buffer->length);
    if (taken == NULL) return NULL;
    buffer->length = 0;
    if (buffer->room > READ) {
        free(buffer->bytes);
        buffer->bytes = NULL, buffer->room = 0;
    }
    return taken;
}

/* take(size): all bytes of the buffer. The next read is large if more than READ bytes are to be read
   at once. On the loop. */
static PyObject* buffer_take(StreamBuffer* buffer, PyObject* argument) {
    Py_ssize_t size = PyLong_AsSsize_t(argument);
    if (size < 0 && PyErr_Occurred()) return NULL;
    if (buffer->queue->forks != forks) return PyBytes_FromStringAndSize(NULL, 0);
    pthread_mutex_lock(&buffer->lock);
    int was_full = is_full(buffer), needs_spare = size > READ && buffer->is_pending;
    PyObject* taken = buffer->large;
    if (taken == NULL) {
        taken = take_small(buffer);
    } else {
        /* First return the rest of its memory: the next object may fit there. */
        buffer->large = NULL;
        if (buffer->in_large < PyBytes_GET_SIZE(taken)) _PyBytes_Resize(&taken, buffer->in_large);
    }
    if (taken != NULL) {
        if (needs_spare && buffer->space == NULL && buffer->spare == NULL) {
            buffer->spare = PyBytes_FromStringAndSize(NULL, size);
            if (buffer->spare == NULL) PyErr_Clear(); /* the thread goes on with small reads */
        }
        buffer->is_pending = 0;
        if (was_full) pthread_cond_signal(&buffer->has_room);
    }
    pthread_mutex_unlock(&buffer->lock);
    return taken;
}

/* end(): let the thread discard its next read, and end. From any thread. */
static PyObject* buffer_end(StreamBuffer* buffer, PyObject* Py_UNUSED(none)) {
    if (buffer->queue->forks != forks) Py_RETURN_NONE;
    pthread_mutex_lock(&buffer->lock);
    buffer->is_ending = 1;
    pthread_cond_signal(&buffer->has_room);
    pthread_mutex_unlock(&buffer->lock);
    Py_RETURN_NONE;
}

static int buffer_traverse(StreamBuffer* buffer, visitproc visit, void* arg) {
    Py_VISIT(buffer->callback);
    return 0;
}

static int buffer_clear(StreamBuffer* buffer) {
    /* The queue may still list the buffer: its callback is never NULL. */
    if (buffer->callback != NULL) Py_SETREF(buffer->callback, Py_NewRef(Py_None));
    return 0;
}

static void buffer_dealloc(StreamBuffer* buffer) {
    PyObject_GC_UnTrack(buffer);
    int is_alive = buffer->queue != NULL && buffer->queue->forks == forks;
    if (is_alive) {
        pthread_mutex_lock(&buffer->queue->lock);
        if (buffer->is_listed) queue_remove(buffer->queue, buffer);
        pthread_mutex_unlock(&buffer->queue->lock);
    }
    Py_CLEAR(buffer->callback);
    Py_CLEAR(buffer->queue);
    Py_CLEAR(buffer->large);
    Py_CLEAR(buffer->space);
    Py_CLEAR(buffer->spare);
    free(buffer->bytes);
    if (is_alive) {
        pthread_cond_destroy(&buffer->has_room);
        pthread_mutex_destroy(&buffer->lock);
    }
    Py_TYPE(buffer)->tp_free(buffer);
}

static PyMethodDef buffer_methods[] = {
    {"end", (PyCFunction)buffer_end, METH_NOARGS, NULL},
    {"read", (PyCFunction)buffer_read, METH_VARARGS, NULL},
    {"take", (PyCFunction)buffer_take, METH_O, NULL},
    {NULL},
};

static PyTypeObject StreamBufferType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ergo_py._core.speed._speed.StreamBuffer",
    .tp_doc = "Bytes that a reader thread has read and the loop has not taken yet.",
    .tp_basicsize = sizeof(StreamBuffer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = buffer_new,
    .tp_dealloc = (destructor)buffer_dealloc,
    .tp_traverse = (traverseproc)buffer_traverse,
    .tp_clear = (inquiry)buffer_clear,
    .tp_methods = buffer_methods,
};

int add_stream_buffers(PyObject* module) {
    static int is_told; /* once for all interpreters */
    if (!is_told && pthread_atfork(NULL, NULL, note_fork) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    is_told = 1;
    if (PyModule_AddType(module, &BufferQueueType) < 0) return -1;
    return PyModule_AddType(module, &StreamBufferType);
}

#else /* other systems have no eventfd */

int add_stream_buffers(PyObject* module) {
    if (PyModule_AddObjectRef(module, "BufferQueue", Py_None) < 0) return -1;
    return PyModule_AddObjectRef(module, "StreamBuffer", Py_None);
}

#endif
