/* recv() and send() of Python's sockets, without the calls of their methods. */
#include "speed.h"

#include <errno.h>
#include <sys/socket.h>

/* Bytes that are read into a buffer first, and then copied: a bytes object for the whole read would
   have to be made smaller after nearly every small read. Not measured. */
#define SMALL_READ (4 * 1024)

static PyTypeObject* Socket;           /* socket.socket */
static PyCFunction socket_send_function; /* of its method send */
static PyObject *dont_wait, *str_fileno, *str_recv;

/* Look up the methods of the class socket.socket. */
int bind_socket(PyObject* class) {
    if (str_fileno == NULL) str_fileno = PyUnicode_InternFromString("fileno");
    if (str_recv == NULL) str_recv = PyUnicode_InternFromString("recv");
    if (dont_wait == NULL) dont_wait = PyLong_FromLong(MSG_DONTWAIT);
    PyObject* send = PyObject_GetAttr(class, str_send_method);
    if (str_fileno == NULL || str_recv == NULL || dont_wait == NULL || send == NULL) {
        Py_XDECREF(send);
        return -1;
    }
    if (Py_IS_TYPE(send, &PyMethodDescr_Type))
        socket_send_function = ((PyMethodDescrObject*)send)->d_method->ml_meth;
    Py_DECREF(send);
    Py_XSETREF(Socket, (PyTypeObject*)Py_NewRef(class));
    return 0;
}

/* The first field of a socket object, its descriptor. */
static int first_field(PyObject* sock) { return *(int*)((char*)sock + sizeof(PyObject)); }

/* sock.fileno(), for a socket of Python's socket module. -1 with an error. */
static int descriptor_of(PyObject* sock) {
    /* Whether first_field() is the descriptor: unknown until it has been compared. */
    static enum { UNKNOWN, IS_DESCRIPTOR, IS_OTHER } layout;
    if (layout == IS_DESCRIPTOR && first_field(sock) >= 0) return first_field(sock);
    PyObject* number = PyObject_CallMethodNoArgs(sock, str_fileno);
    long fd = number == NULL ? -1 : PyLong_AsLong(number);
    Py_XDECREF(number);
    if (layout == UNKNOWN && fd >= 0) layout = first_field(sock) == fd ? IS_DESCRIPTOR : IS_OTHER;
    if (fd < 0 && !PyErr_Occurred()) { /* a closed socket */
        errno = EBADF;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    return (int)fd;
}

/* sock.recv(size), without waiting. */
PyObject* socket_receive(PyObject* sock, PyObject* size) {
    if (!Py_IS_TYPE(sock, Socket)) return PyObject_CallMethodOneArg(sock, str_recv, size);
    char near[SMALL_READ];
    Py_ssize_t most = PyLong_AsSsize_t(size), got;
    PyObject* data = most > SMALL_READ ? PyBytes_FromStringAndSize(NULL, most) : NULL;
    int fd = most < 1 || (most > SMALL_READ && data == NULL) ? -1 : descriptor_of(sock);
    if (fd < 0) {
        Py_XDECREF(data);
        return PyErr_Occurred() ? NULL : PyBytes_FromStringAndSize(NULL, 0);
    }
    char* into = data == NULL ? near : PyBytes_AS_STRING(data);
    do {
        Py_BEGIN_ALLOW_THREADS
        got = recv(fd, into, (size_t)most, MSG_DONTWAIT);
        Py_END_ALLOW_THREADS
    } while (got < 0 && errno == EINTR && PyErr_CheckSignals() == 0);
    if (got < 0) {
        if (!PyErr_Occurred()) PyErr_SetFromErrno(PyExc_OSError);
        Py_XDECREF(data);
        return NULL;
    }
    if (data == NULL) return PyBytes_FromStringAndSize(near, got);
    if (got < most && _PyBytes_Resize(&data, got) < 0) return NULL;
    return data;
}

/* Writer._send(data, MSG_DONTWAIT). -1 with an error. */
Py_ssize_t socket_send(PyObject* send_method, PyObject* data) {
    PyObject* sock = PyCFunction_CheckExact(send_method) ? PyCFunction_GET_SELF(send_method) : NULL;
    Py_ssize_t count;
    if (sock != NULL && Py_IS_TYPE(sock, Socket) && socket_send_function != NULL &&
        PyCFunction_GET_FUNCTION(send_method) == socket_send_function) {
        int fd = descriptor_of(sock);
        if (fd < 0) return -1;
        do {
            Py_BEGIN_ALLOW_THREADS
            count = send(fd, PyBytes_AS_STRING(data), (size_t)PyBytes_GET_SIZE(data), MSG_DONTWAIT);
            Py_END_ALLOW_THREADS
        } while (count < 0 && errno == EINTR && PyErr_CheckSignals() == 0);
        if (count < 0 && !PyErr_Occurred()) PyErr_SetFromErrno(PyExc_OSError);
        return count;
    }
    PyObject* stack[3] = {NULL, data, dont_wait};
    PyObject* sent =
        PyObject_Vectorcall(send_method, stack + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    count = sent == NULL ? -1 : PyLong_AsSsize_t(sent);
    Py_XDECREF(sent);
    return count;
}
