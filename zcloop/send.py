"""The sending half of a connection: what the kernel doesn't take at once is queued.

Rule: a write goes out at once, except inside an engine's batch, where the small
writes of one callback are corked (in C) and leave together when it returns.

Ownership: the queue holds ``bytes``, or read-only views of ``bytes``, and nothing
else, so the caller may change a mutable buffer after ``write`` returned.  A
partial send moves a position (``_head``), it never copies what is left.  The
kernel copies what it takes, so a piece is let go as soon as it was taken; except
for a :class:`Flight` that goes without a copy (zerocopy.py), which is held until the kernel
says so.  A flight is sent by itself, in its turn.
"""

from __future__ import annotations

import asyncio
import errno
from asyncio.log import logger
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .engine import GIL_HELD_MAX, Engine, ffi, lib, os_error
from .states import ConnState
from .zerocopy import NEVER, Flight, ZeroCopy, fixed

if TYPE_CHECKING:
    import contextvars

    from .transport import StreamTransport

    _Self = StreamTransport
else:
    _Self = Any

__all__ = ["SendHalf"]

_JOIN_MAX = 4 * 1024
"""Bytes up to which several pieces are joined instead of described one by one."""

_HIGH_WATER = 64 * 1024
_LOST_WRITES_LOGGED_FROM = 5  # as asyncio.constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES
_IOV_MAX = lib.zc_iov_max()
_IOV_SMALL = 8 * 1024
"""Pieces below this are joined: copying them costs less than describing them."""

_REAP_EVERY = 16
"""Sends without a copy after which the error queue is read: the kernel merges what waits there."""

_REAP_DELAY = 0.01
"""Seconds after which it is read otherwise, when nobody waits for it."""

_CALL_MAX = 2 * 1024 * 1024
"""Bytes of one such send: what is asked counts as locked memory, also what isn't taken."""

_from_buffer = ffi.from_buffer
_send = lib.zc_send
_write = lib.zc_write
_Piece = bytes | memoryview
_Queued = _Piece | Flight


def _own(data: Any) -> _Piece:
    """The data as something immutable, copied only if somebody could change it.

    Its buffer is asked for once, and nothing else of it: what a subclass answers to ``bytes()``
    or ``len()`` is anything, and to a second view perhaps something else (PEP 688).
    """
    if type(data) is bytes:
        return data
    view = memoryview(data)
    if view.readonly and type(view.obj) is bytes and view.c_contiguous:
        return view.cast("B")
    return view.tobytes()


def _flat(view: memoryview) -> _Piece:
    """A view's bytes one by one, copied if they aren't in a row."""
    return view.cast("B") if view.c_contiguous and view.nbytes else view.tobytes()


def _sizeable(data: Any) -> bytes | bytearray | memoryview:
    """What may be sent as it is, or a copy: of what is small, strided or of a subclass."""
    kind = type(data)
    if kind is bytes:
        return data  # type: ignore[no-any-return]
    with memoryview(data) as view:
        if view.nbytes > _JOIN_MAX and view.c_contiguous and kind in (bytearray, memoryview):
            return data  # type: ignore[no-any-return]
        return view.tobytes()


