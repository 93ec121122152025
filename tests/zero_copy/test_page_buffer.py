"""PageBuffer as an object: its memory, its views, what it refuses.

What a transport does with one is proved elsewhere; this needs no kernel feature.
"""
import copy
import gc
import pickle
import resource
import struct
import weakref

import numpy
import pytest
from mapped_streams import PAGE, run_script

import zcloop
from zcloop import pages


def test_it_is_zeroed_read_only_memory():
    buffer = zcloop.PageBuffer(3 * PAGE + 5)
    view = memoryview(buffer)
    assert len(buffer) == buffer.nbytes == len(view) == 3 * PAGE + 5
    assert (view.readonly, view.format, view.ndim) == (True, "B", 1)
    assert not any(view)
    assert numpy.frombuffer(buffer, numpy.uint8).ctypes.data % PAGE == 0
    for write in (lambda: view.__setitem__(0, 1), lambda: struct.pack_into("B", buffer, 0, 1),
                  lambda: memoryview(buffer).cast("I").__setitem__(0, 1)):
        with pytest.raises((TypeError, BufferError)):
            write()


def test_exact_is_a_promise_made_once():
    assert zcloop.PageBuffer(1).exact is False
    buffer = zcloop.PageBuffer(1, exact=True)
    assert buffer.exact is True
    for name in ("exact", "nbytes"):
        with pytest.raises(AttributeError):
            setattr(buffer, name, 0)
    with pytest.raises(TypeError):
        zcloop.PageBuffer(1, True)


def test_repr():
    assert repr(zcloop.PageBuffer(7)).startswith("<PageBuffer(nbytes=7) at 0x")
    assert repr(zcloop.PageBuffer(7, exact=True)).startswith("<PageBuffer(nbytes=7, exact=True) at")


@pytest.mark.parametrize("nbytes", [2.0, "1", None, b"1", [1]])
def test_a_size_that_is_no_whole_number(nbytes):
    with pytest.raises(TypeError, match=rf"whole number of bytes, not '{type(nbytes).__name__}'"):
        zcloop.PageBuffer(nbytes)


@pytest.mark.parametrize("nbytes", [0, -1, -(2**70)])
def test_a_size_that_is_too_small(nbytes):
    with pytest.raises(ValueError, match="valid are numbers from 1 on"):
        zcloop.PageBuffer(nbytes)


@pytest.mark.parametrize("nbytes", [2**62, 2**63 - 1, 2**64, 2**70])
def test_a_size_that_the_system_does_not_have(nbytes):
    with pytest.raises(MemoryError, match=rf"nbytes={nbytes}.*ulimit -v"):
        zcloop.PageBuffer(nbytes)


def test_the_limit_of_address_space_is_a_memory_error():
    run_script("""
import resource, zcloop
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
try:
    zcloop.PageBuffer(1 << 30)
except MemoryError as exc:
    assert "ulimit -v" in str(exc)
else:
    raise AssertionError
zcloop.PageBuffer(1 << 20)
""")


def test_numbers_of_other_kinds_are_sizes_too():
    assert len(zcloop.PageBuffer(numpy.int64(5))) == 5


def test_it_can_not_be_copied_or_pickled():
    buffer = zcloop.PageBuffer(8)
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot pickle"):
            attempt(buffer)
    assert bytes(buffer) == bytes(8)


def test_initialising_it_again_changes_nothing():
    buffer = zcloop.PageBuffer(8, exact=True)
    before = numpy.frombuffer(buffer, numpy.uint8).ctypes.data
    buffer.__init__(100)
    assert (len(buffer), buffer.exact) == (8, True)
    assert numpy.frombuffer(buffer, numpy.uint8).ctypes.data == before


def test_a_subclass_may_add_attributes():
    class Named(zcloop.PageBuffer):
        def __init__(self, nbytes, name):
            self.name = name

        def __new__(cls, nbytes, name):
            return super().__new__(cls, nbytes)

    buffer = Named(9, "nine")
    assert (buffer.name, len(buffer)) == ("nine", 9)
    assert repr(buffer).startswith("<Named(nbytes=9)")


def test_its_memory_goes_with_the_last_view():
    gc.collect()
    before = pages.page_stats()
    buffer = zcloop.PageBuffer(3 * PAGE)
    gone = weakref.ref(buffer)
    view = memoryview(buffer)[PAGE:]
    array = numpy.frombuffer(view[7:], numpy.uint8)
    del buffer
    view.release()
    gc.collect()
    assert gone() is not None
    assert not array.any()
    assert pages.page_stats().memory_bytes - before.memory_bytes == 3 * PAGE
    del array
    assert gone() is None
    assert pages.page_stats().memory_bytes == before.memory_bytes


def test_a_cycle_with_its_own_view_is_collected():
    class Holder(zcloop.PageBuffer):
        pass

    holder = Holder(5)
    holder.view = memoryview(holder)
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def test_memory_that_was_never_received_into_is_not_used():
    """A gigabyte of it costs what is touched."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    buffer = zcloop.PageBuffer(1 << 30)
    assert memoryview(buffer)[-1] == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB
