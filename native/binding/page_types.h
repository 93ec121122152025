/*
 * The two objects through which Python keeps memory that kernel pages are mapped into.
 *
 * Part of the binding, not of the core.  Both export their memory by the buffer protocol,
 * read-only: a write to a mapped page would be SIGSEGV, and this way it is a TypeError.
 * Whatever is made of a view of them (a slice of it, a NumPy array over it) refers to the
 * object, and the object holds the memory; so Python's own counting of references decides
 * when pages may be unmapped, and no order of finalisation can be wrong.
 *
 * Heap types of the limited API, made once and kept for as long as the process lives.
 */
#include "pages_internal.h"

typedef struct {
    PyObject_HEAD
    zc_slice *slice;
    char *start;
    Py_ssize_t bytes;
} zcpy_view;

typedef struct {
    PyObject_HEAD
    zc_memory *memory;
    size_t origin; /* where in the memory what it exports begins */
} zcpy_memory;

/* While a protocol is asked for a buffer: how far into a page the next byte of its stream lies. */
static _Thread_local size_t zcpy_stream_offset;

static PyTypeObject *zcpy_view_type, *zcpy_memory_type;

/* An instance keeps its type alive. */
static void zcpy_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* -- PageView: a part of a slice ---------------------------------------------------------- */

static int zcpy_view_export(PyObject *self, Py_buffer *view, int flags) {
    zcpy_view *exporter = (zcpy_view *)self;
    return PyBuffer_FillInfo(view, self, exporter->start, exporter->bytes, 1, flags);
}

static void zcpy_view_dealloc(PyObject *self) {
    zc_slice_release(((zcpy_view *)self)->slice);
    zcpy_free(self);
}

static PyType_Slot zcpy_view_slots[] = {
    {Py_tp_doc, "Received bytes in mapped kernel pages, which stay as long as a view of it does."},
    {Py_tp_dealloc, zcpy_view_dealloc},
    {Py_bf_getbuffer, zcpy_view_export},
    {0, NULL},
};

static PyType_Spec zcpy_view_spec = {
    .name = "zcloop._native.PageView",
    .basicsize = sizeof(zcpy_view),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = zcpy_view_slots,
};

/* A read-only memoryview of [start, start+bytes), with a reference to the slice of its own.
 * NULL with an exception set. */
static PyObject *zcpy_page_view(zc_slice *slice, char *start, size_t bytes) {
    ZC_ASSERT(start >= zc_slice_base(slice) &&
              start + bytes <= zc_slice_base(slice) + zc_slice_bytes(slice));
    allocfunc allocate = (allocfunc)PyType_GetSlot(zcpy_view_type, Py_tp_alloc);
    PyObject *exporter = allocate(zcpy_view_type, 0);
    if (exporter == NULL) {
        return NULL;
    }
    zc_slice_hold(slice);
    ((zcpy_view *)exporter)->slice = slice;
    ((zcpy_view *)exporter)->start = start;
    ((zcpy_view *)exporter)->bytes = (Py_ssize_t)bytes;
    PyObject *view = PyMemoryView_FromObject(exporter);
    Py_DECREF(exporter);
    return view;
}

/* -- PageMemory: the base of zcloop.PageBuffer ---------------------------------------------- */

/* PageMemory(nbytes, exact=False, fit=False); fit: its first byte lies where in a page the stream's
 * next byte does, so that the stream's pages can be moved in behind it. */
static PyObject *zcpy_memory_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"nbytes", "exact", "fit", NULL};
    Py_ssize_t bytes;
    int exact = 0, fit = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "n|pp", names, &bytes, &exact, &fit)) {
        return NULL;
    }
    if (bytes < 1) {
        PyErr_Format(PyExc_ValueError, "nbytes=%zd: valid are numbers from 1 on", bytes);
        return NULL;
    }
    size_t origin = fit ? zcpy_stream_offset : 0;
    zc_memory *memory = zc_memory_new((size_t)bytes + origin);
    if (memory == NULL) {
        return PyErr_NoMemory();
    }
    zc_memory_set_exact(memory, exact);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    PyObject *self = allocate(type, 0);
    if (self == NULL) {
        zc_memory_release(memory);
        return NULL;
    }
    ((zcpy_memory *)self)->memory = memory;
    ((zcpy_memory *)self)->origin = origin;
    return self;
}

static void zcpy_memory_dealloc(PyObject *self) {
    zc_memory_release(((zcpy_memory *)self)->memory);
    zcpy_free(self);
}

static Py_ssize_t zcpy_memory_length(PyObject *self) {
    const zcpy_memory *exporter = (zcpy_memory *)self;
    return (Py_ssize_t)(zc_memory_bytes(exporter->memory) - exporter->origin);
}

