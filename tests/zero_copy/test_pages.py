"""Mapped memory in Python: views are read-only and stay; what is let go of is used again.

Proves of views of the arena that whatever is made of them keeps their pages, and only that;
that new views never show old bytes; that a full arena means copies; and of open_arena that a
process that may not map copies.
"""
import asyncio
import ctypes
import gc
import io
import resource
import struct
import threading

import numpy
import pytest
from mapped_streams import (
    PAGE,
    Pages,
    fill,
    leased,
    needs_mapping,
    pattern,
    receive,
    run_script,
    serve_one,
    views_of,
)

import zcloop
from zcloop import pages

pytestmark = needs_mapping


# -- views --------------------------------------------------------------------------------


def test_a_view_is_read_only_and_whole_pages():
    data = pattern(8)
    for view in views_of(data):
        assert view.readonly and view.contiguous
        assert (view.format, view.ndim, view.itemsize) == ("B", 1, 1)
        assert len(view) > 0 and len(view) % PAGE == 0
        assert numpy.frombuffer(view, numpy.uint8).ctypes.data % PAGE == 0


def _assign(view):
    view[0] = 1


def _assign_slice(view):
    view[10:20] = bytes(10)


def _assign_cast(view):
    view.cast("I")[0] = 1


def _assign_array(view):
    numpy.frombuffer(view, numpy.uint8)[0] = 1


def _force_array(view):
    numpy.frombuffer(view, numpy.uint8).flags.writeable = True


@pytest.mark.parametrize("write", [
    _assign, _assign_slice, _assign_cast, _assign_array, _force_array,
    ctypes.c_char.from_buffer, io.BytesIO(b"x").readinto,
    lambda view: struct.pack_into("I", view, 0, 1),
    lambda view: _assign(memoryview(view.obj)),
], ids=["item", "slice", "cast", "array", "array-made-writable", "ctypes", "readinto", "struct",
        "its-exporter"])
def test_writing_raises(write):
    [view, *_] = views_of(pattern(1))
    # ValueError is NumPy's.
    with pytest.raises((TypeError, ValueError, BufferError)):
        write(view)
    assert view == pattern(1)


def test_the_exporter_can_not_be_made_by_hand():
    [view, *_] = views_of(pattern(1))
    with pytest.raises(TypeError, match="cannot create"):
        type(view.obj)()
    with pytest.raises(TypeError):
        type(view.obj).__buffer__ = None


