"""The stream reader: asyncio's to the letter, over a queue of chunks, filling results in place.

What was received, and how it is waited for, is in reader_buffer.py; filling in place in
reader_fill.py; lines in reader_lines.py. Here are the reads of a number of bytes: each takes
from the queue what is there, has the rest filled where that pays, and otherwise waits.
"""

from __future__ import annotations

from asyncio import exceptions
from operator import index
from typing import Any

from .chunks import ChunkQueue, uninitialised_bytes
from .page_memory import PAGE_BYTES, PageMemory, filled_view
from .reader_fill import FillingReader
from .reader_lines import LineReader

# Reads that lack fewer bytes than this are answered from chunks: one copy of so little is
# cheaper than telling the transport about it.
FILL_MIN = 32 * 1024

# A view of fewer bytes than this is not worth memory of its own for pages: setting that up and
# giving it back costs as much as receiving a few pages.
VIEW_MIN = 64 * 1024

# Bytes that were received before and may be copied to where the pages follow them.
FLOAT_MAX = 256 * 1024


class StreamReader(FillingReader, LineReader):
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

    async def read(self, n: int = -1) -> bytes:
        """Up to `n` bytes, as soon as there is one; ``b""`` at the end of the stream.

        Everything up to the end of the stream if `n` is negative. Raises what the connection
        was lost with, if anything, and RuntimeError if another coroutine waits already.
        """
        if self._exception is not None:
            raise self._exception
        if type(n) is not int:
            n = index(n)  # a float would fail later, with bytes in hand
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
        # Each is taken before it is removed: without memory for it, it stays.
        if n < room:
            data = head[pos : pos + n]
            self._pos = pos + n
        elif self._tail is None:
            data = head[pos:]  # the chunk itself where it is wanted whole
            self._next_chunk()
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
        if type(n) is not int:
            n = index(n)
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
                data = head[pos : pos + n]  # first: without memory for it, it stays
                if n == have:
                    self._next_chunk()
                else:
                    self._pos = pos + n
                if self._paused:
                    self._maybe_resume_transport()
                return data
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
        if type(n) is not int:
            n = index(n)
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


def _byte_view(buf: Any) -> memoryview:
    """A view of `buf` as bytes. Raises TypeError if it is read-only or not contiguous."""
    view = memoryview(buf).cast("B")
    if view.readonly:
        raise TypeError("a writable buffer is required")
    return view


def _copy_into(view: memoryview, data: bytes) -> int:
    view[: len(data)] = data
    return len(data)
