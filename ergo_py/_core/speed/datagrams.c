/* DatagramReader: many datagrams with a single system call, and the interpreter's lock taken once
   for all of them. Stands in for the reads and for _messages() of UDPSocket. */
#include "speed.h"

#ifdef __linux__
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

/* Datagrams of a read. Not measured: the rest of a flood waits in the socket while other tasks
   run. */
#define MOST 64
/* The first bytes of all datagrams are beside each other, so that small datagrams stay in the
   processor's cache; the rest of long datagrams is elsewhere. */
#define NEAR 2048

typedef struct {
    PyObject_HEAD PyTypeObject* message_type; /* UDPData */
    PyObject *alias, *peer_of;
    PyObject* peer; /* the peer of the last datagram, or NULL; and its address */
    struct sockaddr_storage peer_address;
    socklen_t peer_length;
    Py_ssize_t of_socket, of_peer, of_data, of_truncated;
    size_t most; /* bytes of a message; the buffers have room for another byte */
    char *near, *far;
    struct mmsghdr headers[MOST];
    struct iovec parts[MOST][2];
    struct sockaddr_storage addresses[MOST];
} DatagramReader;

/* DatagramReader(UDPData, alias, max_datagram, peer_of). peer_of(address) returns the Endpoint of an
   address of Python's socket module. */
static PyObject* reader_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
    PyObject *message_type, *alias, *peer_of;
    Py_ssize_t most;
    if (keywords != NULL && PyDict_GET_SIZE(keywords) > 0)
        return PyErr_Format(PyExc_TypeError, "DatagramReader() takes no keyword arguments");
    if (!PyArg_ParseTuple(args, "O!OnO", &PyType_Type, &message_type, &alias, &most, &peer_of))
        return NULL;
    if (most < 1 || most > 65535) return PyErr_Format(PyExc_ValueError, "max_datagram: %zd", most);
    DatagramReader* reader = (DatagramReader*)type->tp_alloc(type, 0);
    if (reader == NULL) return NULL;
    reader->message_type = (PyTypeObject*)Py_NewRef(message_type);
    reader->alias = Py_NewRef(alias), reader->peer_of = Py_NewRef(peer_of);
    reader->most = (size_t)most;
    const struct {
        const char* name;
        Py_ssize_t* offset;
    } slots[] = {{"socket", &reader->of_socket},
                 {"peer", &reader->of_peer},
                 {"data", &reader->of_data},
                 {"truncated", &reader->of_truncated}};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(slots); i++) {
        *slots[i].offset = slot_offset(message_type, slots[i].name);
        if (*slots[i].offset < 0) {
            Py_DECREF(reader);
            return NULL;
        }
    }
    size_t room = reader->most + 1, near = room < NEAR ? room : NEAR;
    reader->near = PyMem_RawMalloc(near * MOST);
    reader->far = room > near ? PyMem_RawMalloc((room - near) * MOST) : NULL;
    if (reader->near == NULL || (room > near && reader->far == NULL)) {
        Py_DECREF(reader);
        return PyErr_NoMemory();
    }
    for (size_t i = 0; i < MOST; i++) {
        struct msghdr* header = &reader->headers[i].msg_hdr;
        reader->parts[i][0] = (struct iovec){reader->near + i * near, near};
        if (room > near)
            reader->parts[i][1] = (struct iovec){reader->far + i * (room - near), room - near};
        header->msg_name = &reader->addresses[i];
        header->msg_iov = reader->parts[i], header->msg_iovlen = room > near ? 2 : 1;
    }
    return (PyObject*)reader;
}

/* The bytes of datagram `index`, at most max_datagram of them. */
static PyObject* reader_data(DatagramReader* reader, unsigned index) {
    size_t length = reader->headers[index].msg_len;
    if (length > reader->most) length = reader->most;
    size_t near = reader->parts[index][0].iov_len;
    PyObject* data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
    if (data == NULL) return NULL;
    memcpy(PyBytes_AS_STRING(data), reader->parts[index][0].iov_base, length < near ? length : near);
    if (length > near)
        memcpy(PyBytes_AS_STRING(data) + near, reader->parts[index][1].iov_base, length - near);
    return data;
}

/* An address as Python's socket module has it; None for a read without an address. */
static PyObject* address_of(const struct sockaddr_storage* address, socklen_t length) {
    char host[INET6_ADDRSTRLEN + 1];
    if (length == 0) Py_RETURN_NONE;
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in* in = (const struct sockaddr_in*)address;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        return Py_BuildValue("si", host, (int)ntohs(in->sin_port));
    }
    if (address->ss_family != AF_INET6)
        return PyErr_Format(PyExc_OSError, "an address of the unknown family %d",
                            (int)address->ss_family);
    const struct sockaddr_in6* in = (const struct sockaddr_in6*)address;
    inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
    return Py_BuildValue("siII", host, (int)ntohs(in->sin6_port),
                         (unsigned)ntohl(in->sin6_flowinfo), (unsigned)in->sin6_scope_id);
}