class SendHalf:
    """Mixed into the transport, which holds the fields."""

    __slots__ = ()

    if TYPE_CHECKING:
        _loop: Any
        _engine: Engine
        _c: Any
        _slot: int
        _state: ConnState
        _context: contextvars.Context
        _protocol: Any
        _queue: deque[_Queued] | None
        _queued: int
        _head: int
        _direct: bool  # nothing queued, lost, half-closed or given to sendfile
        _eof: bool
        _hindered: bool
        _conn_lost: int
        _high_water: int
        _low_water: int
        _protocol_paused: bool
        _empty_waiter: asyncio.Future[None] | None
        _kind: tuple[int, int, int]
        _plain_max: int  # bytes up to which a write needs no second thought
        _zerocopy: ZeroCopy | None
        _zerocopy_min: int
        _fatal_error: Any
        _lose: Any
        _route_key: Any
        _bound_linger: Any

    # -- writing --------------------------------------------------------------

    def write(self: _Self, data: bytes | bytearray | memoryview) -> None:
        """Send, or queue what the kernel doesn't take now.

        Raises :exc:`TypeError` for what isn't bytes-like and :exc:`RuntimeError`
        after :meth:`write_eof` or while a sendfile is in progress.
        """
        if type(data) is not bytes:
            if not isinstance(data, (bytes, bytearray, memoryview)):
                raise TypeError(
                    f"data argument must be a bytes-like object, not {type(data).__name__!r}"
                )
            if self._direct and len(data) <= _JOIN_MAX:
                data = memoryview(data).tobytes()
        if self._direct and type(data) is bytes and len(data) <= self._plain_max:
            size = len(data)
            sent = _write(self._c, self._slot, data, size)
            if sent == size:
                return
            if sent == -errno.EBUSY:
                self._engine.unstick()
                self.write(data)
            else:
                self._sent_short(data, size, sent)
            return
        self._write_checked(data)

    def _write_checked(self: _Self, data: bytes | bytearray | memoryview) -> None:
        """A write that is large, not of plain bytes, or not to go out now."""
        if self._hindered:
            self._check_writable()
        if type(data) is not bytes:
            data = _sizeable(data)
            if self._direct and type(data) is bytes:
                self.write(data)
                return
        if type(data) is bytes and not data:
            return
        if self._conn_lost:
            self._count_lost_write()
            return
        if not self._queued and self._slot >= 0:
            self._engine.uncork()  # may leave a rest of ours in the queue, or lose the connection
            if self._conn_lost:
                return
        if self._queued or self._slot < 0:
            piece = _own(data)
            size = len(piece)
            self._append(Flight(piece, size) if size >= self._zerocopy_min else piece, size)
            return
        buffer = _from_buffer(data)  # from here on nobody can resize it
        size = len(buffer)
        if size >= self._zerocopy_min and fixed(data) and self._may_fly():
            self._fly(data, size)
            return
        sent = lib.zc_send_nogil(self._c, self._slot, buffer, size)
        if sent != size:
            rest = _own(data) if sent >= 0 else b""
            del buffer  # the caller's again, should pause_writing() resize it
            self._sent_short(rest, size, sent)

    def _sent_short(self: _Self, piece: _Piece, size: int, sent: int) -> None:
        """The kernel took ``sent`` bytes, or failed: what is left waits, owned by us."""
        if sent < 0:
            self._fatal_error(os_error(sent), "Fatal write error on socket transport")
            return
        self._direct = False
        self._queued = size - sent
        self._need_queue().append(piece)
        self._head = sent
        self._maybe_pause_protocol()

    def _on_cork_stuck(self: _Self, rest: bytes, error: int) -> None:
        """What was corked, or a part of it, is still ours."""
        if self._conn_lost:
            return
        if error:
            self._fatal_error(os_error(error), "Fatal write error on socket transport")
            return
        self._direct = False
        self._need_queue().appendleft(rest)
        self._queued += len(rest)
        self._maybe_pause_protocol()

    def writelines(self: _Self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send the pieces with one vectored call; only small ones are joined.

        Raises like :meth:`write`, and then sends none of them.
        """
        if self._hindered:
            self._check_writable()
        pieces = []
        total = 0
        for data in list_of_data:
            if not isinstance(data, (bytes, bytearray, memoryview)):
                raise TypeError(
                    f"data argument must be a bytes-like object, not {type(data).__name__!r}"
                )
            piece = _own(data)
            if piece:
                pieces.append(piece)
                total += len(piece)
        if not pieces:
            return
        if self._conn_lost:
            self._count_lost_write()
            return
        if total <= _JOIN_MAX and len(pieces) > 1:
            # Describing small pieces costs more than copying them, and corks don't take vectors.
            self.write(b"".join(pieces))
            return
        self._engine.uncork()
        if self._conn_lost:
            return
        was_waiting = self._queued
        large = self._zerocopy_min
        self._need_queue().extend(
            Flight(piece, len(piece)) if len(piece) >= large else piece for piece in pieces
        )
        self._queued += total
        self._direct = False
        if was_waiting:
            self._maybe_pause_protocol()
        else:
            self._flush()

    def write_zerocopy(self: _Self, data: Any) -> asyncio.Future[None]:
        """Send a buffer that isn't copied, where the kernel can; in order with :meth:`write`.

        ``data`` is any C-contiguous buffer, also a mutable one.  It stays exported (a
        ``bytearray`` can't be resized) and must not be changed until the returned future is
        done, with None: then the kernel has let go of it.  Cancelling the future
        ends the waiting only.  Where a copy has to be made (a small buffer, ``send="copy"``,
        a route on which the kernel copies anyway, a unix socket) the future is done once the
        kernel has taken all of it.  If the connection is lost before that, the future has
        that :exc:`OSError`, or :exc:`ConnectionResetError`.

        Raises :exc:`TypeError` for what isn't a buffer, :exc:`BufferError` for one that isn't
        C-contiguous, and otherwise as :meth:`write`.
        """
        if self._hindered:
            self._check_writable()
        view = memoryview(data)
        if not view.c_contiguous:
            raise BufferError("write_zerocopy() needs a C-contiguous buffer")
        future: asyncio.Future[None] = self._loop.create_future()
        flight = Flight(view if view.nbytes else None, view.nbytes, future)
        if self._conn_lost:
            flight.error = ConnectionResetError("Connection lost")
            self._count_lost_write()
        if self._conn_lost or not flight.size:
            flight.let_go()
            return future
        if not self._queued and self._slot >= 0:
            self._engine.uncork()
            if self._conn_lost:
                flight.error = ConnectionResetError("Connection lost")
                flight.let_go()
                return future
        self._append(flight, flight.size)
        return future

    def _check_writable(self: _Self) -> None:
        if self._eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._empty_waiter is not None:
            raise RuntimeError("unable to write; sendfile is in progress")

    def _count_lost_write(self: _Self) -> None:
        if self._conn_lost >= _LOST_WRITES_LOGGED_FROM:
            logger.warning("socket.send() raised exception.")
        self._conn_lost += 1

    # -- the queue ------------------------------------------------------------

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
        if zerocopy is not None and zerocopy.unreaped >= _REAP_EVERY:
            self._reap()
        if not self._conn_lost:
            self._after_flush()

    def _send_vector(self: _Self, queue: deque[_Queued]) -> tuple[int, int]:
        """One vectored send of the queue's front; returns bytes asked and sent."""
        c = self._c
        put = lib.zc_iov_put
        keep: list[Any] = []  # what the vector points to, alive until the call is over
        small: list[_Piece] = []
        asked = count = 0

        def add(piece: _Piece) -> None:
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

    # -- without a copy -------------------------------------------------------

    def _may_fly(self: _Self) -> bool:
        """Whether a write that is large enough may go without a copy; counts why not."""
        zerocopy = self._zerocopy
        if zerocopy is None:
            mode = self._loop._config.send
            if mode == "pages":
                lib.zc_zerocopy_whole_pages(self._c, self._slot)
            zerocopy = self._zerocopy = ZeroCopy(self._route_key(), mode in ("zerocopy", "pages"))
        reason = zerocopy.hindrance()
        if not reason and lib.zc_zerocopy_prepare(self._c, self._slot):
            reason = lib.ZC_FALLBACK_UNSUPPORTED
            zerocopy.not_tried()
            self._zerocopy_min = NEVER
            self._plain_max = GIL_HELD_MAX
        if reason:
            lib.zc_zerocopy_fallback(self._c, self._slot, reason)
        return not reason

    def _fly(self: _Self, data: _Piece, size: int) -> None:
        """Send without a copy, now: nothing is before it, and it may."""
        zerocopy = self._zerocopy
        assert zerocopy is not None
        # One call is enough for most: what the kernel takes whole needs no Flight.
        if zerocopy.settled and type(data) is bytes and size <= _CALL_MAX:
            sent = lib.zc_send_whole(self._c, self._slot, id(data), size, size > GIL_HELD_MAX)
            zerocopy.unreaped += 1
            if sent == size:
                if zerocopy.unreaped >= _REAP_EVERY:
                    self._reap()
                return
            if sent < 0:
                self._sent_short(data, size, sent)
                return
            flight = Flight(data, size)
            flight.zero = True
            self._direct = False
            self._need_queue().append(flight)
            self._queued, self._head = size - sent, sent
            self._maybe_pause_protocol()
            return
        flight = Flight(_own(data), size)
        flight.zero = True
        self._append(flight, size)

    def _send_flight(self: _Self, flight: Flight) -> tuple[int, int]:
        """One send of the flight at the queue's front; returns bytes asked and sent."""
        left = flight.size - self._head
        if flight.zero is None:
            flight.zero = flight.size >= self._zerocopy_min and self._may_fly()
        zerocopy = self._zerocopy
        if not flight.zero or zerocopy is None:
            send = _send if left <= GIL_HELD_MAX else lib.zc_send_nogil
            start = _from_buffer(flight.data) + self._head
            return left, int(send(self._c, self._slot, start, left))
        if self._state is not ConnState.OPEN:
            self._bound_linger()
        asked = min(left, _CALL_MAX)
        number = zerocopy.number_of(flight)
        sent = lib.zc_send_held(
            self._c, self._slot, id(flight.data), number, self._head, asked, asked > GIL_HELD_MAX
        )
        zerocopy.unreaped += 1
        return asked, int(sent)

    def _end_flight(self: _Self, flight: Flight) -> None:
        """No more of it will be sent: it ends now, or when the kernel has let go of it."""
        zerocopy = self._zerocopy
        if flight.zero and zerocopy is not None:
            state = lib.zc_zerocopy_seal(self._c, self._slot)
            if state >= 0:
                zerocopy.waiting += flight.future is not None
                if not state:
                    zerocopy.unreaped = _REAP_EVERY  # it has completed already
                return
            zerocopy.flying.pop(flight.number, None)
            zerocopy.not_tried()
        flight.let_go()

    def _on_completed(self: _Self) -> None:
        zerocopy = self._zerocopy
        assert zerocopy is not None
        if zerocopy.eager or self._state is not ConnState.OPEN:
            self._reap()
        elif zerocopy.timer is None:
            zerocopy.timer = self._loop.call_later(_REAP_DELAY, self._on_reap_due)

    def _on_reap_due(self: _Self) -> None:
        zerocopy = self._zerocopy
        if zerocopy is not None:
            zerocopy.timer = None
            if self._slot >= 0:
                self._reap()

    def _reap(self: _Self) -> int:
        """Let go of what the kernel has let go of; returns how many sends are outstanding."""
        zerocopy = self._zerocopy
        assert zerocopy is not None
        zerocopy.unreaped = 0
        done: list[int] = []
        left = lib.zc_release_completed(self._c, self._slot, id(done))
        zerocopy.waiting -= len(done)
        counters = lib.zc_conn_counters(self._c, self._slot)
        zerocopy.judge(
            counters.zerocopy_completed,
            counters.zerocopy_copied,
            lambda: self._state is ConnState.OPEN and lib.zc_conn_is_up(self._c, self._slot),
        )
        for number in done:
            zerocopy.flying.pop(number).let_go()
        return int(left)

    # -- giving the socket to sendfile ----------------------------------------

    def _make_empty_waiter(self: _Self) -> asyncio.Future[None]:
        """A future that is done when the queue is empty; until it is reset, writes are refused."""
        if self._empty_waiter is not None:
            raise RuntimeError("Empty waiter is already set")
        self._engine.uncork()
        self._empty_waiter = self._loop.create_future()
        self._hindered = True
        self._direct = False
        if not self._queued:
            self._empty_waiter.set_result(None)
        return self._empty_waiter

    def _reset_empty_waiter(self: _Self) -> None:
        self._empty_waiter = None
        self._hindered = self._eof
        self._direct = not (self._eof or self._queued or self._conn_lost)
        if self._state is ConnState.CLOSING and not self._queued:
            self._lose(None)

    # -- half-close -----------------------------------------------------------

    def can_write_eof(self) -> bool:
        """Whether :meth:`write_eof` is supported: always."""
        return True

    def write_eof(self: _Self) -> None:
        """Half-close the connection once what is queued was sent."""
        if self._state >= ConnState.CLOSING or self._eof:
            return
        if self._empty_waiter is not None:
            raise RuntimeError("unable to write; sendfile is in progress")
        self._engine.uncork()
        self._eof = self._hindered = True
        self._direct = False
        if not self._queued:
            self._shutdown_write()

    def _shutdown_write(self: _Self) -> None:
        if self._slot < 0:
            return  # _start comes here again
        error = lib.zc_shutdown_write(self._c, self._slot)
        if error and self._loop.get_debug():
            # The peer may have reset the connection; the reading half says so.
            logger.debug("%r: shutdown(SHUT_WR) failed: %s", self, os_error(error))

    # -- backpressure ---------------------------------------------------------

    def get_write_buffer_size(self: _Self) -> int:
        """Bytes that the kernel hasn't taken yet."""
        return self._queued

    def get_write_buffer_limits(self: _Self) -> tuple[int, int]:
        """Low and high water marks, in bytes."""
        return (self._low_water, self._high_water)

    def set_write_buffer_limits(
        self: _Self, high: int | None = None, low: int | None = None
    ) -> None:
        """Set the marks in bytes; raises :exc:`ValueError` unless high >= low >= 0."""
        if high is None:
            high = _HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_water = high
        self._low_water = low
        self._maybe_pause_protocol()

    def _maybe_pause_protocol(self: _Self) -> None:
        if self._queued <= self._high_water or self._protocol_paused:
            return
        self._protocol_paused = True
        self._tell_protocol("pause_writing")

    def _maybe_resume_protocol(self: _Self) -> None:
        if self._protocol_paused and self._queued <= self._low_water:
            self._protocol_paused = False
            self._tell_protocol("resume_writing")

    def _tell_protocol(self: _Self, callback: str) -> None:
        try:
            # A copy: a write may come from within the connection's own context.
            self._context.copy().run(getattr(self._protocol, callback))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self._loop.call_exception_handler(
                {
                    "message": f"protocol.{callback}() failed",
                    "exception": exc,
                    "transport": self,
                    "protocol": self._protocol,
                }
            )
