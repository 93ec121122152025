"""What a stream reader has received and not yet given out: kept, fed, bounded, waited for.

The bytes are in one of three places:

  *chunks*    the transport (any transport) calls ``feed_data``; chunks queue up, and reads
              take from the front of the queue (chunks.py);
  *fill*      a read that knows how many bytes it waits for gives the memory of its result
              to the transport, which fills it in C over as many wake-ups of the loop as
              that takes, and wakes the coroutine once (reader_fill.py);
  *standard*  asyncio's own code over a real ``bytearray``, for programs that take hold of
              ``reader._buffer``: from that moment on, and for ever, for that reader.

Invariants:
  - A fill is attached (``_fill``) only while the queue is empty, no end of file was seen
    and no exception set. What was queued has moved into the fill's memory, in front. So
    nothing can overtake: whoever wants to add to the stream, or to read from it, first
    turns the fill back into the first chunk of the queue (`_unfill`). The waiting coroutine
    finds its fill gone when it wakes, and looks at the queue again.
  - A fill that is complete stays attached until its coroutine takes it. A coroutine that
    is cancelled in that moment thus loses nothing either.
  - While views are read (``_views``), the transport is paused whenever nobody reads, and small
    reads are fills too: what comes as chunks was copied, and the pages behind it would begin
    in the middle of a page.
  - ``_fill is STANDARD`` if and only if ``_standard`` is not None, and for ever after it was
    once; the queue is empty then.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .chunks import ChunkQueue, as_bytes
from .page_memory import PageMemory, filled_view

STANDARD = object()


class Fill:
    """Memory that is filled up to ``buf[:stop]``; ``buf[:end]`` is known to be full.

    `transport` is the one that fills it, and None before and after: only then is `end` exact.
    """

    __slots__ = ("buf", "end", "stop", "transport")

    def __init__(self, buf: bytes | memoryview | PageMemory, end: int, stop: int) -> None:
        self.buf = buf
        self.end = end
        self.stop = stop
        self.transport: Any = None

    def chunk(self, end: int) -> bytes:
        """``buf[:end]`` as bytes that stay what they are; no copy for a whole result."""
        buf = self.buf
        if isinstance(buf, PageMemory):
            return bytes(filled_view(buf, end))
        return buf[:end] if type(buf) is bytes else bytes(buf[:end])


class ReaderBuffer(asyncio.StreamReader, ChunkQueue):
    """The part of a `StreamReader` that the protocol feeds and the reading methods stand on."""

    if TYPE_CHECKING:  # asyncio's own, private fields
        _limit: int
        _loop: asyncio.AbstractEventLoop
        _eof: bool
        _waiter: asyncio.Future[None] | None
        _exception: BaseException | None
        _transport: Any
        _paused: bool

        def _wakeup_waiter(self) -> None: ...

    def __init__(self, limit: int = 2**16, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._fill: Any = STANDARD  # so that asyncio's constructor can set its _buffer
        super().__init__(limit, loop)
        self._start()

    def _start(self) -> None:
        """Be a fast reader with nothing received yet. asyncio's own fields are set already."""
        self._standard: Any = None
        self._clear()
        self._fill = None
        self._need = 0  # do not wake the waiter before this many bytes are queued
        self._burst = 0
        self._views = False  # pages are read: nothing may be received that wasn't asked for

    # -- asyncio's private parts that programs touch ------------------------------------------

    @property
    def _buffer(self) -> bytearray:
        """What was received and not yet read. Taking it puts the reader on the standard path."""
        if self._fill is not STANDARD:
            self._leave_fast_path()
        buffer: bytearray = self._standard
        return buffer

    @_buffer.setter
    def _buffer(self, value: bytearray) -> None:
        if self._fill is not STANDARD:
            self._leave_fast_path()
        self._standard = value

    def _leave_fast_path(self) -> None:
        """Work like asyncio's reader, over a real ``bytearray``, from now on."""
        if self._fill is not None:
            self._unfill()
        self._standard = bytearray(self._take_all())
        self._fill = STANDARD

    def _unfill(self) -> bool:
        """Turn the fill back into the queue's first chunk. True if the reader is on STANDARD."""
        fill = self._fill
        if fill is STANDARD:
            return True
        self._fill = None
        end = fill.end if fill.transport is None else fill.transport._fill_cancel()
        if end:
            self._head = fill.chunk(end)
        if self._paused:
            self._maybe_resume_transport()
        elif self._waiter is None and end > 2 * self._limit:
            self._pause_transport()
        return False

    def __repr__(self) -> str:
        info = ["StreamReader"]
        if size := self._waiting():
            info.append(f"{size} bytes")
        if self._eof:
            info.append("eof")
        if self._limit != 2**16:
            info.append(f"limit={self._limit}")
        if self._waiter:
            info.append(f"waiter={self._waiter!r}")
        if self._exception:
            info.append(f"exception={self._exception!r}")
        if self._transport:
            info.append(f"transport={self._transport!r}")
        if self._paused:
            info.append("paused")
        return "<{}>".format(" ".join(info))

    def _waiting(self) -> int:
        """Bytes received and not yet read, without those of a fill that is under way."""
        fill = self._fill
        if fill is None:
            return self._size()
        return len(self._standard) if fill is STANDARD else fill.end

    def at_eof(self) -> bool:
        """True if everything was read and the end of the stream has been seen."""
        return self._eof and not self._waiting()

    # -- fed by the protocol, or by hand ------------------------------------------------------

    def feed_data(self, data: Any) -> None:
        """Add `data` (bytes-like) to what can be read. Never after `feed_eof` (AssertionError)."""
        assert not self._eof, "feed_data after feed_eof"
        if not data:
            return
        if self._fill is not None and self._unfill():
            super().feed_data(data)
            return
        if type(data) is not bytes:
            data = as_bytes(data)

        if not self._head:
            self._head = data
            size = len(data)
        else:
            size = self._append(data)

        waiter = self._waiter
        if waiter is not None:
            if size < self._need:
                return  # too little for it; nor is it too much, so the transport goes on
            self._waiter = None
            if not waiter.cancelled():
                waiter.set_result(None)
        if size > 2 * self._limit:
            self._pause_transport()

    def feed_eof(self) -> None:
        """Mark the end of the stream."""
        if self._fill is not None:
            self._unfill()
        super().feed_eof()

    def set_exception(self, exc: BaseException) -> None:
        """Make this read, and every later one, raise `exc`."""
        if self._fill is not None:
            self._unfill()
        super().set_exception(exc)  # type: ignore[arg-type]

    def _pause_transport(self) -> None:
        if self._paused or self._transport is None:
            return
        try:
            self._transport.pause_reading()
        except NotImplementedError:
            self._transport = None  # it cannot be paused: everything is buffered
        else:
            self._paused = True

    def _maybe_resume_transport(self) -> None:
        if self._paused and self._waiting() <= self._limit:
            self._paused = False
            self._transport.resume_reading()

    def _follow_transport(self, transport: Any) -> None:
        """Go on with another transport (TLS over the one before); what was received stays."""
        if self._fill is not None:
            self._unfill()
        if self._paused:
            # TLS reads through the transport below, which nobody else would resume.
            self._paused = False
            self._transport.resume_reading()
        self._transport = transport
        if self._waiting() > 2 * self._limit and self._waiter is None:
            self._pause_transport()

    # -- waiting ------------------------------------------------------------------------------

    def _before_waiting(self, name: str) -> None:
        """Let the transport read, whatever is buffered: somebody is about to wait for more.

        Raises RuntimeError if another coroutine waits already. Raises what the connection
        was lost with: where that came together with the data that woke the reader, nothing
        would wake it again.
        """
        if self._waiter is not None:
            raise RuntimeError(
                f"{name}() called while another coroutine is already waiting for incoming data"
            )
        if self._exception is not None:
            raise self._exception
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    async def _wait_for_data(self, func_name: str, need: int = 0) -> None:
        """Wait until more arrives and at least `need` bytes are queued, or for the end of file.

        Raises what `_before_waiting` raises, and what `set_exception` sets.
        """
        assert not self._eof, "_wait_for_data after EOF"
        self._before_waiting(func_name)
        self._need = need
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        except BaseException:
            # Data may have come after the cancellation, and another reader then, too: it
            # waits for what it needs, and the transport must go on.
            if self._waiter is waiter or self._waiter is None:
                self._stop_needing()
            raise
        finally:
            if self._waiter is waiter or self._waiter is None:
                self._waiter = None
                self._need = 0

    def _stop_needing(self) -> None:
        """A read was cancelled that waited for much: what it waited for is a backlog now."""
        if self._waiting() > 2 * self._limit:
            self._pause_transport()
