"""The receiving half of a connection: from the engine's records to the protocol.

Where bytes go is decided when it changes, not when they come:

=================  ==============================================================
protocol           path
=================  ==============================================================
``Protocol``       the engine receives into its scratch area; the record's bytes
                   become one ``bytes`` of their exact size
``BufferedProtocol`` the engine says that bytes wait; one ``recv`` goes straight
                   into the buffer that the protocol gives; where that is a
                   ``PageBuffer``, pages are moved into it instead
``PagesProtocol``  the same, but pages that can be mapped are handed over as views
a fill             the engine receives into the reader's result until it is full
=================  ==============================================================

Invariant: after ``pause_reading()`` the protocol gets nothing, not even what
the same batch has already taken out of the socket; that waits in ``_stash``
and comes first on resumption.
"""

from __future__ import annotations

import asyncio
import operator
import socket
from asyncio.log import logger
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .engine import GIL_HELD_MAX, Engine, ffi, lib, os_error
from .mapping import enable, recall, remember
from .page_memory import PageMemory, memory_of, put_bytes
from .pages import PagesProtocol
from .states import ConnState

if TYPE_CHECKING:
    import contextvars

    from .transport import StreamTransport

    _Self = StreamTransport
else:
    _Self = Any

__all__ = ["ReceiveHalf", "wants_buffers"]

_CHARS = ffi.typeof("char[]")
_from_buffer = ffi.from_buffer
_MAPPABLE = (int(socket.AF_INET), int(socket.AF_INET6))
_TCP = (0, int(socket.IPPROTO_TCP))
_LOWAT_MAX = 2**31 - 1
_OPEN = ConnState.OPEN
_SHAPE_SIZE_HINT = 256 * 1024
_DATA_MODE = lib.ZC_MODE_DATA
_BUFFERED_MODE = lib.ZC_MODE_BUFFERED


def wants_buffers(protocol: Any) -> bool:
    """Whether a protocol is of the buffered kind, by type or, as uvloop has it, by shape."""
    return isinstance(protocol, asyncio.BufferedProtocol) or (
        hasattr(protocol, "get_buffer") and not isinstance(protocol, asyncio.Protocol)
    )


