"""The sending half of a connection: what the kernel doesn't take at once is queued.

Rule: a write goes out at once, except inside an engine's batch, where the small
writes of one callback are corked (in C) and leave together when it returns.

The queue is in send_queue.py, which says who owns what, sending without a copy in flights.py,
the water marks in flow_control.py.
"""

from __future__ import annotations

import asyncio
import errno
from asyncio.log import logger
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .engine import Engine, ffi, lib, os_error
from .flights import Flights
from .flow_control import FlowControl
from .pieces import JOIN_MAX, Piece, own, sizeable
from .send_queue import SendQueue
from .states import ConnState
from .zerocopy import Flight, fixed

if TYPE_CHECKING:
    import contextvars

    from .transport import StreamTransport

    _Self = StreamTransport
else:
    _Self = Any

__all__ = ["SendHalf"]

_LOST_WRITES_LOGGED_FROM = 5  # as asyncio.constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES
_from_buffer = ffi.from_buffer
_write = lib.zc_write


class SendHalf(SendQueue, Flights, FlowControl):
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
        _direct: bool  # nothing queued, lost, half-closed or given to sendfile
        _eof: bool
        _hindered: bool
        _conn_lost: int
        _empty_waiter: asyncio.Future[None] | None
        _kind: tuple[int, int, int]
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
            if self._direct and len(data) <= JOIN_MAX:
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
            data = sizeable(data)
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
            piece = own(data)
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
            rest = own(data) if sent >= 0 else b""
            del buffer  # the caller's again, should pause_writing() resize it
            self._sent_short(rest, size, sent)

    def _sent_short(self: _Self, piece: Piece, size: int, sent: int) -> None:
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
            piece = own(data)
            if piece:
                pieces.append(piece)
                total += len(piece)
        if not pieces:
            return
        if self._conn_lost:
            self._count_lost_write()
            return
        if total <= JOIN_MAX and len(pieces) > 1:
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

    def _check_writable(self: _Self) -> None:
        if self._eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._empty_waiter is not None:
            raise RuntimeError("unable to write; sendfile is in progress")

    def _count_lost_write(self: _Self) -> None:
        if self._conn_lost >= _LOST_WRITES_LOGGED_FROM:
            logger.warning("socket.send() raised exception.")
        self._conn_lost += 1

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
