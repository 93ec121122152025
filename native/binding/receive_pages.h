/*
 * Handing mapped pages to a protocol that keeps them (zcloop.PagesProtocol).
 *
 * Included by dispatch.h; runs with the GIL held, except in the mapping call itself.
 *
 * Invariant: bytes that were copied behind mapped pages come after them, whatever
 * pages_received did: to the same protocol by its own buffers, or, if the connection's reader
 * is another one by then (paused, closed, protocol swapped), through its sink.
 */

/* Whether this is still how the connection is read. */
static int zcpy_reads(const zcpy_tables *tables, uint32_t slot, PyObject *reader) {
    return PyList_GetItem(tables->readers, (Py_ssize_t)slot) == reader;
}

/* Bytes of a straggler into the buffers that the protocol lends.  -1, or which
 * callback raised; *done tells how far it came. */
static int zcpy_lend(PyObject *reader, const char *bytes, size_t count, size_t *done) {
    int stage;
    zcpy_buffer target;
    PyObject *buffer = zcpy_get_buffer(reader, 0);
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
        PyObject *reason = Py_BuildValue("(is)", ENOMEM, zc_no_room_text());
        if (reason != NULL) {
            PyErr_SetObject(PyExc_OSError, reason);
            Py_DECREF(reason);
        }
        return FAILED_RECEIVE;
    }
    *done += taken;
    PyObject *number = PyLong_FromSize_t(taken);
    int failed = number == NULL || zcpy_call(PyTuple_GetItem(reader, READER_BUFFER_UPDATED), number) < 0;
    Py_XDECREF(number);
    return failed ? FAILED_BUFFER_UPDATED : -1;
}

/* An exception is on its way: keep bytes that come behind `rest` for later.  Where memory has
 * run out they are lost with the connection. */
static void zcpy_set_aside(PyObject **rest, const char *bytes, size_t count) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *kept = PyBytes_FromStringAndSize(bytes, (Py_ssize_t)count);
    if (kept != NULL && *rest != NULL) {
        PyObject *joined = PySequence_Concat(*rest, kept);
        Py_DECREF(kept);
        kept = joined;
    }
    Py_XDECREF(*rest);
    *rest = kept;
    PyErr_Clear();
    PyErr_Restore(type, value, traceback);
}

/* Bytes that were received for this reader, to whoever is to have them now. */
static int zcpy_straggler(uint32_t slot, PyObject *reader, const zcpy_tables *tables,
                          const char *bytes, size_t count, PyObject **rest) {
    size_t done = 0;
    int stage = -1;
    while (stage < 0 && done < count && zcpy_reads(tables, slot, reader)) {
        stage = zcpy_lend(reader, bytes + done, count - done, &done);
    }
    if (done == count) {
        return stage;
    }
    if (stage >= 0) {
        zcpy_set_aside(rest, bytes + done, count - done);
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

/* A run's pages.  Where the reader has changed since they were received, they go the way of
 * all bytes; after a failure they are set aside. */
static int zcpy_hand_pages(uint32_t slot, PyObject *reader, const zcpy_tables *tables,
                           const zc_page_run *run, int stage, PyObject **rest) {
    if (stage >= 0) {
        zcpy_set_aside(rest, run->start, run->mapped);
        return stage;
    }
    if (!zcpy_reads(tables, slot, reader)) {
        return zcpy_straggler(slot, reader, tables, run->start, run->mapped, rest);
    }
    PyObject *view = zcpy_page_view(run->slice, run->start, run->mapped);
    int failed = view == NULL || zcpy_call(PyTuple_GetItem(reader, READER_PAGES_RECEIVED), view) < 0;
    Py_XDECREF(view);
    return failed ? FAILED_PAGES_RECEIVED : -1;
}

static int zcpy_recv_pages(zc_engine *engine, uint32_t slot, zc_page_run *run) {
    if (!zc_recv_is_large(engine, slot)) {
        return zc_recv_pages(engine, slot, run);
    }
    PyThreadState *state = PyEval_SaveThread();
    int some = zc_recv_pages(engine, slot, run);
    PyEval_RestoreThread(state);
    return some;
}

/*
 * Takes what waits, a bounded number of runs of it.  1: handled, with *stage set; 0: the ordinary
 * way, into the protocol's buffer.
 *
 * Fact: what lies between two ranges of pages often comes in two pieces, the end of one
 * segment and the beginning of the next, and a mapping call stops at each.  So stragglers are
 * collected, and lent to the protocol's buffer once, before the next pages.
 */
static int zcpy_map(zc_engine *engine, uint32_t slot, PyObject *reader, const zcpy_tables *tables,
                    int *stage, PyObject **rest) {
    /* At a page's beginning, as the kernel's source mostly is, since some processors copy several times
     * slower between addresses that differ by less than 32 bytes modulo the page. */
    char stragglers[4 * ZC_COPYBUF_MAX] __attribute__((aligned(4096)));
    size_t waiting = 0, total = 0;
    int handled = 0;
    zc_page_run run = {0};
    *stage = -1;
    while (*stage < 0 && total < ZC_MAP_STEP && sizeof stragglers - waiting >= ZC_COPYBUF_MAX) {
        run.copybuf = stragglers + waiting;
        run.more = handled;
        if (!zcpy_recv_pages(engine, slot, &run)) {
            break;
        }
        handled = 1;
        total += run.mapped + run.copied;
        if (run.slice == NULL) {
            waiting += run.copied;
            continue;
        }
        if (waiting > 0) {
            *stage = zcpy_straggler(slot, reader, tables, stragglers, waiting, rest);
        }
        *stage = zcpy_hand_pages(slot, reader, tables, &run, *stage, rest);
        zc_map_note_kept(engine, slot, run.mapped, zc_slice_is_shared(run.slice));
        zc_slice_release(run.slice); /* a view has its own hold */
        memmove(stragglers, run.copybuf, run.copied);
        waiting = run.copied;
        if (!zcpy_reads(tables, slot, reader)) {
            break;
        }
    }
    zc_end_pages(&run);
    if (waiting > 0 && *stage < 0) {
        *stage = zcpy_straggler(slot, reader, tables, stragglers, waiting, rest);
    } else if (waiting > 0) {
        zcpy_set_aside(rest, stragglers, waiting);
    }
    return handled;
}
