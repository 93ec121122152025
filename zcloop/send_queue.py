"""The queue of what the kernel didn't take at once, and its flushing.

Ownership: the queue holds ``bytes``, or read-only views of ``bytes``, and nothing
else, so the caller may change a mutable buffer after ``write`` returned; except for
a :class:`Flight` (flights.py).  A partial send moves a position (``_head``), it never copies
what is left.  The kernel copies what it takes, so a piece is let go as soon as it was taken.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from .engine import GIL_HELD_MAX, ffi, lib, os_error
from .flights import REAP_EVERY
from .pieces import Piece
from .states import ConnState
from .zerocopy import Flight

if TYPE_CHECKING:
    from .transport import StreamTransport

    _Self = StreamTransport
else:
    _Self = Any

__all__ = ["SendQueue"]

_IOV_MAX = lib.zc_iov_max()
_IOV_SMALL = 8 * 1024
"""Pieces below this are joined: copying them costs less than describing them."""

_from_buffer = ffi.from_buffer
_send = lib.zc_send
_Queued = Piece | Flight


class SendQueue:
    """Mixed into the transport, which holds the fields; those named here are of this file."""

    __slots__ = ()

    if TYPE_CHECKING:
        _queue: deque[_Queued] | None
        _queued: int
        _head: int

    def _on_writable(self: _Self) -> None:
        if self._file_writer is not None:
            self._file_writer()
        elif self._queued and not self._conn_lost:
            self._context.run(self._flush)

    def _need_queue(self: _Self) -> deque[_Queued]:
        if self._queue is None:
            self._queue = deque()
        return self._queue

    def _append(self: _Self, piece: _Queued, size: int) -> None:
        """Queue it last; if nothing is before it, offer it to the kernel."""
        first = not self._queued and self._slot >= 0
        self._direct = False
        self._need_queue().append(piece)
        self._queued += size
        if first:
            self._flush()
        else:
            self._maybe_pause_protocol()

    def _flush(self: _Self) -> None:
        """Offer the queue to the kernel until it is empty or the kernel is full.

        Releasing a buffer runs anybody's code, and so does each allocation (the collector) and
        each call (a signal's handler).  Such code may write, which only appends, and it may
        abort, upon which the queue isn't ours any more: look after every step.
        """
        queue = self._need_queue()
        while queue:
            first = queue[0]
            if type(first) is Flight:
                asked, sent = self._send_flight(first)
            elif len(queue) == 1:
                asked = len(first) - self._head
                send = _send if asked <= GIL_HELD_MAX else lib.zc_send_nogil
                sent = send(self._c, self._slot, _from_buffer(first) + self._head, asked)
            else:
                asked, sent = self._send_vector(queue)
            if self._queue is not queue:
                return
            if sent < 0:
                self._fail_queue(os_error(sent))
                return
            self._consume(queue, sent)
            if sent < asked:
                break
            if type(first) is Flight and (not queue or queue[0] is not first):
                self._end_flight(first)
                if self._queue is not queue:
                    return
        zerocopy = self._zerocopy
        if zerocopy is not None and zerocopy.unreaped >= REAP_EVERY:
            self._reap()
        if not self._conn_lost:
            self._after_flush()

    def _send_vector(self: _Self, queue: deque[_Queued]) -> tuple[int, int]:
        """One vectored send of the queue's front; returns bytes asked and sent."""
        c = self._c
        put = lib.zc_iov_put
        keep: list[Any] = []  # what the vector points to, alive until the call is over
        small: list[Piece] = []
        asked = count = 0

        def add(piece: Piece) -> None:
            nonlocal count
            pointer = _from_buffer(piece)
            keep.append(pointer)
            put(c, count, pointer, len(piece))
            count += 1

        def add_small() -> None:
            if small:
                add(small[0] if len(small) == 1 else b"".join(small))
                small.clear()

        for i in range(len(queue)):  # an iterator wouldn't bear that something is appended
            piece = queue[i]
            if count + 2 > _IOV_MAX or type(piece) is Flight:
                break
            if not asked and self._head:
                piece = memoryview(piece)[self._head :]
            asked += len(piece)
            if len(piece) < _IOV_SMALL:
                small.append(piece)
            else:
                add_small()
                add(piece)
        add_small()
        send = lib.zc_sendv if asked <= GIL_HELD_MAX else lib.zc_sendv_nogil
        return asked, int(send(c, self._slot, count))

    def _consume(self: _Self, queue: deque[_Queued], count: int) -> None:
        """Drop from the queue what the kernel took; no call comes between the fields."""
        self._queued -= count
        if not self._queued:
            self._head = 0
            queue.clear()
            return
        count += self._head
        while count >= len(queue[0]):
            count -= len(queue.popleft())
        self._head = count

    def _after_flush(self: _Self) -> None:
        if self._queued:
            if not self._protocol_paused:
                self._maybe_pause_protocol()
            elif self._queued <= self._low_water:
                self._maybe_resume_protocol()
            return
        if self._protocol_paused:
            self._maybe_resume_protocol()  # may write again
            if self._queued:
                return
        self._direct = not self._hindered and not self._conn_lost
        if self._empty_waiter is not None and not self._empty_waiter.done():
            self._empty_waiter.set_result(None)
        if self._state is ConnState.CLOSING:
            self._lose(None)
        elif self._eof:
            self._shutdown_write()

    def _fail_queue(self: _Self, exc: OSError) -> None:
        waiter = self._empty_waiter
        self._fatal_error(exc, "Fatal write error on socket transport")
        if waiter is not None and not waiter.done():
            waiter.set_exception(exc)

    def _drop_queue(self: _Self, exc: BaseException | None) -> None:
        queue, self._queue = self._queue, None
        self._queued = self._head = 0
        for piece in queue or ():
            if type(piece) is Flight:
                piece.error = (
                    exc if isinstance(exc, OSError) else ConnectionResetError("Connection lost")
                )
                self._end_flight(piece)
