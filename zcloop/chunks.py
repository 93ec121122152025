"""The queue of received chunks that a stream reader reads from, and the memory it fills.

asyncio's reader keeps one ``bytearray``: every chunk is copied to its end, every read is
copied out of its front, and glibc maps, trims and unmaps it as it grows and shrinks. Here
a chunk stays the ``bytes`` object that the transport made; reading moves an index. A chunk
that is wanted whole is handed over as it is.

The first chunk is kept apart from the others because nearly every read is answered from
it alone, and because a connection that never has two chunks waiting then needs no deque
(600 bytes, which counts with thousands of idle connections).
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Iterable, Sequence

# Chunks waiting behind the first one are merged when there are more than MERGE_COUNT of
# them and one for every MERGE_SIZE bytes: a peer that sends single bytes must not cost 40
# bytes of object for each. A call moves at most about MERGE_SIZE bytes for that, averaged.
MERGE_COUNT = 256
MERGE_SIZE = 512

# A bytes object has a header in front of its data; ask for no size that cannot have one.
_LARGEST = sys.maxsize - 4096

_PyBUF_WRITE = 0x200

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)
_new_bytes.restype = ctypes.py_object

_view_of_memory = ctypes.pythonapi.PyMemoryView_FromMemory
_view_of_memory.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t, ctypes.c_int)
_view_of_memory.restype = ctypes.py_object


def uninitialised_bytes(nbytes: int) -> bytes:
    """A new ``bytes`` of `nbytes` (at least 2), whose content nobody has written yet.

    Nobody else may see it before it has been filled through `writable`: until then it
    holds whatever the memory held before. `bytes(nbytes)` would clear it first, which for
    1 MiB costs about as much as receiving it. (C API: PyBytes_FromStringAndSize(NULL, n).)

    Raises MemoryError, also for a size that no object can have. Sizes 0 and 1 are refused
    (ValueError): those objects are shared by the whole interpreter.
    """
    if nbytes < 2:
        raise ValueError(f"not a size to fill in place: {nbytes}")
    if nbytes > _LARGEST:  # ctypes would cut it to 64 bits and succeed with another size
        raise MemoryError(f"cannot allocate {nbytes} bytes")
    data: bytes = _new_bytes(None, nbytes)
    return data


def writable(data: bytes) -> memoryview:
    """A writable view of `data`, which must come from `uninitialised_bytes` and be unseen.

    The view does not keep `data` alive: the caller holds it for as long as the view.
    """
    view: memoryview = _view_of_memory(data, len(data), _PyBUF_WRITE)
    return view


def as_bytes(data: object) -> bytes:
    """What ``bytearray.extend(data)`` would append, as ``bytes`` of exactly that type.

    Raises what ``bytearray.extend`` raises (TypeError for a ``str`` or an ``int``).
    """
    if isinstance(data, (bytes, bytearray, memoryview)):
        return memoryview(data).tobytes()
    array = bytearray()
    array.extend(data)  # type: ignore[arg-type]
    return bytes(array)


class ChunkQueue:
    """A queue of bytes, appended in chunks and taken in any sizes. A mix-in, and usable alone.

    Invariants:
      - ``_head`` is empty if and only if the whole queue is, and then ``_pos`` is 0;
      - otherwise ``_head[_pos:]`` is not empty and is the front of the queue;
      - ``_tail`` is None or a deque that is not empty, of ``bytes`` that are not empty;
        ``_tail_size`` is the sum of their lengths.
    """

    _head: bytes
    _pos: int
    _tail: deque[bytes] | None
    _tail_size: int

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        """Forget everything."""
        self._head = b""
        self._pos = 0
        self._tail = None
        self._tail_size = 0

    def _size(self) -> int:
        """Bytes in the queue."""
        return len(self._head) - self._pos + self._tail_size

    def _append(self, chunk: bytes) -> int:
        """Add `chunk`, which is not empty; the bytes in the queue afterwards."""
        if not self._head:
            self._head = chunk
            return len(chunk)
        tail = self._tail
        if tail is None:
            self._tail = deque((chunk,))
            self._tail_size = len(chunk)
        else:
            tail.append(chunk)
            self._tail_size += len(chunk)
            if len(tail) > MERGE_COUNT + self._tail_size // MERGE_SIZE:
                self._tail = deque((b"".join(tail),))
        return len(self._head) - self._pos + self._tail_size

    def _next_chunk(self) -> None:
        """Drop the first chunk, all of which has been taken."""
        tail = self._tail
        self._pos = 0
        if tail is None:
            self._head = b""
        else:
            self._head = head = tail.popleft()
            self._tail_size -= len(head)
            if not tail:
                self._tail = None

    def _take(self, nbytes: int) -> bytes:
        """Remove and return the first `nbytes`, of which there must be as many.

        One copy, and none where the first chunk is exactly what is wanted. Raises MemoryError,
        and then the queue is as it was.
        """
        head, pos = self._head, self._pos
        room = len(head) - pos
        if nbytes < room:
            data = head[pos : pos + nbytes]
        elif nbytes == room:
            data = head[pos:]  # the object itself where pos is 0
        else:
            data = b"".join(self._front(nbytes))
        self._drop(nbytes)
        return data

    def _take_all(self) -> bytes:
        """Remove and return everything."""
        return self._take(self._size())

    def _take_into(self, view: memoryview) -> int:
        """Move as much as there is, and as fits, into `view` (bytes); how many bytes."""
        nbytes = min(len(view), self._size())
        start = 0
        for piece in self._front(nbytes):
            stop = start + len(piece)
            view[start:stop] = piece
            start = stop
        self._drop(nbytes)
        return nbytes

    def _front(self, nbytes: int) -> list[bytes | memoryview]:
        """The first `nbytes` (there must be as many) as pieces; nothing is copied or removed."""
        if not nbytes:
            return []
        head, pos = self._head, self._pos
        end = min(pos + nbytes, len(head))
        whole = pos == 0 and end == len(head)
        pieces: list[bytes | memoryview] = [head if whole else memoryview(head)[pos:end]]
        nbytes -= end - pos
        for chunk in self._tail or ():
            if not nbytes:
                break
            pieces.append(chunk if len(chunk) <= nbytes else memoryview(chunk)[:nbytes])
            nbytes -= len(pieces[-1])
        return pieces

    def _drop(self, nbytes: int) -> None:
        """Remove the first `nbytes`, of which there must be as many."""
        while nbytes:
            room = len(self._head) - self._pos
            if nbytes < room:
                self._pos += nbytes
                return
            nbytes -= room
            self._next_chunk()

    def _find(self, separators: Sequence[bytes], offset: int) -> tuple[int, int] | None:
        """Where the separator that ends first starts and ends, looking from `offset` on.

        `separators` are sorted by length, shortest first; of two that end at one place the
        shorter is the one. None when there is none. Every byte is looked at once; one that
        may belong to a separator cut by the end of its chunk, once more.
        """
        overlap = len(separators[-1]) - 1
        low = self._pos + offset
        if low < len(self._head):
            found = find_first(separators, self._head, low)
            if found is not None or self._tail is None:
                return found and (found[0] - self._pos, found[1] - self._pos)
            base = len(self._head) - self._pos
            before = self._head[max(low, len(self._head) - overlap) :]
            chunks: Iterable[bytes] = self._tail
        else:
            base = offset
            before = b""
            chunks = self._end_of_tail(self._size() - offset)
        for chunk in chunks:
            window = before + chunk if before else chunk
            found = find_first(separators, window, 0)
            if found is not None:
                base -= len(before)
                return base + found[0], base + found[1]
            base += len(chunk)
            if overlap:
                before = window[-overlap:]
        return None

    def _end_of_tail(self, nbytes: int) -> list[bytes]:
        """The last `nbytes` of the queue, which are in the tail, in pieces; nothing is removed.

        Walks from the back: a reader that looks again at every chunk for the end of a long
        line must not walk over all the chunks that it has looked at already.
        """
        pieces = []
        for chunk in reversed(self._tail or ()):
            if nbytes <= 0:
                break
            pieces.append(chunk if len(chunk) <= nbytes else chunk[-nbytes:])
            nbytes -= len(chunk)
        pieces.reverse()
        return pieces


def find_first(
    separators: Sequence[bytes], data: bytes | bytearray, low: int
) -> tuple[int, int] | None:
    """Start and end of the separator that ends first in ``data[low:]``, or None."""
    found = None
    high = len(data)
    for separator in separators:
        start = data.find(separator, low, high)
        if start >= 0:
            end = start + len(separator)
            found = start, end
            high = end - 1  # a longer one must end earlier than this one
    return found