KEEPERS = {
    "view": lambda view: view,
    "slice": lambda view: view[PAGE // 2: PAGE // 2 + 3],
    "slice of a slice": lambda view: view[100:][::2][5:9],
    "view of the view": memoryview,
    "read-only view": lambda view: view.toreadonly(),
    "cast": lambda view: view.cast("I"),
    "array": lambda view: numpy.frombuffer(view, numpy.uint8),
    "part of an array": lambda view: numpy.frombuffer(view, numpy.uint32)[7:8],
    "array of the exporter": lambda view: numpy.asarray(view.obj),
    "exporter": lambda view: view.obj,
    "iterator": lambda view: struct.iter_unpack("I", view),
}


def content(kept):
    return list(kept) if hasattr(kept, "__next__") else memoryview(kept).tobytes()


@pytest.mark.parametrize("keeper", KEEPERS.values(), ids=KEEPERS)
def test_whatever_is_made_of_a_view_keeps_its_pages(keeper):
    before = leased()
    data = pattern(4, seed=5)
    views = views_of(data)
    kept, copies = [keeper(view) for view in views], [bytes(view) for view in views]
    assert leased() - before == len(data)
    del views
    assert leased() - before == len(data)
    receive(pattern(64, seed=6))        # what could have been taken away is used for this
    for one, copy in zip(kept, copies, strict=True):
        assert content(one) == content(keeper(memoryview(copy)))
    del kept, one
    assert leased() == before


def test_views_do_not_depend_on_the_connection_or_the_loop():
    data = pattern(16, seed=7)
    views = views_of(data)
    gc.collect()
    assert b"".join(views) == data


def test_released_views_give_their_pages_back_without_the_collector():
    before = leased()
    gc.disable()
    try:
        views = views_of(pattern(4))
        for view in views:
            view.release()
        assert pages.page_stats().leased_bytes == before
    finally:
        gc.enable()


def test_cycles_that_hold_views_are_collected():
    class Node:
        pass

    before = leased()
    data = pattern(4)
    for view in views_of(data):
        node = Node()
        node.view, node.me = view, node
        node.array = numpy.frombuffer(view, numpy.uint8)
    del view, node
    assert leased() == before


# -- used again -----------------------------------------------------------------------------


def test_used_again_a_range_never_shows_old_bytes():
    """Many connections after one another, some views of each kept."""
    kept = {}
    for seed in range(30):
        data = pattern(1 + seed % 7, seed)
        parts = receive(data)
        assert b"".join(parts) == data
        if seed % 4 == 0:
            kept[seed] = data, parts
    for data, parts in kept.values():
        assert b"".join(parts) == data


def test_what_is_let_go_of_is_given_back_within_bounds():
    """However much is received and dropped, little waits to be unmapped."""
    before = leased()
    for seed in range(6):
        receive(pattern(256, seed), on_view=lambda view: None)
        stats = pages.page_stats()
        assert stats.leased_bytes == before
        assert stats.waiting_bytes <= 2 << 20


def test_threads_with_loops_of_their_own():
    """Leasing, viewing and letting go at once; each thread's stream is right."""
    failures = []

    def work(number):
        try:
            kept = []
            for round_ in range(8):
                data = pattern(24, seed=number * 100 + round_)
                parts = receive(data)
                assert b"".join(parts) == data
                kept.append((data, parts))
                if round_ % 3 == 2:
                    kept.pop(0)
            for data, parts in kept:
                assert b"".join(parts) == data
        except BaseException as exc:
            failures.append(exc)

    before = leased()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert leased() == before


# -- bounds: in processes of their own, as a process has one arena ----------------------------


def test_a_full_arena_means_copies_in_order_until_views_are_dropped():
    run_script("""
from mapped_streams import *
config = zcloop.Config(receive="map", arena_bytes=2 << 20)
data = pattern(1024)
parts = receive(data, config)
assert b"".join(parts) == data
mapped = sum(len(part) for part in parts if isinstance(part, memoryview))
assert PAGE <= mapped <= 2 << 20, mapped
stats = pages.page_stats()
assert stats.arena_bytes == 2 << 20
assert stats.leased_bytes == mapped
assert stats.full > 0
del parts
assert leased() == 0
parts = receive(data[:PAGE * 64], config)
assert leased() >= PAGE
assert b"".join(parts) == data[:PAGE * 64]
""")


def test_the_first_size_of_the_arena_counts():
    run_script("""
from zcloop import pages
assert pages.page_stats().arena_bytes == 0
assert pages.open_arena(4 << 20) == 0
assert pages.open_arena(8 << 20) == 0
assert pages.open_arena(None) == 0
assert pages.page_stats().arena_bytes == 4 << 20
""")


def test_a_process_that_may_not_map_copies():
    """No address space for the arena: remembered, and the whole stream is copied."""
    run_script("""
import errno
from mapped_streams import *
assert pages.open_arena(1 << 62) == errno.ENOMEM
assert pages.open_arena(2 << 20) == errno.ENOMEM
data = pattern(64)
protocol = zcloop.run(serve_one(Pages, data), config=MAP)
assert b"".join(protocol.parts) == data
assert protocol.stats.bytes_mapped == 0
assert pages.page_stats().arena_bytes == 0
""")


def test_a_limit_on_address_space_leaves_room_for_the_program():
    run_script("""
import resource
from mapped_streams import *
limit = 1 << 31
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
data = pattern(64)
assert b"".join(receive(data)) == data
assert pages.page_stats().arena_bytes <= limit // 8
bytearray(limit // 4)
""")


def test_the_default_size(monkeypatch):
    unlimited = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda which: (unlimited, unlimited))
    for memory, groups, expected in [
        (64 << 30, [], 16 << 30),
        (256 << 30, [], 16 << 30),
        (8 << 30, [], 2 << 30),
        (8 << 30, [1 << 30, 4 << 30], 256 << 20),
        (8 << 30, [1 << 20], 2 << 20),
    ]:
        sizes = {"SC_PHYS_PAGES": memory // PAGE, "SC_PAGE_SIZE": PAGE}
        monkeypatch.setattr(pages.os, "sysconf", sizes.__getitem__)
        monkeypatch.setattr(pages, "_group_limits", lambda groups=groups: groups)
        assert pages.default_arena_bytes() == expected
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1 << 30, unlimited))
    monkeypatch.setattr(pages, "_group_limits", list)
    assert pages.default_arena_bytes() == 128 << 20