/* The Endpoint of the sender of datagram `index`; borrowed from the reader. */
static PyObject* reader_peer(DatagramReader* reader, unsigned index) {
    const struct sockaddr_storage* address = &reader->addresses[index];
    socklen_t length = reader->headers[index].msg_hdr.msg_namelen;
    if (reader->peer != NULL && length == reader->peer_length &&
        memcmp(address, &reader->peer_address, length) == 0)
        return reader->peer;
    PyObject* key = address_of(address, length);
    PyObject* peer = key == NULL ? NULL : PyObject_CallOneArg(reader->peer_of, key);
    Py_XDECREF(key);
    if (peer == NULL) return NULL;
    Py_XSETREF(reader->peer, peer);
    reader->peer_length = length;
    memcpy(&reader->peer_address, address, length);
    return peer;
}

/* UDPData(alias, peer, data, truncated) */
static PyObject* reader_message(DatagramReader* reader, unsigned index) {
    PyObject* peer = reader_peer(reader, index);
    PyObject* data = peer == NULL ? NULL : reader_data(reader, index);
    PyObject* message =
        data == NULL ? NULL : reader->message_type->tp_alloc(reader->message_type, 0);
    if (message == NULL) {
        Py_XDECREF(data);
        return NULL;
    }
    SLOT(message, reader->of_socket) = Py_NewRef(reader->alias);
    SLOT(message, reader->of_peer) = Py_NewRef(peer);
    SLOT(message, reader->of_data) = data;
    SLOT(message, reader->of_truncated) =
        Py_NewRef(reader->headers[index].msg_len > reader->most ? Py_True : Py_False);
    return message;
}

/* read(descriptor, most, waits): the messages of at most `most` datagrams that are there, or of at
   least one if it waits; how many bytes they have, and how many were truncated. The last read of a socket that was shut down has
   no address, and makes no message. */
static PyObject* reader_read(DatagramReader* reader, PyObject* const* args, Py_ssize_t count) {
    if (count != 3) return PyErr_Format(PyExc_TypeError, "read() takes 3 arguments");
    int descriptor = (int)PyLong_AsLong(args[0]);
    long most = PyLong_AsLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (most > MOST) most = MOST;
    if (most < 1) return PyErr_Format(PyExc_ValueError, "read() takes at least one datagram");
    int flags = args[2] == Py_True ? MSG_WAITFORONE : MSG_DONTWAIT, found;
    do {
        for (long i = 0; i < most; i++)
            reader->headers[i].msg_hdr.msg_namelen = sizeof(struct sockaddr_storage);
        Py_BEGIN_ALLOW_THREADS
        found = recvmmsg(descriptor, reader->headers, (unsigned)most, flags, NULL);
        Py_END_ALLOW_THREADS
        if (found < 0 && errno == EINTR && PyErr_CheckSignals() < 0) return NULL;
    } while (found < 0 && errno == EINTR);
    if (found < 0) return PyErr_SetFromErrno(PyExc_OSError);
    PyObject* messages = PyList_New(0);
    Py_ssize_t size = 0, truncated = 0;
    for (int i = 0; messages != NULL && i < found; i++) {
        if (reader->headers[i].msg_hdr.msg_namelen == 0) continue;
        PyObject* message = reader_message(reader, (unsigned)i);
        if (message == NULL || PyList_Append(messages, message) < 0) Py_CLEAR(messages);
        Py_XDECREF(message);
        size += (Py_ssize_t)reader->headers[i].msg_len;
        truncated += reader->headers[i].msg_len > reader->most;
    }
    return messages == NULL ? NULL : Py_BuildValue("Nnn", messages, size, truncated);
}

static int reader_traverse(DatagramReader* reader, visitproc visit, void* arg) {
    Py_VISIT(reader->message_type);
    Py_VISIT(reader->alias);
    Py_VISIT(reader->peer_of);
    Py_VISIT(reader->peer);
    return 0;
}

static int reader_clear(DatagramReader* reader) {
    Py_CLEAR(reader->alias);
    Py_CLEAR(reader->peer_of);
    Py_CLEAR(reader->peer);
    return 0;
}

static void reader_dealloc(DatagramReader* reader) {
    PyObject_GC_UnTrack(reader);
    reader_clear(reader);
    Py_CLEAR(reader->message_type);
    PyMem_RawFree(reader->near);
    PyMem_RawFree(reader->far);
    Py_TYPE(reader)->tp_free(reader);
}

static PyMethodDef reader_methods[] = {
    {"read", (PyCFunction)(void (*)(void))reader_read, METH_FASTCALL, NULL},
    {NULL},
};

static PyTypeObject DatagramReaderType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ergo_py._core.speed._speed.DatagramReader",
    .tp_doc = "Reads many datagrams with a single system call.",
    .tp_basicsize = sizeof(DatagramReader),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = reader_new,
    .tp_dealloc = (destructor)reader_dealloc,
    .tp_traverse = (traverseproc)reader_traverse,
    .tp_clear = (inquiry)reader_clear,
    .tp_methods = reader_methods,
};

int add_datagram_reader(PyObject* module) { return PyModule_AddType(module, &DatagramReaderType); }

#else /* other systems have no recvmmsg() */

int add_datagram_reader(PyObject* module) {
    return PyModule_AddObjectRef(module, "DatagramReader", Py_None);
}

#endif
