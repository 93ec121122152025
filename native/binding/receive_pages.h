/*
 * Handing mapped pages to a protocol that keeps them (zcloop.PagesProtocol).
 *
 * Included by dispatch.h; runs with the GIL held, except in the mapping call itself.
 *
 * Invariant: bytes that were copied behind mapped pages come after them, whatever
 * pages_received did: to the same protocol by its own buffers, or, if the connection's reader
 * is another one by then (paused, closed, protocol swapped), through its sink.
 */

/* Bytes of a straggler into the buffers that the protocol lends.  -1, or which
 * callback raised; *done tells how far it came. */
static int zcpy_lend(PyObject *reader, const char *bytes, size_t count, size_t *done) {
    int stage;
    zcpy_buffer target;
    PyObject *buffer = zcpy_get_buffer(reader);
    if (buffer == NULL) {
        return FAILED_GET_BUFFER;
    }
    if (zcpy_borrow(buffer, &target, &stage) < 0) {
        Py_DECREF(buffer);
        return stage;
    }
    size_t taken = (size_t)target.view.len < count ? (size_t)target.view.len : count;
    int error =
        target.memory == NULL ? 0 : zc_memory_writable(target.memory, target.at, taken);
    if (error == 0) {
        memcpy(target.view.buf, bytes, taken);
    }
    zcpy_give_back(&target);
    Py_DECREF(buffer);
    if (error < 0) {
        errno = -error;
        PyErr_SetFromErrno(PyExc_OSError);
        return FAILED_RECEIVE;
    }
    *done += taken;
    PyObject *number = PyLong_FromSize_t(taken);
    int failed = number == NULL || zcpy_call(PyTuple_GetItem(reader, READER_BUFFER_UPDATED), number) < 0;
    Py_XDECREF(number);
    return failed ? FAILED_BUFFER_UPDATED : -1;
}

/* As `bytes`, while an exception is on its way; NULL where memory has run out. */
static PyObject *zcpy_keep(const char *bytes, size_t count) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *kept = PyBytes_FromStringAndSize(bytes, (Py_ssize_t)count);
    PyErr_Clear();
    PyErr_Restore(type, value, traceback);
    return kept;
}

/* The bytes behind the pages, to whoever is to have them now. */
static int zcpy_straggler(uint32_t slot, PyObject *reader, const zcpy_tables *tables,
                          const char *bytes, size_t count, PyObject **rest) {
    size_t done = 0;
    int stage = -1;
    while (stage < 0 && done < count &&
           PyList_GetItem(tables->readers, (Py_ssize_t)slot) == reader) {
        stage = zcpy_lend(reader, bytes + done, count - done, &done);
    }
    if (done == count) {
        return stage;
    }
    if (stage >= 0) {
        *rest = zcpy_keep(bytes + done, count - done);
        return stage;
    }
    PyObject *left = PyBytes_FromStringAndSize(bytes + done, (Py_ssize_t)(count - done));
    PyObject *sink = PyList_GetItem(tables->sinks, (Py_ssize_t)slot);
    Py_XINCREF(sink);
    int failed = left == NULL || sink == NULL || zcpy_call(sink, left) < 0;
    Py_XDECREF(sink);
    Py_XDECREF(left);
    return failed ? FAILED_DATA_RECEIVED : -1;
}

/* 1: handled, with *stage set; 0: the ordinary way, into the protocol's buffer. */
static int zcpy_map(zc_engine *engine, uint32_t slot, PyObject *reader, const zcpy_tables *tables,
                    int *stage, PyObject **rest) {
    zc_page_run run;
    int some;
    if (zc_recv_is_large(engine, slot)) {
        PyThreadState *state = PyEval_SaveThread();
        some = zc_recv_pages(engine, slot, &run);
        PyEval_RestoreThread(state);
    } else {
        some = zc_recv_pages(engine, slot, &run);
    }
    if (!some) {
        return 0;
    }
    *stage = -1;
    if (run.slice != NULL) {
        PyObject *view = zcpy_page_view(run.slice, run.start, run.mapped);
        zc_slice_release(run.slice); /* the view has its own hold */
        if (view == NULL || zcpy_call(PyTuple_GetItem(reader, READER_PAGES_RECEIVED), view) < 0) {
            *stage = FAILED_PAGES_RECEIVED;
        }
        Py_XDECREF(view);
    }
    if (run.copied > 0 && *stage < 0) {
        *stage = zcpy_straggler(slot, reader, tables, run.copybuf, run.copied, rest);
    } else if (run.copied > 0) {
        *rest = zcpy_keep(run.copybuf, run.copied);
    }
    return 1;
}