def test_the_limits_of_control_groups(tmp_path):
    own = tmp_path / "own"
    root = tmp_path / "root"
    inner = root / "a.slice" / "b.scope"
    inner.mkdir(parents=True)
    own.write_text("1:name=systemd:/x\n0::/a.slice/b.scope\n")
    (inner / "memory.max").write_text("max\n")
    (root / "a.slice" / "memory.max").write_text("123456\n")
    assert pages._group_limits(str(root), str(own)) == [123456]
    (inner / "memory.max").write_text("1000\n")
    (root / "memory.max").write_text("99999\n")
    assert pages._group_limits(str(root), str(own)) == [1000, 123456, 99999]
    own.write_text("0::/\n")
    assert pages._group_limits(str(root), str(own)) == [99999]
    assert pages._group_limits(str(root), str(tmp_path / "none")) == []


# -- PagesProtocol -----------------------------------------------------------------------------


def test_a_protocol_that_lacks_a_method_says_so_when_the_connection_is_made():
    class Forgot(zcloop.PagesProtocol):
        def pages_received(self, view):
            raise AssertionError("never")

    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        with pytest.raises(TypeError, match=r"^Forgot lacks get_buffer\(\) and buffer_updated\(\): "
                                            "a PagesProtocol implements "):
            await loop.create_connection(Forgot, *server.sockets[0].getsockname())
        server.close()

    zcloop.run(main())
    with pytest.raises(TypeError, match=r"^Silent lacks pages_received\(\): "):
        type("Silent", (Pages,), {"pages_received": zcloop.PagesProtocol.pages_received})()


def test_on_another_loop_it_is_a_buffered_protocol():
    data = pattern(32)

    class Plain(Pages):
        def pages_received(self, view):
            raise AssertionError("no loop but zcloop maps")

    protocol = asyncio.run(serve_one(Plain, data))
    assert b"".join(protocol.parts) == data


def test_copy_never_maps():
    data = pattern(32)
    config = zcloop.Config(receive="copy")
    protocol = zcloop.run(serve_one(Pages, data), config=config)
    assert b"".join(protocol.parts) == data
    assert protocol.stats.bytes_mapped == 0


# -- PageBuffer: pages moved in while others look ----------------------------------------------


def test_a_thread_may_read_a_page_buffer_while_pages_come():
    """Each round fills the buffer with one number, larger than the last; a reader never sees it
    go back, nor dies of a page that isn't there.  (Where bytes are copied after all it may see
    fresh memory, zeros; that mapped pages replace others whole is proved in C.)"""
    rounds, size = 60, 16 * PAGE
    buffer = zcloop.PageBuffer(size, exact=True)
    array = numpy.frombuffer(buffer, numpy.uint64)
    looking, stop, failures = threading.Event(), threading.Event(), []

    def read():
        last = numpy.zeros_like(array)
        while not stop.is_set():
            now = array.copy()
            if ((now < last) & (now != 0)).any():
                failures.append((last, now))
                return
            last = numpy.maximum(last, now)
            looking.set()

    reader = threading.Thread(target=read)
    reader.start()
    looking.wait()
    before = pages.page_stats()
    data = b"".join(numpy.full(size // 8, n, numpy.uint64).tobytes() for n in range(1, rounds + 1))
    try:
        stats = fill(buffer, data)
    finally:
        stop.set()
        reader.join()
    assert not failures, failures
    assert (array == rounds).all()
    assert pages.page_stats().adopted_bytes - before.adopted_bytes == stats.bytes_mapped
