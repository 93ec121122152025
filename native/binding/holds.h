/*
 * Who owns memory that the kernel reads: one hold for each write in flight.
 *
 * Rule: a hold exports the buffer (so that a bytearray can't be resized, nor a
 * mmap closed) and has a reference of its own on it, in C, where neither the
 * collector nor the interpreter's finalisation can see it.  It goes only when
 * the core says that the kernel has let go.  What never completes, at the end of
 * the process, is never released: that is the point.
 * It knows the write's number and not the Python object that stands for it: that
 * one leads to a future, to whoever waits for it and so to the transport, which the
 * collector could then never find.
 * Rejected: keeping the buffers in a Python container, which is emptied while
 * the interpreter shuts down, with the kernel still reading.
 */
typedef struct zcpy_hold {
    Py_buffer view;
    uint64_t flight;        /* its number, told when it is over; 0: nobody waits */
    struct zcpy_hold *next; /* while being released */
} zcpy_hold;

static zcpy_hold *zcpy_hold_new(PyObject *data, uint64_t flight) {
    zcpy_hold *hold = malloc(sizeof *hold);
    if (hold == NULL) {
        return NULL;
    }
    if (PyObject_GetBuffer(data, &hold->view, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        free(hold);
        return NULL;
    }
    hold->flight = flight;
    return hold;
}

static void zcpy_hold_free(zcpy_hold *hold, PyObject *flights) {
    PyBuffer_Release(&hold->view);
    if (hold->flight != 0 && flights != NULL) {
        PyObject *number = PyLong_FromUnsignedLongLong(hold->flight);
        if (number == NULL || PyList_Append(flights, number) < 0) {
            PyErr_Clear(); /* out of memory: its future is never done, but nothing breaks */
        }
        Py_XDECREF(number);
    }
    free(hold);
}

/*
 * Sends data[offset:offset+len] without copying where that can be done; returns
 * like zc_send.  `data` is an id().  The buffer is held as soon as the kernel
 * may go on reading it, until the number `flight` comes out of zc_release_completed.  `release`: let other threads run meanwhile.
 */
static int64_t zc_send_held(zc_engine *engine, uint32_t slot, uintptr_t data, uint64_t flight,
                            size_t offset, size_t len, int release) {
    zcpy_hold *open = (zcpy_hold *)(uintptr_t)zc_zerocopy_open(engine, slot);
    zcpy_hold *hold = open != NULL ? open : zcpy_hold_new((PyObject *)data, flight);
    if (hold == NULL) {
        return -ENOMEM;
    }
    if (offset > (size_t)hold->view.len || len > (size_t)hold->view.len - offset) {
        if (open == NULL) {
            zcpy_hold_free(hold, NULL);
        }
        return -EINVAL;
    }
    const char *start = (const char *)hold->view.buf + offset;
    uint64_t token = (uint64_t)(uintptr_t)hold;
    int64_t sent;
    if (release) {
        PyThreadState *state = PyEval_SaveThread();
        sent = zc_send_zerocopy(engine, slot, start, len, token);
        PyEval_RestoreThread(state);
    } else {
        sent = zc_send_zerocopy(engine, slot, start, len, token);
    }
    if (open == NULL && zc_zerocopy_open(engine, slot) == 0) {
        zcpy_hold_free(hold, NULL); /* refused, or copied: nobody reads it any more */
    }
    return sent;
}

/* A write of bytes that nobody waits for, in one call: sealed if all of it was taken. */
static int64_t zc_send_whole(zc_engine *engine, uint32_t slot, uintptr_t data, size_t len,
                             int release) {
    int64_t sent = zc_send_held(engine, slot, data, 0, 0, len, release);
    if (sent == (int64_t)len) {
        (void)zc_zerocopy_seal(engine, slot);
    }
    return sent;
}

/* Releasing may run any Python code, which may end the connection: so take them all first. */
static void zcpy_release_chain(zcpy_hold *chain, PyObject *flights) {
    while (chain != NULL) {
        zcpy_hold *hold = chain;
        chain = hold->next;
        zcpy_hold_free(hold, flights);
    }
}

/* Lets go of what the kernel has let go of, and appends its flights' numbers to a list (by
 * id()).
 * Returns how many sends are still outstanding. */
static int zc_release_completed(zc_engine *engine, uint32_t slot, uintptr_t flights) {
    int left = zc_zerocopy_reap(engine, slot);
    zcpy_hold *chain = NULL, **end = &chain;
    uint64_t token;
    while (zc_zerocopy_take(engine, slot, &token)) {
        zcpy_hold *hold = (zcpy_hold *)(uintptr_t)token;
        hold->next = NULL;
        *end = hold;
        end = &hold->next;
    }
    zcpy_release_chain(chain, (PyObject *)flights);
    return left;
}

/* The same for connections whose loop is gone, and with it whoever waited; returns how many
 * of these are left. */
static int zc_release_orphans(void) {
    zcpy_hold *chain = NULL;
    uint64_t token;
    (void)zc_orphans_reap();
    while (zc_orphans_take(&token)) {
        zcpy_hold *hold = (zcpy_hold *)(uintptr_t)token;
        hold->next = chain;
        chain = hold;
    }
    int left = zc_orphans_reap();
    zcpy_release_chain(chain, NULL);
    return left;
}
