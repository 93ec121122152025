"""The stream reader: asyncio's to the letter, over a queue of chunks, filling results in place.

Three ways for bytes to get from the socket into what a coroutine is given:

  *chunks*    the transport (any transport) calls ``feed_data``; chunks queue up, and reads
              take from the front of the queue;
  *fill*      a read that knows how many bytes it waits for gives the memory of its result
              to the transport, which fills it in C over as many wake-ups of the loop as
              that takes, and wakes the coroutine once;
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
from asyncio import exceptions
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .chunks import ChunkQueue, as_bytes, find_first, uninitialised_bytes, writable
from .page_memory import PAGE_BYTES, PageMemory, filled_view, put_bytes

# Reads that lack fewer bytes than this are answered from chunks: one copy of so little is
# cheaper than telling the transport about it.
FILL_MIN = 32 * 1024

# A view of fewer bytes than this is not worth memory of its own for pages: setting that up and
# giving it back costs as much as receiving a few pages.
VIEW_MIN = 64 * 1024

# Bytes that were received before and may be copied to where the pages follow them.
FLOAT_MAX = 256 * 1024

# Reads that complete without waiting never let the loop run. After this many bytes of them
# in a row the reader lets it run once, so that a fast peer cannot starve the others.
BURST_MAX = 1024 * 1024

STANDARD = object()

# The `data_received` functions that do nothing but feed the reader. Only where the
# transport's protocol has one of these may the reader take bytes past the protocol.
plain_data_received: set[Callable[..., Any]] = {asyncio.StreamReaderProtocol.data_received}


class _Fill:
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


class StreamReader(asyncio.StreamReader, ChunkQueue):
    """An `asyncio.StreamReader` that fills large results in place and keeps no ``bytearray``.

    It is used like asyncio's and behaves like it: `read`, `readexactly`, `readline`,
    `readuntil` (with a tuple of separators on every version of Python), iteration, `at_eof`,
    `exception`, `feed_data` and `feed_eof`, the limit and the back-pressure. In addition
    there are `readinto`, `readinto_exactly` and `readview`.

    A read that is cancelled or times out loses nothing and reorders nothing: what had been
    received for it is what the next read returns first. (So does ``read(-1)``, of which
    asyncio loses what it had collected.)

    `limit` (bytes) bounds `readline` and `readuntil`; the transport is paused while more
    than twice as much is waiting. A single ``readexactly(n)`` may be larger; it holds n
    bytes, once. Raises ValueError for a limit that is not positive.
    """

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

    # -- filling in place ---------------------------------------------------------------------

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
        if getattr(self.feed_data, "__func__", None) is not StreamReader.feed_data:
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
        fill = self._fill = _Fill(buf, start, stop)
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

    # -- reading ------------------------------------------------------------------------------

    async def read(self, n: int = -1) -> bytes:
        """Up to `n` bytes, as soon as there is one; ``b""`` at the end of the stream.

        Everything up to the end of the stream if `n` is negative. Raises what the connection
        was lost with, if anything, and RuntimeError if another coroutine waits already.
        """
        if self._exception is not None:
            raise self._exception
        if n == 0:
            return b""
        if n < 0:
            return await self._read_to_eof()

        if not self._head:
            if self._fill is not None and self._unfill():
                return await super().read(n)
            if not self._head and not self._eof:
                if self._paused or self._waiter is not None or self._exception is not None:
                    self._before_waiting("read")
                waiter = self._waiter = self._loop.create_future()
                try:
                    await waiter
                finally:
                    if self._waiter is waiter:
                        self._waiter = None
                if self._fill is not None and self._unfill():
                    return await super().read(n)

        head, pos = self._head, self._pos
        room = len(head) - pos
        if n < room:
            self._pos = end = pos + n
            data = head[pos:end]
        elif self._tail is None:
            self._next_chunk()
            data = head[pos:]  # the chunk itself where it is wanted whole
        else:
            data = self._take(min(n, self._size()))
        if self._paused:
            self._maybe_resume_transport()
        return data

    async def _read_to_eof(self) -> bytes:
        collected = ChunkQueue()
        try:
            while True:
                if self._exception is not None:
                    raise self._exception
                if self._fill is not None and self._unfill() and self._standard:
                    collected._append(bytes(self._standard))
                    self._standard.clear()
                while self._head:
                    collected._append(self._take(len(self._head) - self._pos))
                self._maybe_resume_transport()
                if self._eof:
                    break
                await self._wait_for_data("read")
            return collected._take_all()
        except BaseException:
            if collected._head:
                self._put_back(collected)
            raise

    def _put_back(self, collected: ChunkQueue) -> None:
        """Put what a read has collected back in front of everything else."""
        if self._fill is not None and self._unfill():
            self._standard[:0] = collected._take_all()
            return
        while self._head:
            collected._append(self._take(len(self._head) - self._pos))
        self._head, self._pos = collected._head, collected._pos
        self._tail, self._tail_size = collected._tail, collected._tail_size

    async def readexactly(self, n: int) -> bytes:
        """Exactly `n` bytes; whatever the limit is.

        The memory of a large result is what the transport receives into. Raises ValueError
        if `n` is negative, `asyncio.IncompleteReadError` (``partial``, ``expected``) if the
        stream ends before, what the connection was lost with, and RuntimeError if another
        coroutine waits already.
        """
        if n < 0:
            raise ValueError("readexactly size can not be less than zero")
        if self._exception is not None:
            raise self._exception
        if n == 0:
            return b""

        while True:
            head, pos = self._head, self._pos
            have = len(head) - pos
            if n <= have:
                if n == have:
                    self._next_chunk()
                else:
                    self._pos = pos + n
                if self._paused:
                    self._maybe_resume_transport()
                return head[pos : pos + n]
            have += self._tail_size
            if n <= have:
                data = self._take(n)
                if self._paused:
                    self._maybe_resume_transport()
                return data

            if self._fill is not None:
                if self._unfill():
                    return await super().readexactly(n)
                continue
            if self._eof:
                raise exceptions.IncompleteReadError(self._take_all(), n)
            if (n - have >= FILL_MIN or (self._views and n > 1)) and (
                transport := self._fill_transport("readexactly")
            ) is not None:
                try:
                    data = uninitialised_bytes(n)
                except MemoryError:
                    pass  # more than there is; a peer that only claims to send it does no harm
                else:
                    if await self._fill_up(transport, data, n):
                        return data
                    continue
            # `_wait_for_data`, written out: this is where small requests spend their time.
            if self._paused or self._waiter is not None or self._exception is not None:
                self._before_waiting("readexactly")
            self._need = n
            waiter = self._waiter = self._loop.create_future()
            try:
                await waiter
            except BaseException:
                if self._waiter is waiter or self._waiter is None:
                    self._stop_needing()
                raise
            finally:
                if self._waiter is waiter or self._waiter is None:
                    self._waiter = None
                    self._need = 0

    async def readinto(self, buf: Any) -> int:
        """Read into `buf` (a writable, contiguous buffer) as soon as there is a byte; how many.

        0 at the end of the stream, and for an empty buffer. Raises TypeError for a buffer
        that is read-only or not contiguous, and what `read` raises.
        """
        view = _byte_view(buf)
        if self._exception is not None:
            raise self._exception
        if not view:
            return 0

        if not self._head:
            if self._fill is not None and self._unfill():
                return _copy_into(view, await super().read(len(view)))
            if not self._head and not self._eof:
                await self._wait_for_data("readinto")
                if self._fill is not None and self._unfill():
                    return _copy_into(view, await super().read(len(view)))

        nbytes = self._take_into(view)
        if self._paused:
            self._maybe_resume_transport()
        return nbytes

    async def readinto_exactly(self, buf: Any) -> int:
        """Fill the whole of `buf` (a writable, contiguous buffer); its size in bytes.

        Raises `asyncio.IncompleteReadError` if the stream ends before, with what came as
        ``partial``; TypeError for a buffer that is read-only or not contiguous; and what
        `readexactly` raises. Unless it returns, the content of `buf` is undefined; no byte
        of the stream is lost.
        """
        view = _byte_view(buf)
        n = len(view)
        if self._exception is not None:
            raise self._exception

        while True:
            have = self._size()
            if n <= have:
                self._take_into(view)
                if self._paused:
                    self._maybe_resume_transport()
                return n
            if self._fill is not None:
                if self._unfill():
                    return _copy_into(view, await super().readexactly(n))
                continue
            if self._eof:
                raise exceptions.IncompleteReadError(self._take_all(), n)
            if (
                n - have >= FILL_MIN
                and (transport := self._fill_transport("readinto_exactly")) is not None
            ):
                if await self._fill_up(transport, view, n):
                    return n
            else:
                await self._wait_for_data("readinto_exactly", n)

    async def readview(self, n: int) -> memoryview:
        """Exactly `n` bytes as one read-only, contiguous view, which may be kept.

        Where the stream has whole pages and `Config.receive` allows it, its memory is the
        kernel's, received without a copy, and otherwise that of a `bytes`. Raises like
        `readexactly`.
        """
        if n < 0:
            raise ValueError("readview size can not be less than zero")
        if n >= VIEW_MIN:
            view = await self._read_pages(n)
            if view is not None:
                return view
        return memoryview(await self.readexactly(n))

    async def _read_pages(self, n: int) -> memoryview | None:
        """`readview` by way of memory that pages can be moved into; None: not here, not now."""
        while self._exception is None and not self._eof:
            if self._fill is not None:
                if self._unfill():
                    return None
                continue
            have = self._size()
            transport = self._fill_transport("readview") if have < n else None
            self._views = transport is not None and transport._can_map()
            if not self._views or have > FLOAT_MAX or n - have < max(have, FILL_MIN):
                return None
            try:
                memory = PageMemory(n + PAGE_BYTES)
            except (MemoryError, OverflowError):
                return None
            if await self._fill_up(transport, memory, n):
                return filled_view(memory, n)
        return None

    async def readline(self) -> bytes:
        """One line with its ``b"\\n"``; without one if the stream ends first; ``b""`` at its end.

        Raises ValueError for a line longer than the limit, which is then removed if all of it
        has arrived; otherwise everything received is. Raises what `read` raises.
        """
        head, pos = self._head, self._pos
        end = head.find(b"\n", pos) + 1
        if pos < end <= pos + self._limit + 1 and self._exception is None:
            if end == len(head):
                self._next_chunk()
            else:
                self._pos = end
            if self._paused:
                self._maybe_resume_transport()
            return head[pos:end]

        try:
            return await self.readuntil(b"\n")
        except exceptions.IncompleteReadError as exc:
            return exc.partial
        except exceptions.LimitOverrunError as exc:
            self._drop_long_line(exc.consumed)
            self._maybe_resume_transport()
            raise ValueError(exc.args[0])  # noqa: B904 (asyncio's has no __cause__)

    def _drop_long_line(self, length: int) -> None:
        """Remove a line of `length` and its end, or everything if its end is not there."""
        if self._fill is STANDARD:
            if self._standard.startswith(b"\n", length):
                del self._standard[: length + 1]
            else:
                self._standard.clear()
        elif self._find((b"\n",), length) == (length, length + 1):
            self._cut(length + 1)
        else:
            self._clear()

    async def readuntil(self, separator: Any = b"\n") -> bytes:
        """What comes up to and including `separator` (bytes, or a tuple of them: the shortest).

        Raises `asyncio.LimitOverrunError` (``consumed``) if that is, or will be, longer than
        the limit without the separator; nothing is removed then. Raises
        `asyncio.IncompleteReadError` (``partial``) if the stream ends first. Raises
        ValueError for an empty separator or no separator, and what `read` raises.
        """
        # Of two separators that end in one place the shorter one is the match.
        separators = sorted(separator, key=len) if isinstance(separator, tuple) else [separator]
        if not separators:
            raise ValueError("Separator should contain at least one element")
        shortest, longest = len(separators[0]), len(separators[-1])
        if shortest == 0:
            raise ValueError("Separator should be at least one-byte string")
        if self._exception is not None:
            raise self._exception

        offset = 0  # no separator starts before it
        while True:
            if self._fill is not None:
                self._unfill()
            size = self._waiting()
            if size < offset:
                offset = 0  # somebody has changed the buffer
            if size - offset >= shortest:
                if self._standard is None:
                    found = self._find(separators, offset)
                else:
                    found = find_first(separators, self._standard, offset)
                if found is not None:
                    break
                offset = max(0, size + 1 - longest)
                if offset > self._limit:
                    raise exceptions.LimitOverrunError(
                        "Separator is not found, and chunk exceed the limit", offset
                    )
            if self._eof:
                raise exceptions.IncompleteReadError(self._remove(size), None)
            head, pos = self._head, self._pos
            await self._wait_for_data("readuntil")
            if self._head is not head or self._pos != pos:
                offset = 0  # somebody else has read: what was looked at has moved

        start, end = found
        if start > self._limit:
            raise exceptions.LimitOverrunError(
                "Separator is found, but chunk is longer than limit", start
            )
        data = self._remove(end)
        if self._paused:
            self._maybe_resume_transport()
        return data

    def _remove(self, nbytes: int) -> bytes:
        """Remove and return the first `nbytes`, whichever way they are kept."""
        if self._standard is None:
            return self._take(nbytes)
        data = bytes(self._standard[:nbytes])
        del self._standard[:nbytes]
        return data

    async def __anext__(self) -> bytes:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line


def _byte_view(buf: Any) -> memoryview:
    """A view of `buf` as bytes. Raises TypeError if it is read-only or not contiguous."""
    view = memoryview(buf).cast("B")
    if view.readonly:
        raise TypeError("a writable buffer is required")
    return view


def _copy_into(view: memoryview, data: bytes) -> int:
    view[: len(data)] = data
    return len(data)
