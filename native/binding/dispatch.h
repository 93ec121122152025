/*
 * Handing a batch's records to Python: the one place where C calls Python.
 *
 * Part of the binding, not of the core, which knows nothing of Python.
 * Measured: decoding the records in Python (iter_unpack, slicing, a bound
 * method, the interpreter's loop) costs 0.3 microseconds a message and 0.9
 * with a protocol's own buffer, of the five that a 1 KiB echo takes
 * altogether; here it costs a third of that, so the two kinds that come once a
 * message are handled here and all others are left to Python.
 *
 * Runs with the GIL held throughout, except for large receives.
 */

/* Which callback raised. */
enum {
    FAILED_DATA_RECEIVED,
    FAILED_GET_BUFFER,
    FAILED_RECEIVE,
    FAILED_BUFFER_UPDATED,
    FAILED_PAGES_RECEIVED
};

/* What a reader is made of: ReceiveHalf._route. */
enum {
    READER_GET_BUFFER,
    READER_SIZE_HINT,
    READER_BUFFER_UPDATED,
    READER_WANTS_PAGES,   /* to be asked before the first page memory of the connection is used */
    READER_PAGES_RECEIVED /* only where the protocol takes pages */
};

/* What records of a slot go to: engine.Engine's lists. */
typedef struct {
    PyObject *sinks, *readers, *failures;
} zcpy_tables;

/* `rest`: bytes of the connection that weren't handed on any more, or NULL; consumed. */
static void zcpy_note_failure(PyObject *failures, uint32_t slot, int stage, PyObject *rest) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
    }
    PyObject *failure =
        Py_BuildValue("(IiOO)", (unsigned)slot, stage, value, rest == NULL ? Py_None : rest);
    if (failure == NULL || PyList_Append(failures, failure) < 0) {
        PyErr_Clear(); /* out of memory: the exception is lost, the loop goes on */
    }
    Py_XDECREF(failure);
    Py_XDECREF(rest);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}

