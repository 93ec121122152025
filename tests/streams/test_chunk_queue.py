"""The queue of chunks: against plain bytes, and what it costs."""
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zcloop import chunks
from zcloop.chunks import ChunkQueue, as_bytes, uninitialised_bytes, writable

pieces = st.binary(min_size=1, max_size=12)
SEPARATORS = st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=3)
steps = st.lists(st.one_of(
    st.tuples(st.just("append"), pieces),
    st.tuples(st.just("take"), st.integers(0, 30)),
    st.tuples(st.just("take_into"), st.integers(0, 30)),
    st.tuples(st.just("take_all"), st.none()),
    st.tuples(st.just("clear"), st.none()),
), max_size=40)


def content(queue):
    """Everything in the queue, and a check of its invariants."""
    tail = queue._tail
    assert tail is None or (len(tail) > 0 and all(tail))
    assert queue._tail_size == sum(map(len, tail or ()))
    assert queue._head or (queue._pos == 0 and tail is None)
    assert queue._pos < len(queue._head) or not queue._head
    data = queue._head[queue._pos:] + b"".join(tail or ())
    assert queue._size() == len(data)
    return data


@settings(database=None, deadline=None, max_examples=300)
@given(steps, st.integers(1, 4))
def test_queue_is_bytes(steps, merge_count):
    old, chunks.MERGE_COUNT = chunks.MERGE_COUNT, merge_count
    try:
        queue, model = ChunkQueue(), b""
        for step, value in steps:
            if step == "append":
                model += value
                assert queue._append(value) == len(model)
            elif step == "take":
                value = min(value, len(model))
                taken = queue._take(value)
                assert type(taken) is bytes
                assert taken == model[:value]
                model = model[value:]
            elif step == "take_into":
                array = bytearray(value)
                count = queue._take_into(memoryview(array))
                assert count == min(value, len(model))
                assert array[:count] == model[:count]
                model = model[count:]
            elif step == "take_all":
                assert queue._take_all() == model
                model = b""
            else:
                queue._clear()
                model = b""
            assert content(queue) == model
    finally:
        chunks.MERGE_COUNT = old


def expected_find(data, separators, offset):
    ends = [(start + len(separator), start) for separator in separators
            if (start := data.find(separator, offset)) >= 0]
    if not ends:
        return None
    end = min(ends)[0]
    return next((start, end) for separator in separators
                if (start := data.find(separator, offset)) >= 0 and start + len(separator) == end)


@settings(database=None, deadline=None, max_examples=1000)
@given(st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=6), st.integers(0, 5),
       st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.data())
def test_find_is_bytes_find(parts, taken, separators, data):
    queue = ChunkQueue()
    for part in parts:
        queue._append(part.encode())
    queue._take(min(taken, queue._size()))
    separators = sorted((s.encode() for s in separators), key=len)
    whole = content(queue)
    # What lies before the offset was searched before: no separator starts and ends there.
    longest = len(separators[-1])
    searched = data.draw(st.integers(0, len(whole)))
    if expected_find(whole[:searched], separators, 0) is not None:
        searched = 0
    offset = max(0, searched + 1 - longest)
    assert queue._find(separators, offset) == expected_find(whole, separators, offset)
    assert content(queue) == whole


def test_the_only_chunk_is_handed_over_as_it_is():
    queue, chunk = ChunkQueue(), bytes(range(100))
    queue._append(chunk)
    assert queue._take(100) is chunk
    queue._append(b"before")
    queue._append(chunk)
    assert queue._take(6) == b"before"
    assert queue._take(100) is chunk


def test_single_bytes_are_merged():
    queue = ChunkQueue()
    for i in range(100_000):
        queue._append(bytes((i & 255,)))
    overhead = sum(map(sys.getsizeof, queue._tail)) - queue._tail_size
    assert overhead < queue._tail_size
    assert queue._take_all() == bytes(i & 255 for i in range(100_000))


def test_merging_moves_a_bounded_number_of_bytes():
    queue, moved, before = ChunkQueue(), 0, 0
    for _ in range(100_000):
        queue._append(b"x")
        count = len(queue._tail or ())
        if count < before:
            moved += queue._tail_size
        before = count
    assert moved < 100_000 * chunks.MERGE_SIZE


def test_no_memory_to_join_leaves_the_queue_as_it_was(monkeypatch):
    queue = ChunkQueue()
    for part in (b"12345", b"678", b"9abc"):
        queue._append(part)
    queue._take(2)

    class NoMemory(bytes):
        def join(self, parts):
            raise MemoryError

    code = ChunkQueue._take.__code__
    assert b"" in code.co_consts
    # The join is of a constant; give the function one that has no memory.
    consts = tuple(NoMemory() if const == b"" and type(const) is bytes else const
                   for const in code.co_consts)
    monkeypatch.setattr(ChunkQueue._take, "__code__", code.replace(co_consts=consts))
    with pytest.raises(MemoryError):
        queue._take(9)
    monkeypatch.undo()
    assert content(queue) == b"3456789abc"


def test_uninitialised_bytes():
    data = uninitialised_bytes(1000)
    assert type(data) is bytes and len(data) == 1000
    view = writable(data)
    view[:] = bytes(range(250)) * 4
    assert data == bytes(range(250)) * 4


@pytest.mark.parametrize("size", [2**62, sys.maxsize, 2**64 + 5, 2**80])
def test_uninitialised_bytes_of_a_size_that_can_not_be(size):
    with pytest.raises(MemoryError):
        uninitialised_bytes(size)


@pytest.mark.parametrize("size", [-1, 0, 1])
def test_bytes_that_the_interpreter_shares_are_not_given_away(size):
    with pytest.raises(ValueError, match="in place"):
        uninitialised_bytes(size)


class Sub(bytes):
    pass


@pytest.mark.parametrize("value", [
    b"ab", Sub(b"ab"), bytearray(b"ab"), memoryview(b"ab"), memoryview(b"a-b-")[::2],
    memoryview(b"abcd").cast("H"), [97, 98], (x for x in b"ab"),
], ids=str)
def test_as_bytes_takes_what_a_bytearray_does(value):
    if not hasattr(value, "__next__"):
        array = bytearray()
        array.extend(value.tobytes() if isinstance(value, memoryview) else value)
        want = bytes(array)
    else:
        want = b"ab"
    got = as_bytes(value)
    assert type(got) is bytes
    assert got == want


@pytest.mark.parametrize("value", ["text", 5, None])
def test_as_bytes_refuses_what_a_bytearray_does(value):
    with pytest.raises(TypeError):
        bytearray().extend(value)
    with pytest.raises(TypeError):
        as_bytes(value)
