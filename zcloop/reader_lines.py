"""Reading up to a separator. Every byte is searched once, however many chunks it came in."""

from __future__ import annotations

from asyncio import exceptions
from typing import Any

from .chunks import find_first
from .reader_buffer import STANDARD, ReaderBuffer


class LineReader(ReaderBuffer):
    """The part of a `StreamReader` that finds where lines end."""

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
            self._drop(length + 1)
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