static int zcpy_call(PyObject *callable, PyObject *argument) {
    PyObject *result = PyObject_CallFunctionObjArgs(callable, argument, NULL);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int zcpy_deliver(zc_engine *engine, const zc_event *record, PyObject *sinks) {
    PyObject *sink = PyList_GetItem(sinks, (Py_ssize_t)record->slot);
    Py_XINCREF(sink); /* the callback may replace it */
    PyObject *data =
        PyBytes_FromStringAndSize(zc_engine_scratch(engine) + record->offset, record->result);
    int failed = sink == NULL || data == NULL || zcpy_call(sink, data) < 0;
    Py_XDECREF(data);
    Py_XDECREF(sink);
    return failed ? FAILED_DATA_RECEIVED : -1;
}

/* A large message: receive it into the `bytes` itself, which nobody else has seen yet. */
static int zcpy_deliver_sized(zc_engine *engine, zc_event *record, PyObject *sinks) {
    PyObject *sink = PyList_GetItem(sinks, (Py_ssize_t)record->slot);
    PyObject *data = PyBytes_FromStringAndSize(NULL, record->result);
    if (sink == NULL || data == NULL) {
        Py_XDECREF(data);
        return FAILED_DATA_RECEIVED;
    }
    Py_INCREF(sink); /* another thread may replace it while we receive without the GIL */
    char *memory = PyBytes_AsString(data);
    size_t len = (size_t)record->result;
    int64_t count;
    if (len < 64 * 1024) {
        count = zc_recv_sized(engine, record->slot, memory, len);
    } else {
        PyThreadState *state = PyEval_SaveThread();
        count = zc_recv_sized(engine, record->slot, memory, len);
        PyEval_RestoreThread(state);
    }
    int failed = 0;
    if (count > 0) {
        PyObject *whole = data;
        if (count < record->result) {
            whole = PyBytes_FromStringAndSize(memory, count);
            Py_DECREF(data);
            data = whole;
        }
        failed = whole == NULL || zcpy_call(sink, whole) < 0;
    } else if (count != -EAGAIN && count != -EBADF) {
        record->what = count == 0 ? ZC_EOF : ZC_ERROR;
        record->result = (int32_t)count;
    }
    Py_XDECREF(data);
    Py_DECREF(sink);
    return failed ? FAILED_DATA_RECEIVED : -1;
}

/* What a protocol lent: its memory, and whether it is memory that pages can be moved into. */
typedef struct {
    Py_buffer view;
    zc_memory *memory; /* NULL: plain memory */
    size_t at;         /* where in it the view begins */
} zcpy_buffer;

/* offset: how far into a page the byte lies that will be put there first. */
static PyObject *zcpy_get_buffer(PyObject *reader, size_t offset) {
    size_t outer = zcpy_stream_offset;
    zcpy_stream_offset = offset;
    PyObject *buffer = PyObject_CallFunctionObjArgs(PyTuple_GetItem(reader, READER_GET_BUFFER),
                                                    PyTuple_GetItem(reader, READER_SIZE_HINT), NULL);
    zcpy_stream_offset = outer;
    return buffer;
}

static void zcpy_give_back(zcpy_buffer *target) { PyBuffer_Release(&target->view); }

/* Page memory is read-only for Python: it may hold the kernel's pages. */
static int zcpy_borrow_pages(PyObject *buffer, zcpy_buffer *target) {
    if (PyObject_GetBuffer(buffer, &target->view, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    target->memory = zcpy_memory_of(buffer, &target->view);
    if (target->memory == NULL) {
        PyBuffer_Release(&target->view);
        return -1;
    }
    target->at = (size_t)((char *)target->view.buf - zc_memory_base(target->memory));
    return 0;
}

/* The protocol's buffer, or -1 with asyncio's own complaints. */
static int zcpy_borrow(PyObject *buffer, zcpy_buffer *target, int *stage) {
    *stage = FAILED_GET_BUFFER;
    Py_ssize_t len = PyObject_Size(buffer);
    if (len < 0) {
        return -1;
    }
    if (len == 0) {
        PyErr_SetString(PyExc_RuntimeError, "get_buffer() returned an empty buffer");
        return -1;
    }
    *stage = FAILED_RECEIVE;
    target->memory = NULL;
    if (PyObject_GetBuffer(buffer, &target->view, PyBUF_WRITABLE) < 0) {
        PyErr_Clear();
        if (zcpy_borrow_pages(buffer, target) == 0) {
            return 0;
        }
        PyErr_Clear();
        PyObject *name = PyType_GetName(Py_TYPE(buffer));
        PyErr_Format(PyExc_TypeError,
                     "recv_into() argument 1 must be read-write bytes-like object, not %S", name);
        Py_XDECREF(name);
        return -1;
    }
    return 0;
}

static int64_t zcpy_receive_now(zc_engine *engine, uint32_t slot, const zcpy_buffer *target) {
    size_t len = (size_t)target->view.len;
    return target->memory == NULL ? zc_recv(engine, slot, target->view.buf, len)
                                  : zc_recv_memory(engine, slot, target->memory, target->at, len);
}

static int64_t zcpy_receive(zc_engine *engine, uint32_t slot, const zcpy_buffer *target) {
    if (!zc_recv_is_large(engine, slot)) {
        return zcpy_receive_now(engine, slot, target);
    }
    PyThreadState *state = PyEval_SaveThread();
    int64_t count = zcpy_receive_now(engine, slot, target);
    PyEval_RestoreThread(state);
    return count;
}

/* One receive into the protocol's buffer.  What isn't bytes turns the record into one for Python. */
static int zcpy_fill_buffer(zc_engine *engine, zc_event *record, PyObject *reader,
                            int takes_pages) {
    int stage = FAILED_GET_BUFFER;
    zcpy_buffer target;
    PyObject *buffer = zcpy_get_buffer(reader, zc_conn_page_offset(engine, record->slot));
    if (buffer == NULL) {
        return stage;
    }
    if (zcpy_borrow(buffer, &target, &stage) < 0) {
        Py_DECREF(buffer);
        return stage;
    }
    if (target.memory != NULL && zc_conn_ask_map(engine, record->slot)) {
        PyObject *answer = PyObject_CallNoArgs(PyTuple_GetItem(reader, READER_WANTS_PAGES));
        if (answer == NULL) {
            zcpy_give_back(&target);
            Py_DECREF(buffer);
            return stage;
        }
        Py_DECREF(answer);
    }
    if (takes_pages) {
        zc_map_note_buffer(engine, record->slot, target.view.buf);
    }
    int64_t count = zcpy_receive(engine, record->slot, &target);
    zcpy_give_back(&target);
    Py_DECREF(buffer); /* the protocol may resize it from here on */
    if (count > 0) {
        PyObject *number = PyLong_FromLongLong(count);
        int failed = number == NULL || zcpy_call(PyTuple_GetItem(reader, READER_BUFFER_UPDATED), number) < 0;
        Py_XDECREF(number);
        return failed ? FAILED_BUFFER_UPDATED : -1;
    }
    if (count != -EAGAIN) {
        record->what = count == 0 ? ZC_EOF : ZC_ERROR;
        record->result = (int32_t)count;
    }
    return -1;
}

#include "receive_pages.h"

static int zcpy_read(zc_engine *engine, zc_event *record, const zcpy_tables *tables,
                     PyObject **rest) {
    PyObject *reader = PyList_GetItem(tables->readers, (Py_ssize_t)record->slot);
    if (reader == NULL) {
        return FAILED_GET_BUFFER;
    }
    Py_INCREF(reader);
    int stage = -1;
    if (PyTuple_Check(reader)) {
        int takes_pages = PyTuple_Size(reader) > READER_PAGES_RECEIVED;
        if (!takes_pages || !zcpy_map(engine, record->slot, reader, tables, &stage, rest)) {
            stage = zcpy_fill_buffer(engine, record, reader, takes_pages);
        }
    } else {
        PyObject *result = PyObject_CallNoArgs(reader);
        Py_XDECREF(result);
        stage = result == NULL ? FAILED_GET_BUFFER : -1;
    }
    Py_DECREF(reader);
    return stage;
}

/*
 * Handles records [at, count) and returns the index of the first that it
 * didn't: one of a rarer kind, or the one after a callback that raised (then
 * `failures` has a (slot, stage, exception, bytes left or None) more) or whose writes the kernel
 * didn't take (then zc_uncork isn't 0).  The three lists are passed by id().
 */
static int zc_dispatch(zc_engine *engine, uintptr_t sinks, uintptr_t readers, uintptr_t failures,
                       int at, int count) {
    zc_event *records = zc_engine_records(engine);
    const zcpy_tables tables = {(PyObject *)sinks, (PyObject *)readers, (PyObject *)failures};
    while (at < count) {
        zc_event *record = &records[at];
        PyObject *rest = NULL;
        int stage;
        if (record->what == ZC_DATA) {
            stage = zcpy_deliver(engine, record, tables.sinks);
        } else if (record->what == ZC_READABLE) {
            stage = zcpy_read(engine, record, &tables, &rest);
            if (stage < 0 && record->what != ZC_READABLE) {
                return at;
            }
        } else if (record->what == ZC_SIZED) {
            stage = zcpy_deliver_sized(engine, record, tables.sinks);
            if (stage < 0 && record->what != ZC_SIZED) {
                return at;
            }
        } else {
            return at;
        }
        at++;
        if (stage >= 0) {
            zcpy_note_failure(tables.failures, record->slot, stage, rest);
            return at;
        }
        if (zc_uncork(engine) != 0) {
            return at;
        }
    }
    return at;
}

/*
 * One wake-up from end to end: batches, at most `rounds` of them in a row, while
 * settling says that more is there.  Returns what zc_engine_settle advised last,
 * -errno, or ZC_UNFINISHED when a record is Python's: it handles the records
 * [at, count), which bits 10 to 19 and 20 to 29 tell, and comes back.  `release`: large copies are due in the
 * poll itself, let other threads run.
 */
enum { ZC_UNFINISHED = 256 };

static int zc_turn(zc_engine *engine, uintptr_t sinks, uintptr_t readers, uintptr_t failures,
                   int rounds, int release) {
    for (;;) {
        int count;
        if (release) {
            PyThreadState *state = PyEval_SaveThread();
            count = zc_engine_poll(engine);
            PyEval_RestoreThread(state);
        } else {
            count = zc_engine_poll(engine);
        }
        if (count < 0) {
            return count;
        }
        if (count > 0) {
            int at = zc_dispatch(engine, sinks, readers, failures, 0, count);
            if (at < count || PyList_Size((PyObject *)failures) > 0 || zc_cork_slot(engine) >= 0) {
                return ZC_UNFINISHED | at << 10 | count << 20;
            }
        }
        int advice = zc_engine_settle(engine);
        if (count == 0 || !(advice & (ZC_MORE | ZC_EAGER)) || --rounds <= 0) {
            return advice;
        }
    }
}