static int zcpy_memory_export(PyObject *self, Py_buffer *view, int flags) {
    const zcpy_memory *exporter = (zcpy_memory *)self;
    return PyBuffer_FillInfo(view, self, zc_memory_base(exporter->memory) + exporter->origin,
                             zcpy_memory_length(self), 1, flags);
}

static PyObject *zcpy_memory_get_nbytes(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromSsize_t(zcpy_memory_length(self));
}

static PyObject *zcpy_memory_get_exact(PyObject *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(zc_memory_exact(((zcpy_memory *)self)->memory));
}

static PyGetSetDef zcpy_memory_attributes[] = {
    {"nbytes", zcpy_memory_get_nbytes, NULL, "Size in bytes.", NULL},
    {"exact", zcpy_memory_get_exact, NULL,
     "Whether the peer is promised to send as much as a view given to a transport holds.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot zcpy_memory_slots[] = {
    {Py_tp_doc, "Contiguous memory that received pages can be moved into."},
    {Py_tp_new, zcpy_memory_new},
    {Py_tp_dealloc, zcpy_memory_dealloc},
    {Py_tp_getset, zcpy_memory_attributes},
    {Py_sq_length, zcpy_memory_length},
    {Py_bf_getbuffer, zcpy_memory_export},
    {0, NULL},
};

static PyType_Spec zcpy_memory_spec = {
    .name = "zcloop._native.PageMemory",
    .basicsize = sizeof(zcpy_memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = zcpy_memory_slots,
};

/* The memory that `view` lies in, which was got from `buffer` (a PageMemory, or a memoryview of
 * one or of a part of it), borrowed from it; NULL, without an exception, where it is something
 * else.  view->buf - zc_memory_base() is the offset. */
static zc_memory *zcpy_memory_of(PyObject *buffer, const Py_buffer *view) {
    PyObject *exporter = NULL;
    if (PyMemoryView_Check(buffer)) {
        exporter = PyObject_GetAttrString(buffer, "obj"); /* what all its slices are views of */
        if (exporter == NULL) {
            PyErr_Clear(); /* a released memoryview has none */
            return NULL;
        }
        Py_DECREF(exporter); /* the memoryview, which the caller holds, holds it */
        buffer = exporter;
    }
    if (!PyObject_TypeCheck(buffer, zcpy_memory_type)) {
        return NULL;
    }
    zc_memory *memory = ((zcpy_memory *)buffer)->memory;
    const char *base = zc_memory_base(memory), *start = view->buf;
    size_t bytes = zc_memory_bytes(memory), length = (size_t)view->len;
    return start >= base && length <= bytes && (size_t)(start - base) <= bytes - length ? memory
                                                                                       : NULL;
}

/* The memory of a PageMemory, passed by id(). */
static zc_memory *zc_memory_of(uintptr_t object) { return ((zcpy_memory *)object)->memory; }

/* Copies bytes into a PageMemory or a (part of a) view of one, passed by id(), as many as fit;
 * how many.  -EINVAL: it is something else. */
static int64_t zc_memory_put(uintptr_t object, const char *bytes, size_t count) {
    Py_buffer view;
    PyObject *buffer = (PyObject *)object;
    if (PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        return -EINVAL;
    }
    zc_memory *memory = zcpy_memory_of(buffer, &view);
    int64_t result = -EINVAL;
    if (memory != NULL) {
        size_t taken = (size_t)view.len < count ? (size_t)view.len : count;
        size_t at = (size_t)((char *)view.buf - zc_memory_base(memory));
        result = zc_memory_writable(memory, at, taken);
        if (result == 0) {
            memcpy(view.buf, bytes, taken);
            result = (int64_t)taken;
        }
    }
    PyBuffer_Release(&view);
    return result;
}

/* Puts the two types into a dict, passed by id().  0, or -ENOMEM. */
static int zc_page_types(uintptr_t names) {
    if (zcpy_view_type == NULL) {
        zcpy_view_type = (PyTypeObject *)PyType_FromSpec(&zcpy_view_spec);
    }
    if (zcpy_memory_type == NULL) {
        zcpy_memory_type = (PyTypeObject *)PyType_FromSpec(&zcpy_memory_spec);
    }
    if (zcpy_view_type == NULL || zcpy_memory_type == NULL ||
        PyDict_SetItemString((PyObject *)names, "PageView", (PyObject *)zcpy_view_type) < 0 ||
        PyDict_SetItemString((PyObject *)names, "PageMemory", (PyObject *)zcpy_memory_type) < 0) {
        PyErr_Clear();
        return -ENOMEM;
    }
    return 0;
}
