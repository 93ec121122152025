/* What the C program's receiver_take does with each piece, as a Python type, so that receivers in
 * Python reach it with one call: hashing by way of cffi and counting in Python took two
 * microseconds a piece, which is more than what a loop does to hand it over. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "zcref.h"

#include <stdlib.h>

struct taker {
    PyObject_HEAD
    struct zcref_hash *hash; /* NULL: only count */
    uint64_t received;
    uint64_t due;    /* the count from which on `reached` is to be called */
    PyObject *reached;
};

/* Taker(hashed, due, reached): reached() is called when `due` bytes have come, and returns the
 * next such count. */
static PyObject *taker_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = { "hashed", "due", "reached", NULL };
    int hashed;
    unsigned long long due;
    PyObject *reached;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "pKO", names, &hashed, &due, &reached))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct taker *self = (struct taker *)allocate(type, 0);
    if (self != NULL) {
        self->hash = hashed ? zcref_hash_new() : NULL;
        self->due = due;
        self->reached = Py_NewRef(reached);
    }
    return (PyObject *)self;
}

static void taker_dealloc(PyObject *object)
{
    struct taker *self = (struct taker *)object;
    PyTypeObject *type = Py_TYPE(object);
    free(self->hash);
    Py_XDECREF(self->reached);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *reached(struct taker *self)
{
    PyObject *next = PyObject_CallNoArgs(self->reached);
    if (next == NULL)
        return NULL;
    self->due = PyLong_AsUnsignedLongLong(next);
    Py_DECREF(next);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *taker_take(PyObject *object, PyObject *data)
{
    struct taker *self = (struct taker *)object;
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    if (self->hash != NULL)
        zcref_hash_update(self->hash, view.buf, (size_t)view.len);
    self->received += (uint64_t)view.len;
    PyBuffer_Release(&view);
    if (self->received >= self->due)
        return reached(self);
    Py_RETURN_NONE;
}

static PyObject *taker_received(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((struct taker *)object)->received);
}

static PyObject *taker_value(PyObject *object, PyObject *unused)
{
    const struct zcref_hash *hash = ((struct taker *)object)->hash;
    (void)unused;
    return PyLong_FromUnsignedLongLong(hash != NULL ? zcref_hash_value(hash) : 0);
}

static PyMethodDef methods[] = {
    { "take", taker_take, METH_O, "Take the next bytes of the stream." },
    { "received", taker_received, METH_NOARGS, "How many there were." },
    { "value", taker_value, METH_NOARGS, "Their hash, or 0." },
    { NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
    { Py_tp_new, taker_new },
    { Py_tp_dealloc, taker_dealloc },
    { Py_tp_methods, methods },
    { 0, NULL },
};

static PyType_Spec spec = {
    .name = "zcref_hash.Taker",
    .basicsize = sizeof(struct taker),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

static struct PyModuleDef module = { PyModuleDef_HEAD_INIT, .m_name = "zcref_hash", .m_size = -1 };

PyMODINIT_FUNC PyInit_zcref_hash(void)
{
    PyObject *made = PyModule_Create(&module), *type = PyType_FromSpec(&spec);
    if (made != NULL && type != NULL && PyModule_AddObjectRef(made, "Taker", type) == 0) {
        Py_DECREF(type);
        return made;
    }
    Py_XDECREF(made);
    Py_XDECREF(type);
    return NULL;
}