class ReceiveHalf:
    """Mixed into the transport, which holds the fields."""

    __slots__ = ()

    if TYPE_CHECKING:
        _loop: Any
        _engine: Engine
        _slot: int
        _state: ConnState
        _context: contextvars.Context
        _protocol: Any
        _buffered: bool
        _paused: bool
        _read_eof: bool
        _stash: list[bytes] | None
        _fill: Callable[[int], object] | None
        _fill_keep: Any
        _fill_start: int
        _maps: bool | None
        _read_lowat: int
        _c: Any

        def _fatal_error(self, exc: BaseException, message: str) -> None: ...
        def close(self) -> None: ...

    # -- who gets the bytes ---------------------------------------------------

    def _route(self: _Self) -> None:
        """Point the engine's records for this slot at the protocol of now."""
        protocol = self._protocol
        self._buffered = wants_buffers(protocol)
        if self._slot < 0:
            return
        engine = self._engine
        engine.mute(self._slot)
        # After the end of the stream only an error can come, which the engine finds out itself.
        wants_buffers_now = self._buffered and not self._read_eof
        if self._state is _OPEN and not self._read_eof:
            if self._paused or self._stash:
                engine.sinks[self._slot] = self._put_aside
            elif self._buffered:
                engine.sinks[self._slot] = self._copy_into_buffers
                # asyncio's hint is -1; protocols of that shape only, as uvloop takes
                # them, may want uvloop's, which is a size.
                by_type = isinstance(protocol, asyncio.BufferedProtocol)
                run: Any = self._context.run
                reader: tuple[Any, ...] = (
                    partial(run, protocol.get_buffer),
                    -1 if by_type else _SHAPE_SIZE_HINT,
                    partial(run, protocol.buffer_updated),
                    self._wants_pages,
                )
                if isinstance(protocol, PagesProtocol) and self._wants_pages():
                    reader += (partial(run, protocol.pages_received),)
                engine.readers[self._slot] = reader
            else:
                engine.sinks[self._slot] = partial(self._context.run, protocol.data_received)
                engine.readers[self._slot] = self._report_anew
        mode = _BUFFERED_MODE if wants_buffers_now else _DATA_MODE
        lib.zc_conn_set_mode(engine.c, self._slot, mode)

    def _wants_pages(self: _Self) -> bool:
        """There is memory that pages can go to: have the engine map, where that pays."""
        if self._maps is None and self._slot >= 0:
            engine = self._engine
            if not engine.mapping:
                engine.mapping = enable(engine, engine.receive, engine.arena_bytes)
            self._maps = (
                engine.mapping == "on" and self._kind[0] in _MAPPABLE and self._kind[2] in _TCP
            )
            if self._maps:
                lib.zc_conn_set_map(engine.c, self._slot, recall(self._route_key()))
        return bool(self._maps)

    def _expect_page_buffers(self: _Self) -> None:
        """A protocol that may lend one: open the window before the peer can meet its edge.

        Before ``connection_made``, which may ask the peer for its first message.
        """
        if (
            wants_buffers(self._protocol)
            and not isinstance(self._protocol, (PagesProtocol, SSLProtocol))
            and self._wants_pages()
            and lib.zc_conn_open_window(self._c, self._slot)
        ):
            self._engine.windows_opened += 1

    def _can_map(self: _Self) -> bool:
        """Whether page memory would be mapped into now: else a copy is better made elsewhere."""
        return self._wants_pages() and bool(lib.zc_conn_may_map(self._c, self._slot))

    def _remember_route(self: _Self) -> None:
        """What this connection has learned is of use to the next one from there."""
        if lib.zc_conn_counters(self._c, self._slot).map_calls:
            remember(self._route_key(), lib.zc_conn_map_level(self._c, self._slot))

    def set_read_lowat(self: _Self, nbytes: int) -> None:
        """Wake the protocol only when at least ``nbytes`` wait (SO_RCVLOWAT, socket(7)).

        A promise of the caller that the peer will send as many without being answered:
        fewer wake nobody, ever, except with the end of the stream, an error or a full
        receive buffer.  The kernel caps it at half of that buffer, which it lets
        grow.  1 is the default.  A read of a stream that knows what it waits for sets
        its own for as long as it lasts.  Raises :exc:`ValueError` below 1 and
        :exc:`OSError` where the socket doesn't take it.
        """
        nbytes = operator.index(nbytes)
        if not 1 <= nbytes <= _LOWAT_MAX:
            raise ValueError(f"nbytes={nbytes}: valid are 1 to {_LOWAT_MAX}")
        self._read_lowat = nbytes
        if self._slot >= 0 and (code := lib.zc_set_idle_lowat(self._c, self._slot, nbytes)):
            raise os_error(code)

    def _report_anew(self: _Self) -> None:
        """The record says that a buffer is wanted, but the protocol has changed since."""
        if lib.zc_conn_resume(self._engine.c, self._slot):
            self._engine.schedule_poll()

    def _put_aside(self: _Self, data: bytes) -> None:
        if self._stash is None:
            self._stash = []
        self._stash.append(data)

    def _copy_into_buffers(self: _Self, data: bytes) -> None:
        """Bytes that were received before the protocol became a buffered one."""
        self._context.run(self._copy_into_buffers_in_context, data)

    def _copy_into_buffers_in_context(self: _Self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                if not self._buffered or self._state is not _OPEN or self._paused:
                    # The protocol changed its mind midway: the rest stays first in line.
                    self._put_back(rest)
                    self._schedule_stash()
                    self._route()
                    return
                protocol = self._protocol
                buffer = protocol.get_buffer(len(rest))
                if not len(buffer):
                    raise RuntimeError("get_buffer() returned an empty buffer")
                count = put_bytes(buffer, rest)
                rest = rest[count:]
                protocol.buffer_updated(count)  # of whose buffer it is, whoever is the protocol now
        except (SystemExit, KeyboardInterrupt):
            self._put_back(rest)  # the loop may run again
            raise

    def _put_back(self: _Self, data: bytes | memoryview) -> None:
        """Bytes that come before all that is stashed."""
        if data:
            self._stash = [bytes(data), *(self._stash or ())]

    def _on_callback_failed(
        self: _Self, callback: str | None, exc: BaseException, rest: bytes | None = None
    ) -> None:
        """A callback raised; ``rest`` was received before and not handed on any more."""
        if isinstance(exc, (SystemExit, KeyboardInterrupt)):
            if rest:
                self._put_back(rest)
            if self._stash:
                self._schedule_stash()
                self._route()
            elif self._slot >= 0 and not self._paused:
                self._report_anew()  # a buffer's bytes still wait, and no edge will say so
            raise exc
        if callback == "data_received" and self._buffered:
            callback = "buffer_updated"
        self._fatal_error(
            exc,
            f"Fatal error: protocol.{callback}() call failed."
            if callback
            else "Fatal read error on socket transport",
        )

    # -- records --------------------------------------------------------------

    def _on_error(self: _Self, exc: OSError) -> None:
        self._fatal_error(exc, "Fatal read error on socket transport")

    def _on_eof(self: _Self) -> None:
        # One turn of the loop may read the last bytes and their end.  What data_received() has
        # scheduled runs in between all the same, as on asyncio: servers start their handlers there.
        self._loop.call_soon(self._receive_eof, context=self._context)

    def _receive_eof(self: _Self) -> None:
        # Paused in the meantime: resuming reports it again.
        if self._paused or self._state is not _OPEN or self._stash or self._read_eof:
            return
        self._read_eof = True
        if self._loop.get_debug():
            logger.debug("%r received EOF", self)
        try:
            keep_open = self._protocol.eof_received()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self._fatal_error(exc, "Fatal error: protocol.eof_received() call failed.")
            return
        if not keep_open:
            self.close()
        elif self._slot >= 0:
            self._route()

    # -- pausing --------------------------------------------------------------

    def is_reading(self: _Self) -> bool:
        """Whether the protocol will be given what arrives."""
        return not self._paused and self._state <= _OPEN

    def pause_reading(self: _Self) -> None:
        """Give the protocol nothing more until :meth:`resume_reading`."""
        if not self.is_reading():
            return
        self._paused = True
        if self._slot >= 0:
            lib.zc_conn_pause(self._engine.c, self._slot)
            self._engine.mute(self._slot)
            self._engine.sinks[self._slot] = self._put_aside
        if self._loop.get_debug():
            logger.debug("%r pauses reading", self)

    def resume_reading(self: _Self) -> None:
        """Undo :meth:`pause_reading`; what arrived meanwhile comes first."""
        if not self._paused or self._state > _OPEN:
            return
        self._paused = False
        if self._stash:
            self._schedule_stash()
        elif self._slot >= 0:
            self._resume_engine()
        if self._loop.get_debug():
            logger.debug("%r resumes reading", self)

    def _resume_engine(self: _Self) -> None:
        self._route()
        if not self._read_eof and lib.zc_conn_resume(self._engine.c, self._slot):
            self._engine.schedule_poll()

    def _schedule_stash(self: _Self) -> None:
        if self._slot >= 0:
            lib.zc_conn_pause(self._engine.c, self._slot)
        self._loop.call_soon(self._deliver_stash, context=self._context)

    def _deliver_stash(self: _Self) -> None:
        """What a pause held back, in order, before anything newer."""
        while self._stash:
            if self._paused or self._state is not _OPEN:
                return
            data = self._stash.pop(0)
            try:
                if self._buffered:
                    self._copy_into_buffers_in_context(data)
                else:
                    self._protocol.data_received(data)
            except (SystemExit, KeyboardInterrupt):
                self._schedule_stash()
                raise
            except BaseException as exc:
                self._on_callback_failed("data_received", exc)
                return
        if not self._paused and self._state is _OPEN:
            self._resume_engine()

    # -- filling a reader's result in place -----------------------------------

    @property
    def _can_fill(self: _Self) -> bool:
        """Not while a batch is handed on: bytes of ours may be in it, and must come first."""
        return not self._engine.batching

    def _fill_begin(
        self: _Self, buf: Any, start: int, stop: int, done: Callable[[int], object]
    ) -> int:
        """Receive into ``buf[start:stop]`` until it is full.

        ``buf`` is ``bytes`` that nobody has seen, a writable buffer, or page memory of
        ``stop`` bytes and a page, whose first ``start`` are in place.
        Returns the index one past the last byte that was there already; when
        that is ``stop``, the fill is over.  Otherwise ``done(end)`` is called
        once, later, in the connection's context: with ``stop``, or with less when the stream
        ended, failed or was closed first.  Until then nothing is given to the
        protocol, and ``buf`` belongs to the engine.
        """
        if self._fill is not None:
            raise RuntimeError("a fill is already under way")
        if self._paused:
            self.resume_reading()
        at = start
        if self._stash:
            at = self._fill_from_stash(buf, start, stop)
            if at == stop:
                return at
        if self._slot < 0 or self._state is not _OPEN or self._read_eof:
            self._fill, self._fill_start = done, at
            self._loop.call_soon(self._end_fill_unfinished, done, context=self._context)
            return at
        if isinstance(buf, PageMemory):
            keep: Any = memory_of(buf)
            count = int(lib.zc_fill_begin_pages_nogil(self._c, self._slot, keep, at, stop))
            at = 0  # it counts from the beginning of the result
        else:
            keep = _from_buffer(_CHARS, buf, not isinstance(buf, bytes))
            begin = lib.zc_fill_begin_nogil if stop - at > GIL_HELD_MAX else lib.zc_fill_begin
            count = int(begin(self._c, self._slot, keep + at, stop - at))
        if count < 0:
            raise os_error(count)
        if at + count < stop:
            self._fill, self._fill_keep, self._fill_start = done, (buf, keep), at
            self._engine.fills += 1
            self._engine.schedule_poll_if_pending()
        return at + count

    def _fill_from_stash(self: _Self, buf: Any, start: int, stop: int) -> int:
        at = start
        assert self._stash is not None
        while self._stash and at < stop:
            data = self._stash[0]
            take = min(len(data), stop - at)
            ffi.memmove(_from_buffer(_CHARS, buf) + at, data, take)
            if take == len(data):
                self._stash.pop(0)
            else:
                self._stash[0] = data[take:]
            at += take
        return at

    def _fill_cancel(self: _Self) -> int:
        """Stop filling; returns the index one past the last byte filled."""
        if self._fill is None:
            raise RuntimeError("no fill is under way")
        self._fill = None
        if self._fill_keep is None:
            return self._fill_start
        self._fill_keep = None
        self._engine.fills -= 1
        end = self._fill_start + int(lib.zc_fill_end(self._engine.c, self._slot))
        self._engine.schedule_poll_if_pending()
        return end

    def _on_filled(self: _Self) -> None:
        done = self._fill
        if done is not None:
            self._context.run(done, self._fill_cancel())

    def _abandon_fill(self: _Self) -> None:
        """The fill can't go on: take the memory back now, and tell the reader soon."""
        done = self._fill
        if done is not None and self._fill_keep is not None:
            self._end_native_fill()
            self._loop.call_soon(self._end_fill_unfinished, done, context=self._context)

    def _end_native_fill(self: _Self) -> None:
        """Take the memory back; until the reader was told it may still cancel."""
        done = self._fill
        self._fill_start = self._fill_cancel()
        self._fill = done

    def _end_fill_unfinished(self: _Self, done: Callable[[int], object]) -> None:
        if self._fill is done and self._fill_keep is None:
            done(self._fill_cancel())
