"""Writes that go without a copy: sent, followed while the kernel reads them, let go.

The kernel copies what it takes of other writes, so that their memory is let go as soon as it
was taken; that of a :class:`Flight` (zerocopy.py) is held until the error queue says so.  A
flight is sent by itself, in its turn.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .engine import GIL_HELD_MAX, ffi, lib
from .pieces import Piece, own
from .states import ConnState
from .zerocopy import Flight, ZeroCopy

if TYPE_CHECKING:
    from .transport import StreamTransport

    _Self = StreamTransport
else:
    _Self = Any

__all__ = ["REAP_EVERY", "Flights"]

REAP_EVERY = 16
"""Sends without a copy after which the error queue is read: the kernel merges what waits there."""

_REAP_DELAY = 0.01
"""Seconds after which it is read otherwise, when nobody waits for it."""

_CALL_MAX = 2 * 1024 * 1024
"""Bytes of one such send: what is asked counts as locked memory, also what isn't taken."""

_from_buffer = ffi.from_buffer
_send = lib.zc_send


class Flights:
    """Mixed into the transport, which holds the fields; those named here are of this file."""

    __slots__ = ()

    if TYPE_CHECKING:
        _plain_max: int  # bytes up to which a write needs no second thought
        _zerocopy: ZeroCopy | None
        _zerocopy_min: int

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
        if reason:
            lib.zc_zerocopy_fallback(self._c, self._slot, reason)
        return not reason

    def _fly(self: _Self, data: Piece, size: int) -> None:
        """Send without a copy, now: nothing is before it, and it may."""
        zerocopy = self._zerocopy
        assert zerocopy is not None
        # One call is enough for most: what the kernel takes whole needs no Flight.
        if zerocopy.settled and type(data) is bytes and size <= _CALL_MAX:
            sent = lib.zc_send_whole(self._c, self._slot, id(data), size, size > GIL_HELD_MAX)
            zerocopy.unreaped += 1
            if sent == size:
                if zerocopy.unreaped >= REAP_EVERY:
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
        flight = Flight(own(data), size)
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
                    zerocopy.unreaped = REAP_EVERY  # it has completed already
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
