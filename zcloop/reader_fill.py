"""Filling a read's result in place: the transport receives straight into its memory.

The reads that know how many bytes they wait for begin a fill here; what may happen to one
before it is complete is the buffer's business (reader_buffer.py, with the invariants).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .chunks import writable
from .page_memory import PageMemory, put_bytes
from .reader_buffer import Fill, ReaderBuffer

# Reads that complete without waiting never let the loop run. After this many bytes of them
# in a row the reader lets it run once, so that a fast peer cannot starve the others.
BURST_MAX = 1024 * 1024

# The `data_received` functions that do nothing but feed the reader. Only where the
# transport's protocol has one of these may the reader take bytes past the protocol.
plain_data_received: set[Callable[..., Any]] = {asyncio.StreamReaderProtocol.data_received}


class FillingReader(ReaderBuffer):
    """The part of a `StreamReader` that has results filled."""

    def _fill_transport(self, name: str) -> Any:
        """The transport, if it can fill memory for this reader now; else None.

        Raises what `_before_waiting` raises.

        Asked anew every time: programs change a transport's protocol (TLS over it), pause it
        by hand, subclass and patch, and in each case the bytes must take the usual way.
        """
        transport = self._transport
        if not hasattr(type(transport), "_fill_begin") or transport.is_closing():
            return None
        protocol = transport.get_protocol()
        receives = getattr(getattr(protocol, "data_received", None), "__func__", None)
        if receives not in plain_data_received or protocol._stream_reader is not self:
            return None
        if getattr(self.feed_data, "__func__", None) is not ReaderBuffer.feed_data:
            return None
        self._before_waiting(name)
        if not getattr(transport, "_can_fill", True):
            return None
        return transport if transport.is_reading() else None

    async def _fill_up(
        self, transport: Any, buf: bytes | memoryview | PageMemory, stop: int
    ) -> bool:
        """Move the queue into `buf` and have `transport` fill the rest, up to `stop`.

        `buf` is a writable view of bytes, ``bytes`` that nobody has seen, or page memory; the
        queue holds less than `stop`. True when ``buf[:stop]`` is full. False when it did not
        come to that: then everything is in the queue, and the caller looks there again.
        """
        if isinstance(buf, PageMemory):
            start = put_bytes(buf, self._take_all()) if self._head else 0
        else:
            start = self._take_into(writable(buf) if isinstance(buf, bytes) else buf)
        fill = self._fill = Fill(buf, start, stop)
        try:
            end = transport._fill_begin(buf, start, stop, self._fill_done)
            if end == stop:
                fill.end = stop
                if self._views:
                    self._pause_transport()
                self._burst += stop - start
                if self._burst >= BURST_MAX:
                    self._burst = 0
                    self._pause_transport()
                    await asyncio.sleep(0)
            else:
                fill.transport = transport
                self._burst = 0
                waiter = self._waiter = self._loop.create_future()
                try:
                    await waiter
                finally:
                    if self._waiter is waiter:
                        self._waiter = None
        except BaseException:
            if self._fill is fill:
                self._unfill()
            raise
        if self._fill is not fill:
            return False
        if fill.transport is not None:  # woken by a caller of private methods
            self._unfill()
            return False
        self._fill = None
        if self._paused and not self._views:
            self._maybe_resume_transport()
        return True

    def _fill_done(self, end: int) -> None:
        """The transport's word that it fills no more: ``buf[:end]`` is full.

        Short of `stop` that is because of the end of file, an error or a change of protocol.
        The reader is not woken for it: what comes next wakes it.
        """
        fill = self._fill
        if end == fill.stop:
            fill.transport = None
            fill.end = end
            # Until the coroutine has run, and perhaps asked for the next result to be filled
            # in place too, more would only arrive as chunks, which are copied.
            self._pause_transport()
            self._wakeup_waiter()
        else:
            self._fill = None
            if end:
                self._head = fill.chunk(end)
